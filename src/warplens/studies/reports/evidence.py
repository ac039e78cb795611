"""The evidence of a findings report: measurements of a grid, profiles with tested hypotheses, remedies, a policy.

The hypotheses explain why a variant that does less work is not faster; numbers confirm or refute each. They are those
of the token-reduction study, generalised to any pair of profiles: added launches, too little parallelism, the added
operations, and memory. Each is tested by its prediction:

* added launches cost time only where the host's pace limits the step;
* too little parallelism shows in kernels whose grids leave multiprocessors without a block;
* the weight of added operations is their GPU time relative to the GPU time that the variant saves;
* the weight of memory movement is the additional GPU time of gathers, copies and casts.

Utilisation inside kernels and scattered accesses do not show in a timeline. They are tested by counters of the variant
(`H2c`, `H4c`), and not judged without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl

from warplens.analysis.categories import classify
from warplens.analysis.counters.bounds import LOW_OCCUPANCY
from warplens.analysis.counters.coverage import counters_coverage
from warplens.analysis.counters.groups import counters_summary
from warplens.analysis.counters.memoryaccess import memory_access
from warplens.analysis.prediction import Prediction, predictions
from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.compare import SIDES
from warplens.compare.difference import StepDifference
from warplens.compare.side import Side
from warplens.errors import MissingDataError
from warplens.profile import Trace
from warplens.profile.counters import KernelCounters
from warplens.profile.measurements import Measurements
from warplens.profile.trace import GRID_BLOCKS
from warplens.report.comparison.numbers import StepNumbers, TraceFiles, compare_steps
from warplens.studies.policies.choosing import Policy
from warplens.studies.policies.regret import CellRegret, regrets_on
from warplens.studies.sweeps.numbers import SweepNumbers, examine_sweep
from warplens.studies.sweeps.reading import same, sweep_of

Standing = Literal["confirmed", "partly", "refuted", "unavailable", "not judged"]

#: Hypothesis → its claim.
CLAIMS: Final = {
    "H1": "the launches that the variant adds cost more host time than its work saves",
    "H2": "the GPU has too little to do at once, so that less work takes hardly less time",
    "H2c": "inside its kernels the GPU waits: neither arithmetic nor memory is near its peak",
    "H3": "the operations that the variant adds take the GPU as long as what they save",
    "H4": "gathers, copies and casts of memory take the time",
    "H4c": "what the added gathers, sorts and copies read and write is scattered",
}

#: A cause that accounts for at least this share of the effect is confirmed, …
_MOST: Final = 0.5
#: … below this share it is refuted, and in between partly confirmed.
_LITTLE: Final = 0.1

#: Categories of kernels that move memory and compute next to nothing.
_MOVING: Final = ("gather-scatter", "copy-cast")


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis and the result of its test."""

    id: str  #: a key of `CLAIMS`
    #: `confirmed` (it accounts for half or more of the effect), `refuted` (less than a tenth, or the opposite effect),
    #: `partly` (in between), `unavailable` (the profiles lack the data), `not judged` (no counters)
    standing: Standing
    share: float | None  #: of the effect to explain; None where that has no size
    #: numbers by name, with units in the names, as in findings
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """The claim in words."""
        return CLAIMS[self.id]


def hypotheses(
    difference: StepDifference,
    counters: KernelCounters | None = None,
    step_ns: tuple[float | None, float | None] = (None, None),
) -> tuple[Hypothesis, ...]:
    """The four hypotheses, tested by one pair of profiles; two of them also by counters of the variant.

    `step_ns` are the step times of baseline and variant without a profiler, where known.
    """
    if counters is not None:
        waits, scattered = inside_kernels(counters, difference)
    else:
        waits, scattered = (_judged(name, None, {}, "not judged") for name in ("H2c", "H4c"))
    grids, moved = _parallelism(difference), _memory(difference)
    return (_launches(difference, *step_ns), grids, waits, _operations(difference), moved, scattered)


def _judged(
    name: str, share: float | None, evidence: Mapping[str, float | None], unknown: Standing = "unavailable"
) -> Hypothesis:
    """A hypothesis with the standing that follows from its share, `unknown` for None; numbers of None are left out."""
    standing: Standing = unknown
    if share is not None:
        standing = "confirmed" if share >= _MOST else "partly" if share >= _LITTLE else "refuted"
    known = {key: float(value) for key, value in evidence.items() if value is not None}
    return Hypothesis(name, standing, share, known)


def _launches(difference: StepDifference, before_ns: float | None, after_ns: float | None) -> Hypothesis:
    """H1: host time of added launches / change of the step time, if the host sets the variant's pace; else 0.

    A profiler slows the host, and not equally in two recordings, so that profiles may show a shorter step where it is
    longer without a profiler. Where both were timed without a profiler, the change is that of these times, and the cost
    of launches is scaled by the ratio of the variant's step times.
    """
    launches, wall = difference.launches, difference.wall
    per_launch, added, change = launches.added_ns_per_launch, launches.added_cost_ns, float(wall.change_ns)
    if before_ns and after_ns:
        slowdown = max(float(wall.variant.wall_ns) / after_ns, 1.0)
        change = after_ns - before_ns
        per_launch, added = (None if cost is None else cost / slowdown for cost in (per_launch, added))
    share = added
    if added is not None:
        # Host-bound: without the added launches, the step would be as long as before.
        limits = launches.variant.bound == "host-issue" and added > 0 and change > 0
        share = added / change if limits else 0.0
    evidence = {
        "launches_added_per_step": launches.kernels_change,
        "added_launch_ns": per_launch,
        "added_launches_ns_per_step": added,
        "change_ns_per_step": change,
        "baseline_waits_for_launches_share": launches.baseline.issue_share,
        "variant_waits_for_launches_share": launches.variant.issue_share,
    }
    return _judged("H1", share, evidence)


def _parallelism(difference: StepDifference) -> Hypothesis:
    """H2: the share of multiprocessors without a block, over the variant's kernel time: grids that are too small."""
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
    """Mean share of multiprocessors without a block, weighted by kernel time; None where grids are unknown."""
    trace = side.timeline.trace
    counts = {device.ordinal: device.sm_count for device in trace.capture.devices if device.sm_count}
    rows = side.work.filter(pl.col("kind") == "kernel").select("row", "device", "start_ns", "end_ns")
    blocks = trace.kernels.select(GRID_BLOCKS)[rows["row"]].to_series()
    known = rows.select(
        time=pl.col("end_ns") - pl.col("start_ns"),
        fill=(blocks / pl.col("device").replace_strict(counts, default=None, return_dtype=pl.Int64)).clip(0, 1),
    ).drop_nulls()
    kernel_ns = float(known["time"].sum())
    return float((known["time"] * (1 - known["fill"])).sum()) / kernel_ns if kernel_ns else None


def _operations(difference: StepDifference) -> Hypothesis:
    """H3: GPU time of kernels that only the variant has / GPU time that its other kernels save."""
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
    if others >= 0:  # nothing was saved, so that all of the added time is a cost
        return _judged("H3", None, evidence, "confirmed")
    return _judged("H3", added / -others, evidence)


def _memory(difference: StepDifference) -> Hypothesis:
    """H4: added time of moving memory / change of the wall time, or / saved compute time where that is larger."""
    wall = difference.wall
    computing = {part.part: float(part.change_ns) for part in wall.parts if part.group == "compute"}
    moving = float(wall.change_of("copy")) + sum(computing.get(part, 0.0) for part in _MOVING)
    saved = -sum(change for change in computing.values() if change < 0)
    effect = max(float(wall.change_ns), saved)
    evidence: dict[str, float | None] = {
        "moving_memory_ns_per_step": moving,
        "change_ns_per_step": float(wall.change_ns),
        "saved_compute_ns_per_step": saved,
    }
    return _judged("H4", max(0.0, moving / effect) if effect > 0 else None, evidence)


#: The command that records the counters for H2c and H4c.
COMMAND: Final = "warplens collect ncu --preset occupancy --preset memory --trace PROFILE -- python PROGRAM"

#: Bounds in `counters_summary` of kernels that use neither arithmetic nor memory well: too small for the GPU, or with
#: waiting warps.
_WAITING: Final = ("small", "latency")

#: Categories of kernels that select and move memory.
_SCATTERING: Final = ("gather-scatter", "sort-topk", "copy-cast")

#: Columns that identify equal launches across profilers.
_SAME: Final = ("name", "grid", "block")


def inside_kernels(counters: KernelCounters, difference: StepDifference) -> tuple[Hypothesis, Hypothesis]:
    """H2c and H4c, tested by a counters report of the variant.

    H2c: share of the kernel time in kernels that are too small for the GPU or whose warps wait, so that neither
    arithmetic nor memory is near its peak. Not judged if no launch has a duration, or if the report has no launch of
    the profile's window, since it is then of another program. H4c: share of unused sectors among those that the added
    gathers, sorts, copies and casts touch; not judged without such kernels. The difference of the steps identifies the
    kernels that only the variant has.

    Each profiled launch is weighted by the number of launches of the same name, grid and block in the window, divided
    by the number of profiled ones: a report may hold one of each, or the first ones of a step.
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
    groups = coverage.groups.with_columns(pl.col("name").cast(pl.String))
    in_window = groups.group_by(_SAME).agg(pl.col("launches").sum())
    weight = (pl.col("launches") / pl.len().over(_SAME)).fill_null(1.0)
    rows = (
        rows.drop("launches")
        .join(in_window, on=_SAME, how="left")
        .with_columns(
            pl.col("total_ns") * weight,
            pl.col("global_sectors") * weight,
            category=category,
            low=(pl.col("achieved_share") < LOW_OCCUPANCY).cast(pl.Float64),
            waits=pl.col("bound").is_in(_WAITING).cast(pl.Float64),
        )
    )
    timed = rows.filter(pl.col("total_ns") > 0)
    is_moving = pl.col("category").is_in(_SCATTERING) & (pl.col("global_sectors") > 0)
    moving = rows.filter(is_moving & pl.col("name").is_in(_added_names(difference)))
    coverage_evidence = {"counters_coverage_share": coverage.exact_share, "profiled_launches": float(rows.height)}
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
        _judged("H2c", waits, {**waiting, **coverage_evidence}, "not judged"),
        _judged("H4c", wasted, {**scattered, **coverage_evidence}, "not judged"),
    )


def _added_names(difference: StepDifference) -> list[str]:
    """Short names of kernels that only the variant runs; full names differ between profilers."""
    table = difference.kernels.table.with_columns(pl.col("name").cast(pl.String))
    in_variant = set(table.filter(pl.col("variant_launches") > 0)["name"])
    return sorted(in_variant - set(table.filter(pl.col("baseline_launches") > 0)["name"]))


def _mean(rows: pl.DataFrame, value: str, weight: str) -> float | None:
    """The weighted mean of a column over the rows without nulls."""
    known = rows.filter(pl.col(value).is_not_null() & pl.col(weight).is_not_null())
    total = float(known[weight].sum())
    return float((known[value] * known[weight]).sum()) / total if total else None


#: Differences up to this share count as none; error rate of intervals.
MARGIN: Final = 0.02
LEVEL: Final = 0.05

#: The method that the study is about, in its published form.
_PUBLISHED: Final = "topk"

#: Settings that determine the side of a profile.
_SIDE_SETTINGS: Final = ("method", "keep", "attention")


@dataclass(frozen=True, eq=False)
class ProfiledPair:
    """Profiles of both sides at one point of the grid."""

    settings: Mapping[str, float]  #: the point, such as `{"input_size": 224, "batch": 1}`
    numbers: StepNumbers
    hypotheses: tuple[Hypothesis, ...]
    #: modelled step times of baseline and variant under single changes
    predictions: tuple[tuple[Prediction, ...], tuple[Prediction, ...]]

    @property
    def title(self) -> str:
        """The point as text: `input size 224, batch 1`."""
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in self.settings.items())


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence of a findings report."""

    #: baseline, variant: settings that distinguish the sides, without the execution
    baseline: Mapping[str, Any]
    variant: Mapping[str, Any]
    measurements: Measurements  #: the grid, every variant and execution
    sweeps: Mapping[str, SweepNumbers]  #: execution → baseline against variant over the grid
    pairs: tuple[ProfiledPair, ...]  #: profiles, the smallest point first
    remedies: Measurements  #: measurements of attempted remedies
    grid: Measurements  #: measurements of several ways to run both sides over a grid
    policy: Policy | None = None  #: a policy for both sides, if any
    regrets: Sequence[CellRegret] = ()  #: cost of its choices, at points that it was fitted to and at others


def profiled_pair(
    settings: Mapping[str, float],
    baseline: Trace,
    variant: Trace,
    *,
    flops: tuple[float, float] | None = None,
    step_ns: tuple[float | None, float | None] = (None, None),
    counters: KernelCounters | None = None,
) -> ProfiledPair:
    """Compares the profiles of both sides at one point, where known with the FLOPs of a step of each.

    Predictions start from the step times of each without a profiler, where these are known.
    """
    timelines = Timeline(baseline), Timeline(variant)
    sides = [Side(name, timeline, timeline.window()) for name, timeline in zip(SIDES, timelines, strict=True)]
    files = [TraceFiles.of(side.name, (side,), (quality_notes(side.timeline, side.window),)) for side in sides]
    numbers = compare_steps(*files, margin=MARGIN, level=LEVEL, flops=flops)
    before, after = (predictions(one.timeline, one.window, ns) for one, ns in zip(sides, step_ns, strict=True))
    return ProfiledPair(settings, numbers, hypotheses(numbers.difference, counters, step_ns), (before, after))


def study_sides(measurements: Measurements) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of baseline and variant in a study's report, without the execution.

    Those that the file names; else no method, and the published top-k with the smallest share kept. Both sides use
    explicit attention where the file has such cells, so that they differ in one setting.

    Raises:
        MissingDataError: the file holds no variant.
    """
    named = measurements.sweep or {}
    baseline, variant = dict(named.get("baseline") or {"method": "none"}), dict(named.get("variant") or {})
    if not variant:
        keeps = measurements.cells.filter(pl.col("method") == _PUBLISHED).get_column("keep").unique().sort()
        if not len(keeps):
            raise MissingDataError(
                f"{measurements.source}: it holds no cell of {_PUBLISHED}, whose story could be told"
            )
        variant = {"method": _PUBLISHED, "keep": keeps[0]}
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
    """Collects the evidence of a findings report on a token-reduction study.

    Args:
        measurements: the study's own.
        profiles: with the settings of their cells; eager profiles of baseline and variant at one point form a pair.
        counters: reports of Nsight Compute with the settings of their cells.
        remedies: measurements of attempted remedies, if other than the study's own.
        grid: measurements of several ways to run both sides, if other than the study's own.
        policy: to be evaluated on the grid.

    Raises:
        MissingDataError: the measurements hold no variant.
    """
    baseline, variant = study_sides(measurements)
    executions = measurements.cells.get_column("execution").unique(maintain_order=True).to_list()
    sweeps = {
        execution: swept(measurements, {**baseline, "execution": execution}, {**variant, "execution": execution})
        for execution in executions
    }
    grid = grid or measurements
    return Evidence(
        baseline=baseline,
        variant=variant,
        measurements=measurements,
        sweeps=sweeps,
        pairs=tuple(_pairs(measurements, profiles, counters, baseline, variant)),
        remedies=remedies or measurements,
        grid=grid,
        policy=policy,
        regrets=regrets_on(policy, sweep_of(grid, baseline, variant)) if policy is not None else (),
    )


def _pairs(
    measurements: Measurements,
    profiles: Sequence[tuple[Mapping[str, Any], Trace]],
    counters: Sequence[tuple[Mapping[str, Any], KernelCounters]],
    baseline: Mapping[str, Any],
    variant: Mapping[str, Any],
) -> Iterator[ProfiledPair]:
    """Pairs in rising order of their points."""
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
        flops, step_ns = (
            tuple(measured(measurements, cell, name) for cell in cells) for name in ("flops", "latency_ns")
        )
        yield profiled_pair(
            dict(point),
            sides["baseline"],
            sides["variant"],
            flops=(flops[0], flops[1]) if flops[0] and flops[1] else None,
            step_ns=(step_ns[0], step_ns[1]),
            counters=counted.get((point, "variant")),
        )


def _place(
    settings: Mapping[str, Any], baseline: Mapping[str, Any], variant: Mapping[str, Any]
) -> tuple[tuple[tuple[str, float], ...], str | None]:
    """The point and the side of a cell; None for a cell of neither side."""
    point = tuple((name, float(settings[name])) for name in ("input_size", "batch") if name in settings)
    of_side = {name: value for name, value in settings.items() if name in _SIDE_SETTINGS}
    for side, wanted in zip(SIDES, (baseline, variant), strict=True):
        if all(name in wanted and same(wanted[name], value) for name, value in of_side.items()):
            return point, side
    return point, None


def measured(measurements: Measurements, settings: Mapping[str, Any], field_name: str) -> float | None:
    """A figure of the cell with these settings; None if the cell was not measured."""
    rows = measurements.cells.filter(status="measured", **settings)
    value = rows[field_name][0] if rows.height else None
    return None if value is None else float(value)


def swept(measurements: Measurements, baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> SweepNumbers:
    """The results of the sweep of baseline against variant over the grid of the measurements."""
    return examine_sweep(sweep_of(measurements, baseline, variant), level=LEVEL, margin=MARGIN)
