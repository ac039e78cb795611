"""Repetition in a sequence of launches, and the evidence for which repetitions are steps.

Without annotated ranges a program's steps show only in what repeats. Layers repeat, too. The two are told apart by
pauses: a step ends where the host reads back, waits, or prepares the next input, so that the pauses between steps stand
out from those inside. Without such evidence, a repetition is only a guess. Stronger evidence comes from passes of the
optimizer, requests to the data loader, ranges of warm-up, phases and modules.
"""

from __future__ import annotations

from math import comb

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.trees import NO_RANGE, Forest, RangeForest
from warplens.analysis.window import WARMUP, is_warmup_name, phase_numbers
from warplens.profile import Trace
from warplens.profile.schema import Bools, Int64s, name_labels

#: Fewer repetitions than this are no evidence of a loop.
MIN_REPEATS = 3
#: Number of launches that must agree for two places of the sequence to be candidates for the same point of a step.
_ANCHOR_LENGTH = 8
#: Candidate periods that are tried; each costs one pass over the sequence.
_MAX_CANDIDATES = 64

#: Pauses after a step stand out if most of them exceed nearly all others. The shares leave room for the interruptions
#: that any host has, and for a step that happens to follow at once.
_STANDING_OUT_SHARE = 0.75
_OTHERS_QUANTILE = 0.98
#: …and if they are this much longer than most others, not merely the upper end of the same noise.
_STANDING_OUT_FACTOR = 1.5
#: A rhythm that random pauses would show with more than this probability does not count.
_BY_CHANCE = 1e-4
#: Pauses this much longer than the others are of another kind (a read-back, an input pipeline), and need fewer turns.
_FAR_FACTOR = 5.0
_FAR_BY_CHANCE = 0.005
#: Pauses are of two kinds if the gap between the kinds is this many times as wide as either kind: a handful of random
#: pauses that fall into two groups, with one of the larger ones in each turn, hardly ever leaves such a gap.
_KINDS_APART = 2.0
#: A distance this many times as large as the next smaller one is of another kind.
_NOT_CLOSE = 2.0
#: Fewer launches than this say nothing about the structure of a step.
LEAST_STRUCTURE = 20
#: Repetitions beyond this many are not searched for a coarser rhythm: a pass for each possible length costs too much.
_MAX_REPEATS = 4000


def longest_repetition(codes: Int64s) -> tuple[int, int, int]:
    """Period, begin and stop of the longest stretch in which the sequence repeats itself; (0, 0, 0) for none.

    A layer repeats, too, but only within one step: its stretch ends where the layers do. The step's own period explains
    the longest stretch, and among periods that explain (nearly) the same stretch the shortest is taken.
    """
    best = (0, 0, 0)
    best_length = 0
    for period in _candidate_periods(codes):
        begin, stop = _longest_run(codes[period:] == codes[:-period])
        length = stop - begin + period if stop > begin else 0
        # Multiples of a period explain as much as the period itself, less one period at the most.
        if length > best_length + period:
            best, best_length = (period, begin, begin + length), length
    return best


def repetitions_per_step(pauses: Int64s) -> tuple[int, int]:
    """Number of repetitions in a step, and of those before the first whole step, from the pauses between them.

    Rhythms may be nested (layer, micro-batch, step): the coarsest that stands out counts.

    Args:
        pauses: before each repetition but the first, in any unit of time.

    Returns:
        (1, 0) where no coarser rhythm stands out: then a repetition is a step, or there is no evidence.
    """
    length, before = 1, 0
    while True:
        parts, first = _coarser(pauses[before + length - 1 :: length] if before + length <= len(pauses) else pauses[:0])
        if parts == 1:
            return length, before
        length, before = length * parts, before + length * first


def _coarser(pauses: Int64s) -> tuple[int, int]:
    """The shortest rhythm whose pauses stand out: its length, and the repetitions before its first whole turn."""
    count = len(pauses)
    lengths = range(2, min(count + 1, _MAX_REPEATS) // MIN_REPEATS + 1)
    for length in lengths:
        turns = count // length
        table = pauses[: turns * length].reshape(turns, length)
        column = int(np.argmax(np.median(table, axis=0)))
        # That the longest pauses lie in one column could be chance: of all ways to choose them, `length` are columns.
        chance = len(lengths) * length / comb(turns * length, turns)
        marked, other_pauses = table[:, column], np.delete(table, column, axis=1).ravel()
        is_far = float(np.median(marked)) > _FAR_FACTOR * max(float(np.quantile(other_pauses, 0.9)), 1.0)
        if chance < (_FAR_BY_CHANCE if is_far else _BY_CHANCE) and stand_out(marked, other_pauses):
            return length, (column + 1) % length
        if turns >= MIN_REPEATS and _two_kinds(marked, other_pauses):
            return length, (column + 1) % length
    return 1, 0


def _two_kinds(marked: Int64s, other_pauses: Int64s) -> bool:
    """Whether the gap between the two groups of pauses is wide compared with the variation within either."""
    variation = max(int(np.ptp(marked)), int(np.ptp(other_pauses)), 1)
    return int(marked.min()) - int(other_pauses.max()) > _KINDS_APART * variation


def is_structured(codes: Int64s, period: int) -> bool:
    """Whether one turn looks like a step: it has parts that repeat inside it (layers), and parts that occur once.

    A layer contains no layers. Few launches can look like anything.
    """
    _, counts = np.unique(codes[:period], return_counts=True)
    return period >= LEAST_STRUCTURE and bool(counts.max() >= MIN_REPEATS) and bool((counts == 1).any())


def largest_drop(distances: Int64s) -> int:
    """The largest of the small distances between places: in sorted order, the one before the largest relative increase.

    A distance of 1 always counts as small; all distances are small where none is twice as large as the one before it.
    """
    sizes = np.sort(np.r_[1, distances])
    ratios = sizes[1:] / sizes[:-1]
    return int(sizes[np.argmax(ratios)] if len(ratios) and ratios.max() >= _NOT_CLOSE else sizes[-1])


def stand_out(pauses: Int64s, other_pauses: Int64s) -> bool:
    """Whether these pauses are longer than the others by more than chance."""
    if not len(other_pauses):
        return False
    limit = float(np.quantile(other_pauses, _OTHERS_QUANTILE))
    usual = max(float(np.quantile(other_pauses, 0.9)), 1.0)
    exceeding = float(np.mean(pauses > limit))
    return exceeding >= _STANDING_OUT_SHARE and float(np.median(pauses)) > _STANDING_OUT_FACTOR * usual


def _candidate_periods(codes: Int64s) -> list[int]:
    """Distances between places of the sequence that look alike, shortest first."""
    count = len(codes)
    if not count:
        return []
    length = min(_ANCHOR_LENGTH, max(1, count // (2 * MIN_REPEATS)))
    periods: set[int] = set()
    windows = np.lib.stride_tricks.sliding_window_view(codes, length)
    # Anchors spread over the sequence: the end (steady state) first, then places before it.
    for anchor in np.unique(np.linspace(len(windows) // 2, len(windows) - 1, 8).astype(np.int64)):
        matches = np.flatnonzero((windows == windows[anchor]).all(axis=1))
        distances = np.unique(np.abs(matches[matches != anchor] - anchor))
        periods.update(int(d) for d in distances[: _MAX_CANDIDATES // 4])
    # Rarely repeated launches (the loss, the optimizer) give the step's own period among few distances.
    periods.update(_distances_of_rarest(codes))
    usable = sorted(period for period in periods if 0 < period <= count // 2)
    return usable if len(usable) <= 4 * _MAX_CANDIDATES else usable[:: len(usable) // (4 * _MAX_CANDIDATES) + 1]


def _distances_of_rarest(codes: Int64s) -> set[int]:
    """Distances between the launches that repeat least often, once or twice per step."""
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    repeated = order[counts[order] >= MIN_REPEATS][: _MAX_CANDIDATES // 4]
    distances: set[int] = set()
    for value in repeated.tolist():
        places = np.flatnonzero(inverse.reshape(-1) == value)
        gaps = np.diff(places)
        common, frequency = np.unique(gaps, return_counts=True)
        distances.update(common[np.argsort(-frequency, kind="stable")[:2]].tolist())
        double_gaps = np.unique(places[2:] - places[:-2])
        distances.update(double_gaps[:2].tolist())
    return distances


def _longest_run(equal: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Begin and stop of the longest run of true."""
    edges = np.flatnonzero(np.diff(np.r_[False, equal, False].astype(np.int8)))
    if not len(edges):
        return 0, 0
    begins, stops = edges[::2], edges[1::2]
    longest = int(np.argmax(stops - begins))
    return int(begins[longest]), int(stops[longest])


#: Steps and passes launch about the same amount of work: within this share of the median.
ALIKE_TOLERANCE = 0.1

#: Of two steps one may be slower than the other, but not by this factor.
_UNLIKE_FACTOR = 3

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
    places = np.flatnonzero(_launches_optimizer(trace, calls))
    if not len(places):
        return places
    # Its launches lie close together; forward and backward pass make the distances from one pass to the next.
    distances = np.diff(places)
    last_of_each: Int64s = np.r_[places[:-1][distances > largest_drop(distances)], places[-1]]
    return last_of_each


def _launches_optimizer(trace: Trace, calls: pl.DataFrame) -> Bools:
    """Mask of the calls that launch an optimizer kernel."""
    kernel = (calls["kind"] == "kernel").to_numpy()
    optimizing = np.zeros(calls.height, dtype=np.bool_)
    if trace.kernels.height:
        by_kernel = (categories_of(trace.kernels["full_name"]) == "optimizer").to_numpy()
        optimizing[kernel] = by_kernel[calls["row"].to_numpy()[kernel]]
    return optimizing


def alike(calls: pl.DataFrame, trace: Trace, passes: Int64s) -> bool:
    """Whether the optimizer's passes are alike, except the first and last, which a recording may cut.

    Parts of one pass that lie far apart, such as those for weights and for norms, are not.
    """
    distances = np.diff(calls["start_ns"].to_numpy()[passes])
    if len(distances) < MIN_REPEATS and distances.max() > _UNLIKE_FACTOR * distances.min():
        return False
    launched_before = np.r_[0, np.cumsum(_launches_optimizer(trace, calls))]
    launches_per_pass = np.diff(launched_before[np.r_[0, passes + 1]])[1:-1]
    usual_launches = float(np.median(launches_per_pass)) if len(launches_per_pass) else 0.0
    return (
        usual_launches == 0
        or float(np.mean(np.abs(launches_per_pass - usual_launches) <= ALIKE_TOLERANCE * usual_launches)) >= MOST_TURNS
    )


def batches(trace: Trace, calls: pl.DataFrame) -> Int64s:
    """The place in the sequence of the first launch after each request for a batch."""
    request_times = _annotated(trace, _NEXT_BATCH)["start_ns"].sort().to_numpy()
    if not len(request_times) or calls["launch_start_ns"].null_count():
        return np.empty(0, dtype=np.int64)
    places = np.unique(np.searchsorted(calls["launch_start_ns"].to_numpy(), request_times))
    return places[places < calls.height]


def _annotated(trace: Trace, prefix: str) -> pl.DataFrame:
    ranges = trace.ranges
    known = name_labels(ranges["name"], lambda name: name.startswith(prefix))
    return ranges.filter(pl.Series(known > 0)) if known.any() else ranges.clear()


def launched_in_warmup(calls: pl.DataFrame, trace: Trace, forest: RangeForest) -> Bools:
    """Mask of the launches inside a range named "warm-up"."""
    in_warmup = np.r_[forest.outermost_match(warmup_labels(trace.ranges)) > 0, False]
    launched: Bools = in_warmup[calls["range"].fill_null(NO_RANGE).to_numpy()]
    return launched


def warmup_labels(ranges: pl.DataFrame) -> Int64s:
    """1 for each range named "warm-up", 0 for others."""
    return name_labels(ranges["name"], is_warmup_name, WARMUP)


def inside_one_part(launches: pl.DataFrame, trace: Trace, forest: RangeForest) -> bool:
    """Whether one range named after a phase holds all these launches: then they repeat by layer, not by step."""
    if not trace.ranges.height:
        return False
    number = (phase_numbers(trace.ranges["name"]) > 0) * np.arange(1, trace.ranges.height + 1)
    phase_range = np.r_[forest.outermost_match(number), 0][launches["range"].fill_null(NO_RANGE).to_numpy()]
    return bool(phase_range[0] > 0 and np.all(phase_range == phase_range[0]))


def inside_one_module(launches: pl.DataFrame, trace: Trace) -> bool:
    """Whether one call of a `torch.nn` module launched all of these: then its layers repeat."""
    if not trace.python_functions.height or launches["launch_start_ns"].null_count():
        return False
    from warplens.analysis.operators.places import python_frames

    frames = python_frames(trace.python_functions)
    process, thread, when = (
        launches[column].to_numpy().astype(np.int64) for column in ("process", "thread", "launch_start_ns")
    )
    number = np.where(frames.is_module, np.arange(1, len(frames.is_module) + 1), 0)
    outermost = np.r_[Forest.of(frames.parent).outermost_match(number), 0]
    module_call = outermost[frames.running(process, thread, when)]
    return bool(module_call[0] > 0 and np.all(module_call == module_call[0]))
