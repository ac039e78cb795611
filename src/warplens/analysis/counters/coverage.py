"""Coverage: how much of a program's GPU time the profiled launches stand for, and what the whole could gain at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from warplens.analysis.counters.bounds import kernel_bounds
from warplens.analysis.counters.groups import group_launches
from warplens.analysis.counters.kernelkeys import KEY, SIZES, with_keys
from warplens.analysis.counters.launchorder import sample_of
from warplens.analysis.counters.speedoflight import speed_of_light
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.profile.counters import KernelCounters

__all__ = ["COVERAGE", "MATCHES", "RANKING", "UNMATCHED", "Coverage", "counters_coverage", "recorded_launches"]

#: How a group of the trace was found in the report, the best first: the same kernel with the same grid and block; the
#: same kernel in another size; another kernel of the same short name (an instance of the same template); not at all.
MATCHES: Final = ("exact", "kernel", "name", "none")

_NAMES: Final = ("name", "full_name")
_SIZES: Final = ("grid", "block")
_LAUNCHED_AS: Final = (*_NAMES, *(f"{what}_{axis}" for what in _SIZES for axis in "xyz"))

_WHICH: Final = (
    Column("name", pl.String, "short name of the kernel"),
    Column("full_name", pl.String, "demangled name with template parameters and arguments"),
    Column("grid", pl.String, "blocks of the grid, as x,y,z", nullable=True),
    Column("block", pl.String, "threads of a block, as x,y,z", nullable=True),
)

COVERAGE = Table(
    "coverage",
    "launches of one kernel with one grid and block in the window of the trace; the most expensive first",
    (
        *_WHICH,
        Column("launches", pl.Int64, "in the window"),
        Column("launches_profiled", pl.Int64, "of the report that agree as far as `matched` says"),
        Column("total_ns", pl.Int64, "summed duration in the window"),
        Column("share", pl.Float64, "of the summed duration of all kernels in the window"),
        Column("matched", pl.String, "one of `MATCHES`"),
    ),
)

UNMATCHED = Table(
    "unmatched",
    "profiled launches of one kernel with one grid and block that the window of the trace lacks",
    (
        *_WHICH,
        Column("launches_profiled", pl.Int64, "in the report"),
        Column("launches_elsewhere", pl.Int64, "in the trace, outside the window"),
    ),
)

RANKING = Table(
    "ranking",
    "one group of the trace that was profiled; the one with the most to gain first",
    (
        *COVERAGE.columns[:-1],
        Column("throughput_share", pl.Float64, "of the roof: the higher of compute and memory", nullable=True),
        Column("gain_share", pl.Float64, "of the window's kernel time, if it ran at its roof", nullable=True),
        Column("bound", pl.String, "one of `BOUND_KINDS`"),
        Column("unit", pl.String, "memory: which level; compute: which pipe", nullable=True),
        Column("fault", pl.String, "the costliest fault, of `FAULTS`", nullable=True),
        Column("stall", pl.String, "longest wait of the warps, where it is long", nullable=True),
    ),
)


@dataclass(frozen=True, eq=False)
class Coverage:
    """What a report says of the window of a trace.

    Attributes:
        groups: `COVERAGE`.
        ranking: `RANKING`.
        unmatched: `UNMATCHED`.
        total_ns: summed duration of the window's kernels.
        exact_share, kernel_share, name_share, missing_share: of it, by how the kernels were found in the report
            (`MATCHES`); they add up to 1. None without kernels.
        launches_profiled: kernel launches in the report.
        launches_matched: of those, such as occur in the window with the same grid and block.
        sample: `warm-up` (the profiled launches all come before the window), `steady`, `mixed` or `unknown`.
        sample_how: one sentence for people: why.
    """

    groups: pl.DataFrame
    ranking: pl.DataFrame
    unmatched: pl.DataFrame
    total_ns: int
    exact_share: float | None
    kernel_share: float | None
    name_share: float | None
    missing_share: float | None
    launches_profiled: int
    launches_matched: int
    sample: str
    sample_how: str


def counters_coverage(counters: KernelCounters, timeline: Timeline, window: Window) -> Coverage:
    """How much of a window the profiled launches stand for, and which kernel promises most.

    A kernel is the same where function and template arguments are; where one of the files knows short names alone,
    where those are. `gain_share` follows from Amdahl's law: a kernel with share s of the time that reaches the part t
    of its roof would save s · (1 − t) of the whole at its roof. Ranges and graphs profiled as one are left out.

    Args:
        counters: a report.
        timeline: a trace of the same program, with the launch configuration of its kernels.
        window: which launches count.
    """
    taken = group_launches(counters, ("kind", *_LAUNCHED_AS))
    profiled = taken.counters.launches.with_columns(taken.groups["launches"], shape="launch")
    profiled = profiled.filter(pl.col("kind") == "kernel")
    launches, shapes = recorded_launches(timeline, window)
    sums = launches.group_by("shape").agg(
        inside=pl.col("inside").sum().cast(pl.Int64),
        outside=(~pl.col("inside")).sum().cast(pl.Int64),
        total_ns=pl.col("duration_ns").filter("inside").sum(),
    )
    recorded = shapes.join(sums, on="shape", maintain_order="left")
    profiled, recorded = with_keys(profiled, recorded)

    found = _by_key(profiled, "launches", shape=pl.col("shape").first())
    trace = _by_key(recorded, "inside", "outside", "total_ns")
    groups = _matched(trace.filter(pl.col("inside") > 0), found)
    total_ns = int(groups["total_ns"].sum())
    unmatched = found.join(groups, on=KEY, how="anti").join(trace.select(*KEY, "outside"), on=KEY, how="left")
    unmatched = unmatched.with_columns(pl.col("outside").fill_null(0)).sort("shape")
    namesakes = recorded.filter(pl.col("name").is_in(profiled["name"].unique().to_list()))["shape"]
    sample, how = sample_of(
        _codes(profiled, taken.of_launch),
        _codes(recorded, launches["shape"]),
        launches["shape"].is_in(namesakes.to_list()),
        launches["start_ns"] < window.start_ns,
        window,
    )
    shares = {what: _share(groups.filter(pl.col("matched") == what), total_ns) for what in MATCHES}
    return Coverage(
        groups=COVERAGE.checked(groups.rename({"inside": "launches"})),
        ranking=_ranking(groups, taken.counters),
        unmatched=UNMATCHED.checked(
            unmatched.rename({"launches": "launches_profiled", "outside": "launches_elsewhere"})
        ),
        total_ns=total_ns,
        exact_share=shares["exact"],
        kernel_share=shares["kernel"],
        name_share=shares["name"],
        missing_share=shares["none"],
        launches_profiled=int(profiled["launches"].sum()),
        launches_matched=int(found.join(groups, on=KEY, how="semi")["launches"].sum()),
        sample=sample,
        sample_how=how,
    )


def recorded_launches(timeline: Timeline, window: Window) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All kernels of a trace in the order of their launches, and what they are.

    Returns:
        The launches, with `shape`, `start_ns`, `duration_ns`, `range`, `inferred`, and `inside`: whether it belongs to
        the window; and for each `shape` names, grid and block, as numbers and as texts.
    """
    inside = np.zeros(timeline.work.height, dtype=np.bool_)
    inside[timeline.work_rows_in(window)] = True
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "launch_start_ns", "range", "inferred")
    work = work.with_columns(inside=pl.Series(inside)).filter(pl.col("kind") == "kernel")
    # Streams may run work in another order than that in which the program launched it.
    work = work.sort(pl.coalesce("launch_start_ns", "start_ns"), "start_ns", maintain_order=True)
    kernels = timeline.trace.kernels.select(_LAUNCHED_AS)
    shapes = kernels.unique(maintain_order=True).with_row_index("shape").with_columns(pl.col("shape").cast(pl.Int64))
    shape = kernels.join(shapes, on=_LAUNCHED_AS, how="left", nulls_equal=True, maintain_order="left")["shape"]
    launches = work.select(
        "start_ns", "range", "inferred", "inside", duration_ns=pl.col("end_ns") - pl.col("start_ns")
    ).with_columns(shape.gather(work["row"]))
    return launches, shapes.with_columns(pl.col(_NAMES).cast(pl.String), *SIZES)


def _by_key(frame: pl.DataFrame, *sums: str, **more: pl.Expr) -> pl.DataFrame:
    """A row for each kernel, grid and block."""
    return frame.group_by(KEY, maintain_order=True).agg(pl.col(_NAMES).first(), pl.col(sums).sum(), **more)


def _matched(trace: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """The groups of the window, each with how it was found in the report, and how often."""
    groups = trace.join(found.select(*KEY, "shape", exact="launches"), on=KEY, how="left", maintain_order="left")
    for key in ("kernel", "name"):
        counted = found.group_by(key).agg(pl.col("launches").sum().alias(f"by_{key}"))
        groups = groups.join(counted, on=key, how="left", maintain_order="left")
    counts = {"exact": "exact", "kernel": "by_kernel", "name": "by_name"}
    return groups.with_columns(
        matched=pl.coalesce(
            *(pl.when(pl.col(count).is_not_null()).then(pl.lit(what)) for what, count in counts.items()), pl.lit("none")
        ),
        launches_profiled=pl.coalesce(*counts.values(), pl.lit(0)),
        share=pl.col("total_ns") / pl.col("total_ns").sum(),
    ).sort("total_ns", "name", "grid", "block", descending=[True, False, False, False])


def _ranking(groups: pl.DataFrame, counters: KernelCounters) -> pl.DataFrame:
    throughput = speed_of_light(counters).select(
        shape="launch", throughput_share=pl.max_horizontal("compute_share", "memory_share")
    )
    bounds = kernel_bounds(counters).select("bound", "unit", "fault", "stall", shape="launch")
    ranked = groups.filter(pl.col("matched") == "exact").join(throughput, on="shape").join(bounds, on="shape")
    # Counters of short kernels can come out a little above the peak.
    distance = (1 - pl.col("throughput_share")).clip(0, 1)
    ranked = ranked.rename({"inside": "launches"}).with_columns(gain_share=distance * pl.col("share"))
    return RANKING.checked(
        ranked.sort("gain_share", "total_ns", "name", "grid", descending=[True, True, False, False], nulls_last=True)
    )


def _codes(shapes: pl.DataFrame, of_launch: pl.Series) -> pl.Series:
    """The code of each launch, given its shape; null for what is no kernel."""
    return of_launch.replace_strict(shapes["shape"], shapes["code"], default=None, return_dtype=pl.Int64)


def _share(groups: pl.DataFrame, total_ns: int) -> float | None:
    return int(groups["total_ns"].sum()) / total_ns if total_ns else None
