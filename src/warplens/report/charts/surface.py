"""Grids of cells: the speedup surface of a sweep, and what bounds each of its cells."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import altair as alt

from warplens.report import text as fmt
from warplens.report.charts.bars import x_share, y_pixels
from warplens.report.charts.base import Chart, Mark, embedded, layered, tooltip

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from warplens.report.theme import Ink


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
        axis: what the columns are.
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
    """What bounds each cell: the baseline above, the variant below.

    Args:
        cells: `row`, `column` as for `speedup_chart`; `baseline`, `variant` (regimes, or null), `baseline_detail`,
            `variant_detail` for the tooltip.
        axis: what the columns are.
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
        coloured = [
            {**{key: item for key, item in mark.items() if key != "token"}, "fill": ink(mark["token"])}
            for mark in marks
        ]
        base = alt.Chart(embedded(coloured))
        middle = alt.X("x:Q", axis=None, scale=share)
        area = base.mark_rect(cornerRadius=2).encode(
            x=x_share(),
            x2="x1:Q",
            y=y_pixels("y0", height),
            y2="y1:Q",
            color=alt.Color("fill:N", scale=None),
            opacity=alt.Opacity("opacity:Q", scale=None),
            tooltip=tooltip("name", "text", "detail"),
        )
        text = base.mark_text(baseline="middle", fontSize=11, fill=ink("ink")).encode(
            x=middle, y=y_pixels("middle", height), text="text:N"
        )
        head = (
            alt.Chart(embedded(heads))
            .mark_text(baseline="middle", fontSize=11, fill=ink("soft"))
            .encode(x=middle, y=y_pixels("y", height), text="text:N")
        )
        label = (
            alt.Chart(embedded(labels))
            .mark_text(align="left", baseline="middle", fill=ink("ink"))
            .encode(x=alt.value(0), y=y_pixels("y", height), text="text:N")
        )
        return layered(area, text, head, label, height=height)

    return Chart(draw)
