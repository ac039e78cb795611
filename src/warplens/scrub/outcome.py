"""What scrubbing a profile comes to: the report on a copy, or the error that none could be made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from warplens.errors import WarplensError

__all__ = ["Removed", "ScrubError", "ScrubReport", "left"]


class ScrubError(WarplensError):
    """The copy still held something that it must not, or lacked something that it must; it was discarded."""


def left(source: Path, what: str) -> ScrubError:
    """The error for a copy in which something that identifies was found."""
    return ScrubError(f"{source.name}: {what} was still in the copy, which was discarded. Please report this")


@dataclass(frozen=True)
class Removed:
    """What one format's module left out or rewrote, in counts.

    Attributes:
        tables: what was left out whole (tables of an export, members of a trace, messages of a report, columns of a
            table of text), with the rows or values in it.
        rows: what came along without some of its rows or values, with their number.
        texts: for each place how many different texts were rewritten.
        searched: names and values of the original that the copy was searched for.
        words: what `tables` and `rows` are called in this format.
    """

    tables: dict[str, int]
    rows: dict[str, int]
    texts: dict[str, int]
    searched: int
    words: tuple[str, str]


@dataclass(frozen=True)
class ScrubReport:
    """What `scrub` did, in counts: it never repeats what it removed.

    Attributes:
        source: name of the file that was read, without folders.
        target: the copy.
        source_bytes: size of the original, unpacked.
        target_bytes: size of the copy, unpacked.
        compared: tables that were read from both files and found to be the same.
        tables, rows, texts, searched, words: as in `Removed`.
    """

    source: str
    target: Path
    source_bytes: int
    target_bytes: int
    compared: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    searched: int = 0
    words: tuple[str, str] = ("rows of whole tables", "rows of others")
