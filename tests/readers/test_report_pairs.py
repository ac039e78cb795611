"""Reports against nsys's own exports of them, value by value; and reports that only an installed nsys knows."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from tests.readers.exports import Export
from tests.readers.nsys_reports import small_report
from warplens.errors import UnreadableInputError
from warplens.profile import Note, Trace
from warplens.profile.trace import TABLES
from warplens.readers import read
from warplens.readers.nsys import conversion
from warplens.readers.nsys.conversion import read_nsys_rep, with_note_on_age
from warplens.readers.nsys.report import read_nsys_report
from warplens.readers.opening import Input, ReadOptions

_SHIPPED = Path(__file__).resolve().parents[2] / "data" / "nsys-rep"

#: Pairs that are not part of the project; of those marked, texts were overwritten with x in the report, not the export.
_OTHERS = {
    "nsys/a100_lm2p7b_cudagraph": False,
    "nsys/a100_lm_small_no_nvtx": False,
    "nsys/rtx5000_lm_small_windows": False,
    "nsys/wsl2_no_cuda_tables": False,
    "pairs/attention_eager": True,
    "pairs/checkpoint_small": True,
    "pairs/fp32_vit": True,
    "pairs/gc_and_logging": True,
    "pairs/healthy_gpt": True,
    "pairs/moe_loop": True,
}

#: More pairs by the environment: a folder of .nsys-rep files with their .sqlite exports.
_MORE = os.environ.get("WARPLENS_REPORT_PAIRS")


def _native(path: Path) -> Trace:
    return read_nsys_report(Input(path, path), ReadOptions())


def _plain(series: pl.Series) -> pl.Series:
    return series.cast(pl.String) if isinstance(series.dtype, pl.Enum) else series


def _overwritten(ours: pl.Series, theirs: pl.Series) -> bool:
    """Whether two columns of text differ only by letters x of the first."""
    pairs = pl.DataFrame({"ours": ours, "theirs": theirs}).unique().rows()
    return all(len(a) == len(b) and all(x in (y, "x") for x, y in zip(a, b, strict=True)) for a, b in pairs if a != b)


def _assert_equal(ours: Trace, theirs: Trace, texts_overwritten: bool) -> None:
    for name in TABLES:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.height == other.height, name
        assert mine.columns == other.columns, name
        for column in mine.columns:
            a, b = _plain(mine[column]), _plain(other[column])
            equal = a.equals(b, null_equal=True)
            if not equal and texts_overwritten and a.dtype == pl.String:
                equal = _overwritten(a, b)
            assert equal, f"{name}.{column}"
    # The export names the nsys that made it, which may be newer than the one that recorded.
    for fact in ("devices", "window_ns", "recorded", "notes", "epoch_ns", "rank", "world_size"):
        assert getattr(ours.capture, fact) == getattr(theirs.capture, fact), fact


@pytest.mark.parametrize("report", sorted(_SHIPPED.glob("*.nsys-rep")), ids=lambda path: path.stem)
def test_a_shipped_report_equals_its_export(report):
    ours = _native(report)
    _assert_equal(ours, read(report.with_suffix(".sqlite.xz")), texts_overwritten=False)
    assert ours.ranges.height > 0


def test_there_are_shipped_reports():
    assert list(_SHIPPED.glob("*.nsys-rep"))


@pytest.mark.parametrize(("name", "texts_overwritten"), _OTHERS.items())
def test_a_report_equals_its_export(name, texts_overwritten, captured):
    report, export = captured(f"{name}.nsys-rep"), captured(f"{name}.sqlite")
    _assert_equal(_native(report), read(export), texts_overwritten)


@pytest.mark.skipif(not _MORE, reason="WARPLENS_REPORT_PAIRS names no folder")
@pytest.mark.parametrize("report", sorted(Path(_MORE or ".").glob("*.nsys-rep")), ids=lambda path: path.stem)
def test_one_more_report_equals_its_export(report):
    if not report.with_suffix(".sqlite").is_file():
        pytest.skip("it has no export beside it")
    _assert_equal(_native(report), read(report.with_suffix(".sqlite")), texts_overwritten=True)


def test_an_old_report_without_cuda_says_what_its_export_says(captured):
    ours, theirs = _native(captured("nsys/empty_capture_old.qdrep")), read(captured("nsys/empty_capture_old.sqlite"))
    assert not any(getattr(ours, name).height for name in TABLES)
    # An nsys of 2021 did not export how long the session was; the report says it.
    assert ours.capture.notes == theirs.capture.notes
    assert ours.capture.devices == theirs.capture.devices
    assert (ours.capture.window_ns, ours.capture.tool_version) == ((0, 250_987_377), "2021.3.2.12")


def test_graph_launches_of_a_report_without_an_export(captured):
    trace = _native(captured("nsys/gb200_pdl_graphs.nsys-rep"))
    assert (trace.graph_launches.height, trace.kernels.height) == (1_000, 3_000)
    assert [device.name for device in trace.capture.devices] == ["NVIDIA GB200"]


def _codes(notes: tuple[Note, ...]) -> set[str]:
    return {note.code for note in notes}


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(small_report())
    return path


def test_a_known_report_needs_no_nsys(report, monkeypatch):
    def never(file: Input) -> Path:
        raise AssertionError

    monkeypatch.setattr(conversion, "converted", never)
    trace = read_nsys_rep(Input(report, report), ReadOptions())
    assert trace.kernels.height == 10


def test_an_unknown_report_is_converted_and_says_so(report, tmp_path, monkeypatch):
    export = Export()
    export.kernel(10, 20)
    path = export.write(tmp_path / "converted.sqlite")
    monkeypatch.setattr(conversion, "converted", lambda *_: path)
    report.write_bytes(small_report(compression=b"zstd"))
    told: list[str] = []
    capture = read_nsys_rep(Input(report, report, None, told.append), ReadOptions()).capture
    assert capture.source == "run.nsys-rep"
    assert any("compressed in an unknown way" in line for line in told)
    (note,) = [note for note in capture.notes if note.code == "converted-report"]
    assert note.text == (
        "The report was converted by the installed nsys, because its events are compressed in an unknown way."
    )


def test_a_damaged_report_is_not_handed_on(report, monkeypatch):
    monkeypatch.setattr(conversion, "converted", lambda *_: pytest.fail("nsys was asked"))
    report.write_bytes(small_report()[:-1])
    with pytest.raises(UnreadableInputError, match="the report is cut off"):
        read_nsys_rep(Input(report, report), ReadOptions())


@pytest.mark.parametrize(("seconds", "noted"), [(-3600, True), (-10, False), (3600, False)])
def test_an_export_older_than_its_report_is_noticed(report, seconds, noted):
    export = report.with_suffix(".sqlite")
    export.write_bytes(b"")
    written = report.stat().st_mtime
    os.utime(export, (written + seconds, written + seconds))
    trace = read_nsys_rep(Input(report, report), ReadOptions())
    assert ("older-export" in _codes(with_note_on_age(trace, report).capture.notes)) is noted
    assert ("older-export" in _codes(with_note_on_age(trace, export).capture.notes)) is noted
    assert with_note_on_age(trace, report.with_suffix(".json")) is trace


def test_a_report_alone_has_no_age(report):
    trace = read_nsys_rep(Input(report, report), ReadOptions())
    assert with_note_on_age(trace, report) is trace
