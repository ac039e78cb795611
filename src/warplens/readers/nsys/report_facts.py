"""What a report says about itself, as the small tables that nsys's SQLite exports have for it.

The tables stand in a database in memory, so that the questions asked of an export are asked of a report in the same
words (`Facts.rows`). Only what is listed here is taken over: versions, limits of the GPUs, yes-or-no answers, and texts
that are classified and never quoted. Environment, hosts, users, command lines and paths stay where they are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from warplens.errors import UnreadableInputError
from warplens.readers.nsys.report_container import Report
from warplens.readers.nsys.report_wire import BYTES, fields, tag

_DURATION_FROM, _DURATION_TO = tag(17), tag(18)
_PROCESS = tag(26, BYTES)
_COLLECTS_CUDA = tag(21)
_TOOL_VERSION = tag(6, BYTES)

#: Of the facts about the system (message 1.2.1 of the target: number and value) the one that tells WSL from Linux.
_SYSTEM_FACTS = {618: "SoftwareReleaseVersion"}

#: Fields of a GPU (message 1.2.7 of the tail) by the columns of TARGET_INFO_GPU; names are text, all others numbers.
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

#: Which GPU has which CUDA number in which process (message 1.2.9 of the tail).
_CUDA_DEVICE = {"gpuId": 1, "cudaId": 2, "pid": 3}

#: Bytes of a name or a version: enough for any real one.
_MAX_TEXT = 200

#: Messages of one kind that a report may reasonably have: GPUs of a machine, processes that use them.
_MAX_ROWS = 100_000


class Facts:
    """The small tables of a report, asked in SQL like those of an export.

    Args:
        report: the open report.

    Attributes:
        known_as: the file as the user knows it.
        tables: the columns of each table that there is; those of events are added by `declare`.
    """

    def __init__(self, report: Report) -> None:
        self.known_as: Path = report.known_as
        self.tables: dict[str, tuple[str, ...]] = {}
        self._report = report
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.text_factory = bytes
        with report.understood():
            self._add("META_DATA_EXPORT", ("name", "value"), _versions(report))
            self._add("META_DATA_CAPTURE", ("name", "value"), _requests(report.options))
            self._add("TARGET_INFO_SYSTEM_ENV", ("name", "value"), _system(report.target))
            self._add("ANALYSIS_DETAILS", ("duration",), _duration(report.target))
            gpus, devices = _hardware(report.tail)
            self._add("TARGET_INFO_GPU", tuple(_GPU), gpus)
            self._add("TARGET_INFO_CUDA_DEVICE", tuple(_CUDA_DEVICE), devices)
        self._add("StringIds", ("id", "value"), list(enumerate(report.strings)))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a small query; text comes as bytes."""
        return self._connection.execute(sql).fetchall()

    def add_diagnostics(self, rows: Iterable[Sequence[Any]]) -> None:
        """Takes over what the collector reported: (severity, text, process)."""
        self._add("DIAGNOSTIC_EVENT", ("severity", "text", "globalPid"), list(rows))

    def declare(self, table: str, columns: tuple[str, ...]) -> None:
        """Says that the report has a table of events with these columns; its rows are not kept here."""
        self.tables[table] = columns

    def unreadable(self, found: str, advice: str | None = None) -> UnreadableInputError:
        """An error about this report, under the name that the user knows."""
        error = self._report.damaged(found)
        return error if advice is None else UnreadableInputError(self.known_as, found, advice)

    def close(self) -> None:
        """Let go of the tables."""
        self._connection.close()

    def _add(self, table: str, columns: tuple[str, ...], rows: list[Any]) -> None:
        if not rows:
            return
        if len(rows) > _MAX_ROWS and table != "StringIds":
            raise self._report.damaged(f"it claims {len(rows):,} entries in a list that has a few")
        key = "id INTEGER PRIMARY KEY, value" if table == "StringIds" else ", ".join(columns)
        self._connection.execute(f"CREATE TABLE {table} ({key})")
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608  # own names only
        self.tables[table] = columns


def _versions(report: Report) -> list[tuple[str, str]]:
    content = report.origin
    for key, first, last in fields(content, 0, len(content)):
        if key == _TOOL_VERSION:
            return [("EXPORT_PRODUCT_VERSION", content[first:last][:_MAX_TEXT].decode("utf-8", "replace"))]
    return [("EXPORT_PRODUCT_VERSION", report.version)] if report.version is not None else []


def _requests(options: bytes) -> list[tuple[str, str]]:
    """What was asked to be recorded, of that the one thing that notes are made of."""
    found: list[tuple[str, str]] = []
    for key, first, last in fields(options, 0, len(options)):
        if key == _PROCESS:
            asked = any(value for inner, value, _ in fields(options, first, last) if inner == _COLLECTS_CUDA)
            found.append((f"PROCESS_{len(found)}:COLLECT_CUDA_TRACE", "true" if asked else "false"))
    return found


def _system(target: bytes) -> list[tuple[str, str]]:
    found = []
    for span in _nested(target, 1, 2, 1):
        number, text = 0, b""
        for key, value, stop in fields(target, *span):
            if key == tag(1):
                number = value
            elif key == tag(2, BYTES):
                text = target[value:stop]
        if number in _SYSTEM_FACTS:
            found.append((_SYSTEM_FACTS[number], text.decode("utf-8", "replace")))
    return found


def _duration(target: bytes) -> list[tuple[int]]:
    times = {key: value for key, value, _ in fields(target, 0, len(target)) if key in (_DURATION_FROM, _DURATION_TO)}
    if len(times) < 2:
        return []
    duration = times[_DURATION_TO] - times[_DURATION_FROM]
    return [(duration,)] if 0 <= duration < 2**63 else []


def _hardware(tail: bytes) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    gpus = [_row(tail, span, _GPU) for span in _nested(tail, 1, 2, 7)]
    devices = [_row(tail, span, _CUDA_DEVICE) for span in _nested(tail, 1, 2, 9)]
    return gpus, devices


def _nested(content: bytes, *path: int) -> list[tuple[int, int]]:
    """Where the messages lie that this path of field numbers leads to."""
    spans = [(0, len(content))]
    for number in path:
        spans = [
            (first, last) for span in spans for key, first, last in fields(content, *span) if key == tag(number, BYTES)
        ]
    return spans


def _row(content: bytes, span: tuple[int, int], columns: Mapping[str, int]) -> tuple[Any, ...]:
    found: dict[int, Any] = {}
    for key, value, stop in fields(content, *span):
        if key & 7 == BYTES:
            found[key >> 3] = content[value:stop][:_MAX_TEXT].decode("utf-8", "replace")
        elif key & 7 == 0:
            found[key >> 3] = value - 2**64 if value >= 2**63 else value
    return tuple(found.get(number) for number in columns.values())
