"""The diagnosis of a run: what its ranks cost each other, and each of them by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.ranks.balance import straggler
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.whole import is_known
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.brief import answer_block
from warplens.report.document import Answer, Document, Section, Segment, Strip, Table, quiet, sections
from warplens.report.jsonout import window_data
from warplens.report.ranks import (
    SECTIONS,
    answer,
    longest_window,
    parts_of,
    rank_rows,
    ranks_data,
    run_line,
    window_line,
)
from warplens.report.verdict import diagnosis_data, factor, finding_data, findings_frame, one_finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.ranks.across import RanksResult
    from warplens.diagnosis import Diagnosis
    from warplens.diagnosis.across import RunDiagnosis


#: Stands before every id of what a report says of a run as a whole.
RUN: Final = "run-"


_BY_ITSELF: Final = (
    column("rank", help=""),
    column("source", help=""),
    column("verdict", help="", title="Limited by"),
    column("severity", help=""),
    column("gain"),
    column("busy_share", help="of its window"),
    column("remedy", help="", title="First remedy"),
)


def by_itself_table(found: RunDiagnosis) -> Table:
    """The verdict on each rank by itself."""
    rows = []
    for rank, own in found.ranks.items():
        first = own.findings[0]
        rows.append(
            {
                "rank": rank,
                "source": found.run.summary(rank).label,
                "verdict": own.verdict,
                "severity": first.severity,
                "gain": factor(first.gain),
                "busy_share": own.coverage.busy_ns / own.coverage.wall_ns if own.coverage.wall_ns else None,
                "remedy": first.remedies[0].action if first.remedies else None,
            }
        )
    schema = {column.name: column.dtype for column in _BY_ITSELF}
    return Table("by-itself", "Each rank separately", _BY_ITSELF, pl.DataFrame(rows, schema=schema), limit=None)


def run_frame(found: RunDiagnosis) -> pl.DataFrame:
    """One row a finding: those of the run, whose rank is null, and then those of each rank."""
    parts: list[tuple[int | None, Diagnosis | RunDiagnosis]] = [(None, found), *found.ranks.items()]
    frames = [
        findings_frame(own).select(pl.lit(rank, dtype=pl.Int64).alias("of_rank"), pl.all()) for rank, own in parts
    ]
    return pl.concat(frames).drop("gain", "at_most")


def run_data(found: RunDiagnosis) -> dict[str, Any]:
    """The diagnosis of a run and of each rank; what only one window has is null."""
    windows = {rank: found.run.summary(rank).window for rank in found.ranks}
    return {
        "window": None,
        "verdict": found.verdict,
        "verdict_known": is_known(found.findings[0]),
        "headline": found.headline,
        "findings": [finding_data(finding) for finding in found.findings],
        "headline_share": found.headline_share,
        "per_phase": [],
        "predictions": [],
        "what_if": None,
        "coverage": None,
        "pace": None,
        "ranks": [
            {
                "rank": rank,
                "source": found.run.summary(rank).source,
                "window": window_data(windows[rank]),
                **diagnosis_data(own),
            }
            for rank, own in found.ranks.items()
        ],
        "together": {"late_rank": straggler(found.run.result.waits), **ranks_data(found.run.result)},
    }


def run_answer(found: RunDiagnosis) -> Answer:
    """The first screen of a report on a run."""
    return answer_block(found, tuple(run_strips(found.run.result)), RUN)


def run_rooms(found: RunDiagnosis) -> tuple[Section, ...]:
    """The rooms of a report on a run: what its ranks cost each other, and the ranks side by side."""
    result = found.run.result
    findings = (
        Section(
            f"{RUN}finding-{finding.id}",
            f"{finding.id}: {rule(finding.id).limiter}",
            tuple(one_finding(finding)),
            folded=place > 0,
        )
        for place, finding in enumerate(found.findings)
    )
    blocks = (by_itself_table(found), quiet(answer(result)))
    return (
        Section(f"{RUN}findings", "The run", blocks, tuple(findings)),
        Section(f"{RUN}ranks", "Ranks", (), sections(SECTIONS, result, RUN)),
    )


def run_document(found: RunDiagnosis) -> Document:
    """The report on a run without its profiles."""
    result = found.run.result
    meta = (("Run", run_line(result)), ("Window", window_line(result).removeprefix("window: ")))
    return Document(f"{len(found.ranks)} ranks of one run", answer(result), run_rooms(found), meta, run_answer(found))


def run_strips(result: RanksResult) -> Iterator[Strip]:
    """The time of the rank that computes the most, and of the one that waits the most, in one scale."""
    rows = rank_rows(result)
    longest = longest_window(rows)
    shown = (rows.sort("compute_ns", descending=True), rows.sort("exposed_wait_ns", descending=True, nulls_last=True))
    for rank in dict.fromkeys(int(each["rank"][0]) for each in shown):
        row = rows.row(by_predicate=pl.col("rank") == rank, named=True)
        steps = max(1, len(result.summaries[result.ranks.index(rank)].window.steps))
        unit = "mean step" if steps > 1 else "its window"
        segments = (Segment(title, spent / steps, spent / longest, fill) for title, fill, spent in parts_of(row))
        title = f"Where the time of rank {rank} goes ({unit}, {fmt.duration(row['duration_ns'] / steps)})"
        yield Strip("rank", rank, title, tuple(segments))
