"""The numbers of a sweep report, computed once for all formats, including which settings are confounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from warplens.compare import SIDES
from warplens.compare.decisions import Comparison
from warplens.diagnosis.findings import Diagnosis
from warplens.errors import WarplensError
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s
from warplens.report import text as fmt
from warplens.studies.sweeps.anomalies import Anomalies, anomalies
from warplens.studies.sweeps.breakeven import BreakEven
from warplens.studies.sweeps.breakeven_fit import fit_breakeven
from warplens.studies.sweeps.payoff import PaysOff, pays_off
from warplens.studies.sweeps.reading import matched
from warplens.studies.sweeps.regimes import CellRegime, Regime, cell_key, regimes
from warplens.studies.sweeps.sweep import Cell, ComparedPoint, Sweep, compared_points, framed, only_of
from warplens.studies.sweeps.words import settings_text

AXES: Final = table(
    "sweep: axes",
    "An axis of a sweep with several values. `warplens sweep report`.",
    column("axis", help="its name", title="Axis"),
    Column("values", pl.Int64, "how many it has at points where both sides were measured"),
    Column("pairs", pl.Int64, "pairs of points that differ in it alone"),
    Column(
        "alone", pl.Boolean, "whether its effect can be told from that of the other axes", title="Can be told apart"
    ),
)


@dataclass(frozen=True)
class Confounded:
    """Settings whose effects cannot be told apart."""

    settings: tuple[str, ...]
    #: `together`: each value of the one goes with one value of the other; `nested`: each value of the first goes with
    #: one value of the second; `jointly`: only all of them together determine one another; `sides`: the variant differs
    #: from the baseline in all of them
    kind: Literal["together", "nested", "jointly", "sides"]
    text: str  #: one sentence for people


@dataclass(frozen=True, eq=False)
class Confounding:
    """The confounded settings of a grid."""

    found: tuple[Confounded, ...]  #: settings that changed together; the worst first
    axes: pl.DataFrame  #: `AXES`
    #: settings with a single value at all points that both sides have: the effect of other values is unknown
    unvaried: tuple[str, ...]

    @property
    def confounded_axes(self) -> tuple[str, ...]:
        """Axes whose effect cannot be told from that of others."""
        return tuple(self.axes.filter(~pl.col("alone")).get_column("axis"))


def confounding(sweep: Sweep) -> Confounding:
    """The settings of a sweep that changed together.

    Only points with both sides measured count, since only those have a speedup.
    """
    points = [point.settings for point in sweep.points if point.speedup is not None]
    levels = {axis: list(dict.fromkeys(point[axis] for point in points)) for axis in sweep.axes}
    varied = [axis for axis in sweep.axes if len(levels[axis]) > 1]
    codes: dict[str, Float64s] = {}  # dummy coding: indicator columns of all levels but the first, one row per point
    for axis in varied:
        level = np.array([levels[axis].index(point[axis]) for point in points])
        codes[axis] = np.asarray(level[:, None] == np.arange(1, len(levels[axis]))[None, :], dtype=np.float64)
    aliased = [axis for axis in varied if _is_aliased(codes, axis)]
    rows = [(axis, len(levels[axis]), _contrasts(points, sweep.axes, axis), axis not in aliased) for axis in varied]
    single = [axis for axis in sweep.axes if len(levels[axis]) == 1]
    return Confounding(
        found=(*_confounded_axes(points, codes, aliased), *_confounded_sides(sweep)),
        axes=pl.DataFrame(rows, schema=AXES.schema, orient="row"),
        unvaried=(*single, *(name for name, value in sweep.shared.items() if value not in ("", None))),
    )


def _confounded_axes(
    points: Sequence[Mapping[str, Any]], codes: Mapping[str, Float64s], aliased: Sequence[str]
) -> Iterator[Confounded]:
    """Pairs of axes of which one determines the other, then the axes that are aliased only jointly."""
    nested, jointly = [], list(aliased)
    for one, other in combinations(codes, 2):
        forth, back = _determines(codes, one, other), _determines(codes, other, one)
        if forth or back:
            jointly = [axis for axis in jointly if axis not in (one, other)]
        if forth and back:
            first, second = points[0], next(item for item in points if item[one] != points[0][one])
            yield Confounded(
                (one, other),
                "together",
                f"at all points {one} and {other} changed together: a difference between them is an effect of both, "
                f"and no claim about either alone has support; measure {one} {first[one]} with {other} {second[other]} "
                "as well",
            )
        elif forth or back:
            inner, outer = (one, other) if forth else (other, one)
            text = f"each {inner} was measured at one {outer} only: an effect of {outer} may be one of {inner}"
            nested.append(Confounded((inner, outer), "nested", text))
    yield from nested
    if jointly:
        text = f"too few combinations of {', '.join(jointly)} were measured to tell their effects apart"
        yield Confounded(tuple(jointly), "jointly", text)


def _contrasts(points: Sequence[Mapping[str, Any]], axes: Sequence[str], axis: str) -> int:
    """The number of pairs of points that differ in this axis alone."""
    counts = Counter(tuple(point[name] for name in axes if name != axis) for point in points)
    return sum(count * (count - 1) // 2 for count in counts.values())


def _confounded_sides(sweep: Sweep) -> Iterator[Confounded]:
    """The settings in which variant and baseline differ, if there are several."""
    changes = {
        name: [str(value) if value not in ("", None) else "–" for value in (sweep.baseline[name], value)]
        for name, value in sweep.variant.items()
        if name in sweep.baseline and value != sweep.baseline[name]
    }
    if len(changes) > 1:
        listed = "; ".join(f"{name} {before} → {after}" for name, (before, after) in changes.items())
        text = (
            f"the variant differs from the baseline in several settings at once ({listed}): a difference is that of "
            "all of them"
        )
        yield Confounded(tuple(changes), "sides", text)


def _rank(codes: Mapping[str, Float64s], axes: Sequence[str]) -> int:
    count = next(iter(codes.values())).shape[0]
    return int(np.linalg.matrix_rank(np.column_stack([np.ones(count), *(codes[axis] for axis in axes)])))


def _is_aliased(codes: Mapping[str, Float64s], axis: str) -> bool:
    """Whether some contrast between values of the axis is a linear combination of contrasts of the other axes."""
    others = [name for name in codes if name != axis]
    return bool(_rank(codes, [*others, axis]) - _rank(codes, others) < codes[axis].shape[1])


def _determines(codes: Mapping[str, Float64s], one: str, other: str) -> bool:
    """Whether each value of `one` occurs with a single value of `other`."""
    return _rank(codes, [one, other]) == _rank(codes, [one])


POINTS: Final = table(
    "sweep: points",
    "A point of the grid that both sides have. `warplens sweep report`; the axes stand before these columns.",
    column("baseline_ns").but(
        dtype=pl.Float64, help="median time of a step of the baseline; null if it was not measured"
    ),
    column("variant_ns").but(dtype=pl.Float64, help="median time of a step of the variant"),
    column(
        "speedup", help="time of the baseline / time of the variant: above 1, the variant is faster", title="Speedup"
    ),
    "low high verdict",
    column(
        "needed_blocks",
        help="blocks of each side that would decide an undecided verdict; null if decided or beyond reach",
    ),
    Column("baseline_per_s", pl.Float64, "items a second"),
    Column("variant_per_s", pl.Float64, "items a second"),
    Column("baseline_macs", pl.Int64, "multiply-accumulates of a step, modelled or as published"),
    Column("variant_macs", pl.Int64, "the same of the variant"),
    Column("baseline_flops", pl.Int64, "floating-point operations of a step, modelled or as published"),
    Column("variant_flops", pl.Int64, "the same of the variant"),
    Column("work_saved_share", pl.Float64, "MACs that the variant does without; FLOPs where MACs are not known"),
    Column(
        "baseline_regime",
        pl.String,
        "what bounds the baseline: `launch-bound`, `gpu-bound`, `memory-bound`, `compute-bound`, `unknown`",
    ),
    Column("variant_regime", pl.String, "what bounds the variant"),
    Column("baseline_status", pl.String, "what became of the baseline: see the column `status` of measured cells"),
    Column("variant_status", pl.String, "what became of the variant"),
    "remark",
    low="lower end of its interval; intervals are simultaneous; null without repetitions",
    verdict="`faster`, `slower`, `same` or `undecided`; null without repetitions",
)

LOST: Final = table(
    "sweep: cells not measured",
    "A cell without a time. `warplens sweep report`; the axes stand before these columns.",
    "side",
    column("status", title="What became of it"),
    column("reason", help="why it was not measured", title="Reason"),
)

#: Remark on two measured sides that cannot be compared.
_NO_REPETITIONS: Final = "no repetitions in the file: no interval"

#: Doubts about comparisons that become notes, the most frequent first.
_MOST_DOUBTS: Final = 4


@dataclass(frozen=True, eq=False)
class SweepNumbers:
    """All results on a sweep."""

    sweep: Sweep  #: reduced to the points that both sides have
    points: tuple[ComparedPoint, ...]  #: one per point, in the order of the grid
    regimes: tuple[CellRegime, ...]  #: of each measured cell
    anomalies: Anomalies  #: cells that break their trend
    confounding: Confounding  #: settings whose effects cannot be separated
    #: by axis, for numeric axes that are not confounded
    crossovers: Mapping[str, tuple[PaysOff, ...]]
    no_crossovers: Mapping[str, str]  #: axis → why there is none
    breakeven: BreakEven | None  #: the model of both sides' times; None where it cannot be fitted
    no_breakeven: str | None
    lost: pl.DataFrame  #: cells that were not measured: axes, `side`, `status`, `reason`
    level: float  #: family-wise error rate of the simultaneous intervals
    margin: float  #: differences up to this share count as none
    notes: tuple[Note, ...]  #: limits of the numbers


def examine_sweep(
    sweep: Sweep,
    *,
    level: float = 0.05,
    margin: float = 0.02,
    profiled: Mapping[Any, tuple[Any, str]] | None = None,
) -> SweepNumbers:
    """Compute all results on a sweep, as `warplens.studies.sweeps.reading.sweep_of` reads it.

    `level` is the family-wise error rate of the simultaneous intervals: 0.05 for 95 % confidence. Differences up to the
    share `margin` count as none. `profiled` regimes of cells come from profiles (`sweeps.regimes.regimes`).
    """
    unmatched, sweep = sweep, matched(sweep)
    points = compared_points(sweep.points, margin=margin, level=level, unrepeated=_NO_REPETITIONS)
    confounded = confounding(sweep)
    crossing_answers, no_crossovers = _crossovers(sweep, confounded, 1 - level)
    model, no_model = _breakeven(sweep, confounded.confounded_axes, 1 - level)
    lost = [
        {**point.settings, "side": side, "status": cell.status, "reason": cell.reason}
        for point in sweep.points
        for side, cell in point.sides
        if cell is not None and cell.status != "measured"
    ]
    return SweepNumbers(
        sweep=sweep,
        points=points,
        regimes=regimes(sweep, profiled),
        anomalies=anomalies(sweep, level=level),
        confounding=confounded,
        crossovers=crossing_answers,
        no_crossovers=no_crossovers,
        breakeven=model,
        no_breakeven=no_model,
        lost=framed(lost, sweep.axes, LOST),
        level=level,
        margin=margin,
        notes=tuple(_notes(unmatched, sweep, points, confounded, len(lost))),
    )


def _crossovers(
    sweep: Sweep, confounded: Confounding, level: float
) -> tuple[dict[str, tuple[PaysOff, ...]], dict[str, str]]:
    answers, reasons = {}, {}
    for axis in sweep.axes:
        if axis in confounded.confounded_axes:
            reasons[axis] = "it changed together with other settings, so that a crossing would not be one of this axis"
            continue
        try:
            answers[axis] = pays_off(sweep, axis, level=level)
        except WarplensError:
            reasons[axis] = "its values are not numbers above zero"
    return answers, reasons


def _breakeven(sweep: Sweep, confounded: Sequence[str], level: float) -> tuple[BreakEven | None, str | None]:
    if not any(point.speedup for point in sweep.points):
        return None, "no point has both sides"
    if not any(point.durations for point in sweep.points):
        return None, "the file holds no repetitions, from which the error of a model could be told"
    if confounded:
        return None, f"{', '.join(confounded)} changed together, so that no term of a model could be told from another"
    try:
        return fit_breakeven(sweep, level=level), None
    except WarplensError as error:
        return None, str(error)


def _notes(
    unmatched: Sweep, sweep: Sweep, points: Sequence[ComparedPoint], confounded: Confounding, lost: int
) -> Iterator[Note]:
    """What the answer of a sweep leaves out or cannot know."""
    if not any(cell and cell.wall for point in sweep.points for _, cell in point.sides):
        only = "The file holds no repetitions, only one figure a cell"
        text = f"{only}: no interval, no verdict and no test for anomalies."
        yield Note("no-samples", NoteLevel.WARNING, text, "Measure the cells: warplens sweep run")
    elif any(entry.comparison for entry in points) and not sweep.paired:
        text = "The sides were not measured in turns: what drifted between them counts as a difference."
        yield Note("not-in-turns", NoteLevel.WARNING, text, "warplens sweep run measures them in turns")
    for entry in confounded.found:
        yield Note(f"confounded-{entry.kind}", NoteLevel.WARNING, f"{fmt.capitalised(entry.text)}.", None)
    if lost:
        yield Note("cells-lost", NoteLevel.WARNING, f"{fmt.plural(lost, 'cell')} could not be measured.")
    for side in SIDES:
        if one_sided := [point.settings for point in only_of(unmatched, side)]:
            constant = [name for name in unmatched.axes if len({entry[name] for entry in one_sided}) == 1]
            common = ", ".join(f"{name} {one_sided[0][name]}" for name in constant)
            where = f", all with {common}" if common and len(one_sided) > 1 else f" ({common})" if common else ""
            text = f"Left out: {fmt.plural(len(one_sided), 'cell')} of the {side} without a counterpart{where}."
            yield Note("cells-unmatched", NoteLevel.INFO, text, None)
    doubts = Counter(doubt for entry in points if entry.comparison for doubt in entry.comparison.doubts)
    for doubt, count in doubts.most_common(_MOST_DOUBTS):
        where = "" if count == len(points) else f" ({count} of {len(points)} points)"
        if count == 1 < len(points):
            holds = (entry.comparison is not None and doubt in entry.comparison.doubts for entry in points)
            where = f" ({settings_text(points[[*holds].index(True)].point.settings)})"
        yield Note("comparison-doubt", NoteLevel.WARNING, f"{fmt.capitalised(doubt)}{where}.", None)


def point_frame(numbers: SweepNumbers) -> pl.DataFrame:
    """The axes, then the columns of `POINTS`: one row per point."""
    regime_by_cell = {cell_key(item.settings, item.side): item.regime for item in numbers.regimes}
    rows = []
    for item in numbers.points:
        point, comparison = item.point, item.comparison
        row = {
            **point.settings,
            "speedup": point.speedup,
            **(speedup_of(comparison) if comparison is not None else {}),
            "needed_blocks": comparison.needed_blocks if comparison is not None else None,
            "work_saved_share": _work_saved(point.baseline, point.variant),
            "remark": item.remark,
        }
        for side, cell in point.sides:
            row |= {
                f"{side}_ns": cell.time_ns if cell else None,
                f"{side}_per_s": cell.items * 1e9 / cell.time_ns if cell and cell.items and cell.time_ns else None,
                f"{side}_macs": cell.macs if cell else None,
                f"{side}_flops": cell.flops if cell else None,
                f"{side}_regime": regime_by_cell.get(cell_key(point.settings, side)),
                f"{side}_status": cell.status if cell else None,
            }
        rows.append(row)
    return framed(rows, numbers.sweep.axes, POINTS)


def speedup_of(comparison: Comparison) -> dict[str, Any]:
    """`speedup` (reciprocal of the ratio of times), the ends `low` and `high` of its interval, and the `verdict`."""
    ratio = comparison.ratio
    low, high = (1 / end if end else None for end in (ratio.high, ratio.low))
    return {"speedup": 1 / ratio.estimate, "low": low, "high": high, "verdict": comparison.verdict}


def _work_saved(baseline: Cell | None, variant: Cell | None) -> float | None:
    if baseline is None or variant is None:
        return None
    for before, after in ((baseline.macs, variant.macs), (baseline.flops, variant.flops)):
        if before and after is not None:
            return 1 - after / before
    return None


#: Regime of a cell → the verdicts of a diagnosis that imply it; for all other verdicts the regime is unknown.
_VERDICTS: Final[Mapping[Regime, tuple[str, ...]]] = {
    "launch-bound": ("launch-overhead", "host-sync", "host-stall", "allocator-churn"),
    "memory-bound": ("memory-bandwidth", "uncoalesced"),
    "compute-bound": ("tensor-compute", "precision"),
    "gpu-bound": (
        *("small-kernels", "occupancy", "bank-conflicts", "divergence", "unfused-optimizer", "graph-opaque"),
        "saturated",
    ),
}


def regime_of(diagnosis: Diagnosis, source: str) -> tuple[Regime, str]:
    """The regime that the diagnosis of a profile's steady steps implies, and one sentence of justification."""
    implied = (regime for regime, verdicts in _VERDICTS.items() if diagnosis.verdict in verdicts)
    return next(implied, "unknown"), f"{source}: {diagnosis.verdict}, {diagnosis.headline}"
