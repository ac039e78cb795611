"""CUDA calls are traced to the operator, the range and the line of the program that they come from."""

import pytest

from tests.analysis.builders import call, kernel, launch
from tests.analysis.operators.programs import annotation, operator, program, python_call
from warplens.analysis.code import code_places, is_own_line


@pytest.mark.parametrize(
    "name",
    ["train.py(88): step", "src/models/vit.py(12): forward", "transformers/generation/utils.py(2811): _sample",
     "C:\\code\\train.py(3): main", "lib/python3.12/site-packages/timm/layers/mlp.py(40): forward"],
)  # fmt: skip
def test_lines_of_the_program_and_of_its_models_are_its_own(name):
    assert is_own_line(name)


@pytest.mark.parametrize(
    "name",
    ["torch/optim/adam.py(953): <genexpr>", "threading.py(975): run", "numpy/core/fromnumeric.py(2): sum",
     "/usr/lib/python3.12/contextlib.py(141): __exit__", "<built-in method item of Tensor object at 0x7f>",
     "nn.Module: Linear_3", "lib/python3.12/site-packages/torch/functional.py(1): norm", ""],
)  # fmt: skip
def test_foundations_and_calls_without_a_line_are_not(name):
    assert not is_own_line(name)


def test_a_wait_is_found_in_its_operator_its_range_and_the_line_that_asked():
    timeline = program(
        [kernel(10, 90, correlation=1)],
        [launch(5, 8, 1), call(150, 250, "cudaStreamSynchronize", correlation=2)],
        [
            operator(100, 300, "aten::item"),
            operator(120, 280, "aten::_local_scalar_dense"),
            annotation(50, 400, "log#7"),
        ],
        python=[python_call(0, 500, "train.py(88): step"), python_call(90, 310, "torch/_tensor.py(1): item")],
    )
    rows = code_places(timeline, timeline.window("all")).rows(named=True)
    wait = next(row for row in rows if row["call"] == "sync")
    assert (wait["operator"], wait["range"], wait["line"]) == (
        "aten::_local_scalar_dense",
        "log",
        "train.py(88): step",
    )
    assert (wait["calls"], wait["host_ns"], wait["share"]) == (1, 100, 1.0)


def test_without_stacks_and_ranges_nothing_is_guessed():
    timeline = program([kernel(10, 90, correlation=1)], [launch(5, 8, 1)], [])
    (row,) = code_places(timeline, timeline.window("all")).rows(named=True)
    assert (row["call"], row["operator"], row["range"], row["line"]) == ("launch", None, None, None)
