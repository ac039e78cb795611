"""The section of the main document about the framework's allocator: memory over time, its peak, and whose it was.

Only where the profile holds the allocator's events; elsewhere there is no such section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report import chart_data, charts
from warplens.report import format as fmt
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn

if TYPE_CHECKING:
    from warplens.analysis.allocator import Allocations, AllocatorUse
    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers

__all__ = ["allocator_sections"]

_USE: Final = (
    TableColumn("title", "Memory", "text"),
    TableColumn("peak_bytes", "Peak", "bytes", "The most that was in use at once in the window."),
    TableColumn("peak_time_ns", "At", "duration_ns", "Since the window's begin."),
    TableColumn("reserved_bytes", "Held", "bytes", "What the allocator had from CUDA at the peak."),
    TableColumn("idle_bytes", "Unused", "bytes", "Held at the peak, but not in use: cached or fragmented."),
    TableColumn("begin_bytes", "At the begin", "bytes"),
    TableColumn("end_bytes", "At the end", "bytes"),
    TableColumn("allocations", "Allocations", "count"),
    TableColumn("allocated_bytes", "Churn", "bytes", "Sum of all allocations in the window."),
    TableColumn("unseen_bytes", "From before", "bytes", "Part of the peak that stood there before the recording."),
)
_ALIVE: Final = (
    TableColumn("owner", "Allocated by", "name", "The operator that was open when the memory was allocated."),
    TableColumn("forward", "Gradient of", "name", "The forward operator that a backward one belongs to."),
    TableColumn("phase", "Phase", "text"),
    TableColumn("bytes", "Bytes", "bytes"),
    TableColumn("share", "Of the peak", "share"),
    TableColumn("blocks", "Blocks", "count"),
)
_STEPS: Final = (
    TableColumn("step", "Step", "count"),
    TableColumn("peak_bytes", "Peak", "bytes"),
    TableColumn("allocations", "Allocations", "count"),
    TableColumn("releases", "Releases", "count"),
    TableColumn("allocated_bytes", "Allocated", "bytes"),
    TableColumn("released_bytes", "Released", "bytes"),
)

#: GPUs that are drawn and listed; the memory of data-parallel processes is much the same.
_MOST_DEVICES: Final = 4


def allocator_sections(numbers: Numbers, at: str = "") -> tuple[Section, ...]:
    """Memory in use over time, and what was alive at the peak of each GPU; nothing where no event was recorded."""
    window, found = numbers.window, numbers.allocations
    uses = [use for use in found.use if use.device is not None] if found is not None else []
    if found is None or not uses:
        return ()
    rows = pl.DataFrame(
        [
            {
                **vars(use),
                "title": _title(use),
                "idle_bytes": use.idle_bytes,
                "peak_time_ns": use.peak_ns - window.start_ns,
            }
            for use in uses
        ]
    )
    blocks: list[Block] = [Paragraph(_sentence(uses[0]))]
    for use in uses[:_MOST_DEVICES]:
        blocks.extend(_device_blocks(numbers, use, found, at))
    blocks.append(Table(f"{at}allocator-table", "Memory of the framework's allocator", _USE, rows, limit=None))
    steps = found.steps.drop_nulls("device")
    if steps.height:
        blocks.append(Table(f"{at}allocator-steps", "Allocations of each step", _STEPS, steps))
    return (Section(f"{at}allocator", "Allocated memory", tuple(blocks)),)


def _device_blocks(numbers: Numbers, use: AllocatorUse, found: Allocations, at: str) -> tuple[Block, ...]:
    here = (pl.col("process") == use.process) & (pl.col("device") == use.device)
    place = f"{use.process}-{use.device}"
    owners = found.alive_at_peak.filter(here).with_columns(
        pl.when("from_before")
        .then(pl.lit("allocated before the recording"))
        .otherwise(pl.col("operator").fill_null("outside of every operator"))
        .alias("owner")
    )
    table = Table(f"{at}alive-table-{place}", f"In use at the peak of {_title(use)}", _ALIVE, owners)
    since = (pl.col("time_ns") - numbers.window.start_ns).alias("time_ns")
    events = found.timeline.filter(here)
    lines = [
        events.select(pl.lit(title).alias("memory"), since, pl.col(column).alias("level_bytes")).drop_nulls()
        for title, column in (("in use", "allocated_bytes"), ("held", "reserved_bytes"))
    ]
    drawn = pl.concat(lines)
    if drawn.is_empty():
        return (table,)
    figure = Figure(
        f"{at}allocator-chart-{place}",
        f"Memory of {_title(use)} over the window",
        charts.memory_chart(chart_data.thinned_levels(drawn)),
        f"Peak {fmt.data_size(use.peak_bytes)}, {fmt.duration(use.peak_ns - numbers.window.start_ns)} after the begin.",
    )
    return figure, table


def _sentence(use: AllocatorUse) -> str:
    held = "" if use.reserved_bytes is None else f", of {fmt.data_size(use.reserved_bytes)} that the allocator held"
    text = f"{_title(use)} had {fmt.data_size(use.peak_bytes)} in use at its peak{held}."
    if use.known_share is not None:
        text += f" {fmt.share(use.known_share)} of it was allocated in the recording; whose the rest is, is not known."
    if use.mismatches:
        text += f" {fmt.count(use.mismatches)} events state another total than their sum: the profile lacks events."
    return text


def _title(use: AllocatorUse) -> str:
    return f"GPU {use.device}, process {use.process}"
