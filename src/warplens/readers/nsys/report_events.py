"""The events of a report as columns: which message field is which column of nsys's SQLite exports.

An event is {1: type, then one of: 102: NVTX, 107: work on a GPU, 108: a call of a function, …}; the types are those of
the export's table ENUM_NSYS_EVENT_TYPE. Each `Layout` names a table of the export, the fields that its columns stand
in, and which events belong there. All were established by comparing reports with their exports, row by row; a field
that no comparison could settle is not declared and so never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from warplens.profile.schema import Bools, Int64s
from warplens.readers.nsys.report_wire import BYTES, Bytes, DamagedError, Values, runs, tag, walk

_TYPE = tag(1)
_PAYLOADS = {102: "nvtx", 107: "work", 108: "call", 110: "diagnostic", 123: "memory"}
_EVENT = {_TYPE: "type"} | {tag(number, BYTES): name for number, name in _PAYLOADS.items()}


def _numbers(**columns: int) -> dict[int, str]:
    return {tag(number): column for column, number in columns.items()}


#: Fields that all work on a GPU has; the details are messages of their own behind field 100.
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
    payload: str  #: the kind of message that its rows are
    types: tuple[int, ...] = ()  #: the event types whose rows go here; empty for all
    classes: tuple[int, ...] = ()  #: the classes of calls (ENUM_NSYS_EVENT_CLASS) whose rows go here
    details: str | None = None  #: the message in the payload that holds further columns
    columns: Mapping[int, str] = field(default_factory=dict)  #: these columns by tag
    #: those of them that tell how a kernel was launched, which few questions ask
    launch_configuration: frozenset[str] = frozenset()
    #: columns of the payload that the table has under other names
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns of the table, by the names that the export gives them."""
        own = [name for name in _LAYOUT_OF[self.payload].values() if name not in _WORK_DETAILS.values()]
        return tuple(self.renamed.get(name, name) for name in (*own, *self.columns.values()))


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

#: Types of events that belong into a trace: those that are read, and those of which no report with an export was seen.
#: Where one is not read, because it is of the latter or is stored otherwise than known, it is counted.
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

#: All other types up to the newest known (ENUM_NSYS_EVENT_TYPE of 2026.2): no table of a trace is made of them.
UNUSED_TYPES = frozenset(range(155)) - EVENT_NAMES.keys()

#: Classes of calls (ENUM_NSYS_EVENT_CLASS of 2026.2) that no table of a trace is made of: other libraries and graphics.
#: Those of CUDA that no report with an export was seen to hold (13: EGL driver, 26: API) are not among them.
_UNUSED_CLASSES = tuple(frozenset(range(112)) - {number for layout in LAYOUTS for number in layout.classes} - {13, 26})


class Seen:
    """What was found in a report, for its notes.

    Attributes:
        events: how many events there were.
        unread: how many of each type were of a kind that no table is made of.
    """

    def __init__(self) -> None:
        self.events = 0
        self.unread: Counter[int] = Counter()


def decoded(
    source: Bytes, spans: Sequence[tuple[int, int]], seen: Seen, launch_configuration: bool = True
) -> Iterator[tuple[str, pl.DataFrame]]:
    """The rows of some lists of events, by table, with the columns of `Layout.names` (null where the event lacks one).

    Without `launch_configuration` the columns that tell how kernels were launched are missing.

    Raises:
        DamagedError: there is something else than lists of events.
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
        rows = _rows(events[payload])
        columns = walk(source, *_spans(events[payload], rows), layout)
        own_types = types[rows]
        if payload == "call" and "eventClass" in columns:
            unread[rows[np.isin(columns["eventClass"].or_else(-1), _UNUSED_CLASSES)]] = False
        for target in LAYOUTS:
            if target.payload == payload:
                chosen = _chosen(target, own_types, columns)
                unread[rows[chosen]] = False
                # Marks and names of domains show that NVTX was recorded, be there ranges or not.
                if len(chosen) or payload == "nvtx":
                    left_out = frozenset() if launch_configuration else target.launch_configuration
                    yield target.table, _frame(source, target, columns, chosen, left_out)
    numbers, counts = np.unique(types[unread], return_counts=True)
    seen.unread.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


def _rows(values: Values) -> Int64s:
    if values.present is None:
        return np.arange(len(values.values))
    return np.flatnonzero(values.present)


def _spans(values: Values, rows: Int64s) -> tuple[Int64s, Int64s]:
    if values.ends is None:
        raise DamagedError("a number in place of a message")
    if len(rows) == len(values.values):
        return values.values, values.ends
    return values.values[rows], values.ends[rows]


def _chosen(layout: Layout, types: Int64s, columns: Mapping[str, Values]) -> Int64s:
    """Which messages of a payload are rows of a table."""
    belongs = np.isin(types, layout.types) if layout.types else np.ones(len(types), np.bool_)
    if layout.classes:
        classes = columns.get("eventClass")
        belongs &= np.isin(classes.or_else(-1), layout.classes) if classes is not None else False
    if layout.payload == "nvtx":  # whose messages repeat the type
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
    source: Bytes, layout: Layout, columns: Mapping[str, Values], chosen: Int64s, left_out: frozenset[str]
) -> pl.DataFrame:
    found = {}
    for name in _LAYOUT_OF[layout.payload].values():
        if name in _WORK_DETAILS.values():
            continue
        column = columns.get(name)
        found[layout.renamed.get(name, name)] = _series(source, column, chosen, name == "text")
    if layout.details is not None:
        wanted = {key: name for key, name in layout.columns.items() if name not in left_out}
        inner = walk(source, *_spans(columns[layout.details], chosen), wanted)
        every = np.arange(len(chosen))
        for name in wanted.values():
            found[name] = _series(source, inner.get(name), every, False)
    return pl.DataFrame(found)


def _series(source: Bytes, column: Values | None, chosen: Int64s, is_text: bool) -> pl.Series:
    if column is None:
        return pl.repeat(None, len(chosen), dtype=pl.Binary if is_text else pl.Int64, eager=True)
    every = len(chosen) == len(column.values)
    values = column.values if every else column.values[chosen]
    present = column.present if every or column.present is None else column.present[chosen]
    if is_text:
        return _texts(source, column, chosen, present)
    series = pl.Series(values)
    return series if present is None or present.all() else series.set(pl.Series(~present), None)


def _texts(source: Bytes, column: Values, chosen: Int64s, present: Bools | None) -> pl.Series:
    if column.ends is None:
        raise DamagedError("a number in place of a text")
    begins, ends = column.values[chosen].tolist(), column.ends[chosen].tolist()
    data = source.data
    texts: list[bytes | None] = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
    if present is not None:
        texts = [text if there else None for text, there in zip(texts, present.tolist(), strict=True)]
    return pl.Series(texts, dtype=pl.Binary)
