"""Host and device are joined by process and correlation id.

How a window is written, and what it selects.

Interval arithmetic against bit masks: what a mask of instants says is right by definition.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import copy, kernel, launch, memset, nvtx, trace
from warplens.analysis.frames import sums_between
from warplens.analysis.intervals import (
    Intervals,
    clip,
    complement,
    edges_until,
    measure_before,
    owned_union,
    subtract,
    total,
    union,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import parse_span, span_text
from warplens.errors import UsageError


def test_the_same_correlation_id_in_two_processes_joins_each_to_its_own_call():
    timeline = Timeline(
        trace(
            [kernel(10, 20, correlation=5, process=1), kernel(12, 22, correlation=5, process=2)],
            [launch(0, 1, 5, process=1), launch(3, 4, 5, process=2)],
        )
    )
    assert timeline.work["launch_start_ns"].to_list() == [0, 3]


def test_work_without_a_recorded_call_has_no_launch_and_is_kept():
    timeline = Timeline(trace([kernel(10, 20, correlation=9), kernel(30, 40)], [launch(0, 1, 5)]))
    assert timeline.work["api_row"].to_list() == [None, None]
    assert timeline.work["thread"].to_list() == [None, None]


def test_of_nested_calls_with_one_correlation_id_the_outer_one_launched():
    timeline = Timeline(trace([kernel(10, 20, correlation=5)], [launch(2, 5, 5, "cuLaunchKernel"), launch(1, 6, 5)]))
    assert timeline.work["launch_start_ns"].to_list() == [1]


def test_sparse_correlation_ids_are_found_too():
    calls = [launch(i, i + 1, 10**12 * i) for i in range(1, 5)]
    timeline = Timeline(trace([kernel(50 + i, 51 + i, correlation=10**12 * i) for i in (4, 1)], calls))
    assert sorted(timeline.work["launch_start_ns"].to_list()) == [1, 4]


def test_all_kinds_of_work_stand_in_one_sequence_in_order_of_their_begin():
    timeline = Timeline(trace([kernel(10, 20), kernel(0, 5)], copies=[copy(7, 9)], memsets=[memset(5, 6)]))
    assert timeline.work["kind"].to_list() == ["kernel", "memset", "copy", "kernel"]
    assert timeline.work["row"].to_list() == [1, 0, 0, 0]


def test_a_profile_without_work_gives_an_empty_timeline():
    timeline = Timeline(trace(api=[launch(0, 1, 1)]))
    assert timeline.work.height == 0
    assert timeline.window().kind == "all"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.5s:2s", (1_500_000_000, 2_000_000_000)),
        ("0.1ms:250us", (100_000, 250_000)),
        (":3", (None, 3)),
        ("-1ms:", (-1_000_000, None)),
        ("1.000000001s:", (1_000_000_001, None)),
        ("-0.5ms:1µs", (-500_000, 1_000)),
    ],
)
def test_spans_are_exact_in_nanoseconds(text, expected):
    assert parse_span(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "START:END") for text in ("1", "1:2:3")),
        *((text, "is not a time") for text in ("a:b", "1 parsec:")),
        ("2s:1s", "ends before it begins"),
        ("5:5", "is empty"),
    ],
)
def test_a_span_that_cannot_be_read_says_what_it_should_look_like(text, said):
    with pytest.raises(UsageError, match=said):
        parse_span(text)


@given(st.integers(-(10**6), 10**15), st.integers(1, 10**12))
def test_the_text_of_a_span_is_a_window_that_holds_it(start, length):
    begin, end = parse_span(span_text(start, start + length))
    assert start - 1_000 < begin <= start < start + length <= end < start + length + 1_000


def _timeline() -> Timeline:
    return Timeline(
        trace(
            [
                kernel(10, 20, "a", correlation=1),
                kernel(30, 40, "b", correlation=2),
                kernel(50, 60, "a", correlation=3),
            ],
            [launch(0, 2, 1), launch(4, 6, 2), launch(8, 9, 3)],
            [nvtx(0, 7, "forward"), nvtx(7, 10, "backward")],
        )
    )


def test_an_explicit_window_selects_the_work_that_begins_inside():
    timeline = _timeline()
    assert timeline.kernels_in(timeline.window("30:50"))["start_ns"].to_list() == [30]


@pytest.mark.parametrize(
    ("span", "held", "how"),
    [
        ("30:50", (30, 50), "as asked for"),
        (":60", (0, 60), "as asked for"),
        ("-5:1s", (0, 60), "as asked for, as far as it was recorded"),
        ("50:61", (50, 60), "as asked for, as far as it was recorded"),
    ],
)
def test_of_an_explicit_window_the_recorded_part_counts(span, held, how):
    window = _timeline().window(span)
    assert ((window.start_ns, window.end_ns), window.how) == (held, how)


def test_a_device_counts_that_runs_work_at_any_time_in_the_window():
    calls = [launch(2, 3, 1), launch(12, 13, 2)]
    kernels = [kernel(20, 90, correlation=1, device=1), kernel(30, 40, correlation=2)]
    timeline = Timeline(trace(kernels, calls, [nvtx(0, 10, "a"), nvtx(10, 20, "b")]))
    spans = {"35:50": [0, 1], "40:50": [1], "0:20": [], "0:35": [0, 1]}
    assert {span: timeline.devices_in(timeline.window(span)) for span in spans} == spans
    assert [timeline.devices_in(timeline.window(span, "a")) for span in ("35:50", "all")] == [[1], [1]]


def test_all_selects_everything():
    timeline = _timeline()
    window = timeline.window("all")
    assert timeline.kernels_in(window).height == 3
    assert (window.start_ns, window.end_ns) == (0, 60)


def test_a_range_selects_the_work_launched_inside_it_not_the_work_that_runs_meanwhile():
    timeline = _timeline()
    assert timeline.kernels_in(timeline.window("all", "forward"))["start_ns"].to_list() == [10, 30]
    assert timeline.api_calls_in(timeline.window("all", "backward"))["correlation"].to_list() == [3]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("layers.0.mm, op_id = 7", [0]),
        ("layers.0.mm", [0, 1]),
        ("layers.*.mm", [0, 1, 2]),
        ("layers.N.mm, op_id = N", [0, 1, 2]),
        ("ProfilerStep#N", [3, 4]),
        ("ProfilerStep", [3, 4]),
        ("ProfilerStep#2", [4]),
    ],
)
def test_a_range_is_found_under_each_name_that_tables_list(name, rows):
    names = [
        *("layers.0.mm, op_id = 7", "layers.0.mm, op_id = 8", "layers.1.mm, op_id = 9"),
        *("ProfilerStep#1", "ProfilerStep#2"),
    ]
    timeline = Timeline(trace([], [], [nvtx(10 * row, 10 * row + 5, name) for row, name in enumerate(names)]))
    assert timeline.range_rows(name).tolist() == rows


def test_an_unknown_range_is_refused_with_similar_names():
    with pytest.raises(UsageError, match=r"'forwrd'.*'forward'"):
        _timeline().window("all", "forwrd")


@pytest.mark.parametrize(
    ("span", "whole", "count", "held"),
    [
        ("100:400", 3, 3, "as asked for"),
        ("50:400", 3, 3.5, "it holds 3.5 steps, 3 of them whole"),
        ("150:350", 1, 2, "it holds 2 steps, one of them whole"),
        ("120:145", 0, 0, "it holds 0.25 of a step, none of them whole"),
    ],
)
def test_a_window_that_cuts_steps_says_how_many_it_holds(span, whole, count, held):
    calls = [launch(100 * i, 100 * i + 2, i + 1) for i in range(5)]
    kernels = [kernel(100 * i + 10, 100 * i + 90, "a", correlation=i + 1) for i in range(5)]
    ranges = [nvtx(100 * i, 100 * i + 100, "step") for i in range(5)]
    window = Timeline(trace(kernels, calls, ranges)).window(span)
    assert (len(window.steps), window.step_count) == (whole, count)
    assert window.how.endswith(held)


def test_a_window_outside_of_the_recording_is_refused():
    with pytest.raises(UsageError, match=r"outside the recorded time"):
        _timeline().window("1s:")


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
def test_the_union_covers_the_same_instants_once(pairs):
    given_ = _intervals(pairs)
    merged = union(given_)
    assert (_mask(*merged) == _mask(*given_)).all()
    assert total(merged) == _mask(*given_).sum()
    assert (merged.starts[1:] > merged.ends[:-1]).all()


@given(_PAIRS)
def test_each_instant_of_the_union_belongs_to_the_interval_that_began_first(pairs):
    starts, ends = _intervals(pairs)
    pieces = owned_union(starts, ends)
    assert total(pieces) == _mask(starts, ends).sum()
    for start, end, owner in zip(*pieces, strict=True):
        for instant in range(start, end):
            covering = [row for row in range(len(starts)) if starts[row] <= instant < ends[row]]
            assert owner in covering
            assert starts[owner] == min(starts[row] for row in covering)


@given(_PAIRS, _PAIRS)
def test_subtraction_leaves_what_only_the_first_covers(first, second):
    pieces = owned_union(*_intervals(first))
    rest = subtract(pieces, union(_intervals(second)))
    expected = _mask(*_intervals(first)) & ~_mask(*_intervals(second))
    assert (_mask(rest.starts, rest.ends) == expected).all()
    assert total(rest) == expected.sum()


@given(_PAIRS, st.integers(0, 40), st.integers(0, 24))
def test_the_complement_fills_the_window_exactly(pairs, start, length):
    covered = union(_intervals(pairs))
    gaps = complement(covered, start, start + length)
    assert total(gaps) + total(clip(covered, start, start + length)) == length


@given(_PAIRS, st.lists(st.integers(-5, _LENGTH + 5), min_size=1, max_size=5))
def test_the_measure_before_an_instant_counts_the_covered_ones(pairs, times):
    covered = union(_intervals(pairs))
    counted = [int(_mask(*covered)[: max(0, min(time, _LENGTH))].sum()) for time in times]
    assert measure_before(covered, np.array(times)).tolist() == counted


@given(st.integers(60, 90), st.lists(st.integers(-3, 200), min_size=1, max_size=4))
def test_the_measure_before_few_of_many_intervals_is_the_same(count, times):
    starts = 2 * np.arange(count)  # each takes every other instant
    counted = [min(max(time + 1, 0) // 2, count) for time in times]
    assert measure_before(Intervals(starts, starts + 1), np.array(times)).tolist() == counted


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20), st.sets(st.integers(0, 20)), st.booleans())
def test_sums_between_are_those_of_each_part(values, bounds, only_signs):
    bounds = sorted(bound for bound in bounds if bound <= len(values))
    begins, ends = bounds[:-1], bounds[1:]
    given_ = np.array(values) > 0 if only_signs else np.array(values)
    summed = [int(given_[begin:end].sum()) for begin, end in zip(begins, ends, strict=True)]
    assert sums_between(given_, np.array(begins, np.int64), np.array(ends, np.int64)).tolist() == summed


@given(st.lists(st.integers(0, 20), max_size=6), st.lists(st.integers(-2, 22), max_size=40), st.booleans())
def test_edges_until_each_time_are_those_that_are_not_later(edges, times, ascending):
    edges, times = np.array(sorted(edges), dtype=np.int64), sorted(times) if ascending else times
    counted = [int((edges <= time).sum()) for time in times]
    assert edges_until(edges, np.array(times, dtype=np.int64)).tolist() == counted


def test_sums_stay_exact_far_beyond_the_precision_of_floats():
    day = 86_400_000_000_000
    starts = np.array([2**60, 2**60 + day + 1], dtype=np.int64)
    assert total(union(Intervals(starts, starts + day))) == 2 * day
