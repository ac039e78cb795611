"""`warplens sweep`: what it refuses, and a run over commands from its begin to its report."""

from __future__ import annotations

import json
import shlex
import sys

import pytest


def printing(time):
    code = f"print('step_ms=%s' % ({time}))"
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(code)}"


@pytest.fixture
def sides():
    return ("--baseline", printing("2 * {n}"), "--variant", printing("1 + {n}"), "--time-from", "step_ms=([0-9.]+)")


def test_a_sweep_over_commands_is_run_and_read(warplens, sides, tmp_path):
    output = tmp_path / "sweep.json"
    run = warplens("sweep", "run", "--axis", "n=1,3", *sides, "--repeats", "6", "--output", output)
    assert run.code == 0, run.err
    assert run.out == f"{output}\n"
    assert "[24/24]" in run.err
    assert "next: warplens sweep report sweep.json" in run.err
    report = warplens("sweep", "report", output, "--format", "json")
    assert report.code == 0, report.err
    rows = json.loads(report.out)["data"]["rows"]
    assert [(row["n"], row["baseline_ns"], row["variant_ns"]) for row in rows] == [(1, 2e6, 2e6), (3, 6e6, 4e6)]


def test_the_same_command_again_has_nothing_left_to_do(warplens, sides, tmp_path):
    asked = ("sweep", "run", "--axis", "n=1", *sides, "--repeats", "2", "--output", tmp_path / "sweep.json")
    warplens(*asked)
    assert "nothing was left to do" in warplens(*asked).err
    other = warplens(*asked[:-4], "--repeats", "3", *asked[-2:])
    assert other.code == 2
    assert "repeats was 2, is 3" in other.err
    assert other.err.count("\n") == 1


def test_a_dry_run_shows_what_would_be_done(warplens, sides, tmp_path):
    run = warplens("sweep", "run", "--axis", "n=1,3", *sides, "--output", tmp_path / "sweep.json", "--dry-run")
    assert run.code == 0
    assert "4 cells × 10 repetitions = 40 runs, 40 to do" in run.out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_workload_needs_no_pytorch(warplens, tmp_path):
    run = warplens(
        "sweep", "run", "token-reduction", "--axis", "input_size=224,448", "--axis", "batch=1,2,4",
        "--axis", "execution=eager,graph", "--baseline", "method=none", "--variant", "method=topk,keep=0.1",
        "--output", tmp_path / "sweep.json", "--dry-run",
    )  # fmt: skip
    assert run.code == 0, run.err
    assert "input_size=448 batch=4 execution=graph: 2 cells" in run.out
    assert "24 cells at 12 points, 12 of them to do" in run.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run"], "needs --output FILE"),
        (["run", "-o", "x.json"], "needs --baseline and --variant"),
        (["run", "-o", "/nowhere/x.json", "--baseline", "a", "--variant", "b"], "folder that exists"),
        (["run", "-o", "x.json", "--baseline", "a", "--variant", "b", "--rounds", "3"], "--rounds is for a workload"),
        (["run", "lm", "-o", "x.json", "--baseline", "a", "--variant", "b", "--items", "n"], "--items is for commands"),
        (["run", "lm", "-o", "x.json", "--baseline", "a", "--variant", "b", "--processes", "2"], "point or all"),
        (["run", "-o", "x.json", "--baseline", "a", "--variant", "b", "--level", "0.9"], "No such option: --level"),
        (["run", "none", "-o", "x.json", "--baseline", "a=1", "--variant", "a=2"], "no workload 'none'"),
        (["report"], "Missing argument 'FILE'"),
        (["report", "x.json", "--axis", "n=1"], "No such option: --axis"),
        (["report", "x.json"], "x.json"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(warplens, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    run = warplens("sweep", *arguments)
    assert run.code == 2
    assert reason in run.err
    assert run.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_options_may_stand_before_the_subcommand_as_they_once_did(warplens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = warplens(
        "sweep", "-o", "x.json", "--baseline", "a {n}", "--axis", "n=1", "run", "--variant", "b", "--dry-run"
    )
    assert run.code == 0, run.err
    assert "n=1 baseline: a 1" in run.out
