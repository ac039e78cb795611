"""A timeline as data for the page's script."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from warplens.analysis.timebudget import IDLE_CAUSES
from warplens.report import text as fmt
from warplens.report.jsonout import dumps
from warplens.report.theme import part_fill
from warplens.report.tracks import Marks, TimelineView

if TYPE_CHECKING:
    from warplens.profile.schema import Int64s


def packed(view: TimelineView) -> str:
    """The view as text for `timeline.js`: the base64 form of a zlib stream.

    The stream holds the length of a head (4 bytes, little-endian), the head (JSON), and columns of unsigned integers.
    A column of n numbers of w bytes is w planes of n bytes, the lowest bytes first; the head says w, which is 0 where
    all numbers are. Begins are differences within a row; the first one of a row counts from `origin_ns`.
    """
    columns: list[Int64s] = []
    levels = [_level_head(view, level, columns) for level in view.levels]
    details = view.details
    ago = np.where(details.launch_ns >= 0, view.levels[0].start_ns - details.launch_ns + 1, 0)
    columns += [np.maximum(ago, 0), details.calls_row, details.where, details.bytes]
    widths, planes = zip(*(_planes(column) for column in columns), strict=True)
    head = dumps({**_head(view), "levels": levels, "widths": widths})
    return base64.b64encode(zlib.compress(len(head).to_bytes(4, "little") + head + b"".join(planes), 6)).decode()


def _level_head(view: TimelineView, level: Marks, columns: list[Int64s]) -> dict[str, Any]:
    begins = level.start_ns - view.origin_ns
    first = np.r_[True, level.row[1:] != level.row[:-1]] if len(level.row) else np.zeros(0, dtype=np.bool_)
    step = np.where(first, begins, np.diff(begins, prepend=np.int64(0)))
    extent = level.end_ns - level.start_ns
    columns += [step, extent, level.name, level.count - 1, np.where(level.count > 1, level.busy_ns, 0), *level.parts]
    rows = max((track.first + track.rows for track in view.tracks), default=0)
    return {
        "width": level.width_ns,
        "rows": np.bincount(level.row, minlength=rows).tolist(),
        "idle": level.parts.shape[1],
    }


def _planes(column: Int64s) -> tuple[int, bytes]:
    width = (int(column.max(initial=0)).bit_length() + 7) // 8
    return width, column.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()


def _head(view: TimelineView) -> dict[str, Any]:
    def span(start_ns: int, end_ns: int) -> list[int]:
        return [start_ns - view.origin_ns, end_ns - view.origin_ns]

    fills = sorted({fill for _, fill, _ in view.names} | {part_fill("idle", cause) for cause in IDLE_CAUSES})
    counted = {step.index for step in view.window.steps}
    return {
        "origin": str(view.origin_ns),
        "end": view.end_ns - view.origin_ns,
        "window": span(view.window.start_ns, view.window.end_ns),
        "opens": span(*view.opens),
        "fills": fills,
        "names": [[label, fills.index(fill), *([full] if full else [])] for label, fill, full in view.names],
        "causes": [
            [fmt.cause_title(cause), fills.index(part_fill("idle", cause)), meaning]
            for cause, meaning in IDLE_CAUSES.items()
        ],
        "kinds": [[title, fills.index(fill)] for fill, title in _kinds(view)],
        "tracks": [
            {name: getattr(track, name) for name in ("group", "label", "kind", "first", "rows", "peek", "minor")}
            for track in view.tracks
        ],
        "steps": [[*span(step.start_ns, step.end_ns), step.index, step.index in counted] for step in view.steps],
        "moments": [
            [*span(moment.start_ns, moment.end_ns), moment.finding, _idle_row(view, moment.device)]
            for moment in view.moments
        ],
    }


def _kinds(view: TimelineView) -> list[tuple[str, str]]:
    """The colours of GPU work and what they stand for, those with the most time first."""
    finest = view.levels[0]
    first = min((track.first for track in view.tracks if track.kind == "stream"), default=0)
    last = max((track.first + track.rows for track in view.tracks if track.kind == "stream"), default=0)
    mine = (finest.row >= first) & (finest.row < last)
    spent = np.zeros(len(view.names), dtype=np.int64)
    np.add.at(spent, finest.name[mine], finest.busy_ns[mine])
    by_fill: dict[str, int] = {}
    for number in np.flatnonzero(spent).tolist():
        fill = view.names[number][1]
        by_fill[fill] = by_fill.get(fill, 0) + int(spent[number])
    titles = {"transfer": "copies and fills", "graph": "CUDA graphs"}
    return [
        (fill, titles.get(fill) or fmt.category_title(fill))
        for fill in sorted(by_fill, key=lambda fill: -by_fill[fill])
    ]


def _idle_row(view: TimelineView, device: int) -> int:
    """The row that a moment of this GPU is marked on; −1 where it has none."""
    return next((track.first for track in view.tracks if track.kind == "idle" and track.owner[0] == device), -1)
