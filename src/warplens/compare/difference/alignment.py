"""Which of the matched launches stand in the same order on both sides: the fixed points of an alignment."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["in_order"]

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

#: One step of a large model launches some ten thousand kernels. Windows that are not divided into steps hold more, and
#: have no order that repeats.
_MOST: Final = 50_000


def in_order(left: Float64s, right: Float64s) -> Int64s | None:
    """The largest set of pairs whose places ascend on both sides.

    Args:
        left, right: shape (n,), the places of the two launches of each pair.

    Returns:
        Rows of the pairs, by place; None where there are too many to be one step.

    Source of the method: C. Schensted, Longest increasing and decreasing subsequences, Canad. J. Math. 13 (1961).
    """
    if len(left) > _MOST:
        return None
    order = np.lexsort((-right, left))  # of pairs at one place on the left, at most one can be taken
    values = right[order].tolist()
    tails: list[float] = []  # the smallest last value of an ascending row of each length
    ends: list[int] = []  # … and where it stands
    before = np.empty(len(values), dtype=np.int64)
    for position, value in enumerate(values):
        length = bisect_left(tails, value)
        before[position] = ends[length - 1] if length else -1
        if length == len(tails):
            tails.append(value)
            ends.append(position)
        else:
            tails[length], ends[length] = value, position
    chain = []
    position = ends[-1] if ends else -1
    while position >= 0:
        chain.append(position)
        position = int(before[position])
    rows: Int64s = order[np.array(chain[::-1], dtype=np.int64)]
    return rows
