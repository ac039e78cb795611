"""A recorded schedule at the pace of the host without a profiler.

A profiler makes every call of the host slower, and with it the code between the calls; in captures of eager PyTorch the
host took 1.1 to 4 times as long as without. The GPU's work takes as long as ever. Where the step was also timed without
a profiler, the schedule is brought to that time: the host's calls and its short pauses are shortened by one factor, and
where that does not suffice its long pauses by another. Waits shorten by themselves, in the replay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.analysis.replay import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.analysis.schedule import RecordedSchedule

__all__ = ["without_profiler"]

#: How fast the host can be expected to be without the profiler. A step that is shorter still had shorter stalls.
_USUAL_FACTOR: Final = 1 / 3
#: Only if that does not suffice either was the host faster than usual.
_LEAST_FACTOR: Final = 0.02
#: Halvings of the interval in which the factor lies; after 12 it is known to 0.02 %.
_HALVINGS: Final = 12


def without_profiler(recorded: RecordedSchedule, duration_ns: float) -> RecordedSchedule:
    """The schedule with a host so fast that the window takes this long.

    It comes as close as it can: a window whose time is the GPU's does not change with the host.
    """
    if _duration(recorded) <= duration_ns:
        return recorded
    if _duration(_paced(recorded, _USUAL_FACTOR, 1.0)) <= duration_ns:
        return _search(lambda factor: _paced(recorded, factor, 1.0), _USUAL_FACTOR, duration_ns)
    if _duration(_paced(recorded, _USUAL_FACTOR, 0.0)) <= duration_ns:
        return _search(lambda factor: _paced(recorded, _USUAL_FACTOR, factor), 0.0, duration_ns)
    return _search(lambda factor: _paced(recorded, factor * _USUAL_FACTOR, 0.0), _LEAST_FACTOR, duration_ns)


def _search(pace: Callable[[float], RecordedSchedule], low: float, duration_ns: float) -> RecordedSchedule:
    """The pace between `low` and 1 with the least factor that still takes the given time."""
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _duration(pace(middle)) < duration_ns:
            low = middle
        else:
            high = middle
    return pace(high)


def _duration(recorded: RecordedSchedule) -> int:
    return recorded.duration_ns(replay(recorded.schedule))


def _paced(recorded: RecordedSchedule, factor: float, stalls: float) -> RecordedSchedule:
    """The schedule with short pauses and issuing calls shortened by one factor and long pauses by another."""
    schedule = recorded.schedule
    stall = np.round(recorded.stall_ns * stalls).astype(np.int64)
    pause = np.round((schedule.pause_ns - recorded.stall_ns) * factor).astype(np.int64) + stall
    issuing = (recorded.cause == 0) & (schedule.waits_for < 0)
    held = np.where(issuing, np.round(schedule.held_ns * factor).astype(np.int64), schedule.held_ns)
    sooner = schedule.offset_ns - (schedule.held_ns - held)[schedule.call]
    offset = np.maximum(sooner, np.minimum(schedule.offset_ns, 0))  # nothing arrives before it is issued
    tail = recorded.tail_ns if recorded.tail_ns is None else round(recorded.tail_ns * factor)
    return replace(
        recorded,
        schedule=replace(schedule, pause_ns=pause, held_ns=held, offset_ns=offset),
        stall_ns=stall,
        tail_ns=tail,
    )
