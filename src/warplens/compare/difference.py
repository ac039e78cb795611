"""The difference in wall time per step of two sides, split into parts that add up to it, and its cause."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import polars as pl

from warplens.analysis.intervals import total, union
from warplens.analysis.timebudget import TimeBudget, budgets_within, time_budgets
from warplens.compare import SIDES
from warplens.compare.host import ISSUE_CAUSES, LaunchChange, launch_change
from warplens.compare.notes import comparability_notes
from warplens.compare.places import phase_changes, range_changes
from warplens.compare.side import Side
from warplens.compare.work import KernelChanges, WorkChange, kernel_changes, transfer_changes, work_change
from warplens.profile import Note
from warplens.profile.columns import PART_GROUPS, column, table
from warplens.profile.schema import Column

# The parts of a side are those of its time budget (`warplens.analysis.timebudget`): GPU work by category, CUDA graphs
# whose inside is hidden, exposed communication, exposed copies, and idle time by cause. They are integers that sum to
# the time that was split; divided by the number of steps they are exact fractions.
#
# The wall time of a step is from its begin to that of the next one. The time inside of n steps is divided by n, the
# time between them by n − 1, because the time after the last one is unknown. With several devices, a part is its mean
# over the devices, which all have the same wall time.

PARTS: Final = table(
    "comparison: parts of the wall time",
    "One part of a step's wall time on both sides. `warplens compare`; `data.rows`.",
    "group part",
    column("baseline_ns").but(dtype=pl.Float64, help="time of a step, of the baseline"),
    column("variant_ns").but(dtype=pl.Float64, help="time of a step, of the variant"),
    Column("change_ns", pl.Float64, "variant − baseline; sums to the change of the step"),
    column("share").but(title="Of the change"),
    share="share of the whole change; negative for parts that go the other way, null without a change",
)

_ZERO = Fraction(0)

#: The groups of parts in which the GPU computes.
_COMPUTING = ("compute", "graph")


@dataclass(frozen=True)
class PartChange:
    """One part of a step's wall time on both sides, in nanoseconds per step, exact."""

    group: str  #: one of `PART_GROUPS`
    part: str  #: a kernel category, a copy's direction, a cause of idle time, …
    #: baseline_ns, variant_ns: its time; 0 if a side lacks it
    baseline_ns: Fraction
    variant_ns: Fraction

    @property
    def change_ns(self) -> Fraction:
        """Variant minus baseline."""
        return self.variant_ns - self.baseline_ns


@dataclass(frozen=True)
class SideWall:
    """One side's wall time per step."""

    wall_ns: Fraction  #: from the begin of a step to that of the next; without steps, the length of the window
    between_ns: Fraction  #: the part of it between the end of a step and the begin of the next
    busy_ns: Fraction  #: the part of it in which the GPU worked
    parts: dict[tuple[str, str], Fraction]  #: (group, part) → time; they sum to `wall_ns`

    @property
    def idle_ns(self) -> Fraction:
        """The part of the wall time in which the GPU was idle."""
        return self.wall_ns - self.busy_ns


@dataclass(frozen=True)
class WallSplit:
    """The wall time per step of both sides, and the parts of its difference."""

    baseline: SideWall
    variant: SideWall
    parts: tuple[PartChange, ...]  #: the parts of either side, by group, the largest change first

    @property
    def change_ns(self) -> Fraction:
        """Variant minus baseline, per step."""
        return self.variant.wall_ns - self.baseline.wall_ns

    @property
    def ratio(self) -> float | None:
        """Variant over baseline: above 1 the variant is slower; None if the baseline took no time."""
        return float(self.variant.wall_ns / self.baseline.wall_ns) if self.baseline.wall_ns else None

    @property
    def computing_ns(self) -> tuple[Fraction, Fraction]:
        """The time of each side in which the GPU computed.

        Concurrent kernels count once, and CUDA graphs with hidden kernels as a whole.
        """
        parts = [part for part in self.parts if part.group in _COMPUTING]
        return sum((part.baseline_ns for part in parts), _ZERO), sum((part.variant_ns for part in parts), _ZERO)

    @property
    def gpu_change_share(self) -> float | None:
        """Relative change of the time in which the GPU computed; None if it is 0 in the baseline."""
        before, after = self.computing_ns
        return float((after - before) / before) if before else None

    @property
    def residual_ns(self) -> Fraction:
        """The change minus the sum of the changes of the parts: always 0."""
        return self.change_ns - sum((part.change_ns for part in self.parts), _ZERO)

    def change_of(self, group: str, *parts: str) -> Fraction:
        """The change of one group, or of some of its parts."""
        chosen = (part for part in self.parts if part.group == group and (not parts or part.part in parts))
        return sum((part.change_ns for part in chosen), _ZERO)

    def frame(self) -> pl.DataFrame:
        """The parts as a table (`PARTS`)."""
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
            schema=PARTS.schema,
            orient="row",
        )


def wall_split(baseline: Side, variant: Side) -> WallSplit:
    """The wall time per step of both sides, and its difference by parts."""
    before, after = side_wall(baseline), side_wall(variant)
    changes = [
        PartChange(*key, before.parts.get(key, _ZERO), after.parts.get(key, _ZERO))
        for key in dict.fromkeys((*before.parts, *after.parts))
    ]
    order = {group: position for position, group in enumerate(PART_GROUPS)}
    changes.sort(key=lambda change: (order[change.group], -abs(change.change_ns), change.part))
    return WallSplit(before, after, tuple(changes))


def side_wall(side: Side) -> SideWall:
    """The wall time per step of one side, and its parts."""
    if side.window.range_name is not None:
        return _side_wall(((time_budgets(side.timeline, side.window), side.repeats),), _ZERO)
    steps = budgets_within(side.timeline, side.window, side.step_times)
    if not steps:  # there is no GPU work
        wall = Fraction(total(union(side.step_times)), side.repeats)
        return SideWall(wall, _ZERO, _ZERO, {("idle", "unknown"): wall} if wall else {})
    gaps = total(side.gaps)
    if not gaps or side.repeats < 2:
        return _side_wall(((steps, side.repeats),), _ZERO)
    between = side.repeats - 1
    of_gaps = budgets_within(side.timeline, side.window, side.gaps)
    return _side_wall(((steps, side.repeats), (of_gaps, between)), Fraction(gaps, between))


def _side_wall(budgets_and_repeats: tuple[tuple[tuple[TimeBudget, ...], int], ...], between_ns: Fraction) -> SideWall:
    """The sum of budgets, each divided by its number of repetitions and of devices."""
    parts: dict[tuple[str, str], Fraction] = {}
    wall = busy = _ZERO
    for budgets, repeats in budgets_and_repeats:
        for budget in budgets:
            divisor = repeats * len(budgets)
            wall += Fraction(budget.duration_ns, divisor)
            busy += Fraction(budget.busy_ns, divisor)
            for group, part, time_ns in budget.parts.select("group", "part", "time_ns").iter_rows():
                parts[group, part] = parts.get((group, part), _ZERO) + Fraction(time_ns, divisor)
    return SideWall(wall, between_ns, busy, parts)


@dataclass(frozen=True, eq=False)
class StepDifference:
    """The comparison of two sides, per step. Changes are variant minus baseline."""

    baseline: Side
    variant: Side
    wall: WallSplit  #: the wall time split into parts whose changes add up to its change exactly
    kernels: KernelChanges  #: kernels kept, changed, added and removed
    ranges: pl.DataFrame  #: GPU work by annotated range (`RANGE_CHANGES`)
    merged_ranges: pl.DataFrame  #: `ranges` with names that differ only in numbers merged (`block_N`)
    phases: pl.DataFrame  #: GPU work by phase of a training step (`PHASE_CHANGES`); empty if there are no phases
    transfers: pl.DataFrame  #: copies, fills and communication (`TRANSFER_CHANGES`)
    launches: LaunchChange  #: launches, their cost on the host, and the bound of each side
    work: WorkChange  #: floating-point operations, if known
    notes: tuple[Note, ...]  #: limits of the comparison, the most severe first

    @property
    def kernels_at_a_time(self) -> tuple[float, float] | None:
        """How many kernels run at a time while a side computes, on average; None if a side hides some, or has none.

        Communication does not count.
        """
        launches, computing_ns = self.launches, self.wall.computing_ns
        if launches.baseline.hides_kernels or launches.variant.hides_kernels or not all(computing_ns):
            return None
        own = self.kernels.table.filter(pl.col("category") != "communication")
        before, after = (
            float(own[f"{name}_ns_per_step"].sum()) / len(side.timeline.devices_in(side.window)) / float(time_ns)
            for name, side, time_ns in zip(SIDES, (self.baseline, self.variant), computing_ns, strict=True)
        )
        return before, after

    @property
    def gpus(self) -> tuple[int, int]:
        """The number of GPUs of the side with fewer and of the one with more of them."""
        first, second = (len(side.timeline.devices_in(side.window)) for side in (self.baseline, self.variant))
        return min(first, second), max(first, second)

    @property
    def per(self) -> str:
        """The unit of the numbers: `step`, or `window` if neither side has steps."""
        return "step" if self.baseline.has_steps or self.variant.has_steps else "window"


def step_difference(baseline: Side, variant: Side, *, flops: tuple[float, float] | None = None) -> StepDifference:
    """Why the variant's step takes longer or shorter than the baseline's.

    `flops` are the floating-point operations per step of each side, if known from elsewhere.
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


# --- The cause of a wall difference ----------------------------------------------------------------------------------
# The parts of the wall time are grouped into contributions by what could be done about them. GPU work and waiting for
# launches are not independent: if the host issues work more slowly than the GPU finishes it, a GPU with less work waits
# for the same launches, and the saved work becomes idle time. In that case the two are one contribution, the host's
# launch rate; their sum is the change of the time that the host takes.

#: Meaning of each cause. `idle: …` names one cause of `analysis.timebudget.IDLE_CAUSES`.
CAUSES: Final = {
    "no-difference": "the wall times per step are the same within the margin",
    "host-issue-bound": "the host's launch rate limits a side or both: the time to launch the work changed",
    "launching": "the GPU waits for launches for a different time, though the host's launch rate limits neither side",
    "gpu-work": "the GPU's own work takes a different time",
    "communication": "exposed communication",
    "copies": "exposed copies and fills",
    "idle: …": "the GPU is idle for a different time, for this cause",
}

#: Idle causes that are merged: refilling the queue after a synchronization is part of its cost.
_JOINED: Final = {"refill": "synchronization"}

#: Changes of the wall time of at most this share count as none: repeated profiles of one program differ by as much.
SAME_MARGIN: Final = 0.02


@dataclass(frozen=True)
class Contribution:
    """The contribution of one cause to the change of the wall time."""

    cause: str  #: a key of `CAUSES`, or `idle: <cause>`
    change_ns: float  #: variant minus baseline, per step; contributions sum to the change of the wall time
    share: float | None  #: share of the change of the wall time; None if that is zero


@dataclass(frozen=True)
class Explanation:
    """The cause of the change of the step time."""

    cause: str  #: of the largest contribution in the direction of the change; `no-difference` within the margin
    direction: Literal["slower", "faster", "same"]  #: of the variant against the baseline
    share: float | None  #: share of the change due to the cause; above 1 if other contributions oppose it
    change_ns: float  #: change of the wall time per step
    ratio: float | None  #: wall time of the variant over that of the baseline
    gpu_change_share: float | None  #: relative change of the time in which the GPU computed (−0.46: 46 % less)
    launches_change: float | None  #: change of kernels per step; None if CUDA graphs hide some
    calls_change: float  #: change of launching calls per step
    host_ns_per_launch: float | None  #: mean cost of a launching call on the host, on the slower side
    added_ns_per_launch: float | None  #: the same for kernels that only this side launches; None if there are none
    #: added_cost_ns, pace_cost_ns: change of the host time per step due to kernels that only one side launches, and due
    #: to the other launches
    added_cost_ns: float | None
    pace_cost_ns: float | None
    flops_ratio: float | None  #: variant over baseline; None if unknown
    #: baseline_bound, variant_bound: bound of each side (`host.BOUNDS`)
    baseline_bound: str
    variant_bound: str
    contributions: tuple[Contribution, ...]  #: the largest first

    @property
    def is_paradox(self) -> bool:
        """Whether the GPU has less work but the step is not faster, or more work but the step is not slower."""
        if self.gpu_change_share is None or self.ratio is None or abs(self.gpu_change_share) <= SAME_MARGIN:
            return False
        return (self.ratio - 1) * self.gpu_change_share <= 0 or self.direction == "same"


def explanation(difference: StepDifference) -> Explanation:
    """The cause of the difference with its numbers."""
    change = difference.wall.change_ns
    amounts = _amounts(difference)
    contributions = tuple(
        Contribution(cause, float(amount), float(amount / change) if change else None)
        for cause, amount in sorted(amounts.items(), key=lambda item: (-abs(item[1]), item[0]))
        if amount
    )
    ratio = difference.wall.ratio
    direction: Literal["slower", "faster", "same"] = "same"
    if ratio is not None and abs(ratio - 1) > SAME_MARGIN:
        direction = "slower" if ratio > 1 else "faster"
    agreeing = (part for part in contributions if part.share is not None and part.share > 0)
    main = next(agreeing, None) if direction != "same" else None
    launches = difference.launches
    slower = launches.variant if change >= 0 else launches.baseline
    return Explanation(
        cause=main.cause if main else "no-difference",
        direction=direction,
        share=main.share if main else None,
        change_ns=float(change),
        ratio=ratio,
        gpu_change_share=difference.wall.gpu_change_share,
        launches_change=launches.kernels_change,
        calls_change=launches.calls_change,
        host_ns_per_launch=slower.host_ns_per_launch,
        added_ns_per_launch=launches.added_ns_per_launch if change >= 0 else launches.removed_ns_per_launch,
        added_cost_ns=launches.added_cost_ns,
        pace_cost_ns=launches.pace_cost_ns,
        flops_ratio=difference.work.flops_ratio,
        baseline_bound=launches.baseline.bound,
        variant_bound=launches.variant.bound,
        contributions=contributions,
    )


def _amounts(difference: StepDifference) -> dict[str, Fraction]:
    """The change of the wall time by cause."""
    wall = difference.wall
    gpu_work = wall.change_of("compute") + wall.change_of("graph")
    issuing = wall.change_of("idle", *ISSUE_CAUSES)
    amounts = {"communication": wall.change_of("communication"), "copies": wall.change_of("copy")}
    for part in wall.parts:
        if part.group == "idle" and part.part not in ISSUE_CAUSES:
            cause = f"idle: {_JOINED.get(part.part, part.part)}"
            amounts[cause] = amounts.get(cause, _ZERO) + part.change_ns
    bounds = {difference.launches.baseline.bound, difference.launches.variant.bound}
    by_issue = "host-issue" in bounds
    # Whether waiting for launches cancels the change of GPU work, or more than that.
    absorbed = gpu_work * issuing < 0 and abs(issuing) >= abs(gpu_work) and gpu_work * wall.change_ns <= 0
    if bounds == {"host-issue"} or (absorbed and by_issue):
        amounts["host-issue-bound"] = gpu_work + issuing
    else:
        amounts["gpu-work"], amounts["host-issue-bound" if by_issue else "launching"] = gpu_work, issuing
    return amounts
