"""`uncoalesced`: a part of every memory transaction is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.faultrule import counter_finding
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["uncoalesced"]

_ID = "uncoalesced"


def uncoalesced(facts: Facts, claims: Claims) -> Finding | None:
    """Kernels that move more sectors than their threads use."""
    gain = at_most(facts, claims.busy_ns(_ID), on_gpu=True)
    return counter_finding(
        facts,
        claims,
        _ID,
        title="Kernels move memory sectors of which a part is not used",
        remedies=(
            Remedy(
                "Let neighbouring threads read neighbouring numbers",
                "store structures of arrays, transpose once (x.t().contiguous()) rather than in every access; in "
                "Triton let "
                "the fastest index of tl.arange run along the contiguous dimension",
                gain,
            ),
            Remedy("Load vectors", "float4 or half8 loads from addresses aligned to 16 bytes", gain),
        ),
        refute="Count sectors per request after the change (ncu --section MemoryWorkloadAnalysis_Tables): fewer "
        "sectors at the "
        "same time mean that the traffic was not the limit.",
    )
