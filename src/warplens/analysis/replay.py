"""A program's schedule as a model that can be run again with something changed.

The host does one thing after the other: pauses, and calls. A call may issue work, and it may hold the host until a
piece of work has ended. The GPU keeps each stream's work in order. With that, every time follows from the others:

* a call begins a `pause_ns` after the call before it returned, and returns when it has taken its own `held_ns` and, if
  it waits, `return_ns` after the end of the work that it waits for;
* a piece of work starts when it has arrived (`offset_ns` after the begin of the call that issues it), `gap_ns` after
  the end of the work before it on its stream, and `after_gap_ns` after the end of the work of another stream that it
  depends on.

These are maxima of sums. Between two places where the host waits, or where streams meet, all of them are one shift and
one maximum: `end = max(end before + A, host + B)`. The replay computes `A` and `B` of all such stretches at once and
then steps from stretch to stretch, so that its cost is that of the waits and not of the launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import API_KIND
from warplens.analysis.frames import running_sum
from warplens.analysis.hostpace import BLOCKING_COPY, STALL_MAX_NS, SYNCHRONIZATION
from warplens.analysis.intervals import Intervals
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, Float64s, Int64s

#: From the return of a launching call to the begin of its work on an idle GPU, where the window has no example of it.
#: On A100, H100 and H200 1.8–2.4 µs under the profiler.
DEFAULT_LATENCY_NS: Final = 2_000
#: What a node of a CUDA graph adds to its kernel's time. A compromise among programs on the H200 that do not agree:
#: what would have suited six launch-bound ones best lies between −0.26 and 0.42 µs, their median is 0.07 µs
#: (`docs/explanation/prediction.md` says what follows for predictions).
GRAPH_GAP_NS: Final = 250

#: Earlier than everything, and far enough from the edge of int64 to be added to.
_NEVER = -(2**60)


@dataclass(frozen=True, eq=False)
class Schedule:
    """What the host did, in order, and the work that it issued, in the order of issue. All times are nanoseconds."""

    begin_ns: int  #: when the host sets out
    pause_ns: Int64s  #: shape (calls,), time outside of calls before each
    held_ns: Int64s  #: what each call takes by itself
    #: the piece of work whose end each call awaits; −1 for none. It was issued by this or an earlier call.
    waits_for: Int64s
    return_ns: Int64s  #: from that end to the call's return; negative where the call returns before it
    call: Int64s  #: shape (work,), ascending: the call that issues each piece of work
    offset_ns: Int64s  #: from the begin of that call to the arrival of the work at the GPU
    duration_ns: Int64s  #: how long it runs
    stream: Int64s  #: its queue, numbered from 0
    gap_ns: Int64s  #: from the end of the work before it on the stream to its earliest begin; may be negative
    after: Int64s  #: a piece of work issued before it, on another stream, that it waits for; −1 for none
    after_gap_ns: Int64s  #: from the end of that one to its earliest begin
    ready_ns: Int64s  #: shape (streams,), when the earlier work of each stream ends


@dataclass(frozen=True, eq=False)
class Replayed:
    """The times that follow from a schedule."""

    #: call_starts, call_ends: shape (calls,)
    call_starts: Int64s
    call_ends: Int64s
    #: starts, ends: shape (work,)
    starts: Int64s
    ends: Int64s


def replay(schedule: Schedule) -> Replayed:
    """All begins and ends of a schedule; exact in integers."""
    waiting = np.flatnonzero(schedule.waits_for >= 0)
    work = len(schedule.call)
    # A segment ends with the return of a waiting call. Host times inside it are relative to its begin.
    segment_of_call = running_sum(schedule.waits_for >= 0)[:-1]
    run = np.cumsum(schedule.pause_ns + schedule.held_ns)
    before_segment = np.r_[np.int64(0), run[waiting]]
    returns = run - before_segment[segment_of_call]
    begins = returns - schedule.held_ns
    arrival = begins[schedule.call] + schedule.offset_ns if work else np.empty(0, np.int64)

    # By stream, within it by issue. Numbers of 16 bits are sorted by counting, and there are hardly ever more streams.
    order = np.argsort(schedule.stream.astype(np.min_scalar_type(len(schedule.ready_ns))), kind="stable")
    stretches = _Stretches.of(schedule, order, segment_of_call, arrival)
    segment_begins, stretch_ends = _step_through(schedule, waiting, returns, stretches)

    since = np.array(segment_begins, dtype=np.int64)[segment_of_call]
    call_ends = since + returns
    call_ends[waiting] = segment_begins[1 : len(waiting) + 1]
    ready = arrival + since[schedule.call] if work else arrival
    starts = np.empty(work, dtype=np.int64)
    ends = np.empty(work, dtype=np.int64)
    depends = np.flatnonzero(schedule.after >= 0)
    awaited = np.array(stretch_ends, dtype=np.int64)[stretches.of_work[schedule.after[depends]]]
    ready[depends] = np.maximum(ready[depends], awaited + schedule.after_gap_ns[depends])
    bounds = np.searchsorted(schedule.stream[order], np.arange(len(schedule.ready_ns) + 1))
    for number, (first, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        rows = order[first:stop]
        spent = np.cumsum(schedule.gap_ns[rows] + schedule.duration_ns[rows])
        floor = ready[rows] - (spent - schedule.duration_ns[rows])
        ends[rows] = spent + np.maximum.accumulate(np.maximum(floor, schedule.ready_ns[number]))
        starts[rows] = ends[rows] - schedule.duration_ns[rows]
    return Replayed(since + begins, call_ends, starts, ends)


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Runs of work of one stream within one segment, inside of which nothing else is waited for."""

    of_work: Int64s  #: shape (work,), the stretch of each piece of work; stretches are numbered in order of first issue
    #: segment, stream: shape (stretches,)
    segment: Int64s
    stream: Int64s
    shift: Int64s  #: `A`, what the stretch adds to the end of the work before it
    reach: Int64s  #: `B`, its end if only the host held it back, relative to the host's begin of the segment
    after: Int64s  #: the piece of work that its first one waits for; −1 for none
    after_shift: Int64s  #: from the end of that one to the end of the stretch

    @classmethod
    def of(cls, schedule: Schedule, order: Int64s, segment_of_call: Int64s, arrival: Int64s) -> _Stretches:
        work = len(order)
        if not work:
            nothing = np.empty(0, dtype=np.int64)
            return cls(nothing, nothing, nothing, nothing, nothing, nothing, nothing)
        segment, stream = segment_of_call[schedule.call][order], schedule.stream[order]
        awaited = np.zeros(work, dtype=np.bool_)
        awaited[schedule.waits_for[schedule.waits_for >= 0]] = True
        awaited[schedule.after[schedule.after >= 0]] = True
        cut = np.r_[
            True,
            (segment[1:] != segment[:-1])
            | (stream[1:] != stream[:-1])
            | (schedule.after[order[1:]] >= 0)
            | awaited[order[:-1]],
        ]
        firsts = np.flatnonzero(cut)
        takes = (schedule.gap_ns + schedule.duration_ns)[order]
        shift = np.add.reduceat(takes, firsts)
        number = np.cumsum(cut) - 1
        until = np.cumsum(takes)
        gap, duration = schedule.gap_ns[order], schedule.duration_ns[order]
        rest = until[np.r_[firsts[1:] - 1, work - 1]][number] - until + duration  # from each begin to the stretch's end
        reach = np.maximum.reduceat(arrival[order] + rest, firsts)
        by_issue = np.argsort(order[firsts])
        rank = np.empty_like(by_issue)
        rank[by_issue] = np.arange(len(by_issue))
        of_work = np.empty(work, dtype=np.int64)
        of_work[order] = rank[number]
        heads = order[firsts]
        after_shift = schedule.after_gap_ns[heads] - gap[firsts] + shift
        return cls(
            of_work,
            segment[firsts][by_issue],
            stream[firsts][by_issue],
            shift[by_issue],
            reach[by_issue],
            schedule.after[heads][by_issue],
            after_shift[by_issue],
        )


def _step_through(
    schedule: Schedule, waiting: Int64s, returns: Int64s, stretches: _Stretches
) -> tuple[list[int], list[int]]:
    """When each segment begins on the host (one more than there are waits), and when each stretch ends.

    The one loop: over the waits of the host and the stretches between them, on plain integers.
    """
    streams = schedule.ready_ns.tolist()
    awaited = stretches.of_work[schedule.waits_for[waiting]].tolist()
    own = returns[waiting].tolist()
    late = schedule.return_ns[waiting].tolist()
    bounds = np.searchsorted(stretches.segment, np.arange(len(own) + 2)).tolist()
    stream, shift, reach = stretches.stream.tolist(), stretches.shift.tolist(), stretches.reach.tolist()
    after_shift = stretches.after_shift.tolist()
    dependency = np.where(stretches.after >= 0, np.append(stretches.of_work, -1)[stretches.after], -1).tolist()
    host, begins, ends = schedule.begin_ns, [schedule.begin_ns], [_NEVER] * len(stream)
    for segment in range(len(own) + 1):
        for number in range(bounds[segment], bounds[segment + 1]):
            end = max(streams[stream[number]] + shift[number], host + reach[number])
            if dependency[number] >= 0:
                end = max(end, ends[dependency[number]] + after_shift[number])
            streams[stream[number]] = ends[number] = end
        if segment < len(own):
            host = max(host + own[segment], ends[awaited[segment]] + late[segment])
            begins.append(host)
    return begins, ends


@dataclass(frozen=True, eq=False)
class RecordedSchedule:
    """One process's work on one device in a window, as it was recorded."""

    schedule: Schedule
    window: Window
    process: int
    device: int
    kind: npt.NDArray[np.int8]  #: shape (calls,), the position in `API_KIND` of what each call is
    #: what each call holds the host up with, a position from 1 in `HOLDING_CAUSES`; 0 for issuing work
    cause: npt.NDArray[np.int8]
    whole_device: Bools  #: whether the call waits for all of the device's work by its name
    stall_ns: Int64s  #: the part of the pause before each call in which the host did something else for long
    profiler_ns: Int64s  #: the part of it in which the profiler held the host
    marked: bool  #: whether the program's own ranges say what a step is
    step: Int64s  #: shape (calls,), the step that the work issued last belongs to, from 0; all 0 without steps
    bytes: Int64s  #: shape (work,), what a copy moves; 0 for other work
    direction: pl.Series  #: of each copy, as in the `copies` table; null for other work
    pinned: Bools  #: whether it is a copy between the device and host memory that is not pageable
    first_work: int  #: the piece of work whose begin is the window's; −1 where the window begins otherwise
    last_work: int  #: the piece of work whose begin is the window's end; −1 where the window ends otherwise
    ends_with_host: bool  #: whether the window ends with the host: with its last call, which does nothing
    overrun_ns: int  #: by how much its work outlasts the window
    stalls: Intervals  #: when the host did something else for long
    #: called_ns, returned_ns: shape (calls,), when each call began and returned, as recorded
    called_ns: Int64s
    returned_ns: Int64s
    work_row: Int64s  #: shape (work,), the row of each piece of work in `Timeline.work`

    def duration_ns(self, replayed: Replayed) -> int:
        """How long the window takes when its schedule is replayed so."""
        if self.last_work >= 0:
            end = int(replayed.starts[self.last_work])
        else:
            end = int(replayed.ends.max()) - self.overrun_ns
            if self.ends_with_host:
                end = max(end, int(replayed.call_ends[-1]))
        return end - self.begin_ns(replayed)

    def begin_ns(self, replayed: Replayed) -> int:
        """When the window begins in a replay."""
        return self.window.start_ns if self.first_work < 0 else int(replayed.starts[self.first_work])

    def is_kind(self, *kinds: str) -> Bools:
        """Which calls are of one of these kinds."""
        found: Bools = np.isin(self.kind, [API_KIND.categories.to_list().index(kind) for kind in kinds])
        return found

    @property
    def issues(self) -> Bools:
        """Which calls issue work of the window."""
        issues = np.zeros(len(self.kind), dtype=np.bool_)
        issues[self.schedule.call] = True
        return issues

    @property
    def uncaptured(self) -> Bools:
        """Which calls no CUDA graph can contain: waits, copies that hold the host, and launches of graphs."""
        found: Bools = np.isin(self.cause, (SYNCHRONIZATION, BLOCKING_COPY)) | self.is_kind("graph-launch")
        return found

    @property
    def step_ahead(self) -> Int64s:
        """For each call the step of the next work that is issued; what precedes its first launch is a step's own."""
        issuing = np.flatnonzero(self.issues)
        following = np.searchsorted(issuing, np.arange(len(self.step)), side="left")
        return self.step[issuing[np.minimum(following, len(issuing) - 1)]]

    @property
    def lasting_stall_ns(self) -> Int64s:
        """The stalls that have nothing to do with issuing work.

        Those are the ones before the first launch of a step or after a wait (its input), and elsewhere the ones of a
        millisecond or more. A shorter pause between two launches is Python that issues work, slowly.
        """
        uncaptured, calls = self.uncaptured, np.arange(len(self.cause))
        begins = uncaptured | np.r_[False, uncaptured[:-1]] | (np.diff(self.step_ahead, prepend=0) > 0)
        since = np.maximum.accumulate(np.where(begins, calls, 0))
        issuing = np.flatnonzero(self.issues & ~uncaptured)
        latest = np.r_[-1, issuing][np.searchsorted(issuing, calls, side="left")]
        return np.where((latest >= since) & (self.stall_ns < STALL_MAX_NS), 0, self.stall_ns)


def replayed_ns(recorded: RecordedSchedule) -> int:
    """What the replay of a schedule takes."""
    return recorded.duration_ns(replay(recorded.schedule))


# --- A recorded schedule as it would be: its launches captured into CUDA graphs, or its host without a profiler ---
#
# What a graph cannot contain parts the schedule: waits of the host, copies that hold it, graphs that are already there,
# the begin of the next step, and stalls that have nothing to do with issuing work. Whatever lies between two of these
# and launches more than once becomes one graph. Not only the launches go. The code around them (the layers of a model,
# dispatch, a framework's allocator) runs once, at capture. What replaces the code before the first launch and after the
# last one is the call that launches the graph; it is taken to need as much of the host as lies between two launches
# now.
#
# A profiler makes every call of the host slower, and with it the code between the calls; in captures of eager PyTorch
# the host took 1.1 to 4 times as long as without. The GPU's work takes as long as ever. Where the step was also timed
# without a profiler, the schedule is brought to that time: the host's calls and its short pauses are shortened by one
# factor, and where that does not suffice its long pauses by another. Waits shorten by themselves, in the replay.

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
