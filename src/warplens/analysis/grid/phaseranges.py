"""Steps by their phases: where a program has no range around a step, forward, backward and optimizer show its steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.phasenames import NO_PHASE, PHASES, is_warmup_name, phase_of_name
from warplens.analysis.steps import WARMUP_SLOWDOWN
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step
from warplens.profile.schema import name_categories

__all__ = ["PhaseInstances", "phase_instances", "repeated_steps"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PhaseInstances:
    """The outermost ranges that are named after a phase, in the order of their begin.

    Attributes:
        rows: rows of `Trace.ranges`.
        phase: of each, its position in `(NO_PHASE, *PHASES)`.
        outermost: for every range of the profile, and a last entry for "no range", the row of its outermost phase, or
            `NO_RANGE`.
        phase_of_range: for every range, and a last entry, the phase of that row.
        seen: the phases that occur.
    """

    rows: Int64s
    phase: Int64s
    outermost: Int64s
    phase_of_range: Int64s
    seen: frozenset[str]


def phase_instances(timeline: Timeline) -> PhaseInstances:
    """The outermost ranges of a profile that are named after a phase."""
    ranges = timeline.trace.ranges
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    by_name = np.array([numbers[phase_of_name(name)] for name in name_categories(ranges["name"])], dtype=np.int64)
    own_phase = by_name[ranges["name"].to_physical().to_numpy()] if ranges.height else np.empty(0, dtype=np.int64)
    row = np.arange(ranges.height, dtype=np.int64)
    outermost = timeline.forest.outermost_match(np.where(own_phase > 0, row + 1, 0)) - 1
    held = outermost != NO_RANGE
    phase = np.where(held, own_phase[np.maximum(outermost, 0)], 0) if ranges.height else own_phase
    rows = np.flatnonzero(outermost == row)
    rows = rows[np.argsort(ranges["start_ns"].to_numpy()[rows], kind="stable")]
    seen = frozenset(PHASES[number - 1] for number in set(own_phase[rows].tolist()))
    return PhaseInstances(rows, own_phase[rows], np.r_[outermost, NO_RANGE], np.r_[phase, 0], seen)


def repeated_steps(timeline: Timeline, instances: PhaseInstances) -> tuple[tuple[Step, ...], str]:
    """The steady steps of a profile, and one sentence on how they were found; none where nothing repeats."""
    search = timeline.steps
    if search.source == "range" and search.steady:
        return search.steady, search.how
    # Without step ranges the phases are better evidence than a repeating kernel sequence: in a profile of one single
    # step that sequence is the layers.
    grouped = _steps_from_phases(timeline, instances)
    if grouped:
        return grouped, "steps from the ranges of the phases, from a forward pass to the next one after an optimizer"
    return (search.steady, search.how) if search.steady else ((), search.how)


def _steps_from_phases(timeline: Timeline, instances: PhaseInstances) -> tuple[Step, ...]:
    names = timeline.trace.ranges["name"]
    by_name = np.array([is_warmup_name(text) for text in name_categories(names)], dtype=np.int64)
    warming = by_name[names.to_physical().to_numpy()] if len(names) else np.empty(0, dtype=np.int64)
    settled = timeline.forest.outermost_match(warming)[instances.rows] == 0
    rows, phase = instances.rows[settled], instances.phase[settled]
    forward, last = PHASES.index("forward") + 1, int(phase.max(initial=0))
    # A step ends with the last kind of phase that the program has: with accumulated gradients several forward and
    # backward passes belong to one optimizer step.
    begins = (phase == forward) & np.r_[True, phase[:-1] == last]
    if not begins.any():
        return ()
    group = np.full(timeline.trace.ranges.height + 1, NO_RANGE, dtype=np.int64)
    group[rows] = np.cumsum(begins) - 1
    work = timeline.work
    owner = instances.outermost[work["range"].fill_null(NO_RANGE).to_numpy()]
    step = group[owner]  # the last entry answers for NO_RANGE
    count = int(begins.sum())
    launched = step != NO_RANGE
    first = np.full(count, np.iinfo(np.int64).max)
    reach = np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, step[launched], work["start_ns"].to_numpy()[launched])
    np.maximum.at(reach, step[launched], work["end_ns"].to_numpy()[launched])
    used = np.flatnonzero(reach > first)
    if not len(used) or np.any(np.diff(first[used]) <= 0):
        return ()
    first, reach = first[used], reach[used]
    kept = _leading_warmup(reach - first)
    ends = np.r_[first[1:], reach[-1]]
    steps = [Step(number + 1, int(first[number]), int(ends[number])) for number in range(len(first))]
    return tuple(steps[kept:])


def _leading_warmup(durations: Int64s) -> int:
    """How many leading steps are much slower than the later half; never more than half of them."""
    usual = float(np.median(durations[len(durations) // 2 :]))
    slow = durations > WARMUP_SLOWDOWN * usual
    leading = int(np.argmin(slow)) if not slow.all() else 0
    return leading if leading <= len(durations) // 2 else 0
