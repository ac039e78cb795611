"""`divergence`: warps run with only a part of their threads active."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.faultrule import counter_finding
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["divergence"]

_ID = "divergence"


def divergence(facts: Facts, claims: Claims) -> Finding | None:
    """Kernels whose instructions serve few threads each: branches that differ inside a warp, or blocks of odd sizes."""
    gain = at_most(facts, claims.busy_ns(_ID), on_gpu=True)
    return counter_finding(
        facts,
        claims,
        _ID,
        title="Instructions serve only a part of each warp's threads",
        remedies=(
            Remedy(
                "Group work alike", "sort or bucket items by the branch that they take, one kernel for each case", gain
            ),
            Remedy(
                "Use whole warps", "block sizes in multiples of 32; loop bounds that do not depend on the thread", gain
            ),
        ),
        refute="Count active threads per instruction after the change (ncu --section WarpStateStats): more of them, at "
        "the "
        "same time, mean that issuing was not the limit.",
    )
