"""A copy of an Nsight Compute CSV export that can be shared.

Beside the table such a file holds names of programs and hosts, and where it was written by a live run the program's own
output and lines of ncu with paths and command lines. The copy has the table and, of ncu's lines, warnings and errors
without what they quote.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.readers.ncu_csv_text import HEADER_START
from warplens.scrub.outcome import Removed, left
from warplens.scrub.texts import Cleaner
from warplens.scrub_secrets import ADDRESSES, FORBIDDEN, Secrets

__all__ = ["NOTES_OF_LINES", "copy_ncu_csv"]

#: Notes of the reader that count lines which do not come along.
NOTES_OF_LINES = frozenset({"foreign-lines"})

#: Columns that are emptied.
_EMPTIED = ("Process Name", "Host Name")
_FUNCTION = "Kernel Name"

#: ncu's own lines that say something about the numbers.
_OWN_LINE = re.compile(r"\s*==(ERROR|WARNING)== ?(.*)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|\([^()]*[/\\][^()]*\)")

_BOMS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"))

#: As in the reader: a list of instances in one cell may be long.
_LONGEST_FIELD = 1 << 24
_NUMBER = re.compile(r"[-+(]?[\d.,]*\d\)?%?(?:e[-+]?\d+)?|", re.IGNORECASE)
_SHORTEST_RAW = 6


def copy_ncu_csv(source: Path, known_as: Path, partial: Path) -> Removed:
    """Fills the empty file `partial` with a copy of a CSV export of Nsight Compute without what identifies.

    Raises:
        UnreadableInputError: it cannot be read as CSV.
        ScrubError: something identifying was left.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    secrets = Secrets()
    try:
        _each_row(source, _Search(secrets).take)
        copy = _Copy(Cleaner(secrets))
        with partial.open("w", encoding="utf-8", newline="") as file:
            copy.writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            copy.write = file.write
            _each_row(source, copy.take)
    except (csv.Error, OSError, UnicodeError) as error:
        found = f"the table cannot be read ({type(error).__name__})"
        raise UnreadableInputError(known_as, found, "Export it again from the .ncu-rep file") from None
    _verify(partial, copy, secrets, known_as)
    return Removed(
        dict(copy.left_columns),
        dict(copy.left_lines),
        copy.cleaner.rewritten(),
        len(secrets.all),
        ("cells of columns", "other lines"),
    )


def _each_row(source: Path, take: Callable[[list[str], str], None]) -> None:
    """Passes on every row with its delimiter: of the table as its fields, of what is around it as one field."""
    with source.open("rb") as file:
        head = file.read(4)
    encoding = next((name for bom, name in _BOMS if head.startswith(bom)), "utf-8")
    delimiter = ""
    with source.open(encoding=encoding, errors="replace", newline="") as text:
        for line in text:
            if found := re.match(r'"?ID"?\s*([,;\t])\s*"?Process ID"?\s*[,;\t]', line):
                delimiter = found[1]
                take(next(csv.reader([line], delimiter=delimiter)), delimiter)
                break
            take([line.rstrip("\r\n")], "")
        for row in csv.reader((line.replace("\0", "") for line in text), delimiter=delimiter or ","):
            take(row, delimiter)


class _Table:
    """Where in the file the rows come from."""

    def __init__(self) -> None:
        self.header: list[str] = []

    def is_row(self, row: list[str], delimiter: str) -> bool:
        """Whether this is a row of the table, header and units among them; remembers the header."""
        if tuple(row[:2]) == HEADER_START and delimiter:
            self.header = [name.strip() for name in row]
            return True
        units = len(row) > len(HEADER_START) and not any(row[:3])
        return bool(self.header) and bool(row) and (row[0].isdigit() or units)


class _Search(_Table):
    """Looks for what identifies: names of hosts, owners of home folders."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def take(self, row: list[str], delimiter: str) -> None:
        if self.is_row(row, delimiter):
            for name, value in zip(self.header, row, strict=False):
                if name in _EMPTIED and value and value != name:
                    self._secrets.identify(value.encode()) if name == "Host Name" else self._secrets.others.add(
                        value.encode()
                    )
        for cell in row:
            if "/" in cell or "\\" in cell:
                self._secrets.add_home_owners(cell.encode("utf-8", "replace"))


class _Copy(_Table):
    """The copy under construction."""

    def __init__(self, cleaner: Cleaner) -> None:
        super().__init__()
        self.cleaner = cleaner
        self.left_columns: Counter[str] = Counter()
        self.left_lines: Counter[str] = Counter()
        self.writer: object = None
        self.write: Callable[[str], object] = lambda _: None

    def take(self, row: list[str], delimiter: str) -> None:
        if self.is_row(row, delimiter):
            is_header = tuple(row[:2]) == HEADER_START
            names = self.header if not is_header else []
            cells = [self._cell(names[at] if at < len(names) else "", cell) for at, cell in enumerate(row)]
            self.writer.writerow(cells)  # type: ignore[attr-defined]
            return
        line = (delimiter or ",").join(row)
        if found := _OWN_LINE.match(line):
            text = _QUOTED.sub("''", found[2])
            self.write(f"=={found[1]}== {self._text('line', text)}\n")
        elif line.strip():
            self.left_lines["line"] += 1

    def _cell(self, name: str, cell: str) -> str:
        if name in _EMPTIED:
            self.left_columns[name] += bool(cell)
            return ""
        if _NUMBER.fullmatch(cell):
            return cell
        if name == _FUNCTION:
            return self.cleaner.function("function", cell.encode("utf-8", "replace")).decode()
        return self._text("cell", cell)

    def _text(self, place: str, text: str) -> str:
        return self.cleaner.written(place, text.encode("utf-8", "replace")).decode()


def _verify(path: Path, copy: _Copy, secrets: Secrets, source: Path) -> None:
    texts = b"\0".join(copy.cleaner.results("line", "cell"))
    if (secrets.pattern and secrets.pattern.search(texts)) or ADDRESSES.search(texts):
        raise left(source, "a name, an address or an identifying value")
    content = path.read_bytes()
    everything = b"\0".join(copy.cleaner.results())
    if FORBIDDEN.search(content):
        raise left(source, "the path of a home folder")
    for value in secrets.all:
        if len(value) >= _SHORTEST_RAW and value not in everything and value in content:
            raise left(source, "the name of a program or a host")
