"""Growth of time with a numeric setting: charts of latency and throughput, and the exponent of a fitted power law.

Compares cells that differ in one number alone (the batch, the input size, the context, the sequence length). Where the
host sets the pace, time stays flat and throughput rises; where the GPU does, time follows the work:

    time = factor · size ^ exponent, times an error

This is a straight line between logarithms, fitted by least squares; the interval of the exponent is Student's, from the
scatter of the points (Montgomery, Peck, Vining, "Introduction to Linear Regression Analysis", chapter 2). Real programs
follow such a law over a part of the sizes only: at small sizes, the host or a fixed cost dominates. The law is
therefore fitted to the widest range over which no point is far off, and the exponents at both ends of all sizes are
reported as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Final

import numpy as np
import polars as pl

from warplens.compare.shift import t_quantile
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Paragraph, Section, Table, quiet
from warplens.studies.sweeps.words import columns_of

#: Allowed distance of a time from the line, beyond its own uncertainty: partly filled tiles and waves move single sizes
#: by some percent where the law holds.
WITHIN: Final = 0.05

#: Error rate of the interval of an exponent.
_LEVEL: Final = 0.05

#: Least number of sizes for a fit with an error estimate …
FEWEST: Final = 3
#: … and of a part of the sizes to be preferred: three neighbours are nearly always in one line.
_FEWEST_OF_MORE: Final = 4


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law."""

    exponent: float  #: of the size; with the interval `low` to `high`
    low: float
    high: float
    factor: float  #: the time at size 1, in the unit of the times
    #: smallest_size, largest_size: range of sizes that it was fitted to
    smallest_size: float
    largest_size: float
    points: int  #: number of sizes that it was fitted to
    off_share: float  #: distance of the farthest of these points from the line, as a share of the line
    holds: bool  #: whether all of them are within `WITHIN` plus the uncertainty of their times
    #: first, last: exponents between the two smallest and the two largest of all sizes; different if the curve bends
    first: float
    last: float


def power_law(
    sizes: Sequence[float], times: Sequence[float], spreads: Sequence[float] | None = None
) -> PowerLaw | None:
    """The law over the widest range of neighbouring sizes over which it holds; over all sizes, where it holds nowhere.

    Among ranges with the same number of sizes, the one of the largest sizes is taken. None with fewer than three sizes.

    Sizes, each once, and times are above zero. `spreads` are the uncertainty of each time, as a share (half of its
    interval); zeros if None.
    """
    count = len(sizes)
    if count < FEWEST:
        return None
    order = np.argsort(np.asarray(sizes, dtype=np.float64))
    exact = np.asarray(sizes, dtype=np.float64)[order]
    x, y = np.log(exact), np.log(np.asarray(times, dtype=np.float64)[order])
    allowed = WITHIN + np.asarray([0.0] * count if spreads is None else spreads, dtype=np.float64)[order]
    slopes = np.diff(y) / np.diff(x)
    ends = float(slopes[0]), float(slopes[-1])
    fewest = min(count, _FEWEST_OF_MORE)
    ranges = [span for span in combinations(range(count + 1), 2) if span[1] - span[0] >= fewest]
    ranges.sort(key=lambda span: (span[0] - span[1], -span[0]))
    fits = [_fit(exact[a:b], y[a:b], allowed[a:b], ends) for a, b in ranges]
    return next((fit for fit in fits if fit.holds), fits[0])


def _fit(sizes: Float64s, y: Float64s, allowed: Float64s, ends: tuple[float, float]) -> PowerLaw:
    x = np.log(sizes)
    middle, spread = x.mean(), float(((x - x.mean()) ** 2).sum())
    exponent = float(((x - middle) * y).sum() / spread)
    start = float(y.mean() - exponent * middle)
    residual = y - start - exponent * x
    freedom = x.size - 2
    error = float(np.sqrt((residual**2).sum() / freedom / spread))
    half_width = float(t_quantile(_LEVEL, freedom)) * error
    off = np.abs(np.expm1(residual))
    return PowerLaw(
        exponent, exponent - half_width, exponent + half_width, float(np.exp(start)), float(sizes[0]), float(sizes[-1]),
        x.size, float(off.max()), bool((off <= allowed).all()), *ends,
    )  # fmt: skip


GROWTH: Final = table(
    "study: growth",
    "How the time of a step grows along a setting: the exponent of a power law, fitted to medians. `warplens study`; "
    "the settings that are the same for a row stand before these columns.",
    column("axis").but(help="the setting that grows"),
    Column("smallest_size", pl.Float64, "smallest size that the law was fitted to", title="From", kind="count"),
    Column("largest_size", pl.Float64, "largest size that the law was fitted to", title="To", kind="count"),
    column("points").but(help="sizes that the law was fitted to"),
    Column("exponent", pl.Float64, "time grows as size to this power"),
    Column("factor_ns", pl.Float64, "time at size 1 by the law", title="At size 1"),
    column("low").but(help="lower end of its 95 % interval, by the scatter of the points", title="at least"),
    column("high").but(help="upper end of its 95 % interval", title="at most"),
    Column("off_share", pl.Float64, "how far the farthest of these points is from the law", title="Farthest"),
    Column("holds", pl.Boolean, "every point is within 5 % of the law, and what its own median is uncertain by",
           title="Law"),
    Column("first_exponent", pl.Float64, "exponent between the two smallest of all sizes", title="At first"),
    Column("last_exponent", pl.Float64, "exponent between the two largest of all sizes", title="At last"),
)  # fmt: skip

#: Most lines that remain distinguishable in a chart.
MOST_LINES: Final = 8

#: Settings whose values get charts of their own, since they change the shape of the curves.
_CHARTS: Final = ("execution", "mode")

_HOW: Final = (
    "Time ~ size to the power of the exponent: 0 where it does not grow, 1 where twice the size takes twice as long. "
    "The law is fitted to the widest range of four sizes or more over which every median is within 5 % of it, or to "
    "all sizes where there is none (law: no): then the exponents at both ends tell how the curve bends. Dashed lines "
    "are laws that hold."
)


def growth(cells: pl.DataFrame, axes: Sequence[str], keys: Sequence[str]) -> pl.DataFrame:
    """`GROWTH`: one row per axis and set of cells (`measured_times`) that differ along it alone.

    A law is fitted along each of the numeric axes; the other axes and the keys are fixed for a row.
    """
    rows = []
    for axis in axes:
        fixed = [*keys, *(other for other in axes if other != axis)]
        for key, line in _lines(cells, axis, fixed):
            law = power_law(*(line.get_column(name).to_list() for name in (axis, "time_ns", "spread_share")))
            if law is not None:
                values = asdict(law) | {
                    "axis": axis, "factor_ns": law.factor, "first_exponent": law.first, "last_exponent": law.last,
                }  # fmt: skip
                rows.append({**key, **{name: values[name] for name in GROWTH.names}})
    schema = {**{name: cells.schema[name] for name in (*keys, *axes)}, **GROWTH.schema}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _lines(cells: pl.DataFrame, axis: str, fixed: Sequence[str]) -> Iterator[tuple[dict[str, object], pl.DataFrame]]:
    """The cells that differ along the axis alone, one per size, in rising order, with their fixed settings."""
    for key, group in cells.group_by(fixed, maintain_order=True) if fixed else [((), cells)]:
        line = group.unique(axis, keep="first", maintain_order=True).sort(axis)
        yield dict(zip(fixed, key, strict=True)), line


def growth_section(cells: pl.DataFrame, axes: Sequence[str], keys: Sequence[str], note: str = "") -> Section | None:
    """A note, charts and the table of exponents of `growth`; None where no axis has three sizes."""
    varied_axes = [axis for axis in axes if cells.get_column(axis).n_unique() >= FEWEST]
    keys = told_apart(cells, [*keys, *(axis for axis in axes if axis not in varied_axes)])
    axes = varied_axes
    rows = growth(cells, axes, keys)
    if rows.is_empty():
        return None
    distinguishing = [*keys, *(axes if len(axes) > 1 else ())]
    blocks: list[Block] = [Paragraph(note)] if note else []
    for axis in axes:
        fixed = [name for name in (*keys, *axes) if name != axis]
        blocks += _figures(cells, rows.filter(pl.col("axis") == axis), axis, fixed)
    columns = columns_of(GROWTH, rows, distinguishing, *(name for name in GROWTH.names if name != "factor_ns"))
    blocks.append(Table("exponents", "Exponents", columns, rows.select(each.name for each in columns), limit=None))
    return Section("growth", "How time grows", (*blocks, quiet(_HOW)))


def told_apart(cells: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """The keys that distinguish cells which all keys before them do not."""
    kept: list[str] = []
    for name in keys:
        if cells.select(*kept, name).n_unique() > (cells.select(kept).n_unique() if kept else 1):
            kept.append(name)
    return kept


def measured_times(cells: pl.DataFrame) -> pl.DataFrame:
    """The measured cells, with `time_ns` (median), `spread_share` (half of its interval) and `throughput_per_s`."""
    half_widths = [
        (pl.col(f"{clock}_high_ns") - pl.col(f"{clock}_low_ns")) / 2 / pl.col(f"{clock}_ns")
        for clock in ("latency", "gpu")
    ]
    time_ns = pl.coalesce("latency_ns", "gpu_ns").cast(pl.Float64)
    return cells.filter((pl.col("status") == "measured") & time_ns.is_not_null()).with_columns(
        time_ns=time_ns, spread_share=pl.coalesce(*half_widths, pl.lit(0.0))
    )


def _figures(cells: pl.DataFrame, rows: pl.DataFrame, axis: str, fixed: list[str]) -> Iterator[Figure]:
    """Latency with its laws, then throughput; a pair of charts for each execution and mode."""
    numbers = [name for name in fixed if cells.schema[name].is_numeric() and cells.get_column(name).n_unique() > 2]
    for name in numbers if len(fixed) > 1 else []:
        ends = cells.get_column(name).min(), cells.get_column(name).max()
        cells, rows = (frame.filter(pl.col(name).is_in(ends)) for frame in (cells, rows))
    by_chart = [name for name in _CHARTS if name in fixed]
    by_line = [name for name in fixed if name not in by_chart]
    series = pl.concat_str([_label(name) for name in by_line], separator=", ") if by_line else pl.lit("time")
    series = series.alias("series")
    axis_text = fmt.capitalised(axis.replace("_", " ")).lower()
    for key, group in cells.group_by(by_chart, maintain_order=True) if by_chart else [((), cells)]:
        lines = group.with_columns(series).sort(axis, maintain_order=True)
        if lines.get_column("series").n_unique() > MOST_LINES:
            continue
        in_chart = (pl.col(name) == value for name, value in zip(by_chart, key, strict=True))
        laws = rows.filter(pl.all_horizontal(pl.lit(True), *in_chart)).with_columns(series)
        chart = "".join(f", {value}" for value in key)
        id_ = "-".join(str(part).replace("_", "-") for part in (axis, *key))
        yield _curves(lines, axis, "time_ns", f"Time over {axis_text}{chart}.", f"latency-{id_}", laws)
        if not lines.get_column("throughput_per_s").null_count():
            caption = f"Throughput over {axis_text}{chart}."
            yield _curves(lines, axis, "throughput_per_s", caption, f"throughput-{id_}")


def _label(name: str) -> pl.Expr:
    """A setting in the name of a line: `input size 224`; the value alone if it is a word."""
    value = pl.col(name).cast(pl.String)
    return pl.when(value.str.contains(r"^[0-9.]+$")).then(pl.lit(f"{name.replace('_', ' ')} ") + value).otherwise(value)


def _curves(
    lines: pl.DataFrame, axis: str, y_column: str, caption: str, id_: str, laws: pl.DataFrame | None = None
) -> Figure:
    from warplens.report.charts.plane import curve_chart

    points = lines.select("series", x=axis, y=y_column)
    chart = curve_chart(
        points,
        x_title=axis.replace("_", " "),
        y_title="time" if y_column == "time_ns" else "throughput a second",
        kind="duration_ns" if y_column == "time_ns" else "number",
        laws=_ends(laws) if laws is not None else None,
    )
    return Figure(id_, caption, chart, caption)


def _ends(laws: pl.DataFrame) -> pl.DataFrame:
    """Both ends of each law that holds, which the chart connects by a straight line on logarithmic scales."""
    holding = laws.filter("holds")
    return pl.concat(
        holding.select("series", x=pl.col(end), y=pl.col("factor_ns") * pl.col(end) ** pl.col("exponent"))
        for end in ("smallest_size", "largest_size")
    )
