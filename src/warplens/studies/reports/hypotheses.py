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

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import polars as pl

from warplens.analysis.categories import classify
from warplens.analysis.counters.coverage import counters_coverage
from warplens.analysis.counters.groups import counters_summary
from warplens.analysis.counters.memoryaccess import memory_access
from warplens.compare.difference.difference import StepDifference
from warplens.compare.difference.host import Side
from warplens.profile.counters import KernelCounters
from warplens.profile.trace import GRID_BLOCKS

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
    """One explanation, and what became of it."""

    id: str  #: a key of `CLAIMS`
    #: `confirmed` (it makes up half or more of what it should explain), `refuted` (less than a tenth, or the contrary),
    #: `partly` (between them), `unavailable` (the profiles cannot tell), `not judged` (no counters)
    standing: Standing
    share: float | None  #: of what it should explain; None where that has no size
    #: named numbers, with their units in the names, as findings have them
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


#: The command that records what is needed.
COMMAND: Final = "warplens collect ncu --preset occupancy --preset memory --trace PROFILE -- python PROGRAM"

#: How `counters_summary` calls kernels that use neither their arithmetic nor their memory: those too small for the GPU,
#: and those whose warps wait.
_WAITING: Final = ("small", "latency")

#: Categories of kernels that move memory and choose what to move.
_SCATTERING: Final = ("gather-scatter", "sort-topk", "copy-cast")

#: What tells launches that are alike, whichever profiler wrote them.
_SAME: Final = ("name", "grid", "block")

#: Below this occupancy the guides call a kernel's parallelism low (achieved warps over possible ones).
LOW_OCCUPANCY: Final = 0.5


@dataclass(frozen=True)
class Inside:
    """What counters say."""

    #: of the kernel time that profiled launches stand for, what kernels take that are too small for the GPU or whose
    #: warps wait: neither arithmetic nor memory is near its peak. None where nothing has a duration, or the report
    #: holds no launch of the program's window: then it is of another program.
    waiting_share: float | None
    #: of the sectors that the added gathers, sorts, copies and casts touch, the part that nobody asked for. None where
    #: no such kernel was profiled with its sectors.
    scattered_share: float | None
    #: waiting, scattered: named numbers behind each, with their units in the names
    waiting: Mapping[str, float] = field(default_factory=dict)
    scattered: Mapping[str, float] = field(default_factory=dict)


def inside_kernels(counters: KernelCounters, difference: StepDifference) -> Inside:
    """Judge a report of the variant, and say how much of the variant's window it stands for.

    A profiled launch counts as often as the window has launches of the same name, grid and block for each that was
    profiled: a report may hold one of each, or the first of a step.

    Args:
        difference: of the steps of both sides, which tells the kernels that only the variant has.
    """
    summary = counters_summary(counters, by="launch")
    access = memory_access(counters).select(
        "launch", "global_sectors", "global_wasted_share", "global_load_sectors_per_request", "l1_hit_share",
        "l2_hit_share",
    )  # fmt: skip
    rows = summary.filter(pl.col("kind").cast(pl.String) == "kernel").join(access, on="launch", how="left")
    kinds = {name: classify(name).category for name in rows["full_name"].cast(pl.String).unique()}
    rows = rows.with_columns(
        category=pl.col("full_name").cast(pl.String).replace_strict(kinds, default=None, return_dtype=pl.String)
    )
    coverage = counters_coverage(counters, difference.variant.timeline, difference.variant.window)
    known = {"counters_coverage_share": coverage.exact_share, "profiled_launches": float(rows.height)}
    inside = coverage.groups.with_columns(pl.col("name").cast(pl.String)).group_by(_SAME).agg(pl.col("launches").sum())
    rows = rows.drop("launches").with_columns(pl.col("name").cast(pl.String)).join(inside, on=_SAME, how="left")
    times = (pl.col("launches") / pl.len().over(_SAME)).fill_null(1.0)
    rows = rows.with_columns(pl.col("total_ns") * times, pl.col("global_sectors") * times)
    timed = rows.filter(pl.col("total_ns") > 0)
    waiting = {
        "occupancy_share": _mean(timed, "achieved_share", "total_ns"),
        "low_occupancy_time_share": _mean(
            timed.with_columns(low=(pl.col("achieved_share") < LOW_OCCUPANCY).cast(pl.Float64)), "low", "total_ns"
        ),
        "compute_utilisation_share": _mean(timed, "compute_share", "total_ns"),
        "memory_utilisation_share": _mean(timed, "memory_share", "total_ns"),
    }
    is_moving = pl.col("category").is_in(_SCATTERING) & (pl.col("global_sectors") > 0)
    moving = rows.filter(is_moving & pl.col("name").cast(pl.String).is_in(_added_names(difference)))
    scattered = {
        "added_moving_kernels": float(moving.height),
        "load_sectors_per_request": _mean(moving, "global_load_sectors_per_request", "global_sectors"),
        "l1_hit_share": _mean(moving, "l1_hit_share", "global_sectors"),
        "l2_hit_share": _mean(moving, "l2_hit_share", "global_sectors"),
    }
    judged = timed.with_columns(waits=pl.col("bound").cast(pl.String).is_in(_WAITING).cast(pl.Float64))
    is_of_this = bool(coverage.exact_share)
    return Inside(
        _mean(judged.filter(pl.col("bound").is_not_null()), "waits", "total_ns") if is_of_this else None,
        _mean(moving, "global_wasted_share", "global_sectors"),
        _known(**waiting, **known),
        _known(**scattered, **known),
    )


def _added_names(difference: StepDifference) -> list[str]:
    """Short names of kernels that the variant alone runs; profilers spell full names differently."""
    table = difference.kernels.table.with_columns(pl.col("name").cast(pl.String))
    own = set(table.filter(pl.col("variant_launches") > 0)["name"])
    return sorted(own - set(table.filter(pl.col("baseline_launches") > 0)["name"]))


def _mean(rows: pl.DataFrame, value: str, weight: str) -> float | None:
    """The mean of a column over the rows that have it, weighted by another."""
    there = rows.filter(pl.col(value).is_not_null() & pl.col(weight).is_not_null())
    total = float(there[weight].sum())
    return float((there[value] * there[weight]).sum()) / total if total else None
