"""The metrics of all launches of a report as columns.

`Message` locates each metric; numpy decodes names and values of thousands at a time. In a report a metric is a message
with the number of its name, a value, and its instances (per instruction, block size or point in time).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile.schema import Bools, Int64s
from warplens.readers.ncu.container import value_of
from warplens.wire import Data, Message, WireError

# --- Values of metrics, decoded in place by numpy, thousands at a time ------------------------------------------------
#
# A value is a message of one field: text, a number of 4 or 8 bytes, or one of variable length. Writers put the fields
# of a message in the order of their numbers; any other layout is decoded individually.

Bytes = npt.NDArray[np.uint8]

#: Kinds of values. The bits of a text are its index among the texts, those of a real number are a double's.
_NONE, _TEXT, _REAL, _INTEGER = range(4)

#: First byte of a value: the field's number and its type.
_KEY_FLOAT, _KEY_DOUBLE, _KEY_UINT32, _KEY_UINT64 = 0x15, 0x19, 0x20, 0x28


@dataclass
class Values:
    """Decoded values: kind and bits of each."""

    kinds: Bytes
    bits: npt.NDArray[np.uint64]

    @classmethod
    def nothing(cls, count: int) -> Values:
        """This many absent values."""
        return cls(np.zeros(count, np.uint8), np.zeros(count, np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[Values]) -> Values:
        """The values of several decodings by one decoder, concatenated."""
        nothing = cls.nothing(0)
        return cls(
            np.concatenate([nothing.kinds, *(part.kinds for part in parts)]),
            np.concatenate([nothing.bits, *(part.bits for part in parts)]),
        )


class ValueDecoder:
    """Decodes numbers and values at given positions of a report.

    Attributes:
        texts: the distinct texts; the bits of a text value are its index here.
        broken: number of values that could not be decoded; they are absent.
    """

    def __init__(self, data: Data) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._seen: dict[bytes, tuple[int, int]] = {}
        self.texts: list[str] = []
        self.broken = 0

    def byte(self, at: Int64s) -> Bytes:
        """The bytes at these positions; beyond the end the last byte of the file."""
        return self._bytes[np.minimum(at, self._bytes.size - 1)]

    def varints(self, at: Int64s) -> tuple[Int64s, Int64s]:
        """The variable-length numbers at these positions, as 64 bits, and the positions after them.

        After a number that does not end within ten bytes or within the file, the position is one beyond the file.
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

    def behind_lengths(self, at: Int64s) -> tuple[Int64s, Int64s]:
        """Begin and end of the submessages whose lengths are at these positions."""
        sizes, starts = self.varints(at)
        return starts, starts + sizes

    def submessages(self, at: Int64s, ends: Int64s, key: int) -> tuple[Int64s, Int64s, Bools]:
        """Begin and end of the submessages whose `key` is at these positions, and whether they are within `ends`.

        Where none begins, an empty range at `at`.
        """
        begins = (at < ends) & (self.byte(at) == key)
        sizes, starts = self.varints(at + 1)
        starts = np.where(begins, starts, at)
        sizes = np.where(begins, sizes, 0)
        inside = (starts <= ends) & (sizes >= 0) & (sizes <= ends - starts)
        return starts, starts + np.where(inside, sizes, 0), inside

    def values(self, starts: Int64s, ends: Int64s) -> Values:
        """The values of the messages at these positions; an empty range is an absent value."""
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
        is_complete = after == ends[integers]
        values.bits[integers[is_complete]] = numbers[is_complete].view(np.uint64)
        values.kinds[integers[is_complete]] = _INTEGER

        for row in np.flatnonzero((values.kinds == _NONE) & (sizes > 0)).tolist():
            values.kinds[row], values.bits[row] = self._one(int(starts[row]), int(ends[row]))
        return values

    def _fixed(self, at: Int64s, width: int) -> Bytes:
        content: Bytes = self._bytes[at[:, None] + np.arange(width)].reshape(-1)
        return content

    def _one(self, start: int, end: int) -> tuple[int, int]:
        """Kind and bits of one value, cached: texts repeat from launch to launch."""
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
    kind_counts = np.bincount(kinds, minlength=4)
    if kind_counts[_TEXT]:
        return pl.Series(name, [_as_text(*value, texts) for value in zip(kinds.tolist(), bits, strict=True)], pl.String)
    if kind_counts[_REAL] or not kind_counts[_INTEGER]:
        reals = bits.view(np.float64)
        if kind_counts[_REAL] < kinds.size:
            reals = np.where(kinds == _INTEGER, bits.astype(np.float64), np.where(kinds == _NONE, np.nan, reals))
        return pl.Series(name, reals, nan_to_null=True)
    series = pl.Series(name, bits)
    return (
        series.zip_with(pl.Series(kinds != _NONE), pl.Series([None], dtype=pl.UInt64)) if kind_counts[_NONE] else series
    )


def _as_text(kind: int, bits: np.uint64, texts: Sequence[str]) -> str | None:
    if kind == _TEXT:
        return texts[int(bits)]
    if kind == _NONE:
        return None
    return str(int(bits)) if kind == _INTEGER else str(float(bits.view(np.float64)))


#: Metrics that are decoded together: enough to make numpy's call overhead negligible, few enough for the cache.
#: Measured on 127,000 metrics: 17 ms, against 27 ms with eight times as many and 20 ms with a quarter.
_BATCH = 1 << 14

#: Each column has one cell per launch, so that a file with many launches that share no metric would take memory out of
#: proportion to its size. Real launches share nearly all: one filled cell in eight is far below that.
FREE_CELLS = 1 << 22
CELLS_PER_VALUE = 8

#: `ncu --set full` collects some 2,500 metrics.
MOST_METRICS = 1 << 16

#: What to decode of the metrics of one name.
_WANTED, _INSTANCED = 1, 2

_KEY_NAME, _KEY_VALUE, _ELEMENTS = 0x08, 0x12, 3
_KEY_ELEMENT_KEY, _KEY_ELEMENT_VALUE = 0x0A, 0x12


class MetricColumns:
    """Collects the metrics of one launch after the other and returns them as columns."""

    def __init__(self, data: Data, wanted: Collection[str] | None, instanced: Collection[str]) -> None:
        self._data = data
        self._decoder = ValueDecoder(data)
        self._wanted = None if wanted is None else frozenset(wanted)
        self._names: list[str] = []
        self._flags = bytearray()
        self._pending: list[tuple[int, array[int]]] = []
        self._pending_count = 0
        self._parts: list[tuple[Int64s, Int64s, Values]] = []
        self._instanced: dict[str, list[tuple[int, int, int]]] = {name: [] for name in instanced}
        self._broken = 0

    @property
    def unreadable(self) -> int:
        """Number of metrics without a readable name or value so far."""
        return self._broken + self._decoder.broken

    def add_names(self, names: Sequence[str]) -> None:
        """Add the strings of one block; a metric's name is an index into those of all blocks up to its own."""
        self._names.extend(names)
        wanted, instanced = self._wanted, self._instanced
        self._flags += bytes(
            _WANTED * (wanted is None or name in wanted) | _INSTANCED * (name in instanced) for name in names
        )

    def add(self, launch: int, metrics: array[int]) -> None:
        """Add the positions of the lengths of one launch's metrics."""
        self._pending.append((launch, metrics))
        self._pending_count += len(metrics)
        if self._pending_count >= _BATCH:
            self._decode()

    def frame(self, launches: int, known_as: Path) -> pl.DataFrame:
        """All metrics: a row for each launch, a column for each metric, in the order in which the report names them."""
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
        if len(positions) > MOST_METRICS or cells > FREE_CELLS + CELLS_PER_VALUE * ids.size:
            found = f"{launches:,} launches and {len(positions):,} metrics, almost none with a value"
            raise UnreadableInputError(known_as, found, "Ask for single metrics, or record the report again")

        table = Values.nothing(cells)
        cell = column_of[ids] * launches + rows
        table.kinds[cell] = values.kinds
        table.bits[cell] = values.bits
        kinds, bits = table.kinds.reshape(-1, launches), table.bits.reshape(-1, launches)
        texts = self._decoder.texts
        return pl.DataFrame([as_series(name, Values(kinds[at], bits[at]), texts) for name, at in positions.items()])

    def instances(self) -> Mapping[str, pl.DataFrame]:
        """The instances of the requested metrics: `launch`, `index`, `value`, and `key` if the report has keys."""
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

    def _split(self, starts: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """For each metric the number of its name (−1 if it has none) and the range of its value."""
        ids, at = self._decoder.varints(starts + 1)
        value_starts, value_ends, inside = self._decoder.submessages(at, ends, _KEY_VALUE)
        # The name is followed by the value, by a later field, or by nothing: any other layout is decoded individually.
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
        """The instances of one metric; `places` are launches and the metric's range in each."""
        launches: list[Int64s] = []
        indices: list[Int64s] = []
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


def _positions(at: array[int]) -> Int64s:
    return np.frombuffer(at, np.int64)


def _concatenated(parts: Sequence[Int64s]) -> Int64s:
    return np.concatenate([np.empty(0, np.int64), *parts])


# --- The base unit of an Nsight Compute metric, from its name: reports hold names and values, but no units ------------
#
# NVIDIA's Kernel Profiling Guide ("Metrics Structure", "Metrics Decoder") defines the form of names: a hardware unit,
# two underscores, a quantity among qualifiers, then a roll-up (`.sum`, `.avg`, …) and a submetric (`.per_second`,
# `.pct_of_peak_sustained_elapsed`, …). The quantity gives the unit and the ending changes it: of `lts__t_sectors` the
# `.sum` is in `sector`, the `.sum.per_second` in `sector/second`, the `.sum.pct_of_peak_sustained_elapsed` in `%`.

#: Units of metrics whose names do not have that form: launch facts, facts about the profiling itself, derived metrics.
#: Source: the units row of `ncu --page raw --csv`, scaled units taken back to base units.
_BY_NAME = {
    "derived__avg_thread_executed": "thread",
    "derived__avg_thread_executed_true": "thread",
    "derived__avg_thread_unexecuted_true": "thread",
    "derived__derivative_avg_thread_executed_true": "thread",
    "derived__pct_occupancy_per_barrier_count": None,
    "derived__pct_occupancy_per_block_size": "%",
    "derived__pct_occupancy_per_register_count": "%/register",
    "derived__pct_occupancy_per_shared_mem_size": "%/byte",
    "launch__block_dim_x": "block",
    "launch__block_dim_y": "block",
    "launch__block_dim_z": "block",
    "launch__cluster_max_active": "cluster",
    "launch__cluster_max_potential_size": "block",
    "launch__persisting_l2_cache_size": "byte",
    "launch__registers_per_thread": "register/thread",
    "launch__registers_per_thread_allocated": "register/thread",
    "launch__shared_mem_config_size": "byte",
    "launch__sm_count": "SM",
    "launch__thread_count": "thread",
    "profiler__pmsampler_merged_samples": "sample",
    "profiler__replayer_passes": "pass",
    "profiler__replayer_passes_type_warmup": "pass",
    "smsp__pcsamp_aggregated_passes": "pass",
}
_BY_PREFIX = (("launch__occupancy_limit_", "block"), ("launch__shared_mem_per_block", "byte/block"))

#: The quantity of a hardware counter: the first of these words in its name.
_QUANTITIES = {
    "bytes": "byte",
    "mem_tensor_reads": "byte",
    "mem_tensor_writes": "byte",
    "sectors": "sector",
    "cycles": "cycle",
    "writeback_active": "cycle",
    "branch_targets": "branch",
    "inst": "inst",
    "warps": "warp",
    "requests": "request",
    "ctas": "block",
    "time": "ns",
}
#: The words of all these units.
UNIT_WORDS = frozenset(
    word for unit in (*_BY_NAME.values(), *_QUANTITIES.values(), "hz", "second") if unit for word in unit.split("/")
)
_QUANTITY = re.compile(rf"(?:^|_)({'|'.join(_QUANTITIES)})(?=_|$)")

#: PM sampling puts the counter domain before the name: `TPC.TriageCompute.sm__cycles_active.avg`, or its own prefix.
_SAMPLING_PREFIX = re.compile(r"^(?:pmsampling:|\w+\.\w+\.(?=\w+__))")

#: Averages of one quantity over another whose unit is not the quotient of the two: latencies count warp-cycles.
_RATIOS = (
    (re.compile(r"average_data_bytes_per_sector"), "byte/sector"),
    (re.compile(r"average_warp_latency|average_warps_active_per_inst"), "cycle"),
    (re.compile(r"average_warps_issue_stalled_\w+_per_issue_active"), "inst"),
)


def unit_of(metric: str) -> str | None:
    """The base unit of a metric (`ns`, `byte`, `byte/second`, `hz`, `inst/cycle`, `%`, …); None if it has none."""
    metric = _SAMPLING_PREFIX.sub("", metric)
    if ":" in metric or metric.startswith("device__attribute_"):  # a list of other metrics; CUDA's own attributes
        return None
    if metric in _BY_NAME:
        return _BY_NAME[metric]
    for prefix, unit in _BY_PREFIX:
        if metric.startswith(prefix):
            return unit
    base, _, ending = metric.partition(".")
    if "pct" in ending or base.endswith("_pct"):
        return "%"
    if ending in ("ratio", "max_rate"):
        return next((unit for name, unit in _RATIOS if name.search(base)), None)
    quantity = _QUANTITY.search(base.rpartition("__")[2])
    return _over_time(_QUANTITIES[quantity[1]], ending) if quantity else None


def _over_time(unit: str, ending: str) -> str | None:
    """The unit of a count after the submetric in the ending of its name."""
    if ending.endswith("per_second"):
        return "hz" if unit == "cycle" else f"{unit}/second"
    if "per_cycle" in ending or ending.endswith("peak_sustained"):
        # Warps are counted once per cycle in which they are resident, so that their count per cycle is in warps.
        return {"warp": "warp", "cycle": None}.get(unit, f"{unit}/cycle")
    return unit
