"""Groups: launches of the same kernel with the same grid and block, taken as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import polars as pl
import polars.selectors as cs

from warplens.profile.counters import RULES, KernelCounters
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["GROUPS", "GROUP_KEYS", "Groups", "group_launches", "titled"]

#: What launches of a group have in common. A kernel's instances differ in their full names.
GROUP_KEYS: Final = ("kind", "full_name", "device", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")

#: Metrics that belong to the launch or the device, and are no measurements of which a median could be taken.
_FIXED: Final = r"^(launch__|device__attribute_)"

_DURATIONS: Final = ("gpu__time_duration.sum", "gpu__time_duration.avg")

GROUPS = Table(
    "groups",
    "launches of one kernel with one grid and block, in the order of their first launches",
    (
        Column("group", pl.Int64, "position, from 0: the `launch` of `Groups.counters`"),
        Column("first_launch", pl.Int64, "row of its first launch"),
        Column("launches", pl.Int64, "how many"),
        Column("total_ns", pl.Float64, "summed duration of those launches", nullable=True),
    ),
)


@dataclass(frozen=True)
class Groups:
    """Launches taken together.

    Attributes:
        groups: `GROUPS`.
        counters: one row a group, with the median of every metric over its launches, so that every analysis of launches
            is one of groups as well.
        of_launch: the group of each launch.
    """

    groups: pl.DataFrame
    counters: KernelCounters
    of_launch: pl.Series


def group_launches(counters: KernelCounters, keys: Sequence[str] = GROUP_KEYS) -> Groups:
    """Take launches of the same kernel, grid and block as one.

    Ranges and graphs that were profiled as one result each are the same only where the same NVTX ranges were open:
    their names say nothing, so that the others stand alone.

    Args:
        counters: a report.
        keys: columns of `launches` that the launches of a group share.

    Returns:
        The groups; metrics are medians over the launches that have them, launch parameters and texts the first's.
    """
    launches = counters.launches.with_columns(_alone().alias("\0alone"))
    keys = [*keys, "\0alone"]
    first = (
        launches.group_by(keys, maintain_order=True).agg(first_launch=pl.col("launch").first()).with_row_index("group")
    )
    of_launch = launches.join(
        first.drop("first_launch"), on=list(keys), how="left", nulls_equal=True, maintain_order="left"
    )
    group = of_launch["group"].cast(pl.Int64)
    metrics = counters.metrics.with_columns(group.alias("\0group"))
    numbers = cs.numeric() - cs.matches(_FIXED) - cs.by_name("\0group")
    # A NaN is what the tool writes for a launch that failed.
    medians = metrics.group_by("\0group", maintain_order=True).agg(
        numbers.cast(pl.Float64).fill_nan(None).median(), (~numbers - cs.by_name("\0group")).drop_nulls().first()
    )
    duration = pl.coalesce(pl.lit(None, dtype=pl.Float64), *(n for n in _DURATIONS if n in metrics.columns))
    totals = metrics.select(group="\0group", ns=duration.fill_nan(None)).group_by("group", maintain_order=True)
    summed = totals.agg(
        launches=pl.len().cast(pl.Int64), total_ns=pl.when(pl.col("ns").count() > 0).then(pl.col("ns").sum())
    )
    groups = summed.with_columns(first_launch=first["first_launch"])
    representatives = counters.launches[first["first_launch"].to_list()].with_columns(groups["group"].alias("launch"))
    taken = medians.select(counters.metrics.columns) if counters.metrics.width else counters.metrics
    return Groups(
        GROUPS.checked(groups),
        replace(counters, launches=representatives, metrics=taken, rules=RULES.empty(), instances={}),
        group.alias("group"),
    )


def titled(launches: pl.DataFrame) -> pl.DataFrame:
    """`name` and `full_name` of each launch as texts; ranges and graphs by their NVTX ranges, or by their number."""
    is_kernel = pl.col("kind").cast(pl.String) == "kernel"
    which = pl.coalesce(_open_ranges(), pl.concat_str(pl.lit("#"), pl.col("launch")))
    title = pl.concat_str(pl.col("kind").cast(pl.String), pl.lit(" "), which)
    return launches.select(
        pl.when(is_kernel).then(pl.col(name).cast(pl.String)).otherwise(title).alias(name)
        for name in ("name", "full_name")
    )


def _open_ranges() -> pl.Expr:
    """The NVTX ranges in which a result was taken, as one text; null where there were none."""
    return pl.when(pl.col("nvtx").list.len() > 0).then(pl.col("nvtx").list.join("/"))


def _alone() -> pl.Expr:
    """What keeps results apart beyond their names; null for kernels."""
    own = pl.coalesce(_open_ranges(), pl.col("launch").cast(pl.String))
    return pl.when(pl.col("kind").cast(pl.String) != "kernel").then(own)
