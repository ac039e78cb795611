"""Small synthetic traces from short Python literals, for tests whose right answer is counted by hand.

    trace(
        kernels=[kernel(10, 20, name="gemm", correlation=1)],
        api=[launch(2, 4, correlation=1)],
        ranges=[nvtx(0, 30, "step")],
    )

Every row function takes the times first and has a default for everything else: device 0, stream 7, process 1, thread 1.
A table that is not passed to `trace` counts as not recorded; one passed as `[]` was recorded and is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from warplens.profile import TABLES, Capture, Device, Note, Trace
from warplens.profile.nesting import nest
from warplens.profile.schema import NAME, Table
from warplens.readers.kineto import KINETO
from warplens.readers.nsys import NSYS

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]

MAIN_THREAD = 1
AUTOGRAD_THREAD = 2


def kernel(
    start: int,
    end: int,
    name: str = "kernel",
    stream: int = 7,
    correlation: int | None = None,
    *,
    full_name: str | None = None,
    device: int = 0,
    process: int = 1,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (128, 1, 1),
    registers: int | None = 32,
    graph_node: int | None = None,
) -> Row:
    """One kernel execution; `full_name` is the short name unless given."""
    return {
        **_on_device(start, end, stream=stream, correlation=correlation, device=device, process=process),
        "name": name,
        "full_name": name if full_name is None else full_name,
        **dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True)),
        **dict(zip(("block_x", "block_y", "block_z"), block, strict=True)),
        "registers_per_thread": registers,
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": 0,
        "graph_node": graph_node,
    }


def copy(
    start: int,
    end: int,
    direction: str = "host-to-device",
    size: int = 1024,
    *,
    stream: int = 7,
    correlation: int | None = None,
    source: str | None = "pageable",
    destination: str | None = "device",
    device: int = 0,
    process: int = 1,
    graph_node: int | None = None,
) -> Row:
    """One memory copy of `size` bytes."""
    return {
        **_on_device(start, end, stream=stream, correlation=correlation, device=device, process=process),
        "bytes": size,
        "direction": direction,
        "source_memory": source,
        "destination_memory": destination,
        "graph_node": graph_node,
    }


def memset(
    start: int,
    end: int,
    size: int = 1024,
    *,
    stream: int = 7,
    correlation: int | None = None,
    memory: str | None = "device",
    device: int = 0,
    process: int = 1,
    graph_node: int | None = None,
) -> Row:
    """One memory fill of `size` bytes."""
    return {
        **_on_device(start, end, stream=stream, correlation=correlation, device=device, process=process),
        "bytes": size,
        "memory": memory,
        "graph_node": graph_node,
    }


def graph(
    start: int,
    end: int,
    *,
    stream: int = 7,
    correlation: int | None = None,
    graph_id: int | None = 1,
    device: int = 0,
    process: int = 1,
) -> Row:
    """One CUDA graph execution that was traced as a whole."""
    return {
        **_on_device(start, end, stream=stream, correlation=correlation, device=device, process=process),
        "graph": graph_id,
        "graph_exec": graph_id,
    }


def call(
    start: int,
    end: int,
    name: str,
    correlation: int = 0,
    *,
    thread: int = MAIN_THREAD,
    process: int = 1,
    return_value: int | None = 0,
) -> Row:
    """One CUDA API call of any kind."""
    return {
        **_on_thread(start, end, thread, process),
        "correlation": correlation,
        "name": name,
        "return_value": return_value,
    }


def launch(
    start: int,
    end: int,
    correlation: int,
    name: str = "cudaLaunchKernel",
    *,
    thread: int = MAIN_THREAD,
    process: int = 1,
) -> Row:
    """The API call that launches the work with this correlation id."""
    return call(start, end, name, correlation, thread=thread, process=process)


def sync(
    start: int,
    end: int,
    kind: str = "stream",
    *,
    correlation: int | None = None,
    device: int | None = 0,
    stream: int | None = 7,
    process: int = 1,
) -> Row:
    """One wait of the host for the device, or of a stream for an event."""
    return {
        "start_ns": start,
        "end_ns": end,
        "device": device,
        "stream": stream,
        "process": process,
        "correlation": correlation,
        "kind": kind,
    }


def nvtx(
    start: int,
    end: int,
    name: str,
    *,
    thread: int = MAIN_THREAD,
    process: int = 1,
    kind: str = "push-pop",
    domain: int = 0,
) -> Row:
    """One annotated range; its depth and parent follow from the times."""
    return {**_on_thread(start, end, thread, process), "name": name, "kind": kind, "domain": domain}


def allocation(
    time: int,
    delta: int,
    address: int | None = None,
    *,
    memory: str | None = "device",
    device: int | None = 0,
    process: int = 1,
) -> Row:
    """`delta` bytes allocated (positive) or released (negative)."""
    return {
        "time_ns": time,
        "process": process,
        "device": device,
        "address": address,
        "delta_bytes": delta,
        "memory": memory,
    }


def os_call(start: int, end: int, name: str = "poll", *, thread: int = MAIN_THREAD, process: int = 1) -> Row:
    """One blocking call into the operating system."""
    return {**_on_thread(start, end, thread, process), "name": name}


def overhead(start: int, end: int, name: str = "CUDA profiling", *, thread: int = MAIN_THREAD, process: int = 1) -> Row:
    """One interval in which the profiler held a host thread up."""
    return {**_on_thread(start, end, thread, process), "name": name}


def trace(
    kernels: Sequence[Row] | None = None,
    api: Sequence[Row] | None = None,
    ranges: Sequence[Row] | None = None,
    *,
    copies: Sequence[Row] | None = None,
    memsets: Sequence[Row] | None = None,
    graph_launches: Sequence[Row] | None = None,
    synchronizations: Sequence[Row] | None = None,
    memory: Sequence[Row] | None = None,
    os_calls: Sequence[Row] | None = None,
    profiler_overhead: Sequence[Row] | None = None,
    window_ns: tuple[int, int] | None = None,
    notes: Sequence[Note] = (),
    file_format: str = "nsys-sqlite",
) -> Trace:
    """A whole `Trace` of these rows, each table checked against its declaration.

    Args:
        window_ns: the recorded time; from the first begin to the last end of any row unless given.
        notes: what the reader is supposed to have noticed.
        file_format: the format that the trace is supposed to have been read from.
    """
    rows = {
        "kernels": kernels,
        "copies": copies,
        "memsets": memsets,
        "graph_launches": graph_launches,
        "api_calls": api,
        "synchronizations": synchronizations,
        "ranges": None if ranges is None else _nested(ranges),
        "memory": memory,
        "os_calls": os_calls,
        "profiler_overhead": profiler_overhead,
    }
    given = {name: list(table) for name, table in rows.items() if table is not None}
    capture = Capture(
        source="synthetic",
        format=file_format,
        recorder=KINETO if file_format == "kineto-json" else NSYS,
        devices=tuple(Device(ordinal=ordinal, name="Test GPU") for ordinal in _ordinals(given)),
        window_ns=_extent(given) if window_ns is None else window_ns,
        recorded=frozenset(given),
        notes=tuple(notes),
    )
    return Trace(capture, **{name: _frame(TABLES[name], table) for name, table in given.items()})


def _on_device(start: int, end: int, *, stream: int, correlation: int | None, device: int, process: int) -> Row:
    return {
        "start_ns": start,
        "end_ns": end,
        "device": device,
        "stream": stream,
        "process": process,
        "correlation": correlation,
    }


def _on_thread(start: int, end: int, thread: int, process: int) -> Row:
    return {"start_ns": start, "end_ns": end, "process": process, "thread": thread}


def _nested(ranges: Sequence[Row]) -> list[Row]:
    """The ranges with depth and parent, which hold within one thread of one process."""
    if not ranges:
        return []
    homes = [(row["process"], row["thread"]) for row in ranges]
    numbers = {home: number for number, home in enumerate(dict.fromkeys(homes))}
    nesting = nest(
        np.array([row["start_ns"] for row in ranges], dtype=np.int64),
        np.array([row["end_ns"] for row in ranges], dtype=np.int64),
        np.array([numbers[home] for home in homes], dtype=np.int64),
    )
    return [
        {**row, "depth": int(depth), "parent": None if parent < 0 else int(parent)}
        for row, depth, parent in zip(ranges, nesting.depth, nesting.parent, strict=True)
    ]


def _frame(declared: Table, rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            pl.Series(column.name, values, dtype=_names(values) if column.dtype is NAME else column.dtype)
            for column in declared.columns
            for values in [[row[column.name] for row in rows]]
        ]
    )


def _names(values: Sequence[str | None]) -> pl.Enum:
    return pl.Enum(list(dict.fromkeys(value for value in values if value is not None)))


def _extent(tables: dict[str, list[Row]]) -> tuple[int, int]:
    starts = [row["start_ns"] for table in tables.values() for row in table if "start_ns" in row]
    ends = [row["end_ns"] for table in tables.values() for row in table if "end_ns" in row]
    times = [row["time_ns"] for table in tables.values() for row in table if "time_ns" in row]
    return min([*starts, *times], default=0), max([*ends, *times], default=0)


def _ordinals(tables: dict[str, list[Row]]) -> list[int]:
    return sorted({row["device"] for table in tables.values() for row in table if row.get("device") is not None})
