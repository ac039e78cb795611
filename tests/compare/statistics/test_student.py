"""Against printed tables and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from warplens.compare.statistics.student import detection_power, t_cdf, t_quantile, two_sided, variance_limit


@pytest.mark.parametrize(
    ("level", "freedom", "printed"),
    [
        (0.05, 1, 12.7062),
        (0.05, 2, 4.30265),
        (0.05, 4, 2.77645),
        (0.05, 10, 2.22814),
        (0.05, 30, 2.04227),
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


def test_a_quantile_is_where_its_tail_says() -> None:
    for level in (0.5, 0.1, 0.05, 0.001):
        for freedom in (1.0, 1.7, 3.0, 12.5, 80.0):
            assert float(two_sided(t_quantile(level, freedom), freedom)) == pytest.approx(level, rel=1e-6)


def test_the_distribution_is_symmetric_and_far_tails_are_no_negative_numbers() -> None:
    assert t_cdf(1.3, 7) + t_cdf(-1.3, 7) == pytest.approx(1)
    assert (two_sided(np.array([60.0, 1e6]), np.array([200.0, 50.0])) >= 0).all()


def test_power_agrees_with_a_simulated_test() -> None:
    generator = np.random.default_rng(1)
    count, difference = 8, 1.5
    sides = generator.normal(0, 1, (2, 20_000, count))
    error = np.sqrt(sides.var(axis=2, ddof=1).sum(axis=0) / count)
    found = np.abs(sides[1].mean(axis=1) + difference - sides[0].mean(axis=1)) > t_quantile(0.05, 14) * error
    assert detection_power(difference, math.sqrt(2 / count), 14, 0.05) == pytest.approx(found.mean(), abs=0.015)


def test_a_variance_of_few_degrees_of_freedom_may_be_much_too_small() -> None:
    # 4 / 1.649 and 20 / 14.578: printed quantiles of χ² at 20 %.
    assert variance_limit(4, 0.8) == pytest.approx(4 / 1.649, rel=0.02)
    assert variance_limit(20, 0.8) == pytest.approx(20 / 14.578, rel=0.01)
