"""Shared helpers for tables: the six statistics of a spread, grouping and sums by group, and memoized results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import Bools, Int64s

#: A standard deviation is a sum of floats, whose order depends on the number of threads: digits beyond these vary.
_STDEV_DIGITS: Final = 12


def duration_ns() -> pl.Expr:
    """`end_ns − start_ns` of a table of intervals."""
    return pl.col("end_ns") - pl.col("start_ns")


def spread(quantity: pl.Expr, prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """Statistics of an integer quantity within a group, as columns `<prefix>total_<unit>`, `…mean…`, and so on.

    Total and extremes are exact integers. The standard deviation is that of a sample (n − 1) and 0 for a single value,
    as `nsys stats` defines it. Nulls do not count; without any value all six are null.
    """
    deviation = quantity.std(ddof=1).round_sig_figs(_STDEV_DIGITS)
    single = quantity.count() == 1
    return [
        pl.when(quantity.count() > 0).then(quantity.sum()).alias(f"{prefix}total_{unit}"),
        quantity.mean().alias(f"{prefix}mean_{unit}"),
        quantity.median().alias(f"{prefix}median_{unit}"),
        quantity.min().alias(f"{prefix}min_{unit}"),
        quantity.max().alias(f"{prefix}max_{unit}"),
        pl.when(single).then(0.0).otherwise(deviation).alias(f"{prefix}stdev_{unit}"),
    ]


def spread_of_counts() -> list[pl.Expr]:
    """`calls` and `spread` of `duration_ns` for rows that each stand for `calls` values, sorted by `duration_ns`.

    Sums, extremes, mean and median are exactly those of the single values; the standard deviation agrees up to
    rounding.
    """
    value, weights, calls = pl.col("duration_ns"), pl.col("calls"), pl.col("calls").sum()
    total = (value * weights).sum()
    mean = total / calls

    def at(rank: pl.Expr) -> pl.Expr:
        return value.filter(weights.cum_sum() > rank).first()

    squares = (weights * (value - mean).pow(2)).sum()
    return [
        calls.alias("calls"),
        total.alias("total_ns"),
        mean.alias("mean_ns"),
        ((at((calls - 1) // 2) + at(calls // 2)) / 2).alias("median_ns"),
        value.min().alias("min_ns"),
        value.max().alias("max_ns"),
        pl.when(calls == 1)
        .then(0.0)
        .otherwise((squares / (calls - 1)).sqrt().round_sig_figs(_STDEV_DIGITS))
        .alias("stdev_ns"),
    ]


def ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """`part / whole`; null where the whole is 0."""
    return pl.when(whole > 0).then(part / whole)


def number(value: object) -> float | None:
    """The result of a Polars reduction over numbers as a float; None for an empty column."""
    return float(value) if isinstance(value, (int, float)) else None


def largest(values: pl.Series) -> int:
    """The largest number of a column, cut to a whole one; 0 for an empty column, or one of nulls."""
    most = values.max()
    return int(most) if isinstance(most, (int, float)) else 0


def select_rows(rows: pl.DataFrame, mask_or_series: Bools | pl.Series) -> pl.DataFrame:
    """The rows for which the mask is True. Contiguous rows, the usual case for a window, are not copied."""
    mask = mask_or_series.to_numpy() if isinstance(mask_or_series, pl.Series) else mask_or_series
    count = int(np.count_nonzero(mask))
    first = int(np.argmax(mask)) if count else 0
    return rows.slice(first, count) if mask[first : first + count].all() else rows.filter(pl.Series(mask))


def busiest(work: pl.DataFrame, *columns: str) -> tuple[int, ...]:
    """The values of these columns, such as process and device, whose work takes most time; of equals the smallest.

    Args:
        work: rows with `start_ns` and `end_ns`, at least one.
    """
    busy = work.group_by(columns).agg(duration_ns().sum().alias("busy_ns"))
    return busy.sort(-pl.col("busy_ns"), *columns).row(0)[:-1]


def all_equal(column: pl.Series, value: int | None = None) -> bool:
    """Whether all rows hold one value (`value`, if given) and none is null; False where there are no rows."""
    if not column.len() or column.null_count():
        return False
    least = column.min()
    return least == column.max() and value in (None, least)


#: Up to this many combinations are counted in a table of all of them; more are distinguished by sorting.
_FEW: Final = 1 << 22


def numbered(rows: pl.DataFrame, columns: Sequence[str]) -> tuple[pl.DataFrame, Int64s]:
    """The distinct combinations of these columns, in order of first occurrence, and each row's index among them.

    Columns have few values, mostly one: their codes are combined by arithmetic, without a hash of each row.
    """
    number, count = np.zeros(rows.height, dtype=np.int64), 1
    for column in rows.select(columns).get_columns():
        codes, distinct = _codes(column)
        if distinct > 1:
            if count * distinct > _FEW:
                number, count = _dense_ranks(number)
            if count * distinct > _FEW:
                codes, distinct = _dense_ranks(codes)
            if count == 1:
                number = codes
            else:
                number *= distinct
                number += codes
            count *= distinct
    if count == 1:
        return rows.select(columns).head(1), number
    if count > _FEW:
        number, count = _dense_ranks(number)
    first, number = by_occurrence(number, count)
    return rows.select(columns)[first], number


def by_occurrence(number: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Renumbers codes below `count` in order of occurrence: the first row of each, and each row's new number."""
    first = np.full(count, len(number), dtype=np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    present = np.flatnonzero(first < len(number))
    present = present[np.argsort(first[present])]
    new_number = np.zeros(count, dtype=np.int64)
    new_number[present] = np.arange(len(present))
    return first[present], new_number[number]


def _codes(column: pl.Series) -> tuple[Int64s, int]:
    """A code for each value, one of its own for null, and an upper bound of the codes.

    The array is a new one, unless the bound is 1: then it may be a view of a single zero, which cannot be written to.
    """
    zeros = np.broadcast_to(np.int64(0), column.len())  # takes no memory
    if column.null_count() == column.len():
        return zeros, 1
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical())
    if not (column.dtype == pl.Boolean or column.dtype.is_integer()):
        column = column.to_physical()
    if not (column.dtype == pl.Boolean or column.dtype.is_integer()):
        return _dense_ranks(column.rank("dense").fill_null(0).to_numpy().astype(np.int64))
    if column.dtype == pl.Boolean:
        column = column.cast(pl.UInt8)
    low, high = column.min(), column.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    null_mask = column.is_null().to_numpy() if column.null_count() else None
    if low == high and null_mask is None:
        return zeros, 1
    values = column.fill_null(low).to_numpy().astype(np.int64)
    values, count = _dense_ranks(values) if high - low >= _FEW else (values - low, high - low + 1)
    if null_mask is None:
        return values, count
    values[null_mask] = count
    return values, count + 1


def _dense_ranks(values: Int64s) -> tuple[Int64s, int]:
    """The rank of each value among the distinct ones, and the number of distinct values."""
    distinct = pl.Series(values).unique().sort().to_numpy()
    return np.searchsorted(distinct, values).astype(np.int64), len(distinct)


class Remembering(Protocol):
    """An object that stores results of `once`: a timeline, or the facts of a diagnosis."""

    @property
    def cache(self) -> dict[tuple[object, ...], Any]:
        """Results of functions decorated with `once`."""


Asked = TypeVar("Asked", bound=Remembering)
Answer = TypeVar("Answer")
Given = ParamSpec("Given")


#: Stands for a result that is not stored yet, as None may be one.
_NOTHING: Final[Any] = object()


def once(question: Callable[Concatenate[Asked, Given], Answer]) -> Callable[Concatenate[Asked, Given], Answer]:
    """Make a function of a timeline (and further arguments) keep its results as long as the timeline lives.

    Two threads that call at the same time may both compute the result; the first one is kept. Callers must not change
    results.
    """

    @wraps(question)
    def remembered(asked: Asked, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        key = (question, given, frozenset(named.items()))
        answer: Answer = asked.cache.get(key, _NOTHING)
        return answer if answer is not _NOTHING else asked.cache.setdefault(key, question(asked, *given, **named))

    return remembered


def running_sum(values: Bools | Int64s) -> Int64s:
    """The sum of all values before each position, and of all values at the end: shape (n + 1,)."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def sums_between(values: Bools | Int64s, begins: Int64s, ends: Int64s) -> Int64s:
    """The sum of `values[begin:end]` for each begin and end; both ascend, and no slice is empty."""
    bounds = np.stack((begins, ends), axis=1).reshape(-1)
    if not len(bounds):
        return bounds
    sums: Int64s = np.add.reduceat(values, bounds[:-1] if bounds[-1] == len(values) else bounds, dtype=np.int64)
    return sums[::2]


def sum_by(groups: Int64s, amounts: Int64s, count: int) -> Int64s:
    """The exact sum of the amounts in each group, shape (count,)."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, groups, amounts)
    return sums


def forget(asked: Remembering, *questions: object) -> None:
    """Drop the stored results of these functions decorated with `once`."""
    functions = {getattr(question, "__wrapped__", None) for question in questions}
    for key in [key for key in list(asked.cache) if key[0] in functions]:  # other threads may add and forget, too
        asked.cache.pop(key, None)


#: From this share of nonzero rows on, a dense array takes less memory than a sparse one.
_DENSE_SHARE: Final = 0.5


@dataclass(frozen=True, eq=False)
class Spent:
    """Nanoseconds per row of a table, stored sparsely: for most idle causes, few gaps have any."""

    rows: Int64s | None  #: shape (n,), ascending, the rows with any; None for all rows
    ns: Int64s  #: shape (n,), the nanoseconds of each of them
    count: int  #: number of rows of the table

    @classmethod
    def of(cls, whole: Int64s) -> Spent:
        """From the nanoseconds of each row. The array is kept and must not be changed by the caller."""
        rows = np.flatnonzero(whole)
        if len(rows) > _DENSE_SHARE * len(whole):
            return cls(None, whole, len(whole))
        return cls(rows, whole[rows], len(whole))

    @classmethod
    def none(cls, count: int) -> Spent:
        """No time in any row."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), count)

    @cached_property
    def total(self) -> int:
        """Sum over all rows."""
        return int(self.ns.sum())

    def __bool__(self) -> bool:
        return bool(self.ns.any())

    @property
    def at(self) -> Int64s | slice:
        """Index that selects the rows of `ns` from an array alongside the table."""
        return slice(None) if self.rows is None else self.rows

    def whole(self) -> Int64s:
        """The nanoseconds of each row, shape (count,). Must not be changed."""
        if self.rows is None:
            return self.ns
        dense = np.zeros(self.count, dtype=np.int64)
        dense[self.rows] = self.ns
        return dense

    def times(self, share: float | npt.NDArray[np.float64]) -> Spent:
        """Scaled by a share, one for all rows or one per row of the table, rounded down."""
        part = share if isinstance(share, float) else share[self.at]
        return Spent(self.rows, (self.ns * part).astype(np.int64), self.count)

    def share_of(self, whole: Int64s) -> npt.NDArray[np.float64]:
        """The share of each of these amounts (one per row of the table); 0 where the amount is 0."""
        shares = np.zeros(self.count)
        shares[self.at] = self.ns / np.maximum(whole[self.at], 1)
        return shares

    def where(self, which: Bools) -> Spent:
        """Limited to the rows where the mask, one entry per row of the table, is True."""
        return Spent(self.rows, np.where(which[self.at], self.ns, 0), self.count)

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        """The sum of both; the difference with sign −1."""
        if not other:
            return self
        if self.rows is other.rows:
            return Spent(self.rows, self.ns + sign * other.ns, self.count)
        dense = self.whole().copy()
        dense[other.at] += sign * other.ns
        return Spent.of(dense)

    def among(self, part: Int64s) -> Spent:
        """The same for some rows of the table, ascending, numbered by their position there."""
        if self.rows is None:
            return Spent(None, self.ns[part], len(part))
        place = np.searchsorted(part, self.rows)
        kept = np.flatnonzero(np.append(part, -1)[place] == self.rows)
        return Spent(place[kept], self.ns[kept], len(part))

    @classmethod
    def together(cls, parts: Sequence[Spent]) -> Spent:
        """The tables of all parts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        return cls.of(np.concatenate([np.empty(0, np.int64), *(part.whole() for part in parts)]))
