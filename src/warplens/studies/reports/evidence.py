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
from typing import TYPE_CHECKING, Any, Final, Literal

import polars as pl

from warplens.analysis.prediction import predictions
from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.compare.difference import Side
from warplens.errors import MissingDataError
from warplens.profile.tables import GRID_BLOCKS
from warplens.report.comparison.numbers import TraceFiles, compare_steps
from warplens.studies.policies.regret import regrets_on
from warplens.studies.reports.inside import inside_kernels
from warplens.studies.sweeps.numbers import examine_sweep
from warplens.studies.sweeps.reading import same, sweep_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from warplens.analysis.prediction import Prediction
    from warplens.compare.difference import StepDifference
    from warplens.profile import Trace
    from warplens.profile.counters import KernelCounters
    from warplens.profile.measurements import Measurements
    from warplens.report.comparison.numbers import StepNumbers
    from warplens.studies.policies.choosing import Policy
    from warplens.studies.policies.regret import CellRegret
    from warplens.studies.sweeps.numbers import SweepNumbers


# numbers.


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


def hypotheses(difference: StepDifference, counters: KernelCounters | None = None) -> tuple[Hypothesis, ...]:
    """The four hypotheses, judged by one pair of profiles; two of them also by counters of the variant.

    Args:
        difference: of the steps of both.
        counters: of the variant's kernels.
    """
    inside = {"H2c": Hypothesis("H2c", "not judged", None), "H4c": Hypothesis("H4c", "not judged", None)}
    if counters is not None:
        found = inside_kernels(counters, difference)
        judged = (("H2c", found.waiting_share, found.waiting), ("H4c", found.scattered_share, found.scattered))
        for name, share, numbers in judged:
            standing: Standing = "not judged" if share is None else _standing(share)
            inside[name] = Hypothesis(name, standing, share, numbers)
    grids, moved = _parallelism(difference), _memory(difference)
    return (_launches(difference), grids, inside["H2c"], _operations(difference), moved, inside["H4c"])


def _standing(share: float) -> Standing:
    if share >= _MOST:
        return "confirmed"
    return "partly" if share >= _LITTLE else "refuted"


def _known(**numbers: float | None) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}


def _launches(difference: StepDifference) -> Hypothesis:
    """H1: the share of the saved GPU time that comes back as host time of added launches, if the host sets the pace."""
    launches, wall = difference.launches, difference.wall
    added = launches.added_cost_ns
    change = float(wall.change_ns)
    evidence = _known(
        launches_added_per_step=launches.kernels_change,
        added_launch_ns=launches.added_ns_per_launch,
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


# --- What a findings report rests on: measurements of a grid, pairs of profiles, remedies, a policy ------------------


#: Differences of this share and less do not matter; and how often an interval may miss the truth.
MARGIN: Final = 0.02
LEVEL: Final = 0.05

#: The method whose story the study tells, in the form in which it was published.
_PUBLISHED: Final = "topk"

#: Settings that say of which side a profile is.
_TELLING: Final = ("method", "keep", "attention")


@dataclass(frozen=True, eq=False)
class ProfiledPair:
    """Profiles of both sides at one point of the grid.

    Attributes:
        settings: the point, such as `{"input_size": 224, "batch": 1}`.
        numbers: the comparison of both.
        hypotheses: judged by it.
        predictions: modelled step times of baseline and variant under single changes.
    """

    settings: Mapping[str, float]
    numbers: StepNumbers
    hypotheses: tuple[Hypothesis, ...]
    predictions: tuple[tuple[Prediction, ...], tuple[Prediction, ...]]

    @property
    def title(self) -> str:
        """The point in words: `input size 224, batch 1`."""
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in self.settings.items())


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that the report rests on.

    Attributes:
        baseline, variant: settings that tell the sides apart, without the execution.
        measurements: the grid, every variant and execution.
        sweeps: execution → baseline against variant over the grid.
        pairs: profiles, the point with the puzzle first.
        remedies: measurements of what was tried; None if nothing was.
        grid: measurements of several ways to run both sides over a grid; None without any.
        policy: which of both sides to run; None without one.
        regrets: what choosing by it cost, at points that it was fitted to and at others.
    """

    baseline: Mapping[str, Any]
    variant: Mapping[str, Any]
    measurements: Measurements
    sweeps: Mapping[str, SweepNumbers]
    pairs: tuple[ProfiledPair, ...]
    remedies: Measurements | None = None
    grid: Measurements | None = None
    policy: Policy | None = None
    regrets: Sequence[CellRegret] = ()


def profiled_pair(
    settings: Mapping[str, float],
    baseline: Trace,
    variant: Trace,
    *,
    flops: tuple[float, float] | None = None,
    step_ns: tuple[float | None, float | None] = (None, None),
    counters: KernelCounters | None = None,
) -> ProfiledPair:
    """Compares the profiles of both sides at one point.

    Args:
        settings: the point.
        baseline, variant: the profiles.
        flops: floating-point operations of a step of each, where they are known.
        step_ns: what a step of each takes without a profiler, where it was timed: predictions are of that program.
        counters: of the variant's kernels.
    """
    sides = []
    for name, trace in (("baseline", baseline), ("variant", variant)):
        timeline = Timeline(trace)
        side = Side(name, timeline, timeline.window())
        sides.append(TraceFiles.of(name, (side,), (quality_notes(timeline, side.window),)))
    numbers = compare_steps(*sides, margin=MARGIN, level=LEVEL, flops=flops)
    files = (sides[0].files[0], sides[1].files[0])
    predicted = [predictions(side.timeline, side.window, known) for side, known in zip(files, step_ns, strict=True)]
    return ProfiledPair(settings, numbers, hypotheses(numbers.difference, counters), (predicted[0], predicted[1]))


def study_sides(measurements: Measurements) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of baseline and variant that a study's report holds against each other, without the execution.

    Those that the file names; else no method against the published top-k with the smallest share. Both sides write
    attention out where the file has cells that do, so that they differ in one thing.

    Raises:
        MissingDataError: the file holds no variant.
    """
    named = measurements.sweep or {}
    baseline, variant = dict(named.get("baseline") or {"method": "none"}), dict(named.get("variant") or {})
    if not variant:
        found = measurements.cells.filter(pl.col("method") == _PUBLISHED).get_column("keep").unique().sort()
        if not len(found):
            raise MissingDataError(
                f"{measurements.source}: it holds no cell of {_PUBLISHED}, whose story could be told"
            )
        variant = {"method": _PUBLISHED, "keep": found[0]}
    if "explicit" in measurements.cells.get_column("attention").to_list():
        baseline["attention"] = variant["attention"] = "explicit"
    return baseline, variant


def study_evidence(
    measurements: Measurements,
    profiles: Sequence[tuple[Mapping[str, Any], Trace]] = (),
    *,
    counters: Sequence[tuple[Mapping[str, Any], KernelCounters]] = (),
    remedies: Measurements | None = None,
    grid: Measurements | None = None,
    policy: Policy | None = None,
) -> Evidence:
    """Puts together what the findings of a token-reduction study rest on.

    Args:
        profiles: profiles with the settings of their cells; two of one point that are of baseline and variant, run
            call by call, make a pair.
        counters: reports of Nsight Compute with the settings of their cells.
        remedies: measurements of what was tried, where they are not the study's own.
        grid: measurements of several ways to run both sides, where they are not the study's own.
        policy: to be judged by the grid, too.

    Raises:
        MissingDataError: the measurements hold no variant.
    """
    baseline, variant = study_sides(measurements)
    executions = measurements.cells.get_column("execution").unique(maintain_order=True).to_list()
    sweeps = {
        execution: swept(measurements, {**baseline, "execution": execution}, {**variant, "execution": execution})
        for execution in executions
    }
    grid = grid if grid is not None else measurements
    return Evidence(
        baseline=baseline,
        variant=variant,
        measurements=measurements,
        sweeps=sweeps,
        pairs=tuple(_pairs(measurements, profiles, counters, baseline, variant)),
        remedies=remedies if remedies is not None else measurements,
        grid=grid,
        policy=policy,
        regrets=regrets_on(policy, [sweep_of(grid, baseline, variant)]) if policy is not None else (),
    )


def _pairs(
    measurements: Measurements,
    profiles: Sequence[tuple[Mapping[str, Any], Trace]],
    counters: Sequence[tuple[Mapping[str, Any], KernelCounters]],
    baseline: Mapping[str, Any],
    variant: Mapping[str, Any],
) -> Iterator[ProfiledPair]:
    """Pairs in the order of their points' sizes."""
    points: dict[tuple[tuple[str, float], ...], dict[str, Trace]] = {}
    for settings, trace in profiles:
        point, side = _place(settings, baseline, variant)
        if side is not None:
            points.setdefault(point, {})[side] = trace
    counted = {_place(settings, baseline, variant): report for settings, report in counters}
    for point, sides in sorted(points.items()):
        if len(sides) < 2:
            continue
        cells = [{**dict(point), **side, "execution": "eager"} for side in (baseline, variant)]
        flops = [measured(measurements, cell, "flops") for cell in cells]
        yield profiled_pair(
            dict(point),
            sides["baseline"],
            sides["variant"],
            flops=(flops[0], flops[1]) if flops[0] and flops[1] else None,
            step_ns=(measured(measurements, cells[0], "latency_ns"), measured(measurements, cells[1], "latency_ns")),
            counters=counted.get((point, "variant")),
        )


def _place(
    settings: Mapping[str, Any], baseline: Mapping[str, Any], variant: Mapping[str, Any]
) -> tuple[tuple[tuple[str, float], ...], str | None]:
    """The point that settings name, and of which side they are."""
    point = tuple((name, float(settings[name])) for name in ("input_size", "batch") if name in settings)
    own = {name: value for name, value in settings.items() if name not in dict(point)}
    for side, wanted in (("baseline", baseline), ("variant", variant)):
        if all(name in wanted and same(wanted[name], value) for name, value in own.items() if name in _TELLING):
            return point, side
    return point, None


def measured(measurements: Measurements, settings: Mapping[str, Any], what: str) -> float | None:
    """A figure of the cell with these settings; None where it was not measured."""
    cells = measurements.cells.filter(pl.col("status") == "measured")
    rows = cells.filter(pl.all_horizontal(pl.col(name) == value for name, value in settings.items()))
    value = rows[what][0] if rows.height else None
    return None if value is None else float(value)


def swept(measurements: Measurements, baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> SweepNumbers:
    """Baseline against variant over the grid of the measurements."""
    return examine_sweep(sweep_of(measurements, baseline, variant), level=LEVEL, margin=MARGIN)
