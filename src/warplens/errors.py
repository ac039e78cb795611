"""Deliberate errors of Warplens.

Each is shown as one line to the person at the terminal.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["MissingDataError", "SchemaError", "UnreadableInputError", "UsageError", "WarplensError", "shown_name"]


def shown_name(name: str) -> str:
    """A file's name in characters that every output can hold: `?` for each byte that is not UTF-8."""
    return name.encode(errors="replace").decode()


class WarplensError(Exception):
    """Base of all deliberate errors. Its text is one line: the problem, its place, and the next step."""


class UsageError(WarplensError):
    """The request is invalid (an unknown range, a window outside the capture, …)."""


class UnreadableInputError(WarplensError):
    """A file cannot be read as a profile.

    The message always has three parts: the file, the problem found in it, and what the user can do. Only the file's own
    name is shown, never the folders above it: paths contain user names.
    """

    def __init__(self, path: Path | str, found: str, advice: str) -> None:
        self.path = Path(path)
        self.found = found
        self.advice = advice
        super().__init__(shown_name(f"{self.path.name or self.path}: {found}. {advice}"))


class MissingDataError(WarplensError):
    """A profile was read, but lacks the data for this question (no kernels, no ranges, …)."""


class SchemaError(WarplensError):
    """A frame does not match the columns and types of its table; a defect of a reader, not of the input."""
