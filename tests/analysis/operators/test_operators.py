"""Operators: host time, GPU time, and whose backward pass it is; right answers counted by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.analysis.builders import AUTOGRAD_THREAD, call, kernel, launch, python_call
from tests.analysis.operators.programs import ENGINE, annotation, operator, program
from warplens.analysis.operators.coverage import framework_overhead, operator_coverage
from warplens.analysis.operators.statistics import operators_by
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError


def rows(timeline: Timeline, by: str = "name", window: str = "all") -> dict[str, dict[str, Any]]:
    table = operators_by(timeline, timeline.window(window), by)
    return {row["name"]: row for row in table.iter_rows(named=True)}


def training_step() -> Timeline:
    """`linear` with `t` and `mm` inside, `relu`, and their backward operators; an optimizer that is annotated."""
    back = {"forward_thread": 1, "thread": AUTOGRAD_THREAD}
    return program(
        [
            kernel(100, 110, "gemm", correlation=1),
            kernel(110, 113, "relu", correlation=2),
            kernel(120, 124, "relu_backward", correlation=3),
            kernel(124, 141, "gemm_backward", correlation=4),
            kernel(141, 142, "sum_to_size", correlation=5),
            kernel(150, 155, "adam", correlation=6),
        ],
        [
            launch(14, 16, 1),
            launch(22, 23, 2),
            launch(32, 33, 3, thread=AUTOGRAD_THREAD),
            launch(42, 44, 4, thread=AUTOGRAD_THREAD),
            launch(47, 48, 5, thread=AUTOGRAD_THREAD),
            launch(62, 63, 6),
        ],
        [
            operator(10, 20, "aten::linear", sequence=7),
            operator(11, 12, "aten::t", sequence=7),
            operator(13, 18, "aten::mm", sequence=8),
            operator(21, 25, "aten::relu", sequence=9),
            operator(30, 36, f"{ENGINE}ReluBackward0", sequence=9, **back),
            operator(31, 35, "ReluBackward0", sequence=9, **back),
            operator(40, 49, f"{ENGINE}MmBackward0", sequence=8, **back),
            operator(41, 46, "MmBackward0", sequence=8, **back),
            operator(41, 45, "aten::mm", thread=AUTOGRAD_THREAD),
            operator(46, 49, "aten::sum", thread=AUTOGRAD_THREAD),
            operator(50, 52, f"{ENGINE}TBackward0", sequence=7, **back),
            annotation(60, 70, "Optimizer.step#AdamW.step"),
            operator(61, 65, "aten::_foreach_add_"),
        ],
    )


def test_host_time_splits_into_operators_inside_cuda_calls_and_the_framework():
    linear, mm = (rows(training_step())[name] for name in ("aten::linear", "aten::mm"))
    assert (linear["host_ns"], linear["api_ns"], linear["host_self_ns"]) == (10, 2, 10 - 1 - 5)
    assert (mm["calls"], mm["host_ns"], mm["api_ns"], mm["host_self_ns"]) == (2, 5 + 4, 2 + 2, 3 + 2)


def test_an_api_call_inside_another_is_counted_once():
    timeline = program(
        [kernel(20, 30, correlation=1)],
        [launch(2, 8, 1), call(3, 7, "cuLaunchKernel", 1)],
        [operator(0, 10, "aten::mm")],
    )
    assert rows(timeline)["aten::mm"]["api_ns"] == 6


def test_gpu_time_goes_to_the_launching_operator_and_all_around_it():
    table = rows(training_step())
    assert (table["aten::linear"]["gpu_ns"], table["aten::linear"]["gpu_self_ns"]) == (10, 0)
    assert (table["aten::relu"]["gpu_ns"], table["aten::relu"]["gpu_self_ns"]) == (3, 3)
    assert table["aten::_foreach_add_"]["gpu_ns"] == 5


def test_backward_work_belongs_to_the_forward_operator_and_all_around_it():
    table = rows(training_step())
    # The engine's operator sums what broadcasting had expanded, which is backward work of the same node.
    assert table["aten::linear"]["backward_ns"] == 17 + 1
    assert table["aten::relu"]["backward_ns"] == 4
    assert table["aten::_foreach_add_"]["backward_ns"] == 0
    assert table["aten::t"]["backward_ns"] == 0  # bears the number of `linear`, but `mm` made the node 8


def test_work_that_is_launched_and_backward_work_of_one_name_counts_once_in_its_total():
    mm = rows(training_step())["aten::mm"]
    assert (mm["gpu_ns"], mm["backward_ns"], mm["total_ns"]) == (10 + 17, 18, 10 + 17 + 1)
    assert mm["share"] == pytest.approx(28 / 40)


def test_coverage_says_how_much_of_the_backward_pass_is_linked():
    timeline = training_step()
    coverage = operator_coverage(timeline, timeline.window("all"))
    assert (coverage.total_ns, coverage.operator_ns) == (40, 40)
    assert (coverage.backward_ns, coverage.linked_ns, coverage.linked_share) == (22, 22, 1.0)


def test_recorded_arrows_win_over_sequence_numbers():
    timeline = program(
        [kernel(100, 107, correlation=1)],
        [launch(22, 23, 1, thread=AUTOGRAD_THREAD)],
        [
            operator(0, 5, "aten::first", sequence=3),
            operator(5, 9, "aten::second", sequence=3),
            operator(20, 30, "SomeBackward", sequence=3, forward_thread=1, thread=AUTOGRAD_THREAD),
        ],
        links=[(0, 2)],
    )
    assert rows(timeline)["aten::first"]["backward_ns"] == 7
    assert rows(timeline)["aten::second"]["backward_ns"] == 0


def test_numbers_of_two_forward_threads_are_kept_apart():
    back = {"thread": AUTOGRAD_THREAD}
    timeline = program(
        [kernel(100, 107, correlation=1), kernel(110, 120, correlation=2)],
        [launch(22, 23, 1, thread=AUTOGRAD_THREAD), launch(32, 33, 2, thread=AUTOGRAD_THREAD)],
        [
            operator(0, 5, "aten::here", sequence=3),
            operator(0, 5, "aten::there", sequence=3, thread=9),
            operator(6, 8, "aten::there", sequence=4, thread=9),
            operator(20, 25, "HereBackward", sequence=3, forward_thread=1, **back),
            operator(30, 35, "ThereBackward", sequence=4, forward_thread=2, **back),
        ],
    )
    assert rows(timeline)["aten::here"]["backward_ns"] == 7
    assert rows(timeline)["aten::there"]["backward_ns"] == 10


def test_a_second_step_with_the_same_numbers_has_its_own_backward_pass():
    back = {"forward_thread": 1, "thread": AUTOGRAD_THREAD}
    timeline = program(
        [kernel(100, 101, correlation=1), kernel(200, 202, correlation=2)],
        [launch(22, 23, 1, thread=AUTOGRAD_THREAD), launch(62, 63, 2, thread=AUTOGRAD_THREAD)],
        [
            operator(0, 5, "aten::first", sequence=0),
            operator(20, 25, "Backward", sequence=0, **back),
            operator(40, 45, "aten::second", sequence=0),
            operator(60, 65, "Backward", sequence=0, **back),
        ],
    )
    assert rows(timeline)["aten::first"]["backward_ns"] == 1
    assert rows(timeline)["aten::second"]["backward_ns"] == 2


def test_recomputed_operators_lead_back_to_the_checkpoint_that_they_are_recomputed_for():
    back = {"forward_thread": 1, "thread": AUTOGRAD_THREAD}
    timeline = program(
        [kernel(100, 104, "recomputed", correlation=1), kernel(110, 118, "gradient", correlation=2)],
        [launch(32, 33, 1, thread=AUTOGRAD_THREAD), launch(42, 43, 2, thread=AUTOGRAD_THREAD)],
        [
            operator(0, 10, "CheckpointFunction", sequence=1),
            operator(30, 60, f"{ENGINE}CheckpointFunctionBackward", sequence=1, **back),
            operator(31, 35, "aten::mm", sequence=50, thread=AUTOGRAD_THREAD),
            operator(40, 50, f"{ENGINE}MmBackward0", sequence=50, forward_thread=2, thread=AUTOGRAD_THREAD),
        ],
    )
    table = rows(timeline)
    assert table["CheckpointFunction"]["backward_ns"] == 4 + 8
    assert (table["aten::mm"]["gpu_ns"], table["aten::mm"]["backward_ns"]) == (4, 8)
    # The recomputation and its gradient both run inside the checkpoint's backward operator: counted once.
    assert table[f"{ENGINE}CheckpointFunctionBackward"]["total_ns"] == 12


def test_adding_gradients_up_has_no_forward_operator():
    timeline = program(
        [kernel(100, 110, correlation=1)],
        [launch(22, 23, 1, thread=AUTOGRAD_THREAD)],
        [
            operator(20, 30, f"{ENGINE}torch::autograd::AccumulateGrad", thread=AUTOGRAD_THREAD),
            operator(21, 25, "aten::add_", thread=AUTOGRAD_THREAD),
        ],
    )
    coverage = operator_coverage(timeline, timeline.window("all"))
    assert (coverage.backward_ns, coverage.linked_ns, coverage.accumulation_ns) == (10, 0, 10)


def test_a_name_inside_itself_is_counted_once():
    timeline = program(
        [kernel(100, 107, correlation=1)],
        [launch(4, 5, 1)],
        [operator(0, 10, "aten::to"), operator(2, 8, "aten::to")],
    )
    row = rows(timeline)["aten::to"]
    assert (row["calls"], row["host_ns"], row["gpu_ns"], row["host_self_ns"]) == (2, 10, 7, 4 + 5)


def test_shapes_keep_calls_of_one_operator_apart():
    timeline = program(
        [kernel(100, 107, correlation=1), kernel(107, 109, correlation=2)],
        [launch(2, 3, 1), launch(12, 13, 2)],
        [operator(0, 10, "aten::mm", shapes="[[2, 3]]"), operator(10, 20, "aten::mm", shapes="[[9, 9]]")],
    )
    table = operators_by(timeline, timeline.window("all"), "shapes")
    assert table.select("input_shapes", "gpu_ns").rows() == [("[[2, 3]]", 7), ("[[9, 9]]", 2)]


def test_the_tree_tells_the_same_operator_by_what_it_lies_in():
    timeline = training_step()
    tree = operators_by(timeline, timeline.window("all"), "tree")
    paths = {row["id"]: row for row in tree.iter_rows(named=True)}
    matrix_products = [row for row in paths.values() if row["name"] == "aten::mm"]
    above = {paths[row["parent"]]["name"]: row["gpu_ns"] for row in matrix_products}
    assert above == {"aten::linear": 10, "MmBackward0": 17}
    assert tree["depth"].to_list()[0] == 0
    assert sum(row["gpu_ns"] for row in paths.values() if row["parent"] is None) == 40


def test_operators_count_in_the_window_of_their_gpu_work_however_far_the_host_is_ahead():
    timeline = program(
        [kernel(100, 110, correlation=1), kernel(200, 220, correlation=2)],
        [launch(2, 3, 1), launch(12, 13, 2)],
        [operator(0, 10, "aten::mm"), operator(10, 30, "aten::mm"), operator(150, 151, "aten::view")],
    )
    second = rows(timeline, window="150:300")
    assert (second["aten::mm"]["calls"], second["aten::mm"]["host_ns"], second["aten::mm"]["gpu_ns"]) == (1, 20, 20)
    assert second["aten::view"]["calls"] == 1  # launches nothing: counts where it begins


def module_step() -> Timeline:
    back = {"forward_thread": 1, "thread": AUTOGRAD_THREAD}
    return program(
        [
            kernel(100, 110, correlation=1),
            kernel(110, 130, correlation=2),
            kernel(130, 135, correlation=3),
            kernel(135, 138, correlation=4),
        ],
        [launch(22, 23, 1), launch(62, 63, 2, thread=AUTOGRAD_THREAD), launch(72, 73, 3), launch(82, 83, 4)],
        [
            operator(20, 25, "aten::linear", sequence=1),
            operator(60, 65, f"{ENGINE}AddmmBackward0", sequence=1, **back),
            annotation(70, 78, "Optimizer.step#SGD.step"),
            operator(71, 75, "aten::add_"),
            operator(81, 85, "aten::fill_"),
        ],
        python=[
            python_call(0, 90, "train.py(10): step"),
            python_call(5, 40, "nn.Module: Model_0"),
            python_call(6, 39, "model.py(3): forward"),
            python_call(10, 30, "nn.Module: Linear_0"),
            python_call(12, 29, "linear.py(124): forward"),
            python_call(15, 28, "<built-in function linear>"),
            python_call(50, 69, "train.py(20): backward"),
        ],
    )


def test_backward_work_belongs_to_the_module_that_ran_forward():
    table = operators_by(module_step(), module_step().window("all"), "module")
    shown = table.select("level", "depth", "name", "gpu_ns", "backward_ns", "total_ns").rows()
    assert shown == [
        ("module", 0, "Model_0", 10, 20, 30),
        ("module", 1, "Linear_0", 10, 20, 30),
        ("annotation", 0, "Optimizer.step#SGD.step", 5, 0, 5),
        ("operator", 0, "aten::fill_", 3, 0, 3),
    ]


def test_python_functions_own_what_their_builtins_and_modules_launch():
    table = rows(module_step(), "python")
    forward = table["linear.py(124): forward"]
    assert (forward["gpu_self_ns"], forward["backward_self_ns"]) == (10, 20)
    step = table["train.py(10): step"]
    assert (step["gpu_self_ns"], step["gpu_ns"], step["backward_ns"]) == (5 + 3, 18, 20)
    assert not any(name.startswith(("<built-in", "nn.Module")) for name in table)


def test_without_modules_annotations_name_the_place_unless_they_hold_a_whole_pass_or_step():
    timeline = program(
        [kernel(100, 104, correlation=1), kernel(104, 110, correlation=2)],
        [launch(12, 13, 1), launch(22, 23, 2)],
        [
            annotation(0, 50, "ProfilerStep#3"),
            annotation(1, 40, "## forward ##"),
            annotation(10, 20, "encoder"),
            operator(11, 15, "aten::mm"),
            operator(21, 25, "aten::relu"),
        ],
    )
    table = operators_by(timeline, timeline.window("all"), "module")
    assert table.select("level", "name", "gpu_ns").rows() == [
        ("annotation", "encoder", 4),
        ("operator", "aten::relu", 6),
    ]


def test_every_piece_of_work_stands_at_exactly_one_place():
    for timeline in (training_step(), module_step()):
        table = operators_by(timeline, timeline.window("all"), "module")
        total = int((timeline.work["end_ns"] - timeline.work["start_ns"]).sum())
        assert table.filter(pl.col("parent").is_null())["total_ns"].sum() == total
        assert table.select(pl.col("gpu_self_ns") + pl.col("backward_self_ns")).sum().item() == total


def test_overhead_splits_host_time_and_says_what_kernels_do_not_cover():
    timeline = training_step()
    overhead = framework_overhead(timeline, timeline.window("all"))
    assert overhead.threads == 2
    assert overhead.host_ns == (10 + 4 + 4) + (6 + 9 + 2)
    assert overhead.api_ns == (2 + 1 + 1) + (1 + 2 + 1)
    assert overhead.framework_ns == overhead.host_ns - overhead.api_ns
    assert overhead.uncovered_ns == overhead.window_ns - 40


def test_a_profile_without_operators_has_none():
    timeline = program([kernel(10, 20, correlation=1)], [launch(1, 2, 1)], [annotation(0, 5, "step")])
    for by in ("name", "shapes", "tree", "module", "python"):
        assert operators_by(timeline, timeline.window("all"), by).height == 0
    assert framework_overhead(timeline, timeline.window("all")) is None


def test_an_unknown_grouping_is_refused():
    timeline = training_step()
    with pytest.raises(UsageError, match="shapes"):
        operators_by(timeline, timeline.window("all"), "colour")
