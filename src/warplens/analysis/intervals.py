"""Exact arithmetic on half-open intervals of int64 nanoseconds, without a Python loop over intervals.

A set of intervals is a pair of arrays, `starts` and `ends`, both shape (n,). "Disjoint" means sorted by start with
`ends[i] <= starts[i + 1]`; empty intervals (`start == end`) carry no time and are dropped by every operation.
All sums are exact: nothing is converted to floating point.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Intervals", "Owned", "clip", "complement", "measure_before", "owned_union", "subtract", "total", "union"]

Int64s = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """Half-open intervals `[starts[i], ends[i])`."""

    starts: Int64s
    ends: Int64s

    @classmethod
    def none(cls) -> Intervals:
        """No interval at all."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class Owned(NamedTuple):
    """Disjoint intervals, each with the index of the input interval that it belongs to."""

    starts: Int64s
    ends: Int64s
    owner: Int64s


def total(intervals: Intervals | Owned) -> int:
    """Summed length; for disjoint intervals the time that they cover."""
    return int((intervals.ends - intervals.starts).sum())


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The parts inside `[start, end)`, in the same order."""
    starts = np.maximum(intervals.starts, start)
    ends = np.minimum(intervals.ends, end)
    kept = ends > starts
    return Intervals(starts[kept], ends[kept])


def owned_union(starts: Int64s, ends: Int64s) -> Owned:
    """The union as disjoint pieces, each owned by the interval that began first among those that cover it.

    A later interval owns only what reaches beyond all earlier ones; of two that begin together, the first row owns.
    The pieces are sorted by time, at most one per input interval.
    """
    if not len(starts):
        return Owned(starts, ends, np.empty(0, dtype=np.int64))
    # Profiles are nearly sorted, on which a stable sort takes one pass.
    order = np.argsort(starts, kind="stable")
    sorted_starts, sorted_ends = starts[order], ends[order]
    reach = np.maximum.accumulate(sorted_ends)
    piece_starts = sorted_starts.copy()
    piece_starts[1:] = np.maximum(sorted_starts[1:], reach[:-1])
    kept = sorted_ends > piece_starts
    return Owned(piece_starts[kept], sorted_ends[kept], order[kept])


def union(intervals: Intervals) -> Intervals:
    """The covered time as disjoint intervals, neighbours that touch merged into one."""
    pieces = owned_union(intervals.starts, intervals.ends)
    if not len(pieces.starts):
        return Intervals(pieces.starts, pieces.ends)
    begins = np.r_[True, pieces.starts[1:] > pieces.ends[:-1]]
    finishes = np.r_[begins[1:], True]
    return Intervals(pieces.starts[begins], pieces.ends[finishes])


def complement(disjoint: Intervals, start: int, end: int) -> Intervals:
    """The gaps of a disjoint set inside `[start, end)`."""
    inside = clip(disjoint, start, end)
    starts = np.r_[np.int64(start), inside.ends]
    ends = np.r_[inside.starts, np.int64(end)]
    kept = ends > starts
    return Intervals(starts[kept], ends[kept])


def subtract(pieces: Owned, disjoint: Intervals) -> Owned:
    """Disjoint owned pieces without the time that a disjoint set covers; owners are kept."""
    if not len(pieces.starts) or not len(disjoint.starts):
        return pieces
    # The pieces are cut at every edge of the other side; each elementary piece is then wholly inside or outside.
    edges = np.concatenate((disjoint.starts, disjoint.ends))
    source = np.searchsorted(pieces.starts, edges, side="right") - 1
    inner = (source >= 0) & (edges > pieces.starts[source]) & (edges < pieces.ends[source])
    starts, ends, owner = pieces
    if inner.any():
        starts = np.concatenate((starts, edges[inner]))
        source = np.concatenate((np.arange(len(pieces.starts)), source[inner]))
        # Cuts lie inside of disjoint pieces, so that sorting by time keeps each piece's parts together.
        order = np.argsort(starts, kind="stable")
        starts, source = starts[order], source[order]
        last = np.r_[source[1:] != source[:-1], True]
        ends = np.where(last, pieces.ends[source], np.r_[starts[1:], np.int64(0)])
        owner = pieces.owner[source]
    covering = np.searchsorted(disjoint.starts, starts, side="right") - 1
    kept = ((covering < 0) | (disjoint.ends[covering] <= starts)) & (ends > starts)
    return Owned(starts[kept], ends[kept], owner[kept])


def measure_before(disjoint: Intervals, times: Int64s) -> Int64s:
    """How much of a disjoint set lies before each time: an exact cumulative measure, to be subtracted pairwise.

    `measure_before(s, b) - measure_before(s, a)` is the covered time inside `[a, b)`.
    """
    if not len(disjoint.starts):
        return np.zeros(len(times), dtype=np.int64)
    lengths = disjoint.ends - disjoint.starts
    before = np.r_[np.int64(0), np.cumsum(lengths)]
    index = np.searchsorted(disjoint.starts, times, side="right")
    partial = np.where(index > 0, np.minimum(times, disjoint.ends[index - 1]) - disjoint.starts[index - 1], 0)
    return np.where(index > 0, before[np.maximum(index - 1, 0)] + partial, 0).astype(np.int64)
