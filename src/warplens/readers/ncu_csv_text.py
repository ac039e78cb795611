"""From the bytes of an Nsight Compute CSV export to its records: encoding, ncu's own lines, header, damaged rows.

A live run writes its own lines, those of the profiled program and the table into the same file; a shell of Windows
writes UTF-16; a spreadsheet drops the quotes or takes semicolons. The header tells where the table begins.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from warplens.errors import UnreadableInputError
from warplens.readers.ncu_csv_messages import Messages

__all__ = ["HEADER_START", "Table", "decoded_head", "looks_like_ncu_csv"]

HEADER_START = ("ID", "Process ID")

_HEADER = re.compile(r'"?ID"?\s*([,;\t])\s*"?Process ID"?\s*[,;\t]')
_OWN_LINE = re.compile(r"==(PROF|ERROR|WARNING|LOG)== ")

#: Other tables that ncu writes as CSV, told by how they begin.
_SUMMARY = re.compile(r'"?Process ID"?[,;]"?Process Name"?[,;].*Invocations')
_OTHER_PAGES = (
    (_SUMMARY, "a summary of launches (--print-summary), which has no single launch", "without --print-summary"),
    (re.compile(r"Launch Settings\s*$|Session Info\s*$"), "the session page of a report", "with --page raw"),
    (re.compile(r'"?Kernel Name"?[,;]"'), "the source page of a report", "with --page raw"),
)

#: A list of instances in one cell is longer than the csv module allows by default; a quote that is never closed must
#: not take in the whole of a large file.
_LONGEST_FIELD = 1 << 24

#: A line without an end is no line of a table.
_LONGEST_LINE = 1 << 24

_BOMS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"))


def decoded_head(head: bytes) -> str:
    """The first bytes of a file as text."""
    return head.decode(_encoding(head), "replace")


def looks_like_ncu_csv(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a CSV export of Nsight Compute, or the messages of a run of it.

    The more bytes are given, the longer the output of a profiled program may be that stands before the table.
    """
    lines = decoded_head(head).splitlines()
    first = next((line for line in lines if line.strip()), "")
    return bool(_OWN_LINE.match(first)) or any(_HEADER.match(line) for line in lines) or bool(_SUMMARY.match(first))


def _encoding(head: bytes) -> str:
    return next((name for bom, name in _BOMS if head.startswith(bom)), "utf-8")


class Table:
    """The records of an export, one after the other, without what does not belong to the table.

    Attributes:
        messages: ncu's own lines.
        passed_over: rows that are no rows of the table: output of the program, or damage.
        cut: whether the file ends within a row, which is left out.
    """

    def __init__(self, path: Path, known_as: Path) -> None:
        self._path = path
        self._known_as = known_as
        self._quotes = 0
        self._line = ""
        self.messages = Messages()
        self.passed_over = 0
        self.cut = False

    def records(self) -> Iterator[list[str]]:
        """The header, then every row, as its fields; a header that comes again is given again.

        Raises:
            UnreadableInputError: there is no table, a failed run among others, or the file cannot be read.
        """
        if csv.field_size_limit() < _LONGEST_FIELD:
            csv.field_size_limit(_LONGEST_FIELD)
        try:
            with self._path.open("rb") as file:
                encoding = _encoding(file.read(4))
            with self._path.open(encoding=encoding, errors="replace", newline="") as text:
                yield from self._rows(text)
        except (OSError, UnicodeError, csv.Error) as error:
            found = f"the table cannot be read ({type(error).__name__})"
            raise UnreadableInputError(self._known_as, found, "Export it again from the .ncu-rep file") from None

    def _rows(self, text: TextIO) -> Iterator[list[str]]:
        header, delimiter = self._header(text)
        self._quotes = 0
        yield next(csv.reader([header], delimiter=delimiter))
        rows = csv.reader(self._lines(text), delimiter=delimiter)
        pending: list[str] | None = None  # the last row waits until it is known whether the file was cut within it
        width = 0
        for row in rows:
            if pending is not None:
                yield pending
                width = len(pending)
            pending = None
            if not row or not row[0].isdigit():
                if tuple(row[:2]) == HEADER_START:
                    width = 0
                    yield row
                elif width == 0 and self._is_units(row):
                    yield row
                elif any(row) and not self.messages.take(delimiter.join(row)):
                    self.passed_over += 1
            else:
                pending = row
        if pending is not None:
            self.cut = self._quotes % 2 == 1 or (
                not self._line.endswith(("\n", '"', '",')) and width not in (0, len(pending))
            )
            if not self.cut:
                yield pending

    @staticmethod
    def _is_units(row: list[str]) -> bool:
        """Whether a row may be that of the units: nothing stands in the columns that name the launch."""
        return len(row) > len(HEADER_START) and not any(row[:3])

    def _header(self, text: TextIO) -> tuple[str, str]:
        begins = ""
        while line := text.readline(_LONGEST_LINE):
            if found := _HEADER.match(line):
                return line, found[1]
            begins = begins or line.strip()
            self.messages.take(line)
        raise self._no_table(begins)

    def _no_table(self, begins: str) -> UnreadableInputError:
        if error := self.messages.error(self._known_as):
            return error
        for pattern, found, how in _OTHER_PAGES:
            if pattern.match(begins):
                advice = f"Export it {how}: ncu --import REPORT.ncu-rep --page raw --csv"
                return UnreadableInputError(self._known_as, f"this is {found}", advice)
        advice = "Export one: ncu --import REPORT.ncu-rep --page raw --csv"
        return UnreadableInputError(self._known_as, "no table of Nsight Compute stands in it", advice)

    def _lines(self, text: TextIO) -> Iterator[str]:
        while line := text.readline(_LONGEST_LINE):
            self._quotes += line.count('"')
            self._line = line
            yield line.replace("\0", "") if "\0" in line else line
