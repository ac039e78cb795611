"""Measurements for display: a table, a chart, and a document with both; also errors of attention kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from warplens.analysis.numerics import ATTENTION_ERRORS, ULP_CLASSES
from warplens.profile.measurements import CELLS, PLAN, Measurements
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Document, Figure, Section, Table, pick, quiet, yes_or_no

#: With more cells than this the chart is left out.
_MOST_BARS: Final = 60

_TITLES: Final = {
    "lm": "Transformer language model",
    "token-reduction": "Vision transformer with token reduction",
    "attention": "Attention kernels",
}


def measured_table(measurements: Measurements, doubts: bool = False) -> Table:
    """One row per cell: the settings that differ between cells, and the measured values.

    With `doubts`, also reasons to doubt the figures.
    """
    rows = measurements.cells.with_columns(
        half_share=(pl.col("latency_high_ns") - pl.col("latency_low_ns")) / 2 / pl.col("latency_ns"),
        gpu_half_share=(pl.col("gpu_high_ns") - pl.col("gpu_low_ns")) / 2 / pl.col("gpu_ns"),
        doubt=pl.col("doubts").list.join("; "),
        outcome=pl.concat_str("status", pl.lit(": "), "reason", ignore_nulls=False).fill_null(pl.col("status")),
    )
    columns = [_setting_column(rows, name) for name in _varying(measurements)]
    columns += [column for column in _figures(rows) if rows.get_column(column.name).null_count() < rows.height]
    if doubts and rows.get_column("doubt").str.len_bytes().sum():
        columns.append(CELLS.column("doubts").but(name="doubt", dtype=pl.String))
    return Table("cells", _title(measurements), tuple(columns), rows, limit=None, empty="No cell was run.")


def _figures(rows: pl.DataFrame) -> Iterator[Column]:
    unit = next((unit for unit in rows.get_column("unit").to_list() if unit), "item")
    half_width = Column("half_share", pl.Float64, "half the 95 % interval of the median", title="±")
    yield from pick(CELLS, "latency_ns", half_width, "latency_p99_ns gpu_ns")
    if rows.get_column("latency_ns").null_count() == rows.height:
        yield half_width.but(name="gpu_half_share")
    yield CELLS.column("throughput_per_s").but(title=f"{unit.capitalize()}s")
    yield from pick(CELLS, "flops_per_s peak_allocated_bytes samples outliers")
    if rows.get_column("status").n_unique() > 1 or (rows.get_column("status") != "measured").any():
        yield Column("outcome")


def _setting_column(rows: pl.DataFrame, name: str) -> Column:
    dtype = rows.get_column(name).dtype
    return Column(
        name, dtype, title=name.replace("_", " ").capitalize(), kind="number" if dtype.is_numeric() else "text"
    )


def _varying(measurements: Measurements) -> list[str]:
    cells = measurements.cells
    varying = [name for name in measurements.settings if cells.get_column(name).n_unique() > 1]
    return varying or list(measurements.settings[:2])


def _title(measurements: Measurements) -> str:
    return _TITLES.get(measurements.workload, measurements.workload)


def measured_facts(measurements: Measurements) -> list[str]:
    """What all cells have in common: machine, shared settings, and method of measurement."""
    cells, plan = measurements.cells, measurements.plan
    shared = [name for name in measurements.settings if name not in _varying(measurements)]
    facts = [machine] if (machine := _machine(measurements.environment)) else []
    if plan.get("read_as"):
        facts.append(f"titles of the table: {'; '.join(plan['read_as'])}")
    if shared and cells.height:
        first = cells.row(0, named=True)
        # An empty setting (no schedule) is not listed.
        texts = (f"{name.replace('_', ' ')} {fmt.value(first[name], 'text')}" for name in shared if first[name] != "")
        facts.append(f"all cells: {', '.join(texts)}")
    rounds = cells.get_column("rounds").max()
    if set(PLAN) <= plan.keys():
        facts.append(_method(plan) if rounds in (None, 1) else _turns(plan, fmt.value(rounds, "count")))  # type: ignore[arg-type]
    return facts


def _turns(plan: Any, rounds: str) -> str:
    turn = fmt.plural(plan["most"], "repetition")
    return (
        f"the cells took turns: {rounds} rounds of {turn} in random order; "
        "each median is that of its rounds' medians, and its interval that of "
        f"{fmt.share(plan['confidence'])} confidence over the rounds"
    )


def _method(plan: Any) -> str:
    if plan["least"] == plan["most"]:
        return f"each median is that of {plan['most']} repetitions, after {plan['warmup_steps']} warm-up steps"
    return (
        f"each median is that of {plan['least']} to {plan['most']} repetitions, until it is known to "
        f"±{fmt.share(plan['precision'])} with {fmt.share(plan['confidence'])} confidence, or "
        f"{fmt.duration(plan['most_ns'])} are over (then {plan['fewest']} or more)"
    )


def doubts_of(measurements: Measurements) -> list[str]:
    """Reasons to doubt the figures, each with the settings of its cell."""
    varying = _varying(measurements)
    return [
        ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in varying) + f": {doubt}"
        for row in measurements.cells.iter_rows(named=True)
        for doubt in row["doubts"] or ()
    ]


def _machine(environment: Any) -> str:
    device, versions = environment.get("device") or {}, environment.get("versions") or {}
    parts = [str(device["name"])] if device.get("name") else []  # missing in some published tables
    if "torch" in versions:  # missing for commands timed from outside
        parts.append(f"torch {versions['torch']}")
    if "driver" in environment:
        parts.append(f"driver {environment['driver']}")
    if "cuda" in environment:
        parts.append(f"CUDA {environment['cuda']}")
    return " · ".join(parts)


def measured_document(measurements: Measurements) -> Document:
    """A page with the table, and a chart of the times."""
    table = measured_table(measurements, doubts=True)
    cells = measurements.cells.filter(pl.col("status") == "measured")
    blocks: tuple[Any, ...] = (table, *map(quiet, measured_facts(measurements)))
    if 0 < cells.height <= _MOST_BARS:
        blocks = (_figure(measurements, cells), *blocks)
    failed = measurements.cells.height - cells.height
    lead = f"{fmt.count(cells.height)} cells were measured{f', {fmt.count(failed)} could not be' if failed else ''}."
    return Document(
        title=_title(measurements),
        lead=lead,
        sections=(Section("cells", "Cells", blocks),),
        meta=(("Source", measurements.source), ("Command", measurements.command or fmt.MISSING)),
    )


def _figure(measurements: Measurements, cells: pl.DataFrame) -> Figure:
    """Bars of the median time of each cell."""
    from warplens.report.charts.bars import ranked_chart

    time = pl.coalesce("latency_ns", "gpu_ns")
    interval = pl.concat_str(
        pl.lit("median of "), "samples", pl.lit(" repetitions; 95 % interval "),
        (pl.coalesce("latency_low_ns", "gpu_low_ns") / 1e6).round(4), pl.lit(" to "),
        (pl.coalesce("latency_high_ns", "gpu_high_ns") / 1e6).round(4), pl.lit(" ms"),
        ignore_nulls=True,
    )  # fmt: skip
    name = pl.concat_str(
        [
            pl.concat_str(pl.lit(f"{setting.replace('_', ' ')} "), pl.col(setting).cast(pl.String))
            for setting in _varying(measurements)
        ],
        separator=", ",
        ignore_nulls=True,
    )
    rows = cells.select(
        name=name, value=time, share=pl.lit(None, pl.Float64), fill=pl.lit(None, pl.String), detail=interval
    )
    alt = f"Bars with the median time of each of {rows.height} cells."
    return Figure("times", "Median time of a step.", ranked_chart(rows), alt)


def errors_tables(rows: pl.DataFrame) -> tuple[Table, ...]:
    """Two tables: errors against float64, and the distribution of errors in units of the last place (ulp).

    A third table lists kernels that were not compared, if there are any. The rows are `ATTENTION_ERRORS`.
    """
    head = pick(ATTENTION_ERRORS, "implementation shapes tensor")
    near_enough = ATTENTION_ERRORS.column("near_enough").but(dtype=pl.String)
    compared_rows = rows.filter(pl.col("status") == "compared").with_columns(yes_or_no("near_enough"))
    errors = pick(ATTENTION_ERRORS, "not_finite max_abs mean_abs relative formula_relative")
    ulps = pick(ATTENTION_ERRORS, "ulp_median ulp_max", *(f"ulp_{least}" for least in ULP_CLASSES))
    shown = {
        "errors": ("Distance from float64", (*head, *errors, near_enough)),
        "ulps": ("Elements by their difference in units of the last place", (*head, *ulps)),
    }
    empty = "No kernel could be compared."
    tables = [
        Table(id_, caption, columns, compared_rows, None, empty=empty) for id_, (caption, columns) in shown.items()
    ]
    if (not_compared := rows.filter(pl.col("status") != "compared")).height:
        reason_columns = pick(ATTENTION_ERRORS, "implementation shapes status reason")
        tables.append(Table("not-compared", "Not compared", reason_columns, not_compared, limit=None))
    return tuple(tables)


def errors_document(rows: pl.DataFrame) -> Document:
    """A document of `errors_tables` with a chart of each kernel's errors over the sequence length."""
    from warplens.report.charts.plane import curve_chart

    with_error = rows.filter(pl.col("relative").is_not_null()).sort("tokens", maintain_order=True)
    series = pl.concat_str("implementation", pl.col("shapes").str.extract(r", (.*)$"), "tensor", separator=", ")
    points = with_error.select(series=series, x="tokens", y="relative")
    figures: tuple[Figure, ...] = ()
    if points.height:
        errors = sorted(points["y"].to_list())
        alt = f"{points.height} errors, {fmt.number(errors[0])} to {fmt.number(errors[-1])}"
        chart = curve_chart(points, x_title="tokens", y_title="‖error‖ / ‖exact‖", kind="number")
        figures = (Figure("errors-chart", "Relative error by sequence length", chart, alt),)
    too_far = int((~rows["near_enough"]).sum())
    lead = f"{with_error.height} tensors were held against float64; {too_far or 'none'} of them " + (
        "is further off than twice the error of the formula in the same format."
    )
    return Document(
        "Numerics of attention kernels", lead, (Section("errors", "Errors", (*figures, *errors_tables(rows))),)
    )
