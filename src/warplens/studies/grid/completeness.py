"""Whether the steps of a grid cell ran to their end: what an aborted step measures is no time of that cell.

An out-of-memory error leaves a forward pass without its backward pass, a backward pass without its optimizer, or an
optimizer that finds no gradients and skips every parameter. All of them look like a fast step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kind
from warplens.analysis.quality import aborted_steps
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import NO_PHASE, PHASES
from warplens.profile.schema import name_categories
from warplens.studies.grid.models import MODEL_SIZES, ModelSize
from warplens.studies.grid.passes import PhasedWork

#: Repetitions of one program run the same kernels, but for a few (a reduction split differently, an occasional print).
#: A phase with less than this part of the most kernels that it has in any step was cut short.
_WHOLE_PHASE: Final = 0.9

#: An optimizer at least reads each gradient and reads and writes each parameter, two bytes each in the shortest type.
_LEAST_OPTIMIZER_BYTES_PER_PARAMETER: Final = 6

#: Work outside of the named phases is a phase without a name only above this share of the GPU time; what lies below it
#: is a loss that is read back, or gradients that are cleared.
_WORK_OF_A_PHASE: Final = 0.02

#: `cudaErrorMemoryAllocation` and `CUDA_ERROR_OUT_OF_MEMORY`.
_OUT_OF_MEMORY: Final = 2

#: The phases that one step has, by what it is said to do.
_EXPECTED: Final = {"forward": PHASES[:1], "forward+backward": PHASES[:2], "train": PHASES}


def incomplete_steps(
    timeline: Timeline, phased: PhasedWork, mode: str, size: ModelSize | None, peak_bytes_per_s: int | None
) -> tuple[str, ...]:
    """Why the steps cannot stand for their cell, one sentence each; empty where nothing speaks against them.

    Args:
        mode: what one step is said to do (`warplens.studies.grid.cells.MODES`).
        peak_bytes_per_s: memory bandwidth of the device, where known.
    """
    if mode == "forward" or not phased.steps or unnamed_phases(phased, mode):
        return ()
    reasons = _absent_phases(phased, mode) + _unequal_phases(phased)
    forward = phased.phases.filter((pl.col("phase") == "forward") & (pl.col("gpu_ns") > pl.col("wall_ns")))
    if forward.height:
        reasons.append(f"in {_steps(forward.height, phased)} the forward pass has more GPU time than the step is long")
    if not reasons:
        window = replace(timeline.window("all"), steps=phased.steps)
        reasons += [reason for aborted in aborted_steps(timeline, window) for reason in aborted.reasons]
    if mode == "train" and size and peak_bytes_per_s:
        least_ns = _LEAST_OPTIMIZER_BYTES_PER_PARAMETER * size.parameters / peak_bytes_per_s * 1e9
        spent = phased.phases.filter((pl.col("phase") == "optimizer") & (pl.col("ops") > 0))["gpu_ns"]
        if spent.len() and float(np.median(spent.to_numpy())) < least_ns:
            reasons.append("its optimizer is faster than the memory can read the gradients: it skipped parameters")
    return tuple(dict.fromkeys(reasons))


def unnamed_phases(phased: PhasedWork, mode: str) -> tuple[str, ...]:
    """The phases that the steps must have and that no range of the profile names, though GPU work is there for them.

    A step that was cut short names its phases, too, up to where it ended; it leaves no work outside of them.
    """
    unnamed = tuple(phase for phase in _EXPECTED[mode] if phase not in phased.phases_seen)
    if not phased.phases_seen:
        return unnamed
    outside = phased.phases.filter(pl.col("phase") == NO_PHASE)["gpu_ns"].sum()
    return unnamed if outside > _WORK_OF_A_PHASE * int(phased.phases["gpu_ns"].sum()) else ()


def incomplete_layers(phased_layers: int | None, model: str) -> str | None:
    """Why a forward pass with so few attention layers cannot be this model's; None where it can."""
    layers = [size.layers for size in MODEL_SIZES if size.name == model]
    if phased_layers is None or not layers or phased_layers >= min(layers):
        return None
    return (
        f"its forward pass holds {phased_layers} of the {min(layers)} attention layers of {model}: "
        "it was cut short, or it is another model (name it with --cell)"
    )


def failed_allocations(timeline: Timeline) -> int:
    """How many memory allocations failed for lack of memory, as far as the API calls were recorded."""
    calls = timeline.trace.api_calls
    allocating = [name for name in name_categories(calls["name"]) if api_kind(name) == "allocation"]
    failed = calls.filter((pl.col("return_value") == _OUT_OF_MEMORY) & pl.col("name").cast(pl.String).is_in(allocating))
    return failed.height


def _steps(count: int, phased: PhasedWork) -> str:
    total = len(phased.steps)
    return f"{count} of {total} steps" if total > 1 else "the only step"


def _absent_phases(phased: PhasedWork, mode: str) -> list[str]:
    """Phases without any GPU work, by the steps that lack them."""
    idle = (
        phased.phases.filter(pl.col("phase").is_in(_EXPECTED[mode]) & (pl.col("ops") == 0))
        .group_by("step", maintain_order=True)
        .agg(pl.col("phase").str.join(" and no "))
        .group_by("phase", maintain_order=True)
        .len()
    )
    return [f"{_steps(count, phased)} had no {phases} work on the GPU" for phases, count in idle.rows()]


def _unequal_phases(phased: PhasedWork) -> list[str]:
    """Phases that were cut short in some step, measured by the kernels that they run in the others."""
    most = pl.col("kernels").max().over("phase")
    short = phased.phases.filter(
        pl.col("phase").is_in(PHASES) & (pl.col("kernels") > 0) & (pl.col("kernels") < _WHOLE_PHASE * most)
    )
    whole = dict(phased.phases.group_by("phase").agg(pl.col("kernels").max()).rows())
    return [
        f"the {row['phase']} of step {row['step']} runs {row['kernels']:,} of {whole[row['phase']]:,} kernels"
        for row in short.iter_rows(named=True)
    ]
