"""How the tables of an nsys export become the tables of a `Trace`: one declaration each, for all schemas since 2021.

A `Source` names an export's table and says for each column of the trace which of the export's columns it comes from,
newest schema first, how it is converted, and what stands for it in schemas that lack it. Only the columns that are
declared here are read. Names are loaded as ids and encoded afterwards (`Strings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Note, NoteLevel
from warplens.profile.trace import LAUNCH_SIZE, WORK_TABLES
from warplens.readers.sqlite import SqliteFile, quoted

_LOW_24_BITS = 0xFFFFFF


class Tables(Protocol):
    """What a trace is put together from, beside its events: an export on disk, or what a report says about itself."""

    @property
    def known_as(self) -> Path:
        """The file as the user knows it."""

    @property
    def tables(self) -> Mapping[str, tuple[str, ...]]:
        """The columns of each table that there is."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a small query; text comes as bytes."""

    def unreadable(self, found: str) -> UnreadableInputError:
        """An error about this file, under the name that the user knows."""


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


#: No condition on the rows of a table.
ALL_ROWS = "TRUE"


@dataclass(frozen=True)
class Field:
    """One column of a trace's table."""

    name: str
    columns: tuple[str, ...]  #: the column in the export; where several are named, the first that the export has
    convert: Callable[[str], pl.Expr] = _as_is  #: from that column's name to an expression over 64-bit integers
    absent: Any = None  #: what stands for it in an export that has none of the columns
    required: bool = False  #: without it the table cannot be read at all
    #: the column holds ids of `StringIds`; in `text_column`, of older exports, the text itself stands
    is_string: bool = False
    text_column: str | None = None
    launch_configuration: bool = False  #: it tells how a kernel was launched, which few questions ask
    #: what the column's numbers mean, and the export's own table of them, which goes first where it is there
    codes: tuple[str, Mapping[int, str]] | None = None


@dataclass(frozen=True)
class Source:
    """One table of the export."""

    table: str
    trace_table: str  #: the table of the trace to which its rows go
    fields: tuple[Field, ...]  #: the trace's columns, and further ones that the reader needs
    where: str = ALL_ROWS  #: a condition on the rows


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
            *(_configuration(name, f"{name[:-2]}{name[-1].upper()}") for name in LAUNCH_SIZE),
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


# --- A part of a recording that is too large to be read whole: which rows of each table belong to it ---
#
# The part is a span of time in the middle of the events. It is cut such that whole steps stay whole: a call of the host
# belongs to it by its begin, GPU work with the call that issued it, and a range that only one edge of the span cuts is
# left out, for its work would be there in part alone.

#: GPU work begins at most this share of the span after the call that issued it: milliseconds, of seconds.
_QUEUED: Final = 0.05

#: Rows whose begin is looked at to find the span: it holds the share that is asked for to about one in a hundred.
_LOOKED_AT: Final = 2_000


@dataclass(frozen=True)
class Excerpt:
    """A span of a recording, and the share of the events that lie in it, about."""

    start_ns: int
    end_ns: int
    share: float

    @property
    def _queued_ns(self) -> int:
        return int((self.end_ns - self.start_ns) * _QUEUED)

    def rows_of(self, table: str) -> pl.Expr:
        """Which rows of a table of the trace may belong to it, by the columns `start` and `end` of the export."""
        start = pl.col("start")
        inside = (start >= self.start_ns) & (start < self.end_ns)
        if table in WORK_TABLES:
            return (start >= self.start_ns) & (start < self.end_ns + self._queued_ns)
        if table != "ranges":
            return inside
        end = pl.col("end")
        around = (start < self.start_ns) & (end > self.end_ns)
        return (inside & (end.is_null() | (end <= self.end_ns))) | around

    def issued_in(self, work: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
        """The GPU work that calls of the span issued; where no call is known, what begins well inside of it."""
        inside = pl.col("start_ns") < self.end_ns
        if calls is None or not calls.height:
            return work.filter(inside)
        # What the calls before the span have left in the queue begins first.
        inside &= pl.col("start_ns") >= self.start_ns + self._queued_ns
        issuing = calls.select("process", "correlation").unique().with_columns(issued=pl.lit(value=True))
        work = work.join(issuing, on=["process", "correlation"], how="left", maintain_order="left")
        return work.filter(pl.col("issued").is_not_null() | inside).drop("issued")

    @property
    def note(self) -> Note:
        """Says that the rest was not looked at."""
        return Note(
            "read-in-part",
            NoteLevel.WARNING,
            f"Only the middle {100 * self.share:.0f} % of the recording was read, from {self.start_ns / 1e9:.3f} s to "
            f"{self.end_ns / 1e9:.3f} s: all of it takes more memory than is allowed. What lies outside is unknown.",
            "Allow more memory (--memory) to have all of it looked at",
        )


def excerpt_of(file: SqliteFile, share: float) -> Excerpt:
    """The span in the middle of an export that holds this share of its events, counted by GPU work, else by calls."""
    for table in _tables(file, (*WORK_TABLES, "api_calls", "ranges")):
        starts = np.sort(_begins(file, table))
        if len(starts) > 1:
            low, high = np.quantile(starts, [(1 - share) / 2, (1 + share) / 2], method="nearest").tolist()
            return Excerpt(low, max(high, low + 1), share)
    raise file.unreadable("it holds no event of which a part could be read")


def _tables(file: SqliteFile, names: Sequence[str]) -> list[str]:
    """The export's tables that become these of the trace, as far as it has them, in that order."""
    return [source.table for name in names for source in SOURCES
            if source.trace_table == name and source.table in file.tables]  # fmt: skip


def _begins(file: SqliteFile, table: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The begins of some rows of a table, evenly spread over it."""
    first, last = file.span(table)
    if first is None or last is None:
        return np.empty(0, np.int64)
    numbers = np.unique(np.linspace(first, last, _LOOKED_AT).astype(np.int64))
    query = f"SELECT start FROM {quoted(table)} WHERE {file.row_number(table)} IN ({', '.join(map(str, numbers))})"  # noqa: S608
    return np.array([start for (start,) in file.rows(query) if isinstance(start, int)], np.int64)
