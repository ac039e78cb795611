"""Findings: what limits the analysed window, with evidence, a ceiling of the gain, remedies and a refuting experiment.

Lives here: `rule` (what a finding is declared as) and `rules` (the findings themselves), `facts` (the window as rules
see it: work and pauses that add up to it), `claims` (which cause owns which nanosecond, none of them twice), `evidence`
(what several rules look at), `thresholds` (every shared limit with its reason), `findings` (what a diagnosis is made
of) and `verdict` (`diagnose`, which applies the rules and ranks what they find).
"""

from warplens.diagnosis.findings import EVIDENCE_UNITS, SEVERITIES, Coverage, Diagnosis, Finding, PhaseVerdict, Remedy
from warplens.diagnosis.rule import Limit, Rule
from warplens.diagnosis.rules import FINDING_IDS, RULES
from warplens.diagnosis.thresholds import DEFAULTS, Thresholds
from warplens.diagnosis.verdict import diagnose

__all__ = [
    "DEFAULTS",
    "EVIDENCE_UNITS",
    "FINDING_IDS",
    "RULES",
    "SEVERITIES",
    "Coverage",
    "Diagnosis",
    "Finding",
    "Limit",
    "PhaseVerdict",
    "Remedy",
    "Rule",
    "Thresholds",
    "diagnose",
]
