"""Small `KernelCounters` from literals, for tests whose right answer is worked out by hand.

    counters(launch(sm=70.0, memory=20.0, grid=1000), launch(name="copy"))

The device is an H100-like one of compute capability 9.0 with 132 multiprocessors, unless a launch says otherwise.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.shipped import OTHERS
from warplens.profile import Capture, Device
from warplens.profile.counters import LAUNCHES, KernelCounters, Session
from warplens.profile.schema import NAME
from warplens.readers.ncu import NCU

SHARED = OTHERS / "ncu"

COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"

needs_reports = pytest.mark.skipif(not SHARED.is_dir(), reason="the reports of other people are not here")


def launch(
    name: str = "kernel",
    *,
    grid: int | tuple[int, int, int] = 10_000,
    block: int | tuple[int, int, int] = 256,
    registers: int | None = 32,
    static_shared: int = 0,
    dynamic_shared: int = 0,
    barriers: int = 1,
    capability: tuple[int, int] = (9, 0),
    sms: int | None = 132,
    ns: float | None = 10_000.0,
    sm: float | None = None,
    memory: float | None = None,
    **metrics: float | str | None,
) -> dict[str, Any]:
    """One launch. Further metrics by name, with `__` and `.` as they are (pass them as `**{"l1tex__…": 1.0}`)."""
    grid_size = grid if isinstance(grid, tuple) else (grid, 1, 1)
    block_size = block if isinstance(block, tuple) else (block, 1, 1)
    configured: dict[str, Any] = {
        "gpu__time_duration.sum": ns,
        COMPUTE: sm,
        MEMORY: memory,
        "device__attribute_compute_capability_major": capability[0],
        "device__attribute_compute_capability_minor": capability[1],
    }
    if registers is not None:
        configured |= {
            "launch__block_size": block_size[0] * block_size[1] * block_size[2],
            "launch__registers_per_thread": registers,
            "launch__shared_mem_per_block_static": static_shared,
            "launch__shared_mem_per_block_dynamic": dynamic_shared,
            "launch__barrier_count": barriers,
            "launch__sm_count": sms,
        }
    return {"name": name, "grid": grid_size, "block": block_size, "metrics": configured | metrics}


def counters(*launches: dict[str, Any], session: Session | None = None) -> KernelCounters:
    """A report of these launches; a metric that one of them lacks is null there."""
    names = list(dict.fromkeys(entry["name"] for entry in launches))
    rows = [
        {
            "launch": number,
            "kind": "kernel",
            "name": entry["name"],
            "full_name": entry["name"],
            "device": 0,
            "context": 1,
            "stream": 7,
            "process": 1,
            **{f"grid_{axis}": size for axis, size in zip("xyz", entry["grid"], strict=True)},
            **{f"block_{axis}": size for axis, size in zip("xyz", entry["block"], strict=True)},
            "nvtx": None,
        }
        for number, entry in enumerate(launches)
    ]
    schema = {c.name: pl.Enum(names) if c.dtype is NAME else c.dtype for c in LAUNCHES.columns}
    columns = list(dict.fromkeys(metric for entry in launches for metric in entry["metrics"]))
    metrics = {}
    for column in columns:
        values = [entry["metrics"].get(column) for entry in launches]
        is_text = any(isinstance(value, str) for value in values)
        metrics[column] = pl.Series(column, values, dtype=pl.String if is_text else pl.Float64, strict=False)
    device = Device(0, "NVIDIA H100", compute_capability=(9, 0), sm_count=132)
    return KernelCounters(
        Capture("hand.ncu-rep", "ncu-rep", NCU, "2025.3.1", devices=(device,)),
        session or Session(),
        pl.DataFrame(rows, schema=schema),
        pl.DataFrame(metrics),
    )
