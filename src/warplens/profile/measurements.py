"""Measurements of workloads without a profiler: what a measurements file holds, as frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

__all__ = ["MEASUREMENT_SCHEMA", "PHASE_SCHEMA", "SAMPLE_SCHEMA", "STATUSES", "Measurements"]

#: What may have become of a cell. `incorrect`: a kernel that failed its check, and was therefore not timed.
STATUSES = ("measured", "out-of-memory", "unsupported", "incorrect", "failed")

#: One row a cell; in `Measurements.cells` the cell's settings stand before these columns.
MEASUREMENT_SCHEMA = pl.Schema(
    {
        "status": pl.Enum(STATUSES),
        "reason": pl.String(),
        "launch": pl.String(),
        "unit": pl.String(),
        "items": pl.Int64(),
        "samples": pl.Int64(),
        "rounds": pl.Int64(),
        "latency_ns": pl.Float64(),
        "latency_low_ns": pl.Int64(),
        "latency_high_ns": pl.Int64(),
        "latency_p5_ns": pl.Float64(),
        "latency_p95_ns": pl.Float64(),
        "latency_p99_ns": pl.Float64(),
        "gpu_ns": pl.Float64(),
        "gpu_low_ns": pl.Int64(),
        "gpu_high_ns": pl.Int64(),
        "throughput_per_s": pl.Float64(),
        "sustained_per_s": pl.Float64(),
        "macs": pl.Int64(),
        "flops": pl.Int64(),
        "flops_per_s": pl.Float64(),
        "peak_allocated_bytes": pl.Int64(),
        "peak_reserved_bytes": pl.Int64(),
        "outliers": pl.Int64(),
        "drift_share": pl.Float64(),
        "stopped": pl.String(),
        "doubts": pl.List(pl.String()),
    }
)

#: One row a phase of a cell's step.
PHASE_SCHEMA = pl.Schema(
    {
        "cell": pl.Int64(),
        "phase": pl.String(),
        "time_ns": pl.Float64(),
        "low_ns": pl.Int64(),
        "high_ns": pl.Int64(),
    }
)

#: One row a repetition and clock, in the order in which they were taken.
SAMPLE_SCHEMA = pl.Schema({"cell": pl.Int64(), "of": pl.String(), "index": pl.Int64(), "time_ns": pl.Int64()})


@dataclass(frozen=True, eq=False)
class Measurements:
    """A measurements file.

    Attributes:
        source: its name.
        workload: what was measured: `lm`, `token-reduction`, `attention` or a user's own.
        version: of Warplens that wrote it.
        command: that makes the same again; None where it is not known.
        environment: GPU, driver and versions (docs/reference/measurements.md).
        plan: how often was repeated, and when it was enough.
        settings: names of the columns of `cells` that are settings.
        cells: one row a cell: its settings, then `MEASUREMENT_SCHEMA`.
        details: further facts about each cell, in the order of `cells`.
        phases: `PHASE_SCHEMA`; `cell` is the row in `cells`.
        samples: `SAMPLE_SCHEMA`; `of` is `wall`, `gpu`, `warmup` or a phase.
        sweep: which cells are the two sides of a sweep, and its axes, where the file says so: `axes`, `baseline`,
            `variant`.
    """

    source: str
    workload: str
    version: str
    command: str | None
    environment: Mapping[str, Any]
    plan: Mapping[str, Any]
    settings: tuple[str, ...]
    cells: pl.DataFrame
    details: tuple[Mapping[str, Any], ...]
    phases: pl.DataFrame
    samples: pl.DataFrame
    sweep: Mapping[str, Any] | None = None
