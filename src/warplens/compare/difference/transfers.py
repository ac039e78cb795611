"""Copies, fills and communication on both sides: how much there is, and how much of it no compute hides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.categories import categories_of
from warplens.analysis.spread import conform

if TYPE_CHECKING:
    from warplens.compare.difference.sides import Side
    from warplens.compare.difference.wall import SideWall, WallSplit

__all__ = ["TRANSFER_CHANGE_SCHEMA", "transfer_changes"]

_SIDES: Final = ("baseline", "variant")
_COMMUNICATION: Final = "communication"

#: One row a kind of transfer that either side has: a copy's direction, `memset`, or `communication` (kernels of
#: collectives). Per step: how many, bytes (null for communication, whose kernels do not tell), the summed time on the
#: GPU, and the part of the wall time in which nothing hid it.
TRANSFER_CHANGE_SCHEMA: Final = pl.Schema(
    {
        "group": pl.String(),
        "part": pl.String(),
        **{f"{side}_count_per_step": pl.Float64() for side in _SIDES},
        **{f"{side}_bytes_per_step": pl.Float64() for side in _SIDES},
        **{f"{side}_ns_per_step": pl.Float64() for side in _SIDES},
        **{f"{side}_exposed_ns_per_step": pl.Float64() for side in _SIDES},
        "change_ns_per_step": pl.Float64(),
        "exposed_change_ns_per_step": pl.Float64(),
    }
)


def transfer_changes(baseline: Side, variant: Side, wall: WallSplit) -> pl.DataFrame:
    """Copies, fills and communication per step (`TRANSFER_CHANGE_SCHEMA`), the largest change of exposed time first.

    Args:
        baseline, variant: the two sides.
        wall: their wall times, split.
    """
    tables = [
        _transfers(side, of_side).rename(
            {column: f"{name}_{column}" for column in ("count_per_step", "bytes_per_step", "ns_per_step", "exposed")}
        )
        for side, of_side, name in zip((baseline, variant), (wall.baseline, wall.variant), _SIDES, strict=True)
    ]
    both = tables[0].join(tables[1], on=["group", "part"], how="full", coalesce=True)
    # What a side does not have, it has none of; only the bytes of communication are unknown.
    both = both.with_columns(
        pl.col("^.*_(count_per_step|ns_per_step|exposed)$").fill_null(0.0),
        pl.when(pl.col("group") == "copy").then(pl.col("^.*_bytes_per_step$").fill_null(0.0)),
    ).rename({f"{side}_exposed": f"{side}_exposed_ns_per_step" for side in _SIDES})
    both = both.with_columns(
        (pl.col("variant_ns_per_step") - pl.col("baseline_ns_per_step")).alias("change_ns_per_step"),
        (pl.col("variant_exposed_ns_per_step") - pl.col("baseline_exposed_ns_per_step")).alias(
            "exposed_change_ns_per_step"
        ),
    )
    order = [pl.col("exposed_change_ns_per_step").abs(), pl.col("change_ns_per_step").abs(), pl.col("part")]
    return conform(both, TRANSFER_CHANGE_SCHEMA).sort(order, descending=[True, True, False])


def _transfers(side: Side, wall: SideWall) -> pl.DataFrame:
    trace = side.timeline.trace
    work = side.work.select("kind", "row", (pl.col("end_ns") - pl.col("start_ns")).alias("ns"))
    of_kind = {kind: work.filter(pl.col("kind") == kind) for kind in ("copy", "memset", "kernel")}
    copies = of_kind["copy"].with_columns(
        pl.lit("copy").alias("group"),
        trace.copies["direction"].cast(pl.String).gather(of_kind["copy"]["row"]).alias("part"),
        trace.copies["bytes"].gather(of_kind["copy"]["row"]).alias("bytes"),
    )
    memsets = of_kind["memset"].with_columns(
        pl.lit("copy").alias("group"),
        pl.lit("memset").alias("part"),
        trace.memsets["bytes"].gather(of_kind["memset"]["row"]).alias("bytes"),
    )
    category = categories_of(trace.kernels["full_name"]).gather(of_kind["kernel"]["row"])
    communication = (
        of_kind["kernel"]
        .filter(category == _COMMUNICATION)
        .with_columns(
            pl.lit(_COMMUNICATION).alias("group"),
            pl.lit(_COMMUNICATION).alias("part"),
            pl.lit(None, dtype=pl.Int64).alias("bytes"),
        )
    )
    found = (
        pl.concat([copies, memsets, communication])
        .group_by("group", "part")
        .agg(
            (pl.len() / side.repeats).alias("count_per_step"),
            (pl.col("bytes").sum() / side.repeats).alias("bytes_per_step"),
            (pl.col("ns").sum() / side.repeats).alias("ns_per_step"),
        )
    )
    exposed = [(*key, float(time)) for key, time in wall.parts.items() if key[0] in ("copy", _COMMUNICATION)]
    spent = pl.DataFrame(exposed, schema={"group": pl.String, "part": pl.String, "exposed": pl.Float64}, orient="row")
    return found.join(spent, on=["group", "part"], how="full", coalesce=True)
