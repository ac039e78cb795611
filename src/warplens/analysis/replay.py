"""A program's schedule as a model that can be replayed with changes.

The host does one thing after the other: pauses, and calls. A call may issue work, and it may block the host until a
piece of work has ended. The GPU keeps each stream's work in order. With that, every time follows from the others:

* a call begins `pause_ns` after the call before it returned, and returns when it has taken its own `held_ns` and, if it
  waits, `return_ns` after the end of the work it waits for;
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
#: Time that a node of a CUDA graph adds to its kernel. A compromise among programs on the H200 that do not agree: the
#: best values for six launch-bound ones lie between −0.26 and 0.42 µs, with a median of 0.07 µs
#: (`docs/explanation/prediction.md` says what follows for predictions).
GRAPH_GAP_NS: Final = 250

#: Earlier than any time, and far enough from the edge of int64 to be added to.
_NEVER = -(2**60)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The host's calls in order and the work they issue, in order of issue. All times are nanoseconds."""

    begin_ns: int  #: when the host begins
    pause_ns: Int64s  #: shape (calls,), time outside of calls before each call
    held_ns: Int64s  #: each call's own duration, waits excluded
    #: the piece of work whose end each call awaits; −1 for none. It was issued by this or an earlier call.
    waits_for: Int64s
    return_ns: Int64s  #: from that end to the call's return; negative where the call returns before it
    call: Int64s  #: shape (work,), ascending: the call that issues each piece of work
    offset_ns: Int64s  #: from the begin of that call to the arrival of the work at the GPU
    duration_ns: Int64s  #: how long it runs
    stream: Int64s  #: its queue, numbered from 0
    gap_ns: Int64s  #: from the end of the work before it on the stream to its earliest begin; may be negative
    after: Int64s  #: a piece of work issued before it, on another stream, that it waits for; −1 for none
    after_gap_ns: Int64s  #: from the end of that work to its earliest begin
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
    """All begins and ends of a schedule; exact integers."""
    waiting = np.flatnonzero(schedule.waits_for >= 0)
    work_count = len(schedule.call)
    # A segment ends with the return of a waiting call. Host times inside it are relative to its begin.
    segment_of_call = running_sum(schedule.waits_for >= 0)[:-1]
    host_time = np.cumsum(schedule.pause_ns + schedule.held_ns)
    before_segment = np.r_[np.int64(0), host_time[waiting]]
    returns = host_time - before_segment[segment_of_call]
    begins = returns - schedule.held_ns
    arrival = begins[schedule.call] + schedule.offset_ns if work_count else np.empty(0, np.int64)

    # By stream, within it by issue. Numbers of 16 bits are sorted by counting, and there are hardly ever more streams.
    order = np.argsort(schedule.stream.astype(np.min_scalar_type(len(schedule.ready_ns))), kind="stable")
    stretches = _Stretches.of(schedule, order, segment_of_call, arrival)
    segment_begins, stretch_ends = _step_through(schedule, waiting, returns, stretches)

    segment_begin = np.array(segment_begins, dtype=np.int64)[segment_of_call]
    call_ends = segment_begin + returns
    call_ends[waiting] = segment_begins[1 : len(waiting) + 1]
    ready = arrival + segment_begin[schedule.call] if work_count else arrival
    starts = np.empty(work_count, dtype=np.int64)
    ends = np.empty(work_count, dtype=np.int64)
    depends = np.flatnonzero(schedule.after >= 0)
    awaited_ends = np.array(stretch_ends, dtype=np.int64)[stretches.of_work[schedule.after[depends]]]
    ready[depends] = np.maximum(ready[depends], awaited_ends + schedule.after_gap_ns[depends])
    bounds = np.searchsorted(schedule.stream[order], np.arange(len(schedule.ready_ns) + 1))
    for stream_number, (first, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        rows = order[first:stop]
        busy_time = np.cumsum(schedule.gap_ns[rows] + schedule.duration_ns[rows])
        earliest_end = ready[rows] - (busy_time - schedule.duration_ns[rows])
        ends[rows] = busy_time + np.maximum.accumulate(np.maximum(earliest_end, schedule.ready_ns[stream_number]))
        starts[rows] = ends[rows] - schedule.duration_ns[rows]
    return Replayed(segment_begin + begins, call_ends, starts, ends)


@dataclass(frozen=True, eq=False)
class _Stretches:
    """Runs of work of one stream within one segment, with no other waits inside."""

    of_work: Int64s  #: shape (work,), the stretch of each piece of work; stretches are numbered in order of first issue
    #: segment, stream: shape (stretches,)
    segment: Int64s
    stream: Int64s
    shift: Int64s  #: `A`, the time that the stretch adds to the end of the work before it
    reach: Int64s  #: `B`, its end if only the host held it back, relative to the segment's begin on the host
    after: Int64s  #: the piece of work that its first piece waits for; −1 for none
    after_shift: Int64s  #: from the end of that work to the end of the stretch

    @classmethod
    def of(cls, schedule: Schedule, order: Int64s, segment_of_call: Int64s, arrival: Int64s) -> _Stretches:
        """The stretches of a schedule; `order` puts work of one segment and stream side by side."""
        work_count = len(order)
        if not work_count:
            no_rows = np.empty(0, dtype=np.int64)
            return cls(no_rows, no_rows, no_rows, no_rows, no_rows, no_rows, no_rows)
        segment, stream = segment_of_call[schedule.call][order], schedule.stream[order]
        awaited = np.zeros(work_count, dtype=np.bool_)
        awaited[schedule.waits_for[schedule.waits_for >= 0]] = True
        awaited[schedule.after[schedule.after >= 0]] = True
        is_first = np.r_[
            True,
            (segment[1:] != segment[:-1])
            | (stream[1:] != stream[:-1])
            | (schedule.after[order[1:]] >= 0)
            | awaited[order[:-1]],
        ]
        firsts = np.flatnonzero(is_first)
        durations = (schedule.gap_ns + schedule.duration_ns)[order]
        shift = np.add.reduceat(durations, firsts)
        stretch = np.cumsum(is_first) - 1
        end_times = np.cumsum(durations)
        gap, duration = schedule.gap_ns[order], schedule.duration_ns[order]
        stretch_ends = end_times[np.r_[firsts[1:] - 1, work_count - 1]]
        to_stretch_end = stretch_ends[stretch] - end_times + duration  # from each begin
        reach = np.maximum.reduceat(arrival[order] + to_stretch_end, firsts)
        by_issue = np.argsort(order[firsts])
        rank = np.empty_like(by_issue)
        rank[by_issue] = np.arange(len(by_issue))
        of_work = np.empty(work_count, dtype=np.int64)
        of_work[order] = rank[stretch]
        first_work = order[firsts]
        after_shift = schedule.after_gap_ns[first_work] - gap[firsts] + shift
        return cls(
            of_work,
            segment[firsts][by_issue],
            stream[firsts][by_issue],
            shift[by_issue],
            reach[by_issue],
            schedule.after[first_work][by_issue],
            after_shift[by_issue],
        )


def _step_through(
    schedule: Schedule, waiting: Int64s, returns: Int64s, stretches: _Stretches
) -> tuple[list[int], list[int]]:
    """Begins of the segments on the host (one more than there are waits), and ends of the stretches.

    The only loop: over the host's waits and the stretches between them, on Python integers.
    """
    streams = schedule.ready_ns.tolist()
    awaited = stretches.of_work[schedule.waits_for[waiting]].tolist()
    host_returns = returns[waiting].tolist()
    return_delays = schedule.return_ns[waiting].tolist()
    bounds = np.searchsorted(stretches.segment, np.arange(len(host_returns) + 2)).tolist()
    stream, shift, reach = stretches.stream.tolist(), stretches.shift.tolist(), stretches.reach.tolist()
    after_shift = stretches.after_shift.tolist()
    dependency = np.where(stretches.after >= 0, np.append(stretches.of_work, -1)[stretches.after], -1).tolist()
    host, begins, ends = schedule.begin_ns, [schedule.begin_ns], [_NEVER] * len(stream)
    for segment in range(len(host_returns) + 1):
        for number in range(bounds[segment], bounds[segment + 1]):
            end = max(streams[stream[number]] + shift[number], host + reach[number])
            if dependency[number] >= 0:
                end = max(end, ends[dependency[number]] + after_shift[number])
            streams[stream[number]] = ends[number] = end
        if segment < len(host_returns):
            host = max(host + host_returns[segment], ends[awaited[segment]] + return_delays[segment])
            begins.append(host)
    return begins, ends


@dataclass(frozen=True, eq=False)
class RecordedSchedule:
    """One process's work on one device in a window, as recorded."""

    schedule: Schedule
    window: Window
    process: int
    device: int
    kind: npt.NDArray[np.int8]  #: shape (calls,), the position in `API_KIND` of each call's kind
    #: what blocks the host in each call, a position from 1 in `HOLDING_CAUSES`; 0 for issuing work
    cause: npt.NDArray[np.int8]
    whole_device: Bools  #: whether the call waits for all of the device's work by its name
    stall_ns: Int64s  #: the part of the pause before each call in which the host did something else for long
    profiler_ns: Int64s  #: the part of it in which the profiler held the host
    marked: bool  #: whether the program's own ranges mark its steps
    step: Int64s  #: shape (calls,), the step that the work issued last belongs to, from 0; all 0 without steps
    bytes: Int64s  #: shape (work,), size of a copy; 0 for other work
    direction: pl.Series  #: of each copy, as in the `copies` table; null for other work
    pinned: Bools  #: whether it is a copy between the device and host memory that is not pageable
    first_work: int  #: the piece of work whose begin is the window's; −1 where the window begins otherwise
    last_work: int  #: the piece of work whose begin is the window's end; −1 where the window ends otherwise
    ends_with_host: bool  #: whether the window ends with the host: with a last call that has no effect
    overrun_ns: int  #: by how much its work outlasts the window
    stalls: Intervals  #: when the host did something else for long
    #: called_ns, returned_ns: shape (calls,), when each call began and returned, as recorded
    called_ns: Int64s
    returned_ns: Int64s
    work_row: Int64s  #: shape (work,), the row of each piece of work in `Timeline.work`

    def duration_ns(self, replayed: Replayed) -> int:
        """The window's length in a replay."""
        if self.last_work >= 0:
            end = int(replayed.starts[self.last_work])
        else:
            end = int(replayed.ends.max()) - self.overrun_ns
            if self.ends_with_host:
                end = max(end, int(replayed.call_ends[-1]))
        return end - self.begin_ns(replayed)

    def begin_ns(self, replayed: Replayed) -> int:
        """The window's begin in a replay."""
        return self.window.start_ns if self.first_work < 0 else int(replayed.starts[self.first_work])

    def is_kind(self, *kinds: str) -> Bools:
        """Mask of the calls of one of these kinds."""
        result: Bools = np.isin(self.kind, [API_KIND.categories.to_list().index(kind) for kind in kinds])
        return result

    @property
    def issues(self) -> Bools:
        """Mask of the calls that issue work of the window."""
        issues = np.zeros(len(self.kind), dtype=np.bool_)
        issues[self.schedule.call] = True
        return issues

    @property
    def uncaptured(self) -> Bools:
        """Mask of the calls that CUDA graphs cannot contain: waits, copies blocking the host, launches of graphs."""
        result: Bools = np.isin(self.cause, (SYNCHRONIZATION, BLOCKING_COPY)) | self.is_kind("graph-launch")
        return result

    @property
    def step_ahead(self) -> Int64s:
        """For each call the step of the next issued work: calls before a step's first launch belong to that step."""
        issuing = np.flatnonzero(self.issues)
        following = np.searchsorted(issuing, np.arange(len(self.step)), side="left")
        return self.step[issuing[np.minimum(following, len(issuing) - 1)]]

    @property
    def lasting_stall_ns(self) -> Int64s:
        """The stalls that have nothing to do with issuing work.

        These are the stalls before the first launch of a step or after a wait (its input), and elsewhere those of a
        millisecond or more. A shorter pause between two launches is Python that issues work, slowly.
        """
        uncaptured, calls = self.uncaptured, np.arange(len(self.cause))
        begins = uncaptured | np.r_[False, uncaptured[:-1]] | (np.diff(self.step_ahead, prepend=0) > 0)
        part_begin = np.maximum.accumulate(np.where(begins, calls, 0))
        issuing = np.flatnonzero(self.issues & ~uncaptured)
        last_issuing = np.r_[-1, issuing][np.searchsorted(issuing, calls, side="left")]
        return np.where((last_issuing >= part_begin) & (self.stall_ns < STALL_MAX_NS), 0, self.stall_ns)


def replayed_ns(recorded: RecordedSchedule) -> int:
    """The window's length in a replay of the recorded schedule."""
    return recorded.duration_ns(replay(recorded.schedule))


# --- Modified schedules: launches captured into CUDA graphs, or the host without a profiler ---
#
# A schedule is divided by what a graph cannot contain: waits of the host, copies that block it, existing graphs, the
# begin of the next step, and stalls that have nothing to do with issuing work. Each part with more than one launch
# becomes one graph. With the launches goes the code around them (the layers of a model, dispatch, a framework's
# allocator), which runs once, at capture. The code before the first launch and after the last one is replaced by the
# call that launches the graph, which is assumed to need as much host time as lies between two launches now.
#
# A profiler makes every call of the host slower, and with it the code between the calls; in captures of eager PyTorch
# the host took 1.1 to 4 times as long as without. The GPU's work takes the same time. Where the step was also timed
# without a profiler, the schedule is brought to that time: the host's calls and its short pauses are shortened by one
# factor, and where that does not suffice its long pauses by another. Waits shorten by themselves, in the replay.

#: Host time of one call of `cudaGraphLaunch`. Under Nsight Systems 22 µs on the H200 (179 nodes, traced as a whole);
#: without a profiler the whole step is 30 µs shorter.
GRAPH_LAUNCH_NS: Final = 10_000


#: Expected host speed without the profiler. If the step is shorter still, the stalls were shorter, too.
_USUAL_FACTOR: Final = 1 / 3
#: Only if that does not suffice was the host faster than usual.
_LEAST_FACTOR: Final = 0.02
#: Halvings of the interval that contains the factor; after 12 it is known to 0.02 %.
_HALVINGS: Final = 12


def as_graphs(recorded: RecordedSchedule) -> tuple[Schedule, int, int] | None:
    """The schedule with graphs, the number of launches they replace, and the number of graph launches.

    None where nothing could be captured.
    """
    parts = _Parts.of(recorded)
    if not len(parts.graphs):
        return None
    schedule = recorded.schedule
    pause, held = _host_times(recorded, parts)
    in_graph = parts.inside[schedule.call]
    is_first_node = np.zeros(len(schedule.call), dtype=np.bool_)
    is_first_node[np.searchsorted(schedule.call, parts.heads)] = True
    with_graphs = replace(
        schedule,
        pause_ns=pause,
        held_ns=held,
        waits_for=np.where(parts.inside, -1, schedule.waits_for),
        return_ns=np.where(parts.inside, 0, schedule.return_ns),
        offset_ns=np.where(in_graph, held[schedule.call] + DEFAULT_LATENCY_NS, schedule.offset_ns),
        gap_ns=np.where(in_graph & ~is_first_node, np.minimum(schedule.gap_ns, GRAPH_GAP_NS), schedule.gap_ns),
    )
    launches_replaced = parts.launches[parts.launches > 1]
    return with_graphs, int(launches_replaced.sum()), len(launches_replaced)


@dataclass(frozen=True, eq=False)
class _Parts:
    """The schedule divided by what no graph can contain."""

    part: Int64s  #: shape (calls,), the part of each call, ascending
    outside: Bools  #: whether the call cannot be part of a graph; it is a part of its own
    inside: Bools  #: whether it becomes part of a graph
    issuing: Int64s  #: the calls that issue work and can be captured
    launches: Int64s  #: shape (parts,), their number in each part
    graphs: Int64s  #: the parts that become a graph
    #: heads, lasts: shape (graphs,), the first and the last issuing call of each
    heads: Int64s
    lasts: Int64s

    @classmethod
    def of(cls, recorded: RecordedSchedule) -> _Parts:
        outside, next_step = recorded.uncaptured, recorded.step_ahead
        starts_part = outside | (recorded.lasting_stall_ns > 0) | (np.diff(next_step, prepend=0) > 0)
        part = np.cumsum(starts_part | np.r_[False, outside[:-1]])
        issuing = np.flatnonzero(recorded.issues & ~outside)
        launches = np.bincount(part[issuing], minlength=int(part[-1]) + 1)
        is_graph = launches > 1
        if recorded.last_work >= 0 and is_graph.any():
            # The work whose begin ends the window is the first of a step like any other.
            call = recorded.schedule.call[recorded.last_work]
            is_graph[part[call]] |= not outside[call]
        graphs = np.flatnonzero(is_graph)
        heads = issuing[np.searchsorted(part[issuing], graphs, side="left")]
        lasts = issuing[np.searchsorted(part[issuing], graphs, side="right") - 1]
        return cls(part, outside, is_graph[part] & ~outside, issuing, launches, graphs, heads, lasts)


def _host_times(recorded: RecordedSchedule, parts: _Parts) -> tuple[Int64s, Int64s]:
    """The pause before each call and the call's own duration."""
    schedule, part = recorded.schedule, parts.part
    launch_interval = _time_between_launches(schedule, parts)
    lasting_stall = recorded.lasting_stall_ns
    short = schedule.pause_ns - lasting_stall
    pause = np.where(parts.inside, 0, schedule.pause_ns)
    held = np.where(parts.inside, 0, schedule.held_ns)
    elapsed = np.r_[np.int64(0), np.cumsum(short + schedule.held_ns)]  # at the end of the call before, for each call

    part_begins = np.searchsorted(part, parts.graphs, side="left")
    before_graph = elapsed[parts.heads] - elapsed[part_begins] + short[parts.heads]
    pause[parts.heads] = lasting_stall[part_begins] + np.minimum(before_graph, launch_interval)
    held[parts.heads] = GRAPH_LAUNCH_NS

    part_ends = np.searchsorted(part, parts.graphs, side="right")
    followed = part_ends < len(part)
    followed[followed] = parts.outside[part_ends[followed]]
    part_ends, lasts = part_ends[followed], parts.lasts[followed]
    after_graph = elapsed[part_ends] - elapsed[lasts + 1] + short[part_ends]
    pause[part_ends] = lasting_stall[part_ends] + np.minimum(after_graph, launch_interval)
    return pause, held


def _time_between_launches(schedule: Schedule, parts: _Parts) -> int:
    """Median time from the return of one issuing call to the begin of the next of the same part."""
    returned = np.cumsum(schedule.pause_ns + schedule.held_ns)
    begins = returned - schedule.held_ns
    before, after = parts.issuing[:-1], parts.issuing[1:]
    same_part = parts.part[before] == parts.part[after]
    return int(np.median((begins[after] - returned[before])[same_part]))


def without_profiler(recorded: RecordedSchedule, duration_ns: float) -> RecordedSchedule:
    """The schedule with a host fast enough for the window to take this long.

    It comes as close as possible: a window whose time is the GPU's does not change with the host.
    """
    if replayed_ns(recorded) <= duration_ns:
        return recorded
    if replayed_ns(paced(recorded, _USUAL_FACTOR, 1.0)) <= duration_ns:
        return _search(lambda factor: paced(recorded, factor, 1.0), _USUAL_FACTOR, duration_ns)
    if replayed_ns(paced(recorded, _USUAL_FACTOR, 0.0)) <= duration_ns:
        return _search(lambda factor: paced(recorded, _USUAL_FACTOR, factor), 0.0, duration_ns)
    return _search(lambda factor: paced(recorded, factor * _USUAL_FACTOR, 0.0), _LEAST_FACTOR, duration_ns)


def _search(pace: Callable[[float], RecordedSchedule], low: float, duration_ns: float) -> RecordedSchedule:
    """The schedule with the least factor between `low` and 1 that still takes the given time."""
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

    Pauses in which the profiler blocked the host are removed.
    """
    schedule = recorded.schedule
    stall = np.round(recorded.stall_ns * stalls).astype(np.int64)
    short = schedule.pause_ns - recorded.stall_ns - recorded.profiler_ns
    pause = np.round(short * factor).astype(np.int64) + stall
    issuing = (recorded.cause == 0) & (schedule.waits_for < 0)
    held = np.where(issuing, np.round(schedule.held_ns * factor).astype(np.int64), schedule.held_ns)
    earlier_offset = schedule.offset_ns - (schedule.held_ns - held)[schedule.call]
    offset = np.maximum(earlier_offset, np.minimum(schedule.offset_ns, 0))  # work never arrives before it is issued
    return replace(
        recorded,
        schedule=replace(schedule, pause_ns=pause, held_ns=held, offset_ns=offset),
        stall_ns=stall,
        profiler_ns=np.zeros_like(stall),
    )
