"""How the tables of an nsys export become the tables of a `Trace`: one declaration each, for all schemas since 2021.

A `Source` names an export's table and says for each column of the trace which of the export's columns it comes from,
newest schema first, how it is converted, and what stands for it in schemas that lack it. Only the columns that are
declared here are read. Names are loaded as ids and encoded afterwards (`nsys_strings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

__all__ = ["DIRECTIONS", "MEMORY_KINDS", "SOURCES", "Field", "Source", "process_of", "thread_of"]

_LOW_24_BITS = 0xFFFFFF


def process_of(identifier: str) -> pl.Expr:
    """The process id in a `globalPid` or `globalTid`: bits 24 to 47, above it the machine, below it the thread id."""
    return ((pl.col(identifier) // 2**24) & _LOW_24_BITS).cast(pl.Int32)


def thread_of(identifier: str) -> pl.Expr:
    """The thread id in a `globalTid`: its low 24 bits; 0 where the row does not say."""
    return (pl.col(identifier).fill_null(0) & _LOW_24_BITS).cast(pl.Int32)


def _as_is(column: str) -> pl.Expr:
    return pl.col(column)


def _int32(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Int32)


def _unsigned(column: str) -> pl.Expr:
    # CUPTI writes "none" as 0xFFFFFFFF; as a signed number that is −1.
    value = pl.col(column)
    return pl.when(value >= 2**31).then(value - 2**32).otherwise(value).cast(pl.Int32)


def _stream_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != 0xFFFFFFFF).then(pl.col(column))


def _device_or_null(column: str) -> pl.Expr:
    return _stream_or_null(column).cast(pl.Int32)


@dataclass(frozen=True)
class Field:
    """One column of a trace's table.

    Attributes:
        name: the column in the trace.
        columns: the column in the export; where several are named, the first that the export has.
        convert: from that column's name to an expression over 64-bit integers.
        absent: what stands for it in an export that has none of the columns.
        required: without it the table cannot be read at all.
        is_string: the column holds ids of `StringIds`; in `text_column`, of older exports, the text itself stands.
        launch_configuration: it tells how a kernel was launched, which few questions ask.
        codes: what the column's numbers mean, and the export's own table of them, which goes first where it is there.
    """

    name: str
    columns: tuple[str, ...]
    convert: Callable[[str], pl.Expr] = _as_is
    absent: Any = None
    required: bool = False
    is_string: bool = False
    text_column: str | None = None
    launch_configuration: bool = False
    codes: tuple[str, Mapping[int, str]] | None = None


@dataclass(frozen=True)
class Source:
    """One table of the export.

    Attributes:
        table: its name.
        trace_table: the table of the trace to which its rows go.
        fields: the trace's columns, and further ones that the reader needs.
        where: a condition on the rows.
    """

    table: str
    trace_table: str
    fields: tuple[Field, ...]
    where: str = "TRUE"


def _string(name: str, *columns: str, required: bool = True) -> Field:
    return Field(name, columns, is_string=True, required=required)


def _nullable(name: str, dtype: pl.DataType | type[pl.DataType], *columns: str) -> Field:
    return Field(name, columns, _int32 if dtype == pl.Int32 else _as_is, pl.lit(None, dtype))


def _configuration(name: str, column: str) -> Field:
    return replace(_nullable(name, pl.Int32, column), launch_configuration=True)


#: ENUM_CUDA_MEMCPY_OPER, the same in all exports that have it; those of 2021 and 2022 have no such table.
DIRECTIONS: Mapping[int, str] = dict(
    enumerate(
        (
            "unknown",
            "host-to-device",
            "device-to-host",
            "host-to-array",
            "array-to-host",
            "array-to-array",
            "array-to-device",
            "device-to-array",
            "device-to-device",
            "host-to-host",
            "peer-to-peer",
            "unified-host-to-device",
            "unified-device-to-host",
            "unified-device-to-device",
        )
    )
)

#: ENUM_CUDA_MEM_KIND.
MEMORY_KINDS: Mapping[int, str] = dict(
    enumerate(("pageable", "pinned", "device", "array", "managed", "device-static", "managed-static", "unknown"))
)

#: ENUM_CUDA_DEV_MEM_EVENT_OPER.
_ALLOCATIONS: Mapping[int, str] = {0: "allocation", 1: "deallocation"}


def _memory_kind(name: str, column: str) -> Field:
    return Field(name, (column,), codes=("ENUM_CUDA_MEM_KIND", MEMORY_KINDS), absent=pl.lit(None, pl.Int64))


_SPAN = (Field("start_ns", ("start",), required=True), Field("end_ns", ("end",), required=True))
# A null process stands for "not said": the reader puts the only process of the file there.
_PROCESS = Field("process", ("globalPid",), process_of, pl.lit(None, pl.Int32))
_CORRELATION = _nullable("correlation", pl.Int64, "correlationId")
_ON_DEVICE = (
    *_SPAN,
    Field("device", ("deviceId",), _unsigned, pl.lit(0, pl.Int32)),
    Field("stream", ("streamId",), _unsigned, pl.lit(0, pl.Int32)),
    _PROCESS,
    _CORRELATION,
)
_ON_THREAD = (
    *_SPAN,
    Field("process", ("globalTid",), process_of, pl.lit(None, pl.Int32)),
    Field("thread", ("globalTid",), thread_of, pl.lit(0, pl.Int32)),
)
_GRAPH_NODE = _nullable("graph_node", pl.Int64, "graphNodeId")

SOURCES: tuple[Source, ...] = (
    Source(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "kernels",
        (
            *_ON_DEVICE,
            _string("name", "shortName", "demangledName", "mangledName"),
            _string("full_name", "demangledName", "mangledName", "shortName"),
            _configuration("grid_x", "gridX"),
            _configuration("grid_y", "gridY"),
            _configuration("grid_z", "gridZ"),
            _configuration("block_x", "blockX"),
            _configuration("block_y", "blockY"),
            _configuration("block_z", "blockZ"),
            _configuration("registers_per_thread", "registersPerThread"),
            _configuration("static_shared_bytes", "staticSharedMemory"),
            _configuration("dynamic_shared_bytes", "dynamicSharedMemory"),
            _GRAPH_NODE,
        ),
    ),
    Source(
        "CUPTI_ACTIVITY_KIND_RUNTIME",  # driver calls stand here, too
        "api_calls",
        (
            *_ON_THREAD,
            _CORRELATION,
            Field("name", ("nameId",), is_string=True, text_column="name", required=True),
            _nullable("return_value", pl.Int32, "returnValue"),
        ),
    ),
    Source(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "copies",
        (
            *_ON_DEVICE,
            Field("bytes", ("bytes",), required=True),
            Field("direction", ("copyKind",), codes=("ENUM_CUDA_MEMCPY_OPER", DIRECTIONS), absent=pl.lit(0, pl.Int64)),
            _memory_kind("source_memory", "srcKind"),
            _memory_kind("destination_memory", "dstKind"),
            _GRAPH_NODE,
        ),
    ),
    Source(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "memsets",
        (*_ON_DEVICE, Field("bytes", ("bytes",), required=True), _memory_kind("memory", "memKind"), _GRAPH_NODE),
    ),
    Source(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "graph_launches",
        (*_ON_DEVICE, _nullable("graph", pl.Int64, "graphId"), _nullable("graph_exec", pl.Int64, "graphExecId")),
    ),
    Source(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "synchronizations",
        (
            *_SPAN,
            Field("device", ("deviceId",), _device_or_null, pl.lit(None, pl.Int32)),
            Field("stream", ("streamId",), _stream_or_null, pl.lit(None, pl.Int64)),
            Field("event", ("eventId",), _stream_or_null, pl.lit(None, pl.Int64)),
            _PROCESS,
            _CORRELATION,
        ),
    ),
    Source(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        "memory",
        (
            Field("time_ns", ("start",), required=True),
            _PROCESS,
            Field("device", ("deviceId",), _device_or_null, pl.lit(None, pl.Int32)),
            _nullable("address", pl.Int64, "address"),
            Field("bytes", ("bytes",), required=True),
            Field(
                "operation",
                ("memoryOperationType",),
                codes=("ENUM_CUDA_DEV_MEM_EVENT_OPER", _ALLOCATIONS),
                required=True,
            ),
            _memory_kind("memory", "memKind"),
        ),
    ),
    Source(
        "NVTX_EVENTS",
        "ranges",
        (
            *_ON_THREAD,
            Field("kind", ("eventType",), required=True),
            Field("domain", ("domainId",), absent=pl.lit(0, pl.Int64)),
            Field("registered", ("textId",), is_string=True, absent=pl.lit(None, pl.Int64)),
            Field("text", (), text_column="text", absent=pl.lit(b"", pl.Binary)),
        ),
    ),
    Source("OSRT_API", "os_calls", (*_ON_THREAD, _string("name", "nameId"))),
    Source("PROFILER_OVERHEAD", "profiler_overhead", (*_ON_THREAD, _string("name", "nameId"))),
    Source(
        "CUPTI_ACTIVITY_KIND_OVERHEAD",
        "profiler_overhead",
        (*_ON_THREAD, _string("name", "nameId"), _nullable("overhead", pl.Int64, "overheadType")),
    ),
)
