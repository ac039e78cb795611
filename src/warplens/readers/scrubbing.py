"""What a reader says of a copy that it made for sharing, and the search of the finished copy for what identifies."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warplens.errors import UnreadableInputError, WarplensError
from warplens.secrets import ADDRESSES, FORBIDDEN, Cleaner, Secrets

#: Shorter than this, a value is found by chance in a large file.
_SHORTEST_RAW: Final = 6


class ScrubError(WarplensError):
    """The copy still held something that it must not, or lacked something that it must; it was discarded."""


@dataclass(frozen=True)
class Removed:
    """What one format's module left out or rewrote, in counts."""

    #: what was left out whole (tables of an export, members of a trace, messages of a report, columns of a table of
    #: text), with the rows or values in it
    tables: dict[str, int]
    rows: dict[str, int]  #: what came along without some of its rows or values, with their number
    texts: dict[str, int]  #: for each place how many different texts were rewritten
    searched: int  #: names and values of the original that the copy was searched for
    words: tuple[str, str]  #: what `tables` and `rows` are called in this format
    kinds: dict[str, int] = field(default_factory=dict)  #: how many of the rewritten texts hold what, `Cleaner.kinds`

    @classmethod
    def of(cls, cleaner: Cleaner, words: tuple[str, str], tables: dict[str, int], rows: dict[str, int]) -> Removed:
        """What was left out, and what the cleaner rewrote."""
        texts, searched = cleaner.rewritten(), len(cleaner.secrets.all)
        return cls(dict(tables), dict(rows), texts, searched, words, cleaner.kinds())


def refuse_remains(texts: bytes, secrets: Secrets, source: Path) -> None:
    """Searches texts that were rewritten, or a whole copy of texts.

    Raises:
        ScrubError: a path of a home folder, an address, a name or an identifying value stands in them.
    """
    if FORBIDDEN.search(texts) or ADDRESSES.search(texts) or (secrets.pattern and secrets.pattern.search(texts)):
        raise _left(source, "a name, an address or an identifying value")


def search_copy(
    copy: Path, secrets: Secrets, source: Path, rewritten: Iterable[bytes], texts: Iterable[bytes], what: str
) -> None:
    """Searches the finished copy: its rewritten texts for what was to be rewritten, its raw bytes for everything.

    A word that also stands in a text that came along, as a part of the name of a function, say, is there by chance.

    Args:
        secrets: what it must not hold.
        source: the original, for the error.
        rewritten: texts of the copy that people wrote.
        texts: all texts that came along.
        what: the other values that are searched for, in words.

    Raises:
        ScrubError: something was found.
    """
    if not copy.stat().st_size:
        raise UnreadableInputError(
            source, "nothing in it can be copied", "Give a file that the other commands can read"
        )
    joined = b"\0".join(rewritten)
    if (secrets.pattern and secrets.pattern.search(joined)) or ADDRESSES.search(joined):
        raise _left(source, "a name, an address or an identifying value")
    everything = b"\0".join(texts)
    with copy.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        if FORBIDDEN.search(raw):
            raise _left(source, "the path of a home folder")
        for value in secrets.all:
            is_word = len(value) >= _SHORTEST_RAW and not value.isdigit()  # a number stands elsewhere by chance
            if is_word and value not in everything and raw.find(value) >= 0:
                raise _left(source, what)


def _left(source: Path, what: str) -> ScrubError:
    return ScrubError(f"{source.name}: {what} was still in the copy, which was discarded. Please report this")
