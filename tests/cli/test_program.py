"""The program as a whole: what it lists, what it costs to start, and the two ways to call it."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from tests.cli.conftest import in_python
from warplens import __version__
from warplens.cli.catalogue import COMMANDS

#: Libraries that are slow to import, and rooms and topics that only some commands need.
HEAVY = (
    *("polars", "numpy", "scipy", "altair", "jinja2", "vl_convert", "rich.console", "adbc_driver_sqlite", "orjson"),
    "pydantic",
    *("warplens.studies", "warplens.compare", "warplens.report.overview", "warplens.report.charts", "warplens.secrets"),
    *("warplens.diagnosis", "warplens.analysis.counters", "warplens.analysis.operators", "warplens.analysis.work"),
    *("warplens.analysis.timebudget", "warplens.analysis.allocator", "warplens.readers.nsys.report"),
    *("warplens.readers.kineto.trace", "warplens.readers.ncu.report"),
)


def imported_by(*arguments: str) -> set[str]:
    """Which of these are loaded when the program has ended."""
    script = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr))\n"
        f"sys.argv = ['warplens', *{list(arguments)!r}]\n"
        "from warplens.cli.main import run\n"
        "run()\n"
    )
    return set(eval(in_python(script).stderr.splitlines()[-1]))


def test_help_lists_every_command_with_its_summary(warplens):
    shown = " ".join(warplens("--help").out.split())

    for command in COMMANDS.values():
        assert f"{command.name} {command.summary}" in shown


def test_without_a_command_the_program_shows_its_help(warplens):
    assert warplens() == warplens("--help")
    assert warplens().code == 0


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_the_list_says_what_the_command_itself_says(command, warplens):
    docstring = inspect.getdoc(command.function())

    assert docstring.splitlines()[0] == command.summary
    assert command.summary in " ".join(warplens(command.name, "--help").out.split())


def test_help_imports_nothing_that_is_slow():
    assert imported_by("--help") == set()


@pytest.mark.parametrize("options", [(), ("--format", "json")], ids=["table", "json"])
def test_a_table_imports_its_own_topic_and_no_other(options, export):
    libraries = {"polars", "numpy", "adbc_driver_sqlite", "orjson"}

    assert imported_by("kernels", str(export), *options) == libraries | (set() if options else {"rich.console"})


def test_a_diagnosis_needs_no_study_no_chart_and_no_counters(export):
    loaded = imported_by("diagnose", str(export))

    assert "warplens.diagnosis" in loaded
    others = {"warplens.studies", "warplens.compare", "warplens.report.overview", "warplens.analysis.counters"}
    assert loaded.isdisjoint({"scipy", "altair", "jinja2", "vl_convert", *others})


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "warplens", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout == f"warplens {__version__}\n"


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("warplens ker", 1, {"kernels"}),
        ("warplens kernels --by cat", 3, {"category"}),
        ("warplens api --by name,th", 3, {"name,thread"}),
        ("warplens ranges --window ", 3, {"steady", "all"}),
    ],
)
def test_the_shell_completes_commands_and_values(words, position, expected):
    asked = {"_WARPLENS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}

    done = in_python("from warplens.cli.main import run; run()", **asked)

    assert set(done.stdout.split()) == expected
