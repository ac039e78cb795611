"""Captures of programs that are slower or faster by a known factor: a real one with all of its times stretched."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path


def write_stretched(source: Path, path: Path, factor: float) -> Path:
    """Writes the export `source` (.sqlite.xz) to `path` with every time multiplied by `factor`."""
    path.write_bytes(lzma.decompress(source.read_bytes()))
    with closing(sqlite3.connect(path)) as file, file:
        stretch(file, factor)
    return path


def stretch(file: sqlite3.Connection, factor: float) -> None:
    """Multiplies every time of an export by `factor`."""
    tables = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        columns = {row[1] for row in file.execute(f"PRAGMA table_info('{table}')")}
        if {"start", "end"} <= columns:
            file.execute(
                f"UPDATE '{table}' SET start = CAST(start * ? AS INTEGER), end = CAST(end * ? AS INTEGER)",
                (factor, factor),
            )
