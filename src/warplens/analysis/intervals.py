"""Exact arithmetic on half-open intervals of int64 nanoseconds, without a Python loop over intervals.

A set of intervals is a pair of arrays, `starts` and `ends`, both shape (n,). "Disjoint" means sorted by start with
`ends[i] <= starts[i + 1]`; empty intervals (`start == end`) carry no time and are dropped by every operation.
All sums are exact: nothing is converted to floating point.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from warplens.profile.schema import Int64s


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
    owner = np.arange(len(starts))
    if np.any(starts[1:] < starts[:-1]):
        owner = np.argsort(starts, kind="stable")
        starts, ends = starts[owner], ends[owner]
    piece_starts = starts
    if np.any(starts[1:] < ends[:-1]):
        reach = np.maximum.accumulate(ends)
        piece_starts = np.r_[starts[:1], np.maximum(starts[1:], reach[:-1])]
    kept = ends > piece_starts
    if kept.all():
        return Owned(piece_starts, ends, owner)
    return Owned(piece_starts[kept], ends[kept], owner[kept])


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
    first = np.searchsorted(disjoint.ends, pieces.starts, side="right")
    stop = np.searchsorted(disjoint.starts, pieces.ends, side="left")
    overlaps = np.maximum(stop - first, 0)
    total_overlaps = int(overlaps.sum())
    if not total_overlaps:
        return pieces
    # A piece with k covered intervals leaves k + 1 parts: up to the first, between one and the next, after the last.
    source = np.repeat(np.arange(len(overlaps)), overlaps + 1)
    begin = np.cumsum(overlaps + 1) - (overlaps + 1)
    rank = np.arange(total_overlaps + len(overlaps)) - begin[source]
    after = first[source] + rank
    starts, ends = pieces.starts[source], pieces.ends[source]
    covered_before, covered_after = rank > 0, rank < overlaps[source]
    starts[covered_before] = np.maximum(starts[covered_before], disjoint.ends[after[covered_before] - 1])
    ends[covered_after] = np.minimum(ends[covered_after], disjoint.starts[after[covered_after]])
    kept = ends > starts
    return Owned(starts[kept], ends[kept], pieces.owner[source[kept]])


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
