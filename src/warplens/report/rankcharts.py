"""Where the time of each rank went: one bar a rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import altair as alt
import polars as pl

from warplens.report import text as fmt
from warplens.report.charts.bars import y_pixels
from warplens.report.charts.base import Chart, Mark, channels, embedded, layered, tooltip
from warplens.report.theme import Ink

#: Ranks drawn one by one; a chart of more would be longer than a screen.
DRAWN_RANKS: Final = 64

_ROW: Final = 20
_HEAD: Final = 8

#: Column → title and colour token, in the order in which a bar is filled.
_CHARTS_PARTS: Final = (
    ("compute_ns", "compute", "gemm"),
    ("graph_ns", "in graphs", "graph"),
    ("transfer_part_ns", "exposed communication: transfer", "communication"),
    ("wait_part_ns", "exposed communication: waiting for ranks", "softmax"),
    ("copy_ns", "copies", "transfer"),
    ("idle_ns", "idle", "idle-1"),
)


def longest_window(rows: pl.DataFrame) -> int:
    """The longest window of any rank, to which all bars are drawn; at least 1."""
    return max((int(value) for value in rows["duration_ns"].to_list()), default=1) or 1


def parts_of(row: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """What one rank's GPU did in its window: title, colour token and time of each part, from the left."""
    # Waiting is counted by collective, exposure by union: of two at once, waiting can exceed the time there is.
    wait = min(row["exposed_wait_ns"] or 0, row["exposed_ns"])
    times = {**row, "wait_part_ns": wait, "transfer_part_ns": row["exposed_ns"] - wait}
    yield from ((title, token, times[column]) for column, title, token in _CHARTS_PARTS if times[column])


def rank_chart(rows: pl.DataFrame) -> Chart:
    """One bar a rank: its window, split by what its GPU did.

    Args:
        rows: `rank`, `duration_ns`, `compute_ns`, `graph_ns`, `exposed_ns`, `copy_ns`, `idle_ns`, `exposed_wait_ns`.
    """
    longest = longest_window(rows)
    marks: list[Mark] = []
    for place, row in enumerate(rows.head(DRAWN_RANKS).iter_rows(named=True)):
        reached = 0
        for title, _, time_ns in parts_of(row):
            marks.append(
                {
                    "y0": _HEAD + place * _ROW,
                    "y1": _HEAD + place * _ROW + _ROW - 5,
                    "y": _HEAD + place * _ROW + (_ROW - 5) / 2,
                    "x0": round(reached / longest, 5),
                    "x1": round((reached + time_ns) / longest, 5),
                    "name": f"rank {row['rank']}: {title}",
                    "number": f"{fmt.duration(time_ns)} · {fmt.share(time_ns / row['duration_ns'])}",
                    "series": title,
                    "rank": f"rank {row['rank']}",
                }
            )
            reached += time_ns
    count = min(rows.height, DRAWN_RANKS)
    height = 2 * _HEAD + count * _ROW
    used = [part for part in _CHARTS_PARTS if any(mark["series"] == part[1] for mark in marks)]

    def draw(ink: Ink) -> alt.LayerChart:
        scale = alt.Scale(domain=[title for _, title, _ in used], range=[ink(token) for _, _, token in used])
        bars = (
            alt.Chart(embedded(marks))
            .mark_rect(stroke=ink("surface"), strokeWidth=0.5)
            .encode(
                **channels(
                    x=alt.X("x0:Q", axis=None, scale=alt.Scale(domain=[-0.09, 1], nice=False)),
                    x2="x1:Q",
                    y=y_pixels("y0", height),
                    y2="y1:Q",
                    color=alt.Color(
                        "series:N", scale=scale, legend=alt.Legend(orient="top", title=None, columns=3, labelLimit=320)
                    ),
                    tooltip=tooltip("name", "number"),
                )
            )
        )
        labels = [{"text": mark["rank"], "y": mark["y"]} for mark in marks if mark["x0"] == 0]
        named = (
            alt.Chart(embedded(labels))
            .mark_text(align="left", baseline="middle", fill=ink("ink"))
            .encode(**channels(x=alt.value(0), y=y_pixels("y", height), text="text:N"))
        )
        return layered(bars, named, height=height)

    return Chart(draw)
