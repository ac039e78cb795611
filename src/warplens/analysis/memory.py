"""Device memory over time, where the profile recorded allocations and releases.

What a program allocated before the recording began is not in the profile. Releases without a recorded allocation prove
that at least so much stood there already; that amount is added throughout, so that no figure falls below what must have
been allocated, and is stated as `unseen_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.spread import conform

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["MEMORY_SCHEMA", "MemoryUse", "memory_timeline", "memory_use"]

#: One row an event of the window, in order of time.
MEMORY_SCHEMA: Final = pl.Schema(
    {
        "time_ns": pl.Int64(),
        "process": pl.Int32(),
        "device": pl.Int32(),
        "memory": pl.String(),  # pageable, pinned, device, managed, …
        "delta_bytes": pl.Int64(),  # allocated (positive) or released (negative)
        "allocated_bytes": pl.Int64(),  # after the event, by the process, on the device, of this kind of memory
    }
)

# Amounts are kept apart by process, device and kind of memory.
_HOME: Final = ["process", "device", "memory"]


@dataclass(frozen=True)
class MemoryUse:
    """Memory of one kind that one process held on one device during a window.

    Attributes:
        process: process id.
        device: CUDA ordinal; None where the source does not say.
        memory: device, pinned, managed, …; None where the source does not say.
        begin_bytes, end_bytes: allocated at the window's edges.
        peak_bytes: the most that was allocated at once inside the window.
        peak_ns: when that amount was first reached.
        allocations, releases: how many there were in the window.
        unseen_bytes: part of all these amounts that must have been allocated before the recording began.
    """

    process: int
    device: int | None
    memory: str | None
    begin_bytes: int
    end_bytes: int
    peak_bytes: int
    peak_ns: int
    allocations: int
    releases: int
    unseen_bytes: int


def memory_timeline(timeline: Timeline, window: Window) -> pl.DataFrame | None:
    """Every allocation and release inside the window with the amount allocated after it (`MEMORY_SCHEMA`).

    Returns:
        None where the profile recorded no memory events at all: unknown is not zero.
    """
    events = _events(timeline)
    return None if events is None else conform(events.filter(_inside(window)), MEMORY_SCHEMA)


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
