"""The pace of the host: cost of a launch, use of its other time, and whether it keeps ahead of the GPU.

The threads that launch are the program's critical resource on the host. The time of the window is split without
remainder into their launching calls, other calls by kind, short pauses (the framework, the program) and long ones; one
thread works while another waits, as in a backward pass, so that they are looked at together. The cost of a launch is
the time from one launching call of the busiest thread to the next, less the time in which something else held it up. A
host that is ahead of the GPU has work queued; behind it, each launch starts at once, because the GPU was waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import api_kind, blocks_host, polls_device
from warplens.analysis.frames import all_equal, number, once, running_sum, select_rows
from warplens.analysis.intervals import (
    Intervals,
    LabelledIntervals,
    clip,
    intersection,
    measure_before,
    owned_union,
    subtract,
    total,
    union,
)
from warplens.analysis.launches import PROMPT_START_NS
from warplens.analysis.startlatency import start_latency_ns
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.schema import Bools, Int64s, name_categories

# --- States of a process's launching threads over time ---
#
# A thread is inside at most one outermost CUDA call at a time; the call gives the state: a synchronization, an
# allocation, a blocking copy, or issuing work. A copy of a few bytes that blocks the host is a synchronization
# (`.item()`): the time is spent waiting for the work before it. A thread that polls an event is waiting, too. While the
# thread is outside CUDA, the calls of the process's other launching threads count: autograd's thread does not launch
# while the main one waits in a synchronization. A pause without any call is the ordinary cost of issuing work if it is
# short, and the host doing something else if it is long.


#: A pause between two CUDA calls counts as the host doing something else when it is this many times the usual pause
#: between launches, and at least the lower bound: eager PyTorch issues work every 3–20 µs, and its slowest operators
#: (views, dispatch through Python) stay within a few tens of µs. Beyond the upper bound a pause is never a cost of
#: issuing, however slow the host is otherwise.
_STALL_FACTOR = 10
STALL_MIN_NS = 100_000
STALL_MAX_NS = 1_000_000

#: Causes that a call's own name (or the copy it issues) reveals.
HOLDING_CAUSES = ("synchronization", "allocation", "blocking-copy")
#: Their positions from 1, as in `HostCalls.cause` and in a schedule; 0 is a call that issues work.
SYNCHRONIZATION, ALLOCATION, BLOCKING_COPY = 1, 2, 3

#: A copy up to this size costs the host less than the wait that comes with it: 64 KiB take 3–7 µs over PCIe, and up to
#: this size a copy from pageable memory to the device does not hold the host at all (CUDA Runtime API, "API
#: synchronization behavior").
SMALL_COPY_BYTES = 65_536

#: This many queries of an event or a stream in a row, with no other call between them, are a wait. PyTorch's allocators
#: query each outstanding event once, a few in a row at most.
_POLLS_PER_WAIT = 8


@dataclass(frozen=True, eq=False)
class HostCalls:
    """The CUDA calls of one process's launching threads."""

    row: Int64s  #: shape (n,), the rows of the calls in `Trace.api_calls`
    #: starts, ends, thread: each call's interval and thread; a polling wait is one interval
    starts: Int64s
    ends: Int64s
    thread: Int64s
    #: position from 1 in `HOLDING_CAUSES` of what blocks the thread in the call; 0 for calls that issue work
    cause: npt.NDArray[np.int8]
    issues: Bools  #: whether the call issued GPU work
    outermost: (
        LabelledIntervals  #: the calls of all threads as disjoint pieces, each owned by the call that began first
    )
    profiler: dict[int, Intervals]  #: per thread, when the profiler held it up

    @staticmethod
    @once
    def of(timeline: Timeline, process: int) -> HostCalls:
        """The calls of one process; threads that never launched GPU work are left out."""
        calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "name")
        categories = name_categories(calls["name"])
        code = calls["name"].to_physical().to_numpy()
        work = timeline.work.select("process", "thread", "api_row")
        if not all_equal(work["process"], process):
            work = work.filter(pl.col("process") == process)
        launching = work["thread"].drop_nulls().unique()
        of_launching = ((calls["process"] == process) & calls["thread"].is_in(launching.implode())).to_numpy()
        cause = np.array([_cause_of_name(name) for name in categories], dtype=np.int8)[code]
        copying, copy_cause = _copy_calls(timeline, process, cause)
        cause[copying] = copy_cause
        polls = np.array([polls_device(name) for name in categories], dtype=np.bool_)[code]
        starts, ends, threads = (calls[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
        if not of_launching.all():
            starts, ends, threads = starts[of_launching], ends[of_launching], threads[of_launching]
            cause, polls = cause[of_launching], polls[of_launching]
        if np.count_nonzero(polls) >= _POLLS_PER_WAIT:
            ends, cause = _polling_as_waits(starts, ends, threads, cause, polls)
        rows = np.flatnonzero(of_launching)
        profiler = {thread: _profiler(timeline, process, thread) for thread in launching.to_list()}
        issues = np.zeros(len(calls), dtype=np.bool_)
        issues[work["api_row"].drop_nulls().to_numpy()] = True
        issues = issues if of_launching.all() else issues[rows]
        return HostCalls(rows, starts, ends, threads, cause, issues, owned_union(starts, ends), profiler)

    def states(self, thread: int) -> dict[str, Intervals]:
        """The times in which this thread was blocked, as disjoint intervals per cause (`timebudget.IDLE_CAUSES`).

        Time outside all intervals is the ordinary cost of issuing work: a launching call, or a short pause between
        calls.
        """
        thread_rows = np.flatnonzero(self.thread == thread)
        if len(thread_rows) == len(self.starts):
            own_pieces = self.outermost
        else:
            own_pieces = owned_union(self.starts[thread_rows], self.ends[thread_rows])
            own_pieces = LabelledIntervals(own_pieces.starts, own_pieces.ends, thread_rows[own_pieces.owner])
        pieces = [self._holding_part(own_pieces)]
        if len(thread_rows) < len(self.starts):
            pieces.append(subtract(self._holding_part(self.outermost), Intervals(own_pieces.starts, own_pieces.ends)))
        profiled = self.profiler.get(thread, Intervals.none())
        pieces = [subtract(piece, profiled) for piece in pieces]
        states = {"profiler": profiled, "host": self.stalls(thread)}
        for position, cause in enumerate(HOLDING_CAUSES, start=1):
            with_cause = [(piece, self.cause[piece.owner] == position) for piece in pieces]
            starts = np.concatenate([piece.starts[mask] for piece, mask in with_cause])
            ends = np.concatenate([piece.ends[mask] for piece, mask in with_cause])
            states[cause] = union(Intervals(starts, ends))
        return states

    def _holding_part(self, pieces: LabelledIntervals) -> LabelledIntervals:
        holding = np.flatnonzero(self.cause[pieces.owner])
        return LabelledIntervals(pieces.starts[holding], pieces.ends[holding], pieces.owner[holding])

    def stalls(self, thread: int) -> Intervals:
        """Pauses of all threads that are far longer than this thread's usual time outside of calls per launch.

        Queries of a stream or an event come several to a launch and say nothing about its pace; nor does a launch after
        a call that blocked the host. If no other launch is left, all calls are used.
        """
        is_own = self.thread == thread
        rows: Int64s | slice = slice(None) if is_own.all() else np.flatnonzero(is_own)
        starts, ends, cause, issues = self.starts[rows], self.ends[rows], self.cause[rows], self.issues[rows]
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            starts, ends, cause, issues = starts[order], ends[order], cause[order], issues[order]
        # From one call that issues work to the next, less what was spent inside of calls.
        issuing = np.flatnonzero(issues & (cause == 0))
        outside = running_sum(ends - starts)[:-1]
        np.subtract(starts, outside, out=outside)
        pauses = np.diff(outside[issuing])
        if len(pauses):
            blocking_calls = np.flatnonzero(cause)
            unblocked = np.ones(len(pauses) + 2, dtype=np.bool_)
            unblocked[np.searchsorted(issuing, blocking_calls)] = False  # a pause after a call that blocked the host
            pauses = pauses[unblocked[1:-1]]
        if not len(pauses):
            pauses = starts[1:] - ends[:-1]
        usual = number(pl.Series(pauses).median()) or 0.0  # in a quarter of the time that NumPy takes
        starts, ends = self.outermost.ends[:-1], self.outermost.starts[1:]
        is_stall = ends - starts >= min(max(STALL_MIN_NS, _STALL_FACTOR * usual), STALL_MAX_NS)
        # Before the first and after the last call the host does something else by definition.
        far = np.iinfo(np.int64).max // 4
        starts = np.r_[np.int64(-far), starts[is_stall], self.outermost.ends[-1:]]
        ends = np.r_[self.outermost.starts[:1], ends[is_stall], np.int64(far)]
        profiled = self.profiler.get(thread, Intervals.none())
        stalls = subtract(LabelledIntervals(starts, ends, np.arange(len(starts))), profiled)
        return Intervals(stalls.starts, stalls.ends)


def _cause_of_name(name: str) -> int:
    """Cause that blocks the host in an API function, as a position from 1 in `HOLDING_CAUSES`; 0 for issuing work."""
    kind = api_kind(name)
    if kind == "copy":
        return BLOCKING_COPY if blocks_host(name) else 0
    return {"sync": SYNCHRONIZATION, "allocation": ALLOCATION}.get(kind, 0)


def _copy_calls(timeline: Timeline, process: int, by_name: npt.NDArray[np.int8]) -> tuple[Int64s, npt.NDArray[np.int8]]:
    """API rows of the recorded copies that block the host, and the cause of each.

    An asynchronous call blocks the host as well where the memory is pageable. A small copy to the device does not: it
    is staged at once. Any other small copy that blocks the host is a wait for the work before it.
    """
    copies = timeline.trace.copies
    work = timeline.work.filter(
        (pl.col("kind") == "copy") & (pl.col("process") == process) & pl.col("api_row").is_not_null()
    )
    copy_flags = copies.select(
        (pl.col("bytes") <= SMALL_COPY_BYTES).alias("small"),
        (pl.col("source_memory") == "pageable").fill_null(value=False).alias("from_pageable"),
        (pl.col("destination_memory") == "pageable").fill_null(value=False).alias("to_pageable"),
    )[work["row"]]
    small, from_pageable, to_pageable = (column.to_numpy() for column in copy_flags.get_columns())
    rows = work["api_row"].to_numpy()
    blocks = (by_name[rows] == BLOCKING_COPY) | from_pageable | to_pageable
    staged = (by_name[rows] == 0) & ~to_pageable
    cause = np.where(small, np.where(staged, 0, SYNCHRONIZATION), BLOCKING_COPY)
    return rows[blocks], cause[blocks].astype(np.int8)


def _polling_as_waits(
    starts: Int64s, ends: Int64s, thread: Int64s, cause: npt.NDArray[np.int8], polls: Bools
) -> tuple[Int64s, npt.NDArray[np.int8]]:
    """The calls' ends and causes with each long run of queries as one wait, including the pauses inside it."""
    order = np.lexsort((starts, thread))
    is_poll, thread_of = polls[order], thread[order]
    follows = np.r_[False, is_poll[1:] & is_poll[:-1] & (thread_of[1:] == thread_of[:-1])]
    run = np.cumsum(~follows) - 1
    in_wait = is_poll & (np.bincount(run)[run] >= _POLLS_PER_WAIT)
    ends, cause = ends.copy(), cause.copy()
    cause[order[in_wait]] = SYNCHRONIZATION
    before_next = np.flatnonzero(in_wait[:-1] & follows[1:])
    ends[order[before_next]] = np.maximum(ends[order[before_next]], starts[order[before_next + 1]])
    return ends, cause


def _profiler(timeline: Timeline, process: int, thread: int) -> Intervals:
    overhead = timeline.trace.profiler_overhead.filter((pl.col("process") == process) & (pl.col("thread") == thread))
    return union(Intervals(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy()))


#: Parts of the launching threads' time, in the order of presentation.
THREAD_PARTS: Final = (
    "launching",  # inside calls that issue work
    "queue-full",  # inside long ones of these while a GPU works: they wait for a free place in the launch queue
    *HOLDING_CAUSES,  # inside calls that block the thread that began its call first
    "other-cuda",  # inside other calls
    "profiler",  # blocked by the profiler
    "outside",  # short pauses between calls: the framework, the program
    "stalled",  # long ones
    "finished",  # after the last call of all: everything was issued
)

#: A launching call takes 2–10 µs. A longer call than this waits for a free place in the launch queue, which holds about
#: a thousand launches: the host is ahead of the GPU and waits.
QUEUE_FULL_NS: Final = 100_000

#: A pattern of launches within a step is a layer if it repeats at least this often …
_LEAST_LAYERS: Final = 3
#: … and together makes up this share of the step's launches.
_LEAST_LAYER_SHARE: Final = 0.25
#: Number of distances tried as the length of a layer; each costs one pass over a step.
_MAX_PERIODS: Final = 16


@dataclass(frozen=True)
class LayerPace:
    """A sequence of launches that repeats within a step, such as the layers of a model."""

    layers: int  #: number of uninterrupted repetitions in the step that was examined
    launches: int  #: kernels of one repetition
    host_ns: int  #: median time from the first launch of a layer to that of the next
    gpu_ns: int  #: median time of a layer's kernels on the GPU, summed


@dataclass(frozen=True)
class HostPace:
    """Activity of the busiest launching thread in a window, and how many others launch beside it."""

    process: int
    thread: int
    launches: int  #: its calls that issued work in the window
    per_second: float  #: `launches` over the window's length
    #: quartiles of the time from one launching call to the next, less the time in which the thread was blocked in
    #: between; None with fewer than two launches
    host_ns_per_launch: tuple[float, float, float] | None
    #: the window's length split into `THREAD_PARTS` of all launching threads of the process; the parts sum to it
    thread_ns: dict[str, int]
    queue_mean: float  #: mean number of pieces of work launched but not started, over time
    queue_max: int  #: maximum of that number
    queue_empty_share: float  #: share of the window in which it was 0
    lead_median_ns: float  #: median time from the return of a launching call to the begin of its work
    #: share of the work that started less than `PROMPT_START_NS` (or `start_latency_ns`) after its call returned: the
    #: GPU was waiting for it, the host was behind
    behind_share: float
    layer: LayerPace | None  #: the repeating part of a step; None where nothing repeats
    threads: int  #: threads of the process that launched work of the window, this one included
    all_launches: int  #: calls of all of them that issued work in the window
    all_per_second: float  #: `all_launches` over the window's length
    all_behind_share: float  #: `behind_share` of the work of all of them

    @property
    def is_ahead(self) -> bool:
        """Whether most work, of all threads, found the GPU busy: then the host does not limit it."""
        return self.all_behind_share < 0.5


#: Columns of `Timeline.work` that are needed.
_WORK_COLUMNS: Final = (
    *("kind", "row", "start_ns", "end_ns", "process"),
    *("thread", "api_row", "launch_start_ns", "launch_end_ns"),
)


def host_pace(timeline: Timeline, window: Window) -> HostPace | None:
    """The pace of the thread that launched the most work of the window; None where no launching call was recorded."""
    work = timeline.work_in(window).select(_WORK_COLUMNS)
    work = (
        work.drop_nulls(["api_row", "thread"]) if work["thread"].null_count() or work["api_row"].null_count() else work
    )
    if not work.height or window.duration_ns <= 0:
        return None
    threads = work.group_by("process", "thread").agg(pl.len().alias("launches"))
    order = ["launches", "process", "thread"]
    process, thread = threads.sort(order, descending=[True, False, False]).row(0)[:2]
    if threads.height > 1:
        work = work.filter(pl.col("process") == process)
    of_all = work.select("api_row", lead=pl.col("start_ns") - pl.col("launch_end_ns"))
    if threads.height > 1:
        work = work.filter(pl.col("thread") == thread)
    host = HostCalls.of(timeline, process)
    states = host.states(thread)
    calls = timeline.trace.api_calls.select("start_ns", "end_ns")
    issuing = _calls_of(calls, of_all["api_row"])
    own = issuing if threads.height == 1 else _calls_of(calls, work["api_row"])
    begins = own["start_ns"].sort().to_numpy()
    begins_in_window = begins[(begins >= window.start_ns) & (begins < window.end_ns)]
    threads_of_process = threads.filter(pl.col("process") == process).height
    all_launches = int(issuing["start_ns"].is_between(window.start_ns, window.end_ns, closed="left").sum())
    mean, most, empty = _queue_statistics(work, window)
    lead = (work["start_ns"] - work["launch_end_ns"]).to_numpy()
    prompt_ns = max(PROMPT_START_NS, start_latency_ns(timeline))
    return HostPace(
        process=process,
        thread=thread,
        launches=len(begins_in_window),
        per_second=len(begins_in_window) / window.duration_ns * 1e9,
        host_ns_per_launch=_cost_per_launch(begins, states),
        thread_ns=_thread_parts(host, states, issuing, window, timeline),
        queue_mean=mean,
        queue_max=most,
        queue_empty_share=empty,
        lead_median_ns=float(np.median(lead)),
        behind_share=float(np.mean(lead < prompt_ns)),
        layer=_layer(timeline, work, window),
        threads=threads_of_process,
        all_launches=all_launches,
        all_per_second=all_launches / window.duration_ns * 1e9,
        all_behind_share=float(np.mean(of_all["lead"].to_numpy() < prompt_ns)),
    )


def _calls_of(calls: pl.DataFrame, rows: pl.Series) -> pl.DataFrame:
    """These rows of the calls, each once."""
    issues = np.zeros(calls.height, dtype=np.bool_)
    issues[rows.to_numpy()] = True
    return select_rows(calls, issues)


def _cost_per_launch(begins: Int64s, states: dict[str, Intervals]) -> tuple[float, float, float] | None:
    if len(begins) < 2:
        return None
    blocked = union(*states.values())
    low, middle, high = np.percentile(np.diff(begins) - np.diff(measure_before(blocked, begins)), [25, 50, 75])
    return float(low), float(middle), float(high)


def _thread_parts(
    host: HostCalls, states: dict[str, Intervals], issuing: pl.DataFrame, window: Window, timeline: Timeline
) -> dict[str, int]:
    """The window's time of the launching threads by part; the first part that applies decides.

    `states` are those of the thread that launches the most.
    """
    profiled = states["profiler"]
    calls = subtract(host.outermost, profiled)
    cause = host.cause[calls.owner]
    launches = subtract(owned_union(issuing["start_ns"].to_numpy(), issuing["end_ns"].to_numpy()), profiled)
    parts = {name: _time_inside(calls, cause == number, window) for number, name in enumerate(HOLDING_CAUSES, start=1)}
    between = LabelledIntervals(calls.starts[cause == 0], calls.ends[cause == 0], calls.owner[cause == 0])
    other_ns = total(clip(_intervals(subtract(between, _intervals(launches))), window.start_ns, window.end_ns))
    long = (issuing["end_ns"] - issuing["start_ns"] > QUEUE_FULL_NS).to_numpy()[launches.owner]
    waits = intersection(_intervals(between), Intervals(launches.starts[long], launches.ends[long]))
    parts["other-cuda"] = other_ns
    parts["queue-full"] = _working_ns(timeline, clip(waits, window.start_ns, window.end_ns))
    parts["launching"] = _time_inside(calls, cause == 0, window) - other_ns - parts["queue-full"]
    parts["profiler"] = total(clip(profiled, window.start_ns, window.end_ns))
    covered = union(Intervals(np.r_[calls.starts, profiled.starts], np.r_[calls.ends, profiled.ends]))
    stalls = states["host"]
    alone = subtract(LabelledIntervals(stalls.starts, stalls.ends, np.arange(len(stalls.starts))), covered)
    last_ns = max(int(covered.ends.max(initial=window.start_ns)), window.start_ns)
    parts["stalled"] = total(clip(_intervals(alone), window.start_ns, min(last_ns, window.end_ns)))
    parts["finished"] = total(clip(_intervals(alone), last_ns, max(last_ns, window.end_ns)))
    parts["outside"] = window.duration_ns - sum(parts.values())
    return {name: parts[name] for name in THREAD_PARTS}


def _working_ns(timeline: Timeline, intervals: Intervals) -> int:
    """Time of these intervals in which a GPU worked."""
    if not len(intervals.starts):
        return 0
    return total(intersection(intervals, union(*map(timeline.busy, timeline.work["device"].unique().sort()))))


def _time_inside(pieces: LabelledIntervals, mask: Bools, window: Window) -> int:
    return total(clip(Intervals(pieces.starts[mask], pieces.ends[mask]), window.start_ns, window.end_ns))


def _intervals(pieces: LabelledIntervals) -> Intervals:
    return Intervals(pieces.starts, pieces.ends)


def queue_levels(work: pl.DataFrame) -> tuple[Int64s, Int64s]:
    """The times at which the number of launched but not started pieces of work changed, and the number from then on.

    Args:
        work: `launch_end_ns`, none of them null, and `start_ns`. What starts while its call still runs never waits.
    """
    begins = work["start_ns"].to_numpy()
    edges = np.concatenate((np.minimum(work["launch_end_ns"].to_numpy(), begins), begins))
    changes = np.repeat(np.array([1, -1], dtype=np.int64), work.height)
    order = np.lexsort((-changes, edges))
    return edges[order], np.cumsum(changes[order])


def _queue_statistics(work: pl.DataFrame, window: Window) -> tuple[float, int, float]:
    """Mean and largest number of pieces of work launched but not started, and the share of time with none."""
    edges, depth = queue_levels(work)
    times = np.clip(edges, window.start_ns, window.end_ns)
    length = np.diff(np.r_[times, window.end_ns])
    before_first_ns = int(times[0]) - window.start_ns
    empty_ns = int(length[depth == 0].sum()) + before_first_ns
    work_ns = int((depth * length).sum())
    return work_ns / window.duration_ns, int(depth[length > 0].max(initial=0)), empty_ns / window.duration_ns


def _layer(timeline: Timeline, work: pl.DataFrame, window: Window) -> LayerPace | None:
    """The repeating launches of the step in the middle of the window (of the whole window without steps)."""
    if window.steps:
        step = window.steps[len(window.steps) // 2]
        work = work.filter((pl.col("start_ns") >= step.start_ns) & (pl.col("start_ns") < step.end_ns))
    work = work.filter(pl.col("kind") == "kernel").sort("launch_start_ns", "start_ns")
    codes = timeline.trace.kernels["full_name"].to_physical().gather(work["row"]).to_numpy()
    period, begin, stop = _repetition(codes)
    layers = (stop - begin) // period if period else 0
    if layers < _LEAST_LAYERS or layers * period < _LEAST_LAYER_SHARE * len(codes):
        return None
    rows = slice(begin, begin + layers * period)
    launched = work["launch_start_ns"].to_numpy()[rows][::period]
    layer_ns = (work["end_ns"] - work["start_ns"]).to_numpy()[rows].reshape(layers, period).sum(axis=1)
    return LayerPace(layers, period, int(np.median(np.diff(launched))), int(np.median(layer_ns)))


def _repetition(codes: npt.NDArray[np.generic]) -> tuple[int, int, int]:
    """Period, begin and stop of the longest stretch that repeats itself; (0, 0, 0) for none.

    Where several periods explain stretches of the same length, the shortest is the layer.
    """
    order = np.argsort(codes, kind="stable")
    distances = np.diff(order)[codes[order][1:] == codes[order][:-1]]
    lengths, counts = np.unique(distances, return_counts=True)
    periods = np.sort(lengths[np.argsort(-counts, kind="stable")[:_MAX_PERIODS]]).tolist()
    best = (0, 0, 0)
    for period in periods:
        repeats = np.r_[False, codes[period:] == codes[:-period], False]
        turns = np.flatnonzero(np.diff(repeats))
        begins, stops = turns[::2], turns[1::2]
        if not len(begins):
            continue
        longest = int(np.argmax(stops - begins))
        begin, stop = int(begins[longest]), int(stops[longest]) + period
        # Fewer than three kernels are a loop inside a layer, not the layer.
        if period >= _LEAST_LAYERS and stop - begin >= _LEAST_LAYERS * period and stop - begin > best[2] - best[1]:
            best = (period, begin, stop)
    return best
