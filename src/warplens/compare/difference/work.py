"""Does the time change as the work does? Floating-point operations of both sides, where they are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from warplens.analysis.work import operator_work

if TYPE_CHECKING:
    from warplens.compare.difference.sides import Side

__all__ = ["WorkChange", "work_change"]

#: A model that covers less of the GPU time than this leaves out too much of the work for a ratio of the two sides.
_COVERED_SHARE: Final = 0.5


@dataclass(frozen=True)
class WorkChange:
    """The work of a step on both sides. What is not known is None.

    Attributes:
        baseline_flops, variant_flops: floating-point operations of a step (a multiply-add counts as two).
        source: `given` (by the caller, from a measurement), `modelled` (from the shapes of the profiles' operators).
        baseline_coverage_share, variant_coverage_share: share of the GPU time whose operators have a model.
    """

    baseline_flops: float | None
    variant_flops: float | None
    source: Literal["given", "modelled"] | None
    baseline_coverage_share: float | None = None
    variant_coverage_share: float | None = None

    @property
    def flops_ratio(self) -> float | None:
        """Variant over baseline."""
        if self.baseline_flops is None or self.variant_flops is None or not self.baseline_flops:
            return None
        return self.variant_flops / self.baseline_flops


def work_change(baseline: Side, variant: Side, flops: tuple[float, float] | None = None) -> WorkChange:
    """The floating-point operations of a step on both sides.

    Args:
        baseline, variant: the two sides.
        flops: those of a step, where they were measured or counted otherwise; they go before modelled ones.
    """
    if flops is not None:
        return WorkChange(flops[0], flops[1], "given")
    before, after = _modelled(baseline), _modelled(variant)
    if before is None or after is None:
        return WorkChange(None, None, None)
    return WorkChange(before[0], after[0], "modelled", before[1], after[1])


def _modelled(side: Side) -> tuple[float, float] | None:
    if not side.timeline.trace.operators.height or side.window.range_name is not None:
        return None
    work = operator_work(side.timeline, side.window)
    share = work.coverage_share
    if not work.flops or share is None or share < _COVERED_SHARE:
        return None
    return work.flops / side.repeats, share
