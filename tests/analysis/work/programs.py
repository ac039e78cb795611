"""Small synthetic traces of a framework's operators, with the shapes that they record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.analysis.builders import MAIN_THREAD, Row, kernel, launch, nvtx, trace
from warplens.analysis.timeline import Timeline
from warplens.profile import Device

#: A GPU whose roofs are in the table of peaks.
H200 = Device(ordinal=0, name="NVIDIA H200")


def operator(
    start: int,
    end: int,
    name: str,
    shapes: list[Any] | None = None,
    types: list[str] | None = None,
    values: list[str] | None = None,
    *,
    thread: int = MAIN_THREAD,
) -> Row:
    """One operator and its inputs; every tensor is `float` unless types are given."""
    if shapes is not None and types is None:
        types = ["TensorList" if shape and isinstance(shape[0], list) else "float" for shape in shapes]
    return {
        **nvtx(start, end, name, thread=thread, kind="cpu-op"),
        "input_shapes": None if shapes is None else json.dumps(shapes),
        "input_types": None if types is None else json.dumps(types),
        "concrete_inputs": None if values is None else json.dumps(values),
    }


def program(
    operators: Sequence[Row],
    kernels: Sequence[Row],
    api: Sequence[Row],
    *,
    allocations: Sequence[Row] | None = None,
    device: Device = H200,
    **tables: Any,
) -> Timeline:
    """A timeline of these operators; kernels and API calls are joined by correlation ids, as everywhere."""
    recorded = [{**row, "range": place} for place, row in enumerate(operators)]
    return Timeline(
        trace(kernels, api, operators, operators=recorded, allocations=allocations, devices=[device], **tables)
    )


def block(time: int, delta: int, address: int, allocated: int | None, reserved: int | None = 10_000, **at: Any) -> Row:
    """One allocation or release by the framework's allocator."""
    return {
        "time_ns": time,
        "process": 1,
        "thread": MAIN_THREAD,
        "device": 0,
        "address": address,
        "delta_bytes": delta,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        **at,
    }


def launched(start: int, end: int, correlation: int, at: int, name: str = "sgemm_tn") -> tuple[Row, Row]:
    """A kernel, and the API call that launches it at this time."""
    return kernel(start, end, name, correlation=correlation), launch(at, at + 1, correlation)
