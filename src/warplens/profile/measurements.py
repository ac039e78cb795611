"""Measurements of workloads without a profiler: the content of a measurements file, as frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.schema import Column

#: Outcomes of a cell. `incorrect`: a kernel that failed its check, and was therefore not timed.
STATUSES = ("measured", "out-of-memory", "unsupported", "incorrect", "failed")

#: Numeric members of a measurement plan; files of other tools may lack them.
PLAN = ("least", "most", "fewest", "most_ns", "precision", "confidence", "warmup_steps")

CELLS = table(
    "measured cells",
    "One cell of a measurements file. `warplens bench`; the cell's settings stand before these columns.",
    column(
        "status", dtype=pl.Enum(STATUSES), help="`measured`, `out-of-memory`, `unsupported`, `incorrect` or `failed`"
    ),
    "reason",
    column("launch", dtype=pl.String, help="how the step reached the GPU: `eager`, `compile` or `graph`"),
    column("unit", help="what a step processes"),
    "items samples",
    Column("rounds", pl.Int64, "number of turns of equal length; 1 if all were measured in one stretch"),
    "latency_ns",
    Column("latency_low_ns", pl.Int64, "lower end of that median's confidence interval; null with too few repetitions"),
    Column("latency_high_ns", pl.Int64, "upper end of it"),
    Column("latency_p5_ns", pl.Float64, "5th percentile of the wall times"),
    Column("latency_p95_ns", pl.Float64, "95th percentile"),
    Column("latency_p99_ns", pl.Float64, "99th percentile", title="p99"),
    column("gpu_ns").but(
        dtype=pl.Float64, help="median time between two CUDA events around the step; null without a GPU"
    ),
    Column("gpu_low_ns", pl.Int64, "lower end of its confidence interval"),
    Column("gpu_high_ns", pl.Int64, "upper end of it"),
    Column("throughput_per_s", pl.Float64, "`items` / `latency_ns`"),
    Column("sustained_per_s", pl.Float64, "`items` / mean wall time"),
    Column("macs", pl.Int64, "multiply-accumulates of a step, modelled from shapes; null where they are not known"),
    "flops flops_per_s",
    Column(
        "peak_allocated_bytes",
        pl.Int64,
        "most memory that tensors held; null in turns and without a GPU",
        title="Peak memory",
    ),
    Column("peak_reserved_bytes", pl.Int64, "most device memory that PyTorch reserved"),
    Column(
        "outliers",
        pl.Int64,
        "repetitions more than three interquartile ranges outside the quartiles; they stay in all figures",
    ),
    Column("drift_share", pl.Float64, "change of the median from the first third of the repetitions to the last"),
    Column("stopped", pl.String, "why there are not more repetitions: `precision`, `most repetitions` or `time`"),
    Column("doubts", pl.List(pl.String()), "why the figures may be misleading"),
    reason="why it is not `measured`; null if it is",
    flops="twice that",
    flops_per_s="`flops` / `gpu_ns`, or / `latency_ns` without a GPU",
)

CELL_PHASES = table(
    "measured phases",
    "One phase of the step of a measured cell.",
    "cell phase",
    column("time_ns").but(dtype=pl.Float64, help="median between the CUDA events at its ends; wall time on a CPU"),
    "low_ns high_ns",
    phase="`forward_pass`, `backward_pass`, `optimizer_step`, or a user's own",
)

SAMPLES = table(
    "repetitions",
    "One repetition of a measured cell on one clock.",
    "cell of index time_ns",
    time_ns="duration",
)


def device_name(environment: Mapping[str, Any]) -> str | None:
    """The GPU of measurements by their environment; None where it does not state one."""
    name = (environment.get("device") or {}).get("name")
    return str(name) if name else None


@dataclass(frozen=True, eq=False)
class Measurements:
    """A measurements file."""

    source: str
    workload: str  #: the workload: `lm`, `token-reduction`, `attention` or a user's own
    version: str  #: version of Warplens that wrote it
    command: str | None  #: command that repeats the measurement; None where unknown
    environment: Mapping[str, Any]  #: GPU, driver and versions (docs/reference/measurements.md)
    plan: Mapping[str, Any]  #: number of repetitions, and the criterion for stopping
    settings: tuple[str, ...]  #: names of the columns of `cells` that are settings
    cells: pl.DataFrame  #: one row per cell: its settings, then `CELLS`
    details: tuple[Mapping[str, Any], ...]  #: further facts about each cell, in the order of `cells`
    phases: pl.DataFrame  #: `CELL_PHASES`; `cell` is the row in `cells`
    samples: pl.DataFrame  #: `SAMPLES`; `of` is `wall`, `gpu`, `warmup` or a phase
    #: the two sides and the axes of a sweep, where the file states them: `axes`, `baseline`, `variant`
    sweep: Mapping[str, Any] | None = None
