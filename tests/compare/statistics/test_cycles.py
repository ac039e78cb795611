"""Long steps that recur, planted with a known period: F against SciPy's analysis of variance, intervals by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.comparison_errors import recurring, some_longer
from scipy import stats

from warplens.compare.cycles import _recurrence, compare_cycles
from warplens.compare.decisions import compare, ratio_interval, regression
from warplens.compare.shift import Samples


def run(logs: np.ndarray) -> Samples:
    return Samples.of([1e6 * np.exp(logs)])


def planted(every: int, count: int, *, seed: int = 0, factor: float = 2.0, noise: float = 0.01) -> np.ndarray:
    """Logarithms of steps of which one in so many is `factor` times as long, from any phase on."""
    return some_longer(every, factor, noise=noise)(np.random.default_rng((every, count, seed)), count)[0]


def cycle(*sides: np.ndarray) -> int:
    return compare(*map(run, sides)).cycle


@pytest.mark.parametrize("every", [2, 3, 4, 5, 6, 10])
@pytest.mark.parametrize("cycles", [3, 3.4, 8])
def test_the_planted_period_is_found_in_any_phase_and_with_a_remainder(every, cycles):
    count = int(every * cycles)
    assert {cycle(planted(every, count, seed=seed), planted(every, count, seed=seed + 10)) for seed in range(10)} == {
        every
    }


def test_fewer_than_three_cycles_show_no_recurrence():
    assert cycle(planted(5, 15), planted(5, 14)) == 1


def test_sides_of_different_periods_and_a_side_without_long_steps_are_compared_by_steps():
    plain = np.random.default_rng(0).normal(0, 0.01, 40)
    assert cycle(planted(4, 40), planted(5, 40)) == 1
    assert cycle(planted(4, 40), plain) == 1
    assert cycle(plain, plain[::-1]) == 1


def test_equal_steps_do_not_recur():
    assert cycle(np.full(12, 0.1), np.full(12, 0.3)) == 1


def test_the_f_is_that_of_an_analysis_of_variance():
    logs = planted(4, 26)
    expected = stats.f_oneway(*(logs[phase::4] for phase in range(4)))
    assert _recurrence(run(logs), 4, 1) == pytest.approx(expected.statistic)


def test_the_interval_is_that_of_the_means_of_cycles():
    """Four whole cycles a side, and a remainder: Welch's interval of the logarithms of their means."""
    sides = np.exp([planted(3, 14, seed=seed) for seed in (1, 2)])
    before, after = (np.log(side[:12].reshape(4, 3).mean(axis=1)) for side in sides)
    found = compare_cycles(*(Samples.of([1e6 * side]) for side in sides), level=0.05, seed=0)
    assert found.shift.estimate == pytest.approx(after.mean() - before.mean())
    assert (found.length, found.shift.counts) == (3, (4, 4))


def test_long_steps_at_random_keep_the_wide_interval():
    generator = np.random.default_rng(5)
    sides = [some_longer(4, 2.0, at_random=True)(generator, 24) for _ in range(2)]
    assert compare(*(run(side[0]) for side in sides)).cycle == 1


@pytest.mark.parametrize(("every", "count"), [(3, 9), (4, 24), (5, 40)])
def test_a_slowdown_of_recurring_steps_is_found_and_none_where_there_is_none(every, count):
    found = recurring(some_longer(every, 2.0, noise=0.02), count, 60)
    assert found["by cycles"] > 0.95
    assert found["excludes 1"] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 60)
    assert found["found"] > 0.9


def test_no_difference_is_found_where_steps_are_long_at_random():
    found = recurring(some_longer(3, 1.5, noise=0.02, at_random=True), 24, 60)
    assert found["by cycles"] <= 0.02
    assert found["excludes 1"] <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 60)


def test_a_gate_judges_long_steps_that_recur():
    """Every fifth step takes 3 instead of 2: seven units of time in place of six, though most steps take 1."""
    found = compare(run(planted(5, 20, factor=2.0)), run(planted(5, 20, seed=1, factor=3.0)))
    answer = regression(found, 0.05)
    assert found.ratio.estimate == pytest.approx(7 / 6, rel=0.01)
    assert (answer.found, answer.means) == (True, None)
    same = regression(compare(run(planted(5, 20)), run(planted(5, 20, seed=1))), 0.05)
    assert (same.found, same.excluded) == (False, True)


def test_a_remainder_of_a_cycle_opens_no_gate():
    """14 steps of either side, with four and with three long ones: the mean of all steps is 10 % more."""
    before, after = np.random.default_rng(0).normal(0, 0.002, (2, 14))
    before[[3, 7, 11]] += math.log(3)
    after[[0, 4, 8, 12]] += math.log(3)
    answer = regression(compare(run(before), run(after)), 0.05)
    assert answer.excluded


def test_several_runs_are_compared_by_the_cycles_of_each():
    """Each of five runs begins at another phase; every fifth step takes 3 instead of 2."""
    sides = (
        Samples.of([1e6 * np.exp(planted(5, 20, seed=seed + 10 * factor, factor=factor)) for seed in range(5)])
        for factor in (2, 3)
    )
    found = compare(*sides)
    assert (found.cycle, found.unit, found.verdict) == (5, "blocks", "slower")
    assert found.ratio.estimate == pytest.approx(7 / 6, rel=0.01)


@pytest.mark.parametrize("count", [12, 17, 40])
def test_a_drift_that_goes_on_into_the_other_side_is_no_difference(count):
    """5 % a side with every fourth step twice as long; three or four cycles show it phase by phase."""
    decided = 0
    for seed in range(60):
        one, other = (planted(4, count, seed=2 * seed + side) for side in (0, 1))
        drift = np.linspace(0, 0.1, 2 * count)
        decided += ratio_interval(run(one + drift[:count]), run(other + drift[count:]), seed=seed).excludes_one
    assert decided <= 3


def test_the_number_needed_is_of_steps_and_how_names_the_cycles():
    sides = (run(planted(4, 24, seed=seed, noise=0.05) + shift) for seed, shift in ((0, 0.0), (1, 0.02)))
    found = compare(*sides)
    assert found.verdict == "undecided"
    assert found.needed_blocks % 4 == 0
    assert found.how.startswith("24 steps of one run against 24 steps of one run, by whole cycles of 4 steps")
