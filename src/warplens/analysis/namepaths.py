"""Nodes with names as a tree of name paths: `step > forward > linear` is one row, however often it occurs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from warplens.analysis.forest import NO_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

__all__ = ["NamePaths", "depth_first", "name_paths"]

Int64s = npt.NDArray[np.int64]


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
    ranked = table.sort([most, then, last], descending=[True, True, False])
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
