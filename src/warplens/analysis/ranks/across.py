"""Analysis across ranks, from their summaries alone: ranks of the files, and the same collective on several ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.ranks.balance import Balance, Waits, balance, stragglers, waits
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
        help="`sequence`, `order`, `time`, `order from the end`, `shifted order`, `alone` (one rank only), `no peers`"
        " (who sent to whom is not recorded)",
    ),
    "kernels",
    column("matched", help="kernels that were found on other ranks and ran at the same time there"),
    Column("rejected", pl.Int64, "kernels whose partners ran at another time, or differ in size"),
    Column("matched_share", pl.Float64, "matched of kernels", title="Share"),
    kernels="of all ranks",
)

#: If fewer of the pairs by order run at the same time, the order may be wrong.
_ORDER_HOLDS: Final = 0.9
#: If pairing by time finds partners for fewer, its pairs are chance, and the clocks are apart.
_TIME_HOLDS: Final = 0.3


@dataclass(frozen=True, eq=False)
class RanksResult:
    """The combined result of many ranks."""

    summaries: tuple[RankSummary, ...]  #: one per rank, in order of rank
    ranks: tuple[int, ...]  #: their ranks, ascending
    placing: Placing  #: how the ranks were determined
    balance: Balance  #: time budgets side by side, steps, load imbalance
    alignment: Alignment  #: the common clock
    matching: pl.DataFrame  #: `MATCHING`
    waits: Waits  #: arrivals, waits, stragglers
    groups: pl.DataFrame  #: collectives by kind, size and process group (`collectives.COLLECTIVE_GROUPS`)
    notes: tuple[Note, ...]  #: limits of the results across ranks

    @cached_property
    def late(self) -> tuple[int, ...]:
        """The ranks that the others wait for, as `balance.stragglers` tells them."""
        return stragglers(self.waits, self.balance)


def across_ranks(summaries: Sequence[RankSummary], files: Sequence[int]) -> RanksResult:
    """Combines the ranks of one run.

    Args:
        summaries: one per rank, in the order in which their files were given.
        files: the file number of each.

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
    pairing = _paired(events, base)
    alignment = align(events, pairing.instance, pairing.instance >= 0, base, ranks)
    overlap = simultaneous(events, pairing.instance, alignment.start, alignment.end)
    # Repeated with the good pairs only, which are used from here on.
    alignment = align(events, pairing.instance, overlap, base, ranks)
    overlap = simultaneous(events, pairing.instance, alignment.start, alignment.end)
    overlap &= alignment.aligned[events["place"].to_numpy()]
    instance = np.where(overlap, pairing.instance, UNMATCHED)
    tolerance = int(alignment.residual_median_ns or 0)
    arrivals = waits(events, instance, alignment.start, alignment.end, summaries, ranks, tolerance)
    table = _matching_table(events, pairing, overlap)
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
    """Pairs by number or order; by time for keys where the recorded clocks contradict the order.

    A shift of all clocks could explain any order, so that this is decided before they are aligned. Hosts whose clocks
    really are that far apart are recognised by how few pairs are then found by time.
    """
    matching = match_events(events, base.shift, base.comparable)
    if not base.comparable or "order" not in matching.method:
        return matching
    place, key = events["place"].to_numpy(), events["key"].to_numpy()
    start, end = (events[name].to_numpy() + base.shift[place] for name in ("start_ns", "end_ns"))
    ordered = np.isin(key, [number for number, method in enumerate(matching.method) if method == "order"])
    overlap = simultaneous(events, matching.instance, start, end)
    keys = len(matching.method)
    total = np.bincount(key, minlength=keys)
    good = np.bincount(key[overlap & ordered], minlength=keys)
    doubtful = frozenset(
        np.flatnonzero((good < _ORDER_HOLDS * total) & (np.bincount(key[ordered], minlength=keys) > 0)).tolist()
    )
    if not doubtful:
        return matching
    by_time = match_events(events, base.shift, base.comparable, doubtful)
    nearby = np.bincount(key[by_time.instance >= 0], minlength=keys)
    better = frozenset(number for number in doubtful if nearby[number] > max(good[number], _TIME_HOLDS * total[number]))
    return match_events(events, base.shift, base.comparable, better) if better else matching


def _matching_table(events: pl.DataFrame, pairing: Matching, together: Bools) -> pl.DataFrame:
    event_pairs = events.with_columns(
        pl.Series("good", together), pl.Series("paired", pairing.instance >= 0), pl.col("kind").cast(pl.String)
    )
    table = (
        event_pairs.group_by("key")
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
    methods = pl.Series("method", [pairing.method[key] for key in table["key"].to_list()], dtype=pl.String)
    table = table.with_columns(methods, (pl.col("matched") / pl.col("kernels")).alias("matched_share"))
    return MATCHING.conform(table)


def _notes(
    summaries: Sequence[RankSummary], placing: Placing, alignment: Alignment, table: pl.DataFrame
) -> Iterator[Note]:
    """What is missing or differs among the ranks: profiles, clocks, partners of collectives, windows."""
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
_RANK_NAMES: Final = (
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
    """The rank in a file's name (`trace_rank12.json.gz` → 12); None where there is none."""
    for pattern in _RANK_NAMES:
        if numbers := pattern.findall(name):
            return int(numbers[-1])
    return None


def place_ranks(summaries: Sequence[RankSummary]) -> Placing:
    """The rank of each summary.

    Files with several ranks, and files without a rank in record or name, are numbered in the order given. If only some
    of the files state their rank, that is an error, since any number given to the others could be another file's.

    Raises:
        UsageError: two profiles claim the same rank, or only some tell theirs.
    """
    stated: list[tuple[int | None, str]] = []
    for summary in summaries:
        recorded = summary.rank is not None
        rank = summary.rank if recorded else rank_in_name(summary.source)
        is_stated = summary.parts == 1 and rank is not None
        stated.append((rank, "file" if recorded else "name") if is_stated else (None, "order"))
    sizes = {summary.world_size for summary in summaries if summary.world_size is not None}
    if len(sizes) > 1:
        raise UsageError(
            f"the profiles are of different runs: they record world sizes of {', '.join(map(str, sorted(sizes)))}. "
            "Give the files of one run"
        )
    if any(number is None for number, _ in stated):
        if known := [
            summary.source for (number, _), summary in zip(stated, summaries, strict=True) if number is not None
        ]:
            unknown = next(
                summary.label for (number, _), summary in zip(stated, summaries, strict=True) if number is None
            )
            raise UsageError(
                f"{unknown} does not tell its rank, but {known[0]} does: name every file after its rank (…rank0…, "
                "…rank1…), or none"
            )
        stated = [(place, "order") for place in range(len(summaries))]
    ranks = [number for number, _ in stated if number is not None]
    for place, rank in enumerate(ranks):
        if rank in ranks[:place]:
            first, second = summaries[ranks.index(rank)].label, summaries[place].label
            raise UsageError(
                f"{first} and {second} are both rank {rank}. Give one profile of each rank, all of one run; where the "
                "files' own record is wrong, analyse them apart"
            )
    size = sizes.pop() if sizes else None
    missing = tuple(sorted(set(range(size or 0)) - set(ranks)))
    return Placing(tuple(ranks), tuple(origin for _, origin in stated), size, missing)


# --- The same collective on several ranks ---
#
# Where the profiles record a collective's number in its process group, group and number identify it. Otherwise, the
# collectives of one group and kind are paired
# * by order, if every rank has equally many: the first with the first;
# * by time, if the ranks have a common clock: those that end nearest to each other, run at the same time, and have no
#   nearer partner. This also pairs the rest of sampled traces, and finds groups that the profile does not name;
# * by order from the end, if neither holds: recordings differ in their begin more often than in their end;
# * by shifted order instead, if no clock is common and another distance between the numbers fits far better.
# Pairing by order is verified after the clocks were aligned: a collective is in progress on all its ranks at the same
# time, since none of them can finish before all have arrived.


#: Methods of pairing collectives, and reasons why they were not paired.
METHODS: Final = ("sequence", "order", "time", "order from the end", "shifted order", "alone", "no peers")

#: Largest distance between the ends of one collective on two ranks, by unrefined clocks. Hosts of one cluster keep
#: their clocks (NTP, PTP) well within it, and collectives of one kind are rarely closer to each other.
_NEAREST_END_NS: Final = 2_000_000

#: Recordings without a common clock begin and end up to this many collectives apart.
_MOST_SHIFT: Final = 64
#: Collectives that are compared to find this distance; how many of both ranks have to be paired by it, at least, and
#: which share of the fewer.
_COMPARED: Final = 256
_LEAST_COMMON: Final = 16
_COMMON_SHARE: Final = 7 / 8
#: Largest scatter of a distance that fits, as a share of the time from one collective to the next.
_TINY: Final = 0.1

#: Marks an event without partner events on other ranks.
UNMATCHED: Final = -1


@dataclass(frozen=True, eq=False)
class Matching:
    """The assignment of events to collectives."""

    instance: Int64s  #: for each event the number of its collective, `UNMATCHED` for one without partners; shape (n,)
    method: list[str]  #: for each key the method used (`METHODS`); shape (keys,)


def all_events(summaries: Sequence[RankSummary]) -> pl.DataFrame:
    """The collectives of all ranks in one frame.

    `event` numbers them, `place` is the position of their summary, `key` numbers the group and kind within which
    partners are searched, and `number` is a collective's number within its key where the profile records it.
    """
    parts = [
        summary.collectives.select(pl.lit(place, dtype=pl.Int32).alias("place"), pl.all())
        for place, summary in enumerate(summaries)
    ]
    events = pl.concat([pl.DataFrame(schema={"place": pl.Int32, **COLLECTIVES.schema}), *parts])
    is_pairwise = (pl.col("kind") == "send_recv").alias("pairwise")
    numbered = pl.col("group").is_not_null() & pl.col("sequence").is_not_null()
    # With numbers, one key holds all kinds of a group, since they share the numbering. Sends and receives have their
    # own.
    kind = pl.when(numbered).then(None).when(pl.col("group").is_null()).then("kernel_kind").otherwise("kind")
    events = events.with_row_index("event").with_columns(is_pairwise, kind.cast(pl.String).alias("within"))
    key = ["group", "group_ranks", "group_size", "pairwise", "within"]
    keys = events.select(key).unique(maintain_order=True).with_row_index("key")
    events = events.join(keys, on=key, how="left", nulls_equal=True, maintain_order="left")
    # One number may stand for several kernels (a coalesced call): the first with the first, and so on.
    repeat = pl.int_range(pl.len()).over("place", "key", "sequence")
    number = pl.when(numbered).then(pl.col("sequence") * 1024 + repeat.clip(upper_bound=1023)).alias("number")
    return events.with_columns(pl.col("event", "key").cast(pl.Int64), number)


def match_events(
    events: pl.DataFrame, shift: Int64s, comparable: bool, by_time: frozenset[int] = frozenset()
) -> Matching:
    """Pairs the events of each key.

    Args:
        events: of `all_events`.
        shift: nanoseconds to add to each rank's clock for a common one, as far as known; shape (ranks,).
        comparable: whether the shifted clocks are comparable.
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
    is_pairwise = events["pairwise"].to_numpy()
    for first, stop in pairwise(edges.tolist()):
        rows = order[first:stop]
        ranks, counts = np.unique(place[rows], return_counts=True)
        if len(ranks) < 2:
            method.append("alone")
            continue
        if is_pairwise[rows[0]] and (sizes[rows[0]] or len(ranks)) > 2:
            # The peers are not recorded; only times could pair them, and only where a pair runs alone.
            if not comparable:
                method.append("no peers")
                continue
            key_method, collective = "time", _by_time(place[rows], start[rows], end[rows])
        elif number[rows].null_count() == 0:
            key_method, collective = "sequence", codes(number[rows].to_numpy())
        elif int(key[rows[0]]) in by_time or (comparable and len(set(counts.tolist())) > 1):
            key_method, collective = "time", _by_time(place[rows], start[rows], end[rows])
        else:
            key_method = "order" if len(set(counts.tolist())) == 1 else "order from the end"
            collective = _rank_order(place[rows], start[rows] if key_method == "order" else -end[rows])
            if not comparable and (shifted := _shifted_order(place[rows], start[rows], end[rows])) is not None:
                key_method, collective = "shifted order", shifted
        method.append(key_method)
        counts = np.bincount(collective[collective >= 0], minlength=1)
        shared = np.flatnonzero((collective >= 0) & (counts[np.maximum(collective, 0)] > 1))
        instance[rows[shared]] = next_number + codes(collective[shared])
        next_number = int(instance.max(initial=-1)) + 1
    return Matching(instance, method)


def simultaneous(events: pl.DataFrame, instance: Int64s, start: Int64s, end: Int64s) -> Bools:
    """For each event, whether its collective was in progress on all its ranks at one time, with one size.

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
    same_size = (largest < 0) | (largest == smallest)
    good[matched] = ((latest < earliest) & same_size)[instance[matched]]
    return good


def _rank_order(place: npt.NDArray[np.int32], when: Int64s) -> Int64s:
    """The number of events of its rank before each event."""
    order = np.lexsort((when, place))
    sorted_place = place[order]
    begin = np.flatnonzero(np.diff(sorted_place, prepend=-1))
    position = np.arange(len(order)) - np.repeat(begin, np.diff(np.r_[begin, len(order)]))
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = position
    return positions


def _shifted_order(place: npt.NDArray[np.int32], start: Int64s, end: Int64s) -> Int64s | None:
    """Numbers by order, moved by rank where the ends of one collective then keep their distance; None if none is moved.

    A common clock is not needed: the ends of a collective are equally far apart on two clocks, while those of different
    collectives vary with the lengths of the steps.
    """
    position = _rank_order(place, start)
    ranks, counts = np.unique(place, return_counts=True)
    first = ranks[counts.argmax()]
    longest = end[place == first][np.argsort(position[place == first])]
    tiny = _TINY * float(np.median(np.diff(longest))) if len(longest) > 1 else 0.0
    is_moved = False
    for rank, count in zip(ranks.tolist(), counts.tolist(), strict=True):
        if rank == first:
            continue
        rows = np.flatnonzero(place == rank)
        own = end[rows[np.argsort(position[rows])]]
        usual = len(longest) - count
        least = max(_LEAST_COMMON, math.ceil(_COMMON_SHARE * count))
        shifts = {middle + shift for middle in (0, usual) for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1)}
        scatter = {
            shift: _scatter(longest[max(shift, 0) :], own[max(-shift, 0) :])
            for shift in sorted(shifts)
            if min(len(longest) - max(shift, 0), count - max(-shift, 0)) >= least
        }
        best = min(scatter, key=scatter.__getitem__, default=usual)
        # Of many shifts, and of many ranks, one fits well by chance.
        clearly = 3 + math.log(max(len(scatter), 1) * (len(ranks) - 1))
        fits_better = best != usual and scatter[best] <= tiny and scatter[best] * clearly < scatter[usual]
        is_moved |= fits_better
        position[rows] += best if fits_better else usual
    return position - position.min() if is_moved else None


def _scatter(first: Int64s, second: Int64s) -> float:
    """The median deviation of the distances between two rows of times, as far as both go."""
    count = min(len(first), len(second))
    places = np.linspace(0, count - 1, min(count, _COMPARED)).astype(np.int64)
    distances = first[places] - second[places]
    return float(np.median(np.abs(distances - np.median(distances))))


def _by_time(place: npt.NDArray[np.int32], start: Int64s, end: Int64s) -> Int64s:
    """Pairs events with the nearest ends, in rounds around the rank with the most unpaired events."""
    collective = np.full(len(place), UNMATCHED, dtype=np.int64)
    unpaired = np.ones(len(place), dtype=np.bool_)
    next_number = 0
    for _ in range(len(np.unique(place)) - 1):
        ranks, counts = np.unique(place[unpaired], return_counts=True)
        if len(ranks) < 2:
            break
        pivot = ranks[np.argmax(counts)]
        pivot_events = np.flatnonzero(unpaired & (place == pivot))
        pivot_events = pivot_events[np.argsort(end[pivot_events], kind="stable")]
        numbers = np.arange(next_number, next_number + len(pivot_events))
        next_number += len(pivot_events)
        for rank in ranks[ranks != pivot]:
            rank_events = np.flatnonzero(unpaired & (place == rank))
            rank_events = rank_events[np.argsort(end[rank_events], kind="stable")]
            partner = _nearest(end[pivot_events], end[rank_events])
            back = _nearest(end[rank_events], end[pivot_events])
            mutual = np.flatnonzero(back[partner] == np.arange(len(pivot_events)))
            pivot_mutual, rank_mutual = pivot_events[mutual], rank_events[partner[mutual]]
            close = np.abs(end[pivot_mutual] - end[rank_mutual]) <= _NEAREST_END_NS
            close &= np.maximum(start[pivot_mutual], start[rank_mutual]) < np.minimum(
                end[pivot_mutual], end[rank_mutual]
            )
            collective[rank_mutual[close]] = numbers[mutual[close]]
            collective[pivot_mutual[close]] = numbers[mutual[close]]
            unpaired[rank_mutual[close]] = False
        unpaired[pivot_events] = False
    return collective


def _nearest(times: Int64s, among: Int64s) -> Int64s:
    """For each time the index of the nearest of some sorted times."""
    after = np.clip(np.searchsorted(among, times), 1, max(len(among) - 1, 1))
    if len(among) == 1:
        return np.zeros(len(times), dtype=np.int64)
    before = after - 1
    nearest: Int64s = np.where(times - among[before] <= among[after] - times, before, after)
    return nearest
