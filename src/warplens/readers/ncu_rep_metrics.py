"""The metrics of all launches of a report as columns.

`Message` finds where each metric lies; numpy decodes names and values of thousands at a time. In a report a
metric is a message of the number of its name, a value, and instances of it (of an instruction, a block size, a moment).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.readers.ncu_rep_values import Positions, ValueDecoder, Values, as_series
from warplens.readers.ncu_rep_wire import Data, Message, WireError

__all__ = ["MetricColumns"]

#: Metrics that are decoded together: so many that numpy's calls do not count, so few that its arrays stay in the cache.
#: Measured on 127,000 metrics: 17 ms, against 27 ms with eight times as many and 20 ms with a quarter.
_BATCH = 1 << 14

#: Columns are as long as the report has launches, so that a file with many launches which share no metric would take
#: memory out of proportion to its size. Real launches share nearly all: one cell in eight filled is far below that.
_FREE_CELLS = 1 << 22
_CELLS_PER_VALUE = 8

#: `ncu --set full` collects some 2,500 metrics.
_MOST_METRICS = 1 << 16

#: What is to be decoded of the metrics of one name.
_WANTED, _INSTANCED = 1, 2

_KEY_NAME, _KEY_VALUE, _ELEMENTS = 0x08, 0x12, 3
_KEY_ELEMENT_KEY, _KEY_ELEMENT_VALUE = 0x0A, 0x12


class MetricColumns:
    """Takes in the metrics of one launch after the other and gives them as columns.

    Args:
        data: the file.
        wanted: names of the metrics to decode; None means all.
        instanced: names of the metrics whose instances are wanted.
    """

    def __init__(self, data: Data, wanted: Collection[str] | None, instanced: Collection[str]) -> None:
        self._data = data
        self._decoder = ValueDecoder(data)
        self._wanted = None if wanted is None else frozenset(wanted)
        self._names: list[str] = []
        self._flags = bytearray()
        self._pending: list[tuple[int, array[int]]] = []
        self._pending_count = 0
        self._parts: list[tuple[Positions, Positions, Values]] = []
        self._instanced: dict[str, list[tuple[int, int, int]]] = {name: [] for name in instanced}
        self._broken = 0

    @property
    def unreadable(self) -> int:
        """How many metrics have no name or no value that can be read, so far."""
        return self._broken + self._decoder.broken

    def add_names(self, names: Sequence[str]) -> None:
        """Takes in the strings of one block; a metric's name is a position in those of all blocks up to its own."""
        self._names.extend(names)
        wanted, instanced = self._wanted, self._instanced
        self._flags += bytes(
            _WANTED * (wanted is None or name in wanted) | _INSTANCED * (name in instanced) for name in names
        )

    def add(self, launch: int, metrics: array[int]) -> None:
        """Takes in where the lengths of one launch's metrics stand."""
        self._pending.append((launch, metrics))
        self._pending_count += len(metrics)
        if self._pending_count >= _BATCH:
            self._decode()

    def frame(self, launches: int, known_as: Path) -> pl.DataFrame:
        """All metrics: a row for each launch, a column for each metric, in the order in which the report names them.

        Raises:
            UnreadableInputError: so many launches with such different metrics fit no memory, and no real report.
        """
        self._decode()
        if not launches:
            return pl.DataFrame()
        ids = _concatenated([part[0] for part in self._parts])
        rows = _concatenated([part[1] for part in self._parts])
        values = Values.joined([part[2] for part in self._parts])
        self._parts = []

        used = np.zeros(len(self._names), np.bool_)
        used[ids] = True
        positions: dict[str, int] = {}
        column_of = np.zeros(len(self._names), np.int64)
        for number in np.flatnonzero(used).tolist():
            column_of[number] = positions.setdefault(self._names[number], len(positions))
        cells = len(positions) * launches
        if len(positions) > _MOST_METRICS or cells > _FREE_CELLS + _CELLS_PER_VALUE * ids.size:
            found = f"{launches:,} launches and {len(positions):,} metrics, of which hardly any has a value: no report"
            raise UnreadableInputError(known_as, found, "Ask for single metrics, or record the report again")

        table = Values.nothing(cells)
        cell = column_of[ids] * launches + rows
        table.kinds[cell] = values.kinds
        table.bits[cell] = values.bits
        kinds, bits = table.kinds.reshape(-1, launches), table.bits.reshape(-1, launches)
        texts = self._decoder.texts
        return pl.DataFrame([as_series(name, Values(kinds[at], bits[at]), texts) for name, at in positions.items()])

    def instances(self) -> Mapping[str, pl.DataFrame]:
        """The instances of the metrics asked for: `launch`, `index`, `value`, and `key` where the report has keys."""
        self._decode()
        return {name: self._elements(places) for name, places in self._instanced.items()}

    def _decode(self) -> None:
        starts, ends = self._decoder.behind_lengths(_concatenated([_positions(at) for _, at in self._pending]))
        counts = np.array([len(metrics) for _, metrics in self._pending], np.int64)
        launches = np.repeat(np.array([launch for launch, _ in self._pending], np.int64), counts)
        self._pending, self._pending_count = [], 0

        ids, value_starts, value_ends = self._split(starts, ends)
        known = (ids >= 0) & (ids < len(self._names))
        self._broken += int(np.count_nonzero(~known))
        flags = np.zeros(ids.size, np.uint8)
        flags[known] = np.frombuffer(bytes(self._flags), np.uint8)[ids[known]]
        for row in np.flatnonzero(flags & _INSTANCED).tolist():
            self._instanced[self._names[ids[row]]].append((int(launches[row]), int(starts[row]), int(ends[row])))
        rows = np.flatnonzero(flags & _WANTED)
        values = self._decoder.values(value_starts[rows], value_ends[rows])
        self._parts.append((ids[rows], launches[rows], values))

    def _split(self, starts: Positions, ends: Positions) -> tuple[Positions, Positions, Positions]:
        """Of each metric the number of its name (−1 where it has none) and where its value lies."""
        ids, at = self._decoder.varints(starts + 1)
        value_starts, value_ends, inside = self._decoder.submessages(at, ends, _KEY_VALUE)
        # What follows the name is its value, or what comes after values, or nothing: any other layout goes one by one.
        usual = (value_ends > value_starts) | (at == ends) | (self._decoder.byte(at) >= _KEY_VALUE)
        usual &= inside & (starts < ends) & (self._decoder.byte(starts) == _KEY_NAME)
        for row in np.flatnonzero(~usual).tolist():
            ids[row], value_starts[row], value_ends[row] = self._split_one(int(starts[row]), int(ends[row]))
        return ids, value_starts, value_ends

    def _split_one(self, start: int, end: int) -> tuple[int, int, int]:
        try:
            metric = Message(self._data, start, end)
        except WireError:
            return -1, end, end
        number = metric.integer(1)
        begin, stop = (metric.spans(2) or [(end, end)])[-1]
        return number if number is not None and number < len(self._names) else -1, begin, stop

    def _elements(self, places: Sequence[tuple[int, int, int]]) -> pl.DataFrame:
        """The instances of one metric; `places` are launches and where the metric lies in each."""
        launches: list[Positions] = []
        indices: list[Positions] = []
        keys: list[Values] = []
        values: list[Values] = []
        for launch, start, end in places:
            try:
                elements = Message(self._data, start, end, gather=_ELEMENTS).gathered
            except WireError:
                self._broken += 1
                continue
            launches.append(np.full(len(elements), launch, np.int64))
            indices.append(np.arange(len(elements), dtype=np.int64))
            starts, ends = self._decoder.behind_lengths(_positions(elements))
            key_starts, key_ends, keyed = self._decoder.submessages(starts, ends, _KEY_ELEMENT_KEY)
            value_starts, value_ends, inside = self._decoder.submessages(key_ends, ends, _KEY_ELEMENT_VALUE)
            self._broken += int(np.count_nonzero(~(keyed & inside)))
            keys.append(self._decoder.values(key_starts, key_ends))
            values.append(self._decoder.values(value_starts, value_ends))
        columns = [
            pl.Series("launch", _concatenated(launches)),
            pl.Series("index", _concatenated(indices)),
            as_series("value", Values.joined(values), self._decoder.texts),
        ]
        key = as_series("key", Values.joined(keys), self._decoder.texts)
        return pl.DataFrame([*columns, key] if key.null_count() < key.len() else columns)


def _positions(at: array[int]) -> Positions:
    return np.frombuffer(at, np.int64)


def _concatenated(parts: Sequence[Positions]) -> Positions:
    return np.concatenate([np.empty(0, np.int64), *parts])
