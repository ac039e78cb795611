"""Questions about memory: how much was in use, and which operators allocated it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from warplens.analysis.allocator import (
    ALIVE,
    ALLOCATIONS,
    ALLOCATIONS_BY_STEP,
    MEMORY_EVENTS,
    Allocations,
    AllocatorUse,
    allocations,
    memory_timeline,
    memory_use,
)
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Table, pick
from warplens.report.questions import QuestionResult, question

#: Unknown values are null, for example the memory of a framework's allocator in Nsight Systems profiles.
MEMORY_USE: Final = table(
    "memory",
    "One process, device and kind of memory. `warplens memory`.",
    "memory process device",
    Column("begin_bytes", pl.Int64, "in use at the start of the window"),
    Column("end_bytes", pl.Int64, "in use at the end of the window"),
    column("peak_bytes", help="peak in use in the window"),
    Column("peak_ns", pl.Int64, "when that was first reached", title="At"),
    column("reserved_bytes", help="what the allocator had from CUDA at the peak"),
    Column("idle_bytes", pl.Int64, "held at the peak, but not in use: cached or fragmented", title="Unused"),
    "allocations releases",
    column("allocated_bytes", help="sum of all allocations in the window"),
    Column("unseen_bytes", pl.Int64, "part of the peak that was allocated before the recording", title="From before"),
    Column("mismatches", pl.Int64, "events that state another total than the sum of the events before them"),
)

OWNER: Final = column("owner", help="operator that was open when the memory was allocated", title="Alive at the peak")
_MEMORY: Final = {
    "memory": pick(
        MEMORY_USE,
        "memory process device peak_bytes peak_ns reserved_bytes idle_bytes begin_bytes end_bytes allocations"
        " allocated_bytes unseen_bytes",
    ),
    "operator": pick(ALIVE, OWNER, "forward phase process device blocks bytes share", share="Of the peak"),
    "step": pick(
        ALLOCATIONS_BY_STEP,
        "step process device peak_bytes allocations releases allocated_bytes released_bytes",
        allocated_bytes="Allocated",
    ),
    # Of CUDA's own events the kind of memory is known, of those of the framework's allocator what it held.
    "event": pick(
        MEMORY_EVENTS,
        "time_ns process device memory delta_bytes allocated_bytes",
        ALLOCATIONS.column("reserved_bytes"),
        allocated_bytes="In use",
    ),
}
_MEMORY_CAPTIONS: Final = {
    "memory": "Memory in use",
    "operator": "Whose memory was in use at the peak",
    "step": "Allocations of each step",
    "event": "Allocations and releases",
}
#: The column that the rows are sorted by, if it is not a time.
_ORDERS: Final = {"memory": "peak_bytes", "operator": "bytes"}
_NO_ALLOCATIONS: Final = (
    "this profile holds no allocations. Record them with torch.profiler.profile(profile_memory=True), or with "
    "nsys profile --cuda-memory-usage=true"
)


@question(*_MEMORY)
def memory(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """Memory over time, its peak, and what was allocated at the peak.

    Held is what the allocator had reserved from CUDA at the peak, unused the part of it that was cached or fragmented.
    Churn is the sum of all allocations. "From before" was allocated before the recording began. Only the PyTorch
    profiler knows operators, steps and reserved memory; Nsight Systems records cudaMalloc and similar calls.
    Memory in use belongs to no range, so that --range is refused.
    """
    if window.range_name is not None:
        raise UsageError("memory in use belongs to no range: leave out --range, or choose a time with --window")
    recorded_allocations = allocations(timeline, window)
    rows_by_grouping = {by: _memory_rows(timeline, window, recorded_allocations, by)}
    recorded = {"allocations", "memory"} & timeline.trace.capture.recorded
    data: dict[str, Any] = {"recorded": sorted(recorded)}
    if by == "memory" and recorded_allocations is not None:
        rows_by_grouping["operator"] = with_owners(recorded_allocations.alive_at_peak)
        data["alive_at_peak"] = {"rows": rows_by_grouping["operator"]}
    tables = tuple(
        Table(
            "memory" if key == by else f"memory-{key}",
            _MEMORY_CAPTIONS[key],
            tuple(column for column in _MEMORY[key] if column.name in rows.columns),
            rows,
            order=_ORDERS.get(key),
            empty="Nothing recorded.",
        )
        for key, rows in rows_by_grouping.items()
    )
    facts = (
        f"coverage: {fact}"
        for use in (recorded_allocations.use if recorded_allocations else ())
        if use.device is not None
        for fact in memory_facts(use)
    )
    return QuestionResult(rows_by_grouping[by], tables, tuple(facts) if recorded else (_NO_ALLOCATIONS,), data)


def with_owners(alive: pl.DataFrame) -> pl.DataFrame:
    """Blocks alive at the peak with `owner`: the operator that allocated them, or why it is not known."""
    outside = pl.col("operator").fill_null("outside all operators")
    return alive.with_columns(
        pl.when("from_before").then(pl.lit("allocated before the recording")).otherwise(outside).alias("owner")
    )


def _memory_rows(timeline: Timeline, window: Window, recorded_allocations: Allocations | None, by: str) -> pl.DataFrame:
    if by == "operator":
        return with_owners(recorded_allocations.alive_at_peak if recorded_allocations else ALIVE.empty())
    if by == "step":
        return recorded_allocations.steps if recorded_allocations else ALLOCATIONS_BY_STEP.empty()
    if by == "event":  # of the framework's allocator, or else of CUDA
        if recorded_allocations is None and (raw := memory_timeline(timeline, window)) is not None:
            return raw
        return recorded_allocations.timeline if recorded_allocations else ALLOCATIONS.empty()
    uses = [
        {"memory": "PyTorch's allocator", "idle_bytes": use.idle_bytes, **_memory_use_values(use)}
        for use in (recorded_allocations.use if recorded_allocations else ())
    ]
    uses += [_memory_use_values(use) for use in memory_use(timeline, window) or ()]
    return pl.DataFrame(uses, schema=MEMORY_USE.schema)


def _memory_use_values(usage: object) -> dict[str, Any]:
    return {key: value for key, value in vars(usage).items() if key in MEMORY_USE.names}


def memory_facts(use: AllocatorUse) -> Iterator[str]:
    """How much of the peak is known, and whether events are missing; nothing if that is not known."""
    if use.known_share is None:
        return
    yield (
        f"{fmt.share(use.known_share)} of the {fmt.data_size(use.peak_bytes)} at the peak of GPU {use.device} was "
        "allocated during the recording; the rest was there before"
    )
    if use.mismatches:
        yield (
            f"{fmt.plural(use.mismatches, 'event')} of GPU {use.device} state a total other than their sum: "
            "events are missing in this profile"
        )
