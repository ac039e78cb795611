"""`warplens operators`, and the other tables, on a trace of the PyTorch profiler that can be counted by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.torch_trace import BACKWARD_NS, FORWARD_NS, OPTIMIZER_NS, STEPS, write_trace

TOTAL_NS = STEPS * (FORWARD_NS + BACKWARD_NS + OPTIMIZER_NS)


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "trace.json")


@pytest.fixture
def data(warplens, trace):
    """`data` of the JSON that a command prints."""

    def ask(*arguments: str) -> dict[str, Any]:
        command, *options = arguments
        run = warplens(command, trace, *options, "--format", "json")
        assert run.code == 0, run.err
        return json.loads(run.out)["data"]

    return ask


def test_operators_have_host_gpu_and_backward_time(data):
    rows = {row["name"]: row for row in data("operators")["rows"]}
    linear = rows["aten::linear"]
    assert linear["calls"] == STEPS
    assert (linear["host_ns"], linear["api_ns"], linear["host_self_ns"]) == (200_000, 10_000, 190_000)
    assert (linear["gpu_ns"], linear["backward_ns"]) == (STEPS * FORWARD_NS, STEPS * BACKWARD_NS)
    assert linear["share"] == pytest.approx((FORWARD_NS + BACKWARD_NS) / (TOTAL_NS / STEPS))


def test_coverage_and_overhead_are_stated(data):
    answer = data("operators")
    assert answer["coverage"]["operator_share"] == answer["coverage"]["linked_share"] == 1.0
    assert answer["overhead"]["threads"] == 2
    assert answer["overhead"]["host_ns"] == STEPS * (100_000 + 100_000 + 50_000)
    assert answer["overhead"]["framework_ns"] == answer["overhead"]["host_ns"] - STEPS * 15_000


def test_modules_have_their_backward_pass(data):
    rows = [
        (row["level"], row["name"], row["gpu_ns"], row["backward_ns"])
        for row in data("operators", "--by", "module")["rows"]
    ]
    assert rows == [
        ("module", "Linear_0", STEPS * FORWARD_NS, STEPS * BACKWARD_NS),
        ("annotation", "Optimizer.step#SGD.step", STEPS * OPTIMIZER_NS, 0),
    ]


def test_python_functions_stand_by_what_they_launch(data):
    rows = {row["name"]: row["gpu_self_ns"] for row in data("operators", "--by", "python")["rows"]}
    assert rows == {"linear.py(124): forward": STEPS * FORWARD_NS, "train.py(7): step": STEPS * OPTIMIZER_NS}


def test_shapes_are_told(data):
    shapes = {row["name"]: row["input_shapes"] for row in data("operators", "--by", "shapes")["rows"]}
    assert json.loads(shapes["aten::linear"]) == [[4, 8], [8, 8], []]


def test_a_limited_tree_names_what_it_leaves_out(warplens, trace):
    run = warplens("operators", trace, "--by", "tree", "--limit", "1")
    assert "the 1 of 3 rows with the most GPU time" in run.out
    assert "aten::linear" in run.out
    assert "aten::add_" not in run.out


def test_without_python_stacks_the_level_used_and_what_to_record_are_said(warplens, tmp_path):
    trace = write_trace(tmp_path / "bare.json", python=False)
    modules = warplens("operators", trace, "--by", "module").out
    assert "with_modules=True" in modules
    assert "outermost operators" in modules
    functions = warplens("operators", trace, "--by", "python")
    assert functions.code == 0
    assert "with_stack=True" in functions.out


def test_ranges_are_annotations_unless_operators_are_asked_for(data):
    assert [row["name"] for row in data("ranges")["rows"]] == ["ProfilerStep#N", "Optimizer.step#SGD.step"]
    assert "aten::linear" in [row["name"] for row in data("ranges", "--operators")["rows"]]


def test_phases_need_no_annotation(data):
    phases = {row["phase"]: row["gpu_ns"] for row in data("phases")["rows"]}
    assert phases == {
        "forward": STEPS * FORWARD_NS, "backward": STEPS * BACKWARD_NS, "optimizer": STEPS * OPTIMIZER_NS,
    }  # fmt: skip


def test_profiler_steps_are_steps(data):
    assert [row["kernels"] for row in data("steps")["rows"]] == [3, 3]
