"""Profiles and measurements of this repository: those in the package, and those beside it in `data/`."""

from __future__ import annotations

from pathlib import Path

import warplens

#: What an installation brings along, and what only the repository has.
FOLDERS = (Path(warplens.__file__).parent / "data", Path(__file__).resolve().parents[1] / "data")


def files(kind: str, pattern: str = "*") -> list[Path]:
    """Files of a kind (`captures`, `counters`, `measurements`, `planted`, `policies`) by name."""
    found = (path for folder in FOLDERS for path in (folder / kind).glob(pattern) if path.is_file())
    return sorted(found, key=lambda path: path.name)


def capture(name: str) -> Path:
    """The capture of this name, whichever suffixes it has."""
    return next(path for path in files("captures") if path.name.partition(".")[0] == name.partition(".")[0])
