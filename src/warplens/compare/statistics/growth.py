"""The order in which a time grows with a size: the exponent of a power law, its interval, and where the law holds.

    time = factor · size ^ exponent, times an error

is a straight line between logarithms. It is fitted by least squares; the interval of the exponent is Student's, with
the scatter of the points round the line as the error (Montgomery, Peck, Vining, "Introduction to Linear Regression
Analysis", chapter 2). Real programs keep to such a law over a part of the sizes only: below, the host or a fixed cost
decides, and the line is bent. So the widest range is looked for over which no point is far off, and what happens at
both ends of all sizes is told as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from warplens.compare.statistics.shift import t_quantile
from warplens.profile.schema import Float64s

#: How far a time may be off the line, beside the uncertainty of its own: tiles and waves that are filled in part move
#: single sizes by some percent where the law holds. An exponent is then good for as much over a doubling.
WITHIN: Final = 0.05

#: Sizes that a line needs to have an error at all …
FEWEST: Final = 3
#: … and to be preferred to the line through all sizes: three neighbours are nearly always in one line.
_FEWEST_OF_MORE: Final = 4


@dataclass(frozen=True)
class PowerLaw:
    """A fitted power law."""

    exponent: float  #: of the size; with the interval `low` to `high`
    low: float
    high: float
    factor: float  #: the time at size 1, in the unit of the times
    #: smallest_size, largest_size: the sizes that it was fitted to
    smallest_size: float
    largest_size: float
    points: int  #: how many those are
    off_share: float  #: how far the farthest of these points is from the line, as a share of the line
    holds: bool  #: whether all of them are near enough (`WITHIN`, and what the time itself is uncertain by)
    #: first, last: exponents between the two smallest and the two largest of all sizes, also of those left out: far
    #: apart, they tell of a bend
    first: float
    last: float


def power_law(
    sizes: Sequence[float], times: Sequence[float], spreads: Sequence[float] | None = None, *, level: float = 0.05
) -> PowerLaw | None:
    """The law over the widest range of neighbouring sizes that it holds over; over all, where it holds nowhere.

    Of ranges of as many sizes the one of larger sizes is taken.

    Args:
        sizes: above zero, each once.
        times: above zero.
        spreads: how far each time may be from the true one, as a share (half of its interval); zeros if None.
        level: how often the interval misses, where the law holds.

    Returns:
        None with fewer than three sizes.
    """
    count = len(sizes)
    if count < FEWEST:
        return None
    order = np.argsort(np.asarray(sizes, dtype=np.float64))
    exact = np.asarray(sizes, dtype=np.float64)[order]
    x, y = np.log(exact), np.log(np.asarray(times, dtype=np.float64)[order])
    allowed = WITHIN + np.asarray([0.0] * count if spreads is None else spreads, dtype=np.float64)[order]
    ends = (_slope(x[:2], y[:2]), _slope(x[-2:], y[-2:]))
    fewest = min(count, _FEWEST_OF_MORE)
    ranges = [span for span in combinations(range(count + 1), 2) if span[1] - span[0] >= fewest]
    ranges.sort(key=lambda span: (span[0] - span[1], -span[0]))
    fits = [_fit(exact[a:b], y[a:b], allowed[a:b], ends, level) for a, b in ranges]
    return next((fit for fit in fits if fit.holds), fits[0])


def _slope(x: Float64s, y: Float64s) -> float:
    return float((y[1] - y[0]) / (x[1] - x[0]))


def _fit(sizes: Float64s, y: Float64s, allowed: Float64s, ends: tuple[float, float], level: float) -> PowerLaw:
    x = np.log(sizes)
    middle, spread = x.mean(), float(((x - x.mean()) ** 2).sum())
    exponent = float(((x - middle) * y).sum() / spread)
    start = float(y.mean() - exponent * middle)
    left = y - start - exponent * x
    freedom = x.size - 2
    error = float(np.sqrt((left**2).sum() / freedom / spread))
    reach = float(t_quantile(level, freedom)) * error
    off = np.abs(np.expm1(left))
    return PowerLaw(
        exponent, exponent - reach, exponent + reach, float(np.exp(start)), float(sizes[0]), float(sizes[-1]),
        x.size, float(off.max()), bool((off <= allowed).all()), *ends,
    )  # fmt: skip
