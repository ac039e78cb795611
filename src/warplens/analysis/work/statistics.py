"""Modelled work over measured time: achieved rates of groups of operators, and where they stand under the roofs.

A roofline says what a GPU could do at best with this much work; how far a group of operators stays below has many
reasons. Because bytes are the least that must move, a group can seem faster than the memory: then what it reads was
still in a cache (S. Williams et al., "Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from typing import Final

import polars as pl

from warplens.analysis.frames import ratio
from warplens.analysis.work.catalogue import ModelledWork
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column

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

WORK: Final = table(
    "modelled work",
    "One group of operators. `warplens flops`; of the first seven columns, those of `--by` stand there. FLOPs and"
    " bytes are [modelled](flops.md), time is measured.",
    "name family input_shapes input_types phase precision device operators gpu_ns share flops flops_full"
    " bytes flops_per_s",
    column("bytes_per_s", help="`bytes` over `gpu_ns`", title="Bandwidth"),
    column("intensity", help="`flops` over `bytes`", title="FLOP/B"),
    column(
        "peak_flops_per_s",
        help="what the GPU could compute in that time in the formats of these operators; null where it is not known",
    ),
    "peak_bytes_per_s",
    Column("flops_share", pl.Float64, "`flops_per_s` over its peak"),
    Column(
        "bytes_share", pl.Float64, "`bytes_per_s` over its peak; 1 where it is above, for then data came from a cache"
    ),
    "side",
    column(
        "roof_share",
        help="how much of the roof at this intensity was reached: the larger of the two shares",
        title="Of roof",
    ),
    name="operator",
    precision="format of the operands, from the name of the longest kernel; null where it does not reveal it",
    gpu_ns="summed duration of what the operators launched",
    share="share of the summed time of all GPU work in the window, modelled or not",
    bytes="modelled bytes: every tensor moved once; null where a type is not known",
    keys="name family input_shapes input_types phase precision device",
    side="`memory` left of the ridge of the roofline, `compute` right of it",
)


def work_statistics(modelled: ModelledWork, by: str = "name") -> pl.DataFrame:
    """The operators summed up, those with the most GPU time first.

    Args:
        modelled: what `operator_work` found.
        by: one of `GROUPINGS`.

    Returns:
        `WORK` by the columns that the groups differ by. `share` is of all GPU work's time in the window,
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
        ratio(pl.col("bytes_per_s"), pl.col("peak_bytes_per_s")).clip(upper_bound=1.0).alias("bytes_share"),
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
    return (
        WORK.by(*keys).conform(groups).sort("gpu_ns", *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
    )


_PEAKS: Final = ("peak_flops_per_s", "peak_bytes_per_s")


def _unless_missing(column: str, value: pl.Expr) -> pl.Expr:
    """The value, or null where the column lacks an entry: a sum without it would be too small."""
    return pl.when(pl.col(column).null_count() == 0).then(value).alias(column)
