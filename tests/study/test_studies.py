"""The predefined studies: full grids, nothing varied together with anything else."""

from __future__ import annotations

import itertools

import pytest

from warplens.errors import UsageError
from warplens.studies.runner.studies import STUDIES, StudyOptions


def cells(name, **asked):
    return [cell for task in STUDIES[name].run(StudyOptions(**asked)).tasks for cell in task.cells]


def test_input_size_and_batch_are_never_confounded():
    run = STUDIES["token-reduction"].run(StudyOptions())
    found = {(task.cells[0]["input_size"], task.cells[0]["batch"]) for task in run.tasks}
    assert found == set(itertools.product([224, 288, 384, 448], [1, 2, 4, 8, 16]))
    for task in run.tasks:
        # Every cell of a point has the same input: what differs is the method, and how it is run.
        assert len({(cell["input_size"], cell["batch"], cell["precision"]) for cell in task.cells}) == 1
        sides = {(cell["method"], cell["keep"], cell["attention"], cell["execution"]) for cell in task.cells}
        for execution in ("eager", "graph"):
            assert {side[:3] for side in sides if side[3] == execution} == {
                (method, keep, attention)
                for method, keep in (("none", 1.0), ("topk", 0.5), ("topk", 0.1))
                for attention in ("explicit", "fused")
            }  # fmt: skip
    assert run.head["sweep"] == {
        "axes": {"input_size": [224, 288, 384, 448], "batch": [1, 2, 4, 8, 16], "execution": ["eager", "graph"]},
        "baseline": {"method": "none", "attention": "explicit"},
        "variant": {"method": "topk", "keep": 0.1, "attention": "explicit"},
    }
    assert run.measuring.rounds == 20


def test_the_language_model_grid_has_twenty_cells_in_each_mode():
    found = cells("lm-grid")
    assert len(found) == 40
    for mode in ("forward", "train"):
        assert {(cell["size"], cell["context"]) for cell in found if cell["mode"] == mode} == set(
            itertools.product(["small", "medium", "large", "xl", "2.7B"], [128, 256, 512, 1024])
        )


def test_attention_has_every_kernel_on_every_problem_with_as_many_tokens():
    run = STUDIES["attention"].run(StudyOptions())
    assert len(run.tasks) == 2 * 2 * 8
    for task in run.tasks:
        assert {cell["kernel"] for cell in task.cells} == {
            "naive", "tiled", "flash", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math",
        }  # fmt: skip
        assert {cell["batch"] * cell["seq_len"] for cell in task.cells} == {16_384}
    assert {cell["seq_len"] for task in run.tasks for cell in task.cells} == {128 << power for power in range(8)}
    assert len({task.key for task in run.tasks}) == len(run.tasks)


@pytest.mark.parametrize("name", STUDIES)
def test_keys_are_unique_and_quick_studies_are_small(name):
    for quick in (False, True):
        run = STUDIES[name].run(StudyOptions(quick=quick))
        assert len({task.key for task in run.tasks}) == len(run.tasks)
    assert len(run.tasks) <= 6
    assert run.measuring.device == "cpu"
    assert run.command == f"warplens study {name} --quick"


def test_axes_can_be_replaced_and_added():
    found = cells("token-reduction", axes=("input_size=224", "batch=1", "keep=1.0,0.25", "visualisation=yes,no"))
    assert {(cell["method"], cell["keep"], cell["visualisation"]) for cell in found} == {
        ("none", 1.0, False), ("topk", 0.25, True), ("topk", 0.25, False),
    }  # fmt: skip
    # The baseline has no such setting: it is measured once for each execution and kind of attention.
    assert sum(cell["method"] == "none" for cell in found) == 4
    assert {cell["batch"] for cell in cells("attention", axes=("batch=3", "seq_len=64"))} == {3}
    assert {cell["execution"] for cell in cells("lm-grid", axes=("execution=graph", "mode=forward"))} == {"graph"}


def test_rounds_are_for_studies_that_take_turns():
    assert STUDIES["token-reduction"].run(StudyOptions(rounds=7)).measuring.rounds == 7
    with pytest.raises(UsageError, match="--rounds is for studies that measure in turns"):
        STUDIES["lm-grid"].run(StudyOptions(rounds=7))
