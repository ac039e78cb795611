"""Why the GPU was idle: each gap split by what the host was doing while the next work was not yet there.

The work that ends a gap tells which thread had to issue it and when. That splits the gap in two:

* *before the launching call began*, the host had not issued the work. What its thread was inside of at each instant
  names the cause: a synchronisation, an allocation, a blocking copy, the profiler, another CUDA call. Outside of CUDA
  calls, a short pause between two calls is the ordinary cost of issuing work (`launch`), a long one is the host doing
  something else (`host`). Where the launching thread is outside of CUDA, the other launching threads of the process are
  asked;
* *after it began*: the rest of the call is still `launch`. From its return on, the work was queued: a short wait is the
  device's `start-latency`; a long one is a `dependency` where the work before it ran on another stream or other devices
  were at work meanwhile, and otherwise `submission` (batched submission under Windows, another program on the GPU).

Where the GPU ran dry while the host waited in a synchronisation, the time from that call's return until the next work
begins is `refill`: what a drained pipeline pays. Only as much counts as the host lost by waiting: without the wait it
would have been at the same place earlier by the time that it waited for a busy GPU. What the next work would have come
late by anyhow stays `launch`. Where a CUDA graph is what the GPU waited for, issuing it is `graph-launch`.

All parts are exact integers and sum to the gap. Causes at this level are descriptions of the time, not yet a diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.apikinds import api_kinds
from warplens.analysis.hostcalls import HostCalls
from warplens.analysis.intervals import Intervals, measure_before, union

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["IDLE_CAUSES", "IdleGaps", "idle_gaps"]

Int64s = npt.NDArray[np.int64]

#: Cause → what it means, in the order of presentation.
IDLE_CAUSES = {
    "launch": "the host had not issued the next work yet (the cost of issuing it)",
    "graph-launch": "the host had not issued the next CUDA graph yet",
    "synchronization": "the host was waiting for the GPU in a synchronisation call, and so could not issue more work",
    "refill": "a synchronisation had let the GPU run dry, and the host was issuing the first work after it",
    "allocation": "the host was inside a memory allocation or release",
    "blocking-copy": "the host was inside a copy that blocks it (pageable memory, or a synchronous call)",
    "host": "the host was busy or asleep outside of CUDA for long (input pipeline, Python, garbage collection)",
    "dependency": "the work was queued, but waited for work of another stream or another device",
    "submission": "the work was queued, but the driver or another program kept it from the GPU",
    "start-latency": "the work was queued, and the GPU was about to start it",
    "profiler": "the profiler held the host up",
    "unknown": "the profile does not record who issued the next work",
}

#: Queued work that has not started after this time is waiting for something: an idle GPU starts a kernel 2–8 µs after
#: its launch call returns, and back-to-back kernels of one stream are 1–2 µs apart.
_START_LATENCY_NS = 10_000


@dataclass(frozen=True, eq=False)
class IdleGaps:
    """Idle intervals of one device and the causes of each.

    Attributes:
        gaps: the idle intervals, disjoint.
        parts: for each cause of `IDLE_CAUSES` the nanoseconds of each gap, shape (n,); they sum to the gaps' lengths.
    """

    gaps: Intervals
    parts: dict[str, Int64s]

    @cached_property
    def totals(self) -> dict[str, int]:
        """Nanoseconds of each cause over all gaps."""
        return {cause: int(values.sum()) for cause, values in self.parts.items()}

    def frame(self) -> pl.DataFrame:
        """One row a gap: `start_ns`, `end_ns`, `main_cause`, and a column `<cause>_ns` for each cause."""
        causes = list(self.parts)
        columns = [pl.Series("start_ns", self.gaps.starts), pl.Series("end_ns", self.gaps.ends)]
        matrix = np.stack([self.parts[cause] for cause in causes]) if causes else np.empty((0, 0), np.int64)
        main = pl.Series("main_cause", causes, dtype=pl.Enum(causes)).gather(matrix.argmax(axis=0).astype(np.int64))
        return pl.DataFrame([*columns, main, *(pl.Series(f"{cause}_ns", self.parts[cause]) for cause in causes)])


def idle_gaps(timeline: Timeline, device: int, gaps: Intervals) -> IdleGaps:
    """Splits each gap of one device by cause. `gaps` are disjoint intervals in which the device runs nothing."""
    work = timeline.work_on(device)
    ended_by = np.searchsorted(work["start_ns"].to_numpy(), gaps.ends, side="left")
    # After the last work nobody is known to have had to issue more; the last launching thread is watched instead.
    position = np.minimum(ended_by, max(work.height - 1, 0))
    call = work["api_row"].fill_null(-1).to_numpy()[position] if work.height else np.empty(0, np.int64)
    known = call >= 0
    parts = _IdleParts(len(gaps.starts))
    parts.add("unknown", np.flatnonzero(~known), (gaps.ends - gaps.starts)[~known])
    rows = slice(None) if known.all() else np.flatnonzero(known)
    begins, ends, call, position = gaps.starts[rows], gaps.ends[rows], call[rows], position[rows]
    numbers = np.arange(len(known))[rows]
    if not len(numbers):
        return IdleGaps(gaps, parts.columns)

    calls = timeline.trace.api_calls
    issued = np.minimum(np.maximum(calls["start_ns"].to_numpy()[call], begins), ends)
    returned = np.minimum(np.maximum(calls["end_ns"].to_numpy()[call], issued), ends)
    behind_all = ended_by[-1] == work.height  # gaps are in order of time: only the last one can lie behind all work
    if behind_all:
        issued[-1] = returned[-1] = ends[-1]
    queued = ends - returned
    long = np.flatnonzero(queued > _START_LATENCY_NS)
    depends = _may_depend(timeline, device, position[long], begins[long], ends[long])
    parts.add("dependency", numbers[long[depends]], queued[long[depends]])
    parts.add("submission", numbers[long[~depends]], queued[long[~depends]])
    queued[long] = 0

    # Issuing other work, or outside of CUDA but not for long, unless the host's own calls tell otherwise.
    before = issued - begins
    refilling, lost = np.zeros_like(before), np.zeros_like(before)
    late = np.flatnonzero(before > 0)
    process, thread = calls["process"].to_numpy()[call[late]], calls["thread"].to_numpy()[call[late]]
    for pid in pl.Series(process).unique().sort().to_list():
        host = HostCalls.of(timeline, pid)
        for tid in pl.Series(thread[process == pid]).unique().sort().to_list():
            mine = late[(process == pid) & (thread == tid)]
            states = host.states(tid)
            since, lost[mine] = _drains(timeline, device, states["synchronization"], begins[mine], issued[mine])
            refilling[mine] = issued[mine] - since
            for cause, intervals in states.items():
                touched = np.flatnonzero(_touches(intervals, begins[mine], issued[mine]))
                rows, until = mine[touched], measure_before(intervals, issued[mine[touched]])
                spent = until - measure_before(intervals, begins[rows])
                parts.add(cause, numbers[rows], spent)
                before[rows] -= spent
                refilling[rows] -= until - measure_before(intervals, since[touched])
    if behind_all:
        lost[-1] = 0
    _add_issuing(parts, numbers, _is_graph_launch(calls, call), before, refilling, returned - issued, queued, lost)
    return IdleGaps(gaps, parts.columns)


def _add_issuing(
    parts: _IdleParts,
    numbers: Int64s,
    graph: npt.NDArray[np.bool_],
    before: Int64s,
    refilling: Int64s,
    inside: Int64s,
    queued: Int64s,
    lost: Int64s,
) -> None:
    """Adds the time that it took to issue the work and to start it, of which a drained pipeline claims its part.

    Args:
        parts: where to add.
        numbers: shape (n,), the gaps.
        graph: whether the work is a CUDA graph's.
        before: time before the launching call; `refilling` the part of it after the synchronisation's return.
        inside: time inside the launching call.
        queued: time from the call's return until the GPU began.
        lost: what the host lost by waiting in the synchronisation; 0 where none let the GPU run dry.
    """
    claimed_before = np.minimum(lost, refilling)
    # A graph's launching call says itself what it is.
    claimed_inside = np.where(graph, 0, np.minimum(lost - claimed_before, inside))
    claimed_queued = np.minimum(lost - claimed_before - claimed_inside, queued)
    parts.add("refill", numbers, claimed_before + claimed_inside + claimed_queued)
    parts.add("start-latency", numbers, queued - claimed_queued)
    issuing = before - claimed_before + inside - claimed_inside
    parts.add("launch", numbers[~graph], issuing[~graph])
    parts.add("graph-launch", numbers[graph], issuing[graph])


def _drains(timeline: Timeline, device: int, waits: Intervals, begins: Int64s, issued: Int64s) -> tuple[Int64s, Int64s]:
    """Which gaps began while the host waited in a synchronisation that returned before the next work was issued.

    Args:
        timeline: the profile.
        device: the gaps' device.
        waits: when the host was inside synchronisations, disjoint.
        begins, issued: shape (n,), the begin of each gap and of the call that issued the work that ends it.

    Returns:
        From when on the pipeline was refilled (`issued` where it had not been drained), and for how long the host had
        waited while the GPU still worked (0 where it had not been drained).
    """
    busy = timeline.busy(device)
    if not len(waits.starts) or not len(busy.starts):
        return issued, np.zeros_like(begins)
    # A gap at the window's edge began before it.
    worked = np.searchsorted(busy.starts, begins, side="right") - 1
    ran_dry = np.where(worked >= 0, np.minimum(busy.ends[worked], begins), begins)
    wait = np.searchsorted(waits.starts, ran_dry, side="right") - 1
    entered, returned = waits.starts[wait], waits.ends[wait]
    drained = (wait >= 0) & (worked >= 0) & (ran_dry < returned) & (returned <= issued)
    lost = measure_before(busy, ran_dry) - measure_before(busy, entered) - np.maximum(begins - returned, 0)
    lost = np.where(drained, np.maximum(lost, 0), 0)
    return np.where(lost > 0, np.maximum(returned, begins), issued), lost


def _is_graph_launch(calls: pl.DataFrame, rows: Int64s) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (api_kinds(calls["name"].gather(rows)) == "graph-launch").to_numpy()
    return found


class _IdleParts:
    """The nanoseconds of each gap by cause; a cause that no gap has takes no room until it is asked for."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._spent: dict[str, Int64s] = {}

    def add(self, cause: str, rows: Int64s, spent: Int64s) -> None:
        """Adds time to some gaps, each named at most once."""
        if len(rows):
            self._spent.setdefault(cause, np.zeros(self._count, dtype=np.int64))[rows] += spent

    @property
    def columns(self) -> dict[str, Int64s]:
        """For each cause of `IDLE_CAUSES` the nanoseconds of each gap."""
        nothing = np.zeros(self._count, dtype=np.int64)
        return {cause: self._spent.get(cause, nothing) for cause in IDLE_CAUSES}


def _touches(intervals: Intervals, begins: Int64s, ends: Int64s) -> npt.NDArray[np.bool_]:
    """Whether any of the disjoint intervals reaches into each `[begin, end)`."""
    touches: npt.NDArray[np.bool_] = np.searchsorted(intervals.starts, ends) > np.searchsorted(
        intervals.ends, begins, side="right"
    )
    return touches


def _may_depend(
    timeline: Timeline, device: int, ended_by: Int64s, begins: Int64s, ends: Int64s
) -> npt.NDArray[np.bool_]:
    """Whether the work that ends each gap can have waited for other work: of another stream, or of another device."""
    if not len(ended_by):
        return np.empty(0, dtype=np.bool_)
    work = timeline.work_on(device)
    stream = work["stream"].to_numpy()
    finish = work["end_ns"].to_numpy()
    latest = np.maximum.accumulate(finish)
    finishing = np.maximum.accumulate(np.where(finish >= latest, np.arange(len(finish)), 0))
    other_stream = (ended_by > 0) & (stream[finishing[np.maximum(ended_by - 1, 0)]] != stream[ended_by])
    elsewhere = timeline.work.filter(pl.col("device") != device)
    running = union(Intervals(elsewhere["start_ns"].to_numpy(), elsewhere["end_ns"].to_numpy()))
    others_ran = measure_before(running, ends) > measure_before(running, begins)
    depends: npt.NDArray[np.bool_] = other_stream | others_ran
    return depends
