"""The metrics of an Nsight Compute CSV export as columns, taken in as printed and turned into numbers in batches."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.readers.ncu_csv_units import base_unit, numbers_of
from warplens.readers.ncu_rep_units import unit_of

__all__ = ["Cells"]

#: Cells that are turned into numbers together: some megabytes of text, against calls that cost microseconds.
_BATCH = 1 << 17

#: Columns are as long as the file has launches, so that many launches which share no metric would take memory out of
#: proportion to the file. Real launches share nearly all: one cell in eight filled is far below that.
_FREE_CELLS = 1 << 22
_CELLS_PER_VALUE = 8

#: `ncu --set full` collects some 2,500 metrics.
_MOST_METRICS = 1 << 16

Rows = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass
class _Pending:
    """Cells as printed: row and column of each, power of ten of its unit, whether it has a unit."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    powers: list[int] = field(default_factory=list)
    units: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class Cells:
    """Takes in printed values, row by row or one by one, and gives them as columns of numbers in base units.

    Args:
        wanted: names of the metrics to keep; None means all.
        decimal_comma: how the file writes numbers.
    """

    def __init__(self, wanted: Collection[str] | None, decimal_comma: bool) -> None:
        self._wanted = None if wanted is None else frozenset(wanted)
        self._decimal_comma = decimal_comma
        self._columns: dict[str, int] = {}
        self._units: dict[str, str] = {}
        self._pending = _Pending()
        self._single: list[tuple[Rows, Rows, Reals]] = []
        self._tables: list[tuple[int, dict[int, int], Reals]] = []
        self._texts: dict[int, dict[int, str]] = {}
        self._table_texts: list[str] = []
        self._table_columns: list[tuple[int, int, bool]] = []
        self._table_start = 0
        self._values = 0

    def column(self, metric: str, printed_unit: str) -> tuple[int, int, bool] | None:
        """Where a metric of this name and unit goes; None where it is not wanted.

        Returns:
            Its column, the power of ten that takes its values to the base unit, and whether it has a unit.
        """
        if self._wanted is not None and metric not in self._wanted:
            return None
        unit, power = base_unit(printed_unit)
        number = self._columns.setdefault(metric, len(self._columns))
        # An ncu that does not know the chip prints base units without naming them.
        unit = unit or unit_of(metric)
        if unit is not None:
            self._units.setdefault(metric, unit)
        return number, power, bool(printed_unit)

    def take(self, row: int, place: tuple[int, int, bool], text: str) -> None:
        """Takes in one value."""
        pending = self._pending
        pending.rows.append(row)
        pending.columns.append(place[0])
        pending.powers.append(place[1])
        pending.units.append(place[2])
        pending.texts.append(text)
        if len(pending.texts) >= _BATCH:
            self._flush()

    def begin_table(self, places: Sequence[tuple[int, int, bool]], first_row: int) -> None:
        """Begins rows that all have these columns."""
        self._flush_table()
        self._table_columns, self._table_start = list(places), first_row

    def take_row(self, texts: Sequence[str]) -> None:
        """Takes in the values of the next row, as many as there are columns."""
        self._table_texts += texts
        if len(self._table_texts) >= _BATCH:
            self._flush_table()

    def frame(self, launches: int, known_as: Path) -> pl.DataFrame:
        """All metrics, one column each, in the order of the file.

        Raises:
            UnreadableInputError: so many launches with such different metrics are no real export.
        """
        self._flush()
        self._flush_table()
        cells = len(self._columns) * launches
        if len(self._columns) > _MOST_METRICS or cells > _FREE_CELLS + _CELLS_PER_VALUE * self._values:
            found = f"{launches:,} launches with {len(self._columns):,} metrics, of which hardly any was collected"
            raise UnreadableInputError(known_as, found, "Ask for single metrics, or export the report again")
        singles = self._sorted_singles()
        return pl.DataFrame([self._series(name, at, launches, singles) for name, at in self._columns.items()])

    def units(self) -> Mapping[str, str]:
        """The base unit of each metric, where it is known."""
        return self._units

    def _flush(self) -> None:
        pending, self._pending = self._pending, _Pending()
        if not pending.texts:
            return
        rows, columns = np.array(pending.rows, np.int64), np.array(pending.columns, np.int64)
        powers, units = np.array(pending.powers, np.int8), np.array(pending.units, np.bool_)
        reals, texts = numbers_of(pending.texts, powers, units, self._decimal_comma)
        for at in texts.tolist():
            self._texts.setdefault(pending.columns[at], {}).setdefault(pending.rows[at], pending.texts[at])
        self._values += len(pending.texts)
        self._single.append((columns, rows, reals))

    def _flush_table(self) -> None:
        texts, self._table_texts = self._table_texts, []
        if not texts or not self._table_columns:
            return
        places = self._table_columns
        count = len(texts) // len(places)
        powers = np.tile(np.array([power for _, power, _ in places], np.int8), count)
        units = np.tile(np.array([known for _, _, known in places], np.bool_), count)
        reals, found = numbers_of(texts, powers, units, self._decimal_comma)
        for at in found.tolist():
            row, place = divmod(at, len(places))
            self._texts.setdefault(places[place][0], {})[self._table_start + row] = texts[at]
        self._values += len(texts)
        where = {number: place for place, (number, _, _) in enumerate(places)}
        self._tables.append((self._table_start, where, np.ascontiguousarray(reals.reshape(count, -1).T)))
        self._table_start += count

    def _sorted_singles(self) -> tuple[Rows, Rows, Reals]:
        nothing = np.empty(0, np.int64)
        columns = np.concatenate([nothing, *(part[0] for part in self._single)])
        rows = np.concatenate([nothing, *(part[1] for part in self._single)])
        reals = np.concatenate([np.empty(0, np.float64), *(part[2] for part in self._single)])
        self._single = []
        # The last of several assignments to a place stands: of a metric printed twice that must be the first value.
        order = np.flatnonzero(~np.isnan(reals))[::-1]
        order = order[np.argsort(columns[order], kind="stable")]
        return columns[order], rows[order], reals[order]

    def _series(self, name: str, number: int, launches: int, singles: tuple[Rows, Rows, Reals]) -> pl.Series:
        values = np.full(launches, np.nan)
        columns, rows, reals = singles
        begin, end = np.searchsorted(columns, (number, number + 1))
        values[rows[begin:end]] = reals[begin:end]
        for start, where, block in self._tables:
            if (place := where.get(number)) is not None:
                values[start : start + block.shape[1]] = block[place]
        if texts := self._texts.get(number):
            mixed = [
                texts.get(row, None if math.isnan(value) else f"{value:.15g}")
                for row, value in enumerate(values.tolist())
            ]
            return pl.Series(name, mixed, dtype=pl.String)
        return pl.Series(name, values, nan_to_null=True)
