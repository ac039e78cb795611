"""Statistics of repeated times, against hand counts, simulation and NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest

from warplens.workloads.samples import (
    drift,
    median_interval,
    outliers,
    percentile,
    round_medians,
    summary,
)


def test_six_samples_are_the_fewest_with_a_95_percent_interval():
    # All six lie on one side of the median with probability 2 / 2⁶ = 3.1 %; with five it would be 6.3 %.
    assert median_interval([1, 2, 3, 4, 5, 6], 0.95) == (1, 6)
    assert median_interval([1, 2, 3, 4, 5], 0.95) is None


def test_the_interval_of_thirty_samples_is_the_tenth_and_the_twenty_first():
    # The row n = 30 of printed tables for the sign test at 5 %.
    assert median_interval(list(range(1, 31)), 0.95) == (10, 21)


def test_the_interval_covers_the_median_as_often_as_it_says():
    draw = random.Random(7)
    hits = 0
    for _ in range(2000):
        sample = sorted(int(draw.expovariate(1e-6)) for _ in range(25))
        low, high = median_interval(sample, 0.95)
        hits += low <= 693_147 <= high  # the median of that distribution is ln 2 · 10⁶
    # For 25 samples the exact coverage is 95.7 %; four standard errors of 2000 trials are 1.8 points.
    assert 0.939 < hits / 2000 < 0.976


@pytest.mark.parametrize("percent", [0, 5, 25, 50, 95, 99, 100])
def test_percentiles_are_those_of_numpy(percent):
    times = sorted(random.Random(3).choices(range(1000), k=37))
    assert percentile(times, percent) == pytest.approx(float(np.percentile(times, percent)))


def test_a_far_value_is_an_outlier_and_stays_in_the_figures():
    times = [100, 101, 99, 102, 98, 100, 500]
    assert outliers(sorted(times)) == 1
    assert summary(times).maximum == 500
    assert summary(times).mean == pytest.approx(157.142857)


def test_equal_times_have_no_spread_and_no_drift():
    spread = summary([5] * 12)
    assert (spread.low, spread.high, spread.half_width_share, spread.outliers) == (5, 5, 0.0, 0)
    assert drift([5] * 12).significance == 1.0


def test_times_that_grow_are_a_drift_and_shuffled_ones_are_not():
    growing = [1000 + 5 * index for index in range(40)]
    assert drift(growing).matters
    assert drift(growing).share == pytest.approx((1195 - 30 - 1000 - 30) / 1030, abs=0.01)
    random.Random(1).shuffle(growing)
    assert not drift(growing).matters


def test_a_clear_but_tiny_trend_does_not_matter():
    found = drift([1_000_000 + index for index in range(60)])
    assert found.significance < 1e-6
    assert not found.matters


def test_mann_and_kendalls_test_by_hand():
    # 36 pairs rise and 9 fall: S = 27. Without ties its variance is 10 · 9 · 25 / 18 = 125, so z = 26 / √125 = 2.3255,
    # which a table of the normal distribution puts at 2 · 0.01002.
    assert drift([3, 1, 4, 6, 5, 9, 2, 7, 8, 10]).significance == pytest.approx(0.02004, abs=0.00002)


def test_no_times_are_no_summary():
    with pytest.raises(ValueError, match="no times"):
        summary([])


def test_the_interval_is_that_of_the_rounds_not_of_repetitions_that_err_together():
    # Eight rounds of five equal repetitions: forty samples, but only eight that are independent.
    times = [1000 + 10 * round_ for round_ in (3, 1, 7, 0, 5, 2, 6, 4) for _ in range(5)]
    spread = summary(times, rounds=8)
    # Of eight samples the smallest and largest enclose the median with 99.2 %; the next ones with 93.0 %, too little.
    assert (spread.low, spread.median, spread.high) == (1000, 1035, 1070)
    assert summary(times).low > spread.low
    assert spread.samples == 40


def test_times_that_do_not_divide_into_rounds_are_refused():
    with pytest.raises(ValueError, match="7 times do not divide into 2 rounds"):
        round_medians([1] * 7, 2)
