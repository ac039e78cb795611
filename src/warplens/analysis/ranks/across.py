"""Everything across ranks, from their summaries alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.ranks.balance import Balance, Waits, balance, waits
from warplens.analysis.ranks.clocks import Alignment, BaseClocks, align, base_clocks
from warplens.analysis.ranks.collectives import GROUP, GROUP_RANKS, collective_groups
from warplens.analysis.ranks.matching import (
    UNMATCHED,
    Matching,
    Placing,
    all_events,
    match_events,
    place_ranks,
    simultaneous,
)
from warplens.analysis.ranks.summary import RankSummary
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column

MATCHING: Final = table(
    "matching of collectives",
    "One process group and kind, and how its collectives were found on several ranks; over the whole profiles.",
    column("kind", help="null where kinds share one numbering"),
    GROUP,
    GROUP_RANKS,
    "ranks",
    column(
        "method",
        help="`sequence`, `order`, `time`, `order from the end`, `alone` (one rank only), `no peers` (who sent to"
        " whom is not recorded)",
    ),
    "kernels",
    column("matched", help="kernels that were found on other ranks and ran at the same time there"),
    Column("rejected", pl.Int64, "kernels whose partners ran at another time, or differ in size"),
    Column("matched_share", pl.Float64, "matched of kernels", title="Share"),
    kernels="of all ranks",
)

#: If fewer of the pairs by order run at the same time, the order may not be what pairs them.
_ORDER_HOLDS: Final = 0.9
#: If pairing by time finds partners for fewer, what it finds is chance, and the clocks are apart.
_TIME_HOLDS: Final = 0.3


@dataclass(frozen=True, eq=False)
class RanksResult:
    """What many ranks have to say together."""

    summaries: tuple[RankSummary, ...]  #: one a rank, in order of rank
    ranks: tuple[int, ...]  #: their ranks, ascending
    placing: Placing  #: how the ranks were told
    balance: Balance  #: time budgets side by side, steps, load imbalance
    alignment: Alignment  #: the common clock
    matching: pl.DataFrame  #: `MATCHING`
    waits: Waits  #: arrivals, waits, stragglers
    groups: pl.DataFrame  #: collectives by kind, size and process group (`collectives.COLLECTIVE_GROUPS`)
    notes: tuple[Note, ...]  #: what limits the answers across ranks


def across_ranks(summaries: Sequence[RankSummary], files: Sequence[int]) -> RanksResult:
    """Put the ranks of one run together.

    Args:
        summaries: one a rank, in the order in which their files were given.
        files: the number of the file that each is from.

    Raises:
        UsageError: the summaries are not of one run: a rank occurs twice, or they record different world sizes.
    """
    placing = place_ranks(summaries)
    order = sorted(range(len(summaries)), key=lambda place: placing.ranks[place])
    summaries = tuple(summaries[place] for place in order)
    ranks = tuple(placing.ranks[place] for place in order)
    placing = replace(placing, ranks=ranks, how=tuple(placing.how[place] for place in order))
    base = base_clocks(summaries, [files[place] for place in order])

    events = all_events(summaries)
    found = _paired(events, base)
    alignment = align(events, found.instance, found.instance >= 0, base, ranks)
    together = simultaneous(events, found.instance, alignment.start, alignment.end)
    # Once more with the good pairs alone, which then are all that counts.
    alignment = align(events, found.instance, together, base, ranks)
    together = simultaneous(events, found.instance, alignment.start, alignment.end)
    together &= alignment.aligned[events["place"].to_numpy()]
    instance = np.where(together, found.instance, UNMATCHED)
    tolerance = int(alignment.residual_median_ns or 0)
    arrivals = waits(events, instance, alignment.start, alignment.end, summaries, ranks, tolerance)
    table = _matching_table(events, found, together)
    return RanksResult(
        summaries=summaries,
        ranks=ranks,
        placing=placing,
        balance=balance(summaries, ranks),
        alignment=alignment,
        matching=table,
        waits=arrivals,
        groups=collective_groups(events, arrivals.collectives),
        notes=tuple(_notes(summaries, placing, alignment, table)),
    )


def _paired(events: pl.DataFrame, base: BaseClocks) -> Matching:
    """Pairs by number or order; by time in the keys where the recorded clocks contradict the order.

    A shift of all clocks could excuse any order, so that this is judged before they are aligned. Hosts whose clocks
    really are that far apart are told from a wrong order by how little pairing by time then finds.
    """
    found = match_events(events, base.shift, base.comparable)
    if not base.comparable or "order" not in found.method:
        return found
    place, key = events["place"].to_numpy(), events["key"].to_numpy()
    start, end = (events[name].to_numpy() + base.shift[place] for name in ("start_ns", "end_ns"))
    ordered = np.isin(key, [number for number, method in enumerate(found.method) if method == "order"])
    together = simultaneous(events, found.instance, start, end)
    keys = len(found.method)
    total = np.bincount(key, minlength=keys)
    good = np.bincount(key[together & ordered], minlength=keys)
    doubtful = frozenset(
        np.flatnonzero((good < _ORDER_HOLDS * total) & (np.bincount(key[ordered], minlength=keys) > 0)).tolist()
    )
    if not doubtful:
        return found
    by_time = match_events(events, base.shift, base.comparable, doubtful)
    nearby = np.bincount(key[by_time.instance >= 0], minlength=keys)
    better = frozenset(number for number in doubtful if nearby[number] > max(good[number], _TIME_HOLDS * total[number]))
    return match_events(events, base.shift, base.comparable, better) if better else found


def _matching_table(events: pl.DataFrame, found: Matching, together: Bools) -> pl.DataFrame:
    told = events.with_columns(
        pl.Series("good", together), pl.Series("paired", found.instance >= 0), pl.col("kind").cast(pl.String)
    )
    table = (
        told.group_by("key")
        .agg(
            pl.when(pl.col("kind").n_unique() == 1).then(pl.col("kind").first()).alias("kind"),
            pl.col("group", "group_ranks").first(),
            pl.col("place").n_unique().cast(pl.Int64).alias("ranks"),
            pl.len().cast(pl.Int64).alias("kernels"),
            pl.col("good").sum().cast(pl.Int64).alias("matched"),
            (pl.col("paired") & ~pl.col("good")).sum().cast(pl.Int64).alias("rejected"),
        )
        .sort("key")
    )
    methods = pl.Series("method", [found.method[key] for key in table["key"].to_list()], dtype=pl.String)
    table = table.with_columns(methods, (pl.col("matched") / pl.col("kernels")).alias("matched_share"))
    return MATCHING.conform(table)


def _notes(
    summaries: Sequence[RankSummary], placing: Placing, alignment: Alignment, table: pl.DataFrame
) -> Iterator[Note]:
    if placing.missing:
        shown = ", ".join(map(str, placing.missing[:8])) + (" …" if len(placing.missing) > 8 else "")
        yield Note(
            "missing-ranks",
            NoteLevel.WARNING,
            f"{len(placing.missing)} of the run's {placing.world_size} ranks have no profile here ({shown}): who "
            "arrived last is known among the others only.",
            "Give the profiles of all ranks.",
        )
    if placing.how and placing.how[0] == "order" and len({summary.source for summary in summaries}) > 1:
        yield Note(
            "ranks-by-order",
            NoteLevel.WARNING,
            "The files do not tell their ranks; they are numbered in the order given.",
            "Name the files after their ranks: …rank0…, …rank1…",
        )
    if alignment.warning:
        yield Note("clocks-apart", NoteLevel.WARNING, alignment.warning)
    kernels, matched = int(table["kernels"].sum()), int(table["matched"].sum())
    if len(summaries) > 1 and kernels and matched < kernels:
        level = NoteLevel.INFO if matched > 0.9 * kernels else NoteLevel.WARNING
        yield Note(
            "unmatched-collectives",
            level,
            f"{kernels - matched} of {kernels} communication kernels were not found on another rank; waits leave them "
            "out.",
        )
    windows = {tuple(step.index for step in summary.window.steps) for summary in summaries}
    if len(windows) > 1:
        yield Note(
            "different-windows",
            NoteLevel.WARNING,
            "The ranks' windows hold different steps; figures per step are of the steps that all ranks share.",
            "Ask for everything: --window all",
        )
    described = sum(summary.undescribed for summary in summaries)
    if described:
        yield Note(
            "collectives-without-kernel",
            NoteLevel.INFO,
            f"{described} described collectives ran no kernel of their own (a group of one rank, or outside the "
            "recorded time); they have no time.",
        )
