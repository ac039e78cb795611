from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.builders import AUTOGRAD_THREAD, call, copy, graph, kernel, launch, memset, trace
from warplens.analysis.api import next_of_thread
from warplens.analysis.launches import PROMPT_START_NS, calls_of_launching_threads, launch_statistics, launch_summary
from warplens.analysis.streams import (
    GRAPHS,
    concurrency,
    copy_overlap,
    graph_statistics,
    graph_summary,
    stream_statistics,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step, Window


def everything(start: int = 0, end: int = 1_000, steps: tuple[Step, ...] = ()) -> Window:
    return Window(start, end, "all", "everything", steps)


# Two launches of `gemm` with 10 and 30 ns of queue time, and one that starts 4 ns before its call returns.
QUEUED = Timeline(
    trace(
        kernels=[
            kernel(30, 80, "gemm", correlation=1),
            kernel(90, 100, "gemm", correlation=2),
            kernel(116, 118, "softmax", correlation=3),
        ],
        api=[launch(10, 20, 1), launch(40, 60, 2), launch(100, 120, 3)],
    )
)


def test_the_phases_of_a_launch_are_call_queue_and_kernel():
    gemm = launch_statistics(QUEUED, everything()).row(0, named=True)

    assert (gemm["name"], gemm["api"], gemm["launches"], gemm["matched"]) == ("gemm", "cudaLaunchKernel", 2, 2)
    assert (gemm["api_total_ns"], gemm["api_min_ns"], gemm["api_max_ns"]) == (30, 10, 20)
    assert (gemm["queue_mean_ns"], gemm["queue_min_ns"], gemm["queue_max_ns"]) == (20.0, 10, 30)
    assert (gemm["kernel_total_ns"], gemm["kernel_median_ns"]) == (60, 30.0)
    assert (gemm["whole_min_ns"], gemm["whole_max_ns"]) == (60, 70)
    assert gemm["queue_stdev_ns"] == pytest.approx(200**0.5)


def test_a_kernel_that_starts_before_its_call_returns_has_no_queue_time():
    softmax = launch_statistics(QUEUED, everything()).row(1, named=True)

    assert (softmax["launches"], softmax["queued"]) == (1, 0)
    assert (softmax["queue_mean_ns"], softmax["queue_total_ns"]) == (None, None)
    assert softmax["whole_total_ns"] == 20  # until the call returns, which is later than the kernel's end


def test_calls_of_launching_threads_are_in_the_order_of_each_thread():
    api = [
        launch(0, 5, 1, thread=9),
        call(6, 8, "cudaStreamSynchronize", 2, thread=4),
        call(10, 12, "cudaEventQuery", 3, thread=1),
        call(20, 25, "cudaMemcpyAsync", 4, thread=9),
        launch(30, 35, 5, thread=4),
        call(40, 45, "cudaStreamSynchronize", 6, thread=9),
    ]
    timeline = Timeline(trace(kernels=[kernel(9, 12, correlation=1), kernel(40, 50, correlation=5)], api=api))

    calls = calls_of_launching_threads(timeline, everything())

    assert calls["correlation"].to_list() == [2, 5, 1, 4, 6]  # thread 4, then thread 9; thread 1 launches nothing
    rows = np.arange(calls.height)
    assert next_of_thread(calls, rows).tolist() == [1, -1, 3, 4, -1]
    assert next_of_thread(calls, rows, -1).tolist() == [-1, 0, -1, 2, 3]


def test_kernels_without_a_recorded_call_are_counted_but_not_timed():
    timeline = Timeline(trace(kernels=[kernel(0, 5, "k", correlation=1), kernel(6, 9, "k")], api=[launch(0, 1, 7)]))

    row = launch_statistics(timeline, everything()).row(0, named=True)

    assert (row["launches"], row["matched"], row["api"], row["api_total_ns"]) == (2, 0, None, None)
    assert row["kernel_total_ns"] == 8


def test_launches_can_be_grouped_by_thread_and_by_full_name():
    timeline = Timeline(
        trace(
            kernels=[kernel(5, 7, "k", correlation=1, full_name="k<a>"), kernel(9, 10, "k", correlation=2)],
            api=[launch(0, 1, 1), launch(2, 3, 2, thread=AUTOGRAD_THREAD)],
        )
    )

    assert launch_statistics(timeline, everything(), by=("thread",)).select("thread", "launches").rows() == [
        (1, 1),
        (AUTOGRAD_THREAD, 1),
    ]
    assert launch_statistics(timeline, everything(), by=("full_name",))["full_name"].to_list() == ["k<a>", "k"]


def test_the_summary_states_its_coverage_and_rate():
    timeline = Timeline(
        trace(kernels=[kernel(10, 20, correlation=1), kernel(30, 40)], api=[launch(0, 5, 1)], window_ns=(0, 1_000))
    )

    summary = launch_summary(timeline, everything())

    assert (summary.launches, summary.matched, summary.coverage_share) == (2, 1, 0.5)
    assert summary.per_second == pytest.approx(2e6)  # 2 in 1 µs
    assert (summary.thread, summary.thread_share) == ((1, 1), 1.0)


def test_launches_per_step_are_counted_by_the_kernels_begin():
    timeline = Timeline(trace(kernels=[kernel(t, t + 1) for t in (0, 5, 10, 15, 19, 20)]))
    steps = (Step(1, 0, 10), Step(2, 10, 20))

    per_step = launch_summary(timeline, Window(0, 20, "steady", "", steps)).per_step

    assert (per_step.steps, per_step.min, per_step.median, per_step.max, per_step.is_constant) == (2, 2, 2.5, 3, False)


def test_launches_per_step_are_those_of_the_process_that_the_steps_belong_to():
    mine = [kernel(t, t + 4) for t in (0, 5, 10, 15)]
    others = [kernel(t, t + 1, process=2, device=1) for t in (1, 2, 3)]
    steps = (Step(1, 0, 10), Step(2, 10, 20))

    per_step = launch_summary(Timeline(trace(kernels=mine + others)), Window(0, 20, "steady", "", steps)).per_step

    assert (per_step.min, per_step.max, per_step.is_constant) == (2, 2, True)


def test_the_launch_interval_is_that_of_the_thread_that_launches_the_most():
    timeline = Timeline(
        trace(
            kernels=[
                kernel(1_000 * i, 1_000 * i + d, correlation=i) for i, d in enumerate((3, 30, 300, 5, 7), start=1)
            ],
            api=[
                launch(0, 4, 1),
                launch(20, 24, 2),
                launch(40, 44, 3),
                launch(100, 104, 4, thread=AUTOGRAD_THREAD),
                launch(900, 904, 5, thread=AUTOGRAD_THREAD),
            ],
        )
    )

    summary = launch_summary(timeline, everything(0, 10_000))

    assert (summary.thread, summary.thread_share, summary.interval_median_ns) == ((1, 1), 0.6, 20.0)
    assert summary.shorter_than_interval_share == 0.6  # 3, 5 and 7 ns
    assert (summary.api_total_ns, summary.api_mean_ns) == (20, 4.0)


def test_a_kernel_that_starts_right_after_its_call_found_the_gpu_waiting():
    timeline = Timeline(
        trace(
            kernels=[
                kernel(10 + PROMPT_START_NS - 1, 20_000, correlation=1),
                kernel(30 + PROMPT_START_NS, 40_000, correlation=2),
            ],
            api=[launch(0, 10, 1), launch(20, 30, 2)],
        )
    )

    assert launch_summary(timeline, everything(0, 50_000)).prompt_share == 0.5


def test_graph_launches_count_separately():
    timeline = Timeline(
        trace(
            kernels=[
                kernel(10, 20, correlation=1),
                kernel(30, 40, correlation=2, graph_node=100),
                kernel(40, 50, correlation=2, graph_node=101),
            ],
            graph_launches=[graph(60, 90, correlation=3)],
            api=[launch(0, 2, 1), launch(3, 8, 2, "cudaGraphLaunch"), launch(9, 12, 3, "cudaGraphLaunch")],
        )
    )

    summary = launch_summary(timeline, everything())

    assert (summary.launches, summary.matched) == (1, 1)
    assert (summary.graph_launches, summary.graph_kernels, summary.graph_api_total_ns) == (2, 2, 8)


def test_a_profile_without_work_has_no_rates_rather_than_zeros():
    summary = launch_summary(Timeline(trace()), everything())

    assert (summary.launches, summary.coverage_share, summary.thread, summary.interval_median_ns) == (
        0,
        None,
        None,
        None,
    )
    assert (summary.prompt_share, summary.shorter_than_interval_share, summary.per_step) == (None, None, None)


WINDOW = Window(0, 1_000, "explicit", "as asked for")

# Graph 4 runs twice, 30 and 50 ns, its inside hidden; 20 ns of other kernels, 10 of which run beside a graph.
WHOLE = Timeline(
    trace(
        kernels=[kernel(20, 40, stream=2, correlation=1)],
        graph_launches=[graph(0, 30, correlation=2, graph_id=4), graph(100, 150, correlation=3, graph_id=4)],
        api=[launch(0, 1, 1), launch(0, 1, 2, "cudaGraphLaunch"), launch(50, 51, 3, "cudaGraphLaunch")],
    )
)

# A graph of two kernels and a copy is replayed twice; one kernel lacks the node id, but the graph's launch started it.
NODES = Timeline(
    trace(
        kernels=[
            kernel(10, 20, correlation=1, graph_node=70),
            kernel(25, 30, correlation=1),
            kernel(110, 120, correlation=2, graph_node=70),
            kernel(120, 125, correlation=2, graph_node=71),
            kernel(200, 300, correlation=3),
        ],
        copies=[copy(20, 22, correlation=1, graph_node=72), copy(125, 129, correlation=2, graph_node=72)],
        api=[launch(0, 1, 1, "cudaGraphLaunch"), launch(90, 91, 2, "cudaGraphLaunch"), launch(92, 93, 3)],
    )
)


def test_a_graph_traced_as_a_whole_is_busy_and_hidden():
    summary = graph_summary(WHOLE, WINDOW)

    assert (summary.whole_launches, summary.node_launches, summary.nodes_per_launch) == (2, 0, None)
    assert (summary.hidden_ns, summary.busy_ns, summary.gpu_busy_ns) == (80, 80, 90)
    assert summary.hidden_share == 80 / 90


def test_hidden_time_is_cut_at_the_edges_of_the_window():
    assert graph_summary(WHOLE, Window(10, 120, "explicit", "")).hidden_ns == 40


def test_nodes_are_counted_per_launch_with_their_copies():
    summary = graph_summary(NODES, WINDOW)

    assert (summary.node_launches, summary.nodes, summary.nodes_per_launch) == (2, 6, (3, 3.0, 3))
    assert (summary.hidden_ns, summary.hidden_share) == (0, 0.0)
    assert (summary.busy_ns, summary.gpu_busy_ns) == (17 + 19, 136)


def test_a_launch_lasts_from_its_first_work_to_its_last():
    assert graph_statistics(NODES, WINDOW).select(
        "traced", "graph", "launches", "nodes_per_launch", "total_ns"
    ).rows() == [("nodes", 70, 2, 3.0, 20 + 19)]
    assert graph_statistics(WHOLE, WINDOW).select(
        "traced", "graph", "launches", "nodes_per_launch", "max_ns"
    ).rows() == [("whole", 4, 2, None, 50)]


def test_without_graphs_there_is_nothing_to_report():
    timeline = Timeline(trace(kernels=[kernel(0, 10, correlation=1)], api=[launch(0, 1, 1)]))

    assert (graph_statistics(timeline, WINDOW).height, graph_statistics(timeline, WINDOW).schema) == (0, GRAPHS.schema)
    assert graph_summary(timeline, WINDOW).busy_share == 0.0
    assert graph_summary(Timeline(trace()), WINDOW).busy_share is None


WINDOW_STREAMS = Window(0, 100, "explicit", "as asked for")


def test_a_stream_is_busy_for_the_union_of_its_work():
    timeline = Timeline(
        trace(
            kernels=[kernel(0, 20, stream=1), kernel(10, 30, stream=1), kernel(5, 10, stream=2)],
            copies=[copy(40, 50, stream=1)],
            memsets=[memset(50, 52, stream=2)],
        )
    )

    rows = (
        stream_statistics(timeline, WINDOW_STREAMS)
        .select("stream", "kernels", "copies", "memsets", "busy_ns", "share")
        .rows()
    )

    assert rows == [(1, 2, 1, 0, 40, 0.4), (2, 1, 0, 1, 7, 0.07)]


def test_streams_of_two_devices_and_processes_are_not_confused():
    timeline = Timeline(trace(kernels=[kernel(0, 9), kernel(0, 8, device=1), kernel(0, 7, process=2)]))

    rows = stream_statistics(timeline, WINDOW_STREAMS).select("device", "process", "stream", "busy_ns").rows()

    assert rows == [(0, 1, 7, 9), (1, 1, 7, 8), (0, 2, 7, 7)]


def test_work_that_reaches_over_an_edge_counts_with_the_part_inside():
    timeline = Timeline(trace(kernels=[kernel(-50, 10), kernel(95, 300), kernel(400, 500)]))

    assert stream_statistics(timeline, WINDOW_STREAMS).select("kernels", "busy_ns").rows() == [(2, 15)]


def test_the_times_with_none_one_two_kernels_sum_to_the_window():
    # 0─10 one, 10─20 two, 20─30 three (a graph counts as a kernel), 30─40 one; copies do not count.
    timeline = Timeline(
        trace(
            kernels=[kernel(0, 40, stream=1), kernel(10, 30, stream=2)],
            graph_launches=[graph(20, 30, stream=3)],
            copies=[copy(50, 60)],
        )
    )

    assert concurrency(timeline, WINDOW_STREAMS).drop("device").rows() == [
        (0, 60, 100, 0.6),
        (1, 20, 40, 0.2),
        (2, 10, 20, 0.1),
        (3, 10, 10, 0.1),
    ]


def test_a_kernel_that_begins_as_another_ends_does_not_run_beside_it():
    timeline = Timeline(trace(kernels=[kernel(0, 50), kernel(50, 100)]))

    assert concurrency(timeline, WINDOW_STREAMS).select("kernels_at_once", "time_ns").rows() == [(1, 100)]


@given(
    st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 60), st.integers(0, 1)), max_size=30),
    st.integers(0, 90),
    st.integers(1, 60),
)
def test_concurrency_equals_a_count_at_every_nanosecond(work, start, length):
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


def test_copies_hide_behind_kernels_or_are_exposed():
    timeline = Timeline(
        trace(
            kernels=[kernel(0, 20)],
            copies=[copy(10, 30, stream=2), copy(25, 35, stream=3)],
            memsets=[memset(50, 55)],
        )
    )

    assert copy_overlap(timeline, WINDOW_STREAMS).rows() == [(0, 20, 30, 10, 20, pytest.approx(1 / 3))]


def test_a_device_without_copies_has_no_overlap_to_speak_of():
    assert copy_overlap(Timeline(trace(kernels=[kernel(0, 20)])), WINDOW_STREAMS).rows() == [(0, 20, 0, 0, 0, None)]
