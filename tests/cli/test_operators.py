"""`warplens operators`, and the other tables, on a trace of the PyTorch profiler that can be counted by hand.

The program as a whole: what it lists, what it costs to start, and the two ways to call it.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.torch_trace import BACKWARD_NS, FORWARD_NS, OPTIMIZER_NS, STEPS, write_trace
from warplens import __version__
from warplens.cli.catalogue import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Run

TOTAL_NS = STEPS * (FORWARD_NS + BACKWARD_NS + OPTIMIZER_NS)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.json")


@pytest.fixture
def data(warplens: Callable[..., Run], trace: Path) -> Callable[..., dict[str, Any]]:
    """`data` of the JSON that a command prints."""

    def ask(*arguments: str) -> dict[str, Any]:
        command, *options = arguments
        run = warplens(command, trace, *options, "--format", "json")
        assert run.code == 0, run.err
        answer: dict[str, Any] = json.loads(run.out)["data"]
        return answer

    return ask


def test_operators_have_host_gpu_and_backward_time(data: Callable[..., dict[str, Any]]) -> None:
    rows = {row["name"]: row for row in data("operators")["rows"]}
    linear = rows["aten::linear"]
    assert linear["calls"] == STEPS
    assert (linear["host_ns"], linear["api_ns"], linear["host_self_ns"]) == (200_000, 10_000, 190_000)
    assert (linear["gpu_ns"], linear["backward_ns"]) == (STEPS * FORWARD_NS, STEPS * BACKWARD_NS)
    assert linear["share"] == pytest.approx((FORWARD_NS + BACKWARD_NS) / (TOTAL_NS / STEPS))


def test_coverage_and_overhead_are_stated(data: Callable[..., dict[str, Any]]) -> None:
    answer = data("operators")
    assert answer["coverage"]["operator_share"] == answer["coverage"]["linked_share"] == 1.0
    assert answer["overhead"]["threads"] == 2
    assert answer["overhead"]["host_ns"] == STEPS * (100_000 + 100_000 + 50_000)
    assert answer["overhead"]["framework_ns"] == answer["overhead"]["host_ns"] - STEPS * 15_000


def test_modules_have_their_backward_pass(data: Callable[..., dict[str, Any]]) -> None:
    rows = [
        (row["level"], row["name"], row["gpu_ns"], row["backward_ns"])
        for row in data("operators", "--by", "module")["rows"]
    ]
    assert rows == [
        ("module", "Linear_0", STEPS * FORWARD_NS, STEPS * BACKWARD_NS),
        ("annotation", "Optimizer.step#SGD.step", STEPS * OPTIMIZER_NS, 0),
    ]


def test_python_functions_stand_by_what_they_launch(data: Callable[..., dict[str, Any]]) -> None:
    rows = {row["name"]: row["gpu_self_ns"] for row in data("operators", "--by", "python")["rows"]}
    assert rows == {"linear.py(124): forward": STEPS * FORWARD_NS, "train.py(7): step": STEPS * OPTIMIZER_NS}


def test_shapes_are_told(data: Callable[..., dict[str, Any]]) -> None:
    shapes = {row["name"]: row["input_shapes"] for row in data("operators", "--by", "shapes")["rows"]}
    assert json.loads(shapes["aten::linear"]) == [[4, 8], [8, 8], []]


def test_a_limited_tree_names_what_it_leaves_out(warplens: Callable[..., Run], trace: Path) -> None:
    run = warplens("operators", trace, "--by", "tree", "--limit", "1")
    assert "the 1 of 3 rows with the most GPU time" in run.out
    assert "aten::linear" in run.out
    assert "aten::add_" not in run.out


def test_without_python_stacks_the_level_used_and_what_to_record_are_said(
    warplens: Callable[..., Run], tmp_path: Path
) -> None:
    trace = write_trace(tmp_path / "bare.json", python=False)
    modules = warplens("operators", trace, "--by", "module").out
    assert "with_modules=True" in modules
    assert "outermost operators" in modules
    functions = warplens("operators", trace, "--by", "python")
    assert functions.code == 0
    assert "with_stack=True" in functions.out


def test_a_profile_without_operators_says_what_to_record(warplens: Callable[..., Run], export: Path) -> None:
    run = warplens("operators", export)
    assert run.code == 0
    assert "torch.profiler" in run.out
    assert json.loads(warplens("operators", export, "--format", "json").out)["data"]["rows"] == []


def test_ranges_are_annotations_unless_operators_are_asked_for(data: Callable[..., dict[str, Any]]) -> None:
    assert [row["name"] for row in data("ranges")["rows"]] == ["ProfilerStep#N", "Optimizer.step#SGD.step"]
    assert "aten::linear" in [row["name"] for row in data("ranges", "--operators")["rows"]]


def test_phases_need_no_annotation(data: Callable[..., dict[str, Any]]) -> None:
    phases = {row["phase"]: row["gpu_ns"] for row in data("phases")["rows"]}
    assert phases == {
        "forward": STEPS * FORWARD_NS, "backward": STEPS * BACKWARD_NS, "optimizer": STEPS * OPTIMIZER_NS,
    }  # fmt: skip


def test_profiler_steps_are_steps(data: Callable[..., dict[str, Any]]) -> None:
    assert [row["kernels"] for row in data("steps")["rows"]] == [3, 3]


@pytest.mark.parametrize("command", ["budget", "kernels", "launches", "copies", "api"])
def test_the_other_tables_work_as_for_other_profiles(command: str, data: Callable[..., dict[str, Any]]) -> None:
    answer = data(command)
    assert answer["window"]["steps"]
    if command == "copies":
        assert answer["rows"] == []
    else:
        assert answer["rows"]


def test_the_report_has_a_section_on_operators(warplens: Callable[..., Run], trace: Path, tmp_path: Path) -> None:
    warplens("report", trace, "--output", tmp_path / "report", "--format", "md,json", "--quiet")
    text = (tmp_path / "report" / "report.md").read_text("utf-8")
    assert "## Operators" in text
    assert "Linear\\_0" in text or "Linear_0" in text
    operators = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["data"]["profiles"][0]["operators"]
    assert operators["coverage"]["linked_ns"] == STEPS * BACKWARD_NS
    assert operators["modules"]["rows"][0]["name"] == "Linear_0"


def test_the_report_on_another_profile_has_none(warplens: Callable[..., Run], export: Path, tmp_path: Path) -> None:
    warplens("report", export, "--output", tmp_path / "report", "--format", "md,json", "--quiet")
    assert "## Operators" not in (tmp_path / "report" / "report.md").read_text("utf-8")
    data = json.loads((tmp_path / "report" / "report.json").read_text("utf-8"))["data"]
    assert data["profiles"][0]["operators"] is None


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(eval(done.stderr.splitlines()[-1]))


def test_help_lists_every_command_with_its_summary(warplens: Callable[..., Run]) -> None:
    shown = " ".join(warplens("--help").out.split())

    for command in COMMANDS.values():
        assert f"{command.name} {command.summary}" in shown


def test_without_a_command_the_program_shows_its_help(warplens: Callable[..., Run]) -> None:
    assert warplens() == warplens("--help")
    assert warplens().code == 0


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_the_list_says_what_the_command_itself_says(command: object, warplens: Callable[..., Run]) -> None:
    docstring = inspect.getdoc(command.function())

    assert docstring.splitlines()[0] == command.summary
    assert command.summary in " ".join(warplens(command.name, "--help").out.split())


def test_help_imports_nothing_that_is_slow() -> None:
    assert imported_by("--help") == set()


@pytest.mark.parametrize("options", [(), ("--format", "json")], ids=["table", "json"])
def test_a_table_imports_its_own_topic_and_no_other(options: tuple[str, ...], export: Path) -> None:
    libraries = {"polars", "numpy", "adbc_driver_sqlite", "orjson"}

    assert imported_by("kernels", str(export), *options) == libraries | (set() if options else {"rich.console"})


def test_a_diagnosis_needs_no_study_no_chart_and_no_counters(export: Path) -> None:
    loaded = imported_by("diagnose", str(export))

    assert "warplens.diagnosis" in loaded
    others = {"warplens.studies", "warplens.compare", "warplens.report.overview", "warplens.analysis.counters"}
    assert loaded.isdisjoint({"scipy", "altair", "jinja2", "vl_convert", *others})


def test_the_package_runs_as_a_module() -> None:
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
def test_the_shell_completes_commands_and_values(words: str, position: int, expected: set[str]) -> None:
    environment = {
        **os.environ,
        "_WARPLENS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(position),
    }

    done = subprocess.run(
        [sys.executable, "-c", "from warplens.cli.main import run; run()"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert set(done.stdout.split()) == expected
