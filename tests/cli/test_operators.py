"""`warplens operators`, and the other tables, on a trace of the PyTorch profiler that can be counted by hand."""

from __future__ import annotations

import pytest

from tests.cli.torch_trace import BACKWARD_NS, FORWARD_NS, OPTIMIZER_NS, STEPS, write_trace

TOTAL_NS = STEPS * (FORWARD_NS + BACKWARD_NS + OPTIMIZER_NS)


@pytest.fixture
def trace(tmp_path):
    return write_trace(tmp_path / "trace.json")


@pytest.fixture
def data(asked, trace):
    """`data` of the JSON that a command prints."""
    return lambda command, *options: asked(command, trace, *options)["data"]


def test_coverage_and_overhead_are_stated(data):
    answer = data("operators")
    assert answer["coverage"]["operator_share"] == answer["coverage"]["linked_share"] == 1.0
    assert answer["overhead"]["threads"] == 2
    assert answer["overhead"]["host_ns"] == STEPS * (100_000 + 100_000 + 50_000)
    assert answer["overhead"]["framework_ns"] == answer["overhead"]["host_ns"] - STEPS * 15_000


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


#: Rows of each table by their names, counted by hand: the columns that are named.
COUNTED: dict[str, dict[str, dict[str, object]]] = {
    "operators": {
        "aten::linear": {
            "calls": STEPS, "host_ns": 200_000, "api_ns": 10_000, "host_self_ns": 190_000,
            "gpu_ns": STEPS * FORWARD_NS, "backward_ns": STEPS * BACKWARD_NS,
            "share": pytest.approx((FORWARD_NS + BACKWARD_NS) * STEPS / TOTAL_NS),
        },
    },
    "operators --by module": {
        "Linear_0": {"level": "module", "gpu_ns": STEPS * FORWARD_NS, "backward_ns": STEPS * BACKWARD_NS},
        "Optimizer.step#SGD.step": {"level": "annotation", "gpu_ns": STEPS * OPTIMIZER_NS, "backward_ns": 0},
    },
    "operators --by python": {
        "linear.py(124): forward": {"gpu_self_ns": STEPS * FORWARD_NS},
        "train.py(7): step": {"gpu_self_ns": STEPS * OPTIMIZER_NS},
    },
    "operators --by shapes": {"aten::linear": {"input_shapes": "[[4, 8], [8, 8], []]"}},
    "ranges": {"ProfilerStep#N": {}, "Optimizer.step#SGD.step": {}},
    "ranges --operators": {"aten::linear": {}},
    "phases": {
        "forward": {"gpu_ns": STEPS * FORWARD_NS}, "backward": {"gpu_ns": STEPS * BACKWARD_NS},
        "optimizer": {"gpu_ns": STEPS * OPTIMIZER_NS},
    },
    "steps": {1: {"kernels": 3}, 2: {"kernels": 3}},
}  # fmt: skip
#: Tables that hold no other rows than those counted.
WHOLE = ("operators --by module", "operators --by python", "ranges", "phases", "steps")


@pytest.mark.parametrize("line", COUNTED)
def test_rows_are_those_counted_by_hand(line, data):
    key = {"phases": "phase", "steps": "step"}.get(line, "name")
    rows = {row[key]: row for row in data(*line.split())["rows"]}

    assert {name: {column: rows[name][column] for column in counted} for name, counted in COUNTED[line].items()} == (
        COUNTED[line]
    )
    assert line not in WHOLE or list(rows) == list(COUNTED[line])
