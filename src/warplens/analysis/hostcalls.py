"""What the launching threads of a process were held up by, instant by instant.

A thread is inside of at most one outermost CUDA call at a time; that call says what holds it: a synchronisation, an
allocation, a blocking copy, or nothing but the issuing of work. A copy of a few bytes that holds the host is a
synchronisation (`.item()`): what takes the time is waiting for the work before it. A thread that asks again and again
whether an event has come is waiting, too. While the thread is outside of CUDA, the calls of the process's other
launching threads count: autograd's thread does not launch while the main one waits in a synchronisation. A pause
without any call is the ordinary cost of issuing work if it is short, and the host doing something else if it is long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.apikinds import api_kind, blocks_host, polls_device
from warplens.analysis.intervals import Intervals, Owned, owned_union, subtract, union
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["HOLDING_CAUSES", "SMALL_COPY_BYTES", "STALL_MAX_NS", "STALL_MIN_NS", "HostCalls"]

Int64s = npt.NDArray[np.int64]

#: A pause between two CUDA calls counts as the host doing something else when it is this many times the usual pause
#: between launches, and at least the given time: eager PyTorch issues work every 3–20 µs, and its slowest operators
#: (views, dispatch through Python) stay within a few tens of µs. Beyond the upper bound it is no cost of issuing at
#: all, however slow the host is otherwise.
_STALL_FACTOR = 10
STALL_MIN_NS = 100_000
STALL_MAX_NS = 1_000_000

#: Causes that a call's own name (or the copy it issues) reveals.
HOLDING_CAUSES = ("synchronization", "allocation", "blocking-copy")
_SYNCHRONIZATION, _ALLOCATION, _BLOCKING_COPY = 1, 2, 3

#: A copy up to this size costs the host less than the wait that comes with it: 64 KiB take 3–7 µs over PCIe, and up to
#: this size a copy from pageable memory to the device does not hold the host at all (CUDA Runtime API, "API
#: synchronization behavior").
SMALL_COPY_BYTES = 65_536

#: So many questions for an event or a stream in a row, with no other call between them, are a wait. PyTorch's
#: allocators ask once for each event that they have outstanding, a few in a row at most.
_POLLS_OF_A_WAIT = 8


@dataclass(frozen=True, eq=False)
class HostCalls:
    """The CUDA calls of one process's launching threads.

    Attributes:
        row: shape (n,), the rows of the calls in `Trace.api_calls`.
        starts, ends, thread: each call's interval and thread; a wait by asking again and again is one interval.
        cause: the position from 1 in `HOLDING_CAUSES` of what the call holds its thread up with; 0 for calls that issue
            work.
        outermost: the calls of all threads as disjoint pieces, each owned by the call that began first.
        profiler: per thread, when the profiler held it up.
    """

    row: Int64s
    starts: Int64s
    ends: Int64s
    thread: Int64s
    cause: npt.NDArray[np.int8]
    outermost: Owned
    profiler: dict[int, Intervals]

    @classmethod
    def of(cls, timeline: Timeline, process: int) -> HostCalls:
        """The calls of one process; threads that never launched GPU work are left out."""
        calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread", "name")
        categories = name_categories(calls["name"])
        code = calls["name"].to_physical().to_numpy()
        launching = timeline.work.filter(pl.col("process") == process)["thread"].drop_nulls().unique()
        selected = ((calls["process"] == process) & calls["thread"].is_in(launching.implode())).to_numpy()
        cause = np.array([_holding(name) for name in categories], dtype=np.int8)[code]
        copying, held_by = _copy_calls(timeline, process, cause)
        cause[copying] = held_by
        polls = np.array([polls_device(name) for name in categories], dtype=np.bool_)[code]
        starts, ends, threads = (calls[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
        if not selected.all():
            starts, ends, threads, cause = starts[selected], ends[selected], threads[selected], cause[selected]
            polls = polls[selected]
        if np.count_nonzero(polls) >= _POLLS_OF_A_WAIT:
            ends, cause = _polling_as_waits(starts, ends, threads, cause, polls)
        rows = np.flatnonzero(selected)
        profiler = {thread: _profiler(timeline, process, thread) for thread in launching.to_list()}
        return cls(rows, starts, ends, threads, cause, owned_union(starts, ends), profiler)

    def states(self, thread: int) -> dict[str, Intervals]:
        """When this thread was held up, as disjoint intervals per cause (`warplens.analysis.idle.IDLE_CAUSES`).

        What no interval covers is the ordinary cost of issuing work: a launching call, or a short pause between calls.
        """
        own = np.flatnonzero(self.thread == thread)
        mine = owned_union(self.starts[own], self.ends[own])
        mine = Owned(mine.starts, mine.ends, own[mine.owner])
        pieces = [self._holding_part(mine)]
        if len(own) < len(self.starts):
            pieces.append(subtract(self._holding_part(self.outermost), Intervals(mine.starts, mine.ends)))
        held = self.profiler.get(thread, Intervals.none())
        pieces = [subtract(piece, held) for piece in pieces]
        states = {"profiler": held, "host": self._stalls(self.starts[own], held)}
        for number, cause in enumerate(HOLDING_CAUSES, start=1):
            chosen = [(piece, self.cause[piece.owner] == number) for piece in pieces]
            starts = np.concatenate([piece.starts[mask] for piece, mask in chosen])
            ends = np.concatenate([piece.ends[mask] for piece, mask in chosen])
            states[cause] = union(Intervals(starts, ends))
        return states

    def _holding_part(self, pieces: Owned) -> Owned:
        kept = np.flatnonzero(self.cause[pieces.owner])
        return Owned(pieces.starts[kept], pieces.ends[kept], pieces.owner[kept])

    def _stalls(self, own_starts: Int64s, held: Intervals) -> Intervals:
        """Pauses of all threads that are far longer than the usual one between calls of this thread."""
        usual = float(np.median(np.diff(own_starts))) if len(own_starts) > 1 else 0.0
        starts, ends = self.outermost.ends[:-1], self.outermost.starts[1:]
        long = ends - starts >= min(max(STALL_MIN_NS, _STALL_FACTOR * usual), STALL_MAX_NS)
        # Before the first and after the last call the host does something else by definition.
        far = np.iinfo(np.int64).max // 4
        starts = np.r_[np.int64(-far), starts[long], self.outermost.ends[-1:]]
        ends = np.r_[self.outermost.starts[:1], ends[long], np.int64(far)]
        stalls = subtract(Owned(starts, ends, np.arange(len(starts))), held)
        return Intervals(stalls.starts, stalls.ends)


def _holding(name: str) -> int:
    """What an API function holds the host up with, as a position from 1 in `HOLDING_CAUSES`; 0 for issuing work."""
    kind = api_kind(name)
    if kind == "copy":
        return _BLOCKING_COPY if blocks_host(name) else 0
    return {"sync": _SYNCHRONIZATION, "allocation": _ALLOCATION}.get(kind, 0)


def _copy_calls(timeline: Timeline, process: int, by_name: npt.NDArray[np.int8]) -> tuple[Int64s, npt.NDArray[np.int8]]:
    """API rows of the copies that were recorded, and what each holds the host up with, given what its name says.

    The asynchronous call holds the host as well where the memory is pageable. A small copy to the device does not: it
    is put aside at once. Any other small copy that holds the host is a wait for the work before it.
    """
    copies = timeline.trace.copies
    work = timeline.work.filter(
        (pl.col("kind") == "copy") & (pl.col("process") == process) & pl.col("api_row").is_not_null()
    )
    moved = copies.select(
        (pl.col("bytes") <= SMALL_COPY_BYTES).alias("small"),
        (pl.col("source_memory") == "pageable").fill_null(value=False).alias("from_pageable"),
        (pl.col("destination_memory") == "pageable").fill_null(value=False).alias("to_pageable"),
    )[work["row"]]
    small, from_pageable, to_pageable = (column.to_numpy() for column in moved.get_columns())
    rows = work["api_row"].to_numpy()
    holds = (by_name[rows] == _BLOCKING_COPY) | from_pageable | to_pageable
    put_aside = (by_name[rows] == 0) & ~to_pageable
    cause = np.where(small, np.where(put_aside, 0, _SYNCHRONIZATION), _BLOCKING_COPY)
    return rows[holds], cause[holds].astype(np.int8)


def _polling_as_waits(
    starts: Int64s, ends: Int64s, thread: Int64s, cause: npt.NDArray[np.int8], polls: npt.NDArray[np.bool_]
) -> tuple[Int64s, npt.NDArray[np.int8]]:
    """The calls' ends and causes with each long row of questions as one wait, the pauses inside it included."""
    order = np.lexsort((starts, thread))
    asks, home = polls[order], thread[order]
    follows = np.r_[False, asks[1:] & asks[:-1] & (home[1:] == home[:-1])]
    row = np.cumsum(~follows) - 1
    of_wait = asks & (np.bincount(row)[row] >= _POLLS_OF_A_WAIT)
    ends, cause = ends.copy(), cause.copy()
    cause[order[of_wait]] = _SYNCHRONIZATION
    inside = np.flatnonzero(of_wait[:-1] & follows[1:])
    ends[order[inside]] = np.maximum(ends[order[inside]], starts[order[inside + 1]])
    return ends, cause


def _profiler(timeline: Timeline, process: int, thread: int) -> Intervals:
    overhead = timeline.trace.profiler_overhead.filter((pl.col("process") == process) & (pl.col("thread") == thread))
    return union(Intervals(overhead["start_ns"].to_numpy(), overhead["end_ns"].to_numpy()))
