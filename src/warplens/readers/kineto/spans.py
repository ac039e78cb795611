"""All events of a trace: its pieces joined to frames by kind, and these as intervals on one clock.

Begins are matched with their ends; invalid and repeated events are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import encode_names, name_categories
from warplens.readers.excerpts import Excerpt
from warplens.readers.kineto import json_text
from warplens.readers.kineto.document import Document, walk
from warplens.readers.kineto.events import PHASES, Column, EventColumns, EventReader
from warplens.readers.kineto.values import (
    GPU_KINDS,
    GPU_TABLES,
    KINDS,
    LISTED,
    Dictionary,
    arguments_of,
    kind_of_category,
)
from warplens.readers.limits import FURTHEST_NS, LONGEST_NS
from warplens.readers.opening import Input


@dataclass(frozen=True)
class Part:
    """The events of a trace that are read."""

    excerpt: Excerpt | None = None  #: those of a part of the recording; None for all of it
    kinds: Collection[str] = KINDS
    arguments: Collection[str] | None = None  #: None for all


WHOLE = Part()

#: GPU work with the process that issued it.
WORK_ALONE = Part(kinds=(*GPU_KINDS, "call"), arguments=("device", "stream", "correlation", "bytes"))


@dataclass
class Recorded(Document):
    """The content of a trace."""

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)  #: the events by kind; see `Frames.frames`
    categories: tuple[str, ...] = ()  #: the `cat` values of the events
    part: Part = WHOLE  #: the events that were read
    #: begin of the first and end of the last of all events, read or not; None for those of the events that were read
    extent_ns: tuple[int, int] | None = None


def read_events(file: Input, launch_configuration: bool, part: Part = WHOLE) -> Recorded:
    """The content of a trace, or a part of it; see `walk`."""
    document, frames = walk(
        file, lambda: Frames(launch_configuration, part), lambda percent: file.tell(f"reading the events, {percent} %")
    )
    events = frames.frames()
    if part.excerpt is not None:
        for kind in GPU_KINDS:
            events[kind] = part.excerpt.issued_in(events[kind], events["call"], "begin_ns", ("correlation",))
    return Recorded(
        **vars(document), categories=frames.categories, frames=events, part=part, extent_ns=frames.extent_ns
    )


_Parts = Sequence["tuple[int, Column | None]"]

#: Tables of the trace whose events an excerpt selects by more than their begin.
_TABLE_OF = dict(zip(GPU_KINDS, GPU_TABLES, strict=True)) | dict.fromkeys(
    ("operator", "annotation", "python"), "ranges"
)


class Frames:
    """Collects pieces in the order of the text, then gives the events of each kind as a frame.

    Attributes:
        extent_ns: begin of the first and end of the last of all events, read or not; known if only a part is read.
    """

    def __init__(self, launch_configuration: bool, part: Part) -> None:
        self._reader = EventReader(launch_configuration, part.arguments)
        self._part = part
        self.extent_ns: tuple[int, int] | None = None
        self._columns: dict[str, list[dict[str, Column]]] = {kind: [] for kind in KINDS}
        self._odd: dict[str, list[dict[str, Column]]] = {kind: [] for kind in KINDS}  # they come last
        self._odd_categories: dict[str, None] = {}  # in the order of their first events
        self.read = self._reader.read

    def add(self, piece: EventColumns) -> None:
        """Take the columns of a piece; the rest of the piece can be freed."""
        for columns_by_kind, parts in ((piece.columns, self._columns), (self._odd_columns(piece.odd), self._odd)):
            for kind, columns in columns_by_kind.items():
                parts[kind].append(columns if self._part is WHOLE else self._of_part(kind, columns))

    @property
    def categories(self) -> tuple[str, ...]:
        """The `cat` values of the events."""
        usual = (text for text in self._reader.categories.texts if text is not None)
        return tuple(dict.fromkeys((*usual, *self._odd_categories)))

    def frames(self) -> dict[str, pl.DataFrame]:
        """The events by kind, one frame for each.

        Columns are `phase` (a character's code), `begin_ns`, `duration_ns`, `process`, `thread`, `name` and the
        arguments of the kind, null where an event has none. The pieces are freed meanwhile.
        """
        return {kind: self._frame(kind) for kind in KINDS}

    def _of_part(self, kind: str, columns: dict[str, Column]) -> dict[str, Column]:
        """The rows of the part; of an excerpt perhaps also GPU work that its calls did not issue."""
        begins, known = columns["begin_ns"]
        begins = begins.astype(np.int64)
        sound = (begins >= -FURTHEST_NS) & (begins <= FURTHEST_NS) & (True if known is None else known)
        durations, known = columns.get(
            "duration_ns", (np.zeros(len(begins), np.int64), np.zeros(len(begins), np.bool_))
        )
        phases = columns["phase"][0]
        is_edge = (phases == _BEGIN) | (phases == _END)
        # The events that `_valid` leaves out do not count; those without a duration may be begins and ends.
        measured = (durations >= 0) & (durations <= LONGEST_NS)
        if known is not None:
            measured = np.where(known, measured, is_edge | (kind not in GPU_KINDS))
        ends = begins + np.where(measured & (True if known is None else known), durations, 0)
        counted = sound & measured
        starting = counted & (phases != _END)
        if kind not in ("flow", "allocation") and starting.any():
            first, last = int(begins[starting].min()), int(ends[counted].max())
            extent = self.extent_ns or (first, last)
            self.extent_ns = min(first, extent[0]), max(last, extent[1])
        if self._part.excerpt is not None:
            # Begins and ends are matched before rows of them are chosen, see `spans_of`.
            sound &= self._part.excerpt.holds(_TABLE_OF.get(kind, kind), begins, ends) | is_edge
        elif kind in self._part.kinds:
            return columns
        rows = np.flatnonzero(sound if kind in self._part.kinds else np.zeros_like(sound))
        return {
            name: (values.take(rows), None if known is None else known.take(rows))
            for name, (values, known) in columns.items()
        }

    def _frame(self, kind: str) -> pl.DataFrame:
        parts = self._columns.pop(kind) + self._odd.pop(kind)
        heights = [len(part["phase"][0]) for part in parts]
        arguments = arguments_of(kind)
        members = ("phase", "begin_ns", "duration_ns", "process", "thread", "name")
        names = [*members, *(argument.column for argument in arguments)]
        texts = {"name", *(argument.column for argument in arguments if argument.is_text)}
        dictionaries = {"name": self._reader.names, **self._reader.texts}
        columns: list[pl.Series] = []
        absent: list[pl.Expr] = []  # a column that no event has takes no memory as a literal
        for name in names:
            column_parts = list(zip(heights, (part.pop(name, None) for part in parts), strict=True))
            if columns and all(column is None for _, column in column_parts):
                absent.append(pl.lit(None, pl.Enum([]) if name in texts else pl.Int64).alias(name))
            elif name in texts:
                columns.append(_texts(column_parts, dictionaries[name], inputs_only=name in LISTED).alias(name))
            else:
                columns.append(_numbers(column_parts, np.uint8 if name == "phase" else np.int64).alias(name))
        return pl.DataFrame(columns).with_columns(absent).select(names)

    def _odd_columns(self, events: Iterable[Any]) -> dict[str, dict[str, Column]]:
        """The columns of events that were read one by one."""
        rows: dict[str, list[dict[str, int | None]]] = {}
        for event in events:
            if isinstance(event, dict) and "cat" in event:
                self._odd_categories.setdefault(str(event["cat"]))
            kind = kind_of_category(str(event.get("cat", ""))) if isinstance(event, dict) else None
            phase = str(event.get("ph", "X")) if isinstance(event, dict) else ""
            if kind is not None and phase in PHASES[kind]:
                rows.setdefault(kind, []).append(self._row(kind, phase, event))
        return {
            kind: {name: _column([row[name] for row in kind_rows], name) for name in kind_rows[0]}
            for kind, kind_rows in rows.items()
        }

    def _row(self, kind: str, phase: str, event: dict[str, Any]) -> dict[str, int | None]:
        """The event as a row: phase, times, ids and the arguments of its kind; None for what it lacks."""
        name = event.get("name")
        row = {
            "phase": ord(phase),
            "begin_ns": json_text.nanoseconds(event.get("ts")),
            "duration_ns": json_text.nanoseconds(event.get("dur")),
            "process": json_text.process_in(event.get("pid")),
            "thread": json_text.number_in(event.get("tid")),
            "name": self._reader.names.add(name) if isinstance(name, str) else None,
        }
        args = event.get("args")
        for argument in self._reader.arguments:
            if kind not in argument.kinds:
                continue
            holder = event if argument.is_member else args if isinstance(args, dict) else {}
            spelled = [key for key in holder if key in argument.keys]
            value = holder[spelled[-1]] if spelled else None
            if not argument.is_text:
                row[argument.column] = json_text.whole(value)
            else:
                text = json_text.text_of(value)
                row[argument.column] = None if text is None else self._reader.texts[argument.column].add(text)
        return row


def _column(values: Iterable[int | None], name: str) -> Column:
    value_list = list(values)
    known = np.array([value is not None for value in value_list], np.bool_)
    return np.array([value or 0 for value in value_list], np.uint8 if name == "phase" else np.int64), known


def _concatenated(parts: _Parts, dtype: type[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Values of all parts, and which are known; zeros where a part lacks the column."""
    height = sum(rows for rows, _ in parts)
    values = np.empty(height, dtype)
    complete = all(column is not None and column[1] is None for _, column in parts)
    known = None if complete else np.zeros(height, np.bool_)
    offset = 0
    for rows, column in parts:
        values[offset : offset + rows] = 0 if column is None else column[0]
        if known is not None and column is not None:
            known[offset : offset + rows] = True if column[1] is None else column[1]
        offset += rows
    return values, known


def _numbers(parts: _Parts, dtype: type[Any]) -> pl.Series:
    values, known = _concatenated(parts, dtype)
    series = pl.Series(values)
    return series if known is None else series.zip_with(pl.Series(known), pl.Series([None], dtype=series.dtype))


def _texts(parts: _Parts, dictionary: Dictionary, *, inputs_only: bool) -> pl.Series:
    """Dictionary-encoded texts; the dictionary also holds texts of other columns."""
    known_texts = [json_text.inputs_of(text) for text in dictionary.texts] if inputs_only else dictionary.texts
    if not known_texts:
        return pl.repeat(None, sum(rows for rows, _ in parts), dtype=pl.Enum([]), eager=True)
    codes, known = _concatenated(parts, np.int32)
    nulls = np.array([text is None for text in known_texts], np.bool_)
    if nulls.any():
        known = ~nulls.take(codes) if known is None else known & ~nulls.take(codes)
    # Parts are read in parallel, and number texts as they come; here texts are ordered by first occurrence.
    known_rows = np.flatnonzero(known) if known is not None else np.arange(len(codes))
    first = np.full(len(known_texts), len(codes), np.int64)
    first[codes[known_rows[::-1]]] = known_rows[::-1]
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    texts = [known_texts[number] or "" for number in used.tolist()]
    numbers = np.zeros(len(known_texts), np.uint32)
    numbers[used] = np.arange(len(used), dtype=np.uint32)
    places = pl.Series(numbers.take(codes))
    if known is not None:
        places = places.zip_with(pl.Series(known), pl.Series([None], dtype=pl.UInt32))
    return encode_names(places, texts)


# --- The events as intervals on one clock ---

_BEGIN, _END, _COMPLETE = map(ord, "BEX")
_MEMORY = "[memory]"

#: Ids that distinguish two events of a kind that are otherwise equal.
_IDENTITIES = {
    **dict.fromkeys(GPU_KINDS, "correlation"),
    "call": "correlation",
    "operator": "external_id",
    "annotation": "external_id",
}


@dataclass
class Spans:
    """Events by kind with `start_ns` and `end_ns` relative to the first event, and counts of invalid ones."""

    frames: dict[str, pl.DataFrame]  #: events of each kind except arrows
    arrows: pl.DataFrame  #: ends of arrows from forward to backward operators, with `start_ns`
    zero_ns: int | None = None  #: the first event on the trace's own clock; None where there is none
    last_ns: int = 0
    invalid: int = 0  #: events left out because of their times: no begin, no duration, a negative or an impossible one
    invalid_work: int = 0  #: those of them that are GPU work
    still_open: int = 0  #: host events without an end; they end with the trace
    repeated: int = 0  #: events left out because the trace holds them twice
    is_whole_microseconds: bool = False  #: whether no time has a fraction of a microsecond


def spans_of(
    frames: dict[str, pl.DataFrame], extent_ns: tuple[int, int] | None = None, excerpt: Excerpt | None = None
) -> Spans:
    """The events as intervals; the given frames are consumed one by one.

    Args:
        frames: the events by kind; of an excerpt, begins and ends without their counterpart may be outside of it.
        extent_ns: the zero of the clock and the end of the trace; None for those of these events.
        excerpt: the part of the recording that the events are of; None for all of it.
    """
    spans = Spans({}, frames.pop("flow"))
    for kind in KINDS:
        if kind not in frames:
            continue
        events = frames.pop(kind)
        has_edges = not (events["phase"] == _COMPLETE).all() and kind != "allocation"
        valid = _valid(kind, events, spans)
        if excerpt is not None and has_edges:
            begin = pl.col("begin_ns")
            end = (begin + pl.col("duration_ns")).fill_null(extent_ns[1] if extent_ns else excerpt.end_ns)
            valid = valid.filter(excerpt.holds(_TABLE_OF.get(kind, kind), begin, end))
        spans.frames[kind] = valid
    _place_on_clock(spans, extent_ns)
    return spans


def _valid(kind: str, events: pl.DataFrame, spans: Spans) -> pl.DataFrame:
    """The events whose times can be read, each of them once; `spans` counts what is left out."""
    begin, duration = pl.col("begin_ns"), pl.col("duration_ns")
    begun = begin.is_between(-FURTHEST_NS, FURTHEST_NS).fill_null(False)
    if kind == "allocation":
        known = name_categories(events["name"]).index_of(_MEMORY)
        named = (
            events["name"].to_physical() == known if known is not None else pl.repeat(False, events.height, eager=True)
        )
        return events.filter(named, begun)
    if not (events["phase"] == _COMPLETE).all():
        events = _with_ends(events, spans)
    sound = begun & duration.is_between(0, LONGEST_NS).fill_null(kind not in GPU_KINDS)
    valid = events if events.select(sound.all()).item() else events.filter(sound)
    spans.invalid += events.height - valid.height
    spans.invalid_work += events.height - valid.height if kind in GPU_KINDS else 0
    identity = _IDENTITIES.get(kind)
    if identity is not None:
        unique = _without_repeated(valid, identity)
        spans.repeated += valid.height - unique.height
        valid = unique
    return valid


def _with_ends(events: pl.DataFrame, spans: Spans) -> pl.DataFrame:
    """Complete events, including those recorded as begin and end (`B`, `E`).

    On each thread an end closes the innermost open event: the last one that began at the same depth.
    """
    edges = events.filter(pl.col("phase") != _COMPLETE, pl.col("begin_ns").is_not_null())
    edges = edges.sort("process", "thread", "begin_ns", maintain_order=True)
    step = np.where(edges["phase"].to_numpy() == _BEGIN, 1, -1)
    level = np.cumsum(step) + (step < 0)  # an end has the level of the begin that it closes
    thread = edges.select(pl.struct("process", "thread").rank("dense")).to_series().to_numpy()
    order = np.lexsort((np.arange(len(step)), level, thread))
    is_begin = step[order] == 1
    follows = np.r_[(thread[order][1:] == thread[order][:-1]) & (level[order][1:] == level[order][:-1]), False]
    closed = is_begin & follows & np.r_[~is_begin[1:], False]
    starts = edges["begin_ns"].to_numpy()[order]
    durations = pl.Series(np.r_[starts[1:] - starts[:-1], 0] if len(starts) else starts)
    begun = edges[order].with_columns(
        duration_ns=durations.zip_with(pl.Series(closed), pl.Series([None], dtype=pl.Int64))
    )
    begun = begun.filter(pl.Series(is_begin))
    spans.invalid += int(edges.height - begun.height - closed.sum()) if len(step) else 0
    complete = events.filter((pl.col("phase") == _COMPLETE) | pl.col("begin_ns").is_null())
    return pl.concat([complete, begun])


def _without_repeated(events: pl.DataFrame, identity: str) -> pl.DataFrame:
    """Events without exact repetitions of earlier ones, id included.

    Kernels of a CUDA graph share the id of the call that launched them; they are all kept as long as they differ.
    """
    ids = events[identity]
    if ids.null_count() == ids.len() or ids.drop_nulls().n_unique() == ids.len() - ids.null_count():
        return events
    repeated = events.with_row_index("row").filter(ids.is_not_null() & ids.is_duplicated())
    # Ids shared by events with different times (the nodes of a graph) are excluded: equal events may be intended there.
    groups = repeated.group_by(identity).agg(
        pl.col("begin_ns").n_unique().alias("begins"), pl.col("row").min().alias("first"), pl.col("row").max()
    )
    suspects = repeated.join(groups.filter(pl.col("begins") == 1).select(identity), on=identity, how="semi")
    columns = [name for name in events.columns if name != "phase"]
    duplicates = suspects.filter(~suspects.select(pl.struct(columns).is_first_distinct()).to_series())
    if not duplicates.height:
        return events
    return (
        events.with_row_index("row")
        .join(duplicates.select("row"), on="row", how="anti", maintain_order="left")
        .drop("row")
    )


def _place_on_clock(spans: Spans, extent_ns: tuple[int, int] | None) -> None:
    """Moves all events to a clock that begins at zero; events without an end are taken to end with the last one."""
    begin, end = pl.col("begin_ns"), pl.col("begin_ns") + pl.col("duration_ns").fill_null(0)
    extent = [
        frame.select(begin.min().alias("begin"), end.max().alias("end"), fraction=((begin % 1_000) != 0).any()).row(0)
        for frame in spans.frames.values()
        if frame.height
    ]
    if extent:
        spans.zero_ns, spans.last_ns = extent_ns or (min(row[0] for row in extent), max(row[1] for row in extent))
        spans.is_whole_microseconds = not any(row[2] for row in extent)
    zero = spans.zero_ns or 0
    spans.last_ns -= zero
    for kind, frame in spans.frames.items():
        if kind != "allocation":
            spans.still_open += frame["duration_ns"].null_count()
        end = (begin + pl.col("duration_ns") - zero).fill_null(spans.last_ns)
        spans.frames[kind] = frame.with_columns(start_ns=begin - zero, end_ns=end).drop(
            "begin_ns", "duration_ns", "phase"
        )
    spans.arrows = spans.arrows.with_columns(start_ns=begin - zero).drop("begin_ns", "duration_ns")
