"""`warplens study`: its plans, its reports from stored measurements, and what it refuses."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tests import shipped
from warplens.studies.runner.studies import STUDIES


@pytest.fixture(params=["lm_grid", "token_reduction"])
def folder(request, tmp_path):
    """A study's folder with the measurements that come with Warplens."""
    (stored,) = shipped.files("measurements", f"{request.param}.json.xz")
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


def test_with_profiles_the_findings_are_told(warplens, tmp_path):
    data = Path(str(files("warplens") / "data"))
    folder, profiles = tmp_path / "study", tmp_path / "profiles"
    folder.mkdir()
    profiles.mkdir()
    measured = lzma.decompress((data / "measurements" / "token_reduction.json.xz").read_bytes())
    (folder / "measurements.json").write_bytes(measured)
    for name, side in (("baseline", "method=none"), ("topk0.1", "method=topk,keep=0.1")):
        source = data / "captures" / f"deit224_bs1_{name}.sqlite.xz"
        shutil.copy(source, profiles / f"input_size=224,batch=1,{side}.sqlite.xz")
    policy = data / "policies" / "token_reduction.json"
    run = warplens("study", "token-reduction", "report", "-o", folder, "--profiles", profiles, "--policy", policy)
    assert run.code == 0
    text = (folder / "findings_report.md").read_text()
    assert "At input size 224, batch 1: H1, H2 confirmed" in text
    assert "## Policy" in text
    assert (folder / "findings_report.html").is_file()


def test_findings_are_of_token_reduction_and_need_profiles(warplens, tmp_path):
    run = warplens("study", "attention", "report", "-o", tmp_path, "--profiles", tmp_path)
    assert (run.code, run.err.count("\n")) == (2, 1)
    run = warplens("study", "token-reduction", "report", "-o", tmp_path, "--policy", tmp_path / "policy.json")
    assert (run.code, run.err.count("\n")) == (2, 1)
