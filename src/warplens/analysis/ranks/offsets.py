"""Offsets and drifts of clocks from events that happen at the same moment by all of them; medians throughout."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["clock_offsets", "codes", "group_median"]

Int64s = npt.NDArray[np.int64]

#: A drift is looked for from so many collectives on, and believed if it takes away this share of the residual.
_DRIFT_COLLECTIVES: Final = 24
_DRIFT_GAIN: Final = 0.5
#: Oscillators of hosts and GPUs are within some 100 ppm; a steeper line is no drift.
_MOST_DRIFT: Final = 500e-6

_ROUNDS: Final = 4


def clock_offsets(
    instance: Int64s, unit: Int64s, end: Int64s, unit_of_rank: Int64s
) -> tuple[Int64s, npt.NDArray[np.float64], npt.NDArray[np.bool_], int]:
    """Offset and drift of each clock, which clocks were reached, and the time at which drift adds nothing.

    Args:
        instance: the collective of each event, numbered from 0; shape (events,).
        unit: the clock that it was recorded by.
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
    reference = _reference(instance, unit, end + offset[unit], anchor_unit)
    for number in np.unique(unit):
        if number != anchor_unit:
            mine = unit == number
            drift[number], extra = _drift(end[mine], (reference[instance] - end - offset[unit])[mine], anchor)
            offset[number] += extra
    return offset, drift, reached, anchor


def _reference(instance: Int64s, unit: Int64s, end: Int64s, anchor_unit: int) -> npt.NDArray[np.float64]:
    """The end of each collective on the first clock where that took part, else the median end."""
    middle = group_median(instance, end, int(instance.max()) + 1)
    mine = unit == anchor_unit
    own = group_median(instance[mine], end[mine], int(instance.max()) + 1)
    return np.where(np.isnan(own), middle, own)


def _drift(end: Int64s, difference: npt.NDArray[np.float64], anchor: int) -> tuple[float, int]:
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


def group_median(instance: Int64s, values: Int64s, count: int) -> npt.NDArray[np.float64]:
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


def _middle(differences: npt.NDArray[np.float64]) -> int:
    return round(float(np.median(differences)))


def codes(values: Int64s) -> Int64s:
    """Distinct values numbered in ascending order; for each value its number."""
    numbered: Int64s = np.unique(values, return_inverse=True)[1].reshape(-1)
    return numbered
