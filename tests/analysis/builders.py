"""Small synthetic traces from short Python literals, for tests whose right answer is counted by hand.

    trace(
        kernels=[kernel(10, 20, name="gemm", correlation=1)],
        api=[launch(2, 4, correlation=1)],
        ranges=[nvtx(0, 30, "step")],
    )

Every row function takes the times first and has a default for everything else: device 0, stream 7, process 1, thread 1,
which `place` replaces by the columns' names. A table that is not passed to `trace` counts as not recorded; one passed
as `[]` was recorded and is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from warplens.profile import TABLES, Capture, Device, Note, Trace
from warplens.profile.nesting import nest
from warplens.profile.schema import NAME, Table
from warplens.readers.kineto import KINETO
from warplens.readers.nsys import NSYS

Row = dict[str, Any]

MAIN_THREAD = 1
AUTOGRAD_THREAD = 2

#: Where work is, unless a test says so: what `**place` of the rows below may name.
_ON_DEVICE = {"device": 0, "stream": 7, "process": 1, "correlation": None}
_ON_THREAD = {"process": 1, "thread": MAIN_THREAD}
#: Tables whose rows lie inside one another.
_NESTED = ("ranges", "python_functions")


def kernel(
    start: int,
    end: int,
    name: str = "kernel",
    stream: int = 7,
    correlation: int | None = None,
    *,
    full_name: str | None = None,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (128, 1, 1),
    registers: int | None = 32,
    **place: int | None,
) -> Row:
    """One kernel execution; `full_name` is the short name unless given."""
    return {
        **_on_device(start, end, **{"graph_node": None, "stream": stream, "correlation": correlation, **place}),
        "name": name,
        "full_name": name if full_name is None else full_name,
        **dict(zip(("grid_x", "grid_y", "grid_z"), grid, strict=True)),
        **dict(zip(("block_x", "block_y", "block_z"), block, strict=True)),
        "registers_per_thread": registers,
        "static_shared_bytes": 0,
        "dynamic_shared_bytes": 0,
    }


def copy(
    start: int,
    end: int,
    direction: str = "host-to-device",
    size: int = 1024,
    *,
    source: str | None = "pageable",
    destination: str | None = "device",
    **place: int | None,
) -> Row:
    """One memory copy of `size` bytes."""
    return {
        **_on_device(start, end, **{"graph_node": None, **place}),
        "bytes": size,
        "direction": direction,
        "source_memory": source,
        "destination_memory": destination,
    }


def memset(start: int, end: int, size: int = 1024, *, memory: str | None = "device", **place: int | None) -> Row:
    """One memory fill of `size` bytes."""
    return {**_on_device(start, end, **{"graph_node": None, **place}), "bytes": size, "memory": memory}


def graph(start: int, end: int, *, graph_id: int | None = 1, **place: int | None) -> Row:
    """One CUDA graph execution that was traced as a whole."""
    return {**_on_device(start, end, **place), "graph": graph_id, "graph_exec": graph_id}


def call(start: int, end: int, name: str, correlation: int = 0, *, return_value: int | None = 0, **place: int) -> Row:
    """One CUDA API call of any kind."""
    return {
        **_on_thread(start, end, **place),
        "correlation": correlation,
        "name": name,
        "return_value": return_value,
    }


def launch(start: int, end: int, correlation: int, name: str = "cudaLaunchKernel", **place: int) -> Row:
    """The API call that launches the work with this correlation id."""
    return call(start, end, name, correlation, **place)


def sync(start: int, end: int, kind: str = "stream", **place: int | None) -> Row:
    """One wait of the host for the device, or of a stream for an event."""
    return {**_on_device(start, end, **place), "kind": kind}


def nvtx(start: int, end: int, name: str, *, kind: str = "push-pop", domain: int = 0, **place: int) -> Row:
    """One annotated range; its depth and parent follow from the times."""
    return {**_on_thread(start, end, **place), "name": name, "kind": kind, "domain": domain}


def allocation(time: int, delta: int, address: int | None = None, *, memory: str | None = "device", **at: Any) -> Row:
    """`delta` bytes allocated (positive) or freed (negative)."""
    place = {"process": 1, "device": 0, **at}
    return {"time_ns": time, **place, "address": address, "delta_bytes": delta, "memory": memory}


def os_call(start: int, end: int, name: str = "poll", **place: int) -> Row:
    """One blocking call into the operating system."""
    return {**_on_thread(start, end, **place), "name": name}


def overhead(start: int, end: int, name: str = "CUDA profiling", **place: int) -> Row:
    """One interval in which the profiler held a host thread up."""
    return os_call(start, end, name, **place)


def python_call(start: int, end: int, name: str, **place: int) -> Row:
    """One call of a Python function or module."""
    return os_call(start, end, name, **place)


def trace(
    kernels: Sequence[Row] | None = None,
    api: Sequence[Row] | None = None,
    ranges: Sequence[Row] | None = None,
    *,
    window_ns: tuple[int, int] | None = None,
    notes: Sequence[Note] = (),
    file_format: str = "nsys-sqlite",
    devices: Sequence[Device] | None = None,
    **others: Sequence[Row] | None,
) -> Trace:
    """A whole `Trace` of these rows, each table checked against its declaration.

    Args:
        window_ns: the recorded time; from the first start to the last end of any row unless given.
        notes: what the reader is supposed to have noticed.
        file_format: the format that the trace is supposed to have been read from.
        devices: the GPUs; those that the rows name unless given.
        others: further tables of a `Trace` by their names; a column that a row of theirs lacks is null.
    """
    rows = {"kernels": kernels, "api_calls": api, "ranges": ranges, **others}
    given = {
        name: _nested(table) if name in _NESTED else list(table) for name, table in rows.items() if table is not None
    }
    if devices is None:
        devices = [Device(ordinal=ordinal, name="Test GPU") for ordinal in _ordinals(given)]
    capture = Capture(
        source="synthetic",
        format=file_format,
        recorder=KINETO if file_format == "kineto-json" else NSYS,
        devices=tuple(devices),
        window_ns=_extent(given) if window_ns is None else window_ns,
        recorded=frozenset(given),
        notes=tuple(notes),
    )
    return Trace(capture, **{name: _frame(TABLES[name], table) for name, table in given.items()})


def _on_device(start: int, end: int, **place: int | None) -> Row:
    assert place.keys() <= {*_ON_DEVICE, "graph_node"}, place
    return {"start_ns": start, "end_ns": end, **_ON_DEVICE, **place}


def _on_thread(start: int, end: int, **place: int) -> Row:
    assert place.keys() <= _ON_THREAD.keys(), place
    return {"start_ns": start, "end_ns": end, **_ON_THREAD, **place}


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
            for values in [[row.get(column.name) for row in rows]]
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
