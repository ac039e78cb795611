"""Total, mean, median, extremes and standard deviation of a quantity: the same six numbers in every table."""

from __future__ import annotations

import polars as pl

__all__ = ["conform", "duration_ns", "number", "ratio", "spread", "spread_schema"]


def duration_ns() -> pl.Expr:
    """`end_ns − start_ns` of a table of intervals."""
    return pl.col("end_ns") - pl.col("start_ns")


def spread(quantity: pl.Expr, prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """The statistics of an integer quantity within a group, as columns `<prefix>total_<unit>`, `…mean…`, and so on.

    Total and extremes are exact integers. The standard deviation is that of a sample (n − 1) and 0 for a single
    value, which is how `nsys stats` defines it. Nulls do not count; without any value all six are null.
    """
    deviation = quantity.std(ddof=1)
    single = quantity.count() == 1
    return [
        pl.when(quantity.count() > 0).then(quantity.sum()).alias(f"{prefix}total_{unit}"),
        quantity.mean().alias(f"{prefix}mean_{unit}"),
        quantity.median().alias(f"{prefix}median_{unit}"),
        quantity.min().alias(f"{prefix}min_{unit}"),
        quantity.max().alias(f"{prefix}max_{unit}"),
        pl.when(single).then(0.0).otherwise(deviation).alias(f"{prefix}stdev_{unit}"),
    ]


def spread_schema(prefix: str = "", unit: str = "ns") -> dict[str, pl.DataType]:
    """The columns that `spread` makes, with their types."""
    exact, derived = pl.Int64(), pl.Float64()
    types = {"total": exact, "mean": derived, "median": derived, "min": exact, "max": exact, "stdev": derived}
    return {f"{prefix}{statistic}_{unit}": dtype for statistic, dtype in types.items()}


def ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """`part / whole`; null where the whole is nothing."""
    return pl.when(whole > 0).then(part / whole)


def conform(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """The frame with exactly the declared columns in the declared order and types."""
    return frame.select([pl.col(name).cast(dtype) for name, dtype in schema.items()])


def number(value: object) -> float | None:
    """What a Polars reduction over numbers returned, as a float; None for an empty column."""
    return float(value) if isinstance(value, (int, float)) else None
