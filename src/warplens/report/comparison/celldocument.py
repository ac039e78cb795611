"""Two sides of measurements as a document, as a table and as data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.report import format as fmt
from warplens.report.comparison.cells import cell_rows, settings_text
from warplens.report.comparison.words import (
    VERDICT_TITLES,
    capitalised,
    change_text,
    interval_text,
    signed_share,
    verdict_text,
)
from warplens.report.document import Document, KeyFigure, KeyFigures, Notes, Paragraph, Section, Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.compare.sweep import Sweep
    from warplens.report.comparison.cells import CellNumbers

__all__ = ["cell_answer", "cell_data", "cell_document", "cell_gate_lines", "cell_head", "cell_table"]

_COLUMNS: Final = (
    TableColumn("cell", "Cell", "text", "Settings that differ from row to row."),
    TableColumn("baseline_ns", "Baseline", "duration_ns", "Median time of a step."),
    TableColumn("variant_ns", "Variant", "duration_ns", "Median time of a step."),
    TableColumn("change", "Change", "text", "Of the time: above zero is slower."),
    TableColumn("interval", "Interval", "text", "Holds for all rows together."),
    TableColumn("title", "Verdict", "text"),
    TableColumn("work_ratio", "FLOPs", "number", "FLOPs of the variant / FLOPs of the baseline, modelled."),
    TableColumn("remark", "Remark", "text"),
)


def cell_answer(numbers: CellNumbers) -> str:
    """The answer in two sentences: in how many cells the variant is faster, slower, the same; and the extremes."""
    decided = [(cell, cell.comparison) for cell in numbers.cells if cell.comparison is not None]
    if not decided:
        return "No cell was measured repeatedly on both sides, so that nothing can be said of the times."
    if len(decided) == 1:
        return f"{capitalised(verdict_text(decided[0][1], 'the variant'))}."
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
    return f"{first} {'From ' + told if len(ends) > 1 else capitalised(told)}."


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


def cell_gate_lines(numbers: CellNumbers, fail_on: float) -> list[str]:
    """How the gate ended, and why."""
    limit, failed = fmt.share(fail_on), numbers.regressions
    if numbers.broken:
        first = numbers.broken[0]
        of = f"{fmt.count(len(numbers.broken))} of {fmt.plural(len(numbers.cells), 'cell')}"
        return [f"gate failed: the variant no longer runs {of}: {settings_text(first.point.settings)}, {first.reason}"]
    found = [(cell.comparison.ratio.estimate, cell) for cell in failed if cell.comparison is not None]
    if found:
        ratio, worst = max(found, key=lambda item: item[0])
        of = f"{fmt.count(len(found))} of {fmt.count(len(numbers.cells))} cells are"
        where = f"{change_text(ratio)} at {settings_text(worst.point.settings)}"
        interval = interval_text(worst.comparison.ratio) if worst.comparison else ""
        return [f"gate failed: {of} slower by more than {limit}, the worst {where} ({interval})"]
    # Cells that nobody can compare leave the question open as well.
    pending = sum(cell.regression is None or not cell.regression.excluded for cell in numbers.cells)
    if pending:
        return [
            f"gate undecided, which does not fail: no cell is slower by more than {limit} for certain, but for "
            f"{fmt.count(pending)} of {fmt.count(len(numbers.cells))} it is open"
        ]
    return [f"gate passed: no cell is slower by more than {limit}"]


def cell_table(numbers: CellNumbers, limit: int | None = None) -> Table:
    """A row a matched pair of cells."""
    rows = cell_rows(numbers)
    changes, intervals, titles, remarks = [], [], [], []
    for cell, row in zip(numbers.cells, rows.iter_rows(named=True), strict=True):
        found = cell.comparison
        changes.append(signed_share(row["ratio"] - 1) if row["ratio"] is not None else fmt.MISSING)
        intervals.append(interval_text(found.ratio).partition(": ")[2] if found else fmt.MISSING)
        titles.append(VERDICT_TITLES[found.verdict] if found else "not compared")
        needed = found and found.needed_blocks
        remarks.append(cell.reason or (f"{fmt.count(needed)} rounds of each would decide" if needed else ""))
    shown = rows.with_columns(
        pl.Series("change", changes, dtype=pl.String),
        pl.Series("interval", intervals, dtype=pl.String),
        pl.Series("title", titles, dtype=pl.String),
        pl.Series("remark", remarks, dtype=pl.String),
    )
    columns = _COLUMNS if any(remarks) else _COLUMNS[:-1]
    confidence = fmt.number(round(100 * (1 - numbers.level), 4))
    return Table("cells", f"Cells side by side; intervals hold together at {confidence} %", columns, shown, limit)


def cell_document(numbers: CellNumbers) -> Document:
    """The document on two sides of measurements."""
    sweep = numbers.sweep
    clean = Paragraph("Nothing was found that limits these numbers.", quiet=True)
    meta = [("Workload", sweep.workload)]
    if device := (sweep.environment.get("device") or {}).get("name"):
        meta.append(("GPU", str(device)))
    meta += [("Baseline", side_text(sweep.baseline) or "all"), ("Variant", side_text(sweep.variant) or "all")]
    counts = Counter(cell.comparison.verdict if cell.comparison else "not compared" for cell in numbers.cells)
    figures = tuple(
        KeyFigure(title[:1].upper() + title[1:], counts.get(name, 0), "count", "Cells.")
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
            Section("quality", "Before you read the numbers", (Notes(numbers.notes) if numbers.notes else clean,)),
            Section("key-figures", "Key figures", (KeyFigures(figures),)),
            Section("cells-section", "Cell by cell", (cell_table(numbers), how)),
        ),
        meta=tuple(meta),
    )


def cell_data(numbers: CellNumbers, fail_on: float | None) -> dict[str, Any]:
    """`data` of the JSON."""
    sweep = numbers.sweep
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
        "gate": None if fail_on is None else _gate(numbers, fail_on),
        "rows": cell_rows(numbers),
        "settings": [dict(cell.point.settings) for cell in numbers.cells],
    }


def _gate(numbers: CellNumbers, fail_on: float) -> dict[str, Any]:
    excluded = all(cell.regression is not None and cell.regression.excluded for cell in numbers.cells)
    return {
        "fail_on": fail_on,
        "found": bool(numbers.regressions or numbers.broken),
        "excluded": excluded,
        "sentence": " ".join(line.strip() for line in cell_gate_lines(numbers, fail_on)),
    }
