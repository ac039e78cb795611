"""The report of a study (token reduction, language model, attention): its answer, its tables, then every cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.errors import MissingDataError
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import Document, Paragraph, Section, Table
from warplens.report.measured import doubts_of, measured_document, measured_facts
from warplens.studies.columns import axis_columns
from warplens.studies.reports.attention import attention_sections, attention_tables
from warplens.studies.reports.language_model import lm_sections, lm_tables
from warplens.studies.reports.token_reduction import token_sections, token_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.profile.measurements import Measurements


def varying(measurements: Measurements) -> list[str]:
    """The settings that differ between cells; the first one if none does."""
    cells = measurements.cells
    found = [name for name in measurements.settings if cells.get_column(name).n_unique() > 1]
    return found or list(measurements.settings[:1])


def missing_table(measurements: Measurements) -> Table | None:
    """A row for each cell that was not measured; None if all were."""
    names = varying(measurements)
    rows = measurements.cells.filter(pl.col("status") != "measured").select(*names, "status", "reason")
    if rows.is_empty():
        return None
    axes = (each.but(kind="count" if each.dtype.is_integer() else "text") for each in axis_columns(rows, names))
    columns = (*axes, column("status", help=""), column("reason", help="", title="Reason"))
    return Table("missing-cells", "Cells without figures", columns, rows)


_TITLES: Final = {
    "token-reduction": "Token reduction: fewer FLOPs, and when that is less time",
    "lm": "The language model over sizes and contexts",
    "attention": "Attention kernels over sequence length",
}

_SECTIONS: Final[dict[str, Callable[[Measurements], tuple[str, tuple[Section, ...]]]]] = {
    "token-reduction": token_sections,
    "lm": lm_sections,
    "attention": attention_sections,
}

_TABLES: Final[dict[str, Callable[[Measurements], dict[str, pl.DataFrame]]]] = {
    "token-reduction": token_tables,
    "lm": lm_tables,
    "attention": attention_tables,
}


def study_document(measurements: Measurements) -> Document:
    """The report of a study.

    Raises:
        MissingDataError: no study measures this workload.
    """
    _check(measurements)
    answer, sections = _SECTIONS[measurements.workload](measurements)
    cells = measured_document(measurements)
    return Document(
        title=_TITLES[measurements.workload],
        lead=answer or "Nothing was measured.",
        sections=(*sections, *_missing(measurements), *cells.sections, *_doubts(measurements)),
        meta=cells.meta,
    )


def study_data(measurements: Measurements) -> dict[str, Any]:
    """The same as plain data: the answer, the tables, every cell."""
    _check(measurements)
    answer, _ = _SECTIONS[measurements.workload](measurements)
    return {
        "workload": measurements.workload,
        "command": measurements.command,
        "environment": measurements.environment,
        "plan": measurements.plan,
        "answer": answer,
        "facts": measured_facts(measurements),
        "tables": _TABLES[measurements.workload](measurements),
        "settings": measurements.settings,
        "rows": measurements.cells,
    }


def _check(measurements: Measurements) -> None:
    if measurements.workload not in _SECTIONS:
        raise MissingDataError(
            f"{measurements.source}: it measures {measurements.workload!r}, and studies are of "
            f"{', '.join(_SECTIONS)}. Use warplens bench show"
        )


def _missing(measurements: Measurements) -> tuple[Section, ...]:
    table = missing_table(measurements)
    if table is None:
        return ()
    what = f"{fmt.plural(table.rows.height, 'cell')} could not be measured; the others are not affected."
    return (Section("missing", "What could not be measured", (Paragraph(what), table)),)


def _doubts(measurements: Measurements) -> tuple[Section, ...]:
    doubts = doubts_of(measurements)
    if not doubts:
        return ()
    head = Paragraph("No repetition was left out for these.", quiet=True)
    return (Section("doubts", "Doubts", (head, *(Paragraph(doubt, quiet=True) for doubt in doubts))),)
