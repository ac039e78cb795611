"""The verdict as the opening section of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report.diagnosis.tables import findings_table, phases_table, predictions_table, remedies_table
from warplens.report.diagnosis.wording import coverage_lines, evidence_text, places, standing
from warplens.report.document import Paragraph, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.diagnosis import Diagnosis, Finding
    from warplens.report.document import Block

__all__ = ["verdict_section"]


def verdict_section(diagnosis: Diagnosis, at: str = "") -> Section:
    """What limits the window, every finding with evidence and remedies, and what changes would bring.

    Args:
        diagnosis: what was found.
        at: stands before every id, where a document holds several diagnoses.
    """
    blocks: list[Block] = [Paragraph(diagnosis.headline), findings_table(diagnosis, at)]
    if diagnosis.per_phase:
        blocks.append(phases_table(diagnosis, at))
    if diagnosis.predictions:
        blocks.append(predictions_table(diagnosis, at))
    blocks.extend(Paragraph(line[:1].upper() + line[1:] + ".", quiet=True) for line in coverage_lines(diagnosis))
    inner = tuple(_finding_section(finding, at) for finding in diagnosis.findings)
    return Section(f"{at}verdict", f"Verdict: {diagnosis.verdict}", tuple(blocks), inner)


def _finding_section(finding: Finding, at: str) -> Section:
    return Section(f"{at}finding-{finding.id}", finding.id, tuple(_blocks(finding, at)))


def _blocks(finding: Finding, at: str) -> Iterator[Block]:
    yield Paragraph(f"{finding.title} ({standing(finding)}).")
    yield Paragraph(f"Evidence: {evidence_text(finding.evidence)}.")
    if finding.where:
        yield Paragraph(f"Mostly in: {places(finding)}.")
    yield remedies_table(finding, at)
    yield Paragraph(f"What would refute it: {finding.refute}", quiet=True)
