"""Loading the declared tables of an nsys export: parts of all of them in one pool of threads, shrunk as they arrive.

A part is read as 64-bit integers, cast at once to the types of the trace, and freed, so that the peak stands little
above the size of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from warplens.readers.column_buffers import ColumnBuffers
from warplens.readers.nsys_tables import Field, Source
from warplens.readers.sqlite_file import SqliteFile, quoted, worker_count

__all__ = ["Loaded", "codes_of", "load"]


#: From this size on, reading takes more than a second.
_MANY_PARTS = 8


@dataclass(frozen=True)
class Loaded:
    """The rows of one source.

    Attributes:
        frame: the fields of the source as columns; strings as ids or raw bytes, codes as numbers.
        dropped: how many rows were left out because they have no begin, or end before they begin.
    """

    frame: pl.DataFrame
    dropped: int


@dataclass(frozen=True)
class _Plan:
    """How one source is read from one export.

    Attributes:
        source: what is read.
        query: it, without the condition on its row range.
        texts: columns of the result that hold raw bytes.
        shape: what becomes of the result.
        absent: what stands for the columns that the export lacks.
    """

    source: Source
    query: str
    texts: tuple[str, ...]
    shape: tuple[pl.Expr, ...]
    absent: tuple[pl.Expr, ...]


def load(
    file: SqliteFile, sources: Iterable[Source], progress: Callable[[int], None] = lambda _: None
) -> dict[str, Loaded]:
    """The rows of all sources that the export has a table for, by the table's name, in the file's order.

    Args:
        file: the export.
        sources: what to read.
        progress: told now and then how much has been read, in percent; of a small file not at all.

    Raises:
        UnreadableInputError: a table lacks a column without which its rows mean nothing, holds values that no such
            table can hold, or is damaged.
    """
    plans = [_plan(file, source) for source in sources if source.table in file.tables]
    loaded = {}
    with ThreadPoolExecutor(worker_count()) as pool:
        pending = [_submit(pool, file, plan) for plan in plans]
        count, done = sum(len(parts) for _, parts in pending), 0
        try:
            for plan in plans:
                buffers, parts = pending.pop(0)
                dropped = 0
                for part in parts:
                    dropped += part.result()
                    done += 1
                    if count >= _MANY_PARTS and done * 10 // count > (done - 1) * 10 // count:
                        progress(done * 10 // count * 10)
                frame = buffers.frame().with_columns(plan.absent)
                loaded[plan.source.table] = Loaded(frame.select(field.name for field in plan.source.fields), dropped)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return loaded


def _submit(pool: ThreadPoolExecutor, file: SqliteFile, plan: _Plan) -> tuple[ColumnBuffers, list[Future[int]]]:
    """Room for a source's rows, and the tasks that will fill it; each gives the number of rows that it dropped."""
    parts = file.parts(plan.source.table)
    buffers = ColumnBuffers(_shaped(file, plan, _nothing(plan))[0].schema, [part.capacity for part in parts])

    def fill(number: int) -> int:
        raw = file.frame(f"{plan.query} AND {parts[number].condition}", plan.texts)
        frame, dropped = _shaped(file, plan, raw)
        buffers.put(number, frame)
        return dropped

    return buffers, [pool.submit(fill, number) for number in range(len(parts))]


def _plan(file: SqliteFile, source: Source) -> _Plan:
    available = file.tables[source.table]
    selected: dict[str, str] = {}
    texts: list[str] = []
    shape: list[pl.Expr] = []
    absent: list[pl.Expr] = []
    for field in source.fields:
        column = next((name for name in field.columns if name in available), None)
        if column is not None:
            selected[column] = quoted(column)
            shape.append(field.convert(column).alias(field.name))
        elif field.text_column in available:
            column = f"{field.text_column} as text"
            selected[column] = f"coalesce(CAST({quoted(str(field.text_column))} AS BLOB), x'') AS {quoted(column)}"
            texts.append(column)
            shape.append(pl.col(column).alias(field.name))
        elif field.required:
            raise file.unreadable(f"its table {source.table} has no column {_expected(field)}")
        else:
            absent.append(field.absent.alias(field.name))
    query = f"SELECT {', '.join(selected.values())} FROM {quoted(source.table)} WHERE {source.where}"  # noqa: S608
    return _Plan(source, query, tuple(texts), tuple(shape), tuple(absent))


def _expected(field: Field) -> str:
    return " or ".join(field.columns)


def _nothing(plan: _Plan) -> pl.DataFrame:
    columns = {name for expression in plan.shape for name in expression.meta.root_names()}
    return pl.DataFrame(schema={name: pl.Binary if name in plan.texts else pl.Int64 for name in columns})


def _shaped(file: SqliteFile, plan: _Plan, raw: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    keep = pl.col("start").is_not_null()
    if "end" in raw.columns:
        # Only a range may lack its end: it was still open when the capture ended.
        keep = keep & (pl.col("end") >= pl.col("start")).fill_null(plan.source.trace_table == "ranges")
    kept = raw if raw.select(keep.all()).item() else raw.filter(keep)
    try:
        shaped = kept.select(plan.shape)
    except pl.exceptions.PolarsError:
        found = f"its table {plan.source.table} holds numbers too large for what they count"
        raise file.unreadable(found) from None
    return shaped, raw.height - kept.height


def codes_of(file: SqliteFile, enumeration: str, defaults: Mapping[int, str]) -> dict[int, str]:
    """What an export's numbers mean: its own table of them (`Host-to-Device` → `host-to-device`), else the defaults."""
    codes = dict(defaults)
    if {"id", "label"} <= set(file.tables.get(enumeration, ())):
        for code, label in file.rows(f"SELECT id, label FROM {quoted(enumeration)}"):  # noqa: S608
            if isinstance(code, int) and isinstance(label, bytes):
                codes[code] = label.decode("utf-8", "replace").strip().lower().replace(" ", "-")
    return codes
