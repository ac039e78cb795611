"""A recorded schedule as it would be: its launches captured into CUDA graphs, or its host without a profiler.

What a graph cannot contain parts the schedule: waits of the host, copies that hold it, graphs that are already there,
the begin of the next step, and stalls that have nothing to do with issuing work. Whatever lies between two of these and
launches more than once becomes one graph. Not only the launches go. The code around them (the layers of a model,
dispatch, a framework's allocator) runs once, at capture. What replaces the code before the first launch and after the
last one is the call that launches the graph; it is taken to need as much of the host as lies between two launches now.

A profiler makes every call of the host slower, and with it the code between the calls; in captures of eager PyTorch the
host took 1.1 to 4 times as long as without. The GPU's work takes as long as ever. Where the step was also timed without
a profiler, the schedule is brought to that time: the host's calls and its short pauses are shortened by one factor, and
where that does not suffice its long pauses by another. Waits shorten by themselves, in the replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from warplens.analysis.recorder import DEFAULT_LATENCY_NS, GRAPH_GAP_NS
from warplens.analysis.replay import RecordedSchedule, Schedule, replayed_ns
from warplens.profile.schema import Bools, Float64s, Int64s

#: What one call of `cudaGraphLaunch` takes the host. Under Nsight Systems 22 µs on the H200 (179 nodes, traced as a
#: whole); without a profiler the whole step is 30 µs shorter.
GRAPH_LAUNCH_NS: Final = 10_000


#: How fast the host can be expected to be without the profiler. A step that is shorter still had shorter stalls.
_USUAL_FACTOR: Final = 1 / 3
#: Only if that does not suffice either was the host faster than usual.
_LEAST_FACTOR: Final = 0.02
#: Halvings of the interval in which the factor lies; after 12 it is known to 0.02 %.
_HALVINGS: Final = 12


def as_graphs(recorded: RecordedSchedule) -> tuple[Schedule, int, int] | None:
    """The schedule with graphs, how many launches they replace, and how many graph launches there are.

    None where nothing could be captured.
    """
    parts = _Parts.of(recorded)
    if not len(parts.graphs):
        return None
    schedule = recorded.schedule
    pause, held = _host_times(recorded, parts)
    of_graph = parts.inside[schedule.call]
    first = np.zeros(len(schedule.call), dtype=np.bool_)
    first[np.searchsorted(schedule.call, parts.heads)] = True
    changed = replace(
        schedule,
        pause_ns=pause,
        held_ns=held,
        waits_for=np.where(parts.inside, -1, schedule.waits_for),
        return_ns=np.where(parts.inside, 0, schedule.return_ns),
        offset_ns=np.where(of_graph, held[schedule.call] + DEFAULT_LATENCY_NS, schedule.offset_ns),
        gap_ns=np.where(of_graph & ~first, np.minimum(schedule.gap_ns, GRAPH_GAP_NS), schedule.gap_ns),
    )
    replaced = parts.launches[parts.launches > 1]
    return changed, int(replaced.sum()), len(replaced)


@dataclass(frozen=True, eq=False)
class _Parts:
    """The calls between two things that no graph can contain."""

    part: Int64s  #: shape (calls,), the part of each call, ascending
    outside: Bools  #: whether the call can be part of no graph; it is a part of its own
    inside: Bools  #: whether it becomes part of a graph
    issuing: Int64s  #: the calls that issue work and can be captured
    launches: Int64s  #: shape (parts,), how many of those each part has
    graphs: Int64s  #: the parts that become a graph
    #: heads, lasts: shape (graphs,), the first and the last issuing call of each
    heads: Int64s
    lasts: Int64s

    @classmethod
    def of(cls, recorded: RecordedSchedule) -> _Parts:
        outside, ahead = recorded.uncaptured, recorded.step_ahead
        ends = outside | (recorded.lasting_stall_ns > 0) | (np.diff(ahead, prepend=0) > 0)
        part = np.cumsum(ends | np.r_[False, outside[:-1]])
        issuing = np.flatnonzero(recorded.issues & ~outside)
        launches = np.bincount(part[issuing], minlength=int(part[-1]) + 1)
        becomes = launches > 1
        if recorded.last_work >= 0 and becomes.any():
            # The work whose begin ends the window is the first of a step like the others.
            call = recorded.schedule.call[recorded.last_work]
            becomes[part[call]] |= not outside[call]
        graphs = np.flatnonzero(becomes)
        heads = issuing[np.searchsorted(part[issuing], graphs, side="left")]
        lasts = issuing[np.searchsorted(part[issuing], graphs, side="right") - 1]
        return cls(part, outside, becomes[part] & ~outside, issuing, launches, graphs, heads, lasts)


def _host_times(recorded: RecordedSchedule, parts: _Parts) -> tuple[Int64s, Int64s]:
    """The pause before each call and what it takes."""
    schedule, part = recorded.schedule, parts.part
    usual = _time_between_launches(schedule, parts)
    kept = recorded.lasting_stall_ns
    short = schedule.pause_ns - kept
    pause = np.where(parts.inside, 0, schedule.pause_ns)
    held = np.where(parts.inside, 0, schedule.held_ns)
    until = np.r_[np.int64(0), np.cumsum(short + schedule.held_ns)]  # before each call and its pause

    begins = np.searchsorted(part, parts.graphs, side="left")
    before = until[parts.heads] - until[begins] + short[parts.heads]
    pause[parts.heads] = kept[begins] + np.minimum(before, usual)
    held[parts.heads] = GRAPH_LAUNCH_NS

    ends = np.searchsorted(part, parts.graphs, side="right")
    leaves = ends < len(part)
    leaves[leaves] = parts.outside[ends[leaves]]
    ends, lasts = ends[leaves], parts.lasts[leaves]
    after = until[ends] - until[lasts + 1] + short[ends]
    pause[ends] = kept[ends] + np.minimum(after, usual)
    return pause, held


def _time_between_launches(schedule: Schedule, parts: _Parts) -> int:
    """The median time from the return of one issuing call to the begin of the next of the same part."""
    returned = np.cumsum(schedule.pause_ns + schedule.held_ns)
    begun = returned - schedule.held_ns
    before, after = parts.issuing[:-1], parts.issuing[1:]
    together = parts.part[before] == parts.part[after]
    return int(np.median((begun[after] - returned[before])[together]))


def without_profiler(recorded: RecordedSchedule, duration_ns: float) -> RecordedSchedule:
    """The schedule with a host so fast that the window takes this long.

    It comes as close as it can: a window whose time is the GPU's does not change with the host.
    """
    if replayed_ns(recorded) <= duration_ns:
        return recorded
    if replayed_ns(paced(recorded, _USUAL_FACTOR, 1.0)) <= duration_ns:
        return _search(lambda factor: paced(recorded, factor, 1.0), _USUAL_FACTOR, duration_ns)
    if replayed_ns(paced(recorded, _USUAL_FACTOR, 0.0)) <= duration_ns:
        return _search(lambda factor: paced(recorded, _USUAL_FACTOR, factor), 0.0, duration_ns)
    return _search(lambda factor: paced(recorded, factor * _USUAL_FACTOR, 0.0), _LEAST_FACTOR, duration_ns)


def _search(pace: Callable[[float], RecordedSchedule], low: float, duration_ns: float) -> RecordedSchedule:
    """The pace between `low` and 1 with the least factor that still takes the given time."""
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if replayed_ns(pace(middle)) < duration_ns:
            low = middle
        else:
            high = middle
    return pace(high)


def paced(recorded: RecordedSchedule, factor: float, stalls: float | Float64s) -> RecordedSchedule:
    """The schedule with short pauses and issuing calls shortened by one factor, long pauses (`stalls`) by another.

    Pauses in which the profiler held the host are gone.
    """
    schedule = recorded.schedule
    stall = np.round(recorded.stall_ns * stalls).astype(np.int64)
    short = schedule.pause_ns - recorded.stall_ns - recorded.profiler_ns
    pause = np.round(short * factor).astype(np.int64) + stall
    issuing = (recorded.cause == 0) & (schedule.waits_for < 0)
    held = np.where(issuing, np.round(schedule.held_ns * factor).astype(np.int64), schedule.held_ns)
    sooner = schedule.offset_ns - (schedule.held_ns - held)[schedule.call]
    offset = np.maximum(sooner, np.minimum(schedule.offset_ns, 0))  # nothing arrives before it is issued
    return replace(
        recorded,
        schedule=replace(schedule, pause_ns=pause, held_ns=held, offset_ns=offset),
        stall_ns=stall,
        profiler_ns=np.zeros_like(stall),
    )
