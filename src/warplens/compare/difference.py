"""The wall time of a step on two sides, split into parts that add up to their difference, and its cause."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

import polars as pl

from warplens.analysis.intervals import total, union
from warplens.analysis.timebudget import TimeBudget, budgets_within, time_budgets
from warplens.compare.host import ISSUE_CAUSES, LaunchChange, Side, launch_change
from warplens.compare.places import comparability_notes, phase_changes, range_changes
from warplens.compare.work import KernelChanges, WorkChange, kernel_changes, transfer_changes, work_change
from warplens.profile import Note
from warplens.profile.columns import PART_GROUPS, column, table
from warplens.profile.schema import Column

# A side's parts are those of its time budget (`warplens.analysis.timebudget`): GPU work by category, CUDA graphs whose
# inside is hidden, exposed communication, exposed copies, and idle time by cause. They are integers that sum to the
# time that was split; over the number of steps they are fractions, and stay fractions here.
#
# A step's wall time runs from its begin to the next one's. The time inside of n steps is divided by n, the time between
# them by n − 1, because nobody knows what followed the last one. Where several devices worked, a part is its mean over
# the devices: each of them has the same wall time to fill.


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
    #: baseline_ns, variant_ns: the time of it; 0 where a side has none
    baseline_ns: Fraction
    variant_ns: Fraction

    @property
    def change_ns(self) -> Fraction:
        """Variant minus baseline."""
        return self.variant_ns - self.baseline_ns


@dataclass(frozen=True)
class SideWall:
    """One side's wall time per step."""

    wall_ns: Fraction  #: from a step's begin to the next one's; without steps, the window's length
    between_ns: Fraction  #: the part of it between a step's end and the next one's begin
    busy_ns: Fraction  #: the part of it in which the GPU worked
    parts: dict[tuple[str, str], Fraction]  #: (group, part) → time; they sum to `wall_ns`

    @property
    def idle_ns(self) -> Fraction:
        """The part of the wall time in which the GPU did nothing."""
        return self.wall_ns - self.busy_ns


@dataclass(frozen=True)
class WallSplit:
    """The wall time per step of both sides and what its difference is made of."""

    baseline: SideWall
    variant: SideWall
    parts: tuple[PartChange, ...]  #: every part that a side has, by group, the largest change first

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

        Concurrent kernels count once, and the inside of CUDA graphs counts as a whole.
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


@dataclass(frozen=True, eq=False)
class StepDifference:
    """Two sides held against each other, per step. Changes are variant minus baseline."""

    baseline: Side
    variant: Side
    wall: WallSplit  #: the wall time split into parts whose changes add up to its change exactly
    kernels: KernelChanges  #: kernels kept, changed, added and removed
    ranges: pl.DataFrame  #: GPU work by annotated range (`RANGE_CHANGES`)
    merged_ranges: pl.DataFrame  #: the same, where names that differ in their numbers only are one (`block_N`)
    phases: pl.DataFrame  #: GPU work by phase of a training step (`PHASE_CHANGES`); empty where no name tells
    transfers: pl.DataFrame  #: copies, fills and communication (`TRANSFER_CHANGES`)
    launches: LaunchChange  #: launches, what each costs the host, and what limits each side
    work: WorkChange  #: floating-point operations, where known
    notes: tuple[Note, ...]  #: what makes the two hard to compare, the gravest first

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


# --- The cause of a wall difference ----------------------------------------------------------------------------------
# The parts of the wall time are put together to contributions, one for each thing that can be done about it. GPU work
# and waiting for launches are not independent of each other: where the host cannot issue work as fast as the GPU
# finishes it, a GPU with less work waits for the same launches, and what work saves comes back as idle time. Where that
# is so, the two are one contribution, the host's launch rate; what is left of the two is what the host takes longer, or
# shorter.


#: Cause → what it means. `idle: …` names one cause of `analysis.timebudget.IDLE_CAUSES`.
CAUSES: Final = {
    "no-difference": "the wall times per step are the same within the margin",
    "host-issue-bound": "the host's launch rate limits the step: the time to launch the work changed",
    "gpu-work": "the GPU's own work takes a different time",
    "communication": "exposed communication",
    "copies": "exposed copies and fills",
    "idle: …": "the GPU is idle for a different time, for this cause",
}

#: Idle causes that are told as one: what a drained GPU costs beyond the wait itself is the wait's cost, too.
_JOINED: Final = {"refill": "synchronization"}

#: A change of the wall time below this share of the baseline's is called none: repeated profiles of one program differ
#: by as much.
SAME_MARGIN: Final = 0.02


@dataclass(frozen=True)
class Contribution:
    """One kind of time."""

    cause: str  #: a key of `CAUSES`, or `idle: <cause>`
    change_ns: float  #: variant minus baseline, per step; contributions sum to the change of the wall time
    share: float | None  #: `change_ns` over that change; None where it is zero


@dataclass(frozen=True)
class Explanation:
    """Why the step takes another time."""

    cause: str  #: of the largest contribution that goes the way of the whole change; `no-difference` within the margin
    direction: Literal["slower", "faster", "same"]  #: of the variant against the baseline
    share: float | None  #: how much of the change the cause makes up: above 1 where something else works against it
    change_ns: float  #: change of the wall time per step
    ratio: float | None  #: wall time of the variant over that of the baseline
    #: change of the time in which the GPU computed, of the baseline's (−0.46: it fell by 46 %)
    gpu_change_share: float | None
    launches_change: float | None  #: kernels per step that the variant has more; None where CUDA graphs hide some
    calls_change: float  #: launching calls per step that the variant has more
    host_ns_per_launch: float | None  #: mean cost of a launching call to the host, on the side that is slower
    added_ns_per_launch: float | None  #: that of the kernels that only this side launches; None where it has none
    #: added_cost_ns, pace_cost_ns: host time per step of kernels that only one side launches, and that the others take
    #: more
    added_cost_ns: float | None
    pace_cost_ns: float | None
    flops_ratio: float | None  #: variant over baseline; None where unknown
    #: baseline_bound, variant_bound: what limits each side (`host.BOUNDS`)
    baseline_bound: str
    variant_bound: str
    contributions: tuple[Contribution, ...]  #: all of them, the largest first

    @property
    def is_paradox(self) -> bool:
        """Whether the GPU got less to do and the step no faster, or more to do and the step no slower."""
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
    direction = _direction(difference)
    agreeing = [found for found in contributions if found.share is not None and found.share > 0]
    main = agreeing[0] if agreeing and direction != "same" else None
    launches = difference.launches
    slower = launches.variant if change >= 0 else launches.baseline
    return Explanation(
        cause=main.cause if main else "no-difference",
        direction=direction,
        share=main.share if main else None,
        change_ns=float(change),
        ratio=difference.wall.ratio,
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


def _direction(difference: StepDifference) -> Literal["slower", "faster", "same"]:
    ratio = difference.wall.ratio
    if ratio is None or abs(ratio - 1) <= SAME_MARGIN:
        return "same"
    return "slower" if ratio > 1 else "faster"


def _amounts(difference: StepDifference) -> dict[str, Fraction]:
    """The change of each kind of time; they sum to the change of the wall time."""
    wall = difference.wall
    gpu_work = wall.change_of("compute") + wall.change_of("graph")
    issuing = wall.change_of("idle", *ISSUE_CAUSES)
    amounts = {"communication": wall.change_of("communication"), "copies": wall.change_of("copy")}
    for part in wall.parts:
        if part.group == "idle" and part.part not in ISSUE_CAUSES:
            cause = f"idle: {_JOINED.get(part.part, part.part)}"
            amounts[cause] = amounts.get(cause, _ZERO) + part.change_ns
    bounds = {difference.launches.baseline.bound, difference.launches.variant.bound}
    if bounds == {"host-issue"} or (_absorbed(gpu_work, issuing, wall.change_ns) and "host-issue" in bounds):
        amounts["host-issue-bound"] = gpu_work + issuing
    else:
        amounts["gpu-work"], amounts["host-issue-bound"] = gpu_work, issuing
    return amounts


def _absorbed(gpu_work: Fraction, issuing: Fraction, change: Fraction) -> bool:
    """Whether the change of GPU work came back, all of it or more, as waiting for launches."""
    return gpu_work * issuing < 0 and abs(issuing) >= abs(gpu_work) and gpu_work * change <= 0
