"""The repetitions of the workload: warm-up is not the work, and numbers are per step.

Steps are looked for in three places, in this order:

1. annotated ranges of one name that repeat one after the other on a thread (numbers in the name ignored, so that
   `ProfilerStep#3` and `ProfilerStep#4` are one name) and together hold most of the GPU work of the time they span;
2. runs of the program compiled by XLA (JAX) that takes most of the GPU's time, which XLA marks with ranges;
3. the launches themselves (`warplens.analysis.sequence`).

The leading steps that are much slower than the rest, or that run another number of kernels, are left out as warm-up,
and so is a last step whose end the recording does not show. Of two steps the first is left out only if it also loads
code, obtains memory, or runs another number of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.repetition import MIN_REPEATS, warmup_labels
from warplens.analysis.sequence import Confidence, Found, Rhythm, steps_from_sequence
from warplens.analysis.trees import NO_RANGE, RangeForest, is_operator
from warplens.analysis.window import (
    NO_PHASE,
    Step,
    generic_names,
    is_framework_name,
    is_step_name,
    phase_of_name,
    xla_program,
)
from warplens.patterns import lazy_pattern
from warplens.profile import Trace
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, name_categories, name_labels, rows_named

#: A range that is called a step may leave out this much of the GPU work (evaluation, checkpoints); any other repeated
#: range must hold nearly all of it, or it is only a part of the step (a layer, the forward pass of a training step).
_NAMED_STEP_COVERAGE = 0.5
_ANY_RANGE_COVERAGE = 0.9

#: When more of the GPU time than this runs in what would be another step, steps overlap on the GPU.
_STRAYED_SHARE = 0.1

#: A leading step this much slower than the median is still warming up (compilation, allocation, autotuning). Ordinary
#: steps of one program stay within some 20 % of each other even where the host is the limit; real warm-up steps in our
#: captures are 1.3 to 100 times slower.
WARMUP_SLOWDOWN = 1.25

#: Work between two steps, or in one of them beside what the others do, interrupts them from this share of a step's
#: launches on: less is logging, or a step of other lengths.
_INTERRUPTED = 0.5

#: Calls that load code: they belong to the start of a program, or to compilation.
LOADS_CODE = lazy_pattern(r"^cu(?:da)?(?:Library|Module)Load|^cuLink|^cuInit")

#: The last step counts if the pause that it lacks is at most this share of a step: less than steps differ anyway.
_LOST_PAUSE = 0.02

#: Ranges of one name are steps only if most of them launch about the same amount of work.
_ALIKE_SHARE = 0.5
_ALIKE_TOLERANCE = 0.1


RHYTHMS: Final = table(
    "rhythms",
    "Something that repeats and may be the step, the one that was taken for it first. `warplens steps`.",
    column("what").but(title="What", help="what repeats"),
    Column("repeats", pl.Int64, "how often"),
    Column("pace_ns", pl.Int64, "median time from one start to the next; null for a single one", nullable=True),
    "launches confidence reason",
    Column("is_step", pl.Boolean, "whether it was taken for the step", title="Taken"),
    launches="median number of each",
    confidence="how sure it is that it is the step: `high`, `medium` or `low`",
    reason="what says so",
)

LEFT_OUT: Final = table(
    "left-out",
    "A stretch of the recording that is no steady step and has GPU work, in time order. `warplens steps`.",
    "what start_ns end_ns duration_ns launches",
    what="`start-up`, `compilation` (code was loaded in it), `warm-up`, `interruption` (an evaluation, a checkpoint), "
    "`last step` (its end was not recorded) or `rest`",
    launches="pieces of work that began in it",
)


@dataclass(frozen=True)
class LeftOut:
    """A row of `LEFT_OUT`."""

    what: str
    start_ns: int
    end_ns: int
    launches: int


@dataclass(frozen=True)
class StepSearch:
    """What the search for steps found."""

    #: all steps in time order, on the clock of the analysis; empty where the profile shows no repetition
    steps: tuple[Step, ...]
    steady: tuple[Step, ...]  #: the steps without the leading ones that are still warming up
    source: str  #: `range`, `sequence` or `none`
    name: str | None  #: the range name, with numbers replaced by `N`; None for other sources
    how: str  #: one sentence for people
    #: everything that repeats, from which the steps were chosen; without ranges these may be parts of a step (a layer),
    #: or several
    rhythms: tuple[Rhythm, ...] = ()
    left_out: tuple[LeftOut, ...] = ()  #: work beside the steady steps, in time order

    @property
    def confidence(self) -> Confidence | None:
        """How certain it is that what was found are steps; None where nothing was."""
        return next((each.confidence for each in self.rhythms if each.chosen), None)

    @property
    def is_sure(self) -> bool:
        """Whether what repeats is a step."""
        return self.confidence != "low"


def rhythm_rows(search: StepSearch) -> pl.DataFrame:
    """What repeats in a profile, the steps first (`RHYTHMS`)."""
    rows = [
        (each.what, each.count, each.pace_ns, each.launches, each.confidence, each.why, each.chosen)
        for each in search.rhythms
    ]
    return pl.DataFrame(rows, schema=RHYTHMS.schema, orient="row")


def left_out_rows(search: StepSearch) -> pl.DataFrame:
    """What lies beside the steady steps (`LEFT_OUT`)."""
    rows = [
        (each.what, each.start_ns, each.end_ns, each.end_ns - each.start_ns, each.launches) for each in search.left_out
    ]
    return pl.DataFrame(rows, schema=LEFT_OUT.schema, orient="row")


def find_steps(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> StepSearch:
    """The steps of a profile. `work` and `forest` are those of the `Timeline`."""
    found = _steps_from_ranges(trace, work, forest) if work.height else _steps_on_host(trace, forest)
    if found is None and not work.height:
        return StepSearch((), (), "none", None, "no GPU work and no step ranges were recorded")
    if found is None:
        found = _steps_of_xla(trace, work, forest) or steps_from_sequence(trace, work, forest)
    if found is None:
        how = "from the first to the last GPU work (no repeating steps in ranges or kernel sequence)"
        return StepSearch((), (), "none", None, how)
    steps = tuple(Step(i + 1, int(s), int(e)) for i, (s, e) in enumerate(zip(found.starts, found.ends, strict=True)))
    left_out = _warmup_count(found)
    if len(steps) == 2 and left_out and not _warms_up(trace, found):
        left_out = 0
    kept = len(steps) - (len(steps) - left_out > 1 and _ends_unseen(found, left_out))
    begun = np.sort(work["start_ns"].to_numpy())
    first, last = _longest_stretch(found, begun, left_out, kept)
    source = "sequence" if found.name is None else "range"
    chosen = next(each for each in found.rhythms if each.chosen)
    how = _describe(len(steps), (left_out, first, last, kept), found)
    how += "; they may be parts of a step" if chosen.confidence == "low" else ""
    if not work.height:
        how += ", on the host alone: no GPU work was recorded"
    apart = tuple(_left_out(trace, steps, (left_out, first, last, kept), begun))
    return StepSearch(steps, steps[first:last], source, found.name, how, found.rhythms, apart)


def _describe(count: int, bounds: tuple[int, int, int, int], found: Found) -> str:
    left_out, first, last, kept = bounds
    origin = f"ranges named {found.name!r}" if found.name is not None else found.origin
    chosen = f"steps {first + 1}–{last} of {count}" if last > first + 1 else f"step {last} of {count}"
    leading = "the first" if left_out == 1 else f"the first {left_out}"
    parts = [f"{chosen}, from {origin}"]
    parts += [f"{leading} left out as warm-up"] if left_out else []
    parts += (
        ["the longest stretch without interruption by evaluation or other work"]
        if (first, last) != (left_out, kept)
        else []
    )
    parts += ["the last left out, because its end was not recorded"] if kept < count else []
    return "; ".join(parts)


def _longest_stretch(found: Found, begun: Int64s, first: int, stop: int) -> tuple[int, int]:
    """The longest row of steps, from `first` to before `stop`, that no other work interrupts; the later of equals.

    An evaluation lies between two steps, or where steps lie side by side in one that runs far more than the others.
    """
    usual = float(np.median(found.counts[first:stop]))
    between = np.searchsorted(begun, found.starts[first + 1 : stop]) - np.searchsorted(
        begun, found.ends[first : stop - 1]
    )
    longer = found.counts[first:stop] > (1 + _INTERRUPTED) * usual
    cut = (between > _INTERRUPTED * usual) | longer[1:] | longer[:-1]
    edges = np.r_[first, first + 1 + np.flatnonzero(cut), stop]
    lengths = np.diff(edges)
    longest = len(lengths) - 1 - int(np.argmax(lengths[::-1]))
    if len(lengths) == 1 or lengths[longest] < MIN_REPEATS:
        return first, stop
    return int(edges[longest]), int(edges[longest + 1])


def _left_out(
    trace: Trace, steps: tuple[Step, ...], bounds: tuple[int, int, int, int], begun: Int64s
) -> Iterator[LeftOut]:
    """What lies beside the steady steps, `bounds` being where warm-up, steady steps and whole steps end."""
    left_out, first, last, kept = bounds
    if not len(begun):
        return
    begin, end = int(begun[0]), int(begun[-1]) + 1
    marks = [
        ("start-up", begin, steps[0].start_ns),
        ("warm-up", steps[0].start_ns, steps[left_out].start_ns),
        ("interruption", steps[left_out].start_ns, steps[first].start_ns),
        ("interruption", steps[last - 1].end_ns, steps[kept - 1].end_ns),
        ("last step", steps[kept - 1].end_ns, steps[-1].end_ns),
        ("rest", steps[-1].end_ns, end),
    ]
    loads = _loading(trace)
    warm = trace.ranges["start_ns"].filter(pl.Series(warmup_labels(trace.ranges) > 0, dtype=pl.Boolean))
    if warm.is_between(begin, steps[0].start_ns, closed="left").any():
        marks[0] = ("warm-up", *marks[0][1:])
    for what, start, stop in marks:
        launches = int(np.searchsorted(begun, stop) - np.searchsorted(begun, start))
        if launches > 0:
            compiles = np.searchsorted(loads, stop) > np.searchsorted(loads, start) and what in ("start-up", "warm-up")
            yield LeftOut("compilation" if compiles else what, start, stop, launches)


def _loading(trace: Trace, *, or_allocating: bool = False) -> Int64s:
    """When code was loaded onto the GPU, by a start or by compilation; where asked, also when memory was obtained."""
    calls = trace.api_calls
    loads = rows_named(calls["name"], lambda name: LOADS_CODE.search(name) is not None)
    if or_allocating:
        loads |= (api_kinds(calls["name"]) == "allocation").to_numpy()
    return np.sort(calls["start_ns"].to_numpy()[loads])


def _ends_unseen(found: Found, left_out: int) -> bool:
    """Whether the last step is shorter than the others for want of the pause that follows a step.

    Where a step lasts until the next one begins, the last one ends with its last GPU work. It counts where steps follow
    one another without a pause, and where its own work took so long that the pause does not matter.
    """
    if found.work_ends is None:
        return False
    pauses = found.starts[left_out + 1 :] - found.work_ends[left_out:-1]
    usual = float(np.median(np.diff(found.starts[left_out:])))
    return float(np.median(pauses)) > _LOST_PAUSE * usual


def _warmup_count(found: Found) -> int:
    """How many leading steps are still warming up; at least the last step is always kept."""
    durations = found.ends - found.starts
    later = slice(len(durations) // 2, None)
    # A last step without its pause is no measure of the others.
    whole = durations[:-1] if len(durations) > 1 and _ends_unseen(found, 0) else durations
    usual_duration = float(np.median(whole[len(whole) // 2 :]))
    usual_count = np.median(found.counts[later])
    unusual = (durations > WARMUP_SLOWDOWN * usual_duration) | (found.counts != usual_count)
    leading = int(np.argmin(unusual)) if not unusual.all() else 0
    # A workload whose steps all differ has no warm-up: unusual steps are only left out if their successors settle.
    leading = leading if leading <= len(durations) // 2 else 0
    named = int(np.argmin(found.named_warmup)) if not found.named_warmup.all() else 0
    return max(leading, named)


def _warms_up(trace: Trace, found: Found) -> bool:
    """Whether the first of two steps does what a warm-up does: other work, loading code, obtaining memory.

    That it takes longer than the one step after it says nothing alone: of two steps one is the slower. Where no calls
    were recorded, it may have done so; and it also pays for the start of a profiler inside of the program.
    """
    unknown = trace.capture.recorder.slows_first_step or not trace.api_calls.height
    if unknown or found.named_warmup[0] or found.counts[0] != found.counts[1]:
        return True
    first, second = np.searchsorted(_loading(trace, or_allocating=True), [found.starts[0], found.starts[1]])
    return bool(second > first)


def _steps_from_ranges(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> Found | None:
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


def _steps_of_xla(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> Found | None:
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


def _steps_on_host(trace: Trace, forest: RangeForest) -> Found | None:
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
