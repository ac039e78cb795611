"""`host-sync`: the host lets the GPU run dry by waiting for it, then has to refill it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.diagnosis.claims import waits_inside
from warplens.diagnosis.facts import range_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import modelled, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["host_sync"]

_ID = "host-sync"


def host_sync(facts: Facts, claims: Claims) -> Finding | None:
    """Pauses that began while the host waited for the GPU, until it had issued the next work.

    One wait at the end of a step is normal; what it costs is named, but never as more than an information.
    """
    claimed = claims.total_ns(_ID)
    waits = facts.host.waits / facts.steps
    whole = facts.phase is None
    inside = waits_inside(facts)
    return raised(
        facts,
        _ID,
        claimed,
        title="The host waits for the GPU to run dry, and then has to refill it",
        confidence="high" if facts.sure and inside else "medium",
        evidence={
            "idle_ns": claims.idle_ns(_ID),
            "idle_share": claims.idle_ns(_ID) / facts.wall_ns if facts.wall_ns else None,
            "readback_ns": claims.busy_ns(_ID),
            "gpu_busy_share": facts.busy_share,
            "waits_per_step": waits if whole else None,
            "readbacks_per_step": facts.host.readbacks / facts.steps if whole else None,
            "idle_ns_per_wait": claimed / facts.host.waits if whole and facts.host.waits else None,
            "host_waiting_share": facts.host.waited_ns / facts.window.duration_ns if whole else None,
        },
        where=range_names(facts, facts.gaps["range"], claims.of_gaps(_ID)),
        remedies=(
            Remedy(
                "Read results back less often, or not inside the step",
                "keep the value on the GPU (loss_sum += loss.detach()) and call .item() once every N steps; replace "
                "`if tensor:`, .item(), .cpu(), .tolist(), nonzero() and boolean masks inside the model "
                "(torch.where, index_select with fixed sizes)",
                modelled(facts, "no-synchronization", claimed),
            ),
            Remedy(
                "Find every one of them",
                "torch.cuda.set_sync_debug_mode('warn') prints a traceback at each synchronising operation; remove "
                "torch.cuda.synchronize() that is left from timing",
                "a list of the lines to change",
            ),
            Remedy(
                "Read back one step late",
                "out = torch.empty(…, pin_memory=True); out.copy_(loss, non_blocking=True); event.record(); read `out` "
                "after event.synchronize() in the next step",
                "the wait then finds the copy done",
            ),
        ),
        refute="Remove the waits (or keep the read values on the GPU): if the step takes as long as before, the host's "
        "pace was the limit, and this is launch-overhead.",
        informs=not inside,
        issuing_ns=claims.issuing_ns[_ID],
    )
