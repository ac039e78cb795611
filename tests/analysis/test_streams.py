from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.builders import copy, graph, kernel, launch, memset, nvtx, trace
from warplens.analysis.streams import (
    CONCURRENCY,
    OVERLAPS,
    STREAMS,
    concurrency,
    copy_overlap,
    stream_statistics,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window

WINDOW = Window(0, 100, "explicit", "as asked for")


def test_a_stream_is_busy_for_the_union_of_its_work() -> None:
    timeline = Timeline(
        trace(
            kernels=[kernel(0, 20, stream=1), kernel(10, 30, stream=1), kernel(5, 10, stream=2)],
            copies=[copy(40, 50, stream=1)],
            memsets=[memset(50, 52, stream=2)],
        )
    )

    rows = (
        stream_statistics(timeline, WINDOW).select("stream", "kernels", "copies", "memsets", "busy_ns", "share").rows()
    )

    assert rows == [(1, 2, 1, 0, 40, 0.4), (2, 1, 0, 1, 7, 0.07)]


def test_streams_of_two_devices_and_processes_are_not_confused() -> None:
    timeline = Timeline(trace(kernels=[kernel(0, 9), kernel(0, 8, device=1), kernel(0, 7, process=2)]))

    rows = stream_statistics(timeline, WINDOW).select("device", "process", "stream", "busy_ns").rows()

    assert rows == [(0, 1, 7, 9), (1, 1, 7, 8), (0, 2, 7, 7)]


def test_work_that_reaches_over_an_edge_counts_with_the_part_inside() -> None:
    timeline = Timeline(trace(kernels=[kernel(-50, 10), kernel(95, 300), kernel(400, 500)]))

    assert stream_statistics(timeline, WINDOW).select("kernels", "busy_ns").rows() == [(2, 15)]


def test_only_work_inside_the_named_range_counts() -> None:
    timeline = Timeline(
        trace(
            kernels=[kernel(10, 20, correlation=1), kernel(30, 50, correlation=2)],
            api=[launch(1, 2, 1), launch(8, 9, 2)],
            ranges=[nvtx(0, 5, "forward")],
        )
    )

    assert stream_statistics(timeline, timeline.window("all", "forward"))["busy_ns"].to_list() == [10]


def test_the_times_with_none_one_two_kernels_sum_to_the_window() -> None:
    # 0─10 one, 10─20 two, 20─30 three (a graph counts as a kernel), 30─40 one; copies do not count.
    timeline = Timeline(
        trace(
            kernels=[kernel(0, 40, stream=1), kernel(10, 30, stream=2)],
            graph_launches=[graph(20, 30, stream=3)],
            copies=[copy(50, 60)],
        )
    )

    assert concurrency(timeline, WINDOW).drop("device").rows() == [
        (0, 60, 100, 0.6),
        (1, 20, 40, 0.2),
        (2, 10, 20, 0.1),
        (3, 10, 10, 0.1),
    ]


def test_a_kernel_that_begins_as_another_ends_does_not_run_beside_it() -> None:
    timeline = Timeline(trace(kernels=[kernel(0, 50), kernel(50, 100)]))

    assert concurrency(timeline, WINDOW).select("kernels_at_once", "time_ns").rows() == [(1, 100)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 60), st.integers(0, 1)), max_size=30),
    st.integers(0, 90),
    st.integers(1, 60),
)
def test_concurrency_equals_a_count_at_every_nanosecond(
    work: list[tuple[int, int, int]], start: int, length: int
) -> None:
    window = Window(start, start + length, "explicit", "")
    timeline = Timeline(trace(kernels=[kernel(s, s + d, device=device) for s, d, device in work]))

    found = {(device, level): time for device, level, time, *_ in concurrency(timeline, window).rows()}

    counted: dict[tuple[int, int], int] = {}
    inside = [(s, s + d, device) for s, d, device in work if s < window.end_ns and s + d > window.start_ns]
    for device in {device for *_, device in inside}:
        for now in range(window.start_ns, window.end_ns):
            level = sum(s <= now < e for s, e, where in inside if where == device)
            counted[device, level] = counted.get((device, level), 0) + 1
    assert found == counted


def test_copies_hide_behind_kernels_or_are_exposed() -> None:
    timeline = Timeline(
        trace(
            kernels=[kernel(0, 20)],
            copies=[copy(10, 30, stream=2), copy(25, 35, stream=3)],
            memsets=[memset(50, 55)],
        )
    )

    assert copy_overlap(timeline, WINDOW).rows() == [(0, 20, 30, 10, 20, pytest.approx(1 / 3))]


def test_a_device_without_copies_has_no_overlap_to_speak_of() -> None:
    assert copy_overlap(Timeline(trace(kernels=[kernel(0, 20)])), WINDOW).rows() == [(0, 20, 0, 0, 0, None)]


def test_the_frames_have_the_declared_schemas_even_without_work() -> None:
    nothing = Timeline(trace())

    assert stream_statistics(nothing, WINDOW).schema == STREAMS.schema
    assert concurrency(nothing, WINDOW).schema == CONCURRENCY.schema
    assert copy_overlap(nothing, WINDOW).schema == OVERLAPS.schema
