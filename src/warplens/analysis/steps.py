"""The repetitions of the workload: warm-up is not the work, and numbers are per step.

Steps are looked for in two places, in this order:

1. annotated ranges of one name that repeat one after the other on a thread (numbers in the name ignored, so that
   `ProfilerStep#3` and `ProfilerStep#4` are one name) and together hold most of the GPU work of the time they span;
2. a kernel sequence that repeats: the distance at which the sequence of launches equals itself over the longest
   stretch.

The leading steps that are much slower than the rest, or that run another number of kernels, are left out as warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.attribution import RangeForest, is_operator
from warplens.analysis.repetition import MIN_REPEATS, is_structured, longest_repetition, repetitions_per_step, stand_out
from warplens.analysis.trees import NO_RANGE, Forest
from warplens.analysis.window import NO_PHASE, Step, generic_name, is_step_name, is_warmup_name, phase_of_name
from warplens.profile import Trace
from warplens.profile.schema import Bools, Int64s, name_categories

#: A range that is called a step may leave out this much of the GPU work (evaluation, checkpoints); any other repeated
#: range must hold nearly all of it, or it is only a part of the step (a layer, the forward pass of a training step).
_NAMED_STEP_COVERAGE = 0.5
_ANY_RANGE_COVERAGE = 0.9

#: When more of the GPU time than this runs in what would be another step, steps overlap on the GPU.
_STRAYED_SHARE = 0.1

#: The repeating stretch must hold this share of the GPU work, or it is only a part of the program.
_MIN_SEQUENCE_SHARE = 0.5

#: A leading step this much slower than the median is still warming up (compilation, allocation, autotuning). Ordinary
#: steps of one program stay within some 20 % of each other even where the host is the limit; real warm-up steps in our
#: captures are 1.3 to 100 times slower.
WARMUP_SLOWDOWN = 1.25

#: Ranges of one name are steps only if most of them launch about the same amount of work.
_ALIKE_SHARE = 0.5
_ALIKE_TOLERANCE = 0.1


@dataclass(frozen=True)
class StepSearch:
    """What the search for steps found.

    Attributes:
        steps: all steps in time order, on the clock of the analysis; empty where the profile shows no repetition.
        steady: the steps without the leading ones that are still warming up.
        source: `range`, `sequence` or `none`.
        name: the range name, with numbers replaced by `N`; None for other sources.
        how: one sentence for people.
        is_sure: whether what repeats is a step; without ranges it may be a part of one (a layer), or several.
    """

    steps: tuple[Step, ...]
    steady: tuple[Step, ...]
    source: str
    name: str | None
    how: str
    is_sure: bool = True


def find_steps(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> StepSearch:
    """The steps of a profile. `work` and `forest` are those of the `Timeline`."""
    if not work.height:
        return StepSearch((), (), "none", None, "no GPU work was recorded, so there are no steps")
    found = _steps_from_ranges(trace, work, forest)
    if found is None:
        found = _steps_from_sequence(trace, work, forest)
    if found is None:
        how = "from the first to the last GPU work (neither ranges nor the kernel sequence show a repeating step)"
        return StepSearch((), (), "none", None, how)
    steps = tuple(Step(i + 1, int(s), int(e)) for i, (s, e) in enumerate(zip(found.starts, found.ends, strict=True)))
    left_out = _warmup_count(found)
    source = "sequence" if found.name is None else "range"
    how = _describe(steps, left_out, found.name) + ("" if found.is_sure else "; they may be parts of a step")
    return StepSearch(steps, steps[left_out:], source, found.name, how, found.is_sure)


def _describe(steps: tuple[Step, ...], left_out: int, name: str | None) -> str:
    origin = f"ranges named {name!r}" if name is not None else "the repeating kernel sequence"
    first, last = left_out + 1, len(steps)
    kept = f"steps {first}–{last} of {last}" if last > first else f"step {last} of {last}"
    leading = "the first" if left_out == 1 else f"the first {left_out}"
    return f"{kept}, from {origin}" + (f"; {leading} left out as warm-up" if left_out else "")


class _Found(NamedTuple):
    """Candidate steps: begin, end and launches of each, which are called warm-up, and whether they surely are steps."""

    starts: Int64s
    ends: Int64s
    counts: Int64s
    named_warmup: Bools
    name: str | None
    is_sure: bool = True


def _warmup_count(found: _Found) -> int:
    """How many leading steps are still warming up; at least the last step is always kept."""
    durations = found.ends - found.starts
    later = slice(len(durations) // 2, None)
    usual_duration = float(np.median(durations[later]))
    usual_count = np.median(found.counts[later])
    unusual = (durations > WARMUP_SLOWDOWN * usual_duration) | (found.counts != usual_count)
    leading = int(np.argmin(unusual)) if not unusual.all() else 0
    # A workload whose steps all differ has no warm-up: unusual steps are only left out if their successors settle.
    leading = leading if leading <= len(durations) // 2 else 0
    named = int(np.argmin(found.named_warmup)) if not found.named_warmup.all() else 0
    return max(leading, named)


# ── ranges ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _steps_from_ranges(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> _Found | None:
    ranges = trace.ranges
    if not ranges.height:
        return None
    candidates = _repeated_ranges(ranges, forest)
    if not candidates:
        return None
    launches = forest.inclusive(
        np.bincount(work["range"].fill_null(NO_RANGE).to_numpy() + 1, minlength=ranges.height + 1)[1:]
    )
    best: tuple[tuple[int, ...], str, Int64s] | None = None
    for name, rows in candidates:
        coverage = _coverage(rows, ranges, work, launches)
        named = is_step_name(name)
        if coverage < (_NAMED_STEP_COVERAGE if named else _ANY_RANGE_COVERAGE):
            continue
        if not named and (len(rows) < MIN_REPEATS or not _alike(launches[rows])):
            continue  # numbered stages of a program (phase1, phase2) are not repetitions
        # A name that says "step" wins; then repetitions enough to have a spread; then the outermost; then the most.
        rank = (int(named), int(len(rows) >= MIN_REPEATS), -int(forest.level[rows].min()), len(rows))
        if best is None or rank > best[0]:
            best = (rank, name, rows)
    if best is None:
        return None
    return _on_analysis_clock(best[2], trace, work, forest, best[1])


def _alike(launches: Int64s) -> bool:
    usual = float(np.median(launches))
    return bool(np.mean(np.abs(launches - usual) <= _ALIKE_TOLERANCE * usual) >= _ALIKE_SHARE)


def _repeated_ranges(ranges: pl.DataFrame, forest: RangeForest) -> list[tuple[str, Int64s]]:
    """Names whose ranges follow one another on one thread, at least twice unless the name says "step"."""
    categories = name_categories(ranges["name"]).to_list()
    generic = [generic_name(text) for text in categories]
    numbering = {text: number for number, text in enumerate(dict.fromkeys(generic))}
    code_of_category = np.array([numbering[text] for text in generic], dtype=np.int64)
    codes = ranges["name"].to_physical().to_numpy()
    code = code_of_category[codes]
    outside_warmup = forest.outermost_match(_is_warmup(ranges)) == 0

    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = (ranges["process"].to_numpy().astype(np.int64) << 32) | ranges["thread"].to_numpy()
    # Operators repeat by nature; a step is what a person, or a framework on a person's behalf, marked as one.
    rows = np.flatnonzero(outside_warmup & (end > start) & ~is_operator(ranges))
    order = rows[np.lexsort((start[rows], code[rows], thread[rows]))]
    changes = np.flatnonzero((np.diff(code[order]) != 0) | (np.diff(thread[order]) != 0)) + 1
    names = list(numbering)
    return [
        (names[int(code[group[0]])], group)
        for group in (np.split(order, changes) if len(order) else ())
        if (len(group) >= 2 or is_step_name(names[int(code[group[0]])])) and np.all(start[group][1:] >= end[group][:-1])
    ]


def _coverage(rows: Int64s, ranges: pl.DataFrame, work: pl.DataFrame, launches_inside: Int64s) -> float:
    """Share of the launches made between the first and the last of these ranges that were made inside them."""
    process = int(ranges["process"][int(rows[0])])
    first, last = int(ranges["start_ns"][int(rows[0])]), int(ranges["end_ns"][int(rows[-1])])
    during = work.filter(
        (pl.col("process") == process) & pl.col("launch_start_ns").is_between(first, last, closed="left")
    ).height
    return float(launches_inside[rows].sum() / during) if during else 0.0


def _on_analysis_clock(rows: Int64s, trace: Trace, work: pl.DataFrame, forest: RangeForest, name: str) -> _Found | None:
    """Steps as intervals in which both their host and their GPU side lie, as far as the program keeps them together.

    Where each step waits for its GPU work (it ends before the range does), the range itself is the step. Where the host
    runs ahead, the ranges say nothing about the GPU: then a step lasts from its first GPU work to the next step's
    first.
    """
    begin, finish = trace.ranges["start_ns"].to_numpy()[rows], trace.ranges["end_ns"].to_numpy()[rows]
    step_of_range = np.zeros(trace.ranges.height, dtype=np.int64)
    step_of_range[rows] = np.arange(1, len(rows) + 1)
    step_of_range = np.r_[forest.outermost_match(step_of_range), 0]
    step = step_of_range[work["range"].fill_null(NO_RANGE).to_numpy()]
    mine = np.flatnonzero(step)
    counts = np.bincount(step[mine] - 1, minlength=len(rows))
    if not counts.all():
        busy = np.flatnonzero(counts)
        if not len(busy):
            return None
        return _on_analysis_clock(rows[busy], trace, work, forest, name)
    first = np.full(len(rows), np.iinfo(np.int64).max)
    last = np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(first, step[mine] - 1, work["start_ns"].to_numpy()[mine])
    np.maximum.at(last, step[mine] - 1, work["end_ns"].to_numpy()[mine])
    if np.all(last <= finish):
        return _Found(begin, finish, counts, np.zeros(len(rows), dtype=np.bool_), name)
    if np.any(np.diff(first) <= 0):
        return None  # steps overlap on the GPU: no instant separates them
    first = _first_on_busiest_stream(work[mine], step[mine] - 1, first)
    return _Found(first, np.r_[first[1:], last[-1]], counts, np.zeros(len(rows), dtype=np.bool_), name)


def _first_on_busiest_stream(work: pl.DataFrame, step: Int64s, first: Int64s) -> Int64s:
    """Where steps begin on the GPU; `first` holds the begin of each step's first work on any stream.

    A program that fetches data ahead on a stream of its own starts the copies of the next step while the GPU is still
    busy with the last one. Then much work runs in what would be another step, and the stream with the most work, which
    does one step after the other, tells steps apart.
    """
    start = work["start_ns"].to_numpy()
    duration = work["end_ns"].to_numpy() - start
    strayed = np.searchsorted(first, start, side="right") - 1 != step
    if duration[strayed].sum() <= _STRAYED_SHARE * duration.sum():
        return first
    streams = work.select("device", "stream", pl.Series("duration", duration)).with_row_index()
    busiest = streams.group_by("device", "stream").agg(pl.col("duration").sum()).sort("duration", "device", "stream")
    rows = streams.join(busiest.tail(1).select("device", "stream"), on=["device", "stream"])["index"].to_numpy()
    begins = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(begins, step[rows], start[rows])
    in_order = len(np.unique(step[rows])) == len(first) and bool(np.all(np.diff(begins) > 0))
    return begins if in_order else first


# ── kernel sequence ───────────────────────────────────────────────────────────────────────────────────────────────────


def _steps_from_sequence(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> _Found | None:
    sequence = _launch_sequence(trace, work)
    if sequence.height < MIN_REPEATS:
        return None
    calls = _by_call(sequence)
    if calls.height < MIN_REPEATS:
        return None
    period, begin, stop = longest_repetition(calls["code"].to_numpy())
    if period == 0 or (stop - begin) // period < MIN_REPEATS:
        return None
    start, end, busy = (calls[name].to_numpy() for name in ("start_ns", "end_ns", "busy_ns"))
    if busy[begin:stop].sum() < _MIN_SEQUENCE_SHARE * busy.sum():
        return None
    if _inside_one_part(calls[begin:stop], trace, forest) or _inside_one_module(calls[begin:stop], trace):
        return None
    begin += _largest_gap_offset(start, end, begin, stop, period)
    period, begin = _whole_steps(calls, begin, stop, period)
    repeats = (stop - begin) // period
    if repeats < 2:
        return None
    stop = begin + repeats * period
    cuts = begin + period * np.arange(repeats + 1)
    firsts = np.minimum.reduceat(start[begin:stop], cuts[:-1] - begin)
    last = int(end[cuts[-2] : cuts[-1]].max())
    if np.any(np.diff(firsts) <= 0):
        return None
    warming = np.add.reduceat(_launched_in_warmup(calls, trace, forest)[begin:stop].astype(np.int64), cuts[:-1] - begin)
    launches = np.add.reduceat(calls["launches"].to_numpy()[begin:stop], cuts[:-1] - begin)
    # A graph that is launched again and again is what its program repeats.
    graphs = calls["launches"].to_numpy()[begin:stop] > 1
    graphs |= (calls["kind"] == "graph").to_numpy()[begin:stop]
    sure = (
        bool(graphs.any())
        or is_structured(calls["code"].to_numpy()[begin:stop], period)
        or _pauses_between(calls, begin, stop, period)
    )
    return _Found(firsts, np.r_[firsts[1:], np.int64(last)], launches, warming > period // 2, None, sure)


def _by_call(sequence: pl.DataFrame) -> pl.DataFrame:
    """The sequence with all work of one call (the nodes of a CUDA graph) as one row: no step ends inside of a call."""
    call = sequence["api_row"].fill_null(-1).to_numpy()
    first = np.flatnonzero(np.r_[True, (call[1:] != call[:-1]) | (call[1:] < 0)])
    busy = (sequence["end_ns"] - sequence["start_ns"]).to_numpy()
    code = sequence["code"].to_numpy()
    if len(first) < sequence.height:
        place = np.arange(sequence.height) - np.repeat(first, np.diff(np.r_[first, sequence.height]))
        # Calls are alike if they run the same work in the same order; wrapping sums tell orders apart well enough.
        code = np.add.reduceat((code + 1) * (2 * place + 1), first)
    return sequence[first].with_columns(
        pl.Series("code", code),
        pl.Series("start_ns", np.minimum.reduceat(sequence["start_ns"].to_numpy(), first)),
        pl.Series("end_ns", np.maximum.reduceat(sequence["end_ns"].to_numpy(), first)),
        pl.Series("busy_ns", np.add.reduceat(busy, first)),
        pl.Series("launches", np.diff(np.r_[first, sequence.height])),
    )


def _pauses_between(calls: pl.DataFrame, begin: int, stop: int, period: int) -> bool:
    """Whether the GPU, or the host, pauses after each turn longer than inside of one."""
    pauses = _rhythms(calls, np.arange(begin + 1, stop))
    ends = np.zeros(stop - begin - 1, dtype=np.bool_)
    ends[period - 1 :: period] = True
    return any(stand_out(pause[ends], pause[~ends]) for pause in pauses)


def _rhythms(calls: pl.DataFrame, places: Int64s) -> list[Int64s]:
    """What precedes each of these calls: the time since the host's last launch, if known, and the GPU's idle time."""
    reach = np.maximum.accumulate(calls["end_ns"].to_numpy())
    rhythms = [np.maximum(calls["start_ns"].to_numpy()[places] - reach[places - 1], 0)]
    if not calls["launch_start_ns"].null_count():
        launch = calls["launch_start_ns"].to_numpy()
        rhythms.insert(0, launch[places] - launch[places - 1])
    return rhythms


def _whole_steps(calls: pl.DataFrame, begin: int, stop: int, period: int) -> tuple[int, int]:
    """Period and begin of the steps, where the repetitions found are parts of them (layers, micro-batches)."""
    for pauses in _rhythms(calls, np.arange(begin, stop - period + 1, period)[1:]):
        parts, before = repetitions_per_step(pauses)
        if parts > 1:
            return parts * period, begin + before * period
    return period, begin


def _launched_in_warmup(sequence: pl.DataFrame, trace: Trace, forest: RangeForest) -> Bools:
    """Which launches a range called "warm-up" holds."""
    held = np.r_[forest.outermost_match(_is_warmup(trace.ranges)) > 0, False]
    inside: Bools = held[sequence["range"].fill_null(NO_RANGE).to_numpy()]
    return inside


def _inside_one_part(launches: pl.DataFrame, trace: Trace, forest: RangeForest) -> bool:
    """Whether one range called after a phase holds all these launches: then they repeat by layer, not by step."""
    if not trace.ranges.height:
        return False
    part = np.array([phase_of_name(text) != NO_PHASE for text in name_categories(trace.ranges["name"])])
    number = np.where(part[trace.ranges["name"].to_physical().to_numpy()], np.arange(1, trace.ranges.height + 1), 0)
    held = np.r_[forest.outermost_match(number), 0][launches["range"].fill_null(NO_RANGE).to_numpy()]
    return bool(held[0] > 0 and np.all(held == held[0]))


def _inside_one_module(launches: pl.DataFrame, trace: Trace) -> bool:
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


def _is_warmup(ranges: pl.DataFrame) -> Int64s:
    if not ranges.height:
        return np.empty(0, dtype=np.int64)
    by_name = np.array([is_warmup_name(text) for text in name_categories(ranges["name"])], dtype=np.int64)
    labels: Int64s = by_name[ranges["name"].to_physical().to_numpy()]
    return labels


def _launch_sequence(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Kernels and graph launches of the busiest process and device in launch order, with a code for each identity."""
    ops = work.filter(pl.col("kind").is_in(["kernel", "graph"]))
    if not ops.height:
        return ops.with_columns(pl.lit(0, dtype=pl.Int64).alias("code"))
    duration = pl.col("end_ns") - pl.col("start_ns")
    busiest = ops.group_by("process", "device").agg(duration.sum().alias("t")).sort("t", "process", "device")
    ops = ops.filter((pl.col("process") == busiest["process"][-1]) & (pl.col("device") == busiest["device"][-1]))
    kernel_code = trace.kernels["full_name"].to_physical().cast(pl.Int64)
    graph_code = -1 - trace.graph_launches["graph"].fill_null(0)
    rows = ops["row"].to_numpy()
    is_kernel = (ops["kind"] == "kernel").to_numpy()
    codes = np.empty(ops.height, dtype=np.int64)
    codes[is_kernel] = kernel_code.to_numpy()[rows[is_kernel]]
    codes[~is_kernel] = graph_code.to_numpy()[rows[~is_kernel]]
    ops = ops.with_columns(pl.Series("code", codes))
    # Launch order is the program's order; streams may run it in another one.
    return ops.sort(pl.coalesce("launch_start_ns", "start_ns"), "start_ns", maintain_order=True)


def _largest_gap_offset(start: Int64s, end: Int64s, begin: int, stop: int, period: int) -> int:
    """Where in the period a step begins: after the largest typical pause, since steps are where programs wait.

    Only places that do not cost a whole repetition are considered; a stretch of whole periods begins with a step.
    """
    repeats, rest = divmod(stop - begin, period)
    reach = np.maximum.accumulate(end)
    index = begin + np.arange(repeats * period)
    gaps = np.where(index > 0, start[index] - reach[np.maximum(index - 1, 0)], 0).reshape(repeats, period)
    return int(np.argmax(np.median(gaps[:, : rest + 1], axis=0)))
