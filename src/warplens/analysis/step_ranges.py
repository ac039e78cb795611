"""Steps from ranges: names that repeat one after the other on a thread and hold most of the GPU work of their time.

A user, or a framework, marks a step with a range. Numbers in names are ignored. A range that repeats inside another
candidate is a part of it, not the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import busiest
from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.repetition import MIN_REPEATS, warmup_labels
from warplens.analysis.sequence import Rhythm, StepCandidates
from warplens.analysis.trees import NO_RANGE, RangeForest, is_operator
from warplens.analysis.window import (
    FRAMEWORK,
    NO_PHASE,
    XLA_PROGRAM,
    generic_names,
    is_framework_name,
    is_step_name,
    names_step,
    phase_of_name,
    xla_program,
)
from warplens.profile import Trace
from warplens.profile.schema import Int64s, name_categories, name_labels, texts_with

#: A range named as a step may leave out this much of the GPU work (evaluation, checkpoints); any other repeated range
#: must hold nearly all of it, or it is only a part of the step (a layer, the forward pass of a training step).
_NAMED_STEP_COVERAGE = 0.5
_ANY_RANGE_COVERAGE = 0.9

#: Longest time from the end of a launching call to the start of its work on an idle GPU: ten times the usual latency.
_PROMPT_NS = 50_000

#: If more than this share of the GPU time runs within another step's interval, steps overlap on the GPU.
_STRAYED_SHARE = 0.1

#: Ranges of one name are steps only if most of them launch about the same amount of work.
_ALIKE_SHARE = 0.5
_ALIKE_TOLERANCE = 0.1


def steps_from_ranges(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> StepCandidates | None:
    """The steps marked by ranges of one name, judged by the work they launch; None where there are none."""
    ranges = trace.ranges
    if not ranges.height:
        return None
    candidates = _without_parts(_repeated_ranges(ranges, forest), ranges)
    if not candidates:
        return None
    innermost = work["range"].fill_null(NO_RANGE).to_numpy() + 1
    launches = forest.inclusive(np.bincount(innermost, minlength=ranges.height + 1)[1:])
    durations = (work["end_ns"] - work["start_ns"]).to_numpy()
    busy = forest.inclusive(np.bincount(innermost, durations, minlength=ranges.height + 1)[1:].astype(np.int64))
    # Work without a known launching call is placed after every range.
    launch_times = work["launch_start_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()
    process = work["process"].to_numpy()
    launches_of_process = {int(pid): np.sort(launch_times[process == pid]) for pid in np.unique(process)}
    best: tuple[tuple[int, ...], str, Int64s] | None = None
    accepted: list[tuple[str, Int64s]] = []
    places = _Places(*(ranges[column].to_numpy() for column in ("process", "start_ns", "end_ns")))
    by_name: dict[str, list[Int64s]] = {}
    for name, rows in candidates:
        by_name.setdefault(name, []).append(rows)
    of_name = {name: np.concatenate(rows) for name, rows in by_name.items()}
    for name, rows in candidates:
        is_named = is_step_name(name)
        if not is_named and (len(rows) < MIN_REPEATS or not _launch_alike(launches[rows])):
            continue  # numbered stages of a program (phase1, phase2) are not repetitions
        coverage = _coverage(rows, places, launches_of_process, launches, of_name[name])
        if coverage < (_NAMED_STEP_COVERAGE if is_named else _ANY_RANGE_COVERAGE):
            continue
        # In order of precedence: a name that says "step"; at least `MIN_REPEATS` repetitions, enough to have a spread;
        # the outermost; the most GPU time, as of two threads that each mark their steps; the most ranges.
        outermost = -int(forest.level[rows].min())
        rank = (int(is_named), int(len(rows) >= MIN_REPEATS), outermost, int(busy[rows].sum()), len(rows))
        accepted.append((name, rows))
        if best is None or rank > best[0]:
            best = (rank, name, rows)
    if best is None:
        return None
    steps = _on_analysis_clock(best[2], trace, work, forest, best[1])
    if steps is None:
        return None
    start = ranges["start_ns"].to_numpy()
    rhythms = tuple(
        _range_rhythm(name, rows, start[rows], launches[rows], chosen=rows is best[2])
        for name, rows in sorted(accepted, key=lambda candidate: candidate[1] is not best[2])
    )
    return steps._replace(rhythms=rhythms)


def steps_of_xla(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> StepCandidates | None:
    """Steps from the runs of the XLA program with the most GPU time; None where no program runs often.

    A step lasts from one run to the next. Of several programs (a step, sums, metrics) the one with the most GPU time is
    taken. Between its first and last run it must take most of that time: operations compiled one by one are not steps.
    """
    ranges = trace.ranges
    programs: dict[str, int] = {}
    texts = name_categories(ranges["name"])
    numbers = np.zeros(texts.len(), dtype=np.int64)
    for place in np.flatnonzero(texts_with(texts, XLA_PROGRAM)).tolist():
        if xla_program(texts[place]) is not None:
            programs[texts[place]] = numbers[place] = len(programs) + 1
    if not programs:
        return None
    label = numbers[ranges["name"].to_physical().to_numpy()]
    run = np.zeros(ranges.height, dtype=np.int64)
    rows = np.flatnonzero(label)
    run[rows] = np.arange(1, len(rows) + 1)
    run = np.r_[forest.outermost_match(run), 0]
    run_of_work = run[work["range"].fill_null(NO_RANGE).to_numpy()]
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    busy = np.bincount(run_of_work, end - start, minlength=len(rows) + 1)[1:]
    by_program = np.bincount(label[rows], busy, minlength=len(programs) + 1)
    main_program = int(np.argmax(by_program))
    own_runs = np.flatnonzero((label[rows] == main_program) & (busy > 0)) + 1
    if len(own_runs) < MIN_REPEATS:
        return None
    first = np.full(len(rows) + 1, np.iinfo(np.int64).max)
    last = np.full(len(rows) + 1, np.iinfo(np.int64).min)
    np.minimum.at(first, run_of_work, start)
    np.maximum.at(last, run_of_work, end)
    begins, last_end = np.sort(first[own_runs]), int(last[own_runs].max())
    inside = (start >= begins[0]) & (start < last_end)
    if np.any(np.diff(begins) <= 0) or by_program[main_program] < _NAMED_STEP_COVERAGE * (end - start)[inside].sum():
        return None
    step = np.searchsorted(begins, start[inside], side="right") - 1
    work_ends = np.full(len(begins), np.iinfo(np.int64).min)
    np.maximum.at(work_ends, step, end[inside])
    counts = np.bincount(step, minlength=len(begins))
    name = next(name for name, number in programs.items() if number == main_program)
    origin = f"the runs of the program that XLA compiled as {xla_program(name)}"
    pace = int(np.median(np.diff(begins)))
    reason = "it takes most of the GPU's time"
    rhythm = Rhythm(origin, len(begins), pace, int(np.median(counts)), "medium", reason, True)
    ends = np.r_[begins[1:], work_ends[-1]]
    no_warmup = np.zeros(len(begins), dtype=np.bool_)
    return StepCandidates(begins, ends, counts, no_warmup, None, work_ends, origin, (rhythm,))


def _without_parts(candidates: list[tuple[str, Int64s]], ranges: pl.DataFrame) -> list[tuple[str, Int64s]]:
    """The candidates without those named after a phase that lie beside a candidate named after another phase.

    An optimizer that launches parameter by parameter holds nearly all launches of its step, and still is a part of it.
    """
    start, end, process = (ranges[name].to_numpy() for name in ("start_ns", "end_ns", "process"))
    phases = [phase_of_name(name) for name, _ in candidates]

    def lies_beside(first: Int64s, second: Int64s) -> bool:
        """Whether the ranges of `second` follow those of `first` without lying inside any of them."""
        before = np.searchsorted(start[first], start[second], side="right") - 1
        outside = (before >= 0) & (start[second] >= end[first][np.maximum(before, 0)])
        interleaved = process[first[0]] == process[second[0]] and len(np.unique(before[outside])) >= len(first) - 1
        return bool(interleaved and outside.sum() >= len(second) - 1)

    return [
        (name, rows)
        for (name, rows), phase in zip(candidates, phases, strict=True)
        if phase == NO_PHASE
        or is_step_name(name)
        or not any(
            other_phase not in (NO_PHASE, phase) and lies_beside(rows, other_rows)
            for (_, other_rows), other_phase in zip(candidates, phases, strict=True)
        )
    ]


def steps_on_host(trace: Trace, forest: RangeForest) -> StepCandidates | None:
    """Steps of a profile without GPU work: ranges named as steps, the only evidence there is."""
    candidates = [(name, rows) for name, rows in _repeated_ranges(trace.ranges, forest) if is_step_name(name)]
    if not trace.ranges.height or not candidates:
        return None
    name, rows = max(candidates, key=lambda item: len(item[1]))
    begin, finish = (trace.ranges[column].to_numpy()[rows] for column in ("start_ns", "end_ns"))
    no_launches = np.zeros(len(rows), dtype=np.int64)
    steps = StepCandidates(begin, finish, no_launches, no_launches.astype(np.bool_), name)
    return steps._replace(rhythms=(_range_rhythm(name, rows, begin, no_launches, chosen=True),))


def _range_rhythm(name: str, rows: Int64s, start: Int64s, launches: Int64s, *, chosen: bool) -> Rhythm:
    """The rhythm of ranges of one name, with their begins and their numbers of launches."""
    pace = int(np.median(np.diff(np.sort(start)))) if len(rows) > 1 else None
    is_named = is_step_name(name)
    reason = "their name says so" if is_named else "they hold nearly all work"
    origin = f"ranges named {name!r}"
    return Rhythm(origin, len(rows), pace, int(np.median(launches)), "high" if is_named else "medium", reason, chosen)


def _launch_alike(launches: Int64s) -> bool:
    usual_launches = float(np.median(launches))
    return bool(np.mean(np.abs(launches - usual_launches) <= _ALIKE_TOLERANCE * usual_launches) >= _ALIKE_SHARE)


def _repeated_ranges(ranges: pl.DataFrame, forest: RangeForest) -> list[tuple[str, Int64s]]:
    """Names whose ranges follow one another on one thread, at least twice unless the name says "step"."""
    names, code = generic_names(ranges["name"])
    outside_warmup = forest.outermost_match(warmup_labels(ranges)) == 0

    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = (ranges["process"].to_numpy().astype(np.int64) << 32) | ranges["thread"].to_numpy()
    # Operators repeat by nature; a step is a range that a user, or a framework on the user's behalf, marked as one.
    framework = name_labels(ranges["name"], is_framework_name, FRAMEWORK) > 0
    rows = np.flatnonzero(outside_warmup & (end > start) & ~is_operator(ranges) & ~framework)
    order = rows[np.lexsort((start[rows], code[rows], thread[rows]))]
    changes = np.flatnonzero((np.diff(code[order]) != 0) | (np.diff(thread[order]) != 0)) + 1
    begins, ends = (np.r_[0, changes], np.r_[changes, len(order)]) if len(order) else (order, order)
    repeated = (ends - begins >= 2) | names_step(ranges["name"])[order[begins]]
    groups = (order[begin:finish] for begin, finish in zip(begins[repeated], ends[repeated], strict=True))
    return [(names[int(code[group[0]])], group) for group in groups if np.all(start[group][1:] >= end[group][:-1])]


class _Places(NamedTuple):
    """Where and when each range was open."""

    process: Int64s
    start: Int64s
    end: Int64s


def _coverage(
    rows: Int64s, places: _Places, launched: dict[int, Int64s], launches_inside: Int64s, of_name: Int64s
) -> float:
    """Share of the launches between the first and the last of these ranges that were made inside them.

    Launches inside ranges of the same name on other threads do not count: those are separate steps. `of_name` are the
    ranges of that name on all threads, `launched` has the sorted launch times of each process.
    """
    processes, starts, ends = places
    process, first, last = int(processes[rows[0]]), int(starts[rows[0]]), int(ends[rows[-1]])
    first_launch, stop = np.searchsorted(launched.get(process, np.empty(0, dtype=np.int64)), (first, last))
    inside, total = int(launches_inside[rows].sum()), int(stop - first_launch)
    if len(of_name) > len(rows):
        own = (processes[of_name] == process) & (starts[of_name] >= first) & (ends[of_name] <= last)
        total -= int(launches_inside[of_name[own]].sum()) - inside
    return min(inside / total, 1.0) if total > 0 else 0.0


def _on_analysis_clock(
    rows: Int64s, trace: Trace, work: pl.DataFrame, forest: RangeForest, name: str
) -> StepCandidates | None:
    """Steps as intervals that contain both their host and their GPU side, as far as the program keeps them together.

    Where each step waits for its GPU work (the work ends before the range does), the range itself is the step. Where
    the host runs ahead, a step lasts from its first GPU work to the next step's first. A single step that
    the host takes longer for than the GPU lasts from the begin of its range, if the GPU was idle then: no other step
    shows what the host did before its first launch.
    """
    host_starts, host_ends = trace.ranges["start_ns"].to_numpy()[rows], trace.ranges["end_ns"].to_numpy()[rows]
    step_of_range = np.zeros(trace.ranges.height, dtype=np.int64)
    step_of_range[rows] = np.arange(1, len(rows) + 1)
    step_of_range = np.r_[forest.outermost_match(step_of_range), 0]
    step = step_of_range[work["range"].fill_null(NO_RANGE).to_numpy()]
    in_step = np.flatnonzero(step)
    counts = np.bincount(step[in_step] - 1, minlength=len(rows))
    if not counts.all():
        with_work = np.flatnonzero(counts)
        if not len(with_work):
            return None
        steps = _on_analysis_clock(rows[with_work], trace, work, forest, name)
        return steps and steps._replace(without_work=len(rows) - len(with_work))
    first_work = np.full(len(rows), np.iinfo(np.int64).max)
    last_work = np.full(len(rows), np.iinfo(np.int64).min)
    np.minimum.at(first_work, step[in_step] - 1, work["start_ns"].to_numpy()[in_step])
    np.maximum.at(last_work, step[in_step] - 1, work["end_ns"].to_numpy()[in_step])
    if np.all(last_work <= host_ends):
        return StepCandidates(host_starts, host_ends, counts, np.zeros(len(rows), dtype=np.bool_), name)
    if np.any(np.diff(first_work) <= 0):
        return None  # steps overlap on the GPU: no instant separates them
    if len(rows) == 1 and _begins_on_host(trace, work, (int(host_starts[0]), int(host_ends[0])), first_work, last_work):
        return StepCandidates(host_starts, last_work, counts, np.zeros(1, dtype=np.bool_), name, last_work)
    first_work = _first_on_busiest_stream(work[in_step], step[in_step] - 1, first_work)
    return StepCandidates(
        first_work, np.r_[first_work[1:], last_work[-1]], counts, np.zeros(len(rows), dtype=np.bool_), name, last_work
    )


def _begins_on_host(
    trace: Trace, work: pl.DataFrame, host: tuple[int, int], first_work: Int64s, last_work: Int64s
) -> bool:
    """Whether a single step takes longer on the host (begin and end) than on the GPU, which has nothing to do before.

    Time in which the profiler blocked the host does not count. Work of an earlier step, recorded or not, would hold
    back the first work after its launch.
    """
    (begin, end), first = host, int(first_work[0])
    blocked = total(clip(union(Intervals.of(trace.profiler_overhead)), begin, end))
    if end - begin - blocked <= last_work[0] - first:
        return False
    started = work.filter(pl.col("start_ns") <= first)
    launched = started.filter(pl.col("start_ns") == first)["launch_end_ns"].max()
    busy = started.filter((pl.col("start_ns") < first) & (pl.col("end_ns") > begin)).height
    return not busy and isinstance(launched, int) and first - launched <= _PROMPT_NS


def _first_on_busiest_stream(work: pl.DataFrame, step: Int64s, first: Int64s) -> Int64s:
    """Begins of the steps on the GPU; `first` holds the begin of each step's first work on any stream.

    A program that prefetches data on a stream of its own starts the copies of the next step while the GPU is still busy
    with the last one. Then much work runs within another step's interval, and the stream with the most work, which does
    one step after the other, separates the steps.
    """
    start = work["start_ns"].to_numpy()
    duration = work["end_ns"].to_numpy() - start
    strayed = np.searchsorted(first, start, side="right") - 1 != step
    if duration[strayed].sum() <= _STRAYED_SHARE * duration.sum():
        return first
    device, stream = busiest(work, "device", "stream")
    rows = np.flatnonzero(work.select((pl.col("device") == device) & (pl.col("stream") == stream)).to_series())
    begins = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(begins, step[rows], start[rows])
    in_order = len(np.unique(step[rows])) == len(first) and bool(np.all(np.diff(begins) > 0))
    return begins if in_order else first
