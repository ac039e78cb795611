"""The distributions behind intervals and plans: SciPy's special functions, loaded when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from warplens.compare.statistics.samples import Float64s

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
        level: how often the interval misses.
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
