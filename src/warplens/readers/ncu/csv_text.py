"""Records of an Nsight Compute CSV export from its bytes: encoding, ncu's own lines, header, damaged rows; and numbers.

A live run writes its own lines, those of the profiled program and the table into the same file; a shell of Windows
writes UTF-16; a spreadsheet drops the quotes or uses semicolons. The header marks the begin of the table.
"""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile.schema import Float64s, Int64s
from warplens.readers.limits import LINE_BYTES
from warplens.readers.ncu.csv_labels import Messages
from warplens.readers.ncu.metrics import CELLS_PER_VALUE, FREE_CELLS, MOST_METRICS, UNIT_WORDS, unit_of

HEADER_START = ("ID", "Process ID")

HEADER = re.compile(r'"?ID"?\s*([,;\t])\s*"?Process ID"?\s*[,;\t]')
_OWN_LINE = re.compile(r"==(PROF|ERROR|WARNING|LOG)== ")

#: Other tables that ncu writes as CSV, recognised by their begin.
_SUMMARY = re.compile(r'"?Process ID"?[,;]"?Process Name"?[,;].*Invocations')
_OTHER_PAGES = (
    (_SUMMARY, "a summary of launches (--print-summary), which has no single launch", "without --print-summary"),
    (re.compile(r"Launch Settings\s*$|Session Info\s*$"), "the session page of a report", "with --page raw"),
    (re.compile(r'"?Kernel Name"?[,;]"'), "the source page of a report", "with --page raw"),
)

#: What ncu prints without --csv: a process, and a launch of it.
_PROCESS = re.compile(r"\[\d+\] \S+@\S+\s*$")
_PRINTED_LAUNCH = re.compile(r"\s+\S.*, Context \d+, Stream \d+(?:, Device \d+, CC [\d.]+)?\s*$")

#: A list of instances in one cell is longer than the csv module allows by default; an unclosed quote must not include
#: all of a large file.
LONGEST_FIELD = 1 << 24

_BOMS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig"))


def looks_like_ncu_csv(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a CSV export of Nsight Compute, or the messages of a run of it.

    The more bytes are given, the longer the output of the profiled program before the table may be.
    """
    lines = head.decode(encoding_of(head), "replace").splitlines()
    first = next((line for line in lines if line.strip()), "")
    begins = any(pattern.match(first) for pattern in (_OWN_LINE, _SUMMARY, _PROCESS))
    return begins or any(HEADER.match(line) for line in lines)


def encoding_of(head: bytes) -> str:
    """The encoding of a file with this begin, by its byte order mark."""
    return next((name for bom, name in _BOMS if head.startswith(bom)), "utf-8")


def is_units(row: Sequence[str]) -> bool:
    """Whether a row may hold the units: the columns that identify the launch are empty."""
    return len(row) > len(HEADER_START) and not any(row[:3])


def text_of(path: Path) -> TextIO:
    """The text of an export, opened in its encoding, of which the csv module may now read `LONGEST_FIELD`."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    with path.open("rb") as file:
        encoding = encoding_of(file.read(4))
    return path.open(encoding=encoding, errors="replace", newline="")


class Table:
    """The records of an export, one after the other, without lines that are not part of the table.

    Attributes:
        messages: ncu's own lines.
        passed_over: number of rows outside the table: output of the program, or damage.
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
        """The header, then every row, as its fields; a repeated header is returned again."""
        try:
            with text_of(self._path) as text:
                yield from self._rows(text)
        except (OSError, UnicodeError, csv.Error) as error:
            found = f"the table cannot be read ({type(error).__name__})"
            raise UnreadableInputError(self._known_as, found, "Export it again from the .ncu-rep file") from None

    def _rows(self, text: TextIO) -> Iterator[list[str]]:
        """The rows of the table, headers and units included, but no other lines, and no last row that was cut."""
        header, delimiter = self._header(text)
        self._quotes = 0
        names = next(csv.reader([header], delimiter=delimiter))
        yield names
        rows = csv.reader(self._lines(text), delimiter=delimiter)
        # the last row is held back until it is known whether the file was cut within it
        pending: list[str] | None = None
        width = other_width = 0  # of the last row, and of a table about the machine (its GPUs) on the details page
        for row in rows:
            if pending is not None:
                yield pending
                width = len(pending)
            pending = None
            if not row or not row[0].isdigit():
                if tuple(row[:2]) == HEADER_START:
                    width = 0
                    yield row
                elif width == 0 and is_units(row):
                    yield row
                elif any(row) and not self.messages.take(delimiter.join(row)):
                    self.passed_over += 1
                    other_width = len(row) if 1 < len(row) < len(names) / 2 else 0
            elif len(row) == other_width:
                self.passed_over += 1
            else:
                pending = row
        if pending is not None:
            self.cut = self._quotes % 2 == 1 or (
                not self._line.endswith(("\n", '"', '",')) and width not in (0, len(pending))
            )
            if not self.cut:
                yield pending

    def _header(self, text: TextIO) -> tuple[str, str]:
        begins, is_printed = "", False
        while line := text.readline(LINE_BYTES):
            if heading := HEADER.match(line):
                return line, heading[1]
            if not self.messages.take(line):
                begins = begins or line.strip()
                is_printed = is_printed or _PRINTED_LAUNCH.match(line) is not None
        if is_printed:
            advice = "Run ncu with --export profile and give the .ncu-rep file, or with --page raw --csv"
            raise UnreadableInputError(self._known_as, "this is the text that ncu prints without --csv", advice)
        raise self._no_table(begins)

    def _no_table(self, begins: str) -> UnreadableInputError:
        for pattern, found, how in _OTHER_PAGES:
            if pattern.match(begins):
                advice = f"Export it {how}: ncu --import REPORT.ncu-rep --page raw --csv"
                return UnreadableInputError(self._known_as, f"this is {found}", advice)
        if error := self.messages.error(self._known_as):
            return error
        advice = "Export one: ncu --import REPORT.ncu-rep --page raw --csv"
        return UnreadableInputError(self._known_as, "no table of Nsight Compute stands in it", advice)

    def _lines(self, text: TextIO) -> Iterator[str]:
        while line := text.readline(LINE_BYTES):
            self._quotes += line.count('"')
            self._line = line
            yield line.replace("\0", "") if "\0" in line else line


# --- Printed units and numbers, converted to base units ---------------------------------------------------------------
#
# A scaled unit is a power of ten of its base unit: in ncu a `Kbyte` is 1000 bytes (32.768 Kbyte is a shared memory of
# 32768 bytes). The decimal point of the printed text is moved instead of multiplying, so that no digit is lost.

_PREFIXES = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_SCALED = re.compile(r"([kKMGTP]?)(byte|hz|inst|cycle|sector|request|warp|thread)s?")

#: Times before the slash are in ns, after it per second. Releases before 2022 spell the units out.
_TIMES = {"ns": 0, "nsecond": 0, "us": 3, "usecond": 3, "ms": 6, "msecond": 6, "s": 9, "second": 9}

_SINGULAR = {"branches": "branch", "blocks": "block", "registers": "register", "clusters": "cluster"}


@lru_cache(maxsize=1024)
def base_unit(printed: str) -> tuple[str | None, int]:
    """The base unit of a printed unit, and the power of ten to convert a printed value to it.

    `us` gives (`ns`, 3), `Tbyte/s` (`byte/second`, 12), `cycle/nsecond` (`hz`, 9). ncu divides the number by 1000 and
    writes the K at the byte, on either side of the slash, so that `%/Kbyte` gives (`%/byte`, 3) as well. An unknown
    unit is returned unchanged; no unit gives None.
    """
    over, stroke, under = printed.strip().partition("/")
    unit, power = _scaled(over)
    if over in _TIMES:
        unit, power = "ns", _TIMES[over]
    if not stroke:
        return unit or None, power
    if under in _TIMES:
        power += 9 - _TIMES[under]
        return ("hz" if unit == "cycle" else f"{unit}/second"), power
    divisor, divided = _scaled(under)
    return f"{unit}/{divisor}", power + divided


def _scaled(word: str) -> tuple[str, int]:
    match = _SCALED.fullmatch(word)
    return (match[2], _PREFIXES[match[1]]) if match else (_SINGULAR.get(word, word), 0)


class DecimalCommaError(Exception):
    """The numbers are written with a decimal comma: `4,80` or `1.234,56`."""


#: Texts that ncu prints for missing values, and instances without an aggregate: `(0; 1)`.
_MISSING = ("", "n/a", "N/A", "no data", "nan", "-nan", "-nan(ind)", "nan(ind)", "(null)", "<null>")

#: An aggregate followed by its instances: `377 (3; 3; 6)`.
_INSTANCES = r"^([-+]?\d[\d.,]*) \(.*\)$"
_ONLY_INSTANCES = r"^\(.*\)$"

#: Thousands separated by commas (groups of two in some countries), or by blanks and apostrophes, which are never a
#: decimal point.
_GROUPED = r"^[-+]?\d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d+)?$"
_GROUPED_OTHERWISE = r"^[-+]?\d{1,3}(?:[ \u00a0\u202f'’]\d{3})+(?:[.,]\d+)?$"
_SEPARATORS = r"[ \u00a0\u202f'’]"

#: With a decimal comma thousands are separated by points. `12,345` alone may be either; it is read as thousands.
_DECIMAL_COMMA = r"^[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+),\d+$"
_GROUPED_BY_POINTS = r"^[-+]?\d{1,3}(?:\.\d{3})+(?:,\d+)?$"


def numbers_of(
    texts: Sequence[str], powers: npt.NDArray[np.int8], has_unit: npt.NDArray[np.bool_], decimal_comma: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Printed values as numbers in base units (NaN if missing), and the positions of texts.

    Each value has a power of ten to its base unit; a value with a unit is certainly a number. A decimal comma contrary
    to `decimal_comma` raises `DecimalCommaError`.
    """
    printed = pl.Series(texts, dtype=pl.String)
    if decimal_comma:
        printed = _with_points(printed)
    numbers = printed.cast(pl.Float64, strict=False)
    unparsed = np.flatnonzero((numbers.is_null() & ~printed.is_in(_MISSING)).to_numpy())
    if unparsed.size:
        candidates = printed.gather(unparsed).str.strip_chars().str.replace(_INSTANCES, "${1}")
        if not decimal_comma:
            commas = candidates.str.contains(_DECIMAL_COMMA) & ~candidates.str.contains(_GROUPED)
            if (commas & pl.Series(has_unit[unparsed])).any():
                raise DecimalCommaError
        candidates = _without_groups(candidates)
        printed = printed.scatter(unparsed, candidates)
        numbers = numbers.scatter(unparsed, candidates.cast(pl.Float64, strict=False))
    texts_left = numbers.is_null() & ~printed.is_in(_MISSING) & ~printed.str.contains(_ONLY_INSTANCES)
    scaled = np.flatnonzero(powers)
    if scaled.size:
        moved = printed.gather(scaled) + "e" + pl.Series(powers[scaled]).cast(pl.String)
        exact = moved.cast(pl.Float64, strict=False)
        plain = numbers.gather(scaled) * np.power(10.0, powers[scaled].astype(np.float64))
        numbers = numbers.scatter(scaled, exact.fill_null(plain))
    return numbers.fill_null(np.nan).to_numpy().astype(np.float64), np.flatnonzero(texts_left.to_numpy())


def _without_groups(texts: pl.Series) -> pl.Series:
    by_commas = texts.str.contains(_GROUPED)
    otherwise = texts.str.contains(_GROUPED_OTHERWISE)
    texts = texts.str.replace_all(",", "").zip_with(by_commas, texts)
    return texts.str.replace_all(_SEPARATORS, "").zip_with(otherwise, texts)


def _with_points(texts: pl.Series) -> pl.Series:
    """The texts with decimal commas rewritten as decimal points."""
    texts = texts.str.strip_chars().str.replace(_INSTANCES, "${1}")
    blanks = texts.str.contains(_GROUPED_OTHERWISE)
    texts = texts.str.replace_all(_SEPARATORS, "").zip_with(blanks, texts)
    numbers = texts.str.contains(_DECIMAL_COMMA) | texts.str.contains(_GROUPED_BY_POINTS)
    return texts.str.replace_all(r"\.", "").str.replace_all(",", ".").zip_with(numbers, texts)


#: Cells that are parsed together: some megabytes of text, against calls that cost microseconds.
_BATCH = 1 << 17


class Cells:
    """Collects printed values, row by row or one by one, and returns them as columns of numbers in base units."""

    def __init__(self, wanted: Collection[str] | None, decimal_comma: bool) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._decimal_comma = decimal_comma
        self._columns: dict[str, int] = {}
        self._units: dict[str, str] = {}
        self._pending: list[
            tuple[int, int, int, bool, str]
        ] = []  # row, column, power of ten, whether with a unit, text
        self._single: list[tuple[Int64s, Int64s, Float64s]] = []
        self._tables: list[tuple[int, dict[int, int], Float64s]] = []
        self._texts: dict[int, dict[int, str]] = {}
        self._table_texts: list[str] = []
        self._table_columns: list[tuple[int, int, bool]] = []
        self._table_start = 0
        self._values = 0

    def column(self, metric: str, printed_unit: str) -> tuple[int, int, bool] | None:
        """The column of a metric with this name and unit; None if it is not wanted, or its unit is unknown.

        Returns its column, the power of ten to the base unit, and whether it has a unit.
        """
        if self._wanted is not None and metric not in self._wanted:
            return None
        unit, power = base_unit(printed_unit)
        # For an unknown chip ncu prints base units without naming them.
        expected = unit_of(metric)
        if unit and expected and not UNIT_WORDS.issuperset(filter(None, unit.split("/"))):
            return None
        number = self._columns.setdefault(metric, len(self._columns))
        unit = unit or expected
        if unit is not None:
            self._units.setdefault(metric, unit)
        return number, power, bool(printed_unit)

    def take(self, row: int, place: tuple[int, int, bool], text: str) -> None:
        """Add one value."""
        self._pending.append((row, *place, text))
        if len(self._pending) >= _BATCH:
            self._flush()

    def begin_table(self, places: Sequence[tuple[int, int, bool]], first_row: int) -> None:
        """Begins rows that all have these columns."""
        self._flush_table()
        self._table_columns, self._table_start = list(places), first_row

    def take_row(self, texts: Sequence[str]) -> None:
        """Add the values of the next row, one per column."""
        self._table_texts += texts
        if len(self._table_texts) >= _BATCH:
            self._flush_table()

    def frame(self, launches: int, known_as: Path) -> pl.DataFrame:
        """All metrics, one column each, in the order of the file."""
        self._flush()
        self._flush_table()
        cells = len(self._columns) * launches
        if len(self._columns) > MOST_METRICS or cells > FREE_CELLS + CELLS_PER_VALUE * self._values:
            found = f"{launches:,} launches with {len(self._columns):,} metrics, almost none of them collected"
            raise UnreadableInputError(known_as, found, "Ask for single metrics, or export the report again")
        singles = self._sorted_singles()
        return pl.DataFrame([self._series(name, at, launches, singles) for name, at in self._columns.items()])

    def units(self) -> Mapping[str, str]:
        """The base unit of each metric, if known."""
        return self._units

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        rows, columns, powers, units, texts = zip(*pending, strict=True)
        reals, as_text = numbers_of(texts, np.array(powers, np.int8), np.array(units, np.bool_), self._decimal_comma)
        for at in as_text.tolist():
            self._texts.setdefault(columns[at], {}).setdefault(rows[at], texts[at])
        self._values += len(texts)
        self._single.append((np.array(columns, np.int64), np.array(rows, np.int64), reals))

    def _flush_table(self) -> None:
        texts, self._table_texts = self._table_texts, []
        if not texts or not self._table_columns:
            return
        places = self._table_columns
        count = len(texts) // len(places)
        powers = np.tile(np.array([power for _, power, _ in places], np.int8), count)
        units = np.tile(np.array([known for _, _, known in places], np.bool_), count)
        reals, as_text = numbers_of(texts, powers, units, self._decimal_comma)
        for at in as_text.tolist():
            row, place = divmod(at, len(places))
            self._texts.setdefault(places[place][0], {})[self._table_start + row] = texts[at]
        self._values += len(texts)
        place_of = {number: place for place, (number, _, _) in enumerate(places)}
        self._tables.append((self._table_start, place_of, np.ascontiguousarray(reals.reshape(count, -1).T)))
        self._table_start += count

    def _sorted_singles(self) -> tuple[Int64s, Int64s, Float64s]:
        nothing = np.empty(0, np.int64)
        columns = np.concatenate([nothing, *(part[0] for part in self._single)])
        rows = np.concatenate([nothing, *(part[1] for part in self._single)])
        reals = np.concatenate([np.empty(0, np.float64), *(part[2] for part in self._single)])
        self._single = []
        # The last of several assignments to a cell is kept: for a metric printed twice that must be the first value.
        order = np.flatnonzero(~np.isnan(reals))[::-1]
        order = order[np.argsort(columns[order], kind="stable")]
        return columns[order], rows[order], reals[order]

    def _series(self, name: str, number: int, launches: int, singles: tuple[Int64s, Int64s, Float64s]) -> pl.Series:
        values = np.full(launches, np.nan)
        columns, rows, reals = singles
        begin, end = np.searchsorted(columns, (number, number + 1))
        values[rows[begin:end]] = reals[begin:end]
        for start, place_of, block in self._tables:
            if (place := place_of.get(number)) is not None:
                values[start : start + block.shape[1]] = block[place]
        if texts := self._texts.get(number):
            mixed = [
                texts.get(row, None if math.isnan(value) else f"{value:.15g}")
                for row, value in enumerate(values.tolist())
            ]
            return pl.Series(name, mixed, dtype=pl.String)
        return pl.Series(name, values, nan_to_null=True)
