"""Where a cell of a line should lie, by the other cells: lines that are smooth in logarithms, or have a kink.

Where all other cells lie on a power of the axis, or on a fixed cost plus work, that trend is *validated*, and the cell
should lie between what it, and a smooth curve through the neighbours, say. Where they do not, because of a kink (the
larger of host and GPU time changes hands) or a bend, the neighbours bound the cell: anywhere between the ways in which
a smooth or a kinked line may pass from them. A kink cannot be fitted and trusted: with one cell beyond it, nothing says
where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Expected", "expected"]

Float64s = npt.NDArray[np.float64]

#: Places and times of cells, and places that are wanted → values there; all logarithms, times as draws × cells.
Curve: TypeAlias = Callable[[Float64s, Float64s, Float64s], Float64s]

#: A trend fits if the others lie around it by less than this: tile sizes and clocks leave cells of real machines off
#: any smooth line by about as much, and a line that bends at its end lies further off.
_ROUGHNESS: Final = 0.01

#: Or by less than this many standard errors of a cell.
_ERRORS: Final = 1.5


@dataclass(frozen=True, eq=False)
class Expected:
    """Bounds of the logarithm of a cell's time.

    Attributes:
        low, high: one for each draw.
        validated: whether they are those of trends that fit all other cells.
    """

    low: Float64s
    high: Float64s
    validated: bool


def expected(x: Float64s, y: Float64s, place: int, error: float) -> Expected:
    """Where a cell should lie.

    Args:
        x: logarithms of the axis, rising.
        y: logarithms of times, draws × cells; the first row is the estimate, by which trends are judged.
        place: of the cell; neither the first nor the last.
        error: standard error of a cell's logarithm.
    """
    others = np.delete(np.arange(x.size), place)
    tolerance = max(_ROUGHNESS, _ERRORS * error)
    places = np.append(x[others], x[place])
    found: list[Float64s] = []
    for curve in (_power, _affine):
        fitted = curve(x[others], y[:, others], places)
        residual = y[0, others] - fitted[0, :-1]
        if math.sqrt(float(residual @ residual) / (others.size - 2)) <= tolerance:
            found += [fitted[:, -1], *_from_inside(curve, x, y, place)]
    # A trend that fits may still bend a little, as a smooth curve through the neighbours does.
    bounds = np.stack([*found, _lagrange(x, y, place)]) if found else _passing(x, y, place)
    return Expected(bounds.min(axis=0), bounds.max(axis=0), bool(found))


def _from_inside(curve: Curve, x: Float64s, y: Float64s, place: int) -> list[Float64s]:
    """Next to an end of the line, what the two cells on the other side say: with one cell beyond, a kink is unseen."""
    pairs = _pairs(x, place)
    return [curve(x[list(pair)], y[:, list(pair)], x[place : place + 1])[:, 0] for pair in pairs if len(pairs) == 1]


# --- trends through cells ---------------------------------------------------------------------------------------------


def _least_squares(columns: Float64s, y: Float64s, wanted: Float64s) -> Float64s:
    """Values at wanted places of the linear fit to each row of y."""
    return np.asarray(y @ np.linalg.pinv(columns).T @ wanted.T)


def _power(x: Float64s, y: Float64s, places: Float64s) -> Float64s:
    return _least_squares(np.vander(x, 2), y, np.vander(places, 2))


def _affine(x: Float64s, y: Float64s, places: Float64s) -> Float64s:
    """A fixed cost plus work: a straight line without logarithms, fitted to relative errors."""
    times = np.exp(y)
    # Weights are those of the estimate, so that all draws are one linear problem.
    weights = 1 / times[0]
    fitted = _least_squares(np.vander(np.exp(x), 2) * weights[:, None], times * weights, np.vander(np.exp(places), 2))
    # A line that falls to nothing is no time.
    return np.asarray(np.log(np.maximum(fitted, times.min(axis=1, keepdims=True) / 1e3)))


# --- what neighbours allow --------------------------------------------------------------------------------------------


def _passing(x: Float64s, y: Float64s, place: int) -> Float64s:
    """Where smooth and kinked lines through the neighbours may pass a cell: predictions × draws."""
    last = x.size - 1
    # A kink on the far side leaves the line straight on this one.
    found = [item for pair in _pairs(x, place) for item in _through(x, y, place, pair)]
    found.append(_lagrange(x, y, place))
    if place < 2 or place > last - 2:
        # With one neighbour on a side, nothing says whether a kink lies there.
        found += _through(x, y, place, (place - 1, place + 1))
    # Nor does time rise and fall again. (Falling and rising again is what an axis with an optimum in it shows.)
    return np.minimum(np.stack(found), np.maximum(y[:, place - 1], y[:, place + 1]))


def _pairs(x: Float64s, place: int) -> list[tuple[int, int]]:
    """The two cells on each side that has two."""
    pairs = ((place - 1, place - 2), (place + 1, place + 2))
    return [(one, two) for one, two in pairs if 0 <= two < x.size]


def _through(x: Float64s, y: Float64s, place: int, pair: tuple[int, int]) -> list[Float64s]:
    """A power of the axis, and a fixed cost plus work, through two cells."""
    cells, at = list(pair), x[place : place + 1]
    straight = _affine(x[cells], y[:, cells], at)[:, 0]
    # A line that falls to nothing is no prediction; half the smaller neighbour is as far as any would go.
    least = y[:, cells].min(axis=1) - math.log(2)
    return [_power(x[cells], y[:, cells], at)[:, 0], np.maximum(straight, least)]


def _lagrange(x: Float64s, y: Float64s, place: int) -> Float64s:
    """The polynomial through the two neighbours on each side, or the one where there is one."""
    around = [item for item in (place - 2, place - 1, place + 1, place + 2) if 0 <= item < x.size]
    total = np.zeros(y.shape[0])
    for one in around:
        weight = math.prod((x[place] - x[other]) / (x[one] - x[other]) for other in around if other != one)
        total += weight * y[:, one]
    return total
