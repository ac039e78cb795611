"""A window of a profile as a schedule that can be replayed: issued work, and the host's waits.

The profile records begins and ends, not reasons. Reasons are inferred from the times and the meaning of the functions:

* a synchronization waits for the last work that ended before it returned; so does a release of memory that left nothing
  on the GPU, and a launching call that was stuck behind a full queue. A copy that blocks the host waits for itself;
* work that starts late although it had arrived and its stream was free waited for the work of another stream that ended
  just before;
* work waits for what the host had issued on another stream before it asked for that (`cudaStreamWaitEvent`). Where the
  two overlapped, that call was for something else, and the one before it counts. In a profile without such calls, the
  recorded order between two streams is kept wherever it was never the other way round. Otherwise a faster host would
  run a collective beside the gradients that it sums.

Start costs are not taken from each start, but are one figure for each kind of work: the mean time from the return of
the call to the begin of work that found its stream idle, and the mean time between two pieces of work of which the
second had been waiting. The replay of the unchanged schedule therefore tests the model; it does not repeat the
recording.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import API_KIND, api_kinds
from warplens.analysis.frames import busiest, once
from warplens.analysis.hostpace import ALLOCATION, BLOCKING_COPY, STALL_MIN_NS, SYNCHRONIZATION, HostCalls
from warplens.analysis.intervals import Intervals, measure_before
from warplens.analysis.replay import (
    DEFAULT_LATENCY_NS,
    GRAPH_GAP_NS,
    RecordedSchedule,
    Schedule,
)
from warplens.analysis.sharing import shared_gpus
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, Int64s, rows_named

#: Gap between two queued pieces of work of a stream, where the window has no example: 0.9–1.6 µs on the GPUs named at
#: `DEFAULT_LATENCY_NS`.
_DEFAULT_GAP_NS: Final = 1_000

#: End of the (unknown) work before the first one of a stream.
_LONG_AGO: Final = -(2**60)
#: With fewer queued pieces of work of a kind, the gap between them is unknown.
_LEAST_EXAMPLES: Final = 10
#: Longer waits are not start latency (`warplens.analysis.timebudget` uses the same limit).
_LONGEST_LATENCY_NS: Final = 10_000
#: Work that starts this much later than its stream and its launch explain waited for something else. Start latencies of
#: one kind of work differ by less than 1 µs.
_LATE_NS: Final = 3_000
#: A launching call was stuck behind a full queue if it took this many times the usual time, and at least this long,
#: while at least this much work was waiting. The queue of a stream holds 1,024 launches.
_STUCK_FACTOR, _STUCK_NS, _FULL_QUEUE = 10, 50_000, 500
#: Hidden order is looked for between this many streams at most; programs of thousands of streams exist, and each pair
#: costs.
_MOST_STREAMS: Final = 32
#: In place of the number of the stream that waits: the profile does not tell it, or it is one of another device.
_UNKNOWN, _ELSEWHERE = -1, -2
#: Without the launching call of at least this share of the work, the host's side is not known well enough.
_MIN_KNOWN_SHARE: Final = 0.95


@once
def recorded_schedule(timeline: Timeline, window: Window) -> RecordedSchedule | None:
    """The window's schedule, of the process and device with the most work; None where the profile does not show it.

    It needs API calls and work, a window that is not limited to one range, and a GPU that no other process uses: when
    that one's work runs does not follow from this schedule.
    """
    if window.range_name is not None:
        return None
    work = timeline.work_in(window)
    if not work.height or work["api_row"].null_count() > (1 - _MIN_KNOWN_SHARE) * work.height:
        return None
    process, device = busiest(work, "process", "device")
    if any(gpu.device == device for gpu in shared_gpus(timeline, window)):
        return None
    of_busiest = (pl.col("process") == process) & (pl.col("device") == device)
    host = HostCalls.of(timeline, process)
    if not len(host.outermost.starts):
        return None
    work_of_busiest = timeline.work.with_row_index("at").filter(of_busiest)
    return _Recorder.of(timeline, window, host, work_of_busiest, process, device).recorded()


@dataclass(frozen=True, eq=False)
class _Recorder:
    """Builds one schedule; calls and work are numbered as in the schedule."""

    timeline: Timeline
    window: Window
    process: int
    device: int
    work: pl.DataFrame  #: the work of the window, ordered by its call
    earlier: pl.DataFrame  #: the work before the window
    call: Int64s  #: call that issued each piece of work
    #: called, returned: begin and end of each call
    called: Int64s
    returned: Int64s
    cause: npt.NDArray[np.int8]  #: what each call does, as in `HostCalls`
    kind: npt.NDArray[np.int8]  #: kind of each call, as in `API_KIND`
    names: pl.Series  #: names of the calls, without the one that is added where the host ends the window
    stalls: Intervals  #: times at which the launching thread was not running
    profiled: Intervals  #: times at which the profiler held it up
    ends_with_next: bool  #: whether the window ends where the next work begins, which is then part of the schedule
    ends_with_host: bool  #: whether the window ends with a call, not with work

    @classmethod
    def of(
        cls, timeline: Timeline, window: Window, host: HostCalls, work: pl.DataFrame, process: int, device: int
    ) -> _Recorder:
        """From all work of the process on the device, sorted by begin, and all calls of the process."""
        begin, end = np.searchsorted(work["start_ns"].to_numpy(), (window.start_ns, window.end_ns)).tolist()
        in_window, next_work = work.slice(begin, end - begin) if window.kind != "all" else work, work.slice(end, 1)
        ends_with_next = next_work.height > 0 and next_work["start_ns"][0] == window.end_ns and window.kind != "all"
        if ends_with_next:
            in_window = pl.concat([in_window, next_work])
        ends_with_host = not (ends_with_next or in_window["end_ns"].max() == window.end_ns)

        pieces = host.outermost
        issue = in_window["launch_start_ns"].fill_null(in_window["start_ns"]).to_numpy()
        piece = np.maximum(np.searchsorted(pieces.starts, issue, side="right") - 1, 0)
        order = np.lexsort((in_window["start_ns"].to_numpy(), issue, piece))
        first, last = int(piece.min()), int(piece.max())
        if ends_with_host:
            first = min(first, int(np.searchsorted(pieces.starts, window.start_ns)))
            last = max(last, int(np.searchsorted(pieces.ends, window.end_ns, side="right")) - 1)
        owner = pieces.owner[first : last + 1]
        # Where the host ends the window, a call without effect is added, so that the pause before it is like any other.
        added = np.full(int(ends_with_host), window.end_ns)
        called, returned = (np.r_[times[first : last + 1], added] for times in (pieces.starts, pieces.ends))
        names = timeline.trace.api_calls["name"].gather(host.row[owner])
        other_kind = np.full(len(added), API_KIND.categories.to_list().index("other"))
        threads, counts = np.unique(host.thread[owner], return_counts=True)
        launching = int(threads[counts.argmax()])
        return cls(
            timeline=timeline,
            window=window,
            process=process,
            device=device,
            work=in_window[order],
            earlier=work.head(begin) if window.kind != "all" else work.clear(),
            call=piece[order] - first,
            called=called,
            returned=returned,
            cause=np.r_[host.cause[owner], np.zeros(len(added), dtype=np.int8)],
            kind=np.r_[api_kinds(names).to_physical().to_numpy(), other_kind].astype(np.int8),
            names=names,
            stalls=host.stalls(launching),
            profiled=host.profiler.get(launching, Intervals.none()),
            ends_with_next=ends_with_next,
            ends_with_host=ends_with_host,
        )

    @cached_property
    def start(self) -> Int64s:
        """Begin of each piece of work."""
        return self.work["start_ns"].to_numpy()

    @cached_property
    def end(self) -> Int64s:
        """End of each piece of work."""
        return self.work["end_ns"].to_numpy()

    @cached_property
    def by_graph(self) -> Bools:
        """Whether the launch of a graph issued each piece of work."""
        is_graph_launch: Bools = self.kind == API_KIND.categories.to_list().index("graph-launch")
        return is_graph_launch[self.call]

    def _named(self, part: str) -> Bools:
        """Mask of the calls with this pattern in their names."""
        matches = np.zeros(len(self.called), dtype=np.bool_)
        matches[: len(self.names)] = self.names.cast(pl.String).str.contains(part).to_numpy()
        return matches

    def recorded(self) -> RecordedSchedule:
        """The schedule, with the facts about its calls and work that predictions of changes need."""
        schedule = self._schedule()
        window, pause_begins = self.window, self.called - schedule.pause_ns
        stalled_ns = measure_before(self.stalls, self.called) - measure_before(self.stalls, pause_begins)
        # Nothing is known of the time before the first call and after the last one.
        stalled_ns[[0, -1]] = np.where(stalled_ns[[0, -1]] < STALL_MIN_NS, 0, stalled_ns[[0, -1]])
        profiled_ns = measure_before(self.profiled, self.called) - measure_before(self.profiled, pause_begins)
        copied_bytes, direction, pinned = self._copies()
        first_work = -1 if self.ends_with_host else int(self.start.argmin())
        if first_work >= 0 and self.start[first_work] != window.start_ns:
            first_work = -1
        return RecordedSchedule(
            schedule=schedule,
            window=window,
            process=self.process,
            device=self.device,
            kind=self.kind,
            cause=self.cause,
            whole_device=self._named("(Device|Thread|Ctx)Synchronize"),
            stall_ns=stalled_ns,
            profiler_ns=profiled_ns,
            marked=bool(window.steps) and self.timeline.steps.source == "range",
            step=self._steps(),
            bytes=copied_bytes,
            direction=direction,
            pinned=pinned,
            first_work=first_work,
            last_work=self._next_work,
            ends_with_host=self.ends_with_host,
            overrun_ns=0 if self._next_work >= 0 else max(0, int(self.end.max()) - window.end_ns),
            stalls=self.stalls,
            called_ns=self.called,
            returned_ns=self.returned,
            work_row=self.work["at"].cast(pl.Int64).to_numpy(),
        )

    @cached_property
    def _next_work(self) -> int:
        """The work that begins where the window ends; −1 for none."""
        return int(np.flatnonzero(self.start >= self.window.end_ns)[0]) if self.ends_with_next else -1

    def _schedule(self) -> Schedule:
        """The calls one after the other, each with the pause before it, and the work that they issue, by stream.

        The host runs call after call: a pause (`pause_ns`), the call itself (`held_ns`), and, where the call waits, the
        end of the work `waits_for` and the return from it (`return_ns`). Work starts at the latest of three times: its
        arrival (`offset_ns` after the begin of its call), `gap_ns` after the end of the work before it on its stream,
        and `after_gap_ns` after the end of the work of another stream that it depends on (`after`).
        """
        streams, stream = np.unique(self.work["stream"].to_numpy(), return_inverse=True)
        stream = stream.astype(np.int64)
        waits_for, return_ns, held = self._waits(self.returned - self.called)
        previous_end = self._previous_end(stream)
        latency, gap = self._start_costs(held, previous_end)
        offset = self._offsets(held, latency, previous_end, waits_for)
        after, after_gap = self._dependencies(stream, offset, previous_end)
        held_back = self._held_back(offset, previous_end)
        begin = int(self.called[0])
        pause = np.r_[np.int64(0), self.called[1:] - self.returned[:-1]]
        if begin > self.window.start_ns:  # the host begins the window
            begin, pause[0] = self.window.start_ns, begin - self.window.start_ns
        duration = self.end - self.start
        if self._next_work >= 0:
            duration[self._next_work] = 0
        earlier_ends = self.earlier.group_by("stream").agg(pl.col("end_ns").max())
        last_end_by_stream = dict(zip(earlier_ends["stream"], earlier_ends["end_ns"], strict=True))
        return Schedule(
            begin_ns=begin,
            pause_ns=pause,
            held_ns=held,
            waits_for=waits_for,
            return_ns=return_ns,
            call=self.call,
            offset_ns=offset + held_back,
            duration_ns=duration,
            stream=stream,
            gap_ns=gap + held_back,
            after=after,
            after_gap_ns=after_gap + held_back,
            ready_ns=np.array([last_end_by_stream.get(int(number), _LONG_AGO) for number in streams], dtype=np.int64),
        )

    def _waits(self, held_ns: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """For each call the work it waits for (−1: none), the time from that work's end to its return, its own time."""
        by_end = np.argsort(self.end, kind="stable")
        ended_before = np.searchsorted(self.end[by_end], self.returned, side="right") - 1
        ended = np.where(ended_before >= 0, by_end[ended_before], -1)
        numbers = np.arange(len(self.called))
        ended = np.where((ended >= 0) & (self.call[ended] <= numbers), ended, -1)
        in_call = (ended >= 0) & (self.end[ended] > self.called)

        synchronizes = self.cause == SYNCHRONIZATION
        latest = np.maximum.accumulate(self.end)
        issued = np.searchsorted(self.call, numbers, side="right") - 1
        drained = (issued >= 0) & (latest[issued] <= self.returned)
        frees = (self.cause == ALLOCATION) & self._named("Free") & drained
        launches = (self.cause == 0) & (np.bincount(self.call, minlength=len(numbers)) > 0)
        usual_ns = float(np.median(held_ns[launches])) if launches.any() else 0.0
        waiting = issued - np.searchsorted(np.sort(self.end), self.called)
        stuck = launches & (held_ns > max(_STUCK_FACTOR * usual_ns, _STUCK_NS)) & (waiting >= _FULL_QUEUE)

        waits_for = np.where(synchronizes | ((frees | stuck) & in_call), ended, -1)
        # A call that found nothing to wait for takes the same time after a wait.
        return_ns = np.where(in_call, self.returned - self.end[ended], held_ns)
        own_ns = np.where((waits_for >= 0) & in_call, np.minimum(held_ns, return_ns), held_ns)
        own_ns[stuck] = int(usual_ns)
        # A copy that blocks the host does so until it has ended, or, from pageable memory, shortly before that.
        copying = np.flatnonzero(self.cause == BLOCKING_COPY)
        last = np.searchsorted(self.call, copying, side="right") - 1
        issues = (last >= 0) & (self.call[last] == copying)
        copying, last = copying[issues], last[issues]
        holds = self.start[last] < self.returned[copying]
        copying, last = copying[holds], last[holds]
        waits_for[copying] = last
        return_ns[copying] = self.returned[copying] - self.end[last]
        own_ns[copying] = np.maximum(np.minimum(held_ns[copying], return_ns[copying]), 0)
        return waits_for.astype(np.int64), np.where(waits_for >= 0, return_ns, 0), own_ns

    def _previous_end(self, stream: Int64s) -> Int64s:
        """For each piece of work the end of the work before it on its stream; `_LONG_AGO` for the first."""
        previous = np.full(len(self.start), _LONG_AGO)
        order = np.argsort(stream, kind="stable")
        same_stream = np.flatnonzero(stream[order[1:]] == stream[order[:-1]]) + 1
        previous[order[same_stream]] = self.end[order[same_stream - 1]]
        return previous

    def _start_costs(self, held_ns: Int64s, previous_end: Int64s) -> tuple[Int64s, Int64s]:
        """For each piece of work the usual latency of its kind after its call's return, and the usual gap before it."""
        kind = self.work["kind"].to_physical().to_numpy().astype(np.int64) * 2 + self.by_graph
        called, returned = self.called[self.call], self.returned[self.call]
        alone = (self.cause[self.call] == 0) & (held_ns[self.call] == returned - called)
        latency_ns = self.start - returned
        # The first node of a graph may start long before the call that launched all of them returns.
        leads = np.r_[True, self.call[1:] != self.call[:-1]]
        early = np.where(self.by_graph, called - returned, -_LONGEST_LATENCY_NS)
        idle = alone & leads & (previous_end <= called) & (latency_ns >= early) & (latency_ns <= _LONGEST_LATENCY_NS)
        latency, gap = np.empty_like(self.start), np.empty_like(self.start)
        usual = _mean(latency_ns[idle], DEFAULT_LATENCY_NS)
        gap_ns = self.start - previous_end
        for code in np.unique(kind):
            of_kind = kind == code
            latency[of_kind] = _mean(latency_ns[of_kind & idle], usual)
            queued = of_kind & (np.abs(gap_ns) <= _LONGEST_LATENCY_NS)
            queued &= np.where(self.by_graph, ~leads, previous_end >= returned + latency)
            enough = np.count_nonzero(queued) >= _LEAST_EXAMPLES
            gap[of_kind] = _mean(gap_ns[queued & enough], GRAPH_GAP_NS if code % 2 else _DEFAULT_GAP_NS)
        return latency, gap

    def _offsets(self, held_ns: Int64s, latency: Int64s, previous_end: Int64s, waits_for: Int64s) -> Int64s:
        """Time from the begin of the issuing call to the arrival of the work."""
        called = self.called[self.call]
        offset: Int64s = held_ns[self.call] + latency
        has_call = self.work["launch_start_ns"].is_not_null().to_numpy()
        offset[~has_call] = (self.start - called)[~has_call]
        # For a call that waits for its own work the return is no measure: its time on an idle GPU counts.
        waits_for_own = (waits_for[self.call] >= 0) & (self.call[waits_for[self.call]] == self.call)
        idle = waits_for_own & (previous_end <= called)
        start_delay = self.start - called
        offset[waits_for_own] = int(np.median(start_delay[idle])) if idle.any() else DEFAULT_LATENCY_NS
        offset[idle] = start_delay[idle]
        # Calls nested in a longer one of another thread issue their work later than it begins.
        launch_starts = self.work["launch_start_ns"].fill_null(0).to_numpy()
        launch_ends = self.work["launch_end_ns"].fill_null(0).to_numpy()
        nested = has_call & ~waits_for_own & (launch_starts > called) & (launch_ends > launch_starts)
        offset[nested] = (launch_ends - called + latency)[nested]
        return offset

    def _dependencies(self, stream: Int64s, offset: Int64s, previous_end: Int64s) -> tuple[Int64s, Int64s]:
        """For each piece of work the one of another stream that it waited for, and the time from that one's end."""
        no_dependencies = np.full(len(self.start), -1, dtype=np.int64), np.zeros(len(self.start), dtype=np.int64)
        if len(np.unique(stream)) < 2:
            return no_dependencies
        after, after_gap = no_dependencies
        predecessor, predecessor_gap = self._kept_order(stream)
        has_predecessor = predecessor >= 0
        after[has_predecessor] = predecessor[has_predecessor]
        after_gap[has_predecessor] = predecessor_gap[has_predecessor]
        could_start = np.maximum(self.called[self.call] + offset, previous_end)
        started_late = np.flatnonzero(self.start > could_start + _LATE_NS)
        by_end = np.argsort(self.end, kind="stable")
        position = np.searchsorted(self.end[by_end], self.start[started_late], side="right") - 1
        candidate = np.where(position >= 0, by_end[position], -1)
        gap_ns = self.start[started_late] - self.end[candidate]
        plausible = (
            (candidate >= 0)
            & (candidate < started_late)
            & (stream[candidate] != stream[started_late])
            & (gap_ns <= _LONGEST_LATENCY_NS)
        )
        plausible &= self.end[candidate] > could_start[started_late]
        after[started_late[plausible]], after_gap[started_late[plausible]] = candidate[plausible], gap_ns[plausible]
        return after, after_gap

    def _held_back(self, offset: Int64s, previous_end: Int64s) -> Int64s:
        """For each piece of work how long it was held back on an idle GPU after it had arrived; 0 for a usual latency.

        The driver, another program or the end of unseen work holds it back (`submission` and `dependency` in
        `warplens.analysis.timebudget`), whatever the pace of the host. Not told of graphs, whose start varies more.
        """
        by_start = np.argsort(self.start, kind="stable")
        latest_end = np.empty_like(self.end)
        latest_end[by_start] = np.r_[self.window.start_ns, np.maximum.accumulate(self.end[by_start])[:-1]]
        could_start = np.maximum(self.called[self.call] + offset, previous_end)
        late = self.start - np.maximum(could_start, latest_end)
        return np.where((self.cause[self.call] == 0) & ~self.by_graph & (late > _LONGEST_LATENCY_NS), late, 0)

    def _kept_order(self, stream: Int64s) -> tuple[Int64s, Int64s]:
        """For each piece of work one of another stream that it must wait for, though the host's pace may hide it.

        Returns:
            The one that ended last (−1: none), and the least time from that one's end to its begin.
        """
        after, gap = np.full_like(stream, -1), np.zeros_like(stream)
        wait_times, waiting = self._stream_waits()
        streams = min(int(stream.max()) + 1, _MOST_STREAMS)
        for first_stream, second_stream in itertools.permutations(range(streams), 2):
            first, second = np.flatnonzero(stream == first_stream), np.flatnonzero(stream == second_stream)
            if len(wait_times):
                number = self.work["stream"][int(second[0])]
                applies = (waiting == number) | (waiting == _UNKNOWN)
                candidate = self._awaited(first, second, wait_times[applies], waiting[applies] == _UNKNOWN)
            else:
                candidate = self._always_before(first, second)
            rows, candidate = second[candidate >= 0], candidate[candidate >= 0]
            newer = (after[rows] < 0) | (self.end[candidate] > self.end[after[rows]])
            after[rows[newer]] = candidate[newer]
        has_dependency = after >= 0
        gap[has_dependency] = np.minimum(self.start[has_dependency] - self.end[after[has_dependency]], _DEFAULT_GAP_NS)
        return after, gap

    def _always_before(self, first: Int64s, second: Int64s) -> Int64s:
        """For each work of the second stream the last one of the first issued before it; −1 if one had not ended."""
        position = np.searchsorted(first, second) - 1
        candidate = np.where(position >= 0, first[position], -1)
        known = candidate > np.r_[-1, second[:-1]]  # otherwise the order follows from that of the work before it
        if (self.end[candidate[known]] > self.start[second[known]]).any():
            return np.full_like(second, -1)
        return np.where(known, candidate, -1)

    def _awaited(self, first: Int64s, second: Int64s, wait_times: Int64s, of_any: Bools) -> Int64s:
        """For each work of the second stream the one of the first that it waits for; −1 for none.

        A wait holds for the next work of its stream, and for all that the host had issued before it. If that had not
        ended when the work began, the wait was for something else, and the wait before it counts.

        Args:
            wait_times: begins of the calls that make the second stream wait, sorted.
            of_any: which of them may be another stream's. Unless such a call comes directly before the work, it counts
                only for what was issued since the work before it on its stream.
        """
        issued = self.work["launch_start_ns"].fill_null(-1).to_numpy()
        first = first[issued[first] >= 0]
        if not len(first) or not len(wait_times):
            return np.full_like(second, -1)
        # Calls of several threads may issue work of a stream in another order than that of the schedule.
        first_issued, first_ended = np.maximum.accumulate(issued[first]), np.maximum.accumulate(self.end[first])
        waits_before = np.searchsorted(wait_times, issued)  # of each piece of work
        own_previous = np.r_[-1, second[:-1]]
        earliest = np.where(own_previous >= 0, waits_before[own_previous], 0)
        ended = np.searchsorted(first_ended, self.start[second], side="right")
        possible = np.append(np.searchsorted(wait_times, first_issued), len(wait_times))[ended]
        wait = np.minimum(waits_before[second], possible) - 1
        position = np.where(wait >= 0, np.searchsorted(first_issued, wait_times[wait]) - 1, -1)
        candidate = np.where(position >= 0, first[position], -1)
        own = ~of_any[wait] | (wait >= waits_before[second - 1])
        holds = (wait >= earliest) & (candidate < second) & (own | (candidate > own_previous))
        return np.where(holds, candidate, -1)

    def _stream_waits(self) -> tuple[Int64s, Int64s]:
        """Sorted times at which the process made a stream wait for an event, and the streams that wait."""
        calls = self.timeline.trace.api_calls
        is_wait = rows_named(calls["name"], lambda name: "StreamWaitEvent" in name)
        is_wait &= (calls["process"] == self.process).to_numpy()
        waits = self.timeline.trace.synchronizations.filter(
            pl.col("kind").cast(pl.String) == "stream-wait-event", pl.col("process") == self.process
        )
        of_device = pl.col("device").fill_null(self.device) == self.device
        known = waits.select("correlation", pl.when(of_device).then("stream").otherwise(_ELSEWHERE).alias("stream"))
        called = calls.filter(is_wait).select("start_ns", "correlation").sort("start_ns")
        called = called.join(known.unique("correlation"), on="correlation", how="left", maintain_order="left")
        return called["start_ns"].to_numpy(), called["stream"].fill_null(_UNKNOWN).to_numpy()

    def _steps(self) -> Int64s:
        """The step of each call: that of the first work issued by it or by the last issuing call before it."""
        begins = np.array([step.start_ns for step in self.window.steps], dtype=np.int64)
        if not len(begins):
            return np.zeros(len(self.called), dtype=np.int64)
        step = np.maximum(np.searchsorted(begins, self.start, side="right") - 1, 0)
        if self.ends_with_next:
            step[self.start >= self.window.end_ns] = len(begins)
        of_call = np.zeros(len(self.called), dtype=np.int64)
        np.maximum.at(of_call, self.call, step)
        return np.maximum.accumulate(of_call)

    def _copies(self) -> tuple[Int64s, pl.Series, Bools]:
        copies = self.timeline.trace.copies
        row = self.work.select(pl.when(pl.col("kind") == "copy").then("row")).to_series()
        size = copies["bytes"].gather(row).fill_null(0).to_numpy()
        direction = copies["direction"].gather(row).cast(pl.String)
        ends = [copies[column].cast(pl.String).gather(row) for column in ("source_memory", "destination_memory")]
        pinned = ((ends[0] == "pinned") | (ends[1] == "pinned")).fill_null(value=False)
        return size, direction, pinned.to_numpy()


def _mean(values: Int64s, default: int) -> int:
    return round(float(values.mean())) if len(values) else default
