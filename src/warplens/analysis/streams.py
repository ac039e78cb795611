"""Streams: what each of them did, how many kernels ran at once, and what copies hid behind kernels.

Unlike the other tables, these speak of time inside the window: work that reaches over an edge counts with the part that
lies inside, so that the times of a device sum to the window exactly. A CUDA graph that was traced as a whole counts as
one kernel: the GPU was busy, with what is hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.intervals import Intervals, Owned, subtract, total, union
from warplens.analysis.spread import conform, ratio

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = [
    "CONCURRENCY_SCHEMA",
    "OVERLAP_SCHEMA",
    "STREAM_SCHEMA",
    "busy_by",
    "busy_ns",
    "concurrency",
    "copy_overlap",
    "stream_statistics",
    "work_inside",
]

Int64s = npt.NDArray[np.int64]

#: One row a stream of a device and process. Time is in nanoseconds.
STREAM_SCHEMA: Final = pl.Schema(
    {
        "device": pl.Int32(),
        "process": pl.Int32(),
        "stream": pl.Int32(),
        "kernels": pl.Int64(),
        "copies": pl.Int64(),
        "memsets": pl.Int64(),
        "graphs": pl.Int64(),  # graphs traced as a whole
        "busy_ns": pl.Int64(),  # time with at least one of them running
        "share": pl.Float64(),  # busy_ns of the window
    }
)

#: One row a device and number of kernels that run at once. Time is in nanoseconds.
CONCURRENCY_SCHEMA: Final = pl.Schema(
    {
        "device": pl.Int32(),
        "kernels_at_once": pl.Int64(),
        "time_ns": pl.Int64(),  # with exactly so many; sums to the window on each device
        "at_least_ns": pl.Int64(),  # with so many or more
        "share": pl.Float64(),  # time_ns of the window
    }
)

#: One row a device. Time is in nanoseconds.
OVERLAP_SCHEMA: Final = pl.Schema(
    {
        "device": pl.Int32(),
        "kernel_ns": pl.Int64(),  # time with at least one kernel
        "copy_ns": pl.Int64(),  # time with at least one copy or memset
        "overlapped_ns": pl.Int64(),  # time with both
        "exposed_ns": pl.Int64(),  # time with copies or memsets alone
        "overlapped_share": pl.Float64(),  # overlapped_ns of copy_ns; null without copies
    }
)


def work_inside(timeline: Timeline, window: Window) -> pl.DataFrame:
    """All work that runs in the window, cut at its edges: columns of `Timeline.work` without those of the launch."""
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "device", "stream", "process", "api_row")
    if window.range_name is not None:
        work = work.filter(pl.Series(timeline.in_range(window.range_name)))
    inside = ((work["start_ns"] < window.end_ns) & (work["end_ns"] > window.start_ns)).to_numpy()
    if not inside.all():
        work = work.filter(pl.Series(inside))
    return work.with_columns(
        pl.col("start_ns").clip(lower_bound=window.start_ns), pl.col("end_ns").clip(upper_bound=window.end_ns)
    )


def busy_ns(work: pl.DataFrame) -> int:
    """Time in which at least one of these pieces of work ran, summed over devices."""
    return sum(total(union(_intervals(work, pl.col("device") == device))) for device in work["device"].unique())


def busy_by(work: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """`busy_ns` of each group: the time in which at least one of its pieces of work ran."""
    groups = work.select(*keys, "start_ns", "end_ns").partition_by(keys)
    heads = pl.concat([work.select(keys).clear(), *(group.select(keys).head(1) for group in groups)])
    return heads.with_columns(pl.Series("busy_ns", [total(union(_intervals(group))) for group in groups], pl.Int64))


def stream_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """What each stream did inside the window and how much of it the stream was busy, the busiest first.

    Returns:
        `STREAM_SCHEMA`.
    """
    keys = ["device", "process", "stream"]
    work = work_inside(timeline, window)
    counts = work.group_by(keys).agg(
        (pl.col("kind") == kind).sum().cast(pl.Int64).alias(column)
        for kind, column in (("kernel", "kernels"), ("copy", "copies"), ("memset", "memsets"), ("graph", "graphs"))
    )
    statistics = counts.join(busy_by(work, keys), on=keys).with_columns(
        ratio(pl.col("busy_ns"), pl.lit(window.duration_ns)).alias("share")
    )
    return conform(statistics, STREAM_SCHEMA).sort(["busy_ns", *keys], descending=[True, False, False, False])


def concurrency(timeline: Timeline, window: Window) -> pl.DataFrame:
    """For how long none, one, two, … kernels ran at once on each device that did any work in the window.

    Returns:
        `CONCURRENCY_SCHEMA`, by device and ascending number; numbers that never occurred are left out.
    """
    work = work_inside(timeline, window)
    parts = []
    for device in work["device"].unique().sort():
        kernels = _intervals(work, (pl.col("device") == device) & _is_compute())
        level, length = _levels(kernels, window)
        parts.append(
            pl.DataFrame({"kernels_at_once": level, "time_ns": length})
            .filter(pl.col("time_ns") > 0)
            .group_by("kernels_at_once")
            .agg(pl.col("time_ns").sum())
            .sort("kernels_at_once")
            .with_columns(
                pl.lit(device).alias("device"),
                pl.col("time_ns").reverse().cum_sum().reverse().alias("at_least_ns"),
                ratio(pl.col("time_ns"), pl.lit(window.duration_ns)).alias("share"),
            )
        )
    return pl.concat([pl.DataFrame(schema=CONCURRENCY_SCHEMA), *(conform(part, CONCURRENCY_SCHEMA) for part in parts)])


def copy_overlap(timeline: Timeline, window: Window) -> pl.DataFrame:
    """How much of the copies and memsets ran while kernels did, for each device that did any work in the window.

    Returns:
        `OVERLAP_SCHEMA`, by device.
    """
    work = work_inside(timeline, window)
    rows = []
    for device in work["device"].unique().sort():
        kernels = union(_intervals(work, (pl.col("device") == device) & _is_compute()))
        copies = union(_intervals(work, (pl.col("device") == device) & ~_is_compute()))
        alone = subtract(Owned(*copies, np.zeros(len(copies.starts), dtype=np.int64)), kernels)
        copied, exposed = total(copies), total(alone)
        share = (copied - exposed) / copied if copied else None
        rows.append((device, total(kernels), copied, copied - exposed, exposed, share))
    return pl.DataFrame(rows, schema=OVERLAP_SCHEMA, orient="row")


def _is_compute() -> pl.Expr:
    return pl.col("kind").is_in(["kernel", "graph"])


def _intervals(work: pl.DataFrame, which: pl.Expr | None = None) -> Intervals:
    """The intervals of the pieces of work for which the condition holds; of all without one."""
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    chosen = None if which is None else work.select(which).to_series().to_numpy()
    if chosen is None or chosen.all():
        return Intervals(starts, ends)
    return Intervals(starts[chosen], ends[chosen])


def _levels(running: Intervals, window: Window) -> tuple[Int64s, Int64s]:
    """How many of the intervals are open between every two successive edges, and for how long; spans the window."""
    edges = np.concatenate((running.starts, running.ends, np.array([window.start_ns, window.end_ns])))
    change = np.zeros(len(edges), dtype=np.int64)
    change[: len(running.starts)] = 1
    change[len(running.starts) : -2] = -1
    order = np.argsort(edges, kind="stable")
    return np.cumsum(change[order])[:-1], np.diff(edges[order])
