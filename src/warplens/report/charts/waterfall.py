"""A waterfall: from one total to another through the parts of their difference, each where the one before it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from warplens.report import format as fmt
from warplens.report.charts.bars import ROW_HEIGHT, labelled_bars, row_place, x_share, y_pixels
from warplens.report.charts.base import Chart, Mark, embedded, layered

if TYPE_CHECKING:
    import polars as pl

    from warplens.report.chart_theme import Ink

__all__ = ["waterfall_chart"]

#: A total, a part that adds time, one that takes some away: warm for what costs, cool for what saves, as everywhere in
#: the charts, and each with its sign in words.
_TOTAL, _MORE, _LESS = "other", "idle-2", "attention"


def waterfall_chart(
    begin: tuple[str, float], parts: pl.DataFrame, end: tuple[str, float], kind: fmt.Kind = "duration_ns"
) -> Chart:
    """Two totals, the first on top, and between them every part of their difference.

    All bars share one scale that begins at zero, so that lengths compare: with each other and with the totals.

    Args:
        begin: name and amount of the first total, not negative.
        parts: `name` and `delta` (what the part adds, or takes away), from the top; optionally `detail` for the
            tooltip. They sum to the totals' difference.
        end: name and amount of the second total.
        kind: what the amounts are.
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
            .encode(x=x_share(), y=y_pixels("y0", height), y2="y1:Q")
        )
        bars = labelled_bars(marks, ink, height)
        return layered(*bars[:2], link, *bars[2:], height=height)

    return Chart(draw)


def _texts(name: str, number: str, token: str, detail: str | None = None) -> Mark:
    return {"label": name, "number": number, "token": token, "name": name, "detail": detail}


def _part_texts(row: Mark, whole: float, kind: fmt.Kind) -> Mark:
    delta = row["delta"]
    number = _signed(fmt.value(delta, kind), delta)
    if whole:
        number = f"{_signed(fmt.share(delta / whole), delta)} · {number}"
    return _texts(row["name"], number, _MORE if delta > 0 else _LESS, row.get("detail"))


def _end_number(begin: float, end: float, kind: fmt.Kind) -> str:
    number = fmt.value(end, kind)
    return f"{_signed(fmt.share(end / begin - 1), end - begin)} · {number}" if begin else number


def _signed(text: str, quantity: float) -> str:
    """With a plus before what grew, unless it is too little for a number; a minus is there already."""
    return f"+{text}" if quantity > 0 and text[0].isdigit() else text
