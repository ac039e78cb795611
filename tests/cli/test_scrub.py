"""`warplens scrub`: the copy holds the same numbers, and nothing of what identifies."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

from tests.cli.small_export import SECRET

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def test_a_damaged_trace_is_one_clear_line(tmp_path: Path, warplens: Callable[..., Run]) -> None:
    source = tmp_path / "trace.json"
    source.write_text('{"traceEvents": [{"ph": "X"')

    run = warplens("scrub", source, tmp_path / "copy.json")

    assert run.code == 2
    assert run.err.startswith("error: trace.json: ")
    assert run.err.count("\n") == 1
    assert not (tmp_path / "copy.json").exists()
