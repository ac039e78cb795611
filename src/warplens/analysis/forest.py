"""A forest given by each node's parent: sums, extremes and labels along its paths, without a loop over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["NO_RANGE", "Forest", "levels_of", "nearest"]

Int64s = npt.NDArray[np.int64]

#: Stands for "no range" in arrays of range rows.
NO_RANGE = -1


@dataclass(frozen=True, eq=False)
class Forest:
    """Nodes with at most one parent each.

    Attributes:
        parent: shape (n,), each node's parent; `NO_RANGE` for a root.
        level: shape (n,), number of ancestors.
    """

    parent: Int64s
    level: Int64s

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

    def repeats(self, label: Int64s) -> npt.NDArray[np.bool_]:
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


def nearest(parent: Int64s, wanted: npt.NDArray[np.bool_], start: Int64s) -> Int64s:
    """For each node of `start` itself or its nearest ancestor that is wanted; `NO_RANGE` where there is none.

    Args:
        parent: shape (n,), each node's parent; `NO_RANGE` for a root.
        wanted: shape (n,), which nodes may be found.
        start: shape (m,), the nodes to begin with; `NO_RANGE` stays what it is.
    """
    found = start.copy()
    pending = np.flatnonzero(found != NO_RANGE)
    while len(pending):
        pending = pending[~wanted[found[pending]]]
        found[pending] = parent[found[pending]]
        pending = pending[found[pending] != NO_RANGE]
    return found
