"""Protocol Buffers, written for many messages at once.

Messages of one kind differ in their numbers only. With every number padded to a fixed width (a varint may carry
continuation bytes that add nothing) they all have the same length, and a million of them are one matrix of bytes that
numpy fills column by column. Source of the format: the Protocol Buffers encoding guide.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Part", "fixed64s", "message", "messages", "padded_varints", "scalar", "text", "varint"]

Bytes = npt.NDArray[np.uint8]

#: A piece of a message: the same bytes in each, or a matrix with one row a message.
Part: TypeAlias = "bytes | Bytes"

_VARINT: Final = 0
_FIXED64: Final = 1
_DELIMITED: Final = 2

#: Bytes of a padded varint that holds every 64-bit number.
_WHOLE: Final = 10


def varint(value: int) -> bytes:
    """One number that is not negative, seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def scalar(field: int, value: int) -> bytes:
    """A numeric field of one message."""
    return _tag(field, _VARINT) + varint(value)


def text(field: int, value: str) -> bytes:
    """A text field of one message."""
    return message(field, value.encode("utf-8", errors="replace"))


def message(field: int, *content: bytes) -> bytes:
    """A field that holds a message (or text), of one message."""
    joined = b"".join(content)
    return _tag(field, _DELIMITED) + varint(len(joined)) + joined


def padded_varints(field: int, values: npt.NDArray[np.integer], width: int) -> Bytes:
    """A numeric field of many messages, `width` bytes for each number.

    Args:
        field: number of the field.
        values: shape (n,), not negative and below 2^(7·width); with ten bytes, any.
        width: bytes of a number; 5 hold 35 bits, 9 hold 63, 10 hold negative ones, too, as two's complement.

    Raises:
        ValueError: a number does not fit.
    """
    if len(values) and width < _WHOLE and (int(values.min()) < 0 or int(values.max()) >> (7 * width)):
        raise ValueError(f"field {field}: numbers outside 0 … 2^{7 * width} do not fit into {width} bytes")
    tag = _tag(field, _VARINT)
    bits = values.astype(np.int64, copy=False).view(np.uint64)
    rows = np.empty((len(values), len(tag) + width), dtype=np.uint8)
    rows[:, : len(tag)] = np.frombuffer(tag, dtype=np.uint8)
    for place in range(width):
        more = 0x80 if place < width - 1 else 0
        rows[:, len(tag) + place] = (bits >> np.uint64(7 * place)) & np.uint64(0x7F) | np.uint64(more)
    return rows


def fixed64s(field: int, values: npt.NDArray[np.integer]) -> Bytes:
    """A field of eight bytes of many messages."""
    tag = _tag(field, _FIXED64)
    rows = np.empty((len(values), len(tag) + 8), dtype=np.uint8)
    rows[:, : len(tag)] = np.frombuffer(tag, dtype=np.uint8)
    rows[:, len(tag) :] = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


def messages(field: int, count: int, parts: list[Part]) -> Bytes:
    """A field that holds a message, of many messages: one row each, of equal length.

    Args:
        field: number of the field.
        count: number of rows.
        parts: what each message holds, in order.
    """
    length = sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)
    head = _tag(field, _DELIMITED) + varint(length)
    rows = np.empty((count, len(head) + length), dtype=np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
    at = len(head)
    for part in parts:
        width = len(part) if isinstance(part, bytes) else part.shape[1]
        rows[:, at : at + width] = np.frombuffer(part, dtype=np.uint8) if isinstance(part, bytes) else part
        at += width
    return rows
