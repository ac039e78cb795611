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

All parts are exact integers and sum to the gap. Causes at this level are descriptions of the time, not yet a diagnosis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.hostcalls import HostCalls
from warplens.analysis.intervals import Intervals, measure_before, union

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["IDLE_CAUSES", "IdleGaps", "idle_gaps"]

Int64s = npt.NDArray[np.int64]

#: Cause → what it means, in the order of presentation.
IDLE_CAUSES = {
    "launch": "the host had not issued the next work yet (the cost of issuing it)",
    "synchronization": "the host was waiting for the GPU in a synchronisation call, and so could not issue more work",
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
    if ended_by[-1] == work.height:  # gaps are in order of time: only the last one can lie behind all work
        issued[-1] = returned[-1] = ends[-1]
    queued = ends - returned
    long = np.flatnonzero(queued > _START_LATENCY_NS)
    depends = _may_depend(timeline, device, position[long], begins[long], ends[long])
    parts.add("dependency", numbers[long[depends]], queued[long[depends]])
    parts.add("submission", numbers[long[~depends]], queued[long[~depends]])
    queued[long] = 0
    parts.add("start-latency", numbers, queued)
    # Issuing other work, or outside of CUDA but not for long, unless the host's own calls tell otherwise.
    parts.add("launch", numbers, returned - begins)

    late = np.flatnonzero(issued > begins)
    begins, issued, numbers = begins[late], issued[late], numbers[late]
    process, thread = calls["process"].to_numpy()[call[late]], calls["thread"].to_numpy()[call[late]]
    for pid in pl.Series(process).unique().sort().to_list():
        host = HostCalls.of(timeline, pid)
        for tid in pl.Series(thread[process == pid]).unique().sort().to_list():
            mine = np.flatnonzero((process == pid) & (thread == tid))
            for cause, intervals in host.states(tid).items():
                held = mine[_touches(intervals, begins[mine], issued[mine])]
                spent = measure_before(intervals, issued[held]) - measure_before(intervals, begins[held])
                parts.add(cause, numbers[held], spent)
                parts.add("launch", numbers[held], -spent)
    return IdleGaps(gaps, parts.columns)


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
