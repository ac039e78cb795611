"""Nesting of ranges (depth and parent, from times alone), and lanes for overlapping slices."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from warplens.profile.schema import Bools, Int64s

#: Deeper nesting than this is left to the general method, whose cost does not grow with the depth.
_MAX_VECTORISED_DEPTH = 256


class Nesting(NamedTuple):
    """`depth[i]`, `parent[i]` (−1 for an outermost range), and whether the range overlaps another without nesting."""

    depth: Int64s
    parent: Int64s
    crossing: Bools


def nest(start_ns: Int64s, end_ns: Int64s, thread: Int64s) -> Nesting:
    """The enclosing range of each range, within each thread.

    A range's parent is the innermost range of its thread that is open when it starts and ends no earlier than it does.
    Ranges that merely overlap (NVTX start-end ranges may) are marked `crossing` and get the innermost range that does
    enclose them. Of two ranges with the same begin the longer one is outside; of two equal ones, the earlier row.

    Args:
        start_ns, end_ns: shape (n,), begin and end of each range.
        thread: shape (n,), a distinct number for each thread.
    """
    order = np.lexsort((-end_ns, start_ns, thread))
    nested = _properly_nested(start_ns[order], end_ns[order], thread[order])
    if nested is None:
        nested = _general(start_ns[order], end_ns[order], thread[order])
    count = len(order)
    depth = np.empty(count, dtype=np.int64)
    parent = np.empty(count, dtype=np.int64)
    crossing = np.empty(count, dtype=np.bool_)
    depth[order] = nested.depth
    parent[order] = np.where(nested.parent >= 0, order[nested.parent], -1)
    crossing[order] = nested.crossing
    return Nesting(depth, parent, crossing)


def _properly_nested(start_ns: Int64s, end_ns: Int64s, thread: Int64s) -> Nesting | None:
    """The nesting of sorted ranges without crossings, level by level without a loop over ranges; else None."""
    count = len(start_ns)
    rows = np.arange(count)
    parent = np.full(count, -1, dtype=np.int64)
    depth = np.zeros(count, dtype=np.int64)
    pending = rows  # ranges whose enclosing range at the current level is still sought
    for level in range(_MAX_VECTORISED_DEPTH):
        if not len(pending):
            return Nesting(depth, parent, np.zeros(count, dtype=np.bool_))
        # In start order, a range opens this level when it begins at or after the end of the level's previous one.
        # That previous one is found by a running maximum of ends, which is exact as long as ranges nest.
        starts, ends, threads = start_ns[pending], end_ns[pending], thread[pending]
        new_thread = np.r_[True, threads[1:] != threads[:-1]]
        group = np.cumsum(new_thread) - 1
        reach = _running_max_before(ends, group)
        opens = new_thread | (starts >= reach)
        # A zero-length range at its sibling's end is a sibling, too.
        opener = np.maximum.accumulate(np.where(opens, np.arange(len(pending)), 0))
        inside = ~opens
        if np.any(ends[inside] > ends[opener[inside]]):
            return None
        depth[pending[inside]] = level + 1
        parent[pending[inside]] = pending[opener[inside]]
        pending = pending[inside]
    return None


def _running_max_before(values: Int64s, group: Int64s) -> Int64s:
    """For each element the maximum of the earlier ones of its (contiguous, ascending) group.

    The lowest int64 for the first element of a group.
    """
    if not len(values):
        return values
    # Each group is shifted above the one before it.
    least = values.min()
    span = values.max() - least + 1
    # time spans of centuries: ranks keep the order of the values
    if int(span) * (int(group[-1]) + 1) > np.iinfo(np.int64).max:
        distinct, rank = np.unique(values, return_inverse=True)
        rank_before = _running_max_before(rank.reshape(-1), group)
        return np.where(rank_before >= 0, distinct[np.maximum(rank_before, 0)], np.iinfo(np.int64).min)
    shift = group * span
    before = np.r_[-1, np.maximum.accumulate(values - least + shift)[:-1]] - shift
    return np.where(before >= 0, before + least, np.iinfo(np.int64).min)


def _general(start_ns: Int64s, end_ns: Int64s, thread: Int64s) -> Nesting:
    """The nesting of sorted ranges that may cross, with one stack per thread."""
    count = len(start_ns)
    depth = np.zeros(count, dtype=np.int64)
    parent = np.full(count, -1, dtype=np.int64)
    crossing = np.zeros(count, dtype=np.bool_)
    starts, ends, threads = start_ns.tolist(), end_ns.tolist(), thread.tolist()
    stack: list[int] = []
    for row in range(count):
        if row and threads[row] != threads[row - 1]:
            stack = []
        stack = [open_ for open_ in stack if ends[open_] > starts[row]]
        for position in range(len(stack) - 1, -1, -1):
            enclosing = stack[position]
            if ends[enclosing] < ends[row]:
                crossing[row] = crossing[enclosing] = True
            elif parent[row] < 0:
                parent[row] = enclosing
                depth[row] = depth[enclosing] + 1
        stack.append(row)
    return Nesting(depth, parent, crossing)


# --- Lanes of a track for overlapping slices of one stream or thread ---
#
# A track of a timeline shows slices that are disjoint, or that nest. GPU streams overlap with programmatic dependent
# launch, and NVTX start-end ranges may cross: such slices go to further lanes of the same name.


def disjoint_lanes(start_ns: Int64s, end_ns: Int64s, track: Int64s) -> Int64s:
    """The lane of each slice, the lowest that is free, so that no two slices of a lane overlap."""
    lanes = np.zeros(len(start_ns), dtype=np.int64)
    order = np.lexsort((end_ns, start_ns, track))
    begins, ends, owner = start_ns[order], end_ns[order], track[order]
    overlapping = np.flatnonzero((owner[1:] == owner[:-1]) & (begins[1:] < ends[:-1]))
    for track_id in np.unique(owner[overlapping]).tolist():
        rows = order[owner == track_id]
        busy_lanes: list[tuple[int, int]] = []  # (time at which the lane becomes free, its number)
        free_lanes: list[int] = []
        lane_count = 0
        for row, begin, end in zip(rows.tolist(), start_ns[rows].tolist(), end_ns[rows].tolist(), strict=True):
            while busy_lanes and busy_lanes[0][0] <= begin:
                heapq.heappush(free_lanes, heapq.heappop(busy_lanes)[1])
            if free_lanes:
                lane = heapq.heappop(free_lanes)
            else:
                lane, lane_count = lane_count, lane_count + 1
            lanes[row] = lane
            heapq.heappush(busy_lanes, (end, lane))
    return lanes


def nested_lanes(start_ns: Int64s, end_ns: Int64s, track: Int64s) -> tuple[Int64s, Int64s]:
    """The lane and the depth of each slice, so that any two slices of a lane are disjoint or nest."""
    nesting = nest(start_ns, end_ns, track)
    lanes, depth = np.zeros(len(start_ns), dtype=np.int64), nesting.depth.copy()
    for track_id in np.unique(track[nesting.crossing]).tolist():
        rows = np.flatnonzero(track == track_id)
        rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        open_ends: list[list[int]] = []  # ends of the open slices of each lane
        for row, begin, end in zip(rows.tolist(), start_ns[rows].tolist(), end_ns[rows].tolist(), strict=True):
            lane = next((lane for lane, ends in enumerate(open_ends) if _fits(ends, begin, end)), len(open_ends))
            if lane == len(open_ends):
                open_ends.append([])
            lanes[row], depth[row] = lane, len(open_ends[lane])
            open_ends[lane].append(end)
    return lanes, depth


def _fits(ends: list[int], begin: int, end: int) -> bool:
    """Whether a slice nests in the open ones; slices that ended by its begin are removed first."""
    while ends and ends[-1] <= begin:
        ends.pop()
    return not ends or end <= ends[-1]
