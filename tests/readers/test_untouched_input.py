"""The file that is read stays as it is, and nothing appears beside it."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from tests.readers.exports import KERNELS, Export
from warplens.readers import read


def _state(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        entry.name: (entry.stat().st_mtime_ns, hashlib.sha256(entry.read_bytes()).hexdigest())
        for entry in folder.iterdir()
    }


@pytest.fixture
def export(tmp_path):
    small = Export()
    small.call(0, 5)
    small.kernel(10, 20)
    return small.write(tmp_path / "a profile? 50% #1.sqlite")


def test_reading_changes_nothing_and_writes_nothing_beside_the_file(export):
    before = _state(export.parent)
    assert read(export).kernels.height == 1
    assert _state(export.parent) == before


def test_a_real_export_on_a_read_only_disk_is_read(real_export):
    before = hashlib.sha256(real_export.read_bytes()).digest(), real_export.stat().st_mtime_ns
    siblings = sorted(real_export.parent.iterdir())
    read(real_export)
    assert (hashlib.sha256(real_export.read_bytes()).digest(), real_export.stat().st_mtime_ns) == before
    assert sorted(real_export.parent.iterdir()) == siblings


def test_a_file_without_write_permission_in_a_folder_without_one_is_read(export):
    export.chmod(0o444)
    export.parent.chmod(0o555)
    try:
        assert read(export).kernels.height == 1
    finally:
        export.parent.chmod(0o755)


def test_a_database_in_wal_mode_is_read_without_starting_a_log(export):
    with closing(sqlite3.connect(export)) as file:
        file.execute("PRAGMA journal_mode = WAL")
    before = _state(export.parent)
    assert read(export).kernels.height == 1
    assert _state(export.parent) == before


def test_rows_that_are_still_in_the_write_ahead_log_are_seen(export, tmp_path_factory, monkeypatch):
    interrupted = tmp_path_factory.mktemp("interrupted")
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with closing(sqlite3.connect(export)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}")
        file.commit()
        for entry in export.parent.iterdir():  # as a crash would leave them
            if not entry.name.endswith("-shm"):
                shutil.copy(entry, interrupted)
    assert len(list(interrupted.iterdir())) == 2
    before = _state(interrupted)
    assert read(interrupted / export.name).kernels.height == 2
    assert _state(interrupted) == before
    assert list(temporary.iterdir()) == []


def test_a_transaction_that_was_never_finished_is_not_seen(export, tmp_path_factory):
    interrupted = tmp_path_factory.mktemp("interrupted")
    with closing(sqlite3.connect(export)) as file:
        file.execute("PRAGMA cache_size = 1")  # so that pages are written before the end of the transaction
        file.execute("BEGIN")
        for _ in range(12):
            file.execute(f"INSERT INTO {KERNELS} SELECT * FROM {KERNELS}")
        for entry in export.parent.iterdir():
            shutil.copy(entry, interrupted)
    assert sorted(entry.suffix for entry in interrupted.iterdir()) == [".sqlite", ".sqlite-journal"]
    before = _state(interrupted)
    assert read(interrupted / export.name).kernels.height == 1
    assert _state(interrupted) == before


def test_reading_tells_what_it_does(export):
    told: list[str] = []
    read(export, progress=told.append)
    assert told
    assert all(text.startswith(f"{export.name}: ") for text in told)


def test_a_file_may_be_given_as_text(export):
    assert read(str(export)).capture.source == export.name
