"""A diagnosis as plain data: the heart of `data` of `warplens diagnose --format json`, and a part of `report.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warplens.diagnosis import Diagnosis

__all__ = ["diagnosis_data"]


def diagnosis_data(diagnosis: Diagnosis) -> dict[str, Any]:
    """Verdict, findings, phases, predictions and coverage, with exact numbers."""
    return {
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "findings": diagnosis.findings,
        "per_phase": diagnosis.per_phase,
        "predictions": diagnosis.predictions,
        "coverage": diagnosis.coverage,
    }
