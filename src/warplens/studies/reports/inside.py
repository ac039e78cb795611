"""What counters say of a variant's kernels: how much of the GPU they use, and how scattered their accesses are.

A timeline sees grids and durations. Whether the warps of a kernel keep its units at work, and how much of what it moves
was asked for, only counters tell: without them both are not judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.categories import classify
from warplens.analysis.counters.coverage import counters_coverage
from warplens.analysis.counters.groups import counters_summary
from warplens.analysis.counters.memoryaccess import memory_access

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.compare.difference import StepDifference
    from warplens.profile.counters import KernelCounters

#: The command that records what is needed.
COMMAND: Final = "warplens collect ncu --preset occupancy --preset memory --trace PROFILE -- python PROGRAM"

#: How `counters_summary` calls kernels that use neither their arithmetic nor their memory: those too small for the GPU,
#: and those whose warps wait.
_WAITING: Final = ("small", "latency")

#: Categories of kernels that move memory and choose what to move.
_MOVING: Final = ("gather-scatter", "sort-topk", "copy-cast")

#: What tells launches that are alike, whichever profiler wrote them.
_SAME: Final = ("name", "grid", "block")

#: Below this occupancy the guides call a kernel's parallelism low (achieved warps over possible ones).
LOW_OCCUPANCY: Final = 0.5


@dataclass(frozen=True)
class Inside:
    """What counters say.

    Attributes:
        waiting_share: of the kernel time that profiled launches stand for, what kernels take that are too small for the
            GPU or whose warps wait: neither arithmetic nor memory is near its peak. None where nothing has a duration,
            or the report holds no launch of the program's window: then it is of another program.
        scattered_share: of the sectors that the added gathers, sorts, copies and casts touch, the part that nobody
            asked for. None where no such kernel was profiled with its sectors.
        waiting, scattered: named numbers behind each, with their units in the names.
    """

    waiting_share: float | None
    scattered_share: float | None
    waiting: Mapping[str, float] = field(default_factory=dict)
    scattered: Mapping[str, float] = field(default_factory=dict)


def inside_kernels(counters: KernelCounters, difference: StepDifference) -> Inside:
    """Judge a report of the variant, and say how much of the variant's window it stands for.

    A profiled launch counts as often as the window has launches of the same name, grid and block for each that was
    profiled: a report may hold one of each, or the first of a step.

    Args:
        difference: of the steps of both sides, which tells the kernels that only the variant has.
    """
    summary = counters_summary(counters, by="launch")
    access = memory_access(counters).select(
        "launch", "global_sectors", "global_wasted_share", "global_load_sectors_per_request", "l1_hit_share",
        "l2_hit_share",
    )  # fmt: skip
    rows = summary.filter(pl.col("kind").cast(pl.String) == "kernel").join(access, on="launch", how="left")
    kinds = {name: classify(name).category for name in rows["full_name"].cast(pl.String).unique()}
    rows = rows.with_columns(
        category=pl.col("full_name").cast(pl.String).replace_strict(kinds, default=None, return_dtype=pl.String)
    )
    coverage = counters_coverage(counters, difference.variant.timeline, difference.variant.window)
    known = {"counters_coverage_share": coverage.exact_share, "profiled_launches": float(rows.height)}
    inside = coverage.groups.with_columns(pl.col("name").cast(pl.String)).group_by(_SAME).agg(pl.col("launches").sum())
    rows = rows.drop("launches").with_columns(pl.col("name").cast(pl.String)).join(inside, on=_SAME, how="left")
    times = (pl.col("launches") / pl.len().over(_SAME)).fill_null(1.0)
    rows = rows.with_columns(pl.col("total_ns") * times, pl.col("global_sectors") * times)
    timed = rows.filter(pl.col("total_ns") > 0)
    waiting = {
        "occupancy_share": _mean(timed, "achieved_share", "total_ns"),
        "low_occupancy_time_share": _mean(
            timed.with_columns(low=(pl.col("achieved_share") < LOW_OCCUPANCY).cast(pl.Float64)), "low", "total_ns"
        ),
        "compute_utilisation_share": _mean(timed, "compute_share", "total_ns"),
        "memory_utilisation_share": _mean(timed, "memory_share", "total_ns"),
    }
    is_moving = pl.col("category").is_in(_MOVING) & (pl.col("global_sectors") > 0)
    moving = rows.filter(is_moving & pl.col("name").cast(pl.String).is_in(_added_names(difference)))
    scattered = {
        "added_moving_kernels": float(moving.height),
        "load_sectors_per_request": _mean(moving, "global_load_sectors_per_request", "global_sectors"),
        "l1_hit_share": _mean(moving, "l1_hit_share", "global_sectors"),
        "l2_hit_share": _mean(moving, "l2_hit_share", "global_sectors"),
    }
    judged = timed.with_columns(waits=pl.col("bound").cast(pl.String).is_in(_WAITING).cast(pl.Float64))
    is_of_this = bool(coverage.exact_share)
    return Inside(
        _mean(judged.filter(pl.col("bound").is_not_null()), "waits", "total_ns") if is_of_this else None,
        _mean(moving, "global_wasted_share", "global_sectors"),
        _known(waiting | known),
        _known(scattered | known),
    )


def _added_names(difference: StepDifference) -> list[str]:
    """Short names of kernels that the variant alone runs; profilers spell full names differently."""
    table = difference.kernels.table.with_columns(pl.col("name").cast(pl.String))
    own = set(table.filter(pl.col("variant_launches") > 0)["name"])
    return sorted(own - set(table.filter(pl.col("baseline_launches") > 0)["name"]))


def _mean(rows: pl.DataFrame, value: str, weight: str) -> float | None:
    """The mean of a column over the rows that have it, weighted by another."""
    there = rows.filter(pl.col(value).is_not_null() & pl.col(weight).is_not_null())
    total = float(there[weight].sum())
    return float((there[value] * there[weight]).sum()) / total if total else None


def _known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None}
