"""The report of a study told end to end: problem, evidence, hypotheses, cause, remedies, policy, limits.

`evidence` (what the report rests on, and how it is read), `hypotheses` (their table), `remedies` (what was tried, what
diagnosis had predicted, what came of it), `document` (all of it, in order).
"""

from warplens.report.findings.document import findings_document
from warplens.report.findings.evidence import Evidence, ProfiledPair, study_evidence

__all__ = ["Evidence", "ProfiledPair", "findings_document", "study_evidence"]
