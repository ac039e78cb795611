"""Reading an SQLite export larger than memory in parts: each part is aggregated before the next ones are read.

Only the requested columns are read. Nothing here joins tables: questions about launches, ranges or steps need the whole
trace.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from warplens.errors import UsageError
from warplens.profile import Capture, Trace
from warplens.profile.schema import LONGEST_NAME
from warplens.profile.trace import TEXT_BYTES, TEXTS
from warplens.readers.excerpts import IN_SLICES, distinct_values
from warplens.readers.nsys import NSYS
from warplens.readers.nsys.capture import devices_of, session_of
from warplens.readers.nsys.export import REWRITES, load, opened, plan_of, put_together, rows_of, shaped, sources_of
from warplens.readers.nsys.tables import SOURCES, STRINGS, Source
from warplens.readers.nsys.texts import Strings, distinct_ids, range_kinds
from warplens.readers.opening import Input
from warplens.readers.sqlite import Part, SqliteFile, looks_like_nsys, quoted, worker_count

#: Rows of counts that are collected before they are added up.
_LOOSE_ROWS: Final = 2_000_000


@contextmanager
def sliced(export: Input) -> Iterator[Slices]:
    """An export, to be read in parts; errors as of `opened`."""
    with opened(export) as file:
        yield Slices(file)


class Slices:
    """An export of which a table is read in parts."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._kinds = range_kinds(file)
        sources = sources_of(file, self._kinds, launch_configuration=False)
        self._sources = [source for source in sources if source.table in file.tables]

    @property
    def capture(self) -> Capture:
        """Facts about the file; `window_ns` covers all events, as in a trace."""
        session = session_of(self._file, frozenset())
        devices, _ = devices_of(self._file, [])
        spans = [span for source in self._sources if (span := self._span(source)) is not None]
        return Capture(
            source=self._file.known_as.name,
            format="nsys-sqlite",
            recorder=NSYS,
            tool_version=session.tool_version,
            schema_version=session.schema_version,
            devices=devices,
            window_ns=(min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else (0, 0),
            recorded=frozenset(source.trace_table for source in self._sources),
            notes=(IN_SLICES,),
        )

    def _span(self, source: Source) -> tuple[int, int] | None:
        """Begin of the first and end of the last event of a table."""
        end = '"end"' if "end" in self._file.tables[source.table] else "start"
        valid = f"{source.where} AND start IS NOT NULL"
        valid += f" AND ({end} >= start" + (f" OR {end} IS NULL)" if source.trace_table == "ranges" else ")")
        query = f"SELECT min(start), max(start), max({end}) FROM {quoted(source.table)} WHERE {valid}"  # noqa: S608
        ((first, last, last_end),) = self._file.rows(query)
        return None if first is None else (first, max(last, last_end or last))

    def tables(self, *names: str) -> Trace:
        """A trace with only these tables, read completely; the others are empty."""
        sources = [source for source in self._sources if source.trace_table in names]
        trace = put_together(self._file, load(self._file, sources), self._kinds)
        return replace(trace, capture=replace(self.capture, devices=trace.capture.devices))

    def counts(self, table: str, columns: Sequence[str], span: tuple[int | None, int | None]) -> pl.DataFrame:
        """How often each duration occurs, by the given columns: these columns, `duration_ns` and `calls`.

        Durations are whole nanoseconds with few distinct values. The result is therefore far smaller than the table,
        and all statistics of the durations can be computed from it exactly.

        Args:
            columns: columns of the table to group by.
            span: bounds of the rows' begins, the second exclusive; None for no bound.

        Raises:
            UsageError: the export is stored in a way that must be read completely.
        """
        source = next((source for source in self._sources if source.trace_table == table), None)
        if source is None:
            declared = next(source for source in SOURCES if source.trace_table == table)
            names = {field.name for field in declared.fields if field.is_string}
            empty = {name: pl.Enum([]) if name in names else pl.Int32 for name in columns}
            return pl.DataFrame(schema={**empty, "duration_ns": pl.Int64, "calls": pl.Int64})
        fields = tuple(field for field in source.fields if field.name in {"start_ns", "end_ns", *columns})
        if any(field.name == "class" for field in source.fields):
            raise self._not_in_slices("its API calls are recorded with call chains, some of them twice")
        available = set(self._file.tables[source.table])
        if any(field.name == "process" and not set(field.columns) & available for field in fields):
            raise self._not_in_slices("it does not say which process its rows belong to")
        limits = [f"start {sign} {edge}" for sign, edge in zip((">=", "<"), span, strict=True) if edge is not None]
        plan = plan_of(self._file, replace(source, fields=fields, where=" AND ".join((source.where, *limits))))
        if plan.texts:
            raise self._not_in_slices("its names stand in the rows themselves")

        def count_durations(part: Part) -> pl.DataFrame:
            frame, _ = shaped(self._file, plan, rows_of(self._file, plan, part))
            duration = (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
            frame = frame.with_columns(plan.absent).select(*columns, duration)
            return frame.group_by(*columns, "duration_ns").agg(pl.len().cast(pl.Int64).alias("calls"))

        keys = [*columns, "duration_ns"]
        counted = _sum_all(_in_order(count_durations, self._file.parts(source.table)), keys)
        named = [field.name for field in fields if field.is_string]
        strings = Strings(self._file, distinct_ids(counted[name] for name in named))
        return counted.with_columns(strings.encode(counted[name], REWRITES.get(table)).alias(name) for name in named)

    def _not_in_slices(self, reason: str) -> UsageError:
        return UsageError(
            f"{self._file.known_as.name}: cannot be read in slices, because {reason}. Allow more memory with --memory"
        )


def rows_in(path: Path, *, with_texts: bool) -> dict[str, int] | None:
    """Upper estimate of the rows of each table of the trace; None if the file is not an export.

    Args:
        path: the file.
        with_texts: whether to estimate `TEXTS` and `TEXT_BYTES` as well, from a sample of the rows.
    """
    with SqliteFile(path) as file:
        if not looks_like_nsys(file.tables):
            return None
        rows: Counter[str] = Counter()
        for source in SOURCES:
            if source.table in file.tables:
                count = sum(part.capacity for part in file.parts(source.table))
                rows[source.trace_table] += count
                if with_texts:
                    for texts, size in _texts_in(file, source, count):
                        rows[TEXTS] += texts
                        rows[TEXT_BYTES] += texts * size
        return dict(rows)


#: Rows of a table that are sampled for their texts.
_SAMPLED_ROWS: Final = 4_096
#: Characters by which sampled texts are told apart, with their length.
_TOLD_APART: Final = 1_000


def _texts_in(file: SqliteFile, source: Source, count: int) -> Iterator[tuple[int, int]]:
    """For each column of names of a table: estimates of its distinct texts, and of the mean size of one in bytes."""
    first, last = file.span(source.table)
    if first is None or last is None:
        return
    numbers = np.unique(np.random.default_rng(0).integers(first, last, _SAMPLED_ROWS, endpoint=True))
    rows = f"FROM {quoted(source.table)} WHERE {file.row_number(source.table)} IN ({','.join(map(str, numbers))})"
    available = file.tables[source.table]
    for field in source.fields:
        column = next((name for name in field.columns if field.is_string and name in available), None)
        if column is not None:
            sampled = file.rows(f"SELECT {quoted(column)} {rows}")
            ids = ",".join({str(number) for (number,) in sampled if isinstance(number, int)})
            size = f"avg(min(length(value), {LONGEST_NAME}))"
            ((mean,),) = file.rows(f"SELECT {size} FROM {quoted(STRINGS)} WHERE id IN ({ids})")  # noqa: S608
        elif field.text_column in available:
            text = quoted(str(field.text_column))
            sampled = file.rows(f"SELECT nullif(substr({text}, 1, {_TOLD_APART}), ''), length({text}) {rows}")
            mean = np.mean([size for text, size in sampled if text is not None] or [0])
        else:
            continue
        known = Counter(row for row in sampled if row[0] is not None)
        yield distinct_values(known, round(count * known.total() / max(len(sampled), 1))), round(mean or 0)


def _in_order(reduce: Callable[[Part], pl.DataFrame], parts: Sequence[Part]) -> Iterator[pl.DataFrame]:
    """The reduced parts in order; at most one per connection is read ahead."""
    with ThreadPoolExecutor(worker_count()) as pool:
        pending: deque[Future[pl.DataFrame]] = deque()
        for part in parts:
            pending.append(pool.submit(reduce, part))
            if len(pending) > worker_count():
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _sum_all(parts: Iterator[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """The sum of the counts of all parts."""
    collected: list[pl.DataFrame] = []
    row_count = 0
    for part in parts:
        collected.append(part)
        row_count += part.height
        if row_count > max(_LOOSE_ROWS, 2 * collected[0].height):
            collected, row_count = [_sum(collected, keys)], 0
    return _sum(collected, keys)


def _sum(parts: list[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    return pl.concat(parts).group_by(keys, maintain_order=True).agg(pl.col("calls").sum())
