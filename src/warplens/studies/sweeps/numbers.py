"""Everything that a sweep's report says, computed once for every format; first, what its grid cannot tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import polars as pl

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
from warplens.studies.sweeps.sweep import SIDES, Cell, ComparedPoint, Sweep, compared_points, framed, only_of

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
    """What the grid cannot tell apart."""

    found: tuple[Confounded, ...]  #: settings that changed together; the worst first
    axes: pl.DataFrame  #: `AXES`
    #: settings with one value at all points that both sides have: nothing is known of other values
    unvaried: tuple[str, ...]

    @property
    def confounded_axes(self) -> tuple[str, ...]:
        """Axes whose effect cannot be told from that of others."""
        return tuple(self.axes.filter(~pl.col("alone")).get_column("axis"))


def confounding(sweep: Sweep) -> Confounding:
    """Which settings of a sweep changed together.

    Only points at which both sides were measured count: a speedup exists nowhere else.
    """
    points = [point.settings for point in sweep.points if point.speedup is not None]
    levels = {axis: list(dict.fromkeys(point[axis] for point in points)) for axis in sweep.axes}
    varied = [axis for axis in sweep.axes if len(levels[axis]) > 1]
    codes: dict[str, Float64s] = {}  # indicator columns of all values but the first: one row a point
    for axis in varied:
        at = np.array([levels[axis].index(point[axis]) for point in points])
        codes[axis] = np.asarray(at[:, None] == np.arange(1, len(levels[axis]))[None, :], dtype=np.float64)
    aliased = [axis for axis in varied if _is_aliased(codes, axis)]
    rows = [(axis, len(levels[axis]), _contrasts(points, sweep.axes, axis), axis not in aliased) for axis in varied]
    single = [axis for axis in sweep.axes if len(levels[axis]) == 1]
    return Confounding(
        found=(*_determined(points, codes, aliased), *_sides(sweep)),
        axes=pl.DataFrame(rows, schema=AXES.schema, orient="row"),
        unvaried=(*single, *(name for name, value in sweep.shared.items() if value not in ("", None))),
    )


def _determined(
    points: Sequence[Mapping[str, Any]], codes: Mapping[str, Float64s], aliased: Sequence[str]
) -> Iterator[Confounded]:
    """Axes of which one says what the other is; and those that are aliased although no two of them do."""
    nested, loose = [], list(aliased)
    for one, other in combinations(codes, 2):
        forth, back = _determines(codes, one, other), _determines(codes, other, one)
        if forth or back:
            loose = [axis for axis in loose if axis not in (one, other)]
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
    if loose:
        text = f"too few combinations of {', '.join(loose)} were measured to tell their effects apart"
        yield Confounded(tuple(loose), "jointly", text)


def _contrasts(points: Sequence[Mapping[str, Any]], axes: Sequence[str], axis: str) -> int:
    """Pairs of points that differ in this axis alone."""
    counts = Counter(tuple(point[name] for name in axes if name != axis) for point in points)
    return sum(count * (count - 1) // 2 for count in counts.values())


def _sides(sweep: Sweep) -> Iterator[Confounded]:
    """Settings in which the variant differs from the baseline, where there are several."""
    shown = {
        name: [str(value) if value not in ("", None) else "–" for value in (sweep.baseline[name], value)]
        for name, value in sweep.variant.items()
        if name in sweep.baseline and value != sweep.baseline[name]
    }
    if len(shown) > 1:
        told = "; ".join(f"{name} {before} → {after}" for name, (before, after) in shown.items())
        text = (
            f"the variant differs from the baseline in several settings at once ({told}): a difference is that of all "
            "of them"
        )
        yield Confounded(tuple(shown), "sides", text)


def _rank(codes: Mapping[str, Float64s], axes: Sequence[str]) -> int:
    count = next(iter(codes.values())).shape[0]
    return int(np.linalg.matrix_rank(np.column_stack([np.ones(count), *(codes[axis] for axis in axes)])))


def _is_aliased(codes: Mapping[str, Float64s], axis: str) -> bool:
    """Whether some contrast between the axis's values is also one between values of the others."""
    others = [name for name in codes if name != axis]
    return bool(_rank(codes, [*others, axis]) - _rank(codes, others) < codes[axis].shape[1])


def _determines(codes: Mapping[str, Float64s], one: str, other: str) -> bool:
    """Whether each value of the one goes with a single value of the other."""
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

#: Why two measured sides cannot be compared.
_NO_REPETITIONS: Final = "no repetitions in the file: no interval"

#: Points with only one side that a note names before it says how many more there are.
_NAMED: Final = 4


@dataclass(frozen=True, eq=False)
class SweepNumbers:
    """Everything that is said about a sweep."""

    sweep: Sweep  #: points that both sides have
    points: tuple[ComparedPoint, ...]  #: one each, in the order of the grid
    regimes: tuple[CellRegime, ...]  #: of each measured cell
    anomalies: Anomalies  #: cells that break their trend
    confounding: Confounding  #: what the grid cannot tell apart
    #: by axis, for axes of numbers whose effect can be told from that of others
    crossovers: Mapping[str, tuple[PaysOff, ...]]
    no_crossovers: Mapping[str, str]  #: axis → why there is none
    breakeven: BreakEven | None  #: the model of both sides' times; None where it cannot be fitted
    no_breakeven: str | None
    lost: pl.DataFrame  #: cells that were not measured: axes, `side`, `status`, `reason`
    level: float  #: how often one of all the intervals together misses the truth, at most
    margin: float  #: differences of this share and less do not matter
    notes: tuple[Note, ...]  #: what limits the numbers


def examine_sweep(
    sweep: Sweep,
    *,
    level: float = 0.05,
    margin: float = 0.02,
    profiled: Mapping[Any, tuple[Any, str]] | None = None,
    seed: int = 0,
) -> SweepNumbers:
    """Answer every question about a sweep.

    Args:
        sweep: as `warplens.studies.sweeps.reading.sweep_of` reads it.
        level: how often one of all the intervals together may miss the truth: 0.05 for 95 % confidence.
        margin: differences of this share and less do not matter.
        profiled: regimes that profiles show; see `warplens.studies.sweeps.regimes`.
    """
    whole, sweep = sweep, matched(sweep)
    points = compared_points(sweep.points, margin=margin, level=level, unrepeated=_NO_REPETITIONS, seed=seed)
    told = confounding(sweep)
    crossing, none = _crossovers(sweep, told, 1 - level, seed)
    model, no_model = _breakeven(sweep, told.confounded_axes, 1 - level, seed)
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
        anomalies=anomalies(sweep, level=level, seed=seed),
        confounding=told,
        crossovers=crossing,
        no_crossovers=none,
        breakeven=model,
        no_breakeven=no_model,
        lost=framed(lost, sweep.axes, LOST),
        level=level,
        margin=margin,
        notes=tuple(_notes(whole, sweep, points, told, len(lost))),
    )


def _crossovers(
    sweep: Sweep, told: Confounding, level: float, seed: int
) -> tuple[dict[str, tuple[PaysOff, ...]], dict[str, str]]:
    found, none = {}, {}
    for axis in sweep.axes:
        if axis in told.confounded_axes:
            none[axis] = "it changed together with other settings, so that a crossing would not be one of this axis"
            continue
        try:
            found[axis] = pays_off(sweep, axis, level=level, seed=seed)
        except WarplensError:
            none[axis] = "its values are not numbers above zero"
    return found, none


def _breakeven(sweep: Sweep, confounded: Sequence[str], level: float, seed: int) -> tuple[BreakEven | None, str | None]:
    if not any(point.durations for point in sweep.points):
        return None, "the file holds no repetitions, from which the error of a model could be told"
    if confounded:
        return None, f"{', '.join(confounded)} changed together, so that no term of a model could be told from another"
    try:
        return fit_breakeven(sweep, level=level, seed=seed), None
    except WarplensError as error:
        return None, str(error)


def _notes(whole: Sweep, sweep: Sweep, points: Sequence[ComparedPoint], told: Confounding, lost: int) -> Iterator[Note]:
    if not any(item.comparison for item in points):
        text = (
            "The file holds no repetitions, only one figure a cell: no interval, no verdict and no test for anomalies."
        )
        yield Note("no-samples", NoteLevel.WARNING, text, "Measure the cells: warplens sweep run")
    elif not sweep.paired:
        text = "The sides were not measured in turns: what drifted between them counts as a difference."
        yield Note("not-in-turns", NoteLevel.WARNING, text, "warplens sweep run measures them in turns")
    for item in told.found:
        yield Note(f"confounded-{item.kind}", NoteLevel.WARNING, f"{fmt.capitalised(item.text)}.", None)
    if lost:
        yield Note("cells-lost", NoteLevel.WARNING, f"{fmt.plural(lost, 'cell')} could not be measured.")
    for side in SIDES:
        if alone := [point.settings for point in only_of(whole, side)]:
            varied = [name for name in whole.axes if len({item[name] for item in alone}) == 1]
            common = ", ".join(f"{name} {alone[0][name]}" for name in varied)
            where = f", all with {common}" if common and len(alone) > 1 else f" ({common})" if common else ""
            text = f"{fmt.plural(len(alone), 'cell')} of the {side} have no counterpart and were left out{where}."
            yield Note("cells-unmatched", NoteLevel.INFO, text, None)
    doubts = Counter(doubt for item in points if item.comparison for doubt in item.comparison.doubts)
    for doubt, count in doubts.most_common(_NAMED):
        where = "" if count == len(points) else f" ({count} of {len(points)} points)"
        yield Note("comparison-doubt", NoteLevel.WARNING, f"{fmt.capitalised(doubt)}{where}.", None)


def point_frame(numbers: SweepNumbers) -> pl.DataFrame:
    """The axes, then `POINTS`: one row a point."""
    regime_of = {cell_key(item.settings, item.side): item.regime for item in numbers.regimes}
    rows = []
    for item in numbers.points:
        point, found = item.point, item.comparison
        row = {
            **point.settings,
            "speedup": point.speedup,
            **(speedup_of(found) if found is not None else {}),
            "needed_blocks": found.needed_blocks if found is not None else None,
            "work_saved_share": _saved(point.baseline, point.variant),
            "remark": item.remark,
        }
        for side, cell in point.sides:
            row |= {
                f"{side}_ns": cell.time_ns if cell else None,
                f"{side}_per_s": cell.items * 1e9 / cell.time_ns if cell and cell.items and cell.time_ns else None,
                f"{side}_macs": cell.macs if cell else None,
                f"{side}_flops": cell.flops if cell else None,
                f"{side}_regime": regime_of.get(cell_key(point.settings, side)),
                f"{side}_status": cell.status if cell else None,
            }
        rows.append(row)
    return framed(rows, numbers.sweep.axes, POINTS)


def speedup_of(found: Comparison) -> dict[str, Any]:
    """`speedup` with its interval, `low` to `high`, and the `verdict`: the reciprocal of the ratio of times."""
    ratio = found.ratio
    low, high = (1 / end if end else None for end in (ratio.high, ratio.low))
    return {"speedup": 1 / ratio.estimate, "low": low, "high": high, "verdict": found.verdict}


def _saved(before: Cell | None, after: Cell | None) -> float | None:
    if before is None or after is None:
        return None
    for one, other in ((before.macs, after.macs), (before.flops, after.flops)):
        if one and other is not None:
            return 1 - other / one
    return None


#: Verdict of a diagnosis → regime of the cell. Verdicts that are not here say neither of the two.
_REGIMES: Final[Mapping[str, Regime]] = {
    "launch-overhead": "launch-bound",
    "host-sync": "launch-bound",
    "host-stall": "launch-bound",
    "allocator-churn": "launch-bound",
    "memory-bandwidth": "memory-bound",
    "uncoalesced": "memory-bound",
    "tensor-compute": "compute-bound",
    "precision": "compute-bound",
    "small-kernels": "gpu-bound",
    "occupancy": "gpu-bound",
    "bank-conflicts": "gpu-bound",
    "divergence": "gpu-bound",
    "unfused-optimizer": "gpu-bound",
    "graph-opaque": "gpu-bound",
    "saturated": "gpu-bound",
}


def regime_of(diagnosis: Diagnosis, source: str) -> tuple[Regime, str]:
    """The regime, and one sentence why.

    Args:
        diagnosis: of the profile's steady steps.
    """
    return _REGIMES.get(diagnosis.verdict, "unknown"), f"{source}: {diagnosis.verdict}, {diagnosis.headline}"
