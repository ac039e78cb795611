"""Everything across ranks, from their summaries alone: which file is which rank, and the same collective on several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.ranks.balance import Balance, Waits, balance, waits
from warplens.analysis.ranks.clocks import Alignment, BaseClocks, align, base_clocks, codes
from warplens.analysis.ranks.collectives import COLLECTIVES, ENDS_TOGETHER, GROUP, GROUP_RANKS, collective_groups
from warplens.analysis.ranks.summary import RankSummary
from warplens.errors import UsageError
from warplens.profile import Note, NoteLevel
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Int64s

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
    if described := sum(summary.undescribed for summary in summaries):
        yield Note(
            "collectives-without-kernel",
            NoteLevel.INFO,
            f"{described} described collectives ran no kernel of their own (a group of one rank, or outside the "
            "recorded time); they have no time.",
        )


#: `rank0`, `rank_12`, `rank-3`, `rank=3`, `global_rank07`; and the short `_r3`, `.r3`, which must end a word.
_NAMED: Final = (
    re.compile(r"(?<![a-z])(?:global[_-]?)?rank[\s_.=-]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[_.-])r(\d+)(?=[_.-]|$)", re.IGNORECASE),
)


@dataclass(frozen=True)
class Placing:
    """The ranks of some summaries."""

    ranks: tuple[int, ...]  #: the rank of each summary, in their order
    how: tuple[str, ...]  #: `file` (recorded), `name` (read from the file's name) or `order`, for each
    world_size: int | None  #: ranks of the whole run as the files record it; None where none does
    missing: tuple[int, ...]  #: ranks of the run without a profile; () where the size of the run is not known


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name tells (`trace_rank12.json.gz` → 12); None where it tells none."""
    for pattern in _NAMED:
        if found := pattern.findall(name):
            return int(found[-1])
    return None


def place_ranks(summaries: Sequence[RankSummary]) -> Placing:
    """The rank of each summary.

    A file with several ranks in it cannot name them: those, and files that tell no rank, are numbered in the order
    given. Numbers are not mixed: if only some of the files tell their rank, that is an error, since any number given to
    the others could be another file's.

    Raises:
        UsageError: two profiles claim the same rank, or only some tell theirs.
    """
    told: list[tuple[int | None, str]] = []
    for summary in summaries:
        recorded = summary.rank is not None
        rank = summary.rank if recorded else rank_in_name(summary.source)
        tells = summary.parts == 1 and rank is not None
        told.append((rank, "file" if recorded else "name") if tells else (None, "order"))
    sizes = {summary.world_size for summary in summaries if summary.world_size is not None}
    if len(sizes) > 1:
        raise UsageError(
            f"the profiles are of different runs: they record world sizes of {', '.join(map(str, sorted(sizes)))}. "
            "Give the files of one run"
        )
    if any(found is None for found, _ in told):
        if known := [summary.source for (found, _), summary in zip(told, summaries, strict=True) if found is not None]:
            unknown = next(summary.label for (found, _), summary in zip(told, summaries, strict=True) if found is None)
            raise UsageError(
                f"{unknown} does not tell its rank, but {known[0]} does: name every file after its rank (…rank0…, "
                "…rank1…), or none"
            )
        told = [(place, "order") for place in range(len(summaries))]
    ranks = [found for found, _ in told if found is not None]
    for place, rank in enumerate(ranks):
        if rank in ranks[:place]:
            first, second = summaries[ranks.index(rank)].label, summaries[place].label
            raise UsageError(
                f"{first} and {second} are both rank {rank}. Give one profile of each rank, all of one run; where the "
                "files' own record is wrong, analyse them apart"
            )
    size = sizes.pop() if sizes else None
    missing = tuple(sorted(set(range(size or 0)) - set(ranks)))
    return Placing(tuple(ranks), tuple(how for _, how in told), size, missing)


# --- The same collective on several ranks ---
#
# Where the profiles record a collective's number in its process group, group and number identify it. Otherwise, the
# collectives of one group and kind are paired * by order, if every rank has equally many: the first with the first; *
# by time, if the ranks have a common clock: those that end nearest to each other, run at the same time, and have no
# nearer partner. This also pairs what is left of sampled traces, and finds groups that the profile does not name; *
# by order from the end, if neither holds: recordings begin at different times more often than they end so. Whether
# pairing by order went well is checked after the clocks were aligned: a collective
# is in progress on all its ranks at the same time, since none of them can finish before all have arrived.


#: How collectives were paired, and why not.
METHODS: Final = ("sequence", "order", "time", "order from the end", "alone", "no peers")

#: Ends of one collective on two ranks are looked for this far apart, by clocks that were not refined yet. Hosts of one
#: cluster keep their clocks (NTP, PTP) well within it, and collectives of one kind are rarely closer to each other.
_NEAREST_END_NS: Final = 2_000_000

#: Marks an event that no other rank's event belongs to.
UNMATCHED: Final = -1


@dataclass(frozen=True, eq=False)
class Matching:
    """Which collectives belong together."""

    instance: Int64s  #: for each event the number of its collective, `UNMATCHED` for one without partners; shape (n,)
    method: list[str]  #: for each key the method used (`METHODS`); shape (keys,)


def all_events(summaries: Sequence[RankSummary]) -> pl.DataFrame:
    """The collectives of all ranks in one frame.

    `event` numbers them, `place` is the position of their summary, `key` numbers the group and kind within which
    partners are looked for, and `number` is a collective's number within its key where the profile records it.
    """
    parts = [
        summary.collectives.select(pl.lit(place, dtype=pl.Int32).alias("place"), pl.all())
        for place, summary in enumerate(summaries)
    ]
    events = pl.concat([pl.DataFrame(schema={"place": pl.Int32, **COLLECTIVES.schema}), *parts])
    of_two = (pl.col("kind") == "send_recv").alias("pairwise")
    numbered = pl.col("group").is_not_null() & pl.col("sequence").is_not_null()
    # With numbers, one key holds all kinds of a group, for they share the numbering. Sends and receives have their own.
    kind = pl.when(numbered).then(None).when(pl.col("group").is_null()).then("kernel_kind").otherwise("kind")
    events = events.with_row_index("event").with_columns(of_two, kind.cast(pl.String).alias("within"))
    key = ["group", "group_ranks", "group_size", "pairwise", "within"]
    keys = events.select(key).unique(maintain_order=True).with_row_index("key")
    events = events.join(keys, on=key, how="left", nulls_equal=True, maintain_order="left")
    # One number may stand for several kernels (a coalesced call): the first with the first, and so on.
    again = pl.int_range(pl.len()).over("place", "key", "sequence")
    number = pl.when(numbered).then(pl.col("sequence") * 1024 + again.clip(upper_bound=1023)).alias("number")
    return events.with_columns(pl.col("event", "key").cast(pl.Int64), number)


def match_events(
    events: pl.DataFrame, shift: Int64s, comparable: bool, by_time: frozenset[int] = frozenset()
) -> Matching:
    """Pair the events of each key.

    Args:
        events: of `all_events`.
        shift: nanoseconds to add to each rank's clock to bring them onto a common one, as far as known; shape (ranks,).
        comparable: whether those clocks are common at all.
        by_time: keys in which pairing by order has failed; they are paired by time.
    """
    place, key = events["place"].to_numpy(), events["key"].to_numpy()
    number = events["number"]
    start = events["start_ns"].to_numpy() + shift[place]
    end = events["end_ns"].to_numpy() + shift[place]
    instance = np.full(events.height, UNMATCHED, dtype=np.int64)
    method: list[str] = []
    next_number = 0
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=-1, append=-2))
    sizes = events["group_size"].fill_null(0).to_numpy()
    between_two = events["pairwise"].to_numpy()
    for first, stop in pairwise(edges.tolist()):
        rows = order[first:stop]
        ranks, counts = np.unique(place[rows], return_counts=True)
        if len(ranks) < 2:
            method.append("alone")
            continue
        if between_two[rows[0]] and (sizes[rows[0]] or len(ranks)) > 2:
            # Who sent to whom is not recorded; only the time could tell, and only if a pair runs alone.
            if not comparable:
                method.append("no peers")
                continue
            how, found = "time", _by_time(place[rows], start[rows], end[rows])
        elif number[rows].null_count() == 0:
            how, found = "sequence", codes(number[rows].to_numpy())
        elif int(key[rows[0]]) in by_time or (comparable and len(set(counts.tolist())) > 1):
            how, found = "time", _by_time(place[rows], start[rows], end[rows])
        elif len(set(counts.tolist())) == 1:
            how, found = "order", _rank_order(place[rows], start[rows])
        else:
            how, found = "order from the end", _rank_order(place[rows], -end[rows])
        method.append(how)
        counts = np.bincount(found[found >= 0], minlength=1)
        shared = np.flatnonzero((found >= 0) & (counts[np.maximum(found, 0)] > 1))
        instance[rows[shared]] = next_number + codes(found[shared])
        next_number = int(instance.max(initial=-1)) + 1
    return Matching(instance, method)


def simultaneous(events: pl.DataFrame, instance: Int64s, start: Int64s, end: Int64s) -> Bools:
    """For each event whether its collective was in progress on all its ranks at one time, and has one size.

    Args:
        events: of `all_events`.
        instance: of `Matching`.
        start, end: of each event on the common clock.
    """
    matched = np.flatnonzero(instance >= 0)
    good = np.zeros(len(instance), dtype=np.bool_)
    if not len(matched):
        return good
    count = int(instance.max()) + 1
    latest = np.full(count, np.iinfo(np.int64).min)
    earliest = np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(latest, instance[matched], start[matched])
    np.minimum.at(earliest, instance[matched], end[matched])
    size = events["size_bytes"].fill_null(-1).to_numpy()
    uniform = matched[events["kind"].is_in(list(ENDS_TOGETHER - {"all_to_all"})).to_numpy()[matched]]
    largest, smallest = np.full(count, -1), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(largest, instance[uniform], size[uniform])
    np.minimum.at(smallest, instance[uniform], size[uniform])
    same = (largest < 0) | (largest == smallest)
    good[matched] = ((latest < earliest) & same)[instance[matched]]
    return good


def _rank_order(place: npt.NDArray[np.int32], when: Int64s) -> Int64s:
    """For each event how many events of its rank stand before it."""
    order = np.lexsort((when, place))
    sorted_place = place[order]
    begin = np.flatnonzero(np.diff(sorted_place, prepend=-1))
    position = np.arange(len(order)) - np.repeat(begin, np.diff(np.r_[begin, len(order)]))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = position
    return found


def _by_time(place: npt.NDArray[np.int32], start: Int64s, end: Int64s) -> Int64s:
    """Pair events that end nearest to each other; each round around the rank with most events left."""
    found = np.full(len(place), UNMATCHED, dtype=np.int64)
    left = np.ones(len(place), dtype=np.bool_)
    next_number = 0
    for _ in range(len(np.unique(place)) - 1):
        ranks, counts = np.unique(place[left], return_counts=True)
        if len(ranks) < 2:
            break
        pivot = ranks[np.argmax(counts)]
        mine = np.flatnonzero(left & (place == pivot))
        mine = mine[np.argsort(end[mine], kind="stable")]
        numbers = np.arange(next_number, next_number + len(mine))
        next_number += len(mine)
        for rank in ranks[ranks != pivot]:
            theirs = np.flatnonzero(left & (place == rank))
            theirs = theirs[np.argsort(end[theirs], kind="stable")]
            partner = _nearest(end[mine], end[theirs])
            back = _nearest(end[theirs], end[mine])
            mutual = np.flatnonzero(back[partner] == np.arange(len(mine)))
            ours, others = mine[mutual], theirs[partner[mutual]]
            close = np.abs(end[ours] - end[others]) <= _NEAREST_END_NS
            close &= np.maximum(start[ours], start[others]) < np.minimum(end[ours], end[others])
            found[others[close]] = numbers[mutual[close]]
            found[ours[close]] = numbers[mutual[close]]
            left[others[close]] = False
        left[mine] = False
    return found


def _nearest(times: Int64s, among: Int64s) -> Int64s:
    """For each time the place of the nearest of some sorted times."""
    after = np.clip(np.searchsorted(among, times), 1, max(len(among) - 1, 1))
    if len(among) == 1:
        return np.zeros(len(times), dtype=np.int64)
    before = after - 1
    nearest: Int64s = np.where(times - among[before] <= among[after] - times, before, after)
    return nearest
