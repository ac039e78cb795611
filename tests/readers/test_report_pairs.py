"""Reports against nsys's own exports of them: every table of the trace equal, value by value, and the same notes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from warplens.profile.trace import TABLES
from warplens.readers import read
from warplens.readers.nsys.report import read_nsys_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.profile import Trace

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
    return read_nsys_report(path, path, lambda _: None)


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
def test_a_shipped_report_equals_its_export(report: Path) -> None:
    ours = _native(report)
    _assert_equal(ours, read(report.with_suffix(".sqlite.xz")), texts_overwritten=False)
    assert ours.ranges.height > 0


def test_there_are_shipped_reports() -> None:
    assert list(_SHIPPED.glob("*.nsys-rep"))


@pytest.mark.parametrize(("name", "texts_overwritten"), _OTHERS.items())
def test_a_report_equals_its_export(name: str, texts_overwritten: bool, captured: Callable[[str], Path]) -> None:
    report, export = captured(f"{name}.nsys-rep"), captured(f"{name}.sqlite")
    _assert_equal(_native(report), read(export), texts_overwritten)


@pytest.mark.skipif(not _MORE, reason="WARPLENS_REPORT_PAIRS names no folder")
@pytest.mark.parametrize("report", sorted(Path(_MORE or ".").glob("*.nsys-rep")), ids=lambda path: path.stem)
def test_one_more_report_equals_its_export(report: Path) -> None:
    if not report.with_suffix(".sqlite").is_file():
        pytest.skip("it has no export beside it")
    _assert_equal(_native(report), read(report.with_suffix(".sqlite")), texts_overwritten=True)


def test_an_old_report_without_cuda_says_what_its_export_says(captured: Callable[[str], Path]) -> None:
    ours, theirs = _native(captured("nsys/empty_capture_old.qdrep")), read(captured("nsys/empty_capture_old.sqlite"))
    assert not any(getattr(ours, name).height for name in TABLES)
    # An nsys of 2021 did not export how long the session was; the report says it.
    assert ours.capture.notes == theirs.capture.notes
    assert ours.capture.devices == theirs.capture.devices
    assert (ours.capture.window_ns, ours.capture.tool_version) == ((0, 250_987_377), "2021.3.2.12")


def test_graph_launches_of_a_report_without_an_export(captured: Callable[[str], Path]) -> None:
    trace = _native(captured("nsys/gb200_pdl_graphs.nsys-rep"))
    assert (trace.graph_launches.height, trace.kernels.height) == (1_000, 3_000)
    assert [device.name for device in trace.capture.devices] == ["NVIDIA GB200"]
