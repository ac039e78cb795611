"""Exports as a folder of tables: the same trace as the SQLite export, and only what is asked for is opened."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import warplens
from tests import shipped
from tests.shipped import of_others
from warplens.errors import UnreadableInputError
from warplens.profile import Trace
from warplens.profile.trace import TABLES
from warplens.readers.opening import plain

_NSYS = Path(os.environ.get("WARPLENS_NSYS") or shutil.which("nsys") or "")

#: Types of nsys 2023.4's folders that differ from those in which SQLite gives numbers back.
_UNSIGNED = ("globalPid", "globalTid", "streamId", "contextId", "nameId", "shortName", "demangledName", "bytes")
_NARROW = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory")
_TYPES = {**dict.fromkeys(_UNSIGNED, pl.UInt64), **dict.fromkeys(_NARROW, pl.Int32), "isDiscrete": pl.Boolean}

_WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".arrow": lambda frame, path: frame.write_ipc_stream(path),
}


def _folder(export: Path, folder: Path, suffix: str) -> Path:
    """The tables of an SQLite export as nsys writes them into a folder."""
    folder.mkdir()
    with plain(export) as path, closing(sqlite3.connect(path)) as file:
        file.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            cursor = file.execute(f'SELECT * FROM "{table}"')
            names = [each[0] for each in cursor.description]
            frame = pl.DataFrame(cursor.fetchall(), schema=names, orient="row", infer_schema_length=None, strict=False)
            typed = frame.with_columns(
                pl.col(name).cast(_TYPES[name], wrap_numerical=True) for name in names if name in _TYPES
            )
            _WRITERS[suffix](typed, folder / f"{table}{suffix}")
    return folder


def _assert_equal(ours: Trace, theirs: Trace) -> None:
    for name in TABLES:
        assert_frame_equal(getattr(ours, name), getattr(theirs, name))
    for fact in ("tool_version", "schema_version", "devices", "window_ns", "recorded", "notes"):
        assert getattr(ours.capture, fact) == getattr(theirs.capture, fact), fact


@pytest.fixture(scope="module")
def capture():
    return shipped.capture("lm_small_ctx128_forward")


@pytest.mark.parametrize("suffix", _WRITERS)
def test_a_folder_gives_the_trace_of_the_export(suffix, capture, tmp_path):
    _assert_equal(warplens.read(_folder(capture, tmp_path / "folder", suffix)), warplens.read(capture))


@pytest.mark.parametrize("suffix", _WRITERS)
@pytest.mark.parametrize("name", ["h100x2_before", "gtx1060_streams_2022", "a100_lm2p7b_cudagraph"])
def test_so_do_those_of_other_versions(name, suffix, tmp_path):
    export = of_others(f"nsys/{name}.sqlite")
    _assert_equal(warplens.read(_folder(export, tmp_path / "folder", suffix)), warplens.read(export))


@pytest.mark.skipif(not _NSYS.is_file(), reason="nsys is neither in WARPLENS_NSYS nor on the PATH")
@pytest.mark.parametrize("kind", ["parquetdir", "arrowdir"])
def test_what_nsys_writes_is_read(kind, tmp_path):
    report = of_others("nsys/empty_capture_old.qdrep")
    exports = {each: tmp_path / f"export.{each}" for each in (kind, "sqlite")}
    for each, path in exports.items():
        # Tables without rows are asked for as well: they hold the types of all columns.
        command = [_NSYS, "export", "--lazy=false", "--quiet=true", f"--type={each}", f"--output={path}", report]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    ours, theirs = warplens.read(exports[kind]), warplens.read(exports["sqlite"])
    assert "kernels" in ours.capture.recorded
    _assert_equal(ours, theirs)


def test_a_folder_is_found_by_its_own_name_and_below_another(capture, tmp_path):
    folder = _folder(capture, tmp_path / "runs", ".parquet")
    assert warplens.readers.discover([folder]) == [folder]
    assert warplens.readers.discover([tmp_path]) == [folder]


def test_tables_about_people_and_machines_are_never_opened(capture, tmp_path):
    folder = _folder(capture, tmp_path / "folder", ".parquet")
    for name in ("PROCESSES", "TARGET_INFO_SESSION_START_TIME", "ThreadNames"):
        (folder / f"{name}.parquet").write_bytes(b"not to be opened")
    assert warplens.read(folder).kernels.height == warplens.read(capture).kernels.height


@pytest.mark.parametrize("name", ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "META_DATA_EXPORT"])
def test_a_damaged_table_is_named(name, capture, tmp_path):
    damaged = _folder(capture, tmp_path / "folder", ".parquet") / f"{name}.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(UnreadableInputError, match=rf"folder: its file {name}\.parquet is damaged"):
        warplens.read(damaged.parent)


def test_one_table_alone_is_refused_with_what_to_give(capture, tmp_path):
    folder = _folder(capture, tmp_path / "folder", ".parquet")
    with pytest.raises(UnreadableInputError, match="Give the folder that nsys export --type parquetdir wrote"):
        warplens.read(folder / "StringIds.parquet")
