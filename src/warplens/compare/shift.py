"""The durations of two sides, where their centres lie on the scale of logarithms, and how far apart those are.

What is averaged are units: the median of each block, or, where there is one block only, its steps. On the scale of
logarithms a ratio is a difference, and exchanging the sides changes its sign alone. The error of that difference allows
for what the order of the units tells: neighbours that resemble each other, and times that drift.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from warplens.errors import UsageError
from warplens.profile.schema import Float64s


@dataclass(frozen=True, eq=False)
class Samples:
    """Durations of one side of a comparison, in nanoseconds.

    A block is what one start of a program, one file or one turn among others gave. Durations of a block share what
    happened on the machine meanwhile (clocks, placement, neighbours), so that they resemble each other more than they
    do those of another block: only blocks are independent of each other.
    """

    #: one array a block, in the order in which they were taken; each holds at least one duration, above zero
    blocks: tuple[Float64s, ...]
    #: whether block i of this side was taken next to block i of the other side (in turns), so that the two share what
    #: happened then
    paired: bool = False

    def __post_init__(self) -> None:
        if not self.blocks or any(block.ndim != 1 or not block.size for block in self.blocks):
            raise UsageError("there are no durations to compare: a side needs a block, and each block a duration")
        if any(not np.isfinite(block).all() or (block <= 0).any() for block in self.blocks):
            raise UsageError("durations must be above zero")

    @classmethod
    def of(cls, blocks: Iterable[Sequence[float] | npt.NDArray[np.generic]], paired: bool = False) -> Samples:
        """Samples of any sequences of numbers."""
        return cls(tuple(np.asarray(block, dtype=np.float64) for block in blocks), paired)

    @property
    def count(self) -> int:
        """Durations in all blocks."""
        return sum(block.size for block in self.blocks)

    @property
    def values(self) -> Float64s:
        """All durations, block after block."""
        return np.concatenate(self.blocks)

    @property
    def median_ns(self) -> float:
        """Median of the blocks' medians: each block has one vote, however many durations it holds."""
        return float(np.median([np.median(block) for block in self.blocks]))


#: Share of the units that is left out at each end. One round in ten that a neighbour on the machine made half as slow
#: again is ordinary: it makes the interval of a mean five times wider, and that of a trimmed mean hardly at all.
TRIMMED_SHARE: Final = 0.2
#: With fewer units none can be spared.
TRIMMED_FROM: Final = 5


@dataclass(frozen=True)
class Location:
    """The centre of some units."""

    centre: float  #: their trimmed mean; a logarithm of nanoseconds, or of a ratio
    variance: float  #: of the centre, as if the units were independent; infinite for a single unit
    freedom: float  #: degrees of freedom of the variance; 0 for a single unit
    count: int  #: units

    @property
    def spread(self) -> float:
        """Variance of a unit: what `count` of them leave in the centre, times `count`."""
        return self.variance * self.count


def units(samples: Samples) -> Float64s:
    """Logarithms of what varies independently: the blocks' medians, or the steps of an only block, in their order."""
    if len(samples.blocks) == 1:
        return np.asarray(np.log(samples.blocks[0]), dtype=np.float64)
    return np.asarray(np.log(block_medians(samples)), dtype=np.float64)


def block_medians(samples: Samples) -> Float64s:
    """The median of each block, in nanoseconds."""
    if len({block.size for block in samples.blocks}) == 1:
        return np.asarray(np.median(np.stack(samples.blocks), axis=1), dtype=np.float64)
    return np.array([np.median(block) for block in samples.blocks])


def cut(*counts: int) -> float:
    """Share to leave out at each end of every side: the same on both, or they would be centres of different kinds."""
    return TRIMMED_SHARE if min(counts) >= TRIMMED_FROM else 0.0


def location(values: Float64s, trimmed: float) -> Location:
    """The trimmed mean of units and its variance, from the winsorised one.

    Source: Yuen, The two-sample trimmed t for unequal population variances, Biometrika 61 (1974), 165–170.
    """
    count = values.size
    if count == 1:
        return Location(float(values[0]), math.inf, 0.0, 1)
    centres, variances = centres_and_variances(values, trimmed)
    # Units that agree to the nanosecond but for the outliers would claim to know their centre exactly.
    variance = float(variances) or float(values.var(ddof=1)) / count
    return Location(float(centres), variance, count - 2 * int(trimmed * count) - 1, count)


def centres_and_variances(values: Float64s, trimmed: float) -> tuple[Float64s, Float64s]:
    """Trimmed means and their variances along the last axis, which holds at least two values."""
    count = values.shape[-1]
    gone = int(trimmed * count)
    kept = count - 2 * gone
    ordered = np.sort(values, axis=-1)
    core = ordered[..., gone : count - gone]
    centre = core.mean(axis=-1)
    ends = core[..., 0], core[..., -1]
    winsorised = (core.sum(axis=-1) + gone * (ends[0] + ends[1])) / count
    squares = ((core - winsorised[..., None]) ** 2).sum(axis=-1)
    squares += gone * ((ends[0] - winsorised) ** 2 + (ends[1] - winsorised) ** 2)
    # Equal values differ from their own mean by its rounding, which is no variance: clocks that tick in microseconds
    # give many equal durations, and a resample of nothing else would lie 10^14 standard errors away.
    return centre, np.where(ends[0] == ends[1], 0.0, squares / (kept * (kept - 1)))


#: Nodes of the mean over χ² in `power`: exact to 1e-6 from one degree of freedom on.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


def two_sided(t: npt.ArrayLike, freedom: npt.ArrayLike) -> Float64s:
    """How often Student's |T| with so many degrees of freedom is at least |t|."""
    from scipy import special

    return np.asarray(2 * special.stdtr(freedom, -np.abs(t)), dtype=np.float64)


def t_quantile(level: npt.ArrayLike, freedom: npt.ArrayLike) -> Float64s:
    """What Student's |T| exceeds in this share of all cases: 1.96 for 0.05 and many degrees of freedom."""
    from scipy import special

    return np.asarray(-special.stdtrit(freedom, np.minimum(level, 1.0) / 2), dtype=np.float64)


def power(difference: float, limit: float, error: float, freedom: float, level: float) -> tuple[float, float]:
    """How often an interval of this level excludes zero, and how often all of it lies within ±limit.

    The interval reaches c·s to either side of an estimate whose error is normal, and s/error is the root of χ²/f: both
    are means over χ², taken at the nodes of a quadrature over its quantiles. That is the non-central t distribution and
    the two one-sided tests (Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987), 657–680). SciPy has the first alone, and
    NaN for its far tail, with 14 degrees of freedom from 12 standard errors on.

    Args:
        difference: the true one, and `limit`, on the scale of the error.
        error: standard error of the estimate; 0 for one that is known.
        freedom: degrees of freedom of the error.
    """
    from scipy import special

    if error <= 0:
        return 1.0, float(difference < limit)
    shares = (_NODES + 1) / 2
    reach = t_quantile(level, freedom) * np.sqrt(special.chdtri(freedom, 1 - shares) / freedom)
    place, most = abs(difference) / error, limit / error
    excludes = special.ndtr(place - reach) + special.ndtr(-place - reach)
    within = np.maximum(special.ndtr(most - reach - place) - special.ndtr(reach - most - place), 0.0)
    return float(excludes @ _WEIGHTS) / 2, float(within @ _WEIGHTS) / 2


def variance_limit(freedom: float, confidence: float) -> float:
    """By what factor a variance, estimated with so many degrees of freedom, may be too small at this confidence."""
    from scipy import special

    return float(freedom / special.chdtri(freedom, confidence))


# Steps of one run, and runs one after another on one machine, are no independent draws: clocks, heat and neighbours
# change slowly. An interval that ignores it claims too much: in simulated runs whose steps correlate by 0.7 with the
# next, an interval for independent steps misses the truth in 38 of 100 cases instead of in 5.


#: Fewer units show no correlation and no trend that chance could not.
ORDER_FROM: Final = 5
#: A correlation beyond this cannot be told from a drift in the few units that there are.
_MOST_CORRELATION: Final = 0.9
#: A trend counts if chance alone would show one as clear in fewer than one of twenty cases.
_TREND_SIGNIFICANCE: Final = 0.05
#: Kendall's test looks at every pair: a trend over more units shows as well in the medians of groups of them.
_TREND_UP_TO: Final = 400


def dependence(*sides: Float64s) -> Float64s:
    """By what factor the variance of a centre is larger than if its units were independent; at least 1.

    That of a series whose correlation ρ decays geometrically: (1 + ρ)/(1 − ρ). ρ is the lag-1 correlation of ranks,
    so that one outlier does not hide it, pooled over the sides. A short series underestimates ρ by about (1 + 4ρ)/n
    (Marriott and Pope, Biometrika 41 (1954), 390–402); half of that is given back: all of it would make ρ so uncertain
    that intervals from ten steps become twice as wide, and half is what keeps them honest in simulations
    (docs/explanation/comparison-statistics.md).

    Args:
        sides: units in their order along the first axis; further axes are other series, answered one by one.
    """
    long = [side for side in sides if len(side) > 1]
    if not long:
        return np.ones(sides[0].shape[1:])
    lengths = [len(side) for side in long]
    raw = sum(_lag_one(side) * length for side, length in zip(long, lengths, strict=True)) / sum(lengths)
    length = sum(lengths) / len(lengths)
    correlation = np.clip((length * raw + 1) / max(length - 2, 1), 0.0, _MOST_CORRELATION)
    return np.asarray((1 + correlation) / (1 - correlation), dtype=np.float64)


def _lag_one(side: Float64s) -> Float64s:
    ranks = np.argsort(np.argsort(side, axis=0, kind="stable"), axis=0, kind="stable") - (len(side) - 1) / 2
    correlation = (ranks[1:] * ranks[:-1]).sum(axis=0) / (ranks**2).sum(axis=0)
    return np.where((side == side[0]).all(axis=0), 0.0, correlation)


@dataclass(frozen=True)
class Trend:
    """Whether the units of one or both sides rise or fall in their order."""

    significance: float  #: how often chance alone would show a trend as clear, in either direction
    shift: float  #: how far the centre would move over the length of the side if the trend is a line; a logarithm

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


#: Resamples of the bootstrap; a quantile at 5 % of so many is uncertain by half a per cent of the samples.
RESAMPLES: Final = 1999
#: With fewer units a side, so many resamples repeat one another, and their quantiles say little: Student's t is used.
RESAMPLED_FROM: Final = 8
#: With more units than this, both agree to a per cent, and resampling takes memory for nothing.
RESAMPLED_UP_TO: Final = 200


@dataclass(frozen=True)
class Shift:
    """The logarithm of variant / baseline, and how sure it is."""

    estimate: float  #: trimmed mean of the variant's units − that of the baseline's; in turns, of their differences
    #: its standard error, dependence of neighbours included; infinite if the data show no variation at all
    error: float
    freedom: float  #: degrees of freedom of the error; 0 if it is infinite
    critical: float  #: standard errors from the estimate to either end of the interval
    level: float  #: how often the interval misses
    #: how much of the shift, either way, a drift may have made: which side was measured first is not known
    drift: float
    variance: float  #: of a single unit of each side together: with n units a side, the squared error is this / n
    count: int  #: units of the smaller side; where one side is a single run, blocks of the other
    fewest: int  #: what each side has at least: `count`, or the 1 of a single run
    paired: bool  #: whether the sides were compared turn by turn
    resampled: bool  #: whether the bootstrap had a say in `critical`
    dependence: float  #: see `dependence`; 1 if units are as good as independent
    #: the trends of the baseline, the variant and both, as far as they can be seen; empty in turns
    trends: tuple[Trend | None, Trend | None, Trend | None]

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the interval: what chance may have done, and beyond it what a drift may have done."""
        if not self.freedom:
            return -math.inf, math.inf
        reach = self.critical * self.error + self.drift
        return self.estimate - reach, self.estimate + reach


def in_turns(baseline: Samples, variant: Samples) -> bool:
    """Whether block i of one side was taken next to block i of the other."""
    return baseline.paired and variant.paired and len(baseline.blocks) == len(variant.blocks) > 1


def shift_between(baseline: Samples, variant: Samples, *, level: float, seed: int) -> Shift:
    """The shift from the baseline to the variant.

    The error is that of the trimmed mean (Yuen, 1974), with Welch's degrees of freedom for two sides, enlarged by the
    dependence of neighbours. How many of it the interval reaches is the larger one of Student's t and of the
    studentised bootstrap of whole units (Davison and Hinkley, Bootstrap Methods and their Application, 1997, sections
    3.8 and 5.2; Hall, Ann. Statist. 16 (1988), 927–953): blocks are drawn, steps within them are not drawn again.
    """
    before, after = units(baseline), units(variant)
    if in_turns(baseline, variant):
        return _paired(after - before, level, seed)
    trimmed = cut(before.size, after.size)
    one, other = location(before, trimmed), location(after, trimmed)
    single = len(baseline.blocks) == 1, len(variant.blocks) == 1
    factor = 1.0
    if any(single) or min(before.size, after.size) >= ORDER_FROM:
        factor = float(dependence(before, after))
    one, other = _dependent(one, factor), _dependent(other, factor)
    if single == (True, False):
        one = _as_variable_as(one, other)
    elif single == (False, True):
        other = _as_variable_as(other, one)
    error, freedom = _welch(one, other)
    critical, resampled = _critical((before, after), trimmed, freedom, level, seed)
    trends = trend(before), trend(after), trend(before, after)
    return Shift(
        estimate=other.centre - one.centre,
        error=error,
        freedom=freedom,
        critical=critical,
        level=level,
        drift=max((abs(seen.shift) for seen in trends if seen and seen.matters), default=0.0),
        variance=one.spread + other.spread,
        count=max(one.count, other.count) if any(single) and not all(single) else min(one.count, other.count),
        fewest=min(one.count, other.count),
        paired=False,
        resampled=resampled,
        dependence=factor,
        trends=trends,
    )


def _paired(differences: Float64s, level: float, seed: int) -> Shift:
    trimmed = cut(differences.size)
    factor = float(dependence(differences)) if differences.size >= ORDER_FROM else 1.0
    middle = _dependent(location(differences, trimmed), factor)
    critical, resampled = _critical((differences,), trimmed, middle.freedom, level, seed)
    return Shift(
        estimate=middle.centre,
        error=math.sqrt(middle.variance),
        freedom=middle.freedom,
        critical=critical,
        level=level,
        drift=0.0,
        variance=middle.spread,
        count=middle.count,
        fewest=middle.count,
        paired=True,
        resampled=resampled,
        dependence=factor,
        trends=(None, None, None),
    )


def _dependent(side: Location, factor: float) -> Location:
    """The side with as much less information as its units resemble each other."""
    freedom = max(side.freedom / factor, 1.0) if side.freedom else 0.0
    return Location(side.centre, side.variance * factor, freedom, side.count)


def _as_variable_as(run: Location, runs: Location) -> Location:
    """A side of a single run as one block, given at least the variation between runs that the other side shows."""
    if run.freedom and run.variance >= runs.spread:
        return Location(run.centre, run.variance, run.freedom, 1)
    return Location(run.centre, runs.spread, runs.freedom, 1)


def _welch(one: Location, other: Location) -> tuple[float, float]:
    """Standard error of a difference and its degrees of freedom (Welch, Biometrika 34 (1947), 28–35)."""
    if not (one.freedom and other.freedom):
        return math.inf, 0.0
    total = one.variance + other.variance
    if not total:
        return 0.0, one.freedom + other.freedom
    shares = one.variance / total, other.variance / total
    return math.sqrt(total), 1 / (shares[0] ** 2 / one.freedom + shares[1] ** 2 / other.freedom)


def _critical(
    sides: tuple[Float64s, ...], trimmed: float, freedom: float, level: float, seed: int
) -> tuple[float, bool]:
    """Standard errors to the end of the interval, and whether units were resampled to find it."""
    if not freedom:
        return math.inf, False
    student = float(t_quantile(level, freedom))
    if not all(RESAMPLED_FROM <= values.size <= RESAMPLED_UP_TO for values in sides):
        return student, False
    generator = np.random.default_rng(seed)
    distance, variance = np.zeros(RESAMPLES), np.zeros(RESAMPLES)
    for values in sides:
        drawn = values[generator.integers(0, values.size, (RESAMPLES, values.size))]
        centre, spread = centres_and_variances(drawn, trimmed)
        original, _ = centres_and_variances(values, trimmed)
        distance = (centre - original) - distance
        variance = variance + spread
    usable = variance > 0
    if not usable.any():
        return student, False
    return max(student, float(np.quantile(np.abs(distance[usable]) / np.sqrt(variance[usable]), 1 - level))), True
