"""The window at the pace that the host has without a profiler, replayed with a cause taken away.

A profiler makes the host slower: of the time that it takes to issue work, a share is left without (`Recorder`). The
GPU's work takes as long as ever, and so do long pauses of the host. The schedule is then replayed with the change that
a remedy makes, so that what one cause hides of another is not counted twice, and a host that is ahead of the GPU gains
nothing. Because that share is not known well, each answer is computed three times: with the usual one, and with more
and with less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from warplens.analysis.frames import running_sum
from warplens.analysis.prediction import LARGEST_ERROR, Change, apply, excerpt
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.replay import RecordedSchedule, Replayed, paced, replay, replayed_ns
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile import Device
from warplens.profile.schema import Float64s

#: What PyTorch's profiler adds to each operator that it records, at least: of the same pauses under Nsight Systems and
#: under it, four of 1,100 to 6,200 operators differ by 2 to 16 µs for each. What an operator computes takes as long.
_OPERATOR_NS: Final = 2_000

#: A pause shorter than this many launches, in which operators are recorded, is the framework's own code: gradients that
#: are handed to their parameters, views, guards of compiled parts. A profiler makes that longer as it does launching.
_OF_A_FRAMEWORK: Final = 100

#: Step times that the host decides differ from one run of the same program to the next, and so does what a remedy
#: saves: by up to this factor between the recording and the timing of the programs in `data/pairs`. Of 101 recordings
#: whose steps the host decides in part, 89 were timed within what it makes of the usual share.
NOISE: Final = 1.7


@dataclass(frozen=True)
class Gain:
    """How many times as fast the window gets: expected, and the least and the most that the host's pace leaves open."""

    expected: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Less:
    """Work that goes away, as shares of each piece of the schedule."""

    time: Float64s  #: of its time on the GPU
    calls: Float64s  #: of the time in which the host issues it
    stalls: float = 1.0  #: of what the host does beside issuing, the share that goes away like the calls
    elsewhere: bool = False  #: whether its other pauses get shorter by the share of all calls that go away, too


@dataclass(frozen=True, eq=False)
class Pace:
    """The schedule of a window without what the profiler added."""

    #: usual, slow, fast: at the usual share of the host's time, and at more and at less
    usual: RecordedSchedule
    slow: RecordedSchedule
    fast: RecordedSchedule
    devices: Sequence[Device]  #: of the capture
    steps: int = 1  #: that were replayed; 1 where the window has none
    _before: dict[int, int] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, timeline: Timeline, window: Window) -> Pace | None:
        """The schedule of the process and GPU with the most work; None where it cannot be replayed."""
        window = excerpt(timeline, window)
        recorded = recorded_schedule(timeline, window)
        if recorded is None or window.duration_ns <= 0:
            return None
        if abs(replayed_ns(recorded) - window.duration_ns) > LARGEST_ERROR * window.duration_ns:
            return None
        share = timeline.trace.capture.recorder.unprofiled_share
        stalls = _unprofiled_stalls(timeline, recorded, share)

        def at(pace: float) -> RecordedSchedule:
            return paced(recorded, min(share * pace, 1.0), stalls)

        devices, steps = timeline.trace.capture.devices, max(len(window.steps), 1)
        return cls(at(1.0), at(NOISE), at(1 / NOISE), devices, steps)

    def duration_ns(self, place: int, *changes: Change, less: Less | None = None) -> int:
        """What was replayed takes so long: as `usual` (0), `slow` (1) or `fast` (2), with changes as of `gain`."""
        if changes or less is not None:
            found = self.replayed(place, *changes, less=less)
            return self.duration_ns(place) if found is None else found[0].duration_ns(found[1])
        if place not in self._before:
            self._before[place] = replayed_ns((self.usual, self.slow, self.fast)[place])
        return self._before[place]

    def replayed(
        self, place: int, *changes: Change, less: Less | None = None
    ) -> tuple[RecordedSchedule, Replayed] | None:
        """The schedule with these changes, and the times that follow from it; None where they alter nothing."""
        changed = _changed((self.usual, self.slow, self.fast)[place], changes, less, self.devices)
        return None if changed is None else (changed, replay(changed.schedule))

    def gain(self, *changes: Change, less: Less | None = None, kept: float = 0.0) -> Gain | None:
        """What these changes bring together; None where they alter nothing.

        Args:
            changes: of `prediction.CHANGES`.
            less: work that is not done.
            kept: of the time that goes away, the share that is expected to stay; at best none of it.
        """
        gains, best = [], []
        for place in range(3):
            found = self.replayed(place, *changes, less=less)
            if found is None:
                return None
            before, after = self.duration_ns(place), found[0].duration_ns(found[1])
            gains.append(before / max(after + kept * max(before - after, 0), 1))
            best.append(before / max(after, 1))
        return Gain(gains[0], min(gains), max(best))


def _unprofiled_stalls(timeline: Timeline, recorded: RecordedSchedule, share: float) -> Float64s:
    """Of each long pause, the share that is left without what its recorded operators cost; never less than `share`.

    What a framework does between two launches gets shorter as the launches do.
    """
    if not timeline.has_operators:
        return np.ones(len(recorded.stall_ns))
    ranges = timeline.trace.ranges.select("start_ns", "process")[timeline.trace.operators["range"]]
    begun = ranges["start_ns"].filter(ranges["process"] == recorded.process).sort().to_numpy()
    before = np.searchsorted(begun, recorded.called_ns)
    count = before - np.searchsorted(begun, recorded.called_ns - recorded.schedule.pause_ns)
    kept = np.maximum(1 - count * _OPERATOR_NS / np.maximum(recorded.stall_ns, 1), share)
    calls = np.sort(recorded.called_ns[recorded.issues])
    usual = float(np.median(np.diff(calls))) if len(calls) > 1 else 0.0
    return np.where((count > 0) & (recorded.stall_ns < _OF_A_FRAMEWORK * usual), share, kept)


def _changed(
    recorded: RecordedSchedule, changes: Sequence[Change], less: Less | None, devices: Sequence[Device]
) -> RecordedSchedule | None:
    changed = recorded if less is None else _with_less(recorded, less)
    if not changes:
        return changed
    altered = apply(changes, changed, devices)
    if altered is None:
        return None if less is None else changed
    schedule = altered.schedule
    if "cuda-graph" in changes:
        # What the host does beside issuing work is no launch, and another finding's.
        schedule = replace(schedule, pause_ns=np.maximum(schedule.pause_ns, changed.stall_ns))
    return replace(changed, schedule=schedule)


def _with_less(recorded: RecordedSchedule, less: Less) -> RecordedSchedule:
    """The schedule without a share of some work, and of the calls that issue it."""
    schedule = recorded.schedule
    gone = less.time
    of_call = np.ones(len(schedule.pause_ns))
    first = np.flatnonzero(np.r_[len(gone) > 0, schedule.call[1:] != schedule.call[:-1]])
    if len(first):
        of_call[schedule.call[first]] = np.minimum(np.minimum.reduceat(less.calls, first), 1.0)
    # Calls that issue nothing, such as waits, belong to what is issued before and after them.
    issues = recorded.issues
    issuing, following = np.flatnonzero(issues), running_sum(issues)[:-1]
    before = of_call[issuing[np.maximum(following - 1, 0)]]
    after = of_call[issuing[np.minimum(following, len(issuing) - 1)]]
    of_call = np.where(issues, of_call, np.minimum(before, after))
    kept = 1 - of_call
    fewer = float(of_call[issuing].mean()) if less.elsewhere and len(issuing) else 0.0
    stall = np.round(recorded.stall_ns * (1 - np.maximum(of_call * less.stalls, fewer))).astype(np.int64)
    pause = stall + np.round((schedule.pause_ns - recorded.stall_ns) * kept).astype(np.int64)
    held = np.round(schedule.held_ns * kept).astype(np.int64)
    sooner = schedule.offset_ns - (schedule.held_ns - held)[schedule.call]
    return replace(
        recorded,
        schedule=replace(
            schedule,
            pause_ns=pause,
            held_ns=held,
            offset_ns=np.maximum(sooner, np.minimum(schedule.offset_ns, 0)),
            duration_ns=np.round(schedule.duration_ns * (1 - gone)).astype(np.int64),
            # What is not launched starts after nothing.
            gap_ns=np.round(schedule.gap_ns * (1 - np.maximum(gone, less.calls))).astype(np.int64),
        ),
        stall_ns=stall,
    )
