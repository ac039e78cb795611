"""Two sides of measurements, cell against cell: the numbers, and the rows that tables and JSON are made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.compare.decisions import Regression, regression
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.comparison.words import VERDICT_TITLES, change_text, interval_text, signed_share, verdict_text
from warplens.report.document import Document, KeyFigure, KeyFigures, Paragraph, Section, Table, limits
from warplens.studies.sweeps.sweep import SIDES, ComparedPoint, Sweep, compared_points, only_of

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

#: What became of a cell that cannot run as it is; `unsupported` ones were never meant to.
_BROKEN: Final = ("out-of-memory", "failed", "incorrect")

#: Why two measured sides cannot be compared.
_NO_REPETITIONS: Final = "the file holds no repetitions, so the uncertainty of the figures is unknown"

#: Cells of only one side that a note names before it says how many more there are.
_NAMED: Final = 4


@dataclass(frozen=True, eq=False)
class CellNumbers:
    """Everything that is said about two sides of measurements."""

    sweep: Sweep  #: the matched cells
    cells: tuple[ComparedPoint, ...]  #: each point that both sides have, in the order of the grid
    answers: tuple[Regression | None, ...]  #: of each, to the gate; None without a gate or a comparison
    level: float  #: how often one of all the intervals together misses the truth, at most
    margin: float  #: differences of this share and less do not matter
    notes: tuple[Note, ...]  #: what limits the comparison

    @property
    def regressions(self) -> tuple[ComparedPoint, ...]:
        """The cells that fail the gate by their time."""
        judged = zip(self.cells, self.answers, strict=True)
        return tuple(cell for cell, answer in judged if answer is not None and answer.found)

    @property
    def broken(self) -> tuple[ComparedPoint, ...]:
        """The cells that the baseline ran and the variant no longer does: they fail the gate, too."""
        sides = ((cell, cell.point.baseline, cell.point.variant) for cell in self.cells)
        return tuple(
            cell
            for cell, before, after in sides
            if before and before.status == "measured" and after and after.status in _BROKEN
        )

    @property
    def pending(self) -> int:
        """How many cells the gate cannot exclude; cells that nobody can compare leave the question open as well."""
        return sum(answer is None or not answer.excluded for answer in self.answers)


def compare_cells(sweep: Sweep, *, margin: float, level: float, fail_on: float | None) -> CellNumbers:
    """Hold each matched pair of cells against each other.

    Args:
        margin: differences of this share and less do not matter.
        level: how often one of all the intervals together may miss the truth: 0.05 for 95 % confidence.
        fail_on: the gate's limit, a share; None without a gate.
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
        if alone := only_of(sweep, side):
            named = "; ".join(settings_text(point.settings) for point in alone[:_NAMED])
            more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
            text = f"{fmt.count(len(alone))} cells are of the {side} alone and were not compared: {named}{more}."
            yield Note("cells-unmatched", NoteLevel.WARNING, text, "Measure the same settings on both sides")
    # Doubts of many cells say the same with other figures: one of them stands for all.
    doubts: dict[str, list[str]] = {}
    for cell in cells:
        for doubt in cell.comparison.doubts if cell.comparison is not None else ():
            doubts.setdefault(_FIGURES.sub("#", doubt), []).append(doubt)
    for told in doubts.values():
        alike = "" if len(set(told)) == 1 else ", each with figures of its own"
        where = "" if len(cells) == 1 else f" (in {fmt.count(len(told))} of {fmt.count(len(cells))} cells{alike})"
        yield Note("comparison-doubt", NoteLevel.WARNING, f"{told[0]}{where}", None)


def settings_text(settings: Mapping[str, Any]) -> str:
    """A point of the grid in one line: `input_size 224, batch 1`."""
    words = (f"{name} {fmt.MISSING if item in (None, '') else item}" for name, item in settings.items())
    return fmt.printable(", ".join(words)) or "all"


def cell_rows(numbers: CellNumbers) -> pl.DataFrame:
    """`CELL_PAIRS`, a row a matched pair, in the order of the grid."""
    return pl.DataFrame([_row(cell) for cell in numbers.cells], schema=CELL_PAIRS.schema, orient="row")


def _row(cell: ComparedPoint) -> dict[str, Any]:
    before, after, found, speedup = cell.point.baseline, cell.point.variant, cell.comparison, cell.point.speedup
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
    if found is None or cell.point.durations is None:
        return row
    return row | {
        "ratio": found.ratio.estimate,
        "low": found.ratio.low,
        "high": found.ratio.high,
        "verdict": found.verdict,
        "noise_share": found.noise.share,
        "baseline_blocks": len(cell.point.durations[0].blocks),
        "variant_blocks": len(cell.point.durations[1].blocks),
        "needed_blocks": found.needed_blocks,
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
    """The answer in two sentences: in how many cells the variant is faster, slower, the same; and the extremes."""
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
    told = " to ".join(f"{change_text(ratios[where])} ({where})" for where in ends)
    return f"{first} {'From ' + told if len(ends) > 1 else fmt.capitalised(told)}."


def side_text(settings: Mapping[str, Any]) -> str:
    """What tells a side from the other, in one line: `method=topk, keep=0.1`."""
    return ", ".join(f"{name}={fmt.MISSING if item in (None, '') else item}" for name, item in settings.items())


def cell_head(sweep: Sweep) -> list[str]:
    """What was compared with what."""
    lines = [f"{fmt.printable(sweep.source)} · measurements of {fmt.printable(sweep.workload)}"]
    if sweep.baseline or sweep.variant:
        lines.append(f"baseline: {side_text(sweep.baseline) or 'all'}; variant: {side_text(sweep.variant) or 'all'}")
    if shared := side_text({name: item for name, item in sweep.shared.items() if item not in (None, "")}):
        lines.append(f"the same on both sides: {shared}")
    return lines


def cell_gate_line(numbers: CellNumbers, fail_on: float) -> str:
    """How the gate ended, and why."""
    limit, count, broken = fmt.share(fail_on), len(numbers.cells), numbers.broken
    if broken:
        of = f"{fmt.count(len(broken))} of {fmt.plural(count, 'cell')}"
        where = settings_text(broken[0].point.settings)
        return f"gate failed: the variant no longer runs {of}: {where}, {broken[0].remark}"
    found = [(cell.comparison.ratio, cell) for cell in numbers.regressions if cell.comparison is not None]
    if found:
        ratio, worst = max(found, key=lambda item: item[0].estimate)
        where = f"{change_text(ratio.estimate)} at {settings_text(worst.point.settings)}"
        return (
            f"gate failed: {fmt.count(len(found))} of {fmt.count(count)} cells are slower by more than {limit}, the "
            f"worst {where} ({interval_text(ratio)})"
        )
    if numbers.pending:
        return (
            f"gate undecided (not a failure): no cell is slower by more than {limit} for certain, but for "
            f"{fmt.count(numbers.pending)} of {fmt.count(count)} it is open"
        )
    return f"gate passed: no cell is slower by more than {limit}"


def cell_table(numbers: CellNumbers, limit: int | None = None) -> Table:
    """A row a matched pair of cells."""
    found = [cell.comparison for cell in numbers.cells]
    needed = [item.needed_blocks if item else None for item in found]
    rows = cell_rows(numbers)
    remarks = [
        cell.remark or (f"{fmt.count(rounds)} rounds of each would decide" if rounds else "")
        for cell, rounds in zip(numbers.cells, needed, strict=True)
    ]
    texts = {
        "change": [fmt.MISSING if ratio is None else signed_share(ratio - 1) for ratio in rows["ratio"]],
        "interval": [interval_text(item.ratio).partition(": ")[2] if item else fmt.MISSING for item in found],
        "title": [VERDICT_TITLES[item.verdict] if item else "not compared" for item in found],
        "remark": remarks,
    }
    shown = rows.with_columns(pl.Series(name, text, dtype=pl.String) for name, text in texts.items())
    columns = _COLUMNS if any(remarks) else _COLUMNS[:-1]
    confidence = fmt.number(round(100 * (1 - numbers.level), 4))
    return Table("cells", f"Cells side by side; intervals hold together at {confidence} %", columns, shown, limit)


def cell_document(numbers: CellNumbers) -> Document:
    """The document on two sides of measurements."""
    sweep = numbers.sweep
    meta = [("Workload", sweep.workload)]
    if device := (sweep.environment.get("device") or {}).get("name"):
        meta.append(("GPU", str(device)))
    meta += [("Baseline", side_text(sweep.baseline) or "all"), ("Variant", side_text(sweep.variant) or "all")]
    counts = Counter(cell.comparison.verdict if cell.comparison else "not compared" for cell in numbers.cells)
    figures = tuple(
        KeyFigure(fmt.capitalised(title), counts.get(name, 0), "count", "Cells.")
        for name, title in (*VERDICT_TITLES.items(), ("not compared", "not compared"))
    )
    how = Paragraph(
        "A cell's step times fall into rounds, and only rounds are independent of each other: each has one vote. "
        + (
            "The sides were measured in turns, so that round is held against round. "
            if sweep.paired
            else "The sides come from different runs, so that what changed on the machine between them counts too. "
        )
        + f"Intervals are made so narrow that all of them together miss the truth in at most "
        f"{fmt.share(numbers.level)} of such comparisons; within {fmt.share(numbers.margin)} two times count as the "
        "same.",
        quiet=True,
    )
    return Document(
        title=f"Comparison: {sweep.source}",
        lead=cell_answer(numbers),
        sections=(
            Section("quality", "Cautions", tuple(limits(numbers.notes))),
            Section("key-figures", "Key figures", (KeyFigures(figures),)),
            Section("cells-section", "Cell by cell", (cell_table(numbers), how)),
        ),
        meta=tuple(meta),
    )


def cell_data(numbers: CellNumbers, fail_on: float | None) -> dict[str, Any]:
    """`data` of the JSON."""
    sweep = numbers.sweep
    gate = (
        None
        if fail_on is None
        else {
            "fail_on": fail_on,
            "found": bool(numbers.regressions or numbers.broken),
            "excluded": not numbers.pending,
            "sentence": cell_gate_line(numbers, fail_on),
        }
    )
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
