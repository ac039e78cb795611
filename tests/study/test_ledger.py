"""The ledger: what is done stays done, and belongs to one plan."""

from __future__ import annotations

import json

import pytest

from warplens.errors import UnreadableInputError, UsageError
from warplens.studies.runner.engine import Ledger

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
    with pytest.raises(UnreadableInputError, match="line 2 is no entry of a ledger"):
        Ledger(path, PLAN)


@pytest.mark.parametrize("text", ["3\n", "[1, 2]\n", "notes without an end of line", "[" * 100_000 + "\n"])
def test_what_is_no_ledger_is_not_overwritten(path, text):
    path.write_text(text)
    with pytest.raises(UnreadableInputError, match="line 1 is no entry of a ledger"):
        Ledger(path, PLAN)
    assert path.read_text() == text
