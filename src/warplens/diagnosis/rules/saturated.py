"""`saturated`: nothing is wrong that a trace could show; the GPU is busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.diagnosis.findings import Finding, Remedy, ceiling

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts

__all__ = ["saturated"]


def saturated(facts: Facts, claims: Claims, *, quiet: bool = False) -> Finding | None:
    """The GPU works nearly all of the time. It informs; what it works at is for other rules.

    The microsecond that a GPU takes between two kernels that wait in its queue counts as work: nothing on the host can
    shorten it.

    Args:
        facts: the window.
        claims: who owns its time.
        quiet: nothing else is worth a warning, so that small causes together may cost more; and what the profiler added
            to the launches does not count.
    """
    least = facts.thresholds.quiet_busy_share if quiet else facts.thresholds.busy_share
    occupied = facts.busy_ns + facts.idle("start-latency")
    wall = facts.wall_ns - facts.added_ns if quiet else facts.wall_ns
    if not facts.wall_ns or occupied < least * wall:
        return None
    hidden = facts.own_ns(pl.col("kind") == "graph")
    return Finding(
        "saturated",
        "The GPU is busy nearly all of the time: the host is not the limit",
        "info",
        "high" if facts.sure and not hidden else "medium",
        ceiling(facts.wall_ns, facts.idle_ns),
        {
            "gpu_busy_share": facts.busy_share,
            "between_queued_kernels_share": facts.idle("start-latency") / facts.wall_ns,
            "idle_ns_per_step": facts.idle_ns / facts.steps,
            "kernels_per_step": int((facts.work["kind"] == "kernel").sum()) / facts.steps,
        },
        (),
        (
            Remedy(
                "Stop optimising the host",
                "look at the kernels: warplens kernels PATH --by category, then counters of the largest (ncu --set "
                "full)",
                "launches, waits and input cannot bring more than the idle time",
            ),
        ),
        "Time the step without a profiler: if it is much faster, the profiler kept the GPU from idling.",
    )
