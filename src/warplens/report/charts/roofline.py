"""The hierarchical roofline: kernels under the roofs of arithmetic and of each level of memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import altair as alt
import polars as pl

from warplens.report import text as fmt
from warplens.report.charts.base import Chart, Mark, embedded, layered, short, tooltip

if TYPE_CHECKING:
    from warplens.report.theme import Ink


#: Levels of memory from the slowest to the fastest, as the legend calls them, and the colour of roof and points.
_LEVEL_TITLES: Final = {"dram": "DRAM", "l2": "L2", "l1": "L1"}
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
        points: those of `warplens.analysis.counters.roofline.POINTS` that have a place in the chart, with
            `number`, by which the table beside the chart calls them.
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
    lines = [*_slope_lines(slopes, top, left, bottom), *_flat_lines(flat, slopes, right)]
    labels = _roof_labels(slopes, flat, left, bottom, right)
    ridges = _ridge_marks(flat, slopes)

    def draw(ink: Ink) -> alt.LayerChart:
        colours = alt.Color(
            "level:N",
            scale=alt.Scale(domain=list(_LEVEL_TITLES.values()), range=[ink(_FILLS[level]) for level in _LEVEL_TITLES]),
            legend=None,
        )
        fill = alt.Color("fill:N", scale=None, legend=None)
        x, y = _axes(left, right, bottom, top)
        drawn = [{**mark, "fill": ink(mark.pop("token"))} for mark in map(dict, lines)]
        named = [{**mark, "fill": ink(mark.pop("token"))} for mark in map(dict, labels)]
        base = alt.Chart(embedded(marks))
        return layered(
            alt.Chart(embedded(drawn))
            .mark_line(strokeWidth=2, clip=True)
            .encode(x=x, y=y, detail="line:N", color=fill),
            alt.Chart(embedded(ridges))
            .mark_point(shape="diamond", size=60, filled=True, fill=ink("surface"), stroke=ink("soft"), strokeWidth=1.5)
            .encode(x=x, y=y, tooltip=tooltip("name", ridge="ridge", roof="roof")),
            alt.Chart(embedded([mark for mark in ridges if mark.get("label")]))
            .mark_text(align="left", baseline="top", dx=5, dy=4, fontSize=11, fill=ink("soft"))
            .encode(x=x, y=y, text="label:N"),
            alt.Chart(embedded([mark for mark in named if mark["side"] == "left"]))
            .mark_text(
                align="left", baseline="bottom", dx=10, dy=-3, fontSize=11, angle=_slope_angle(left, right, bottom, top)
            )
            .encode(x=x, y=y, text="label:N", color=fill),
            alt.Chart(embedded([mark for mark in named if mark["side"] == "right"]))
            .mark_text(align="right", baseline="bottom", dx=-4, dy=-3, fontSize=11)
            .encode(x=x, y=y, text="label:N", color=fill),
            base.mark_line(strokeWidth=1, color=ink("strong-line")).encode(x=x, y=y, detail="number:N"),
            base.mark_point(filled=True, opacity=0.85, stroke=ink("surface"), strokeWidth=1).encode(
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
            ),
            alt.Chart(embedded([mark for mark in marks if mark.get("label") and not mark["last"]]))
            .mark_text(align="left", baseline="middle", dx=11, fontSize=11, fill=ink("ink"))
            .encode(x=x, y=y, text="label:N"),
            alt.Chart(embedded([mark for mark in marks if mark.get("label") and mark["last"]]))
            .mark_text(align="right", baseline="top", dx=6, dy=9, fontSize=11, fill=ink("ink"))
            .encode(x=x, y=y, text="label:N"),
            height=_HEIGHT,
        )

    return Chart(draw)


def _roof_title(roof: str, precision: str | None, number_format: str | None, sparse: bool | None) -> str:
    """What a roof is called: `DRAM`, `FP32`, `tensor cores, BF16`."""
    if roof != "compute":
        return _LEVEL_TITLES[roof]
    if precision != "tensor":
        return str(precision).upper()
    named = f"tensor cores, {number_format.upper().replace('_', '/')}" if number_format else "tensor cores"
    return f"{named}, sparse" if sparse else named


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
    found = [value for level in _LEVEL_TITLES for value in points[f"{level}_intensity"].to_list() if value]
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
        text = f"{_LEVEL_TITLES[row['roof']]} {fmt.bandwidth(row['peak'])}"
        labels.append(
            {"x": short(x), "y": short(x * row["peak"]), "label": text, "side": "left", "token": _FILLS[row["roof"]]}
        )
    for row in flat.iter_rows(named=True):
        name = _roof_title("compute", row["precision"], row["format"], row["sparse"])
        text = f"{name} {fmt.flop_rate(row['peak'])}"
        labels.append({"x": short(right), "y": short(row["peak"]), "label": text, "side": "right", "token": "soft"})
    return labels


def _ridge_marks(flat: pl.DataFrame, slopes: pl.DataFrame) -> list[Mark]:
    marks: list[Mark] = []
    for roof in flat.iter_rows(named=True):
        name = _roof_title("compute", roof["precision"], roof["format"], roof["sparse"])
        for slope in slopes.iter_rows(named=True):
            ridge = roof["peak"] / slope["peak"]
            marks.append(
                {
                    "x": short(ridge),
                    "y": short(roof["peak"]),
                    "name": f"ridge of {_LEVEL_TITLES[slope['roof']]} and {name}",
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
        own = [_point(row, level, right) for level in _LEVEL_TITLES if row[f"{level}_intensity"]]
        if own:
            name = f" {fmt.shorten_kernel(row['full_name'], 26)}" if row["number"] in named else ""
            max(own, key=lambda mark: float(mark["x"]))["label"] = f"{row['number']}{name}"
        marks += own
    return marks


def _point(row: dict[str, Any], level: str, right: float) -> Mark:
    intensity = row[f"{level}_intensity"]
    return {
        "number": row["number"],
        "level": _LEVEL_TITLES[level],
        "x": short(min(intensity, right)),
        "y": short(row["flops_per_s"]),
        "beyond": "yes" if intensity > right else "no",
        "last": intensity > right * _NEAR_EDGE,
        "time": short(row["total_ns"] or 0.0),
        "name": f"{row['number']} {fmt.shorten_kernel(row['full_name'])}",
        "kernel": f"grid {row['grid']} · block {row['block']}",
        "rate": fmt.flop_rate(row["flops_per_s"]),
        "intensity": f"{fmt.number(intensity)} ({_LEVEL_TITLES[level]})",
        "share": fmt.value(row[f"{level}_share"], "share"),
        "reached": f"{fmt.value(row['roof_share'], 'share')} ({row['roof']})",
        "took": fmt.value(row["total_ns"], "duration_ns"),
        "bound": row["bound"],
    }
