"""Everything that is to be said about two sides, asked in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.compare.difference.kernels import KernelChanges, kernel_changes
from warplens.compare.difference.launching import LaunchChange, launch_change
from warplens.compare.difference.notes import comparability_notes
from warplens.compare.difference.ranges import phase_changes, range_changes
from warplens.compare.difference.transfers import transfer_changes
from warplens.compare.difference.wall import WallSplit, wall_split
from warplens.compare.difference.work import WorkChange, work_change

if TYPE_CHECKING:
    import polars as pl

    from warplens.compare.difference.sides import Side
    from warplens.profile import Note

__all__ = ["StepDifference", "step_difference"]


@dataclass(frozen=True, eq=False)
class StepDifference:
    """Two sides held against each other, per step. Changes are variant minus baseline.

    Attributes:
        baseline, variant: what was compared.
        wall: the wall time split into parts whose changes add up to its change exactly.
        kernels: kernels kept, changed, added and removed.
        ranges: GPU work by annotated range (`RANGE_CHANGE_SCHEMA`).
        merged_ranges: the same, where names that differ in their numbers only are one (`block_N`).
        phases: GPU work by phase of a training step (`PHASE_CHANGE_SCHEMA`); empty where no name tells.
        transfers: copies, fills and communication (`TRANSFER_CHANGE_SCHEMA`).
        launches: launches, what each costs the host, and what limits each side.
        work: floating-point operations, where known.
        notes: what makes the two hard to compare, the gravest first.
    """

    baseline: Side
    variant: Side
    wall: WallSplit
    kernels: KernelChanges
    ranges: pl.DataFrame
    merged_ranges: pl.DataFrame
    phases: pl.DataFrame
    transfers: pl.DataFrame
    launches: LaunchChange
    work: WorkChange
    notes: tuple[Note, ...]

    @property
    def per(self) -> str:
        """What numbers are per: `step`, or `window` where neither side has steps."""
        return "step" if self.baseline.has_steps or self.variant.has_steps else "window"


def step_difference(baseline: Side, variant: Side, *, flops: tuple[float, float] | None = None) -> StepDifference:
    """Why the variant's step takes longer or shorter than the baseline's.

    Args:
        baseline, variant: the two profiles with the parts of them that count.
        flops: floating-point operations of a step of each side, where they are known from elsewhere.
    """
    wall = wall_split(baseline, variant)
    kernels = kernel_changes(baseline, variant)
    return StepDifference(
        baseline=baseline,
        variant=variant,
        wall=wall,
        kernels=kernels,
        ranges=range_changes(baseline, variant),
        merged_ranges=range_changes(baseline, variant, merged=True),
        phases=phase_changes(baseline, variant),
        transfers=transfer_changes(baseline, variant, wall),
        launches=launch_change(baseline, variant, (wall.baseline, wall.variant), kernels),
        work=work_change(baseline, variant, flops),
        notes=comparability_notes(baseline, variant, wall, kernels),
    )
