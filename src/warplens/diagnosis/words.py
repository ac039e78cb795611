"""The verdict as one sentence for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.categories import PRODUCTS

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["headline"]

#: A ceiling beyond this says no more than that hardly anything of the window would be left.
_MANY: Final = 100.0

_LOST: Final = {
    "launch-overhead": "The host's pace limits this: for {share} of the time the GPU had no work, because the next "
    "kernel "
    "was not launched yet",
    "host-sync": "Waiting for the GPU limits this: {share} of the time goes into letting it run dry and refilling it",
    "host-stall": "The host limits this: for {share} of the time the GPU had no work, while the host did something "
    "else",
    "blocking-copy": "Copies between host and GPU limit this: for {share} of the time nothing computes because of them",
    "allocator-churn": "Memory allocation limits this: for {share} of the time the GPU waits for cudaMalloc or "
    "cudaFree",
    "memory-bandwidth": "Memory traffic limits this: {share} of the time could go away if chains of kernels became one "
    "pass",
    "precision": "Matrix products beside the tensor cores limit this: {share} of the time could go away in TF32 or "
    "bfloat16",
    "small-kernels": "Small grids limit this: the GPU is busy, but what its kernels leave empty is worth {share} of "
    "the time",
    "occupancy": "Low occupancy limits this: its kernels lose {share} of the time",
    "uncoalesced": "Wasted memory transactions limit this: they are worth {share} of the time",
    "bank-conflicts": "Conflicts in shared memory limit this: they are worth {share} of the time",
    "divergence": "Divergent warps limit this: they are worth {share} of the time",
    "unfused-optimizer": "The optimizer limits this: going from tensor to tensor costs {share} of the time",
    "exposed-communication": "Communication limits this: for {share} of the time it runs while nothing computes",
}


def headline(facts: Facts, verdict: Finding, claims: Claims) -> str:
    """What limits the window and how much there is to gain, in one sentence."""
    busy = _percent(facts.busy_share)
    if verdict.id in _LOST:
        share = claims.total_ns(verdict.id) / facts.wall_ns
        said = _LOST[verdict.id].format(share=_percent(share))
        return f"{said}; {_at_most(verdict.gain_ceiling)} faster without it."
    if verdict.id == "saturated":
        return f"Nothing is wrong that this profile could show: the GPU is busy for {busy} of the time{_at(facts)}."
    if verdict.id == "tensor-compute":
        return (
            f"Nothing is wrong: the GPU is busy for {busy} of the time{_at(facts)}, near the peak of its tensor cores."
        )
    if verdict.id == "graph-opaque":
        return f"The GPU is busy for {busy} of the time, inside CUDA graphs that hide with what."
    if not facts.wall_ns:
        return f"The profile cannot answer: {verdict.title[:1].lower()}{verdict.title[1:]}"
    return (
        f"This profile cannot say what limits the program. {verdict.title}{'' if verdict.title.endswith('.') else '.'}"
    )


def _at(facts: Facts) -> str:
    """What most of the time goes to, where one kind of work has most of it."""
    products = facts.own_ns(pl.col("label").is_in(PRODUCTS)) / facts.wall_ns
    return f", {_percent(products)} of it with matrix products" if products >= facts.thresholds.dominant_share else ""


def _at_most(gain: float | None) -> str:
    return "many times" if gain is None or gain >= _MANY else f"at most {gain:.2f}×"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
