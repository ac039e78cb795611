"""Against printed tables, closed forms, simulation and the library's own distributions where those hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from warplens.compare.statistics.estimates import power, t_quantile, two_sided, variance_limit


@pytest.mark.parametrize(
    ("level", "freedom", "printed"),
    [
        (0.05, 1, 12.7062),
        (0.05, 4, 2.77645),
        (0.01, 5, 4.03214),
        (0.20, 3, 1.63774),
        (0.05, 1e6, 1.95996),
    ],
)
def test_quantiles_are_those_of_printed_tables(level: float, freedom: float, printed: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(printed, rel=1e-5)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 5.0, 40.0, 1000.0])
def test_tails_of_one_and_two_degrees_of_freedom_have_closed_forms(t: float) -> None:
    assert float(two_sided(t, 1)) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-9)
    assert float(two_sided(t, 2)) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)


def test_far_tails_keep_their_digits() -> None:
    # Exact, with 20 degrees of freedom: P(|T| ≥ 40) = 1.4574697e-20, which a difference from one loses.
    assert float(two_sided(40, 20)) == pytest.approx(1.4574697e-20, rel=1e-6)
    assert float(two_sided(t_quantile(1e-12, 9), 9)) == pytest.approx(1e-12, rel=1e-6)


def test_a_quantile_is_where_its_tail_says() -> None:
    for level in (0.5, 0.1, 0.05, 0.001):
        for freedom in (1.0, 1.7, 3.0, 12.5, 80.0):
            assert float(two_sided(t_quantile(level, freedom), freedom)) == pytest.approx(level, rel=1e-6)


def test_power_agrees_with_a_simulated_test() -> None:
    generator = np.random.default_rng(1)
    count, difference, limit = 8, 1.5, 2.0
    sides = generator.normal(0, 1, (2, 20_000, count))
    error = np.sqrt(sides.var(axis=2, ddof=1).sum(axis=0) / count)
    estimate, reach = sides[1].mean(axis=1) + difference - sides[0].mean(axis=1), t_quantile(0.05, 14) * error
    excludes, within = power(difference, limit, math.sqrt(2 / count), 14, 0.05)
    assert excludes == pytest.approx((np.abs(estimate) > reach).mean(), abs=0.015)
    assert within == pytest.approx((np.abs(estimate) + reach < limit).mean(), abs=0.015)


@pytest.mark.parametrize(("freedom", "place"), [(1, 1.0), (1, 12.7), (2.3, 0.5), (5, 3.0), (19, 2.8), (400, 3.0)])
def test_power_is_that_of_the_non_central_t(freedom: float, place: float) -> None:
    critical = float(t_quantile(0.05, freedom))
    exact = stats.nct.sf(critical, freedom, place) + stats.nct.cdf(-critical, freedom, place)
    assert power(place, 1.0, 1.0, freedom, 0.05)[0] == pytest.approx(exact, abs=1e-5)


def test_power_holds_where_the_library_gives_none() -> None:
    # Why `stats.nct` is not used: its far tail is NaN, though the difference is certain to show.
    assert any(math.isnan(stats.nct.cdf(-t_quantile(0.05, freedom), freedom, 12.0)) for freedom in (5.5, 14, 400, 1e6))
    assert all(power(12.0, 1.0, 1.0, freedom, 0.05)[0] > 0.999 for freedom in (5.5, 14, 400, 1e6))
    assert power(0.5, 1.0, 0.0, 4, 0.05) == (1.0, 1.0)


def test_a_variance_of_few_degrees_of_freedom_may_be_much_too_small() -> None:
    # 4 / 1.649 and 20 / 14.578: printed quantiles of χ² at 20 %.
    assert variance_limit(4, 0.8) == pytest.approx(4 / 1.649, rel=1e-3)
    assert variance_limit(20, 0.8) == pytest.approx(20 / 14.578, rel=1e-3)
