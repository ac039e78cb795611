"""Nsight Systems' exports as a folder of tables (`nsys export --type parquetdir` or `arrowdir`), as a `Trace`.

Each table of the SQLite export is a file here, with the same columns. The same declarations (`tables`) and the same
steps (`export`) therefore apply. Polars reads only the columns that a source declares; of the other tables only those
about the recording and the machine's GPUs are read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Trace
from warplens.readers.nsys.export import Loaded, Plan, plan_of, put_together, shaped, sources_of
from warplens.readers.nsys.tables import SOURCES, STRINGS, TablesInMemory
from warplens.readers.nsys.texts import range_kinds
from warplens.readers.opening import Input, ReadOptions
from warplens.readers.sqlite import looks_like_nsys

_ADVICE: Final = "Export the capture again: nsys export --type parquetdir --output profile profile.nsys-rep"

#: How to open a table, by its file suffix. What nsys calls Arrow is the stream format, not the file format.
_OPENERS: Final[dict[str, Callable[[Path], pl.LazyFrame]]] = {
    ".parquet": pl.scan_parquet,
    ".arrow": lambda path: pl.read_ipc_stream(path).lazy(),
}

#: Small tables that the reader queries. Others, some with environment, users and command lines, are never opened.
_QUERIED_TABLES: Final = (
    *(STRINGS, "META_DATA_EXPORT", "EXPORT_META_DATA", "META_DATA_CAPTURE", "ANALYSIS_DETAILS", "DIAGNOSTIC_EVENT"),
    *("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU", "TARGET_INFO_CUDA_DEVICE"),
    "TARGET_INFO_CUDA_STREAM",
    *("ENUM_NSYS_EVENT_TYPE", "ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_CUDA_DEV_MEM_EVENT_OPER"),
)


class FolderOfTables(TablesInMemory):
    """The tables of such a folder, the small ones in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._files = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in _OPENERS}
        # Of most tables only their existence matters, such as that of backtraces.
        self.tables.update(dict.fromkeys(self._files, ()))
        try:
            for source in SOURCES:
                if source.table in self._files:
                    self.tables[source.table] = tuple(self._table(source.table).collect_schema())
            for name in _QUERIED_TABLES:
                if name in self._files:
                    self._copy(name)
        except BaseException:
            self.close()
            raise

    def unreadable(self, found: str) -> UnreadableInputError:
        """An error about this folder, under the name that the user knows."""
        return UnreadableInputError(self.known_as, found, _ADVICE)

    def loaded(self, plan: Plan) -> Loaded:
        """The rows of a source, as they would be loaded from an SQLite export."""
        columns = (
            pl.col(name.removesuffix(" as text")).cast(pl.Binary).fill_null(b"").alias(name)
            if name in plan.texts
            else _as_in_sqlite(pl.col(name))
            for name in sorted(plan.inputs)
        )
        table, condition = self._table(plan.source.table), pl.sql_expr(plan.source.where)
        try:
            raw = table.filter(condition).select(columns).collect()
        except pl.exceptions.PolarsError:
            raise self._damaged(plan.source.table) from None
        return plan.loaded(*shaped(self, plan, raw))

    def _table(self, name: str) -> pl.LazyFrame:
        path = self._files[name]
        try:
            table = _OPENERS[path.suffix](path)
            table.collect_schema()
        except (pl.exceptions.PolarsError, OSError):
            raise self._damaged(name) from None
        return table

    def _damaged(self, name: str) -> UnreadableInputError:
        return self.unreadable(f"its file {self._files[name].name} is damaged")

    def _copy(self, name: str) -> None:
        """Copy a small table into the database in memory."""
        try:
            frame = self._table(name).collect()
            rows = frame.with_columns(_as_in_sqlite(pl.col(pl.Boolean, pl.UInt64))).rows()
            self._insert(name, frame.columns, rows)
        except (pl.exceptions.PolarsError, sqlite3.Error):
            raise self._damaged(name) from None


def _as_in_sqlite(column: pl.Expr) -> pl.Expr:
    """Integers as SQLite returns them: signed, the upper half of unsigned 64-bit values negative."""
    return column.cast(pl.Int64, wrap_numerical=True)


def read_folder(folder: Input, options: ReadOptions) -> Trace:
    """The trace of a folder of tables.

    Raises:
        UnreadableInputError: a file of it is damaged, or lacks what every export has.
    """
    with closing(FolderOfTables(folder.path)) as tables:
        if not looks_like_nsys(tables.tables):
            raise tables.unreadable("its tables are not those of an Nsight Systems export")
        kinds = range_kinds(tables)
        folder.tell("reading the tables")
        sources = sources_of(tables, kinds, options.launch_configuration)
        plans = (plan_of(tables, source) for source in sources if source.table in tables.tables)
        loaded = {plan.source.table: tables.loaded(plan) for plan in plans}
        folder.tell("putting the trace together")
        return put_together(tables, loaded, kinds, "nsys-folder")
