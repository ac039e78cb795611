"""Ranges as a forest: enclosing ranges, sums along paths without a loop over nodes, and attribution of GPU work.

A piece of GPU work belongs to an annotated range by two rules, in this order:

1. *Same thread*: the innermost range that is open on the launching thread when the launching API call begins.
2. *Waiting thread*: work launched from a thread that has no range of its own open, while another thread of the process
   holds one open, belongs to that range. This is how PyTorch's autograd works: `backward()` is called on one thread,
   which waits, while another thread launches the kernels. Such an attribution is marked as inferred. It also gives a
   parent to the outermost ranges of the launching thread, so that their time counts in the waiting thread's ranges.

Where several threads hold ranges open, the one whose outermost ranges cover the most host time is asked first (the
training loop's own thread spans the step, its helpers do not), and links only lead from a thread with less cover to one
with more, so that no range can become its own ancestor. A framework's operators (ranges of kind `cpu-op`) are never
lent: a thread that runs an operator is working, not waiting for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.intervals import Intervals, edges_until, total, union
from warplens.profile.nesting import nest
from warplens.profile.schema import Bools, Int64s, name_categories

#: Stands for "no range" in arrays of range rows.
NO_RANGE = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes with at most one parent each."""

    parent: Int64s  #: shape (n,), each node's parent; `NO_RANGE` for a root
    level: Int64s  #: shape (n,), number of ancestors

    @classmethod
    def of(cls, parent: Int64s) -> Forest:
        """The forest of these links, which must not form a cycle."""
        return cls(parent, levels_of(parent))

    def inclusive(self, exclusive: Int64s) -> Int64s:
        """Add each node's own amount to all of its ancestors; exact integers, one pass per level.

        Args:
            exclusive: shape (n,), the amount that belongs to each node directly.
        """
        return self._upwards(exclusive, np.add)

    def earliest(self, values: Int64s) -> Int64s:
        """The minimum over each node and all of its descendants."""
        return self._upwards(values, np.minimum)

    def latest(self, values: Int64s) -> Int64s:
        """The maximum over each node and all of its descendants."""
        return self._upwards(values, np.maximum)

    def outermost_match(self, label: Int64s) -> Int64s:
        """For each node the label (> 0) of its outermost labelled ancestor or itself; 0 for none."""
        return self._inherit(label, lambda own, inherited: np.where(inherited > 0, inherited, own))

    def innermost_match(self, label: Int64s) -> Int64s:
        """For each node the label (> 0) of its innermost labelled ancestor or itself; 0 for none."""
        return self._inherit(label, lambda own, inherited: np.where(own > 0, own, inherited))

    def _inherit(self, label: Int64s, choose: Callable[[Int64s, Int64s], Int64s]) -> Int64s:
        result = label.astype(np.int64, copy=True)
        for rows in self._levels:
            parents = self.parent[rows]
            inherited = np.where(parents != NO_RANGE, result[np.maximum(parents, 0)], 0)
            result[rows] = choose(result[rows], inherited)
        return result

    def repeats(self, label: Int64s) -> Bools:
        """Whether an ancestor of each node has the node's own label, which already includes the node then."""
        repeated = np.zeros(len(label), dtype=np.bool_)
        pending = np.flatnonzero(self.parent != NO_RANGE)
        above = self.parent[pending]
        while len(pending):
            is_same = label[above] == label[pending]
            repeated[pending[is_same]] = True
            climbs = ~is_same & (self.parent[above] != NO_RANGE)
            pending, above = pending[climbs], self.parent[above[climbs]]
        return repeated

    @cached_property
    def _levels(self) -> list[Int64s]:
        if not len(self.level):
            return []
        order = np.argsort(self.level, kind="stable")
        cuts = np.searchsorted(self.level[order], np.arange(1, int(self.level.max()) + 1))
        return list(np.split(order, cuts))

    def _upwards(self, values: Int64s, combine: np.ufunc) -> Int64s:
        result = values.astype(np.int64, copy=True)
        for rows in reversed(self._levels):
            linked = rows[self.parent[rows] != NO_RANGE]
            combine.at(result, self.parent[linked], result[linked])
        return result


def levels_of(parent: Int64s) -> Int64s:
    """The number of ancestors of each node."""
    level = np.zeros(len(parent), dtype=np.int64)
    known = parent == NO_RANGE
    pending = np.flatnonzero(~known)
    depth = 0
    while len(pending):
        depth += 1
        reached = known[parent[pending]]
        rows = pending[reached]
        level[rows] = depth
        pending = pending[~reached]
        known[rows] = True
    return level


def look_up(values: Int64s, rows: Int64s) -> Int64s:
    """`values[rows]`, with `NO_RANGE` for rows that are `NO_RANGE`."""
    values_at_rows: Int64s = np.r_[values, NO_RANGE][rows]
    return values_at_rows


def nearest(parent: Int64s, selected: Bools, start: Int64s) -> Int64s:
    """For each node of `start`, itself or its nearest selected ancestor; `NO_RANGE` for none.

    Args:
        parent: shape (n,), each node's parent; `NO_RANGE` for a root.
        selected: shape (n,), which nodes may be found.
        start: shape (m,), the nodes to begin with; `NO_RANGE` stays `NO_RANGE`.
    """
    if len(start) > len(parent):
        nearest_of_all: Int64s = np.r_[nearest(parent, selected, np.arange(len(parent))), NO_RANGE]
        return nearest_of_all[start]
    if not selected.any():
        return np.full(len(start), NO_RANGE)
    result = start.copy()
    pending = np.flatnonzero(result != NO_RANGE)
    while len(pending):
        pending = pending[~selected[result[pending]]]
        result[pending] = parent[result[pending]]
        pending = pending[result[pending] != NO_RANGE]
    return result


class NamePaths(NamedTuple):
    """The path of each node; for each path its parent path (`NO_RANGE` for none), its name's code, and its depth."""

    path: Int64s
    parent: Int64s
    code: Int64s
    depth: Int64s


def name_paths(code: Int64s, rows: Int64s, parent_row: Int64s) -> NamePaths:
    """Groups nodes by their path of names.

    Args:
        code: shape (n,), number of each node's name; all nodes, selected or not.
        rows: shape (m,), the nodes to group.
        parent_row: shape (m,), the parent of each of them; `NO_RANGE` for none.
    """
    position = np.full(len(code), NO_RANGE, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    # Ancestors outside `rows` do not count.
    parent = np.where(parent_row != NO_RANGE, position[np.maximum(parent_row, 0)], NO_RANGE)
    group = np.full(len(rows), NO_RANGE, dtype=np.int64)
    parents: list[Int64s] = []
    codes: list[Int64s] = []
    depths: list[Int64s] = []
    path_count = 0
    distinct_codes = int(code.max(initial=0)) + 1
    pending = np.flatnonzero(parent == NO_RANGE)
    level = 0
    children = _children(parent)
    while len(pending):
        above = np.where(parent[pending] != NO_RANGE, group[np.maximum(parent[pending], 0)], NO_RANGE)
        pairs, inverse = np.unique((above + 1) * distinct_codes + code[rows[pending]], return_inverse=True)
        group[pending] = path_count + inverse.reshape(-1)
        parents.append(pairs // distinct_codes - 1)
        codes.append(pairs % distinct_codes)
        depths.append(np.full(len(pairs), level, dtype=np.int64))
        path_count += len(pairs)
        level += 1
        pending = children(pending)
    if not path_count:
        return NamePaths(group, *(np.empty(0, dtype=np.int64) for _ in range(3)))
    return NamePaths(group, np.concatenate(parents), np.concatenate(codes), np.concatenate(depths))


def _children(parent: Int64s) -> Callable[[Int64s], Int64s]:
    """A function that returns all rows whose parent is among its argument."""
    order = np.argsort(parent, kind="stable")
    ordered = parent[order]

    def children_of(rows: Int64s) -> Int64s:
        low, high = np.searchsorted(ordered, rows, "left"), np.searchsorted(ordered, rows, "right")
        lengths = high - low
        offsets = np.repeat(low - np.r_[0, np.cumsum(lengths)[:-1]], lengths)
        children: Int64s = order[offsets + np.arange(int(lengths.sum()))]
        return children

    return children_of


def depth_first(table: pl.DataFrame, most: str, then: str, last: str) -> pl.DataFrame:
    """Rows (`id` from 0, `parent`, …) in tree order: parents before their children, siblings sorted by three columns.

    Args:
        table: the rows, by `id`.
        most, then: columns, the largest value first.
        last: column, the smallest value first.
    """
    ranked = table.sort([most, then, last], descending=[True, True, False], maintain_order=True)
    children_by_parent: dict[int | None, list[int]] = {}
    for row, parent in zip(ranked["id"].to_list(), ranked["parent"].to_list(), strict=True):
        children_by_parent.setdefault(parent, []).append(row)
    order: list[int] = []
    stack = list(reversed(children_by_parent.get(None, [])))
    while stack:
        row = stack.pop()
        order.append(row)
        stack.extend(reversed(children_by_parent.get(row, [])))
    return table[order]


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
        edges = edges_until(self.times, when)
        open_range: Int64s = self.innermost[edges - 1]
        open_range[edges == 0] = NO_RANGE
        return open_range

    def or_else(self, other: _OpenRanges) -> _OpenRanges:
        """The ranges open here, and those open in the other while none is open here."""
        closed = np.flatnonzero(self.innermost == NO_RANGE)
        innermost = self.innermost.copy()
        innermost[closed] = other.at(self.times[closed])
        seen = np.flatnonzero(self.at(other.times) == NO_RANGE)
        times = np.concatenate((self.times, other.times[seen]))
        # Of equal times the last one counts, which is the other's: it is seen only after this one's edges of that time.
        order = np.argsort(times, kind="stable")
        return _OpenRanges(times[order], np.concatenate((innermost, other.innermost[seen]))[order])


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
    _lent: dict[int, _OpenRanges]  # of each process, from the first of its lenders that has one open
    _lender_rank: dict[tuple[int, int], int]
    _rank_of_range: Int64s

    def attribute(self, process: Int64s, thread: Int64s, when: Int64s) -> tuple[Int64s, Bools]:
        """The range of each launch, and whether it was inferred.

        Args:
            process, thread, when: shape (m,), the launching thread and the time at which its API call began.
        """
        result = np.full(len(when), NO_RANGE, dtype=np.int64)
        inferred = np.zeros(len(when), dtype=np.bool_)
        for launcher, rows in _rows_by_thread(process, thread):
            if launcher in self._threads:
                own_range = self._threads[launcher].at(when if len(rows) == len(when) else when[rows])
                if len(rows) == len(when):
                    result = own_range
                else:
                    result[rows] = own_range
                rows = rows[own_range == NO_RANGE]  # noqa: PLW2901  # only these may belong to another thread
            waiting = self._waiting(launcher, when[rows])
            result[rows], inferred[rows] = waiting, waiting != NO_RANGE
        return result, inferred

    def open_on(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The innermost range that each thread itself holds open at that time; `NO_RANGE` for none."""
        result = np.full(len(when), NO_RANGE, dtype=np.int64)
        for holder, rows in _rows_by_thread(process, thread):
            if holder in self._threads:
                result[rows] = self._threads[holder].at(when[rows])
        return result

    def _waiting(self, launcher: tuple[int, int], when: Int64s) -> Int64s:
        own_rank = self._lender_rank.get(launcher)
        if launcher[0] not in self._lent or own_rank == 0:
            return np.full(len(when), NO_RANGE, dtype=np.int64)
        result = self._lent[launcher[0]].at(when)
        if own_rank is not None:  # only threads with more cover than the launcher may lend it a range
            result[self._rank_of_range[result] >= own_rank] = NO_RANGE
        return result


def is_operator(ranges: pl.DataFrame) -> Bools:
    """Mask of the rows of the table `ranges` that are operators of a framework."""
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
    rows_of_lender: dict[tuple[int, int], Int64s] = {}
    cover: dict[tuple[int, int], int] = {}
    crossing = np.zeros(len(start), dtype=np.bool_)
    for key, rows in _rows_by_thread(process, thread):
        threads[key], crossing[rows] = _open_ranges(start, end, depth, parent, rows)
        annotated = rows[lends[rows]]
        if not len(annotated):
            continue
        all_annotated = len(annotated) == len(rows)
        lenders[key] = threads[key] if all_annotated else _open_ranges(start, end, depth, lending_parent, annotated)[0]
        roots = annotated[lending_parent[annotated] == NO_RANGE]
        cover[key] = total(union(Intervals(start[roots], end[roots])))
        rows_of_lender[key] = annotated
    ranked: dict[int, list[_OpenRanges]] = {}
    lender_rank: dict[tuple[int, int], int] = {}
    rank_of_range = np.zeros(len(start), dtype=np.int64)
    for key in sorted(lenders, key=lambda item: (-cover[item], item)):
        of_process = ranked.setdefault(key[0], [])
        lender_rank[key] = rank_of_range[rows_of_lender[key]] = len(of_process)
        of_process.append(lenders[key])
    lent = {of: _first_open(lenders_of_process) for of, lenders_of_process in ranked.items()}

    linked_parent = parent.copy()
    inferred = np.zeros(len(parent), dtype=np.bool_)
    level = np.zeros(len(parent), dtype=np.int64)
    forest = RangeForest(linked_parent, level, inferred, crossing, threads, lent, lender_rank, rank_of_range)
    for key, rows in _rows_by_thread(process, thread):
        roots = rows[parent[rows] == NO_RANGE]
        waiting_range = forest._waiting(key, start[roots])
        encloses = (waiting_range != NO_RANGE) & (end[np.maximum(waiting_range, 0)] >= end[roots])
        linked_parent[roots[encloses]] = waiting_range[encloses]
        inferred[roots[encloses]] = True
    return replace(forest, level=levels_of(linked_parent))


def _first_open(ranked: list[_OpenRanges]) -> _OpenRanges:
    """At each time the range of the first of these threads that has one open; neighbours are joined pair by pair."""
    while len(ranked) > 1:
        pairs = zip(ranked[::2], ranked[1::2], strict=False)
        ranked = [first.or_else(then) for first, then in pairs] + ranked[len(ranked) // 2 * 2 :]
    return ranked[0]


def _open_ranges(start: Int64s, end: Int64s, depth: Int64s, parent: Int64s, rows: Int64s) -> tuple[_OpenRanges, Bools]:
    """The step function of one thread's ranges, and which of them cross another one."""
    not_empty = rows[end[rows] > start[rows]]  # an empty range is never open
    times = np.concatenate((end[not_empty], start[not_empty]))
    opened = np.concatenate((parent[not_empty], not_empty))
    is_start = np.repeat(np.array([0, 1]), len(not_empty))
    # At equal times ranges close from the inside out before others open from the outside in.
    nesting = np.concatenate((-depth[not_empty], depth[not_empty]))
    order = np.lexsort((nesting, is_start, times))
    if not _any_crossing(start, end, parent, rows):
        return _OpenRanges(times[order], opened[order]), np.zeros(len(rows), dtype=np.bool_)
    crossing = nest(start[rows], end[rows], np.zeros(len(rows), dtype=np.int64)).crossing
    row_of_edge = np.concatenate((not_empty, not_empty))
    return _open_ranges_with_crossings(row_of_edge[order], is_start[order], times[order]), crossing


def _any_crossing(start: Int64s, end: Int64s, parent: Int64s, rows: Int64s) -> bool:
    """Whether two ranges of one thread overlap without one enclosing the other."""
    order = rows[np.lexsort((-end[rows], start[rows], parent[rows]))]
    same_parent = parent[order[1:]] == parent[order[:-1]]
    return bool(np.any(same_parent & (start[order[1:]] < end[order[:-1]])))


def _open_ranges_with_crossings(rows: Int64s, is_start: Int64s, times: Int64s) -> _OpenRanges:
    """The last opened of the ranges still open, for ranges that need not nest."""
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
