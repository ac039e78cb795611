"""Everything that a sweep's report says, computed once for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.compare.statistics.decisions import Comparison
from warplens.diagnosis.findings import Diagnosis
from warplens.errors import WarplensError
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.studies.sweeps.anomalies import Anomalies, anomalies
from warplens.studies.sweeps.breakeven import BreakEven
from warplens.studies.sweeps.breakeven_fit import fit_breakeven
from warplens.studies.sweeps.confounding import Confounding, confounding
from warplens.studies.sweeps.payoff import PaysOff, pays_off
from warplens.studies.sweeps.reading import matched
from warplens.studies.sweeps.regimes import CellRegime, Regime, cell_key, regimes
from warplens.studies.sweeps.sweep import SIDES, Cell, ComparedPoint, Sweep, compared_points, framed, only_of

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
