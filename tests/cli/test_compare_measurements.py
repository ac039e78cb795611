"""`warplens compare` on measurements files and on reports of counters."""

from __future__ import annotations

import copy
import json
import lzma
import shutil
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run

DATA = Path(str(files("warplens") / "data"))
TOKEN_REDUCTION = DATA / "measurements" / "token_reduction.json.xz"
TRACE = DATA / "captures" / "deit224_bs1_baseline.sqlite.xz"
SIDES = ("--baseline-where", "method=none,attention=explicit", "--variant-where", "method=topk")


@pytest.fixture(scope="module")
def measured():
    return json.loads(lzma.decompress(TOKEN_REDUCTION.read_bytes()))


@pytest.fixture(scope="module")
def halves(measured, tmp_path_factory):
    """The shipped file split in two: a file a method, as two runs would have written them."""
    folder = tmp_path_factory.mktemp("halves")
    paths = folder / "none.json", folder / "topk.json"
    for path, method in zip(paths, ("none", "topk"), strict=True):
        chosen = [
            record
            for record in measured["measurements"]
            if record["cell"]["method"] == method and record["cell"]["attention"] == "explicit"
        ]
        path.write_text(json.dumps({**measured, "measurements": chosen}))
    return paths


def _by_cell(found: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    settings = (tuple(point.values()) for point in found["data"]["settings"])
    return dict(zip(settings, found["data"]["rows"], strict=True))


def test_cells_are_matched_by_what_does_not_tell_the_sides_apart(asked, halves):
    found = asked("compare", *halves)

    assert found["schema"] == "warplens.compare/1"
    assert found["source"] == ["none.json", "topk.json"]
    data = found["data"]
    assert data["kind"] == "measurements"
    assert data["axes"] == ["input_size", "batch", "execution"]
    assert data["baseline"]["settings"]["method"] == "none"
    assert data["variant"]["settings"] == {"method": "topk", "keep": 0.1, "locations": "3,6,9", "visualisation": True}
    assert len(data["rows"]) == 2 * 5 * 2


def test_the_ratio_of_a_cell_is_that_of_its_times(asked, halves, measured):
    rows = _by_cell(asked("compare", *halves))
    medians = {
        (record["cell"]["input_size"], record["cell"]["batch"], record["cell"]["execution"], record["cell"]["method"]):
        record["latency_ns"]["median"]
        for record in measured["measurements"]
        if record["cell"]["attention"] == "explicit"
    }  # fmt: skip
    for key, row in rows.items():
        expected = medians[(*key, "topk")] / medians[(*key, "none")]
        assert row["ratio"] == pytest.approx(expected, rel=0.05)
        assert row["low"] <= row["ratio"] <= row["high"]
        # Torch's own count of multiply-accumulates says the same: a third of the work is left.
        assert row["work_ratio"] == pytest.approx(0.316, abs=0.01)


def test_the_paradox_is_decided_in_both_directions(asked, halves):
    rows = _by_cell(asked("compare", *halves))
    assert rows[(224, 1, "eager")]["verdict"] == "slower"
    assert rows[(224, 1, "graph")]["verdict"] == "faster"
    assert rows[(448, 16, "eager")]["verdict"] == "faster"


def test_rounds_of_one_file_are_paired_and_those_of_two_files_are_not(asked, halves):
    one = asked("compare", TOKEN_REDUCTION, TOKEN_REDUCTION, *SIDES)
    assert one["data"]["paired"] is True
    assert asked("compare", *halves)["data"]["paired"] is False
    rows = _by_cell(one)
    assert rows[(224, 1, "eager")]["baseline_blocks"] == 40


def test_a_file_against_itself_or_a_copy_is_the_same_everywhere_and_nothing_for_a_gate(warplens, tmp_path):
    copied = shutil.copy(TOKEN_REDUCTION, tmp_path / TOKEN_REDUCTION.name)
    assert "The variant is the same in 60 of 60 cells." in warplens("compare", TOKEN_REDUCTION, TOKEN_REDUCTION).out
    for other in (TOKEN_REDUCTION, copied):
        assert "Both sides hold the same cells" in warplens("compare", TOKEN_REDUCTION, other).err
        gate = warplens("compare", TOKEN_REDUCTION, other, "--fail-on", "0%", "--quiet")
        assert (gate.code, gate.out) == (2, "")


def test_other_gpus_are_told(warplens, measured, halves, tmp_path):
    device = {**measured["environment"]["device"], "name": "NVIDIA H100"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**measured, "environment": {**measured["environment"], "device": device}}))
    run = warplens("compare", halves[0], other, "--variant-where", "method=topk")
    assert "The GPUs differ: NVIDIA H200 and NVIDIA H100" in run.err


def test_files_without_a_common_cell_are_named(warplens, measured, tmp_path):
    sides = []
    for size, batch in ((224, 1), (448, 2)):
        point = {"input_size": size, "batch": batch}
        records = [record for record in measured["measurements"] if record["cell"] | point == record["cell"]]
        extra = [record for record in measured["measurements"] if record["cell"]["batch"] == 4 * batch]
        sides.append(tmp_path / f"size{size}.json")
        sides[-1].write_text(json.dumps({**measured, "measurements": [*records, *extra]}))
    line = _refused(warplens, *sides)
    assert "no point of the grid has both size224.json and size448.json" in line
    assert "compared side" not in line


def test_the_gate_fails_on_a_decided_regression_alone(asked, warplens, halves):
    run = warplens("compare", *halves, "--fail-on", "5%", "--quiet")
    assert run.code == 1
    assert run.err.startswith("error: gate failed: ")
    assert run.err.count("\n") == 1
    assert "batch 1, execution eager" in run.err
    assert warplens("compare", *halves, "--fail-on", "90%").code == 0
    found = asked("compare", *halves, "--fail-on", "5%", code=1)
    assert found["data"]["gate"]["found"] is True


def test_a_slower_copy_fails_its_gate_and_a_faster_one_does_not(asked, warplens, measured, tmp_path):
    one = copy.deepcopy(measured)
    # A calm cell: replayed from a graph, so that the host's noise stays out.
    one["measurements"] = [
        record
        for record in measured["measurements"]
        if record["cell"] | {"execution": "graph", "input_size": 448, "batch": 8, "method": "topk"} == record["cell"]
    ]
    other = copy.deepcopy(one)
    for record in other["measurements"]:
        record["samples"]["wall_ns"] = [round(1.1 * time) for time in record["samples"]["wall_ns"]]
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(one))
    after.write_text(json.dumps(other))

    slower = asked("compare", before, after, "--fail-on", "5%", code=1)
    assert slower["data"]["rows"][0]["ratio"] == pytest.approx(1.1, rel=0.01)
    assert warplens("compare", after, before, "--fail-on", "5%").code == 0


def test_cells_without_a_partner_are_told(asked, measured, halves, tmp_path):
    fewer = {**measured, "measurements": [r for r in measured["measurements"] if r["cell"]["input_size"] == 224]}
    part = tmp_path / "part.json"
    part.write_text(json.dumps(fewer))
    found = asked("compare", halves[0], part, "--variant-where", "method=topk")
    assert len(found["data"]["rows"]) == 10
    assert [warning["code"] for warning in found["warnings"]].count("cells-unmatched") == 1


def test_cells_that_only_the_baseline_has_leave_the_gate_open(asked, warplens, measured, halves, tmp_path):
    fewer = {**measured, "measurements": [r for r in measured["measurements"] if r["cell"]["input_size"] == 224]}
    part = tmp_path / "part.json"
    part.write_text(json.dumps(fewer))
    gate = asked("compare", halves[0], part, "--variant-where", "method=topk", "--fail-on", "500%")["data"]["gate"]
    assert (gate["found"], gate["excluded"]) == (False, False)
    assert "10 of which the variant does not have" in gate["sentence"]
    rest = ("compare", part, halves[0], "--baseline-where", "method=topk", "--fail-on", "500%")
    assert "gate passed" in warplens(*rest).err, "further cells of the variant change nothing"


def test_a_cell_that_ran_out_of_memory_is_not_compared_and_says_why(asked, halves, tmp_path):
    document = json.loads(halves[1].read_text())
    document["measurements"][0] = {
        "cell": document["measurements"][0]["cell"], "status": "out-of-memory", "reason": "2 GiB were missing"
    }  # fmt: skip
    part = tmp_path / "oom.json"
    part.write_text(json.dumps(document))
    row = asked("compare", halves[0], part)["data"]["rows"][0]
    assert row["verdict"] is None
    assert row["reason"] == "variant: out-of-memory (2 GiB were missing)"


def _refused(warplens: Callable[..., Run], *arguments: object) -> str:
    run = warplens("compare", *arguments)
    assert run.code == 2, run.out
    assert run.out == ""
    assert run.err.count("\n") == 1
    return run.err


def test_foreign_files_are_refused(warplens, tmp_path):
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("neither the one nor the other")
    assert "foreign.txt" in _refused(warplens, foreign, TRACE)
    assert "foreign.txt" in _refused(warplens, TRACE, foreign)
    assert "foreign.txt" in _refused(warplens, foreign, TOKEN_REDUCTION)
    assert "none.sqlite" in _refused(warplens, tmp_path / "none.sqlite", TRACE)
    torn = tmp_path / "torn.json"
    torn.write_text('{"schema": "warplens.measurements/1", "measurements": [')
    assert "torn.json" in _refused(warplens, torn, TOKEN_REDUCTION)
    assert "is empty" in _refused(warplens, _empty(tmp_path), TRACE)


def _empty(folder: Path) -> Path:
    made = folder / "empty"
    made.mkdir()
    return made


def test_a_cell_that_no_longer_runs_fails_the_gate(warplens, halves, tmp_path):
    variant = json.loads(halves[1].read_text())
    record = variant["measurements"][3]
    lost = {"cell": record["cell"], "status": "out-of-memory", "reason": "CUDA out of memory"}
    variant["measurements"][3] = lost
    path = tmp_path / "topk.json"
    path.write_text(json.dumps(variant))
    run = warplens("compare", halves[0], path, "--fail-on", "500%", "--quiet")
    assert run.code == 1
    assert "gate failed: the variant no longer runs 1 of 20 cells" in run.err
    assert "out-of-memory (CUDA out of memory)" in run.err
