"""The documentation says what the program does: columns, commands, options, notes, categories, and shown output."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

import warplens
import warplens.analysis
import warplens.readers
import warplens.studies.grid
from tests import shipped
from warplens.analysis.categories import CATEGORIES, classify
from warplens.analysis.launches import LAUNCHES
from warplens.analysis.timebudget import IDLE_CAUSES
from warplens.cli.catalogue import COMMANDS
from warplens.cli.main import app
from warplens.profile.schema import Table
from warplens.profile.trace import TABLES
from warplens.readers.nsys.tables import SOURCES
from warplens.report.text import cause_title

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import generate_columns
from console_examples import empty_folder, examples, pages
from generate_columns import PAGE, counter_tables, page, result_tables

#: Options of nsys that the pages recommend.
NCU_OPTIONS = {"--section", "--set", "--page", "--print-units", "--cache-control", "--clock-control", "--replay-mode"}
NCU_OPTIONS |= {"--graph-profiling"}
NSYS_OPTIONS = {"--trace", "--cuda-graph-trace", "--cuda-memory-usage", "--capture-range", "--type"}
NSYS_OPTIONS |= {"--gpu-metrics-devices", "--trace-fork-before-exec"}

_FENCED = re.compile(r"^ *```(?P<kind>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")


def _text(path: str) -> str:
    return (DOCS / path).read_text("utf-8")


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_column_dictionary_is_what_the_tables_give():
    assert PAGE.read_text("utf-8") == page(), "run `python docs/generate_columns.py`"


def test_two_tables_of_results_with_one_name_are_refused(monkeypatch):
    twice = [Table("waits", "One wait.", ()), Table("Waits", "Another one.", ())]
    monkeypatch.setattr(generate_columns, "_tables", lambda *_: twice)
    monkeypatch.setattr(generate_columns, "counter_tables", list)
    with pytest.raises(ValueError, match="called waits"):
        result_tables()


def test_a_result_with_the_name_of_a_table_of_a_profile_is_explained_as_well():
    assert LAUNCHES in result_tables()
    assert "### Launches" in PAGE.read_text("utf-8")


def test_every_column_of_every_table_is_explained():
    tables = (*TABLES.values(), *counter_tables(), *result_tables())
    assert not [(table.name, column.name) for table in tables for column in table.columns if not column.help]


def test_no_result_declares_its_types_apart_from_its_columns():
    packages = (warplens.readers, warplens.analysis, warplens.studies.grid)
    for module in (name for package in packages for name in _modules(package)):
        declared = vars(importlib.import_module(module)).items()
        assert not [name for name, value in declared if isinstance(value, pl.Schema) and not name.startswith("_")]


def _modules(package: Any) -> Iterator[str]:
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield info.name
        if info.ispkg:
            yield from _modules(importlib.import_module(info.name))


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def options():
    """The options of each command, and of the program itself under the empty name."""
    group: Any = typer.main.get_command(app)
    found = {"": _options_of(group)}
    for name in COMMANDS:
        context = group.make_context("warplens", [name])
        found[name] = _options_of(group.resolve_command(context, [name])[1])
    return found


def _options_of(command: Any) -> set[str]:
    every = (command, *getattr(command, "commands", {}).values())
    named = (option for each in every for param in each.params for option in (*param.opts, *param.secondary_opts))
    return {"--help", "-h", *(option for option in named if option.startswith("-"))}


def _command_lines(text: str) -> Iterator[list[str]]:
    """Everything in code that begins with `warplens`, as words; comments left out."""
    lines = [line for block in _FENCED.finditer(text) for line in block["body"].split("\n")]
    lines += _INLINE.findall(_FENCED.sub("", text))
    for line in lines:
        words = line.strip().removeprefix("$ ").partition(" #")[0].partition(" -- ")[0].split()
        if words[:1] and words[0].rpartition("/")[2] == "warplens":
            yield words[1:]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_command_and_option_on_the_page_exists(path, options):
    for words in _command_lines(path.read_text("utf-8")):
        is_path = bool(words) and ("." in words[0] or ":" in words[0] or words[0].isupper())
        named = [word for word in words if re.fullmatch(r"[a-z]+", word) and word != "help"]
        name = "answer" if is_path else next(iter(named), "")
        assert name in options, f"warplens {' '.join(words)}: no such command"
        used = {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"}
        assert used <= options[name] | options[""], f"warplens {' '.join(words)}: no such option"


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_option_named_in_the_text_exists(path, options):
    known = set.union(*options.values()) | NSYS_OPTIONS | NCU_OPTIONS
    text = _FENCED.sub("", path.read_text("utf-8"))
    named = {code.split()[0].partition("=")[0] for code in _INLINE.findall(text) if code.startswith("--")}
    assert named <= known


def test_every_command_has_a_page():
    for name in COMMANDS:
        assert f"warplens {name}" in _text(f"how-to/{name}.md")


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────────


#: The demo takes ten seconds and has tests of its own; `python docs/console_examples.py` runs its example, too.
_EXAMPLES = [example for path in pages() for example in examples(path) if example.command != "warplens demo"]


@pytest.fixture
def _anywhere():
    with empty_folder():
        yield


@pytest.mark.usefixtures("_anywhere")
@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda example: f"{example.page.stem}: {example.command}")
def test_the_output_on_the_page_is_what_the_command_prints(example):
    assert list(example.shown) == example.updated(), (
        "run `python docs/console_examples.py --update` and read the changes"
    )


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_no_output_of_a_command_is_shown_that_is_not_run(path):
    blocks = _FENCED.finditer(path.read_text("utf-8"))
    assert not [block["body"] for block in blocks if block["kind"] != "console" and "$ warplens" in block["body"]]


_PROGRAMS = [
    pytest.param(block["body"], id=f"{path.stem}-{number}")
    for path in pages()
    for number, block in enumerate(_FENCED.finditer(path.read_text("utf-8")))
    if block["kind"] == "python" and "import warplens" in block["body"]
]


_FRAGMENTS = [
    pytest.param(block["body"], id=f"{path.stem}-{number}")
    for path in pages()
    for number, block in enumerate(_FENCED.finditer(path.read_text("utf-8")))
    if block["kind"] == "py" or (block["kind"] == "python" and "import warplens" not in block["body"])
]


_NOTEBOOKS = [
    pytest.param(
        "\n".join(
            "".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"] if "outputs" in cell
        ),
        id=path.stem,
    )
    for path in sorted(DOCS.rglob("*.ipynb"))
]


@pytest.mark.usefixtures("_anywhere")
@pytest.mark.parametrize("program", _PROGRAMS + _NOTEBOOKS)
def test_the_python_on_the_page_runs(program):
    exec(compile(program, "example", "exec"), {})


@pytest.mark.parametrize("program", _FRAGMENTS)
def test_python_that_needs_a_program_of_the_reader_calls_what_exists(program):
    """Such a block is not run. Its calls of Warplens must fit the functions' parameters."""
    known: dict[str, Any] = {"warplens": warplens}
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("warplens"):
            if node.module == "warplens.workloads.measurement":
                pytest.importorskip("torch")
            module = importlib.import_module(str(node.module))
            known |= {alias.asname or alias.name: getattr(module, alias.name) for alias in node.names}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        owner, _, attribute = ast.unparse(call.func).rpartition(".")
        if (owner or attribute) in known and attribute != "AdaptiveModule":  # needs PyTorch as well
            function = getattr(known[owner], attribute) if owner else known[attribute]
            inspect.signature(function).bind(*call.args, **{str(keyword.arg): None for keyword in call.keywords})


@pytest.mark.usefixtures("_anywhere")
def test_the_exported_tables_are_read_as_the_page_says():
    blocks = [block["body"] for block in _FENCED.finditer(_text("how-to/export.md"))]
    (program,) = (body for body in blocks if "read_parquet" in body)
    (folder,) = re.findall(r'read_parquet\("(\w+)/', program)
    exported = CliRunner().invoke(app, ["export", "demo:deit224_bs1_baseline", "--to", "parquet", "-o", folder])
    assert exported.exit_code == 0, exported.output
    exec(compile(program, "example", "exec"), {})


_TABLES = sorted(
    COMMANDS.keys()
    - {"answer", "bench", "cache", "collect", "counters", "demo", "doctor", "export", "policy", "report", "scrub"}
    - {"study", "sweep"}
)


#: What commands on other profiles than traces are shown.
_INPUTS = ROOT / "tests" / "golden" / "inputs"
_OTHER_PROFILES = {"roofline": "demo:planted_h200", "numerics": str(_INPUTS / "softmax_half.npy")}

#: What commands on several profiles are given besides.
_FURTHER_PROFILES = {
    "compare": ("demo:deit224_bs1_baseline",),
    "numerics": (str(_INPUTS / "softmax_exact.npy"),),
}


@pytest.mark.usefixtures("_anywhere")
@pytest.mark.parametrize("command", _TABLES)
def test_every_key_of_the_json_output_is_explained(command):
    documented = set(_INLINE.findall(_text("reference/json.md")))
    profile = _OTHER_PROFILES.get(command, str(shipped.capture("deit224_bs1_graph_nodes")))
    further = _FURTHER_PROFILES.get(command, ())
    result = CliRunner().invoke(app, [command, profile, *further, "--format", "json", "--quiet"])
    assert set(_keys(json.loads(result.stdout), but=("rows", "evidence", "busy_ns"))) <= documented | _ENVELOPE


#: Shown on the page as an example.
_ENVELOPE = {"schema", "version", "source", "data", "warnings"}


def _keys(value: Any, but: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for key, inner in value.items():
            yield from () if key in but else _keys(inner, but)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, but)


# ── reference pages ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_quality_note_is_explained():
    documented = set(_INLINE.findall(_text("reference/quality-notes.md")))
    assert _note_codes() <= documented


def _note_codes() -> set[str]:
    """The first argument of every `Note(…)` in the sources; of a conditional expression, both texts."""
    codes: set[str] = set()
    sources = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    for source in (text for text in sources if "Note(" in text):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note" and node.args:
                code = node.args[0]
                branches = (code.body, code.orelse) if isinstance(code, ast.IfExp) else (code,)
                codes |= {str(branch.value) for branch in branches if isinstance(branch, ast.Constant)}
    return codes


def test_every_category_is_explained_with_names_that_belong_to_it():
    table, _, _ = _text("reference/categories.md").partition("\n## ")
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| ([^|]+) \|$", table, re.MULTILINE)
    assert [category for category, _ in rows] == list(CATEGORIES)
    for category, names in rows:
        for name in _INLINE.findall(names):
            assert classify(name).category == category, name


def test_every_idle_cause_is_explained_under_both_of_its_names():
    text = _text("explanation/time-budget.md")
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE)
    assert dict(rows) == {cause: cause_title(cause) for cause in IDLE_CAUSES}


def test_every_table_that_is_read_is_in_the_format_matrix():
    documented = set(_INLINE.findall(_text("reference/formats.md")))
    for source in SOURCES:
        assert {source.table, source.trace_table} <= documented
