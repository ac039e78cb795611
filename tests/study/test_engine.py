"""The loop over tasks: it goes on where it was, gives up on what has failed, and says how long the rest will take."""

from __future__ import annotations

import os
import signal

import pytest

from warplens.studies.runner.engine import (
    Ledger,
    Task,
    failure_status,
    how_it_ended,
    run_tasks,
    span,
    time_left,
    to_do,
    without_folders,
)


class Runner:
    """Answers with what is set for a task; an exception is raised."""

    def __init__(self, answers=None):
        self.answers, self.done, self.closed = answers or {}, [], False

    def run(self, task):
        answer = self.answers.get(task.key, {"records": [{"status": "measured"}]})
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer()
        self.done.append(task.key)
        return answer if isinstance(answer, dict) else {"records": []}

    def close(self):
        self.closed = True


@pytest.fixture
def run(tmp_path):
    """Carries tasks out with a runner; gives the lines that were told."""

    def carried(tasks, runner, **options):
        lines, updates = [], []
        with Ledger(tmp_path / "x.jsonl", {}) as ledger:
            try:
                run_tasks(
                    tasks, ledger, runner,
                    log=lines.append, describe=str, update=lambda: updates.append(len(ledger.results)), **options,
                )  # fmt: skip
            finally:
                assert runner.closed
                assert updates[-1] == len(ledger.results)
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


def test_what_is_left_is_estimated_from_how_long_the_others_took(tmp_path):
    assert time_left([10, 20], 4) == " · about 60 s left"
    assert time_left([10, 20], 0) == ""
    assert time_left([], 5) == ""
    with Ledger(tmp_path / "x.jsonl", {}) as ledger:
        ledger.add("a", {"records": [{"status": "failed"}]}, 1)
        assert [task.key for task in to_do(TASKS, ledger)] == ["b", "c", "d"]
        assert [task.key for task in to_do(TASKS, ledger, retry=True)] == ["a", "b", "c", "d"]


def test_times_and_endings_in_words():
    assert [span(seconds) for seconds in (0.2, 89, 600, 9000)] == ["1 s", "89 s", "10 min", "2.5 h"]
    assert how_it_ended(3, ["", "no such file /home/me/data.bin"]) == (
        "the process ended with code 3: no such file data.bin"
    )
    assert "SIGKILL" in how_it_ended(-9, [])
    assert "memory" in how_it_ended(-9, [])
    assert "SIGSEGV" in how_it_ended(-11, [])
    for text in ("CUDA out of memory.", "terminate called after throwing 'std::bad_alloc'", "Cannot allocate memory"):
        assert failure_status([text]) == "out-of-memory"
    assert failure_status(["KeyError: 'x'"]) == "failed"


def test_folders_are_left_out_of_texts_and_nothing_else_is():
    assert without_folders("python /home/me/a.py --out=/tmp/x/y.json 5/3 a/b") == "python a.py --out=y.json 5/3 a/b"
