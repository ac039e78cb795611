"""The ratio of two times with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.compare.statistics.shift import Shift, shift_between
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.compare.samples import Samples

__all__ = ["Interval", "interval_of", "ratio_interval"]


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low, high: its ends. Where the data show no variation at all (one duration a side): 0 and infinity.
        estimate: the figure itself.
        level: how often such an interval misses the truth: 0.05 for 95 % confidence.
    """

    low: float
    estimate: float
    high: float
    level: float

    def within(self, margin: float) -> bool:
        """Whether all of it, as a ratio, is as close to 1 as this share: for 0.02, between 1/1.02 and 1.02."""
        return self.low >= 1 / (1 + margin) and self.high <= 1 + margin

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of 1 is outside."""
        return self.low > 1 or self.high < 1


def ratio_interval(baseline: Samples, variant: Samples, *, level: float = 0.05, seed: int = 0) -> Interval:
    """Time of the variant / time of the baseline with its confidence interval: above 1, the variant is slower.

    Args:
        baseline: durations before the change.
        variant: durations after it. If both are `paired` and have equally many blocks, they are compared turn by turn.
        level: how often the interval may miss the truth; 0.05 asks for 95 % confidence.
        seed: of the resampling; the same data with the same seed give the same interval.

    Raises:
        UsageError: the level is not between 0 and 1.
    """
    check_level(level)
    return interval_of(shift_between(baseline, variant, level=level, seed=seed))


def interval_of(shift: Shift) -> Interval:
    """A shift of logarithms as a ratio."""
    low, high = shift.interval
    return Interval(low=math.exp(low), estimate=math.exp(shift.estimate), high=math.exp(high), level=shift.level)


def check_level(level: float) -> None:
    """Refuses a level that is no probability of missing.

    Raises:
        UsageError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise UsageError(f"a level of {level:g} is no probability: 0.05 asks for intervals of 95 % confidence")
