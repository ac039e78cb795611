"""Profiles shipped with Warplens: `demo:NAME` stands for one of them wherever a path is accepted."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from warplens.errors import UsageError

#: Prefix of paths to shipped profiles.
PREFIX: Final = "demo:"

#: Folders of the package's data whose files can be named alone; a later duplicate is named with its folder.
_FOLDERS: Final = ("captures", "counters", "measurements", "policies")

_NOT_PROFILES: Final = ("INDEX.json",)

#: Suffixes of formats and compression; `run.json.gz` becomes `run`.
_STORED_AS: Final = (
    ".gz", ".xz", ".zst", ".sqlite", ".nsys-rep", ".qdrep", ".json", ".ncu-rep", ".ncu-repz", ".csv",
)  # fmt: skip


def stem(name: str) -> str:
    """A file's name without the endings of profiles and of compression."""
    while (shorter := next((name.removesuffix(end) for end in _STORED_AS if name.endswith(end)), name)) != name:
        name = shorter
    return name


@cache
def shipped() -> dict[str, Path]:
    """The shipped files by the name after `demo:`, profiles first.

    Where two files have one name, the later folder's is named with its folder (`policies/token_reduction`).
    """
    data = Path(__file__).parents[1] / "data"
    profiles: dict[str, Path] = {}
    for folder in _FOLDERS:
        for path in sorted((data / folder).glob("*.*")):
            if path.name not in _NOT_PROFILES:
                name = stem(path.name)
                profiles[f"{folder}/{name}" if name in profiles else name] = path
    return profiles


def located(path: str | os.PathLike[str]) -> Path:
    """The path itself, or for `demo:NAME` the path of the shipped file.

    Raises:
        UsageError: there is no shipped file of that name (the message names the closest), or the path is empty, which
            would otherwise be the current folder.
    """
    text = os.fspath(path)
    if not text:
        raise UsageError("an empty text was given as a path: name a profile, or '.' for the current folder")
    if not text.startswith(PREFIX):
        return Path(path)
    known = shipped()
    if not known:
        raise UsageError(f"{text}: this installation of Warplens came without its profiles. Install it from a release")
    name = stem(text.removeprefix(PREFIX))
    if name in known:
        return known[name]
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"; similar: {', '.join(PREFIX + one for one in close)}" if close else ""
    raise UsageError(f"{text or PREFIX}: no such profile comes with Warplens{hint}. warplens {PREFIX} lists them")
