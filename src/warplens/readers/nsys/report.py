"""A report of Nsight Systems as a `Trace`, read without any software of NVIDIA.

The decoded columns are those of nsys's SQLite exports and go through the same steps into the trace (`shaped`,
`put_together`), so that a report and its export give the same tables.

The facts about the recording (`Facts`) are stored in a database in memory, in the small tables that exports have for
them, so that the same queries work for both. Only the facts listed here are copied: versions, limits of the GPUs,
yes-or-no answers, and texts that are classified and never quoted. Environment, hosts, users, command lines and paths
are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Capture, Note, NoteLevel, Trace
from warplens.profile.schema import Int64s
from warplens.profile.trace import WORK_TABLES
from warplens.readers.excerpts import IN_SLICES, Excerpt, Sample
from warplens.readers.nsys.export import Loaded, event_window, plan_of, put_together, shaped, sources_of
from warplens.readers.nsys.report_container import Report, opened
from warplens.readers.nsys.report_events import EVENT_NAMES, LAYOUTS, UNUSED_TYPES, Seen, decoded
from warplens.readers.nsys.tables import SOURCES, STRINGS, Source, TablesInMemory
from warplens.readers.nsys.texts import RANGE_KINDS
from warplens.readers.opening import EXPORT, Input, ReadOptions, surely_fits
from warplens.wire import BYTES, VARINT, Message, fields_of, varint

_DIAGNOSTICS = "DIAGNOSTIC_EVENT"

#: Fields of the target, of the recording options, of a process in them, and of the origin.
_DURATION_FROM, _DURATION_TO = 17, 18
_PROCESS = 26
_COLLECTS_CUDA = 21
_TOOL_VERSION = 6

#: Facts about the system that are read (message 1.2.1 of the target: number and value): the one that tells WSL from
#: Linux.
_SYSTEM_FACTS = {618: "SoftwareReleaseVersion"}

#: Fields of a GPU (message 1.2.7 of the tail) by column of TARGET_INFO_GPU; names are text, all others numbers.
_GPU = {
    "id": 1,
    "name": 2,
    "chipName": 7,
    "l2CacheSize": 10,
    "totalMemory": 11,
    "memoryBandwidth": 12,
    "clockRate": 13,
    "smCount": 14,
    "maxShmemPerSm": 28,
    "maxRegistersPerSm": 29,
    "maxWarpsPerSm": 32,
    "maxBlocksPerSm": 33,
    "maxThreadsPerBlock": 34,
    "computeMajor": 41,
    "computeMinor": 42,
}

#: Fields of the mapping from GPU to CUDA ordinal in each process (message 1.2.9 of the tail).
_CUDA_DEVICE = {"gpuId": 1, "cudaId": 2, "pid": 3}

#: Maximum bytes of a name or version; any real one is shorter.
_MAX_TEXT = 200

#: Maximum messages of one kind, such as the GPUs of a machine or the processes that use them.
_MAX_ROWS = 100_000


class Facts(TablesInMemory):
    """The small tables of a report; those of events are only declared, in `tables`."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.known_as)
        self._report = report
        try:
            with report.understood():
                self._add("META_DATA_EXPORT", ("name", "value"), _versions(report))
                self._add("META_DATA_CAPTURE", ("name", "value"), _requests(report.options))
                self._add("TARGET_INFO_SYSTEM_ENV", ("name", "value"), _system(report.target))
                self._add("ANALYSIS_DETAILS", ("duration",), _duration(report.target))
                self._add("TARGET_INFO_GPU", tuple(_GPU), _entries(report.tail, 7, _GPU))
                self._add("TARGET_INFO_CUDA_DEVICE", tuple(_CUDA_DEVICE), _entries(report.tail, 9, _CUDA_DEVICE))
            self._add(STRINGS, ("id", "value"), list(enumerate(report.strings)))
        except BaseException:
            self.close()
            raise

    def add_diagnostics(self, rows: list[tuple[object, ...]]) -> None:
        """Add messages of the collector: (severity, text, process)."""
        self._add(_DIAGNOSTICS, ("severity", "text", "globalPid"), rows)

    def unreadable(self, found: str) -> UnreadableInputError:
        """An error about this report, under the name that the user knows."""
        return self._report.damaged(found)

    def _add(self, table: str, columns: tuple[str, ...], rows: list[Any]) -> None:
        if not rows:
            return
        if len(rows) > _MAX_ROWS and table != STRINGS:
            raise self._report.damaged(f"it claims {len(rows):,} entries in a list that has a few")
        self._insert(table, columns, rows)


# The next two stop at the field that they ask for, so that damage behind it does not matter.
def _versions(report: Report) -> list[tuple[str, str]]:
    for number, wire, content, _ in fields_of(report.origin):
        if (number, wire) == (_TOOL_VERSION, BYTES):
            return [("EXPORT_PRODUCT_VERSION", content[:_MAX_TEXT].decode("utf-8", "replace"))]
    return [("EXPORT_PRODUCT_VERSION", report.version)] if report.version is not None else []


def _requests(options: bytes) -> list[tuple[str, str]]:
    """The recording options that the notes need: whether CUDA tracing was requested, per process."""
    processes = (content for number, wire, content, _ in fields_of(options) if (number, wire) == (_PROCESS, BYTES))
    return [
        (f"PROCESS_{count}:COLLECT_CUDA_TRACE", "true" if _collects_cuda(process) else "false")
        for count, process in enumerate(processes)
    ]


def _collects_cuda(process: bytes) -> bool:
    fields = fields_of(process)
    return any((number, wire) == (_COLLECTS_CUDA, VARINT) and varint(value, 0)[0] for number, wire, value, _ in fields)


def _system(target: Message) -> list[tuple[str, str]]:
    facts = ((fact.integer(1), fact.text(2)) for fact in _nested(target, 1, 2, 1))
    return [(_SYSTEM_FACTS[number], text or "") for number, text in facts if number in _SYSTEM_FACTS]


def _duration(target: Message) -> list[tuple[int]]:
    begin, end = target.integer(_DURATION_FROM), target.integer(_DURATION_TO)
    return [(end - begin,)] if begin is not None and end is not None and 0 <= end - begin < 2**63 else []


def _entries(tail: Message, kind: int, columns: Mapping[str, int]) -> list[tuple[str | int | None, ...]]:
    """The messages 1.2.`kind` of the tail as rows."""
    return [tuple(_value(entry, number) for number in columns.values()) for entry in _nested(tail, 1, 2, kind)]


def _nested(outer: Message, *path: int) -> list[Message]:
    """The messages at this path of field numbers."""
    found = [outer]
    for number in path:
        found = [inner for message in found for inner in message.messages(number)]
    return found


def _value(message: Message, field: int) -> str | int | None:
    number, text = message.integer(field), message.text(field)
    if number is None:
        return None if text is None else text[:_MAX_TEXT]
    return number - 2**64 if number >= 2**63 else number


#: Tables of GPU work and API calls.
_WORK = frozenset(source.table for source in SOURCES if source.trace_table in (*WORK_TABLES, "api_calls"))

#: Rows of a table shaped at once: enough to hide the cost of a call, few enough to save memory.
_ROWS_AT_ONCE = 250_000

#: From this number of events on, progress is shown.
_MANY_EVENTS = 1_000_000

#: Newest nsys whose reports were compared with their exports.
TESTED_VERSION = (2026, 2)

#: Unknown kinds of events that a note names at most.
_MOST_NAMED = 8

#: Severities of the collector's messages that are kept: warnings and errors.
_SEVERITIES = (2, 3)


def read_nsys_report(file: Input, options: ReadOptions) -> Trace:
    """The trace of an Nsight Systems report.

    Raises:
        NotUnderstoodError: the report's storage format is unknown.
        UnreadableInputError: the report is damaged, cut off, or lacks what every report has.
    """
    part = _excerpt(file, options.share) if options.share < 1 else None
    with opened(file.path, file.known_as) as report, closing(Facts(report)) as facts:
        file.tell("reading the events")
        seen = Seen()
        loaded = _loaded(report, facts, seen, file.tell, options, part)
        if options.work_alone:
            window = event_window({table: rows.frame for table, rows in loaded.items()}, None)
            loaded = {table: rows for table, rows in loaded.items() if table in _WORK}
        file.tell("putting the trace together")
        trace = put_together(facts, loaded, RANGE_KINDS, "nsys-rep", part)
    if not options.work_alone:
        return replace(trace, capture=_capture(trace.capture, seen))
    return replace(trace, capture=replace(trace.capture, window_ns=window, notes=(IN_SLICES,)))


#: Blocks of a report that are sampled, each with some four thousand events.
_SAMPLES = 256

#: Memory of a report for each of its events, at most.
_MOST_BYTES_PER_EVENT = 800

#: Memory for an event, compared with one of an SQLite export: a report has all names in memory, and batches of rows.
_MEMORY_OF_ROW = 1.12


def rows_in(file: Input, memory: int) -> dict[str, int] | None:
    """Estimate of the rows of each table of the trace; None for a report that this reader does not know.

    Also None if so many events surely fit into this many bytes of memory.
    """
    try:
        with opened(file.path, file.known_as) as report:
            if surely_fits(report.event_count, _MOST_BYTES_PER_EVENT, memory):
                return None
        sampled = _sampled(file.path, file.known_as, file.path.stat().st_mtime_ns)
    except UnreadableInputError:  # reading it says why
        return None
    return {name: round(_MEMORY_OF_ROW * sampled.rows(name)) for name in sampled.begins} | sampled.texts()


def _excerpt(file: Input, share: float) -> Excerpt:
    begins = _sampled(file.path, file.known_as, file.path.stat().st_mtime_ns).begins
    tables = (name for name in (*WORK_TABLES, "api_calls", "ranges") if name in begins)
    return Excerpt.of((_spread(begins[name]) for name in tables), share, file.known_as)


def _spread(blocks: Sequence[Int64s]) -> Int64s:
    """The begins of events, of many blocks one of each: events of a block follow each other, so it stands for a gap."""
    steps = [max(len(begins) * len(blocks) // _SAMPLES, 1) for begins in blocks]
    return np.concatenate([begins[step // 2 :: step] for begins, step in zip(blocks, steps, strict=True)])


@lru_cache(maxsize=4)
def _sampled(path: Path, known_as: Path, _modified_ns: int) -> Sample:
    table_of = {source.table: source.trace_table for source in SOURCES}
    with opened(path, known_as) as report, report.understood():
        seen, sampled = Seen(), Sample(report.event_count)
        for block, span in report.sample(_SAMPLES):
            for table, frame in decoded(block, [span], seen, launch_configuration=False):
                if (name := table_of.get(table)) is not None:
                    sampled.begins[name].append(frame["start"].drop_nulls().to_numpy())
                    sampled.names.update(_names_in(frame, report.strings))
    sampled.read = seen.events
    return sampled


#: Columns of names: the texts themselves, and numbers of strings.
_NAMES = ("text", "textId", "nameId", "demangledName", "shortName")


def _names_in(frame: pl.DataFrame, strings: Sequence[str | bytes]) -> Counter[str | bytes]:
    """How often each name occurs in these rows."""
    names: Counter[str | bytes] = Counter()
    for column in set(_NAMES) & set(frame.columns):
        for value, times in frame[column].drop_nulls().value_counts().iter_rows():
            if isinstance(value, bytes):
                names[value] += times
            elif 0 <= value < len(strings):
                names[strings[value]] += times
    return names


def _loaded(
    report: Report, facts: Facts, seen: Seen, tell: Callable[[str], None], options: ReadOptions, part: Excerpt | None
) -> dict[str, Loaded]:
    """The rows of the tables that the report has events for, in its order; of an excerpt those that may be in it.

    If work alone is asked for, rows of other tables have nothing but their times.
    """
    for layout in LAYOUTS:
        if layout.table != _DIAGNOSTICS:
            facts.tables[layout.table] = layout.names
    # Calls recorded a second time with their backtrace have a class of their own; this table makes `sources_of` read
    # it.
    facts.tables["CUDA_CALLCHAINS"] = ()
    sources = sources_of(facts, RANGE_KINDS, options.launch_configuration)
    if options.work_alone:
        sources = [source if source.table in _WORK else source.times_alone for source in sources]
    tables = {source.table: _Rows(facts, source, part) for source in sources if source.table in facts.tables}
    diagnostics: list[tuple[object, ...]] = []
    shown_tenths = 0
    # One thread decodes 1.8 M events/s, two 1.4 and four 1.0: the array operations are too short to overlap.
    for block, spans, share in report.blocks():
        with report.understood():
            for table, frame in decoded(block, spans, seen, options.launch_configuration):
                if table in tables:
                    tables[table].add(frame)
                else:
                    serious = frame.filter(pl.col("severity").is_in(_SEVERITIES))
                    diagnostics.extend(serious.select("severity", "text", "globalPid").rows())
        if seen.events > report.event_count:
            break
        if report.event_count >= _MANY_EVENTS and int(share * 10) > shown_tenths:
            shown_tenths = int(share * 10)
            tell(f"reading, {shown_tenths * 10} %")
    if seen.events != report.event_count:
        raise report.damaged(f"it says to hold {report.event_count:,} events, but holds another number")
    facts.add_diagnostics(diagnostics)
    return {table: rows.loaded() for table, rows in tables.items() if rows}


class _Rows:
    """The rows of one table as they arrive, shaped in batches so that only the trace's own columns are kept."""

    def __init__(self, facts: Facts, source: Source, part: Excerpt | None) -> None:
        self._facts, self._plan = facts, plan_of(facts, source, part)
        self._raw: list[pl.DataFrame] = []
        self._waiting = 0
        self._shaped: list[pl.DataFrame] = []
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._raw or self._shaped)

    def add(self, frame: pl.DataFrame) -> None:
        """Add rows with the columns of the export."""
        self._raw.append(frame)
        self._waiting += frame.height
        if self._waiting >= _ROWS_AT_ONCE:
            self._shape()

    def loaded(self) -> Loaded:
        """All rows, as they would be loaded from an export."""
        self._shape()
        frame = pl.concat(self._shaped, rechunk=True)
        self._shaped.clear()
        return self._plan.loaded(frame, self._dropped)

    def _shape(self) -> None:
        if self._raw:
            renamed = {name.removesuffix(" as text"): name for name in self._plan.texts}
            raw = pl.concat(self._raw).rename(renamed).with_columns(pl.col(pl.Binary).fill_null(b""))
            frame, dropped = shaped(self._facts, self._plan, raw)
            self._shaped.append(frame)
            self._dropped += dropped
            self._raw.clear()
            self._waiting = 0


def _capture(capture: Capture, seen: Seen) -> Capture:
    """The capture, with notes on what could not be read or was not tested."""
    notes = list(capture.notes)
    unknown = {kind: count for kind, count in seen.unread.items() if kind not in UNUSED_TYPES}
    if unknown:
        kinds = ", ".join(EVENT_NAMES.get(kind, f"type {kind}") for kind in sorted(unknown)[:_MOST_NAMED])
        kinds += f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        text = f"{sum(unknown.values()):,} events are of kinds that this reader does not know: {kinds}."
        remedy = f"If numbers look incomplete, give the report's export instead: {EXPORT} profile.nsys-rep"
        notes.append(Note("unread-events", NoteLevel.WARNING, text, remedy))
    newest = ".".join(map(str, TESTED_VERSION))
    if tuple(map(int, (capture.tool_version or "0").split(".")))[: len(TESTED_VERSION)] > TESTED_VERSION:
        text = f"The report was recorded by nsys {capture.tool_version}; this reader was tested up to {newest}."
        remedy = f"Check the counts against nsys stats, or give the report's export: {EXPORT} profile.nsys-rep"
        notes.append(Note("untested-report", NoteLevel.INFO, text, remedy))
    return replace(capture, notes=tuple(notes))
