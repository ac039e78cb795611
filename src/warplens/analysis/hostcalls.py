"""What the launching threads of a process were held up by, instant by instant.

A thread is inside of at most one outermost CUDA call at a time; that call says what holds it: a synchronisation, an
allocation, a blocking copy, or nothing but the issuing of work. While the thread is outside of CUDA, the calls of the
process's other launching threads count: autograd's thread does not launch while the main one waits in a
synchronisation. A pause without any call is the ordinary cost of issuing work if it is short, and the host doing
something else if it is long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.apikinds import api_kind, blocks_host
from warplens.analysis.intervals import Intervals, Owned, owned_union, subtract, union
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline

__all__ = ["HostCalls"]

Int64s = npt.NDArray[np.int64]

#: A pause between two CUDA calls counts as the host doing something else when it is this many times the usual pause
#: between launches, and at least the given time: eager PyTorch issues work every 3–20 µs, and its slowest operators
#: (views, dispatch through Python) stay within a few tens of µs. Beyond the upper bound it is no cost of issuing at
#: all, however slow the host is otherwise.
_STALL_FACTOR = 10
_STALL_MIN_NS = 100_000
_STALL_MAX_NS = 1_000_000

#: Causes that a call's own name (or the copy it issues) reveals.
_HOLDING_CAUSES = ("synchronization", "allocation", "blocking-copy")
_SYNCHRONIZATION, _ALLOCATION, _BLOCKING_COPY = 1, 2, 3


@dataclass(frozen=True, eq=False)
class HostCalls:
    """The CUDA calls of one process's launching threads.

    Attributes:
        starts, ends, thread: shape (n,), each call's interval and thread.
        cause: shape (n,), the position from 1 in `_HOLDING_CAUSES` of what the call holds its thread up with; 0 for
            calls that issue work.
        outermost: the calls of all threads as disjoint pieces, each owned by the call that began first.
        profiler: per thread, when the profiler held it up.
    """

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
        launching = timeline.work.filter(pl.col("process") == process)["thread"].drop_nulls().unique()
        selected = ((calls["process"] == process) & calls["thread"].is_in(launching.implode())).to_numpy()
        holding = np.array([_holding(name) for name in name_categories(calls["name"])], dtype=np.int8)
        cause = holding[calls["name"].to_physical().to_numpy()]
        pageable = _pageable_copy_calls(timeline, process)
        cause[pageable] = np.where(cause[pageable] == 0, _BLOCKING_COPY, cause[pageable])
        starts, ends, threads = (calls[column].to_numpy() for column in ("start_ns", "end_ns", "thread"))
        if not selected.all():
            starts, ends, threads, cause = starts[selected], ends[selected], threads[selected], cause[selected]
        profiler = {thread: _profiler(timeline, process, thread) for thread in launching.to_list()}
        return cls(starts, ends, threads, cause, owned_union(starts, ends), profiler)

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
        for number, cause in enumerate(_HOLDING_CAUSES, start=1):
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
        long = ends - starts >= min(max(_STALL_MIN_NS, _STALL_FACTOR * usual), _STALL_MAX_NS)
        # Before the first and after the last call the host does something else by definition.
        far = np.iinfo(np.int64).max // 4
        starts = np.r_[np.int64(-far), starts[long], self.outermost.ends[-1:]]
        ends = np.r_[self.outermost.starts[:1], ends[long], np.int64(far)]
        stalls = subtract(Owned(starts, ends, np.arange(len(starts))), held)
        return Intervals(stalls.starts, stalls.ends)


def _holding(name: str) -> int:
    """What an API function holds the host up with, as a position from 1 in `_HOLDING_CAUSES`; 0 for issuing work."""
    kind = api_kind(name)
    if kind == "copy":
        return _BLOCKING_COPY if blocks_host(name) else 0
    return {"sync": _SYNCHRONIZATION, "allocation": _ALLOCATION}.get(kind, 0)


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
