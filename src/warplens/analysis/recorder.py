"""A window of a profile as a schedule that can be replayed: who issued what when, and what the host waited for.

The profile records begins and ends, not reasons. The reasons are inferred from the times and the functions' meaning:

* a synchronization waits for the last work that ended before it returned; so does a release of memory that left
  nothing on the GPU, and a launching call that was stuck behind a full queue. A copy that holds the host waits for
  itself;
* work that starts late although it had arrived and its stream was free waited for the work of another stream that
  ended just before;
* work that follows, in the order of issue, on work of another stream waits for it where the host asked for that in
  between (`cudaStreamWaitEvent`). A profile without such calls does not say so: there the order that was recorded is
  kept between two streams wherever it was never the other way round. Otherwise a faster host would run a collective
  beside the gradients that it sums.

What every start costs is not taken from each start, but is one figure for each kind of work: the mean time from the
return of the call to the begin of work that found its stream idle, and the mean time between two pieces of work of
which the second had been waiting. The replay of the unchanged schedule therefore tests the model; it does not repeat
what was recorded.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import API_KIND, api_kinds
from warplens.analysis.frames import duration_ns, once
from warplens.analysis.hostpace import ALLOCATION, BLOCKING_COPY, STALL_MIN_NS, SYNCHRONIZATION, HostCalls
from warplens.analysis.intervals import Intervals, measure_before
from warplens.analysis.replay import (
    DEFAULT_LATENCY_NS,
    GRAPH_GAP_NS,
    RecordedSchedule,
    Schedule,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, Int64s, rows_named

#: Between two queued pieces of work of a stream, where the window has no example: 0.9–1.6 µs on the same GPUs.
_DEFAULT_GAP_NS: Final = 1_000

#: When the work before the first one of a stream ended.
_LONG_AGO: Final = -(2**60)
#: Fewer queued pieces of work of a kind say nothing about the gap between them.
_LEAST_EXAMPLES: Final = 10
#: Longer waits are no start latency (`warplens.analysis.timebudget` draws the same line).
_LONGEST_LATENCY_NS: Final = 10_000
#: Work that starts this much later than its stream and its launch explain waited for something else. Start latencies of
#: one kind of work differ by less than 1 µs.
_LATE_NS: Final = 3_000
#: A launching call was stuck behind a full queue if it took so many times the usual time, and at least the given time,
#: while so much work was waiting. The queue of a stream holds 1,024 launches.
_STUCK_FACTOR, _STUCK_NS, _FULL_QUEUE = 10, 50_000, 500
#: Between so many streams a hidden order is looked for; programs of thousands of streams exist, and each pair costs.
_MOST_STREAMS: Final = 32
#: Without the launching call of at least this share of the work, the host's side is not known well enough.
_MIN_KNOWN_SHARE: Final = 0.95


@once
def recorded_schedule(timeline: Timeline, window: Window) -> RecordedSchedule | None:
    """The window's schedule, of the process and device with the most work; None where the profile does not tell.

    It does not tell without API calls, without work, or if the window speaks of one range only.
    """
    if window.range_name is not None:
        return None
    work = timeline.work_in(window)
    if not work.height or work["api_row"].null_count() > (1 - _MIN_KNOWN_SHARE) * work.height:
        return None
    busy = work.group_by("process", "device").agg(duration_ns().sum().alias("busy"))
    process, device = busy.sort(["busy", "process", "device"], descending=[True, False, False]).row(0)[:2]
    mine = (pl.col("process") == process) & (pl.col("device") == device)
    host = HostCalls.of(timeline, process)
    if not len(host.outermost.starts):
        return None
    ours = timeline.work.with_row_index("at").filter(mine)
    return _Recorder(timeline, window, host, ours, process, device).schedule()


class _Recorder:
    """The steps of making one schedule; the arrays of calls and work are those of the schedule."""

    def __init__(
        self, timeline: Timeline, window: Window, host: HostCalls, work: pl.DataFrame, process: int, device: int
    ) -> None:
        self._timeline, self._window, self._process, self._device = timeline, window, process, device
        # Work is in order of its begin.
        begin, end = np.searchsorted(work["start_ns"].to_numpy(), (window.start_ns, window.end_ns)).tolist()
        chosen, later = work.slice(begin, end - begin) if window.kind != "all" else work, work.slice(end, 1)
        self._ends_with_next = later.height > 0 and later["start_ns"][0] == window.end_ns and window.kind != "all"
        if self._ends_with_next:
            chosen = pl.concat([chosen, later])
        self._earlier = work.head(begin) if window.kind != "all" else work.clear()
        ends_with_work = self._ends_with_next or chosen["end_ns"].max() == window.end_ns

        pieces = host.outermost
        issue = chosen["launch_start_ns"].fill_null(chosen["start_ns"]).to_numpy()
        piece = np.maximum(np.searchsorted(pieces.starts, issue, side="right") - 1, 0)
        order = np.lexsort((chosen["start_ns"].to_numpy(), issue, piece))
        first, last = int(piece.min()), int(piece.max())
        if not ends_with_work:
            first = min(first, int(np.searchsorted(pieces.starts, window.start_ns)))
            last = max(last, int(np.searchsorted(pieces.ends, window.end_ns, side="right")) - 1)
        self._ends_with_host = not ends_with_work
        self.work = chosen[order]
        self.call = piece[order] - first
        self.start, self.end = self.work["start_ns"].to_numpy(), self.work["end_ns"].to_numpy()
        owner = pieces.owner[first : last + 1]
        # Where the host ends the window, that is a call which does nothing: the pause before it is one like others.
        end = np.full(int(self._ends_with_host), window.end_ns)
        self.called, self.returned = (np.r_[times[first : last + 1], end] for times in (pieces.starts, pieces.ends))
        self.cause = np.r_[host.cause[owner], np.zeros(len(end), dtype=np.int8)]
        self._names = timeline.trace.api_calls["name"].gather(host.row[owner])
        kinds = api_kinds(self._names)
        other = API_KIND.categories.to_list().index("other")
        self.kind = np.r_[kinds.to_physical().to_numpy(), np.full(len(end), other)].astype(np.int8)
        threads, counts = np.unique(host.thread[owner], return_counts=True)
        launching = int(threads[counts.argmax()])
        self.stalls, self.profiled = host.stalls(launching), host.profiler.get(launching, Intervals.none())
        self.by_graph = (kinds == "graph-launch").to_numpy()[self.call]

    def _named(self, part: str) -> Bools:
        """The calls with this in their names."""
        found = np.zeros(len(self.called), dtype=np.bool_)
        found[: len(self._names)] = self._names.cast(pl.String).str.contains(part).to_numpy()
        return found

    def schedule(self) -> RecordedSchedule:
        window = self._window
        streams, stream = np.unique(self.work["stream"].to_numpy(), return_inverse=True)
        stream = stream.astype(np.int64)
        held = self.returned - self.called
        waits_for, return_ns, held = self._waits(held)
        previous_end = self._previous_end(stream)
        latency, gap = self._start_costs(held, previous_end)
        offset = self._offsets(held, latency, previous_end, waits_for)
        after, after_gap = self._dependencies(stream, offset, previous_end)
        begin = int(self.called[0])
        pause = np.r_[np.int64(0), self.called[1:] - self.returned[:-1]]
        if self._ends_with_host and begin > window.start_ns:
            begin, pause[0] = window.start_ns, begin - window.start_ns
        duration = self.end - self.start
        last_work = -1
        if self._ends_with_next:
            last_work = int(np.flatnonzero(self.start >= window.end_ns)[0])
            duration[last_work] = 0
        first_work = -1 if self._ends_with_host else int(self.start.argmin())
        if first_work >= 0 and self.start[first_work] != window.start_ns:
            first_work = -1
        earlier = self._earlier.group_by("stream").agg(pl.col("end_ns").max())
        ended = dict(zip(earlier["stream"], earlier["end_ns"], strict=True))
        schedule = Schedule(
            begin_ns=begin,
            pause_ns=pause,
            held_ns=held,
            waits_for=waits_for,
            return_ns=return_ns,
            call=self.call,
            offset_ns=offset,
            duration_ns=duration,
            stream=stream,
            gap_ns=gap,
            after=after,
            after_gap_ns=after_gap,
            ready_ns=np.array([ended.get(int(number), _LONG_AGO) for number in streams], dtype=np.int64),
        )
        stall = measure_before(self.stalls, self.called) - measure_before(self.stalls, self.called - pause)
        # Nothing is known of the time before the first call and behind the last one.
        stall[[0, -1]] = np.where(stall[[0, -1]] < STALL_MIN_NS, 0, stall[[0, -1]])
        profiler = measure_before(self.profiled, self.called) - measure_before(self.profiled, self.called - pause)
        size, direction, pinned = self._copies()
        overrun = 0 if last_work >= 0 else max(0, int(self.end.max()) - window.end_ns)
        return RecordedSchedule(
            schedule=schedule,
            window=window,
            process=self._process,
            device=self._device,
            kind=self.kind,
            cause=self.cause,
            whole_device=self._named("(Device|Thread|Ctx)Synchronize"),
            stall_ns=stall,
            profiler_ns=profiler,
            marked=bool(window.steps) and self._timeline.steps.source == "range",
            step=self._steps(),
            bytes=size,
            direction=direction,
            pinned=pinned,
            first_work=first_work,
            last_work=last_work,
            ends_with_host=self._ends_with_host,
            overrun_ns=overrun,
            stalls=self.stalls,
            called_ns=self.called,
            returned_ns=self.returned,
            work_row=self.work["at"].cast(pl.Int64).to_numpy(),
        )

    def _waits(self, held: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """For each call the work that it waits for (−1: none), the time from its end to the return, and its own."""
        by_end = np.argsort(self.end, kind="stable")
        position = np.searchsorted(self.end[by_end], self.returned, side="right") - 1
        ended = np.where(position >= 0, by_end[position], -1)
        numbers = np.arange(len(self.called))
        ended = np.where((ended >= 0) & (self.call[ended] <= numbers), ended, -1)
        in_call = (ended >= 0) & (self.end[ended] > self.called)

        synchronizes = self.cause == SYNCHRONIZATION
        latest = np.maximum.accumulate(self.end)
        issued = np.searchsorted(self.call, numbers, side="right") - 1
        drained = (issued >= 0) & (latest[issued] <= self.returned)
        frees = (self.cause == ALLOCATION) & self._named("Free") & drained
        launches = (self.cause == 0) & (np.bincount(self.call, minlength=len(numbers)) > 0)
        usual = float(np.median(held[launches])) if launches.any() else 0.0
        waiting = issued - np.searchsorted(np.sort(self.end), self.called)
        stuck = launches & (held > max(_STUCK_FACTOR * usual, _STUCK_NS)) & (waiting >= _FULL_QUEUE)

        waits_for = np.where(synchronizes | ((frees | stuck) & in_call), ended, -1)
        # A call that found nothing to wait for takes the same time when it has waited.
        return_ns = np.where(in_call, self.returned - self.end[ended], held)
        own = np.where((waits_for >= 0) & in_call, np.minimum(held, return_ns), held)
        own[stuck] = int(usual)
        # A copy that holds the host does so until it has ended, or, from pageable memory, shortly before that.
        copying = np.flatnonzero(self.cause == BLOCKING_COPY)
        last = np.searchsorted(self.call, copying, side="right") - 1
        issues = (last >= 0) & (self.call[last] == copying)
        copying, last = copying[issues], last[issues]
        holds = self.start[last] < self.returned[copying]
        copying, last = copying[holds], last[holds]
        waits_for[copying] = last
        return_ns[copying] = self.returned[copying] - self.end[last]
        own[copying] = np.maximum(np.minimum(held[copying], return_ns[copying]), 0)
        return waits_for.astype(np.int64), np.where(waits_for >= 0, return_ns, 0), own

    def _previous_end(self, stream: Int64s) -> Int64s:
        """For each piece of work when the work before it on its stream had ended; long ago for the first one."""
        previous = np.full(len(self.start), _LONG_AGO)
        order = np.argsort(stream, kind="stable")
        same = np.flatnonzero(stream[order[1:]] == stream[order[:-1]]) + 1
        previous[order[same]] = self.end[order[same - 1]]
        return previous

    def _start_costs(self, held: Int64s, previous_end: Int64s) -> tuple[Int64s, Int64s]:
        """For each piece of work the usual latency of its kind from its call's return, and the usual gap before it."""
        kind = self.work["kind"].to_physical().to_numpy().astype(np.int64) * 2 + self.by_graph
        called, returned = self.called[self.call], self.returned[self.call]
        alone = (self.cause[self.call] == 0) & (held[self.call] == returned - called)
        latency_ns = self.start - returned
        # The first node of a graph may start long before the call returns that launched all of them.
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

    def _offsets(self, held: Int64s, latency: Int64s, previous_end: Int64s, waits_for: Int64s) -> Int64s:
        """From the begin of the issuing call to the arrival of the work."""
        called = self.called[self.call]
        offset: Int64s = held[self.call] + latency
        known = self.work["launch_start_ns"].is_not_null().to_numpy()
        offset[~known] = (self.start - called)[~known]
        # A call that waits for its own work says nothing by its return: what it took where the GPU was idle counts.
        own = (waits_for[self.call] >= 0) & (self.call[waits_for[self.call]] == self.call)
        idle = own & (previous_end <= called)
        took = self.start - called
        offset[own] = int(np.median(took[idle])) if idle.any() else DEFAULT_LATENCY_NS
        offset[idle] = took[idle]
        # Calls nested in a longer one of another thread issue their work later than it begins.
        begun = self.work["launch_start_ns"].fill_null(0).to_numpy()
        ended = self.work["launch_end_ns"].fill_null(0).to_numpy()
        nested = known & ~own & (begun > called) & (ended > begun)
        offset[nested] = (ended - called + latency)[nested]
        return offset

    def _dependencies(self, stream: Int64s, offset: Int64s, previous_end: Int64s) -> tuple[Int64s, Int64s]:
        """For each piece of work the one of another stream that it waited for, and the time from that one's end."""
        none = np.full(len(self.start), -1, dtype=np.int64), np.zeros(len(self.start), dtype=np.int64)
        if len(np.unique(stream)) < 2:
            return none
        after, after_gap = none
        ordered, order_gap = self._kept_order(stream)
        after[ordered >= 0], after_gap[ordered >= 0] = ordered[ordered >= 0], order_gap[ordered >= 0]
        free = np.maximum(self.called[self.call] + offset, previous_end)
        late = np.flatnonzero(self.start > free + _LATE_NS)
        by_end = np.argsort(self.end, kind="stable")
        position = np.searchsorted(self.end[by_end], self.start[late], side="right") - 1
        other = np.where(position >= 0, by_end[position], -1)
        waited = self.start[late] - self.end[other]
        fits = (other >= 0) & (other < late) & (stream[other] != stream[late]) & (waited <= _LONGEST_LATENCY_NS)
        fits &= self.end[other] > free[late]
        after[late[fits]], after_gap[late[fits]] = other[fits], waited[fits]
        return after, after_gap

    def _kept_order(self, stream: Int64s) -> tuple[Int64s, Int64s]:
        """For each piece of work one of another stream that it has to wait for, though the host's pace may hide it.

        Returns:
            The one that ended last among those issued since the work before it on its own stream (−1: none), and the
            least time from that one's end to its begin.
        """
        numbers = np.arange(len(stream))
        after, gap = np.full_like(stream, -1), np.zeros_like(stream)
        issued = self.work["launch_start_ns"].fill_null(-1).to_numpy()
        asked, told = self._stream_waits()
        streams = min(int(stream.max()) + 1, _MOST_STREAMS)
        own, latest = np.full_like(stream, -1), []
        for number in range(streams):
            latest.append(np.r_[-1, np.maximum.accumulate(np.where(stream == number, numbers, -1))[:-1]])
            own[stream == number] = latest[number][stream == number]
        for before, behind in itertools.permutations(range(streams), 2):
            rows = np.flatnonzero(stream == behind)
            other = latest[before][rows]
            rows, other = rows[other > own[rows]], other[other > own[rows]]
            kept = self.end[other] <= self.start[rows]
            if told:
                between = np.searchsorted(asked, issued[rows]) > np.searchsorted(asked, issued[other])
                kept &= between & (issued[other] >= 0)
            elif not kept.all():
                continue
            rows, other = rows[kept], other[kept]
            newer = (after[rows] < 0) | (self.end[other] > self.end[after[rows]])
            after[rows[newer]] = other[newer]
        tied = after >= 0
        gap[tied] = np.minimum(self.start[tied] - self.end[after[tied]], _DEFAULT_GAP_NS)
        return after, gap

    def _stream_waits(self) -> tuple[Int64s, bool]:
        """When the process asked a stream to wait for an event, ascending; whether the profile has such calls."""
        calls = self._timeline.trace.api_calls
        asks = rows_named(calls["name"], lambda name: "StreamWaitEvent" in name)
        asks &= (calls["process"] == self._process).to_numpy()
        return np.sort(calls["start_ns"].to_numpy()[asks]), bool(asks.any())

    def _steps(self) -> Int64s:
        """The step of each call: that of the first work that it, or the last issuing call before it, issued."""
        begins = np.array([step.start_ns for step in self._window.steps], dtype=np.int64)
        if not len(begins):
            return np.zeros(len(self.called), dtype=np.int64)
        step = np.maximum(np.searchsorted(begins, self.start, side="right") - 1, 0)
        if self._ends_with_next:
            step[self.start >= self._window.end_ns] = len(begins)
        of_call = np.zeros(len(self.called), dtype=np.int64)
        np.maximum.at(of_call, self.call, step)
        return np.maximum.accumulate(of_call)

    def _copies(self) -> tuple[Int64s, pl.Series, Bools]:
        copies = self._timeline.trace.copies
        row = self.work.select(pl.when(pl.col("kind") == "copy").then("row")).to_series()
        size = copies["bytes"].gather(row).fill_null(0).to_numpy()
        direction = copies["direction"].gather(row).cast(pl.String)
        ends = [copies[column].cast(pl.String).gather(row) for column in ("source_memory", "destination_memory")]
        pinned = ((ends[0] == "pinned") | (ends[1] == "pinned")).fill_null(value=False)
        return size, direction, pinned.to_numpy()


def _mean(values: Int64s, default: int) -> int:
    return round(float(values.mean())) if len(values) else default
