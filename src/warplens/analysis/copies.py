"""Memory copies and fills: how often, how long, how much, how fast, and between which kinds of memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from warplens.analysis.frames import duration_ns, ratio, spread
from warplens.analysis.streams import busy_by
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile.columns import SPREAD, column, spread_columns, table
from warplens.profile.schema import Column

CopyGrouping = Literal["memory", "direction"]

_KIND: Final = pl.Enum(["copy", "memset"])
_NS_PER_S: Final = 1e9

COPIES: Final = table(
    "copies and fills",
    "One kind of copy or fill. `warplens copies`.",
    column("kind", dtype=_KIND, help="`copy` or `memset`"),
    Column("direction", pl.String, "host-to-device, device-to-host, …; null for a memset"),
    column(
        "source_memory", help="pageable, pinned, device, managed, …; null for a memset, and where it was not recorded"
    ),
    column("destination_memory", help="likewise; for a memset the memory that it fills"),
    "calls",
    SPREAD,
    "share",
    spread_columns(unit="bytes", of="sizes"),
    "busy_ns",
    Column("bandwidth_bytes_per_s", pl.Float64, "`total_bytes` over `busy_ns`; null where they took no time"),
    share="share of the summed time of all copies and memsets in the window",
    busy_ns="time with at least one of them in flight, summed over GPUs",
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
        by: `memory` (direction and the kinds of memory on both sides) or `direction` (memory columns are null).

    Raises:
        UsageError: `by` is something else.
    """
    if by not in _GROUPS:
        raise UsageError(f"copies cannot be grouped by {by!r}; use {', '.join(_GROUPS)}")
    keys = _GROUPS[by]
    # The two tables are grouped one by one: the categories of their names differ, and text is slow to group by.
    nothing = pl.lit(None, dtype=pl.String)
    fills = timeline.memsets_in(window).with_columns(
        direction=nothing, source_memory=nothing, destination_memory=pl.col("memory")
    )
    parts = []
    for kind, moves in (("copy", timeline.copies_in(window)), ("memset", fills)):
        told = moves.with_columns(kind=pl.lit(kind, dtype=_KIND))
        busy = busy_by(told, [*keys, "device"]).group_by(keys).agg(pl.col("busy_ns").sum())
        sums = told.group_by(keys).agg(
            pl.len().alias("calls"), *spread(duration_ns()), *spread(pl.col("bytes"), unit="bytes")
        )
        named = (pl.col(key).cast(pl.String) if key in keys else nothing.alias(key) for key in _GROUPS["memory"][1:])
        parts.append(sums.join(busy, on=keys, nulls_equal=True).with_columns(named))
    statistics = pl.concat(parts)
    statistics = statistics.with_columns(
        ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"),
        (ratio(pl.col("total_bytes"), pl.col("busy_ns")) * _NS_PER_S).alias("bandwidth_bytes_per_s"),
    )
    order = ["total_ns", *_GROUPS["memory"]]
    return COPIES.conform(statistics).sort(order, descending=[True, *(False for _ in order[1:])])


# --- Device memory over time, where the profile recorded allocations and releases ---
#
# What a program allocated before the recording began is not in the profile. Releases without a recorded allocation
# prove that at least so much stood there already; that amount is added throughout, so that no figure falls below what
# must have been allocated, and is stated as `unseen_bytes`.

MEMORY_EVENTS: Final = table(
    "memory over time",
    "One allocation or release inside the window. `warplens.analysis.copies.memory_timeline`.",
    "time_ns process device memory delta_bytes",
    column(
        "allocated_bytes",
        help="allocated after the event, by the process, on the GPU, of this kind of memory",
        title="Allocated",
    ),
)

# Amounts are kept apart by process, device and kind of memory.
_HOME: Final = ["process", "device", "memory"]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one kind that one process held on one device during a window."""

    process: int
    device: int | None  #: CUDA ordinal; None where the source does not say
    memory: str | None  #: device, pinned, managed, …; None where the source does not say
    #: begin_bytes, end_bytes: allocated at the window's edges
    begin_bytes: int
    end_bytes: int
    peak_bytes: int  #: the most that was allocated at once inside the window
    peak_ns: int  #: when that amount was first reached
    #: allocations, releases: how many there were in the window
    allocations: int
    releases: int
    unseen_bytes: int  #: part of all these amounts that must have been allocated before the recording began


def memory_timeline(timeline: Timeline, window: Window) -> pl.DataFrame | None:
    """Every allocation and release inside the window with the amount allocated after it (`MEMORY_EVENTS`).

    Returns:
        None where the profile recorded no memory events at all: unknown is not zero.
    """
    events = _events(timeline)
    return None if events is None else MEMORY_EVENTS.conform(events.filter(_inside(window)))


def memory_use(timeline: Timeline, window: Window) -> tuple[MemoryUse, ...] | None:
    """What was allocated at the edges of the window, at its peak and when, by process, device and kind of memory.

    Returns:
        One entry for each home of memory with any event in the profile, the largest peak first; None where the
        profile recorded no memory events at all.
    """
    events = _events(timeline)
    if events is None:
        return None
    allocated, delta = pl.col("allocated_bytes"), pl.col("delta_bytes")
    before, inside = pl.col("time_ns") < window.start_ns, _inside(window)
    highest = allocated.filter(inside).max()
    use = (
        events.group_by(_HOME)
        .agg(
            allocated.filter(before).last().fill_null(pl.col("unseen_bytes").first()).alias("begin_bytes"),
            allocated.filter(before | inside).last().alias("end_bytes"),
            highest.alias("peak_bytes"),
            pl.col("time_ns").filter(inside & (allocated == highest)).first().alias("peak_ns"),
            (inside & (delta > 0)).sum().alias("allocations"),
            (inside & (delta < 0)).sum().alias("releases"),
            pl.col("unseen_bytes").first(),
        )
        .with_columns(
            pl.col("end_bytes").fill_null(pl.col("begin_bytes")),
            # Where nothing in the window exceeds what stood there at its begin, that was the peak.
            pl.max_horizontal("peak_bytes", "begin_bytes"),
            pl.when(pl.col("peak_bytes") > pl.col("begin_bytes"))
            .then("peak_ns")
            .otherwise(window.start_ns)
            .alias("peak_ns"),
        )
        .with_columns(pl.col("memory").cast(pl.String))
        .sort(["peak_bytes", *_HOME], descending=[True, False, False, False])
    )
    return tuple(MemoryUse(**home) for home in use.iter_rows(named=True))


def _events(timeline: Timeline) -> pl.DataFrame | None:
    """All memory events in order of time, with the running amount and what must have stood there before the first."""
    if "memory" not in timeline.trace.capture.recorded:
        return None
    events = timeline.trace.memory.sort("time_ns", maintain_order=True)
    # The lowest balance of an address, if negative, is memory that was released without having been seen allocated.
    lowest = pl.col("delta_bytes").cum_sum().min().clip(upper_bound=0).neg()
    unseen = (
        events.group_by([*_HOME, "address"], maintain_order=True)
        .agg(lowest.alias("unseen_bytes"))
        .group_by(_HOME)
        .agg(pl.col("unseen_bytes").sum())
    )
    return events.join(unseen, on=_HOME, how="left", nulls_equal=True, maintain_order="left").with_columns(
        (pl.col("delta_bytes").cum_sum().over(_HOME) + pl.col("unseen_bytes")).alias("allocated_bytes")
    )


def _inside(window: Window) -> pl.Expr:
    return pl.col("time_ns").is_between(window.start_ns, window.end_ns, closed="left")
