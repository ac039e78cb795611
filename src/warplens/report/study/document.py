"""The report of a study: its answer first, then its tables, then every cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.errors import MissingDataError
from warplens.report import format as fmt
from warplens.report.document import Document, Paragraph, Section
from warplens.report.measured import doubts_of, measured_document, measured_facts
from warplens.report.study.attention import attention_sections, attention_tables
from warplens.report.study.lmgrid import lm_sections, lm_tables
from warplens.report.study.missing import missing_table
from warplens.report.study.tokenreduction import token_sections, token_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.profile.measurements import Measurements

__all__ = ["study_data", "study_document"]

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
