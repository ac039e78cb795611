"""Writes a profile as a Perfetto trace, for the viewer at ui.perfetto.dev and SQL through its trace processor.

GPUs come first, with one track per stream, then the host's threads, each with its annotated ranges, CUDA API calls, and
what else was recorded. Arrows lead from a launching call to its work. Counter tracks show the queued work of each GPU,
the rate of its copies, and its memory if that was recorded. Slices have arguments such as grid, block, registers and
bytes.

Source of the format: Perfetto's reference "Writing TrackEvent Protos Synthetically" and its published schema. Names are
interned, and packets of one kind have the same length (`warplens.wire`), so that no loop over events is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens._version import __version__
from warplens.analysis.categories import categories_of
from warplens.analysis.hostpace import queue_levels
from warplens.analysis.timeline import Timeline
from warplens.errors import UsageError
from warplens.export.tables import shareable
from warplens.profile.nesting import disjoint_lanes, nested_lanes
from warplens.profile.schema import Int64s, name_categories
from warplens.profile.trace import LAUNCH_SIZE, WORK_KINDS
from warplens.wire import Bytes, Part, fixed64s, message, messages, padded_varints, scalar, text
from warplens.writing import unfinished

# --- The packets of a Perfetto trace: slices and counter values of many events at once, tracks, and dictionaries ------

#: Field of `Trace` with a packet, and of `DebugAnnotation` with a number.
_PACKET: Final = 1
_INT_VALUE: Final = 4


class _Packet(IntEnum):
    """Fields of a `TracePacket`."""

    TIMESTAMP = 8
    SEQUENCE = 10
    TRACK_EVENT = 11
    INTERNED = 12
    FLAGS = 13
    DESCRIPTOR = 60


class _Track(IntEnum):
    """Fields of a `TrackDescriptor`."""

    UUID = 1
    NAME = 2
    PARENT = 5
    COUNTER = 8
    ORDERING = 11
    RANK = 12


class _Event(IntEnum):
    """Fields of a `TrackEvent`."""

    CATEGORY_ID = 3
    ANNOTATION = 4
    TYPE = 9
    NAME_ID = 10
    TRACK = 11
    COUNTER_VALUE = 30
    FLOW = 47
    FLOW_END = 48


class _Interned(IntEnum):
    """Fields of `InternedData`."""

    CATEGORIES = 1
    NAMES = 2
    ANNOTATION_NAMES = 3


class _Kind(IntEnum):
    """Values of the field `type` of a `TrackEvent`."""

    BEGIN = 1
    END = 2
    INSTANT = 3
    COUNT = 4


_BY_RANK: Final = 3  # children are drawn in the order of their ranks
#: Units of a counter: Perfetto's number for known units, else a name.
_PIECES, _BYTES, _RATE = scalar(3, 2), scalar(3, 3), text(6, "B/s")
_CLEARED, _NEEDED = 1, 2  # flags of a packet: the dictionary of the sequence begins here; the packet needs it

#: All packets are one sequence, with one dictionary.
_ONE_SEQUENCE = scalar(_Packet.SEQUENCE, 1)
_INCREMENTAL = scalar(_Packet.FLAGS, _NEEDED)

#: Bytes of a padded varint: 35 bits for ids of tracks and names, 63 for times, 64 for values.
_SHORT, _LONG, _SIGNED = 5, 9, 10

# Ids of tracks, in ranges that do not overlap.
_ROOT: Final = 1
_FIRST_GROUP: Final = 1 << 16
_FIRST_COUNTER: Final = 1 << 24
_FIRST_TRACK: Final = 1 << 25
_LANES_APART: Final = 1_000

#: Layers of a host thread, in the order in which they are drawn; the first is the thread's own track.
_HOST_LABELS: Final = ("", "Python", "CUDA API", "operating system", "profiler")

#: Columns that become arguments of a slice, if the table has them.
ARGUMENTS: Final = (
    "correlation",
    *LAUNCH_SIZE,
    "registers_per_thread",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "graph_node",
    "graph",
    "bytes",
    "return_value",
)


@dataclass(frozen=True, eq=False)
class Layer:
    """Slices of one kind."""

    #: `start_ns`, `end_ns`, `name`, `category`, the columns of `owner`, and columns of `ARGUMENTS`; `flow` is the id of
    #: an arrow, 0 for none
    frame: pl.DataFrame
    owner: tuple[str, str]  #: columns that identify the track: device and stream, or process and thread
    label: str  #: name of the track below its owner; empty for the owner's own track
    nests: bool = True  #: whether slices may nest; otherwise overlapping slices are drawn on separate lanes


class _Names:
    """An interning dictionary: texts with ids from 1."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)

    def column(self, names: pl.Series) -> Int64s:
        """The id of each row's text."""
        if isinstance(names.dtype, pl.Enum):
            ids = np.array([self.number(text) for text in name_categories(names).to_list()], dtype=np.int64)
            ids_of_rows: Int64s = ids[names.to_physical().to_numpy()]
            return ids_of_rows
        distinct = names.unique(maintain_order=True).to_list()
        numbers = [self.number(text) for text in distinct]
        return names.replace_strict(distinct, numbers, return_dtype=pl.Int64).to_numpy()


@dataclass
class PacketWriter:
    """Makes packets of slices, and collects the dictionaries and tracks that they use."""

    zero_ns: int  #: the time that becomes 0
    names: _Names = field(default_factory=_Names)
    categories: _Names = field(default_factory=_Names)
    arguments: _Names = field(default_factory=_Names)
    tracks: dict[tuple[str, int, int, str, int], int] = field(default_factory=dict)
    counters: dict[str, tuple[int, bytes]] = field(default_factory=dict)  #: track and unit of each counter, by name
    slice_count: int = 0
    flow_count: int = 0

    def slices(self, layer: Layer) -> Iterable[Bytes]:
        """The packets of a layer's slices, sorted by time."""
        frame = layer.frame
        start, end = (frame[column].to_numpy() - self.zero_ns for column in ("start_ns", "end_ns"))
        keys = frame.select(layer.owner)
        owners = keys.unique(maintain_order=True).with_row_index("track")
        owner = (
            keys.join(owners, on=layer.owner, how="left", maintain_order="left")["track"].to_numpy().astype(np.int64)
        )
        if layer.nests:
            lane, depth = nested_lanes(start, end, owner)
        else:
            lane, depth = disjoint_lanes(start, end, owner), np.zeros(frame.height, dtype=np.int64)
        track = self._tracks(layer, owners, owner, lane)
        self.slice_count += frame.height
        yield from self._packets(frame, start, end, track, depth)

    def _tracks(self, layer: Layer, owners: pl.DataFrame, owner: Int64s, lane: Int64s) -> Int64s:
        kind = "device" if layer.owner[0] == "device" else "host"
        lanes = int(lane.max()) + 1
        used = np.unique(owner * lanes + lane)
        uuid = np.zeros(int(used.max()) + 1, dtype=np.int64)
        for code in used.tolist():
            first, second = owners.select(layer.owner).row(code // lanes)
            key = (kind, int(first), int(second), layer.label, code % lanes)
            uuid[code] = self.tracks.setdefault(key, len(self.tracks) + _FIRST_TRACK)
        tracks: Int64s = uuid[owner * lanes + lane]
        return tracks

    def _packets(
        self, frame: pl.DataFrame, start: Int64s, end: Int64s, track: Int64s, depth: Int64s
    ) -> Iterable[Bytes]:
        """The packets that begin and end these events, in order of time."""
        names, categories = self.names.column(frame["name"]), self.categories.column(frame["category"])
        flow = frame["flow"].to_numpy() if "flow" in frame.columns else np.zeros(frame.height, dtype=np.int64)
        ends_flow = "device" in frame.columns
        self.flow_count += int(np.count_nonzero(flow)) if ends_flow else 0
        has_duration = end > start
        kinds = np.where(has_duration, _Kind.BEGIN, _Kind.INSTANT)
        pending: list[tuple[Int64s, Int64s, Int64s, Bytes]] = []  # (time, closes before opens, nesting, packets)
        for rows, present in _by_pattern(frame, flow):
            event: list[Part] = [
                padded_varints(_Event.TYPE, kinds[rows], 1),
                padded_varints(_Event.TRACK, track[rows], _SHORT),
                padded_varints(_Event.NAME_ID, names[rows], _SHORT),
                padded_varints(_Event.CATEGORY_ID, categories[rows], _SHORT),
            ]
            for column in present:
                if column == "flow":
                    event.append(fixed64s(_Event.FLOW_END if ends_flow else _Event.FLOW, flow[rows]))
                    continue
                values = frame[column].cast(pl.Int64).to_numpy()[rows]
                name = scalar(1, self.arguments.number(column))
                number = padded_varints(_INT_VALUE, values, _SIGNED)
                event.append(messages(_Event.ANNOTATION, len(rows), [name, number]))
            pending.append((start[rows], np.ones(len(rows), np.int64), depth[rows], self._packed(start[rows], event)))
        rows = np.flatnonzero(has_duration)
        closing: list[Part] = [scalar(_Event.TYPE, _Kind.END), padded_varints(_Event.TRACK, track[rows], _SHORT)]
        pending.append((end[rows], np.zeros(len(rows), np.int64), -depth[rows], self._packed(end[rows], closing)))
        yield from _in_order(pending)

    @staticmethod
    def _packed(time: Int64s, event: list[Part]) -> Bytes:
        return messages(
            _PACKET,
            len(time),
            [
                padded_varints(_Packet.TIMESTAMP, time, _LONG),
                _ONE_SEQUENCE,
                _INCREMENTAL,
                messages(_Packet.TRACK_EVENT, len(time), event),
            ],
        )

    def levels(self, name: str, unit: bytes, frame: pl.DataFrame) -> Bytes:
        """The packets of a counter track, whose `level` holds from its `time_ns` on."""
        track, _ = self.counters.setdefault(name, (_FIRST_COUNTER + len(self.counters), unit))
        event: list[Part] = [
            scalar(_Event.TYPE, _Kind.COUNT),
            scalar(_Event.TRACK, track),
            padded_varints(_Event.COUNTER_VALUE, frame["level"].to_numpy(), _SIGNED),
        ]
        return self._packed(frame["time_ns"].to_numpy() - self.zero_ns, event)

    def dictionary(self) -> bytes:
        """The packet with all dictionaries; it must precede every packet that uses them."""
        entries = [
            message(number, scalar(1, position), text(2, name))
            for number, names in (
                (_Interned.CATEGORIES, self.categories),
                (_Interned.NAMES, self.names),
                (_Interned.ANNOTATION_NAMES, self.arguments),
            )
            for name, position in names.numbers.items()
        ]
        return message(_PACKET, _ONE_SEQUENCE, scalar(_Packet.FLAGS, _CLEARED), message(_Packet.INTERNED, *entries))

    def descriptors(self, timeline: Timeline) -> Iterable[bytes]:
        """The packets that declare the tracks, parents before children."""
        yield _track(_ROOT, f"Warplens {__version__}: {timeline.trace.capture.tool}", ordering=True)
        parents: dict[tuple[str, int, int], int] = {}
        for kind, first, second, label, lane in sorted(self.tracks):
            group = (kind, first, -1)
            if group not in parents:
                parents[group] = _FIRST_GROUP + len(parents)
                yield _group(timeline, kind, first, parents[group], len(parents))
            parent = parents[group]
            thread = (kind, first, second)
            if kind == "host" and thread not in parents:
                parents[thread] = _FIRST_GROUP + len(parents)
                yield _track(parents[thread], f"thread {second}", parent=parent, ordering=True)
            parent = parents.get(thread, parent)
            name = f"stream {second}" if kind == "device" else label or "ranges"
            name += f" ({lane + 1})" if lane else ""
            order = (second if kind == "device" else _HOST_LABELS.index(label)) * _LANES_APART + lane
            yield _track(self.tracks[kind, first, second, label, lane], name, parent=parent, rank=order)
        for name, (uuid, unit) in self.counters.items():
            yield _track(uuid, name, parent=_ROOT, content=message(_Track.COUNTER, unit))


def _group(timeline: Timeline, kind: str, number: int, uuid: int, rank: int) -> bytes:
    if kind == "device":
        device = timeline.trace.capture.device(number)
        name = f"GPU {number}" + (f" ({device.name})" if device else "")
    else:
        name = f"process {number}"
    return _track(uuid, name, parent=_ROOT, rank=rank, ordering=True)


def _track(
    uuid: int, name: str, *, parent: int | None = None, rank: int = 0, ordering: bool = False, content: bytes = b""
) -> bytes:
    fields = [scalar(_Track.UUID, uuid), text(_Track.NAME, name), scalar(_Track.RANK, rank), content]
    if parent is not None:
        fields.append(scalar(_Track.PARENT, parent))
    if ordering:
        fields.append(scalar(_Track.ORDERING, _BY_RANK))
    return message(_PACKET, _ONE_SEQUENCE, message(_Packet.DESCRIPTOR, *fields))


def _by_pattern(frame: pl.DataFrame, flow: Int64s) -> Iterable[tuple[Int64s, list[str]]]:
    """Groups of rows with values in the same argument columns, and these columns."""
    columns = [name for name in ARGUMENTS if name in frame.columns and frame[name].null_count() < frame.height]
    pattern = (flow > 0).astype(np.int64)
    for bit, name in enumerate(columns, start=1):
        pattern |= frame[name].is_not_null().to_numpy().astype(np.int64) << bit
    for code in np.unique(pattern).tolist():
        present = [name for bit, name in enumerate(columns, start=1) if code >> bit & 1]
        yield np.flatnonzero(pattern == code), [*present, *(["flow"] if code & 1 else [])]


def _in_order(pending: list[tuple[Int64s, Int64s, Int64s, Bytes]]) -> Iterable[Bytes]:
    """The packets of several matrices, sorted by time; at equal times, ends (inner slices first) precede begins."""
    time, opens, nesting = (np.concatenate([part[column] for part in pending]) for column in range(3))
    order = np.lexsort((nesting, opens, time))
    source = np.repeat(np.arange(len(pending)), [len(part[0]) for part in pending])[order]
    inside = np.concatenate([np.arange(len(part[0])) for part in pending])[order]
    sizes = np.array([part[3].shape[1] for part in pending])[source]
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for number, (*_, packets) in enumerate(pending):
        from_matrix = source == number
        offsets = (ends - sizes)[from_matrix]
        width = packets.shape[1]
        out[(offsets[:, None] + np.arange(width)).reshape(-1)] = packets[inside[from_matrix]].reshape(-1)
    yield out


# --- The layers of a profile ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PerfettoSummary:
    """Counts of what was written."""

    tracks: int
    slices: int
    flows: int
    bytes: int  #: size of the file


def write_perfetto(timeline: Timeline, target: Path) -> PerfettoSummary:
    """Write a profile as a Perfetto trace (protobuf).

    Args:
        timeline: the profile.
        target: file to write; it is replaced.

    Raises:
        UsageError: the profile has no events to draw.
    """
    timeline = shareable(timeline)
    trace = timeline.trace
    layers = [layer for layer in (*_device_layers(timeline), *_host_layers(timeline)) if layer.frame.height]
    if not layers:
        raise UsageError(f"{trace.capture.source}: the profile holds nothing to draw")
    writer = PacketWriter(_zero(timeline))
    packets: list[npt.NDArray[np.uint8]] = []
    for layer in layers:
        packets.extend(writer.slices(layer))
    for name, unit, frame in (*_queue_levels(timeline), *_copy_rates(timeline), *_memory_levels(timeline)):
        packets.append(writer.levels(name, unit, frame))
    head = b"".join((*writer.descriptors(timeline), writer.dictionary()))
    with unfinished(target) as partial, partial.open("wb") as file:
        file.write(head)
        file.flush()
        for packet in packets:
            file.write(packet)  # type: ignore[arg-type]  # a buffer; tofile() gives a full disk no number
    size = target.stat().st_size
    return PerfettoSummary(len(writer.tracks), writer.slice_count, writer.flow_count, size)


def _zero(timeline: Timeline) -> int:
    """The time that becomes zero: the profile's own zero, or its first event if that is earlier."""
    trace = timeline.trace
    first = [
        int(frame["start_ns"].min() or 0)  # type: ignore[arg-type]
        for frame in (timeline.work, trace.ranges, trace.api_calls, trace.os_calls, trace.profiler_overhead)
        if frame.height
    ]
    return min(0, *first) if first else 0


def _device_layers(timeline: Timeline) -> list[Layer]:
    """All GPU work as one layer, with a track for each stream; no layer without work."""
    names = {
        "kernel": pl.col("name").cast(pl.String),
        "copy": pl.format("copy {}", pl.col("direction").cast(pl.String)),
        "memset": pl.lit("memset"),
        "graph": pl.lit("CUDA graph"),
    }
    columns = ("start_ns", "end_ns", "name", "category", "device", "stream", *ARGUMENTS, "flow")
    flows = _flows(timeline)
    # All kinds of work of a stream are on one track, so they are one layer.
    drawn = []
    for kind, table in WORK_KINDS.items():
        if (frame := getattr(timeline.trace, table)).height:
            category = categories_of(frame["full_name"]).cast(pl.String) if kind == "kernel" else pl.lit(kind)
            described = {"name": names[kind], "category": category, "flow": pl.Series(flows[kind])}
            frame = frame.with_columns(**described)
            drawn.append(frame.select(name for name in columns if name in frame.columns))
    if not drawn:
        return []
    return [Layer(pl.concat(drawn, how="diagonal_relaxed"), ("device", "stream"), "", nests=False)]


def _flows(timeline: Timeline) -> dict[str, Int64s]:
    """For each table of GPU work the id of the arrow to each row, which is the row of the launching call + 1."""
    work = timeline.work.select("kind", "row", "api_row", "start_ns").filter(pl.col("api_row").is_not_null())
    # The launch of a graph issues many kernels; the arrow leads to the first of them.
    first = work.sort("start_ns", maintain_order=True).unique("api_row", keep="first", maintain_order=True)
    flows = {}
    for kind, table in WORK_KINDS.items():
        of_kind = first.filter(pl.col("kind") == kind)
        flows[kind] = np.zeros(getattr(timeline.trace, table).height, dtype=np.int64)
        flows[kind][of_kind["row"].to_numpy()] = of_kind["api_row"].to_numpy() + 1
    return flows


def _host_layers(timeline: Timeline) -> list[Layer]:
    trace = timeline.trace
    calls = trace.api_calls
    flow = np.zeros(calls.height, dtype=np.int64)
    launching = timeline.work["api_row"].drop_nulls().unique().to_numpy()
    flow[launching] = launching + 1
    layers = (
        _named(trace.ranges, pl.col("kind").cast(pl.String)),
        _named(trace.python_functions, pl.lit("python")),
        _named(calls, pl.lit("api")).with_columns(pl.Series("flow", flow)),
        _named(trace.os_calls, pl.lit("os")),
        _named(trace.profiler_overhead, pl.lit("profiler")),
    )
    return [Layer(frame, ("process", "thread"), label) for frame, label in zip(layers, _HOST_LABELS, strict=True)]


def _named(frame: pl.DataFrame, category: pl.Expr) -> pl.DataFrame:
    return frame.with_columns(pl.col("name").cast(pl.String), category.alias("category"))


#: A counter: its name, its unit, and its `level` from each `time_ns` on.
_Counter: TypeAlias = tuple[str, bytes, pl.DataFrame]


def _queue_levels(timeline: Timeline) -> Iterator[_Counter]:
    """The queue depth of each GPU: work items launched but not started. At 0 the GPU waits for the host."""
    launched = timeline.work.select("device", "launch_end_ns", "start_ns").drop_nulls()
    for (device,), work in launched.sort("device", maintain_order=True).group_by("device", maintain_order=True):
        yield f"GPU {device} work in its queues", _PIECES, _stepped(*queue_levels(work))


def _copy_rates(timeline: Timeline) -> Iterator[_Counter]:
    """Bytes per second of the copies in progress, by GPU and direction; each copy counts with its mean rate."""
    copies = timeline.trace.copies.select("device", "direction", "start_ns", "end_ns", "bytes").drop_nulls()
    with_duration = copies.filter(pl.col("end_ns") > pl.col("start_ns")).sort(
        "device", "direction", maintain_order=True
    )
    for (device, direction), rows in with_duration.group_by("device", "direction", maintain_order=True):
        rate = rows.select(pl.col("bytes") * 1e9 / (pl.col("end_ns") - pl.col("start_ns"))).to_series().round()
        change = np.concatenate((rate.cast(pl.Int64), -rate.cast(pl.Int64)))
        edges = np.concatenate((rows["start_ns"], rows["end_ns"]))
        order = np.argsort(edges, kind="stable")
        yield f"GPU {device} copies {direction}", _RATE, _stepped(edges[order], np.cumsum(change[order]))


def _stepped(times: Int64s, levels: Int64s) -> pl.DataFrame:
    """The levels of a counter; of several at the same time the last one."""
    return pl.DataFrame({"time_ns": times, "level": levels}).unique("time_ns", keep="last", maintain_order=True)


def _memory_levels(timeline: Timeline) -> Iterator[_Counter]:
    """Bytes that the framework's allocator has allocated and reserved, for each GPU."""
    trace = timeline.trace
    recorded = trace.allocations.filter(pl.col("device").is_not_null())
    for column, state in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved")):
        for (device,), rows in recorded.group_by("device", maintain_order=True):
            known = rows.filter(pl.col(column).is_not_null()).sort("time_ns", maintain_order=True)
            if known.height:
                yield f"GPU {device} memory {state}", _BYTES, known.select("time_ns", level=column)
