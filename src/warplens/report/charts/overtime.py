"""Charts over time: steps, how busy each GPU is, memory in use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import altair as alt
import polars as pl

from warplens.profile.schema import Kind
from warplens.report import text as fmt
from warplens.report.charts.bars import y_pixels
from warplens.report.charts.base import (
    Chart,
    Mark,
    byte_unit,
    channels,
    embedded,
    largest,
    layered,
    legend_above,
    series_colours,
    short,
    time_unit,
    tooltip,
)
from warplens.report.theme import Ink

#: Pixels of one lane of the timeline: its label, its area, and the space to the next.
_LANE_LABEL, _LANE_AREA, _LANE_GAP = 18, 56, 12
_LANE = _LANE_LABEL + _LANE_AREA + _LANE_GAP

#: A lane's label stands clear of the line that marks the first step.
_LABEL_INDENT = 4

#: Half the width of a step's bar, in steps; few steps get slimmer bars, not blocks.
_HALF_BAR, _FEW_STEPS = 0.42, 10

#: How strongly a step that does not count is drawn.
_LEFT_OUT_OPACITY = 0.4


def steps_chart(steps: pl.DataFrame) -> Chart:
    """Wall time and GPU busy time of each step; what stands between the two is idle.

    Args:
        steps: `label`, `position` (1, 2, …), `wall_ns`, `busy_ns` (null where it is not known), `in_window`.
    """
    factor, unit = time_unit(largest(steps, "wall_ns"))
    first, last = 1, 1
    half = _HALF_BAR * min(1.0, (steps.height + 2) / (_FEW_STEPS + 2))
    marks: list[Mark] = []
    for row in steps.iter_rows(named=True):
        first, last = min(first, row["position"]), max(last, row["position"])
        marks.append(
            {
                "x0": row["position"] - half,
                "x1": row["position"] + half,
                "wall": short(row["wall_ns"] / factor),
                "busy": None if row["busy_ns"] is None else short(row["busy_ns"] / factor),
                "name": row["label"],
                "state": "in the window" if row["in_window"] else "left out of the window",
                "walltext": fmt.duration(row["wall_ns"]),
                "busytext": fmt.value(row["busy_ns"], "duration_ns"),
                "opacity": 1.0 if row["in_window"] else _LEFT_OUT_OPACITY,
            }
        )

    def draw(ink: Ink) -> alt.LayerChart:
        base = alt.Chart(embedded(marks))
        # Between two steps is none: few of them get ticks at halves, which stay without a number.
        x_axis = alt.Axis(grid=False, ticks=False, tickCount=12, labelExpr="datum.value % 1 ? '' : datum.label")
        x_scale = alt.Scale(domain=[first - 0.5, last + 0.5], nice=False)
        colours = alt.Scale(domain=["wall time", "GPU busy"], range=[ink("strong-line"), ink("gemm")])
        return layered(
            *(
                base.transform_calculate(part=f"'{part}'", zero="0")
                .mark_rect(cornerRadius=1)
                .encode(
                    **channels(
                        x=alt.X("x0:Q", title="step", scale=x_scale, axis=x_axis),
                        x2="x1:Q",
                        y=alt.Y(f"{field}:Q", title=unit, axis=alt.Axis(tickCount=5)),
                        y2="zero:Q",
                        color=alt.Color("part:N", scale=colours, legend=legend_above()),
                        opacity=alt.Opacity("opacity:Q", scale=None),
                        tooltip=tooltip("name", "state", wall="walltext", busy="busytext"),
                    )
                )
                for part, field in (("wall time", "wall"), ("GPU busy", "busy"))
            ),
            height=220,
        )

    return Chart(draw, zooms="x")


def timeline_chart(bins: pl.DataFrame, step_starts_ns: Sequence[int] = ()) -> Chart:
    """How busy each GPU is over the window: the share of every short stretch of time in which it works.

    Args:
        bins: `lane` (title), `start_ns`, `end_ns` (relative to the window's begin), `busy_share`, sorted by lane and
            time.
        step_starts_ns: begins of steps, relative to the window's begin, drawn as thin lines.
    """
    end_ns = largest(bins, "end_ns")
    factor, unit = time_unit(end_ns)
    lanes = bins.get_column("lane").unique(maintain_order=True).to_list()
    marks: list[Mark] = []
    for row in bins.iter_rows(named=True):
        base = lanes.index(row["lane"]) * _LANE + _LANE_LABEL + _LANE_AREA
        marks.append(
            {
                "lane": row["lane"],
                "x0": short(row["start_ns"] / factor),
                "x1": short(row["end_ns"] / factor),
                "y0": base,
                "y1": round(base - _LANE_AREA * row["busy_share"], 2),
                "time": f"{fmt.duration(row['start_ns'])} – {fmt.duration(row['end_ns'])}",
                "busy": fmt.share(row["busy_share"]),
            }
        )
    labels: list[Mark] = [
        {"lane": lane, "y": top + 8, "y0": top + _LANE_LABEL, "y1": top + _LANE_LABEL + _LANE_AREA}
        for top, lane in ((position * _LANE, lane) for position, lane in enumerate(lanes))
    ]
    height = max(1, len(lanes)) * _LANE

    def draw(ink: Ink) -> alt.LayerChart:
        below = y_pixels("y0", height)
        x = alt.X(
            "x0:Q",
            title=f"time since the window's start [{unit}]",
            scale=alt.Scale(domain=[0, end_ns / factor or 1], nice=False),
            axis=alt.Axis(grid=False, tickCount=8),
        )
        place = {"x": x, "x2": "x1:Q", "y": below}
        stretches = alt.Chart(embedded(marks)).transform_calculate(top=f"datum.y0 - {_LANE_AREA}")
        titles = alt.Chart(embedded(labels))
        layers = [
            titles.mark_rect(fill=ink("track")).encode(
                **channels(x=alt.value(0), x2=alt.value("width"), y=below, y2="y1:Q")
            ),
            stretches.mark_area(fill=ink("gemm"), interpolate="step-after").encode(
                **channels(x=x, y=below, y2="y1:Q", detail="lane:N")
            ),
            stretches.mark_rect(opacity=0).encode(
                **channels(**place, y2="top:Q", tooltip=tooltip("lane", time="time", busy="busy"))
            ),
            titles.mark_text(align="left", baseline="middle", fill=ink("ink")).encode(
                **channels(x=alt.value(_LABEL_INDENT), y=y_pixels("y", height), text="lane:N")
            ),
        ]
        if step_starts_ns:
            starts: list[Mark] = [{"x": short(start / factor)} for start in step_starts_ns]
            rule = alt.Chart(embedded(starts)).mark_rule(color=ink("ink"), opacity=0.35, strokeDash=[2, 3])
            layers.append(rule.encode(x=alt.X("x:Q")))
        return layered(*layers, height=height)

    return Chart(draw, zooms="x")


def memory_chart(levels: pl.DataFrame) -> Chart:
    """Memory in use over time, one line for each kind of memory.

    Args:
        levels: `memory` (title), `time_ns` (relative to the window's begin), `level_bytes`, sorted by kind and time.
    """
    factor, unit = time_unit(largest(levels, "time_ns"))
    size, size_unit = byte_unit(largest(levels, "level_bytes"))
    kinds = levels.get_column("memory").unique(maintain_order=True).to_list()
    marks: list[Mark] = [
        {
            "series": row["memory"],
            "x": short(row["time_ns"] / factor),
            "y": short(row["level_bytes"] / size),
            "time": fmt.duration(row["time_ns"]),
            "level": fmt.data_size(row["level_bytes"]),
        }
        for row in levels.iter_rows(named=True)
    ]

    def draw(ink: Ink) -> alt.LayerChart:
        base = alt.Chart(embedded(marks)).encode(
            **channels(
                x=alt.X("x:Q", title=f"time since the window's start [{unit}]", axis=alt.Axis(grid=False, tickCount=8)),
                y=alt.Y("y:Q", title=size_unit, axis=alt.Axis(tickCount=5)),
                color=series_colours(kinds, ink),
            )
        )
        line = base.mark_line(interpolate="step-after", strokeWidth=2)
        points = base.mark_point(size=60, opacity=0).encode(
            **channels(tooltip=tooltip("series", time="time", level="level"))
        )
        return layered(line, points, height=200)

    return Chart(draw, zooms="x")


_HEIGHT = 240

#: By what factor a logarithmic axis goes beyond the points.
_MARGIN = 1.2

#: Numbers on the y axis, by kind: what they are divided by, and their unit.
_UNITS: dict[Kind, tuple[tuple[float, str], ...]] = {
    "flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
    "duration_ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs")),
    "number": ((1.0, ""),),
}


def _round(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, … from low to high: where a logarithmic axis has its lines."""
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [digit * 10.0**ten for ten in tens for digit in (1, 2, 5) if low <= digit * 10.0**ten <= high]


def curve_chart(
    points: pl.DataFrame, *, x_title: str, y_title: str, kind: Kind, laws: pl.DataFrame | None = None
) -> Chart:
    """A line with dots for each series; the x axis is logarithmic to base 2, with a tick at every value that occurs.

    Args:
        points: `series` (title), `x` (above zero), `y`; sorted by x.
        kind: of `y`: `flops`, `duration_ns` or `number`.
        laws: with them the y axis is logarithmic, too, and a dashed line joins the rows of each series: `series`, `x`,
            `y`.
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
        dots = base.mark_point(filled=True, size=36, opacity=1).encode(
            **channels(tooltip=tooltip("series", **{x_title: "at", y_title: "value"}))
        )
        if not fitted:
            return layered(line, dots, height=_HEIGHT)
        law = alt.Chart(embedded(fitted)).encode(x=x, y=y, color=colour).mark_line(strokeDash=[5, 3], strokeWidth=1.5)
        return layered(line, law, dots, height=_HEIGHT)

    return Chart(draw)
