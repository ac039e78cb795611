"""`warplens memory`: how much memory was in use, when it was most, and whose it was then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import polars as pl

from warplens.analysis.allocator import (
    ALIVE_SCHEMA,
    ALLOCATION_STEP_SCHEMA,
    ALLOCATOR_SCHEMA,
    alive_at_peak,
    allocator_steps,
    allocator_timeline,
    allocator_use,
)
from warplens.analysis.memory import memory_timeline, memory_use
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.allocator import AllocatorUse
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["memory"]

_ALLOCATOR: Final = "PyTorch's allocator"

#: One row for each process, device and kind of memory; null is what the source does not know.
USE_SCHEMA: Final = pl.Schema(
    {
        "memory": pl.String(),
        "process": pl.Int32(),
        "device": pl.Int32(),
        "begin_bytes": pl.Int64(),
        "end_bytes": pl.Int64(),
        "peak_bytes": pl.Int64(),
        "peak_ns": pl.Int64(),
        "reserved_bytes": pl.Int64(),
        "idle_bytes": pl.Int64(),
        "allocations": pl.Int64(),
        "releases": pl.Int64(),
        "allocated_bytes": pl.Int64(),
        "unseen_bytes": pl.Int64(),
        "mismatches": pl.Int64(),
    }
)

_WHERE = (TableColumn("process", "Process", "text"), TableColumn("device", "GPU", "text"))
_COLUMNS = {
    "memory": (
        TableColumn("memory", "Memory", "text"),
        *_WHERE,
        TableColumn("peak_bytes", "Peak", "bytes"),
        TableColumn("peak_ns", "At", "duration_ns"),
        TableColumn("reserved_bytes", "Held", "bytes"),
        TableColumn("idle_bytes", "Unused", "bytes"),
        TableColumn("begin_bytes", "Begin", "bytes"),
        TableColumn("end_bytes", "End", "bytes"),
        TableColumn("allocations", "Allocations", "count"),
        TableColumn("allocated_bytes", "Churn", "bytes"),
        TableColumn("unseen_bytes", "From before", "bytes"),
    ),
    "operator": (
        TableColumn("owner", "Alive at the peak", "name"),
        TableColumn("forward", "Gradient of", "name"),
        TableColumn("phase", "Phase", "text"),
        *_WHERE,
        TableColumn("blocks", "Blocks", "count"),
        TableColumn("bytes", "Bytes", "bytes"),
        TableColumn("share", "Of the peak", "share"),
    ),
    "step": (
        TableColumn("step", "Step", "count"),
        *_WHERE,
        TableColumn("peak_bytes", "Peak", "bytes"),
        TableColumn("allocations", "Allocations", "count"),
        TableColumn("releases", "Releases", "count"),
        TableColumn("allocated_bytes", "Allocated", "bytes"),
        TableColumn("released_bytes", "Released", "bytes"),
    ),
    "event": (
        TableColumn("time_ns", "Time", "duration_ns"),
        *_WHERE,
        TableColumn("delta_bytes", "Change", "bytes"),
        TableColumn("allocated_bytes", "In use", "bytes"),
        TableColumn("reserved_bytes", "Held", "bytes"),
    ),
}
_CAPTIONS: Final = {
    "memory": "Memory in use",
    "operator": "Whose memory was in use at the peak",
    "step": "Allocations of each step",
    "event": "Allocations and releases",
}
_BEFORE: Final = "allocated before the recording"
_NO_RANGE: Final = "outside of every operator"
_RECORD: Final = (
    "this profile holds no allocations. Record them with torch.profiler.profile(profile_memory=True), or with "
    "nsys profile --cuda-memory-usage=true"
)


def memory(
    path: ProfileArgument,
    by: Annotated[str, group_by(*_COLUMNS)] = "memory",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Memory over time, its peak, and what was alive then.

    Held is what the allocator had from CUDA at the peak, unused the part of it that was cached or fragmented. Churn
    sums all allocations. From before is what was allocated before the recording began. Operators, steps and what is
    held are known to PyTorch's profiler only; Nsight Systems records cudaMalloc and the like.
    """
    selection = select(path, window, range_name)
    timeline, span = selection.timeline, selection.window
    tables = {by: _rows(timeline, span, by)}
    if by == "memory" and (alive := alive_at_peak(timeline, span)) is not None:
        tables["operator"] = _titled(alive)
    shown = [
        Table(
            "memory" if key == by else f"memory-{key}", _CAPTIONS[key], _COLUMNS[key], rows, empty="Nothing recorded."
        )
        for key, rows in tables.items()
    ]
    recorded = {"allocations", "memory"} & timeline.trace.capture.recorded
    facts = tuple(_facts(allocator_use(timeline, span) or ())) if recorded else (_RECORD,)
    data = {"recorded": sorted(recorded)}
    extra = {"alive_at_peak": {"rows": tables["operator"]}} if by == "memory" and "operator" in tables else {}
    show(Answer("memory", selection, tables[by], tuple(shown), facts, {**data, **extra}), form, limit)


def _rows(timeline: Timeline, window: Window, by: str) -> pl.DataFrame:
    if by == "operator":
        alive = alive_at_peak(timeline, window)
        return _titled(pl.DataFrame(schema=ALIVE_SCHEMA) if alive is None else alive)
    if by == "step":
        steps = allocator_steps(timeline, window)
        return pl.DataFrame(schema=ALLOCATION_STEP_SCHEMA) if steps is None else steps
    if by == "event":
        return _events(timeline, window)
    return _uses(timeline, window)


def _uses(timeline: Timeline, window: Window) -> pl.DataFrame:
    rows = [
        {"memory": _ALLOCATOR, "idle_bytes": use.idle_bytes, **_known(use)}
        for use in allocator_use(timeline, window) or ()
    ]
    rows += [_known(use) for use in memory_use(timeline, window) or ()]
    return pl.DataFrame(rows, schema=USE_SCHEMA)


def _known(use: object) -> dict[str, object]:
    return {key: value for key, value in vars(use).items() if key in USE_SCHEMA}


def _events(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Every allocation and release, whichever of the two tables the source has."""
    found = allocator_timeline(timeline, window)
    if found is None:
        raw = memory_timeline(timeline, window)
        found = None if raw is None else raw.with_columns(pl.lit(None, dtype=pl.Int64).alias("reserved_bytes"))
    return pl.DataFrame(schema=ALLOCATOR_SCHEMA) if found is None else found.select(ALLOCATOR_SCHEMA.names())


def _titled(alive: pl.DataFrame) -> pl.DataFrame:
    owner = (
        pl.when("from_before").then(pl.lit(_BEFORE)).otherwise(pl.col("operator").fill_null(_NO_RANGE)).alias("owner")
    )
    return alive.with_columns(owner)


def _facts(uses: tuple[AllocatorUse, ...]) -> Iterator[str]:
    for use in uses:
        if use.device is None or use.known_share is None:
            continue
        peak = fmt.data_size(use.peak_bytes)
        yield (
            f"coverage: {fmt.share(use.known_share)} of the {peak} at the peak of GPU {use.device} was allocated in "
            "the recording; the rest stood there before"
        )
        if use.mismatches:
            yield (
                f"{fmt.count(use.mismatches)} events of GPU {use.device} state another total than their sum: events "
                "are missing in this profile"
            )
