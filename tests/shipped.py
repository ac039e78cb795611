"""Profiles and measurements of this repository, in the package and beside it in `data/`; and those of other people."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import warplens

#: What an installation brings along, and what only the repository has.
FOLDERS = (Path(warplens.__file__).parent / "data", Path(__file__).resolve().parents[1] / "data")

#: Files of other people, by kind (`nsys`, `ncu`, `kineto`, `pairs`): tested where they are, never part of the project.
OTHERS = Path(os.environ.get("WARPLENS_SHARED", Path(__file__).resolve().parents[2] / "shared" / "data"))


def files(kind: str, pattern: str = "*") -> list[Path]:
    """Files of a kind (`captures`, `counters`, `measurements`, `planted`, `policies`) by name."""
    found = (path for folder in FOLDERS for path in (folder / kind).glob(pattern) if path.is_file())
    return sorted(found, key=lambda path: path.name)


def capture(name: str) -> Path:
    """The capture of this name, whichever suffixes it has."""
    return next(path for path in files("captures") if path.name.partition(".")[0] == name.partition(".")[0])


def of_others(name: str) -> Path:
    """The file of this name among those of others; a test that asks for one that is not at hand is skipped."""
    if not (OTHERS / name).exists():
        pytest.skip(f"{name} is not at hand (see WARPLENS_SHARED)")
    return OTHERS / name
