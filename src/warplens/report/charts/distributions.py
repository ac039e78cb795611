"""Distributions on logarithmic axes: durations, and the bandwidth of copies by their size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import altair as alt

from warplens.report import format as fmt
from warplens.report.charts.base import Chart, Mark, embedded, layered, series_colours, short, tooltip

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from warplens.report.chart_theme import Ink

__all__ = ["bandwidth_chart", "histogram_chart"]


def _log_label(units: tuple[tuple[str, str], ...]) -> str:
    """Labels of a logarithmic axis as a Vega expression; `units` from the smallest up, as (factor, sign)."""
    *smaller, (last_factor, last_sign) = units
    branches = "".join(
        f"datum.value < {following} ? datum.value / {factor} + ' {sign}' : "
        for (factor, sign), (following, _) in zip(smaller, units[1:], strict=True)
    )
    return f"{branches}datum.value / {last_factor} + ' {last_sign}'"


_TIME_LABEL = _log_label((("1", "ns"), ("1e3", "µs"), ("1e6", "ms"), ("1e9", "s")))
_BYTES_LABEL = _log_label((("1", "B"), ("1e3", "kB"), ("1e6", "MB"), ("1e9", "GB"), ("1e12", "TB")))


def histogram_chart(bins: pl.DataFrame, x_title: str) -> Chart:
    """How durations are spread: the share of events that falls into each bin of a logarithmic axis.

    Args:
        bins: `series` (title), `from_ns`, `to_ns`, `count`, `share` (of its series), sorted by series and `from_ns`.
        x_title: what the durations are.
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
    outline = [point for name in series for point in _outline([mark for mark in marks if mark["series"] == name])]

    def draw(ink: Ink) -> alt.LayerChart:
        x = alt.X(
            "x0:Q",
            title=x_title,
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(grid=False, labelExpr=_TIME_LABEL, values=decades, labelOverlap="greedy"),
        )
        y = alt.Y("y:Q", title="% of each", axis=alt.Axis(tickCount=4), stack=None)
        shape = alt.Chart(embedded(outline)).encode(x=x, y=y, color=series_colours(series, ink))
        area = shape.mark_area(interpolate="step-after", opacity=0.22)
        line = shape.mark_line(interpolate="step-after", strokeWidth=1.5)
        touch = (
            alt.Chart(embedded(marks))
            .transform_calculate(zero="0")
            .mark_rect(opacity=0)
            .encode(x=x, x2="x1:Q", y=y, y2="zero:Q", tooltip=tooltip("series", duration="range", events="events"))
        )
        return layered(area, line, touch, height=200)

    return Chart(draw)


def _decades(values: Sequence[float]) -> list[float]:
    """The powers of ten from the one below all values to the one above; at least two of them."""
    if not values:
        return [1.0, 10.0]
    lowest = math.floor(math.log10(min(values)) + 1e-9)
    highest = math.ceil(math.log10(max(values)) - 1e-9)
    return [10.0**power for power in range(lowest, max(highest, lowest + 1) + 1)]


def _outline(marks: list[Mark]) -> list[Mark]:
    """The points of a stepped line over the bins, down to zero at both ends."""
    if not marks:
        return []
    begin = {"series": marks[0]["series"], "x0": marks[0]["x0"], "y": 0}
    points = [{key: mark[key] for key in begin} for mark in marks]
    return [begin, *points, {**begin, "x0": marks[-1]["x1"]}]


def bandwidth_chart(cells: pl.DataFrame) -> Chart:
    """Bandwidth of copies against their size, both logarithmic; a dot stands for all copies of nearly the same kind.

    Args:
        cells: `direction` (title), `bytes`, `bandwidth_bytes_per_s`, `count`.
    """
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

    sizes, speeds = (_decades([mark[field] for mark in marks]) for field in ("x", "y"))

    def draw(ink: Ink) -> alt.LayerChart:
        dots = (
            alt.Chart(embedded(marks))
            .mark_circle(opacity=0.75)
            .encode(
                x=alt.X("x:Q", title="size of a copy", scale=_log_scale(sizes), axis=_log_axis(sizes)),
                y=alt.Y("y:Q", title="bytes per second", scale=_log_scale(speeds), axis=_log_axis(speeds)),
                size=alt.Size("count:Q", scale=alt.Scale(type="log", range=[24, 240]), legend=None),
                color=series_colours(directions, ink),
                tooltip=tooltip("series", size="size", bandwidth="speed", copies="copies"),
            )
        )
        return layered(dots, height=240)

    return Chart(draw)


def _log_scale(decades: list[float]) -> alt.Scale:
    return alt.Scale(type="log", domain=[decades[0], decades[-1]])


def _log_axis(decades: list[float]) -> alt.Axis:
    return alt.Axis(labelExpr=_BYTES_LABEL, values=decades, labelOverlap="greedy")
