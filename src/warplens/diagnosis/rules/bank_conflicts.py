"""`bank-conflicts`: threads of a warp queue for the same bank of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.faultrule import counter_finding
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["bank_conflicts"]

_ID = "bank-conflicts"


def bank_conflicts(facts: Facts, claims: Claims) -> Finding | None:
    """Kernels whose shared-memory requests take more cycles than they need to."""
    gain = at_most(facts, claims.busy_ns(_ID), on_gpu=True)
    return counter_finding(
        facts,
        claims,
        _ID,
        title="Threads of a warp queue for the same banks of shared memory",
        remedies=(
            Remedy("Pad the tile", "__shared__ float tile[32][33]; instead of [32][32]", gain),
            Remedy("Swizzle it", "index column ^ (row % 32); CUTLASS: a swizzled shared-memory layout", gain),
        ),
        refute="Count conflicts after the change (ncu --section MemoryWorkloadAnalysis_Tables): none, at the same "
        "time, mean "
        "that shared memory was not the limit.",
    )
