"""The Nsight Systems captures that both sides read: those shipped with the package, and a folder of others."""

from __future__ import annotations

import gzip
import lzma
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import zstandard

from tests.shipped import OTHERS

_REPOSITORY = Path(__file__).resolve().parents[2]

#: Captures of the project: present in every clone.
SHIPPED = (
    _REPOSITORY / "src" / "warplens" / "data",
    _REPOSITORY / "data" / "captures",
    _REPOSITORY / "data" / "planted",
)

#: Captures of other people, which are tested where they are and never become part of the project.
THIRD_PARTY = OTHERS / "nsys"

_SUFFIXES = (".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst")


@dataclass(frozen=True)
class Capture:
    """One capture: where it is, and the name under which its expectation is stored."""

    path: Path

    @property
    def stem(self) -> str:
        return self.path.name.partition(".sqlite")[0]

    def unpacked_into(self, folder: Path) -> Path:
        """A plain, writable copy of the database, because the reference tool may write beside its input."""
        copy = folder / f"{self.stem}.sqlite"
        with _opened(self.path) as packed, copy.open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        return copy


def captures() -> list[Capture]:
    """All Nsight Systems captures on this machine, by name; a shipped one wins over another of the same name."""
    found = {capture.stem: capture for folder in (THIRD_PARTY, *SHIPPED) for capture in _in_folder(folder)}
    return [found[stem] for stem in sorted(found)]


def has_device_data(database: Path) -> bool:
    """Whether a plain SQLite file holds at least one CUDA kernel or CUDA API call in nsys's tables."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return any(
            connection.execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME")
            if table in tables
        )


def _in_folder(folder: Path) -> Iterator[Capture]:
    if folder.is_dir():
        yield from (Capture(path) for path in sorted(folder.rglob("*")) if path.name.endswith(_SUFFIXES))


def _opened(path: Path):  # three libraries, three stream types, one way of reading
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rb")
        case ".xz":
            return lzma.open(path, "rb")
        case ".zst":
            return zstandard.open(path, "rb")
        case _:
            return path.open("rb")
