"""Forward, backward, optimizer, from the names of ranges."""

from __future__ import annotations

import polars as pl
import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, Row, kernel, launch, nvtx, trace
from warplens.analysis.phases import phase_statistics, phase_steps
from warplens.analysis.ranges import range_statistics
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import phase_of_name

GEMM = "ampere_sgemm_128x32_nn"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("forward_pass", "forward"),
        ("Forward", "forward"),
        ("fwd step", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("backward_pass", "backward"),
        ("AddmmBackward0", "backward"),
        ("autograd::engine::evaluate_function: MulBackward0", "backward"),
        ("optimizer_step", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("AdamW", "optimizer"),
        ("forward_backward", "none"),
        ("flash_attn::_flash_attn_forward", "none"),
        ("straightforward", "none"),
        ("step", "none"),
    ],
)
def test_names_speak_of_phases(name: str, phase: str) -> None:
    assert phase_of_name(name) == phase


def training_step() -> tuple[list[Row], list[Row], list[Row]]:
    """Kernels, calls and ranges of one step."""
    return (
        [
            kernel(100, 110, GEMM, correlation=1),
            kernel(110, 150, GEMM, correlation=2),
            kernel(150, 155, "other", correlation=3),
            kernel(155, 158, "other", correlation=4),
        ],
        [
            launch(2, 3, 1),
            launch(20, 21, 2, thread=AUTOGRAD_THREAD),
            launch(42, 43, 3),
            launch(48, 49, 4),
        ],
        [nvtx(0, 50, "step"), nvtx(1, 5, "forward"), nvtx(10, 40, "backward"), nvtx(41, 45, "optimizer")],
    )


def _training_step() -> Timeline:
    return Timeline(trace(*training_step()))


def test_the_phases_sum_to_the_gpu_time_of_the_step() -> None:
    timeline = _training_step()
    table = phase_statistics(timeline, timeline.window("all"))
    assert table.select("phase", "gpu_ns", "inferred_ns", "matmul_ns").rows() == [
        ("forward", 10, 0, 10),
        ("backward", 40, 40, 40),
        ("optimizer", 5, 0, 0),
        ("none", 3, 0, 0),
    ]
    assert table["gpu_ns"].sum() == 58
    assert table["share"].sum() == pytest.approx(1)


def test_work_below_a_range_of_autograds_own_thread_is_inferred_too() -> None:
    """The thread says what it computes, not that this is the backward pass: `ranges` counts it as inferred as well."""
    kernels, calls, ranges = training_step()
    own = nvtx(18, 25, "aten::mm", thread=AUTOGRAD_THREAD)
    timeline = Timeline(trace(kernels, calls, [*ranges, own]))
    window = timeline.window("all")
    backward = phase_statistics(timeline, window).row(1, named=True)
    (named,) = range_statistics(timeline, window, "name").filter(pl.col("name") == "backward").rows(named=True)
    assert (backward["gpu_ns"], backward["inferred_ns"]) == (40, 40) == (named["gpu_ns"], named["inferred_ns"])


def test_a_forward_pass_recomputed_inside_the_backward_pass_is_backward_work() -> None:
    timeline = Timeline(
        trace([kernel(10, 20, correlation=1)], [launch(5, 6, 1)], [nvtx(0, 9, "backward"), nvtx(4, 8, "forward")])
    )
    assert phase_statistics(timeline, timeline.window("all"))["phase"].to_list() == ["backward"]


def test_each_step_has_its_phases() -> None:
    calls = [launch(1000 * i + 10 * j, 1000 * i + 10 * j + 1, 2 * i + j + 1) for i in range(3) for j in range(2)]
    kernels = [
        kernel(1000 * i + 10 * j + 2, 1000 * i + 10 * j + 5 + j, "k", correlation=2 * i + j + 1)
        for i in range(3)
        for j in range(2)
    ]
    ranges = [
        row
        for i in range(3)
        for row in (
            nvtx(1000 * i, 1000 * i + 30, "step"),
            nvtx(1000 * i, 1000 * i + 8, "forward"),
            nvtx(1000 * i + 9, 1000 * i + 20, "backward"),
        )
    ]
    timeline = Timeline(trace(kernels, calls, ranges))
    table = phase_steps(timeline, timeline.window())
    assert table["forward_ns"].to_list() == [3, 3, 3]
    assert table["backward_ns"].to_list() == [4, 4, 4]
    assert table["none_ns"].to_list() == [0, 0, 0]


def test_without_ranges_all_work_is_outside_of_phases() -> None:
    timeline = Timeline(trace([kernel(0, 10)]))
    assert phase_statistics(timeline, timeline.window("all"))["phase"].to_list() == ["none"]
