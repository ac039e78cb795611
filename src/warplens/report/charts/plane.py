"""Charts over two measured axes: kernels under their roofs, and where in a sweep a variant pays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import altair as alt
import polars as pl

from warplens.report import text as fmt
from warplens.report.charts.bars import coloured, x_share, y_pixels
from warplens.report.charts.base import Chart, Mark, channels, embedded, layered, short, tooltip
from warplens.report.counters.words import LEVELS, roof_title
from warplens.report.theme import Ink

#: The colour of roof and points of a level of memory.
_FILLS: Final = {"dram": "gemm", "l2": "idle-1", "l1": "attention"}

#: Pixels of the plot, and of the largest and the smallest point (area).
_HEIGHT: Final = 420
_SIZES: Final = (36, 420)

#: Kernels further right than this many times the last ridge stand at the edge: where nothing but arithmetic limits
#: them, how few bytes they move says little, and drawn to scale they would push the others together.
_REACH: Final = 100.0

#: Decades below the highest roof that are drawn; slower kernels are in the table alone.
_DECADES: Final = 8

#: From the highest roof to the upper edge; from here on right, a name stands left of its point.
_ROOM_ABOVE: Final = 4.0
_NEAR_EDGE: Final = 1 / 30

#: Kernels that are drawn, the most expensive; more would be one blot, and slow on a phone.
MOST_POINTS: Final = 200

#: Kernels named in the chart; the others by number.
_NAMED: Final = 6

_RATE_LABEL: Final = (
    "datum.value < 1e9 ? datum.value / 1e6 + ' M' : datum.value < 1e12 ? datum.value / 1e9 + ' G' : "
    "datum.value < 1e15 ? datum.value / 1e12 + ' T' : datum.value / 1e15 + ' P'"
)
_PLAIN_LABEL: Final = (
    "datum.value < 1000 ? '' + datum.value : datum.value < 1e6 ? datum.value / 1000 + ' k' : datum.value / 1e6 + ' M'"
)


def roofline_chart(points: pl.DataFrame, roofs: pl.DataFrame) -> Chart:
    """Achieved FLOP/s of each kernel against its FLOPs per byte at each level of memory, under the roofs.

    A kernel is up to three points of the same height, one a level, on a thin line; their area is the kernel's time.

    Args:
        points: those of `warplens.analysis.counters.rooflinepoints.POINTS` that have a place in the chart, with
            `number`, by which the table beside the chart calls them.
        roofs: `warplens.analysis.counters.rooflinepoints.ROOFS`; at least one of arithmetic and one of memory.
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
    lines = [*_slope_lines(slopes, top, left, bottom), *_flat_lines(flat, slopes, right)]
    labels = _roof_labels(slopes, flat, left, bottom, right)
    ridges = _ridge_marks(flat, slopes)

    def draw(ink: Ink) -> alt.LayerChart:
        colours = alt.Color(
            "level:N",
            scale=alt.Scale(domain=list(LEVELS.values()), range=[ink(_FILLS[level]) for level in LEVELS]),
            legend=None,
        )
        fill = alt.Color("fill:N", scale=None, legend=None)
        x, y = _axes(left, right, bottom, top)
        named = coloured(labels, ink)
        base = alt.Chart(embedded(marks))
        return layered(
            alt.Chart(embedded(coloured(lines, ink)))
            .mark_line(strokeWidth=2, clip=True)
            .encode(**channels(x=x, y=y, detail="line:N", color=fill)),
            alt.Chart(embedded(ridges))
            .mark_point(shape="diamond", size=60, filled=True, fill=ink("surface"), stroke=ink("soft"), strokeWidth=1.5)
            .encode(**channels(x=x, y=y, tooltip=tooltip("name", ridge="ridge", roof="roof"))),
            alt.Chart(embedded([mark for mark in ridges if mark.get("label")]))
            .mark_text(align="left", baseline="top", dx=5, dy=4, fontSize=11, fill=ink("soft"))
            .encode(**channels(x=x, y=y, text="label:N")),
            alt.Chart(embedded([mark for mark in named if mark["side"] == "left"]))
            .mark_text(
                align="left", baseline="bottom", dx=10, dy=-3, fontSize=11, angle=_slope_angle(left, right, bottom, top)
            )
            .encode(**channels(x=x, y=y, text="label:N", color=fill)),
            alt.Chart(embedded([mark for mark in named if mark["side"] == "right"]))
            .mark_text(align="right", baseline="bottom", dx=-4, dy=-3, fontSize=11)
            .encode(**channels(x=x, y=y, text="label:N", color=fill)),
            base.mark_line(strokeWidth=1, color=ink("strong-line")).encode(**channels(x=x, y=y, detail="number:N")),
            base.mark_point(filled=True, opacity=0.85, stroke=ink("surface"), strokeWidth=1).encode(
                **channels(
                    x=x,
                    y=y,
                    color=colours,
                    size=alt.Size("time:Q", scale=alt.Scale(type="sqrt", range=list(_SIZES)), legend=None),
                    shape=alt.Shape(
                        "beyond:N",
                        scale=alt.Scale(domain=["no", "yes"], range=["circle", "triangle-right"]),
                        legend=None,
                    ),
                    tooltip=tooltip(
                        "name",
                        "kernel",
                        **{
                            "FLOP/s": "rate",
                            "FLOP/byte": "intensity",
                            "of this roof": "share",
                            "of its nearest roof": "reached",
                            "time": "took",
                            "bound": "bound",
                        },
                    ),
                )
            ),
            alt.Chart(embedded([mark for mark in marks if mark.get("label") and not mark["last"]]))
            .mark_text(align="left", baseline="middle", dx=11, fontSize=11, fill=ink("ink"))
            .encode(**channels(x=x, y=y, text="label:N")),
            alt.Chart(embedded([mark for mark in marks if mark.get("label") and mark["last"]]))
            .mark_text(align="right", baseline="top", dx=6, dy=9, fontSize=11, fill=ink("ink"))
            .encode(**channels(x=x, y=y, text="label:N")),
            height=_HEIGHT,
        )

    return Chart(draw, zooms="xy")


def _axes(left: float, right: float, bottom: float, top: float) -> tuple[alt.X, alt.Y]:
    x = alt.X(
        "x:Q",
        title="FLOPs per byte",
        scale=alt.Scale(type="log", domain=[left, right], nice=False),
        axis=alt.Axis(labelExpr=_PLAIN_LABEL, values=_powers(left, right), labelOverlap="greedy"),
    )
    y = alt.Y(
        "y:Q",
        title="FLOP/s",
        scale=alt.Scale(type="log", domain=[bottom, _ROOM_ABOVE * top], nice=False),
        axis=alt.Axis(labelExpr=_RATE_LABEL, values=_powers(bottom, _ROOM_ABOVE * top), labelOverlap="greedy"),
    )
    return x, y


def _slope_angle(left: float, right: float, bottom: float, top: float) -> alt.ExprRef:
    """The angle of the slopes on the screen, in degrees: a decade up for each decade to the right."""
    across, up = math.log10(right / left), math.log10(_ROOM_ABOVE * top / bottom)
    return alt.ExprRef(f"-atan2(height / {short(up)}, width / {short(across)}) * 180 / PI")


def _powers(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)]


def _span(points: pl.DataFrame, flat: pl.DataFrame, slopes: pl.DataFrame) -> tuple[float, float]:
    """The least and the largest intensity that is drawn: powers of ten that hold all ridges and points."""
    ridges = [peak / slope for peak in flat["peak"] for slope in slopes["peak"]]
    found = [value for level in LEVELS for value in points[f"{level}_intensity"].to_list() if value]
    last = min(max([*found, 10 * max(ridges)]), _REACH * max(ridges))
    return 10.0 ** math.floor(math.log10(min([*found, min(ridges) / 10]))), 10.0 ** math.ceil(math.log10(last))


def _slope_lines(slopes: pl.DataFrame, top: float, left: float, bottom: float) -> list[Mark]:
    lines: list[Mark] = []
    for row in slopes.iter_rows(named=True):
        begin = max(left, bottom / row["peak"])
        ends = (begin, top / row["peak"])
        lines += [
            {"line": row["roof"], "x": short(x), "y": short(x * row["peak"]), "token": _FILLS[row["roof"]]}
            for x in ends
        ]
    return lines


def _flat_lines(flat: pl.DataFrame, slopes: pl.DataFrame, right: float) -> list[Mark]:
    """Arithmetic is the lowest roof right of where the fastest memory would let it be."""
    fastest = float(max(slopes["peak"].to_list()))
    return [
        {"line": f"flat {number}", "x": short(x), "y": short(row["peak"]), "token": "soft"}
        for number, row in enumerate(flat.iter_rows(named=True))
        for x in (row["peak"] / fastest, right)
    ]


def _roof_labels(slopes: pl.DataFrame, flat: pl.DataFrame, left: float, bottom: float, right: float) -> list[Mark]:
    labels: list[Mark] = []
    for row in slopes.iter_rows(named=True):
        x = max(left, bottom / row["peak"])
        text = f"{LEVELS[row['roof']]} {fmt.bandwidth(row['peak'])}"
        labels.append(
            {"x": short(x), "y": short(x * row["peak"]), "label": text, "side": "left", "token": _FILLS[row["roof"]]}
        )
    for row in flat.iter_rows(named=True):
        text = f"{roof_title(row)} {fmt.flop_rate(row['peak'])}"
        labels.append({"x": short(right), "y": short(row["peak"]), "label": text, "side": "right", "token": "soft"})
    return labels


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
    named = set(points.sort("total_ns", descending=True, nulls_last=True)["number"].head(_NAMED).to_list())
    marks: list[Mark] = []
    for row in points.iter_rows(named=True):
        own = [_point(row, level, right) for level in LEVELS if row[f"{level}_intensity"]]
        if own:
            name = f" {fmt.shorten_kernel(row['full_name'], 26)}" if row["number"] in named else ""
            max(own, key=lambda mark: float(mark["x"]))["label"] = f"{row['number']}{name}"
        marks += own
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


#: Rows of cells that are drawn; more are in the table alone.
MOST_ROWS: Final = 24

#: Pixels: the line with the values of the axis, a row's label, its cells, and the space to the next row.
_HEAD: Final = 20
_LABEL: Final = 17
_CELL: Final = 30
_GAP: Final = 8

#: Space between cells, as a share of the width.
_BETWEEN: Final = 0.004

#: Strongest colour of a cell, so that text on it keeps its contrast in both themes; and that of a tenth more or less.
_STRONGEST: Final = 0.55
_WEAKEST: Final = 0.06

#: A speedup from which on (and below whose inverse) colours grow no stronger.
_FULL: Final = 3.0

#: Regime → colour token: waiting is warm, work is cool, as everywhere.
REGIME_FILLS: Final[Mapping[str, str]] = {
    "launch-bound": "idle-1",
    "gpu-bound": "gemm",
    "memory-bound": "attention",
    "compute-bound": "communication",
    "unknown": "other",
}

_SHORT: Final = {
    "launch-bound": "host",
    "gpu-bound": "GPU",
    "memory-bound": "memory",
    "compute-bound": "compute",
    "unknown": "?",
}


def speedup_chart(cells: pl.DataFrame, axis: str) -> Chart:
    """How many times as fast the variant is at each point: cool where it is faster, warm where it is slower.

    Args:
        cells: `row` (text of the other axes), `column` (value of the axis as text), `speedup` (null where it is not
            known), `verdict` (or null), `detail` for the tooltip; sorted by row, then by column.
    """
    marks = []
    for mark, row in zip(_places(cells), cells.iter_rows(named=True), strict=False):
        speedup, undecided = row["speedup"], row["verdict"] in ("undecided", None)
        strength = min(abs(math.log(speedup)) / math.log(_FULL), 1.0) if speedup else 0.0
        text = f"{fmt.number(speedup)}×" if speedup else fmt.MISSING
        marks.append(
            {
                **mark,
                "token": "track" if not speedup else "gemm" if speedup >= 1 else "idle-2",
                "opacity": round(_WEAKEST + (_STRONGEST - _WEAKEST) * strength, 3) if speedup else 1.0,
                "text": f"{text} ?" if undecided and speedup else text,
                "detail": row["detail"],
            }
        )
    return _grid(marks, cells, axis)


def regime_chart(cells: pl.DataFrame, axis: str) -> Chart:
    """What limits each cell: the baseline above, the variant below.

    Args:
        cells: `row`, `column` as for `speedup_chart`; `baseline`, `variant` (regimes, or null), `baseline_detail`,
            `variant_detail` for the tooltip.
    """
    marks = []
    for mark, row in zip(_places(cells), cells.iter_rows(named=True), strict=False):
        middle = (mark["y0"] + mark["y1"]) / 2
        for side, top, bottom in (("baseline", mark["y0"], middle), ("variant", middle, mark["y1"])):
            regime = row[side]
            marks.append(
                {
                    **mark,
                    "y0": top,
                    "y1": bottom,
                    "middle": (top + bottom) / 2,
                    "token": REGIME_FILLS.get(regime, "track"),
                    "opacity": 0.4 if regime in REGIME_FILLS and regime != "unknown" else 0.15,
                    "text": _SHORT.get(regime, fmt.MISSING),
                    "detail": row[f"{side}_detail"],
                }
            )
    return _grid(marks, cells, axis)


def _drawn(cells: pl.DataFrame) -> tuple[list[str], list[str]]:
    """Rows that are drawn, and all columns, each once in their order."""
    return (
        cells.get_column("row").unique(maintain_order=True).to_list()[:MOST_ROWS],
        cells.get_column("column").unique(maintain_order=True).to_list(),
    )


def _height(rows: int) -> int:
    return _HEAD + rows * (_LABEL + _CELL + _GAP)


def _places(cells: pl.DataFrame) -> list[Mark]:
    """Where each cell of a drawn row stands; rows come first in `cells`, so that the places are its first rows'."""
    rows, columns = _drawn(cells)
    width = 1 / max(len(columns), 1)
    marks: list[Mark] = []
    for row in cells.iter_rows(named=True):
        if row["row"] not in rows:
            break
        left = columns.index(row["column"]) * width
        top = _HEAD + rows.index(row["row"]) * (_LABEL + _CELL + _GAP) + _LABEL
        marks.append(
            {
                "x0": round(left + _BETWEEN, 5),
                "x1": round(left + width - _BETWEEN, 5),
                "x": round(left + width / 2, 5),
                "y0": top,
                "y1": top + _CELL,
                "middle": top + _CELL / 2,
                "name": f"{row['row']}, {row['column']}" if row["row"] else row["column"],
            }
        )
    return marks


def _grid(marks: list[Mark], cells: pl.DataFrame, axis: str) -> Chart:
    rows, columns = _drawn(cells)
    height = _height(len(rows))
    width = 1 / max(len(columns), 1)
    heads: list[Mark] = [
        {"text": f"{axis} {column}" if place == 0 else column, "x": round((place + 0.5) * width, 5), "y": 8}
        for place, column in enumerate(columns)
    ]
    labels: list[Mark] = [
        {"text": row, "y": _HEAD + place * (_LABEL + _CELL + _GAP) + 8} for place, row in enumerate(rows)
    ]
    share = alt.Scale(domain=[0, 1], nice=False)

    def draw(ink: Ink) -> alt.LayerChart:
        base = alt.Chart(embedded(coloured(marks, ink)))
        middle = alt.X("x:Q", axis=None, scale=share)
        area = base.mark_rect(cornerRadius=2).encode(
            **channels(
                x=x_share(),
                x2="x1:Q",
                y=y_pixels("y0", height),
                y2="y1:Q",
                color=alt.Color("fill:N", scale=None),
                opacity=alt.Opacity("opacity:Q", scale=None),
                tooltip=tooltip("name", "text", "detail"),
            )
        )
        text = base.mark_text(baseline="middle", fontSize=11, fill=ink("ink")).encode(
            **channels(x=middle, y=y_pixels("middle", height), text="text:N")
        )
        head = (
            alt.Chart(embedded(heads))
            .mark_text(baseline="middle", fontSize=11, fill=ink("soft"))
            .encode(**channels(x=middle, y=y_pixels("y", height), text="text:N"))
        )
        label = (
            alt.Chart(embedded(labels))
            .mark_text(align="left", baseline="middle", fill=ink("ink"))
            .encode(**channels(x=alt.value(0), y=y_pixels("y", height), text="text:N"))
        )
        return layered(area, text, head, label, height=height)

    return Chart(draw)
