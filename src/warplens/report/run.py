"""The diagnosis of a run of several ranks, as a whole and for each rank, as JSON data, tables and a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.diagnosis.rules.whole import is_known
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.brief import answer_block
from warplens.report.document import Answer, Document, Section, Segment, Strip, Table, frame_of, quiet, sections
from warplens.report.jsonout import window_data
from warplens.report.ranks import SECTIONS, answer, longest_window, parts_of, rank_rows, ranks_data, run_meta
from warplens.report.verdict import (
    diagnosis_data,
    factor,
    finding_data,
    finding_sections,
    findings_frame,
    verdict_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.ranks.across import RanksResult
    from warplens.diagnosis import Diagnosis
    from warplens.diagnosis.across import RunDiagnosis


#: Prefix of the ids of all parts of a report on the run as a whole.
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


def by_itself_table(run: RunDiagnosis) -> Table:
    """The verdict on each rank separately."""
    rows = []
    for rank, diagnosis in run.ranks.items():
        finding, coverage = diagnosis.findings[0], diagnosis.coverage
        rows.append(
            {
                "rank": rank,
                "source": run.run.summary(rank).label,
                "verdict": verdict_words(finding),
                "severity": finding.severity,
                "gain": factor(finding.expected),
                "busy_share": coverage.busy_ns / coverage.wall_ns if coverage.wall_ns else None,
                "remedy": finding.remedies[0].action if finding.remedies else None,
            }
        )
    caption = "Each rank separately, without what ranks cost each other"
    return Table("by-itself", caption, _BY_ITSELF, frame_of(_BY_ITSELF, rows), limit=None)


def run_frame(run: RunDiagnosis) -> pl.DataFrame:
    """One row per finding: first those of the run, with `of_rank` null, then those of each rank."""
    diagnoses: list[tuple[int | None, Diagnosis | RunDiagnosis]] = [(None, run), *run.ranks.items()]
    frames = [
        findings_frame(diagnosis).select(pl.lit(rank, dtype=pl.Int64).alias("of_rank"), pl.all())
        for rank, diagnosis in diagnoses
    ]
    return pl.concat(frames).drop("gain", "at_most")


def run_data(run: RunDiagnosis) -> dict[str, Any]:
    """The JSON data of a run and of each rank; fields that only the diagnosis of one window has are null."""
    windows = {rank: run.run.summary(rank).window for rank in run.ranks}
    late = run.run.result.late
    return {
        "window": None,
        "verdict": run.verdict,
        "verdict_known": is_known(run.findings[0]),
        "headline": run.headline,
        "findings": [finding_data(finding) for finding in run.findings],
        "headline_share": run.headline_share,
        "per_phase": [],
        "predictions": [],
        **dict.fromkeys(("without_profiler", "what_if", "coverage", "pace")),
        "ranks": [
            {
                "rank": rank,
                "source": run.run.summary(rank).source,
                "window": window_data(windows[rank]),
                **diagnosis_data(diagnosis),
            }
            for rank, diagnosis in run.ranks.items()
        ],
        "together": {
            "late_rank": next(iter(late), None),
            "late_ranks": list(late),
            **ranks_data(run.run.result),
        },
    }


def run_answer(run: RunDiagnosis) -> Answer:
    """The first screen of a report on a run."""
    return answer_block(run, tuple(run_strips(run.run.result)), RUN)


def run_rooms(run: RunDiagnosis) -> tuple[Section, ...]:
    """The top-level sections of a report on a run: its findings, and the ranks compared."""
    result = run.run.result
    blocks = (by_itself_table(run), quiet(answer(result)))
    return (
        Section(f"{RUN}findings", "The run", blocks, tuple(finding_sections(run, RUN))),
        Section(f"{RUN}ranks", "Ranks", (), sections(SECTIONS, result, RUN)),
    )


def run_document(run: RunDiagnosis) -> Document:
    """The report on a run without its profiles."""
    result = run.run.result
    title = f"{len(run.ranks)} ranks of one run"
    return Document(title, answer(result), run_rooms(run), run_meta(result), run_answer(run))


def run_strips(result: RanksResult) -> Iterator[Strip]:
    """The time of the rank that computes the most and of the one that waits the most, on one scale."""
    rows = rank_rows(result)
    longest = longest_window(rows)
    ranked = (rows.sort("compute_ns", descending=True), rows.sort("exposed_wait_ns", descending=True, nulls_last=True))
    for rank in dict.fromkeys(int(frame["rank"][0]) for frame in ranked):
        row = rows.row(by_predicate=pl.col("rank") == rank, named=True)
        steps = max(1, len(result.summaries[result.ranks.index(rank)].window.steps))
        unit = "mean step" if steps > 1 else "its window"
        whole = row["duration_ns"] or 1
        segments = (Segment(title, time_ns / steps, time_ns / whole, fill) for title, fill, time_ns in parts_of(row))
        title = f"Where the time of rank {rank} goes ({unit}, {fmt.duration(row['duration_ns'] / steps)})"
        yield Strip("rank", rank, title, tuple(segments), whole / longest)
