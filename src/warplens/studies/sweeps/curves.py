"""What a curve may do between two of its points, and where two of them meet.

A step time is a sum or maximum of terms c·xᵖ (launches, work, traffic), smoothed or not. Such a function is convex when
both its axes are logarithmic (Boyd and Vandenberghe, Convex Optimization, 2004, section 4.5: posynomials and their
maxima). So between two measured points it lies below their chord and above the chords of its neighbours, extended; and
it is taken to cost no less than the cheaper of the two points. Where measured points bend the other way by more than
noise (other kernels were chosen, waves filled up), both bounds are widened by twice that bend, at most to the times of
the two points themselves.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from warplens.profile.schema import Bools, Float64s

#: Places looked at between two neighbours; between them, straight lines. The bounds consist of at most three each.
_PLACES: Final = 33

#: How many times the strongest measured bend widens the bounds. The measured points need not be those at which a
#: staircase stands out most. With twice the bend, intervals of simulated stairs hold the crossing as often as with four
#: times, and are narrower; with the bend itself, they lose it more often.
_SLACK: Final = 2.0


def bend(x: Float64s, times: Float64s, level: float) -> float:
    """How far a curve lies above the chord of two neighbours where it bends down most; 0 where noise explains it.

    Args:
        x: log of the axis, rising.
        times: log of the times, one row a draw, one column a point.
        level: of the decision that it bends down.
    """
    if x.size < 3:
        return 0.0
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    above = times[:, 1:-1] - (times[:, :-2] * (1 - share) + times[:, 2:] * share)
    decided = np.quantile(above, 1 - level, axis=0) > 0
    return float(np.median(above, axis=0)[decided].max(initial=0.0))


def _bounds(x: Float64s, times: Float64s, start: int, places: Float64s, slack: float) -> tuple[Float64s, Float64s]:
    """Least and greatest log time at places between point `start` and the next; one row a draw, one column a place."""
    left, right = times[:, [start]], times[:, [start + 1]]
    share = (places - x[start]) / (x[start + 1] - x[start])
    chord = left * (1 - share) + right * share
    least, most = np.minimum(left, right), np.maximum(left, right)
    lower = least + np.zeros_like(places)
    if start > 0:
        slope = (left - times[:, [start - 1]]) / (x[start] - x[start - 1])
        lower = np.maximum(lower, left + slope * (places - x[start]))
    if start + 2 < x.size:
        slope = (times[:, [start + 2]] - right) / (x[start + 2] - x[start + 1])
        lower = np.maximum(lower, right - slope * (x[start + 1] - places))
    return np.maximum(np.minimum(lower, chord) - slack, least), np.minimum(chord + slack, most)


def meetings(
    x: Float64s, sides: tuple[Float64s, Float64s], span: tuple[int, int], falling: bool, level: float
) -> tuple[Float64s, Float64s]:
    """For each draw, between which places the log ratio of the sides can pass zero.

    Args:
        x: log of the axis, rising.
        sides: log times of baseline and variant, one row a draw, one column a point.
        span: first and last point between which it passes.
        falling: whether it passes from above (the variant pays beyond it) or from below.
        level: of the decision that a curve bends down.

    Returns:
        Least and greatest place, as logs of the axis. Minus infinity and infinity: before the first, after the last
        point of the span.
    """
    slack = [_SLACK * bend(x, side, level) for side in sides]
    places, lower, upper = [], [], []
    for start in range(span[0], span[1]):
        between = np.linspace(x[start], x[start + 1], _PLACES)
        base, other = (_bounds(x, side, start, between, free) for side, free in zip(sides, slack, strict=True))
        places.append(between)
        lower.append(other[0] - base[1])
        upper.append(other[1] - base[0])
    where, low, high = np.concatenate(places), np.concatenate(lower, axis=1), np.concatenate(upper, axis=1)
    if not falling:
        low, high = -high, -low
    back = -high[:, ::-1]
    return first_below(where, low, low <= 0), -first_below(-where[::-1], back, back <= 0)


def first_below(where: Float64s, values: Float64s, below: Bools) -> Float64s:
    """For each row the first place at which values are below zero, by straight lines between the places.

    Args:
        where: the places, rising.
        values: one row a draw, one column a place.
        below: whether each of them counts as below.

    Returns:
        Minus infinity where the first place is below, infinity where none is.
    """
    found = below.argmax(axis=1)
    rows = np.arange(values.shape[0])
    before = np.maximum(found - 1, 0)
    one, two = values[rows, before], values[rows, found]
    share = np.clip(one / np.where(one > two, one - two, 1.0), 0, 1)
    place = np.where(found == 0, -np.inf, where[before] + (where[found] - where[before]) * share)
    return np.asarray(np.where(below.any(axis=1), place, np.inf))


def root(x: Float64s, ratio: Float64s) -> float | None:
    """Where a chain of straight lines passes zero, as log of the axis; the middle one of several, None of none."""
    changes = np.flatnonzero(np.signbit(ratio[:-1]) != np.signbit(ratio[1:]))
    if not changes.size:
        return None
    at = int(changes[changes.size // 2])
    return float(x[at] + (x[at + 1] - x[at]) * ratio[at] / (ratio[at] - ratio[at + 1]))
