"""The cause of a wall difference, in numbers: which kind of time grew or shrank, and how much of the change it is.

The parts of the wall time are put together to contributions, one for each thing that can be done about it. GPU work and
waiting for launches are not independent of each other: where the host cannot issue work as fast as the GPU finishes it,
a GPU with less work waits for the same launches, and what work saves comes back as idle time. Where that is so, the two
are one contribution, the host's issue rate; what is left of the two is what the host takes longer, or shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal

from warplens.compare.difference.launching import ISSUE_CAUSES

if TYPE_CHECKING:
    from warplens.compare.difference.difference import StepDifference

__all__ = ["CAUSES", "SAME_MARGIN", "Contribution", "Explanation", "explanation"]

#: Cause → what it means. `idle: …` names one cause of `analysis.idle.IDLE_CAUSES`.
CAUSES: Final = {
    "no-difference": "the wall times per step are the same within the margin",
    "host-issue-bound": "the host's issue rate limits the step: what changed is how long it takes to issue the work",
    "gpu-work": "the GPU's own work takes another time",
    "communication": "communication that no compute hides",
    "copies": "copies and fills that neither compute nor communication hides",
    "idle: …": "the GPU waits for another time, for this cause",
}

#: Idle causes that are told as one: what a drained GPU costs beyond the wait itself is the wait's cost, too.
_JOINED: Final = {"refill": "synchronization"}

#: A change of the wall time below this share of the baseline's is called none: repeated profiles of one program differ
#: by as much.
SAME_MARGIN: Final = 0.02


_ZERO: Final = Fraction(0)


@dataclass(frozen=True)
class Contribution:
    """One kind of time.

    Attributes:
        cause: a key of `CAUSES`, or `idle: <cause>`.
        change_ns: variant minus baseline, per step; contributions sum to the change of the wall time.
        share: `change_ns` over that change; None where it is zero.
    """

    cause: str
    change_ns: float
    share: float | None


@dataclass(frozen=True)
class Explanation:
    """Why the step takes another time.

    Attributes:
        cause: of the largest contribution that goes the way of the whole change; `no-difference` within the margin.
        direction: of the variant against the baseline.
        share: how much of the change the cause makes up: above 1 where something else works against it.
        change_ns: change of the wall time per step.
        ratio: wall time of the variant over that of the baseline.
        gpu_change_share: change of the time in which the GPU computed, of the baseline's (−0.46: it fell by 46 %).
        launches_change: kernels per step that the variant has more; None where CUDA graphs hide some.
        calls_change: launching calls per step that the variant has more.
        host_ns_per_launch: mean cost of a launching call to the host, on the side that is slower.
        added_ns_per_launch: that of the kernels that only this side launches; None where it has none.
        added_cost_ns, pace_cost_ns: host time per step of kernels that only one side launches, and that the others take
            more.
        flops_ratio: variant over baseline; None where unknown.
        baseline_bound, variant_bound: what limits each side (`launching.BOUNDS`).
        contributions: all of them, the largest first.
    """

    cause: str
    direction: Literal["slower", "faster", "same"]
    share: float | None
    change_ns: float
    ratio: float | None
    gpu_change_share: float | None
    launches_change: float | None
    calls_change: float
    host_ns_per_launch: float | None
    added_ns_per_launch: float | None
    added_cost_ns: float | None
    pace_cost_ns: float | None
    flops_ratio: float | None
    baseline_bound: str
    variant_bound: str
    contributions: tuple[Contribution, ...]

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
