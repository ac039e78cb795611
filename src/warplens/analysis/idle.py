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

from warplens.analysis.apikinds import api_kinds, blocks_host
from warplens.analysis.intervals import Intervals, Owned, measure_before, owned_union, subtract, union
from warplens.profile.schema import name_categories

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

#: A pause between two CUDA calls counts as the host doing something else when it is this many times the usual pause
#: between launches, and at least the given time: eager PyTorch issues work every 3–20 µs, and its slowest operators
#: (views, dispatch through Python) stay within a few tens of µs.
_STALL_FACTOR = 10
_STALL_MIN_NS = 100_000

#: Queued work that has not started after this time is waiting for something: an idle GPU starts a kernel 2–8 µs after
#: its launch call returns, and back-to-back kernels of one stream are 1–2 µs apart.
_START_LATENCY_NS = 10_000

_STATE_CAUSES = ("profiler", "synchronization", "allocation", "blocking-copy", "launch")


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
    parts = {cause: np.zeros(len(gaps.starts), dtype=np.int64) for cause in IDLE_CAUSES}
    work = timeline.work.filter(pl.col("device") == device)
    ended_by = np.searchsorted(work["start_ns"].to_numpy(), gaps.ends, side="left")
    has_next = ended_by < work.height
    # After the last work nobody is known to have had to issue more; the last launching thread is watched instead.
    position = np.minimum(ended_by, max(work.height - 1, 0))
    api_row = work["api_row"].fill_null(-1).to_numpy()[position] if work.height else np.empty(0, np.int64)
    known = api_row >= 0
    calls = timeline.trace.api_calls
    lengths = gaps.ends - gaps.starts
    parts["unknown"] = np.where(known, 0, lengths)
    if not known.any():
        return IdleGaps(gaps, parts)

    row = np.flatnonzero(known)
    begins, ends = gaps.starts[row], gaps.ends[row]
    call = api_row[row]
    issued = np.where(has_next[row], np.clip(calls["start_ns"].to_numpy()[call], begins, ends), ends)
    returned = np.where(has_next[row], np.clip(calls["end_ns"].to_numpy()[call], issued, ends), ends)
    parts["launch"][row] += returned - issued
    queued = ends - returned
    waited = queued > _START_LATENCY_NS
    depends = waited & _may_depend(timeline, work, device, position[row], begins, ends)
    parts["dependency"][row] += np.where(depends, queued, 0)
    parts["submission"][row] += np.where(waited & ~depends, queued, 0)
    parts["start-latency"][row] += np.where(waited, 0, queued)

    process, thread = calls["process"].to_numpy()[call], calls["thread"].to_numpy()[call]
    for pid, tid in sorted(set(zip(process.tolist(), thread.tolist(), strict=True))):
        mine = np.flatnonzero((process == pid) & (thread == tid))
        host = _HostStates(timeline, pid, tid)
        unexplained = issued[mine] - begins[mine]
        for cause, intervals in host.intervals().items():
            spent = measure_before(intervals, issued[mine]) - measure_before(intervals, begins[mine])
            parts[cause][row[mine]] += spent
            unexplained -= spent
        parts["launch"][row[mine]] += unexplained  # outside of CUDA, but not for long
    return IdleGaps(gaps, parts)


def _may_depend(
    timeline: Timeline, work: pl.DataFrame, device: int, ended_by: Int64s, begins: Int64s, ends: Int64s
) -> npt.NDArray[np.bool_]:
    """Whether the work that ends each gap can have waited for other work: of another stream, or of another device."""
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


class _HostStates:
    """What one launching thread of a process was doing, as disjoint intervals per cause."""

    def __init__(self, timeline: Timeline, process: int, thread: int) -> None:
        self._timeline = timeline
        self._process = process
        self._thread = thread

    def intervals(self) -> dict[str, Intervals]:
        """Disjoint intervals per cause; what none of them covers is a short pause between calls."""
        calls, cause = self._calls()
        own = (calls["thread"] == self._thread).to_numpy()
        starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        mine = owned_union(starts[own], ends[own])
        mine = Owned(mine.starts, mine.ends, np.flatnonzero(own)[mine.owner])
        held = self._profiler()
        others = subtract(owned_union(starts, ends), union(Intervals(mine.starts, mine.ends)))
        pieces = [subtract(mine, held), subtract(others, held)]
        result = {"profiler": held}
        for number, name in enumerate(_STATE_CAUSES):
            if name == "profiler":
                continue
            chosen = [piece for piece in pieces if len(piece.starts)]
            masks = [cause[piece.owner] == number for piece in chosen]
            result[name] = union(
                Intervals(
                    np.concatenate(
                        [p.starts[m] for p, m in zip(chosen, masks, strict=True)] or [np.empty(0, np.int64)]
                    ),
                    np.concatenate([p.ends[m] for p, m in zip(chosen, masks, strict=True)] or [np.empty(0, np.int64)]),
                )
            )
        result["host"] = self._stalls(union(Intervals(starts, ends)), starts[own], held)
        return result

    def _calls(self) -> tuple[pl.DataFrame, Int64s]:
        """The calls of the process's launching threads, and the number of the cause that each stands for."""
        trace = self._timeline.trace
        launching = self._timeline.work.filter(pl.col("process") == self._process)["thread"].drop_nulls().unique()
        calls = (
            trace.api_calls.with_row_index("api_row")
            .filter((pl.col("process") == self._process) & pl.col("thread").is_in(launching.implode()))
            .select("api_row", "start_ns", "end_ns", "thread", "name")
        )
        kind = api_kinds(calls["name"])
        categories = name_categories(calls["name"])
        blocking = pl.Series([blocks_host(name) for name in categories], dtype=pl.Boolean).gather(
            calls["name"].to_physical()
        )
        pageable = calls["api_row"].cast(pl.Int64).is_in(self._pageable_copies().implode())
        number = {name: position for position, name in enumerate(_STATE_CAUSES)}
        cause = np.full(calls.height, number["launch"], dtype=np.int64)
        cause[(kind == "sync").to_numpy()] = number["synchronization"]
        cause[(kind == "allocation").to_numpy()] = number["allocation"]
        cause[((kind == "copy") & (blocking | pageable)).to_numpy()] = number["blocking-copy"]
        return calls, cause

    def _pageable_copies(self) -> pl.Series:
        """API rows of the copies from or to pageable memory: even the asynchronous call holds the host."""
        copies = self._timeline.trace.copies
        work = self._timeline.work.filter((pl.col("kind") == "copy") & (pl.col("process") == self._process))
        pageable = (copies["source_memory"] == "pageable").fill_null(value=False) | (
            copies["destination_memory"] == "pageable"
        ).fill_null(value=False)
        return work.filter(pageable.gather(work["row"]))["api_row"].drop_nulls()

    def _profiler(self) -> Intervals:
        overhead = self._timeline.trace.profiler_overhead.filter(
            (pl.col("process") == self._process) & (pl.col("thread") == self._thread)
        )
        return union(Intervals(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy()))

    def _stalls(self, in_cuda: Intervals, own_starts: Int64s, held: Intervals) -> Intervals:
        """Pauses without any CUDA call that are far longer than the usual one between calls of this thread."""
        pauses = Intervals(in_cuda.ends[:-1], in_cuda.starts[1:])
        usual = float(np.median(np.diff(own_starts))) if len(own_starts) > 1 else 0.0
        # Before the first and after the last call the host does something else by definition.
        lowest, highest = np.iinfo(np.int64).min // 4, np.iinfo(np.int64).max // 4
        long = pauses.ends - pauses.starts >= max(_STALL_MIN_NS, _STALL_FACTOR * usual)
        starts, ends = pauses.starts[long], pauses.ends[long]
        if len(in_cuda.starts):
            starts = np.r_[np.int64(lowest), starts, in_cuda.ends[-1]]
            ends = np.r_[in_cuda.starts[0], ends, np.int64(highest)]
        stalls = subtract(Owned(starts, ends, np.arange(len(starts))), held)
        return Intervals(stalls.starts, stalls.ends)
