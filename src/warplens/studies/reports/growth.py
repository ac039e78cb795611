"""How time grows with a setting: latency and throughput over it, and the exponent of the law between them.

Of cells that differ in one number alone (the batch, the input size, the context, the length of a sequence), the others
being the same. Where the host sets the pace, time stays flat and throughput rises; where the GPU does, time follows the
work:

    time = factor · size ^ exponent, times an error

is a straight line between logarithms. It is fitted by least squares; the interval of the exponent is Student's, with
the scatter of the points round the line as the error (Montgomery, Peck, Vining, "Introduction to Linear Regression
Analysis", chapter 2). Real programs keep to such a law over a part of the sizes only: below, the host or a fixed cost
decides, and the line is bent. So the widest range is looked for over which no point is far off, and what happens at
both ends of all sizes is told as well.
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
from warplens.report.document import Block, Figure, Paragraph, Section, Table
from warplens.studies.sweeps.words import columns_of

#: How far a time may be off the line, beside the uncertainty of its own: tiles and waves that are filled in part move
#: single sizes by some percent where the law holds. An exponent is then good for as much over a doubling.
WITHIN: Final = 0.05

#: Sizes that a line needs to have an error at all …
FEWEST: Final = 3
#: … and to be preferred to the line through all sizes: three neighbours are nearly always in one line.
_FEWEST_OF_MORE: Final = 4


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law."""

    exponent: float  #: of the size; with the interval `low` to `high`
    low: float
    high: float
    factor: float  #: the time at size 1, in the unit of the times
    #: smallest_size, largest_size: the sizes that it was fitted to
    smallest_size: float
    largest_size: float
    points: int  #: how many those are
    off_share: float  #: how far the farthest of these points is from the line, as a share of the line
    holds: bool  #: whether all of them are near enough (`WITHIN`, and what the time itself is uncertain by)
    #: first, last: exponents between the two smallest and the two largest of all sizes, also of those left out: far
    #: apart, they tell of a bend
    first: float
    last: float


def power_law(
    sizes: Sequence[float], times: Sequence[float], spreads: Sequence[float] | None = None, *, level: float = 0.05
) -> PowerLaw | None:
    """The law over the widest range of neighbouring sizes that it holds over; over all, where it holds nowhere.

    Of ranges of as many sizes the one of larger sizes is taken.

    Args:
        sizes: above zero, each once.
        times: above zero.
        spreads: how far each time may be from the true one, as a share (half of its interval); zeros if None.
        level: how often the interval misses, where the law holds.

    Returns:
        None with fewer than three sizes.
    """
    count = len(sizes)
    if count < FEWEST:
        return None
    order = np.argsort(np.asarray(sizes, dtype=np.float64))
    exact = np.asarray(sizes, dtype=np.float64)[order]
    x, y = np.log(exact), np.log(np.asarray(times, dtype=np.float64)[order])
    allowed = WITHIN + np.asarray([0.0] * count if spreads is None else spreads, dtype=np.float64)[order]
    ends = (_slope(x[:2], y[:2]), _slope(x[-2:], y[-2:]))
    fewest = min(count, _FEWEST_OF_MORE)
    ranges = [span for span in combinations(range(count + 1), 2) if span[1] - span[0] >= fewest]
    ranges.sort(key=lambda span: (span[0] - span[1], -span[0]))
    fits = [_fit(exact[a:b], y[a:b], allowed[a:b], ends, level) for a, b in ranges]
    return next((fit for fit in fits if fit.holds), fits[0])


def _slope(x: Float64s, y: Float64s) -> float:
    return float((y[1] - y[0]) / (x[1] - x[0]))


def _fit(sizes: Float64s, y: Float64s, allowed: Float64s, ends: tuple[float, float], level: float) -> PowerLaw:
    x = np.log(sizes)
    middle, spread = x.mean(), float(((x - x.mean()) ** 2).sum())
    exponent = float(((x - middle) * y).sum() / spread)
    start = float(y.mean() - exponent * middle)
    left = y - start - exponent * x
    freedom = x.size - 2
    error = float(np.sqrt((left**2).sum() / freedom / spread))
    reach = float(t_quantile(level, freedom)) * error
    off = np.abs(np.expm1(left))
    return PowerLaw(
        exponent, exponent - reach, exponent + reach, float(np.exp(start)), float(sizes[0]), float(sizes[-1]),
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

#: Lines that a chart can tell apart.
MOST_LINES: Final = 8

#: Charts are apart by these: what differs in them differs in shape.
_CHARTS: Final = ("execution", "mode")

_HOW: Final = (
    "Time ~ size to the power of the exponent: 0 where it does not grow, 1 where twice the size takes twice as long. "
    "The law is fitted to the widest range of four sizes or more over which every median is within 5 % of it, or to "
    "all sizes where there is none (law: no): then the exponents at both ends tell how the curve bends. Dashed lines "
    "are laws that hold."
)


def growth(cells: pl.DataFrame, axes: Sequence[str], keys: Sequence[str]) -> pl.DataFrame:
    """A row for each axis, and each set of cells that differ along it alone.

    Args:
        cells: measured cells: the axes and keys, `time_ns` (median), `spread_share` (half of its interval).
        axes: numeric settings, of which each is followed, the others being the same.
        keys: further settings that are the same for a row.
    """
    rows = []
    for axis in axes:
        same = [*keys, *(other for other in axes if other != axis)]
        for key, line in _lines(cells, axis, same):
            law = power_law(*(line.get_column(name).to_list() for name in (axis, "time_ns", "spread_share")))
            if law is not None:
                found = asdict(law)
                found |= {
                    "axis": axis, "factor_ns": law.factor, "first_exponent": law.first, "last_exponent": law.last,
                }  # fmt: skip
                rows.append({**key, **{name: found[name] for name in GROWTH.names}})
    schema = {**{name: cells.schema[name] for name in (*keys, *axes)}, **GROWTH.schema}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _lines(cells: pl.DataFrame, axis: str, same: Sequence[str]) -> Iterator[tuple[dict[str, object], pl.DataFrame]]:
    """The cells that differ along the axis alone, one a size, in its order."""
    groups = cells.group_by(same, maintain_order=True) if same else [((), cells)]
    for key, group in groups:
        yield (
            dict(zip(same, key, strict=True)),
            group.unique(axis, keep="first", maintain_order=True).sort(axis),
        )


def growth_section(cells: pl.DataFrame, axes: Sequence[str], keys: Sequence[str], note: str = "") -> Section | None:
    """Charts and the table of exponents; None where no axis has three sizes.

    Args:
        cells: as for `growth`, and `throughput_per_s`.
        axes, keys: as for `growth`.
        note: what else is to be known of them.
    """
    followed = [axis for axis in axes if cells.get_column(axis).n_unique() >= FEWEST]
    keys = told_apart(cells, [*keys, *(axis for axis in axes if axis not in followed)])
    axes = followed
    rows = growth(cells, axes, keys)
    if rows.is_empty():
        return None
    told = [*keys, *(axes if len(axes) > 1 else ())]
    blocks: list[Block] = [Paragraph(note)] if note else []
    for axis in axes:
        same = [name for name in (*keys, *axes) if name != axis]
        blocks += _figures(cells, rows.filter(pl.col("axis") == axis), axis, same)
    columns = columns_of(GROWTH, rows, told, *(name for name in GROWTH.names if name != "factor_ns"))
    blocks.append(Table("exponents", "Exponents", columns, rows.select(each.name for each in columns), limit=None))
    return Section("growth", "How time grows", (*blocks, Paragraph(_HOW, quiet=True)))


def told_apart(cells: pl.DataFrame, keys: Sequence[str]) -> list[str]:
    """The keys that tell cells apart which those before them do not."""
    kept: list[str] = []
    for name in keys:
        if cells.select(*kept, name).n_unique() > (cells.select(kept).n_unique() if kept else 1):
            kept.append(name)
    return kept


def measured_times(cells: pl.DataFrame) -> pl.DataFrame:
    """Cells that were measured, with `time_ns`, `spread_share` and `throughput_per_s` of each.

    Args:
        cells: those of a measurements file.
    """
    half = [(pl.col(f"{of}_high_ns") - pl.col(f"{of}_low_ns")) / 2 / pl.col(f"{of}_ns") for of in ("latency", "gpu")]
    timed = pl.coalesce("latency_ns", "gpu_ns").cast(pl.Float64)
    return cells.filter((pl.col("status") == "measured") & timed.is_not_null()).with_columns(
        time_ns=timed, spread_share=pl.coalesce(*half, pl.lit(0.0))
    )


def _figures(cells: pl.DataFrame, rows: pl.DataFrame, axis: str, told: list[str]) -> Iterator[Figure]:
    """Latency with its laws, then throughput; a pair of charts for each execution."""
    numbers = [name for name in told if cells.schema[name].is_numeric() and cells.get_column(name).n_unique() > 2]
    for name in numbers if len(told) > 1 else []:
        ends = cells.get_column(name).min(), cells.get_column(name).max()
        cells, rows = (frame.filter(pl.col(name).is_in(ends)) for frame in (cells, rows))
    apart = [name for name in _CHARTS if name in told]
    words = fmt.capitalised(axis.replace("_", " ")).lower()
    for key, group in cells.group_by(apart, maintain_order=True) if apart else [((), cells)]:
        named = [name for name in told if name not in apart]
        words_of = pl.concat_str([_word(name) for name in named], separator=", ") if named else pl.lit("time")
        series = words_of.alias("series")
        lines = group.with_columns(series).sort(axis, maintain_order=True)
        if lines.get_column("series").n_unique() > MOST_LINES:
            continue
        laws = rows.filter(pl.all_horizontal(pl.lit(True), *(pl.col(n) == v for n, v in zip(apart, key, strict=True))))
        of = "".join(f", {value}" for value in key)
        id_ = "-".join(str(part).replace("_", "-") for part in (axis, *key))
        yield _curves(lines, axis, "time_ns", f"Time over {words}{of}.", f"latency-{id_}", laws.with_columns(series))
        if not lines.get_column("throughput_per_s").null_count():
            yield _curves(lines, axis, "throughput_per_s", f"Throughput over {words}{of}.", f"throughput-{id_}")


def _word(name: str) -> pl.Expr:
    """A setting as a line names it: `input size 224`; words speak for themselves."""
    value = pl.col(name).cast(pl.String)
    return pl.when(value.str.contains(r"^[0-9.]+$")).then(pl.lit(f"{name.replace('_', ' ')} ") + value).otherwise(value)


def _curves(
    lines: pl.DataFrame, axis: str, what: str, caption: str, id_: str, laws: pl.DataFrame | None = None
) -> Figure:
    from warplens.report.charts import curve_chart

    points = lines.select("series", x=axis, y=what)
    chart = curve_chart(
        points,
        x_title=axis.replace("_", " "),
        y_title="time" if what == "time_ns" else "throughput a second",
        kind="duration_ns" if what == "time_ns" else "number",
        laws=_ends(laws) if laws is not None else None,
    )
    return Figure(id_, caption, chart, caption)


def _ends(laws: pl.DataFrame) -> pl.DataFrame:
    """Both ends of each law that holds, as the chart draws it: a straight line between logarithms."""
    held = laws.filter("holds")
    return pl.concat(
        held.select("series", x=pl.col(end), y=pl.col("factor_ns") * pl.col(end) ** pl.col("exponent"))
        for end in ("smallest_size", "largest_size")
    )
