"""Memory copies and fills: how often, how long, how much, how fast, and between which kinds of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from warplens.analysis.spread import conform, duration_ns, ratio, spread, spread_schema
from warplens.analysis.streams import busy_by
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["COPY_SCHEMA", "CopyGrouping", "copy_statistics"]

CopyGrouping = Literal["memory", "direction"]

_KIND: Final = pl.Enum(["copy", "memset"])
_NS_PER_S: Final = 1e9

#: Schema of `copy_statistics`. Time is in nanoseconds.
COPY_SCHEMA: Final = pl.Schema(
    {
        "kind": _KIND,
        "direction": pl.String(),  # host-to-device, …; null for a memset
        "source_memory": pl.String(),  # pageable, pinned, device, …; null for a memset, and where it is not recorded
        "destination_memory": pl.String(),  # likewise; for a memset the memory that it fills
        "calls": pl.Int64(),
        **spread_schema(),
        "share": pl.Float64(),  # of the summed time of all copies and memsets in the window
        **spread_schema(unit="bytes"),
        "busy_ns": pl.Int64(),  # time with at least one of them in flight, summed over devices
        "bandwidth_bytes_per_s": pl.Float64(),  # total_bytes over busy_ns; null where they took no time
    }
)

_GROUPS: Final[dict[str, list[str]]] = {
    "memory": ["kind", "direction", "source_memory", "destination_memory"],
    "direction": ["kind", "direction"],
}


def copy_statistics(timeline: Timeline, window: Window, by: CopyGrouping = "memory") -> pl.DataFrame:
    """Times, sizes and bandwidth of the copies and memsets of the window, the most time first.

    With `by="direction"` the rows, times and sizes are those of `nsys stats -r cuda_gpu_mem_time_sum` and
    `-r cuda_gpu_mem_size_sum`, where `host-to-device` is called `[CUDA memcpy Host-to-Device]` and a memset
    `[CUDA memset]`. Bandwidth is bytes over the time in which any of the group's operations runs on a device, so that
    two copies that share a link are not counted as two links.

    Args:
        timeline: the profile.
        window: the part of it that counts.
        by: `memory` (direction and the kinds of memory on both sides) or `direction` (memory columns are null).

    Raises:
        UsageError: `by` is something else.
    """
    if by not in _GROUPS:
        raise UsageError(f"copies cannot be grouped by {by!r}; use {', '.join(_GROUPS)}")
    keys = _GROUPS[by]
    # The two tables are grouped one by one: the categories of their names differ, and text is slow to group by.
    statistics = pl.concat(
        [_statistics(copies, keys) for copies in (_copies(timeline, window), _fills(timeline, window))]
    )
    statistics = statistics.with_columns(
        ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"),
        (ratio(pl.col("total_bytes"), pl.col("busy_ns")) * _NS_PER_S).alias("bandwidth_bytes_per_s"),
    )
    order = ["total_ns", *_GROUPS["memory"]]
    return conform(statistics, COPY_SCHEMA).sort(order, descending=[True, *(False for _ in order[1:])])


def _copies(timeline: Timeline, window: Window) -> pl.DataFrame:
    return timeline.copies_in(window).with_columns(pl.lit("copy", dtype=_KIND).alias("kind"))


def _fills(timeline: Timeline, window: Window) -> pl.DataFrame:
    nothing = pl.lit(None, dtype=pl.String)
    return (
        timeline.memsets_in(window)
        .with_columns(nothing.alias("direction"), nothing.alias("source_memory"))
        .with_columns(pl.lit("memset", dtype=_KIND).alias("kind"), pl.col("memory").alias("destination_memory"))
    )


def _statistics(moves: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    busy = busy_by(moves, [*keys, "device"]).group_by(keys).agg(pl.col("busy_ns").sum())
    return (
        moves.group_by(keys)
        .agg(pl.len().alias("calls"), *spread(duration_ns()), *spread(pl.col("bytes"), unit="bytes"))
        .join(busy, on=keys, nulls_equal=True)
        .with_columns(
            pl.col(name).cast(pl.String) if name in keys else pl.lit(None, dtype=pl.String).alias(name)
            for name in ("direction", "source_memory", "destination_memory")
        )
    )
