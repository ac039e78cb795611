"""Nsight Systems' SQLite exports, schemas of 2021 to 2026, as a `Trace`.

`tables` declares what is read, and `texts` resolves names and nesting; this module reads the rows and builds the trace.
Facts about the capture come from `capture`, its shortcomings from `doubts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import polars as pl

from warplens.profile import Capture, Trace
from warplens.profile.trace import TABLES, WORK_TABLES, worst_first
from warplens.readers.excerpts import Excerpt
from warplens.readers.limits import FURTHEST_NS, LONGEST_NS
from warplens.readers.nsys import NSYS
from warplens.readers.nsys.capture import devices_of, session_of, stream_kinds
from warplens.readers.nsys.doubts import Findings, notes_of
from warplens.readers.nsys.tables import ALL_ROWS, SOURCES, Field, Source, Tables, excerpt_of
from warplens.readers.nsys.texts import Strings, codes_of, distinct_ids, encoded_codes, range_kinds, ranges_of
from warplens.readers.opening import EXPORT, Input, ReadOptions
from warplens.readers.sqlite import Part, SqliteFile, looks_like_nsys, quoted, worker_count
from warplens.readers.sqlite_rows import ColumnBuffers

# --- Loading the declared tables of an nsys export --------------------------------------------------------------------
# Parts of all tables are read in one pool of threads. Each part is read as 64-bit integers, cast at once to the types
# of the trace, and freed, so that the peak of memory is little above the size of the result.

#: From this number of parts on, reading takes more than a second and progress is shown.
_MANY_PARTS = 8


@dataclass(frozen=True)
class Loaded:
    """The rows of one source."""

    frame: pl.DataFrame  #: the fields of the source as columns; strings as ids or raw bytes, codes as numbers
    dropped: int  #: rows left out because of their times: no start, an end before it, or impossibly late


@dataclass(frozen=True)
class Plan:
    """The plan for reading one source from one export."""

    source: Source
    query: str  #: the SQL query, without the condition on the row range
    columns: tuple[str, ...]  #: columns of the export in the order of the query; empty if some hold texts
    texts: tuple[str, ...]  #: columns of the result that hold raw bytes
    shape: tuple[pl.Expr, ...]  #: from the query's columns to the source's fields
    absent: tuple[pl.Expr, ...]  #: fields whose columns the export lacks
    within: pl.Expr | None = None  #: selects the rows of an excerpt, by columns of the export; None for all

    @property
    def inputs(self) -> set[str]:
        """The columns of the export, or raw texts, that the shape is made of."""
        return {name for expression in self.shape for name in expression.meta.root_names()}

    def loaded(self, frame: pl.DataFrame, dropped: int) -> Loaded:
        """All shaped rows, with the fields that the export lacks."""
        return Loaded(frame.with_columns(self.absent).select(field.name for field in self.source.fields), dropped)


def load(
    file: SqliteFile,
    sources: Iterable[Source],
    progress: Callable[[int], None] = lambda _: None,
    excerpt: Excerpt | None = None,
) -> dict[str, Loaded]:
    """The rows of all sources whose table the export has, by the table's name, in the file's order.

    Args:
        file: the export.
        sources: what to read.
        progress: receives the percentage read.
        excerpt: the part of the recording to read; None for all.
    """
    plans = [plan_of(file, source, excerpt) for source in sources if source.table in file.tables]
    loaded = {}
    with ThreadPoolExecutor(worker_count()) as pool:
        # A table with texts is one long task: submitted last, it would run alone at the end.
        pending = {
            plan.source.table: _submit(pool, file, plan) for plan in sorted(plans, key=lambda plan: not plan.texts)
        }
        count, done = sum(len(parts) for _, parts in pending.values()), 0
        try:
            for plan in plans:
                buffers, parts = pending.pop(plan.source.table)
                dropped = 0
                for part in parts:
                    dropped += part.result()
                    done += 1
                    if count >= _MANY_PARTS and done * 10 // count > (done - 1) * 10 // count:
                        progress(done * 10 // count * 10)
                loaded[plan.source.table] = plan.loaded(buffers.frame(), dropped)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return loaded


def _submit(pool: ThreadPoolExecutor, file: SqliteFile, plan: Plan) -> tuple[ColumnBuffers, list[Future[int]]]:
    """Buffers for a source's rows, and the tasks that fill them; each returns the number of rows it dropped."""
    parts = file.parts(plan.source.table)
    no_rows = pl.DataFrame(schema={name: pl.Binary if name in plan.texts else pl.Int64 for name in plan.inputs})
    buffers = ColumnBuffers(shaped(file, plan, no_rows)[0].schema, [part.capacity for part in parts])

    def fill(number: int) -> int:
        frame, dropped = shaped(file, plan, rows_of(file, plan, parts[number]))
        if frame.height > parts[number].capacity:
            raise file.unreadable(f"its table {plan.source.table} is damaged: it holds more rows than it says")
        buffers.put(number, frame)
        return dropped

    return buffers, [pool.submit(fill, number) for number in range(len(parts))]


def rows_of(file: SqliteFile, plan: Plan, part: Part) -> pl.DataFrame:
    """The rows of a part with the columns of the export; text as bytes.

    Raises:
        UnreadableInputError: the part cannot be read, or the table is damaged.
    """
    if plan.columns and plan.source.where == ALL_ROWS:
        raw = file.numbers(plan.source.table, plan.columns, part)
        if raw is not None:
            return raw
    raw = file.frame(plan.source.table, f"{plan.query} AND {part.condition}", plan.texts)
    file.refuse_damage_in(plan.source.table, part, raw.height if plan.source.where == ALL_ROWS else None)
    return raw


def plan_of(file: Tables, source: Source, excerpt: Excerpt | None = None) -> Plan:
    """The plan to read a source, or an excerpt of it, from a file that has its table."""
    available = file.tables[source.table]
    selected: dict[str, str] = {}
    texts: list[str] = []
    shape: list[pl.Expr] = []
    absent: list[pl.Expr] = []
    for field in source.fields:
        column = next((name for name in field.columns if name in available), None)
        if column is not None:
            selected[column] = quoted(column)
            shape.append(field.convert(column).alias(field.name))
        elif field.text_column in available:
            column = f"{field.text_column} as text"
            selected[column] = f"coalesce(CAST({quoted(str(field.text_column))} AS BLOB), x'') AS {quoted(column)}"
            texts.append(column)
            shape.append(pl.col(column).alias(field.name))
        elif field.required:
            raise file.unreadable(f"its table {source.table} has no column {' or '.join(field.columns)}")
        else:
            absent.append(field.absent.alias(field.name))
    query = f"SELECT {', '.join(selected.values())} FROM {quoted(source.table)} WHERE {source.where}"  # noqa: S608
    within = None
    if excerpt is not None:
        start, end = pl.col("start"), pl.col("end").fill_null(pl.col("start"))
        within = excerpt.holds(source.trace_table, start, end)
    return Plan(source, query, () if texts else tuple(selected), tuple(texts), tuple(shape), tuple(absent), within)


def shaped(file: Tables, plan: Plan, raw: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Rows of the export as rows of the trace, and the number of rows left out."""
    is_valid = pl.col("start").is_between(-FURTHEST_NS, FURTHEST_NS).fill_null(False)
    if "end" in raw.columns:
        # A difference beyond 64 bits is negative. Only a range may lack its end: it was open when the capture ended.
        duration = pl.col("end") - pl.col("start")
        is_valid &= duration.is_between(0, LONGEST_NS).fill_null(plan.source.trace_table == "ranges")
    valid = raw if raw.select(is_valid.all()).item() else raw.filter(is_valid)
    selected = valid if plan.within is None else valid.filter(plan.within)
    try:
        frame = selected.select(plan.shape)
    except pl.exceptions.PolarsError:
        found = f"its table {plan.source.table} holds numbers too large for what they count"
        raise file.unreadable(found) from None
    return frame, raw.height - valid.height


# TRACE_PROCESS_EVENT_CUDABACKTRACE: with backtraces on, the 2021 collector wrote each call twice, once with its stack.
BACKTRACE_CLASS = 67

#: Types of CUPTI_ACTIVITY_KIND_OVERHEAD that the profiler causes: buffer flush, instrumentation, resources. The others
#: (compilation, lazy loading of modules and functions, a full command buffer) occur without a profiler as well.
_PROFILER_OVERHEADS = (3, 4, 5)

#: nsys appends the CUDA version that a function's parameters date from: cudaLaunchKernel_v7000 → cudaLaunchKernel. The
#: suffix of cuMemcpyHtoD_v2 is part of its name.
_VERSION_SUFFIX = {r"_v\d{4,5}$": ""}

#: The argument of `dlopen(…)`, removed if it is a path: that is one of the user's files.
_PATH_ARGUMENT = {r"\(.*[/\\].*\)$": ""}

#: What is removed from names, by table of the trace.
REWRITES: Mapping[str, Mapping[str, str]] = {"api_calls": _VERSION_SUFFIX, "profiler_overhead": _PATH_ARGUMENT}

#: Joins no work: the correlation id of calls that have none.
_NO_CORRELATION = -1

_SYNCHRONIZATIONS = ("event", "stream-wait-event", "stream", "context")


def without_backtrace_copies(calls: pl.DataFrame) -> pl.DataFrame:
    """API calls without the copies made with their backtraces (same thread and correlation id as another call)."""
    is_copy = pl.col("class") == BACKTRACE_CLASS
    if not calls.select(is_copy.any()).item():
        return calls.drop("class")
    key = ("process", "thread", "correlation")
    copies = calls.with_row_index("row").filter(is_copy)
    repeated = copies.join(calls.filter(~is_copy).select(key), on=key, how="semi")
    return calls.with_row_index("row").join(repeated, on="row", how="anti", maintain_order="left").drop("row", "class")


def joined_overheads(frames: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames with both tables of overhead merged, without overhead that CUDA has without a profiler."""
    cupti = frames.pop("CUPTI_ACTIVITY_KIND_OVERHEAD", None)
    if cupti is not None:
        cupti = cupti.filter(pl.col("overhead").is_in(_PROFILER_OVERHEADS)).drop("overhead")
        recorded = frames.get("PROFILER_OVERHEAD")
        frames["PROFILER_OVERHEAD"] = cupti if recorded is None else pl.concat([recorded, cupti])
    return frames


def event_window(frames: Mapping[str, pl.DataFrame], duration_ns: int | None) -> tuple[int, int]:
    """First and last instant of any event.

    The session's own duration does not measure it: it runs from the start of the session on a clock of its own, and
    with a capture range most of it was not recorded (138 s for 0.3 s of events). It is used where there are no events.
    """
    begins, ends = [], []
    for frame in frames.values():
        if frame.height:
            columns = [name for name in ("start_ns", "end_ns", "time_ns") if name in frame.columns]
            row = frame.select(
                begin=pl.min_horizontal(pl.col(columns).min()), end=pl.max_horizontal(pl.col(columns).max())
            )
            begins.append(row["begin"].item())
            ends.append(row["end"].item())
    return (min(begins), max(ends)) if begins else (0, duration_ns or 0)


def finished(file: Tables, source: Source, frame: pl.DataFrame, strings: Strings) -> pl.DataFrame:
    """A source's rows with names and codes as text, and the derived columns of its table."""
    columns = {}
    for field in source.fields:
        values = frame.get_column(field.name)
        if field.is_string:
            if values.dtype == pl.Binary:
                texts = strings.decode_all(values)
                columns[field.name] = texts.cast(pl.Enum(texts.unique(maintain_order=True)))
            else:
                columns[field.name] = strings.encode(values, REWRITES.get(source.trace_table))
        elif field.codes is not None:
            columns[field.name] = encoded_codes(values, codes_of(file, *field.codes))
    frame = frame.with_columns(**columns)
    if source.trace_table == "api_calls":
        return frame.with_columns(pl.col("correlation").fill_null(_NO_CORRELATION))
    if source.trace_table == "synchronizations":
        return _with_kind(frame)
    if source.trace_table == "memory":
        released = pl.col("operation").cast(pl.String) == "deallocation"
        return frame.with_columns(delta_bytes=pl.when(released).then(-pl.col("bytes")).otherwise(pl.col("bytes")))
    return frame


def _with_kind(waits: pl.DataFrame) -> pl.DataFrame:
    """Add the kind of each synchronization, inferred from the handles it names: a stream, an event, both, or neither.

    `syncType` is unreliable. In 2021 and 2022 a context is 1, an event 2, a stream 3; in 2024.6 and 2025.3 a context is
    0, an event 1, a stream 2; in 2026 the numbers are CUPTI's (event 1, stream waiting for an event 2, stream 3,
    context 4). The export's own enumeration always lists the latter. The handles agree with the API call in every
    capture examined.
    """
    event, stream = pl.col("event").is_not_null(), pl.col("stream").is_not_null()
    kind = (
        pl.when(event & stream)
        .then(pl.lit("stream-wait-event"))
        .when(event)
        .then(pl.lit("event"))
        .when(stream)
        .then(pl.lit("stream"))
        .otherwise(pl.lit("context"))
    )
    return waits.with_columns(kind=kind.cast(pl.Enum(_SYNCHRONIZATIONS)))


# --- Nsight Systems' SQLite exports, schemas of 2021 to 2026, as a `Trace` --------------------------------------------

_CALLS, _RANGES = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_SOURCE_OF = {source.table: source for source in SOURCES}


def read_nsys_sqlite(source: Input, options: ReadOptions) -> Trace:
    """The trace of an SQLite export, or of a share of its events from the middle of the recording."""
    with opened(source) as file:
        kinds = range_kinds(file)
        source.tell("reading the tables")
        sources = sources_of(file, kinds, options.launch_configuration)
        part = excerpt_of(file, options.share) if options.share < 1 else None
        loaded = load(file, sources, lambda percent: source.tell(f"reading, {percent} %"), part)
        source.tell("putting the trace together")
        return put_together(file, loaded, kinds, part=part)


@contextmanager
def opened(source: Input) -> Iterator[SqliteFile]:
    """An export, its pages checked if it is small.

    Raises:
        UnreadableInputError: it is damaged, or another SQLite file.
    """
    with SqliteFile(source.path, source.known_as) as file:
        if "StringTable" in file.tables and not looks_like_nsys(file.tables):
            found = "an nvprof database, not an Nsight Systems export"
            raise file.unreadable(found, "Record the program with nsys profile instead")
        if not looks_like_nsys(file.tables):
            found = "an SQLite database, but not an Nsight Systems export"
            raise file.unreadable(found, f"Give the export of a capture: {EXPORT} profile.nsys-rep")
        file.refuse_damage()
        yield file


def sources_of(file: Tables, kinds: Mapping[int, str], launch_configuration: bool) -> list[Source]:
    """The declared sources, adapted to the export and to the request."""
    sources = []
    for source in SOURCES:
        if source.trace_table == "ranges":
            source = replace(source, where=f"eventType IN ({', '.join(map(str, kinds))})")  # noqa: PLW2901
        if source.trace_table == "api_calls" and "CUDA_CALLCHAINS" in file.tables:
            event_class = Field("class", ("eventClass",), absent=pl.lit(0, pl.Int64))
            source = replace(source, fields=(*source.fields, event_class))  # noqa: PLW2901
        if not launch_configuration:
            fields = (replace(field, columns=()) if field.launch_configuration else field for field in source.fields)
            source = replace(source, fields=tuple(fields))  # noqa: PLW2901
        sources.append(source)
    return sources


def put_together(
    file: Tables,
    loaded: dict[str, Loaded],
    kinds: Mapping[int, str],
    format_name: str = "nsys-sqlite",
    part: Excerpt | None = None,
) -> Trace:
    """Build the trace from loaded rows; `part` is the excerpt they belong to, if any."""
    recorded = frozenset(_SOURCE_OF[name].trace_table for name in loaded)
    dropped = {name: rows.dropped for name, rows in loaded.items()}
    frames = {name: rows.frame for name, rows in loaded.items()}
    loaded.clear()  # frees each frame as soon as the trace has its own
    callers = frames[_CALLS]["process"].drop_nulls().unique().to_list() if _CALLS in frames else []
    process = callers[0] if len(callers) == 1 else 0  # of rows that do not name theirs
    frames = {name: frame.with_columns(pl.col("process").fill_null(process)) for name, frame in frames.items()}
    frames = joined_overheads(frames)
    repeated = 0
    if "class" in frames.get(_CALLS, pl.DataFrame()).columns:
        repeated = frames[_CALLS].height
        frames[_CALLS] = without_backtrace_copies(frames[_CALLS])
        repeated -= frames[_CALLS].height
    if part is not None:
        issued = frames.get(_CALLS)
        work = (name for name in frames if _SOURCE_OF[name].trace_table in WORK_TABLES)
        frames |= {name: part.issued_in(frames[name], issued, "start_ns", ("process", "correlation")) for name in work}

    strings = Strings(file, distinct_ids(_ids_of_strings(frames)))
    session = session_of(file, frozenset(callers))
    window = event_window(frames, session.duration_ns) if part is None else (part.start_ns, part.end_ns)
    open_ranges = frames[_RANGES]["end_ns"].null_count() if _RANGES in frames else 0
    tables = _tables_of(file, frames, strings, kinds, window[1])
    devices, ambiguous = devices_of(file, _used_devices(tables))
    notes = notes_of(
        Findings(
            tables=tables,
            session=session,
            has_devices=bool(devices),
            ambiguous_devices=ambiguous,
            dropped_rows=sum(dropped.values()),
            dropped_work=sum(rows for name, rows in dropped.items() if _SOURCE_OF[name].trace_table in WORK_TABLES),
            open_ranges=open_ranges,
            repeated_calls=repeated,
            unnamed=len(strings.unnamed),
            replaced=strings.replaced,
        )
    )
    capture = Capture(
        source=file.known_as.name,
        format=format_name,
        recorder=NSYS,
        tool_version=session.tool_version,
        schema_version=session.schema_version,
        devices=devices,
        window_ns=window,
        began_ns=session.began_ns,
        recorded=recorded,
        notes=notes if part is None else worst_first((part.note(), *notes)),
        stream_kinds=stream_kinds(file),
    )
    return Trace(capture, **tables)


def _ids_of_strings(frames: Mapping[str, pl.DataFrame]) -> list[pl.Series]:
    fields = [(frame, field) for name, frame in frames.items() for field in _SOURCE_OF[name].fields if field.is_string]
    return [frame[field.name] for frame, field in fields if frame[field.name].dtype == pl.Int64]


def _tables_of(
    file: Tables, frames: dict[str, pl.DataFrame], strings: Strings, kinds: Mapping[int, str], end_ns: int
) -> dict[str, pl.DataFrame]:
    """The tables of the trace; the frames are freed one by one."""
    tables = {name: table.empty() for name, table in TABLES.items()}
    for name in list(frames):
        source, frame = _SOURCE_OF[name], frames.pop(name)
        if source.trace_table == "ranges":
            frame = ranges_of(frame, strings, kinds, end_ns)
        else:
            frame = finished(file, source, frame, strings)
        declared = TABLES[source.trace_table]
        if any(frame[column.name].null_count() for column in declared.columns if not column.nullable):
            raise file.unreadable(f"its table {source.table} lacks values that every row of it must have")
        tables[source.trace_table] = declared.checked(frame)
    return tables


def _used_devices(tables: Mapping[str, pl.DataFrame]) -> list[tuple[int, int]]:
    work = [tables[name].select("process", "device") for name in WORK_TABLES]
    # Most files have one pair. Comparing each row with the first is far faster than hashing all rows.
    pairs = [
        frame[:1] if frame.select((pl.all() == pl.all().first()).all()).row(0) == (True, True) else frame.unique()
        for frame in work
    ]
    return sorted(pl.concat(pairs).unique().rows())
