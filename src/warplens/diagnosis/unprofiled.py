"""Replays of the window at the host's pace without a profiler, with and without a cause.

A profiler slows down the host: without it, issuing work takes only a share of the recorded time (`Recorder`). GPU work
and long pauses of the host take as long as recorded. The schedule is then replayed with the change that a remedy makes.
So causes that hide each other are not counted twice, and a host that is ahead of the GPU gains nothing. The share is
not known exactly, so each answer is computed three times: with the usual share, a larger and a smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, cached_property
from typing import Final

import numpy as np

from warplens.analysis.frames import running_sum
from warplens.analysis.hostpace import SYNCHRONIZATION
from warplens.analysis.intervals import Intervals, total, union
from warplens.analysis.prediction import (
    LARGEST_ERROR,
    Change,
    apply,
    excerpt,
    one_way,
    without_stalls_in,
    without_waits,
)
from warplens.analysis.recorder import recorded_schedule
from warplens.analysis.replay import RecordedSchedule, Replayed, paced, replay, replayed_ns
from warplens.analysis.timeline import HostShare, Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile import Device
from warplens.profile.schema import Float64s

#: Least time that PyTorch's profiler adds to each operator that it records: four pauses with 1,100 to 6,200 operators
#: differ by 2 to 16 µs per operator from the same pauses under Nsight Systems. The operator's own work takes as long.
_OPERATOR_NS: Final = 2_000

#: A pause with recorded operators, shorter than this many launches, is the framework's own code: handing gradients to
#: their parameters, views, guards of compiled parts. A profiler slows that down as it does launches.
_FRAMEWORK_PAUSE_LAUNCHES: Final = 100

#: A longer pause than this is other work of the host, which stays if the work around it goes away. An interrupted
#: thread runs again after another one's slice of 3 ms, or the next tick after 4 ms (Linux).
INTERRUPTED_NS: Final = 4_000_000

#: Host-bound step times differ from one run of the same program to the next, and so do the savings of a remedy: by up
#: to this factor between the recording and the timing of the programs in `data/pairs`. Of 101 recordings whose steps
#: are partly host-bound, 89 were timed within the range that this factor makes of the usual share.
NOISE: Final = 1.7


#: A measured step is that of another run: repeated timings differ by up to this share.
_TIMING: Final = 0.1
#: A share is kept if a step with it takes as long as the measured one within this share.
_SAME: Final = 0.03
#: Least share of the host's time that is tried, and number of bisections, which find a share to within 1 %.
_LEAST_SHARE: Final = 0.05
_HALVINGS: Final = 8


@dataclass(frozen=True)
class Gain:
    """Speed-up of the window: expected, and its least and largest value for the possible paces of the host."""

    expected: float
    low: float
    high: float
    #: GPU work that goes away at the usual pace, as a share of the window without a profiler; None if not replayed
    work_share: float | None = None

    @classmethod
    def exactly(cls, gain: float) -> Gain:
        """A gain that does not depend on the pace of the host."""
        return cls(gain, gain, gain)


@dataclass(frozen=True, eq=False)
class Less:
    """Work that goes away, as shares of each piece of the schedule."""

    time: Float64s  #: of its time on the GPU
    calls: Float64s  #: of the time in which the host issues it
    stalls: float = 1.0  #: share of the host's other time before it that goes away like the calls
    elsewhere: bool = False  #: whether all other host pauses shrink by the share of calls that go away
    waits: bool = False  #: whether waits for the GPU between calls that go away, even in part, go away


class HostSpeed(Enum):
    """How fast the host issues work without the profiler, which a profile does not tell exactly."""

    USUAL = "usual"
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True, eq=False)
class Pace:
    """The schedule of a window without the time that the profiler added."""

    #: usual, slow, fast: with the usual share of the host's time, a larger and a smaller one
    usual: RecordedSchedule
    slow: RecordedSchedule
    fast: RecordedSchedule
    devices: Sequence[Device]  #: of the capture
    steps: float = 1  #: replayed steps, with the parts of cut ones; 1 if the window has none
    #: part of the time of the host's long pauses that is left without the profiler, which records operators in them
    stalls_left: float = 1.0
    _unchanged_ns: dict[HostSpeed, int] = field(default_factory=dict, repr=False)

    @cached_property
    def _busy_ns(self) -> int:
        """Time of the usual schedule in which the GPU works."""
        return _busy_ns(replay(self.usual.schedule))

    @classmethod
    def of(cls, timeline: Timeline, window: Window) -> Pace | None:
        """The schedule of the process and GPU with the most work; None if it cannot be replayed."""
        window = excerpt(timeline, window)
        recorded = _replayable(timeline, window)
        if recorded is None:
            return None
        share = timeline.host_share
        least, most = share.limits or (share.usual / NOISE, share.usual * NOISE)
        stalls = _unprofiled_stalls(timeline, recorded, share)
        usual, slow, fast = (paced(recorded, min(each, 1.0), stalls) for each in (share.usual, most, least))
        devices, steps = timeline.trace.capture.devices, max(window.step_count, 1)
        left = float(stalls @ recorded.stall_ns) / recorded.stall_ns.sum() if recorded.stall_ns.any() else 1.0
        return cls(usual, slow, fast, devices, steps, min(left, 1.0))

    def at(self, speed: HostSpeed) -> RecordedSchedule:
        """The schedule with a host of this speed."""
        return {HostSpeed.USUAL: self.usual, HostSpeed.SLOW: self.slow, HostSpeed.FAST: self.fast}[speed]

    def duration_ns(self, speed: HostSpeed, *changes: Change, less: Less | None = None) -> int:
        """Replayed duration with a host of this speed, with changes as in `gain`."""
        if changes or less is not None:
            result = self.replayed(speed, *changes, less=less)
            return self.duration_ns(speed) if result is None else result[0].duration_ns(result[1])
        if speed not in self._unchanged_ns:
            self._unchanged_ns[speed] = replayed_ns(self.at(speed))
        return self._unchanged_ns[speed]

    def replayed(
        self,
        speed: HostSpeed,
        *changes: Change,
        less: Less | None = None,
        direction: str | None = None,
        staying: Intervals | None = None,
    ) -> tuple[RecordedSchedule, Replayed] | None:
        """The schedule with these changes, and its replayed times; None if they alter nothing."""
        recorded = self.at(speed)
        if direction is not None:
            recorded = one_way(recorded, direction)
        if staying is not None:
            recorded = without_stalls_in(recorded, staying)
        changed = _changed(recorded, changes, less, self.devices)
        return None if changed is None else (changed, replay(changed.schedule))

    def gain(
        self,
        *changes: Change,
        less: Less | None = None,
        residual_share: float = 0.0,
        direction: str | None = None,
        staying: Intervals | None = None,
    ) -> Gain | None:
        """Gain of these changes together; None if they alter nothing.

        Args:
            residual_share: share of the saved time that is expected to stay; `Gain.high` assumes none of it.
            direction: of the copies that the changes concern, as in the `copies` table; None for both.
            staying: disjoint spans whose long pauses of the host stay.
        """
        gains, best, work_share = [], [], 0.0
        for speed in HostSpeed:
            result = self.replayed(speed, *changes, less=less, direction=direction, staying=staying)
            if result is None:
                return None
            if speed is HostSpeed.USUAL:
                less_ns = max(self._busy_ns - _busy_ns(result[1]), 0)
                work_share = (1 - residual_share) * less_ns / max(self.duration_ns(speed), 1)
            before, after = self.duration_ns(speed), result[0].duration_ns(result[1])
            gains.append(before / max(after + residual_share * max(before - after, 0), 1))
            best.append(before / max(after, 1))
        return Gain(gains[0], min(gains), max(best), work_share)


def _replayable(timeline: Timeline, window: Window) -> RecordedSchedule | None:
    """The schedule of the window, if its replay takes as long as it did."""
    recorded = recorded_schedule(timeline, window)
    if recorded is None or window.duration_ns <= 0:
        return None
    return None if abs(replayed_ns(recorded) - window.duration_ns) > LARGEST_ERROR * window.duration_ns else recorded


def with_step_time(timeline: Timeline, window: Window, step_ns: int) -> Timeline:
    """The same profile, with the pace of a host with which a step takes as long as one measured without a profiler.

    If the host is ahead of the GPU, its pace does not show in the step. Then the usual one stays, or the slowest one
    with which it is still ahead. A step that took longer than the recorded one tells no more than that one.

    Args:
        window: with whole steps.
        step_ns: measured duration of one of these steps without a profiler.

    Raises:
        UsageError: the window has no steps, or cannot be replayed; or the GPU's work takes longer, or the recorded step
            was far shorter.
    """
    return timeline.with_host_share(_measured_share(timeline, window, step_ns))


def _measured_share(timeline: Timeline, window: Window, step_ns: int) -> HostShare:
    """The host's share by a measured step time; raises `UsageError` if that does not fit to the profile."""
    window = excerpt(timeline, window)
    recorded = _replayable(timeline, window) if window.steps else None
    if recorded is None:
        why = "its steps cannot be replayed" if window.steps else "it has none in this window"
        why = why if window.range_name is None else "a range is not a whole step"
        raise UsageError(f"a step's time says nothing about {timeline.trace.capture.source}: {why}")

    @cache
    def step_at(share: float, pauses: float = 1.0) -> float:
        stalls = _unprofiled_stalls(timeline, recorded, HostShare(share, pauses=pauses))
        return replayed_ns(paced(recorded, share, stalls)) / window.step_count

    def refusal(why: str) -> UsageError:
        given = f"a step of {step_ns / 1e6:,.6g} ms does not fit to {timeline.trace.capture.source}: there, {why}"
        return UsageError(f"{given}. Give the time of the same steps, of the same sizes, or none")

    usual, shortest, longest = timeline.host_share.usual, step_at(_LEAST_SHARE), step_at(1.0)
    if step_ns > NOISE * longest:
        raise refusal(f"it took {longest / 1e6:,.3f} ms, with the profiler")
    if shortest > (1 + _TIMING) * step_ns:
        busy_ns = _busy_ns(replay(recorded.schedule)) / window.step_count
        if busy_ns > (1 + _TIMING) * step_ns:
            raise refusal(f"its GPU work and copies alone take {busy_ns / 1e6:,.3f} ms")
        # The host's long pauses were longer, too, when they were recorded; or the GPU's own pauses between queued work.
        if step_at(_LEAST_SHARE, 0.0) > (1 + _TIMING) * step_ns:
            return HostShare(usual, step_ns=step_ns, shows=False)
        part = _largest(lambda part: step_at(usual * part, part), step_ns)
        return HostShare(usual * part, pauses=part, step_ns=step_ns)
    explained_ns = min(step_ns, longest)
    if explained_ns <= (1 + _SAME) * shortest:
        usual = min(usual, _largest(step_at, (1 + _SAME) * shortest))
    elif abs(step_at(usual) / explained_ns - 1) > _SAME:
        usual = _largest(step_at, explained_ns)
    most = max(min(_largest(step_at, (1 + _TIMING) * explained_ns), usual * NOISE), usual)
    is_ahead = step_at(usual / NOISE) > (1 - _TIMING) * explained_ns
    least = usual / NOISE if is_ahead else min(_largest(step_at, (1 - _TIMING) * explained_ns), usual)
    return HostShare(usual, (least, most), step_ns=step_ns, shows=not is_ahead)


def _largest(step_at: Callable[[float], float], limit_ns: float) -> float:
    """The largest share with which a step takes at most so long; the least one if it always takes longer."""
    low, high = _LEAST_SHARE, 1.0
    if step_at(high) <= limit_ns:
        return high
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if step_at(middle) <= limit_ns else (low, middle)
    return low


def _busy_ns(replayed: Replayed) -> int:
    """Time in which any piece of work runs."""
    return total(union(Intervals(replayed.starts, replayed.ends)))


def _unprofiled_stalls(timeline: Timeline, recorded: RecordedSchedule, share: HostShare) -> Float64s:
    """Share of each long pause that is left without the cost of recording its operators; at least that of launches.

    The framework's own code between two launches shrinks like the launches.
    """
    if not timeline.has_operators:
        return np.full(len(recorded.stall_ns), share.pauses)
    ranges = timeline.trace.ranges.select("start_ns", "process")[timeline.trace.operators["range"]]
    starts = ranges["start_ns"].filter(ranges["process"] == recorded.process).sort().to_numpy()
    pause_starts = recorded.called_ns - recorded.schedule.pause_ns
    operators = np.searchsorted(starts, recorded.called_ns) - np.searchsorted(starts, pause_starts)
    left = np.maximum(1 - operators * _OPERATOR_NS / np.maximum(recorded.stall_ns, 1), share.usual)
    calls = np.sort(recorded.called_ns[recorded.issues])
    interval = float(np.median(np.diff(calls))) if len(calls) > 1 else 0.0
    is_framework = (operators > 0) & (recorded.stall_ns < _FRAMEWORK_PAUSE_LAUNCHES * interval)
    return np.where(is_framework, share.usual, left * share.pauses)


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
    if "cuda-graph" in changes and "no-host-stall" not in changes:
        # A graph does not remove the host's other work, which other findings claim.
        schedule = replace(schedule, pause_ns=np.maximum(schedule.pause_ns, changed.stall_ns))
    return replace(changed, schedule=schedule)


def _with_less(recorded: RecordedSchedule, less: Less) -> RecordedSchedule:
    """The schedule without a share of some work, and of the calls that issue it."""
    schedule = recorded.schedule
    # A call goes away to the least share of the work that it issues.
    saved = np.ones(len(schedule.pause_ns))
    first = np.flatnonzero(np.r_[len(less.time) > 0, schedule.call[1:] != schedule.call[:-1]])
    if len(first):
        saved[schedule.call[first]] = np.minimum(np.minimum.reduceat(less.calls, first), 1.0)
    # Calls that issue nothing, such as waits, go away to the lesser share of the issuing calls around them.
    issues = recorded.issues
    issuing, following = np.flatnonzero(issues), running_sum(issues)[:-1]
    before = saved[issuing[np.maximum(following - 1, 0)]]
    after = saved[issuing[np.minimum(following, len(issuing) - 1)]]
    saved = np.where(issues, saved, np.minimum(before, after))
    left = 1 - saved
    saved_elsewhere = float(saved[issuing].mean()) if less.elsewhere and len(issuing) else 0.0
    goes = np.where(recorded.stall_ns > INTERRUPTED_NS, 0.0, np.maximum(saved * less.stalls, saved_elsewhere))
    stall = np.round(recorded.stall_ns * (1 - goes)).astype(np.int64)
    pause = stall + np.round((schedule.pause_ns - recorded.stall_ns) * left).astype(np.int64)
    held = np.round(schedule.held_ns * left).astype(np.int64)
    offset = schedule.offset_ns - (schedule.held_ns - held)[schedule.call]
    changed = replace(
        recorded,
        schedule=replace(
            schedule,
            pause_ns=pause,
            held_ns=held,
            offset_ns=np.maximum(offset, np.minimum(schedule.offset_ns, 0)),
            duration_ns=np.round(schedule.duration_ns * (1 - less.time)).astype(np.int64),
            # Work that is not launched has no start latency.
            gap_ns=np.round(schedule.gap_ns * (1 - np.maximum(less.time, less.calls))).astype(np.int64),
        ),
        stall_ns=stall,
    )
    if less.waits:
        waits = (recorded.cause == SYNCHRONIZATION) & (saved > 0)
        changed = replace(changed, schedule=without_waits(changed, waits))
    return changed
