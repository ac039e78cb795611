"""One clock for all ranks.

Every file has its own clock. Two things align them:

1. the Unix time of the clock's zero, where the file records it (ranks of one file share its clock anyway);
2. collectives: no rank can leave one before all have arrived, so it ends on all ranks at nearly the same time. The
   offset of a file is the median of the differences between its ends and the median end of each collective, taken over
   the kinds that end together (`collectives.ENDS_TOGETHER`); medians, so that a few wrong pairs do no harm. Files are
   connected one by one through the collectives that they share, then all offsets are refined together. Over a long
   recording two clocks drift apart; where a straight line through the differences explains clearly more than a
   constant, it is used.

The remaining differences, the residual, are printed: waits shorter than it are meaningless.
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

#: A drift is estimated from this many collectives on, and used if it removes this share of the residual.
_DRIFT_COLLECTIVES: Final = 24
_DRIFT_GAIN: Final = 0.5
#: Oscillators of hosts and GPUs are within some 100 ppm; a steeper line is not a drift.
_MOST_DRIFT: Final = 500e-6

_ROUNDS: Final = 4


def clock_offsets(
    instance: Int64s, unit: Int64s, end: Int64s, unit_of_rank: Int64s
) -> tuple[Int64s, Float64s, Bools, int]:
    """Offset and drift of each clock, which clocks were reached, and the time at which drift is zero.

    Args:
        instance: the collective of each event, numbered from 0; shape (events,).
        end: its end by that clock, nanoseconds.
        unit_of_rank: the clock of each rank; that of the first is the reference.

    Returns:
        For each clock the nanoseconds to add, the further nanoseconds per nanosecond after the anchor, and whether it
        is connected with the first one; and the anchor.
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
        newly_reached = np.unique(unit[nearby])
        if not len(newly_reached):
            break
        for number in newly_reached:
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
            of_clock = unit == number
            change[number] = _middle(middle[instance[of_clock]] - (end + offset[unit])[of_clock])
        change -= change[anchor_unit]
        change[~reached] = 0
        if not change.any():
            break
        offset += change
    # The end of each collective on the first clock if it took part, else the median end.
    moved, of_clock, count = end + offset[unit], unit == anchor_unit, int(instance.max()) + 1
    anchor_ends = group_median(instance[of_clock], moved[of_clock], count)
    reference = np.where(np.isnan(anchor_ends), group_median(instance, moved, count), anchor_ends)
    for number in np.unique(unit):
        if number != anchor_unit:
            of_clock = unit == number
            drift[number], extra = _drift(end[of_clock], (reference[instance] - end - offset[unit])[of_clock], anchor)
            offset[number] += extra
    return offset, drift, reached, anchor


def _drift(end: Int64s, difference: Float64s, anchor: int) -> tuple[float, int]:
    """Slope of the differences over time and its part of the offset at the anchor; (0, 0) without drift."""
    if len(end) < _DRIFT_COLLECTIVES:
        return 0.0, 0
    order = np.argsort(end, kind="stable")
    when, difference = (end[order] - anchor).astype(np.float64), difference[order]
    third = len(order) // 3
    early, late = slice(0, third), slice(-third, None)
    time_span = float(np.median(when[late]) - np.median(when[early]))
    if time_span <= 0:
        return 0.0, 0
    slope = float(np.median(difference[late]) - np.median(difference[early])) / time_span
    level = float(np.median(difference - slope * when))
    constant_residual = np.median(np.abs(difference))
    linear_residual = np.median(np.abs(difference - level - slope * when))
    if abs(slope) > _MOST_DRIFT or linear_residual > (1 - _DRIFT_GAIN) * constant_residual:
        return 0.0, 0
    return slope, round(level)


def group_median(instance: Int64s, values: Int64s, count: int) -> Float64s:
    """The median of each instance's values, NaN for none; exact, since it is computed relative to a value."""
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
    """The rank of each value among the distinct ones, ascending from 0."""
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

#: With fewer shared collectives, a single one with a delayed end decides the offset.
_FEW_COLLECTIVES: Final = 3


@dataclass(frozen=True, eq=False)
class BaseClocks:
    """The clocks as recorded in the files."""

    shift: Int64s  #: nanoseconds to add to each rank's times; shape (ranks,)
    unit: Int64s  #: number of each rank's file: ranks of one file share a clock; shape (ranks,)
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
    method: str  #: the method, one sentence for people
    #: residual_median_ns, residual_max_ns: of the absolute differences between the ends of each collective and their
    #: median; None where no collective ends together on two ranks but the one that aligned their clocks
    residual_median_ns: float | None
    residual_max_ns: float | None
    warning: str | None  #: why the common clock is unreliable; None where it is reliable


def base_clocks(summaries: Sequence[RankSummary], files: Sequence[int]) -> BaseClocks:
    """The clocks as the files record them.

    Args:
        files: the file number of each summary.
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
    """Brings all ranks onto one clock.

    Args:
        events: of `across.all_events`.
        instance: the collective of each event, −1 for none.
        usable: which events may be used to estimate offsets.
        base: the recorded clocks.
    """
    place = events["place"].to_numpy()
    start = events["start_ns"].to_numpy() + base.shift[place]
    end = events["end_ns"].to_numpy() + base.shift[place]
    ends_together = events["kind"].is_in(list(ENDS_TOGETHER)).to_numpy()
    anchors = _spanning(instance, usable & ends_together, base.unit[place])
    any_kind = False
    if not len(anchors) and not base.comparable:
        anchors, any_kind = _spanning(instance, usable, base.unit[place]), True
    unit_of_event = base.unit[place[anchors]]
    offset, drift, reached, anchor = clock_offsets(codes(instance[anchors]), unit_of_event, end[anchors], base.unit)
    unit = base.unit[place]
    drift_ns = np.rint(drift[unit] * (end - anchor)).astype(np.int64)
    end = end + offset[unit] + drift_ns
    start = start + offset[unit] + np.rint(drift[unit] * (start - anchor)).astype(np.int64)

    compared = _spanning(instance, usable & ends_together, place) if not any_kind else anchors
    collective = codes(instance[compared])
    residuals = np.abs(
        end[compared] - group_median(collective, end[compared], int(collective.max(initial=0)) + 1)[collective]
    )
    # A clock that one collective aligned agrees with it by construction.
    aligning = np.unique(np.stack([unit_of_event, instance[anchors]]), axis=1)[0]
    told = np.bincount(aligning, minlength=int(base.unit.max(initial=0)) + 1)[base.unit[place[compared]]] != 1
    compared, residuals = compared[told], residuals[told]
    no_event = np.iinfo(np.int64).max
    first = np.full(len(ranks), no_event)
    np.minimum.at(first, place, events["start_ns"].to_numpy() + base.shift[place])
    first[first == no_event] = 0
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
            int((place[anchors] == row).sum()),
            *_median_and_max(residuals[place[compared] == row]),
        )
        for row, rank in enumerate(ranks)
    ]
    clocks, collectives = pl.DataFrame(rows, schema=CLOCKS.schema, orient="row"), len(np.unique(instance[anchors]))
    method, warning = (_method(base, collectives, len(ranks)), _warning(base, aligned, ranks, collectives, any_kind))
    return Alignment(clocks, start, end, aligned, method, *_median_and_max(residuals), warning)


def _spanning(instance: Int64s, usable: Bools, unit: Int64s) -> Int64s:
    """The usable events whose collective spans at least two clocks."""
    rows = np.flatnonzero(usable & (instance >= 0))
    if not len(rows):
        return rows
    count = int(instance[rows].max()) + 1
    lowest, highest = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(lowest, instance[rows], unit[rows])
    np.maximum.at(highest, instance[rows], unit[rows])
    return rows[(highest > lowest)[instance[rows]]]


def _median_and_max(values: Float64s) -> tuple[float | None, float | None]:
    return (float(np.median(values)), float(values.max())) if len(values) else (None, None)


def _method(base: BaseClocks, collectives: int, ranks: int) -> str:
    if ranks < 2:
        return "one rank, whose clock is its own"
    if len(set(base.unit.tolist())) == 1:
        return "all ranks share the clock of their one file; nothing was shifted"
    origin = "placed by the Unix time that each file records" if base.comparable else "no common Unix time is recorded"
    refined = f"refined by the ends of {_counted(collectives)}" if collectives else "not refined by any collective"
    return f"{origin}; {refined}"


def _counted(collectives: int) -> str:
    return "1 collective" if collectives == 1 else f"{collectives} collectives"


def _warning(base: BaseClocks, aligned: Bools, ranks: Sequence[int], collectives: int, any_kind: bool) -> str | None:
    """How far the ranks' clocks can be compared, if that is in doubt; None if it is not."""
    if len(ranks) < 2 or len(set(base.unit.tolist())) == 1:
        return None
    if not aligned.all():
        strays = ", ".join(str(rank) for rank, ok in zip(ranks, aligned, strict=True) if not ok)
        return (
            f"The clocks of ranks {strays} cannot be compared with that of rank {ranks[0]}: no Unix time is recorded "
            "and no collective connects them. Arrivals and waits leave them out."
        )
    if any_kind:
        return (
            "The clocks were aligned by operations that need not end together (sends, broadcasts): arrivals and waits "
            "may be off by as much as those take."
        )
    if collectives < _FEW_COLLECTIVES:
        return (
            f"The clocks rest on Unix time and {_counted(collectives)} that ranks share: between hosts they may "
            "differ by milliseconds, and waits shorter than that mean nothing."
        )
    return None
