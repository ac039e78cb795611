"""The repetitions of the workload: warm-up is not the work, and numbers are per step.

Steps are looked for in three places, in this order:

1. annotated ranges of one name that repeat one after the other on a thread (numbers in the name ignored, so that
   `ProfilerStep#3` and `ProfilerStep#4` are one name) and together hold most of the GPU work of the time they span
   (`warplens.analysis.step_ranges`);
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

#: Work between two steps, or in one of them beside what the others do, interrupts them from this share of a step's
#: launches on: less is logging, or a step of other lengths.
_INTERRUPTED = 0.5

#: Calls that load code: they belong to the start of a program, or to compilation.
LOADS_CODE = lazy_pattern(r"^cu(?:da)?(?:Library|Module)Load|^cuLink|^cuInit")

#: The last step counts if the pause that it lacks is at most this share of a step: less than steps differ anyway.
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
    found = steps_from_ranges(trace, work, forest) if work.height else steps_on_host(trace, forest)
    if found is None and not work.height:
        return StepSearch((), (), "none", None, "no GPU work and no step ranges were recorded")
    if found is None:
        found = steps_of_xla(trace, work, forest) or steps_from_sequence(trace, work, forest)
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
