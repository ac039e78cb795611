"""Steps: the repetitions of the workload, separated from warm-up.

Steps are looked for in three places, in this order:

1. annotated ranges of one name that repeat one after the other on a thread (numbers in the name ignored, so that
   `ProfilerStep#3` and `ProfilerStep#4` are one name) and together hold most of the GPU work of the time they span
   (`warplens.analysis.step_ranges`);
2. runs of the program compiled by XLA (JAX) that takes most of the GPU's time, which XLA marks with ranges;
3. the launches themselves (`warplens.analysis.sequence`).

Leading steps that are much slower than the rest, or that run another number of kernels, are left out as warm-up, and so
is a last step where the pause after it, which counts as part of a step, was not recorded. Of two steps the first is
left out only if it also loads code, allocates memory, or runs another number of kernels. Steps whose kernels were not
recorded are left out, too.

Where every n-th step does more by design (gradient accumulation), n steps are a cycle
(`warplens.analysis.step_cycles`), and the steady steps are whole cycles.

A pause of the GPU that happens only once in many steps, such as a checkpoint or another program on the machine, is no
property of a step. Like other work between the steps it interrupts them, and the longest stretch without one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.intervals import Intervals, clip, measure_before, total, union
from warplens.analysis.repetition import ALIKE_TOLERANCE, MIN_REPEATS, warmup_labels
from warplens.analysis.sequence import Confidence, Rhythm, StepCandidates, steps_from_sequence
from warplens.analysis.step_cycles import FAR_MORE, LongSteps, longer_by_design
from warplens.analysis.step_ranges import steps_from_ranges, steps_of_xla, steps_on_host
from warplens.analysis.trees import RangeForest, is_operator
from warplens.analysis.window import Step, unnumbered_name
from warplens.patterns import lazy_pattern
from warplens.profile import Trace
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, rows_named

#: A leading step this much slower than the median is still warming up (compilation, allocation, autotuning). Ordinary
#: steps of one program stay within some 20 % of each other even where the host is the limit; real warm-up steps in our
#: captures are 1.3 to 100 times slower.
WARMUP_SLOWDOWN = 1.25

#: Calls that load code: they belong to the start of a program, or to compilation.
LOADS_CODE = lazy_pattern(r"^cu(?:da)?(?:Library|Module)Load|^cuLink|^cuInit")

#: The last step counts if its missing pause is at most this share of a step: less than steps differ anyway.
_LOST_PAUSE = 0.02

#: A pause happens once if it is so large a part of all pauses that are this much of a step longer than usual. Two alike
#: recur, as those of a data loader that prefetches a number of batches.
_ONCE: Final = 0.75
_OF_A_STEP: Final = 0.5
#: Among fewer steps, a pause may be that of every third or fourth one.
_STEPS_FOR_ONCE: Final = 6
#: A shorter pause costs less than steps differ anyway (share of the stretch).
_LEAST_COST: Final = 0.02

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
    what="`start-up`, `compilation` (code was loaded in it), `warm-up`, `interruption` (an evaluation, a checkpoint, a "
    "pause that happens once), `other steps` (before or behind an interruption), `part of a cycle` (of steps that do "
    "more in turn), `not recorded` (steps whose kernels were lost), `last step` (the pause after it was not recorded) "
    "or `rest`",
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
class LonePause:
    """A pause of the GPU that happens once among many steps, and interrupts them."""

    step: int  #: number of the step in which it lies, or behind which
    inside: bool  #: whether it lies in the step
    idle_ns: int  #: idle time beyond that of the other steps
    share: float  #: of the time of these steps, the pause included
    others: int  #: steps without any such pause inside
    busy_share: float  #: of the time of these steps without such pauses, in which at least one GPU works
    who: str = "the GPU"  #: what works then

    def __str__(self) -> str:
        """The pause as a part of a sentence: `a pause of 180.0 s in step 4`."""
        length = f"{self.idle_ns / 1e9:,.1f} s" if self.idle_ns >= 1e9 else f"{self.idle_ns / 1e6:,.1f} ms"
        place = f"in step {self.step}" if self.inside else f"between steps {self.step} and {self.step + 1}"
        return f"a pause of {length} {place}"

    @property
    def told(self) -> str:
        """A sentence: that it is left out, and what the GPU does in the other steps."""
        which = f"the other {self.others:,} steps" if self.inside else f"the {self.others:,} steps without it"
        busy = f"{self.who} is busy for {100 * self.busy_share:.1f} % of {which}"
        return f"{str(self).capitalize()} is not counted, as it happens once: {busy}."


@dataclass(frozen=True)
class Interruptions:
    """Other work between the steps, such as evaluations and checkpoints, which the steady steps leave out."""

    count: int
    time_ns: int  #: their time; of a step with other work inside, the time beyond that of other steps
    share: float  #: of the time from the first to the last step without warm-up
    #: of the program's ranges that take most of that time, or what the interruptions are; empty if nothing tells
    names: tuple[str, ...]

    @property
    def told(self) -> str:
        """A sentence: that they are left out, and their share of the time."""
        which = f" ({', '.join(self.names)})" if self.names else ", such as evaluations or checkpoints,"
        number = "1 interruption" if self.count == 1 else f"{self.count:,} interruptions"
        return (
            f"{number} of the steps{which} {'is' if self.count == 1 else 'are'} not counted: "
            f"{100 * self.share:.1f} % of the time from the first to the last step."
        )


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
    #: number of steps after which they repeat, where every n-th does more by design; 1 where all do the same
    cycle: int = 1
    unrecorded: tuple[Step, ...] = ()  #: steps without kernels, or with few, because these were not recorded
    without_work: int = 0  #: further ranges of the steps' name that hold no GPU work
    pauses: tuple[LonePause, ...] = ()  #: those that happen once and are left out, the longest first
    interruptions: Interruptions | None = None  #: if they take a part of the time that matters

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
    begin, end = _recorded_steps(work, candidates)
    recorded = candidates.part(begin, end)
    longer = longer_by_design(trace, work, forest, recorded)
    warmup = _warmup_count(recorded, longer)
    if end - begin == 2 and warmup and not _warms_up(trace, recorded):
        warmup = 0
    cut = end == len(steps) and end - begin - warmup > 1 and _ends_unseen(recorded, warmup)
    launch_starts = np.sort(work["start_ns"].to_numpy())
    stretch, interrupted = _longest_stretch(recorded, launch_starts, warmup, end - begin - cut, longer)
    uninterrupted = stretch
    chosen = next(rhythm for rhythm in candidates.rhythms if rhythm.chosen)
    pauses: tuple[LonePause, ...] = ()
    if work.height and chosen.confidence != "low":  # parts of a step pause where the step ends
        stretch, pauses = _without_lone_pauses(work, recorded, stretch, longer, begin)
    interrupting = ["evaluation or other work"] if uninterrupted != (warmup, end - begin - cut) else []
    interrupting += map(str, pauses)
    cycles = longer.whole_cycles(*stretch)
    bounds = _Bounds(begin, end, begin + warmup, end - cut, *(begin + place for place in (*stretch, *cycles)))
    source = "sequence" if candidates.name is None else "range"
    how = _describe(len(steps), bounds, candidates, longer, interrupting)
    how += "; they may be parts of a step" if chosen.confidence == "low" else ""
    if not work.height:
        how += ", on the host alone: no GPU work was recorded"
    told = _told_interruptions(trace.ranges, recorded, interrupted, warmup, end - begin - cut)
    paused = [pause.step - 1 - begin for pause in pauses if pause.inside]
    interrupted = union(interrupted, Intervals(recorded.starts[paused], recorded.ends[paused]))
    outside = tuple(_left_out(trace, steps, bounds, launch_starts, interrupted))
    return StepSearch(
        steps,
        steady=steps[bounds.first : bounds.stop],
        source=source,
        name=candidates.name,
        how=how,
        rhythms=candidates.rhythms,
        left_out=outside,
        cycle=longer.period,
        unrecorded=steps[:begin] + steps[end:],
        without_work=candidates.without_work if work.height else 0,
        pauses=pauses,
        interruptions=told,
    )


class _Bounds(NamedTuple):
    """Places among all steps, each a begin or a stop; from the outside in."""

    begin: int  #: begin, end: the steps whose kernels were recorded
    end: int
    warm: int  #: of those, without the warm-up
    complete: int  #: … and without a last step whose pause was not recorded
    stretch_first: int  #: stretch_first, stretch_stop: the longest stretch without interruption
    stretch_stop: int
    first: int  #: first, stop: its whole cycles, the steady steps
    stop: int


def _describe(
    count: int, bounds: _Bounds, candidates: StepCandidates, longer: LongSteps, interrupting: Sequence[str]
) -> str:
    """Which steps the window has, where they come from, and why others were left out."""
    origin = f"ranges named {candidates.name!r}" if candidates.name is not None else candidates.origin
    parts = [f"{_numbers(bounds.first, bounds.stop)} of {count}, from {origin}"]
    warmup = bounds.warm - bounds.begin
    warmup_steps = "the first" if warmup == 1 else f"the first {warmup}"
    parts += [f"{warmup_steps} left out as warm-up"] if warmup else []
    if interrupting:
        parts.append(f"the longest stretch without interruption by {' and '.join(interrupting)}")
    if longer.steps.any():
        does = "updates the weights" if longer.updates else "does more than the others"
        irregular = "not every one updates the weights" if longer.updates else "some do more than the others"
        told = f"every {_ordinal(longer.period)} {does}" if longer.period > 1 else irregular
        whole = (bounds.first, bounds.stop) != (bounds.stretch_first, bounds.stretch_stop)
        parts.append(told + (", and only whole cycles count" if whole else ""))
    parts += ["the last left out, because the pause after it was not recorded"] if bounds.complete < bounds.end else []
    lost = [_numbers(*part) for part in ((0, bounds.begin), (bounds.end, count)) if part[1] > part[0]]
    parts += [f"{' and '.join(lost)} left out, because their kernels were not recorded"] if lost else []
    return "; ".join(parts)


def _numbers(first: int, stop: int) -> str:
    """The numbers of the steps at these places: `steps 2–4`, or `step 4`."""
    return f"steps {first + 1}–{stop}" if stop > first + 1 else f"step {stop}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _recorded_steps(work: pl.DataFrame, candidates: StepCandidates) -> tuple[int, int]:
    """The longest run of steps whose kernels were recorded; all steps if none, or not one stretch of them, lacks any.

    Profilers lose the kernels of a stretch of time, and keep its copies and fills. A step at the edge of that stretch
    lacks a part of its kernels.
    """
    count = len(candidates.starts)
    begins = work["start_ns"].filter(work["kind"].is_in(["kernel", "graph"])).sort().to_numpy()
    kernels = np.searchsorted(begins, candidates.ends) - np.searchsorted(begins, candidates.starts)
    lacking = kernels == 0
    if not lacking.any() or lacking.all():
        return 0, count
    edges = np.flatnonzero(np.diff(np.r_[True, lacking, True].astype(np.int8)))
    runs = edges.reshape(-1, 2)
    first, stop = (int(place) for place in runs[np.argmax(runs[:, 1] - runs[:, 0])])
    if stop - first < MIN_REPEATS and np.count_nonzero(np.diff(np.r_[False, lacking, False].astype(np.int8)) > 0) > 1:
        return 0, count
    usual = np.median(kernels[first:stop])
    if first and stop - first > 1 and kernels[first] < (1 - ALIKE_TOLERANCE) * usual:
        first += 1
    if stop < count and stop - first > 1 and kernels[stop - 1] < (1 - ALIKE_TOLERANCE) * usual:
        stop -= 1
    return first, stop


def _longest_stretch(
    candidates: StepCandidates, launch_starts: Int64s, first: int, stop: int, longer: LongSteps
) -> tuple[tuple[int, int], Intervals]:
    """The longest run of steps in `[first, stop)` that no other work interrupts, the later of equals; that other work.

    An evaluation lies between two steps, or, where steps are adjacent, inside one that runs far more than the others of
    its kind. Such a step counts as a whole.
    """
    inside = np.zeros(len(candidates.counts), dtype=np.bool_)
    inside[first:stop] = True
    usual_counts = longer.usual(candidates.counts, inside)[first:stop]
    between = np.searchsorted(launch_starts, candidates.starts[first + 1 : stop]) - np.searchsorted(
        launch_starts, candidates.ends[first : stop - 1]
    )
    apart = between > FAR_MORE * usual_counts.min()
    oversized = candidates.counts[first:stop] > (1 + FAR_MORE) * usual_counts
    edges = np.r_[first, first + 1 + np.flatnonzero(apart | oversized[1:] | oversized[:-1]), stop]
    lengths = np.diff(edges)
    longest = len(lengths) - 1 - int(np.argmax(lengths[::-1]))
    if len(lengths) == 1 or lengths[longest] < MIN_REPEATS:
        return (first, stop), Intervals.none()
    behind, within = first + np.flatnonzero(apart), first + np.flatnonzero(oversized)
    interrupted = union(
        Intervals(candidates.ends[behind], candidates.starts[behind + 1]),
        Intervals(candidates.starts[within], candidates.ends[within]),
    )
    return (int(edges[longest]), int(edges[longest + 1])), interrupted


def _told_interruptions(
    ranges: pl.DataFrame, candidates: StepCandidates, interrupted: Intervals, first: int, stop: int
) -> Interruptions | None:
    """What these interruptions of the steps `[first, stop)` take; None if that hardly matters."""
    usual = np.median((candidates.ends - candidates.starts)[first:stop])
    edges = [measure_before(interrupted, times) for times in (candidates.starts, candidates.ends)]
    within = (edges[1] - edges[0])[first:stop]
    time_ns = max(total(interrupted) - int(np.count_nonzero(within) * usual), 0)
    share = time_ns / max(int(candidates.ends[stop - 1] - candidates.starts[first]), 1)
    if share < _LEAST_COST:
        return None
    names = _only_inside(ranges.filter(~pl.Series(is_operator(ranges))), interrupted, candidates)
    if not names and within.sum() == total(interrupted):
        names = ("steps with far more work",)
    return Interruptions(len(interrupted.starts), time_ns, share, names)


def _only_inside(ranges: pl.DataFrame, spans: Intervals, candidates: StepCandidates, most: int = 2) -> tuple[str, ...]:
    """The names of ranges that hold no step and lie mostly in these spans, as most of their name do.

    Of nested ones the outermost in each span count. Those with most time come first.
    """
    starts, ends = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    within = measure_before(spans, ends) - measure_before(spans, starts)
    next_step = np.r_[candidates.ends, np.iinfo(np.int64).max][np.searchsorted(candidates.starts, starts)]
    plain = {name: unnumbered_name(name) for name in ranges["name"].cast(pl.String).unique()}
    inside = (
        ranges.select(
            "depth",
            "process",
            "thread",
            pl.col("name").cast(pl.String).replace_strict(plain, return_dtype=pl.String),
            pl.Series("length", ends - starts),
            pl.Series("inside", 2 * within > ends - starts),
            pl.Series("span", np.searchsorted(spans.starts, ends)),
            pl.Series("holds_step", next_step <= ends),
        )
        .filter(pl.col("inside").mean().over("name") > 0.5)
        .filter("inside", ~pl.col("holds_step"))
    )
    outermost = inside.filter(pl.col("depth") == pl.col("depth").min().over("process", "thread", "span"))
    names = outermost.group_by("name").agg(pl.col("length").sum())
    return tuple(names.sort(["length", "name"], descending=[True, False])["name"].head(most))


def _without_lone_pauses(
    work: pl.DataFrame, candidates: StepCandidates, stretch: tuple[int, int], longer: LongSteps, before: int
) -> tuple[tuple[int, int], tuple[LonePause, ...]]:
    """The longest part of a stretch of steps without pauses that happen once, the later of equals; and these pauses.

    A pause is idle time of all GPUs beyond what steps of the same kind have, inside a step or between two.

    Args:
        before: steps before the candidates.
    """
    (first, stop), found = stretch, list[LonePause]()
    if stop - first < _STEPS_FOR_ONCE:
        return stretch, ()
    edges = np.column_stack([candidates.starts, candidates.ends]).reshape(-1)
    spans, busy = np.diff(edges), np.diff(measure_before(union(Intervals.of(work)), edges))
    inside, between = (spans - busy)[::2], (spans - busy)[1::2]
    number = np.arange(len(inside))
    without = np.zeros(len(spans), dtype=np.bool_)
    without[2 * first : 2 * stop - 1] = True
    while stop - first >= _STEPS_FOR_ONCE:
        extra = np.zeros(2 * (stop - first) - 1)
        extra[::2] = (inside - longer.usual(inside, (number >= first) & (number < stop)))[first:stop]
        extra[1::2] = between[first : stop - 1] - np.median(between[first : stop - 1])
        far = extra[extra > _OF_A_STEP * np.median(np.diff(candidates.starts[first:stop]))]
        longest, length = int(np.argmax(extra)), int(edges[2 * stop - 1] - edges[2 * first])
        if not len(far) or extra[longest] < max(_ONCE * far.sum(), _LEAST_COST * length):
            break
        place, behind = first + longest // 2, longest % 2
        kept = max((place + 1, stop), (first, place + behind), key=lambda part: part[1] - part[0])
        if kept[1] - kept[0] < longer.period:
            break
        without[2 * first + longest] = False
        found.append(
            LonePause(
                step=before + place + 1,
                inside=not behind,
                idle_ns=int(extra[longest]),
                share=float(extra[longest]) / length,
                others=0,
                busy_share=0.0,
                who="the GPU" if work["device"].n_unique() == 1 else "at least one GPU",
            )
        )
        first, stop = kept
    others, share = int(without[::2].sum()), float(busy[without].sum() / max(spans[without].sum(), 1))
    return (first, stop), tuple(replace(pause, others=others, busy_share=share) for pause in found)


def _left_out(
    trace: Trace, steps: tuple[Step, ...], bounds: _Bounds, launch_starts: Int64s, interrupted: Intervals
) -> Iterator[LeftOut]:
    """Stretches of work outside the steady steps, which some spans of time interrupt."""
    if not len(launch_starts):
        return
    begin, end = int(launch_starts[0]), int(launch_starts[-1]) + 1
    starts, ends = [step.start_ns for step in steps], [step.end_ns for step in steps]
    stretches = [
        ("start-up", begin, starts[0]),
        ("not recorded", starts[0], starts[bounds.begin]),
        ("warm-up", starts[bounds.begin], starts[bounds.warm]),
        *_around(interrupted, starts[bounds.warm], starts[bounds.stretch_first]),
        ("part of a cycle", starts[bounds.stretch_first], starts[bounds.first]),
        ("part of a cycle", ends[bounds.stop - 1], ends[bounds.stretch_stop - 1]),
        *_around(interrupted, ends[bounds.stretch_stop - 1], ends[bounds.complete - 1]),
        ("last step", ends[bounds.complete - 1], ends[bounds.end - 1]),
        ("not recorded", ends[bounds.end - 1], ends[-1]),
        ("rest", ends[-1], end),
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


def _around(interrupted: Intervals, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
    """The interruptions in this time, and the steps before, between and behind them."""
    inside = clip(interrupted, start, stop)
    edges = [start, *np.column_stack(inside).reshape(-1).tolist(), stop]
    for place, (begin, end) in enumerate(pairwise(edges)):
        yield "interruption" if place % 2 else "other steps", begin, end


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


def _warmup_count(candidates: StepCandidates, longer: LongSteps) -> int:
    """Number of leading steps that are still warming up; at least one step is kept.

    Steps are compared with those of their kind.
    """
    durations = candidates.ends - candidates.starts
    number = np.arange(len(durations))
    # A last step without its pause is not comparable with the others.
    complete = len(durations) - (len(durations) > 1 and _ends_unseen(candidates, 0))
    usual_duration = longer.usual(durations, (number >= complete // 2) & (number < complete))
    usual_count = longer.usual(candidates.counts, number >= len(durations) // 2)
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
