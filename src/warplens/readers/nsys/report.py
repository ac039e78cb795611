"""A report of Nsight Systems as a `Trace`, read without any software of NVIDIA.

The decoded columns are those of nsys's SQLite exports and take the same way into the trace as an export's (`shaped`,
`put_together`), so that a report and its export give the same tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl

from warplens.profile import Capture, Note, NoteLevel, Trace
from warplens.readers.nsys.export import Loaded, plan_of, put_together, shaped, sources_of
from warplens.readers.nsys.report_container import Report, opened
from warplens.readers.nsys.report_events import EVENT_NAMES, LAYOUTS, UNUSED_TYPES, Seen, decoded
from warplens.readers.nsys.report_facts import Facts
from warplens.readers.nsys.tables import RANGE_KINDS, Source

_DIAGNOSTICS = "DIAGNOSTIC_EVENT"

#: Rows of a table that are shaped at once: enough that the cost of a call does not show, few enough to stay small.
_ROWS_AT_ONCE = 250_000

#: From this many events on, reading takes long enough to tell how far it is.
_MANY_EVENTS = 1_000_000

#: The newest nsys whose reports were compared with their exports.
TESTED_VERSION = (2026, 2)

#: Kinds of unknown events that a note names.
_MOST_NAMED = 8

#: Warnings and errors of the collector; the rest says that things went well.
_SEVERITIES = (2, 3)

_EXPORT = "nsys export --type sqlite --output profile.sqlite profile.nsys-rep"


def read_nsys_report(
    path: Path, known_as: Path, report: Callable[[str], None], launch_configuration: bool = True
) -> Trace:
    """The trace that a report of Nsight Systems holds.

    Args:
        path: the report on disk.
        known_as: the file that the user named; `path` may be unpacked from it.
        report: told in a few words what is being done.
        launch_configuration: whether to read how kernels were launched.

    Raises:
        NotUnderstoodError: it is stored in a way that this reader does not know.
        UnreadableInputError: the report is damaged, cut off, or lacks what every report has.
    """
    with opened(path, known_as) as source:
        facts = Facts(source)
        try:
            report(f"{known_as.name}: reading the events")
            seen = Seen()
            loaded = _loaded(source, facts, seen, report, launch_configuration)
            report(f"{known_as.name}: putting the trace together")
            trace = put_together(facts, loaded, RANGE_KINDS, "nsys-rep")
        finally:
            facts.close()
    return replace(trace, capture=_capture(trace.capture, seen))


def _loaded(
    file: Report, facts: Facts, seen: Seen, report: Callable[[str], None], launch_configuration: bool
) -> dict[str, Loaded]:
    """The rows of all tables that the report has events for, in its order."""
    for layout in LAYOUTS:
        if layout.table != _DIAGNOSTICS:
            facts.declare(layout.table, layout.names)
    # Calls that were recorded a second time with their backtrace are told by their class: ask for it.
    facts.declare("CUDA_CALLCHAINS", ())
    sources = sources_of(facts, RANGE_KINDS, launch_configuration)
    tables = {source.table: _Rows(facts, source) for source in sources if source.table in facts.tables}
    diagnostics: list[tuple[object, ...]] = []
    told = 0
    # One thread decodes 1.8 M events/s, two 1.4 and four 1.0: the array operations are too short to overlap.
    for block, spans, share in file.blocks():
        with file.understood():
            for table, frame in decoded(block, spans, seen, launch_configuration):
                if table in tables:
                    tables[table].add(frame)
                else:
                    serious = frame.filter(pl.col("severity").is_in(_SEVERITIES))
                    diagnostics.extend(serious.select("severity", "text", "globalPid").rows())
        if seen.events > file.event_count:
            break
        if file.event_count >= _MANY_EVENTS and int(share * 10) > told:
            told = int(share * 10)
            report(f"{file.known_as.name}: reading, {told * 10} %")
    if seen.events != file.event_count:
        raise file.damaged(f"it says to hold {file.event_count:,} events, but holds another number")
    facts.add_diagnostics(diagnostics)
    return {table: rows.loaded() for table, rows in tables.items() if rows}


class _Rows:
    """The rows of one table as they come in, shaped some at a time so that only the trace's own columns are kept."""

    def __init__(self, facts: Facts, source: Source) -> None:
        self._facts, self._plan = facts, plan_of(facts, source)
        self._raw: list[pl.DataFrame] = []
        self._waiting = 0
        self._shaped: list[pl.DataFrame] = []
        self._dropped = 0

    def __bool__(self) -> bool:
        return bool(self._raw or self._shaped)

    def add(self, frame: pl.DataFrame) -> None:
        """Takes rows with the columns of the export."""
        self._raw.append(frame)
        self._waiting += frame.height
        if self._waiting >= _ROWS_AT_ONCE:
            self._shape()

    def loaded(self) -> Loaded:
        """All rows, as an export's would be loaded."""
        self._shape()
        frame = pl.concat(self._shaped, rechunk=True).with_columns(self._plan.absent)
        self._shaped.clear()
        return Loaded(frame.select(field.name for field in self._plan.source.fields), self._dropped)

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
    """The facts of an export's capture, as far as they are of the report itself, and what could not be read."""
    notes = list(capture.notes)
    unknown = {kind: count for kind, count in seen.unread.items() if kind not in UNUSED_TYPES}
    if unknown:
        kinds = ", ".join(EVENT_NAMES.get(kind, f"type {kind}") for kind in sorted(unknown)[:_MOST_NAMED])
        kinds += f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        text = f"{sum(unknown.values()):,} events are of kinds that this reader does not know: {kinds}."
        remedy = f"If numbers look incomplete, give the report's export instead: {_EXPORT}"
        notes.append(Note("unread-events", NoteLevel.WARNING, text, remedy))
    newest = ".".join(map(str, TESTED_VERSION))
    if tuple(map(int, (capture.tool_version or "0").split(".")))[: len(TESTED_VERSION)] > TESTED_VERSION:
        text = f"The report was recorded by nsys {capture.tool_version}; this reader was tested up to {newest}."
        remedy = f"Check the counts against nsys stats, or give the report's export: {_EXPORT}"
        notes.append(Note("untested-report", NoteLevel.INFO, text, remedy))
    return replace(capture, notes=tuple(notes))
