"""Summary: the verdict on each kernel with the numbers behind it, a row a launch or a group of launches."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.bounds import BOUNDS, bounds_of
from warplens.analysis.counters.faults import kernel_facts
from warplens.analysis.counters.groups import GROUP_KEYS, group_launches, titled
from warplens.analysis.counters.occupancy import LAUNCH_OCCUPANCY
from warplens.analysis.counters.speedoflight import SPEED_OF_LIGHT
from warplens.analysis.counters.stalls import top_stalls
from warplens.errors import UsageError
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.profile.counters import KernelCounters

__all__ = ["SUMMARY", "SUMMARY_KEYS", "counters_summary"]

#: What a row can be.
SUMMARY_KEYS: Final = ("group", "launch")

_SIZES: Final = ("grid", "block")

SUMMARY = Table(
    "counters",
    "a group of launches of one kernel with one grid and block, with medians over them; or one launch",
    (
        Column("launch", pl.Int64, "row of `launches`; the first of the group's"),
        Column("launches", pl.Int64, "of the group"),
        Column("kind", pl.String, "`kernel`; or `range`, `graph`, `cmdlist`: several kernels profiled as one"),
        Column("name", pl.String, "short name of the kernel; which range or graph it is"),
        Column("full_name", pl.String, "demangled name with template parameters and arguments"),
        Column("device", pl.Int32, "CUDA ordinal of the GPU", nullable=True),
        Column("grid", pl.String, "blocks of the grid, as x,y,z", nullable=True),
        Column("block", pl.String, "threads of a block, as x,y,z", nullable=True),
        Column("total_ns", pl.Float64, "summed duration of the launches", nullable=True),
        *SPEED_OF_LIGHT.columns[1:],
        *LAUNCH_OCCUPANCY.columns[1:],
        Column("top_stall", pl.String, "longest wait of the warps", nullable=True),
        Column("top_stall_share", pl.Float64, "of the cycles between two instructions", nullable=True),
        *(column for column in BOUNDS.columns[1:] if column.name != "inconsistent"),
    ),
)


def counters_summary(counters: KernelCounters, by: str = "group", metrics: Sequence[str] = ()) -> pl.DataFrame:
    """The verdict on each kernel, with the numbers behind it.

    Args:
        counters: a report.
        by: one of `SUMMARY_KEYS`.
        metrics: further metrics to add as columns of their own names, in base units.

    Returns:
        `SUMMARY`, followed by the metrics. Groups stand in the order of their total time, launches in that of the file.

    Raises:
        UsageError: rows cannot be that, or the report has no such metric.
    """
    if by not in SUMMARY_KEYS:
        raise UsageError(f"a row cannot be a {by!r}; choose one of {', '.join(SUMMARY_KEYS)}")
    for name in metrics:
        _require(counters, name)
    groups = group_launches(counters, ("launch",) if by == "launch" else GROUP_KEYS)
    taken = groups.counters
    frame = groups.groups.select("first_launch", "launches", "total_ns", launch="group").with_columns(
        taken.launches["kind"].cast(pl.String),
        *titled(taken.launches.with_columns(launch=groups.groups["first_launch"])),
        taken.launches["device"],
        *(taken.launches.select(_size(what)).to_series() for what in _SIZES),
        *(taken.values(name).alias(name) for name in metrics),
    )
    facts, stalls = kernel_facts(taken), top_stalls(taken)
    shown = (*SPEED_OF_LIGHT.columns, *LAUNCH_OCCUPANCY.columns[1:])
    for part in (
        facts.select(column.name for column in shown),
        stalls.select("launch", top_stall="reason", top_stall_share="share"),
        bounds_of(facts, stalls).drop("inconsistent"),
    ):
        frame = frame.join(part, on="launch", how="left", maintain_order="left")
    frame = frame.with_columns(launch="first_launch")
    if by == "group":
        frame = frame.sort("total_ns", "launch", descending=[True, False], nulls_last=True)
    return pl.concat([SUMMARY.checked(frame), frame.select(metrics)], how="horizontal")


def _size(what: str) -> pl.Expr:
    return pl.concat_str([pl.col(f"{what}_{axis}") for axis in "xyz"], separator=",").alias(what)


def _require(counters: KernelCounters, name: str) -> None:
    if name in counters.metrics.columns:
        return
    near = difflib.get_close_matches(name, counters.metrics.columns, n=3)
    hint = f"; near it are {', '.join(near)}" if near else ""
    raise UsageError(f"{counters.capture.source}: metric {name!r} was not collected{hint}")
