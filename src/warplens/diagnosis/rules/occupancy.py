"""`occupancy`: kernels that wait, with too few warps resident to hide it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.faultrule import counter_finding
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["occupancy"]

_ID = "occupancy"


def occupancy(facts: Facts, claims: Claims) -> Finding | None:
    """Kernels far from every roof whose occupancy is low and limited by registers, shared memory or block size."""
    gain = at_most(facts, claims.busy_ns(_ID), on_gpu=True)
    limiters = facts.work.filter(claims.of_work(_ID) > 0)["limiter"].drop_nulls()
    named = str(limiters.mode().sort().first()) if limiters.len() else None
    return counter_finding(
        facts,
        claims,
        _ID,
        title="Kernels wait with too few warps to hide it" + (f" (limited by {named})" if named else ""),
        remedies=(
            Remedy(
                "Use fewer registers, or less shared memory, a block",
                "__launch_bounds__(threads, blocks), -maxrregcount; in Triton a smaller BLOCK size, num_stages or "
                "num_warps",
                gain,
            ),
            Remedy(
                "Choose another block size", "one that divides the warps of a multiprocessor, 128 to 256 threads", gain
            ),
        ),
        refute="Launch the kernel with fewer registers: if it is as fast as before, instructions within a warp hide "
        "the "
        "latency already.",
    )
