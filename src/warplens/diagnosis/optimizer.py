"""Whether the optimizer of a window goes from parameter tensor to parameter tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.diagnosis.optimizerspan import updates

if TYPE_CHECKING:
    from warplens.diagnosis.facts import Facts

__all__ = ["OptimizerWork", "is_unfused", "optimizer_work"]

#: Kernels that an optimizer written with tensor operations launches.
_SINGLE_TENSOR: Final = ("elementwise", "copy-cast", "reduction")


@dataclass(frozen=True)
class OptimizerWork:
    """The kernels of the optimizer in a window.

    Attributes:
        launches: all of them.
        single_tensor: … of which each works on one tensor.
        updates: parameter tensors, counted by the kernel that each of them needs once; 0 where no kernel tells.
    """

    launches: int
    single_tensor: int
    updates: int


def optimizer_work(facts: Facts) -> OptimizerWork:
    """The kernels that were launched by the optimizer, or that its kernels enclose."""
    mine = facts.work.select("phase", "kind", "label", "row").filter(
        (pl.col("phase") == "optimizer") & (pl.col("kind") == "kernel")
    )
    of_one = mine["label"].is_in(_SINGLE_TENSOR)
    is_update = pl.Series(updates(facts.timeline))
    return OptimizerWork(mine.height, int(of_one.sum()), int(is_update.gather(mine["row"]).sum()))


def is_unfused(facts: Facts) -> bool:
    """Whether it launches many kernels a step, and most of them on one tensor each."""
    found, limits = optimizer_work(facts), facts.thresholds
    many = found.launches >= limits.optimizer_launches_per_step * facts.steps
    return many and found.single_tensor > limits.optimizer_single_tensor_share * found.launches
