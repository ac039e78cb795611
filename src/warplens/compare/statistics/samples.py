"""The durations of a side, and where their centre lies on the scale of logarithms.

What is averaged are units: the median of each block, or, where there is one block only, its steps. On the scale of
logarithms a ratio is a difference, and exchanging the sides changes its sign alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    return centre, squares / (kept * (kept - 1))


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
