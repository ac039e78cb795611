"""Which of many kernels differ: of a hundred, five do at the 5 % level although nothing was changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.compare.decisions import VERDICTS, check_level
from warplens.compare.shift import ORDER_FROM, dependence, t_quantile, two_sided
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s, Int64s

DIFFERENCES: Final = table(
    "comparison: differences of many kernels",
    "One of many things that are compared at once. `warplens.compare.many.many_differences`.",
    Column("column", pl.Int64, "which column of the two matrices"),
    column("baseline_ns", dtype=pl.Float64, help="mean of a step, of the baseline"),
    column("variant_ns", dtype=pl.Float64, help="mean of a step, of the variant"),
    Column("difference_ns", pl.Float64, "variant − baseline; sums over the columns to that of the whole"),
    column("low_ns", dtype=pl.Float64, help="interval of the difference, widened for being chosen among many"),
    column("high_ns", dtype=pl.Float64),
    "ratio p_value adjusted_p",
    column("verdict", dtype=pl.Enum(VERDICTS)),
)


def adjusted(p_values: Sequence[float] | Float64s) -> Float64s:
    """P-values adjusted for their number: of what lies at or below q, at most the share q is there by chance.

    NaN stands for "not tested": it stays, and does not count.

    Source: Benjamini and Hochberg, Controlling the false discovery rate, J. R. Stat. Soc. B 57 (1995), 289–300; it
    holds for kernels of one run, which are slow together (positive dependence: Benjamini and Yekutieli, Ann. Statist.
    29 (2001), 1165–1188).
    """
    values = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(values))
    result = np.full(values.size, np.nan)
    if known.size:
        order = known[np.argsort(values[known], kind="stable")]
        scaled = values[order] * known.size / np.arange(1, known.size + 1)
        result[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return result


def many_differences(
    baseline: npt.ArrayLike,
    variant: npt.ArrayLike,
    *,
    baseline_blocks: Sequence[int] | Int64s | None = None,
    variant_blocks: Sequence[int] | Int64s | None = None,
    margin: float = 0.02,
    level: float = 0.05,
) -> pl.DataFrame:
    """Which of many kernels (or ranges, or categories) take longer or shorter.

    Means of a step, not trimmed ones as of the whole step: their differences add up to that of the whole. Welch's t,
    in which neighbouring steps that resemble each other count as fewer (`dependence`).

    Args:
        baseline: time in nanoseconds, a row a step, a column a kernel; 0 where a step does not run it.
        variant: the same columns; rows may be more or fewer.
        baseline_blocks: which block (file, process, round) each row belongs to: rows of one block count as one.
            None if all are successive steps of one run.
        variant_blocks: the same of the variant.
        margin: differences up to this share of the kernel's time are `same` where the interval lies within.
        level: share of chance findings among the kernels called faster or slower, at most.

    Returns:
        `DIFFERENCES`, a row a column. `faster` and `slower`: the adjusted p-value is at most the level and the
        interval is not within the margin. Intervals are those of Benjamini and Yekutieli (J. Am. Stat. Assoc. 100
        (2005), 71–81): at most the share `level` of those that were chosen miss.

    Raises:
        UsageError: the matrices do not have the same columns, a side has no step, or blocks are not one a row.
    """
    check_level(level)
    before, after = _matrix(baseline, baseline_blocks), _matrix(variant, variant_blocks)
    if before.shape[1] != after.shape[1]:
        raise UsageError(f"{before.shape[1]} kernels cannot be compared with {after.shape[1]}: the columns must match")
    factor = np.ones(before.shape[1])
    if baseline_blocks is None and variant_blocks is None:
        long = [side for side in (before, after) if len(side) >= ORDER_FROM]
        factor = dependence(*long) if long else factor
    change = _change(before, after, factor)
    p_values = _p_values(change)
    corrected = adjusted(p_values)
    discoveries = int((corrected <= level).sum())
    # With no discovery, the widest: as many chances as there are columns.
    reach = _reach(change, level * max(discoveries, 1) / max(before.shape[1], 1))
    means = before.mean(axis=0), after.mean(axis=0)
    low, high = change.difference - reach, change.difference + reach
    bounds = means[0] * (1 / (1 + margin) - 1), means[0] * margin
    within = (low >= bounds[0]) & (high <= bounds[1])
    different = (corrected <= level) & ~within
    verdict = np.where(within, 2, np.where(different, np.where(change.difference < 0, 0, 1), 3))
    return pl.DataFrame(
        {
            "column": np.arange(before.shape[1]),
            "baseline_ns": means[0],
            "variant_ns": means[1],
            "difference_ns": change.difference,
            "low_ns": low,
            "high_ns": high,
            "ratio": np.divide(means[1], means[0], out=np.full(means[0].size, np.nan), where=means[0] > 0),
            "p_value": p_values,
            "adjusted_p": corrected,
            "verdict": pl.Series([VERDICTS[number] for number in verdict.tolist()], dtype=pl.Enum(VERDICTS)),
        },
        schema=DIFFERENCES.schema,
        nan_to_null=True,
    )


class _Change(NamedTuple):
    """Differences of means, a value a column: their standard errors and degrees of freedom (0: none known)."""

    difference: Float64s
    error: Float64s
    freedom: Float64s


def _matrix(times: npt.ArrayLike, blocks: Sequence[int] | Int64s | None) -> Float64s:
    """Rows that vary independently: steps, or the means of blocks."""
    rows = np.asarray(times, dtype=np.float64)
    if rows.ndim != 2 or not rows.shape[0]:
        raise UsageError("there is nothing to compare: a side needs a row for each step and a column for each kernel")
    if blocks is None:
        return rows
    _, number = np.unique(np.asarray(blocks), return_inverse=True)
    if number.shape != (rows.shape[0],):
        raise UsageError(f"{rows.shape[0]} steps need a block each, and {number.size} were given")
    sums = np.zeros((int(number.max()) + 1, rows.shape[1]))
    np.add.at(sums, number, rows)
    return sums / np.bincount(number)[:, None]


def _change(before: Float64s, after: Float64s, factor: Float64s) -> _Change:
    difference = after.mean(axis=0) - before.mean(axis=0)
    counts = before.shape[0], after.shape[0]
    if min(counts) < 2:
        return _Change(difference, np.full(difference.size, np.inf), np.zeros(difference.size))
    variances = [side.var(axis=0, ddof=1) / side.shape[0] * factor for side in (before, after)]
    total = variances[0] + variances[1]
    freedoms = [np.maximum((count - 1) / factor, 1.0) for count in counts]
    parts = variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1]
    freedom = np.divide(total**2, parts, out=freedoms[0] + freedoms[1], where=parts > 0)
    return _Change(difference, np.sqrt(total), freedom)


def _p_values(change: _Change) -> Float64s:
    """NaN where nothing repeats; times that never vary differ surely or not at all."""
    if not change.freedom.all():
        return np.full(change.difference.size, np.nan)
    still = change.error == 0
    places = np.divide(change.difference, change.error, out=np.zeros(still.size), where=~still)
    return np.where(still, np.where(change.difference == 0, 1.0, 0.0), two_sided(places, change.freedom))


def _reach(change: _Change, level: float) -> Float64s:
    if not change.freedom.all():
        return np.full(change.difference.size, np.inf)
    return t_quantile(level, change.freedom) * change.error
