"""The document about many ranks of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.report import format as fmt
from warplens.report.document import Document, Figure, KeyFigure, KeyFigures, Notes, Paragraph, Section
from warplens.report.ranks.charts import DRAWN_RANKS, rank_chart
from warplens.report.ranks.tables import (
    clock_table,
    collective_table,
    instance_table,
    matching_table,
    part_table,
    rank_rows,
    rank_table,
    step_table,
    wait_table,
)
from warplens.report.ranks.words import answer, run_line, window_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.profile import Note

__all__ = ["ranks_document"]


def ranks_document(result: RanksResult, notes: Sequence[Note]) -> Document:
    """The report on many ranks: the answer, what limits it, then time, waits, collectives, steps and clocks.

    Args:
        result: everything across ranks.
        notes: what the profiles and their comparison cannot tell.
    """
    return Document(
        title=f"{fmt.count(len(result.ranks))} ranks" if len(result.ranks) != 1 else "One rank",
        lead=answer(result),
        sections=(
            _quality(notes),
            Section("key-figures", "Key figures", (_key_figures(result),)),
            _time(result),
            _waits(result),
            _collectives(result),
            _steps(result),
            _clocks(result),
        ),
        meta=(("Run", run_line(result)), ("Window", window_line(result).removeprefix("window: "))),
    )


def _quality(notes: Sequence[Note]) -> Section:
    clean = Paragraph("Nothing was found that limits these numbers.", quiet=True)
    return Section("quality", "Before you read the numbers", (Notes(tuple(notes)) if notes else clean,))


def _key_figures(result: RanksResult) -> KeyFigures:
    ranks, waits = result.balance.ranks, result.waits.ranks
    communication, exposed = int(ranks["communication_ns"].sum()), int(ranks["exposed_ns"].sum())
    window = int(ranks["duration_ns"].sum())
    overlap = 1 - exposed / communication if communication else None
    waited = int(waits["wait_ns"].sum())
    through = waited + int(waits["transfer_ns"].sum())
    alignment = result.alignment
    return KeyFigures(
        (
            KeyFigure("Ranks", len(result.ranks), "count", "With a profile."),
            KeyFigure("Exposed communication", exposed / window if window else None, "share", "Of all windows."),
            KeyFigure("Overlap", overlap, "share", "Communication that compute hides, of all communication."),
            KeyFigure("Waiting", waited / through if through else None, "share", "Of the time in matched collectives."),
            KeyFigure("Imbalance", result.balance.imbalance, "number", f"Most by mean: {result.balance.how}."),
            KeyFigure("Clock residual", alignment.residual_median_ns, "duration_ns", "Median; see Clocks."),
        )
    )


def _time(result: RanksResult) -> Section:
    rows = rank_rows(result)
    drawn = "" if rows.height <= DRAWN_RANKS else f" (the first {DRAWN_RANKS})"
    figure = Figure(
        "rank-chart",
        f"What each rank's GPU did in its window{drawn}",
        rank_chart(rows),
        "One bar a rank: compute, exposed communication split into waiting and transfer, copies, idle time. "
        + answer(result),
    )
    intro = Paragraph(
        "At every instant a GPU does exactly one of these; a rank's compute, graphs, exposed communication, copies and "
        "idle time sum to its window. Overlap is the share of communication during which the rank computes."
    )
    return Section("time", "Time budget", (intro, figure, rank_table(result), part_table(result)))


def _waits(result: RanksResult) -> Section:
    how = Paragraph(
        "A communication kernel that finds its peers absent spins until they come. On the common clock of all ranks, a "
        "rank waits from its own begin to the last rank's; the rest of its kernel is transfer. The last rank holds the "
        "collective up by as much as it is behind the last but one. Only collectives count that lie in the window of "
        "every rank that takes part."
    )
    return Section("waits", "Stragglers and waits", (how, wait_table(result), instance_table(result)))


def _collectives(result: RanksResult) -> Section:
    how = Paragraph(
        "Sizes and bandwidths are those of nccl-tests: algorithm bandwidth is size by time, bus bandwidth multiplies "
        "it by 2(n−1)/n for all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, 1 for the others. Time "
        "is from the last rank's arrival to the last end; “own” is by the kernels' own durations, which hold the "
        "waiting. Both are modelled: recorded size by measured time.",
        quiet=True,
    )
    return Section("collectives", "Collectives", (collective_table(result), how, matching_table(result)))


def _steps(result: RanksResult) -> Section:
    return Section("steps", "Steps and load imbalance", (step_table(result),))


def _clocks(result: RanksResult) -> Section:
    alignment = result.alignment
    method = Paragraph(f"{alignment.method[:1].upper()}{alignment.method[1:]}.")
    if alignment.residual_median_ns is None or alignment.residual_max_ns is None:
        rest = "No collective that ends together was found on two ranks, so that no residual can be given."
    else:
        rest = (
            "The ends of the same collective differ from their median by "
            f"{fmt.duration(alignment.residual_median_ns)} (median), at most "
            f"{fmt.duration(alignment.residual_max_ns)}: waits shorter than that mean nothing."
        )
    return Section("clocks", "Clocks", (method, Paragraph(rest), clock_table(result)))
