"""Charts of labelled rows of bars or cells: parts of a whole, rankings, grids. Labels above the bars suit phones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from warplens.profile.schema import Kind
from warplens.report import text as fmt
from warplens.report.charts.base import Chart, Mark, embedded, layer, layered, tooltip
from warplens.report.theme import Ink

#: Heights in pixels: the label line, the bar below it, the space to the next row, the strip of a budget.
_LABEL, _BAR, _GAP, _STRIP = 17, 9, 11, 30
ROW_HEIGHT = _LABEL + _BAR + _GAP

#: Pixels reserved for the number at the right end of a label line.
_NUMBER_ROOM = 140


def ranked_chart(rows: pl.DataFrame, *, kind: Kind = "duration_ns") -> Chart:
    """Horizontal bars from the first row down, each with its name and number (of this kind).

    The rows are `name`, `value`, `share` (0–1 or null) and `fill` (colour token, or null for the default); optionally
    `full_name` and `detail` for the tooltip.
    """
    largest = max((abs(value) for value in rows.get_column("value").to_list()), default=0) or 1
    marks: list[Mark] = []
    for position, row in enumerate(rows.iter_rows(named=True)):
        number = fmt.value(row["value"], kind)
        if row["share"] is not None:
            number = f"{fmt.share(row['share'])} · {number}"
        marks.append(
            {
                **row_place(position * ROW_HEIGHT, 0.0, row["value"] / largest),
                **_texts(row["name"], number, row["fill"] or "gemm", row.get("detail")),
                "name": row.get("full_name") or row["name"],
            }
        )
    height = len(marks) * ROW_HEIGHT
    return Chart(lambda ink: layered(*labelled_bars(marks, ink, height), height=height))


def budget_chart(parts: pl.DataFrame) -> Chart:
    """The time budget: one strip for the whole window, and below it each part at its position in the strip.

    The parts are `part` (title), `family` (`busy` or `idle`), `duration_ns`, `share` of the window and `fill` (colour
    token), all busy parts first; optionally `detail` for the tooltip.
    """
    marks: list[Mark] = []
    offset = 0.0
    top = _LABEL + _STRIP + 14
    for position, row in enumerate(parts.iter_rows(named=True)):
        number = f"{fmt.share(row['share'])} · {fmt.duration(row['duration_ns'])}"
        place = row_place(top + position * ROW_HEIGHT, offset, offset + row["share"])
        marks.append({**place, **_texts(row["part"], number, row["fill"], row.get("detail"))})
        offset += row["share"]
    headings = []
    for family in ("busy", "idle"):
        share, duration_ns = parts.filter(pl.col("family") == family).select("share", "duration_ns").sum().row(0)
        headings.append(f"{family} {fmt.share(share)} · {fmt.duration(duration_ns)}")
    height = top + len(marks) * ROW_HEIGHT

    def draw(ink: Ink) -> alt.LayerChart:
        strip = coloured([{**mark, "y0": _LABEL + 2, "y1": _LABEL + 2 + _STRIP} for mark in marks], ink)
        style = {"stroke": ink("surface"), "strokeWidth": 1}
        titles = (
            layer(
                [{"text": heading, "y": 8}],
                "text",
                {"align": align, "baseline": "middle", "fontWeight": "bold", "fill": ink("ink")},
                x=alt.value(0 if align == "left" else "width"),
                y=y_pixels("y", height),
                text="text:N",
            )
            for heading, align in zip(headings, ("left", "right"), strict=True)
        )
        segments = layer(strip, "rect", style, **_span(height), color=_RAW_FILL, tooltip=_TOOLTIP)
        return layered(segments, *titles, *labelled_bars(marks, ink, height), height=height)

    return Chart(draw)


#: Uses the colour in the `fill` field of a mark.
_RAW_FILL = alt.Color("fill:N", scale=None)
_TOOLTIP = tooltip("name", "number", "detail")


def x_share() -> alt.X:
    """The horizontal position as a share of the width."""
    return alt.X("x0:Q", axis=None, scale=alt.Scale(domain=[0, 1], nice=False))


def y_pixels(field: str, height: int) -> alt.Y:
    """The vertical position in pixels from the top."""
    return alt.Y(f"{field}:Q", axis=None, scale=alt.Scale(domain=[0, height], nice=False, zero=False, reverse=True))


def _span(height: int) -> dict[str, Any]:
    """Encodings of bars that begin and end at a share of the width."""
    return {"x": x_share(), "x2": "x1:Q", "y": y_pixels("y0", height), "y2": "y1:Q"}


def row_place(top: float, begin: float, end: float) -> Mark:
    """Position of a row's label and bar: y in pixels, x from 0 to 1."""
    bar = top + _LABEL
    return {"y": top + 8, "y0": bar, "y1": bar + _BAR, "x0": round(begin, 5), "x1": round(end, 5)}


def coloured(marks: list[Mark], ink: Ink) -> list[Mark]:
    """The marks with `token` replaced by its colour, `fill`."""
    return [
        {**{key: item for key, item in mark.items() if key != "token"}, "fill": ink(mark["token"])} for mark in marks
    ]


def labelled_bars(marks: list[Mark], ink: Ink, height: int) -> list[alt.Chart]:
    """Layers of bars with a label and a number above each: track, bar, label, number, and an area for the tooltip."""
    base = alt.Chart(embedded(coloured(marks, ink)))
    whole_width = {"x": alt.value(0), "x2": alt.value("width"), "y2": "y1:Q"}
    room = alt.ExprRef(f"max(60, width - {_NUMBER_ROOM})")
    label = {"align": "left", "baseline": "middle", "limit": room, "fill": ink("ink")}
    number = {"align": "right", "baseline": "middle", "fill": ink("soft")}
    # An invisible area shows the tooltip for the whole row, not only for the thin bar.
    touched = base.transform_calculate(touch=f"datum.y0 - {_LABEL}")
    return [
        layer(base, "rect", {"fill": ink("track"), "cornerRadius": 2}, **whole_width, y=y_pixels("y0", height)),
        layer(base, "rect", {"cornerRadius": 2}, **_span(height), color=_RAW_FILL),
        layer(base, "text", label, x=alt.value(0), y=y_pixels("y", height), text="label:N"),
        layer(base, "text", number, x=alt.value("width"), y=y_pixels("y", height), text="number:N"),
        layer(touched, "rect", {"opacity": 0}, **whole_width, y=y_pixels("touch", height), tooltip=_TOOLTIP),
    ]


#: Colour tokens of a total, of an increase (warm) and of a decrease (cool), as in all charts. The numbers have signs.
_TOTAL, _MORE, _LESS = "other", "idle-2", "attention"


def waterfall_chart(
    begin: tuple[str, float], parts: pl.DataFrame, end: tuple[str, float], kind: Kind = "duration_ns"
) -> Chart:
    """Two totals, the first on top, and between them every part of their difference.

    All bars share one scale that begins at zero, so their lengths are comparable.

    Args:
        begin: name and amount of the first total, not negative.
        parts: `name` and `delta` (signed change), from the top; optionally `detail` for the tooltip. The deltas sum to
            the difference of the totals.
        end: name and amount of the second total.
        kind: of the amounts.
    """
    first, last = float(begin[1]), float(end[1])
    reached, edges = first, [(0.0, first)]
    texts = [_texts(begin[0], fmt.value(begin[1], kind), _TOTAL)]
    for row in parts.iter_rows(named=True):
        delta = row["delta"]
        edges.append((reached, reached + delta))
        reached += delta
        number = _signed(fmt.value(delta, kind), delta)
        if first:
            number = f"{_signed(fmt.share(delta / first), delta)} · {number}"
        texts.append(_texts(row["name"], number, _MORE if delta > 0 else _LESS, row.get("detail")))
    edges.append((0.0, last))
    number = fmt.value(end[1], kind)
    if first:
        number = f"{_signed(fmt.share(last / first - 1), last - first)} · {number}"
    texts.append(_texts(end[0], number, _TOTAL))
    low = min(0.0, *(min(edge) for edge in edges))
    span = max(max(edge) for edge in edges) - low or 1.0
    marks: list[Mark] = [
        {**row_place(position * ROW_HEIGHT, (min(edge) - low) / span, (max(edge) - low) / span), **text}
        for position, (edge, text) in enumerate(zip(edges, texts, strict=True))
    ]
    # Lines from the end of each bar down to the begin of the next one.
    links: list[Mark] = [
        {"x0": round((edge[1] - low) / span, 5), "y0": mark["y1"], "y1": below["y0"]}
        for edge, mark, below in zip(edges, marks, marks[1:], strict=False)
    ]
    height = len(marks) * ROW_HEIGHT

    def draw(ink: Ink) -> alt.LayerChart:
        dashed = {"stroke": ink("strong-line"), "strokeDash": [2, 2]}
        link = layer(links, "rule", dashed, x=x_share(), y=y_pixels("y0", height), y2="y1:Q")
        bars = labelled_bars(marks, ink, height)
        return layered(*bars[:2], link, *bars[2:], height=height)

    return Chart(draw)


def _texts(name: str, number: str, token: str, detail: str | None = None) -> Mark:
    return {"label": name, "number": number, "token": token, "name": name, "detail": detail}


def _signed(text: str, quantity: float) -> str:
    """The text with a plus if the quantity is positive, unless it begins with `<`; a minus is there already."""
    return f"+{text}" if quantity > 0 and text[0].isdigit() else text


#: Heights of a stacked chart in pixels: a row, and the margins above the first and below the last.
_STACKED_ROW, _EDGE = 20, 8


def stacked_chart(
    rows: Sequence[tuple[str, Sequence[tuple[str, int, str]]]], fills: Mapping[str, str], whole: int
) -> Chart:
    """One bar per row, split into parts from the left, with a legend above.

    Args:
        rows: label, and the title, length and formatted number of each part.
        fills: colour tokens by title, in the order of the legend.
        whole: the length shown as the full width of the chart.
    """
    marks: list[Mark] = []
    labels: list[Mark] = []
    for position, (label, parts) in enumerate(rows):
        top, filled = _EDGE + position * _STACKED_ROW, 0
        if parts:
            labels.append({"text": label, "y": top + (_STACKED_ROW - 5) / 2})
        for title, length, number in parts:
            begin, filled = filled, filled + length
            marks.append(
                {
                    "y0": top,
                    "y1": top + _STACKED_ROW - 5,
                    "x0": round(begin / whole, 5),
                    "x1": round(filled / whole, 5),
                    "name": f"{label}: {title}",
                    "number": number,
                    "series": title,
                }
            )
    height = 2 * _EDGE + len(rows) * _STACKED_ROW
    used = [title for title in fills if any(mark["series"] == title for mark in marks)]

    def draw(ink: Ink) -> alt.LayerChart:
        scale = alt.Scale(domain=used, range=[ink(fills[title]) for title in used])
        legend = alt.Legend(orient="top", title=None, columns=3, labelLimit=320)
        bars = layer(
            marks,
            "rect",
            {"stroke": ink("surface"), "strokeWidth": 0.5},
            x=alt.X("x0:Q", axis=None, scale=alt.Scale(domain=[-0.09, 1], nice=False)),
            x2="x1:Q",
            y=y_pixels("y0", height),
            y2="y1:Q",
            color=alt.Color("series:N", scale=scale, legend=legend),
            tooltip=tooltip("name", "number"),
        )
        style = {"align": "left", "baseline": "middle", "fill": ink("ink")}
        row_labels = layer(labels, "text", style, x=alt.value(0), y=y_pixels("y", height), text="text:N")
        return layered(bars, row_labels, height=height)

    return Chart(draw)


#: Rows of cells that are drawn; further ones are only in the table.
MOST_ROWS: Final = 24

#: Heights in pixels: the line with the values of the axis, the cells, and a row of them with its label and spacing.
_HEAD, _CELL = 20, 30
_CELL_ROW = _LABEL + _CELL + 8

#: Space between cells, as a share of the width.
_BETWEEN: Final = 0.004

#: Largest and smallest opacity of a cell; with the largest, text keeps its contrast in both themes.
_STRONGEST: Final = 0.55
_WEAKEST: Final = 0.06

#: The speed-up (and its inverse) at which the colour reaches its full strength.
_FULL: Final = 3.0

#: Colour token of each regime: warm for waiting, cool for work.
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
    """The speed-up of the variant at each point: cool colours if it is faster, warm ones if it is slower.

    The cells are `row` (text of the other axes), `column` (value of the axis as text), `speedup` (null if unknown),
    `verdict` (or null), `detail` for the tooltip; sorted by row, then by column.
    """

    def marks(row: Mapping[str, Any], place: Mark) -> Iterator[Mark]:
        speedup, undecided = row["speedup"], row["verdict"] in ("undecided", None)
        strength = min(abs(math.log(speedup)) / math.log(_FULL), 1.0) if speedup else 0.0
        text = f"{fmt.number(speedup)}×" if speedup else fmt.MISSING
        yield {
            **place,
            "token": "track" if not speedup else "gemm" if speedup >= 1 else "idle-2",
            "opacity": round(_WEAKEST + (_STRONGEST - _WEAKEST) * strength, 3) if speedup else 1.0,
            "text": f"{text} ?" if undecided and speedup else text,
            "detail": row["detail"],
        }

    return _grid(cells, axis, marks)


def regime_chart(cells: pl.DataFrame, axis: str) -> Chart:
    """The limiting regime of each cell: baseline in the upper half, variant in the lower half.

    The cells are `row`, `column` as for `speedup_chart`; `baseline`, `variant` (regimes, or null), `baseline_detail`,
    `variant_detail` for the tooltip.
    """

    def marks(row: Mapping[str, Any], place: Mark) -> Iterator[Mark]:
        top, middle, bottom = place["y0"], (place["y0"] + place["y1"]) / 2, place["y1"]
        for side, begin, end in (("baseline", top, middle), ("variant", middle, bottom)):
            regime = row[side]
            yield {
                **place,
                "y0": begin,
                "y1": end,
                "middle": (begin + end) / 2,
                "token": REGIME_FILLS.get(regime, "track"),
                "opacity": 0.4 if regime in REGIME_FILLS and regime != "unknown" else 0.15,
                "text": _SHORT.get(regime, fmt.MISSING),
                "detail": row[f"{side}_detail"],
            }

    return _grid(cells, axis, marks)


def _grid(cells: pl.DataFrame, axis: str, marks_of: Callable[[Mapping[str, Any], Mark], Iterable[Mark]]) -> Chart:
    """A grid of cells by `row` and `column`, in order of appearance; at most `MOST_ROWS` rows."""
    rows = cells.get_column("row").unique(maintain_order=True).to_list()[:MOST_ROWS]
    columns = cells.get_column("column").unique(maintain_order=True).to_list()
    height, width = _HEAD + len(rows) * _CELL_ROW, 1 / max(len(columns), 1)
    marks: list[Mark] = []
    for row in cells.filter(pl.col("row").is_in(rows)).iter_rows(named=True):
        left, top = columns.index(row["column"]) * width, _HEAD + rows.index(row["row"]) * _CELL_ROW + _LABEL
        place: Mark = {
            "x0": round(left + _BETWEEN, 5),
            "x1": round(left + width - _BETWEEN, 5),
            "x": round(left + width / 2, 5),
            "y0": top,
            "y1": top + _CELL,
            "middle": top + _CELL / 2,
            "name": f"{row['row']}, {row['column']}" if row["row"] else row["column"],
        }
        marks += marks_of(row, place)
    headings: list[Mark] = [
        {"text": f"{axis} {column}" if place == 0 else column, "x": round((place + 0.5) * width, 5), "y": 8}
        for place, column in enumerate(columns)
    ]
    labels: list[Mark] = [{"text": row, "y": _HEAD + place * _CELL_ROW + 8} for place, row in enumerate(rows)]

    def draw(ink: Ink) -> alt.LayerChart:
        base = alt.Chart(embedded(coloured(marks, ink)))
        middle = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 1], nice=False))
        centred = {"baseline": "middle", "fontSize": 11}
        of_row = {"align": "left", "baseline": "middle", "fill": ink("ink")}
        shade = {"color": _RAW_FILL, "opacity": alt.Opacity("opacity:Q", scale=None)}
        touch = tooltip("name", "text", "detail")
        return layered(
            layer(base, "rect", {"cornerRadius": 2}, **_span(height), **shade, tooltip=touch),
            layer(base, "text", {**centred, "fill": ink("ink")}, x=middle, y=y_pixels("middle", height), text="text:N"),
            layer(headings, "text", {**centred, "fill": ink("soft")}, x=middle, y=y_pixels("y", height), text="text:N"),
            layer(labels, "text", of_row, x=alt.value(0), y=y_pixels("y", height), text="text:N"),
            height=height,
        )

    return Chart(draw)
