"""`unfused-optimizer`: the optimizer launches several kernels for each parameter tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.optimizer import is_unfused, optimizer_work
from warplens.diagnosis.raising import at_most, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["unfused_optimizer"]

_ID = "unfused-optimizer"


def unfused_optimizer(facts: Facts, claims: Claims) -> Finding | None:
    """The launch pauses of the optimizer, and what a fused one saves of its kernels' memory traffic."""
    if not is_unfused(facts):
        return None
    found = optimizer_work(facts)
    claimed = claims.total_ns(_ID)
    mine = facts.work["phase"] == "optimizer"
    part = facts.of_phase("optimizer")
    wall = part.wall_ns
    return raised(
        facts,
        _ID,
        claimed,
        title="The optimizer goes from tensor to tensor, with several kernels for each",
        confidence="high" if facts.sure else "medium",
        evidence={
            "optimizer_share": wall / facts.wall_ns if facts.wall_ns else None,
            "optimizer_ns_per_step": wall / facts.steps,
            "launches_per_step": found.launches / facts.steps,
            "single_tensor_launches_share": found.single_tensor / found.launches,
            "parameter_tensors_count": found.updates / facts.steps if found.updates else None,
            "launches_per_tensor_factor": found.launches / found.updates if found.updates else None,
            "idle_ns": claims.idle_ns(_ID),
            "saved_kernel_ns": claims.busy_ns(_ID),
        },
        where=kernel_names(facts, facts.work["own_ns"] * mine),
        remedies=(
            Remedy(
                "Use the fused optimizer",
                "torch.optim.AdamW(model.parameters(), lr=…, fused=True)",
                f"{at_most(facts, claimed)}: one pass over the parameters in a handful of launches",
            ),
            Remedy(
                "Let it work on all tensors at once",
                "torch.optim.AdamW(…, foreach=True), or in an own optimizer the torch._foreach_* functions; or "
                "torch.compile(optimizer.step)",
                "launches fall from several a tensor to a few in all; memory traffic stays",
            ),
        ),
        refute="Skip optimizer.step() in a test run: the step must get faster by the optimizer's share.",
        issuing_ns=claims.issuing_ns[_ID],
    )
