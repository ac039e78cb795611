"""A forest given by each node's parent: sums, extremes and labels along its paths, without a loop over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from warplens.profile.schema import Bools, Int64s


#: Stands for "no range" in arrays of range rows.
NO_RANGE = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes with at most one parent each."""

    parent: Int64s  #: shape (n,), each node's parent; `NO_RANGE` for a root
    level: Int64s  #: shape (n,), number of ancestors

    @classmethod
    def of(cls, parent: Int64s) -> Forest:
        """The forest of these links, which must not form a circle."""
        return cls(parent, levels_of(parent))

    def inclusive(self, exclusive: Int64s) -> Int64s:
        """Adds each node's own amount to all of its ancestors; exact integers, one pass per level.

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
        """For each node the label (> 0) of its outermost labelled ancestor or itself; 0 where none is labelled."""
        result = label.astype(np.int64, copy=True)
        for rows in self._levels:
            parents = self.parent[rows]
            inherited = np.where(parents != NO_RANGE, result[np.maximum(parents, 0)], 0)
            result[rows] = np.where(inherited > 0, inherited, result[rows])
        return result

    def innermost_match(self, label: Int64s) -> Int64s:
        """For each node the label (> 0) of its innermost labelled ancestor or itself; 0 where none is labelled."""
        result = label.astype(np.int64, copy=True)
        for rows in self._levels:
            parents = self.parent[rows]
            inherited = np.where(parents != NO_RANGE, result[np.maximum(parents, 0)], 0)
            result[rows] = np.where(result[rows] > 0, result[rows], inherited)
        return result

    def repeats(self, label: Int64s) -> Bools:
        """Whether an ancestor of each node bears the node's own label: such a node is part of its label already."""
        found = np.zeros(len(label), dtype=np.bool_)
        pending = np.flatnonzero(self.parent != NO_RANGE)
        above = self.parent[pending]
        while len(pending):
            same = label[above] == label[pending]
            found[pending[same]] = True
            climbs = ~same & (self.parent[above] != NO_RANGE)
            pending, above = pending[climbs], self.parent[above[climbs]]
        return found

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
    """`values[rows]`; `NO_RANGE` for what is `NO_RANGE`."""
    found: Int64s = np.r_[values, NO_RANGE][rows]
    return found


def nearest(parent: Int64s, wanted: Bools, start: Int64s) -> Int64s:
    """For each node of `start` itself or its nearest ancestor that is wanted; `NO_RANGE` where there is none.

    Args:
        parent: shape (n,), each node's parent; `NO_RANGE` for a root.
        wanted: shape (n,), which nodes may be found.
        start: shape (m,), the nodes to begin with; `NO_RANGE` stays what it is.
    """
    if len(start) > len(parent):
        every: Int64s = np.r_[nearest(parent, wanted, np.arange(len(parent))), NO_RANGE]
        return every[start]
    found = start.copy()
    pending = np.flatnonzero(found != NO_RANGE)
    while len(pending):
        pending = pending[~wanted[found[pending]]]
        found[pending] = parent[found[pending]]
        pending = pending[found[pending] != NO_RANGE]
    return found


class NamePaths(NamedTuple):
    """Each node's path, and for each path the one above it (`NO_RANGE` for none), its name's code and its depth."""

    path: Int64s
    parent: Int64s
    code: Int64s
    depth: Int64s


def name_paths(code: Int64s, rows: Int64s, parent_row: Int64s) -> NamePaths:
    """Groups nodes by the names on the way to them.

    Args:
        code: shape (n,), number of each node's name; all nodes, selected or not.
        rows: shape (m,), the nodes to group.
        parent_row: shape (m,), the parent of each of them; `NO_RANGE` for none.
    """
    position = np.full(len(code), NO_RANGE, dtype=np.int64)
    position[rows] = np.arange(len(rows))
    # An ancestor that is not among the rows is no ancestor in their tree.
    parent = np.where(parent_row != NO_RANGE, position[np.maximum(parent_row, 0)], NO_RANGE)
    group = np.full(len(rows), NO_RANGE, dtype=np.int64)
    parents: list[Int64s] = []
    codes: list[Int64s] = []
    depths: list[Int64s] = []
    used = 0
    distinct_codes = int(code.max(initial=0)) + 1
    pending = np.flatnonzero(parent == NO_RANGE)
    level = 0
    children = _children(parent)
    while len(pending):
        above = np.where(parent[pending] != NO_RANGE, group[np.maximum(parent[pending], 0)], NO_RANGE)
        pairs, inverse = np.unique((above + 1) * distinct_codes + code[rows[pending]], return_inverse=True)
        group[pending] = used + inverse.reshape(-1)
        parents.append(pairs // distinct_codes - 1)
        codes.append(pairs % distinct_codes)
        depths.append(np.full(len(pairs), level, dtype=np.int64))
        used += len(pairs)
        level += 1
        pending = children(pending)
    if not used:
        return NamePaths(group, *(np.empty(0, dtype=np.int64) for _ in range(3)))
    return NamePaths(group, np.concatenate(parents), np.concatenate(codes), np.concatenate(depths))


def _children(parent: Int64s) -> Callable[[Int64s], Int64s]:
    """A look-up of all rows whose parent is among the given ones."""
    order = np.argsort(parent, kind="stable")
    ordered = parent[order]

    def of(rows: Int64s) -> Int64s:
        low, high = np.searchsorted(ordered, rows, "left"), np.searchsorted(ordered, rows, "right")
        lengths = high - low
        offsets = np.repeat(low - np.r_[0, np.cumsum(lengths)[:-1]], lengths)
        picked: Int64s = order[offsets + np.arange(int(lengths.sum()))]
        return picked

    return of


def depth_first(table: pl.DataFrame, most: str, then: str, last: str) -> pl.DataFrame:
    """Rows (`id` from 0, `parent`, …) in tree order: parents before their children, siblings by three columns.

    Args:
        table: the rows, by `id`.
        most, then: columns, the largest value first.
        last: column, the smallest value first.
    """
    ranked = table.sort([most, then, last], descending=[True, True, False], maintain_order=True)
    below: dict[int | None, list[int]] = {}
    for row, above in zip(ranked["id"].to_list(), ranked["parent"].to_list(), strict=True):
        below.setdefault(above, []).append(row)
    order: list[int] = []
    stack = list(reversed(below.get(None, [])))
    while stack:
        row = stack.pop()
        order.append(row)
        stack.extend(reversed(below.get(row, [])))
    return table[order]
