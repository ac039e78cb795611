"""Metrics of `KernelCounters` as numbers, whatever a version of Nsight Compute calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["measured", "share", "text", "with_launch"]

_PERCENT = 100.0


def measured(counters: KernelCounters, *names: str) -> pl.Series:
    """A quantity of every launch: the first of these metrics that was collected for it, in its base unit.

    A launch that was not collected is null, also where the tool wrote a NaN (as it does for kernels that failed).
    """
    values = pl.Series(names[0], [None] * counters.launches.height, dtype=pl.Float64)
    for name in names:
        if name in counters.metrics.columns and values.null_count():
            found = counters.values(name).cast(pl.Float64, strict=False)
            values = values.zip_with(values.is_not_null(), found.fill_nan(None).rename(values.name))
    return values


def share(counters: KernelCounters, *names: str) -> pl.Series:
    """`measured` for metrics in percent, as 0–1."""
    return measured(counters, *names) / _PERCENT


def text(counters: KernelCounters, name: str) -> pl.Series:
    """A metric that is no number, such as a list of names; null where it was not collected."""
    values = counters.values(name)
    return values if values.dtype == pl.String else pl.Series(name, [None] * values.len(), dtype=pl.String)


def with_launch(counters: KernelCounters, **columns: pl.Series) -> pl.DataFrame:
    """These columns beside `launch`, a row a launch."""
    return pl.DataFrame([counters.launches["launch"], *(series.rename(name) for name, series in columns.items())])
