"""Which row of a track a slice is drawn on, where slices of one stream or thread overlap.

A track of a timeline viewer shows slices that are disjoint, or that nest. GPU streams overlap with programmatic
dependent launch, and NVTX start-end ranges may cross: such slices go to further lanes of the same name.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from warplens.profile.nesting import nest

__all__ = ["disjoint_lanes", "nested_lanes"]

Int64s = npt.NDArray[np.int64]


def disjoint_lanes(start_ns: Int64s, end_ns: Int64s, track: Int64s) -> Int64s:
    """The lane of each slice, 0 where no other is in its way, so that no two slices of a lane overlap.

    Args:
        start_ns, end_ns: shape (n,), begin and end of each slice.
        track: shape (n,), number of the track that it belongs to.
    """
    lanes = np.zeros(len(start_ns), dtype=np.int64)
    order = np.lexsort((end_ns, start_ns, track))
    begins, ends, owner = start_ns[order], end_ns[order], track[order]
    overlapping = np.flatnonzero((owner[1:] == owner[:-1]) & (begins[1:] < ends[:-1]))
    for number in np.unique(owner[overlapping]).tolist():
        rows = order[owner == number]
        free: list[tuple[int, int]] = []  # (when the lane becomes free, its number)
        count = 0
        for row, begin, end in zip(rows.tolist(), start_ns[rows].tolist(), end_ns[rows].tolist(), strict=True):
            if free and free[0][0] <= begin:
                lane = heapq.heappop(free)[1]
            else:
                lane, count = count, count + 1
            lanes[row] = lane
            heapq.heappush(free, (end, lane))
    return lanes


def nested_lanes(start_ns: Int64s, end_ns: Int64s, track: Int64s) -> tuple[Int64s, Int64s]:
    """The lane and the depth of each slice, so that any two slices of a lane are disjoint or nest."""
    nesting = nest(start_ns, end_ns, track)
    lanes, depth = np.zeros(len(start_ns), dtype=np.int64), nesting.depth.copy()
    for number in np.unique(track[nesting.crossing]).tolist():
        rows = np.flatnonzero(track == number)
        rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
        opened: list[list[int]] = []  # for each lane the ends of the slices that are open
        for row, begin, end in zip(rows.tolist(), start_ns[rows].tolist(), end_ns[rows].tolist(), strict=True):
            lane = next((lane for lane, ends in enumerate(opened) if _fits(ends, begin, end)), len(opened))
            if lane == len(opened):
                opened.append([])
            lanes[row], depth[row] = lane, len(opened[lane])
            opened[lane].append(end)
    return lanes, depth


def _fits(ends: list[int], begin: int, end: int) -> bool:
    """Whether a slice nests in what is open; what has ended by its begin is closed on the way."""
    while ends and ends[-1] <= begin:
        ends.pop()
    return not ends or end <= ends[-1]
