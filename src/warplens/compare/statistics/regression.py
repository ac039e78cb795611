"""Whether a comparison is a regression that should stop a build."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.compare.statistics.verdict import Comparison

__all__ = ["Regression", "regression"]


@dataclass(frozen=True)
class Regression:
    """Answer to "is the variant slower by more than this?".

    Attributes:
        found: it is decided that it is: the whole interval lies above the limit.
        excluded: it is decided that it is not: the whole interval lies at or below the limit. If neither, undecided.
        fail_on: the limit, a share: 0.05 for 5 %.
        sentence: the answer for people.
    """

    found: bool
    excluded: bool
    fail_on: float
    sentence: str

    @property
    def exit_code(self) -> int:
        """1 for a decided regression, otherwise 0."""
        return int(self.found)


def regression(comparison: Comparison, fail_on: float) -> Regression:
    """Whether the variant is slower by more than a limit.

    It is a regression if the low end of the ratio's interval lies above 1 + `fail_on`. An estimate beyond the limit
    whose interval reaches across it is no decision, and none stops a build: that would fail on noise. The margin of the
    comparison plays no part: with a limit of 0, any slowdown that is decided is a regression.

    Args:
        comparison: what `compare` found.
        fail_on: the limit, a share: 0.05 for 5 %.

    Raises:
        UsageError: the limit is negative or no number.
    """
    if not 0 <= fail_on < math.inf:
        raise UsageError(f"a limit of {fail_on:g} is none: 0.05 stands for a slowdown of 5 %")
    ratio, limit = comparison.ratio, 1 + fail_on
    found, excluded = ratio.low > limit, ratio.high <= limit
    if found:
        says = f"slower by more than {100 * fail_on:g} %: at least {_percent(ratio.low)}"
    elif excluded:
        says = f"not slower by more than {100 * fail_on:g} %: {_percent(ratio.high)} at most"
    elif math.isinf(ratio.high):
        says = f"undecided whether slower by more than {100 * fail_on:g} %: the data show no variation to judge by"
    else:
        says = (
            f"undecided whether slower by more than {100 * fail_on:g} %: between {_percent(ratio.low)} and "
            f"{_percent(ratio.high)}; more repeats narrow that"
        )
    return Regression(found, excluded, fail_on, says)


def _percent(ratio: float) -> str:
    """A ratio as a change: `+3.2 %`."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")
