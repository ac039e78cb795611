"""Steps from ranges: names that repeat one after the other on a thread, and hold most of the GPU work of their time.

A person, or a framework on a person's behalf, marks a step with a range. Numbers in names are ignored. What repeats
inside another candidate is a part of it, not the step.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from warplens.analysis.repetition import MIN_REPEATS, warmup_labels
from warplens.analysis.sequence import Found, Rhythm
from warplens.analysis.trees import NO_RANGE, RangeForest, is_operator
from warplens.analysis.window import (
    NO_PHASE,
    generic_names,
    is_framework_name,
    is_step_name,
    phase_of_name,
    xla_program,
)
from warplens.profile import Trace
from warplens.profile.schema import Int64s, name_categories, name_labels

#: A range that is called a step may leave out this much of the GPU work (evaluation, checkpoints); any other repeated
#: range must hold nearly all of it, or it is only a part of the step (a layer, the forward pass of a training step).
_NAMED_STEP_COVERAGE = 0.5
_ANY_RANGE_COVERAGE = 0.9

#: When more of the GPU time than this runs in what would be another step, steps overlap on the GPU.
_STRAYED_SHARE = 0.1

#: Ranges of one name are steps only if most of them launch about the same amount of work.
_ALIKE_SHARE = 0.5
_ALIKE_TOLERANCE = 0.1


def steps_from_ranges(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> Found | None:
    """The steps that ranges of one name mark, by the work that they launch; None where none do."""
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
    # What was launched by no known call lies after every range.
    begun = work["launch_start_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()
    process = work["process"].to_numpy()
    launched = {int(pid): np.sort(begun[process == pid]) for pid in np.unique(process)}
    best: tuple[tuple[int, ...], str, Int64s] | None = None
    accepted: list[tuple[str, Int64s]] = []
    for name, rows in candidates:
        beside = [other for same, other in candidates if same == name and other is not rows]
        coverage = _coverage(rows, ranges, launched, launches, beside)
        named = is_step_name(name)
        if coverage < (_NAMED_STEP_COVERAGE if named else _ANY_RANGE_COVERAGE):
            continue
        if not named and (len(rows) < MIN_REPEATS or not _alike(launches[rows])):
            continue  # numbered stages of a program (phase1, phase2) are not repetitions
        # A name that says "step" wins; then repetitions enough to have a spread; then the outermost; then what has most
        # of the GPU's time, as of two threads that each mark their steps; then the most.
        outermost = -int(forest.level[rows].min())
        rank = (int(named), int(len(rows) >= MIN_REPEATS), outermost, int(busy[rows].sum()), len(rows))
        accepted.append((name, rows))
        if best is None or rank > best[0]:
            best = (rank, name, rows)
    if best is None:
        return None
    found = _on_analysis_clock(best[2], trace, work, forest, best[1])
    if found is None:
        return None
    start = ranges["start_ns"].to_numpy()
    rhythms = tuple(
        _of_ranges(name, rows, start[rows], launches[rows], chosen=rows is best[2])
        for name, rows in sorted(accepted, key=lambda each: each[1] is not best[2])
    )
    return found._replace(rhythms=rhythms)


def steps_of_xla(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> Found | None:
    """From one run of the program that XLA compiled for the step to the next; None where no program is run often.

    Of several programs (a step, sums, metrics) it is the one with the most GPU time. Between its first and its last run
    it must take most of that time: of operations that are compiled one by one none is a step.
    """
    ranges = trace.ranges
    programs: dict[str, int] = {}
    for name in name_categories(ranges["name"]):
        if xla_program(name) is not None:
            programs[name] = len(programs) + 1
    if not programs:
        return None
    numbers = np.array([programs.get(name, 0) for name in name_categories(ranges["name"])], dtype=np.int64)
    label = numbers[ranges["name"].to_physical().to_numpy()]
    run = np.zeros(ranges.height, dtype=np.int64)
    rows = np.flatnonzero(label)
    run[rows] = np.arange(1, len(rows) + 1)
    run = np.r_[forest.outermost_match(run), 0]
    run_of_work = run[work["range"].fill_null(NO_RANGE).to_numpy()]
    start, end = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    busy = np.bincount(run_of_work, end - start, minlength=len(rows) + 1)[1:]
    by_program = np.bincount(label[rows], busy, minlength=len(programs) + 1)
    most = int(np.argmax(by_program))
    mine = np.flatnonzero((label[rows] == most) & (busy > 0)) + 1
    if len(mine) < MIN_REPEATS:
        return None
    first = np.full(len(rows) + 1, np.iinfo(np.int64).max)
    last = np.full(len(rows) + 1, np.iinfo(np.int64).min)
    np.minimum.at(first, run_of_work, start)
    np.maximum.at(last, run_of_work, end)
    begins, final = np.sort(first[mine]), int(last[mine].max())
    inside = (start >= begins[0]) & (start < final)
    if np.any(np.diff(begins) <= 0) or by_program[most] < _NAMED_STEP_COVERAGE * (end - start)[inside].sum():
        return None
    step = np.searchsorted(begins, start[inside], side="right") - 1
    work_ends = np.full(len(begins), np.iinfo(np.int64).min)
    np.maximum.at(work_ends, step, end[inside])
    counts = np.bincount(step, minlength=len(begins))
    name = next(name for name, number in programs.items() if number == most)
    origin = f"the runs of the program that XLA compiled as {xla_program(name)}"
    pace = int(np.median(np.diff(begins)))
    why = "it takes most of the GPU's time"
    rhythm = Rhythm(origin, len(begins), pace, int(np.median(counts)), "medium", why, True)
    ends = np.r_[begins[1:], work_ends[-1]]
    warm = np.zeros(len(begins), dtype=np.bool_)
    return Found(begins, ends, counts, warm, None, work_ends, origin, (rhythm,))


def _without_parts(candidates: list[tuple[str, Int64s]], ranges: pl.DataFrame) -> list[tuple[str, Int64s]]:
    """The candidates but for those called after a phase that another one called after another phase lies beside.

    An optimizer that launches parameter by parameter holds nearly all launches of its step, and is a part of it.
    """
    start, end, process = (ranges[name].to_numpy() for name in ("start_ns", "end_ns", "process"))
    phases = [phase_of_name(name) for name, _ in candidates]

    def lies_beside(one: Int64s, other: Int64s) -> bool:
        """Whether the others follow each of the one without lying in any."""
        before = np.searchsorted(start[one], start[other], side="right") - 1
        outside = (before >= 0) & (start[other] >= end[one][np.maximum(before, 0)])
        alike = process[one[0]] == process[other[0]] and len(np.unique(before[outside])) >= len(one) - 1
        return bool(alike and outside.sum() >= len(other) - 1)

    return [
        (name, rows)
        for (name, rows), phase in zip(candidates, phases, strict=True)
        if phase == NO_PHASE
        or is_step_name(name)
        or not any(
            beside not in (NO_PHASE, phase) and lies_beside(rows, others)
            for (_, others), beside in zip(candidates, phases, strict=True)
        )
    ]


def steps_on_host(trace: Trace, forest: RangeForest) -> Found | None:
    """Steps of a profile without GPU work: ranges that are called a step, which is all that there is to go by."""
    named = [(name, rows) for name, rows in _repeated_ranges(trace.ranges, forest) if is_step_name(name)]
    if not trace.ranges.height or not named:
        return None
    name, rows = max(named, key=lambda item: len(item[1]))
    begin, finish = (trace.ranges[column].to_numpy()[rows] for column in ("start_ns", "end_ns"))
    none = np.zeros(len(rows), dtype=np.int64)
    found = Found(begin, finish, none, none.astype(np.bool_), name)
    return found._replace(rhythms=(_of_ranges(name, rows, begin, none, chosen=True),))


def _of_ranges(name: str, rows: Int64s, start: Int64s, launches: Int64s, *, chosen: bool) -> Rhythm:
    """Ranges of one name as something that repeats: when each of `rows` begins, and what it launches."""
    pace = int(np.median(np.diff(np.sort(start)))) if len(rows) > 1 else None
    named = is_step_name(name)
    why = "their name says so" if named else "they hold nearly all work"
    what = f"ranges named {name!r}"
    return Rhythm(what, len(rows), pace, int(np.median(launches)), "high" if named else "medium", why, chosen)


def _alike(launches: Int64s) -> bool:
    usual = float(np.median(launches))
    return bool(np.mean(np.abs(launches - usual) <= _ALIKE_TOLERANCE * usual) >= _ALIKE_SHARE)


def _repeated_ranges(ranges: pl.DataFrame, forest: RangeForest) -> list[tuple[str, Int64s]]:
    """Names whose ranges follow one another on one thread, at least twice unless the name says "step"."""
    names, code = generic_names(ranges["name"])
    outside_warmup = forest.outermost_match(warmup_labels(ranges)) == 0

    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = (ranges["process"].to_numpy().astype(np.int64) << 32) | ranges["thread"].to_numpy()
    # Operators repeat by nature; a step is what a person, or a framework on a person's behalf, marked as one.
    framework = name_labels(ranges["name"], is_framework_name) > 0
    rows = np.flatnonzero(outside_warmup & (end > start) & ~is_operator(ranges) & ~framework)
    order = rows[np.lexsort((start[rows], code[rows], thread[rows]))]
    changes = np.flatnonzero((np.diff(code[order]) != 0) | (np.diff(thread[order]) != 0)) + 1
    return [
        (names[int(code[group[0]])], group)
        for group in (np.split(order, changes) if len(order) else ())
        if (len(group) >= 2 or is_step_name(names[int(code[group[0]])])) and np.all(start[group][1:] >= end[group][:-1])
    ]


def _coverage(
    rows: Int64s, ranges: pl.DataFrame, launched: dict[int, Int64s], launches_inside: Int64s, beside: list[Int64s]
) -> float:
    """Share of the launches made between the first and the last of these ranges that were made inside them.

    Launches inside of ranges of the same name on other threads (`beside`) do not count: those are steps of their own.
    `launched` has the times of each process's launches in order.
    """
    processes, starts, ends = (ranges[column].to_numpy() for column in ("process", "start_ns", "end_ns"))
    process, first, last = int(processes[rows[0]]), int(starts[rows[0]]), int(ends[rows[-1]])
    begun, stop = np.searchsorted(launched.get(process, np.empty(0, dtype=np.int64)), (first, last))
    during = int(stop - begun)
    for others in beside:
        theirs = (processes[others] == process) & (starts[others] >= first) & (ends[others] <= last)
        during -= int(launches_inside[others[theirs]].sum())
    return min(float(launches_inside[rows].sum() / during), 1.0) if during > 0 else 0.0


def _on_analysis_clock(rows: Int64s, trace: Trace, work: pl.DataFrame, forest: RangeForest, name: str) -> Found | None:
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
        return Found(begin, finish, counts, np.zeros(len(rows), dtype=np.bool_), name)
    if np.any(np.diff(first) <= 0):
        return None  # steps overlap on the GPU: no instant separates them
    first = _first_on_busiest_stream(work[mine], step[mine] - 1, first)
    return Found(first, np.r_[first[1:], last[-1]], counts, np.zeros(len(rows), dtype=np.bool_), name, last)


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
