from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.readers.exports import Export
from tests.shipped import of_others

#: Exports with real data of nine versions of Nsight Systems; not part of the project, some are other people's.
REAL_EXPORTS = (
    "a100_lm2p7b_cudagraph",
    "a100_lm2p7b_nvtx",
    "a100_lm_small_no_nvtx",
    "a100_tiny_2021",
    "empty_capture_old",
    "gtx1060_streams_2022",
    "h100x2_after",
    "h100x2_before",
    "h200_lm_small_lost_kernels",
    "h200_lm_small_train",
    "minimal_schema",
    "rtx5000_lm_small_windows",
    "wsl2_no_cuda_tables",
)


@pytest.fixture
def export():
    """An export without rows."""
    return Export()


@pytest.fixture
def path(tmp_path):
    """Where a small export is written."""
    return tmp_path / "profile.sqlite"


@pytest.fixture(scope="session")
def captured():
    """The path of a real file such as `nsys/minimal_schema.sqlite`; skips the test where it is not there."""
    return of_others


class PlainSql:
    """An export asked with plain SQL: the independent source that the reader is compared with."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{self._path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return connection.execute(query).fetchall()

    def has(self, table: str) -> bool:
        return bool(self.rows(f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{table}'"))

    def columns(self, table: str) -> set[str]:
        return {row[1] for row in self.rows(f"PRAGMA table_info({table})")}


@pytest.fixture(params=REAL_EXPORTS)
def real_export(request, captured):
    return captured(f"nsys/{request.param}.sqlite")
