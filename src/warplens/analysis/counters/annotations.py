"""Annotations: time and distance from the peaks of the launches inside each NVTX range.

A kernel's author annotates implementations, or parts of a step, to compare their cost. A row is the path of all ranges
that were open at a launch, so that no launch counts twice and the rows add up to all profiled launches.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from warplens.analysis.counters.bounds import kernel_bounds, kernel_facts
from warplens.analysis.counters.speedoflight import SPEED_OF_LIGHT
from warplens.errors import MissingDataError
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters

#: Separator of the names of nested ranges.
SEPARATOR: Final = " / "

ANNOTATIONS: Final = table(
    "annotations",
    "The profiled launches inside one path of NVTX ranges. `warplens counters --by range`.",
    column("name", help="the open ranges, the outermost first; null outside of all", title="Range", nullable=True),
    "launches kernels",
    optional(
        total_ns=("summed duration of the launches", "Time"),
        share="of the duration of all profiled launches",
        compute_share="of the peak, mean over the launches by their time",
    ),
    SPEED_OF_LIGHT.column("memory_share").but(help="of the peak, mean over the launches by their time"),
    column("bound", help="of the kernels that take most of its time", nullable=True),
    optional(bound_time_share=("share of its time that kernels of this bound take", "of its time")),
    launches="profiled there",
    kernels="different kernels among them",
)  # fmt: skip


def annotated(counters: KernelCounters) -> pl.DataFrame:
    """The profiled launches in each path of NVTX ranges.

    Times are those of the profiled launches under the profiler; a report of counters does not hold how often a range
    runs in the program, nor the GPU's time between its kernels.

    Returns:
        `ANNOTATIONS`, the most time first.

    Raises:
        MissingDataError: the report does not hold NVTX ranges.
    """
    launches = counters.launches
    if launches.height and launches["nvtx"].null_count() == launches.height:
        raise MissingDataError(
            f"{counters.capture.source}: the report holds no NVTX ranges. Collect them with ncu --nvtx, and annotate "
            "the program (torch.cuda.nvtx.range, nvtx.annotate)"
        )
    facts = kernel_facts(counters).select("launch", "compute_share", "memory_share", ns="duration_ns")
    launch_rows = (
        launches.select("launch", "full_name", name=pl.col("nvtx").list.join(SEPARATOR))
        .with_columns(name=pl.when(pl.col("name") != "").then("name"))
        .join(facts, on="launch", how="left")
        .join(kernel_bounds(counters).select("launch", "bound"), on="launch", how="left")
    )

    def mean(share: str) -> pl.Expr:
        weight = pl.col("ns").filter(pl.col(share).is_not_null())
        return (pl.col(share) * pl.col("ns")).sum() / weight.sum()

    total = pl.when(pl.col("ns").count() > 0).then(pl.col("ns").sum())
    bounds = launch_rows.group_by("name", "bound", maintain_order=True).agg(of_bound=pl.col("ns").sum())
    by_time = bounds.sort("of_bound", descending=True, maintain_order=True)
    main_bound = by_time.unique("name", keep="first", maintain_order=True)
    rows = (
        launch_rows.group_by("name", maintain_order=True)
        .agg(
            launches=pl.len(), kernels=pl.col("full_name").n_unique(), total_ns=total,
            compute_share=mean("compute_share"), memory_share=mean("memory_share"),
        )
        .join(main_bound, on="name", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(share=pl.col("total_ns") / pl.col("total_ns").sum())
        .with_columns(bound_time_share=pl.col("of_bound") / pl.col("total_ns"))
        .with_columns(pl.col("compute_share", "memory_share", "bound_time_share").fill_nan(None))
        .sort("total_ns", descending=True, nulls_last=True, maintain_order=True)
    )  # fmt: skip
    return ANNOTATIONS.checked(ANNOTATIONS.conform(rows))
