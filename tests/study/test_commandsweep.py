"""Sweeps over commands: a process for each repetition, timed from outside or by what it prints."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from warplens.errors import UsageError
from warplens.readers.measurements import read_measurements
from warplens.studies.runner.commandsweep import CommandSweep, run_command
from warplens.studies.runner.engine import RunOptions, measure, preview


def python(code):
    return f"{shlex.quote(sys.executable)} -S -c {shlex.quote(code)}"


PRINTS = python("import sys; print('step_ms=%s' % (2 * {n})); print('step_ms=%s' % (4 * {n})); sys.exit({n} == 5)")
TIME = "step_ms=([0-9.]+)"


@pytest.fixture
def run(tmp_path):
    def measured(asked, run_options=None):
        lines = []
        measure(asked, tmp_path / "sweep.json", run_options or RunOptions(), lines.append)
        return json.loads((tmp_path / "sweep.json").read_text()), lines

    return measured


def test_each_run_is_a_block_and_each_printed_time_a_sample(run, tmp_path):
    content, _ = run(CommandSweep(("n=1,3",), PRINTS, PRINTS.replace("2 * ", "1 * "), 6, TIME))
    assert content["workload"] == "command"
    assert content["sweep"] == {"axes": {"n": [1, 3]}, "baseline": {"side": "baseline"}, "variant": {"side": "variant"}}
    old, new, slow_old, slow_new = content["measurements"]
    assert old["cell"] == {"n": 1, "side": "baseline"}
    assert old["samples"]["wall_ns"] == [2_000_000, 4_000_000] * 6
    assert new["samples"]["wall_ns"] == [1_000_000, 4_000_000] * 6
    assert (old["rounds"], old["latency_ns"]["median"]) == (6, 3e6)
    assert slow_old["latency_ns"]["median"] == 9e6
    assert slow_new["latency_ns"]["median"] == 7.5e6
    assert TIME in old["details"]["timed"]
    assert read_measurements(tmp_path / "sweep.json").environment["versions"].keys() == {"warplens"}


def test_without_a_pattern_the_wall_time_of_the_process_counts_and_is_named(run):
    content, _ = run(CommandSweep(("n=1,6",), python("import time; time.sleep(0.05 * {n})"), python("{n}"), 3))
    slow = {record["cell"]["n"]: record for record in content["measurements"] if record["cell"]["side"] == "baseline"}
    assert slow[1]["latency_ns"]["minimum"] >= 50e6
    assert slow[6]["latency_ns"]["minimum"] >= 300e6
    assert slow[1]["details"]["timed"] == "wall time of the process"
    assert slow[1]["doubts"] == ["there are too few repetitions for an interval"]


def test_sides_alternate_in_an_order_that_chance_decides_and_that_stays_the_same():
    tasks = CommandSweep(("n=1,2",), "a {n}", "b {n}", 20).tasks
    assert len(tasks) == 80
    pairs = [(one.command[0], other.command[0]) for one, other in zip(tasks[::2], tasks[1::2], strict=True)]
    assert {tuple(sorted(pair)) for pair in pairs} == {("a", "b")}
    assert 5 < pairs.count(("a", "b")) < 35
    assert tasks == CommandSweep(("n=1,2",), "a {n}", "b {n}", 20).tasks


def test_a_command_that_fails_is_recorded_and_the_other_goes_on(run):
    content, lines = run(CommandSweep(("n=1,5",), python("print('step_ms=1')"), PRINTS, 4, TIME))
    outcomes = [(record["cell"]["n"], record["cell"]["side"], record["status"]) for record in content["measurements"]]
    assert outcomes == [
        (1, "baseline", "measured"), (1, "variant", "measured"), (5, "baseline", "measured"), (5, "variant", "failed"),
    ]  # fmt: skip
    assert content["measurements"][3]["reason"].startswith("in round 1 of 4: the process ended with code 1: step_ms=")
    assert sum("n=5 variant" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory.')", "out-of-memory", "code 1"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "SIGKILL"),
        ("import time; time.sleep(30)", "failed", "longer than 2 s"),
        ("print('step_ms=fast')", "failed", "no match"),
        ("print('step_ms=0')", "failed", "not above zero"),
        ("print('step_ms=1.2.3')", "failed", "not a number"),
        ("print('step_ms=' + '9' * 300)", "failed", "can be none: 1e+300"),
    ],
)
def test_every_kind_of_failure_has_its_message(run, code, status, words):
    content, lines = run(CommandSweep((), python(code), python("print('step_ms=1')"), 2, TIME), RunOptions(timeout_s=2))
    assert [record["status"] for record in content["measurements"]] == [status, "measured"]
    assert words in content["measurements"][0]["reason"]
    assert sum(f": {status} (" in line and words in line for line in lines) == 1  # while it runs, too


def test_runs_that_print_different_numbers_of_times_count_with_their_medians(run, tmp_path):
    log = tmp_path / "log"
    code = f"f = open({str(log)!r}, 'a'); f.write('x'); f.flush(); print('step_ms=%d ' * f.tell() % ((2,) * f.tell()))"
    content, _ = run(CommandSweep((), python(code), python("print('step_ms=1')"), 8, TIME))
    record = content["measurements"][0]
    assert record["doubts"] == ["its runs printed different numbers of times: each run counts with its median"]
    assert record["samples"]["wall_ns"] == [2_000_000] * 8


def test_an_axis_may_say_how_many_items_a_step_processes(run):
    content, _ = run(CommandSweep(("n=1,4",), PRINTS, PRINTS + " x", 2, TIME, "us", "n"))
    for record in content["measurements"]:
        assert record["items"] == record["cell"]["n"]
        assert record["throughput_per_s"] == pytest.approx(1e9 / 3000)


def test_an_interrupted_sweep_goes_on_and_its_file_has_whole_pairs(run, tmp_path, monkeypatch):
    asked, calls = CommandSweep(("n=1,2",), PRINTS, PRINTS + " x", 4, TIME), []

    def limited(sweep, timeout_s, task):
        calls.append(task.key)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return run_command(sweep, timeout_s, task)

    monkeypatch.setattr("warplens.studies.runner.commandsweep.run_command", limited)
    with pytest.raises(KeyboardInterrupt):
        run(asked)
    found = read_measurements(tmp_path / "sweep.json")
    assert found.cells.select("n", "side", "rounds").rows() == [(1, "baseline", 2), (1, "variant", 2)]
    content, lines = run(asked)
    assert lines[0] == "5 of 16 are done already"
    assert [record["rounds"] for record in content["measurements"]] == [4] * 4


def test_braces_that_name_no_axis_are_left_alone():
    (task, _) = CommandSweep(("n=7",), "echo {n} {other} {{}}", "true", 1).tasks
    commands = {task.command for task in CommandSweep(("n=7",), "echo {n} {other} {{}}", "true", 1).tasks}
    assert ("echo", "7", "{other}", "{{}}") in commands
    assert task.key.startswith("n=7 ")


def test_a_preview_shows_the_commands(tmp_path):
    lines = preview(CommandSweep(("n=1,2",), "a {n}", "b 'x y' {n}", 3), tmp_path / "x.json", RunOptions())
    assert "n=2 variant: b 'x y' 2" in lines
    assert "4 cells × 3 repetitions = 12 runs, 12 to do" in lines


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"repeats": 0}, "at least 1"),
        ({"time_unit": "h"}, "--time-unit is one of"),
        ({"time_from": "step_ms=[0-9]+"}, "must have one group"),
        ({"time_from": "("}, "not a regular expression"),
        ({"axes": ("n=1",)}, "in neither command"),
        ({"axes": ("side=1",)}, "cannot be named side"),
        ({"items": "n"}, "not an axis of whole numbers"),
        ({"baseline": " "}, "--baseline is empty"),
        ({"baseline": "echo 'x"}, "--baseline: No closing quotation"),
    ],
)
def test_what_cannot_be_is_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        _ = CommandSweep(**{"axes": (), "baseline": "a", "variant": "b", **options}).tasks


def test_a_program_that_does_not_exist_ends_the_run_with_its_name(run):
    with pytest.raises(UsageError, match="no-such-program: No such file"):
        run(CommandSweep((), "no-such-program", "true", 2))


@pytest.mark.parametrize("printed", ["nan", "inf", "-inf", "1e300", "-3"])
def test_what_is_no_time_is_recorded_as_such_and_the_sweep_goes_on(run, printed):
    asked = CommandSweep((), python(f"print('step_ms={printed}')"), python("print('step_ms=1')"), 2, r"step_ms=(\S+)")
    content, _ = run(asked)
    assert [record["status"] for record in content["measurements"]] == ["failed", "measured"]
    assert "not above zero, or can be none" in content["measurements"][0]["reason"]


@pytest.mark.parametrize("values", ["0,1", "-1,2", "1.5,2"])
def test_a_step_processes_a_whole_number_of_items_above_zero(values):
    with pytest.raises(UsageError, match="whole numbers above zero"):
        CommandSweep((f"n={values}",), "a {n}", "b {n}", items="n")
