"""What the shipped files say together: weighed once, as it takes seconds."""

from __future__ import annotations

from functools import cache

from warplens.cli.commands.report import shipped_evidence
from warplens.studies.reports.evidence import Evidence


@cache
def evidence() -> Evidence:
    return shipped_evidence()
