"""The tables are declared once, and a frame that does not fit is refused where it enters."""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl
import pytest

from warplens.errors import SchemaError
from warplens.profile import TABLES, Capture, Trace
from warplens.profile.schema import encode_names, name_categories, table

CAPTURE = Capture("file.sqlite", "nsys-sqlite", "Nsight Systems")


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
    frame = table("os_calls").empty().with_columns(pl.col("start_ns").cast(pl.Float64))
    with pytest.raises(SchemaError, match=r"os_calls.*start_ns.*Float64"):
        Trace(CAPTURE, os_calls=frame)


def test_a_missing_column_is_refused_by_name() -> None:
    with pytest.raises(SchemaError, match=r"kernels.*full_name is absent"):
        Trace(CAPTURE, kernels=table("kernels").empty().drop("full_name"))


def test_a_null_where_none_may_stand_is_refused() -> None:
    frame = pl.DataFrame(
        {"start_ns": [1], "end_ns": [None], "process": [1], "thread": [1], "name": ["poll"]},
        schema_overrides={"end_ns": pl.Int64, "process": pl.Int32, "thread": pl.Int32, "name": pl.Enum(["poll"])},
    )
    with pytest.raises(SchemaError, match=r"end_ns holds 1 nulls"):
        Trace(CAPTURE, os_calls=frame)


def test_extra_columns_do_not_enter_the_trace() -> None:
    frame = table("os_calls").empty().with_columns(pl.lit("secret").alias("command_line"))
    assert "command_line" not in Trace(CAPTURE, os_calls=frame).os_calls.columns


def test_an_unknown_table_is_named_with_the_known_ones() -> None:
    with pytest.raises(SchemaError, match=r"no table kernel;.*kernels"):
        table("kernel")


def test_names_are_encoded_by_position_and_repeated_texts_merge() -> None:
    names = encode_names(np.array([2, 0, 1]), ["a", "b", "a"])
    assert names.to_list() == ["a", "a", "b"]
    assert name_categories(names).to_list() == ["a", "b"]


def test_a_null_code_is_a_null_name() -> None:
    assert encode_names(pl.Series([0, None]), ["a"]).to_list() == ["a", None]
