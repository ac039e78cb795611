"""`graph-opaque`: CUDA graphs traced as a whole hide what the GPU was busy with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.diagnosis.findings import Finding, Remedy

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts

__all__ = ["graph_opaque"]

#: Hidden time below this share of the window changes no ranking of causes.
_HIDDEN_SHARE = 0.02


def graph_opaque(facts: Facts, claims: Claims) -> Finding | None:
    """Busy time inside CUDA graphs of which no node was recorded. It informs."""
    hidden = facts.own_ns(pl.col("kind") == "graph")
    if hidden < _HIDDEN_SHARE * facts.wall_ns:
        return None
    launches = int((facts.work["kind"] == "graph").sum())
    return Finding(
        "graph-opaque",
        "The GPU is busy inside CUDA graphs that were traced as a whole: with what, the profile does not tell",
        "info",
        "high",
        None,
        {
            "hidden_ns": hidden,
            "hidden_share": hidden / facts.wall_ns,
            "graph_launches_per_step": launches / facts.steps,
            "gpu_busy_share": facts.busy_share,
        },
        (),
        (
            Remedy(
                "Record the graphs' nodes",
                "nsys profile --cuda-graph-trace=node --trace=cuda,nvtx …",
                "kernels, grids and pauses inside the graphs; each replay gets a little slower while it is recorded",
            ),
        ),
        "Record with node tracing: pauses and small grids inside the graphs show, or there are none.",
    )
