"""`precision`: matrix products in a format that the tensor cores do not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.categories import PRODUCTS
from warplens.diagnosis.facts import kernel_names
from warplens.diagnosis.findings import Remedy
from warplens.diagnosis.kernelclaims import OFF_TENSOR_CORES, tensor_core_factor
from warplens.diagnosis.raising import at_most, raised

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

__all__ = ["precision"]

_ID = "precision"


def precision(facts: Facts, claims: Claims) -> Finding | None:
    """Products whose names say fp32 (or fp64) and vector units, on a GPU that has tensor cores."""
    claimed = claims.busy_ns(_ID)
    if not claimed or not _has_tensor_cores(facts):
        return None
    products = facts.own_ns(pl.col("label").is_in(PRODUCTS))
    wide = facts.own_ns(OFF_TENSOR_CORES)
    factor = min((tensor_core_factor(device) for device in facts.devices), default=None)
    return raised(
        facts,
        _ID,
        claimed,
        title="Matrix products run in fp32 beside the tensor cores",
        confidence="high" if factor is not None and wide > facts.thresholds.dominant_share * products else "medium",
        evidence={
            "off_tensor_cores_ns": wide,
            "off_tensor_cores_share": wide / facts.wall_ns if facts.wall_ns else None,
            "of_products_share": wide / products if products else None,
            "products_share": products / facts.wall_ns if facts.wall_ns else None,
            "peak_ratio_factor": factor,
            "gpu_busy_share": facts.busy_share,
        },
        where=kernel_names(facts, claims.of_work(_ID)),
        remedies=(
            Remedy(
                "Allow TF32",
                "torch.set_float32_matmul_precision('high'), or torch.backends.cuda.matmul.allow_tf32 = True (compute "
                "capability 8.0 and later)",
                f"{at_most(facts, claimed, on_gpu=True)}; inputs are rounded to 10 bits of mantissa",
            ),
            Remedy(
                "Compute in bfloat16",
                "with torch.autocast('cuda', dtype=torch.bfloat16): loss = model(x); or model.to(torch.bfloat16) for "
                "inference",
                "as TF32, with half of the memory traffic on top",
            ),
        ),
        refute="Allow TF32 and run again: if the products do not get faster, they are limited by memory or by their "
        "size. "
        "If results get worse than you can accept, the precision was needed.",
        on_gpu=True,
    )


def _has_tensor_cores(facts: Facts) -> bool:
    """Whether no GPU is known to lack them: they came with compute capability 7.0."""
    known = [device.compute_capability for device in facts.devices if device.compute_capability is not None]
    return all(capability >= (7, 0) for capability in known)
