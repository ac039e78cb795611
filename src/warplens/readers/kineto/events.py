"""The events of a piece of a Kineto trace as columns, kind by kind.

Every column is read for all kinds of events at once, because an array operation costs a microsecond however short the
array is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from warplens.profile.schema import Bools, Int64s
from warplens.readers.kineto import json_text
from warplens.readers.kineto.scan import MEMBERS, Piece, Scan, scan
from warplens.readers.kineto.values import (
    ARGUMENTS,
    KINDS,
    Argument,
    Bytes,
    Dictionary,
    Numbers,
    Words,
    hashes,
    kind_of_category,
    nanoseconds_at,
    skip_space,
    whole_at,
    words_of,
)

Column: TypeAlias = "tuple[npt.NDArray[Any], Bools | None]"
"""Values, and a mask of the known ones (None: all are known)."""

_COMMA, _QUOTE = ord(","), ord('"')
_INSIDE = 64  # added to the number of a key inside `args`

#: Phases (`ph`) of events that are read: complete events, begins and ends; instants of the allocator; ends of arrows.
PHASES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(KINDS, ("X", "B", "E")),
    "allocation": ("i", "I", "X"),
    "flow": ("s", "t", "f"),
}

#: Distinguishes a JSON value from a string of the same text: `[1]` and `"[1]"`.
_NOT_A_STRING = np.uint64(0x5555555555555555)

_UNREAD = len(KINDS)


#: Whether events of a kind, by its position in `KINDS`, are read with a phase, by its character; never for `_UNREAD`.
_ALLOWED = np.zeros((len(KINDS) + 1, 256), np.bool_)
for _number, _kind in enumerate(KINDS):
    _ALLOWED[_number, list(map(ord, PHASES[_kind]))] = True


@dataclass
class EventColumns(Piece):
    """The columns of one piece of the text."""

    #: for each kind of event its columns: `phase`, `begin_ns`, `duration_ns`, `process`, `thread`, `name` and
    #: arguments; columns that no event of the piece has are absent
    columns: dict[str, dict[str, Column]] = field(default_factory=dict)
    #: events that had to be read one by one, as JSON values
    odd: list[Any] = field(default_factory=list)


class EventReader:
    """Reads pieces of the text; several threads may do so at once.

    Attributes:
        categories: the `cat` values of all events, read or not.
        names, texts: the distinct names, and the distinct values of each text argument.
    """

    def __init__(self, launch_configuration: bool, arguments: Collection[str] | None = None) -> None:
        read = (a for a in ARGUMENTS if launch_configuration or not a.launch_configuration)
        self.arguments = tuple(a for a in read if arguments is None or a.column in arguments)
        self.categories = Dictionary()
        self.names = Dictionary()
        self.texts = {argument.column: Dictionary() for argument in self.arguments if argument.is_text}
        self._kinds = np.empty(0, np.int64)

    def read(self, text: Bytes, begin: int, end: int) -> EventColumns:
        """The columns of the events in `text[begin:end]`; see `scan`."""
        scanned = scan(text, words_of(text), begin, end)
        piece = EventColumns(scanned, damaged=scanned.damaged)
        if len(scanned.starts):
            _Reading(self, text, scanned).read(piece)
        return piece

    def kinds_of(self, categories: npt.NDArray[np.int32]) -> Int64s:
        """Positions in `KINDS` for numbers of categories; `_UNREAD` for categories that are not read."""
        texts = list(self.categories.texts)
        if len(self._kinds) < len(texts):
            kinds = [kind_of_category(text or "") for text in texts]
            self._kinds = np.array([_UNREAD if kind is None else KINDS.index(kind) for kind in kinds], np.int64)
        return self._kinds.take(categories)


class _Reading:
    """The reading of one piece."""

    def __init__(self, reader: EventReader, text: Bytes, scanned: Scan) -> None:
        self.reader, self.text, self.scanned = reader, text, scanned
        self.words = words_of(text)
        keys = scanned.keys
        numbers = keys.number + keys.inside * np.uint8(_INSIDE)
        self.order = np.argsort(numbers, kind="stable")
        self.bounds = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=2 * _INSIDE))])

    def read(self, piece: EventColumns) -> None:
        """Fill the piece."""
        kinds, phases = self._kinds(), self._phases()
        kinds[self.scanned.irregular | ~_ALLOWED[kinds, phases]] = _UNREAD
        self.events = np.argsort(kinds.astype(np.uint8), kind="stable")  # all of one kind in a row
        counts = np.bincount(kinds, minlength=_UNREAD + 1)[:_UNREAD]
        self.ends = np.cumsum(counts)
        self.starts = self.ends - counts
        self.events = self.events[: self.ends[-1]]
        times = self._numbers(nanoseconds_at, json_text.nanoseconds)
        found: list[tuple[str, tuple[str, ...], Column]] = [
            ("phase", KINDS, (phases.take(self.events), None)),
            ("begin_ns", KINDS, self._column(self._member("ts"), times)),
            ("duration_ns", KINDS, self._column(self._member("dur"), times)),
            ("process", KINDS, self._column(self._member("pid"), self._numbers(whole_at, json_text.process_in))),
            ("thread", KINDS, self._column(self._member("tid"), self._numbers(whole_at, json_text.number_in))),
            ("name", KINDS, self._column(self._member("name"), self._texts(self.reader.names))),
        ]
        self.place = np.full(len(kinds), -1, np.int64)  # of an event among those that are read
        self.place[self.events] = np.arange(len(self.events))
        self.kinds = kinds
        for argument in self.reader.arguments:
            column = self._argument(argument)
            if column is not None:
                found.append((argument.column, argument.kinds, column))
        for number in np.flatnonzero(counts).tolist():
            kind, part = KINDS[number], slice(self.starts[number], self.ends[number])
            piece.columns[kind] = {name: _slice(column, part) for name, kinds_of, column in found if kind in kinds_of}
        for row in np.flatnonzero(self.scanned.irregular).tolist():
            raw = self.scanned.event(self.text, row)
            try:
                piece.odd.append(json_text.lenient(raw.decode("utf-8", "replace")))
            except ValueError:
                piece.add_damage(row, raw)

    def _kinds(self) -> Int64s:
        rows = self._by_event(MEMBERS.index("cat") + 1)
        kinds = np.full(len(rows), _UNREAD, np.int64)
        present = np.flatnonzero(rows >= 0)
        codes = self._text_codes(rows.take(present), self.reader.categories)
        kinds[present] = self.reader.kinds_of(codes)
        return kinds

    def _phases(self) -> Bytes:
        rows = self._by_event(MEMBERS.index("ph") + 1)
        if not len(self.scanned.keys.value):
            return np.full(len(rows), ord("X"), np.uint8)
        places = self.scanned.keys.value.take(rows)
        present = rows >= 0
        # For an event without a phase the value of its last key is examined here, and not used.
        unusual = present & (self.text.take(places + 2) != _QUOTE)  # escaped, or longer than one character
        self.scanned.irregular[unusual] = True
        return np.where(present, self.text.take(places + 1), np.uint8(ord("X")))

    def _by_event(self, number: int) -> Int64s:
        """For each event of the piece the row of its key of this number, −1 without one; the last one of several."""
        rows = self.order[self.bounds[number] : self.bounds[number + 1]]
        event = self.scanned.keys.event.take(rows)
        count = len(self.scanned.starts)
        if len(rows) == count and event[0] == 0 and (event[1:] - event[:-1] == 1).all():
            return rows
        row_by_event = np.full(count, -1, np.int64)
        row_by_event[event] = rows
        return row_by_event

    def _member(self, name: str) -> Int64s:
        return self._by_event(MEMBERS.index(name) + 1).take(self.events)

    def _argument(self, argument: Argument) -> Column | None:
        """The argument of all read events that have it; None if none has it."""
        number = _NUMBERS[argument.column]
        rows = self.order[self.bounds[number] : self.bounds[number + 1]]
        if not len(rows):
            return None
        event = self.scanned.keys.event.take(rows)
        having = np.flatnonzero(_HAVING[argument.column].take(self.kinds.take(event)))
        if not len(having):
            return None
        rows, places = rows.take(having), self.place.take(event.take(having))
        texts = self.reader.texts.get(argument.column)
        read = self._numbers(whole_at, json_text.whole) if texts is None else self._texts(texts)
        values, known = read(rows)
        column = np.zeros(len(self.events), values.dtype)
        present = np.zeros(len(self.events), np.bool_)
        column[places] = values  # the last value of a repeated argument
        present[places] = True if known is None else known
        return column, present

    def _column(self, rows: Int64s, read_values: Callable[[Int64s], Column]) -> Column:
        """Values of the keys at these rows; unknown where the row is −1."""
        present = rows >= 0
        if present.all():
            return read_values(rows)
        places = np.flatnonzero(present)
        values, known = read_values(rows.take(places))
        column = np.zeros(len(rows), values.dtype)
        column[places] = values
        if known is not None:
            present[places] = known
        return column, present

    def _texts(self, dictionary: Dictionary) -> Callable[[Int64s], Column]:
        return lambda rows: (self._text_codes(rows, dictionary), None)

    def _numbers(
        self, usual: Callable[[Bytes, Words, Int64s], Numbers], exact: Callable[[Any], int | None]
    ) -> Callable[[Int64s], Column]:
        """A reader of numbers that are written as `usual` reads them; of others one by one, from their JSON values."""
        return lambda rows: self._completed(
            usual(self.text, self.words, self.scanned.keys.value.take(rows)), rows, exact
        )

    def _completed(self, numbers: Numbers, rows: Int64s, exact: Callable[[Any], int | None]) -> Column:
        values, known = numbers
        if known.all():
            return values, None
        places = np.flatnonzero(~known)
        begins, ends, is_string = self._spans(rows.take(places))
        for place, begin, end, quoted in zip(
            places.tolist(), begins.tolist(), ends.tolist(), is_string.tolist(), strict=True
        ):
            raw = self.text[begin:end].tobytes()
            try:
                json_value = json_text.string(raw) if quoted else json_text.lenient(raw.decode("utf-8", "replace"))
                value = exact(json_value)
            except ValueError:
                value = None
            known[place] = value is not None
            values[place] = value or 0
        return values, known

    def _text_codes(self, rows: Int64s, dictionary: Dictionary) -> npt.NDArray[np.int32]:
        begins, ends, is_string = self._spans(rows)
        text_hashes = hashes(self.words, begins, ends - begins)
        text_hashes[~is_string] ^= _NOT_A_STRING

        def decode(row: int) -> str | None:
            raw = self.text[begins[row] : ends[row]].tobytes()
            return json_text.string(raw) if is_string[row] else json_text.canonical(raw.decode("utf-8", "replace"))

        return dictionary.codes(text_hashes, decode)

    def _spans(self, rows: Int64s) -> tuple[Int64s, Int64s, Bools]:
        """Begin and end of the values of these keys, of strings without their quotes; and whether they are strings."""
        keys, scanned = self.scanned.keys, self.scanned
        begins = keys.value.take(rows)
        quotes = np.minimum(keys.quote.take(rows), len(scanned.closing) - 1)
        is_string = scanned.opening.take(quotes) == begins
        ends = scanned.closing.take(quotes)
        if is_string.all():
            return begins + 1, ends, is_string
        not_strings = np.flatnonzero(~is_string)
        rows = rows.take(not_strings)
        event = keys.event.take(rows)
        outer = np.where(keys.inside.take(rows), scanned.inner_ends.take(event), scanned.ends.take(event))
        limit = np.minimum(keys.next_key.take(rows), outer)
        last = skip_space(self.text, limit - 1, -1)  # back over the comma in front of the next key
        last -= self.text.take(last) == _COMMA
        ends[not_strings] = skip_space(self.text, last, -1) + 1
        return begins + is_string, ends, is_string


#: The numbers of arguments' keys, offset for keys inside `args`.
_NUMBERS = {
    argument.column: MEMBERS.index(argument.keys[0]) + 1 if argument.is_member else number + _INSIDE
    for number, argument in enumerate(ARGUMENTS, len(MEMBERS) + 1)
}

#: Kinds of events with an argument, by their position in `KINDS`; False for `_UNREAD`.
_HAVING = {
    argument.column: np.array([kind in argument.kinds for kind in (*KINDS, "")], np.bool_) for argument in ARGUMENTS
}


def _slice(column: Column, part: slice) -> Column:
    """A copy of a part of a column, as 32-bit integers where they fit: half the memory until joined."""
    values, known = column[0][part], column[1]
    if values.dtype == np.int64 and values.min() >= -(2**31) and values.max() < 2**31:
        values = values.astype(np.int32)
    else:
        values = values.copy()
    return values, None if known is None or known[part].all() else known[part].copy()
