"""Student's t: its tails, its quantiles, and those of its relatives that planning needs, with NumPy alone."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["detection_power", "t_cdf", "t_quantile", "two_sided", "variance_limit"]

Float64s = npt.NDArray[np.float64]

#: Nodes of Gauss–Legendre quadrature: errors stay below 1e-9, but for 1e-6 between one and two degrees of freedom.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
#: Beyond this many standard errors, no tail is left that a double could tell from the quadrature's rounding.
_FAR: Final = 38.0
#: From here on Student's t is the normal distribution to six digits.
_NORMAL_FROM: Final = 1e6


def two_sided(t: npt.ArrayLike, freedom: npt.ArrayLike) -> Float64s:
    """How often |T| is at least |t| with so many degrees of freedom (at least 1); 0 to 1, accurate to 1e-6.

    With t = √f·tan θ, the density becomes a power of the cosine: P(|T| < t) = 2·C·∫₀^θ cos^(f−1), C = Γ((f+1)/2) /
    (√π·Γ(f/2)). Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.
    """
    places, degrees = np.broadcast_arrays(np.abs(np.asarray(t, dtype=np.float64)), np.asarray(freedom, np.float64))
    degrees = np.clip(degrees, 1.0, _NORMAL_FROM)
    # Far out, the integrand of many degrees of freedom would be a needle between the nodes; with few it is wide.
    angle = np.arctan(np.where(degrees > _FAR, np.minimum(places, _FAR), places) / np.sqrt(degrees))[..., None]
    cosines = np.cos(angle * (_NODES + 1) / 2)
    integral = (np.power(cosines, degrees[..., None] - 1) * _WEIGHTS).sum(axis=-1) * angle[..., 0] / 2
    scale = np.reshape([_scale(value) for value in degrees.ravel().tolist()], degrees.shape)
    tails: Float64s = np.clip(1 - 2 * scale * integral, 0.0, 1.0)
    return tails


@lru_cache(maxsize=4096)
def _scale(freedom: float) -> float:
    return math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


def t_cdf(t: float, freedom: float) -> float:
    """How often T is at most t."""
    tail = float(two_sided(t, freedom)) / 2
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=4096)
def t_quantile(level: float, freedom: float) -> float:
    """What |T| exceeds in this share of all cases: 1.96 for 0.05 and many degrees of freedom."""
    if level >= 1:
        return 0.0
    # The normal quantile is always too low; Newton's method from there never passes the root of a convex tail.
    place = NormalDist().inv_cdf(1 - level / 2)
    for _ in range(100):
        tail = float(two_sided(place, freedom))
        density = 2 * _scale(freedom) / math.sqrt(freedom) * (1 + place**2 / freedom) ** (-(freedom + 1) / 2)
        step = (tail - level) / density
        place += step
        if abs(step) <= 1e-12 * place:
            break
    return place


def detection_power(difference: float, error: float, freedom: float, level: float) -> float:
    """How often an interval of this level excludes zero if the true difference is so many standard errors away.

    Source: the normal approximation to the non-central t, Johnson, Kotz and Balakrishnan, Continuous Univariate
    Distributions 2 (1995), (31.26): P(T′ ≤ t) ≈ Φ((t·(1 − 1/4f) − δ) / √(1 + t²/2f)).
    """
    if error <= 0:
        return 1.0
    critical = t_quantile(level, freedom)
    place = (critical * (1 - 1 / (4 * freedom)) - abs(difference) / error) / math.sqrt(1 + critical**2 / (2 * freedom))
    return NormalDist().cdf(-place)


def variance_limit(freedom: float, confidence: float) -> float:
    """By what factor a variance, estimated with so many degrees of freedom, may be too small at this confidence.

    Source: the quantile of χ² after Wilson and Hilferty (1931): f·(1 − 2/9f + z·√(2/9f))³.
    """
    spread = 2 / (9 * freedom)
    quantile = (1 - spread - NormalDist().inv_cdf(confidence) * math.sqrt(spread)) ** 3
    return 1 / max(quantile, 0.01)
