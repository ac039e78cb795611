"""An SQLite file, read in place and never changed: checked for completeness, then its columns as Polars frames.

Large columns are read with Apache Arrow's ADBC driver, several connections at a time, each with its own range of rows;
small look-ups with Python's `sqlite3`. Measured with 1 M kernel rows × 18 columns on 2 cores: ADBC on one, two and
three connections 1.06, 0.47 and 0.53 s; connectorx on one and two 0.90 and 0.55 s (but it needs pyarrow, 50 MB more
memory, and does not support `immutable`); `sqlite3` with fetchall 4.4 s. Walking the rows alone takes SQLite 0.02 s and
two columns 0.07 s: nearly all the time is spent per value, in SQLite's decoding and the driver's appending, so the
number of requested columns determines the time. Batches of 1 k to 64 k rows differ by less than 10 %.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, NamedTuple

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.readers.opening import EXPORT_ADVICE
from warplens.readers.sqlite_rows import Stored, stored, whole_numbers

#: Rows per read of one connection: small enough that two of them in 64-bit columns stay below 100 MB, large enough that
#: opening a connection (1 ms, it parses the schema) does not matter.
ROWS_PER_PART = 250_000

#: Rows of one Arrow batch; see the measurement above.
_BATCH_ROWS = 65_536

#: More threads than this only wait for each other on SQLite's allocator.
_MAX_WORKERS = 8

#: Up to this size SQLite checks all pages of a file before it is read: 3 ms per MB. For larger files, where that would
#: take some 5 % of a report, the row numbers are checked, and only tables with gaps in them are checked by SQLite:
#: exports have none in tables of events.
_CHECKED_BYTES = 2**23

_HEADER_BYTES = 100

#: Messages of SQLite for errors of the system: problem and advice.
_SYSTEM_ERRORS = {
    "database or disk is full": ("the disk is full", "Free some space, or write to another disk"),
    "disk I/O error": ("the system cannot read it, or cannot write the result", "Check the free disk space"),
    "unable to open": ("too many files are open", "Allow more open files (ulimit -n), and read access to it"),
    "out of memory": ("there is not enough memory for it", "Use a machine with more"),
}

#: Position in a row of `PRAGMA table_xinfo` that marks computed columns, and its values for them.
_HIDDEN, _COMPUTED = 6, (2, 3)

#: https://www.sqlite.org/lang_createtable.html#rowid
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")

_LACKS_COLUMN = "no such column: "
_OTHER_VALUES = "holds other values than the whole numbers that belong there"

#: SQLITE_MAX_PATHNAME of all builds, less the suffixes that SQLite appends to the name.
_LONGEST_PATH = 500


def quoted(identifier: str) -> str:
    """The identifier quoted for SQL; `end` is a keyword, and names come from the file."""
    return '"' + identifier.replace('"', '""') + '"'


def worker_count() -> int:
    """Number of connections that read at the same time."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MAX_WORKERS, available))


def looks_like_nsys(tables: Mapping[str, object]) -> bool:
    """Whether these are the tables of an Nsight Systems export: strings, and at least one other."""
    marks = ("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "META_DATA_EXPORT", "EXPORT_META_DATA", "NVTX_EVENTS", "OSRT_API")
    return "StringIds" in tables and any(name.startswith(marks) for name in tables)


class Part(NamedTuple):
    """Some rows of a table: the condition that selects them, and their maximum number."""

    condition: str
    capacity: int
    first: int = 0  # rowid of the first row, if there are no gaps
    numbered: bool = False  # whether rowids define the part: `capacity` of them from `first` on


class SqliteFile:
    """An SQLite file opened read-only and immutable: no lock, no journal, nothing written beside it.

    `immutable` also means that a write-ahead log beside the file would not be seen. Where there is one with content
    (the export was interrupted), file and log are copied to a temporary folder and put together there.
    """

    def __init__(self, path: Path, known_as: Path | None = None) -> None:
        """Opens the file, or the copy that holds its write-ahead log as well, and reads its schema."""
        self.known_as, self._path = known_as or path, path.resolve()
        self._sound: set[str] = set()
        self._counted: dict[str, bool] = {}  # by table, whether its row numbers have no gaps
        self._stored: dict[str, tuple[Stored | None, dict[str, int]]] = {}
        self._checking = Lock()
        self._temporary: Path | None = None
        self._watched = [path]
        self._state = _state(self._watched)
        try:
            self._file = self._recovered(path)
            self._read_header(self._file)
            self.uri = f"{self._file.resolve().as_uri()}?mode=ro&immutable=1"
            with self._readable():
                self._connection = sqlite3.connect(self.uri, uri=True, check_same_thread=False)
                # Text comes as bytes: exports hold text that is not UTF-8, and NULs.
                self._connection.text_factory = bytes
                self.tables = self._read_schema()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SqliteFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None or isinstance(error, UnreadableInputError):
            self._refuse_changed()

    def _refuse_changed(self) -> None:
        """Raise an error if the file changed: pages read at different times do not belong together.

        Raises:
            UnreadableInputError: the file, or a log beside it that was applied, has changed since it was opened.
        """
        if _state(self._watched) != self._state:
            raise self.unreadable("it was written to while it was read", "Wait until it is complete, and try again")

    def close(self) -> None:
        """Close the file and remove temporary files."""
        if hasattr(self, "_connection"):
            self._connection.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a small query; text is returned as bytes."""
        with self._readable():
            return self._connection.execute(sql).fetchall()

    def parts(self, table: str) -> list[Part]:
        """Parts of about `ROWS_PER_PART` rows that together make up a table, in the order of its rowids."""
        first, last = self.span(table)
        if first is None or last is None:
            return []
        if last - first >= self._size:  # a row takes more than a byte, so that the rowids have gaps
            return [Part("TRUE", self._count(table))]
        number = self.row_number(table)
        count = max(1, round((last - first + 1) / ROWS_PER_PART))
        edges = [first + (last - first + 1) * part // count for part in range(count + 1)]
        return [
            Part(f"{number} >= {low} AND {number} < {high}", high - low, low, True) for low, high in pairwise(edges)
        ]

    def span(self, table: str) -> tuple[int | None, int | None]:
        """The numbers of a table's first and last row."""
        name, number = quoted(table), self.row_number(table)
        ((first, last),) = self.rows(f"SELECT (SELECT min({number}) FROM {name}), (SELECT max({number}) FROM {name})")  # noqa: S608
        if first is not None and not (isinstance(first, int) and isinstance(last, int) and first <= last):
            raise self.unreadable("the SQLite database is damaged")
        return first, last

    def _count(self, table: str) -> int:
        """The number of rows on a table's pages, regardless of their numbers."""
        ((count,),) = self.rows(f"SELECT count(*) FROM {quoted(table)} NOT INDEXED")  # noqa: S608
        return int(count)

    def row_number(self, table: str) -> str:
        """The name of the row number; a column of the same name would hide it.

        Raises:
            UnreadableInputError: the table has columns with all of its names.
        """
        columns = {name.lower() for name in self.tables[table]}
        for name in _ROW_NUMBERS:
            if name not in columns:
                return name
        raise self.unreadable(f"its table {table} has columns with all names of the numbers of its rows")

    def refuse_damage(self) -> None:
        """Has SQLite check all pages of a small file: damaged ones may hold fewer or other rows without an error.

        Raises:
            UnreadableInputError: it finds damage.
        """
        if self._size <= _CHECKED_BYTES:
            self._check_pages(None)
            self._sound.update(self.tables)

    def refuse_damage_in(self, table: str, part: Part, found: int | None = None) -> None:
        """Check that the rows of a part are numbered without gaps; if not, have SQLite check the table's pages.

        A lost or duplicate page, a wrong number of rows, or a row that points elsewhere shows in the numbers, or as
        rows beyond the last one. For 1 M rows this takes 0.07 s, a check of their pages 0.27 s. Safe to call from
        several threads.

        Args:
            table: its name.
            part: of it.
            found: number of rows returned by the driver for the part. It contains its own SQLite, which may see other
                rows where a row reaches beyond its page.

        Raises:
            UnreadableInputError: the check finds damage.
        """
        if table in self._sound:
            return
        number = self.row_number(table)
        query = f"SELECT count(*), total({number} - {part.first}) FROM {quoted(table)} WHERE {part.condition}"  # noqa: S608
        is_complete = found in (None, part.capacity) and self.rows(query) == [
            (part.capacity, part.capacity * (part.capacity - 1) / 2)
        ]
        with self._checking:
            if table not in self._counted:
                first, last = self.span(table)
                self._counted[table] = first is None or last is None or self._count(table) == last - first + 1
            if table not in self._sound and not (is_complete and self._counted[table]):
                self._check_pages(table)
                self._sound.add(table)

    def _check_pages(self, table: str | None) -> None:
        self.rows("PRAGMA ignore_check_constraints = ON")  # expressions in the file, which may run forever
        if self.rows(f"PRAGMA quick_check({quoted(table) if table else 1})")[:1] != [(b"ok",)]:
            raise self.unreadable("the SQLite database is damaged: its pages contradict each other")

    def numbers(self, table: str, columns: Sequence[str], part: Part) -> pl.DataFrame | None:
        """Columns of a part of a table as `Int64`, directly from its pages; None where SQLite must read them.

        Its rows are numbered without gaps: nothing else has to be checked. Safe to call from several threads.
        """
        if not part.numbered:
            return None
        with self._checking:
            if table not in self._stored:
                declared = self.rows(f"PRAGMA table_xinfo({quoted(table)})")
                name = table.replace("'", "''")
                ((root,),) = self.rows(f"SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = '{name}'")  # noqa: S608
                integers = (row for row in declared if b"INT" in row[2].upper() and not row[5])
                place_of = stored(self._file, *self._pages, root, len(declared))
                self._stored[table] = (
                    place_of if place_of is not None and place_of.spans(*self.span(table)) else None,
                    {row[1].decode("utf-8", "replace"): row[0] for row in integers},
                )
        place_of, places = self._stored[table]
        if place_of is None or not all(name in places for name in columns):
            return None
        return whole_numbers(place_of, {name: places[name] for name in columns}, part.first, part.capacity)

    def frame(self, table: str, sql: str, texts: Sequence[str] = ()) -> pl.DataFrame:
        """The result of a query of a table as columns: `Int64`, and `Binary` for the columns named in `texts`.

        ADBC takes a column's type from its first batch and integers for a column of nulls, so that a column with any
        other type is an error of the file. Safe to call from several threads.
        """
        with (
            self._readable(table),
            adbc_driver_sqlite.connect(self.uri) as database,
            adbc.AdbcConnection(database) as connection,
            adbc.AdbcStatement(connection) as statement,
        ):
            statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(_BATCH_ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            frame = pl.DataFrame(stream)
        if frame.is_empty():  # no batch, hence no types: for example a part of NVTX_EVENTS without any range
            return pl.DataFrame(schema={name: pl.Binary if name in texts else pl.Int64 for name in frame.columns})
        for name, dtype in frame.schema.items():
            if dtype != (pl.Binary if name in texts else pl.Int64):
                raise self.unreadable(f"column {name} of its table {table} {_OTHER_VALUES}")
        return frame

    def unreadable(self, found: str, advice: str = EXPORT_ADVICE) -> UnreadableInputError:
        """An error about this file, under the name that the user knows."""
        return UnreadableInputError(self.known_as, found, advice)

    @contextmanager
    def _readable(self, table: str = "") -> Iterator[None]:
        # The libraries' own messages are not shown: they quote SQL, and paths, which contain user names.
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, adbc.Error, pl.exceptions.PolarsError, UnicodeError) as error:
            raise self.failed(error, table) from None

    def failed(self, error: Exception, table: str = "") -> UnreadableInputError:
        """The error for an exception of a library, of this table if it is known; the file is not always the cause."""
        text = str(error)
        if text.startswith(_LACKS_COLUMN):
            return self.unreadable(f"a table of it has no column {text.removeprefix(_LACKS_COLUMN)}")
        if "Type mismatch" in text:
            return self.unreadable(f"a column of {f'its table {table}' if table else 'a table'} {_OTHER_VALUES}")
        if "unable to open" in text and len(os.fsencode(self._path)) > _LONGEST_PATH:
            return self.unreadable("its path is too long for SQLite", "Move it to a folder with a shorter one")
        for message, (found, advice) in _SYSTEM_ERRORS.items():
            if message in text:
                return self.unreadable(found, advice)
        return self.unreadable("the SQLite database is damaged")

    def _read_schema(self) -> dict[str, tuple[str, ...]]:
        """The file's tables with their columns. Views are left out: exports have none, and one could run forever.

        Raises:
            UnreadableInputError: a column is computed, by an expression that a check of the pages would evaluate.
        """
        names = self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        tables = {}
        for (name,) in names:
            table = name.decode("utf-8", "replace")
            columns = self.rows(f"PRAGMA table_xinfo({quoted(table)})")
            if any(column[_HIDDEN] in _COMPUTED for column in columns):
                raise self.unreadable("a column of it is computed, as no export has any")
            tables[table] = tuple(column[1].decode("utf-8", "replace") for column in columns)
        return tables

    def _read_header(self, path: Path) -> None:
        # https://www.sqlite.org/fileformat2.html#the_database_header
        self._size = size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if len(header) < _HEADER_BYTES:
            raise self.unreadable(f"the file ends after {size:,} bytes, within the SQLite header")
        page_bytes = int.from_bytes(header[16:18], "big")
        page_bytes = 65536 if page_bytes == 1 else page_bytes
        pages = int.from_bytes(header[28:32], "big")
        counted = pages and header[24:28] == header[92:96]  # else written by a version before 3.7, without a count
        if counted and size < pages * page_bytes:
            raise self.unreadable(f"the file is cut off: {size:,} of {pages * page_bytes:,} bytes are there")
        self._pages = page_bytes, page_bytes - header[20], pages if counted else size // max(page_bytes, 1)

    def _recovered(self, path: Path) -> Path:
        """`path`, or a copy with the log or journal beside it applied."""
        logs = [path.with_name(path.name + suffix) for suffix in ("-wal", "-journal")]
        logs = [log for log in logs if log.is_file() and log.stat().st_size]
        if not logs:
            return path
        self._watched, self._state = [path, *logs], _state([path, *logs])
        self._temporary = Path(tempfile.mkdtemp(prefix="warplens-"))
        copy = self._temporary / "export.sqlite"
        try:
            shutil.copyfile(path, copy)
            for log in logs:
                shutil.copyfile(log, copy.with_name(copy.name + log.name.removeprefix(path.name)))
            self._refuse_changed()
            self._watched, self._state = [], []  # from here on only the copy is read
            with self._readable():
                connection = sqlite3.connect(copy)
                try:
                    connection.execute("PRAGMA journal_mode = DELETE").fetchall()
                    connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
                finally:
                    connection.close()
        except OSError as error:
            self._refuse_changed()
            found = f"its write-ahead log cannot be applied in the temporary folder ({error.strerror})"
            raise self.unreadable(found, "Set TMPDIR to a folder with more room") from None
        return copy


def _state(files: Sequence[Path]) -> list[tuple[object, ...]]:
    """Data that changes with a file: identity, size, time, and SQLite's change counter."""
    return [_state_of(path) for path in files]


def _state_of(path: Path) -> tuple[object, ...]:
    try:
        with path.open("rb", buffering=0) as file:
            state = os.fstat(file.fileno())
            return state.st_ino, state.st_size, state.st_mtime_ns, file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return ()
