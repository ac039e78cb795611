"""Depth and parent of ranges, against a brute-force search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warplens.profile.nesting import Nesting, nest, nested_lanes

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


@st.composite
def _trees(draw: st.DrawFn) -> list[list[int]]:
    """Ranges that nest, on some threads: begin, end, thread, and the parent and depth that they are made with."""
    rows: list[list[int]] = []
    for thread in range(draw(st.integers(1, 4))):
        opened, now = [], draw(st.integers(-3, 3))
        for opens in draw(st.lists(st.booleans(), max_size=14)):
            now += draw(st.integers(0 if opens else 1, 2))
            if opens:
                rows.append([now, now, thread, opened[-1] if opened else -1, len(opened)])
                opened.append(len(rows) - 1)
            elif opened:
                rows[opened.pop()][1] = now
        for after, row in enumerate(reversed(opened), start=1):
            rows[row][1] = now + after
    return rows


@pytest.mark.parametrize("unit", [1, 2**57], ids=["nanoseconds", "of centuries"])
@settings(max_examples=40)
@given(rows=_trees())
def test_ranges_that_nest_have_the_parents_that_they_were_made_with_and_need_no_loop(unit, rows):
    starts, ends, threads, parents, depths = np.array(rows, dtype=np.int64).reshape(-1, 5).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warplens.profile.nesting._general", lambda *_: pytest.fail("one by one"))
        nesting = nest(starts * unit, ends * unit, threads)
    assert nesting.parent.tolist() == parents.tolist()
    assert nesting.depth.tolist() == depths.tolist()
    assert not nesting.crossing.any()


def _one_by_one(starts, ends, threads) -> Nesting:
    """The definition as a plain loop: each range is compared with all that are open when it begins."""
    parent, depth, crossing = (np.full(len(starts), value) for value in (-1, 0, False))
    opened: list[int] = []
    before = None
    for row in np.lexsort((-ends, starts, threads)).tolist():
        opened = [other for other in opened if threads[row] == before and ends[other] > starts[row]]
        before = threads[row]
        for other in reversed(opened):
            if ends[other] < ends[row]:
                crossing[row] = crossing[other] = True
            elif parent[row] < 0:
                parent[row], depth[row] = other, depth[other] + 1
        opened.append(row)
    return Nesting(depth, parent, crossing)


@pytest.mark.parametrize("levels", [0, 1, 2, 32])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shortest", [0, -3])
def test_ranges_with_many_ties_nest_as_one_by_one(levels, threads, shortest, monkeypatch):
    monkeypatch.setattr("warplens.profile.nesting._MAX_VECTORISED_DEPTH", levels)
    random = np.random.default_rng(1)
    for _ in range(150):
        count, span = random.integers(0, 40), random.integers(1, 40)
        start = random.integers(0, span, count)
        end = start + random.integers(shortest, random.integers(1, 2 * span), count)
        thread = random.integers(0, threads, count)
        for found, expected in zip(nest(start, end, thread), _one_by_one(start, end, thread), strict=True):
            assert found.tolist() == expected.tolist()


def test_only_threads_with_crossing_ranges_are_nested_one_by_one(monkeypatch):
    one_by_one: list[int] = []

    def general(start_ns, end_ns, thread):
        one_by_one.extend(thread.tolist())
        return _one_by_one(start_ns, end_ns, thread)

    monkeypatch.setattr("warplens.profile.nesting._general", general)
    nesting = nest(np.array([0, 2, 0, 3, 0, 2]), np.array([9, 5, 5, 9, 9, 5]), np.array([1, 1, 2, 2, 3, 3]))
    assert one_by_one == [2, 2]
    assert nesting.parent.tolist() == [-1, 0, -1, -1, -1, 4]
    assert nesting.crossing.tolist() == [False, False, True, True, False, False]


@pytest.mark.parametrize("shape", ["crossing", "deep"])
def test_many_ranges_are_open_at_a_time(shape):
    """Each compared with all that are open would be 200 million comparisons."""
    count = 20_000
    start = np.arange(count)
    end = start + count if shape == "crossing" else 3 * count - start
    nesting = nest(start, end, np.zeros(count, dtype=np.int64))
    assert nesting.crossing.all() == (shape == "crossing")
    assert nesting.depth.tolist() == ([0] * count if shape == "crossing" else list(range(count)))


def test_of_two_equal_ranges_the_earlier_row_is_outside():
    nesting = nest(np.array([0, 0]), np.array([10, 10]), np.array([1, 1]))
    assert nesting.parent.tolist() == [-1, 0]


def test_ranges_of_different_threads_never_enclose_each_other():
    nesting = nest(np.array([0, 2]), np.array([10, 5]), np.array([1, 2]))
    assert nesting.parent.tolist() == [-1, -1]


def _lowest_lanes(slices: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The lane and the depth of each slice, by a look at all lanes: the lowest of which each open slice holds it."""
    lanes: list[list[int]] = []
    found = {}
    for number in sorted(range(len(slices)), key=lambda number: (slices[number][0], -slices[number][1])):
        begin, end = slices[number]
        lanes = [[other for other in lane if slices[other][1] > begin] for lane in lanes]
        fitting = (place for place, lane in enumerate(lanes) if all(slices[other][1] >= end for other in lane))
        place = next(fitting, len(lanes))
        lanes += [[]] * (place == len(lanes))
        found[number] = place, len(lanes[place])
        lanes[place] = [*lanes[place], number]
    return [found[number] for number in range(len(slices))]


@pytest.mark.parametrize("seed", range(30))
def test_crossing_slices_get_the_lowest_lane_in_which_they_nest(seed):
    random = np.random.default_rng(seed)
    begin = random.integers(0, 50, 40)
    end = begin + random.integers(0, 30, 40)
    lane, depth = nested_lanes(begin, end, np.zeros(40, np.int64))
    assert list(zip(lane.tolist(), depth.tolist(), strict=True)) == _lowest_lanes(list(zip(begin, end, strict=True)))


def test_thousands_of_lanes_are_not_looked_at_one_by_one():
    """Half of all pairs of 50,000 slices would be a billion looks."""
    begin = np.arange(50_000)
    lane, depth = nested_lanes(begin, begin + 50_000, np.zeros(50_000, np.int64))
    assert lane.tolist() == begin.tolist()
    assert not depth.any()
