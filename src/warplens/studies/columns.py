"""Columns of the studies' tables as pages show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report.document import TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from warplens.profile.schema import Column


def shown(*columns: Column) -> tuple[TableColumn, ...]:
    """The columns with their headings, kinds and help."""
    return tuple(TableColumn(each.name, each.title, each.kind, each.sentence, each.full) for each in columns)


def axis_columns(rows: pl.DataFrame, axes: Iterable[str]) -> list[TableColumn]:
    """A column for each axis that the rows have, which is a number or a word."""
    return [
        TableColumn(axis, axis.replace("_", " ").capitalize(), "number" if rows.schema[axis].is_numeric() else "text")
        for axis in axes
        if axis in rows.columns
    ]
