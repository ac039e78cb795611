"""`tensor-compute`: the GPU is busy multiplying matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.categories import PRODUCTS
from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.findings import Finding, Remedy, ceiling

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts

__all__ = ["tensor_compute"]

_ID = "tensor-compute"


def tensor_compute(facts: Facts, claims: Claims) -> Finding | None:
    """Products on tensor cores that take most of a busy GPU's time. It informs: such a program does what it is for."""
    limits = facts.thresholds
    is_product = pl.col("label").is_in(PRODUCTS) & pl.col("tensor_cores").fill_null(value=True)
    time = facts.own_ns(is_product)
    if facts.busy_share < limits.busy_share or time < limits.dominant_share * facts.wall_ns:
        return None
    known = facts.own_ns(is_product & pl.col("tensor_cores"))
    pipe = (
        (pl.col("bound") == "compute")
        & (pl.col("bound_unit") == "tensor")
        & (pl.col("bound_share") >= limits.roof_share)
    )
    counted = facts.own_ns(is_product & pl.col("bound").is_not_null())
    at_roof = facts.own_ns(is_product & pipe) if counted else 0
    mine = facts.work.select(is_product.fill_null(value=False)).to_series()
    saved = sum(claims.busy_ns(other) for other in ("small-kernels", "occupancy", "bank-conflicts"))
    return Finding(
        _ID,
        "Matrix products take most of the time of a busy GPU"
        + (", near the peak of its tensor cores" if counted and at_roof > limits.dominant_share * counted else ""),
        "info",
        "high" if counted and at_roof > limits.dominant_share * counted else "medium",
        ceiling(facts.wall_ns, min(saved, time)),
        {
            "products_ns": time,
            "products_share": time / facts.wall_ns,
            "on_tensor_cores_share": known / time,
            "gpu_busy_share": facts.busy_share,
            **({"at_tensor_roof_share": at_roof / counted} if counted else {}),
        },
        kernel_names(facts, facts.work["own_ns"] * mine),
        (
            Remedy(
                "Do fewer floating-point operations, or narrower ones",
                "fp8 products (transformer_engine.pytorch.fp8_autocast, torchao.float8), 2:4 sparsity, a smaller "
                "model, fewer "
                "tokens",
                "in proportion to the operations, or the formats' peak rates",
            ),
            Remedy(
                "Choose shapes that fill the tiles",
                "dimensions in multiples of 64 (128 on compute capability 9.0 and later), vocabulary padded likewise",
                "up to a last partial wave of blocks per product",
            ),
        ),
        "Compare the rate that the products reach with the GPU's peak (2·M·N·K over their time; ncu --section "
        "ComputeWorkloadAnalysis): far below it, their shapes or their operands are the limit.",
    )
