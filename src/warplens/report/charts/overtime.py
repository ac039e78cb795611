"""Charts over time (steps, busy share of each GPU, memory in use), and the aggregation of their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import altair as alt
import numpy as np
import polars as pl

from warplens.profile.schema import Int64s
from warplens.report import text as fmt
from warplens.report.charts.bars import y_pixels
from warplens.report.charts.base import (
    Chart,
    Mark,
    embedded,
    layer,
    layered,
    legend_above,
    series_colours,
    short,
    tooltip,
)
from warplens.report.theme import Ink

#: Heights in pixels of one lane of the timeline: its label, its area, and the space to the next.
_LANE_LABEL, _LANE_AREA, _LANE_GAP = 18, 56, 12
_LANE = _LANE_LABEL + _LANE_AREA + _LANE_GAP

#: Pixels between a lane's label and the line that marks the first step.
_LABEL_INDENT = 4

#: Half the width of a step's bar, in steps; with fewer steps than `_FEW_STEPS` bars are narrower.
_HALF_BAR, _FEW_STEPS = 0.42, 10

#: Opacity of a step outside of the window.
_LEFT_OUT_OPACITY = 0.4

#: Units of axes: the first one that the largest value reaches twice (times) or once (bytes).
_TIMES: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"), (1, "ns"))
_BYTES: Final = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))

#: Time bins in a timeline of one GPU: about one per two pixel columns of a wide page. Several GPUs share twice as many.
_TIMELINE_BINS = 480

#: Steps drawn one by one; more are merged by neighbours.
_MOST_STEPS = 240

#: Points of a memory line.
_MOST_LEVELS = 240


def merged_steps(steps: pl.DataFrame, most: int = _MOST_STEPS) -> pl.DataFrame:
    """The rows of `steps_chart`: single steps, or means of neighbouring steps if there are more than `most`.

    The steps are `index`, `wall_ns`, `busy_ns`, `in_window`, in order.
    """
    group = -(-max(1, steps.height) // most)
    merged = (
        steps.with_row_index("row")
        .group_by(pl.col("row") // group, maintain_order=True)
        .agg(
            pl.col("index").first().alias("first"),
            pl.col("index").last().alias("last"),
            pl.col("wall_ns", "busy_ns").mean(),
            pl.col("in_window").all(),
        )
    )
    label = (
        pl.when(pl.col("first") == pl.col("last"))
        .then(pl.format("step {}", "first"))
        .otherwise(pl.format("mean of steps {}–{}", "first", "last"))
    )
    return merged.select(label.alias("label"), pl.col("first").alias("position"), "wall_ns", "busy_ns", "in_window")


def steps_chart(steps: pl.DataFrame) -> Chart:
    """Wall time and GPU busy time of each step; the difference is idle time.

    The steps are `label`, `position` (1, 2, …), `wall_ns`, `busy_ns` (null if unknown), `in_window`.
    """
    factor, unit = _unit(steps["wall_ns"], _TIMES, least=2)
    positions = steps["position"].to_list()
    first, last = min(positions, default=1), max(positions, default=1)
    half = _HALF_BAR * min(1.0, (steps.height + 2) / (_FEW_STEPS + 2))
    marks: list[Mark] = [
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
        for row in steps.iter_rows(named=True)
    ]

    def draw(ink: Ink) -> alt.LayerChart:
        """Wall time and busy time of each step, in the colours of `ink`."""
        base = alt.Chart(embedded(marks))
        axis = alt.Axis(grid=False, ticks=False, tickCount=12, tickMinStep=1, format=",d")  # whole steps only
        scale = alt.Scale(domain=[min(first, 1) - 0.5, last + 0.5], nice=False)
        colours = alt.Scale(domain=["wall time", "GPU busy"], range=[ink("strong-line"), ink("gemm")])
        return layered(
            *(
                layer(
                    base.transform_calculate(part=f"'{part}'", zero="0"),
                    "rect",
                    {"cornerRadius": 1},
                    x=alt.X("x0:Q", title="step", scale=scale, axis=axis),
                    x2="x1:Q",
                    y=alt.Y(f"{field}:Q", title=unit, axis=alt.Axis(tickCount=5)),
                    y2="zero:Q",
                    color=alt.Color("part:N", scale=colours, legend=legend_above()),
                    opacity=alt.Opacity("opacity:Q", scale=None),
                    tooltip=tooltip("name", "state", wall="walltext", busy="busytext"),
                )
                for part, field in (("wall time", "wall"), ("GPU busy", "busy"))
            ),
            height=220,
        )

    return Chart(draw, zooms="x")


def timeline_bins(lanes: int) -> int:
    """The number of time bins of a timeline, limited so that all lanes together stay a small chart."""
    return _TIMELINE_BINS if lanes == 1 else max(60, 2 * _TIMELINE_BINS // lanes)


def busy_bins(starts: Int64s, ends: Int64s, window: tuple[int, int], lane: str, bins: int) -> pl.DataFrame:
    """The share of each of `bins` equal parts of the window that is covered by the intervals.

    Args:
        starts, ends: disjoint intervals sorted by time, shape (n,), nanoseconds.
        window: begin and end, nanoseconds.
        lane: title of the lane.
        bins: at most this many; none is shorter than 1 ns.

    Returns:
        `lane`, `start_ns`, `end_ns` (relative to the window's begin), `busy_share`.
    """
    begin, end = window
    bins = max(1, min(bins, end - begin))
    edges = begin + (np.arange(bins + 1, dtype=np.int64) * (end - begin)) // bins
    covered = np.zeros(len(edges), dtype=np.int64)  # total length of the intervals before each edge
    if len(starts):
        index = np.searchsorted(starts, edges, side="right")
        beyond = np.maximum(ends[np.maximum(index - 1, 0)] - edges, 0)
        covered = np.r_[0, np.cumsum(ends - starts)][index] - np.where(index > 0, beyond, 0)
    return pl.DataFrame(
        {
            "lane": [lane] * bins,
            "start_ns": edges[:-1] - begin,
            "end_ns": edges[1:] - begin,
            "busy_share": np.diff(covered) / np.maximum(np.diff(edges), 1),
        }
    )


def timeline_chart(bins: pl.DataFrame, step_starts_ns: Sequence[int] = ()) -> Chart:
    """The busy share of each GPU over the window, in short time bins.

    Args:
        bins: `lane` (title), `start_ns`, `end_ns` (relative to the window's begin), `busy_share`, sorted by lane and
            time.
        step_starts_ns: begins of steps, relative to the window's begin, drawn as thin lines.
    """
    factor, unit = _unit(bins["end_ns"], _TIMES, least=2)
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
        """A lane for each row of the timeline, with the begins of steps, in the colours of `ink`."""
        below = y_pixels("y0", height)
        x = alt.X(
            "x0:Q",
            title=f"time since the window's start [{unit}]",
            scale=alt.Scale(domain=[0, _largest(bins["end_ns"]) / factor or 1], nice=False),
            axis=alt.Axis(grid=False, tickCount=8),
        )
        bin_marks = alt.Chart(embedded(marks)).transform_calculate(top=f"datum.y0 - {_LANE_AREA}")
        titles = alt.Chart(embedded(labels))
        area = {"fill": ink("gemm"), "interpolate": "step-after"}
        text = {"align": "left", "baseline": "middle", "fill": ink("ink")}
        touch = tooltip("lane", time="time", busy="busy")
        layers = [
            layer(titles, "rect", {"fill": ink("track")}, x=alt.value(0), x2=alt.value("width"), y=below, y2="y1:Q"),
            layer(bin_marks, "area", area, x=x, y=below, y2="y1:Q", detail="lane:N"),
            layer(bin_marks, "rect", {"opacity": 0}, x=x, x2="x1:Q", y=below, y2="top:Q", tooltip=touch),
            layer(titles, "text", text, x=alt.value(_LABEL_INDENT), y=y_pixels("y", height), text="lane:N"),
        ]
        if step_starts_ns:
            starts: list[Mark] = [{"x": short(start / factor)} for start in step_starts_ns]
            layers.append(layer(starts, "rule", {"color": ink("ink"), "opacity": 0.35, "strokeDash": [2, 3]}, x="x:Q"))
        return layered(*layers, height=height)

    return Chart(draw, zooms="x")


def thinned_levels(levels: pl.DataFrame, most: int = _MOST_LEVELS) -> pl.DataFrame:
    """Levels over time with fewer points: each bin of points keeps its highest, lowest and last one.

    The levels are `memory` (title of the line), `time_ns`, `level_bytes`, sorted by kind and time. A line has at most
    that many bins, and at most three times as many points are kept.
    """
    index, total = pl.int_range(pl.len()).over("memory"), pl.len().over("memory")
    level = pl.col("level_bytes")
    in_bin = ["memory", "bin"]
    return (
        levels.with_columns((index * most // pl.max_horizontal(total, pl.lit(most))).alias("bin"))
        .with_columns(pl.int_range(pl.len()).over(in_bin).alias("inside"))
        .filter(
            (pl.col("inside") == level.arg_max().over(in_bin))
            | (pl.col("inside") == level.arg_min().over(in_bin))
            | (pl.col("inside") == pl.len().over(in_bin) - 1)
        )
        .select("memory", "time_ns", "level_bytes")
    )


def memory_chart(levels: pl.DataFrame) -> Chart:
    """Memory in use over time, one line for each kind of memory.

    The levels are `memory` (title), `time_ns` (relative to the window's begin), `level_bytes`, sorted by kind and time.
    """
    factor, unit = _unit(levels["time_ns"], _TIMES, least=2)
    size, size_unit = _unit(levels["level_bytes"], _BYTES, least=1)
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
            x=alt.X("x:Q", title=f"time since the window's start [{unit}]", axis=alt.Axis(grid=False, tickCount=8)),
            y=alt.Y("y:Q", title=size_unit, axis=alt.Axis(tickCount=5)),
            color=series_colours(kinds, ink),
        )
        line = layer(base, "line", {"interpolate": "step-after", "strokeWidth": 2})
        touch = tooltip("series", time="time", level="level")
        return layered(line, layer(base, "point", {"size": 60, "opacity": 0}, tooltip=touch), height=200)

    return Chart(draw, zooms="x")


def _largest(values: pl.Series) -> float:
    return float(max(values.drop_nulls().to_list(), default=0))


def _unit(values: pl.Series, units: tuple[tuple[int, str], ...], least: int) -> tuple[int, str]:
    """The unit of an axis for these values: its size and its name."""
    return next((unit for unit in units if _largest(values) >= least * unit[0]), units[-1])
