"""What marks a step: passes of the optimizer, requests to the data loader, ranges of warm-up, phases and modules."""

from __future__ import annotations

import numpy as np
import polars as pl

from warplens.analysis.attribution import RangeForest
from warplens.analysis.categories import categories_of
from warplens.analysis.repetition import MIN_REPEATS, largest_drop
from warplens.analysis.trees import NO_RANGE, Forest
from warplens.analysis.window import NO_PHASE, is_warmup_name, phase_of_name
from warplens.profile import Trace
from warplens.profile.schema import Bools, Int64s, name_labels

#: Steps and passes launch about the same amount of work: within this share of the median.
ALIKE_TOLERANCE = 0.1

#: Of two steps one may be slow, but not so many times as long as the other.
_UNLIKE = 3

#: A rhythm of waits and copies must hold for this share of the turns.
MOST_TURNS = 0.8


#: How PyTorch names the passes of its optimizers and the requests to its data loaders.
_OPTIMIZER = "Optimizer.step#"
_NEXT_BATCH = "enumerate(DataLoader)#"


def optimizer_ends(trace: Trace, calls: pl.DataFrame) -> Int64s:
    """The place in the sequence of the last launch of each pass of the optimizer."""
    named = _annotated(trace, _OPTIMIZER)
    if named.height and not calls["launch_start_ns"].null_count():
        # Of several optimizers the one that runs least often ends the step.
        rarest = named["name"].value_counts(sort=True)["name"][-1]
        ends = named.filter(pl.col("name") == rarest)["end_ns"].sort().to_numpy()
        return np.unique(np.searchsorted(calls["launch_start_ns"].to_numpy(), ends) - 1).clip(0)
    places = np.flatnonzero(_optimizing(trace, calls))
    if not len(places):
        return places
    # Its launches lie close together; forward and backward pass make the distances from one pass to the next.
    distances = np.diff(places)
    last_of_each: Int64s = np.r_[places[:-1][distances > largest_drop(distances)], places[-1]]
    return last_of_each


def _optimizing(trace: Trace, calls: pl.DataFrame) -> Bools:
    """Which calls launch a kernel of an optimizer."""
    kernel = (calls["kind"] == "kernel").to_numpy()
    optimizing = np.zeros(calls.height, dtype=np.bool_)
    if trace.kernels.height:
        by_kernel = (categories_of(trace.kernels["full_name"]) == "optimizer").to_numpy()
        optimizing[kernel] = by_kernel[calls["row"].to_numpy()[kernel]]
    return optimizing


def alike(calls: pl.DataFrame, trace: Trace, passes: Int64s) -> bool:
    """Whether the passes of the optimizer are alike, but for the first and last, which a recording may cut.

    Parts of one pass that lie far apart, such as those for weights and for norms, are not.
    """
    apart = np.diff(calls["start_ns"].to_numpy()[passes])
    if len(apart) < MIN_REPEATS and apart.max() > _UNLIKE * apart.min():
        return False
    before = np.r_[0, np.cumsum(_optimizing(trace, calls))]
    launched = np.diff(before[np.r_[0, passes + 1]])[1:-1]
    usual = float(np.median(launched)) if len(launched) else 0.0
    return usual == 0 or float(np.mean(np.abs(launched - usual) <= ALIKE_TOLERANCE * usual)) >= MOST_TURNS


def batches(trace: Trace, calls: pl.DataFrame) -> Int64s:
    """The place in the sequence of the first launch after each request for a batch."""
    asked = _annotated(trace, _NEXT_BATCH)["start_ns"].sort().to_numpy()
    if not len(asked) or calls["launch_start_ns"].null_count():
        return np.empty(0, dtype=np.int64)
    places = np.unique(np.searchsorted(calls["launch_start_ns"].to_numpy(), asked))
    return places[places < calls.height]


def _annotated(trace: Trace, prefix: str) -> pl.DataFrame:
    ranges = trace.ranges
    known = name_labels(ranges["name"], lambda name: name.startswith(prefix))
    return ranges.filter(pl.Series(known > 0)) if known.any() else ranges.clear()


def launched_in_warmup(calls: pl.DataFrame, trace: Trace, forest: RangeForest) -> Bools:
    """Which launches a range called "warm-up" holds."""
    held = np.r_[forest.outermost_match(warmup_labels(trace.ranges)) > 0, False]
    inside: Bools = held[calls["range"].fill_null(NO_RANGE).to_numpy()]
    return inside


def warmup_labels(ranges: pl.DataFrame) -> Int64s:
    """1 for each range that is called "warm-up", 0 for others."""
    return name_labels(ranges["name"], is_warmup_name)


def inside_one_part(launches: pl.DataFrame, trace: Trace, forest: RangeForest) -> bool:
    """Whether one range called after a phase holds all these launches: then they repeat by layer, not by step."""
    if not trace.ranges.height:
        return False
    part = name_labels(trace.ranges["name"], lambda name: phase_of_name(name) != NO_PHASE)
    number = part * np.arange(1, trace.ranges.height + 1)
    held = np.r_[forest.outermost_match(number), 0][launches["range"].fill_null(NO_RANGE).to_numpy()]
    return bool(held[0] > 0 and np.all(held == held[0]))


def inside_one_module(launches: pl.DataFrame, trace: Trace) -> bool:
    """Whether one call of a `torch.nn` module launched all of this: then its layers repeat."""
    if not trace.python_functions.height or launches["launch_start_ns"].null_count():
        return False
    from warplens.analysis.operators.places import python_frames

    frames = python_frames(trace.python_functions)
    process, thread, when = (
        launches[column].to_numpy().astype(np.int64) for column in ("process", "thread", "launch_start_ns")
    )
    number = np.where(frames.is_module, np.arange(1, len(frames.is_module) + 1), 0)
    outermost = np.r_[Forest.of(frames.parent).outermost_match(number), 0]
    held = outermost[frames.running(process, thread, when)]
    return bool(held[0] > 0 and np.all(held == held[0]))
