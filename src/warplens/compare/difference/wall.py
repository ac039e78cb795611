"""The wall time of a step on two sides, split into parts whose differences add up to the difference exactly.

A side's parts are those of its time budget (`warplens.analysis.timebudget`): GPU work by category, CUDA graphs whose
inside is hidden, exposed communication, exposed copies, and idle time by cause. They are integers that sum to the time
that was split; over the number of steps they are fractions, and stay fractions here.

A step's wall time runs from its begin to the next one's. The time inside of n steps is divided by n, the time between
them by n − 1, because nobody knows what followed the last one. Where several devices worked, a part is its mean over
the devices: each of them has the same wall time to fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.intervals import total, union
from warplens.analysis.timebudget import PART_GROUPS, TimeBudget, budgets_within, time_budgets

if TYPE_CHECKING:
    from warplens.compare.difference.sides import Side

__all__ = ["PART_SCHEMA", "PartChange", "SideWall", "WallSplit", "wall_split"]

#: One row a part: nanoseconds per step. `share` is the part's change over the change of the wall time: shares add up to
#: 1, and parts that shrink while the wall time grows have negative ones (null where the wall time is the same).
PART_SCHEMA = pl.Schema(
    {
        "group": pl.Enum(PART_GROUPS),
        "part": pl.String(),
        "baseline_ns": pl.Float64(),
        "variant_ns": pl.Float64(),
        "change_ns": pl.Float64(),
        "share": pl.Float64(),
    }
)

_ZERO = Fraction(0)

#: The groups of parts in which the GPU computes.
_COMPUTING = ("compute", "graph")


@dataclass(frozen=True)
class PartChange:
    """One part of a step's wall time on both sides, in nanoseconds per step, exact.

    Attributes:
        group: one of `timebudget.PART_GROUPS`.
        part: a kernel category, a copy's direction, a cause of idle time, ….
        baseline_ns, variant_ns: the time of it; 0 where a side has none.
    """

    group: str
    part: str
    baseline_ns: Fraction
    variant_ns: Fraction

    @property
    def change_ns(self) -> Fraction:
        """Variant minus baseline."""
        return self.variant_ns - self.baseline_ns


@dataclass(frozen=True)
class SideWall:
    """One side's wall time per step.

    Attributes:
        wall_ns: from a step's begin to the next one's; without steps, the window's length.
        between_ns: the part of it between a step's end and the next one's begin.
        busy_ns: the part of it in which the GPU worked.
        parts: (group, part) → time; they sum to `wall_ns`.
    """

    wall_ns: Fraction
    between_ns: Fraction
    busy_ns: Fraction
    parts: dict[tuple[str, str], Fraction]

    @property
    def idle_ns(self) -> Fraction:
        """The part of the wall time in which the GPU did nothing."""
        return self.wall_ns - self.busy_ns


@dataclass(frozen=True)
class WallSplit:
    """The wall time per step of both sides and what its difference is made of.

    Attributes:
        baseline, variant: the two sides.
        parts: every part that a side has, by group, the largest change first.
    """

    baseline: SideWall
    variant: SideWall
    parts: tuple[PartChange, ...]

    @property
    def change_ns(self) -> Fraction:
        """Variant minus baseline, per step."""
        return self.variant.wall_ns - self.baseline.wall_ns

    @property
    def ratio(self) -> float | None:
        """Variant over baseline: above 1 the variant is slower; None where the baseline took no time."""
        return float(self.variant.wall_ns / self.baseline.wall_ns) if self.baseline.wall_ns else None

    @property
    def gpu_change_share(self) -> float | None:
        """Change of the time in which the GPU computed, over the baseline's; None where that computed nothing.

        Kernels that run at once count once, and the inside of CUDA graphs counts as a whole.
        """
        before = sum((part.baseline_ns for part in self.parts if part.group in _COMPUTING), _ZERO)
        change = sum((part.change_ns for part in self.parts if part.group in _COMPUTING), _ZERO)
        return float(change / before) if before else None

    @property
    def residual_ns(self) -> Fraction:
        """What the parts leave unexplained of the change: always 0."""
        return self.change_ns - sum((part.change_ns for part in self.parts), _ZERO)

    def change_of(self, group: str, *parts: str) -> Fraction:
        """The change of one group, or of some of its parts."""
        chosen = (part for part in self.parts if part.group == group and (not parts or part.part in parts))
        return sum((part.change_ns for part in chosen), _ZERO)

    def frame(self) -> pl.DataFrame:
        """The parts as a table (`PART_SCHEMA`)."""
        change = self.change_ns
        return pl.DataFrame(
            [
                (
                    part.group,
                    part.part,
                    float(part.baseline_ns),
                    float(part.variant_ns),
                    float(part.change_ns),
                    float(part.change_ns / change) if change else None,
                )
                for part in self.parts
            ],
            schema=PART_SCHEMA,
            orient="row",
        )


def wall_split(baseline: Side, variant: Side) -> WallSplit:
    """The wall time of a step on both sides, and its difference by parts."""
    before, after = side_wall(baseline), side_wall(variant)
    changes = [
        PartChange(*key, before.parts.get(key, _ZERO), after.parts.get(key, _ZERO))
        for key in dict.fromkeys((*before.parts, *after.parts))
    ]
    order = {group: position for position, group in enumerate(PART_GROUPS)}
    changes.sort(key=lambda change: (order[change.group], -abs(change.change_ns), change.part))
    return WallSplit(before, after, tuple(changes))


def side_wall(side: Side) -> SideWall:
    """The wall time of one side's step and its parts."""
    if side.window.range_name is not None:
        return _side_wall(((time_budgets(side.timeline, side.window), side.repeats),), _ZERO)
    steps = budgets_within(side.timeline, side.window, side.step_times)
    if not steps:
        return _without_gpu_work(side)
    gaps = total(side.gaps)
    if not gaps or side.repeats < 2:
        return _side_wall(((steps, side.repeats),), _ZERO)
    between = side.repeats - 1
    of_gaps = budgets_within(side.timeline, side.window, side.gaps)
    return _side_wall(((steps, side.repeats), (of_gaps, between)), Fraction(gaps, between))


def _side_wall(counted: tuple[tuple[tuple[TimeBudget, ...], int], ...], between_ns: Fraction) -> SideWall:
    """The sum of budgets, each over its number of repetitions and its number of devices."""
    parts: dict[tuple[str, str], Fraction] = {}
    wall = busy = _ZERO
    for budgets, repeats in counted:
        for budget in budgets:
            over = repeats * len(budgets)
            wall += Fraction(budget.duration_ns, over)
            busy += Fraction(budget.busy_ns, over)
            for group, part, time_ns in budget.parts.select("group", "part", "time_ns").iter_rows():
                parts[group, part] = parts.get((group, part), _ZERO) + Fraction(time_ns, over)
    return SideWall(wall, between_ns, busy, parts)


def _without_gpu_work(side: Side) -> SideWall:
    wall = Fraction(total(union(side.step_times)), side.repeats)
    return SideWall(wall, _ZERO, _ZERO, {("idle", "unknown"): wall} if wall else {})
