"""A diagnosis as tables: findings, remedies, phases and predictions, each with exact values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report.diagnosis.wording import at_most, change_title, evidence_text, places
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from warplens.diagnosis import Diagnosis, Finding

__all__ = ["findings_frame", "findings_table", "phases_table", "predictions_table", "remedies_table"]

_FINDINGS: Final = {
    "rank": pl.Int64,
    "id": pl.String,
    "severity": pl.String,
    "confidence": pl.String,
    "gain_ceiling": pl.Float64,
    "title": pl.String,
    "where": pl.String,
    "evidence": pl.String,
    "remedy": pl.String,
    "refute": pl.String,
    "at_most": pl.String,
}


def findings_frame(diagnosis: Diagnosis) -> pl.DataFrame:
    """One row a finding, the worst first; evidence as text, the first remedy for all."""
    rows = [
        {
            "rank": rank,
            "id": found.id,
            "severity": found.severity,
            "confidence": found.confidence,
            "gain_ceiling": found.gain_ceiling,
            "title": found.title,
            "where": places(found),
            "evidence": evidence_text(found.evidence),
            "remedy": found.remedies[0].action if found.remedies else None,
            "refute": found.refute,
            "at_most": at_most(found.gain_ceiling),
        }
        for rank, found in enumerate(diagnosis.findings, start=1)
    ]
    return pl.DataFrame(rows, schema=_FINDINGS)


def findings_table(diagnosis: Diagnosis, at: str = "") -> Table:
    """The findings in one view."""
    columns = (
        TableColumn("id", "Finding", "text"),
        TableColumn("severity", "Severity", "text", "By the ceiling: critical from 1.5×, warning from 1.1×."),
        TableColumn("at_most", "At most", "text", "Wall time over wall time without the cause."),
        TableColumn("confidence", "Confidence", "text", "How sure the cause is, given what was recorded."),
        TableColumn("title", "What", "text"),
        TableColumn("remedy", "First remedy", "text"),
    )
    return Table(f"{at}findings", "Findings, the worst first", columns, findings_frame(diagnosis), limit=None)


def remedies_table(finding: Finding, at: str = "") -> Table:
    """What to do about one finding."""
    rows = pl.DataFrame(
        [{"action": item.action, "how": item.how, "expected": item.expected} for item in finding.remedies],
        schema={"action": pl.String, "how": pl.String, "expected": pl.String},
    )
    columns = (
        TableColumn("action", "Do", "text"),
        TableColumn("how", "How", "text"),
        TableColumn("expected", "Expected", "text"),
    )
    return Table(f"{at}remedies-{finding.id}", f"Remedies for {finding.id}", columns, rows, limit=None)


def phases_table(diagnosis: Diagnosis, at: str = "") -> Table:
    """The verdict on each phase of a step."""
    rows = [
        {
            "phase": part.phase,
            "verdict": part.verdict,
            "at_most": at_most(part.gain_ceiling),
            "wall_ns": part.wall_ns,
            "busy_share": part.busy_ns / part.wall_ns if part.wall_ns else None,
            "share": part.share,
        }
        for part in diagnosis.per_phase
    ]
    schema = {
        "phase": pl.String,
        "verdict": pl.String,
        "at_most": pl.String,
        "wall_ns": pl.Int64,
        "busy_share": pl.Float64,
        "share": pl.Float64,
    }
    columns = (
        TableColumn("phase", "Phase", "text"),
        TableColumn("verdict", "Limited by", "text"),
        TableColumn("at_most", "At most", "text", "Time of the phase over its time without that cause."),
        TableColumn("wall_ns", "Time", "duration_ns", "GPU work of the phase and the pauses that it ended."),
        TableColumn("busy_share", "GPU busy", "share", "Of that time."),
        TableColumn("share", "Share", "share", "Of the window."),
    )
    return Table(f"{at}phase-verdicts", "Each phase by itself", columns, pl.DataFrame(rows, schema=schema), limit=None)


def predictions_table(diagnosis: Diagnosis, at: str = "") -> Table:
    """Modelled times of a step under single changes."""
    rows = [
        {
            "change": item.change,
            "what": change_title(item.change),
            "measured_ns": item.measured_ns,
            "predicted_ns": item.predicted_ns,
            "speedup": f"{item.speedup:.2f}×",
            "model_error": item.model_error,
            "how": item.how,
        }
        for item in diagnosis.predictions
    ]
    schema = {
        "change": pl.String,
        "what": pl.String,
        "measured_ns": pl.Int64,
        "predicted_ns": pl.Int64,
        "speedup": pl.String,
        "model_error": pl.Float64,
        "how": pl.String,
    }
    columns = (
        TableColumn("change", "Change", "text"),
        TableColumn("what", "If", "text"),
        TableColumn("measured_ns", "Measured", "duration_ns", "Wall time of a step, or of the window without steps."),
        TableColumn("predicted_ns", "Predicted", "duration_ns", "Modelled, not measured."),
        TableColumn("speedup", "Gain", "text"),
        TableColumn("model_error", "Model error", "share", "How far the model is from the unchanged measurement."),
    )
    frame = pl.DataFrame(rows, schema=schema)
    caption = "Predictions (modelled): make one change, record again, and compare"
    return Table(f"{at}predictions", caption, columns, frame, limit=None, empty="No change was modelled.")
