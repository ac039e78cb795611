"""Protocol-buffer messages in place: positions of fields in mapped memory, copied only on request; and their writing.

Written by hand because a report consists mostly of metrics, tens of thousands of short submessages, for each of which
Python's protobuf makes an object. Here the walk over their lengths is the only step that Python takes per metric (0.2
µs); numpy decodes their content. Protobuf, told to leave metrics as bytes, is no faster at that walk alone.

Format: https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Data = mmap.mmap | bytes

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}

#: A key is the number of a field, from 1, above three bits of wire type.
_LEAST_KEY = 1 << 3

#: A varint holds 64 bits, seven per byte.
_VARINT_BITS = 63
_MASK = (1 << 64) - 1

#: Far above real reports (some thousand metrics of a launch, instances of a metric, names in a table). A larger message
#: was made to fill the memory, since a field can take as little as two bytes.
_MAX_GATHERED = 1 << 20
_MAX_FIELDS = 1 << 18

#: The number of fields is checked after this many bytes of a message.
_CHECK_EVERY = 1 << 20


class WireError(ValueError):
    """The bytes are not a message: a length leads outside, a key is invalid, or a number does not end."""


class Message:
    """The fields of one message by their numbers. Of a repeated occurrence the last one counts, as in protobuf.

    Attributes:
        gathered: positions of the lengths of the gathered submessages, each followed by the submessage.
    """

    __slots__ = ("_data", "_fields", "gathered")

    def __init__(self, data: Data, start: int, end: int, gather: int = 0) -> None:
        self._data = data
        self._fields: list[tuple[int, int, int, int]] = []
        self.gathered = array("q")
        try:
            self._scan(start, end, gather << 3 | BYTES if gather else -1)
        except (IndexError, KeyError):
            raise WireError(
                f"the message at byte {start} goes beyond the file or holds something that is not a field"
            ) from None

    def _scan(self, start: int, end: int, gather_key: int) -> None:
        """Reads the places of all fields between these bytes; those of `gather_key` are kept apart."""
        data, at = self._data, start
        keep, gather = self._fields.append, self.gathered.append
        while at < end:
            stop = min(end, at + _CHECK_EVERY)
            while at < stop:
                key = data[at]
                value = at + 1
                if key == gather_key:
                    gather(value)
                    size = data[value]
                    at += size + 2
                    if size > 0x7F:
                        size, value = varint(data, value)
                        at = value + size
                    continue
                if key > 0x7F:
                    key, value = varint(data, at)
                if key < _LEAST_KEY:
                    raise WireError(f"byte {at} begins no field")
                wire = key & 7
                if wire == BYTES:
                    size, value = varint(data, value)
                    at = value + size
                elif wire == VARINT:
                    value, at = varint(data, value)
                else:
                    at = value + _SIZES[wire]
                keep((key >> 3, wire, value, at))
            if len(self.gathered) > _MAX_GATHERED or len(self._fields) > _MAX_FIELDS:
                raise WireError(f"the message at byte {start} has more fields than any report needs")
        if at != end:
            raise WireError(f"a field of the message at byte {start} goes beyond it")

    def integer(self, number: int) -> int | None:
        """An unsigned number; None if the field is absent or of another type."""
        wire, value, _ = self._last(number)
        return value if wire == VARINT else None

    def double(self, number: int) -> float | None:
        """A number of 8 or 4 bytes; None if the field is absent or of another type."""
        wire, start, end = self._last(number)
        if wire not in (FIXED64, FIXED32):
            return None
        value: float
        (value,) = struct.unpack("<d" if wire == FIXED64 else "<f", self._data[start:end])
        return value

    def text(self, number: int) -> str | None:
        """Text, with U+FFFD for invalid UTF-8; None if the field is absent or of another type."""
        wire, start, end = self._last(number)
        return self._data[start:end].decode("utf-8", "replace") if wire == BYTES else None

    def texts(self, number: int) -> list[str]:
        """The texts of a repeated field."""
        return [self._data[start:end].decode("utf-8", "replace") for start, end in self.spans(number)]

    def message(self, number: int) -> Message | None:
        """A submessage; None if the field is absent or of another type."""
        wire, start, end = self._last(number)
        return Message(self._data, start, end) if wire == BYTES else None

    def messages(self, number: int) -> Iterator[Message]:
        """The submessages of a repeated field."""
        for start, end in self.spans(number):
            yield Message(self._data, start, end)

    def spans(self, number: int) -> list[tuple[int, int]]:
        """Begin and end of the submessages or texts of a repeated field."""
        return [(start, end) for field, wire, start, end in self._fields if field == number and wire == BYTES]

    def _last(self, number: int) -> tuple[int, int, int]:
        for field, wire, value, end in reversed(self._fields):
            if field == number:
                return wire, value, end
        return -1, 0, 0


def varint(data: Data, at: int) -> tuple[int, int]:
    """A number of variable length and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
        if shift > _VARINT_BITS:
            raise WireError(f"the number before byte {at} does not end")


def fields_of(message: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
    """For each field of a message: number, wire type, content, and encoding as a whole.

    Raises:
        WireError: the bytes are not a message.
    """
    at = 0
    try:
        while at < len(message):
            begin = at
            key, at = varint(message, at)
            wire, start = key & 7, at
            if wire == VARINT:
                _, at = varint(message, at)
            elif wire == BYTES:
                length, start = varint(message, at)
                at = start + length
            elif wire in _SIZES:
                at += _SIZES[wire]
            else:
                raise WireError(f"a field of the unknown type {wire}")
            if at > len(message) or key < _LEAST_KEY:
                raise WireError("a field goes beyond its message")
            yield key >> 3, wire, message[start:at], message[begin:at]
    except IndexError:
        raise WireError("a field goes beyond its message") from None


# --- Writing Protocol Buffers, many messages at once ------------------------------------------------------------------
#
# Messages of one kind differ in their numbers only. With every number padded to a fixed width (a varint may carry
# redundant continuation bytes) they all have the same length, and a million of them are one matrix of bytes that numpy
# fills column by column. Source of the format: the Protocol Buffers encoding guide.

Bytes = npt.NDArray[np.uint8]

#: A part of a message: the same bytes in each, or a matrix with one row per message.
Part: TypeAlias = "bytes | Bytes"

#: Bytes of a padded varint that can hold any 64-bit number.
_MAX_VARINT_BYTES: Final = 10


def wire_varint(value: int) -> bytes:
    """One non-negative number, seven bits per byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tag(field: int, kind: int) -> bytes:
    return wire_varint(field << 3 | kind)


def scalar(field: int, value: int) -> bytes:
    """A numeric field of one message."""
    return _tag(field, VARINT) + wire_varint(value)


def text(field: int, value: str) -> bytes:
    """A text field of one message."""
    return message(field, value.encode("utf-8", errors="replace"))


def message(field: int, *content: bytes) -> bytes:
    """A field that holds a message (or text), of one message."""
    joined = b"".join(content)
    return _tag(field, BYTES) + wire_varint(len(joined)) + joined


def padded_varints(field: int, values: npt.NDArray[np.integer], width: int) -> Bytes:
    """A numeric field of many messages, `width` bytes for each number."""
    if len(values) and width < _MAX_VARINT_BYTES and (int(values.min()) < 0 or int(values.max()) >> (7 * width)):
        raise ValueError(f"field {field}: numbers outside 0 … 2^{7 * width} do not fit into {width} bytes")
    tag = _tag(field, VARINT)
    bits = values.astype(np.int64, copy=False).view(np.uint64)
    rows = np.empty((len(values), len(tag) + width), dtype=np.uint8)
    rows[:, : len(tag)] = np.frombuffer(tag, dtype=np.uint8)
    for place in range(width):
        more = 0x80 if place < width - 1 else 0
        rows[:, len(tag) + place] = (bits >> np.uint64(7 * place)) & np.uint64(0x7F) | np.uint64(more)
    return rows


def fixed64s(field: int, values: npt.NDArray[np.integer]) -> Bytes:
    """A field of eight bytes of many messages."""
    tag = _tag(field, FIXED64)
    rows = np.empty((len(values), len(tag) + 8), dtype=np.uint8)
    rows[:, : len(tag)] = np.frombuffer(tag, dtype=np.uint8)
    rows[:, len(tag) :] = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


def messages(field: int, count: int, parts: list[Part]) -> Bytes:
    """A field that holds a message, of many messages: one row each, of equal length."""
    length = sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)
    head = _tag(field, BYTES) + wire_varint(length)
    rows = np.empty((count, len(head) + length), dtype=np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    at = len(head)
    for part in parts:
        width = len(part) if isinstance(part, bytes) else part.shape[1]
        rows[:, at : at + width] = np.frombuffer(part, dtype=np.uint8) if isinstance(part, bytes) else part
        at += width
    return rows
