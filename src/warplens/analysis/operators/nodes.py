"""Sums over the nodes of a forest (operators, modules, Python calls) that bear the same name or stand at one path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.forest import NO_RANGE
from warplens.analysis.namepaths import depth_first, name_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.forest import Forest
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["Nodes", "by_group", "by_path", "counted", "sum_at"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Nodes:
    """What nodes cost on the host, and which GPU work belongs to them.

    Attributes:
        forest: which node lies in which, n of them.
        counted: shape (n,), whether it counts in the window (`counted`), so that its host time does.
        host_ns: shape (n,), its duration on the host.
        duration_ns, is_kernel: shape (m,), of each piece of GPU work.
        launched_by: shape (m,), the innermost node that launched the work; `NO_RANGE` for none.
        backward_of: for each piece of GPU work the nodes that it is backward work of, each shape (m,); the innermost
            first.
        api_ns, host_self_ns: shape (n,), as in the schema; None where they are not known.
    """

    forest: Forest
    counted: Bools
    host_ns: Int64s
    duration_ns: Int64s
    is_kernel: Bools
    launched_by: Int64s
    backward_of: tuple[Int64s, ...]
    api_ns: Int64s | None = None
    host_self_ns: Int64s | None = None

    def causing(self) -> Bools:
        """Nodes that GPU work belongs to, forward or backward, itself or through a node inside."""
        caused = np.zeros(len(self.counted), dtype=np.int64)
        for where in (self.launched_by, *self.backward_of):
            caused[where[where != NO_RANGE]] = 1
        causing: Bools = self.forest.latest(caused) > 0
        return causing

    def sums(self, rows: Int64s, group: Int64s, count: int) -> pl.DataFrame:
        """One row a group: every piece of work, and every instant of the host, counts once in each group it is in.

        Args:
            rows: the nodes that are listed.
            group: shape (rows,), the group of each of them, from 0.
            count: number of groups.
        """
        of_node = np.full(len(self.counted), NO_RANGE, dtype=np.int64)
        of_node[rows] = group
        counts = self.counted[rows]
        outer = counts & ~self.forest.repeats(of_node)[rows]
        launched, backward = [self.launched_by], list(self.backward_of)
        first = np.r_[of_node, NO_RANGE]
        columns = {
            "id": np.arange(count),
            "calls": sum_at(count, group, counts.astype(np.int64)),
            "host_ns": sum_at(count, group[outer], self.host_ns[rows][outer]),
            "gpu_ns": self._inside(of_node, launched, self.duration_ns, count),
            "gpu_self_ns": sum_at(count, first[self.launched_by], self.duration_ns),
            "backward_ns": self._inside(of_node, backward, self.duration_ns, count),
            "backward_self_ns": sum_at(count, first[backward[0]], self.duration_ns)
            if backward
            else np.zeros(count, int),
            "total_ns": self._inside(of_node, [*launched, *backward], self.duration_ns, count),
            "kernels": self._inside(of_node, launched, self.is_kernel.astype(np.int64), count),
        }
        if self.api_ns is not None:
            columns["api_ns"] = sum_at(count, group[outer], self.api_ns[rows][outer])
        if self.host_self_ns is not None:
            columns["host_self_ns"] = sum_at(count, group[counts], self.host_self_ns[rows][counts])
        return pl.DataFrame(columns)

    def _inside(self, group: Int64s, starts: list[Int64s], amounts: Int64s, count: int) -> Int64s:
        """Amounts of the work by group, where it belongs to a node of the group or to one inside such a node."""
        pairs = [np.empty(0, dtype=np.int64)]
        for start in starts:
            work = np.flatnonzero(start != NO_RANGE)
            node = start[work]
            while len(work):
                known = group[node] != NO_RANGE
                pairs.append(work[known] * count + group[node][known])
                node = self.forest.parent[node]
                work, node = work[node != NO_RANGE], node[node != NO_RANGE]
        # Sorting beats the hash table of `np.unique`, which such regular keys fill badly.
        ordered = np.sort(np.concatenate(pairs))
        distinct = ordered[np.r_[True, ordered[1:] != ordered[:-1]]] if len(ordered) else ordered
        return sum_at(count, distinct % max(count, 1), amounts[distinct // max(count, 1)])


def counted(timeline: Timeline, window: Window, calls: pl.DataFrame, forest: Forest, launched_by: Int64s) -> Bools:
    """Which host intervals a window counts: those whose first GPU work begins in it.

    Those without GPU work count where they begin themselves. So a step has all of its operators, however far the host
    runs ahead of the GPU.

    Args:
        timeline, window: what is looked at.
        calls: a table of host intervals, the nodes of the forest.
        forest: which of them lies in which.
        launched_by: the innermost of them that launched each row of `Timeline.work`; `NO_RANGE` for none.
    """
    within = timeline.lie_in_range(window, calls)
    if window.kind == "all":
        return within
    never = np.iinfo(np.int64).max
    first = np.full(calls.height, never)
    known = launched_by != NO_RANGE
    np.minimum.at(first, launched_by[known], timeline.work["start_ns"].to_numpy()[known])
    first = forest.earliest(first)
    when = np.where(first == never, calls["start_ns"].to_numpy(), first)
    inside: Bools = within & (when >= window.start_ns) & (when < window.end_ns)
    return inside


def by_group(nodes: Nodes, code: Int64s, wanted: Bools) -> pl.DataFrame:
    """Nodes of the same code (column `code`) as one row, most GPU time first.

    Args:
        nodes: all nodes.
        code: what makes nodes the same.
        wanted: which nodes may be listed; those that neither count in the window nor have GPU work in it are not.
    """
    rows = np.flatnonzero(wanted & (nodes.counted | nodes.causing()))
    codes, group = np.unique(code[rows], return_inverse=True)
    table = nodes.sums(rows, group.reshape(-1), len(codes)).with_columns(pl.Series("code", codes, dtype=pl.Int64))
    return table.sort("total_ns", "host_ns", "code", descending=[True, True, False])


def by_path(nodes: Nodes, code: Int64s, wanted: Bools) -> pl.DataFrame:
    """Nodes at the same path of codes as one row; parents before their children. `code` is that of the last name."""
    rows = np.flatnonzero(wanted & (nodes.counted | nodes.causing()))
    paths = name_paths(code, rows, nodes.forest.parent[rows])
    table = nodes.sums(rows, paths.path, len(paths.code)).with_columns(
        pl.Series("parent", paths.parent, dtype=pl.Int64).replace(NO_RANGE, None),
        pl.Series("depth", paths.depth, dtype=pl.Int64),
        pl.Series("code", paths.code, dtype=pl.Int64),
    )
    return depth_first(table, "total_ns", "host_ns", "code")


def sum_at(count: int, places: Int64s | Sequence[int], amounts: Int64s) -> Int64s:
    """The amounts summed by place; those at `NO_RANGE` are left out."""
    where = np.asarray(places, dtype=np.int64)
    known = where != NO_RANGE
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, where[known], amounts[known])
    return sums
