"""One clock for all ranks.

Every file keeps its own clock. Two things bring them together:

1. the Unix time of the clock's zero, where the file records it (ranks of one file share its clock anyway);
2. collectives: no rank can leave one before all have arrived, so it ends on all ranks at nearly the same moment. The
   offset of a file is the median of the differences between its ends and the median end of each collective, taken
   over the kinds that end together (`collectives.ENDS_TOGETHER`); medians, so that a few wrong pairs do no harm.
   Files are reached one from another through the collectives that they share, then all offsets are refined together.
   Over a long recording two clocks drift apart; where a straight line through the differences explains clearly more
   than a constant, it is taken.

What is left, the residual, is printed: waits shorter than it mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.ranks.collectives import ENDS_TOGETHER
from warplens.analysis.ranks.summary import RankSummary
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Float64s, Int64s

#: A drift is looked for from so many collectives on, and believed if it takes away this share of the residual.
_DRIFT_COLLECTIVES: Final = 24
_DRIFT_GAIN: Final = 0.5
#: Oscillators of hosts and GPUs are within some 100 ppm; a steeper line is no drift.
_MOST_DRIFT: Final = 500e-6

_ROUNDS: Final = 4


def clock_offsets(
    instance: Int64s, unit: Int64s, end: Int64s, unit_of_rank: Int64s
) -> tuple[Int64s, Float64s, Bools, int]:
    """Offset and drift of each clock, which clocks were reached, and the time at which drift adds nothing.

    Args:
        instance: the collective of each event, numbered from 0; shape (events,).
        end: its end by that clock, nanoseconds.
        unit_of_rank: the clock of each rank; that of the first is the one that all are brought to.

    Returns:
        For each clock the nanoseconds to add and the further nanoseconds a nanosecond after the anchor, whether it is
        connected with the first one; and the anchor.
    """
    units = int(unit_of_rank.max(initial=0)) + 1
    offset = np.zeros(units, dtype=np.int64)
    drift = np.zeros(units)
    reached = np.zeros(units, dtype=np.bool_)
    reached[unit_of_rank[0] if len(unit_of_rank) else 0] = True
    if not len(instance):
        return offset, drift, reached, 0
    while True:
        inside = reached[unit]
        middle = group_median(instance[inside], (end + offset[unit])[inside], int(instance.max()) + 1)
        nearby = ~inside & ~np.isnan(middle[instance])
        fresh = np.unique(unit[nearby])
        if not len(fresh):
            break
        for number in fresh:
            rows = nearby & (unit == number)
            offset[number] = _middle(middle[instance[rows]] - end[rows])
            reached[number] = True
    rows = np.flatnonzero(reached[unit])
    instance, unit, end = instance[rows], unit[rows], end[rows]
    anchor_unit = int(unit_of_rank[0])
    anchor = int(np.median(end)) if len(end) else 0
    for _ in range(_ROUNDS):
        middle = group_median(instance, end + offset[unit], int(instance.max()) + 1)
        change = np.zeros(units, dtype=np.int64)
        for number in np.unique(unit):
            mine = unit == number
            change[number] = _middle(middle[instance[mine]] - (end + offset[unit])[mine])
        change -= change[anchor_unit]
        change[~reached] = 0
        if not change.any():
            break
        offset += change
    # The end of each collective on the first clock where that took part, else the median end.
    moved, mine, count = end + offset[unit], unit == anchor_unit, int(instance.max()) + 1
    own = group_median(instance[mine], moved[mine], count)
    reference = np.where(np.isnan(own), group_median(instance, moved, count), own)
    for number in np.unique(unit):
        if number != anchor_unit:
            mine = unit == number
            drift[number], extra = _drift(end[mine], (reference[instance] - end - offset[unit])[mine], anchor)
            offset[number] += extra
    return offset, drift, reached, anchor


def _drift(end: Int64s, difference: Float64s, anchor: int) -> tuple[float, int]:
    """Slope of the differences over time and what it adds to the offset at the anchor; (0, 0) where there is none."""
    if len(end) < _DRIFT_COLLECTIVES:
        return 0.0, 0
    order = np.argsort(end, kind="stable")
    when, difference = (end[order] - anchor).astype(np.float64), difference[order]
    third = len(order) // 3
    early, late = slice(0, third), slice(-third, None)
    length = float(np.median(when[late]) - np.median(when[early]))
    if length <= 0:
        return 0.0, 0
    slope = float(np.median(difference[late]) - np.median(difference[early])) / length
    level = float(np.median(difference - slope * when))
    constant, straight = np.median(np.abs(difference)), np.median(np.abs(difference - level - slope * when))
    if abs(slope) > _MOST_DRIFT or straight > (1 - _DRIFT_GAIN) * constant:
        return 0.0, 0
    return slope, round(level)


def group_median(instance: Int64s, values: Int64s, count: int) -> Float64s:
    """The median of each instance's values, NaN where it has none; relative to the first, so that it stays exact."""
    result = np.full(count, np.nan)
    if len(instance):
        order = np.lexsort((values, instance))
        sorted_instance = instance[order]
        begin = np.flatnonzero(np.diff(sorted_instance, prepend=-1))
        size = np.diff(np.r_[begin, len(order)])
        low, high = values[order[begin + (size - 1) // 2]], values[order[begin + size // 2]]
        result[sorted_instance[begin]] = low + (high - low) // 2
    return result


def _middle(differences: Float64s) -> int:
    return round(float(np.median(differences)))


def codes(values: Int64s) -> Int64s:
    """Distinct values numbered in ascending order; for each value its number."""
    numbered: Int64s = np.unique(values, return_inverse=True)[1].reshape(-1)
    return numbered


CLOCKS: Final = table(
    "clocks",
    "One rank and how its clock was brought to that of all.",
    "rank",
    Column(
        "clock",
        pl.String,
        "`unix` (the file records its Unix time), `file` (shared with other ranks of one file), `own` (neither)",
    ),
    Column("aligned", pl.Boolean, "whether it can be compared in time with the first rank", title="Comparable"),
    Column("shift_ns", pl.Int64, "what collectives added to its clock, at its first collective", title="Shifted by"),
    Column(
        "drift_ppm",
        pl.Float64,
        "how fast that changes, parts per million; null where a constant shift does",
        title="Drift (ppm)",
    ),
    column("collectives", help="how many the estimate rests on"),
    Column(
        "residual_median_ns",
        pl.Float64,
        "median of the absolute differences that are left between the ends of its collectives and their"
        " medians; null without such",
        title="Residual, median",
    ),
    Column("residual_max_ns", pl.Float64, "largest of them", title="Residual, largest"),
)

#: With fewer shared collectives, one that was delayed on its way out decides the offset.
_FEW_COLLECTIVES: Final = 3


@dataclass(frozen=True, eq=False)
class BaseClocks:
    """What the files say of their clocks."""

    shift: Int64s  #: nanoseconds to add to each rank's times; shape (ranks,)
    unit: Int64s  #: which ranks share a clock for certain, being of one file; shape (ranks,)
    kind: tuple[str, ...]  #: `unix`, `file` or `own`, for each rank
    comparable: bool  #: whether all ranks are on one clock already


@dataclass(frozen=True, eq=False)
class Alignment:
    """The common clock."""

    ranks: pl.DataFrame  #: `CLOCKS`
    #: start, end: of each event on the common clock; shape (events,)
    start: Int64s
    end: Int64s
    aligned: Bools  #: for each rank whether it is on the common clock; shape (ranks,)
    method: str  #: how, one sentence for people
    #: residual_median_ns, residual_max_ns: of the absolute differences between the ends of each collective and their
    #: median; None where no collective ends together on two ranks
    residual_median_ns: float | None
    residual_max_ns: float | None
    warning: str | None  #: why the common clock is not to be trusted; None where it is


def base_clocks(summaries: Sequence[RankSummary], files: Sequence[int]) -> BaseClocks:
    """The clocks as the files record them.

    Args:
        files: the number of the file that each is from.
    """
    unit = np.array(files, dtype=np.int64)
    epochs = [summary.epoch_ns for summary in summaries]
    one_file = len(set(files)) <= 1
    known = not one_file and all(epoch is not None for epoch in epochs)
    first = min((epoch for epoch in epochs if epoch is not None), default=0)
    shift = np.array([(epoch or 0) - first if known else 0 for epoch in epochs], dtype=np.int64)
    kind = tuple("unix" if known else "file" if summary.parts > 1 else "own" for summary in summaries)
    return BaseClocks(shift, unit, kind, one_file or known)


def align(events: pl.DataFrame, instance: Int64s, usable: Bools, base: BaseClocks, ranks: Sequence[int]) -> Alignment:
    """Bring all ranks onto one clock.

    Args:
        events: of `across.all_events`.
        instance: the collective of each event, −1 for none.
        usable: which events may be used to estimate offsets.
        base: what the files say.
    """
    place = events["place"].to_numpy()
    start = events["start_ns"].to_numpy() + base.shift[place]
    end = events["end_ns"].to_numpy() + base.shift[place]
    together = events["kind"].is_in(list(ENDS_TOGETHER)).to_numpy()
    chosen = _spanning(instance, usable & together, base.unit[place])
    loosely = False
    if not len(chosen) and not base.comparable:
        chosen, loosely = _spanning(instance, usable, base.unit[place]), True
    unit_of_event = base.unit[place[chosen]]
    offset, drift, reached, anchor = clock_offsets(codes(instance[chosen]), unit_of_event, end[chosen], base.unit)
    unit = base.unit[place]
    moved = np.rint(drift[unit] * (end - anchor)).astype(np.int64)
    end = end + offset[unit] + moved
    start = start + offset[unit] + np.rint(drift[unit] * (start - anchor)).astype(np.int64)

    measured = _spanning(instance, usable & together, place) if not loosely else chosen
    number = codes(instance[measured])
    left = np.abs(end[measured] - group_median(number, end[measured], int(number.max(initial=0)) + 1)[number])
    never = np.iinfo(np.int64).max
    first = np.full(len(ranks), never)
    np.minimum.at(first, place, events["start_ns"].to_numpy() + base.shift[place])
    first[first == never] = 0
    shift_at_first = offset[base.unit] + np.rint(drift[base.unit] * (first - anchor)).astype(np.int64)
    aligned = np.full(len(ranks), base.comparable)
    aligned |= reached[base.unit]
    rows = [
        (
            rank,
            base.kind[row],
            bool(aligned[row]),
            int(shift_at_first[row]),
            float(drift[base.unit[row]] * 1e6) if drift[base.unit[row]] else None,
            int((place[chosen] == row).sum()),
            *_typical(left[place[measured] == row]),
        )
        for row, rank in enumerate(ranks)
    ]
    clocks, collectives = pl.DataFrame(rows, schema=CLOCKS.schema, orient="row"), len(np.unique(instance[chosen]))
    method, warning = (_method(base, collectives, len(ranks)), _warning(base, aligned, ranks, collectives, loosely))
    return Alignment(clocks, start, end, aligned, method, *_typical(left), warning)


def _spanning(instance: Int64s, usable: Bools, unit: Int64s) -> Int64s:
    """The usable events whose collective reaches over at least two clocks."""
    rows = np.flatnonzero(usable & (instance >= 0))
    if not len(rows):
        return rows
    count = int(instance[rows].max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(low, instance[rows], unit[rows])
    np.maximum.at(high, instance[rows], unit[rows])
    return rows[(high > low)[instance[rows]]]


def _typical(values: Float64s) -> tuple[float | None, float | None]:
    return (float(np.median(values)), float(values.max())) if len(values) else (None, None)


def _method(base: BaseClocks, collectives: int, ranks: int) -> str:
    if ranks < 2:
        return "one rank, whose clock is its own"
    if len(set(base.unit.tolist())) == 1:
        return "all ranks share the clock of their one file; nothing was shifted"
    origin = "placed by the Unix time that each file records" if base.comparable else "no common Unix time is recorded"
    refined = f"refined by the ends of {collectives} collectives" if collectives else "not refined by any collective"
    return f"{origin}; {refined}"


def _warning(base: BaseClocks, aligned: Bools, ranks: Sequence[int], collectives: int, loosely: bool) -> str | None:
    if len(ranks) < 2 or len(set(base.unit.tolist())) == 1:
        return None
    if not aligned.all():
        apart = ", ".join(str(rank) for rank, found in zip(ranks, aligned, strict=True) if not found)
        return (
            f"The clocks of ranks {apart} cannot be compared with that of rank {ranks[0]}: no Unix time is recorded "
            "and no collective connects them. Arrivals and waits leave them out."
        )
    if loosely:
        return (
            "The clocks were aligned by operations that need not end together (sends, broadcasts): arrivals and waits "
            "may be off by as much as those take."
        )
    if collectives < _FEW_COLLECTIVES:
        return (
            f"The clocks rest on Unix time and {collectives} shared collectives: between hosts they may differ by "
            "milliseconds, and waits shorter than that mean nothing."
        )
    return None
