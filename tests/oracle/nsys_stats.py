"""Runs `nsys stats`, reads its CSV into typed rows, and stores and loads them compactly."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

#: Where the reference tool's answers are stored, one file per capture.
EXPECTED = Path(__file__).resolve().parent / "expected"

#: A capture of a few seconds takes a second; far more means that the tool hangs.
_TIMEOUT_S = 300

#: Longer reports are stored as a fingerprint of all rows and the first rows only, to keep the repository small.
_MOST_ROWS_STORED = 400
_FIRST_ROWS_STORED = 40

Value: TypeAlias = "str | int | float | None"
Row: TypeAlias = "tuple[Value, ...]"


@dataclass(frozen=True)
class Report:
    """The columns of one report that are compared.

    Attributes:
        keys: the columns that say what a row is about.
        exact: whole numbers: counts, sums, extremes.
        rounded: means, medians and sample standard deviations, which the tool rounds to one decimal.
    """

    keys: tuple[str, ...]
    exact: tuple[str, ...]
    rounded: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.keys, *self.exact, *self.rounded)


_OF_TIME = ("Avg", "Med", "StdDev")

REPORTS: dict[str, Report] = {
    "cuda_gpu_kern_sum": Report(("Name",), ("Total Time", "Instances", "Min", "Max"), _OF_TIME),
    "cuda_gpu_mem_time_sum": Report(("Operation",), ("Total Time", "Count", "Min", "Max"), _OF_TIME),
    "cuda_gpu_mem_size_sum": Report(("Operation",), ("Total", "Count", "Min", "Max"), _OF_TIME),
    "cuda_api_sum": Report(("Name",), ("Total Time", "Num Calls", "Min", "Max"), _OF_TIME),
    "cuda_kern_exec_sum": Report(
        ("PID", "TID", "DevId", "API Name", "Kernel Name"),
        ("Count", "QCount", "TMin", "TMax", "AMin", "AMax", "QMin", "QMax", "KMin", "KMax"),
        tuple(f"{phase}{statistic}" for phase in "TAQK" for statistic in _OF_TIME),
    ),
    "nvtx_kern_sum": Report(
        ("NVTX Range", "Style", "PID", "TID", "Kernel Name"),
        ("NVTX Inst", "Kern Inst", "Total Time", "Min", "Max"),
        _OF_TIME,
    ),
    "nvtx_gpu_proj_sum": Report(
        ("Range", "Style"),
        ("Total Proj Time", "Total Range Time", "Range Instances", "Proj Min", "Proj Max", "Total GPU Ops"),
        ("Proj Avg", "Proj Med", "Proj StdDev", "Avg Range Lvl"),
    ),
    "nvtx_sum": Report(("Range", "Style"), ("Total Time", "Instances", "Min", "Max"), _OF_TIME),
}

_TEXTS = {"Name", "Operation", "API Name", "Kernel Name", "NVTX Range", "Style", "Range"}


@dataclass(frozen=True)
class Reported:
    """What the tool said in one report.

    Attributes:
        count: number of rows.
        digest: fingerprint of names and whole numbers of all rows.
        rows: all rows in the order of `Report.columns`, or the first ones of a long report.
    """

    count: int
    digest: str
    rows: list[Row]

    @property
    def is_complete(self) -> bool:
        return len(self.rows) == self.count


@dataclass(frozen=True)
class Answers:
    """All reports on one capture; a report that the tool skips or fails is absent.

    Attributes:
        nsys: version of the tool.
        sha256: of the unpacked capture, so that answers to an older version of it are noticed.
        domains: NVTX domains whose names the tool puts in front of range names (`domain:range`).
    """

    nsys: str
    sha256: str
    domains: list[str]
    reports: dict[str, Reported]


def find_nsys() -> str | None:
    """The `nsys` named by `WARPLENS_NSYS`, or the one on the PATH; None where there is none."""
    return os.environ.get("WARPLENS_NSYS") or shutil.which("nsys")


def collect(nsys: str, database: Path, *, names: Iterable[str] = REPORTS, shorten: bool = True) -> Answers:
    """Asks the tool for the reports `names` on a plain, writable SQLite export."""
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S).stdout
    reports = {name: _run(nsys, name, database) for name in names}
    return Answers(
        nsys=version.rpartition("version ")[2].partition("-")[0].strip(),
        sha256=fingerprint(database),
        domains=_domains(database),
        reports={name: _reported(name, rows, shorten) for name, rows in reports.items() if rows is not None},
    )


def fingerprint(database: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(database.read_bytes()).hexdigest()


def digest(name: str, rows: Iterable[Sequence[Value]]) -> str:
    """A fingerprint of the names and whole numbers of a report's rows, whatever their order.

    Args:
        name: the report.
        rows: values in the order of `Report.columns`.
    """
    width = len(REPORTS[name].keys) + len(REPORTS[name].exact)
    lines = sorted("\x1f".join("" if value is None else str(value) for value in row[:width]) for row in rows)
    return hashlib.sha256("\x1e".join(lines).encode()).hexdigest()


def store(answers: Answers, stem: str) -> Path:
    """Writes the answers for the capture `stem`; the same answers give the same bytes."""
    path = EXPECTED / f"{stem}.json.gz"
    text = json.dumps(asdict(answers), ensure_ascii=False, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    return path


def load(stem: str) -> Answers | None:
    """The stored answers for the capture `stem`; None where there are none."""
    path = EXPECTED / f"{stem}.json.gz"
    if not path.exists():
        return None
    stored = json.loads(gzip.decompress(path.read_bytes()))
    reports = {
        name: Reported(reported["count"], reported["digest"], [tuple(row) for row in reported["rows"]])
        for name, reported in stored.pop("reports").items()
    }
    return Answers(**stored, reports=reports)


def _run(nsys: str, name: str, database: Path) -> list[Row] | None:
    # Sizes in bytes: by default they are printed in MB, rounded. The tool exits with 0 even where it skips a report.
    command = [nsys, "stats", "--quiet", "--report", name, "--format", "csv:mem=B", "--output", "-", str(database)]
    printed = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S).stdout
    lines = [line for line in csv.reader(io.StringIO(printed.decode("utf-8", "replace"), newline="")) if line]
    if not lines:
        return None
    at = {title.partition(" (")[0]: position for position, title in enumerate(lines[0])}
    wanted = [(at[column], column in _TEXTS) for column in REPORTS[name].columns]
    return [tuple(line[i] if is_text else _number(line[i]) for i, is_text in wanted) for line in lines[1:]]


def _reported(name: str, rows: list[Row], shorten: bool) -> Reported:
    shown = rows[:_FIRST_ROWS_STORED] if shorten and len(rows) > _MOST_ROWS_STORED else rows
    return Reported(len(rows), digest(name, rows), shown)


def _number(cell: str) -> int | float | None:
    if not cell:
        return None
    return float(cell) if "." in cell or "e" in cell else int(cell)


def _domains(database: Path) -> list[str]:
    domain_create = 75  # NvtxDomainCreate in nsys's ENUM_NSYS_EVENT_TYPE
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if "NVTX_EVENTS" not in tables:
            return []
        query = "SELECT DISTINCT text FROM NVTX_EVENTS WHERE eventType = ? AND text IS NOT NULL ORDER BY 1"
        return [row[0] for row in connection.execute(query, (domain_create,))]
