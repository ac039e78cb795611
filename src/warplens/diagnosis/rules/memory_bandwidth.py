"""`memory-bandwidth`: the GPU is busy moving data rather than computing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.spread import number
from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.kernelclaims import moves_data
from warplens.diagnosis.raising import at_most, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Confidence, Finding

__all__ = ["memory_bandwidth"]

_ID = "memory-bandwidth"


def memory_bandwidth(facts: Facts, claims: Claims) -> Finding | None:
    """Kernels at the memory's roof (measured), or of kinds that hardly compute (inferred), on a busy GPU.

    What can be saved is what a chain of them costs beyond one pass. Where they do not dominate, that only informs.
    """
    moving = moves_data(facts)
    time = int(facts.work["own_ns"].filter(moving).sum())
    share = time / facts.wall_ns if facts.wall_ns else 0.0
    measured_ns = facts.own_ns(pl.col("bound").is_not_null())
    kernels_ns = facts.own_ns(pl.col("kind") == "kernel")
    measured = measured_ns >= facts.thresholds.counters_share * max(kernels_ns, 1)
    dominates = share >= facts.thresholds.bandwidth_share
    confidence: Confidence = "high" if measured else "medium" if dominates else "low"
    shares = facts.work["bound_share"].filter(moving).drop_nulls()
    return raised(
        facts,
        _ID,
        claims.busy_ns(_ID),
        title="The GPU is busy with kernels that move data through memory rather than compute"
        + ("" if measured else " (inferred from their kind)"),
        confidence=confidence,
        evidence={
            "memory_kernels_ns": time,
            "memory_kernels_share": share,
            "fusible_ns": claims.busy_ns(_ID),
            "gpu_busy_share": facts.busy_share,
            "measured_of_kernel_time_share": measured_ns / kernels_ns if kernels_ns and measured_ns else None,
            "memory_roof_median_share": number(shares.median()),
        },
        where=kernel_names(facts, facts.work["own_ns"] * moving),
        remedies=(
            Remedy(
                "Fuse chains of elementwise work",
                "model = torch.compile(model); fused operators: torch.nn.functional.scaled_dot_product_attention, "
                "rms_norm, layer_norm, gelu(approximate='tanh'), cross_entropy",
                f"{at_most(facts, claims.busy_ns(_ID), on_gpu=True)}: one pass over the data where there are several",
            ),
            Remedy(
                "Move fewer bytes",
                "bfloat16 instead of fp32 activations (torch.autocast('cuda', dtype=torch.bfloat16)); in-place "
                "operations; "
                "no .contiguous() or .float() that nothing needs",
                "half of the time of these kernels with numbers half as wide",
            ),
        ),
        refute="Collect counters for the largest of them (ncu --set roofline -k NAME, then warplens diagnose "
        "--counters): far "
        "below the memory's roof, they wait for something else.",
        on_gpu=True,
        informs=not dominates,
    )
