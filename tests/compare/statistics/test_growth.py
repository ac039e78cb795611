"""The exponent of a power law against planted ones: how often its interval holds, and where no law does."""

from __future__ import annotations

import numpy as np
import pytest

from warplens.studies.reports.growth import WITHIN, power_law

DOUBLINGS = [1, 2, 4, 8, 16, 32]


def test_an_exact_law_is_found_exactly():
    law = power_law(DOUBLINGS, [3e6 * size**1.5 for size in DOUBLINGS])
    assert (law.exponent, law.low, law.high) == pytest.approx((1.5, 1.5, 1.5))
    assert law.factor == pytest.approx(3e6)
    assert (law.smallest_size, law.largest_size, law.points, law.holds) == (1, 32, 6, True)


@pytest.mark.parametrize("count", [3, 4, 6])
@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("noise", [0.003, 0.02])
def test_the_interval_holds_the_planted_exponent_as_often_as_it_says(count, exponent, noise):
    """In 2,000 draws a true 95 % is within ± 1.5 % (three standard errors); noise of 2 % may cost a range, not more."""
    draws = np.random.default_rng(count * 10 + int(exponent))
    sizes = np.array(DOUBLINGS[:count], dtype=float)
    held = 0
    for _ in range(2000):
        times = 1e6 * sizes**exponent * np.exp(draws.normal(0, noise, count))
        law = power_law(sizes, times, [2 * noise] * count)
        held += law is not None and law.low <= exponent <= law.high
    assert abs(held / 2000 - 0.95) <= 0.015


def test_a_floor_is_separated_from_the_law_above_it():
    """A host that takes 4 ms, and a GPU whose time is proportional: the law holds where the GPU decides."""
    sizes = [1, 2, 4, 8, 16, 32, 64]
    law = power_law(sizes, [max(4.0, 0.6 * size) for size in sizes])
    assert (law.smallest_size, law.largest_size, law.holds) == (8, 64, True)
    assert law.exponent == pytest.approx(1.0)
    assert (law.first, law.last) == pytest.approx((0.0, 1.0))


def test_a_fixed_cost_beside_the_work_is_no_law():
    """Linear, quadratic, with no straight part of four sizes: the fit over all is told, and that it does not hold."""
    sizes = [1, 2, 4, 8, 16]
    law = power_law(sizes, [5 + size + 0.5 * size**2 for size in sizes])
    assert not law.holds
    assert (law.points, law.off_share > WITHIN, law.last > law.first + 1) == (5, True, True)


def test_uncertain_times_may_be_farther_off():
    sizes, times = [1, 2, 4], [1.0, 2.3, 4.0]
    sure, unsure = power_law(sizes, times), power_law(sizes, times, [0.1] * 3)
    assert (sure.holds, unsure.holds) == (False, True)


def test_two_sizes_have_no_error_and_no_law():
    assert power_law([1, 2], [1, 2]) is None
