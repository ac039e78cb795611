"""`warplens budget`: where the time of the window went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.idle import IDLE_CAUSES
from warplens.analysis.timebudget import BUDGET_SCHEMA, time_budgets
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn
from warplens.report.overview.words import part_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.analysis.timebudget import TimeBudget

__all__ = ["budget"]

_COLUMNS = (
    TableColumn("group", "Group", "text"),
    TableColumn("title", "Part", "text"),
    TableColumn("time_ns", "Time", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("meaning", "Meaning", "text"),
)

#: One row a part and device.
_ROWS_SCHEMA = pl.Schema({"device": pl.Int32(), **BUDGET_SCHEMA})


def budget(
    path: ProfileArgument,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = 0,
) -> None:
    """Where the time went, in parts that add up to it exactly.

    At every instant the device does one thing: it computes, runs a CUDA graph, communicates, copies, or is idle for one
    cause. With --range, the time is the summed spans of that range on the GPU.
    """
    selection = select(path, window, range_name)
    budgets = time_budgets(selection.timeline, selection.window)
    rows = pl.concat([pl.DataFrame(schema=_ROWS_SCHEMA), *map(_rows, budgets)])
    tables = tuple(_table(found) for found in budgets) or (_nothing(rows),)
    show(Answer("budget", selection, rows, tables, tuple(_facts(budgets)), {"devices": _devices(budgets)}), form, limit)


def _rows(found: TimeBudget) -> pl.DataFrame:
    return found.parts.select(pl.lit(found.device, dtype=pl.Int32).alias("device"), pl.all())


def _table(found: TimeBudget) -> Table:
    parts = found.parts.with_columns(pl.col("group").cast(pl.String))
    keys = parts.select("group", "part").rows()
    worded = parts.with_columns(
        pl.Series("title", [part_title(*key) for key in keys], dtype=pl.String),
        pl.Series("meaning", [IDLE_CAUSES[part] if group == "idle" else "" for group, part in keys], dtype=pl.String),
    )
    total = worded.select(
        pl.lit("sum").alias("group"), pl.lit("").alias("part"), pl.col("time_ns", "share").sum(),
        pl.lit("").alias("title"), pl.lit("").alias("meaning"),
    )  # fmt: skip
    caption = f"GPU {found.device}: {fmt.duration(found.duration_ns)}"
    return Table(f"budget-{found.device}", caption, _COLUMNS, pl.concat([worded, total]))


def _nothing(rows: pl.DataFrame) -> Table:
    empty = rows.with_columns(pl.lit("").alias("title"), pl.lit("").alias("meaning"))
    return Table("budget", "Time budget", _COLUMNS, empty, empty="No GPU did any work in the window.")


def _facts(budgets: Sequence[TimeBudget]) -> Iterator[str]:
    for found in budgets:
        hidden = found.group_ns("graph")
        parts = [f"GPU {found.device}: busy {fmt.duration(found.busy_ns)} of {fmt.duration(found.duration_ns)}"]
        if hidden:
            parts.append(f"{fmt.duration(hidden)} of it hidden inside CUDA graphs")
        if found.attributed_share is not None:
            parts.append(f"the cause is known for {fmt.share(found.attributed_share)} of the idle time")
        yield ", ".join(parts)


def _devices(budgets: Sequence[TimeBudget]) -> list[dict[str, float | int | None]]:
    return [
        {
            "device": found.device,
            "duration_ns": found.duration_ns,
            "busy_ns": found.busy_ns,
            "idle_ns": found.idle_ns,
            "hidden_ns": found.group_ns("graph"),
            "attributed_share": found.attributed_share,
        }
        for found in budgets
    ]
