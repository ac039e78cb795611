"""Profiles larger than the memory that a run may take: answered in slices with the same numbers, or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from warplens.cli.memory import parse_size
from warplens.errors import UsageError
from warplens.readers import sqlite
from warplens.readers.nsys import slices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2_000_000_000), ("500MB", 500_000_000), ("1.5GiB", 1_610_612_736), ("7", 7)]
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "0GB", "-1GB", "2 XB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="2GB"):
        parse_size(text)


@pytest.mark.parametrize("window", ["all", ":1s"])
@pytest.mark.parametrize(
    "question",
    [
        *("kernels", "kernels --by name", "kernels --by category", "kernels --by stream"),
        *("api", "api --by name,thread", "copies", "copies --by direction"),
    ],
)
def test_slices_give_the_numbers_of_the_whole(
    question: str, window: str, export: Path, warplens: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "ROWS_PER_PART", 3)
    monkeypatch.setattr(slices, "_LOOSE_ROWS", 3)  # so that counts are added up more than once
    command = (*question.split(), str(export), "--window", window, "--format", "json")
    whole = json.loads(warplens(*command).out)["data"]
    answered = json.loads(warplens(*command, "--memory", "1KB").out)
    sliced = answered["data"]
    whole["window"]["steps"] = []  # are not looked for

    assert whole["rows"]
    assert [note["code"] for note in answered["warnings"]] == ["read-in-slices"]
    assert _rounded(sliced) == _rounded(whole)


def _rounded(data: Any) -> Any:
    """Numbers to twelve digits: standard deviations are added up in another order."""
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_rounded(value) for value in data]
    return float(f"{data:.12g}") if isinstance(data, float) else data


@pytest.mark.parametrize("question", ["kernels", "ranges --window all", "diagnose", "report --format json"])
def test_what_needs_the_whole_profile_is_refused_in_one_line(
    question: str, export: Path, warplens: Callable[..., Run]
) -> None:
    command, *options = question.split()
    run = warplens(command, str(export), *options, "--memory", "1KB")

    assert run.code == 2
    assert run.err.count("\n") == 1
    assert "--memory" in run.err
    assert "in slices" in run.err
