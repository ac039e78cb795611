"""Findings that only hardware counters can support: one fault inside kernels, weighted by the kernels' share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.raising import raised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding, Remedy

__all__ = ["counter_finding"]


def counter_finding(
    facts: Facts,
    claims: Claims,
    id_: str,
    *,
    title: str,
    remedies: tuple[Remedy, ...],
    refute: str,
    more: Mapping[str, int | float | None] | None = None,
) -> Finding | None:
    """The finding on a fault that counters measured, if there are counters and it costs enough of the window.

    A kernel that loses the share g of its time costs the window g times the kernel's own share of it (Amdahl's law).
    """
    claimed = claims.busy_ns(id_)
    if not claimed:
        return None
    mine = claims.of_work(id_)
    affected = int(facts.work["own_ns"].filter(mine > 0).sum())
    measured = facts.own_ns(pl.col("bound").is_not_null())
    every = facts.own_ns(pl.col("kind") == "kernel")
    covered = measured / every if every else 0.0
    limits = facts.thresholds
    return raised(
        facts,
        id_,
        claimed,
        title=title,
        confidence="high"
        if covered >= limits.counters_complete_share
        else "medium"
        if covered >= limits.counters_share
        else "low",
        evidence={
            "lost_ns": claimed,
            "kernels_share": affected / facts.wall_ns if facts.wall_ns else None,
            "lost_of_their_time_share": claimed / max(1, affected),
            "counters_of_kernel_time_share": covered,
            **(more or {}),
        },
        where=kernel_names(facts, mine),
        remedies=remedies,
        refute=refute,
        on_gpu=True,
    )
