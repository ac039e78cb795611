"""What a findings report rests on: measurements of a grid, pairs of profiles, remedies, a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.analysis.prediction import Prediction, predictions
from warplens.analysis.quality import quality_notes
from warplens.analysis.timeline import Timeline
from warplens.compare.difference.host import Side
from warplens.errors import MissingDataError
from warplens.profile import Trace
from warplens.profile.counters import KernelCounters
from warplens.profile.measurements import Measurements
from warplens.report.comparison.numbers import StepNumbers, TraceFiles, compare_steps
from warplens.studies.policies.choosing import Policy
from warplens.studies.policies.regret import CellRegret, regrets_on
from warplens.studies.reports.hypotheses import Hypothesis, hypotheses
from warplens.studies.sweeps.numbers import SweepNumbers, examine_sweep
from warplens.studies.sweeps.reading import same, sweep_of

#: Differences of this share and less do not matter; and how often an interval may miss the truth.
MARGIN: Final = 0.02
LEVEL: Final = 0.05

#: The method whose story the study tells, in the form in which it was published.
_PUBLISHED: Final = "topk"

#: Settings that say of which side a profile is.
_TELLING: Final = ("method", "keep", "attention")


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
        """The point in words: `input size 224, batch 1`."""
        return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in self.settings.items())


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that the report rests on."""

    #: baseline, variant: settings that tell the sides apart, without the execution
    baseline: Mapping[str, Any]
    variant: Mapping[str, Any]
    measurements: Measurements  #: the grid, every variant and execution
    sweeps: Mapping[str, SweepNumbers]  #: execution → baseline against variant over the grid
    pairs: tuple[ProfiledPair, ...]  #: profiles, the point with the puzzle first
    remedies: Measurements | None = None  #: measurements of what was tried; None if nothing was
    grid: Measurements | None = None  #: measurements of several ways to run both sides over a grid; None without any
    policy: Policy | None = None  #: which of both sides to run; None without one
    regrets: Sequence[CellRegret] = ()  #: what choosing by it cost, at points that it was fitted to and at others


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
    return ProfiledPair(
        settings, numbers, hypotheses(numbers.difference, counters, step_ns), (predicted[0], predicted[1])
    )


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
