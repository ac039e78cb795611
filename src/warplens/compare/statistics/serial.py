"""What the order of the units tells: whether neighbours resemble each other, and whether times drift.

Steps of one run, and runs one after another on one machine, are no independent draws: clocks, heat and neighbours
change slowly. An interval that ignores it claims too much: in simulated runs whose steps correlate by 0.7
with the next, an interval for independent steps misses the truth in 38 of 100 cases instead of in 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from warplens.compare.statistics.location import cut

__all__ = ["Trend", "dependence", "trend"]

Float64s = npt.NDArray[np.float64]

#: Fewer units show no correlation and no trend that chance could not.
ORDER_FROM: Final = 5
#: A correlation beyond this cannot be told from a drift in the few units that there are.
_MOST_CORRELATION: Final = 0.9
#: A trend counts if chance alone would show one as clear in fewer than one of twenty cases.
_TREND_SIGNIFICANCE: Final = 0.05
#: Kendall's test looks at every pair: a trend over more units shows as well in the medians of groups of them.
_TREND_UP_TO: Final = 400


def dependence(*sides: Float64s) -> float:
    """By what factor the variance of a centre is larger than if its units were independent; at least 1.

    That of a series whose correlation ρ decays geometrically: (1 + ρ)/(1 − ρ). ρ is the lag-1 correlation of ranks,
    so that one outlier does not hide it, pooled over the sides. A short series underestimates ρ by about (1 + 4ρ)/n
    (Marriott and Pope, Biometrika 41 (1954), 390–402); half of that is given back: all of it would make ρ so uncertain
    that intervals from ten steps become twice as wide, and half is what keeps them honest in simulations
    (docs/explanation/comparison-statistics.md).
    """
    lengths = [values.size for values in sides if values.size > 1]
    if not lengths:
        return 1.0
    raw = sum(_lag_one(values) * values.size for values in sides if values.size > 1) / sum(lengths)
    length = sum(lengths) / len(lengths)
    correlation = min(max((length * raw + 1) / max(length - 2, 1), 0.0), _MOST_CORRELATION)
    return (1 + correlation) / (1 - correlation)


def _lag_one(values: Float64s) -> float:
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    if (values == values[0]).all():
        return 0.0
    ranks -= ranks.mean()
    return float((ranks[1:] * ranks[:-1]).sum() / (ranks**2).sum())


@dataclass(frozen=True)
class Trend:
    """Whether the units of one or both sides rise or fall in their order.

    Attributes:
        significance: how often chance alone would show a trend as clear, in either direction.
        shift: how far the centre would move over the length of the side if the trend is a line; a logarithm.
    """

    significance: float
    shift: float

    @property
    def matters(self) -> bool:
        """Whether it is too clear for chance."""
        return self.significance < _TREND_SIGNIFICANCE


def trend(*sides: Float64s) -> Trend | None:
    """The trend of one side, or the one that several have in common; None with fewer than five units.

    Whether there is one: Kendall's test, summed over the sides as over seasons (Hirsch and Slack, Water Resources
    Research 20 (1984), 727–732). How far it goes: a line that moves the second half of a side by d against the first
    moves the next side as long, taken right after it, by 2·d.
    """
    long = [values for values in sides if values.size >= ORDER_FROM]
    if not long:
        return None
    score = variance = 0.0
    shifts = []
    for side in long:
        values = _condensed(side)
        count = values.size
        later, earlier = values[None, :], values[:, None]
        score += float(np.sign(np.triu(later - earlier, 1)).sum())
        _, ties = np.unique(values, return_counts=True)
        variance += (count * (count - 1) * (2 * count + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
        half = count // 2
        shifts.append(2 * (_centre(values[-half:]) - _centre(values[:half])))
    z = max(abs(score) - 1, 0.0) / math.sqrt(variance) if variance > 0 else 0.0
    return Trend(2 * NormalDist().cdf(-z), sum(shifts) / len(shifts))


def _condensed(values: Float64s) -> Float64s:
    """The medians of successive groups, where there are more values than pairs of them can be looked at."""
    size = -(-values.size // _TREND_UP_TO)
    if size == 1:
        return values
    groups = values[: values.size // size * size].reshape(-1, size)
    return np.asarray(np.median(groups, axis=1), dtype=np.float64)


def _centre(values: Float64s) -> float:
    gone = int(cut(values.size) * values.size)
    return float(np.sort(values)[gone : values.size - gone].mean())
