"""The columns of all pieces of a Kineto trace, put together as frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import encode_names
from warplens.readers import kineto_json
from warplens.readers.kineto_events import Column, EventReader, Piece, is_read
from warplens.readers.kineto_fields import KINDS, arguments_of, kind_of_category
from warplens.readers.kineto_strings import Dictionary

__all__ = ["Frames"]

_Parts = Sequence["tuple[int, Column | None]"]


class Frames:
    """Collects pieces in the order of the text, then gives the events of each kind as a frame.

    Attributes:
        events: how many events the pieces hold, of all kinds, read or not.
        damaged: how many places could not be read.
    """

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._columns: dict[str, list[dict[str, Column]]] = {kind: [] for kind in KINDS}
        self._odd: list[Any] = []
        self.events = 0
        self.damaged = 0

    def add(self, piece: Piece) -> None:
        """Takes the columns of a piece; the rest of it can be let go of."""
        for kind, columns in piece.columns.items():
            self._columns[kind].append(columns)
        self._odd += piece.odd
        self.events += len(piece.scanned.starts)
        self.damaged += piece.damaged

    @property
    def categories(self) -> tuple[str, ...]:
        """What the events bear as `cat`."""
        odd = [str(event["cat"]) for event in self._odd if isinstance(event, dict) and "cat" in event]
        return tuple(dict.fromkeys([text for text in self._reader.categories.texts if text is not None] + odd))

    def frames(self) -> dict[str, pl.DataFrame]:
        """The events by kind, one frame for each.

        Columns are `phase` (a character's code), `begin_ns`, `duration_ns`, `process`, `thread`, `name` and the
        arguments of the kind, null where an event has none. The pieces are let go of meanwhile.
        """
        for kind, columns in self._odd_columns().items():
            self._columns[kind].append(columns)
        return {kind: self._frame(kind) for kind in KINDS}

    def _frame(self, kind: str) -> pl.DataFrame:
        parts = self._columns.pop(kind)
        heights = [len(part["phase"][0]) for part in parts]
        kinds: list[tuple[str, Dictionary | None]] = [
            (name, None) for name in ("phase", "begin_ns", "duration_ns", "process", "thread")
        ]
        kinds.append(("name", self._reader.names))
        kinds += [(argument.column, self._reader.texts.get(argument.column)) for argument in arguments_of(kind)]
        texts = {argument.column for argument in arguments_of(kind) if argument.is_text} | {"name"}
        columns = []
        for name, dictionary in kinds:
            found = list(zip(heights, (part.pop(name, None) for part in parts), strict=True))
            if name in texts:
                series = _texts(found, dictionary or Dictionary())
            else:
                series = _numbers(found, pl.UInt8 if name == "phase" else pl.Int64)
            columns.append(series.alias(name))
        return pl.DataFrame(columns)

    def _odd_columns(self) -> dict[str, dict[str, Column]]:
        """The columns of events that were read one by one."""
        rows: dict[str, list[dict[str, int | None]]] = {}
        for event in self._odd:
            kind = kind_of_category(str(event.get("cat", ""))) if isinstance(event, dict) else None
            phase = str(event.get("ph", "X")) if isinstance(event, dict) else ""
            if kind is not None and is_read(kind, phase):
                rows.setdefault(kind, []).append(self._row(kind, phase, event))
        return {
            kind: {name: _column([row[name] for row in found], name) for name in found[0]}
            for kind, found in rows.items()
        }

    def _row(self, kind: str, phase: str, event: dict[str, Any]) -> dict[str, int | None]:
        name = event.get("name")
        row = {
            "phase": ord(phase),
            "begin_ns": kineto_json.nanoseconds(event.get("ts")),
            "duration_ns": kineto_json.nanoseconds(event.get("dur")),
            "process": kineto_json.number_in(event.get("pid")),
            "thread": kineto_json.number_in(event.get("tid")),
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
                row[argument.column] = kineto_json.whole(value)
            else:
                text = kineto_json.text_of(value)
                row[argument.column] = None if text is None else self._reader.texts[argument.column].add(text)
        return row


def _column(values: Iterable[int | None], name: str) -> Column:
    listed = list(values)
    known = np.array([value is not None for value in listed], np.bool_)
    return np.array([value or 0 for value in listed], np.uint8 if name == "phase" else np.int64), known


def _joined(found: _Parts, dtype: type[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Values of all parts, and which are known; zeros stand where a part lacks the column."""
    height = sum(rows for rows, _ in found)
    values = np.empty(height, dtype)
    complete = all(column is not None and column[1] is None for _, column in found)
    known = None if complete else np.zeros(height, np.bool_)
    at = 0
    for rows, column in found:
        values[at : at + rows] = 0 if column is None else column[0]
        if known is not None and column is not None:
            known[at : at + rows] = True if column[1] is None else column[1]
        at += rows
    return values, known


def _numbers(found: _Parts, dtype: type[pl.DataType]) -> pl.Series:
    if all(column is None for _, column in found):
        return pl.repeat(None, sum(rows for rows, _ in found), dtype=dtype, eager=True)
    values, known = _joined(found, np.uint8 if dtype is pl.UInt8 else np.int64)
    series = pl.Series(values, dtype=dtype)
    return series if known is None else series.zip_with(pl.Series(known), pl.Series([None], dtype=dtype))


def _texts(found: _Parts, dictionary: Dictionary) -> pl.Series:
    """Dictionary-encoded texts, of which the dictionary holds those that occur here and others."""
    if not dictionary.texts or all(column is None for _, column in found):
        return pl.repeat(None, sum(rows for rows, _ in found), dtype=pl.Enum([]), eager=True)
    codes, known = _joined(found, np.int32)
    nulls = np.array([text is None for text in dictionary.texts], np.bool_)
    if nulls.any():
        known = ~nulls.take(codes) if known is None else known & ~nulls.take(codes)
    used = np.zeros(len(dictionary.texts), np.bool_)
    used[codes if known is None else codes[known]] = True
    texts = [dictionary.texts[number] or "" for number in np.flatnonzero(used).tolist()]
    numbers = np.maximum(np.cumsum(used, dtype=np.uint32), 1) - np.uint32(1)
    places = pl.Series(numbers.take(codes))
    if known is not None:
        places = places.zip_with(pl.Series(known), pl.Series([None], dtype=pl.UInt32))
    return encode_names(places, texts)
