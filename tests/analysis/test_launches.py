from __future__ import annotations

import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, graph, kernel, launch, nvtx, trace
from warplens.analysis.launches import LAUNCHES, PROMPT_START_NS, launch_statistics, launch_summary
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Step, Window
from warplens.errors import UsageError


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


def test_the_phases_of_a_launch_are_call_queue_and_kernel() -> None:
    gemm = launch_statistics(QUEUED, everything()).row(0, named=True)

    assert (gemm["name"], gemm["api"], gemm["launches"], gemm["matched"]) == ("gemm", "cudaLaunchKernel", 2, 2)
    assert (gemm["api_total_ns"], gemm["api_min_ns"], gemm["api_max_ns"]) == (30, 10, 20)
    assert (gemm["queue_mean_ns"], gemm["queue_min_ns"], gemm["queue_max_ns"]) == (20.0, 10, 30)
    assert (gemm["kernel_total_ns"], gemm["kernel_median_ns"]) == (60, 30.0)
    assert (gemm["whole_min_ns"], gemm["whole_max_ns"]) == (60, 70)
    assert gemm["queue_stdev_ns"] == pytest.approx(200**0.5)


def test_a_kernel_that_starts_before_its_call_returns_has_no_queue_time() -> None:
    softmax = launch_statistics(QUEUED, everything()).row(1, named=True)

    assert (softmax["launches"], softmax["queued"]) == (1, 0)
    assert (softmax["queue_mean_ns"], softmax["queue_total_ns"]) == (None, None)
    assert softmax["whole_total_ns"] == 20  # until the call returns, which is later than the kernel's end


def test_kernels_without_a_recorded_call_are_counted_but_not_timed() -> None:
    timeline = Timeline(trace(kernels=[kernel(0, 5, "k", correlation=1), kernel(6, 9, "k")], api=[launch(0, 1, 7)]))

    row = launch_statistics(timeline, everything()).row(0, named=True)

    assert (row["launches"], row["matched"], row["api"], row["api_total_ns"]) == (2, 0, None, None)
    assert row["kernel_total_ns"] == 8


def test_launches_can_be_grouped_by_thread_and_by_full_name() -> None:
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


def test_the_frame_has_the_declared_schema_even_without_launches() -> None:
    empty = launch_statistics(Timeline(trace()), everything())

    assert empty.height == 0
    assert empty.schema == LAUNCHES.by("name", "api").schema


@pytest.mark.parametrize("by", [(), ("colour",)])
def test_an_unknown_grouping_is_refused(by: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="launches cannot be grouped by"):
        launch_statistics(QUEUED, everything(), by=by)


def test_the_summary_states_its_coverage_and_rate() -> None:
    timeline = Timeline(
        trace(kernels=[kernel(10, 20, correlation=1), kernel(30, 40)], api=[launch(0, 5, 1)], window_ns=(0, 1_000))
    )

    summary = launch_summary(timeline, everything())

    assert (summary.launches, summary.matched, summary.coverage_share) == (2, 1, 0.5)
    assert summary.per_second == pytest.approx(2e6)  # 2 in 1 µs
    assert (summary.thread, summary.thread_share) == ((1, 1), 1.0)


def test_launches_per_step_are_counted_by_the_kernels_begin() -> None:
    timeline = Timeline(trace(kernels=[kernel(t, t + 1) for t in (0, 5, 10, 15, 19, 20)]))
    steps = (Step(1, 0, 10), Step(2, 10, 20))

    per_step = launch_summary(timeline, Window(0, 20, "steady", "", steps)).per_step

    assert per_step is not None
    assert (per_step.steps, per_step.min, per_step.median, per_step.max, per_step.is_constant) == (2, 2, 2.5, 3, False)


def test_launches_per_step_are_those_of_the_process_that_the_steps_belong_to() -> None:
    mine = [kernel(t, t + 4) for t in (0, 5, 10, 15)]
    others = [kernel(t, t + 1, process=2, device=1) for t in (1, 2, 3)]
    steps = (Step(1, 0, 10), Step(2, 10, 20))

    per_step = launch_summary(Timeline(trace(kernels=mine + others)), Window(0, 20, "steady", "", steps)).per_step

    assert per_step is not None
    assert (per_step.min, per_step.max, per_step.is_constant) == (2, 2, True)


def test_the_launch_interval_is_that_of_the_thread_that_launches_the_most() -> None:
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


def test_a_kernel_that_starts_right_after_its_call_found_the_gpu_waiting() -> None:
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


def test_graph_launches_count_separately() -> None:
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


def test_a_profile_without_work_has_no_rates_rather_than_zeros() -> None:
    summary = launch_summary(Timeline(trace()), everything())

    assert (summary.launches, summary.coverage_share, summary.thread, summary.interval_median_ns) == (
        0,
        None,
        None,
        None,
    )
    assert (summary.prompt_share, summary.shorter_than_interval_share, summary.per_step) == (None, None, None)


def test_only_launches_inside_the_named_range_count() -> None:
    timeline = Timeline(
        trace(
            kernels=[kernel(10, 20, "inside", correlation=1), kernel(30, 40, "outside", correlation=2)],
            api=[launch(1, 2, 1), launch(8, 9, 2)],
            ranges=[nvtx(0, 5, "forward")],
        )
    )

    statistics = launch_statistics(timeline, timeline.window("all", range_name="forward"))

    assert statistics["name"].to_list() == ["inside"]
