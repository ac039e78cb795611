"""Tests which of many kernels differ, corrected for multiple testing: of 100 unchanged kernels, 5 differ at 5 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.compare.decisions import VERDICTS, check_level
from warplens.compare.shift import ORDER_FROM, RESAMPLED_FROM, dependence, t_quantile, two_sided
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
    column(
        "low_ns",
        dtype=pl.Float64,
        help="interval of the difference, widened for being chosen among many; infinite if unknown",
    ),
    column("high_ns", dtype=pl.Float64),
    "ratio p_value adjusted_p",
    column("verdict", dtype=pl.Enum(VERDICTS)),
)


def adjusted(p_values: Sequence[float] | Float64s) -> Float64s:
    """P-values adjusted for their number: of those at or below q, at most the share q is false discoveries.

    NaN means "not tested", is kept, and does not count.

    Source: Benjamini and Hochberg, Controlling the false discovery rate, J. R. Stat. Soc. B 57 (1995), 289–300. It is
    valid for kernels of one run, whose times are positively dependent: Benjamini and Yekutieli, Ann. Statist. 29
    (2001), 1165–1188.
    """
    values = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(values))
    result = np.full(values.size, np.nan)
    if tested.size:
        order = tested[np.argsort(values[tested], kind="stable")]
        scaled = values[order] * tested.size / np.arange(1, tested.size + 1)
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
    """Tests which of many kernels (or ranges, or categories) take more or less time.

    Uses plain means per step, whose differences add up to that of the step, in contrast to the trimmed means of whole
    steps; and Welch's t-test with the number of steps reduced by their autocorrelation (`dependence`).

    Args:
        baseline: time in ns, one row per step, one column per kernel; 0 if a step does not run it.
        variant: the same columns; the number of rows may differ.
        baseline_blocks: the block (file, process, round) of each row; rows of one block count as one. None if all are
            successive steps of one run.
        variant_blocks: the same for the variant.
        margin: differences are `same` if their interval is within this share of the kernel's time.
        level: maximum share of false discoveries among the kernels called faster or slower.

    Returns:
        `DIFFERENCES`, one row per column. `faster` and `slower`: the adjusted p-value is at most the level and the
        interval is not within the margin. Intervals are those of Benjamini and Yekutieli (J. Am. Stat. Assoc. 100
        (2005), 71–81): at most the share `level` of the intervals of discoveries misses the true value.

    Raises:
        UsageError: the matrices have different columns, a side has no step, or there is not one block per row.
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
    # Without a discovery the intervals are the widest, corrected for all columns.
    half_width = _half_width(change, level * max(discoveries, 1) / max(before.shape[1], 1))
    means = before.mean(axis=0), after.mean(axis=0)
    low, high = change.difference - half_width, change.difference + half_width
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
    """Differences of means, one per column, with standard errors and degrees of freedom (0: unknown)."""

    difference: Float64s
    error: Float64s
    freedom: Float64s
    chance: Float64s  #: the least p-value of a difference of times that do not vary


def _matrix(times: npt.ArrayLike, blocks: Sequence[int] | Int64s | None) -> Float64s:
    """The independent rows: steps, or the means of blocks."""
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
    """The difference of each column; times that hardly vary are taken to vary as much as those of the other side."""
    difference = after.mean(axis=0) - before.mean(axis=0)
    counts = before.shape[0], after.shape[0]
    if min(counts) < 2:
        nothing = np.zeros(difference.size)
        return _Change(difference, np.full(difference.size, np.inf), nothing, nothing)
    # A clock with ticks of 32 ns makes the few times of a short kernel equal, and the shorter side has too few of them
    # (`shift._not_steadier`): they are taken to vary as much as those of the other side. If these are equal as well,
    # they differ by chance in two of so many orders. A kernel that did not run is exact.
    spreads = [side.var(axis=0, ddof=1) for side in (before, after)]
    ran = [side.any(axis=0) for side in (before, after)]
    variances, freedoms = [], []
    for side, other in ((0, 1), (1, 0)):
        few = (spreads[side] == 0) | (counts[side] < min(counts[other], RESAMPLED_FROM))
        borrowed = ran[side] & few & (spreads[side] < spreads[other])
        variances.append(np.where(borrowed, spreads[other], spreads[side]) / counts[side] * factor)
        count = counts[side] + borrowed * (counts[other] - counts[side])
        freedoms.append(np.maximum((count - 1) / factor, 1.0))
    chance = np.where(ran[0] & ran[1], 2 / math.comb(sum(counts), counts[0]), 0.0)
    total = variances[0] + variances[1]
    parts = variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1]
    freedom = np.divide(total**2, parts, out=freedoms[0] + freedoms[1], where=parts > 0)
    return _Change(difference, np.sqrt(total), freedom, chance)


def _p_values(change: _Change) -> Float64s:
    """P-values; NaN without repeats. Of times that do not vary, 1 if they are equal."""
    if not change.freedom.all():
        return np.full(change.difference.size, np.nan)
    constant = change.error == 0
    t = np.divide(change.difference, change.error, out=np.zeros(constant.size), where=~constant)
    return np.where(constant, np.where(change.difference == 0, 1.0, change.chance), two_sided(t, change.freedom))


def _half_width(change: _Change, level: float) -> Float64s:
    if not change.freedom.all():
        return np.full(change.difference.size, np.inf)
    # Two constants that may differ by chance: how much they vary is unknown.
    unknown = (change.error == 0) & (change.difference != 0) & (change.chance > level)
    return np.where(unknown, np.inf, t_quantile(level, change.freedom) * change.error)
