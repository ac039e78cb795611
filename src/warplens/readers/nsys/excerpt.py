"""A part of a recording that is too large to be read whole: which rows of each table belong to it.

The part is a span of time in the middle of the events. It is cut such that whole steps stay whole: a call of the host
belongs to it by its begin, GPU work with the call that issued it, and a range that only one edge of the span cuts is
left out, for its work would be there in part alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.profile import Note, NoteLevel
from warplens.profile.trace import WORK_TABLES
from warplens.readers.nsys.tables import SOURCES
from warplens.readers.sqlite import SqliteFile, quoted

#: GPU work begins at most this share of the span after the call that issued it: milliseconds, of seconds.
_QUEUED: Final = 0.05

#: Rows whose begin is looked at to find the span: it holds the share that is asked for to about one in a hundred.
_LOOKED_AT: Final = 2_000


@dataclass(frozen=True)
class Excerpt:
    """A span of a recording, and the share of the events that lie in it, about."""

    start_ns: int
    end_ns: int
    share: float

    @property
    def _queued_ns(self) -> int:
        return int((self.end_ns - self.start_ns) * _QUEUED)

    def rows_of(self, table: str) -> pl.Expr:
        """Which rows of a table of the trace may belong to it, by the columns `start` and `end` of the export."""
        start = pl.col("start")
        inside = (start >= self.start_ns) & (start < self.end_ns)
        if table in WORK_TABLES:
            return (start >= self.start_ns) & (start < self.end_ns + self._queued_ns)
        if table != "ranges":
            return inside
        end = pl.col("end")
        around = (start < self.start_ns) & (end > self.end_ns)
        return (inside & (end.is_null() | (end <= self.end_ns))) | around

    def issued_in(self, work: pl.DataFrame, calls: pl.DataFrame | None) -> pl.DataFrame:
        """The GPU work that calls of the span issued; where no call is known, what begins well inside of it."""
        inside = pl.col("start_ns") < self.end_ns
        if calls is None or not calls.height:
            return work.filter(inside)
        # What the calls before the span have left in the queue begins first.
        inside &= pl.col("start_ns") >= self.start_ns + self._queued_ns
        issuing = calls.select("process", "correlation").unique().with_columns(issued=pl.lit(value=True))
        work = work.join(issuing, on=["process", "correlation"], how="left", maintain_order="left")
        return work.filter(pl.col("issued").is_not_null() | inside).drop("issued")

    @property
    def note(self) -> Note:
        """Says that the rest was not looked at."""
        return Note(
            "read-in-part",
            NoteLevel.WARNING,
            f"Only the middle {100 * self.share:.0f} % of the recording was read, from {self.start_ns / 1e9:.3f} s to "
            f"{self.end_ns / 1e9:.3f} s: all of it takes more memory than is allowed. What lies outside is unknown.",
            "Allow more memory (--memory) to have all of it looked at",
        )


def excerpt_of(file: SqliteFile, share: float) -> Excerpt:
    """The span in the middle of an export that holds this share of its events, counted by GPU work, else by calls."""
    for table in _tables(file, (*WORK_TABLES, "api_calls", "ranges")):
        starts = np.sort(_begins(file, table))
        if len(starts) > 1:
            low, high = np.quantile(starts, [(1 - share) / 2, (1 + share) / 2], method="nearest").tolist()
            return Excerpt(low, max(high, low + 1), share)
    raise file.unreadable("it holds no event of which a part could be read")


def _tables(file: SqliteFile, names: Sequence[str]) -> list[str]:
    """The export's tables that become these of the trace, as far as it has them, in that order."""
    return [source.table for name in names for source in SOURCES
            if source.trace_table == name and source.table in file.tables]  # fmt: skip


def _begins(file: SqliteFile, table: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The begins of some rows of a table, evenly spread over it."""
    first, last = file.span(table)
    if first is None or last is None:
        return np.empty(0, np.int64)
    numbers = np.unique(np.linspace(first, last, _LOOKED_AT).astype(np.int64))
    query = f"SELECT start FROM {quoted(table)} WHERE {file.row_number(table)} IN ({', '.join(map(str, numbers))})"  # noqa: S608
    return np.array([start for (start,) in file.rows(query) if isinstance(start, int)], np.int64)
