"""Begins and ends of the events in a piece of a Chrome trace, and the positions of the keys of their members.

The piece is searched with array operations for the three structural characters of JSON, `"`, `{` and `}`. Counting
quotes identifies strings; counting braces outside of them gives the depth of objects. A key is a string followed by a
colon. The order of keys, spaces and lines do not matter.

The usual event contains at most one object, its `args`, without further objects. Other events are marked irregular and
read one by one elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warplens.profile.schema import Bools, Int64s
from warplens.readers.kineto.values import ARGUMENTS, Bytes, Words, next_of, skip_space

_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE, _BRACKET = b'"\\:,{}]'

#: The members of an event that are read; the arguments follow them in numbering.
MEMBERS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")

#: A boundary between two events. A quote right after a brace cannot be inside a string, whatever the string's content.
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|tts|tdur|cname|sf|ppid)"\s*:)')

NO_KEY = 0


@dataclass(frozen=True)
class Keys:
    """The keys that are read, of all events of a piece, in the order of the text."""

    event: Int64s  #: row of the event
    number: npt.NDArray[np.uint8]  #: number of the key, from 1: `MEMBERS`, then the keys of `ARGUMENTS`
    inside: Bools  #: whether it is in the event's `args`
    value: Int64s  #: begin of its value
    quote: Int64s  #: index of the next string of the piece
    next_key: Int64s  #: begin of the next key of any kind, in this event or a later one


@dataclass(frozen=True)
class Scan:
    """The events of a piece."""

    #: starts, ends: positions of their braces
    starts: Int64s
    ends: Int64s
    inner_ends: Int64s  #: position of the closing brace of `args`, or of the event itself without `args`
    irregular: Bools
    keys: Keys
    #: opening, closing: positions of the quotes of all strings
    opening: Int64s
    closing: Int64s
    rest: int  #: begin of the first incomplete event, or the end of the last event
    array_end: int | None  #: end of the array of events; None if it continues
    damaged: int  #: number of places between events with other content
    is_balanced: bool  #: whether the piece ends outside of all strings and objects

    def event(self, text: Bytes, row: int) -> bytes:
        """The text of one event."""
        return text[self.starts[row] : self.ends[row] + 1].tobytes()


@dataclass
class Piece:
    """The content read from one piece of the text."""

    scanned: Scan  #: positions of the events
    damaged: int = 0  #: number of places that could not be read
    #: begin of a damaged event that seems to contain further events
    broken: int | None = None

    def add_damage(self, row: int, event: bytes) -> None:
        """Count an event that is not valid JSON."""
        if self.broken is None and BOUNDARY.search(event):
            self.broken = int(self.scanned.starts[row])
        self.damaged += 1


def _spellings() -> list[tuple[bytes, int]]:
    spelled = [(member.encode(), number) for number, member in enumerate(MEMBERS, 1)]
    for number, argument in enumerate(ARGUMENTS, len(MEMBERS) + 1):
        spelled += [(key.encode(), number) for key in argument.keys if not argument.is_member]
    return spelled


class _KeyTable:
    """Identifies the key between two quotes.

    Length, first and last letter select the candidate spelling, or the few candidates (`Bytes`, `bytes`). The letters
    then decide: the last eight, and for a longer key the first eight; for `Process Group Name` the two letters between
    them are not compared.
    """

    def __init__(self) -> None:
        spelled = _spellings()
        sizes = np.array([len(key) + 1 for key, _ in spelled], np.uint8)
        firsts, lasts = (np.array([key[place] for key, _ in spelled], np.uint8) for place in (0, -1))
        self._entries = np.zeros(2**12, np.uint8)  # the first spelling to try, from 1
        self._others = np.zeros(len(spelled) + 1, np.uint8)  # the next one
        for entry, slot in enumerate(self._slots(sizes, firsts, lasts).tolist(), 1):
            self._others[entry], self._entries[slot] = self._entries[slot], entry
        self._numbers = np.array([NO_KEY] + [number for _, number in spelled], np.uint8)
        self._sizes = np.array([0] + [len(key) + 1 for key, _ in spelled])
        # For a short key the opening quote is compared, too.
        tails = [(b'"' + key)[-8:] for key, _ in spelled]
        self._tails = np.array([0] + [int.from_bytes(tail.rjust(8, b"\0"), "little") for tail in tails], np.uint64)
        self._masks = np.array([0] + [2**64 - 2 ** (64 - 8 * len(tail)) for tail in tails], np.uint64)
        self._heads = np.array([0] + [int.from_bytes(key[:8], "little") for key, _ in spelled], np.uint64)

    @staticmethod
    def _slots(sizes: Bytes, firsts: Bytes, lasts: Bytes) -> npt.NDArray[np.uint16]:
        # The factors spread the spellings over the table with few collisions; chosen by trial.
        mixed: npt.NDArray[np.uint16] = firsts * _BY_FIRST + lasts * _BY_LAST + sizes * _BY_SIZE
        return mixed >> np.uint16(4)

    def numbers(self, text: Bytes, words: Words, opening: Int64s, closing: Int64s) -> npt.NDArray[np.uint8]:
        """The number of the key between each pair of quotes, `NO_KEY` for keys that are not read."""
        sizes = closing - opening
        entries = self._entries.take(
            self._slots(sizes.astype(np.uint8), text.take(opening + 1), text.take(closing - 1))
        )
        rows = np.flatnonzero(entries)
        while len(rows):
            candidates = entries.take(rows)
            size = self._sizes.take(candidates)
            wrong = (words[closing.take(rows) - 8] & self._masks.take(candidates)) != self._tails.take(candidates)
            wrong |= sizes.take(rows) != size
            long_keys = np.flatnonzero(size > 8 + 1)
            wrong[long_keys] |= words[opening.take(rows.take(long_keys)) + 1] != self._heads.take(
                candidates.take(long_keys)
            )
            rows = rows[wrong]
            entries[rows] = self._others.take(candidates[wrong])
            rows = rows[entries.take(rows) != 0]
        return self._numbers.take(entries)


_BY_FIRST, _BY_LAST, _BY_SIZE = (np.uint16(factor) for factor in (40_503, 24_593, 12_289))
_TABLE = _KeyTable()


def scan(text: Bytes, words: Words, begin: int, end: int) -> Scan:
    """The events that begin and end in `text[begin:end]`, which begins outside of all strings and objects."""
    piece = text[begin:end]
    marks = np.flatnonzero((piece == _QUOTE) | (piece == _OPEN) | (piece == _CLOSE))
    marks += begin
    is_escape = piece == _BACKSLASH
    escapes = np.flatnonzero(is_escape) + begin if is_escape.any() else None
    if escapes is not None:
        marks = _without_escaped(text, marks)
    characters = text.take(marks)
    is_quote = characters == _QUOTE
    quote_count = np.cumsum(is_quote, dtype=np.int32)
    quotes = marks[is_quote]
    # Copies: each later look-up in a view with gaps would make one.
    opening, closing = quotes[0::2].copy(), quotes[1::2].copy()
    rows = np.flatnonzero(~is_quote)
    rows = rows[(quote_count.take(rows) & 1) == 0]
    braces, is_open = marks.take(rows), characters.take(rows) == _OPEN
    depth = np.cumsum(np.where(is_open, 1, -1))
    below = np.flatnonzero(depth < 0)
    if len(below):  # the end of the object around the array
        braces, is_open, depth = braces[: below[0]], is_open[: below[0]], depth[: below[0]]
    first = np.flatnonzero(is_open & (depth == 1))
    last = np.flatnonzero(depth == 0)
    is_balanced = not len(below) and len(first) == len(last) and len(opening) == len(closing)
    count = len(last)
    first = first[:count]
    starts, ends = braces.take(first), braces.take(last)
    count, array_end, damaged = _until_array_end(text, begin, end, starts, ends)
    starts, ends, first, last = starts[:count], ends[:count], first[:count], last[:count]
    rest = int(ends[-1]) + 1 if count else begin

    inner = last - first - 1  # braces inside of the event
    inner_starts = np.where(inner == 2, braces.take(np.minimum(first + 1, len(braces) - 1)), -1) if count else starts
    inner_ends = np.where(inner == 2, braces.take(np.maximum(last - 1, 0)), ends) if count else ends
    irregular = inner > 2
    strings = _Strings(text, words, opening, closing, escapes)
    keys = _keys(strings, _Events(starts, ends, inner_starts, inner_ends, irregular))
    return Scan(starts, ends, inner_ends, irregular, keys, opening, closing, rest, array_end, damaged, is_balanced)


def _without_escaped(text: Bytes, marks: Int64s) -> Int64s:
    """The marks without quotes that follow an odd number of backslashes."""
    suspects = np.flatnonzero((text.take(marks) == _QUOTE) & (text.take(marks - 1) == _BACKSLASH))
    if not len(suspects):
        return marks
    places = marks.take(suspects) - 1
    run = places - next_of(np.flatnonzero(text != _BACKSLASH), places, -1)
    return np.delete(marks, suspects[(run & 1) == 1])


def _until_array_end(text: Bytes, begin: int, end: int, starts: Int64s, ends: Int64s) -> tuple[int, int | None, int]:
    """Number of events before the end of the array, position of that end, and number of gaps with other content.

    Between two events there is one comma and white space.
    """
    count = len(starts)
    befores = np.concatenate([[begin], ends + 1]) if count else np.array([begin])
    nexts = np.concatenate([starts, [end]]) if count else np.array([end])
    places = skip_space(text, np.minimum(befores, len(text) - 1))
    commas = text.take(places) == _COMMA
    places = skip_space(text, places + commas)
    odd_gaps = np.flatnonzero(places < nexts)  # neither the next event nor the end of the piece
    damaged = 0
    for row in odd_gaps.tolist():
        gap = bytes(text[befores[row] : nexts[row]])
        at = gap_ends_array(gap)
        if at is not None:
            return row, int(befores[row]) + at, damaged
        # The text after the last event may be the begin of the next one.
        damaged += row < count and bool(gap.strip(b" \t\r\n,"))
    return count, None, damaged


def gap_ends_array(gap: bytes) -> int | None:
    """Position of the end of the array in the text between two events; None if it does not end there."""
    at = gap.find(b"]")
    return at if at >= 0 and not gap[:at].strip(b" \t\r\n,") else None


class _Strings(NamedTuple):
    """The text with the strings of a piece."""

    text: Bytes
    words: Words
    #: opening, closing: positions of their quotes
    opening: Int64s
    closing: Int64s
    escapes: Int64s | None  #: positions of the backslashes of the piece; None if it has none


class _Events(NamedTuple):
    """The events of a piece."""

    #: starts, ends: positions of their braces
    starts: Int64s
    ends: Int64s
    #: inner_starts, inner_ends: positions of the braces of the one object in each; −1 and `ends` for none or several
    inner_starts: Int64s
    inner_ends: Int64s
    irregular: Bools  #: which must be read one by one


def _keys(strings: _Strings, events: _Events) -> Keys:
    """The keys that are read; events in which they cannot be trusted are added to `events.irregular`."""
    text = strings.text
    is_key, is_spaced = _before_colons(strings, events.ends)
    rows = np.flatnonzero(is_key)
    opens, closes = strings.opening.take(rows), strings.closing.take(rows)
    number = _TABLE.numbers(text, strings.words, opens, closes)
    event = _event_of(opens, events.starts)
    if strings.escapes is not None:
        _mark_escaped_keys(strings.escapes, opens, closes, event, events.irregular)
    known = np.flatnonzero((number != NO_KEY) & (event >= 0))
    event, number, opens = event.take(known), number.take(known), np.append(opens, len(text))
    places, inner_starts = opens.take(known), events.inner_starts.take(event)
    inside = (places > inner_starts) & (places < events.inner_ends.take(event)) & (inner_starts >= 0)
    value = closes.take(known) + 1
    if is_spaced:
        value = skip_space(text, value)
    value = skip_space(text, value + 1)
    keys = Keys(event, number, inside, value, rows.take(known) + 1, opens.take(known + 1))
    _mark_odd_arguments(keys, events)
    return keys


def _before_colons(strings: _Strings, ends: Int64s) -> tuple[Bools, bool]:
    """Which strings are followed by a colon, none of them behind the last event; whether space follows any string."""
    after = strings.text.take(strings.closing + 1)
    is_key = after == _COLON
    spaced = np.flatnonzero(after <= 0x20)
    if len(spaced):
        colons = skip_space(strings.text, strings.closing.take(spaced) + 1)
        is_key[spaced] = strings.text.take(colons) == _COLON
    if len(ends):
        is_key[np.searchsorted(strings.closing, ends[-1]) :] = False
    return is_key, len(spaced) > 0


def _event_of(opens: Int64s, starts: Int64s) -> Int64s:
    """Row of the event that begins last before each string; −1 for a string in front of the first event."""
    if not len(starts) or not len(opens):
        return np.full(len(opens), -1, np.int64)
    # Both are sorted; searching for the events, of which there are fewer, is faster.
    bounds = np.searchsorted(opens, starts)
    event = np.repeat(np.arange(len(starts)), np.diff(bounds, append=len(opens)))
    return np.concatenate([np.full(int(bounds[0]), -1, np.int64), event]) if bounds[0] else event


def _mark_escaped_keys(escapes: Int64s, opens: Int64s, closes: Int64s, event: Int64s, irregular: Bools) -> None:
    """Mark the events with a backslash in a key."""
    if not len(opens):
        return
    within = np.searchsorted(opens, escapes) - 1
    hit = (within >= 0) & (escapes < closes.take(np.maximum(within, 0)))
    marked = event.take(within[hit])
    irregular[marked[marked >= 0]] = True


def _mark_odd_arguments(keys: Keys, events: _Events) -> None:
    """Mark the events with an object that is not `args`, or an `args` that is not an object."""
    args = np.flatnonzero((keys.number == MEMBERS.index("args") + 1) & ~keys.inside)
    event = keys.event.take(args)
    has_args = np.zeros(len(events.starts), np.bool_)
    has_args[event] = keys.value.take(args) == events.inner_starts.take(event)
    np.logical_or(events.irregular, (events.inner_starts >= 0) & ~has_args, out=events.irregular)
