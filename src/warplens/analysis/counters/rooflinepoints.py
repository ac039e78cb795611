"""The points of a roofline chart: kernels at each level of memory, and the roofs over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.counters.bounds import BOUNDS, kernel_bounds
from warplens.analysis.counters.groups import SUMMARY, described, group_launches
from warplens.analysis.counters.roofline import GIVEN, LEVELS, REPORTED, ROOFLINE, roofline
from warplens.profile.columns import KERNEL_NAME, column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column

_AT_LEVELS: Final = tuple(
    column
    for level, name in zip(
        LEVELS, ("dram", "l2, in the busier direction; of its busiest part in `counters`", "l1"), strict=True
    )
    for column in (
        Column(
            f"{level}_intensity",
            pl.Float64,
            f"FLOPs per byte through {level}; null: no bytes",
            nullable=True,
            title=f"FLOP/B {level.upper()}",
        ),
        Column(f"{level}_share", pl.Float64, f"of the peak bandwidth of {name}", nullable=True),
    )
)

POINTS: Final = table(
    "roofline_points",
    "a group of launches of one kernel with one grid and block, with medians over them; the most expensive first",
    SUMMARY.only("launch launches").columns,
    KERNEL_NAME,
    SUMMARY.only("full_name device grid block total_ns").columns,
    column("precision", help="arithmetic nearest to its own peak; null: none was counted", nullable=True),
    ROOFLINE.only("format sparse").columns,
    optional(
        flops_per_s=("achieved, of that arithmetic", "Achieved"),
        peak_flops_per_s="the flat roof at the measured clock",
        compute_share="of that roof",
    ),
    _AT_LEVELS,
    column("roof", nullable=True),
    optional(
        roof_flops_per_s=("that roof at its intensity: the most it could achieve", "allows"),
        roof_share=("how much of it was reached", "Reached"),
        distance_share="how much of it is missing; 0 where counters pass it",
        ridge="intensity at which the roofs of DRAM and arithmetic meet",
    ),
    column("side", help="of that ridge: `memory` left, `compute` right", nullable=True),
    BOUNDS.only("bound unit").columns,
    column("uncounted_tensor", help="tensor cores worked, but their operations were not collected"),
)

ROOFS: Final = table(
    "roofs",
    "one roof of a report",
    column("roof", help="`compute`, or a level of memory"),
    column("precision", help="of a roof of arithmetic", nullable=True),
    column("format", help="tensor: data type of the factors", nullable=True),
    column("sparse", help="tensor: of products with zeros left out", nullable=True),
    Column("peak", pl.Float64, "FLOPs a second, or bytes a second: the highest that held for a point"),
    Column("least_peak", pl.Float64, "the lowest: clocks differ between launches where they are not locked"),
    "points",
    column("source", help="where it comes from", title="Only in"),
)


@dataclass(frozen=True, eq=False)
class Roofline:
    """Groups of launches under the roofs of their GPU."""

    points: pl.DataFrame  #: `POINTS`, every group, with or without counters for it
    roofs: pl.DataFrame  #: `ROOFS`; arithmetic that no group did is not among them

    @property
    def placed(self) -> pl.DataFrame:
        """The points that have a place in a chart: with arithmetic, and bytes through a level of memory."""
        some = pl.any_horizontal(pl.col(f"{level}_intensity") > 0 for level in LEVELS)
        return self.points.filter(pl.col("precision").is_not_null() & some)


def roofline_points(counters: KernelCounters, ceilings: Mapping[str, float] | None = None) -> Roofline:
    """Where each group of launches stands under the hierarchical roofline of its GPU.

    What a kernel can achieve at most is the lowest of its roofs: the peak of its arithmetic, and for each level of
    memory the intensity against that level times its bandwidth (C. Yang, T. Kurth, S. Williams, "Hierarchical Roofline
    analysis for GPUs", CCPE 32(20), 2020). The nearest roof is the one of which the largest share was reached. A kernel
    with several kinds of arithmetic is measured by the one that came nearest to its own peak.

    Args:
        ceilings: see `roofline`.

    Raises:
        UsageError: there is no roof of such a name.
    """
    taken = group_launches(counters)
    under = roofline(taken.counters, ceilings)
    main = under.filter("main").unique("launch", keep="first", maintain_order=True)
    arithmetic = main.select(
        "launch", "precision", "format", "sparse", "flops_per_s", "peak_flops_per_s",
        compute_share=pl.col("flops_per_s") / pl.col("peak_flops_per_s"),
    )  # fmt: skip
    frame = described(taken).join(arithmetic, on="launch", how="left", maintain_order="left")
    for level in LEVELS:
        frame = frame.join(_at(under, level), on="launch", how="left", maintain_order="left")
    uncounted = under.group_by("launch").agg(pl.col("uncounted_tensor").any())
    bounds = kernel_bounds(taken.counters).select("launch", "bound", "unit")
    for more in (uncounted, bounds):
        frame = frame.join(more, on="launch", how="left", maintain_order="left")
    points = _with_nearest_roof(frame).with_columns(
        pl.col("uncounted_tensor").fill_null(value=False), launch="first_launch"
    )
    points = points.sort("total_ns", "launch", descending=[True, False], nulls_last=True)
    return Roofline(POINTS.checked(points), _roofs(under, ceilings or {}))


def _at(under: pl.DataFrame, level: str) -> pl.DataFrame:
    """What each launch moved through a level; where it stands under its roof follows once its arithmetic is known."""
    rows = under.filter(pl.col("level") == level).unique("launch", keep="first", maintain_order=True)
    return rows.select(
        "launch",
        pl.col("bytes_per_s").alias(f"{level}_bytes"),
        pl.col("peak_bytes_per_s").alias(f"{level}_peak"),
    )


def _with_nearest_roof(frame: pl.DataFrame) -> pl.DataFrame:
    moved = {level: (pl.col(f"{level}_bytes"), pl.col(f"{level}_peak")) for level in LEVELS}
    flops = pl.col("flops_per_s")
    frame = frame.with_columns(
        *(pl.when(size > 0).then(flops / size).alias(f"{level}_intensity") for level, (size, _) in moved.items()),
        *((size / peak).alias(f"{level}_share") for level, (size, peak) in moved.items()),
        ridge=pl.col("peak_flops_per_s") / pl.col("dram_peak"),
    )
    shares = {"compute": pl.col("compute_share"), **{level: pl.col(f"{level}_share") for level in LEVELS}}
    reached = pl.max_horizontal(*shares.values())
    nearest = pl.coalesce(
        *(pl.when((share == reached) & (reached > 0)).then(pl.lit(roof)) for roof, share in shares.items())
    )
    return frame.with_columns(
        roof=nearest,
        roof_share=reached,
        distance_share=(1 - reached).clip(0.0, 1.0),
        roof_flops_per_s=pl.when(reached > 0).then(flops / reached),
        side=pl.when(flops.is_null() | pl.col("ridge").is_null())
        .then(None)
        .when(pl.col("dram_intensity").is_null() | (pl.col("dram_intensity") >= pl.col("ridge")))
        .then(pl.lit("compute"))
        .otherwise(pl.lit("memory")),
    )


def _roofs(under: pl.DataFrame, ceilings: Mapping[str, float]) -> pl.DataFrame:
    """The roofs that a point stands under, arithmetic first."""
    none = {"precision": pl.lit(None, dtype=pl.String), "format": pl.lit(None, dtype=pl.String)}
    flat = under.filter("main").unique("launch", keep="first", maintain_order=True)
    slopes = under.unique(["launch", "level"], keep="first", maintain_order=True).filter(pl.col("bytes_per_s") > 0)
    keys = ("roof", "precision", "format", "sparse")
    rows = pl.concat(
        [
            flat.select(
                "precision", "format", "sparse", "peak_flops_per_s", roof=pl.lit("compute")
            ).rename({"peak_flops_per_s": "peak"}),
            slopes.select(
                pl.col("peak_bytes_per_s").alias("peak"), pl.col("level").alias("roof"),
                sparse=pl.lit(None, dtype=pl.Boolean), **none,
            ),
        ],
        how="diagonal",
    )  # fmt: skip
    found = rows.group_by(keys, maintain_order=True).agg(
        peak=pl.col("peak").max(),
        least_peak=pl.col("peak").min(),
        points=pl.len().cast(pl.Int64),
    )
    given = pl.coalesce("precision", "roof").is_in(list(ceilings))
    found = found.with_columns(source=pl.when(given).then(pl.lit(GIVEN)).otherwise(pl.lit(REPORTED)))
    order = {name: place for place, name in enumerate(("compute", *LEVELS))}
    place = pl.col("roof").replace_strict(order, return_dtype=pl.Int64)
    return ROOFS.checked(found.sort(place, "peak", descending=[False, True]))
