"""Statistics of repeated measurements: the median with a confidence interval, outliers, and drift.

Uses the standard library only. All methods are distribution-free, since times follow none of the usual distributions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist, fmean, median, stdev
from typing import Final

#: A time this many interquartile ranges outside the quartiles is an outlier: Tukey's "far out" (Exploratory Data
#: Analysis, 1977). The usual 1.5 would flag one time in a hundred of a skewed but healthy distribution.
FAR_OUT: Final = 3.0

#: A drift matters if its p-value is below this …
_DRIFT_SIGNIFICANCE: Final = 0.001
#: … and the median changes by more than this share from the first third of the samples to the last.
_DRIFT_SHARE: Final = 0.02
#: Least number of samples for the test.
_DRIFT_LEAST: Final = 10


@dataclass(frozen=True)
class Summary:
    """Distribution of a sample; times in nanoseconds."""

    samples: int
    median: float
    #: low, high: interval of the median; None with too few samples
    low: int | None
    high: int | None
    confidence: float  #: of the interval, at least; 0 to 1
    #: minimum … maximum: percentiles, interpolated linearly between neighbouring samples
    minimum: int
    p5: float
    p25: float
    p75: float
    p95: float
    p99: float
    maximum: int
    mean: float
    deviation: float | None  #: standard deviation of the sample (n − 1); None for a single one
    outliers: int  #: samples more than `FAR_OUT` interquartile ranges outside the quartiles; included in all figures

    @property
    def half_width_share(self) -> float | None:
        """Half the interval's width as a share of the median; None without an interval."""
        if self.low is None or self.high is None or not self.median:
            return None
        return (self.high - self.low) / 2 / self.median


def summary(times_ns: Sequence[int], confidence: float = 0.95, rounds: int = 1) -> Summary:
    """The distribution of times, which are given round by round.

    Times of one round are correlated, so the median and its interval are those of the rounds' medians. All other
    figures are those of all times.

    Raises:
        ValueError: there are none, or they do not divide into so many rounds.
    """
    if not times_ns:
        raise ValueError("no times to summarise")
    ordered = sorted(times_ns)
    medians = ordered if rounds == 1 else sorted(round_medians(times_ns, rounds))
    low, high = median_interval(medians, confidence) or (None, None)
    return Summary(
        samples=len(ordered),
        median=float(median(medians)),
        low=low,
        high=high,
        confidence=confidence,
        minimum=ordered[0],
        p5=percentile(ordered, 5),
        p25=percentile(ordered, 25),
        p75=percentile(ordered, 75),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        maximum=ordered[-1],
        mean=fmean(ordered),
        deviation=stdev(ordered) if len(ordered) > 1 else None,
        outliers=outliers(ordered),
    )


def is_known(times_ns: Sequence[int], confidence: float, precision: float) -> bool:
    """Whether half the interval of the median is at most this share of the median."""
    half = summary(times_ns, confidence).half_width_share
    return half is not None and half <= precision


def round_medians(times_ns: Sequence[int], rounds: int) -> list[int]:
    """The median of each round, in nanoseconds, rounded.

    Raises:
        ValueError: the times do not divide into so many rounds.
    """
    size, rest = divmod(len(times_ns), rounds)
    if rest or not size:
        raise ValueError(f"{len(times_ns)} times do not divide into {rounds} rounds")
    return [round(median(times_ns[start : start + size])) for start in range(0, len(times_ns), size)]


def percentile(ordered: Sequence[int], percent: float) -> float:
    """Percentile of sorted samples, linear between neighbours (definition 7 of Hyndman and Fan, 1996)."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median_interval(ordered: Sequence[int], confidence: float) -> tuple[int, int] | None:
    """Two of the sorted samples that enclose the population's median with at least this confidence.

    The number of samples below the median is binomial with p = ½, whatever the distribution: the k-th smallest and the
    k-th largest sample enclose it with probability 1 − 2·P(B < k). The largest such k is taken (David and Nagaraja,
    Order Statistics, 2003, section 7.1). None if there are too few samples: six for 95 %.
    """
    count, k, below = len(ordered), 0, 0.0
    while k < count // 2:
        below += math.comb(count, k) / 2**count
        if 1 - 2 * below < confidence:
            break
        k += 1
    return (ordered[k - 1], ordered[count - k]) if k else None


def outliers(ordered: Sequence[int]) -> int:
    """The number of sorted samples far outside the quartiles (`FAR_OUT`)."""
    first, third = percentile(ordered, 25), percentile(ordered, 75)
    margin = FAR_OUT * (third - first)
    return sum(not first - margin <= time <= third + margin for time in ordered)


@dataclass(frozen=True)
class Drift:
    """A trend over the repetitions, as caused by throttling or rising clocks."""

    share: float  #: change from the median of the first third to that of the last; positive if times grew
    significance: float  #: p-value of the trend

    @property
    def matters(self) -> bool:
        """Whether it is both significant and large."""
        return self.significance < _DRIFT_SIGNIFICANCE and abs(self.share) > _DRIFT_SHARE


def drift(times_ns: Sequence[int]) -> Drift | None:
    """The trend of the times in the order of measurement; None with fewer than ten.

    Mann–Kendall test: pairs in rising order against pairs in falling order, normal approximation with the correction
    for ties.
    """
    count = len(times_ns)
    if count < _DRIFT_LEAST:
        return None
    rising = sum((later > earlier) - (later < earlier) for earlier, later in combinations(times_ns, 2))
    ties = [times_ns.count(value) for value in set(times_ns)]
    variance = (count * (count - 1) * (2 * count + 5) - sum(size * (size - 1) * (2 * size + 5) for size in ties)) / 18
    z = 0.0 if variance <= 0 or not rising else (abs(rising) - 1) / math.sqrt(variance)
    third = count // 3
    first, last = median(times_ns[:third]), median(times_ns[-third:])
    return Drift(share=(last - first) / first if first else 0.0, significance=2 * NormalDist().cdf(-z))
