"""GPU time of a language-model capture counted with plain SQL and loops: nothing of the package is used.

Work belongs to a range when its launching API call begins inside it on the same thread; work launched by another thread
than the one that holds the ranges belongs to the range that is open there at that time (autograd's backward thread).
"""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_NAME = "coalesce(n.text, (SELECT value FROM StringIds WHERE id = n.textId))"


@dataclass(frozen=True)
class Op:
    """One piece of GPU work with its launch."""

    name: str
    start: int
    end: int
    launched: int
    thread: int

    @property
    def duration(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Range:
    """One NVTX range."""

    start: int
    end: int
    thread: int

    def holds(self, op: Op) -> bool:
        return self.start <= op.launched < self.end

    def inside(self, other: Range) -> bool:
        return other.start <= self.start and self.end <= other.end


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with TemporaryDirectory() as folder:
        plain = path
        if path.suffix == ".xz":
            plain = Path(folder) / "plain.sqlite"
            plain.write_bytes(lzma.decompress(path.read_bytes()))
        connection = sqlite3.connect(f"{plain.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            yield connection
        finally:
            connection.close()


def ranges(connection: sqlite3.Connection, name: str) -> list[Range]:
    query = f"SELECT start, end, globalTid FROM NVTX_EVENTS n WHERE {_NAME} = ? AND end IS NOT NULL ORDER BY start"
    return [Range(*row) for row in connection.execute(query, (name,))]


def in_steps(connection: sqlite3.Connection, name: str) -> list[Range]:
    """The ranges of this name that lie inside a range called `step`: without warm-up."""
    steps = ranges(connection, "step")
    return [item for item in ranges(connection, name) if any(item.inside(step) for step in steps)]


def ops(connection: sqlite3.Connection) -> list[Op]:
    """Kernels by demangled name, and copies and fills under the name of their table."""
    found = []
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    for table, name in (
        ("KERNEL", "(SELECT value FROM StringIds WHERE id = w.demangledName)"),
        ("MEMCPY", "'copy'"),
        ("MEMSET", "'fill'"),
    ):
        if f"CUPTI_ACTIVITY_KIND_{table}" in tables:
            query = f"""
                SELECT {name}, w.start, w.end, r.start, r.globalTid
                FROM CUPTI_ACTIVITY_KIND_{table} w JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                ON r.correlationId = w.correlationId AND (r.globalTid & ~0xFFFFFF) = w.globalPid"""
            found += [Op(*row) for row in connection.execute(query)]
    return found


def held(found: list[Op], item: Range) -> list[Op]:
    """The work launched inside a range, on any thread: in these captures only one thread holds the program's ranges."""
    return [op for op in found if item.holds(op)]
