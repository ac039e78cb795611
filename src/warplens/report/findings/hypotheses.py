"""The hypotheses as a table: one row each, one column for each pair of profiles that judged it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report import format as fmt
from warplens.report.diagnosis.wording import evidence_text
from warplens.report.document import Paragraph, Section, Table, TableColumn

if TYPE_CHECKING:
    from warplens.report.document import Block
    from warplens.report.findings.evidence import ProfiledPair

__all__ = ["hypotheses_section", "standings"]

#: What the share of a hypothesis is of, for people.
_OF: Final = {
    "H1": "of the step's change is host time of added launches",
    "H2": "of the kernel time falls to multiprocessors without a block",
    "H3": "of the GPU time that is saved goes to added kernels",
    "H4": "of the change, or of what is saved, is memory being moved",
}

#: A standing as the end of a sentence, where the word alone would be none.
_STANDINGS: Final = {"partly": "partly confirmed"}

_SCHEMA: Final = {
    "id": pl.String(),
    "claim": pl.String(),
    "point": pl.String(),
    "standing": pl.String(),
    "share": pl.Float64(),
    "of": pl.String(),
    "evidence": pl.String(),
}

_COLUMNS: Final = (
    TableColumn("id", "", "text"),
    TableColumn("claim", "Says", "text"),
    TableColumn("point", "At", "text"),
    TableColumn("standing", "Is", "text", "Confirmed: half or more; refuted: less than a tenth; partly: between them."),
    TableColumn("share", "Share", "share", "Of what it should explain; above 100 % where something else gives back."),
    TableColumn("of", "Of", "text"),
    TableColumn("evidence", "Evidence", "text"),
)


def hypotheses_section(pairs: tuple[ProfiledPair, ...]) -> Section:
    """Every hypothesis at every point."""
    rows = [
        {
            "id": item.id,
            "claim": item.claim,
            "point": pair.title,
            "standing": item.standing,
            "share": item.share,
            "of": _OF[item.id] if item.share is not None else "",
            "evidence": evidence_text(item.evidence),
        }
        for items in zip(*(pair.hypotheses for pair in pairs), strict=True)
        for pair, item in zip(pairs, items, strict=True)
    ]
    frame = pl.DataFrame(rows, schema=_SCHEMA)
    table = Table("hypotheses-table", "Each hypothesis at each profiled point", _COLUMNS, frame, limit=None)
    blocks: list[Block] = [Paragraph(standings(pair)) for pair in pairs]
    how = "How well accesses coalesce, and the bandwidth of a kernel, need counters, and are not judged here."
    return Section("hypotheses", "Hypotheses", (*blocks, table, Paragraph(how, quiet=True)))


def standings(pair: ProfiledPair) -> str:
    """One sentence a point: `At input size 224, batch 1: H1, H2 confirmed; H3 partly confirmed; H4 refuted.`."""
    standings: dict[str, list[str]] = {}
    for item in pair.hypotheses:
        standings.setdefault(item.standing, []).append(item.id)
    told = "; ".join(f"{', '.join(ids)} {_STANDINGS.get(standing, standing)}" for standing, ids in standings.items())
    return fmt.printable(f"At {pair.title}: {told}.")
