"""Charts over two measured axes: roofline, histogram of durations, bandwidth of copies, curves of a sweep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import numpy as np
import polars as pl

from warplens.profile.schema import Int64s, Kind
from warplens.report import text as fmt
from warplens.report.charts.bars import coloured
from warplens.report.charts.base import Chart, Mark, embedded, layer, layered, series_colours, short, tooltip
from warplens.report.counters.numbers import LEVELS, roof_title
from warplens.report.theme import Ink

#: Colour token of the roof and points of each level of memory.
_FILLS: Final = {"dram": "gemm", "l2": "idle-1", "l1": "attention"}

#: Height of the plot in pixels, and the smallest and largest area of a point in square pixels.
_HEIGHT: Final = 420
_SIZES: Final = (36, 420)

#: Kernels of an intensity above this many times the last ridge are drawn at the right edge: arithmetic limits them, so
#: their exact intensity matters little, and to scale it would squeeze the others together.
_REACH: Final = 100.0

#: Decades drawn below the highest roof; slower kernels are only in the table.
_DECADES: Final = 8

#: Upper end of the y axis, as a multiple of the highest roof; and the share of the x axis' end from which on the label
#: of a point is placed to its left.
_ROOM_ABOVE: Final = 4.0
_NEAR_EDGE: Final = 1 / 30

#: Kernels drawn, the most expensive first; more would overlap, and be slow on a phone.
MOST_POINTS: Final = 200

#: Kernels labelled with their name; the others only with their number.
_NAMED: Final = 6

_PLAIN_LABEL: Final = (
    "datum.value < 1000 ? '' + datum.value : datum.value < 1e6 ? datum.value / 1000 + ' k' : datum.value / 1e6 + ' M'"
)


def roofline_chart(points: pl.DataFrame, roofs: pl.DataFrame) -> Chart:
    """The roofline: achieved FLOP/s of each kernel against its FLOPs per byte at each level of memory.

    A kernel has up to three points of the same height, one per level, on a thin line; their area is the kernel's time.

    Args:
        points: rows of `warplens.analysis.counters.roofline.POINTS` with FLOPs and an intensity, and their `number` in
            the table beside the chart.
        roofs: `warplens.analysis.counters.roofline.ROOFS`; at least one of arithmetic and one of memory.
    """
    points = points.head(MOST_POINTS)
    flat = roofs.filter(pl.col("roof") == "compute")
    slopes = roofs.filter(pl.col("roof") != "compute")
    top = float(max(flat["peak"].to_list()))
    bottom = 10.0 ** max(
        math.floor(math.log10(max(min(points["flops_per_s"].to_list(), default=top), 1.0))),
        math.ceil(math.log10(top)) - _DECADES,
    )
    shown = points.filter(pl.col("flops_per_s") >= bottom)
    left, right = _span(shown, flat, slopes)
    marks = _point_marks(shown, right)
    lines, labels = _roof_marks(slopes, flat, (left, right, bottom, top))
    ridges = _ridge_marks(flat, slopes)

    def draw(ink: Ink) -> alt.LayerChart:
        """Roofs and kernels in the plane of intensity and rate, in the colours of `ink`."""
        place = {
            "x": alt.X(
                "x:Q",
                title="FLOPs per byte",
                scale=alt.Scale(type="log", domain=[left, right], nice=False),
                axis=alt.Axis(labelExpr=_PLAIN_LABEL, values=_powers(left, right), labelOverlap="greedy"),
            ),
            "y": alt.Y(
                "y:Q",
                title="FLOP/s",
                scale=alt.Scale(type="log", domain=[bottom, _ROOM_ABOVE * top], nice=False),
                axis=alt.Axis(labelExpr=_RATE_LABEL, values=_powers(bottom, _ROOM_ABOVE * top), labelOverlap="greedy"),
            ),
        }
        fill = alt.Color("fill:N", scale=None, legend=None)
        levels = alt.Scale(domain=list(LEVELS.values()), range=[ink(_FILLS[level]) for level in LEVELS])
        edge = {"filled": True, "strokeWidth": 1.5}
        small = {"fontSize": 11, "align": "left"}
        # The angle of a memory roof on the screen, in degrees: it rises one decade per decade.
        across, up = math.log10(right / left), math.log10(_ROOM_ABOVE * top / bottom)
        angle = alt.ExprRef(f"-atan2(height / {short(up)}, width / {short(across)}) * 180 / PI")
        points = alt.Chart(embedded(marks))

        def names(text_marks: list[Mark], style: dict[str, Any], **more: Any) -> alt.Chart:
            return layer(text_marks, "text", {**small, **style}, **place, text="label:N", **more)

        def labelled(text_marks: list[Mark], key: str, value: object) -> list[Mark]:
            return [mark for mark in text_marks if mark.get("label") and mark.get(key) == value]

        roof_names = coloured(labels, ink)
        beside = {"baseline": "bottom", "dx": 10, "dy": -3, "angle": angle}
        above = {"align": "right", "baseline": "bottom", "dx": -4, "dy": -3}
        below = {"baseline": "top", "dx": 5, "dy": 4, "fill": ink("soft")}
        tooltip_fields = {
            "FLOP/s": "rate",
            "FLOP/byte": "intensity",
            "of this roof": "share",
            "of its nearest roof": "reached",
            "time": "took",
            "bound": "bound",
        }
        beyond = alt.Scale(domain=["no", "yes"], range=["circle", "triangle-right"])
        return layered(
            layer(coloured(lines, ink), "line", {"strokeWidth": 2, "clip": True}, **place, detail="line:N", color=fill),
            layer(
                ridges,
                "point",
                {**edge, "shape": "diamond", "size": 60, "fill": ink("surface"), "stroke": ink("soft")},
                **place,
                tooltip=tooltip("name", ridge="ridge", roof="roof"),
            ),
            names([mark for mark in ridges if mark.get("label")], below),
            names(labelled(roof_names, "side", "left"), beside, color=fill),
            names(labelled(roof_names, "side", "right"), above, color=fill),
            layer(points, "line", {"strokeWidth": 1, "color": ink("strong-line")}, **place, detail="number:N"),
            layer(
                points,
                "point",
                {**edge, "opacity": 0.85, "stroke": ink("surface"), "strokeWidth": 1},
                **place,
                color=alt.Color("level:N", scale=levels, legend=None),
                size=alt.Size("time:Q", scale=alt.Scale(type="sqrt", range=list(_SIZES)), legend=None),
                shape=alt.Shape("beyond:N", scale=beyond, legend=None),
                tooltip=tooltip("name", "kernel", **tooltip_fields),
            ),
            names(labelled(marks, "last", False), {"baseline": "middle", "dx": 11, "fill": ink("ink")}),
            names(
                labelled(marks, "last", True),
                {"align": "right", "baseline": "top", "dx": 6, "dy": 9, "fill": ink("ink")},
            ),
            height=_HEIGHT,
        )

    return Chart(draw, zooms="xy")


def _powers(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def _span(points: pl.DataFrame, flat: pl.DataFrame, slopes: pl.DataFrame) -> tuple[float, float]:
    """The range of the x axis: powers of ten around all ridges and points, limited by `_REACH`."""
    ridges = [peak / slope for peak in flat["peak"] for slope in slopes["peak"]]
    intensities = [value for level in LEVELS for value in points[f"{level}_intensity"].to_list() if value]
    last = min(max([*intensities, 10 * max(ridges)]), _REACH * max(ridges))
    return 10.0 ** math.floor(math.log10(min([*intensities, min(ridges) / 10]))), 10.0 ** math.ceil(math.log10(last))


def _roof_marks(
    slopes: pl.DataFrame, flat: pl.DataFrame, area: tuple[float, float, float, float]
) -> tuple[list[Mark], list[Mark]]:
    """The lines of the roofs, two points each, and their labels, inside `area`: left, right, bottom, highest roof."""
    left, right, bottom, top = area
    lines: list[Mark] = []
    labels: list[Mark] = []
    for row in slopes.iter_rows(named=True):
        line = {"line": row["roof"], "token": _FILLS[row["roof"]]}
        ends = [
            {"x": short(x), "y": short(x * row["peak"])} for x in (max(left, bottom / row["peak"]), top / row["peak"])
        ]
        lines += [{**line, **end} for end in ends]
        text = f"{LEVELS[row['roof']]} {fmt.bandwidth(row['peak'])}"
        labels.append({**ends[0], "label": text, "side": "left", "token": line["token"]})
    # An arithmetic roof begins at the ridge with the fastest memory.
    fastest = float(max(slopes["peak"].to_list()))
    for number, row in enumerate(flat.iter_rows(named=True)):
        for x in (row["peak"] / fastest, right):
            lines.append({"line": f"flat {number}", "x": short(x), "y": short(row["peak"]), "token": "soft"})
        text = f"{roof_title(row)} {fmt.flop_rate(row['peak'])}"
        labels.append({"x": short(right), "y": short(row["peak"]), "label": text, "side": "right", "token": "soft"})
    return lines, labels


def _ridge_marks(flat: pl.DataFrame, slopes: pl.DataFrame) -> list[Mark]:
    marks: list[Mark] = []
    for roof in flat.iter_rows(named=True):
        for slope in slopes.iter_rows(named=True):
            ridge = roof["peak"] / slope["peak"]
            marks.append(
                {
                    "x": short(ridge),
                    "y": short(roof["peak"]),
                    "name": f"ridge of {LEVELS[slope['roof']]} and {roof_title(roof)}",
                    "ridge": f"{fmt.number(ridge)} FLOPs per byte",
                    "roof": fmt.flop_rate(roof["peak"]),
                    "label": fmt.number(ridge) if slope["roof"] == "dram" else None,
                }
            )
    return marks


def _point_marks(points: pl.DataFrame, right: float) -> list[Mark]:
    labelled = set(points.sort("total_ns", descending=True, nulls_last=True)["number"].head(_NAMED).to_list())
    marks: list[Mark] = []
    for row in points.iter_rows(named=True):
        of_kernel = [_point(row, level, right) for level in LEVELS if row[f"{level}_intensity"]]
        if of_kernel:
            name = f" {fmt.shorten_kernel(row['full_name'], 26)}" if row["number"] in labelled else ""
            max(of_kernel, key=lambda mark: float(mark["x"]))["label"] = f"{row['number']}{name}"
        marks += of_kernel
    return marks


def _point(row: dict[str, Any], level: str, right: float) -> Mark:
    intensity = row[f"{level}_intensity"]
    return {
        "number": row["number"],
        "level": LEVELS[level],
        "x": short(min(intensity, right)),
        "y": short(row["flops_per_s"]),
        "beyond": "yes" if intensity > right else "no",
        "last": intensity > right * _NEAR_EDGE,
        "time": short(row["total_ns"] or 0.0),
        "name": f"{row['number']} {fmt.shorten_kernel(row['full_name'])}",
        "kernel": f"grid {row['grid']} · block {row['block']}",
        "rate": fmt.flop_rate(row["flops_per_s"]),
        "intensity": f"{fmt.number(intensity)} ({LEVELS[level]})",
        "share": fmt.value(row[f"{level}_share"], "share"),
        "reached": f"{fmt.value(row['roof_share'], 'share')} ({row['roof']})",
        "took": fmt.value(row["total_ns"], "duration_ns"),
        "bound": row["bound"],
    }


#: Bins per decade of durations: fine enough to separate two modes, coarse enough not to show noise.
_BINS_PER_DECADE: Final = 8

#: Cells per decade of the size and of the bandwidth of copies.
_CELLS_PER_DECADE: Final = 6


def _log_label(units: tuple[tuple[str, str], ...]) -> str:
    """A Vega expression for the labels of a logarithmic axis; `units` are factors and names, the smallest first."""
    *smaller, (last_factor, last_unit) = units
    branches = "".join(
        f"datum.value < {next_factor} ? datum.value / {factor} + ' {unit}' : "
        for (factor, unit), (next_factor, _) in zip(smaller, units[1:], strict=True)
    )
    return f"{branches}datum.value / {last_factor} + ' {last_unit}'"


_RATE_LABEL = _log_label((("1e6", "M"), ("1e9", "G"), ("1e12", "T"), ("1e15", "P")))
_TIME_LABEL = _log_label((("1", "ns"), ("1e3", "µs"), ("1e6", "ms"), ("1e9", "s")))
_BYTES_LABEL = _log_label((("1", "B"), ("1e3", "kB"), ("1e6", "MB"), ("1e9", "GB"), ("1e12", "TB")))


def log_bins(durations_ns: pl.Series | Int64s, series: str, floor_ns: float = 1.0) -> pl.DataFrame:
    """A histogram of durations with logarithmic bins.

    Args:
        durations_ns: may be negative.
        series: title of the distribution.
        floor_ns: begin of the lowest bin, which also counts shorter durations.

    Returns:
        `series`, `from_ns`, `to_ns` (Float64), `count` (Int64), `share` of all durations; from the first to the last
        bin that is not empty.
    """
    values = np.asarray(durations_ns, dtype=np.float64)
    schema = {"series": pl.String, "from_ns": pl.Float64, "to_ns": pl.Float64, "count": pl.Int64, "share": pl.Float64}
    if not len(values):
        return pl.DataFrame(schema=schema)
    place = np.floor(np.log10(np.maximum(values, floor_ns)) * _BINS_PER_DECADE + 1e-9).astype(np.int64)
    first = int(place.min())
    counts = np.bincount(place - first)
    edges = 10.0 ** (np.arange(first, first + len(counts) + 1) / _BINS_PER_DECADE)
    return pl.DataFrame(
        {
            "series": [series] * len(counts),
            "from_ns": edges[:-1],
            "to_ns": edges[1:],
            "count": counts,
            "share": counts / len(values),
        },
        schema=schema,
    )


def histogram_chart(bins: pl.DataFrame, x_title: str) -> Chart:
    """Histograms of durations: the share of events in each bin of a logarithmic axis.

    The bins are `series` (title), `from_ns`, `to_ns`, `count`, `share` (of its series), sorted by series and `from_ns`.
    """
    series = bins.get_column("series").unique(maintain_order=True).to_list()
    marks: list[Mark] = [
        {
            "series": row["series"],
            "x0": short(row["from_ns"]),
            "x1": short(row["to_ns"]),
            "y": short(row["share"] * 100),
            "range": f"{fmt.duration(row['from_ns'])} – {fmt.duration(row['to_ns'])}",
            "events": f"{fmt.count(row['count'])} ({fmt.share(row['share'])})",
        }
        for row in bins.iter_rows(named=True)
    ]
    decades = _decades([*bins.get_column("from_ns"), *bins.get_column("to_ns")])
    outline: list[Mark] = []  # a stepped line over the bins of each series, down to zero at both ends
    for name in series:
        tops = [{key: mark[key] for key in ("series", "x0", "y")} for mark in marks if mark["series"] == name]
        end = next(mark["x1"] for mark in reversed(marks) if mark["series"] == name)
        outline += [{**tops[0], "y": 0}, *tops, {**tops[0], "x0": end, "y": 0}]

    def draw(ink: Ink) -> alt.LayerChart:
        x = alt.X(
            "x0:Q",
            title=x_title,
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(grid=False, labelExpr=_TIME_LABEL, values=decades, labelOverlap="greedy"),
        )
        y = alt.Y("y:Q", title="% of each", axis=alt.Axis(tickCount=4), stack=None)
        shape = alt.Chart(embedded(outline)).encode(x=x, y=y, color=series_colours(series, ink))
        bars = alt.Chart(embedded(marks)).transform_calculate(zero="0")
        touch = tooltip("series", duration="range", events="events")
        return layered(
            layer(shape, "area", {"interpolate": "step-after", "opacity": 0.22}),
            layer(shape, "line", {"interpolate": "step-after", "strokeWidth": 1.5}),
            layer(bars, "rect", {"opacity": 0}, x=x, x2="x1:Q", y=y, y2="zero:Q", tooltip=touch),
            height=200,
        )

    return Chart(draw)


def bandwidth_cells(copies: pl.DataFrame) -> pl.DataFrame:
    """Copies grouped by direction, size and bandwidth on a logarithmic grid.

    From `direction`, `bytes`, `start_ns`, `end_ns` of copies, without those that have no bytes or no duration, to
    `direction`, `bytes` and `bandwidth_bytes_per_s` (means of the cell), `count`.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    return (
        copies.filter((pl.col("bytes") > 0) & (duration > 0))
        .select(
            pl.col("direction").cast(pl.String),
            pl.col("bytes").cast(pl.Float64),
            (pl.col("bytes") * 1e9 / duration).alias("bandwidth_bytes_per_s"),
        )
        .group_by(
            "direction",
            (pl.col("bytes").log10() * _CELLS_PER_DECADE).floor().alias("size_cell"),
            (pl.col("bandwidth_bytes_per_s").log10() * _CELLS_PER_DECADE).floor().alias("speed_cell"),
        )
        .agg(pl.col("bytes", "bandwidth_bytes_per_s").mean(), pl.len().cast(pl.Int64).alias("count"))
        .sort("direction", "bytes", "bandwidth_bytes_per_s")
        .drop("size_cell", "speed_cell")
    )


def bandwidth_chart(cells: pl.DataFrame) -> Chart:
    """Bandwidth of copies against their size, both logarithmic; one dot per cell of `bandwidth_cells`."""
    directions = cells.get_column("direction").unique(maintain_order=True).to_list()
    marks: list[Mark] = [
        {
            "series": row["direction"],
            "x": short(row["bytes"]),
            "y": short(row["bandwidth_bytes_per_s"]),
            "count": row["count"],
            "size": fmt.data_size(row["bytes"]),
            "speed": fmt.bandwidth(row["bandwidth_bytes_per_s"]),
            "copies": fmt.count(row["count"]),
        }
        for row in cells.iter_rows(named=True)
    ]

    def axis(field: str) -> dict[str, Any]:
        decades = _decades([mark[field] for mark in marks])
        return {
            "scale": alt.Scale(type="log", domain=[decades[0], decades[-1]]),
            "axis": alt.Axis(labelExpr=_BYTES_LABEL, values=decades, labelOverlap="greedy"),
        }

    def draw(ink: Ink) -> alt.LayerChart:
        dots = layer(
            marks,
            "circle",
            {"opacity": 0.75},
            x=alt.X("x:Q", title="size of a copy", **axis("x")),
            y=alt.Y("y:Q", title="bytes per second", **axis("y")),
            size=alt.Size("count:Q", scale=alt.Scale(type="log", range=[24, 240]), legend=None),
            color=series_colours(directions, ink),
            tooltip=tooltip("series", size="size", bandwidth="speed", copies="copies"),
        )
        return layered(dots, height=240)

    return Chart(draw)


def _decades(values: Sequence[float]) -> list[float]:
    """The powers of ten that enclose all values; at least two."""
    if not values:
        return [1.0, 10.0]
    lowest = math.floor(math.log10(min(values)) + 1e-9)
    highest = math.ceil(math.log10(max(values)) - 1e-9)
    return [10.0**power for power in range(lowest, max(highest, lowest + 1) + 1)]


_CURVE_HEIGHT: Final = 240

#: Factor by which a logarithmic axis extends beyond the points.
_MARGIN = 1.2

#: Units of the y axis, by kind: divisor and name.
_UNITS: dict[Kind, tuple[tuple[float, str], ...]] = {
    "flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
    "duration_ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs")),
    "number": ((1.0, ""),),
}


def _round(low: float, high: float) -> list[float]:
    """The ticks of a logarithmic axis: 1, 2, 5, 10, … from low to high."""
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [digit * 10.0**ten for ten in tens for digit in (1, 2, 5) if low <= digit * 10.0**ten <= high]


def curve_chart(
    points: pl.DataFrame, *, x_title: str, y_title: str, kind: Kind, laws: pl.DataFrame | None = None
) -> Chart:
    """A line with dots for each series; the x axis is logarithmic to base 2, with a tick at every value that occurs.

    Args:
        points: `series` (title), `x` (above zero), `y`; sorted by x.
        x_title, y_title: titles of the axes, without units.
        kind: of `y`: `flops`, `duration_ns` or `number`.
        laws: fitted `series`, `x`, `y`, drawn as a dashed line per series; the y axis is then logarithmic, too.
    """
    series = points.get_column("series").unique(maintain_order=True).to_list()
    top = max(points.get_column("y").to_list())
    units = _UNITS[kind]
    factor, unit = next((entry for entry in units if top >= entry[0]), units[-1])
    marks: list[Mark] = [
        {
            "series": row["series"],
            "x": row["x"],
            "y": short(row["y"] / factor),
            "at": f"{fmt.count(row['x'])}",
            "value": fmt.value(row["y"], kind),
        }
        for row in points.iter_rows(named=True)
    ]
    ticks = sorted(set(points.get_column("x").to_list()))
    heights = [mark["y"] for mark in marks]
    low, high = min(heights) / _MARGIN, max(heights) * _MARGIN
    fitted: list[Mark] = [
        {"series": row["series"], "x": row["x"], "y": short(row["y"] / factor)}
        for row in (laws.iter_rows(named=True) if laws is not None else ())
    ]

    def draw(ink: Ink) -> alt.LayerChart:
        """The series over a logarithmic axis, with their fitted laws if there are any, in the colours of `ink`."""
        x = alt.X(
            "x:Q",
            title=x_title,
            scale=alt.Scale(type="log", base=2, nice=False),
            axis=alt.Axis(grid=False, values=ticks, format=",d", labelOverlap="greedy"),
        )
        title = f"{y_title}, {unit}" if unit else y_title
        y = alt.Y("y:Q", title=title, axis=alt.Axis(tickCount=4))
        if laws is not None:
            scale = alt.Scale(type="log", domain=[low, high], nice=False)
            y = alt.Y("y:Q", title=title, axis=alt.Axis(values=_round(low, high), format="~r"), scale=scale)
        colour = series_colours(series, ink)
        base = alt.Chart(embedded(marks)).encode(x=x, y=y, color=colour)
        line = base.mark_line(strokeWidth=1.5, opacity=0.4 if fitted else 1)
        touch = tooltip("series", **{x_title: "at", y_title: "value"})
        dots = layer(base, "point", {"filled": True, "size": 36, "opacity": 1}, tooltip=touch)
        if not fitted:
            return layered(line, dots, height=_CURVE_HEIGHT)
        law = alt.Chart(embedded(fitted)).encode(x=x, y=y, color=colour).mark_line(strokeDash=[5, 3], strokeWidth=1.5)
        return layered(line, law, dots, height=_CURVE_HEIGHT)

    return Chart(draw)
