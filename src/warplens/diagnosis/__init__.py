"""Findings: what limits the analysed window, with evidence, a ceiling of the gain, remedies and a refuting experiment.

Lives here: `verdict` (`diagnose`, which applies the rules and ranks what they find), `findings` (what a finding is),
`thresholds` (every limit with its reason), `facts` (the window as rules see it: work and pauses that add up to it),
`claims` (which cause owns which nanosecond, none of them twice; `kernelclaims` for the busy ones), and `rules`, one
rule a module.

May import: `warplens.analysis`, `warplens.profile` and `warplens.errors`.
"""

from warplens.diagnosis.findings import (
    EVIDENCE_UNITS,
    FINDING_IDS,
    SEVERITIES,
    Coverage,
    Diagnosis,
    Finding,
    PhaseVerdict,
    Remedy,
)
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.verdict import diagnose

__all__ = [
    "DEFAULTS",
    "EVIDENCE_UNITS",
    "FINDING_IDS",
    "SEVERITIES",
    "Coverage",
    "Diagnosis",
    "Finding",
    "PhaseVerdict",
    "Remedy",
    "Thresholds",
    "diagnose",
]
