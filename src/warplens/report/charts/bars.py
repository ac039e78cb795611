"""Bars whose label and number stand on a line above them: parts of a whole, rankings. They read well on a phone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import altair as alt
import polars as pl

from warplens.profile.schema import Kind
from warplens.report import text as fmt
from warplens.report.charts.base import Chart, Mark, channels, embedded, layered, series_colours, short, tooltip
from warplens.report.theme import Ink

#: Heights in pixels: a line of text, the bar under it, the space to the next row, the strip of a budget.
_LABEL, _BAR, _GAP, _STRIP = 17, 9, 11, 30
ROW_HEIGHT = _LABEL + _BAR + _GAP

#: Pixels that a label leaves to the number at the end of its line.
_NUMBER_ROOM = 140


def ranked_chart(rows: pl.DataFrame, *, kind: Kind = "duration_ns") -> Chart:
    """Horizontal bars from the first row down, each with its name and number.

    Args:
        rows: `name`, `value`, `share` (0–1 or null) and `fill` (colour token, or null for the default); optionally
            `full_name` and `detail` for the tooltip.
        kind: what `value` is.
    """
    top = max((abs(value) for value in rows.get_column("value").to_list()), default=0) or 1
    marks: list[Mark] = []
    for position, row in enumerate(rows.iter_rows(named=True)):
        number = fmt.value(row["value"], kind)
        if row["share"] is not None:
            number = f"{fmt.share(row['share'])} · {number}"
        marks.append(
            {
                **row_place(position * ROW_HEIGHT, 0.0, row["value"] / top),
                "label": row["name"],
                "number": number,
                "token": row["fill"] or "gemm",
                "name": row.get("full_name") or row["name"],
                "detail": row.get("detail"),
            }
        )
    height = len(marks) * ROW_HEIGHT
    return Chart(lambda ink: layered(*labelled_bars(marks, ink, height), height=height))


def budget_chart(parts: pl.DataFrame) -> Chart:
    """The time budget: one strip that is the whole window, and below it each part where it stands in the strip.

    Args:
        parts: `part` (title), `family` (`busy` or `idle`), `duration_ns`, `share` of the window, `fill` (colour token),
            all busy parts first; optionally `detail` for the tooltip.
    """
    marks: list[Mark] = []
    reached = 0.0
    top = _LABEL + _STRIP + 14
    for position, row in enumerate(parts.iter_rows(named=True)):
        marks.append(
            {
                **row_place(top + position * ROW_HEIGHT, reached, reached + row["share"]),
                "label": row["part"],
                "number": f"{fmt.share(row['share'])} · {fmt.duration(row['duration_ns'])}",
                "token": row["fill"],
                "name": row["part"],
                "detail": row.get("detail"),
            }
        )
        reached += row["share"]
    heads = [_family_head(parts, "busy", "busy", "left"), _family_head(parts, "idle", "idle", "right")]
    height = top + len(marks) * ROW_HEIGHT

    def draw(ink: Ink) -> alt.LayerChart:
        strip = [{**mark, "y0": _LABEL + 2, "y1": _LABEL + 2 + _STRIP} for mark in marks]
        segments = (
            alt.Chart(embedded(coloured(strip, ink)))
            .mark_rect(stroke=ink("surface"), strokeWidth=1)
            .encode(
                **channels(
                    x=x_share(), x2="x1:Q", y=y_pixels("y0", height), y2="y1:Q", color=_RAW_FILL, tooltip=_TOOLTIP
                )
            )
        )
        titles = [
            alt.Chart(embedded([{"text": text, "y": 8}]))
            .mark_text(align=align, baseline="middle", fontWeight="bold", fill=ink("ink"))
            .encode(**channels(x=alt.value(0 if align == "left" else "width"), y=y_pixels("y", height), text="text:N"))
            for text, align in heads
        ]
        return layered(segments, *titles, *labelled_bars(marks, ink, height), height=height)

    return Chart(draw)


def _family_head(
    parts: pl.DataFrame, family: str, title: str, align: Literal["left", "right"]
) -> tuple[str, Literal["left", "right"]]:
    share, duration_ns = parts.filter(pl.col("family") == family).select("share", "duration_ns").sum().row(0)
    return f"{title} {fmt.share(share)} · {fmt.duration(duration_ns)}", align


_RAW_FILL = alt.Color("fill:N", scale=None)
_TOOLTIP = tooltip("name", "number", "detail")


def x_share() -> alt.X:
    """The horizontal position as a share of the width."""
    return alt.X("x0:Q", axis=None, scale=alt.Scale(domain=[0, 1], nice=False))


def y_pixels(field: str, height: int) -> alt.Y:
    """The vertical position in pixels from the top."""
    return alt.Y(f"{field}:Q", axis=None, scale=alt.Scale(domain=[0, height], nice=False, zero=False, reverse=True))


def row_place(top: float, begin: float, end: float) -> Mark:
    """Where a row's label and bar stand; x from 0 to 1."""
    bar = top + _LABEL
    return {"y": top + 8, "y0": bar, "y1": bar + _BAR, "x0": round(begin, 5), "x1": round(end, 5)}


def coloured(marks: list[Mark], ink: Ink) -> list[Mark]:
    """Marks with the colour of their `token` as `fill`."""
    return [
        {**{key: item for key, item in mark.items() if key != "token"}, "fill": ink(mark["token"])} for mark in marks
    ]


def labelled_bars(marks: list[Mark], ink: Ink, height: int) -> list[alt.Chart]:
    """Layers of bars with a label and a number above each: track, bar, label, number, and what answers a touch."""
    base = alt.Chart(embedded(coloured(marks, ink)))
    whole_width = {"x": alt.value(0), "x2": alt.value("width")}
    track = base.mark_rect(fill=ink("track"), cornerRadius=2).encode(
        **channels(**whole_width, y=y_pixels("y0", height), y2="y1:Q")
    )
    bar = base.mark_rect(cornerRadius=2).encode(
        **channels(x=x_share(), x2="x1:Q", y=y_pixels("y0", height), y2="y1:Q", color=_RAW_FILL)
    )
    room = alt.ExprRef(f"max(60, width - {_NUMBER_ROOM})")
    label = base.mark_text(align="left", baseline="middle", limit=room, fill=ink("ink")).encode(
        **channels(x=alt.value(0), y=y_pixels("y", height), text="label:N")
    )
    number = base.mark_text(align="right", baseline="middle", fill=ink("soft")).encode(
        **channels(x=alt.value("width"), y=y_pixels("y", height), text="number:N")
    )
    # An invisible area makes the whole row answer the pointer and the finger, not the thin bar alone.
    touch = (
        base.transform_calculate(touch=f"datum.y0 - {_LABEL}")
        .mark_rect(opacity=0)
        .encode(**channels(**whole_width, y=y_pixels("touch", height), y2="y1:Q", tooltip=_TOOLTIP))
    )
    return [track, bar, label, number, touch]


#: A total, a part that adds time, one that takes some away: warm for what costs, cool for what saves, as everywhere in
#: the charts, and each with its sign in words.
_TOTAL, _MORE, _LESS = "other", "idle-2", "attention"


def waterfall_chart(
    begin: tuple[str, float], parts: pl.DataFrame, end: tuple[str, float], kind: Kind = "duration_ns"
) -> Chart:
    """Two totals, the first on top, and between them every part of their difference.

    All bars share one scale that begins at zero, so that lengths compare: with each other and with the totals.

    Args:
        begin: name and amount of the first total, not negative.
        parts: `name` and `delta` (what the part adds, or takes away), from the top; optionally `detail` for the
            tooltip. They sum to the totals' difference.
        end: name and amount of the second total.
    """
    rows = parts.to_dicts()
    reached, edges = float(begin[1]), [(0.0, float(begin[1]))]
    for row in rows:
        edges.append((reached, reached + row["delta"]))
        reached += row["delta"]
    edges.append((0.0, float(end[1])))
    low = min(0.0, *(min(edge) for edge in edges))
    span = max(max(edge) for edge in edges) - low or 1.0
    texts = [
        _texts(begin[0], fmt.value(begin[1], kind), _TOTAL),
        *(_part_texts(row, begin[1], kind) for row in rows),
        _texts(end[0], _end_number(begin[1], end[1], kind), _TOTAL),
    ]
    marks: list[Mark] = [
        {**row_place(place * ROW_HEIGHT, (min(edge) - low) / span, (max(edge) - low) / span), **text}
        for place, (edge, text) in enumerate(zip(edges, texts, strict=True))
    ]
    # From the end of each bar down to the begin of the next one.
    links: list[Mark] = [
        {"x0": round((edge[1] - low) / span, 5), "y0": mark["y1"], "y1": below["y0"]}
        for edge, mark, below in zip(edges, marks, marks[1:], strict=False)
    ]
    height = len(marks) * ROW_HEIGHT

    def draw(ink: Ink) -> alt.LayerChart:
        link = (
            alt.Chart(embedded(links))
            .mark_rule(stroke=ink("strong-line"), strokeDash=[2, 2])
            .encode(**channels(x=x_share(), y=y_pixels("y0", height), y2="y1:Q"))
        )
        bars = labelled_bars(marks, ink, height)
        return layered(*bars[:2], link, *bars[2:], height=height)

    return Chart(draw)


def _texts(name: str, number: str, token: str, detail: str | None = None) -> Mark:
    return {"label": name, "number": number, "token": token, "name": name, "detail": detail}


def _part_texts(row: Mark, whole: float, kind: Kind) -> Mark:
    delta = row["delta"]
    number = _signed(fmt.value(delta, kind), delta)
    if whole:
        number = f"{_signed(fmt.share(delta / whole), delta)} · {number}"
    return _texts(row["name"], number, _MORE if delta > 0 else _LESS, row.get("detail"))


def _end_number(begin: float, end: float, kind: Kind) -> str:
    number = fmt.value(end, kind)
    return f"{_signed(fmt.share(end / begin - 1), end - begin)} · {number}" if begin else number


def _signed(text: str, quantity: float) -> str:
    """With a plus before what grew, unless it is too little for a number; a minus is there already."""
    return f"+{text}" if quantity > 0 and text[0].isdigit() else text


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
            .encode(
                **channels(
                    x=x, x2="x1:Q", y=y, y2="zero:Q", tooltip=tooltip("series", duration="range", events="events")
                )
            )
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
                **channels(
                    x=alt.X("x:Q", title="size of a copy", scale=_log_scale(sizes), axis=_log_axis(sizes)),
                    y=alt.Y("y:Q", title="bytes per second", scale=_log_scale(speeds), axis=_log_axis(speeds)),
                    size=alt.Size("count:Q", scale=alt.Scale(type="log", range=[24, 240]), legend=None),
                    color=series_colours(directions, ink),
                    tooltip=tooltip("series", size="size", bandwidth="speed", copies="copies"),
                )
            )
        )
        return layered(dots, height=240)

    return Chart(draw)


def _log_scale(decades: list[float]) -> alt.Scale:
    return alt.Scale(type="log", domain=[decades[0], decades[-1]])


def _log_axis(decades: list[float]) -> alt.Axis:
    return alt.Axis(labelExpr=_BYTES_LABEL, values=decades, labelOverlap="greedy")
