"""Values of metrics, decoded by numpy where they lie in a report, thousands of them at a time.

A value is a message of one field: text, a number of 4 or 8 bytes, or one of variable length. Writers put the fields of
a message in the order of their numbers; what has another layout is decoded by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.readers.ncu_messages import value_of
from warplens.readers.ncu_rep_wire import Data, Message, WireError

__all__ = ["Flags", "Positions", "ValueDecoder", "Values", "as_series"]

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

#: Kinds of values. The bits of a text are its position among the texts, those of a real number are a double's.
_NONE, _TEXT, _REAL, _INTEGER = range(4)

#: First byte of a value: the field's number and its type.
_KEY_FLOAT, _KEY_DOUBLE, _KEY_UINT32, _KEY_UINT64 = 0x15, 0x19, 0x20, 0x28


@dataclass
class Values:
    """Decoded values: of each its kind and its bits."""

    kinds: Bytes
    bits: npt.NDArray[np.uint64]

    @classmethod
    def nothing(cls, count: int) -> Values:
        """So many absent values."""
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[Values]) -> Values:
        """The values of several decodings by one decoder."""
        nothing = cls.nothing(0)
        return cls(
            np.concatenate([nothing.kinds, *(part.kinds for part in parts)]),
            np.concatenate([nothing.bits, *(part.bits for part in parts)]),
        )


class ValueDecoder:
    """Decodes numbers and values at given positions of a report.

    Attributes:
        texts: the distinct texts that were found; the bits of a text value are its position here.
        broken: how many values could not be decoded; they are absent.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._seen: dict[bytes, tuple[int, int]] = {}
        self.texts: list[str] = []
        self.broken = 0

    def byte(self, at: Positions) -> Bytes:
        """The bytes at these positions; beyond the end the last byte of the file."""
        return self._bytes[np.minimum(at, self._bytes.size - 1)]

    def varints(self, at: Positions) -> tuple[Positions, Positions]:
        """The numbers of variable length at these positions, as the bits of 64, and the positions after them.

        After a number that does not end within ten bytes, or not within the file, the position is one beyond the file.
        """
        byte = self.byte(at)
        values = (byte & 0x7F).astype(np.int64)
        after = at + 1
        rows = np.flatnonzero(byte > 0x7F)
        shift = 7
        while rows.size and shift < 64:
            byte = self.byte(after[rows])
            values[rows] |= (byte & 0x7F).astype(np.int64) << shift
            after[rows] += 1
            rows = rows[byte > 0x7F]
            shift += 7
        after[rows] = self._bytes.size + 1
        return values, after

    def behind_lengths(self, at: Positions) -> tuple[Positions, Positions]:
        """Begin and end of the submessages whose lengths stand at these positions."""
        sizes, starts = self.varints(at)
        return starts, starts + sizes

    def submessages(self, at: Positions, ends: Positions, key: int) -> tuple[Positions, Positions, Flags]:
        """Begin and end of the submessages whose `key` stands at these positions, and whether they lie within `ends`.

        Where none begins there, a place of no length at `at`.
        """
        begins = (at < ends) & (self.byte(at) == key)
        sizes, starts = self.varints(at + 1)
        starts = np.where(begins, starts, at)
        sizes = np.where(begins, sizes, 0)
        inside = (starts <= ends) & (sizes >= 0) & (sizes <= ends - starts)
        return starts, starts + np.where(inside, sizes, 0), inside

    def values(self, starts: Positions, ends: Positions) -> Values:
        """The values whose messages lie there; a place of no length is an absent value."""
        values = Values.nothing(len(starts))
        sizes = ends - starts
        keys = self.byte(starts)

        doubles = np.flatnonzero((keys == _KEY_DOUBLE) & (sizes == 9))
        values.bits[doubles] = self._fixed(starts[doubles] + 1, 8).view(np.uint64)
        floats = np.flatnonzero((keys == _KEY_FLOAT) & (sizes == 5))
        values.bits[floats] = self._fixed(starts[floats] + 1, 4).view(np.float32).astype(np.float64).view(np.uint64)
        values.kinds[doubles] = values.kinds[floats] = _REAL

        integers = np.flatnonzero(((keys == _KEY_UINT64) | (keys == _KEY_UINT32)) & (sizes > 1))
        numbers, after = self.varints(starts[integers] + 1)
        whole = after == ends[integers]
        values.bits[integers[whole]] = numbers[whole].view(np.uint64)
        values.kinds[integers[whole]] = _INTEGER

        for row in np.flatnonzero((values.kinds == _NONE) & (sizes > 0)).tolist():
            values.kinds[row], values.bits[row] = self._one(int(starts[row]), int(ends[row]))
        return values

    def _fixed(self, at: Positions, width: int) -> Bytes:
        found: Bytes = self._bytes[at[:, None] + np.arange(width)].reshape(-1)
        return found

    def _one(self, start: int, end: int) -> tuple[int, int]:
        """Kind and bits of one value; texts repeat from launch to launch, so what was seen before is known."""
        raw = self._data[start:end]
        if raw not in self._seen:
            self._seen[raw] = self._decoded(start, end)
        return self._seen[raw]

    def _decoded(self, start: int, end: int) -> tuple[int, int]:
        try:
            value = value_of(Message(self._data, start, end))
        except WireError:
            self.broken += 1
            return _NONE, 0
        if isinstance(value, str):
            self.texts.append(value)
            return _TEXT, len(self.texts) - 1
        if isinstance(value, int):
            return _INTEGER, value
        return (_NONE, 0) if value is None else (_REAL, int(np.float64(value).view(np.uint64)))


def as_series(name: str, values: Values, texts: Sequence[str]) -> pl.Series:
    """Values as one column: `String` if there is any text, else `Float64` if there is any real number, else `UInt64`.

    A real number that is none (a ratio of nothing to nothing) is null, and so is an absent value.
    """
    kinds, bits = values.kinds, values.bits
    found = np.bincount(kinds, minlength=4)
    if found[_TEXT]:
        return pl.Series(name, [_as_text(*value, texts) for value in zip(kinds.tolist(), bits, strict=True)], pl.String)
    if found[_REAL] or not found[_INTEGER]:
        reals = bits.view(np.float64)
        if found[_REAL] < kinds.size:
            reals = np.where(kinds == _INTEGER, bits.astype(np.float64), np.where(kinds == _NONE, np.nan, reals))
        return pl.Series(name, reals, nan_to_null=True)
    series = pl.Series(name, bits)
    return series.zip_with(pl.Series(kinds != _NONE), pl.Series([None], dtype=pl.UInt64)) if found[_NONE] else series


def _as_text(kind: int, bits: np.uint64, texts: Sequence[str]) -> str | None:
    if kind == _TEXT:
        return texts[int(bits)]
    if kind == _NONE:
        return None
    return str(int(bits)) if kind == _INTEGER else str(float(bits.view(np.float64)))
