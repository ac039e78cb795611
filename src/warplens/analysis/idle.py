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

from warplens.analysis.apikinds import api_kind, blocks_host
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
#: (views, dispatch through Python) stay within a few tens of µs. Beyond the upper bound it is no cost of issuing at all,
#: however slow the host is otherwise.
_STALL_FACTOR = 10
_STALL_MIN_NS = 100_000
_STALL_MAX_NS = 1_000_000

#: Queued work that has not started after this time is waiting for something: an idle GPU starts a kernel 2–8 µs after
#: its launch call returns, and back-to-back kernels of one stream are 1–2 µs apart.
_START_LATENCY_NS = 10_000

#: Causes that a call's own name (or the copy it issues) reveals.
_HOLDING_CAUSES = ("synchronization", "allocation", "blocking-copy")


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
    work = timeline.work_on(device)
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

    # What happened before the launching call began, where that was after the gap did, is seen in the host's own calls.
    late = np.flatnonzero(issued > begins)
    process, thread = calls["process"].to_numpy()[call[late]], calls["thread"].to_numpy()[call[late]]
    for pid, tid in pl.DataFrame({"process": process, "thread": thread}).unique().sort("process", "thread").rows():
        mine = late[(process == pid) & (thread == tid)]
        unexplained = issued[mine] - begins[mine]
        for cause, intervals in _host_states(timeline, pid, tid).items():
            spent = measure_before(intervals, issued[mine]) - measure_before(intervals, begins[mine])
            parts[cause][row[mine]] += spent
            unexplained -= spent
        parts["launch"][row[mine]] += unexplained  # issuing other work, or outside of CUDA but not for long
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


def _host_states(timeline: Timeline, process: int, thread: int) -> dict[str, Intervals]:
    """When a launching thread was held up, as disjoint intervals per cause.

    Where the thread itself is outside of CUDA, the calls of the process's other launching threads count. What no
    interval covers is the ordinary cost of issuing work: a launching call, or a short pause between two calls.
    """
    calls, cause = _launching_calls(timeline, process)
    starts, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    own = np.flatnonzero((calls["thread"] == thread).to_numpy())
    held = _profiler(timeline, process, thread)
    mine = owned_union(starts[own], ends[own])
    mine = Owned(mine.starts, mine.ends, own[mine.owner])
    pieces = [_holding(mine, cause)]
    if len(own) < len(starts):
        others = _holding(owned_union(starts, ends), cause)
        pieces.append(subtract(others, Intervals(mine.starts, mine.ends)))
    pieces = [subtract(piece, held) for piece in pieces]
    states = {"profiler": held}
    for number, name in enumerate(_HOLDING_CAUSES, start=1):
        chosen = [(piece, cause[piece.owner] == number) for piece in pieces]
        states[name] = union(
            Intervals(
                np.concatenate([piece.starts[mask] for piece, mask in chosen]),
                np.concatenate([piece.ends[mask] for piece, mask in chosen]),
            )
        )
    states["host"] = _stalls(union(Intervals(starts, ends)), starts[own], held)
    return states


def _holding(pieces: Owned, cause: Int64s) -> Owned:
    """The pieces whose call holds the host up, other than by launching."""
    kept = cause[pieces.owner] > 0
    return Owned(pieces.starts[kept], pieces.ends[kept], pieces.owner[kept])


def _launching_calls(timeline: Timeline, process: int) -> tuple[pl.DataFrame, Int64s]:
    """The calls of the process's launching threads, and for each the position of its cause from 1, 0 for launching."""
    calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "name")
    launching = timeline.work.filter(pl.col("process") == process)["thread"].drop_nulls().unique()
    selected = ((calls["process"] == process) & calls["thread"].is_in(launching.implode())).to_numpy()
    if not selected.all():
        calls = calls.filter(pl.Series(selected))
    number = {name: position for position, name in enumerate(_HOLDING_CAUSES, start=1)}
    codes = [number.get(_holding_cause(name), 0) for name in name_categories(calls["name"])]
    cause = np.array(codes, dtype=np.int64)[calls["name"].to_physical().to_numpy()]
    pageable = np.zeros(timeline.trace.api_calls.height, dtype=np.bool_)
    pageable[_pageable_copy_calls(timeline, process)] = True
    cause[pageable[selected] & (cause == 0)] = number["blocking-copy"]
    return calls, cause


def _holding_cause(name: str) -> str:
    """The cause that an API function's name stands for while the host is inside of it; empty for launching."""
    kind = api_kind(name)
    if kind == "copy":
        return "blocking-copy" if blocks_host(name) else ""
    return {"sync": "synchronization", "allocation": "allocation"}.get(kind, "")


def _pageable_copy_calls(timeline: Timeline, process: int) -> Int64s:
    """API rows of the copies from or to pageable memory: even the asynchronous call holds the host."""
    copies = timeline.trace.copies
    pageable = (copies["source_memory"] == "pageable").fill_null(value=False) | (
        copies["destination_memory"] == "pageable"
    ).fill_null(value=False)
    work = timeline.work.filter((pl.col("kind") == "copy") & (pl.col("process") == process))
    return work.filter(pageable.gather(work["row"]))["api_row"].drop_nulls().to_numpy()


def _profiler(timeline: Timeline, process: int, thread: int) -> Intervals:
    overhead = timeline.trace.profiler_overhead.filter((pl.col("process") == process) & (pl.col("thread") == thread))
    return union(Intervals(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy()))


def _stalls(in_cuda: Intervals, own_starts: Int64s, held: Intervals) -> Intervals:
    """Pauses without any CUDA call that are far longer than the usual one between calls of this thread."""
    usual = float(np.median(np.diff(own_starts))) if len(own_starts) > 1 else 0.0
    starts, ends = in_cuda.ends[:-1], in_cuda.starts[1:]
    long = ends - starts >= min(max(_STALL_MIN_NS, _STALL_FACTOR * usual), _STALL_MAX_NS)
    # Before the first and after the last call the host does something else by definition.
    far = np.iinfo(np.int64).max // 4
    starts = np.r_[np.int64(-far), starts[long], in_cuda.ends[-1:]]
    ends = np.r_[in_cuda.starts[:1], ends[long], np.int64(far)]
    stalls = subtract(Owned(starts, ends, np.arange(len(starts))), held)
    return Intervals(stalls.starts, stalls.ends)
