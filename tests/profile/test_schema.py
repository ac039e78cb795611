"""The tables are declared once, and a frame that does not fit is refused where it enters."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from warplens.analysis.kernels import KERNELS
from warplens.errors import SchemaError
from warplens.profile import TABLES, Capture, Recorder, Trace
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, encode_names, name_categories, name_labels, once_a_dictionary

CAPTURE = Capture("file.sqlite", "nsys-sqlite", Recorder("Nsight Systems"))


def test_a_trace_without_tables_has_all_of_them_empty_with_their_schema() -> None:
    trace = Trace(CAPTURE)
    fields = {field.name for field in dataclasses.fields(Trace)} - {"capture"}
    assert fields == set(TABLES)
    for name in fields:
        frame = getattr(trace, name)
        assert frame.height == 0
        assert frame.columns == [column.name for column in TABLES[name].columns]
    assert not trace.has_device_work


def test_a_column_of_the_wrong_type_is_refused_by_name() -> None:
    frame = TABLES["os_calls"].empty().with_columns(pl.col("start_ns").cast(pl.Float64))
    with pytest.raises(SchemaError, match=r"os_calls.*start_ns.*Float64"):
        Trace(CAPTURE, os_calls=frame)


def test_a_missing_column_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match=r"kernels.*full_name is absent"):
        Trace(CAPTURE, kernels=TABLES["kernels"].empty().drop("full_name"))


def test_a_null_where_none_may_stand_is_refused() -> None:
    frame = pl.DataFrame(
        {"start_ns": [1], "end_ns": [None], "process": [1], "thread": [1], "name": ["poll"]},
        schema_overrides={"end_ns": pl.Int64, "process": pl.Int32, "thread": pl.Int32, "name": pl.Enum(["poll"])},
    )
    with pytest.raises(SchemaError, match=r"end_ns holds 1 nulls"):
        Trace(CAPTURE, os_calls=frame)


def test_extra_columns_do_not_enter_the_trace() -> None:
    frame = TABLES["os_calls"].empty().with_columns(pl.lit("secret").alias("command_line"))
    assert "command_line" not in Trace(CAPTURE, os_calls=frame).os_calls.columns


def test_names_are_encoded_by_position_and_repeated_texts_merge() -> None:
    names = encode_names(np.array([2, 0, 1]), ["a", "b", "a"])
    assert names.to_list() == ["a", "a", "b"]
    assert name_categories(names).to_list() == ["a", "b"]


def test_a_meaning_is_asked_once_for_names_that_differ_in_numbers() -> None:
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


def test_a_dictionary_is_looked_at_once_until_another_one_comes() -> None:
    seen = []

    @once_a_dictionary
    def lengths(texts: pl.Series) -> list[int]:
        seen.append(texts.to_list())
        return texts.str.len_bytes().to_list()

    first, second = (encode_names(np.array([1, 0]), values) for values in (["a", "bb"], ["a", "ccc"]))
    assert [lengths(names) for names in (first, first[:1], second, first)] == [[1, 2], [1, 2], [1, 3], [1, 2]]
    assert seen == [["a", "bb"], ["a", "ccc"]]


def test_a_null_code_is_a_null_name() -> None:
    assert encode_names(pl.Series([0, None]), ["a"]).to_list() == ["a", None]


@pytest.mark.parametrize(
    ("column", "title", "kind"),
    [
        (Column("queue_time_ns", pl.Int64), "Queue time", "duration_ns"),
        (Column("change_ns_per_step", pl.Float64, title="Change"), "Change", "duration_ns"),
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
def test_a_columns_name_and_type_say_how_people_see_it(column: Column, title: str, kind: str) -> None:
    assert (column.title, column.kind) == (title, kind)


def test_help_reads_as_a_sentence_without_markup() -> None:
    assert Column("a", help="share of the window").sentence == "Share of the window."
    assert Column("a", help="`b` over [c](c.md), exact").sentence == "b over c, exact."
    assert Column("a").sentence == ""


def test_a_table_shows_some_of_its_columns_in_another_order() -> None:
    shown = KERNELS.only("calls name", KERNELS.column("share").but(title="Part"))
    assert [column.title for column in shown.columns] == ["Calls", "Kernel", "Part"]
    assert KERNELS.only("calls share").schema == {"calls": pl.Int64, "share": pl.Float64}
    assert "calls" not in KERNELS.without("calls").names
    with pytest.raises(SchemaError, match="has no column speed"):
        KERNELS.only("speed")


def test_what_a_shared_column_means_in_one_table_changes_it_there_alone() -> None:
    assert table("a", "one", "share", share="of all").column("share").help == "of all"
    assert table("a", "one", "share").column("share") == column("share")


@pytest.mark.parametrize("parts", ["share share", "kernels"])
def test_a_column_stands_once_and_is_explained_only_where_it_is(parts: str) -> None:
    with pytest.raises(SchemaError, match="share twice"):
        table("a", "one", parts, share="of all")


def test_a_column_that_nobody_declared_is_refused() -> None:
    with pytest.raises(SchemaError, match="no column speed is shared"):
        table("a", "one", "speed")
