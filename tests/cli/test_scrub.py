"""`warplens scrub`: the copy holds the same numbers, and nothing of what identifies."""

from __future__ import annotations

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
