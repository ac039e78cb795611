"""Our answers in the shape of nsys's reports, so that the two can be laid side by side.

Each function returns rows in the order of `nsys_stats.REPORTS[name].columns`. What our analyses know and nsys does not
is left out here: inferred ranges, memory kinds, categories.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from warplens.analysis.api import api_statistics
from warplens.analysis.kernels import copy_statistics, kernel_statistics
from warplens.analysis.launches import launch_statistics
from warplens.analysis.ranges import range_instances
from warplens.analysis.timeline import Timeline

_STYLES = {"push-pop": "PushPop", "start-end": "StartEnd"}
_TIMES = ("total_ns", "calls", "min_ns", "max_ns", "mean_ns", "median_ns", "stdev_ns")
_SIZES = ("total_bytes", "calls", "min_bytes", "max_bytes", "mean_bytes", "median_bytes", "stdev_bytes")


def _kernels(timeline: Timeline) -> pl.DataFrame:
    return kernel_statistics(timeline, timeline.window("all"), by="full_name").select("full_name", *_TIMES)


def _copies(timeline: Timeline, columns: tuple[str, ...]) -> pl.DataFrame:
    direction = pl.concat_str(pl.lit("[cuda memcpy "), "direction", pl.lit("]"))
    operation = pl.when(pl.col("kind") == "memset").then(pl.lit("[cuda memset]")).otherwise(direction)
    return copy_statistics(timeline, timeline.window("all"), by="direction").select(operation, *columns)


def _copy_times(timeline: Timeline) -> pl.DataFrame:
    return _copies(timeline, _TIMES)


def _copy_sizes(timeline: Timeline) -> pl.DataFrame:
    return _copies(timeline, _SIZES)


def _api_calls(timeline: Timeline) -> pl.DataFrame:
    return api_statistics(timeline, timeline.window("all"), by=("name",)).select("name", *_TIMES)


def _launches(timeline: Timeline) -> pl.DataFrame:
    keys = ("process", "thread", "device", "api", "full_name")
    phases = ("whole", "api", "queue", "kernel")
    extremes = [f"{phase}_{end}_ns" for phase in phases for end in ("min", "max")]
    spreads = [f"{phase}_{kind}_ns" for phase in phases for kind in ("mean", "median", "stdev")]
    statistics = launch_statistics(timeline, timeline.window("all"), by=keys)
    return statistics.filter(pl.col("matched") > 0).select(*keys, "matched", "queued", *extremes, *spreads)


def _host_ranges(timeline: Timeline) -> pl.DataFrame:
    ranges = timeline.trace.ranges.select(
        pl.col("name").cast(pl.String),
        pl.col("kind").cast(pl.String).replace(_STYLES).alias("style"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("host_ns"),
    )
    return ranges.group_by("name", "style").agg(*_statistics("host_ns"))


def _projected_ranges(timeline: Timeline) -> pl.DataFrame:
    instances = range_instances(timeline, timeline.window("all")).filter(pl.col("same_thread_ops") > 0)
    ranges = timeline.trace.ranges[instances["row"]]
    span = pl.col("same_thread_span_ns")
    return (
        instances.with_columns(
            ranges["name"].cast(pl.String),
            ranges["kind"].cast(pl.String).replace(_STYLES).alias("style"),
            ranges["depth"],
        )
        .join(_launching_calls(timeline), left_on="row", right_on="range", how="left")
        .group_by("name", "style")
        .agg(
            span.sum().alias("total"),
            pl.col("host_ns").sum(),
            pl.len(),
            span.min().alias("min"),
            span.max().alias("max"),
            pl.col("launching_calls").sum(),
            *_spread("same_thread_span_ns"),
            pl.col("depth").mean(),
        )
    )


def _launching_calls(timeline: Timeline) -> pl.DataFrame:
    """Per range the API calls inside it that issued work; what nsys counts as operations: a graph's launch is one."""
    work = timeline.work.filter(pl.col("kind").cast(pl.String) != "graph")
    launched = work.select(
        "process", timeline.correlations(work), pl.when(~pl.col("inferred")).then("range").alias("range")
    )
    return (
        _within_enclosing(timeline, launched)
        .drop_nulls()
        .group_by("range")
        .agg(pl.struct("process", "correlation").n_unique().alias("launching_calls"))
    )


def _kernels_by_range(timeline: Timeline) -> pl.DataFrame:
    ranges = timeline.trace.ranges
    kernels = timeline.kernels_in(timeline.window("all")).select(
        pl.int_range(pl.len()).alias("kernel"),
        # A kernel whose launch was not recorded has neither process nor thread in nsys's report.
        pl.when(pl.col("thread").is_not_null()).then("process").alias("process"),
        "thread",
        pl.col("full_name").cast(pl.String),
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"),
        pl.when(~pl.col("inferred")).then("range").alias("range"),
    )
    pairs = _within_enclosing(timeline, kernels)
    return (
        pairs.with_columns(
            ranges["name"].gather(pairs["range"]).cast(pl.String).fill_null("").alias("name"),
            ranges["kind"].gather(pairs["range"]).cast(pl.String).replace(_STYLES).fill_null("").alias("style"),
        )
        .group_by("name", "style", "process", "thread", "full_name")
        .agg(
            pl.col("range").drop_nulls().n_unique().alias("ranges"),
            pl.col("kernel").n_unique().alias("kernels"),
            pl.col("duration_ns").sum().alias("total"),
            pl.col("duration_ns").min().alias("min"),
            pl.col("duration_ns").max().alias("max"),
            *_spread("duration_ns"),
        )
    )


def _within_enclosing(timeline: Timeline, launched: pl.DataFrame) -> pl.DataFrame:
    """Every row once for each range of its own thread that encloses it; `range` is the innermost one on entry."""
    parent = timeline.trace.ranges["parent"]
    levels = [launched]
    enclosed = launched.filter(pl.col("range").is_not_null())
    while enclosed.height:
        enclosed = enclosed.with_columns(parent.gather(enclosed["range"]).alias("range"))
        enclosed = enclosed.filter(pl.col("range").is_not_null())
        levels.append(enclosed)
    return pl.concat(levels)


def _statistics(column: str) -> list[pl.Expr]:
    value = pl.col(column)
    extremes = [value.min().alias("min"), value.max().alias("max")]
    return [value.sum().alias("total"), pl.len().alias("count"), *extremes, *_spread(column)]


def _spread(column: str) -> list[pl.Expr]:
    value = pl.col(column)
    deviation = pl.when(pl.len() == 1).then(0.0).otherwise(value.std(ddof=1))
    return [value.mean().alias("mean"), value.median().alias("median"), deviation.alias("stdev")]


#: By nsys's name of the report: our rows, columns in the order of `nsys_stats.REPORTS`.
OUR_REPORTS: dict[str, Callable[[Timeline], pl.DataFrame]] = {
    "cuda_gpu_kern_sum": _kernels,
    "cuda_gpu_mem_time_sum": _copy_times,
    "cuda_gpu_mem_size_sum": _copy_sizes,
    "cuda_api_sum": _api_calls,
    "cuda_kern_exec_sum": _launches,
    "nvtx_kern_sum": _kernels_by_range,
    "nvtx_gpu_proj_sum": _projected_ranges,
    "nvtx_sum": _host_ranges,
}
