"""Cell-by-cell comparison of two sides of measurements: the numbers, and the rows of tables and JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.compare import SIDES
from warplens.compare.decisions import Regression, regression
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.measurements import device_name
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.comparison.words import (
    NOT_A_FAILURE,
    VERDICT_TITLES,
    change_text,
    confidence_text,
    interval_text,
    signed_share,
    verdict_text,
)
from warplens.report.document import Document, KeyFigure, KeyFigures, Section, Table, limits, quiet
from warplens.studies.sweeps.sweep import ComparedPoint, Sweep, compared_points, only_of

CELL_PAIRS: Final = table(
    "comparison: cells of measurements",
    "One pair of cells with the same settings. `warplens compare` on measurements files.",
    column("cell", dtype=pl.String, help="settings that differ from row to row"),
    column("baseline_ns").but(dtype=pl.Float64, help="median time of a step, of the baseline"),
    column("variant_ns").but(dtype=pl.Float64, help="median time of a step, of the variant"),
    column("ratio", help="time of the variant / time of the baseline", title="× longer"),
    "low high verdict",
    Column("work_ratio", pl.Float64, "FLOPs of the variant / FLOPs of the baseline, modelled", title="FLOPs"),
    Column("noise_share", pl.Float64, "how much halves of one side differ"),
    Column("baseline_blocks", pl.Int64, "rounds of the baseline"),
    Column("variant_blocks", pl.Int64, "rounds of the variant"),
    "needed_blocks reason",
    verdict="`faster`, `slower`, `same` or `undecided`; null where one was not measured",
    reason="why it was not compared",
)

#: The figures in a sentence.
_FIGURES: Final = re.compile(r"\d[\d.,]*")

#: Statuses of cells that no longer run; `unsupported` cells never did.
_BROKEN: Final = ("out-of-memory", "failed", "incorrect")

#: Remark on two measured sides that cannot be compared.
_NO_REPETITIONS: Final = "the file holds no repetitions, so the uncertainty of the figures is unknown"

#: Unmatched cells that a note lists by name.
_NAMED: Final = 4


@dataclass(frozen=True, eq=False)
class CellNumbers:
    """All results of a comparison of two sides of measurements."""

    sweep: Sweep  #: the two sides
    cells: tuple[ComparedPoint, ...]  #: the points that both sides have, in the order of the grid
    answers: tuple[Regression | None, ...]  #: the gate's answer for each; None without a gate or a comparison
    level: float  #: family-wise error rate of the simultaneous intervals
    margin: float  #: differences up to this share count as none
    notes: tuple[Note, ...]  #: limits of the comparison

    @property
    def regressions(self) -> tuple[ComparedPoint, ...]:
        """The cells whose time fails the gate."""
        judged = zip(self.cells, self.answers, strict=True)
        return tuple(cell for cell, answer in judged if answer is not None and answer.found)

    @property
    def broken(self) -> tuple[ComparedPoint, ...]:
        """The cells that the baseline ran and the variant no longer runs; they fail the gate as well."""
        sides = ((cell, cell.point.baseline, cell.point.variant) for cell in self.cells)
        return tuple(
            cell
            for cell, before, after in sides
            if before and before.status == "measured" and after and after.status in _BROKEN
        )

    @property
    def gone(self) -> int:
        """The number of cells that the baseline ran, and of which the variant has nothing."""
        return sum(
            point.baseline is not None and point.baseline.status == "measured"
            for point in only_of(self.sweep, "baseline")
        )

    @property
    def pending(self) -> int:
        """The number of cells for which a regression cannot be excluded, including those without a comparison."""
        return self.gone + sum(answer is None or not answer.excluded for answer in self.answers)


def compare_cells(sweep: Sweep, *, margin: float, level: float, fail_on: float | None) -> CellNumbers:
    """Compares each matched pair of cells.

    Differences up to the share `margin` count as none. `level` is the family-wise error rate of the simultaneous
    intervals: 0.05 for 95 % confidence. `fail_on` is the gate's limit, a share; None without a gate.
    """
    both = [point for point in sweep.points if point.baseline is not None and point.variant is not None]
    cells = compared_points(both, margin=margin, level=level, unrepeated=_NO_REPETITIONS)
    answers = tuple(
        regression(cell.comparison, fail_on) if cell.comparison is not None and fail_on is not None else None
        for cell in cells
    )
    return CellNumbers(sweep, cells, answers, level, margin, tuple(_notes(sweep, cells)))


def _notes(sweep: Sweep, cells: tuple[ComparedPoint, ...]) -> Iterator[Note]:
    for side in SIDES:
        if one_sided := only_of(sweep, side):
            named = "; ".join(settings_text(point.settings) for point in one_sided[:_NAMED])
            more = f" and {len(one_sided) - _NAMED} more" if len(one_sided) > _NAMED else ""
            text = f"{fmt.count(len(one_sided))} cells are of the {side} alone and were not compared: {named}{more}."
            yield Note("cells-unmatched", NoteLevel.WARNING, text, "Measure the same settings on both sides")
    # Doubts that differ only in their figures are merged into one note.
    doubts: dict[str, list[str]] = {}
    for cell in cells:
        for doubt in cell.comparison.doubts if cell.comparison is not None else ():
            doubts.setdefault(_FIGURES.sub("#", doubt), []).append(doubt)
    for alike_doubts in doubts.values():
        alike = "" if len(set(alike_doubts)) == 1 else ", each with figures of its own"
        share = f"{fmt.count(len(alike_doubts))} of {fmt.count(len(cells))} cells"
        where = "" if len(cells) == 1 else f" (in {share}{alike})"
        yield Note("comparison-doubt", NoteLevel.WARNING, f"{alike_doubts[0]}{where}", None)


def settings_text(settings: Mapping[str, Any]) -> str:
    """A point of the grid in one line: `input_size 224, batch 1`."""
    words = (f"{name} {fmt.MISSING if item in (None, '') else item}" for name, item in settings.items())
    return fmt.printable(", ".join(words)) or "all"


def cell_rows(numbers: CellNumbers) -> pl.DataFrame:
    """`CELL_PAIRS`: one row per matched pair, in the order of the grid."""
    return pl.DataFrame([_row(cell) for cell in numbers.cells], schema=CELL_PAIRS.schema, orient="row")


def _row(cell: ComparedPoint) -> dict[str, Any]:
    """A compared point as a row: times of both sides, their ratio, and the verdict if there is one."""
    before, after = cell.point.baseline, cell.point.variant
    comparison, speedup = cell.comparison, cell.point.speedup
    assert before is not None
    assert after is not None
    row: dict[str, Any] = {
        "cell": settings_text(cell.point.settings),
        "baseline_ns": before.time_ns,
        "variant_ns": after.time_ns,
        "ratio": 1 / speedup if speedup else None,
        "work_ratio": after.flops / before.flops if before.flops and after.flops is not None else None,
        "reason": cell.remark,
    }
    if comparison is None or cell.point.durations is None:
        return row
    return row | {
        "ratio": comparison.ratio.estimate,
        "low": comparison.ratio.low,
        "high": comparison.ratio.high,
        "verdict": comparison.verdict,
        "noise_share": comparison.noise.share,
        "baseline_blocks": len(cell.point.durations[0].blocks),
        "variant_blocks": len(cell.point.durations[1].blocks),
        "needed_blocks": comparison.needed_blocks,
    }


_COLUMNS: Final = CELL_PAIRS.only(
    "cell baseline_ns variant_ns",
    column("change", help="of the time: above zero is slower"),
    column("interval"),
    column("title", title="Verdict"),
    "work_ratio",
    column("remark", help=""),
).columns


def cell_answer(numbers: CellNumbers) -> str:
    """The answer in two sentences: the number of cells with each verdict, and the extreme changes."""
    decided = [(cell, cell.comparison) for cell in numbers.cells if cell.comparison is not None]
    if not decided:
        return "No cell was measured repeatedly on both sides, so that nothing can be said of the times."
    if len(decided) == 1:
        return f"{fmt.capitalised(verdict_text(decided[0][1], 'the variant'))}."
    counts = Counter(found.verdict for _, found in decided)
    listed = [f"{VERDICT_TITLES[name]} in {fmt.count(counts[name])}" for name in VERDICT_TITLES if counts[name]]
    listed[0] += f" of {fmt.count(len(decided))} cells"
    first = f"The variant is {', '.join(listed)}."
    ratios = {
        settings_text(cell.point.settings): found.ratio.estimate
        for cell, found in decided
        if found.verdict in ("faster", "slower")
    }
    if not ratios:
        return first
    ends = dict.fromkeys((min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)))
    changes = " to ".join(f"{change_text(ratios[where])} ({where})" for where in ends)
    return f"{first} {'From ' + changes if len(ends) > 1 else fmt.capitalised(changes)}."


def side_text(settings: Mapping[str, Any]) -> str:
    """The settings that distinguish a side, in one line: `method=topk, keep=0.1`."""
    return ", ".join(f"{name}={fmt.MISSING if item in (None, '') else item}" for name, item in settings.items())


def cell_head(sweep: Sweep) -> list[str]:
    """The lines above the table: source, sides, shared settings."""
    lines = [f"{fmt.printable(sweep.source)} · measurements of {fmt.printable(sweep.workload)}"]
    if sweep.baseline or sweep.variant:
        lines.append(f"baseline: {side_text(sweep.baseline) or 'all'}; variant: {side_text(sweep.variant) or 'all'}")
    if shared := side_text({name: item for name, item in sweep.shared.items() if item not in (None, "")}):
        lines.append(f"the same on both sides: {shared}")
    return lines


def cell_gate_line(numbers: CellNumbers, fail_on: float) -> str:
    """The result of the gate and its reason, in a sentence."""
    limit, count, broken = fmt.share(fail_on), len(numbers.cells), numbers.broken
    if broken:
        broken_text = f"{fmt.count(len(broken))} of {fmt.plural(count, 'cell')}"
        where = settings_text(broken[0].point.settings)
        return f"gate failed: the variant no longer runs {broken_text}: {where}, {broken[0].remark}"
    slower = [(cell.comparison.ratio, cell) for cell in numbers.regressions if cell.comparison is not None]
    if slower:
        ratio, worst = max(slower, key=lambda pair: pair[0].estimate)
        where = f"{change_text(ratio.estimate)} at {settings_text(worst.point.settings)}"
        return (
            f"gate failed: {fmt.count(len(slower))} of {fmt.count(count)} cells are slower by more than {limit}, the "
            f"worst {where} ({interval_text(ratio)})"
        )
    if numbers.pending:
        missing = f", {fmt.count(numbers.gone)} of which the variant does not have" if numbers.gone else ""
        return (
            f"gate undecided{NOT_A_FAILURE}: no cell is slower by more than {limit} for certain, but for "
            f"{fmt.count(numbers.pending)} of {fmt.count(count + numbers.gone)} it is open{missing}"
        )
    return f"gate passed: no cell is slower by more than {limit}"


def cell_table(numbers: CellNumbers, limit: int | None = None) -> Table:
    """One row per matched pair of cells."""
    comparisons = [cell.comparison for cell in numbers.cells]
    needed = [comparison.needed_blocks if comparison else None for comparison in comparisons]
    rows = cell_rows(numbers)
    remarks = [
        cell.remark or (f"{fmt.count(rounds)} rounds of each would decide" if rounds else "")
        for cell, rounds in zip(numbers.cells, needed, strict=True)
    ]
    texts = {
        "change": [fmt.MISSING if ratio is None else signed_share(ratio - 1) for ratio in rows["ratio"]],
        "interval": [interval_text(item.ratio).partition(": ")[2] if item else fmt.MISSING for item in comparisons],
        "title": [VERDICT_TITLES[item.verdict] if item else "not compared" for item in comparisons],
        "remark": remarks,
    }
    shown = rows.with_columns(pl.Series(name, text, dtype=pl.String) for name, text in texts.items())
    columns = _COLUMNS if any(remarks) else _COLUMNS[:-1]
    caption = f"Cells side by side; intervals hold together at {confidence_text(numbers.level)} %"
    return Table("cells", caption, columns, shown, limit)


def cell_document(numbers: CellNumbers, fail_on: float | None = None) -> Document:
    """The document of a comparison of two sides of measurements, with the result of a gate at this limit."""
    sweep = numbers.sweep
    meta = [("Workload", sweep.workload)]
    if device := device_name(sweep.environment):
        meta.append(("GPU", device))
    meta += [("Baseline", side_text(sweep.baseline) or "all"), ("Variant", side_text(sweep.variant) or "all")]
    if fail_on is not None:
        meta.append(("Gate", cell_gate_line(numbers, fail_on)))
    counts = Counter(cell.comparison.verdict if cell.comparison else "not compared" for cell in numbers.cells)
    figures = tuple(
        KeyFigure(fmt.capitalised(title), counts.get(name, 0), "count", "Cells.")
        for name, title in (*VERDICT_TITLES.items(), ("not compared", "not compared"))
    )
    method_note = quiet(
        "A cell's step times fall into rounds, and only rounds are independent of each other: each has one vote. "
        + (
            "The sides were measured in turns, so that round is held against round. "
            if sweep.paired
            else "The sides come from different runs, so that what changed on the machine between them counts too. "
        )
        + f"Intervals are made so narrow that all of them together miss the truth in at most "
        f"{fmt.share(numbers.level)} of such comparisons; within {fmt.share(numbers.margin)} two times count as the "
        "same."
    )
    return Document(
        title=f"Comparison: {sweep.source}",
        lead=cell_answer(numbers),
        sections=(
            Section("quality", "Cautions", tuple(limits(numbers.notes))),
            Section("key-figures", "Key figures", (KeyFigures(figures),)),
            Section("cells-section", "Cell by cell", (cell_table(numbers), method_note)),
        ),
        meta=tuple(meta),
    )


def cell_data(numbers: CellNumbers, fail_on: float | None) -> dict[str, Any]:
    """`data` of the JSON."""
    sweep = numbers.sweep
    gate = None
    if fail_on is not None:
        gate = {
            "fail_on": fail_on,
            "found": bool(numbers.regressions or numbers.broken),
            "excluded": not numbers.pending,
            "sentence": cell_gate_line(numbers, fail_on),
        }
    return {
        "kind": "measurements",
        "answer": cell_answer(numbers),
        "workload": sweep.workload,
        "baseline": {"settings": dict(sweep.baseline)},
        "variant": {"settings": dict(sweep.variant)},
        "shared": dict(sweep.shared),
        "axes": list(sweep.axes),
        "paired": sweep.paired,
        "level": numbers.level,
        "margin": numbers.margin,
        "gate": gate,
        "rows": cell_rows(numbers),
        "settings": [dict(cell.point.settings) for cell in numbers.cells],
    }
