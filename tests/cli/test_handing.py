"""`warplens scrub` and `warplens export`: the same numbers, nothing of what identifies, and no file written over."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from tests.cli.small_export import SECRET
from tests.export.reading import play

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Run


def test_the_copy_gives_the_same_numbers_and_lacks_the_environment(
    tmp_path: Path, export: Path, warplens: Callable[..., Run]
) -> None:
    target = tmp_path / "copy.sqlite"

    run = warplens("scrub", export, target)

    assert (run.code, run.err) == (0, "")
    assert str(target) in run.out
    assert SECRET.encode() in export.read_bytes()
    assert SECRET.encode() not in target.read_bytes()
    of_original, of_copy = (
        json.loads(warplens("kernels", profile, "--format", "json").out) for profile in (export, target)
    )
    assert of_copy["data"] == of_original["data"]


def test_an_existing_file_is_never_written_over(tmp_path: Path, export: Path, warplens: Callable[..., Run]) -> None:
    target = tmp_path / "notes.txt"
    target.write_text("mine")

    run = warplens("scrub", export, target)

    assert run.code == 2
    assert run.err.startswith("error: notes.txt")
    assert target.read_text() == "mine"


def test_a_trace_of_pytorch_is_scrubbed_and_compressed(tmp_path: Path, warplens: Callable[..., Run]) -> None:
    source, target = tmp_path / "trace.json", tmp_path / "copy.json.gz"
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7}}
    source.write_text(json.dumps({"username": SECRET, "traceEvents": [event]}))

    run = warplens("scrub", source, target)

    assert (run.code, run.err) == (0, "")
    assert "left out: 1 (members around the events)" in run.out
    assert SECRET.encode() not in gzip.decompress(target.read_bytes())


PLANTED = Path(__file__).parents[2] / "src/warplens/data/counters/planted_h200.ncu-rep.xz"


def test_perfetto_writes_one_file_and_says_what_is_in_it(
    warplens: Callable[..., Run], export: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out.perfetto-trace"
    run = warplens("export", export, "--to", "perfetto", "-o", target)
    assert run.code == 0
    assert f"{len(play(target).slices):,} slices" in run.out


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_go_into_a_folder(form: str, warplens: Callable[..., Run], export: Path, tmp_path: Path) -> None:
    run = warplens("export", export, "--to", form, "-o", tmp_path / "tables")
    assert run.code == 0
    read = pl.read_csv if form == "csv" else pl.read_parquet
    kernels = read(tmp_path / "tables" / f"kernels.{form}")
    assert str(tmp_path / "tables" / f"kernels.{form}") in run.out
    assert (kernels["end_ns"] > kernels["start_ns"]).all()


def test_the_profile_itself_is_never_overwritten(warplens: Callable[..., Run], export: Path) -> None:
    before = export.read_bytes()
    run = warplens("export", export, "--to", "perfetto", "-o", export)
    assert run.code == 2
    assert "the profile itself" in run.err
    assert export.read_bytes() == before


def test_counters_have_tables_but_no_timeline(warplens: Callable[..., Run], tmp_path: Path) -> None:
    refused = warplens("export", PLANTED, "--to", "perfetto", "-o", tmp_path / "out")
    assert refused.code == 2
    assert "no timeline" in refused.err
    assert warplens("export", PLANTED, "--to", "parquet", "-o", tmp_path / "tables").code == 0
    launches, metrics = (pl.read_parquet(tmp_path / "tables" / f"{name}.parquet") for name in ("launches", "metrics"))
    assert launches.height == metrics.height > 0
    assert metrics["gpu__time_duration.sum"].min() > 0  # type: ignore[operator]
