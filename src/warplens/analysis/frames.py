"""What tables are made with: the same six statistics in each, groups and amounts of rows, answers that are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.profile.schema import Bools, Int64s

#: A standard deviation is a sum of floats, which each number of threads adds up in an order of its own: what differs
#: are its last digits, behind these.
_STDEV_DIGITS: Final = 12


def duration_ns() -> pl.Expr:
    """`end_ns − start_ns` of a table of intervals."""
    return pl.col("end_ns") - pl.col("start_ns")


def spread(quantity: pl.Expr, prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """The statistics of an integer quantity within a group, as columns `<prefix>total_<unit>`, `…mean…`, and so on.

    Total and extremes are exact integers. The standard deviation is that of a sample (n − 1) and 0 for a single
    value, which is how `nsys stats` defines it. Nulls do not count; without any value all six are null.
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
    """`spread` of `duration_ns`, each of which occurs `calls` times, and `calls` in all; of rows that ascend by it.

    Sums, extremes, mean and median are those of the single values exactly; the standard deviation but for rounding.
    """
    value, times, calls = pl.col("duration_ns"), pl.col("calls"), pl.col("calls").sum()
    total = (value * times).sum()
    mean = total / calls

    def at(place: pl.Expr) -> pl.Expr:
        return value.filter(times.cum_sum() > place).first()

    squares = (times * (value - mean).pow(2)).sum()
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
    """`part / whole`; null where the whole is nothing."""
    return pl.when(whole > 0).then(part / whole)


def number(value: object) -> float | None:
    """What a Polars reduction over numbers returned, as a float; None for an empty column."""
    return float(value) if isinstance(value, (int, float)) else None


def chosen(rows: pl.DataFrame, which: Bools | pl.Series) -> pl.DataFrame:
    """The rows for which this holds. Where they lie together, as those of a window mostly do, none is copied."""
    mask = which.to_numpy() if isinstance(which, pl.Series) else which
    count = int(np.count_nonzero(mask))
    first = int(np.argmax(mask)) if count else 0
    return rows.slice(first, count) if mask[first : first + count].all() else rows.filter(pl.Series(mask))


def all_equal(column: pl.Series, value: int | None = None) -> bool:
    """Whether all rows hold one value, this one where it is given, and none is null; false where there are no rows."""
    if not column.len() or column.null_count():
        return False
    least = column.min()
    return least == column.max() and value in (None, least)


#: Up to so many combinations are counted in a table of all of them; more are told apart by sorting.
_FEW: Final = 1 << 22


def numbered(pieces: pl.DataFrame, columns: Sequence[str]) -> tuple[pl.DataFrame, Int64s]:
    """The distinct combinations of these columns, the first that occurs first, and which of them each piece has.

    Columns are few-valued, mostly of one value: their numbers are combined by arithmetic, without a hash of each row.
    """
    number, count = np.zeros(pieces.height, dtype=np.int64), 1
    for column in pieces.select(columns).get_columns():
        mine, distinct = _codes(column)
        if distinct > 1:
            if count * distinct > _FEW:
                number, count = _close_together(number)
            if count * distinct > _FEW:
                mine, distinct = _close_together(mine)
            if count == 1:
                number = mine
            else:
                number *= distinct
                number += mine
            count *= distinct
    if count == 1:
        return pieces.select(columns).head(1), number
    if count > _FEW:
        number, count = _close_together(number)
    first, number = by_occurrence(number, count)
    return pieces.select(columns)[first], number


def by_occurrence(number: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Numbers below `count` in the order in which they occur: the first row of each, and each row's new number."""
    first = np.full(count, len(number), dtype=np.int64)
    first[number[::-1]] = np.arange(len(number) - 1, -1, -1)
    present = np.flatnonzero(first < len(number))
    present = present[np.argsort(first[present])]
    place = np.zeros(count, dtype=np.int64)
    place[present] = np.arange(len(present))
    return first[present], place[number]


def _codes(column: pl.Series) -> tuple[Int64s, int]:
    """A number for each value, equal for equal ones and for nulls, and an upper bound of the numbers; made anew."""
    nothing = np.broadcast_to(np.int64(0), column.len())  # takes no room
    if column.null_count() == column.len():
        return nothing, 1
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical())
    if not (column.dtype == pl.Boolean or column.dtype.is_integer()):
        column = column.to_physical()
    if not (column.dtype == pl.Boolean or column.dtype.is_integer()):
        return _close_together(column.rank("dense").fill_null(0).to_numpy().astype(np.int64))
    if column.dtype == pl.Boolean:
        column = column.cast(pl.UInt8)
    low, high = column.min(), column.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    absent = column.is_null().to_numpy() if column.null_count() else None
    if low == high and absent is None:
        return nothing, 1
    values = column.fill_null(low).to_numpy().astype(np.int64)
    values, count = _close_together(values) if high - low >= _FEW else (values - low, high - low + 1)
    if absent is None:
        return values, count
    values[absent] = count
    return values, count + 1


def _close_together(values: Int64s) -> tuple[Int64s, int]:
    """The rank of each value among the distinct ones, and how many these are."""
    distinct = pl.Series(values).unique().sort().to_numpy()
    return np.searchsorted(distinct, values).astype(np.int64), len(distinct)


class Remembering(Protocol):
    """What answers are kept with: a timeline, or the facts of a diagnosis."""

    @property
    def answers(self) -> dict[tuple[object, ...], Any]:
        """Of questions asked `once`."""


Asked = TypeVar("Asked", bound=Remembering)
Answer = TypeVar("Answer")
Given = ParamSpec("Given")


def once(question: Callable[Concatenate[Asked, Given], Answer]) -> Callable[Concatenate[Asked, Given], Answer]:
    """Makes a question of a timeline, or of it and a window, remember its answers as long as the timeline lives.

    Two threads that ask at the same time may both compute the answer, which does no harm. Answers are not to be
    changed by those who asked.
    """

    @wraps(question)
    def remembered(asked: Asked, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        key = (question, *given, *named.values())
        if key not in asked.answers:
            asked.answers[key] = question(asked, *given, **named)
        answer: Answer = asked.answers[key]
        return answer

    return remembered


def running_sum(values: Bools | Int64s) -> Int64s:
    """The sum of all values before each place, and behind the last: shape (n + 1,)."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def sums_between(values: Bools | Int64s, begins: Int64s, ends: Int64s) -> Int64s:
    """The sum of the values from each begin to before its end; begins and ends ascend, and no part is empty."""
    bounds = np.stack((begins, ends), axis=1).reshape(-1)
    if not len(bounds):
        return bounds
    sums: Int64s = np.add.reduceat(values, bounds[:-1] if bounds[-1] == len(values) else bounds, dtype=np.int64)
    return sums[::2]


def sum_by(groups: Int64s, amounts: Int64s, count: int) -> Int64s:
    """The exact sum of the amounts of each group, shape (count,)."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, groups, amounts)
    return sums


def forget(asked: Remembering, *questions: object) -> None:
    """Gives back the answers to questions asked `once`; asked again, they are found again."""
    own = {getattr(question, "__wrapped__", None) for question in questions}
    for key in [key for key in asked.answers if key[0] in own]:
        del asked.answers[key]


#: From this share of rows on, a number for each row takes less room than the numbers of those that have one.
_MOST: Final = 0.5


@dataclass(frozen=True, eq=False)
class Spent:
    """Nanoseconds of the rows of a table, most of which have none: of most causes, few pauses have any."""

    rows: Int64s | None  #: shape (n,), ascending, the rows that have any; None for all
    ns: Int64s  #: shape (n,), of each of them
    count: int  #: rows of the table

    @classmethod
    def of(cls, whole: Int64s) -> Spent:
        """From the nanoseconds of each row, which belong to it from then on."""
        rows = np.flatnonzero(whole)
        return cls(None, whole, len(whole)) if len(rows) > _MOST * len(whole) else cls(rows, whole[rows], len(whole))

    @classmethod
    def none(cls, count: int) -> Spent:
        """No time in any row."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), count)

    @cached_property
    def total(self) -> int:
        """Over all rows."""
        return int(self.ns.sum())

    def __bool__(self) -> bool:
        return bool(self.ns.any())

    @property
    def at(self) -> Int64s | slice:
        """What chooses the rows of `ns` from an array alongside the table."""
        return slice(None) if self.rows is None else self.rows

    def whole(self) -> Int64s:
        """The nanoseconds of each row, shape (count,); not to be changed."""
        if self.rows is None:
            return self.ns
        found = np.zeros(self.count, dtype=np.int64)
        found[self.rows] = self.ns
        return found

    def times(self, share: float | npt.NDArray[np.float64]) -> Spent:
        """A share of it, the same for all rows or one for each row of the table, rounded down."""
        part = share if isinstance(share, float) else share[self.at]
        return Spent(self.rows, (self.ns * part).astype(np.int64), self.count)

    def share_of(self, whole: Int64s) -> npt.NDArray[np.float64]:
        """The share of each of these amounts, one for each row of the table; 0 of nothing."""
        shares = np.zeros(self.count)
        shares[self.at] = self.ns / np.maximum(whole[self.at], 1)
        return shares

    def where(self, which: Bools) -> Spent:
        """Of the rows for which this holds, given for each row of the table."""
        return Spent(self.rows, np.where(which[self.at], self.ns, 0), self.count)

    def plus(self, other: Spent, sign: int = 1) -> Spent:
        """Both together; the difference with −1 as sign."""
        if not other:
            return self
        if self.rows is other.rows:
            return Spent(self.rows, self.ns + sign * other.ns, self.count)
        found = self.whole().copy()
        found[other.at] += sign * other.ns
        return Spent.of(found)

    def among(self, part: Int64s) -> Spent:
        """Of some rows of the table, in ascending order; numbered as they are there."""
        if self.rows is None:
            return Spent(None, self.ns[part], len(part))
        place = np.searchsorted(part, self.rows)
        mine = np.flatnonzero(np.append(part, -1)[place] == self.rows)
        return Spent(place[mine], self.ns[mine], len(part))

    @classmethod
    def together(cls, parts: Sequence[Spent]) -> Spent:
        """Of several tables, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        return cls.of(np.concatenate([np.empty(0, np.int64), *(part.whole() for part in parts)]))
