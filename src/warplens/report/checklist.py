"""The optimisation checklist as a table of a report: each item, whether it was checked, and the numbers that say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.diagnosis import Diagnosis
from warplens.diagnosis.checklist import CHECKLIST, STATES, checklist
from warplens.profile.counters import KernelCounters
from warplens.report.document import Block, Table, pick, quiet
from warplens.report.verdict import evidence_text

_SHOWN: Final = pick(CHECKLIST, "asked", "found", "numbers", "rests_on", "seen_share", "then")


def checklist_frame(
    timeline: Timeline | None = None,
    window: Window | None = None,
    diagnosis: Diagnosis | None = None,
    counters: KernelCounters | None = None,
) -> pl.DataFrame:
    """`CHECKLIST` of a trace, of a report of counters, or of both; as `warplens.diagnosis.checklist.checklist`."""
    rows = [
        {
            "item": name,
            "group": group,
            "asked": asked,
            "found": found.state,
            "rests_on": found.rests_on,
            "seen_share": found.seen_share,
            "numbers": evidence_text(found.evidence) or None,
            "evidence": [
                {"name": name, "value": float(value)}
                for name, value in found.evidence.items()
                if isinstance(value, (int, float))
            ],
            "then": found.then,
        }
        for name, (group, asked, found) in checklist(timeline, window, diagnosis, counters).items()
    ]
    return CHECKLIST.checked(pl.DataFrame(rows, schema=CHECKLIST.schema))


def checklist_blocks(rows: pl.DataFrame) -> Iterator[Block]:
    """The list, with how many of its items were checked."""
    counts = {state: int((rows["found"] == state).sum()) for state in STATES}
    checked = counts["in order"] + counts["to mend"]
    yield quiet(
        f"{checked} of {rows.height} items were checked: {counts['in order']} in order, {counts['to mend']} to mend; "
        f"{counts['not applicable']} not applicable; of {counts['cannot tell']} these files cannot tell. What was lost "
        "is a ceiling, of the time of the kernels that were looked at (seen); costs of several items do not add up."
    )
    yield Table("checklist-table", "Optimisation checklist", _SHOWN, rows, limit=None)
