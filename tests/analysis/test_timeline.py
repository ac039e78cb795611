"""Host and device are joined by process and correlation id."""

from __future__ import annotations

from tests.analysis.builders import copy, kernel, launch, memset, trace
from warplens.analysis.timeline import Timeline


def test_the_same_correlation_id_in_two_processes_joins_each_to_its_own_call() -> None:
    timeline = Timeline(
        trace(
            [kernel(10, 20, correlation=5, process=1), kernel(12, 22, correlation=5, process=2)],
            [launch(0, 1, 5, process=1), launch(3, 4, 5, process=2)],
        )
    )
    assert timeline.work["launch_start_ns"].to_list() == [0, 3]


def test_work_without_a_recorded_call_has_no_launch_and_is_kept() -> None:
    timeline = Timeline(trace([kernel(10, 20, correlation=9), kernel(30, 40)], [launch(0, 1, 5)]))
    assert timeline.work["api_row"].to_list() == [None, None]
    assert timeline.work["thread"].to_list() == [None, None]


def test_of_nested_calls_with_one_correlation_id_the_outer_one_launched() -> None:
    timeline = Timeline(trace([kernel(10, 20, correlation=5)], [launch(2, 5, 5, "cuLaunchKernel"), launch(1, 6, 5)]))
    assert timeline.work["launch_start_ns"].to_list() == [1]


def test_sparse_correlation_ids_are_found_too() -> None:
    calls = [launch(i, i + 1, 10**12 * i) for i in range(1, 5)]
    timeline = Timeline(trace([kernel(50 + i, 51 + i, correlation=10**12 * i) for i in (4, 1)], calls))
    assert sorted(timeline.work["launch_start_ns"].to_list()) == [1, 4]


def test_all_kinds_of_work_stand_in_one_sequence_in_order_of_their_begin() -> None:
    timeline = Timeline(trace([kernel(10, 20), kernel(0, 5)], copies=[copy(7, 9)], memsets=[memset(5, 6)]))
    assert timeline.work["kind"].to_list() == ["kernel", "memset", "copy", "kernel"]
    assert timeline.work["row"].to_list() == [1, 0, 0, 0]


def test_a_profile_without_work_gives_an_empty_timeline() -> None:
    timeline = Timeline(trace(api=[launch(0, 1, 1)]))
    assert timeline.work.height == 0
    assert timeline.window().kind == "all"
