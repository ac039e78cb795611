"""Two sides of measurements, cell against cell: the numbers, and the rows that tables and JSON are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.compare.statistics import compare, regression
from warplens.profile import Note, NoteLevel
from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.compare.statistics import Comparison, Regression
    from warplens.compare.sweep import Cell, Point, Sweep

__all__ = ["CELL_SCHEMA", "CellComparison", "CellNumbers", "cell_rows", "compare_cells", "settings_text"]

#: One row a matched pair of cells: `ratio` is time of the variant / time of the baseline (above 1 is slower) with its
#: interval, which holds for all rows together; `work_ratio` is the same of the modelled FLOPs.
CELL_SCHEMA = pl.Schema(
    {
        "cell": pl.String(),
        "baseline_ns": pl.Float64(),
        "variant_ns": pl.Float64(),
        "ratio": pl.Float64(),
        "low": pl.Float64(),
        "high": pl.Float64(),
        "verdict": pl.String(),
        "work_ratio": pl.Float64(),
        "noise_share": pl.Float64(),
        "baseline_blocks": pl.Int64(),
        "variant_blocks": pl.Int64(),
        "needed_blocks": pl.Int64(),
        "reason": pl.String(),
    }
)

#: The figures in a sentence.
_FIGURES: Final = re.compile(r"\d[\d.,]*")

#: What became of a cell that cannot run as it is; `unsupported` ones were never meant to.
_BROKEN: Final = ("out-of-memory", "failed", "incorrect")

#: Why two measured sides cannot be compared.
_NO_REPETITIONS: Final = "no repetitions are in the file, so that nobody knows how sure the figures are"

#: Cells of only one side that a note names before it says how many more there are.
_NAMED: Final = 4


@dataclass(frozen=True, eq=False)
class CellComparison:
    """One point of the grid.

    Attributes:
        point: what was measured there.
        comparison: the two sides held against each other; None where a side was not measured, or not repeatedly.
        reason: why there is none.
        regression: answer to the gate; None without one.
    """

    point: Point
    comparison: Comparison | None
    reason: str | None
    regression: Regression | None

    @property
    def is_broken(self) -> bool:
        """Whether the baseline was measured and the variant ran out of memory, failed, or gave wrong results."""
        before, after = self.point.baseline, self.point.variant
        return before is not None and before.status == "measured" and after is not None and after.status in _BROKEN


@dataclass(frozen=True, eq=False)
class CellNumbers:
    """Everything that is said about two sides of measurements.

    Attributes:
        sweep: the matched cells.
        cells: each point that both sides have, in the order of the grid.
        level: how often one of all the intervals together misses the truth, at most.
        margin: differences of this share and less do not matter.
        notes: what limits the comparison.
    """

    sweep: Sweep
    cells: tuple[CellComparison, ...]
    level: float
    margin: float
    notes: tuple[Note, ...]

    @property
    def regressions(self) -> tuple[CellComparison, ...]:
        """The cells that fail the gate by their time."""
        return tuple(cell for cell in self.cells if cell.regression is not None and cell.regression.found)

    @property
    def broken(self) -> tuple[CellComparison, ...]:
        """The cells that the baseline ran and the variant no longer does: they fail the gate, too."""
        return tuple(cell for cell in self.cells if cell.is_broken)


def compare_cells(sweep: Sweep, *, margin: float, level: float, fail_on: float | None) -> CellNumbers:
    """Hold each matched pair of cells against each other.

    With n pairs each interval is made for `level` / n (Bonferroni), so that all of them together miss the truth no more
    often than `level`: with a hundred cells, five would otherwise differ by chance.

    Args:
        sweep: the matched cells.
        margin: differences of this share and less do not matter.
        level: 0.05 for 95 % confidence.
        fail_on: the gate's limit, a share; None without a gate.
    """
    both = [point for point in sweep.points if point.baseline is not None and point.variant is not None]
    repeated = sum(point.durations is not None for point in both)
    cells = tuple(_compared(point, margin, level / max(repeated, 1), fail_on) for point in both)
    return CellNumbers(sweep, cells, level, margin, tuple(_notes(sweep, cells)))


def _compared(point: Point, margin: float, level: float, fail_on: float | None) -> CellComparison:
    durations = point.durations
    if durations is None:
        return CellComparison(point, None, point.lacking or _NO_REPETITIONS, None)
    found = compare(*durations, margin=margin, level=level)
    return CellComparison(point, found, None, regression(found, fail_on) if fail_on is not None else None)


def _notes(sweep: Sweep, cells: tuple[CellComparison, ...]) -> list[Note]:
    notes = []
    for side, other in (("baseline", "variant"), ("variant", "baseline")):
        alone = [point for point in sweep.points if getattr(point, other) is None]
        if alone:
            named = "; ".join(settings_text(point.settings) for point in alone[:_NAMED])
            more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
            text = f"{fmt.count(len(alone))} cells are of the {side} alone and were not compared: {named}{more}."
            notes.append(Note("cells-unmatched", NoteLevel.WARNING, text, "Measure the same settings on both sides"))
    # Doubts of many cells say the same with other figures: one of them stands for all.
    doubts: dict[str, list[str]] = {}
    for cell in cells:
        for doubt in cell.comparison.doubts if cell.comparison is not None else ():
            doubts.setdefault(_FIGURES.sub("#", doubt), []).append(doubt)
    for told in doubts.values():
        alike = "" if len(set(told)) == 1 else ", each with figures of its own"
        where = "" if len(cells) == 1 else f" (in {fmt.count(len(told))} of {fmt.count(len(cells))} cells{alike})"
        notes.append(Note("comparison-doubt", NoteLevel.WARNING, f"{told[0]}{where}", None))
    return notes


def settings_text(settings: Mapping[str, Any]) -> str:
    """A point of the grid in one line: `input_size 224, batch 1`."""
    words = (f"{name} {fmt.MISSING if item in (None, '') else item}" for name, item in settings.items())
    return fmt.printable(", ".join(words)) or "all"


def cell_rows(numbers: CellNumbers) -> pl.DataFrame:
    """`CELL_SCHEMA`, a row a matched pair, in the order of the grid."""
    return pl.DataFrame([_row(cell) for cell in numbers.cells], schema=CELL_SCHEMA, orient="row")


def _row(cell: CellComparison) -> dict[str, Any]:
    before, after, found = cell.point.baseline, cell.point.variant, cell.comparison
    speedup = cell.point.speedup
    row: dict[str, Any] = {
        "cell": settings_text(cell.point.settings),
        "baseline_ns": before.time_ns if before else None,
        "variant_ns": after.time_ns if after else None,
        "ratio": found.ratio.estimate if found else 1 / speedup if speedup else None,
        "work_ratio": _work_ratio(before, after),
        "verdict": found.verdict if found else None,
        "reason": cell.reason,
    }
    if found is not None and before and after and before.wall and after.wall:
        row |= {
            "low": found.ratio.low,
            "high": found.ratio.high,
            "noise_share": found.noise.share,
            "baseline_blocks": len(before.wall.blocks),
            "variant_blocks": len(after.wall.blocks),
            "needed_blocks": found.needed_blocks,
        }
    return row


def _work_ratio(before: Cell | None, after: Cell | None) -> float | None:
    if before is None or after is None or not before.flops or after.flops is None:
        return None
    return after.flops / before.flops
