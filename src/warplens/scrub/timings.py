"""A copy of a CSV file of timings that can be shared: numbers, and the texts that say what they are of."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.readers.timings import read_timings
from warplens.scrub.outcome import Removed, left
from warplens.scrub.texts import Cleaner
from warplens.scrub_secrets import ADDRESSES, FORBIDDEN, Secrets

__all__ = ["copy_timings"]

#: Titles of columns whose texts say what was timed.
_TOLD = re.compile(r"model|size|model size|model name|mode|kind|keep|execution|dtype|precision|optimizer|input size")
_NUMBER = re.compile(r"(?:(?:ctx|seq|bs)_?)?[-+]?[\d.]*\d(?:e[-+]?\d+)?|nan|n/?a|none|null|oom|[-–]|", re.IGNORECASE)


def copy_timings(source: Path, known_as: Path, partial: Path) -> Removed:
    """Fills the empty file `partial` with the columns of numbers of a CSV file, and those that name models and modes.

    Raises:
        UnreadableInputError: the file holds no timings.
        ScrubError: something identifying was left.
    """
    try:
        read_timings(source)
    except UnreadableInputError as error:
        raise UnreadableInputError(known_as, error.found, error.advice) from None
    with source.open(newline="", encoding="utf-8-sig") as file:
        first = file.readline()
        file.seek(0)
        delimiter = max(",;\t", key=first.count)
        header, *lines = list(csv.reader(file, delimiter=delimiter))
    secrets = Secrets()
    for cell in (cell for line in lines for cell in line):
        secrets.add_home_owners(cell.encode())
    cleaner = Cleaner(secrets)
    kept, removed = [], Counter[str]()
    for at, title in enumerate(header):
        cells = [line[at].strip() for line in lines if at < len(line)]
        words = " ".join(re.findall(r"[a-z0-9]+", title.lower()))
        if all(_NUMBER.fullmatch(cell) for cell in cells) or _TOLD.fullmatch(words):
            kept.append(at)
        else:
            removed["column"] += len(cells)
    with partial.open("w", newline="", encoding="utf-8") as target:
        writer = csv.writer(target, delimiter=delimiter, lineterminator="\n")
        for line in (header, *lines):
            writer.writerow([cleaner.written("cell", line[at].encode()).decode() for at in kept if at < len(line)])
    content = partial.read_bytes()
    if FORBIDDEN.search(content) or ADDRESSES.search(content) or (secrets.pattern and secrets.pattern.search(content)):
        raise left(known_as, "a path, a name or an address")
    return Removed(dict(removed), {}, cleaner.rewritten(), len(secrets.all), ("cells of columns", "other lines"))
