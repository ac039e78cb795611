"""`exposed-communication`: collectives that run while nothing computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["exposed_communication"]

_ID = "exposed-communication"


def exposed_communication(facts: Facts, claims: Claims) -> Finding | None:
    """Time of communication kernels in which no other kernel ran on their GPU."""
    claimed = claims.busy_ns(_ID)
    if not claimed:
        return None
    kernels = facts.work.select("start_ns", "end_ns", "own_ns", "device", "label").filter(
        pl.col("label") == "communication"
    )
    # What is hidden entirely owns no time, and is not in the table: the share is that of those which show.
    lasting = int((kernels["end_ns"] - kernels["start_ns"]).sum())
    by_device = kernels.group_by("device").agg(pl.col("own_ns").sum())["own_ns"]
    uneven = float(by_device.max()) / float(by_device.min()) if by_device.len() > 1 and by_device.min() else None  # type: ignore[arg-type]
    return raised(
        facts,
        _ID,
        claimed,
        title="Collectives run while nothing computes",
        confidence="high" if facts.sure else "medium" if facts.window.steps else "low",
        evidence={
            "exposed_ns": claimed,
            "exposed_share": claimed / facts.wall_ns if facts.wall_ns else None,
            "exposed_of_their_time_share": claimed / lasting if lasting else None,
            "collectives_per_step": kernels.height / facts.steps,
            "most_to_least_exposed_gpu_factor": uneven,
        },
        where=kernel_names(facts, claims.of_work(_ID)),
        remedies=(
            Remedy(
                "Overlap it with the backward pass",
                "DistributedDataParallel(model, bucket_cap_mb=…, gradient_as_bucket_view=True, static_graph=True); "
                "FSDP: "
                "backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True",
                at_most(facts, claimed, on_gpu=True),
            ),
            Remedy(
                "Communicate less",
                "accumulate gradients (with model.no_sync():), or reduce them in bfloat16 "
                "(model.register_comm_hook(dist.group.WORLD, default_hooks.bf16_compress_hook))",
                f"{at_most(facts, claimed, on_gpu=True)}; in proportion to the bytes",
            ),
            Remedy(
                "Look for a straggler",
                "compare the ranks (warplens report RANK0 RANK1): a collective lasts until the slowest rank arrives",
                "the waiting part of the collectives goes away with its cause",
            ),
        ),
        refute="Run one step inside model.no_sync(): it must get faster by the exposed time.",
        on_gpu=True,
    )
