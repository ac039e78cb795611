"""Four explanations of a variant that does less work and is not faster for it, each confirmed or refuted with numbers.

They are the hypotheses of the token-reduction study, worded for any pair of profiles: the added launches, a GPU with
too little to do at once, the added operations themselves, and memory. Each is judged by what it predicts:

* added launches cost the time only where the host's pace limits the step;
* too little parallelism shows in kernels whose grids leave multiprocessors without a block;
* added operations matter as much as they take GPU time, against what the variant saves there;
* moving memory matters as much as gathers, copies and casts take more GPU time.

What a timeline cannot tell, how busy the units are inside kernels and how scattered the accesses, is judged from
counters of the variant where there are any (`H2c`, `H4c`), and else not judged: "refuted" is said of the claim made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from warplens.compare.difference import Side
from warplens.profile.trace import GRID_BLOCKS
from warplens.studies.reports.inside import inside_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.compare.difference import StepDifference
    from warplens.profile.counters import KernelCounters


Standing = Literal["confirmed", "partly", "refuted", "unavailable", "not judged"]

#: What each hypothesis says.
CLAIMS: Final = {
    "H1": "the launches that the variant adds cost more host time than its work saves",
    "H2": "the GPU has too little to do at once, so that less work takes hardly less time",
    "H2c": "inside its kernels the GPU waits: neither arithmetic nor memory is near its peak",
    "H3": "the operations that the variant adds take the GPU as long as what they save",
    "H4": "gathers, copies and casts of memory take the time",
    "H4c": "what the added gathers, sorts and copies read and write is scattered",
}

#: A cause that makes up this much of what it should explain is confirmed …
_MOST: Final = 0.5
#: … and below this it is refuted: between the two, it is a part of the story and not the story.
_LITTLE: Final = 0.1

#: Categories of kernels that move memory and compute next to nothing.
_MOVING: Final = ("gather-scatter", "copy-cast")


@dataclass(frozen=True)
class Hypothesis:
    """One explanation, and what became of it.

    Attributes:
        id: a key of `CLAIMS`.
        standing: `confirmed` (it makes up half or more of what it should explain), `refuted` (less than a tenth, or the
            contrary), `partly` (between them), `unavailable` (the profiles cannot tell), `not judged` (no counters).
        share: of what it should explain; None where that has no size.
        evidence: named numbers, with their units in the names, as findings have them.
    """

    id: str
    standing: Standing
    share: float | None
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """What it says."""
        return CLAIMS[self.id]


def hypotheses(
    difference: StepDifference,
    counters: KernelCounters | None = None,
    step_ns: tuple[float | None, float | None] = (None, None),
) -> tuple[Hypothesis, ...]:
    """The four hypotheses, judged by one pair of profiles; two of them also by counters of the variant.

    Args:
        difference: of the steps of both.
        counters: of the variant's kernels.
        step_ns: what a step of each takes without a profiler, where it was timed.
    """
    inside = {"H2c": Hypothesis("H2c", "not judged", None), "H4c": Hypothesis("H4c", "not judged", None)}
    if counters is not None:
        found = inside_kernels(counters, difference)
        judged = (("H2c", found.waiting_share, found.waiting), ("H4c", found.scattered_share, found.scattered))
        for name, share, numbers in judged:
            standing: Standing = "not judged" if share is None else _standing(share)
            inside[name] = Hypothesis(name, standing, share, numbers)
    grids, moved = _parallelism(difference), _memory(difference)
    return (_launches(difference, *step_ns), grids, inside["H2c"], _operations(difference), moved, inside["H4c"])


def _standing(share: float) -> Standing:
    if share >= _MOST:
        return "confirmed"
    return "partly" if share >= _LITTLE else "refuted"


def _known(**numbers: float | None) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _launches(difference: StepDifference, before_ns: float | None, after_ns: float | None) -> Hypothesis:
    """H1: the share of the saved GPU time that comes back as host time of added launches, if the host sets the pace.

    A profiler slows the host, and two recordings not alike, so that a profile can show a step that falls where it
    rises. Where both were timed without one, those times are what is explained, and launches cost as much less as the
    variant's step does.
    """
    launches, wall = difference.launches, difference.wall
    each, added, change = launches.added_ns_per_launch, launches.added_cost_ns, float(wall.change_ns)
    if before_ns and after_ns:
        slowed = float(wall.variant.wall_ns) / after_ns
        change = after_ns - before_ns
        each, added = (None if cost is None else cost / max(slowed, 1.0) for cost in (each, added))
    evidence = _known(
        launches_added_per_step=launches.kernels_change,
        added_launch_ns=each,
        added_launches_ns_per_step=added,
        change_ns_per_step=change,
        baseline_waits_for_launches_share=launches.baseline.issue_share,
        variant_waits_for_launches_share=launches.variant.issue_share,
    )
    if added is None:
        return Hypothesis("H1", "unavailable", None, evidence)
    if launches.variant.bound != "host-issue" or added <= 0:
        return Hypothesis("H1", "refuted", 0.0, evidence)
    # The host's time is all that counts: with as many launches as before, the step would be as long as before.
    share = added / change if change > 0 else 0.0
    return Hypothesis("H1", _standing(share), share, evidence)


def _parallelism(difference: StepDifference) -> Hypothesis:
    """H2: the share of the variant's kernel time in grids with fewer blocks than the GPU has multiprocessors."""
    before, after = (_empty_share(side) for side in (difference.baseline, difference.variant))
    wall, work = difference.wall, difference.work
    evidence = _known(
        baseline_small_grids_share=before,
        variant_small_grids_share=after,
        gpu_time_factor=None if wall.gpu_change_share is None else 1 + wall.gpu_change_share,
        flops_factor=work.flops_ratio,
    )
    if after is None:
        return Hypothesis("H2", "unavailable", None, evidence)
    return Hypothesis("H2", _standing(after), after, evidence)


def _empty_share(side: Side) -> float | None:
    """Share of the kernel time in which multiprocessors had no block of the kernel; None where grids are unknown."""
    trace = side.timeline.trace
    counts = {device.ordinal: device.sm_count for device in trace.capture.devices if device.sm_count}
    rows = side.work.filter(pl.col("kind") == "kernel").select("row", "device", "start_ns", "end_ns")
    blocks = trace.kernels.select(GRID_BLOCKS)[rows["row"]].to_series()
    known = rows.select(
        time=pl.col("end_ns") - pl.col("start_ns"),
        fill=(blocks / pl.col("device").replace_strict(counts, default=None, return_dtype=pl.Int64)).clip(0, 1),
    ).drop_nulls()
    spent = float(known["time"].sum())
    return float((known["time"] * (1 - known["fill"])).sum()) / spent if spent else None


def _operations(difference: StepDifference) -> Hypothesis:
    """H3: GPU time of kernels that only the variant has, over the GPU time that its other kernels save."""
    table = difference.kernels.table
    added = float(table.filter(pl.col("change") == "added")["change_ns_per_step"].sum())
    others = float(table.filter(pl.col("change") != "added")["change_ns_per_step"].sum())
    count = float(table.filter(pl.col("change") == "added")["launches_change_per_step"].sum())
    evidence = _known(
        added_kernels_per_step=count, added_kernels_ns_per_step=added, saved_kernels_ns_per_step=max(0.0, -others)
    )
    if not table.height:
        return Hypothesis("H3", "unavailable", None, evidence)
    if added <= 0:
        return Hypothesis("H3", "refuted", 0.0, evidence)
    if others >= 0:  # nothing was saved: the operations cost whatever they cost
        return Hypothesis("H3", "confirmed", None, evidence)
    share = added / -others
    return Hypothesis("H3", _standing(share), share, evidence)


def _memory(difference: StepDifference) -> Hypothesis:
    """H4: what moving memory takes more of the step, over the change of the wall time, or the saving that it eats."""
    wall = difference.wall
    moving = sum(
        float(part.change_ns)
        for part in wall.parts
        if part.group == "copy" or (part.group == "compute" and part.part in _MOVING)
    )
    saved = sum(float(part.change_ns) for part in wall.parts if part.group == "compute" and part.change_ns < 0)
    whole = max(float(wall.change_ns), -saved)
    evidence = _known(
        moving_memory_ns_per_step=moving, change_ns_per_step=float(wall.change_ns), saved_compute_ns_per_step=-saved
    )
    if whole <= 0:
        return Hypothesis("H4", "unavailable", None, evidence)
    share = max(0.0, moving / whole)
    return Hypothesis("H4", _standing(share), share, evidence)
