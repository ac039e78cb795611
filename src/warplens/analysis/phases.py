"""Forward, backward, optimizer: which part of a training step GPU work belongs to, from the names of its ranges.

Work belongs to the phase of its *outermost* range that is named after one: a forward pass recomputed inside the
backward pass (activation checkpointing) is backward work. Backward kernels are launched by another thread than the one
that holds `backward` open; they arrive there by the waiting-thread rule and are counted as inferred.

Profiles with a framework's operators name the backward pass in any case (autograd's engine). Where nobody annotated the
forward pass, the operators that lead to a backward pass make it up, and their work counts as inferred, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.categories import categories_of
from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.operators.forwardpass import forward_pass
from warplens.analysis.phasenames import NO_PHASE, PHASES, phase_of_name
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.schema import name_categories

__all__ = ["NO_PHASE", "PHASES", "PHASE_SCHEMA", "phase_of_work", "phase_statistics", "phase_steps"]

Int64s = npt.NDArray[np.int64]

PHASE: Final = pl.Enum([NO_PHASE, *PHASES])

#: One row a phase. `gpu_ns` sums durations, `busy_ns` is their interval union on one device after the other,
#: `matmul_ns` is the part of `gpu_ns` in GEMM kernels; `share` is of the window's summed GPU time.
PHASE_SCHEMA = pl.Schema(
    {
        "phase": pl.String(),
        "gpu_ns": pl.Int64(),
        "inferred_ns": pl.Int64(),
        "busy_ns": pl.Int64(),
        "kernel_ns": pl.Int64(),
        "matmul_ns": pl.Int64(),
        "kernels": pl.Int64(),
        "ops": pl.Int64(),
        "share": pl.Float64(),
    }
)

#: One row a step: its wall time and the GPU time of each phase inside it.
PHASE_STEP_SCHEMA = pl.Schema(
    {"step": pl.Int64(), "wall_ns": pl.Int64(), **{f"{phase}_ns": pl.Int64() for phase in (*PHASES, NO_PHASE)}}
)


def phase_of_work(timeline: Timeline) -> pl.Series:
    """The phase of each row of `Timeline.work` (dtype `PHASE`)."""
    return _phases(timeline)[0]


def _phases(timeline: Timeline) -> tuple[pl.Series, npt.NDArray[np.bool_]]:
    """The phase of each row of `Timeline.work`, and whether no name says so."""
    ranges = timeline.trace.ranges
    phases = pl.Series("phase", [NO_PHASE, *PHASES], dtype=PHASE)
    if not ranges.height:
        return phases.gather(np.zeros(timeline.work.height, np.int64)), np.zeros(timeline.work.height, dtype=np.bool_)
    numbers = {phase: number for number, phase in enumerate((NO_PHASE, *PHASES))}
    by_name = np.array([numbers[phase_of_name(name)] for name in name_categories(ranges["name"])], dtype=np.int64)
    named = by_name[ranges["name"].to_physical().to_numpy()]
    labels = timeline.forest.outermost_match(named)
    unnamed = np.zeros(len(labels), dtype=np.bool_)
    if not (labels == numbers["forward"]).any():
        unnamed = (labels == numbers[NO_PHASE]) & forward_pass(timeline)
        labels = np.where(unnamed, numbers["forward"], labels)
    held = timeline.work["range"].fill_null(NO_RANGE).to_numpy()
    return phases.gather(np.r_[labels, 0][held]), np.r_[unnamed, False][held]


def phase_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """The GPU work of each phase in the window (`PHASE_SCHEMA`), in order, `none` last.

    Phases without work are left out.
    """
    work = _work_with_phase(timeline, window)
    if not work.height:
        return pl.DataFrame(schema=PHASE_SCHEMA)
    duration = pl.col("end_ns") - pl.col("start_ns")
    is_kernel = pl.col("kind") == "kernel"
    sums = work.group_by("phase").agg(
        duration.sum().alias("gpu_ns"),
        duration.filter("inferred").sum().alias("inferred_ns"),
        duration.filter(is_kernel).sum().alias("kernel_ns"),
        duration.filter(pl.col("matmul")).sum().alias("matmul_ns"),
        is_kernel.sum().cast(pl.Int64).alias("kernels"),
        pl.len().cast(pl.Int64).alias("ops"),
    )
    order = {phase: position for position, phase in enumerate((*PHASES, NO_PHASE))}
    busy = {phase: _busy_ns(work.filter(pl.col("phase") == phase), window) for phase in sums["phase"]}
    return (
        sums.with_columns(
            pl.col("phase").cast(pl.String),
            pl.Series("busy_ns", [busy[phase] for phase in sums["phase"]]),
            (pl.col("gpu_ns") / max(1, int(sums["gpu_ns"].sum()))).alias("share"),
        )
        .sort(pl.col("phase").replace_strict(order))
        .select(PHASE_SCHEMA.names())
        .cast(PHASE_SCHEMA)
    )


def phase_steps(timeline: Timeline, window: Window) -> pl.DataFrame:
    """GPU time of each phase in each step of the window (`PHASE_STEP_SCHEMA`); empty where there are no steps."""
    if not window.steps:
        return pl.DataFrame(schema=PHASE_STEP_SCHEMA)
    work = _work_with_phase(timeline, window)
    starts = np.array([step.start_ns for step in window.steps])
    ends = np.array([step.end_ns for step in window.steps])
    begun = work["start_ns"].to_numpy()
    place = np.searchsorted(starts, begun, side="right") - 1
    inside = (place >= 0) & (begun < ends[np.maximum(place, 0)])
    duration = (work["end_ns"] - work["start_ns"]).to_numpy()
    # Phase and step as one number, so that one pass sums all of them.
    code = work["phase"].to_physical().to_numpy().astype(np.int64)
    sums = np.zeros((len(PHASE.categories), len(starts)), dtype=np.int64)
    np.add.at(sums.reshape(-1), code[inside] * len(starts) + place[inside], duration[inside])
    columns = {f"{name}_ns": sums[number] for number, name in enumerate(PHASE.categories)}
    return pl.DataFrame(
        {"step": [step.index for step in window.steps], "wall_ns": ends - starts, **columns}, schema=PHASE_STEP_SCHEMA
    )


def _work_with_phase(timeline: Timeline, window: Window) -> pl.DataFrame:
    is_gemm = (categories_of(timeline.trace.kernels["full_name"]) == "gemm").to_numpy()
    rows = timeline.work_rows_in(window)
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "device", "inferred")[rows]
    kernel = (work["kind"] == "kernel").to_numpy()
    matmul = np.zeros(work.height, dtype=np.bool_)
    matmul[kernel] = is_gemm[work["row"].to_numpy()[kernel]]
    phase, unnamed = _phases(timeline)
    inferred = work["inferred"] | pl.Series(unnamed[rows])
    return work.with_columns(phase[rows], inferred.alias("inferred"), pl.Series("matmul", matmul))


def _busy_ns(work: pl.DataFrame, window: Window) -> int:
    starts, ends, device = (work[column].to_numpy() for column in ("start_ns", "end_ns", "device"))
    return sum(
        total(union(clip(Intervals(starts[device == number], ends[device == number]), window.start_ns, window.end_ns)))
        for number in work["device"].unique()
    )
