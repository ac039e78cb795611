"""`small-kernels`: the GPU is busy, but with grids that leave most of it empty."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.spread import number
from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.raising import at_most, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["small_kernels"]

_ID = "small-kernels"


def small_kernels(facts: Facts, claims: Claims) -> Finding | None:
    """Time of kernels with fewer blocks than the GPU has multiprocessors, while the GPU is busy."""
    claimed = claims.busy_ns(_ID)
    if not claimed:
        return None
    kernels = facts.work.select("own_ns", "fill_share", length=pl.col("end_ns") - pl.col("start_ns")).drop_nulls()
    time = int(kernels["own_ns"].sum())
    small = kernels.filter(pl.col("fill_share") < 1)
    lengths, of_small = small["length"], int(small["own_ns"].sum())
    filled = float((kernels["own_ns"] * kernels["fill_share"]).sum()) / time if time else None
    measured = bool(facts.work["bound"].is_not_null().any())
    return raised(
        facts,
        _ID,
        claimed,
        title="The GPU is busy with grids that leave most of its multiprocessors empty",
        confidence="high" if measured else "medium",
        evidence={
            "empty_ns": claimed,
            "small_kernels_share": of_small / facts.wall_ns if facts.wall_ns else None,
            "multiprocessors_reached_share": filled,
            "small_kernel_median_ns": number(lengths.median()),
            "small_kernels_per_step": lengths.len() / facts.steps,
            "gpu_busy_share": facts.busy_share,
        },
        where=kernel_names(facts, claims.of_work(_ID)),
        remedies=(
            Remedy(
                "Put more work into each launch",
                "raise the batch size, or stack independent problems (torch.bmm, torch.vmap, torch._foreach_*)",
                f"{at_most(facts, claimed, on_gpu=True)}, as throughput: the step hardly gets longer",
            ),
            Remedy(
                "Split the work finer",
                "kernels that reduce long rows: split them over several blocks (split-K products, flash-decoding for "
                "attention, a reduction in two stages)",
                at_most(facts, claimed, on_gpu=True),
            ),
            Remedy(
                "Run independent kernels at once",
                "with torch.cuda.stream(torch.cuda.Stream()): … for branches that do not depend on one another, or one "
                "CUDA "
                "graph with parallel branches",
                at_most(facts, claimed, on_gpu=True),
            ),
        ),
        refute="Double the batch: small kernels then take hardly longer. If the step takes twice as long, the grids "
        "were "
        "large enough.",
        on_gpu=True,
        warning=facts.thresholds.unsure_warning_ceiling,
    )
