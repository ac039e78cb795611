"""Declarations of how the tables of an nsys export become the tables of a `Trace`, for all schemas since 2021.

A `Source` names an export's table and, for each column of the trace, the export's columns it may come from (newest
schema first), its conversion, and its value in schemas that lack it. Only the columns declared here are read. Names are
loaded as ids and encoded afterwards (`Strings`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile.trace import LAUNCH_SIZE, WORK_TABLES
from warplens.readers.excerpts import Excerpt
from warplens.readers.sqlite import SqliteFile, quoted

#: The table of strings, which every export has.
STRINGS: Final = "StringIds"

_LOW_24_BITS = 0xFFFFFF


class Tables(Protocol):
    """The queries needed to build a trace, beside its events: implemented by exports on disk and by reports."""

    @property
    def known_as(self) -> Path:
        """The file as the user knows it."""

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of each table."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a small query; text comes as bytes."""

    def unreadable(self, found: str) -> UnreadableInputError:
        """An error about this file, under the name that the user knows."""


class TablesInMemory:
    """Small tables in a database in memory, queried in SQL like those of an SQLite export.

    Attributes:
        known_as: the file or folder as the user knows it.
        tables: the columns of each table; they may name tables of events, whose rows are not in the database.
    """

    def __init__(self, known_as: Path) -> None:
        self.known_as = known_as
        self.tables: dict[str, tuple[str, ...]] = {}
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.text_factory = bytes

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a small query; text comes as bytes."""
        return self._connection.execute(sql).fetchall()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        self.tables[table] = tuple(columns)
        keys = {"id": " INTEGER PRIMARY KEY"} if table == STRINGS else {}
        definitions = ", ".join(quoted(column) + keys.get(column, "") for column in columns)
        self._connection.execute(f"CREATE TABLE {quoted(table)} ({definitions})")
        placeholders = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({placeholders})", rows)  # noqa: S608


def process_of(identifier: str) -> pl.Expr:
    """The process id in a `globalPid` or `globalTid`: bits 24 to 47 (above: the machine, below: the thread id)."""
    return ((pl.col(identifier) // 2**24) & _LOW_24_BITS).cast(pl.Int32)


def thread_of(identifier: str) -> pl.Expr:
    """The thread id in a `globalTid`: its low 24 bits; 0 where it is null."""
    return (pl.col(identifier).fill_null(0) & _LOW_24_BITS).cast(pl.Int32)


def _as_is(column: str) -> pl.Expr:
    return pl.col(column)


def _int32(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.Int32)


def _unsigned(column: str) -> pl.Expr:
    # CUPTI writes "none" as 0xFFFFFFFF, which is −1 as a signed number.
    value = pl.col(column)
    return pl.when(value >= 2**31).then(value - 2**32).otherwise(value).cast(pl.Int32)


def _id_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column) != 0xFFFFFFFF).then(pl.col(column))


def _int32_or_null(column: str) -> pl.Expr:
    return _id_or_null(column).cast(pl.Int32)


#: No condition on the rows of a table.
ALL_ROWS = "TRUE"


@dataclass(frozen=True)
class Field:
    """One column of a trace's table."""

    name: str
    columns: tuple[str, ...]  #: candidate columns of the export; the first that exists is read
    convert: Callable[[str], pl.Expr] = _as_is  #: from the column's name to an expression over 64-bit integers
    absent: Any = None  #: the value in an export that has none of the columns
    required: bool = False  #: whether the table cannot be read without it
    is_string: bool = False  #: whether the column holds ids of `StringIds`
    text_column: str | None = None  #: the column that holds the text itself, in older exports
    launch_configuration: bool = False  #: whether it belongs to the launch configuration, which few questions need
    #: the export's enumeration table, and meanings of the numbers for exports without it
    codes: tuple[str, Mapping[int, str]] | None = None


@dataclass(frozen=True)
class Source:
    """One table of the export."""

    table: str
    trace_table: str  #: the table of the trace that receives its rows
    fields: tuple[Field, ...]  #: the trace's columns, and further ones that the reader needs
    where: str = ALL_ROWS  #: SQL condition on the rows

    @property
    def times_alone(self) -> Source:
        """The same rows with nothing but their times."""
        times = (field for field in self.fields if field.name in ("start_ns", "end_ns", "time_ns"))
        return replace(self, fields=tuple(times))


def _string(name: str, *columns: str) -> Field:
    return Field(name, columns, is_string=True, required=True)


def _nullable(name: str, dtype: pl.DataType | type[pl.DataType], *columns: str) -> Field:
    return Field(name, columns, _int32 if dtype == pl.Int32 else _as_is, pl.lit(None, dtype))


def _configuration(name: str, column: str) -> Field:
    return replace(_nullable(name, pl.Int32, column), launch_configuration=True)


#: ENUM_CUDA_MEMCPY_OPER, the same in all exports that have it; those of 2021 and 2022 lack this table.
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
# A null process means "unknown": the reader then uses the only process of the file.
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
            *(_configuration(name, f"{name[:-2]}{name[-1].upper()}") for name in LAUNCH_SIZE),
            _configuration("registers_per_thread", "registersPerThread"),
            _configuration("static_shared_bytes", "staticSharedMemory"),
            _configuration("dynamic_shared_bytes", "dynamicSharedMemory"),
            _GRAPH_NODE,
        ),
    ),
    Source(
        "CUPTI_ACTIVITY_KIND_RUNTIME",  # includes driver calls
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
            Field("device", ("deviceId",), _int32_or_null, pl.lit(None, pl.Int32)),
            Field("stream", ("streamId",), _id_or_null, pl.lit(None, pl.Int64)),
            Field("event", ("eventId",), _id_or_null, pl.lit(None, pl.Int64)),
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
            Field("device", ("deviceId",), _int32_or_null, pl.lit(None, pl.Int32)),
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


# --- An excerpt of a recording that is too large to be read completely ---

#: Rows sampled to find the span: it holds the requested share to about one percent.
_SAMPLED_ROWS: Final = 2_000


def excerpt_of(file: SqliteFile, share: float) -> Excerpt:
    """The middle span of an export that holds this share of its events, by GPU work, else calls, else ranges."""
    wanted = (*WORK_TABLES, "api_calls", "ranges")
    present = (source.table for name in wanted for source in SOURCES if source.trace_table == name)
    return Excerpt.of((_begins(file, table) for table in present if table in file.tables), share, file.known_as)


def _begins(file: SqliteFile, table: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The begins of a sample of rows, evenly spread over a table."""
    first, last = file.span(table)
    if first is None or last is None:
        return np.empty(0, np.int64)
    numbers = np.unique(np.linspace(first, last, _SAMPLED_ROWS).astype(np.int64))
    query = f"SELECT start FROM {quoted(table)} WHERE {file.row_number(table)} IN ({', '.join(map(str, numbers))})"  # noqa: S608
    return np.array([start for (start,) in file.rows(query) if isinstance(start, int)], np.int64)
