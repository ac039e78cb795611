"""Curves of several series over a logarithmic axis: rates over sequence length, speed-ups over batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from warplens.report import format as fmt
from warplens.report.charts.base import Chart, Mark, embedded, layered, series_colours, short, tooltip

if TYPE_CHECKING:
    import polars as pl

    from warplens.report.chart_theme import Ink

__all__ = ["curve_chart"]

_HEIGHT = 240

#: Numbers on the y axis, by kind: what they are divided by, and their unit.
_UNITS: dict[fmt.Kind, tuple[tuple[float, str], ...]] = {
    "flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
    "duration_ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs")),
    "number": ((1.0, ""),),
}


def curve_chart(points: pl.DataFrame, *, x_title: str, y_title: str, kind: fmt.Kind) -> Chart:
    """A line with dots for each series; the x axis is logarithmic to base 2, with a tick at every value that occurs.

    Args:
        points: `series` (title), `x` (above zero), `y`; sorted by x.
        x_title, y_title: what they are.
        kind: of `y`: `flops`, `duration_ns` or `number`.
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

    def draw(ink: Ink) -> alt.LayerChart:
        x = alt.X(
            "x:Q",
            title=x_title,
            scale=alt.Scale(type="log", base=2, nice=False),
            axis=alt.Axis(grid=False, values=ticks, format=",d", labelOverlap="greedy"),
        )
        y = alt.Y("y:Q", title=f"{y_title}, {unit}" if unit else y_title, axis=alt.Axis(tickCount=4))
        base = alt.Chart(embedded(marks)).encode(x=x, y=y, color=series_colours(series, ink))
        line = base.mark_line(strokeWidth=1.5)
        dots = base.mark_point(filled=True, size=36, opacity=1).encode(
            tooltip=tooltip("series", **{x_title: "at", y_title: "value"})
        )
        return layered(line, dots, height=_HEIGHT)

    return Chart(draw)
