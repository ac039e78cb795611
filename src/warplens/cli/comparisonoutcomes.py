"""The three kinds of comparison, each from its files to an `Outcome`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from warplens.cli.comparing import load_counters, load_measurements, load_traces
from warplens.cli.comparisonoutput import Outcome
from warplens.cli.messages import progress
from warplens.errors import MissingDataError
from warplens.profile import NoteLevel

if TYPE_CHECKING:
    from pathlib import Path

    from warplens.analysis.counters.comparison import Comparison as CountersComparison
    from warplens.cli.comparing import Found
    from warplens.report.comparison.numbers import StepNumbers
    from warplens.report.document import Document, Table

__all__ = ["Asked", "of_counters", "of_measurements", "of_traces"]


@dataclass(frozen=True)
class Asked:
    """What the user asked of a comparison.

    Attributes:
        margin: differences of this share and less do not matter.
        level: how often an interval misses the truth: 0.05 for 95 % confidence.
        fail_on: the gate's limit, a share; None without a gate.
        window, range_name: part of each trace.
        where: settings of the cells to take, of the baseline and of the variant.
        counters: reports of Nsight Compute beside the traces, of the baseline and of the variant.
        flops: floating-point operations of a step of each side, beside the traces; None where nobody said.
    """

    margin: float
    level: float
    fail_on: float | None
    window: str
    range_name: str | None
    where: tuple[str | None, str | None]
    counters: tuple[Path | None, Path | None]
    flops: tuple[float, float] | None


def of_measurements(sides: tuple[Found, Found], asked: Asked) -> Outcome:
    """Cells against cells.

    Raises:
        UsageError: no cells of the two sides match.
        UnreadableInputError: a file cannot be read.
    """
    from warplens.report.comparison.celldocument import (  # noqa: PLC0415  the other kinds do without
        cell_answer,
        cell_data,
        cell_document,
        cell_gate_lines,
        cell_head,
        cell_table,
    )
    from warplens.report.comparison.cells import cell_rows, compare_cells  # noqa: PLC0415

    sweep, notes = load_measurements(sides, asked.where)
    with progress("comparing"):
        numbers = compare_cells(sweep, margin=asked.margin, level=asked.level, fail_on=asked.fail_on)
        numbers = replace(numbers, notes=(*notes, *numbers.notes))
    return Outcome(
        sources=[side.files[0].name for side in sides],
        head=cell_head(sweep),
        answer=[cell_answer(numbers)],
        notes=numbers.notes,
        tables=[cell_table(numbers, limit=0)],
        rows=cell_rows(numbers),
        data=cell_data(numbers, asked.fail_on),
        document=lambda: cell_document(numbers),
        gate=cell_gate_lines(numbers, asked.fail_on) if asked.fail_on is not None else (),
        failed=asked.fail_on is not None and bool(numbers.regressions or numbers.broken),
    )


def of_counters(sides: tuple[Found, Found], asked: Asked) -> Outcome:
    """Hardware counters of one report against those of the other."""
    from warplens.analysis.counters.comparison import compare_counters  # noqa: PLC0415  the other kinds do without
    from warplens.report.comparison.counterdocument import counter_document  # noqa: PLC0415
    from warplens.report.counters.comparison import (  # noqa: PLC0415
        comparison_data,
        comparison_lines,
        comparison_tables,
    )

    reports = [load_counters(side.files[0]) for side in sides]
    with progress("comparing"):
        found = compare_counters(reports[0], reports[1])
    head, *answer = comparison_lines(found)
    return Outcome(
        sources=[report.capture.source for report in reports],
        head=[head],
        answer=answer,
        notes=found.notes,
        tables=comparison_tables(found, limit=0),
        rows=found.groups,
        data={"kind": "counters", **comparison_data(found)},
        document=lambda: counter_document(found),
    )


def of_traces(sides: tuple[Found, Found], asked: Asked) -> Outcome:
    """Steps against steps.

    Raises:
        UsageError: the window or range is not in a trace.
        UnreadableInputError: a file cannot be read.
        MissingDataError: there is a gate, and a side cannot be judged.
    """
    from warplens.report.comparison.causes import (  # noqa: PLC0415  the other kinds do without
        forbids_verdict,
        step_answer,
        work_sentence,
    )
    from warplens.report.comparison.numbers import compare_steps  # noqa: PLC0415
    from warplens.report.comparison.stepdata import step_data, step_head  # noqa: PLC0415
    from warplens.report.comparison.steptables import kernel_table, part_table  # noqa: PLC0415
    from warplens.report.comparison.words import gate_line, needed_text  # noqa: PLC0415

    counters = _counters_beside(asked)
    baseline, variant = load_traces(sides, asked.window, asked.range_name)
    with progress("comparing"):
        numbers = compare_steps(
            baseline,
            variant,
            margin=asked.margin,
            level=asked.level,
            fail_on=asked.fail_on,
            flops=asked.flops,
            counters=counters,
        )
    if asked.fail_on is not None:
        _check_gate(numbers)
    found, gate = numbers.comparison, numbers.regression
    needed = needed_text(found) if forbids_verdict(numbers) is None else None
    further = [line for line in (work_sentence(numbers), needed) if line is not None]
    parts = part_table(numbers.difference.wall, most=8, per=numbers.difference.per)
    tables = [parts, kernel_table(numbers.kernels, limit=0, narrow=True)]
    if counters is not None:
        tables += _counter_tables(counters)
    return Outcome(
        sources=[*baseline.sources, *variant.sources],
        head=step_head(numbers),
        answer=[*step_answer(numbers), *further],
        notes=numbers.notes,
        tables=tables,
        rows=numbers.difference.wall.frame(),
        data=step_data(numbers),
        document=lambda: _step_document(numbers),
        gate=[gate_line(gate, found)] if gate is not None else (),
        failed=gate is not None and gate.found,
    )


def _check_gate(numbers: StepNumbers) -> None:
    """Refuse to gate on what is no comparison: a step that ran out of memory is fast.

    Raises:
        MissingDataError: a side lacks what its step times would have to stand for.
    """
    for note in numbers.notes:
        if note.level is NoteLevel.BLOCKING:
            raise MissingDataError(f"the gate has nothing to go by: {note.text}")


def _counters_beside(asked: Asked) -> CountersComparison | None:
    """The reports of counters that stand beside the traces, compared."""
    before, after = asked.counters
    if before is None or after is None:
        return None
    from warplens.analysis.counters.comparison import compare_counters  # noqa: PLC0415  most comparisons have none

    return compare_counters(load_counters(before), load_counters(after))


def _counter_tables(found: CountersComparison) -> tuple[Table, ...]:
    from warplens.report.counters.comparison import comparison_tables  # noqa: PLC0415

    return comparison_tables(found, limit=0)


def _step_document(numbers: StepNumbers) -> Document:
    from warplens.report.comparison.document import step_document  # noqa: PLC0415  charts cost half a second

    return step_document(numbers)
