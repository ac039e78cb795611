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
    inside = (
        (
            _judged("H2c", None, {}, "not judged"),
            _judged("H4c", None, {}, "not judged"),
        )
        if counters is None
        else inside_kernels(counters, difference)
    )
    grids, moved = _parallelism(difference), _memory(difference)
    return (_launches(difference, *step_ns), grids, inside[0], _operations(difference), moved, inside[1])


def _judged(
    name: str, share: float | None, evidence: Mapping[str, float | None], unknown: Standing = "unavailable"
) -> Hypothesis:
    """A hypothesis by the share that it makes up; `unknown` where that is None. Unknown numbers are left out."""
    standing: Standing = unknown
    if share is not None:
        standing = "confirmed" if share >= _MOST else "partly" if share >= _LITTLE else "refuted"
    return Hypothesis(
        name, standing, share, {key: float(value) for key, value in evidence.items() if value is not None}
    )


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
    share = added
    if added is not None:
        # The host's time is all that counts: with as many launches as before, the step would be as long as before.
        limits = launches.variant.bound == "host-issue" and added > 0 and change > 0
        share = added / change if limits else 0.0
    evidence = {
        "launches_added_per_step": launches.kernels_change,
        "added_launch_ns": each,
        "added_launches_ns_per_step": added,
        "change_ns_per_step": change,
        "baseline_waits_for_launches_share": launches.baseline.issue_share,
        "variant_waits_for_launches_share": launches.variant.issue_share,
    }
    return _judged("H1", share, evidence)


def _parallelism(difference: StepDifference) -> Hypothesis:
    """H2: the share of the variant's kernel time in grids with fewer blocks than the GPU has multiprocessors."""
    before, after = (_empty_share(side) for side in (difference.baseline, difference.variant))
    gpu_change = difference.wall.gpu_change_share
    evidence = {
        "baseline_small_grids_share": before,
        "variant_small_grids_share": after,
        "gpu_time_factor": None if gpu_change is None else 1 + gpu_change,
        "flops_factor": difference.work.flops_ratio,
    }
    return _judged("H2", after, evidence)


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
    new = table.filter(pl.col("change") == "added")
    added = float(new["change_ns_per_step"].sum())
    others = float(table.filter(pl.col("change") != "added")["change_ns_per_step"].sum())
    evidence: dict[str, float | None] = {
        "added_kernels_per_step": float(new["launches_change_per_step"].sum()),
        "added_kernels_ns_per_step": added,
        "saved_kernels_ns_per_step": max(0.0, -others),
    }
    if not table.height or added <= 0:
        return _judged("H3", 0.0 if table.height else None, evidence)
    if others >= 0:  # nothing was saved: the operations cost whatever they cost
        return _judged("H3", None, evidence, "confirmed")
    return _judged("H3", added / -others, evidence)


def _memory(difference: StepDifference) -> Hypothesis:
    """H4: what moving memory takes more of the step, over the change of the wall time, or the saving that it eats."""
    wall = difference.wall
    computing = {part.part: float(part.change_ns) for part in wall.parts if part.group == "compute"}
    moving = float(wall.change_of("copy")) + sum(computing.get(part, 0.0) for part in _MOVING)
    saved = -sum(change for change in computing.values() if change < 0)
    whole = max(float(wall.change_ns), saved)
    evidence: dict[str, float | None] = {
        "moving_memory_ns_per_step": moving,
        "change_ns_per_step": float(wall.change_ns),
        "saved_compute_ns_per_step": saved,
    }
    return _judged("H4", max(0.0, moving / whole) if whole > 0 else None, evidence)


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


def inside_kernels(counters: KernelCounters, difference: StepDifference) -> tuple[Hypothesis, Hypothesis]:
    """H2c and H4c, judged by a report of the variant, with how much of the variant's window it stands for.

    H2c: of the kernel time that profiled launches stand for, what kernels take that are too small for the GPU or whose
    warps wait: neither arithmetic nor memory is near its peak. Not judged where nothing has a duration, or the report
    holds no launch of the program's window: then it is of another program. H4c: of the sectors that the added gathers,
    sorts, copies and casts touch, the part that nobody asked for; not judged without such a kernel and its sectors.

    A profiled launch counts as often as the window has launches of the same name, grid and block for each that was
    profiled: a report may hold one of each, or the first of a step.

    Args:
        difference: of the steps of both sides, which tells the kernels that only the variant has.
    """
    access = memory_access(counters).select(
        "launch", "global_sectors", "global_wasted_share", "global_load_sectors_per_request", "l1_hit_share",
        "l2_hit_share",
    )  # fmt: skip
    text = pl.col("name", "full_name", "kind", "bound").cast(pl.String)
    rows = counters_summary(counters, by="launch").with_columns(text).filter(pl.col("kind") == "kernel")
    rows = rows.join(access, on="launch", how="left")
    kinds = {name: classify(name).category for name in rows["full_name"].unique()}
    category = pl.col("full_name").replace_strict(kinds, default=None, return_dtype=pl.String)
    coverage = counters_coverage(counters, difference.variant.timeline, difference.variant.window)
    inside = coverage.groups.with_columns(pl.col("name").cast(pl.String)).group_by(_SAME).agg(pl.col("launches").sum())
    times = (pl.col("launches") / pl.len().over(_SAME)).fill_null(1.0)
    rows = (
        rows.drop("launches")
        .join(inside, on=_SAME, how="left")
        .with_columns(
            pl.col("total_ns") * times,
            pl.col("global_sectors") * times,
            category=category,
            low=(pl.col("achieved_share") < LOW_OCCUPANCY).cast(pl.Float64),
            waits=pl.col("bound").is_in(_WAITING).cast(pl.Float64),
        )
    )
    timed = rows.filter(pl.col("total_ns") > 0)
    is_moving = pl.col("category").is_in(_SCATTERING) & (pl.col("global_sectors") > 0)
    moving = rows.filter(is_moving & pl.col("name").is_in(_added_names(difference)))
    known = {"counters_coverage_share": coverage.exact_share, "profiled_launches": float(rows.height)}
    waiting = {
        "occupancy_share": _mean(timed, "achieved_share", "total_ns"),
        "low_occupancy_time_share": _mean(timed, "low", "total_ns"),
        "compute_utilisation_share": _mean(timed, "compute_share", "total_ns"),
        "memory_utilisation_share": _mean(timed, "memory_share", "total_ns"),
    }
    scattered = {
        "added_moving_kernels": float(moving.height),
        "load_sectors_per_request": _mean(moving, "global_load_sectors_per_request", "global_sectors"),
        "l1_hit_share": _mean(moving, "l1_hit_share", "global_sectors"),
        "l2_hit_share": _mean(moving, "l2_hit_share", "global_sectors"),
    }
    waits = _mean(timed, "waits", "total_ns") if coverage.exact_share else None
    wasted = _mean(moving, "global_wasted_share", "global_sectors")
    return (
        _judged("H2c", waits, {**waiting, **known}, "not judged"),
        _judged("H4c", wasted, {**scattered, **known}, "not judged"),
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
