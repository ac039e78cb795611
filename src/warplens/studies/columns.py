"""What the studies' pages share: columns of the axes that rows stand for, and verdicts counted in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from warplens.profile.schema import Column
from warplens.report import text as fmt

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


def verdict_counts(verdicts: Iterable[str | None], same: str = "same") -> str:
    """How often each verdict was reached: `faster at 3, slower at 12`; nothing without any."""
    counts = Counter(verdicts)
    words = {"faster": "faster", "slower": "slower", "same": same, "undecided": "undecided"}
    return ", ".join(f"{word} at {fmt.count(counts[verdict])}" for verdict, word in words.items() if counts[verdict])
