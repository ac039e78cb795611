"""Depth and parent of ranges, against a brute-force search."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warplens.profile.nesting import nest

_RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), max_size=12)


def _nest(ranges: list[tuple[int, int, int]]):
    starts = np.array([start for start, _, _ in ranges], dtype=np.int64)
    ends = np.array([start + length for start, length, _ in ranges], dtype=np.int64)
    threads = np.array([thread for _, _, thread in ranges], dtype=np.int64)
    return starts, ends, threads, nest(starts, ends, threads)


@given(_RANGES)
def test_the_parent_is_the_innermost_range_that_encloses(ranges):
    starts, ends, threads, nesting = _nest(ranges)
    order = np.lexsort((-ends, starts, threads)).tolist()
    place = {row: position for position, row in enumerate(order)}
    for row in range(len(ranges)):
        # Enclosing ranges begin before (in the sorted sense), are still open, and end no earlier.
        enclosing = [
            other
            for other in range(len(ranges))
            if threads[other] == threads[row]
            and place[other] < place[row]
            and ends[other] > starts[row]
            and ends[other] >= ends[row]
        ]
        expected = max(enclosing, key=place.__getitem__, default=-1)
        assert nesting.parent[row] == expected
        assert nesting.depth[row] == (nesting.depth[expected] + 1 if expected >= 0 else 0)


@given(_RANGES)
def test_exactly_the_overlapping_ranges_that_do_not_nest_are_crossing(ranges):
    starts, ends, threads, nesting = _nest(ranges)
    for row in range(len(ranges)):
        crosses = any(
            threads[other] == threads[row]
            and (
                starts[row] < starts[other] < ends[row] < ends[other]
                or starts[other] < starts[row] < ends[other] < ends[row]
            )
            for other in range(len(ranges))
        )
        assert bool(nesting.crossing[row]) == crosses


def test_of_two_equal_ranges_the_earlier_row_is_outside():
    nesting = nest(np.array([0, 0]), np.array([10, 10]), np.array([1, 1]))
    assert nesting.parent.tolist() == [-1, 0]


def test_ranges_of_different_threads_never_enclose_each_other():
    nesting = nest(np.array([0, 2]), np.array([10, 5]), np.array([1, 2]))
    assert nesting.parent.tolist() == [-1, -1]
