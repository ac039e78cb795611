"""Steps: the repetitions of the workload, separated from warm-up.

Steps are looked for in three places, in this order:

1. annotated ranges of one name that repeat one after the other on a thread (numbers in the name ignored, so that
   `ProfilerStep#3` and `ProfilerStep#4` are one name) and together hold most of the GPU work of the time they span
   (`warplens.analysis.step_ranges`);
2. runs of the program compiled by XLA (JAX) that takes most of the GPU's time, which XLA marks with ranges;
3. the launches themselves (`warplens.analysis.sequence`).

Leading steps that are much slower than the rest, or that run another number of kernels, are left out as warm-up, and so
is a last step whose end was not recorded. Of two steps the first is left out only if it also loads code, allocates
memory, or runs another number of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.repetition import MIN_REPEATS, warmup_labels
from warplens.analysis.sequence import Confidence, Rhythm, StepCandidates, steps_from_sequence
from warplens.analysis.step_ranges import steps_from_ranges, steps_of_xla, steps_on_host
from warplens.analysis.trees import RangeForest
from warplens.analysis.window import (
    Step,
)
from warplens.patterns import lazy_pattern
from warplens.profile import Trace
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, rows_named

#: A leading step this much slower than the median is still warming up (compilation, allocation, autotuning). Ordinary
#: steps of one program stay within some 20 % of each other even where the host is the limit; real warm-up steps in our
#: captures are 1.3 to 100 times slower.
WARMUP_SLOWDOWN = 1.25

#: Other work between two steps, or within one, is an interruption from this share of a step's launches on; less is
#: logging, or steps of different lengths.
_INTERRUPTED = 0.5

#: Calls that load code: they belong to the start of a program, or to compilation.
LOADS_CODE = lazy_pattern(r"^cu(?:da)?(?:Library|Module)Load|^cuLink|^cuInit")

#: The last step counts if its missing pause is at most this share of a step: less than steps differ anyway.
_LOST_PAUSE = 0.02

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
    """Result of the search for steps."""

    #: all steps in time order, on the clock of the analysis; empty where the profile shows no repetition
    steps: tuple[Step, ...]
    steady: tuple[Step, ...]  #: the steps without the leading ones that are still warming up
    source: str  #: `range`, `sequence` or `none`
    name: str | None  #: the range name, with numbers replaced by `N`; None for other sources
    how: str  #: one sentence for people
    #: everything that repeats, from which the steps were chosen; without ranges these may be parts of a step (a layer),
    #: or several steps
    rhythms: tuple[Rhythm, ...] = ()
    left_out: tuple[LeftOut, ...] = ()  #: work beside the steady steps, in time order

    @property
    def confidence(self) -> Confidence | None:
        """Confidence that the repetitions are steps; None where none were found."""
        return next((rhythm.confidence for rhythm in self.rhythms if rhythm.chosen), None)

    @property
    def is_sure(self) -> bool:
        """Whether the repetitions are taken to be steps with more than low confidence."""
        return self.confidence != "low"


def rhythm_rows(search: StepSearch) -> pl.DataFrame:
    """The rhythms of a profile, the steps first (`RHYTHMS`)."""
    rows = [
        (rhythm.what, rhythm.count, rhythm.pace_ns, rhythm.launches, rhythm.confidence, rhythm.why, rhythm.chosen)
        for rhythm in search.rhythms
    ]
    return pl.DataFrame(rows, schema=RHYTHMS.schema, orient="row")


def left_out_rows(search: StepSearch) -> pl.DataFrame:
    """The work outside the steady steps (`LEFT_OUT`)."""
    rows = [
        (stretch.what, stretch.start_ns, stretch.end_ns, stretch.end_ns - stretch.start_ns, stretch.launches)
        for stretch in search.left_out
    ]
    return pl.DataFrame(rows, schema=LEFT_OUT.schema, orient="row")


def find_steps(trace: Trace, work: pl.DataFrame, forest: RangeForest) -> StepSearch:
    """The steps of a profile. `work` and `forest` are those of the `Timeline`."""
    candidates = steps_from_ranges(trace, work, forest) if work.height else steps_on_host(trace, forest)
    if candidates is None and not work.height:
        return StepSearch((), (), "none", None, "no GPU work and no step ranges were recorded")
    if candidates is None:
        candidates = steps_of_xla(trace, work, forest) or steps_from_sequence(trace, work, forest)
    if candidates is None:
        how = "from the first to the last GPU work (no repeating steps in ranges or kernel sequence)"
        return StepSearch((), (), "none", None, how)
    steps = tuple(
        Step(i + 1, int(s), int(e)) for i, (s, e) in enumerate(zip(candidates.starts, candidates.ends, strict=True))
    )
    warmup = _warmup_count(candidates)
    if len(steps) == 2 and warmup and not _warms_up(trace, candidates):
        warmup = 0
    complete = len(steps) - (len(steps) - warmup > 1 and _ends_unseen(candidates, warmup))
    launch_starts = np.sort(work["start_ns"].to_numpy())
    steady_start, steady_stop = _longest_stretch(candidates, launch_starts, warmup, complete)
    source = "sequence" if candidates.name is None else "range"
    chosen = next(rhythm for rhythm in candidates.rhythms if rhythm.chosen)
    how = _describe(len(steps), (warmup, steady_start, steady_stop, complete), candidates)
    how += "; they may be parts of a step" if chosen.confidence == "low" else ""
    if not work.height:
        how += ", on the host alone: no GPU work was recorded"
    outside = tuple(_left_out(trace, steps, (warmup, steady_start, steady_stop, complete), launch_starts))
    return StepSearch(steps, steps[steady_start:steady_stop], source, candidates.name, how, candidates.rhythms, outside)


def _describe(count: int, bounds: tuple[int, int, int, int], candidates: StepCandidates) -> str:
    warmup, steady_start, steady_stop, complete = bounds
    origin = f"ranges named {candidates.name!r}" if candidates.name is not None else candidates.origin
    which_steps = (
        f"steps {steady_start + 1}–{steady_stop} of {count}"
        if steady_stop > steady_start + 1
        else f"step {steady_stop} of {count}"
    )
    warmup_steps = "the first" if warmup == 1 else f"the first {warmup}"
    parts = [f"{which_steps}, from {origin}"]
    parts += [f"{warmup_steps} left out as warm-up"] if warmup else []
    parts += (
        ["the longest stretch without interruption by evaluation or other work"]
        if (steady_start, steady_stop) != (warmup, complete)
        else []
    )
    parts += ["the last left out, because its end was not recorded"] if complete < count else []
    return "; ".join(parts)


def _longest_stretch(candidates: StepCandidates, launch_starts: Int64s, first: int, stop: int) -> tuple[int, int]:
    """The longest run of steps in `[first, stop)` that no other work interrupts; the later of equals.

    An evaluation lies between two steps, or, where steps are adjacent, inside one that runs far more than the others.
    """
    usual_count = float(np.median(candidates.counts[first:stop]))
    between = np.searchsorted(launch_starts, candidates.starts[first + 1 : stop]) - np.searchsorted(
        launch_starts, candidates.ends[first : stop - 1]
    )
    oversized = candidates.counts[first:stop] > (1 + _INTERRUPTED) * usual_count
    interrupted = (between > _INTERRUPTED * usual_count) | oversized[1:] | oversized[:-1]
    edges = np.r_[first, first + 1 + np.flatnonzero(interrupted), stop]
    lengths = np.diff(edges)
    longest = len(lengths) - 1 - int(np.argmax(lengths[::-1]))
    if len(lengths) == 1 or lengths[longest] < MIN_REPEATS:
        return first, stop
    return int(edges[longest]), int(edges[longest + 1])


def _left_out(
    trace: Trace, steps: tuple[Step, ...], bounds: tuple[int, int, int, int], launch_starts: Int64s
) -> Iterator[LeftOut]:
    """Stretches of work outside the steady steps; `bounds` are the ends of warm-up, steady and complete steps."""
    warmup, steady_start, steady_stop, complete = bounds
    if not len(launch_starts):
        return
    begin, end = int(launch_starts[0]), int(launch_starts[-1]) + 1
    stretches = [
        ("start-up", begin, steps[0].start_ns),
        ("warm-up", steps[0].start_ns, steps[warmup].start_ns),
        ("interruption", steps[warmup].start_ns, steps[steady_start].start_ns),
        ("interruption", steps[steady_stop - 1].end_ns, steps[complete - 1].end_ns),
        ("last step", steps[complete - 1].end_ns, steps[-1].end_ns),
        ("rest", steps[-1].end_ns, end),
    ]
    load_times = _load_times(trace)
    warmup_starts = trace.ranges["start_ns"].filter(pl.Series(warmup_labels(trace.ranges) > 0, dtype=pl.Boolean))
    if warmup_starts.is_between(begin, steps[0].start_ns, closed="left").any():
        stretches[0] = ("warm-up", *stretches[0][1:])
    for stretch, start, stop in stretches:
        launches = int(np.searchsorted(launch_starts, stop) - np.searchsorted(launch_starts, start))
        if launches > 0:
            loads_code = np.searchsorted(load_times, stop) > np.searchsorted(load_times, start)
            compiles = loads_code and stretch in ("start-up", "warm-up")
            yield LeftOut("compilation" if compiles else stretch, start, stop, launches)


def _load_times(trace: Trace, *, or_allocating: bool = False) -> Int64s:
    """Times at which code was loaded onto the GPU, at start-up or by compilation; optionally also of allocations."""
    calls = trace.api_calls
    selected = rows_named(calls["name"], lambda name: LOADS_CODE.search(name) is not None)
    if or_allocating:
        selected |= (api_kinds(calls["name"]) == "allocation").to_numpy()
    return np.sort(calls["start_ns"].to_numpy()[selected])


def _ends_unseen(candidates: StepCandidates, warmup: int) -> bool:
    """Whether the last step lacks the pause that follows the other steps.

    Where a step lasts until the next one begins, the last one ends with its last GPU work. It still counts where steps
    follow one another without a pause, or where the pause is short compared with a step.
    """
    if candidates.work_ends is None:
        return False
    pauses = candidates.starts[warmup + 1 :] - candidates.work_ends[warmup:-1]
    usual_duration = float(np.median(np.diff(candidates.starts[warmup:])))
    return float(np.median(pauses)) > _LOST_PAUSE * usual_duration


def _warmup_count(candidates: StepCandidates) -> int:
    """Number of leading steps that are still warming up; at least one step is kept."""
    durations = candidates.ends - candidates.starts
    second_half = slice(len(durations) // 2, None)
    # A last step without its pause is not comparable with the others.
    complete = durations[:-1] if len(durations) > 1 and _ends_unseen(candidates, 0) else durations
    usual_duration = float(np.median(complete[len(complete) // 2 :]))
    usual_count = np.median(candidates.counts[second_half])
    unusual = (durations > WARMUP_SLOWDOWN * usual_duration) | (candidates.counts != usual_count)
    leading = int(np.argmin(unusual)) if not unusual.all() else 0
    # A workload whose steps all differ has no warm-up: unusual steps are left out only if their successors settle.
    leading = leading if leading <= len(durations) // 2 else 0
    named_count = int(np.argmin(candidates.named_warmup)) if not candidates.named_warmup.all() else 0
    return max(leading, named_count)


def _warms_up(trace: Trace, candidates: StepCandidates) -> bool:
    """Whether the first of two steps shows signs of warm-up: different work, loading code, allocating memory.

    Its duration alone proves nothing: of two steps one is always slower. Where no API calls were recorded it is taken
    for warm-up, and so it is where the first step pays for the start of a profiler inside the program.
    """
    unknown = trace.capture.recorder.slows_first_step or not trace.api_calls.height
    if unknown or candidates.named_warmup[0] or candidates.counts[0] != candidates.counts[1]:
        return True
    first_start_loads, second_start_loads = np.searchsorted(
        _load_times(trace, or_allocating=True), [candidates.starts[0], candidates.starts[1]]
    )
    return bool(second_start_loads > first_start_loads)
