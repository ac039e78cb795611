"""Columns of the studies' pages: the axes that a table's rows stand for, and then what its `Table` declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.profile.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

    from warplens.profile.schema import Table


def axis_columns(rows: pl.DataFrame, axes: Iterable[str]) -> tuple[Column, ...]:
    """A column for each axis that the rows have, which is a number or a word."""
    return tuple(
        Column(
            axis,
            rows.schema[axis],
            title=axis.replace("_", " ").capitalize(),
            kind="number" if rows.schema[axis].is_numeric() else "text",
        )
        for axis in axes
        if axis in rows.columns
    )


def columns_of(table: Table, rows: pl.DataFrame, axes: Iterable[str], *parts: str | Column) -> tuple[Column, ...]:
    """The axes that the rows have, then these columns of a table (`Table.only`)."""
    return (*axis_columns(rows, axes), *table.only(*parts).columns)
