"""The tables of a sweep's report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.compare.crossover import CROSSING_SCHEMA, crossing_frame
from warplens.compare.surface import regime_frame
from warplens.report.document import Table, TableColumn
from warplens.report.sweep.numbers import point_frame
from warplens.report.sweep.words import interval_text

if TYPE_CHECKING:
    from warplens.report.sweep.numbers import SweepNumbers

__all__ = [
    "anomaly_table",
    "contrast_table",
    "crossing_table",
    "lost_table",
    "point_table",
    "regime_table",
]

#: Shares of less than this are a rounding of zero in a table of anomalies.
_INSIDE: Final = 1e-9


def axis_columns(rows: pl.DataFrame, axes: tuple[str, ...]) -> list[TableColumn]:
    """A column for each axis."""
    return [
        TableColumn(
            axis, axis.replace("_", " ").capitalize(), "number" if rows.get_column(axis).dtype.is_numeric() else "text"
        )
        for axis in axes
        if axis in rows.columns
    ]


def point_table(numbers: SweepNumbers) -> Table:
    """One row a point: times, speedup with interval, verdict, work, what bounds each side."""
    rows = point_frame(numbers)
    bounds = rows.select("low", "high").iter_rows()
    rows = rows.with_columns(
        interval=pl.Series([interval_text(low, high) for low, high in bounds], dtype=pl.String),
        regime=pl.concat_str("baseline_regime", pl.lit(" → "), "variant_regime"),
    )
    macs = rows["baseline_macs"].null_count() < rows.height
    columns = [
        *axis_columns(rows, numbers.sweep.axes),
        TableColumn("baseline_ns", "Baseline", "duration_ns", "Median time of a step."),
        TableColumn("variant_ns", "Variant", "duration_ns", "Median time of a step."),
        TableColumn("speedup", "Speedup", "number", "Baseline time / variant time: above 1, the variant is faster."),
        TableColumn("interval", "Interval", "text", "Of the speedup; holds for all rows together."),
        TableColumn("verdict", "Verdict", "text"),
        TableColumn("work_saved_share", "MACs saved" if macs else "FLOPs saved", "share", "Modelled, or as published."),
        TableColumn("regime", "Bound by", "text", "Baseline → variant."),
        TableColumn("remark", "Remark", "text"),
    ]
    unmeasured = ("interval", "verdict") if not any(item.comparison for item in numbers.points) else ()
    shown = [
        column
        for column in columns
        if column.key not in unmeasured
        and (column.key not in ("work_saved_share", "regime", "remark") or rows[column.key].null_count() < rows.height)
    ]
    return Table(
        "points", "The two sides at each point", tuple(shown), rows, limit=60, empty="No point has both sides."
    )


def regime_table(numbers: SweepNumbers) -> Table:
    """One row a measured cell: what bounds it, and how that is known."""
    rows = regime_frame(numbers.regimes, numbers.sweep.axes)
    columns = (
        *axis_columns(rows, numbers.sweep.axes),
        TableColumn("side", "Side", "text"),
        TableColumn("regime", "Bound by", "text"),
        TableColumn("evidence", "Evidence", "text", "Measured, or modelled where FLOPs are part of the argument."),
        TableColumn("because", "Because", "text"),
    )
    return Table("regimes", "What bounds each cell", columns, rows, empty="No cell was measured.")


def anomaly_table(numbers: SweepNumbers) -> Table:
    """One row an anomaly, the surest first."""
    rows = numbers.anomalies.found
    columns = (
        *axis_columns(rows, numbers.sweep.axes),
        TableColumn("side", "Side", "text"),
        TableColumn("axis", "Along", "text"),
        TableColumn("time_ns", "Time", "duration_ns"),
        TableColumn("expected_low_ns", "Expected from", "duration_ns", "What its neighbours allow, at least."),
        TableColumn("expected_high_ns", "to", "duration_ns", "What its neighbours allow, at most."),
        TableColumn("excess_share", "Beyond", "share", "By how much it lies outside; above 0 it is slow."),
        TableColumn("p_value", "Chance", "number", "How often noise alone would show as much in any cell tested."),
    )
    tested = numbers.anomalies.tests.height
    empty = f"None among {tested} cells tested." if tested else "No cell could be tested."
    return Table("anomalies", "Cells that break their trend", columns, rows, empty=empty)


def contrast_table(numbers: SweepNumbers) -> Table:
    """One row an axis: what claims about it alone rest on."""
    columns = (
        TableColumn("axis", "Axis", "text"),
        TableColumn("values", "Values", "count"),
        TableColumn("pairs", "Pairs", "count", "Pairs of points that differ in this axis alone."),
        TableColumn("alone", "Can be told apart", "text", "Whether its effect can be told from that of other axes."),
    )
    rows = numbers.confounding.axes.with_columns(
        pl.when("alone").then(pl.lit("yes")).otherwise(pl.lit("no")).alias("alone")
    )
    return Table("axes", "What a claim about one axis rests on", columns, rows, empty="No axis varies.")


def crossing_table(numbers: SweepNumbers) -> Table:
    """One row a crossing, or a line without one."""
    found = [crossing_frame(lines) for lines in numbers.crossovers.values() if lines]
    rows = pl.concat(found, how="diagonal_relaxed") if found else CROSSING_SCHEMA.to_frame()
    columns = (
        TableColumn("axis", "Along", "text"),
        *axis_columns(rows, numbers.sweep.axes),
        TableColumn("answer", "Answer", "text"),
        TableColumn("pays", "Pays", "text", "Above or below the crossing."),
        TableColumn("at", "At", "number", "Estimate."),
        TableColumn("low", "Interval from", "number"),
        TableColumn("high", "to", "number"),
        TableColumn("range_low", "Measured from", "number"),
        TableColumn("range_high", "to", "number"),
        TableColumn("reason", "Why", "text"),
    )
    rows = rows.with_columns(pl.col("answer", "pays").cast(pl.String))
    return Table(
        "crossovers", "Where the variant starts to pay", columns, rows, limit=30, empty="No axis to ask about."
    )


def lost_table(numbers: SweepNumbers) -> Table:
    """One row a cell that was not measured."""
    rows = numbers.lost
    columns = (
        *axis_columns(rows, numbers.sweep.axes),
        TableColumn("side", "Side", "text"),
        TableColumn("status", "What became of it", "text"),
        TableColumn("reason", "Reason", "text"),
    )
    return Table("lost", "Cells not measured", columns, rows, limit=30, empty="All cells were measured.")
