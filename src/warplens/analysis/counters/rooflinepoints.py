"""Roofline points: each group of launches once, under all roofs of memory at a time, and the roofs themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.bounds import kernel_bounds
from warplens.analysis.counters.groups import group_launches, titled
from warplens.analysis.counters.roofline import GIVEN, LEVELS, REPORTED, roofline
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.profile.counters import KernelCounters

__all__ = ["POINTS", "ROOFS", "Roofline", "roofline_points"]

_SIZES: Final = ("grid", "block")

_AT_LEVELS: Final = tuple(
    column
    for level in LEVELS
    for column in (
        Column(f"{level}_intensity", pl.Float64, f"FLOPs for each byte through {level}; null: no bytes", nullable=True),
        Column(f"{level}_share", pl.Float64, f"of the peak bandwidth of {level}", nullable=True),
    )
)

POINTS = Table(
    "roofline_points",
    "a group of launches of one kernel with one grid and block, with medians over them; the most expensive first",
    (
        Column("launch", pl.Int64, "row of `launches`; the first of the group's"),
        Column("launches", pl.Int64, "of the group"),
        Column("name", pl.String, "short name of the kernel"),
        Column("full_name", pl.String, "demangled name with template parameters and arguments"),
        Column("device", pl.Int32, "CUDA ordinal of the GPU", nullable=True),
        Column("grid", pl.String, "blocks of the grid, as x,y,z", nullable=True),
        Column("block", pl.String, "threads of a block, as x,y,z", nullable=True),
        Column("total_ns", pl.Float64, "summed duration of the launches", nullable=True),
        Column("precision", pl.String, "arithmetic nearest to its own peak; null: none was counted", nullable=True),
        Column("format", pl.String, "tensor: data type of the factors, of most of the operations", nullable=True),
        Column("sparse", pl.Boolean, "tensor: products with zeros left out; null: not told apart", nullable=True),
        Column("flops_per_s", pl.Float64, "achieved, of that arithmetic", nullable=True),
        Column("peak_flops_per_s", pl.Float64, "the flat roof, at the clock of the measurement", nullable=True),
        Column("compute_share", pl.Float64, "of that roof", nullable=True),
        *_AT_LEVELS,
        Column("roof", pl.String, "the nearest of its roofs: `compute`, `dram`, `l2` or `l1`", nullable=True),
        Column("roof_flops_per_s", pl.Float64, "that roof at its intensity: the most it could achieve", nullable=True),
        Column("roof_share", pl.Float64, "how much of it was reached", nullable=True),
        Column("distance_share", pl.Float64, "how much of it is missing; 0 where counters pass it", nullable=True),
        Column("ridge", pl.Float64, "intensity at which the roofs of DRAM and arithmetic meet", nullable=True),
        Column("side", pl.String, "of that ridge: `memory` left, `compute` right", nullable=True),
        Column("bound", pl.String, "one of `BOUND_KINDS`"),
        Column("unit", pl.String, "memory: which level; compute: which pipe", nullable=True),
        Column("uncounted_tensor", pl.Boolean, "tensor cores worked, but their operations were not collected"),
    ),
)

ROOFS = Table(
    "roofs",
    "one roof of a report",
    (
        Column("roof", pl.String, "`compute`, or a level of memory"),
        Column("precision", pl.String, "of a roof of arithmetic", nullable=True),
        Column("format", pl.String, "tensor: data type of the factors", nullable=True),
        Column("sparse", pl.Boolean, "tensor: of products with zeros left out", nullable=True),
        Column("peak", pl.Float64, "FLOPs a second, or bytes a second: the highest that held for a point"),
        Column("least_peak", pl.Float64, "the lowest: clocks differ between launches where they are not locked"),
        Column("points", pl.Int64, "groups that did this arithmetic, or moved bytes through this level"),
        Column("source", pl.String, "where it comes from"),
    ),
)


@dataclass(frozen=True, eq=False)
class Roofline:
    """Groups of launches under the roofs of their GPU.

    Attributes:
        points: `POINTS`, every group, with or without counters for it.
        roofs: `ROOFS`; arithmetic that no group did is not among them.
    """

    points: pl.DataFrame
    roofs: pl.DataFrame

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
        counters: a report.
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
    frame = taken.groups.select("launches", "total_ns", "first_launch", launch="group").with_columns(
        *titled(taken.counters.launches.with_columns(launch=taken.groups["first_launch"])),
        taken.counters.launches["device"],
        *(taken.counters.launches.select(_size(what)).to_series() for what in _SIZES),
    )
    frame = frame.join(arithmetic, on="launch", how="left", maintain_order="left")
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


def _size(what: str) -> pl.Expr:
    return pl.concat_str([pl.col(f"{what}_{axis}") for axis in "xyz"], separator=",").alias(what)


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
