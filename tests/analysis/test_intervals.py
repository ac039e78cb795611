"""Interval arithmetic against bit masks: what a mask of instants says is right by definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warplens.analysis.intervals import Intervals, clip, complement, measure_before, owned_union, subtract, total, union

_LENGTH = 64
_PAIRS = st.lists(st.tuples(st.integers(0, _LENGTH), st.integers(0, 20)), max_size=10)


def _intervals(pairs: list[tuple[int, int]]) -> Intervals:
    starts = np.array([start for start, _ in pairs], dtype=np.int64)
    return Intervals(starts, np.minimum(starts + np.array([length for _, length in pairs], dtype=np.int64), _LENGTH))


def _mask(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    mask = np.zeros(_LENGTH, dtype=bool)
    for start, end in zip(starts, ends, strict=True):
        mask[start:end] = True
    return mask


@given(_PAIRS)
def test_the_union_covers_the_same_instants_once(pairs: list[tuple[int, int]]) -> None:
    given_ = _intervals(pairs)
    merged = union(given_)
    assert (_mask(*merged) == _mask(*given_)).all()
    assert total(merged) == _mask(*given_).sum()
    assert (merged.starts[1:] > merged.ends[:-1]).all()


@given(_PAIRS)
def test_each_instant_of_the_union_belongs_to_the_interval_that_began_first(pairs: list[tuple[int, int]]) -> None:
    starts, ends = _intervals(pairs)
    pieces = owned_union(starts, ends)
    assert total(pieces) == _mask(starts, ends).sum()
    for start, end, owner in zip(*pieces, strict=True):
        for instant in range(start, end):
            covering = [row for row in range(len(starts)) if starts[row] <= instant < ends[row]]
            assert owner in covering
            assert starts[owner] == min(starts[row] for row in covering)


@given(_PAIRS, _PAIRS)
def test_subtraction_leaves_what_only_the_first_covers(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    pieces = owned_union(*_intervals(first))
    rest = subtract(pieces, union(_intervals(second)))
    expected = _mask(*_intervals(first)) & ~_mask(*_intervals(second))
    assert (_mask(rest.starts, rest.ends) == expected).all()
    assert total(rest) == expected.sum()


@given(_PAIRS, st.integers(0, 40), st.integers(0, 24))
def test_the_complement_fills_the_window_exactly(pairs: list[tuple[int, int]], start: int, length: int) -> None:
    covered = union(_intervals(pairs))
    gaps = complement(covered, start, start + length)
    assert total(gaps) + total(clip(covered, start, start + length)) == length


@given(_PAIRS, st.lists(st.integers(-5, _LENGTH + 5), min_size=1, max_size=5))
def test_the_measure_before_an_instant_counts_the_covered_ones(pairs: list[tuple[int, int]], times: list[int]) -> None:
    covered = union(_intervals(pairs))
    counted = [int(_mask(*covered)[: max(0, min(time, _LENGTH))].sum()) for time in times]
    assert measure_before(covered, np.array(times)).tolist() == counted


def test_sums_stay_exact_far_beyond_the_precision_of_floats() -> None:
    day = 86_400_000_000_000
    starts = np.array([2**60, 2**60 + day + 1], dtype=np.int64)
    assert total(union(Intervals(starts, starts + day))) == 2 * day
