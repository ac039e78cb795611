"""Damaged files of every kind, and every command over them: each ends in an answer or in one line, within bounds."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable

import pytest

from tests.fuzz import judge
from tests.fuzz.campaign import minimised
from tests.fuzz.judge import Case, Ended, ended, judged
from tests.fuzz.seeds import CORPUS, by_name, seeds
from tests.tiers import thinned
from warplens.errors import UnreadableInputError

#: The cases are the same each time: other ones are for `make fuzz`.
CAMPAIGN = 20_260_101
#: About a minute of processor time in all; `make test` takes an eighth.
CASES, PARTS = 800, 8

#: Databases are changed in memory, by what `sqlite3` can since Python 3.11.
changes_databases = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11 to change databases")


@changes_databases
@pytest.mark.parametrize("part", thinned(range(PARTS), quick=(4,)))
def test_whatever_the_damage_a_run_ends_in_an_answer_or_in_one_line(part):
    results = {number: judged(Case(CAMPAIGN, number)) for number in range(part, CASES, PARTS)}

    assert {f"{CAMPAIGN}:{number}": result for number, result in results.items() if result.wrong} == {}
    codes = Counter(result.code for result in results.values())
    assert codes[0] > len(results) // 5  # the damage is not so great that nothing but the first check is tried
    assert codes[2] > len(results) // 5


@changes_databases
@pytest.mark.parametrize("part", thinned(range(4), quick=(0,)))
def test_rows_of_tables_of_any_making_are_those_of_sqlite_or_refused(part):
    results = {number: judged(Case(CAMPAIGN, number, "rows")) for number in range(part, CASES // 2, 4)}

    assert {number: result for number, result in results.items() if result.wrong} == {}
    codes = Counter(result.code for result in results.values())
    assert min(codes[0], codes[1], codes[2]) > CASES // 80  # decoded from pages, left to SQLite, refused


def test_a_campaign_removes_its_own_folders_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(judge, "memory_folder", lambda: None)  # other tests of this process keep a folder there
    for name in (f"{judge.OWN}x", "fuzz-0-x", "fuzz-x"):
        (tmp_path / name).mkdir()
    judge.remove_left()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["fuzz-0-x", "fuzz-x"]


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.*")), ids=lambda path: path.name)
def test_what_was_wrong_once_is_right_now(path):
    """Files are named `SEED.COMMAND.WHAT`; the commands are those of the seed that begin with the word."""
    name, word, _ = path.name.split(".", 2)
    seed = by_name(name)
    commands = [command for command in dict.fromkeys(seed.commands) if command.split()[0] == word]

    assert commands
    assert [result for command in commands if (result := ended(seed, path.read_bytes(), command)).wrong] == []


@pytest.mark.slow
def test_every_seed_is_read_by_its_commands():
    refused = {
        f"{seed.name}: {command}"
        for seed in seeds()
        for command in dict.fromkeys(seed.commands)
        if ended(seed, seed.content, command).code not in (0, 1)
    }
    # No range of that name, no nsys to make an export of it with, and no method in a grid of language models.
    assert all("--range step" in line or line.startswith(("report: scrub", "grid: policy fit")) for line in refused)


@changes_databases
def test_a_case_is_the_same_each_time(monkeypatch):
    def made(at_s: float) -> list[tuple[str, bytes, str]]:
        monkeypatch.setattr("time.time", lambda: at_s)  # gzip writes it into its header
        cases = (Case(5, number).made() for number in range(60))
        return [(seed.name, content, command) for seed, content, command in cases]

    assert made(1e9) == made(2e9)


def test_the_judge_notices(monkeypatch):
    seed = by_name("export")

    def with_reader(reader: Callable[..., object]) -> str:
        with monkeypatch.context() as patch:
            patch.setattr("warplens.readers.nsys.export.read_nsys_sqlite", reader)
            return ended(seed, seed.content, "kernels {path} -f json").wrong

    def failing(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    def escaping(*_: object) -> None:
        raise GeneratorExit

    def endless(*_: object) -> None:
        while True:
            pass

    def untidy(*_: object) -> None:
        tempfile.mkdtemp()
        raise UnreadableInputError("case", "nothing", "Nothing")

    def wordy(*_: object) -> None:
        sys.stderr.write("error: one\n")
        raise UnreadableInputError("case", "nothing", "Nothing")

    monkeypatch.setattr(judge, "CPU_SECONDS", 0.3)
    assert with_reader(failing).startswith("defect 70: ZeroDivisionError at ")
    assert with_reader(escaping).startswith("escaped: GeneratorExit at ")
    assert with_reader(endless).startswith("too long: kernels at ")
    assert with_reader(untidy) == "left behind: a temporary file"
    assert with_reader(wordy) == "no one line: kernels"


def test_a_defect_is_made_smaller(monkeypatch):
    monkeypatch.setattr("tests.fuzz.campaign.ended", lambda _, content, __: Ended(70, "x" if b"!" in content else ""))

    assert minimised(by_name("trace"), b"a" * 300 + b"!" + b"b" * 700, "kernels") == b"!"
