"""`allocator-churn`: device memory is allocated and released inside the steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.facts import range_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import modelled, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["allocator_churn"]

_ID = "allocator-churn"


def allocator_churn(facts: Facts, claims: Claims) -> Finding | None:
    """Idle time in which the host was inside cudaMalloc, cudaFree and their kin, and there are some in every step."""
    calls = facts.host.allocations / facts.steps
    if calls < facts.thresholds.allocations_per_step:
        return None
    claimed = claims.idle_ns(_ID)
    whole = facts.phase is None
    return raised(
        facts,
        _ID,
        claimed,
        title="Memory is allocated and freed inside the steps, and the GPU waits for it",
        confidence="high" if facts.sure else "medium" if facts.window.steps else "low",
        evidence={
            "idle_ns": claimed,
            "idle_share": claimed / facts.wall_ns if facts.wall_ns else None,
            "allocation_calls_per_step": calls if whole else None,
            "allocation_call_ns_per_step": facts.host.allocation_ns / facts.steps if whole else None,
            "gpu_busy_share": facts.busy_share,
        },
        where=range_names(facts, facts.gaps["range"], claims.of_gaps(_ID)),
        remedies=(
            Remedy(
                "Let the caching allocator keep its memory",
                "remove torch.cuda.empty_cache() from the loop, unset PYTORCH_NO_CUDA_MEMORY_CACHING; outside of "
                "PyTorch use "
                "cudaMallocAsync with a pool whose release threshold is raised",
                modelled(facts, "cached-allocation", claimed),
            ),
            Remedy(
                "Stop it from running out and retrying",
                "PYTORCH_ALLOC_CONF=expandable_segments:True, or a smaller batch: an allocator at its limit frees its "
                "cache "
                "and synchronises (torch.cuda.memory_stats()['num_alloc_retries'])",
                modelled(facts, "cached-allocation", claimed),
            ),
            Remedy(
                "Reuse buffers",
                "allocate outputs once and pass them on (out=, copy_); pad inputs to few distinct shapes",
                modelled(facts, "cached-allocation", claimed),
            ),
        ),
        refute="Count cudaMalloc and cudaFree in a step after the change (warplens api): with none left and the same "
        "step "
        "time, something else held the GPU up.",
        issuing_ns=claims.issuing_ns.get(_ID, 0),
    )
