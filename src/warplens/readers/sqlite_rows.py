"""Whole numbers of a table in an SQLite file, decoded from its pages by array operations; and buffers for its columns.

SQLite and a driver work value by value; this module processes all rows of several pages at once: rows whose values take
the same number of bytes have their columns at the same offsets. For 1 M kernels and as many API calls this takes 0.4 s
of processor time, ADBC 1.1 s. It reads what exports of Nsight Systems hold, and nothing else: b-tree tables of numbered
rows, each on one page, with every column stored. For anything else (long rows, real numbers or texts where numbers are
requested, added columns, gaps in the row numbers, a contradictory page) it returns None, and SQLite reads the table.
The format: https://www.sqlite.org/fileformat2.html#b_tree_pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import Int64s, PolarsType

Bytes = npt.NDArray[np.uint8]

_LEAF, _INTERIOR = 13, 5
_LEAF_HEAD, _INTERIOR_HEAD = 8, 12

#: Maximum height of a table: with two children per page, 40 levels hold 2⁴⁰ pages.
_MAX_LEVELS = 40

#: Pages decoded at a time: the arrays of some 40,000 rows stay in the processor's cache, and the cost per kind of row
#: (40 µs) does not matter. Measured: 512 to 2,048 pages differ by less than 20 %, 4,096 take 50 % longer.
_PAGES = 1_024

#: With more kinds of rows than this in these pages SQLite reads them; exports have 2 to 120.
_MAX_KINDS = 400

_LAST_ROW = 2**63 - 1

#: With more columns the header of a row is longer than one byte can encode.
_MAX_COLUMNS = 126

#: Offset of the page whose bytes SQLite uses for file locks; it holds no data.
_LOCKED_BYTE = 2**30

#: Bytes of a value by its serial type; from 12 on texts and blobs.
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 128))], np.int64)
_NULL, _ZERO, _ONE = 0, 8, 9

#: Reading of a number by its serial type: NumPy's type, bytes before the value at which it begins, bits of these.
_NUMBERS = {1: (">i1", 0, 0), 2: (">i2", 0, 0), 3: (">i4", 1, 8), 4: (">i4", 0, 0), 5: (">i8", 2, 16), 6: (">i8", 0, 0)}


class _OtherwiseStored(Exception):  # noqa: N818 – not an error: SQLite reads what this module does not
    """The table is stored in a way that is not decoded here."""


@dataclass(frozen=True)
class Stored:
    """Location of a table's rows in a file."""

    path: Path
    page_bytes: int  #: the size of its pages
    usable_bytes: int  #: bytes of each page, less those reserved by extensions
    columns: int  #: number of columns
    leaves: Int64s  #: pages that hold rows, in the order of the rows
    last: Int64s  #: highest possible row number of each page

    def spans(self, first: int | None, last: int | None) -> bool:
        """Whether rows with these numbers are on the first and the last page, so that no row is outside."""
        if first is None or last is None:
            return False
        return bool(first <= self.last[0]) and (len(self.last) == 1 or bool(last > self.last[-2]))


def stored(path: Path, page_bytes: int, usable_bytes: int, pages: int, root: int, columns: int) -> Stored | None:
    """Location of the rows of the table with b-tree root page `root`; None if it is not decoded here."""
    if columns > _MAX_COLUMNS:
        return None
    try:
        with path.open("rb", buffering=0) as file:
            leaves, last = _leaves(file, page_bytes, usable_bytes, root, pages)
    except (_OtherwiseStored, OSError):
        return None
    return Stored(path, page_bytes, usable_bytes, columns, leaves, last)


def whole_numbers(table: Stored, places: dict[str, int], first: int, count: int) -> pl.DataFrame | None:
    """Columns of the rows numbered `first` to `first + count - 1`, none of them missing, as `Int64`.

    Args:
        places: position of each column in the row, by name.
        first: number of the first row.

    Returns:
        The rows in order; None if they are not stored as numbers, without gaps, and as expected.
    """
    low, high = np.searchsorted(table.last, [first, first + count - 1]).tolist()
    if high >= len(table.leaves):
        return None
    values = {name: np.empty(count, np.int64) for name in places}
    nulls: dict[str, npt.NDArray[np.bool_]] = {}
    done = 0
    try:
        with table.path.open("rb", buffering=0) as file:
            for begin in range(low, high + 1, _PAGES):
                pages = _Pages(table, file, begin, min(begin + _PAGES, high + 1))
                rows = pages.between(first, first + count)
                if rows.stop > rows.start and pages.rows[rows.start] != first + done:
                    return None
                pages.decode(rows, places, done, values, nulls)
                done += rows.stop - rows.start
    except (_OtherwiseStored, OSError):
        return None
    if done != count:
        return None
    return pl.DataFrame([_series(name, column, nulls.get(name), pl.Int64) for name, column in values.items()])


def _series(name: str, values: npt.NDArray[Any], nulls: npt.NDArray[np.bool_] | None, dtype: PolarsType) -> pl.Series:
    series = pl.Series(name, values, dtype=dtype)
    if nulls is None:
        return series
    if nulls.all():
        return pl.repeat(None, len(values), dtype=dtype, eager=True).alias(name)
    return series.zip_with(pl.Series(~nulls), pl.Series([None], dtype=dtype))


def _leaves(file: BinaryIO, page_bytes: int, usable: int, root: int, pages: int) -> tuple[Int64s, Int64s]:
    """The pages with rows, and the highest possible row number of each."""
    level, last = np.array([root]), np.array([_LAST_ROW])
    for _ in range(_MAX_LEVELS):
        if len(level) > pages or level.min() < 2 or level.max() > pages:  # page 1 holds the schema
            break
        if (level == _LOCKED_BYTE // page_bytes + 1).any():
            break
        file.seek((int(level[0]) - 1) * page_bytes)
        if file.read(1) == bytes([_LEAF]):  # all leaves are on one level; each is checked when it is decoded
            return level, last
        children_by_page, keys_by_page = [], []
        for page, key in zip(level.tolist(), last.tolist(), strict=True):
            file.seek((page - 1) * page_bytes)
            children, highest = _children(np.frombuffer(file.read(page_bytes), np.uint8), usable)
            children_by_page.append(children)
            keys_by_page.append(np.append(highest, key))
        level, last = np.concatenate(children_by_page), np.concatenate(keys_by_page)
        if (last[1:] <= last[:-1]).any():
            break
    raise _OtherwiseStored


def _children(page: Bytes, usable: int) -> tuple[Int64s, Int64s]:
    """The pages below an interior page, and for each but the last the highest row number below it."""
    if len(page) < usable or page[0] != _INTERIOR:
        raise _OtherwiseStored
    count = int(page[3]) << 8 | int(page[4])
    places = _INTERIOR_HEAD + 2 * np.arange(count)
    if _INTERIOR_HEAD + 2 * count > usable:
        raise _OtherwiseStored
    cells = page[places].astype(np.int64) << 8 | page[places + 1]
    if (cells > usable - 4 - 1).any():
        raise _OtherwiseStored
    padded = np.concatenate([page, np.zeros(16, np.uint8)])
    words = np.lib.stride_tricks.sliding_window_view(padded, 4)[np.append(cells, 8)].copy().view(">u4")
    keys, _ = _varints(padded, cells + 4)
    return words.ravel().astype(np.int64), keys


def _varints(data: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Numbers in SQLite's variable length, and their ends. Numbers of nine bytes, all negative, are not decoded."""
    byte = data[at]
    value, at = (byte & 127).astype(np.int64), at + 1
    for _ in range(7):
        continues = byte >= 128  # this bit marks that another byte follows
        if not continues.any():
            return value, at
        byte = np.where(continues, data[at], 0).astype(np.uint8)
        value = np.where(continues, value << 7 | (byte & 127), value)
        at = at + continues
    if (byte >= 128).any():
        raise _OtherwiseStored
    return value, at


class _Pages:
    """Some leaves of a table: begins and lengths of their rows.

    Attributes:
        rows: row numbers, ascending without gaps.
    """

    def __init__(self, table: Stored, file: BinaryIO, begin: int, end: int) -> None:
        """Reads the leaves from `begin` to `end`; raises `_OtherwiseStored` if they are not whole rows in order."""
        size, usable, leaves = table.page_bytes, table.usable_bytes, table.leaves[begin:end]
        self._head, self._words = table.columns + 1, -(-(table.columns + 1) // 8)
        # Padding on both sides, so that a value can be read as part of a wider one, and a header as whole words,
        # anywhere.
        self._data = data = np.zeros(8 + len(leaves) * size + 8 * self._words, np.uint8)
        runs = [0, *(np.flatnonzero(np.diff(leaves) != 1) + 1).tolist(), len(leaves)]
        for first, after in pairwise(runs):
            file.seek((int(leaves[first]) - 1) * size)
            room = data.data[8 + first * size : 8 + after * size]
            if file.readinto(room) != len(room):  # type: ignore[attr-defined]
                raise _OtherwiseStored
        pages = 8 + np.arange(len(leaves)) * size
        counts = data[pages + 3].astype(np.int64) << 8 | data[pages + 4]
        if (data[pages] != _LEAF).any() or (counts == 0).any() or (_LEAF_HEAD + 2 * counts > usable).any():
            raise _OtherwiseStored
        page = np.repeat(pages, counts)
        place = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts)
        pointers = page + _LEAF_HEAD + 2 * place
        cells = data[pointers].astype(np.int64) << 8 | data[pointers + 1]
        # A row takes at least four bytes: its length, its number, the length of its header, the type of a value.
        if (cells < _LEAF_HEAD).any() or (cells > usable - 4).any():
            raise _OtherwiseStored
        self._bytes, at = _varints(data, page + cells)
        self.rows, self._starts = _varints(data, at)
        # usable - 35: a longer row continues on other pages.
        if (self._bytes > usable - 35).any() or (self._starts + self._bytes > page + usable).any():
            raise _OtherwiseStored
        if (self.rows[1:] - self.rows[:-1] != 1).any() or (data[self._starts] != self._head).any():
            raise _OtherwiseStored
        # A misplaced page holds rows that belong elsewhere by the pages above.
        highest = self.rows[np.cumsum(counts) - 1]
        if (highest > table.last[begin:end]).any() or (begin and self.rows[0] <= table.last[begin - 1]):
            raise _OtherwiseStored
        if (highest[:-1] + 1 <= table.last[begin : end - 1]).any():
            raise _OtherwiseStored

    def between(self, first: int, end: int) -> slice:
        """Positions of the rows with numbers from `first` to before `end`."""
        return slice(*np.searchsorted(self.rows, [first, end]).tolist())

    def decode(
        self,
        rows: slice,
        places: dict[str, int],
        into: int,
        values: dict[str, Int64s],
        nulls: dict[str, npt.NDArray[np.bool_]],
    ) -> None:
        """Write the columns of these rows into `values`, from `into` on, and mark nulls in `nulls`."""
        starts, lengths = self._starts[rows], self._bytes[rows]
        words = self._heads(starts)
        for of_kind in _rows_by_header(words):
            selection = slice(None) if len(of_kind) == len(starts) else of_kind
            header = words[:, of_kind[0]]
            if any((word[selection] != expected).any() for word, expected in zip(words, header, strict=True)):
                raise _OtherwiseStored
            kinds = np.frombuffer(header.tobytes(), np.uint8)[1 : self._head]
            if (kinds >= len(_SIZES)).any():
                raise _OtherwiseStored
            ends = self._head + np.cumsum(_SIZES[kinds])
            if (lengths[selection] != ends[-1]).any():
                raise _OtherwiseStored
            target: Any = slice(into, into + len(starts)) if isinstance(selection, slice) else of_kind + into
            self._put(starts[selection], kinds, ends - _SIZES[kinds], places, target, values, nulls)

    def _heads(self, starts: Int64s) -> npt.NDArray[np.uint64]:
        """The types of each row's values, eight per word, as an array of words by rows."""
        words = self._words
        anywhere = np.ndarray(len(self._data) - 8 * words + 1, f"V{8 * words}", self._data, strides=(1,))
        heads = np.ascontiguousarray(anywhere[starts].view("<u8").reshape(-1, words).T)
        heads[-1] &= np.uint64(2 ** (8 * (self._head - 8 * (words - 1))) - 1)  # without the bytes after the header
        return heads

    def _put(
        self,
        starts: Int64s,
        kinds: Bytes,
        offsets: Int64s,
        places: dict[str, int],
        at: Any,
        values: dict[str, Int64s],
        nulls: dict[str, npt.NDArray[np.bool_]],
    ) -> None:
        """Write the columns of rows with equal value sizes."""
        numbers: dict[str, tuple[str, int, int]] = {}
        for name, place in places.items():
            kind = int(kinds[place])
            if kind in _NUMBERS:
                number_type, before, bits = _NUMBERS[kind]
                numbers[name] = number_type, int(offsets[place]) - before, bits
            elif kind in (_ZERO, _ONE, _NULL):
                values[name][at] = int(kind == _ONE)
                if kind == _NULL:
                    nulls.setdefault(name, np.zeros(len(values[name]), np.bool_))[at] = True
            else:
                raise _OtherwiseStored
        if not numbers:
            return
        first_offset = min(offset for _, offset, _ in numbers.values())
        width = max(offset + int(number_type[-1]) for number_type, offset, _ in numbers.values()) - first_offset
        fields = {
            "names": list(numbers),
            "formats": [number_type for number_type, _, _ in numbers.values()],
            "offsets": [offset - first_offset for _, offset, _ in numbers.values()],
            "itemsize": width,
        }
        anywhere = np.ndarray(len(self._data) - width + 1, f"V{width}", self._data, strides=(1,))
        fields_at = anywhere[starts + first_offset].view(np.dtype(fields))  # type: ignore[call-overload]
        for name, (_, _, bits) in numbers.items():
            column = fields_at[name]
            if bits:
                column = column.astype(column.dtype.newbyteorder("="))
                column <<= bits
                column >>= bits
            values[name][at] = column


def _rows_by_header(words: npt.NDArray[np.uint64]) -> list[Int64s]:
    """Rows grouped by equal words, by a hash of the words; the caller must verify the equality."""
    if (words == words[:, :1]).all():
        return [np.arange(words.shape[1])] if words.shape[1] else []
    odd = np.uint64(0x9E3779B97F4A7C15)
    total = np.zeros(words.shape[1], np.uint64)
    for word in words:
        total = (total ^ word) * odd
        total ^= total >> np.uint64(29)
    # By 16 bits of it, which can be sorted by counting. Two kinds with equal bits are mixed, mostly in few runs.
    order = np.argsort((total >> np.uint64(48)).astype(np.uint16), kind="stable")
    ordered = total[order]
    if (cuts := np.count_nonzero(ordered[1:] != ordered[:-1])) >= _MAX_KINDS:
        order = np.argsort(total, kind="stable")
        ordered = total[order]
        cuts = np.count_nonzero(ordered[1:] != ordered[:-1])
    if cuts >= _MAX_KINDS:
        raise _OtherwiseStored
    return np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1)


# --- Buffers for the columns of a large table -------------------------------------------------------------------------
#
# Each value is written once, into its final position, by the thread that read it. Joining parts with `polars.concat`
# instead costs a second copy of everything: at 10 M kernels a quarter of the whole loading time, most of it spent on
# fresh pages of memory, and 1 GB at the peak.


class ColumnBuffers:
    """Buffers for the columns of one table, filled part by part."""

    def __init__(self, schema: pl.Schema, capacities: Sequence[int]) -> None:
        self._schema = schema
        self._offsets = np.concatenate([[0], np.cumsum(capacities, dtype=np.int64)]).tolist()
        self._counts = [0] * len(capacities)
        # Pages of memory that no part writes to are never touched, so that excess capacity costs nothing.
        self._values = {
            name: np.empty(self._offsets[-1], np.int64 if dtype == pl.Int64 else np.int32)
            for name, dtype in schema.items()
            if dtype != pl.Binary
        }
        self._nulls: dict[str, npt.NDArray[np.bool_]] = {}
        self._binaries: dict[str, list[pl.Series]] = {
            name: [pl.Series(dtype=pl.Binary)] * len(capacities) for name, dtype in schema.items() if dtype == pl.Binary
        }
        self._lock = Lock()

    def put(self, part: int, frame: pl.DataFrame) -> None:
        """Store the rows of a part; safe to call from several threads, once for each part."""
        self._counts[part] = frame.height
        for name, column in zip(frame.columns, frame.get_columns(), strict=True):
            if name in self._binaries:
                self._binaries[name][part] = column
                continue
            place = self._offsets[part]
            for chunk in column.get_chunks():
                rows = slice(place, place + chunk.len())
                if chunk.null_count():
                    self._null_flags(name)[rows] = chunk.is_null().to_numpy()
                    chunk = chunk.fill_null(0)  # noqa: PLW2901
                self._values[name][rows] = chunk.to_numpy()
                place += chunk.len()

    def frame(self) -> pl.DataFrame:
        """All rows, in the order of the parts. The frame takes over the buffers."""
        starts = [0, *np.cumsum(self._counts).tolist()]
        columns = []
        for name, dtype in self._schema.items():
            if name in self._binaries:
                columns.append(pl.concat([pl.Series(dtype=pl.Binary), *self._binaries[name]]).alias(name))
                continue
            values = self._compacted(self._values.pop(name), starts)
            nulls = self._compacted(self._nulls.pop(name), starts) if name in self._nulls else None
            columns.append(_series(name, values, nulls, dtype))
        return pl.DataFrame(columns)

    def _null_flags(self, name: str) -> npt.NDArray[np.bool_]:
        with self._lock:
            return self._nulls.setdefault(name, np.zeros(self._offsets[-1], np.bool_))

    def _compacted(self, buffer: npt.NDArray[Any], starts: list[int]) -> npt.NDArray[Any]:
        """The buffer's rows without unused capacity between parts, from the first part with rows on."""
        first = next((offset for offset, count in zip(self._offsets, self._counts, strict=False) if count), 0)
        buffer = buffer[first:]
        for part, count in enumerate(self._counts):
            place = self._offsets[part] - first
            if count and starts[part] != place:
                buffer[starts[part] : starts[part + 1]] = buffer[place : place + count]
        return buffer[: starts[-1]]
