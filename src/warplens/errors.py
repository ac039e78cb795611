"""The errors that Warplens raises on purpose.

Every one of them ends as one clear line for the person at the terminal.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["MissingDataError", "SchemaError", "UnreadableInputError", "UsageError", "WarplensError"]


class WarplensError(Exception):
    """Base of all deliberate errors. Its text is one line: what, found where, and what to do next."""


class UsageError(WarplensError):
    """The request cannot be carried out as it was worded (an unknown range, a window outside the capture, …)."""


class UnreadableInputError(WarplensError):
    """A file cannot be read as a profile.

    The message always has three parts: which file, what was found in it, and what the user can do.
    Only the file's own name is shown, never the folders above it: paths carry user names.
    """

    def __init__(self, path: Path | str, found: str, advice: str) -> None:
        self.path = Path(path)
        self.found = found
        self.advice = advice
        super().__init__(f"{self.path.name}: {found}. {advice}")


class MissingDataError(WarplensError):
    """A profile was read, but it holds nothing that could answer this question (no kernels, no ranges, …)."""


class SchemaError(WarplensError):
    """A frame does not have the columns and types that its table declares; a defect of a reader, not of the input."""
