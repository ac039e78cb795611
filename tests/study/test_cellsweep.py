"""Sweeps over a workload, in real child processes: what fails is recorded, and all else is measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from statistics import median

import pytest

from warplens.errors import UsageError
from warplens.readers.measurements import read_measurements
from warplens.studies.runner.engine import RunOptions, ledger_of, measure, preview
from warplens.studies.runner.workloadsweep import WorkloadSweep
from warplens.workloads.registry import WORKLOADS, workload


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    workload("lm")  # ours are registered now, and not in the copy
    monkeypatch.setattr("warplens.workloads.registry.WORKLOADS", dict(WORKLOADS))
    sys.modules.pop("troubled", None)


@pytest.fixture
def sweep(troubled, tmp_path):
    """Measures a sweep of the workload `trouble`; gives its records by point and side, and what was told."""

    def measured(*axes, variant="side=new", rounds=6, run_options=None, **asked):
        output, lines = tmp_path / "sweep.json", []
        asked = WorkloadSweep(
            "trouble", axes, "side=old", variant, rounds, 2, 1, device="cpu", modules=(troubled,), **asked
        )
        measure(asked.run(), output, run_options or RunOptions(), lines.append)
        return json.loads(output.read_text())["measurements"], lines

    measured.output = tmp_path / "sweep.json"
    return measured


def _outcomes(records):
    return [(record["cell"]["tenths"], record["cell"]["side"], record["status"]) for record in records]


def test_both_sides_are_measured_in_turns_at_every_point(sweep):
    records, lines = sweep("tenths=10,40", variant="side=new")
    assert _outcomes(records) == [
        (10, "old", "measured"), (10, "new", "measured"), (40, "old", "measured"), (40, "new", "measured"),
    ]  # fmt: skip
    for record in records:
        assert record["rounds"] == 6
        assert len(record["samples"]["wall_ns"]) == 12
        assert median(record["samples"]["wall_ns"]) >= record["cell"]["tenths"] * 100_000
        assert record["doubts"] == [] or "alone" not in record["doubts"][0]
    found = read_measurements(sweep.output)
    assert found.sweep == {"axes": {"tenths": [10, 40]}, "baseline": {"side": "old"}, "variant": {"side": "new"}}
    assert found.environment["device"] == {"name": "CPU"}
    assert lines[0].startswith("[1/2] tenths=10: ")
    assert found.command == (
        "warplens sweep run trouble --axis tenths=10,40 --baseline side=old --variant side=new --rounds 6 "
        "--repetitions 2 --warmup 1 --device cpu --module troubled"
    )


@pytest.mark.parametrize(
    ("trouble", "status", "words"),
    [
        ("memory", "out-of-memory", "CUDA out of memory. Tried to allocate 80 GiB in model.py"),
        ("killed", "failed", "SIGKILL"),
        ("exit", "out-of-memory", "cannot allocate memory"),
        ("defect", "failed", "KeyError"),
    ],
)
def test_a_side_that_fails_is_recorded_and_the_other_is_measured(sweep, trouble, status, words):
    records, _ = sweep("tenths=1,2", variant=f"trouble={trouble},side=new", run_options=RunOptions(one_process=True))
    assert _outcomes(records) == [
        (1, "old", "measured"), (1, "new", status), (2, "old", "measured"), (2, "new", status),
    ]  # fmt: skip
    assert words in records[1]["reason"]
    assert read_measurements(sweep.output).cells.height == 4


def test_sides_that_do_not_fit_together_are_measured_alone_and_say_so(sweep):
    records, _ = sweep("tenths=1", variant="trouble=beside another,side=new")
    assert [record["status"] for record in records] == ["measured", "measured"]
    together, alone = records
    assert together["rounds"] == 6
    # As many repetitions, but nobody's pair: a comparison must not go round by round.
    assert alone["rounds"] == 1
    assert len(alone["samples"]["wall_ns"]) == 12
    assert "measured alone" in alone["doubts"][-1]


def test_a_cell_that_takes_too_long_is_ended(sweep):
    records, _ = sweep("trouble=hangs,none", run_options=RunOptions(timeout_s=3))
    assert [record["status"] for record in records] == ["failed", "failed", "measured", "measured"]
    assert "longer than 3 s" in records[0]["reason"]


def test_an_impossible_combination_is_recorded_without_a_process(sweep):
    records, lines = sweep("tenths=1,13")
    assert _outcomes(records) == [
        (1, "old", "measured"), (1, "new", "measured"), (13, "old", "unsupported"), (13, "new", "unsupported"),
    ]  # fmt: skip
    assert records[2]["reason"] == "13 brings bad luck"
    assert lines[0].startswith("[1/1]")


def test_settings_of_several_numbers_come_through(sweep):
    records, _ = sweep("shape=1+2,3")
    assert [record["cell"]["shape"] for record in records[::2]] == [[1, 2], [3]]


def test_a_device_that_is_not_there_ends_the_run_at_once(sweep, troubled, tmp_path):
    asked = WorkloadSweep("trouble", ("tenths=1,2",), "side=old", "side=new", device="cuda:7", modules=(troubled,))
    with pytest.raises(UsageError, match="cuda:7"):
        measure(asked.run(), tmp_path / "x.json", RunOptions(), lambda _: None)
    assert not (tmp_path / "x.json").exists()


def test_a_run_does_not_go_on_on_another_machine(sweep):
    sweep("tenths=1,2")
    ledger = ledger_of(sweep.output)
    lines = ledger.read_text().splitlines()
    entry = json.loads(lines[1])
    entry["result"]["environment"]["device"]["name"] = "NVIDIA H200"
    ledger.write_text("\n".join([lines[0], json.dumps(entry)]) + "\n")
    with pytest.raises(UsageError, match="begun on NVIDIA H200"):
        sweep("tenths=1,2")


def test_another_plan_is_refused_unless_it_starts_afresh(sweep):
    sweep("tenths=1")
    with pytest.raises(UsageError, match=r"1 tasks then, 2 now"):
        sweep("tenths=1,2")
    records, _ = sweep("tenths=1,2", run_options=RunOptions(fresh=True))
    assert len(records) == 4


def test_a_preview_lists_the_remaining_tasks(sweep, troubled):
    asked = WorkloadSweep("trouble", ("tenths=1,2,13",), "side=old", "side=new", 6, 2, 1, "cpu", (troubled,))
    lines = preview(asked.run(), sweep.output, RunOptions())
    assert lines[:2] == ["tenths=1: 2 cells", "tenths=2: 2 cells"]
    assert "13 brings bad luck: left out" in lines
    assert "4 cells at 2 points, 2 of them to do" in lines
    assert not ledger_of(sweep.output).exists()
    sweep("tenths=1,2,13")
    assert "tenths=1: 2 cells, done" in preview(asked.run(), sweep.output, RunOptions())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workload": "nothing"}, "no workload 'nothing'"),
        ({"axes": ("width=1",)}, "no setting 'width'"),
        ({"axes": ("tenths",)}, "NAME=VALUE"),
        ({"axes": ("tenths=1,1",)}, "twice"),
        ({"axes": ("tenths=1", "tenths=2")}, "given twice"),
        ({"axes": ("tenths=many",)}, "takes a number"),
        ({"baseline": "old"}, "method=topk"),
        ({"variant": "side=old"}, "are the same"),
        ({"axes": ("side=old,new",)}, "side is an axis"),
        ({"axes": ("tenths=13",)}, "bad luck"),
        ({"modules": ("nowhere",)}, "cannot be imported"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(troubled, options, reason):
    given = {"workload": "trouble", "axes": (), "baseline": "side=old", "variant": "side=new", "modules": (troubled,)}
    with pytest.raises(UsageError, match=reason):
        WorkloadSweep(**{**given, **options}).run()


ARGUMENTS = (
    "sweep", "trouble", "--module", "troubled", "--device", "cpu", "--rounds", "6", "--axis", "tenths=1,2,3",
    "--baseline", "side=old", "--variant", "side=new",
)  # fmt: skip


def _bare(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "warplens.studies.runner", *map(str, arguments)], stderr=subprocess.PIPE, text=True
    )


def test_a_run_that_is_ended_leaves_a_usable_file_and_goes_on(troubled, tmp_path):
    output = tmp_path / "sweep.json"
    with _bare(*ARGUMENTS, "--output", output) as run:
        assert run.stderr.readline().startswith("[1/3] tenths=1: ")
        run.send_signal(signal.SIGTERM)
        rest = run.stderr.read()
    assert run.returncode == 130
    assert "interrupted" in rest
    done = read_measurements(output).cells.height
    assert done in (2, 4)
    with _bare(*ARGUMENTS, "--output", output) as run:
        said = run.stderr.read()
    assert run.returncode == 0
    assert f"{done // 2} of 3 are done already" in said
    assert read_measurements(output).cells.height == 6


def test_a_run_that_is_killed_leaves_its_ledger(troubled, tmp_path):
    output = tmp_path / "sweep.json"
    with _bare(*ARGUMENTS, "--output", output) as run:
        run.stderr.readline()
        os.kill(run.pid, signal.SIGKILL)
    with _bare(*ARGUMENTS, "--output", output) as run:
        said = run.stderr.read()
    assert run.returncode == 0, said
    assert "of 3 are done already" in said
    assert read_measurements(output).cells.height == 6


def test_wrong_usage_is_one_line(troubled, tmp_path):
    with _bare(*ARGUMENTS, "--output", tmp_path / "x.json", "--axis", "width=1") as run:
        said = run.stderr.read()
    assert run.returncode == 2
    assert said.startswith("error: --axis: trouble has no setting 'width'")
    assert said.count("\n") == 1


def test_a_bare_machine_needs_neither_polars_nor_typer_nor_numpy():
    modules = [f"warplens.studies.runner.{name}" for name in ("__main__", "commandsweep")]
    code = (
        f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\n"
        "assert not {'polars', 'typer', 'numpy', 'orjson', 'torch', 'rich'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_program_runs_a_sweep_over_a_workload_and_reads_it(troubled, tmp_path):
    from typer.testing import CliRunner

    from warplens.cli.main import app

    output = tmp_path / "sweep.json"
    asked = (
        "sweep", "run", "trouble", "--module", troubled, "--device", "cpu", "--rounds", "8", "--axis", "tenths=20,40",
        "--baseline", "side=old", "--variant", "side=new", "--processes", "all", "--output", output,
    )  # fmt: skip
    run = CliRunner().invoke(app, [str(word) for word in asked])
    assert run.exit_code == 0, run.stderr
    assert run.stdout == f"{output}\n"
    report = CliRunner().invoke(app, ["sweep", "report", str(output), "--format", "json"])
    assert report.exit_code == 0, report.stderr
    data = json.loads(report.stdout)["data"]
    assert data["paired"] is True
    assert [row["tenths"] for row in data["rows"]] == [20, 40]
    assert all(row["speedup"] == pytest.approx(1, abs=0.3) for row in data["rows"])
