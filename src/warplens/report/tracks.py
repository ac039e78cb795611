"""The data of a timeline: tracks, and marks in levels of detail, packed for the script of the page."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from warplens.analysis.timebudget import IDLE_CAUSES
from warplens.report import text as fmt
from warplens.report.jsonout import dumps
from warplens.report.theme import part_fill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.window import Step, Window
    from warplens.diagnosis.moments import Moment
    from warplens.profile.schema import Bools, Int64s


@dataclass(frozen=True)
class Track:
    """The events of one stream, or of one kind on one thread, in one or more rows."""

    group: str  #: the GPU or process
    label: str  #: its name within the group
    kind: str  #: `idle`, `stream`, `ranges`, `python`, `calls`, `os` or `profiler`
    owner: tuple[int, int]  #: device and stream, or process and thread; the stream of an idle track is −1
    first: int  #: index of its first row among all rows; the outermost nesting level is first
    rows: int
    peek: int  #: rows shown until it is unfolded
    minor: bool = False  #: whether it is shown only with all tracks of its group


@dataclass(frozen=True, eq=False)
class Marks:
    """The marks of one level of detail, sorted by row and time. All arrays have one entry per mark."""

    width_ns: int  #: shorter marks in one cell of this width are merged; 0 if none are
    row: Int64s  #: row that the mark is drawn on
    #: start_ns, end_ns: from the first start to the last end of its events, in the profile's clock
    start_ns: Int64s
    end_ns: Int64s
    name: Int64s  #: index of the name of its longest event
    longest_ns: Int64s  #: duration of that event
    count: Int64s  #: number of its events
    busy_ns: Int64s  #: their summed duration
    parts: Int64s  #: shape (causes, idle marks): idle time by cause of the marks of idle rows, which come first

    def merged(self, width_ns: int, kept: Bools | None = None) -> Marks:
        """A coarser level: neighbours in a row that are shorter than `width_ns` and begin in one cell become one mark.

        Marks that are `kept` are not merged, however short.
        """
        short = self.end_ns - self.start_ns < width_ns
        if kept is not None:
            short &= ~kept
        cell = self.start_ns // max(width_ns, 1)
        joins = short[1:] & short[:-1] & (self.row[1:] == self.row[:-1]) & (cell[1:] == cell[:-1])
        begins = np.flatnonzero(np.r_[np.ones(min(len(self.row), 1), dtype=np.bool_), ~joins])
        if len(begins) == len(self.row):
            return self
        names = int(self.name.max(initial=0)) + 1
        longest = np.maximum.reduceat(self.longest_ns * names + self.name, begins)
        idle_marks = self.parts.shape[1]
        idle_begins = begins[begins < idle_marks]
        return Marks(
            width_ns,
            self.row[begins],
            self.start_ns[begins],
            np.maximum.reduceat(self.end_ns, begins),
            longest % names,
            longest // names,
            np.add.reduceat(self.count, begins),
            np.add.reduceat(self.busy_ns, begins),
            np.add.reduceat(self.parts, idle_begins, axis=1) if len(idle_begins) else self.parts,
        )

    @classmethod
    def joined(cls, marks: Sequence[Marks], parts: Int64s) -> Marks:
        """Several sets of marks concatenated, with these idle parts."""
        columns = {name: np.concatenate([getattr(part, name) for part in marks]) for name in _MARK_COLUMNS}
        return cls(max(part.width_ns for part in marks), **columns, parts=parts)

    def taken(self, order: Int64s) -> Marks:
        """The marks reordered; the order of idle marks must not change, since `parts` is kept."""
        return replace(self, **{name: getattr(self, name)[order] for name in _MARK_COLUMNS})


#: The arrays of `Marks` with one entry per mark.
_MARK_COLUMNS: Final = ("row", "start_ns", "end_ns", "name", "longest_ns", "count", "busy_ns")


@dataclass(frozen=True, eq=False)
class Details:
    """Details of the marks of the finest level that are single GPU work items; 0 (launch: −1) for all others."""

    launch_ns: Int64s  #: begin of the launching call, in the profile's clock; −1 if it is not known
    calls_row: Int64s  #: row of the calls of the launching thread, plus 1
    where: Int64s  #: index of the name of the innermost range around the launch, plus 1
    bytes: Int64s  #: bytes moved or filled


@dataclass(frozen=True)
class Thinned:
    """Counts of events that are not drawn singly on the finest level."""

    width_ns: int  #: events shorter than this may be part of a block; 0 if every event is a mark of its own
    events: int  #: all events
    in_blocks: int  #: events in blocks
    blocks: int  #: number of blocks
    threads: int  #: host threads without tracks


@dataclass(frozen=True, eq=False)
class TimelineView:
    """A profile as tracks of marks."""

    #: origin_ns, end_ns: the interval of the tracks, in the profile's clock. Links count from its begin.
    origin_ns: int
    end_ns: int
    window: Window  #: the analysed part; only there idle time has causes
    opens: tuple[int, int]  #: the interval to show first: a step of median duration, else the window
    opens_step: Step | None
    names: tuple[tuple[str, str, str | None], ...]  #: label, colour token and full name (if it differs) of each name
    tracks: tuple[Track, ...]  #: in the order of display; idle tracks have the first rows
    levels: tuple[Marks, ...]  #: from the finest to the coarsest
    details: Details  #: of the finest level's marks
    moments: tuple[Moment, ...]  #: the worst instances of the findings
    thinned: Thinned
    steps: tuple[Step, ...]

    def link(self, start_ns: int, end_ns: int) -> str:
        """The span of a link: nanoseconds since `origin_ns`, `START-END`."""
        return f"{start_ns - self.origin_ns}-{end_ns - self.origin_ns}"


def packed(view: TimelineView) -> str:
    """The view as text for `timeline.js`: a zlib stream in Base64.

    The stream contains the length of the head (4 bytes, little-endian), the head (JSON), and columns of unsigned
    integers. A column of n numbers of w bytes is w planes of n bytes, the lowest bytes first; the head states w, which
    is 0 if all numbers are 0. Begins are differences within a row; the first of a row counts from `origin_ns`.
    """
    columns: list[Int64s] = []
    levels = [_level_head(view, level, columns) for level in view.levels]
    details = view.details
    since_launch = np.where(details.launch_ns >= 0, view.levels[0].start_ns - details.launch_ns + 1, 0)
    columns += [np.maximum(since_launch, 0), details.calls_row, details.where, details.bytes]
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
    """All that a page needs beside the events: window, names, colours, tracks, steps and moments."""

    def span(start_ns: int, end_ns: int) -> list[int]:
        return [start_ns - view.origin_ns, end_ns - view.origin_ns]

    fills = sorted({fill for _, fill, _ in view.names} | {part_fill("idle", cause) for cause in IDLE_CAUSES})
    in_window = {step.index for step in view.window.steps}
    # Moments are marked on the idle row of their GPU; −1 if it has none.
    idle_rows = {track.owner[0]: track.first for track in view.tracks if track.kind == "idle"}
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
        "steps": [[*span(step.start_ns, step.end_ns), step.index, step.index in in_window] for step in view.steps],
        "moments": [
            [*span(moment.start_ns, moment.end_ns), moment.finding, idle_rows.get(moment.device, -1)]
            for moment in view.moments
        ],
    }


def _kinds(view: TimelineView) -> list[tuple[str, str]]:
    """The colours of GPU work and their titles, those with the most time first."""
    finest = view.levels[0]
    first = min((track.first for track in view.tracks if track.kind == "stream"), default=0)
    last = max((track.first + track.rows for track in view.tracks if track.kind == "stream"), default=0)
    of_streams = (finest.row >= first) & (finest.row < last)
    time_ns = np.zeros(len(view.names), dtype=np.int64)
    np.add.at(time_ns, finest.name[of_streams], finest.busy_ns[of_streams])
    by_fill: dict[str, int] = {}
    for number in np.flatnonzero(time_ns).tolist():
        fill = view.names[number][1]
        by_fill[fill] = by_fill.get(fill, 0) + int(time_ns[number])
    titles = {"transfer": "copies and fills", "graph": "CUDA graphs"}
    return [
        (fill, titles.get(fill) or fmt.category_title(fill))
        for fill in sorted(by_fill, key=lambda fill: -by_fill[fill])
    ]
