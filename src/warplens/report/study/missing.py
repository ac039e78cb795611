"""Cells of a study that have no figures, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements

__all__ = ["missing_table", "varying"]


def varying(measurements: Measurements) -> list[str]:
    """The settings that differ between cells; the first one if none does."""
    cells = measurements.cells
    found = [name for name in measurements.settings if cells.get_column(name).n_unique() > 1]
    return found or list(measurements.settings[:1])


def missing_table(measurements: Measurements) -> Table | None:
    """A row for each cell that was not measured; None if all were."""
    names = varying(measurements)
    rows = measurements.cells.filter(pl.col("status") != "measured").select(*names, "status", "reason")
    if rows.is_empty():
        return None
    columns = [
        TableColumn(name, name.replace("_", " ").capitalize(), "count" if rows.schema[name].is_integer() else "text")
        for name in names
    ]
    columns += [TableColumn("status", "Outcome", "text"), TableColumn("reason", "Reason", "text")]
    return Table("missing-cells", "Cells without figures", tuple(columns), rows)
