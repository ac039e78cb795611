"""Nsight Systems' SQLite exports, schemas of 2021 to 2026, as a `Trace`.

`nsys_tables` declares what is read, `nsys_load` reads it, this module puts the trace together; names come from
`nsys_strings`, nesting from `nsys_ranges`, facts about the capture from `nsys_capture` and its shortcomings from
`nsys_notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from warplens.profile import Capture, Trace
from warplens.profile.schema import TABLES
from warplens.readers.nsys_capture import devices_of, session_of
from warplens.readers.nsys_load import Loaded, load
from warplens.readers.nsys_notes import Findings, notes_of
from warplens.readers.nsys_ranges import range_kinds, ranges_of
from warplens.readers.nsys_rows import event_window, finished, joined_overheads, only_process, without_backtrace_copies
from warplens.readers.nsys_strings import Strings, distinct_ids
from warplens.readers.nsys_tables import SOURCES, Field, Source
from warplens.readers.sqlite_file import SqliteFile, looks_like_nsys

__all__ = ["read_nsys_sqlite"]

Report = Callable[[str], None]

_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_DECLARED = {source.table: source for source in SOURCES}


def read_nsys_sqlite(path: Path, known_as: Path, report: Report, launch_configuration: bool = True) -> Trace:
    """The trace that an SQLite export of Nsight Systems holds.

    Args:
        path: the export on disk.
        known_as: the file that the user named; `path` may be unpacked or converted from it.
        report: told in a few words what is being done.
        launch_configuration: whether to read how kernels were launched.

    Raises:
        UnreadableInputError: the file is no export of Nsight Systems, is incomplete or damaged, or a table of it lacks
            what every version writes.
    """
    with SqliteFile(path, known_as) as file:
        if not looks_like_nsys(file.tables):
            raise _not_nsys(file)
        kinds = range_kinds(file)
        report(f"{known_as.name}: reading the tables")
        sources = _sources(file, kinds, launch_configuration)
        loaded = load(file, sources, lambda percent: report(f"{known_as.name}: reading, {percent} %"))
        report(f"{known_as.name}: putting the trace together")
        return _trace(file, loaded, kinds)


def _not_nsys(file: SqliteFile) -> Exception:
    if "StringTable" in file.tables:
        found, advice = (
            "an nvprof database, not an Nsight Systems export",
            "Record the program with nsys profile instead",
        )
    else:
        found = "an SQLite database, but not an Nsight Systems export"
        advice = "Give the export of a capture: nsys export --type sqlite --output profile.sqlite profile.nsys-rep"
    return file.unreadable(found, advice)


def _sources(file: SqliteFile, kinds: Mapping[int, str], launch_configuration: bool) -> list[Source]:
    """The declared sources, as far as they depend on the export and on what is asked for."""
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


def _trace(file: SqliteFile, loaded: dict[str, Loaded], kinds: Mapping[int, str]) -> Trace:
    recorded = frozenset(_DECLARED[name].trace_table for name in loaded)
    dropped = sum(part.dropped for part in loaded.values())
    frames = {name: part.frame for name, part in loaded.items()}
    loaded.clear()  # each frame is let go of as soon as the trace has its own
    process = only_process(frames.get(_CALLS))
    frames = {name: frame.with_columns(pl.col("process").fill_null(process)) for name, frame in frames.items()}
    frames = joined_overheads(frames)
    repeated = 0
    if "class" in frames.get(_CALLS, pl.DataFrame()).columns:
        repeated = frames[_CALLS].height
        frames[_CALLS] = without_backtrace_copies(frames[_CALLS])
        repeated -= frames[_CALLS].height

    strings = Strings(file, distinct_ids(_ids_of_strings(frames)))
    session = session_of(file, _cuda_processes(frames))
    window = event_window(frames, session.duration_ns)
    tables = {name: table.empty() for name, table in TABLES.items()}
    open_ranges = 0
    for name in list(frames):
        source, frame = _DECLARED[name], frames.pop(name)
        if source.trace_table == "ranges":
            open_ranges = frame["end_ns"].null_count()
            frame = ranges_of(frame, strings, kinds, window[1])
        else:
            frame = finished(file, source, frame, strings)
        declared = TABLES[source.trace_table]
        if any(frame[column.name].null_count() for column in declared.columns if not column.nullable):
            raise file.unreadable(f"its table {source.table} lacks values that every row of it must have")
        tables[source.trace_table] = declared.checked(frame)

    devices, ambiguous = devices_of(file, _used_devices(tables))
    notes = notes_of(
        Findings(
            tables=tables,
            session=session,
            has_devices=bool(devices),
            ambiguous_devices=ambiguous,
            dropped_rows=dropped,
            open_ranges=open_ranges,
            repeated_calls=repeated,
            unnamed=len(strings.unnamed),
            replaced=strings.replaced,
        )
    )
    capture = Capture(
        source=file.known_as.name,
        format="nsys-sqlite",
        tool="Nsight Systems",
        tool_version=session.tool_version,
        schema_version=session.schema_version,
        devices=devices,
        window_ns=window,
        recorded=recorded,
        notes=notes,
    )
    return Trace(capture, **tables)


def _ids_of_strings(frames: Mapping[str, pl.DataFrame]) -> list[pl.Series]:
    fields = [(frame, field) for name, frame in frames.items() for field in _DECLARED[name].fields if field.is_string]
    return [frame[field.name] for frame, field in fields if frame[field.name].dtype == pl.Int64]


def _cuda_processes(frames: Mapping[str, pl.DataFrame]) -> frozenset[int]:
    calls = frames.get(_CALLS)
    return frozenset(() if calls is None else calls["process"].unique().to_list())


def _used_devices(tables: Mapping[str, pl.DataFrame]) -> list[tuple[int, int]]:
    work = [tables[name].select("process", "device") for name in ("kernels", "copies", "memsets", "graph_launches")]
    # Most files have one pair, which comparing each row with the first finds far faster than hashing all of them.
    pairs = [
        frame[:1] if frame.select((pl.all() == pl.all().first()).all()).row(0) == (True, True) else frame.unique()
        for frame in work
    ]
    return sorted(pl.concat(pairs).unique().rows())
