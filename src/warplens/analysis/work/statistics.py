"""Modelled work over measured time: achieved rates of groups of operators, and where they stand under the roofs.

A roofline says what a GPU could do at best with this much work; how far a group of operators stays below has many
reasons. Because bytes are the least that must move, a group can seem faster than the memory: then what it reads was
still in a cache (S. Williams et al., "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.spread import conform, ratio
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.analysis.work.operators import ModelledWork

__all__ = ["GROUPINGS", "WORK_KEYS", "WORK_NUMBERS", "work_statistics"]

#: The columns that groups can differ by; a table has those of its grouping.
WORK_KEYS: Final = pl.Schema(
    {
        "name": pl.String(),
        "family": pl.String(),
        "input_shapes": pl.String(),
        "input_types": pl.String(),
        "phase": pl.String(),
        "precision": pl.String(),
        "device": pl.Int32(),
    }
)

#: What operators can be grouped by → the columns that then tell groups apart.
_KEYS: Final = {
    "name": ("name", "family"),
    "shapes": ("name", "family", "input_shapes", "input_types"),
    "family": ("family",),
    "phase": ("phase",),
    "precision": ("precision",),
    "device": ("device",),
}
GROUPINGS: Final = tuple(_KEYS)

#: The numbers of a group. Rates are modelled work over measured time; the roofs are those that the GPU would have
#: reached in the same time, so that groups of several number formats or GPUs have one, too.
WORK_NUMBERS: Final = pl.Schema(
    {
        "operators": pl.Int64(),
        "gpu_ns": pl.Int64(),
        "share": pl.Float64(),
        "flops": pl.Int64(),
        "flops_full": pl.Int64(),
        "bytes": pl.Int64(),
        "flops_per_s": pl.Float64(),
        "bytes_per_s": pl.Float64(),
        "intensity": pl.Float64(),
        "peak_flops_per_s": pl.Float64(),
        "peak_bytes_per_s": pl.Float64(),
        "flops_share": pl.Float64(),
        "bytes_share": pl.Float64(),
        "side": pl.String(),
        "roof_share": pl.Float64(),
    }
)


def work_statistics(modelled: ModelledWork, by: str = "name") -> pl.DataFrame:
    """The operators summed up, those with the most GPU time first.

    Args:
        modelled: what `operator_work` found.
        by: one of `GROUPINGS`.

    Returns:
        The columns that the groups differ by, and `WORK_NUMBERS`. `share` is of all GPU work's time in the window,
        modelled or not; `side` is `memory` left of the ridge where the two roofs meet, else `compute`; `roof_share` is
        how much of its roof a group reached. Null is what does not apply or is not known.

    Raises:
        UsageError: operators cannot be grouped by that.
    """
    if by not in _KEYS:
        raise UsageError(f"operators cannot be grouped by {by!r}; choose one of {', '.join(GROUPINGS)}")
    keys = _KEYS[by]
    operators = modelled.operators
    time = pl.col("gpu_ns")
    groups = operators.group_by(keys, maintain_order=True).agg(
        pl.len().alias("operators"),
        time.sum(),
        pl.col("flops", "flops_full").sum(),
        _unless_missing("bytes", pl.col("bytes").sum()),
        *(_unless_missing(peak, (pl.col(peak) * time).sum() / time.sum()) for peak in _PEAKS),
    )
    seconds = pl.col("gpu_ns") / 1e9
    groups = groups.with_columns(
        ratio(time, pl.lit(modelled.total_ns)).alias("share"),
        ratio(pl.col("flops"), seconds).alias("flops_per_s"),
        ratio(pl.col("bytes"), seconds).alias("bytes_per_s"),
        ratio(pl.col("flops"), pl.col("bytes")).alias("intensity"),
    ).with_columns(
        ratio(pl.col("flops_per_s"), pl.col("peak_flops_per_s")).alias("flops_share"),
        ratio(pl.col("bytes_per_s"), pl.col("peak_bytes_per_s")).alias("bytes_share"),
    )
    ridge = pl.col("peak_flops_per_s") / pl.col("peak_bytes_per_s")
    groups = groups.with_columns(
        pl.when(pl.col("intensity") >= ridge)
        .then(pl.lit("compute"))
        .when(pl.col("intensity") < ridge)
        .then(pl.lit("memory"))
        .alias("side"),
        # Reached / roof is FLOP/s / min(peak, intensity × bandwidth): the larger of the two shares.
        pl.when(pl.col("bytes_share").is_not_null() & pl.col("flops_share").is_not_null())
        .then(pl.max_horizontal("flops_share", "bytes_share"))
        .alias("roof_share"),
    )
    table = conform(groups, pl.Schema({**{key: WORK_KEYS[key] for key in keys}, **WORK_NUMBERS}))
    return table.sort("gpu_ns", *keys, descending=[True, *(False for _ in keys)], nulls_last=True)


_PEAKS: Final = ("peak_flops_per_s", "peak_bytes_per_s")


def _unless_missing(column: str, value: pl.Expr) -> pl.Expr:
    """The value, or null where the column lacks an entry: a sum without it would be too small."""
    return pl.when(pl.col(column).null_count() == 0).then(value).alias(column)
