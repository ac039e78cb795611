"""Nesting of ranges (depth and parent, from times alone), and lanes for overlapping slices."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np

from warplens.profile.schema import Bools, Int64s

#: Deeper nesting is left to the general method. A level costs each deeper range about 40 ns, the general method about
#: 0.8 µs at any depth: more levels would cost more than they save.
_MAX_VECTORISED_DEPTH = 32


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
    nested = _nest_sorted(start_ns[order], end_ns[order], thread[order])
    count = len(order)
    depth = np.empty(count, dtype=np.int64)
    parent = np.empty(count, dtype=np.int64)
    crossing = np.empty(count, dtype=np.bool_)
    depth[order] = nested.depth
    parent[order] = np.where(nested.parent >= 0, order[nested.parent], -1)
    crossing[order] = nested.crossing
    return Nesting(depth, parent, crossing)


def _nest_sorted(start_ns: Int64s, end_ns: Int64s, thread: Int64s) -> Nesting:
    """The nesting of sorted ranges: level by level without a loop over ranges, as long as a thread's ranges nest."""
    count = len(start_ns)
    parent = np.full(count, -1, dtype=np.int64)
    depth = np.zeros(count, dtype=np.int64)
    crossing = np.zeros(count, dtype=np.bool_)
    pending = np.arange(count)  # ranges whose enclosing range at the current level is still sought
    left: list[Int64s] = []  # ranges for the general method: those of a thread from its first level with a crossing
    for level in range(_MAX_VECTORISED_DEPTH):
        if not len(pending):
            break
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
        crosses = inside & (ends > ends[opener])
        if crosses.any():
            unsettled = np.isin(group, group[crosses])
            left.append(pending[unsettled])
            inside &= ~unsettled
        depth[pending[inside]] = level + 1
        parent[pending[inside]] = pending[opener[inside]]
        pending = pending[inside]
    rest = np.concatenate([*left, pending])
    if len(rest):
        # The levels above enclose these ranges wholly.
        below = _general(start_ns[rest], end_ns[rest], thread[rest])
        depth[rest] += below.depth
        parent[rest] = np.where(below.parent >= 0, rest[below.parent], parent[rest])
        crossing[rest] = below.crossing
    return Nesting(depth, parent, crossing)


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
    """The nesting of sorted ranges that may cross, one by one, whatever their depth.

    The stack of a thread holds the ranges that can still be a parent, with ends that do not rise towards its top: a
    range takes the place of open ones that end before it does, since it began later and encloses all that they could.
    """
    count = len(start_ns)
    depth, parent, crossing = [0] * count, [-1] * count, [False] * count
    starts, ends, threads = start_ns.tolist(), end_ns.tolist(), thread.tolist()
    stack: list[int] = []
    open_ends: list[int] = []  # a heap of the ends of all open ranges
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if row and threads[row] != threads[row - 1]:
            stack, open_ends = [], []
        while open_ends and open_ends[0] <= start:
            heapq.heappop(open_ends)
        crossing[row] = bool(open_ends) and open_ends[0] < end
        while stack and (ends[stack[-1]] <= start or ends[stack[-1]] < end):
            replaced = stack.pop()
            crossing[replaced] = crossing[replaced] or ends[replaced] > start
        if stack:
            parent[row] = stack[-1]
            depth[row] = depth[stack[-1]] + 1
        stack.append(row)
        heapq.heappush(open_ends, end)
    return Nesting(
        np.array(depth, dtype=np.int64), np.array(parent, dtype=np.int64), np.array(crossing, dtype=np.bool_)
    )


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
        rows = order[slice(*np.searchsorted(owner, [track_id, track_id + 1]).tolist())]
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
    """The lane and the depth of each slice, so that any two slices of a lane are disjoint or nest.

    In order of begins, a slice gets the lowest lane whose innermost open slice ends no earlier than it does.
    """
    nesting = nest(start_ns, end_ns, track)
    lanes, depth = np.zeros(len(start_ns), dtype=np.int64), nesting.depth.copy()
    crossing_tracks = np.unique(track[nesting.crossing])
    rows = np.flatnonzero(np.isin(track, crossing_tracks))
    rows = rows[np.lexsort((-end_ns[rows], start_ns[rows], track[rows]))]
    for of_track in np.split(rows, np.searchsorted(track[rows], crossing_tracks[1:])):
        begins, ends = start_ns[of_track], end_ns[of_track]
        open_lanes = _OpenLanes(_most_open(begins, ends))
        for row, begin, end in zip(of_track.tolist(), begins.tolist(), ends.tolist(), strict=True):
            lanes[row], depth[row] = open_lanes.place(begin, end)
    return lanes, depth


def _most_open(begins: Int64s, ends: Int64s) -> int:
    """Slices open at a time, at most; `begins` ascend."""
    begun = np.searchsorted(begins, begins, side="right")
    return int((begun - np.searchsorted(np.sort(ends), begins, side="left")).max(initial=0))


class _OpenLanes:
    """The lanes of a track while its slices are placed in order of their begins, in O(log lanes) each."""

    def __init__(self, most_lanes: int) -> None:
        self._leaves = 1 << max(most_lanes - 1, 0).bit_length()
        # A heap-ordered binary tree: a leaf holds the latest end that fits into its lane, a node that of its leaves.
        self._room = [math.inf] * (2 * self._leaves)
        self._open: list[list[int]] = [[] for _ in range(self._leaves)]  # ends of the open slices of each lane
        self._ending: list[tuple[int, int]] = []  # a heap of the same: end and lane

    def place(self, begin: int, end: int) -> tuple[int, int]:
        """The lane of the next slice, and its depth there."""
        while self._ending and self._ending[0][0] <= begin:
            lane = heapq.heappop(self._ending)[1]
            self._open[lane].pop()  # the innermost one, which ends first
            self._set_room(lane)
        node = 1
        while node < self._leaves:
            node = 2 * node if self._room[2 * node] >= end else 2 * node + 1
        lane = node - self._leaves
        depth = len(self._open[lane])
        self._open[lane].append(end)
        heapq.heappush(self._ending, (end, lane))
        self._set_room(lane)
        return lane, depth

    def _set_room(self, lane: int) -> None:
        node = self._leaves + lane
        room = self._room[node] = self._open[lane][-1] if self._open[lane] else math.inf
        while node > 1:
            room = max(room, self._room[node ^ 1])
            node //= 2
            if self._room[node] == room:
                return
            self._room[node] = room
