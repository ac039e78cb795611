"""Bars whose label and number stand on a line above them: parts of a whole, rankings. They read well on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import altair as alt
import polars as pl

from warplens.report import format as fmt
from warplens.report.charts.base import Chart, Mark, embedded, layered, tooltip

if TYPE_CHECKING:
    from warplens.report.chart_theme import Ink

__all__ = ["ROW_HEIGHT", "budget_chart", "labelled_bars", "ranked_chart", "row_place", "x_share", "y_pixels"]

#: Heights in pixels: a line of text, the bar under it, the space to the next row, the strip of a budget.
_LABEL, _BAR, _GAP, _STRIP = 17, 9, 11, 30
ROW_HEIGHT = _LABEL + _BAR + _GAP

#: Pixels that a label leaves to the number at the end of its line.
_NUMBER_ROOM = 140


def ranked_chart(rows: pl.DataFrame, *, kind: fmt.Kind = "duration_ns") -> Chart:
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
            alt.Chart(embedded(_coloured(strip, ink)))
            .mark_rect(stroke=ink("surface"), strokeWidth=1)
            .encode(x=x_share(), x2="x1:Q", y=y_pixels("y0", height), y2="y1:Q", color=_RAW_FILL, tooltip=_TOOLTIP)
        )
        titles = [
            alt.Chart(embedded([{"text": text, "y": 8}]))
            .mark_text(align=align, baseline="middle", fontWeight="bold", fill=ink("ink"))
            .encode(x=alt.value(0 if align == "left" else "width"), y=y_pixels("y", height), text="text:N")
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


def _coloured(marks: list[Mark], ink: Ink) -> list[Mark]:
    return [
        {**{key: item for key, item in mark.items() if key != "token"}, "fill": ink(mark["token"])} for mark in marks
    ]


def labelled_bars(marks: list[Mark], ink: Ink, height: int) -> list[alt.Chart]:
    """Layers of bars with a label and a number above each: track, bar, label, number, and what answers a touch."""
    base = alt.Chart(embedded(_coloured(marks, ink)))
    whole_width = {"x": alt.value(0), "x2": alt.value("width")}
    track = base.mark_rect(fill=ink("track"), cornerRadius=2).encode(**whole_width, y=y_pixels("y0", height), y2="y1:Q")
    bar = base.mark_rect(cornerRadius=2).encode(
        x=x_share(), x2="x1:Q", y=y_pixels("y0", height), y2="y1:Q", color=_RAW_FILL
    )
    room = alt.ExprRef(f"max(60, width - {_NUMBER_ROOM})")
    label = base.mark_text(align="left", baseline="middle", limit=room, fill=ink("ink")).encode(
        x=alt.value(0), y=y_pixels("y", height), text="label:N"
    )
    number = base.mark_text(align="right", baseline="middle", fill=ink("soft")).encode(
        x=alt.value("width"), y=y_pixels("y", height), text="number:N"
    )
    # An invisible area makes the whole row answer the pointer and the finger, not the thin bar alone.
    touch = (
        base.transform_calculate(touch=f"datum.y0 - {_LABEL}")
        .mark_rect(opacity=0)
        .encode(**whole_width, y=y_pixels("touch", height), y2="y1:Q", tooltip=_TOOLTIP)
    )
    return [track, bar, label, number, touch]
