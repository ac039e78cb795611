"""A reader's report of a scrubbed copy, and the search of the finished copy for identifying texts."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warplens.errors import UnreadableInputError, WarplensError
from warplens.secrets import ADDRESSES, FORBIDDEN, Cleaner, Secrets

#: A shorter value occurs by chance in a large file.
_SHORTEST_RAW: Final = 6


class ScrubError(WarplensError):
    """The copy still held identifying texts, or lacked data; it was discarded."""


@dataclass(frozen=True)
class Removed:
    """Counts of removed and rewritten content of one format."""

    #: removed entirely (tables of an export, members of a trace, messages of a report, columns of a text table), with
    #: the number of rows or values
    tables: dict[str, int]
    rows: dict[str, int]  #: kept without some of its rows or values, with their number
    texts: dict[str, int]  #: number of distinct rewritten texts by place
    searched: int  #: number of names and values of the original that the copy was searched for
    words: tuple[str, str]  #: names of `tables` and `rows` for this format
    kinds: dict[str, int] = field(default_factory=dict)  #: number of rewritten texts by reason, `Cleaner.kinds`
    left: int = 0  #: number of those values that still stand in names that people gave, `Cleaner.left`

    @classmethod
    def of(
        cls, cleaner: Cleaner, words: tuple[str, str], tables: dict[str, int], rows: dict[str, int], *python: str
    ) -> Removed:
        """The removed content, with the counts of the cleaner; `python`: the places with names of Python functions."""
        texts, searched = cleaner.rewritten(), len(cleaner.secrets.all)
        return cls(dict(tables), dict(rows), texts, searched, words, cleaner.kinds(), cleaner.left(*python))


def refuse_remains(texts: bytes, secrets: Secrets, source: Path) -> None:
    """Search rewritten texts, or a whole copy that is text.

    Raises:
        ScrubError: they contain a path of a home folder, an address, a name or an identifying value.
    """
    if FORBIDDEN.search(texts) or ADDRESSES.search(texts) or (secrets.pattern and secrets.pattern.search(texts)):
        raise _remains_error(source, "a name, an address or an identifying value")


def search_copy(
    copy: Path, secrets: Secrets, source: Path, rewritten: Iterable[bytes], texts: Iterable[bytes], what: str
) -> None:
    """Search the finished copy: its rewritten texts for names and addresses, its raw bytes for all secrets.

    A word that is also part of a kept text, such as the name of a function, is there by chance; `Cleaner.left` counts
    those in names that people gave.

    Args:
        secrets: texts that it must not contain.
        source: the original, for the error.
        rewritten: texts of the copy that people wrote.
        texts: all kept texts.
        what: description of the other values searched for.

    Raises:
        ScrubError: something was found.
    """
    if not copy.stat().st_size:
        raise UnreadableInputError(
            source, "nothing in it can be copied", "Give a file that the other commands can read"
        )
    joined = b"\0".join(rewritten)
    if (secrets.pattern and secrets.pattern.search(joined)) or ADDRESSES.search(joined):
        raise _remains_error(source, "a name, an address or an identifying value")
    kept_texts = b"\0".join(texts)
    with copy.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        if FORBIDDEN.search(raw):
            raise _remains_error(source, "the path of a home folder")
        for value in secrets.all:
            is_searchable = len(value) >= _SHORTEST_RAW and not value.isdigit()  # a number occurs elsewhere by chance
            if is_searchable and value not in kept_texts and raw.find(value) >= 0:
                raise _remains_error(source, what)


def _remains_error(source: Path, what: str) -> ScrubError:
    return ScrubError(f"{source.name}: {what} was still in the copy, which was discarded. Please report this")
