"""Exact arithmetic on half-open intervals of int64 nanoseconds, without a Python loop over intervals.

A set of intervals is a pair of arrays, `starts` and `ends`, both of shape (n,). "Disjoint" means sorted by start with
`ends[i] <= starts[i + 1]`. Empty intervals (`start == end`) have no length and are dropped by every operation. All sums
are exact: nothing is converted to floating point.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.frames import running_sum
from warplens.profile.schema import Bools, Int64s


class Intervals(NamedTuple):
    """Half-open intervals `[starts[i], ends[i])`."""

    starts: Int64s
    ends: Int64s

    @classmethod
    def none(cls) -> Intervals:
        """No interval at all."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Intervals:
        """`start_ns` and `end_ns` of each row."""
        return cls(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


class LabelledIntervals(NamedTuple):
    """Disjoint intervals, each with the index of the input interval it belongs to."""

    starts: Int64s
    ends: Int64s
    owner: Int64s


def total(intervals: Intervals | LabelledIntervals) -> int:
    """Summed length; for disjoint intervals the time they cover."""
    return int((intervals.ends - intervals.starts).sum())


def _not_empty(starts: Int64s, ends: Int64s) -> Intervals:
    """Drop empty intervals. Indexing by row numbers takes a fifth of the time of a mask."""
    rows = np.flatnonzero(ends > starts)
    return Intervals(starts, ends) if len(rows) == len(starts) else Intervals(starts[rows], ends[rows])


def clip(intervals: Intervals, start: int, end: int) -> Intervals:
    """The parts inside `[start, end)`, in the same order."""
    starts = np.maximum(intervals.starts, start)
    ends = np.minimum(intervals.ends, end)
    return _not_empty(starts, ends)


def owned_union(starts: Int64s, ends: Int64s) -> LabelledIntervals:
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
    not_empty = np.flatnonzero(ends > piece_starts)
    if len(not_empty) == len(starts):
        return LabelledIntervals(piece_starts, ends, owner)
    return LabelledIntervals(piece_starts[not_empty], ends[not_empty], owner[not_empty])


def union(*parts: Intervals) -> Intervals:
    """The time that any of them covers, as disjoint intervals; neighbours that touch are merged into one."""
    if not parts:
        return Intervals.none()
    starts, ends = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    if np.any(starts[1:] < starts[:-1]):
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    starts, ends = _not_empty(starts, ends)
    if np.any(starts[1:] < ends[:-1]):
        ends = np.maximum.accumulate(ends)
    apart = np.flatnonzero(starts[1:] > ends[:-1])
    if len(apart) >= len(starts) - 1:
        return Intervals(starts, ends)
    return Intervals(starts[np.r_[0, apart + 1]], ends[np.r_[apart, len(ends) - 1]])


def complement(disjoint: Intervals, start: int, end: int) -> Intervals:
    """The gaps of a disjoint set inside `[start, end)`."""
    first = int(np.searchsorted(disjoint.ends, start, side="right"))
    stop = max(first, int(np.searchsorted(disjoint.starts, end, side="left")))
    starts = np.r_[np.int64(start), disjoint.ends[first:stop]]
    ends = np.r_[disjoint.starts[first:stop], np.int64(end)]
    return _not_empty(starts, ends)


#: Edges are searched among the times when there are at least this many times per edge.
_FEW_EDGES: Final = 2

#: With at least this many intervals per time, lengths are summed between the times rather than per interval.
_FEW_TIMES: Final = 16

#: Where less than this share of the pieces is covered, the others are left untouched.
_FEW_COVERED: Final = 0.25


def subtract(pieces: LabelledIntervals, disjoint: Intervals) -> LabelledIntervals:
    """Disjoint owned pieces minus the time that a disjoint set covers; owners are kept."""
    if len(disjoint.starts) >= _FEW_COVERED * len(pieces.starts):
        return _subtract_all(pieces, disjoint)
    # The pieces are sorted: a few intervals are searched among them and touch few of them.
    first = np.searchsorted(pieces.ends, disjoint.starts, side="right")
    count = np.maximum(np.searchsorted(pieces.starts, disjoint.ends, side="left") - first, 0)
    if not (reached := int(count.sum())):
        return pieces
    if reached >= _FEW_COVERED * len(pieces.starts):
        return _subtract_all(pieces, disjoint)
    rows = np.repeat(first - np.cumsum(count) + count, count) + np.arange(reached)
    rows = rows[np.r_[True, rows[1:] != rows[:-1]]]
    remaining = _subtract_all(LabelledIntervals(*(column[rows] for column in pieces)), disjoint)
    position = np.searchsorted(np.delete(pieces.starts, rows), remaining.starts)
    starts, ends, owner = (
        np.insert(np.delete(piece, rows), position, remaining_column)
        for piece, remaining_column in zip(pieces, remaining, strict=True)
    )
    return LabelledIntervals(starts, ends, owner)


def without(disjoint: Intervals, covered: Intervals) -> Intervals:
    """A disjoint set minus the time that another set covers."""
    remaining = subtract(LabelledIntervals(*disjoint, np.zeros(len(disjoint.starts), dtype=np.int64)), covered)
    return Intervals(remaining.starts, remaining.ends)


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """The time that two disjoint sets have in common, as a disjoint set."""
    if not len(first.starts):
        return first
    return without(first, complement(second, int(first.starts[0]), int(first.ends.max())))


def _subtract_all(pieces: LabelledIntervals, disjoint: Intervals) -> LabelledIntervals:
    """`subtract` for the case that many pieces are covered."""
    first = np.searchsorted(disjoint.ends, pieces.starts, side="right")
    stop = np.searchsorted(disjoint.starts, pieces.ends, side="left")
    overlaps = np.maximum(stop - first, 0)
    total_overlaps = int(overlaps.sum())
    if not total_overlaps:
        return pieces
    # A piece with k covered intervals leaves k + 1 parts: up to the first, between each two, after the last.
    source = np.repeat(np.arange(len(overlaps)), overlaps + 1)
    first_part = np.cumsum(overlaps + 1) - (overlaps + 1)
    part = np.arange(total_overlaps + len(overlaps)) - first_part[source]
    next_interval = first[source] + part
    starts, ends = pieces.starts[source], pieces.ends[source]
    covered_before, covered_after = np.flatnonzero(part > 0), np.flatnonzero(part < overlaps[source])
    starts[covered_before] = np.maximum(starts[covered_before], disjoint.ends[next_interval[covered_before] - 1])
    ends[covered_after] = np.minimum(ends[covered_after], disjoint.starts[next_interval[covered_after]])
    not_empty = np.flatnonzero(ends > starts)
    return LabelledIntervals(starts[not_empty], ends[not_empty], pieces.owner[source[not_empty]])


def edges_until(edges: Int64s, times: Int64s) -> Int64s:
    """For each time, how many of the ascending edges lie at or before it: `np.searchsorted(edges, times, "right")`.

    Where many times ascend, as those of a trace mostly do, the few edges are searched among them instead.
    """
    if _FEW_EDGES * len(edges) > len(times) or (times[1:] < times[:-1]).any():
        return np.searchsorted(edges, times, side="right")
    places = np.searchsorted(times, edges, side="left")
    return np.repeat(np.arange(len(edges) + 1), np.diff(np.r_[0, places, len(times)]))


def measure_before(disjoint: Intervals, times: Int64s) -> Int64s:
    """How much of a disjoint set lies before each time: an exact cumulative measure.

    `measure_before(s, b) - measure_before(s, a)` is the covered time inside `[a, b)`.
    """
    if not len(disjoint.starts):
        return np.zeros(len(times), dtype=np.int64)
    index = edges_until(disjoint.starts, times)
    partial = np.where(index > 0, np.minimum(times, disjoint.ends[index - 1]) - disjoint.starts[index - 1], 0)
    before = _length_of_first(disjoint, np.maximum(index - 1, 0))
    return np.where(index > 0, before + partial, 0).astype(np.int64)


def _length_of_first(disjoint: Intervals, counts: Int64s) -> Int64s:
    """For each count, the summed length of that many leading intervals."""
    lengths = disjoint.ends - disjoint.starts
    if _FEW_TIMES * len(counts) > len(lengths):
        return running_sum(lengths)[counts]
    bounds = np.unique(np.append(counts, 0))
    bounds = bounds[bounds < len(lengths)]
    return running_sum(np.add.reduceat(lengths, bounds))[np.searchsorted(bounds, counts)]


def touches(intervals: Intervals, begins: Int64s, ends: Int64s) -> Bools:
    """Whether any of the disjoint intervals overlaps each span `[begin, end)`; spans are disjoint and sorted."""
    if len(intervals.starts) > len(begins):
        overlapping: Bools = np.searchsorted(intervals.starts, ends) > np.searchsorted(
            intervals.ends, begins, side="right"
        )
        return overlapping
    # Few intervals are searched among the spans, which are sorted.
    first = np.searchsorted(ends, intervals.starts, side="right")
    stop = np.maximum(np.searchsorted(begins, intervals.ends, side="left"), first)
    open_count = np.zeros(len(begins) + 1, dtype=np.int64)
    np.add.at(open_count, first, 1)
    np.add.at(open_count, stop, -1)
    covered: Bools = np.cumsum(open_count[:-1]) > 0
    return covered
