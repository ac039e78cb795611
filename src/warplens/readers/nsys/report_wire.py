"""Protocol-buffer messages decoded in bulk: one step per field for thousands of messages, not one per value.

The encoding is public (https://protobuf.dev/programming-guides/encoding/). A message is a sequence of fields, each a
tag (field number × 8 + wire type) and a value; integers are varints, seven bits per byte, lowest first. Writers put the
fields of a message in ascending order, so that messages of one kind can be walked side by side: each step takes the
lowest tag at the positions of all messages, and reads that field in all messages that are at it. A step costs some
dozen array operations.

Positions are indices into the decompressed bytes (`Bytes.words` holds the eight bytes at every position).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warplens.profile.schema import Bools, Int64s
from warplens.wire import BYTES, FIXED32, FIXED64, VARINT, WireError

UInt64s = npt.NDArray[np.uint64]

#: Zero bytes after the last message, so that eight (and eight more for a long varint) can be read at any position.
_PADDING = 24

#: Maximum fields of one message. Those of Nsight Systems have fewer than a hundred; the bound stops files made to keep
#: the reader busy.
_MAX_STEPS = 1_000

_NO_CHAIN = "a message whose length does not lead to the next one"
_HIGH_BITS = np.uint64(0x8080808080808080)
_ONE = np.uint64(1)

#: The tag of a message at its end: above all real tags.
_DONE = np.int64(2**62)


class DamagedError(WireError):
    """The bytes are not a sequence of messages; the text says in a few words what was found."""


class Bytes:
    """Decompressed bytes, readable in words of eight at any position.

    Attributes:
        data: the content, and some zeros after it.
        size: number of bytes of content.
        words: the eight bytes at each position as a little-endian number.
        octets: `data` as an array of bytes.
    """

    def __init__(self, content: bytes | memoryview) -> None:
        self.size = len(content)
        self.data = bytes(content) + bytes(_PADDING)
        self.words: UInt64s = np.ndarray(shape=(self.size + _PADDING - 7,), dtype="<u8", buffer=self.data, strides=(1,))
        self.octets: npt.NDArray[np.uint8] = np.frombuffer(self.data, np.uint8)


class Values(NamedTuple):
    """One field of many messages."""

    values: Int64s  #: the numbers; for a field of bytes, where its content begins; undefined where it is not present
    ends: Int64s | None  #: for a field of bytes, where its content ends; else None
    present: Bools | None  #: the messages that have the field; None if all have

    def or_else(self, default: int) -> Int64s:
        """The numbers, with `default` for messages that lack the field."""
        return self.values if self.present is None else np.where(self.present, self.values, default)


def tag(field: int, kind: int = VARINT) -> int:
    """The tag of a field number and wire type."""
    return field << 3 | kind


def runs(source: Bytes, begin: int, end: int, first: int) -> tuple[Int64s, Int64s]:
    """Begins and ends of the messages of a list: field 1 of the message that fills `begin` to `end`.

    The list may be followed by another one in field 2: samples of the GPU's metrics (`--gpu-metrics-devices`), which
    are skipped. Each message of either list begins with its own field 1 as a number, whose tag is `first`.

    Raises:
        DamagedError: the lengths do not lead from `begin` to `end`.
    """
    if begin == end:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, ends = _chain(source, begin, end, tag(1, BYTES), first)
    stop = int(ends[-1]) if len(ends) else begin
    if stop < end:
        _, skipped_ends = _chain(source, stop, end, tag(2, BYTES), first)
        if not len(skipped_ends):
            raise DamagedError("a list that does not begin with a message" if stop == begin else _NO_CHAIN)
        if skipped_ends[-1] != end:
            raise DamagedError(_NO_CHAIN)
    return starts, ends


def _chain(source: Bytes, begin: int, end: int, head: int, first: int) -> tuple[Int64s, Int64s]:
    """Begins and ends of consecutive messages with the tag `head` from `begin` on; empty if there is none.

    All bytes that look like the begin of a message are found at once. Only where the lengths do not lead from one to
    the next are they checked one by one.
    """
    octets = source.octets
    heads = np.flatnonzero(octets[begin:end] == head).astype(np.int64) + begin
    lengths, sizes = _varints(source.words[heads + 1])
    starts = heads + 1 + sizes
    likely = (lengths > 0) & (lengths <= end - starts)
    likely[likely] = octets[starts[likely]] == first
    heads, starts, lengths = heads[likely], starts[likely], lengths[likely]
    ends = starts + lengths
    count = len(heads)
    if not count or heads[0] != begin:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    following = np.searchsorted(heads, ends)
    is_linked = (following < count) & (heads[np.minimum(following, count - 1)] == ends)
    following = np.where(is_linked, following, -1)
    breaks = np.flatnonzero(following != np.arange(1, count + 1)).tolist()
    chain = np.zeros(count, np.bool_)
    current, next_break = 0, 0
    while True:
        while breaks[next_break] < current:
            next_break += 1
        last = breaks[next_break]
        chain[current : last + 1] = True
        current = int(following[last])
        if current < 0:
            return starts[chain], ends[chain]


@dataclass
class _Walk:
    """The state of a walk: for each message its position, its end, and the tag at the position with the tag's size.

    If all messages are at the same tag, which is the usual case, `common` is that tag and `sizes` holds one size for
    all; else `common` is None.
    """

    at: Int64s
    end: Int64s
    tags: Int64s
    sizes: Int64s
    common: int | None


def walk(source: Bytes, begin: Int64s, end: Int64s, wanted: Mapping[int, str]) -> dict[str, Values]:
    """Selected fields of many messages of one kind, by name; a field that no message has is absent.

    If a field is repeated in a message, its last value counts, as in any reader of protocol buffers. Fields after the
    highest wanted tag are not read.

    Args:
        begin: where each message begins.
        end: where it ends.
        wanted: names by tag; numbers are read as signed 64-bit integers.

    Raises:
        DamagedError: a field reaches beyond its message or is of an unknown kind, or a message has far too many fields.
    """
    values_of: dict[str, Values] = {}
    if not len(begin) or not wanted:
        return values_of
    highest = max(wanted)
    state = _Walk(begin.copy(), end, begin, begin, None)
    _read_tags(source, state)
    for _ in range(_MAX_STEPS):
        lowest = int(state.tags.min()) if state.common is None else state.common
        if lowest > highest:
            return values_of
        if state.common is not None or int(state.tags.max()) == lowest:
            _step_all(source, state, lowest, wanted.get(lowest), values_of)
        else:
            _step_some(source, state, lowest, wanted.get(lowest), values_of)
    raise DamagedError("a message of far too many fields")


def _read_tags(source: Bytes, state: _Walk) -> None:
    """Read the tag of every message after a step that moved all of them."""
    words = source.words[state.at]
    first, size = _varints(words[:1])
    mask = np.uint64((1 << 8 * int(size[0])) - 1) if size[0] < 8 else ~np.uint64(0)  # bytes of a word
    inside = state.at < state.end
    if ((words & mask) == (words[0] & mask)).all() and inside.all():
        state.common, state.sizes = int(first[0]), size
        if state.common < tag(1):
            raise DamagedError("a field without a number")
    else:
        state.common = None
        state.tags, state.sizes = _tags(words, inside)


def _tags(words: UInt64s, inside: Bools) -> tuple[Int64s, Int64s]:
    tags, sizes = _varints(words)
    if not inside.all():
        tags[~inside] = _DONE
    if int(tags.min()) < tag(1):
        raise DamagedError("a field without a number")
    return tags, sizes


def _step_all(source: Bytes, state: _Walk, key: int, name: str | None, values_of: dict[str, Values]) -> None:
    begin, values, ends = _value(source, state.at + state.sizes, key, name is not None)
    if (ends > state.end).any():
        raise DamagedError("a field that reaches beyond its message")
    if name is not None:
        values_of[name] = Values(values, None, None) if begin is None else Values(begin, ends, None)
    state.at = ends.copy() if begin is not None else ends  # some steps change it in place
    _read_tags(source, state)


def _step_some(source: Bytes, state: _Walk, key: int, name: str | None, values_of: dict[str, Values]) -> None:
    """Reads this field in the messages that have it next, keeps its values if it has a name, and moves on in them."""
    rows = np.flatnonzero(state.tags == key)
    begin, values, ends = _value(source, state.at[rows] + state.sizes[rows], key, name is not None)
    limits = state.end[rows]
    if (ends > limits).any():
        raise DamagedError("a field that reaches beyond its message")
    if name is not None:
        count = len(state.at)
        old = values_of.get(name)
        if old is None:
            old_ends = None if begin is None else np.zeros(count, np.int64)
            old = Values(np.zeros(count, np.int64), old_ends, np.zeros(count, np.bool_))
        old.values[rows] = values if begin is None else begin
        if old.ends is not None:
            old.ends[rows] = ends
        if old.present is not None:
            old.present[rows] = True
        values_of[name] = old
    state.at[rows] = ends
    state.tags[rows], state.sizes[rows] = _tags(source.words[ends], ends < limits)


def _value(source: Bytes, at: Int64s, key: int, needed: bool) -> tuple[Int64s | None, Int64s, Int64s]:
    """(begin or None, numbers, end) of the values at these positions; begins only for bytes."""
    kind = key & 7
    if kind in (FIXED64, FIXED32):
        return at, at, at + (8 if kind == FIXED64 else 4)
    if kind not in (VARINT, BYTES):
        raise DamagedError(f"a field of the unknown kind {kind}")
    words = source.words[at]
    if kind == VARINT:
        if not needed:
            return None, at, at + _sizes(source, words, at)
        values, sizes = _varints(words)
        long = sizes > 8
        if long.any():
            values[long], sizes[long] = _long_varints(source, words[long], at[long])
        return None, values, at + sizes
    lengths, sizes = _varints(words)
    begin = at + sizes
    if (sizes > 8).any() or (lengths > source.size).any():
        raise DamagedError("a field that reaches beyond its message")
    return begin, begin, begin + lengths


def _varints(words: UInt64s) -> tuple[Int64s, Int64s]:
    """The varints at the low end of these words, and their sizes in bytes; 9 if they do not end within the word."""
    if not (words & np.uint64(0x80)).any():
        return (words & np.uint64(0x7F)).astype(np.int64), np.ones(len(words), np.int64)
    stop = ~words & _HIGH_BITS
    covered = stop ^ (stop - _ONE)  # all bits up to the first stop bit; all 64 if there is none
    sizes = np.bitwise_count(covered).astype(np.int64) >> 3
    endless = stop == 0
    if endless.any():
        sizes[endless] = 9
    bits = words & covered
    bits &= np.uint64(0x7F7F7F7F7F7F7F7F)
    bits = (bits & np.uint64(0x007F007F007F007F)) | ((bits & np.uint64(0x7F007F007F007F00)) >> _ONE)
    bits = (bits & np.uint64(0x00003FFF00003FFF)) | ((bits & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    bits = (bits & np.uint64(0x000000000FFFFFFF)) | ((bits & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    return bits.view(np.int64), sizes


def _sizes(source: Bytes, words: UInt64s, at: Int64s) -> Int64s:
    """The sizes in bytes of the varints at these positions."""
    if not (words & np.uint64(0x80)).any():
        return np.ones(len(words), np.int64)
    stop = ~words & _HIGH_BITS
    sizes = np.bitwise_count(stop ^ (stop - _ONE)).astype(np.int64) >> 3
    long = stop == 0
    if long.any():
        sizes[long] = _long_varints(source, words[long], at[long])[1]
    return sizes


def _long_varints(source: Bytes, words: UInt64s, at: Int64s) -> tuple[Int64s, Int64s]:
    """Varints of nine and ten bytes: numbers from 2⁵⁶ on, and all negative ones."""
    low = _varints(words & np.uint64(0x7F7F7F7F7F7F7F7F) | np.uint64(0x0080808080808080))[0].view(np.uint64)
    ninth = source.octets[at + 8].astype(np.uint64)
    tenth = np.where(ninth >= 0x80, source.octets[at + 9].astype(np.uint64), np.uint64(0))
    if (tenth >= 0x80).any():
        raise DamagedError("a number longer than 64 bits")
    value = low | ((ninth & np.uint64(0x7F)) << np.uint64(56)) | (tenth << np.uint64(63))
    return value.view(np.int64), np.where(ninth >= 0x80, 10, 9).astype(np.int64)
