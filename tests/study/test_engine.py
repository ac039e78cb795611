"""The loop over tasks: it goes on where it was, gives up on what has failed, and says how long the rest will take.

The ledger: what is done stays done, and belongs to one plan.

The predefined studies: full grids, nothing varied together with anything else.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from warplens.errors import UnreadableInputError, UsageError
from warplens.studies.runner.engine import (
    Ledger,
    RunOptions,
    Task,
    ending_of,
    measure,
    span,
    to_do,
    without_folders,
)
from warplens.studies.runner.studies import STUDIES, StudyOptions


class Runner:
    """Answers with what is set for a task; an exception is raised."""

    def __init__(self, answers=None):
        self.answers, self.done = answers or {}, []

    def __call__(self, task):
        answer = self.answers.get(task.key, {"records": [{"status": "measured"}]})
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer()
        self.done.append(task.key)
        return answer if isinstance(answer, dict) else {"records": []}


@pytest.fixture
def run(tmp_path):
    """Carries tasks out with a runner; gives the lines that were told."""

    def carried(tasks, runner, **options):
        lines, output = [], tmp_path / "x.json"
        plan = SimpleNamespace(
            tasks=tasks, description=dict, doing=lambda *_: nullcontext(runner), summary=str,
            content=lambda results: {"measurements": list(results)},
        )  # fmt: skip
        try:
            measure(plan, output, RunOptions(**options), lines.append)
        finally:
            with Ledger(tmp_path / "x.ledger.jsonl", {}) as ledger:
                assert json.loads(output.read_text()) == {"measurements": list(ledger.results)}
        return lines

    return carried


TASKS = [Task(key) for key in "abcd"]


def test_every_task_is_done_in_order(run):
    runner = Runner()
    lines = run(TASKS, runner)
    assert runner.done == list("abcd")
    assert lines[0].startswith("[1/4] a: ")
    assert "left" in lines[0]
    assert "left" not in lines[3]
    assert lines[-1].startswith("done, in ")


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), RuntimeError("a defect")])
def test_an_interrupted_run_goes_on_where_it_was(run, ended):
    with pytest.raises(type(ended)):
        run(TASKS, Runner({"c": ended}))
    runner = Runner()
    lines = run(TASKS, runner)
    assert runner.done == ["c", "d"]
    assert lines[0] == "2 of 4 are done already"
    assert lines[1].startswith("[3/4] c: ")
    assert run(TASKS, again := Runner())[-1] == "nothing was left to do"
    assert not again.done


def test_sigterm_ends_a_run_like_ctrl_c(run):
    runner = Runner({"b": lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(KeyboardInterrupt):
        run(TASKS, runner)
    assert runner.done == ["a"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_failed_cell_is_not_tried_again_and_not_counted_on(run):
    tasks = [Task(f"{side}{number}", group=side) for number in (1, 2, 3) for side in "xy"]
    runner = Runner({"x1": {"status": "failed"}})
    lines = run(tasks, runner)
    assert runner.done == ["x1", "y1", "y2", "y3"]
    assert "left" not in lines[3]
    assert run(tasks, Runner())[0] == "6 of 6 are done already"


def test_failures_are_tried_once_more_when_asked_to(run):
    tasks = [Task(f"{side}{number}", group=side) for number in (1, 2) for side in "xy"]
    run(tasks, Runner({"x1": {"status": "out-of-memory"}}))
    runner = Runner()
    run(tasks, runner, retry=True)
    assert runner.done == ["x1", "x2"]


def test_failed_tasks_are_left_to_do_when_asked_for(tmp_path):
    with Ledger(tmp_path / "x.jsonl", {}) as ledger:
        ledger.add("a", {"records": [{"status": "failed"}]}, 1)
        assert [task.key for task in to_do(TASKS, ledger)] == ["b", "c", "d"]
        assert [task.key for task in to_do(TASKS, ledger, retry=True)] == ["a", "b", "c", "d"]


def test_times_and_endings_in_words():
    assert [span(seconds) for seconds in (0.2, 89, 600, 9000)] == ["1 s", "89 s", "10 min", "2.5 h"]
    reason = "the process ended with code 3: no such file data.bin"
    assert ending_of(3, "\nno such file /home/me/data.bin") == {"status": "failed", "reason": reason}
    assert "(SIGKILL), as the system does when its memory runs out" in ending_of(-9, "")["reason"]
    assert "SIGSEGV" in ending_of(-11, "")["reason"]
    assert ending_of(-99, "")["reason"] == "the process was killed (signal 99)"
    for text in ("CUDA out of memory.", "terminate called after throwing 'std::bad_alloc'", "Cannot allocate memory"):
        assert ending_of(1, text)["status"] == "out-of-memory"
    assert ending_of(1, "KeyError: 'x'")["status"] == "failed"


def test_folders_are_left_out_of_texts_and_nothing_else_is():
    assert without_folders("python /home/me/a.py --out=/tmp/x/y.json 5/3 a/b") == "python a.py --out=y.json 5/3 a/b"


PLAN = {"workload": "lm", "rounds": 20, "plan": {"warmup_steps": 5}, "tasks": [{"key": "a", "cells": []}]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.ledger.jsonl"


def _begun(path, *tasks):
    with Ledger(path, PLAN) as ledger:
        for task in tasks:
            ledger.add(task, {"records": [{"status": "measured"}]}, 2.5)


def test_what_was_written_down_is_there_in_the_next_run(path):
    _begun(path, "a", "b")
    with Ledger(path, PLAN) as ledger:
        assert list(ledger.results) == ["a", "b"]
        assert ledger.seconds == {"a": 2.5, "b": 2.5}


def test_each_line_is_complete_as_soon_as_a_task_is_added(path):
    with Ledger(path, PLAN) as ledger:
        ledger.add("a", {"records": []}, 1)
        head, entry = map(json.loads, path.read_text().splitlines())
    assert head["schema"] == "warplens.ledger/1"
    assert head["plan"] == PLAN
    assert entry == {"task": "a", "seconds": 1, "result": {"records": []}}


def test_a_line_that_was_cut_off_is_dropped_and_the_next_one_stands_alone(path):
    _begun(path, "a", "b")
    path.write_bytes(path.read_bytes()[:-9])
    with Ledger(path, PLAN) as ledger:
        assert list(ledger.results) == ["a"]
        ledger.add("c", {"records": []}, 1)
    with Ledger(path, PLAN) as ledger:
        assert list(ledger.results) == ["a", "c"]


def test_a_head_that_was_cut_off_begins_anew(path):
    path.write_bytes(b'{"schema": "warplens.led')
    _begun(path, "a")
    with Ledger(path, PLAN) as ledger:
        assert list(ledger.results) == ["a"]


def test_the_latest_try_of_a_task_counts(path):
    with Ledger(path, PLAN) as ledger:
        ledger.add("a", {"status": "failed"}, 1)
        ledger.add("a", {"status": "measured"}, 2)
    with Ledger(path, PLAN) as ledger:
        assert ledger.results == {"a": {"status": "measured"}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rounds": 40}, "rounds was 20, is 40"),
        ({"plan": {"warmup_steps": 9}}, "warmup_steps was 5, is 9"),
        ({"tasks": PLAN["tasks"] * 2}, "1 tasks then, 2 now, 2 the same"),
    ],
)
def test_another_plan_is_refused_in_one_line_that_says_what_changed(path, changed, words):
    _begun(path, "a")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="belongs to another plan") as refused:
        Ledger(path, {**PLAN, **changed})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert path.read_bytes() == before


def test_starting_afresh_forgets_what_another_plan_has_done(path):
    _begun(path, "a")
    with Ledger(path, {**PLAN, "rounds": 40}, fresh=True) as ledger:
        assert not ledger.results


def test_a_plan_with_tuples_is_the_plan_that_comes_back_with_lists(path):
    with Ledger(path, {"tasks": ((1, 2),)}):
        pass
    with Ledger(path, {"tasks": [[1, 2]]}) as ledger:
        assert not ledger.results


@pytest.mark.parametrize("text", ["not JSON\n", '{"schema": "other/1"}\n', "[]\n"])
def test_another_file_is_refused_and_left_as_it_is(path, text):
    path.write_text(text)
    with pytest.raises((UnreadableInputError, UsageError)):
        Ledger(path, PLAN)
    assert path.read_text() == text


def test_damage_in_the_middle_is_refused(path):
    _begun(path, "a", "b")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "garbage", lines[2]]) + "\n")
    with pytest.raises(UnreadableInputError, match="line 2"):
        Ledger(path, PLAN)


def test_a_second_run_at_the_same_time_is_refused(path):
    with Ledger(path, PLAN), pytest.raises(UsageError, match="another run"):
        Ledger(path, PLAN)


@pytest.mark.parametrize(
    "entry",
    [
        "3",
        "[1, 2]",
        '{"task": ["a"], "seconds": 1, "result": {}}',
        '{"task": "a", "seconds": "long", "result": {}}',
        '{"task": "a", "seconds": 1, "result": 3}',
        '{"task": "a", "seconds": 1, "result": {"times_ns": []}}',
        '{"task": "a", "seconds": 1, "result": {"times_ns": ["fast"]}}',
        '{"task": "a", "seconds": 1, "result": {"records": [{}]}}',
        "[" * 100_000,
    ],
)
def test_an_entry_of_another_form_is_refused_with_its_line(path, entry):
    _begun(path)
    path.write_text(path.read_text() + entry + "\n")
    with pytest.raises(UnreadableInputError, match="line 2 is not an entry of a ledger"):
        Ledger(path, PLAN)


@pytest.mark.parametrize("text", ["3\n", "[1, 2]\n", "notes without an end of line", "[" * 100_000 + "\n"])
def test_what_is_no_ledger_is_not_overwritten(path, text):
    path.write_text(text)
    with pytest.raises(UnreadableInputError, match="line 1 is not an entry of a ledger"):
        Ledger(path, PLAN)
    assert path.read_text() == text


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
