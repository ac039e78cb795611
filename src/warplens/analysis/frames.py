"""Total, mean, median, extremes and standard deviation of a quantity: the same six numbers in every table."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Final, TypeVar

import polars as pl

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window


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


# --- Answers that several analyses of one report build on are computed once for a timeline and a window ---

Answer = TypeVar("Answer")


def once(question: Callable[[Timeline, Window], Answer]) -> Callable[[Timeline, Window], Answer]:
    """Makes a question of a timeline and a window remember its answers, with the timeline, as long as that lives.

    Two threads that ask at the same time may both compute the answer, which does no harm. Answers are not to be
    changed by those who asked.
    """

    @wraps(question)
    def remembered(timeline: Timeline, window: Window) -> Answer:
        key = (question, window)
        if key not in timeline.answers:
            timeline.answers[key] = question(timeline, window)
        answer: Answer = timeline.answers[key]
        return answer

    return remembered
