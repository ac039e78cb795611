"""The tables are declared once, and a frame that does not fit is refused where it enters.

A column has one declaration: what several tables have by one name, they take from `profile/columns.py`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import warplens
from warplens.analysis.kernels import KERNELS
from warplens.errors import SchemaError
from warplens.profile import TABLES, Capture, Recorder, Trace
from warplens.profile.columns import COLUMNS, column, optional, table
from warplens.profile.schema import (
    Column,
    encode_names,
    name_categories,
    name_labels,
    once_per_dictionary,
    texts_where,
    texts_with,
)

CAPTURE = Capture("file.sqlite", "nsys-sqlite", Recorder("Nsight Systems"))


def test_a_trace_without_tables_has_all_of_them_empty_with_their_schema():
    trace = Trace(CAPTURE)
    fields = {field.name for field in dataclasses.fields(Trace)} - {"capture"}
    assert fields == set(TABLES)
    for name in fields:
        frame = getattr(trace, name)
        assert frame.height == 0
        assert frame.columns == [column.name for column in TABLES[name].columns]
    assert not trace.has_device_work


def test_a_column_of_the_wrong_type_is_refused_by_name():
    frame = TABLES["os_calls"].empty().with_columns(pl.col("start_ns").cast(pl.Float64))
    with pytest.raises(SchemaError, match=r"os_calls.*start_ns.*Float64"):
        Trace(CAPTURE, os_calls=frame)


def test_a_missing_column_is_refused_by_name():
    with pytest.raises(SchemaError, match=r"kernels.*full_name is absent"):
        Trace(CAPTURE, kernels=TABLES["kernels"].empty().drop("full_name"))


def test_a_null_where_none_may_stand_is_refused():
    frame = pl.DataFrame(
        {"start_ns": [1], "end_ns": [None], "process": [1], "thread": [1], "name": ["poll"]},
        schema_overrides={"end_ns": pl.Int64, "process": pl.Int32, "thread": pl.Int32, "name": pl.Enum(["poll"])},
    )
    with pytest.raises(SchemaError, match=r"end_ns holds 1 nulls"):
        Trace(CAPTURE, os_calls=frame)


def test_extra_columns_do_not_enter_the_trace():
    frame = TABLES["os_calls"].empty().with_columns(pl.lit("secret").alias("command_line"))
    assert "command_line" not in Trace(CAPTURE, os_calls=frame).os_calls.columns


def test_names_are_encoded_by_position_and_repeated_texts_merge():
    names = encode_names(np.array([2, 0, 1]), ["a", "b", "a"])
    assert names.to_list() == ["a", "a", "b"]
    assert name_categories(names).to_list() == ["a", "b"]


def test_a_meaning_is_asked_once_for_names_that_differ_in_numbers():
    names = encode_names(
        np.array([3, 0, 2, 1, 0]), ["aten::mm, seq = 1, op_id = 12", "aten::mm, seq = 27, op_id = 5", "step 7", "b"]
    )
    asked = []

    def is_operator(name: str) -> bool:
        asked.append(name)
        return "::" in name

    assert name_labels(names, is_operator).tolist() == [0, 1, 0, 1, 1]
    assert asked == ["aten::mm, seq = 0, op_id = 0", "step 0", "b"]
    assert name_labels(names.clear(), is_operator).tolist() == []


def test_a_dictionary_is_looked_at_once_until_another_one_comes():
    seen = []

    @once_per_dictionary
    def lengths(texts: pl.Series) -> list[int]:
        seen.append(texts.to_list())
        return texts.str.len_bytes().to_list()

    first, second = (encode_names(np.array([1, 0]), values) for values in (["a", "bb"], ["a", "ccc"]))
    assert [lengths(names) for names in (first, first[:1], second, first)] == [[1, 2], [1, 2], [1, 3], [1, 2]]
    assert seen == [["a", "bb"], ["a", "ccc"]]


def test_a_null_code_is_a_null_name():
    assert encode_names(pl.Series([0, None]), ["a"]).to_list() == ["a", None]


@pytest.mark.parametrize(
    ("column", "title", "kind"),
    [
        (Column("queue_time_ns", pl.Int64), "Queue time", "duration_ns"),
        (Column("change_ns_per_step", pl.Float64, title="Change"), "Change", "change_ns"),
        (Column("dram_bytes_per_s", pl.Float64), "Dram", "bandwidth"),
        (Column("peak_flops_per_s", pl.Float64), "Peak", "flops"),
        (Column("busy_share", pl.Float64), "Busy", "share"),
        (Column("kernels", pl.Int64), "Kernels", "count"),
        (Column("waves", pl.Float64), "Waves", "number"),
        (Column("device", pl.Int32), "Device", "text"),
        (Column("kind"), "Kind", "text"),
        (Column("name", kind="kernel"), "Name", "kernel"),
    ],
)
def test_a_columns_name_and_type_say_how_people_see_it(column, title, kind):
    assert (column.title, column.kind) == (title, kind)


def test_help_reads_as_a_sentence_without_markup():
    assert Column("a", help="share of the window").sentence == "Share of the window."
    assert Column("a", help="`b` over [c](c.md), exact").sentence == "b over c, exact."
    assert Column("a").sentence == ""


def test_a_table_shows_some_of_its_columns_in_another_order():
    shown = KERNELS.only("calls name", KERNELS.column("share").but(title="Part"))
    assert [column.title for column in shown.columns] == ["Calls", "Kernel", "Part"]
    assert KERNELS.only("calls share").schema == {"calls": pl.Int64, "share": pl.Float64}
    assert "calls" not in KERNELS.without("calls").names
    with pytest.raises(SchemaError, match="has no column speed"):
        KERNELS.only("speed")


def test_what_a_shared_column_means_in_one_table_changes_it_there_alone():
    assert table("a", "one", "share", share="of all").column("share").help == "of all"
    assert table("a", "one", "share").column("share") == column("share")


@pytest.mark.parametrize("parts", ["share share", "kernels"])
def test_a_column_stands_once_and_is_explained_only_where_it_is(parts):
    with pytest.raises(SchemaError, match="share twice"):
        table("a", "one", parts, share="of all")


def test_a_column_that_nobody_declared_is_refused():
    with pytest.raises(SchemaError, match="no column speed is shared"):
        table("a", "one", "speed")


SOURCES = Path(warplens.__file__).parent


def test_a_name_that_several_tables_have_is_declared_once():
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


def test_the_count_of_declarations_sees_each_way_to_declare_a_column():
    source = "Column('a', pl.Int64); optional(b='', share=''); both_sides('c', pl.Int64, ''); column('share')"
    assert [name for name, _ in _declared(ast.parse(source))] == ["a", "b", "baseline_c", "variant_c"]


def test_what_is_otherwise_in_one_table_leaves_the_shared_column_as_it_is():
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
def test_values_are_written_as_their_type_asks(declared, changes, kind):
    assert declared.but(**changes).kind == kind


def test_a_quantity_that_may_be_absent_takes_the_heading_of_the_shared_column():
    found = table("t", "one", optional(pl.Int32, device="CUDA ordinal", unheard_of="a quantity")).columns
    assert [(each.title, each.nullable, each.dtype) for each in found] == [
        ("GPU", True, pl.Int32),
        ("Unheard of", True, pl.Int32),
    ]


@pytest.mark.parametrize("pattern", ["(?<![a-z])sum", r"^void \w+<", "SUM|max$"])
def test_texts_are_found_by_patterns_with_and_without_looking_around(pattern):
    texts = ["checksum", "void sum<int>", "Sum", "x max", ""]
    for flags in (0, re.IGNORECASE):
        found = texts_with(pl.Series(texts), re.compile(pattern, flags))
        assert found.tolist() == [re.search(pattern, text, flags) is not None for text in texts]


@pytest.mark.parametrize("texts", [["[8]", None, "[16]", "[8]", ""], [None, None], []])
def test_a_predicate_on_texts_holds_for_each_equal_text_and_not_for_null(texts: list[str | None]) -> None:
    asked: list[str] = []

    def holds(text: str) -> bool:
        asked.append(text)
        return "8" in text

    found = texts_where(pl.Series(texts, dtype=pl.String), holds)
    assert found.tolist() == [text is not None and "8" in text for text in texts]
    assert found.dtype == np.bool_
    assert len(asked) == len(set(asked))
