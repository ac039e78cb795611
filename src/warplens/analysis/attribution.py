"""Which annotated range a piece of GPU work belongs to.

Two rules, in this order:

1. *Same thread*: the innermost range that is open on the launching thread when the launching API call begins.
2. *Waiting thread*: work launched from a thread that has no range of its own open, while another thread of the process
   holds one open, belongs to that range. This is how PyTorch's autograd works: `backward()` is called on one thread,
   which waits, while another thread launches the kernels. Such an attribution is marked as inferred. It also gives a
   parent to the outermost ranges of the launching thread, so that their time counts in the waiting thread's ranges.

Where several threads hold ranges open, the one whose outermost ranges cover the most host time is asked first (the
training loop's own thread spans the step, its helpers do not), and links only ever lead from a thread with less cover
to one with more, so that no range can become its own ancestor. A framework's operators (ranges of kind `cpu-op`) lend
nothing: a thread that runs an operator is at work, not waiting for another one; only what a person annotated is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals, total, union
from warplens.analysis.trees import NO_RANGE, Forest, levels_of, nearest
from warplens.profile.nesting import nest
from warplens.profile.schema import Bools, Int64s, name_categories

#: Kind of the ranges that a framework's profiler records for its operators.
OPERATOR_KIND = "cpu-op"

# Process and thread ids are 32-bit, so that a pair of them is one integer key.
_THREAD_BITS = 32
_THREAD_MASK = (1 << _THREAD_BITS) - 1

#: Up to this many threads, one scan per thread is cheaper than sorting all launches by thread.
_FEW_THREADS = 12


class _OpenRanges(NamedTuple):
    """The innermost open range of one thread as a step function of time."""

    times: Int64s
    innermost: Int64s

    def at(self, when: Int64s) -> Int64s:
        if not self.times.size:
            return np.full(when.shape, NO_RANGE)
        index = np.searchsorted(self.times, when, side="right")
        found: Int64s = np.r_[NO_RANGE, self.innermost][index]
        return found


@dataclass(frozen=True, eq=False)
class RangeForest(Forest):
    """The ranges of a profile with their enclosing ranges, across threads.

    Attributes:
        parent: shape (n,), row of the enclosing range, on the same thread or inferred on another; `NO_RANGE` for none.
        level: shape (n,), number of enclosing ranges across threads.
        parent_inferred: shape (n,), whether that link crosses threads.
        crossing: shape (n,), whether the range overlaps another one of its thread without nesting.
    """

    parent_inferred: Bools
    crossing: Bools
    _threads: dict[tuple[int, int], _OpenRanges]
    _lenders: dict[tuple[int, int], _OpenRanges]
    _asked_first: dict[int, list[tuple[int, int]]]

    def attribute(self, process: Int64s, thread: Int64s, when: Int64s) -> tuple[Int64s, Bools]:
        """The range of each launch, and whether it was inferred.

        Args:
            process, thread, when: shape (m,), the launching thread and the time at which its API call began.
        """
        found = np.full(len(when), NO_RANGE, dtype=np.int64)
        inferred = np.zeros(len(when), dtype=np.bool_)
        for launcher, rows in _rows_by_thread(process, thread):
            if launcher in self._threads:
                own = self._threads[launcher].at(when if len(rows) == len(when) else when[rows])
                if len(rows) == len(when):
                    found = own
                else:
                    found[rows] = own
                rows = rows[own == NO_RANGE]  # noqa: PLW2901  # only these may be another thread's
            waiting = self._waiting(launcher, when[rows])
            found[rows], inferred[rows] = waiting, waiting != NO_RANGE
        return found, inferred

    def open_on(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The innermost range that each thread itself holds open at that time; `NO_RANGE` for none."""
        found = np.full(len(when), NO_RANGE, dtype=np.int64)
        for holder, rows in _rows_by_thread(process, thread):
            if holder in self._threads:
                found[rows] = self._threads[holder].at(when[rows])
        return found

    def _waiting(self, launcher: tuple[int, int], when: Int64s) -> Int64s:
        found = np.full(len(when), NO_RANGE, dtype=np.int64)
        for thread in self._asked_first.get(launcher[0], ()):
            if thread == launcher:
                break  # only threads with more cover than the launcher may lend it a range
            found = np.where(found == NO_RANGE, self._lenders[thread].at(when), found)
        return found


def is_operator(ranges: pl.DataFrame) -> Bools:
    """Which rows of the table `ranges` are a framework's operators."""
    kinds = ranges["kind"]
    if OPERATOR_KIND not in name_categories(kinds):
        return np.zeros(ranges.height, dtype=np.bool_)
    operators: Bools = (kinds == OPERATOR_KIND).to_numpy()
    return operators


def range_forest(ranges: pl.DataFrame) -> RangeForest:
    """Links the ranges of all threads.

    Args:
        ranges: the table `ranges` of a `Trace`, or another one of nested intervals (without a column `kind`).
    """
    start = ranges["start_ns"].to_numpy()
    end = ranges["end_ns"].to_numpy()
    process = ranges["process"].to_numpy().astype(np.int64)
    thread = ranges["thread"].to_numpy().astype(np.int64)
    depth = ranges["depth"].to_numpy().astype(np.int64)
    parent = ranges["parent"].fill_null(NO_RANGE).to_numpy().astype(np.int64).copy()
    lends = ~is_operator(ranges) if "kind" in ranges.columns else np.ones(len(start), dtype=np.bool_)
    lending_parent = parent if lends.all() else nearest(parent, lends, parent)

    threads: dict[tuple[int, int], _OpenRanges] = {}
    lenders: dict[tuple[int, int], _OpenRanges] = {}
    cover: dict[tuple[int, int], int] = {}
    crossing = np.zeros(len(start), dtype=np.bool_)
    for key, rows in _rows_by_thread(process, thread):
        threads[key], crossing[rows] = _open_ranges(start, end, depth, parent, rows)
        annotated = rows[lends[rows]]
        if not len(annotated):
            continue
        same = len(annotated) == len(rows)
        lenders[key] = threads[key] if same else _open_ranges(start, end, depth, lending_parent, annotated)[0]
        roots = annotated[lending_parent[annotated] == NO_RANGE]
        cover[key] = total(union(Intervals(start[roots], end[roots])))
    asked_first: dict[int, list[tuple[int, int]]] = {}
    for key in sorted(lenders, key=lambda item: (-cover[item], item)):
        asked_first.setdefault(key[0], []).append(key)

    linked = parent.copy()
    inferred = np.zeros(len(parent), dtype=np.bool_)
    forest = RangeForest(
        linked, np.zeros(len(parent), dtype=np.int64), inferred, crossing, threads, lenders, asked_first
    )
    for key, rows in _rows_by_thread(process, thread):
        roots = rows[parent[rows] == NO_RANGE]
        lent = forest._waiting(key, start[roots])
        encloses = (lent != NO_RANGE) & (end[np.maximum(lent, 0)] >= end[roots])
        linked[roots[encloses]] = lent[encloses]
        inferred[roots[encloses]] = True
    return RangeForest(linked, levels_of(linked), inferred, crossing, threads, lenders, asked_first)


def _open_ranges(start: Int64s, end: Int64s, depth: Int64s, parent: Int64s, rows: Int64s) -> tuple[_OpenRanges, Bools]:
    """The step function of one thread's ranges, and which of them cross another."""
    lasting = rows[end[rows] > start[rows]]  # an empty range holds nothing open
    times = np.concatenate((end[lasting], start[lasting]))
    opened = np.concatenate((parent[lasting], lasting))
    is_start = np.repeat(np.array([0, 1]), len(lasting))
    # At equal times ranges close from the inside out before others open from the outside in.
    within = np.concatenate((-depth[lasting], depth[lasting]))
    order = np.lexsort((within, is_start, times))
    if not _any_crossing(start, end, parent, rows):
        return _OpenRanges(times[order], opened[order]), np.zeros(len(rows), dtype=np.bool_)
    crossing = nest(start[rows], end[rows], np.zeros(len(rows), dtype=np.int64)).crossing
    both = np.concatenate((lasting, lasting))
    return _open_ranges_with_crossings(both[order], is_start[order], times[order]), crossing


def _any_crossing(start: Int64s, end: Int64s, parent: Int64s, rows: Int64s) -> bool:
    """Whether two ranges of one thread overlap without one enclosing the other."""
    order = rows[np.lexsort((-end[rows], start[rows], parent[rows]))]
    same_parent = parent[order[1:]] == parent[order[:-1]]
    return bool(np.any(same_parent & (start[order[1:]] < end[order[:-1]])))


def _open_ranges_with_crossings(rows: Int64s, is_start: Int64s, times: Int64s) -> _OpenRanges:
    """The range opened last among those still open, for start-end ranges that need not nest."""
    opened: dict[int, None] = {}  # insertion order is opening order
    innermost = np.empty(len(rows), dtype=np.int64)
    for position, (row, starts) in enumerate(zip(rows.tolist(), is_start.tolist(), strict=True)):
        if starts:
            opened[row] = None
        else:
            opened.pop(row, None)
        innermost[position] = next(reversed(opened), NO_RANGE)
    return _OpenRanges(times, innermost)


def _rows_by_thread(process: Int64s, thread: Int64s) -> list[tuple[tuple[int, int], Int64s]]:
    """The rows of each (process, thread), in their order."""
    if len(process) and (process == process[0]).all() and (thread == thread[0]).all():
        return [((int(process[0]), int(thread[0])), np.arange(len(process)))]
    key = (process << _THREAD_BITS) | thread
    distinct = pl.Series(key).unique().sort().to_list()
    if len(distinct) <= _FEW_THREADS:
        groups = [np.flatnonzero(key == value) for value in distinct]
    else:
        order = np.argsort(key, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    return [((value >> _THREAD_BITS, value & _THREAD_MASK), rows) for value, rows in zip(distinct, groups, strict=True)]
