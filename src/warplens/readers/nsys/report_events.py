"""The events of a report as columns: the mapping from message fields to columns of nsys's SQLite exports.

An event is {1: type, and one of: 102: NVTX, 107: work on a GPU, 108: a call of a function, …}; the types are those of
the export's table ENUM_NSYS_EVENT_TYPE. Each `Layout` names a table of the export, the fields of its columns, and the
events that belong to it. All were established by comparing reports with their exports, row by row; fields that no
comparison could settle are not declared and never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from warplens.profile.schema import Bools, Int64s
from warplens.readers.nsys.report_wire import Bytes, DamagedError, Values, runs, tag, walk
from warplens.wire import BYTES

_TYPE = tag(1)
_PAYLOADS = {102: "nvtx", 107: "work", 108: "call", 110: "diagnostic", 123: "memory"}
_EVENT = {_TYPE: "type"} | {tag(number, BYTES): name for number, name in _PAYLOADS.items()}


def _numbers(**columns: int) -> dict[int, str]:
    return {tag(number): column for column, number in columns.items()}


#: Fields of all work on a GPU; the details are messages of their own, in fields from 101 on.
_WORK_DETAILS = {101: "kernel", 102: "copy", 103: "fill", 105: "synchronization", 107: "graph"}
_WORK = _numbers(start=1, end=2, correlationId=3, deviceId=4, streamId=6, globalPid=8) | {
    tag(number, BYTES): name for number, name in _WORK_DETAILS.items()
}
_CALL = _numbers(start=1, end=2, correlationId=3, eventClass=6, nameId=7, returnValue=8, globalTid=13)
_NVTX = _numbers(eventType=1, start=2, globalTid=9, end=10, textId=12, domainId=13) | {tag(7, BYTES): "text"}
_DIAGNOSTIC = _numbers(source=2, severity=3, globalPid=5) | {tag(4, BYTES): "text"}
_MEMORY = _numbers(
    start=1,
    deviceId=3,
    contextId=4,
    globalPid=5,
    address=6,
    bytes=8,
    memKind=9,
    memoryOperationType=10,
    correlationId=12,
)
_LAYOUT_OF = {"nvtx": _NVTX, "work": _WORK, "call": _CALL, "diagnostic": _DIAGNOSTIC, "memory": _MEMORY}


@dataclass(frozen=True)
class Layout:
    """One table of the export."""

    table: str
    payload: str  #: the kind of message of its rows
    types: tuple[int, ...] = ()  #: event types of its rows; empty for all
    classes: tuple[int, ...] = ()  #: classes of calls (ENUM_NSYS_EVENT_CLASS) of its rows; empty for all
    details: str | None = None  #: the message in the payload that holds further columns
    columns: Mapping[int, str] = field(default_factory=dict)  #: the further columns by tag
    launch_configuration: frozenset[str] = frozenset()  #: further columns that few questions need
    renamed: Mapping[str, str] = field(default_factory=dict)  #: columns of the payload named otherwise in the table

    @property
    def payload_columns(self) -> dict[str, str]:
        """The columns of the table that are in the payload itself, by their name there."""
        names = (name for name in _LAYOUT_OF[self.payload].values() if name not in _WORK_DETAILS.values())
        return {name: self.renamed.get(name, name) for name in names}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the table, as named in the export."""
        return (*self.payload_columns.values(), *self.columns.values())


_KERNEL = _numbers(
    demangledName=1,
    shortName=2,
    mangledName=3,
    gridX=10,
    gridY=11,
    gridZ=12,
    blockX=13,
    blockY=14,
    blockZ=15,
    staticSharedMemory=16,
    dynamicSharedMemory=17,
    registersPerThread=21,
    graphNodeId=27,
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "work",
        (79,),
        details="kernel",
        columns=_KERNEL,
        launch_configuration=frozenset(_KERNEL.values()) - {"demangledName", "shortName", "mangledName", "graphNodeId"},
    ),
    Layout(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "work",
        (80,),
        details="copy",
        columns=_numbers(bytes=1, copyKind=2, srcKind=4, dstKind=5, graphNodeId=11),
    ),
    Layout(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "work",
        (80,),
        details="fill",
        columns=_numbers(bytes=1, graphNodeId=3, memKind=4),
    ),
    Layout(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "work", (106,), details="synchronization", columns=_numbers(eventId=1)
    ),
    Layout(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "work",
        (130,),
        details="graph",
        columns=_numbers(graphId=1, graphExecId=2),
    ),
    Layout("CUPTI_ACTIVITY_KIND_RUNTIME", "call", (47, 48), classes=(0, 1, 67)),
    Layout("OSRT_API", "call", (47, 48), classes=(27, 31, 32)),
    Layout("PROFILER_OVERHEAD", "call", (47, 48), classes=(3,)),
    Layout("CUPTI_ACTIVITY_KIND_OVERHEAD", "call", (47, 48), classes=(103,), renamed={"returnValue": "overheadType"}),
    Layout("CUDA_GPU_MEMORY_USAGE_EVENTS", "memory", (117,)),
    Layout("NVTX_EVENTS", "nvtx", (59, 60, 70, 71)),
    Layout("DIAGNOSTIC_EVENT", "diagnostic", (49,)),
)

#: Types of events that belong in a trace: those that are read, and those never seen in a report with an export. Events
#: of the latter, and of the former if stored in an unknown way, are counted as unread.
EVENT_NAMES: Mapping[int, str] = {
    35: "NvtxPushRange",
    36: "NvtxPopRange",
    37: "NvtxStartRange",
    38: "NvtxEndRange",
    45: "Cuda",
    46: "CudaDevice",
    48: "TraceFunctions",
    59: "NvtxPushPopRange",
    60: "NvtxStartEndRange",
    66: "NvtxtPushRange",
    67: "NvtxtPopRange",
    68: "NvtxtStartRange",
    69: "NvtxtEndRange",
    70: "NvtxtPushPopRange",
    71: "NvtxtStartEndRange",
    79: "CudaDeviceKernel",
    80: "CudaDeviceMemory",
    106: "CudaSyncEvent",
    117: "CudaDeviceMemoryUsage",
    130: "CudaDeviceGraph",
    142: "CudaDeviceMemcpy",
    151: "CudaHostFunc",
    152: "CudaApi",
    153: "Overhead",
    154: "CudaOverhead",
}

#: All other types up to the newest known (ENUM_NSYS_EVENT_TYPE of 2026.2): no table of a trace needs them.
UNUSED_TYPES = frozenset(range(155)) - EVENT_NAMES.keys()

#: Classes of calls (ENUM_NSYS_EVENT_CLASS of 2026.2) that no table of a trace needs: other libraries and graphics.
#: Excluded are classes of CUDA never seen in a report with an export (13: EGL driver, 26: API).
_UNUSED_CLASSES = tuple(frozenset(range(112)) - {number for layout in LAYOUTS for number in layout.classes} - {13, 26})


@dataclass
class Seen:
    """Counts of a report's events, for its notes."""

    events: int = 0
    unread: Counter[int] = field(default_factory=Counter)  #: those of unknown kind, by type


def decoded(
    source: Bytes, spans: Sequence[tuple[int, int]], seen: Seen, launch_configuration: bool = True
) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rows of some lists of events, by table, with the columns of `Layout.names` (null where the event lacks one).

    Raises:
        DamagedError: the bytes are not lists of events.
    """
    lists = [runs(source, begin, end, _TYPE) for begin, end in spans]
    starts = np.concatenate([starts for starts, _ in lists])
    ends = np.concatenate([ends for _, ends in lists])
    seen.events += len(starts)
    events = walk(source, starts, ends, _EVENT)
    if not events:
        return
    types = events["type"].or_else(-1)
    unread = np.ones(len(types), np.bool_)
    for payload, layout in _LAYOUT_OF.items():
        if payload not in events:
            continue
        present = events[payload].present
        rows = np.arange(len(types)) if present is None else np.flatnonzero(present)
        columns = walk(source, *_spans(events[payload], rows), layout)
        payload_types = types[rows]
        if payload == "call" and "eventClass" in columns:
            unread[rows[np.isin(columns["eventClass"].or_else(-1), _UNUSED_CLASSES)]] = False
        for target in LAYOUTS:
            if target.payload == payload:
                table_rows = _rows_of_table(target, payload_types, columns)
                unread[rows[table_rows]] = False
                # Marks and names of domains show that NVTX was recorded, be there ranges or not.
                if len(table_rows) or payload == "nvtx":
                    excluded = frozenset() if launch_configuration else target.launch_configuration
                    yield target.table, _frame(source, target, columns, table_rows, excluded)
    numbers, counts = np.unique(types[unread], return_counts=True)
    seen.unread.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


def _spans(values: Values, rows: Int64s) -> tuple[Int64s, Int64s]:
    if values.ends is None:
        raise DamagedError("a number in place of a message")
    if len(rows) == len(values.values):
        return values.values, values.ends
    return values.values[rows], values.ends[rows]


def _rows_of_table(layout: Layout, types: Int64s, columns: Mapping[str, Values]) -> Int64s:
    """The messages of a payload that are rows of a table."""
    belongs = np.isin(types, layout.types) if layout.types else np.ones(len(types), np.bool_)
    if layout.classes:
        classes = columns.get("eventClass")
        belongs &= np.isin(classes.or_else(-1), layout.classes) if classes is not None else False
    if layout.payload == "nvtx":  # its messages repeat the type
        repeated = columns.get("eventType")
        belongs &= repeated.or_else(-1) == types if repeated is not None else False
    if layout.details is not None:
        details = columns.get(layout.details)
        if details is None:
            return np.empty(0, np.int64)
        if details.present is not None:
            belongs &= details.present
    return np.flatnonzero(belongs)


def _frame(
    source: Bytes, layout: Layout, columns: Mapping[str, Values], rows: Int64s, excluded: frozenset[str]
) -> pl.DataFrame:
    series = {
        named: _series(source, columns.get(name), rows, name == "text")
        for name, named in layout.payload_columns.items()
    }
    if layout.details is not None:
        included = {key: name for key, name in layout.columns.items() if name not in excluded}
        inner = walk(source, *_spans(columns[layout.details], rows), included)
        all_rows = np.arange(len(rows))
        for name in included.values():
            series[name] = _series(source, inner.get(name), all_rows, False)
    return pl.DataFrame(series)


def _series(source: Bytes, column: Values | None, rows: Int64s, is_text: bool) -> pl.Series:
    if column is None:
        return pl.repeat(None, len(rows), dtype=pl.Binary if is_text else pl.Int64, eager=True)
    takes_all = len(rows) == len(column.values)
    values = column.values if takes_all else column.values[rows]
    present = column.present if takes_all or column.present is None else column.present[rows]
    if is_text:
        return _texts(source, column, rows, present)
    series = pl.Series(values)
    return series if present is None or present.all() else series.set(pl.Series(~present), None)


def _texts(source: Bytes, column: Values, rows: Int64s, present: Bools | None) -> pl.Series:
    if column.ends is None:
        raise DamagedError("a number in place of a text")
    begins, ends = column.values[rows].tolist(), column.ends[rows].tolist()
    data = source.data
    texts: list[bytes | None] = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    if present is not None:
        texts = [text if is_present else None for text, is_present in zip(texts, present.tolist(), strict=True)]
    return pl.Series(texts, dtype=pl.Binary)
