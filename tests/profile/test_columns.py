"""A column has one declaration: what several tables have by one name, they take from `profile/columns.py`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import warplens
from warplens.profile.columns import COLUMNS, column, optional, table
from warplens.profile.schema import Column

SOURCES = Path(warplens.__file__).parent


def test_a_name_that_several_tables_have_is_declared_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for name, line in _declared(ast.parse(path.read_text("utf-8"))):
            found[name].append(f"{path.relative_to(SOURCES)}:{line}")
    assert len(found) > 500
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def _declared(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that calls declare, those left out that `optional` takes from the shared columns."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if node.func.id == "Column" and first is not None:
            yield str(first), node.lineno
        elif node.func.id == "both_sides" and first is not None:
            yield from ((f"{side}_{first}", node.lineno) for side in ("baseline", "variant"))
        elif node.func.id == "optional":
            yield from ((item.arg, node.lineno) for item in node.keywords if item.arg and item.arg not in COLUMNS)


def test_the_count_of_declarations_sees_each_way_to_declare_a_column() -> None:
    source = "Column('a', pl.Int64); optional(b='', share=''); both_sides('c', pl.Int64, ''); column('share')"
    assert [name for name, _ in _declared(ast.parse(source))] == ["a", "b", "baseline_c", "variant_c"]


def test_what_is_otherwise_in_one_table_leaves_the_shared_column_as_it_is() -> None:
    own = column("share", help="of the peak rate", title="Of its peak")
    assert (own.name, own.dtype, own.kind, own.title) == ("share", pl.Float64, "share", "Of its peak")
    assert column("share").title == "Share"


@pytest.mark.parametrize(
    ("declared", "changes", "kind"),
    [
        pytest.param(Column("count", pl.Int64), {"dtype": pl.String}, "text", id="a number told as text"),
        pytest.param(Column("level"), {"dtype": pl.Float64}, "number", id="a text that is a number here"),
        pytest.param(Column("cell", pl.Int64, kind="text"), {"dtype": pl.Int32}, "text", id="a kind that was given"),
        pytest.param(Column("time_ns", pl.Int64), {"dtype": pl.Float64}, "duration_ns", id="a mean of durations"),
        pytest.param(Column("count", pl.Int64), {"dtype": pl.String, "kind": "name"}, "name", id="a kind given here"),
    ],
)
def test_values_are_written_as_their_type_asks(declared: Column, changes: dict[str, object], kind: str) -> None:
    assert declared.but(**changes).kind == kind


def test_a_quantity_that_may_be_absent_takes_the_heading_of_the_shared_column() -> None:
    found = table("t", "one", optional(pl.Int32, device="CUDA ordinal", unheard_of="a quantity")).columns
    assert [(each.title, each.nullable, each.dtype) for each in found] == [
        ("GPU", True, pl.Int32),
        ("Unheard of", True, pl.Int32),
    ]
