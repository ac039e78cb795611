"""What happens to reports that only an installed nsys knows, and to exports that are older than their report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.readers.exports import Export
from tests.readers.nsys_reports import small_report
from warplens.errors import UnreadableInputError
from warplens.readers.nsys import conversion
from warplens.readers.nsys.conversion import read_nsys_rep, with_note_on_age

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from warplens.profile import Note


def _codes(notes: tuple[Note, ...]) -> set[str]:
    return {note.code for note in notes}


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(small_report())
    return path


def test_a_known_report_needs_no_nsys(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(path: Path, known_as: Path, told: Callable[[str], None]) -> Path:
        raise AssertionError

    monkeypatch.setattr(conversion, "converted", never)
    trace = read_nsys_rep(report, report, lambda _: None)
    assert trace.kernels.height == 10


def test_an_unknown_report_is_converted_and_says_so(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = Export()
    export.kernel(10, 20)
    path = export.write(tmp_path / "converted.sqlite")
    monkeypatch.setattr(conversion, "converted", lambda *_: path)
    report.write_bytes(small_report(compression=b"zstd"))
    told: list[str] = []
    capture = read_nsys_rep(report, report, told.append).capture
    assert capture.source == "run.nsys-rep"
    assert any("compressed in an unknown way" in line for line in told)
    (note,) = [note for note in capture.notes if note.code == "converted-report"]
    assert note.text == (
        "The report was converted by the installed nsys, because its events are compressed in an unknown way."
    )


def test_a_damaged_report_is_not_handed_on(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "converted", lambda *_: pytest.fail("nsys was asked"))
    report.write_bytes(small_report()[:-1])
    with pytest.raises(UnreadableInputError, match="the report is cut off"):
        read_nsys_rep(report, report, lambda _: None)


@pytest.mark.parametrize(("seconds", "noted"), [(-3600, True), (-10, False), (3600, False)])
def test_an_export_older_than_its_report_is_noticed(report: Path, seconds: float, noted: bool) -> None:
    export = report.with_suffix(".sqlite")
    export.write_bytes(b"")
    written = report.stat().st_mtime
    os.utime(export, (written + seconds, written + seconds))
    trace = read_nsys_rep(report, report, lambda _: None)
    assert ("older-export" in _codes(with_note_on_age(trace, report).capture.notes)) is noted
    assert ("older-export" in _codes(with_note_on_age(trace, export).capture.notes)) is noted
    assert with_note_on_age(trace, report.with_suffix(".json")) is trace


def test_a_report_alone_has_no_age(report: Path) -> None:
    trace = read_nsys_rep(report, report, lambda _: None)
    assert with_note_on_age(trace, report) is trace
