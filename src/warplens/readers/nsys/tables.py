"""How the tables of an nsys export become the tables of a `Trace`: one declaration each, for all schemas since 2021.

A `Source` names an export's table and says for each column of the trace which of the export's columns it comes from,
newest schema first, how it is converted, and what stands for it in schemas that lack it. Only the columns that are
declared here are read. Names are loaded as ids and encoded afterwards (`Strings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile.nesting import nest
from warplens.profile.schema import Int64s, encode_names
from warplens.profile.trace import LAUNCH_SIZE

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


# --- Text in an nsys export -------------------------------------------------------------------------------------------
# the numbered strings that tables refer to, and text that stands in the tables themselves. Only strings that an event
# refers to are ever read. The rest of `StringIds` holds the process's environment, command lines and paths, which must
# not reach anything that Warplens shows.


#: Ids of one `IN (…)` list; SQLite looks each of them up in the table's key.
_IDS_PER_QUERY = 5_000

#: Up to this id a table of codes by id (32 MB at most) replaces the binary search, at a twentieth of its time.
_MAX_ID_IN_TABLE = 2**23


def decoded(raw: bytes) -> tuple[str, bool]:
    """The text of a string of an export, and whether bytes of it had to be replaced.

    Strings come from C programs: the text ends at the first NUL. Those of Windows captures are in the code page of
    that machine, which the file does not name; bytes that are not UTF-8 become �.
    """
    text = raw.split(b"\x00", 1)[0]
    try:
        return text.decode("utf-8"), False
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace"), True


def distinct_ids(columns: Iterable[pl.Series]) -> Int64s:
    """The different ids in these columns, ascending, nulls left out."""
    found = [column.unique().drop_nulls().to_numpy() for column in columns]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


class Strings:
    """Those strings of `StringIds` that events refer to.

    Attributes:
        missing: ids for which the file has no string.
        unnamed: those of them that a name was asked for.
        replaced: how many of the texts, those of `decode_all` included, were not UTF-8.
    """

    def __init__(self, file: Tables, ids: Int64s) -> None:
        self._texts: dict[int, str] = {}
        self.replaced = 0
        if "StringIds" in file.tables:
            for part in range(0, len(ids), _IDS_PER_QUERY):
                wanted = ",".join(map(str, ids[part : part + _IDS_PER_QUERY].tolist()))
                query = f"SELECT id, CAST(value AS BLOB) FROM StringIds WHERE id IN ({wanted}) AND value IS NOT NULL"  # noqa: S608
                for identifier, raw in file.rows(query):
                    self._texts[identifier], replaced = decoded(raw)
                    self.replaced += replaced
        self.missing = frozenset(ids.tolist()) - self._texts.keys()
        self.unnamed: set[int] = set()

    def __getitem__(self, identifier: int) -> str:
        if identifier in self.missing:
            self.unnamed.add(identifier)
            return f"unnamed ({identifier})"
        return self._texts[identifier]

    def encode(self, column: pl.Series, rewrite: Mapping[str, str] | None = None) -> pl.Series:
        """Dictionary-encoded names for a column of ids; null for null."""
        used = distinct_ids([column])
        texts = pl.Series([self[identifier] for identifier in used.tolist()], dtype=pl.String)
        for pattern, replacement in (rewrite or {}).items():
            texts = texts.str.replace(pattern, replacement)
        return encode_names(_codes(column, used), texts)

    def decode_all(self, column: pl.Series) -> pl.Series:
        """Text (`String`) for a column of raw bytes (`Binary`); null for null."""
        try:
            plain = column.cast(pl.String)  # fails on bytes that are not UTF-8
        except pl.exceptions.PolarsError:
            pass
        else:
            if not plain.str.contains("\x00", literal=True).any():
                return plain
        values = column.drop_nulls().unique()
        pairs = [decoded(raw) for raw in values.to_list()]
        self.replaced += sum(replaced for _, replaced in pairs)
        return column.replace_strict(values, pl.Series([text for text, _ in pairs], dtype=pl.String), default=None)


def _codes(column: pl.Series, used: Int64s) -> pl.Series:
    """For each id its place in the ascending array `used`, which holds it; null for null."""
    empty = column.is_null() if column.null_count() else None
    ids = column.fill_null(int(used[0]) if len(used) else 0).to_numpy()
    if not len(used):
        codes = np.zeros(len(ids), np.uint32)
    elif used[0] >= 0 and used[-1] <= _MAX_ID_IN_TABLE:
        table = np.zeros(int(used[-1]) + 1, np.uint32)
        table[used] = np.arange(len(used), dtype=np.uint32)
        codes = table[ids]
    else:
        codes = np.searchsorted(used, ids).astype(np.uint32)
    encoded = pl.Series(codes)
    return encoded if empty is None else encoded.set(empty, None)


# --- NVTX ranges of an nsys export: their names, and which of them encloses which -------------------------------------
# Nesting. Push-pop ranges of one NVTX domain nest on their thread by construction, but each domain has a stack of its
# own, and start-end ranges may end whenever the program likes. In practice they nest across domains, too (a library's
# ranges lie inside the application's), and that is what a reader of the profile wants to see. So all ranges of a thread
# are nested together wherever they do nest. Where some of a thread cross, its start-end ranges are set apart; where the
# others still cross, each domain of that thread is nested on its own. Other threads are not touched by this.

#: ENUM_NSYS_EVENT_TYPE: NVTX's ranges and those of its text importer (NVTXT). Marks, names and domains are no ranges.
RANGE_KINDS = {59: "push-pop", 60: "start-end", 70: "push-pop", 71: "start-end"}
_RANGE_TYPE_NAMES = {
    "NvtxPushPopRange": "push-pop",
    "NvtxStartEndRange": "start-end",
    "NvtxtPushPopRange": "push-pop",
    "NvtxtStartEndRange": "start-end",
}


def range_kinds(file: Tables) -> Mapping[int, str]:
    """The event types of this export that are ranges: its own table of them, else the numbers of all known versions."""
    kinds = {}
    if {"id", "name"} <= set(file.tables.get("ENUM_NSYS_EVENT_TYPE", ())):
        for code, name in file.rows("SELECT id, name FROM ENUM_NSYS_EVENT_TYPE"):
            kind = _RANGE_TYPE_NAMES.get(name.decode("utf-8", "replace")) if isinstance(name, bytes) else None
            if kind is not None and isinstance(code, int):
                kinds[code] = kind
    return kinds or RANGE_KINDS


def ranges_of(loaded: pl.DataFrame, strings: Strings, kinds: Mapping[int, str], capture_end_ns: int) -> pl.DataFrame:
    """The trace's table of ranges; one that was still open at the end of the capture ends there."""
    end_ns = pl.max_horizontal(pl.col("end_ns").fill_null(capture_end_ns), "start_ns")
    kind_codes = loaded.get_column("kind").replace_strict(kinds, return_dtype=pl.String)
    frame = loaded.with_columns(
        end_ns,
        pl.col("domain").fill_null(0),
        _names(loaded, strings),
        kind_codes.cast(pl.Enum(["push-pop", "start-end"])).alias("kind"),
    )
    return with_nesting(frame)


def _names(loaded: pl.DataFrame, strings: Strings) -> pl.Series:
    """The text of each range: its registered string where it has one, as nsys's own reports decide, else its own."""
    texts = strings.decode_all(loaded.get_column("text"))
    registered = loaded.get_column("registered")
    if registered.null_count() < registered.len():
        known = registered.set(registered.is_in(list(strings.missing)) & (texts != ""), None)
        texts = strings.encode(known).cast(pl.String).zip_with(known.is_not_null(), texts)
    return texts.cast(pl.Enum(texts.unique(maintain_order=True))).alias("name")


def with_nesting(ranges: pl.DataFrame) -> pl.DataFrame:
    """Ranges with their `depth` and `parent`; see the module's text for which of them are nested together."""
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    thread = _group_numbers(ranges["process"].to_numpy(), ranges["thread"].to_numpy())
    style = (ranges["kind"].cast(pl.String) == "start-end").to_numpy()
    domain = ranges["domain"].to_numpy()
    group = thread
    for finer in (style, domain):
        crossing = _crossing_groups(start, end, group) if len(np.unique(finer)) > 1 else np.empty(0, np.int64)
        if len(crossing):
            group = _group_numbers(group, np.where(np.isin(group, crossing), finer, 0))
    # Start-end ranges that were set apart may still cross each other. They get a call of their own, so that the others
    # keep the fast method of `nest`.
    apart = style & (np.isin(group, np.unique(group[~style]), invert=True))
    depth = np.empty(len(start), np.int64)
    parent = np.full(len(start), -1, np.int64)
    for rows in (np.flatnonzero(~apart), np.flatnonzero(apart)):
        nesting = nest(start[rows], end[rows], group[rows])
        depth[rows] = nesting.depth
        parent[rows] = np.where(nesting.parent >= 0, rows[nesting.parent], -1) if len(rows) else -1
    return ranges.with_columns(
        pl.Series("depth", depth, dtype=pl.Int32), pl.Series("parent", parent).replace(-1, None).alias("parent")
    )


def _group_numbers(coarse: npt.NDArray[np.generic], fine: npt.NDArray[np.generic]) -> Int64s:
    """A number for each different pair."""
    outer = np.unique(coarse, return_inverse=True)[1].reshape(-1).astype(np.int64)
    values, inner = np.unique(fine, return_inverse=True)
    numbers: Int64s = outer * (len(values) + 1) + inner.reshape(-1)
    return numbers


def _crossing_groups(start: Int64s, end: Int64s, group: Int64s) -> Int64s:
    """The groups in which two ranges overlap without one enclosing the other.

    Walk through all begins and ends of a group in time. Ranges nest exactly if each finds as many others open after its
    end as before its begin: the first-begun of the ranges that another one crosses does not. Ranges of no length cross
    nothing and are left out.
    """
    rows = np.flatnonzero(end > start)
    rows = rows[np.lexsort((-end[rows], start[rows], group[rows]))]
    count = len(rows)
    place = np.arange(count)
    # At one instant ends come before begins, inner ends before outer ones, outer begins before inner ones.
    is_begin = np.r_[np.zeros(count, np.int8), np.ones(count, np.int8)]
    order = np.lexsort((np.r_[-place, place], is_begin, np.r_[end[rows], start[rows]], np.r_[group[rows], group[rows]]))
    open_after = np.empty(2 * count, np.int64)
    open_after[order] = np.cumsum(2 * is_begin[order].astype(np.int64) - 1)
    crossing = open_after[:count] != open_after[count:] - 1
    return np.unique(group[rows[crossing]])
