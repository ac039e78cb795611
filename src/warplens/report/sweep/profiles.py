"""What a profile of a cell says about what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.compare.surface import Regime
    from warplens.diagnosis.findings import Diagnosis

__all__ = ["regime_of"]

#: Verdict of a diagnosis → regime of the cell. Verdicts that are not here say neither of the two.
_REGIMES: Final[Mapping[str, Regime]] = {
    "launch-overhead": "launch-bound",
    "host-sync": "launch-bound",
    "host-stall": "launch-bound",
    "allocator-churn": "launch-bound",
    "memory-bandwidth": "memory-bound",
    "uncoalesced": "memory-bound",
    "tensor-compute": "compute-bound",
    "precision": "compute-bound",
    "small-kernels": "gpu-bound",
    "occupancy": "gpu-bound",
    "bank-conflicts": "gpu-bound",
    "divergence": "gpu-bound",
    "unfused-optimizer": "gpu-bound",
    "graph-opaque": "gpu-bound",
    "saturated": "gpu-bound",
}


def regime_of(diagnosis: Diagnosis, source: str) -> tuple[Regime, str]:
    """The regime, and one sentence why.

    Args:
        diagnosis: of the profile's steady steps.
        source: name of the profile.
    """
    return _REGIMES.get(diagnosis.verdict, "unknown"), f"{source}: {diagnosis.verdict}, {diagnosis.headline}"
