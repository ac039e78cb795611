"""`warplens study`: its plans, its reports from stored measurements, and what it refuses."""

from __future__ import annotations

import json
import lzma
import sys
from importlib.resources import files

import pytest

from warplens.study.studies import STUDIES


@pytest.fixture(params=["lm_grid", "token_reduction"])
def folder(request, tmp_path):
    """A study's folder with the measurements that come with Warplens."""
    stored = files("warplens") / "data" / "measurements" / f"{request.param}.json.xz"
    (tmp_path / "measurements.json").write_bytes(lzma.decompress(stored.read_bytes()))
    return tmp_path


def test_a_report_needs_no_pytorch_and_holds_answer_tables_and_charts(warplens, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    content = json.loads((folder / "measurements.json").read_text())
    name = {"lm": "lm-grid"}.get(content["workload"], content["workload"])
    run = warplens("study", name, "report", "--output", folder)
    assert run.code == 0, run.err
    found = json.loads((folder / "report.json").read_text())
    assert found["schema"] == "warplens.study/1"
    assert run.out.strip() == found["data"]["answer"]
    assert len(found["data"]["rows"]) == len(content["measurements"])
    assert found["data"]["answer"] in (folder / "report.md").read_text()
    assert (folder / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", STUDIES)
def test_a_dry_run_measures_nothing_and_leaves_nothing(warplens, name, tmp_path):
    run = warplens("study", name, "--dry-run", "--output", tmp_path / "out")
    assert run.code == 0, run.err
    assert "of them to do" in run.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "known are token-reduction, lm-grid, attention"),
        (["lm-grid", "--axis", "width=3"], "lm has no setting 'width'"),
        (["lm-grid", "--rounds", "3"], "--rounds is for studies that measure in turns"),
        (["lm-grid", "--processes", "many"], "point or all"),
        (["lm-grid", "report"], "measurements.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(warplens, tmp_path, arguments, reason):
    run = warplens("study", *arguments, "--output", tmp_path / "out")
    assert run.code == 2
    assert reason in run.err
    assert run.err.count("\n") == 1


def test_a_report_on_another_workload_is_refused(warplens, tmp_path):
    cell = {"cell": {"side": "a"}, "status": "failed", "reason": "x"}
    content = {
        "schema": "warplens.measurements/1", "version": "0", "workload": "command", "environment": {}, "plan": {},
        "measurements": [cell],
    }  # fmt: skip
    (tmp_path / "measurements.json").write_text(json.dumps(content))
    run = warplens("study", "attention", "report", "--output", tmp_path)
    assert run.code == 2
    assert "it measures 'command'" in run.err
