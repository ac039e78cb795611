"""`host-stall`: the host is busy or asleep for long with no CUDA call in flight, and the GPU runs out of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from warplens.analysis.attribution import NO_RANGE
from warplens.analysis.intervals import Intervals, measure_before, union
from warplens.diagnosis.facts import range_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import modelled, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["host_stall"]

_ID = "host-stall"


def host_stall(facts: Facts, claims: Claims) -> Finding | None:
    """Idle time in which no launching thread was inside a CUDA call for far longer than it takes to issue work."""
    claimed = claims.idle_ns(_ID)
    spent = claims.of_gaps(_ID)
    stalls = facts.gaps.filter(spent > 0)
    waiting = _in_os_calls(facts, stalls)
    return raised(
        facts,
        _ID,
        claimed,
        title="The host does something else for long, and the GPU runs out of work",
        confidence="high" if facts.sure else "medium" if facts.window.steps else "low",
        evidence={
            "idle_ns": claimed,
            "idle_share": claimed / facts.wall_ns if facts.wall_ns else None,
            "gpu_busy_share": facts.busy_share,
            "stalls_per_step": stalls.height / facts.steps,
            "longest_stall_ns": int(spent.max() or 0) if spent.len() else None,  # type: ignore[arg-type]
            "in_os_calls_share": waiting,
        },
        where=_doing(facts, stalls, spent.filter(spent > 0)),
        remedies=(
            Remedy(
                "Prepare the input while the GPU works",
                "DataLoader(dataset, num_workers=8, prefetch_factor=4, persistent_workers=True, pin_memory=True), and "
                "x = x.to('cuda', non_blocking=True)",
                modelled(facts, "no-host-stall", claimed),
            ),
            Remedy(
                "Move the work off the step",
                "decode, augment and tokenise once and store the result, or on the GPU (torchvision.transforms.v2 on "
                "CUDA "
                "tensors, NVIDIA DALI); write logs and checkpoints from another thread",
                modelled(facts, "no-host-stall", claimed),
            ),
            Remedy(
                "See what the host does there",
                "py-spy record --gil -- python train.py, or nsys profile --trace=cuda,nvtx,osrt "
                "--python-sampling=true; "
                "for garbage collection: gc.freeze(); gc.disable() and gc.collect() between epochs",
                "the function that takes the time",
            ),
        ),
        refute="Feed the same batch, already on the GPU, in every step: if the step takes as long as before, the "
        "host's "
        "work between the launches is not the input pipeline.",
        issuing_ns=claims.issuing_ns.get(_ID, 0),
    )


def _in_os_calls(facts: Facts, stalls: pl.DataFrame) -> float | None:
    """Share of the stalls with some thread blocked in the operating system; None where that was not recorded."""
    calls = facts.timeline.trace.os_calls
    if "os_calls" not in facts.timeline.trace.capture.recorded or not stalls.height:
        return None
    blocked = union(Intervals(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()))
    begins, ends = stalls["start_ns"].to_numpy(), stalls["end_ns"].to_numpy()
    inside = measure_before(blocked, ends) - measure_before(blocked, begins)
    return float(inside.sum() / max(1, (ends - begins).sum()))


def _doing(facts: Facts, stalls: pl.DataFrame, spent: pl.Series) -> tuple[str, ...]:
    """Names of the innermost ranges that are open on the launching thread in the middle of the stalls."""
    thread = facts.host.launches.thread
    ranges = facts.timeline.trace.ranges
    if thread is None or not ranges.height or not stalls.height:
        return ()
    middle = (stalls["start_ns"] + stalls["end_ns"]).to_numpy() // 2
    process, of_thread = (np.full(len(middle), part, dtype=np.int64) for part in thread)
    rows, _ = facts.timeline.forest.attribute(process, of_thread, middle)
    open_ = pl.Series(np.where(rows == NO_RANGE, -1, rows))
    known = open_.to_frame("row").select(pl.when(pl.col("row") >= 0).then("row")).to_series()
    return range_names(facts, known, spent)
