"""How many blocks a decision needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from warplens.compare.statistics.student import detection_power, t_cdf, t_quantile, variance_limit

if TYPE_CHECKING:
    from warplens.compare.statistics.shift import Shift

__all__ = ["POWER", "needed_units"]

#: How often the comparison, repeated with as many blocks as were said to be needed, decides.
POWER: Final = 0.8
#: A variance from few blocks is uncertain, and blocks that were planned with one that is too small do not decide: it
#: is taken as large as this confidence allows (Browne, Statistics in Medicine 14 (1995), 1933–1940).
_VARIANCE_CONFIDENCE: Final = 0.8
#: A trend that chance shows in one of a hundred cases will be there again, and no number of blocks takes it away.
#: Lesser ones widen the interval of the blocks at hand, and are expected to be gone from more of them.
_CLEAR_TREND: Final = 0.01
#: Nobody repeats more often than this.
_MOST: Final = 100_000


def needed_units(shift: Shift, margin: float, *, power: float = POWER) -> int | None:
    """Units that each side needs, in all, for a verdict other than undecided; None if no number of them would do.

    It is the smaller one of two: those that show a difference, and those that put the whole interval within the
    margin. A difference that was observed beyond the margin may be smaller in truth: it is taken one standard error
    nearer, though not nearer than the margin. What a clear drift may have made stays, however many units there are.

    Args:
        shift: what was observed.
        margin: the share below which differences do not matter.
        power: how often the verdict is to be reached.
    """
    if not shift.freedom:
        return None
    limit, observed = math.log1p(margin), abs(shift.estimate)
    drift = max([0.0, *(abs(seen.shift) for seen in shift.trends if seen and seen.significance < _CLEAR_TREND)])
    sought = max(min(observed, limit), observed - shift.error, observed / 2)
    variance = shift.variance * variance_limit(shift.freedom, _VARIANCE_CONFIDENCE)

    def decides(count: int) -> bool:
        error = math.sqrt(variance / count)
        freedom = max(shift.freedom * count / shift.count, 1.0)
        if sought > drift and detection_power(sought - drift, error, freedom, shift.level) >= power:
            return True
        return _same_power(observed, limit - drift, error, freedom, shift.level) >= power

    low, high = shift.fewest, shift.fewest + 1
    while not decides(high):
        low, high = high, high * 2
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _same_power(difference: float, limit: float, error: float, freedom: float, level: float) -> float:
    """How often the whole interval lies within ±limit.

    Source: two one-sided tests, Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987), 657–680.
    """
    if difference >= limit:
        return 0.0
    if error <= 0:
        return 1.0
    critical = t_quantile(level, freedom)
    upper, lower = (limit - difference) / error - critical, (limit + difference) / error - critical
    return max(0.0, t_cdf(upper, freedom) + t_cdf(lower, freedom) - 1)
