"""Against printed tables, closed forms, simulation and the library's own distributions where those hold.

The promises: no more false differences than the level, intervals that hold the truth, and enough blocks asked for.

The same measurements with more repetitions are in `benchmarks/comparison_errors.py`, whose stored figures the
documentation shows.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from benchmarks import comparison_errors
from benchmarks.comparison_errors import (
    SPLITS,
    aa_splits,
    coverage,
    gate_power,
    normal_blocks,
    one_run,
    outlier_blocks,
    planted,
    real_rounds,
    skewed_blocks,
    some_longer,
)
from scipy import stats

from tests.tiers import thinned
from warplens.compare.decisions import (
    Comparison,
    Interval,
    NoiseFloor,
    compare,
    needed_units,
    ratio_interval,
    regression,
)
from warplens.compare.many import DIFFERENCES, adjusted, many_differences
from warplens.compare.shift import (
    Samples,
    centres_and_variances,
    power,
    shift_between,
    t_quantile,
    two_sided,
    variance_limit,
)
from warplens.errors import UsageError


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
def test_quantiles_are_those_of_printed_tables(level, freedom, printed):
    assert t_quantile(level, freedom) == pytest.approx(printed, rel=1e-5)


def test_a_clock_that_ticks_coarsely_widens_no_interval():
    """Equal durations differ from their mean by its rounding; divided by that, a resample lies anywhere."""
    generator = np.random.default_rng(3)
    for count in (8, 10, 12):
        logs = generator.normal(0, 0.02, (2, count))
        exact = [Samples.of([1e6 * np.exp(side)]) for side in logs]
        ticks = [Samples.of([np.round(side.values / 2e4) * 2e4]) for side in exact]
        one, other = ratio_interval(*exact), ratio_interval(*ticks)
        assert math.log(other.high / other.low) < 3 * math.log(one.high / one.low)


def test_equal_durations_have_no_variance():
    for size in (8, 10, 13):
        centre, variance = centres_and_variances(np.log(np.full(size, 1_040_000.0)), 0.2)
        assert (float(variance), float(centre)) == (0.0, pytest.approx(math.log(1_040_000)))


def test_durations_without_any_variation_are_doubted_as_such_and_not_as_outliers():
    """A script that prints 2.0 ms and 2.2 ms each time; the ratio of the means is that of the logarithms."""
    found = compare(*(Samples.of([[ns]] * 4) for ns in (2_000_000, 2_200_000)))
    (doubt,) = (text for text in found.doubts if "turns" not in text)
    assert doubt.startswith("No duration of a side differs from its others")


def test_sides_too_far_apart_for_a_number_have_an_open_interval():
    """Two durations a side, from microseconds to days."""
    found = compare(Samples.of([[1e3, 1e16]]), Samples.of([[1e3, 1e15]]), level=1e-4)
    assert (found.verdict, found.ratio.low, found.ratio.high) == ("undecided", 0.0, math.inf)
    assert not regression(found, 0.05).found


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 5.0, 40.0, 1000.0])
def test_tails_of_one_and_two_degrees_of_freedom_have_closed_forms(t):
    assert float(two_sided(t, 1)) == pytest.approx(1 - 2 * math.atan(t) / math.pi, abs=1e-9)
    assert float(two_sided(t, 2)) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)


def test_far_tails_keep_their_digits():
    # Exact, with 20 degrees of freedom: P(|T| ≥ 40) = 1.4574697e-20, which a difference from one loses.
    assert float(two_sided(40, 20)) == pytest.approx(1.4574697e-20, rel=1e-6)
    assert float(two_sided(t_quantile(1e-12, 9), 9)) == pytest.approx(1e-12, rel=1e-6)


def test_a_quantile_is_where_its_tail_says():
    for level in (0.5, 0.1, 0.05, 0.001):
        for freedom in (1.0, 1.7, 3.0, 12.5, 80.0):
            assert float(two_sided(t_quantile(level, freedom), freedom)) == pytest.approx(level, rel=1e-6)


def test_power_agrees_with_a_simulated_test():
    generator = np.random.default_rng(1)
    count, difference, limit = 8, 1.5, 2.0
    sides = generator.normal(0, 1, (2, 20_000, count))
    error = np.sqrt(sides.var(axis=2, ddof=1).sum(axis=0) / count)
    estimate, reach = sides[1].mean(axis=1) + difference - sides[0].mean(axis=1), t_quantile(0.05, 14) * error
    excludes, within = power(difference, limit, math.sqrt(2 / count), 14, 0.05)
    assert excludes == pytest.approx((np.abs(estimate) > reach).mean(), abs=0.015)
    assert within == pytest.approx((np.abs(estimate) + reach < limit).mean(), abs=0.015)


def test_the_number_of_steps_needed_is_for_an_interval_as_wide_as_the_present_one():
    """Intervals three times as wide as Student's of normal data: the simulated power is 80 % with that number."""
    generator = np.random.default_rng(0)
    sides = [Samples.of([1e6 * np.exp(generator.normal(mean, 0.02, 20))]) for mean in (0, 0.035)]
    shift = shift_between(*sides, level=0.05, seed=0)
    shift = replace(shift, critical=3 * float(t_quantile(0.05, shift.freedom)), trends=(None, None, None))
    needed = needed_units(shift, 0.0)
    variance = shift.variance * variance_limit(shift.freedom, 0.8)
    freedom, error = shift.freedom * needed / shift.count, math.sqrt(variance / needed)
    assumed = max(shift.estimate - shift.error, shift.estimate / 2)
    estimates = generator.normal(assumed, error, 100_000)
    errors = error * np.sqrt(generator.chisquare(freedom, estimates.size) / freedom)
    found = (estimates > 3 * stats.t.ppf(0.975, freedom) * errors).mean()
    assert 20 < needed < 200
    assert found == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("freedom", "place"), [(1, 1.0), (1, 12.7), (2.3, 0.5), (5, 3.0), (19, 2.8), (400, 3.0)])
def test_power_is_that_of_the_non_central_t(freedom, place):
    critical = float(t_quantile(0.05, freedom))
    exact = stats.nct.sf(critical, freedom, place) + stats.nct.cdf(-critical, freedom, place)
    assert power(place, 1.0, 1.0, freedom, 0.05)[0] == pytest.approx(exact, abs=1e-5)


def test_power_holds_where_the_library_gives_none():
    # Why `stats.nct` is not used: its far tail is NaN, though the difference is certain to show.
    assert any(math.isnan(stats.nct.cdf(-t_quantile(0.05, freedom), freedom, 12.0)) for freedom in (5.5, 14, 400, 1e6))
    assert all(power(12.0, 1.0, 1.0, freedom, 0.05)[0] > 0.999 for freedom in (5.5, 14, 400, 1e6))


@pytest.mark.parametrize(
    ("difference", "excludes", "within"),
    [(0.5, True, True), (-0.5, True, True), (2.0, True, False), (-2.0, True, False), (0.0, False, True)],
)
def test_an_exact_estimate_is_an_interval_of_one_point(difference, excludes, within):
    assert power(difference, 1.0, 0.0, 4, 0.05) == (excludes, within)


def test_a_variance_of_few_degrees_of_freedom_may_be_much_too_small():
    # 4 / 1.649 and 20 / 14.578: printed quantiles of χ² at 20 %.
    assert variance_limit(4, 0.8) == pytest.approx(4 / 1.649, rel=1e-3)
    assert variance_limit(20, 0.8) == pytest.approx(20 / 14.578, rel=1e-3)


def test_adjusted_p_values_are_those_of_the_published_example():
    # The fifteen p-values of Benjamini and Hochberg (1995), section 3.2: four are rejected at 0.05.
    published = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344,
        0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000,
    ]  # fmt: skip
    corrected = adjusted(published)
    assert (corrected <= 0.05).sum() == 4
    assert corrected[3] == pytest.approx(0.0095 * 15 / 4)
    assert (np.diff(corrected) >= 0).all()
    assert (adjusted(published[::-1]) == corrected[::-1]).all()


def test_what_was_not_tested_does_not_count():
    corrected = adjusted([0.01, np.nan, 0.04])
    assert corrected[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(corrected[1])
    assert adjusted([]).size == 0


def steps(generator: np.random.Generator, rows: int = 10, columns: int = 100) -> np.ndarray:
    return generator.lognormal(10, 0.02, (rows, columns))


def test_of_a_hundred_unchanged_kernels_hardly_any_is_called_different():
    generator = np.random.default_rng(0)
    wrong = sum(
        many_differences(steps(generator), steps(generator))["verdict"].is_in(["faster", "slower"]).any()
        for _ in range(100)
    )
    assert wrong <= 5


def test_kernels_that_became_slower_are_found_among_a_hundred():
    generator = np.random.default_rng(1)
    before, after = steps(generator), steps(generator)
    after[:, 7] *= 1.2
    after[:, 42] *= 0.8
    found = many_differences(before, after)
    assert found.schema == DIFFERENCES.schema
    assert found["verdict"][7] == "slower"
    assert found["verdict"][42] == "faster"
    assert found.filter(found["verdict"].is_in(["faster", "slower"])).height <= 4
    assert found["difference_ns"].sum() == pytest.approx(after.sum(axis=1).mean() - before.sum(axis=1).mean())
    assert ((found["low_ns"] <= found["difference_ns"]) & (found["difference_ns"] <= found["high_ns"])).all()


def test_kernels_that_never_vary_differ_surely_or_not_at_all():
    found = many_differences(np.full((4, 3), 100.0), np.tile([100.0, 130.0, 101.0], (4, 1)))
    assert found["verdict"].to_list() == ["same", "slower", "same"]
    assert found["p_value"].to_list() == pytest.approx([1.0, 2 / math.comb(8, 4), 2 / math.comb(8, 4)])


@pytest.mark.parametrize("counts", [(2, 2), (2, 10), (3, 3)])
def test_kernels_of_a_few_ticks_are_no_findings(counts):
    """Sixty kernels of 1.2 to 300 µs that vary by 1 %, by a clock with ticks of 32 ns; none changed."""
    generator, families = np.random.default_rng(1), 0
    for _ in range(100):
        lengths = np.exp(generator.uniform(math.log(1200), math.log(3e5), 60))
        sides = [np.round(lengths * (1 + 0.01 * generator.normal(size=(count, 60))) / 32) * 32 for count in counts]
        families += many_differences(*sides)["verdict"].is_in(["faster", "slower"]).any()
    assert families <= 5


@pytest.mark.parametrize("counts", [(2, 10), (3, 50), (5, 30)])
@pytest.mark.parametrize("high", [0.1, 0.5], ids=["outliers", "two clock rates"])
def test_a_few_steps_against_many_are_not_taken_for_steadier(counts, high):
    """Steps of equal programs, of which a share takes 60 % or 10 % longer: the few often have none of these."""
    generator, size, decided = np.random.default_rng(2), 0.6 if high < 0.5 else 0.1, 0
    for _ in range(100):
        logs = [generator.normal(0, 0.01, count) + size * (generator.random(count) < high) for count in counts]
        decided += compare(*(Samples.of([1e6 * np.exp(side)]) for side in logs)).verdict in ("faster", "slower")
    assert decided <= 5


def test_equal_durations_are_equal_however_many_there_are():
    for count, ns in ((3, 2_698_597.0), (21, 8_506_391.0)):
        found = compare(Samples.of([[ns] * 13]), Samples.of([[ns] * count]), margin=0)
        assert found.verdict == "same"
        assert regression(found, 0.0).excluded


def test_a_slowdown_of_exactly_the_limit_is_not_beyond_it():
    for percent in range(1, 60):
        found = compare(Samples.of([[1e6] * 5]), Samples.of([[1e4 * (100 + percent)] * 5]), margin=percent / 100)
        answer = regression(found, percent / 100)
        assert (found.verdict, answer.found, answer.excluded) == ("same", False, True)


def test_the_gate_stops_no_build_for_a_difference_within_the_noise():
    generator = np.random.default_rng(0)
    sides = ((np.exp(shift + 0.01 * generator.standard_t(2, 10)) for shift in (0, 0.02)) for _ in range(600))
    found = [compare(*(Samples.of([1e6 * side]) for side in pair), margin=0) for pair in sides]
    within = [one for one in found if one.within_noise]
    assert within
    assert not any(regression(one, 0.0).found for one in within)


def test_the_gate_stops_no_build_for_a_difference_within_the_noise_and_the_margin():
    generator = np.random.default_rng(989)
    sides = [Samples.of([[1e6 * np.exp(mean + generator.normal(0, 0.0025))] for _ in range(6)]) for mean in (0, 0.004)]
    found = compare(*sides)
    assert found.ratio.low > 1
    assert found.ratio.estimate < 1 + found.noise.share
    answer = regression(found, 0.0)
    assert (found.verdict, answer.found, answer.excluded) == ("same", False, False)


def test_the_number_of_steps_that_an_open_gate_needs_is_that_for_its_limit():
    """8 % slower for certain; whether by more than 7.5 %, ten times as many steps show."""
    generator = np.random.default_rng(1)
    found = compare(*(Samples.of([1e6 * np.exp(generator.normal(mean, 0.02, 12))]) for mean in (0, math.log(1.08))))
    assert (found.verdict, found.needed_blocks) == ("slower", None)
    close, far = (regression(found, limit).needed_blocks for limit in (0.075, 0.06))
    assert close > far > 12


def test_a_kernel_of_one_side_only_has_no_ratio():
    generator = np.random.default_rng(2)
    before, after = np.zeros((6, 1)), generator.normal(1000, 5, (6, 1))
    found = many_differences(before, after).row(0, named=True)
    assert found["ratio"] is None
    assert found["verdict"] == "slower"


def test_constant_times_that_may_differ_by_chance_have_no_interval():
    found = many_differences([[1000.0, 7, 0]] * 2, [[1500.0, 7, 9]] * 2)
    assert found["verdict"].to_list() == ["undecided", "same", "slower"]
    assert found["low_ns"].to_list() == [-math.inf, 0, 9]
    assert found["high_ns"].to_list() == [math.inf, 0, 9]
    steady = many_differences([[1000.0]] * 6, [[1500.0]] * 6)
    assert steady.select("verdict", "low_ns", "high_ns").row(0) == ("slower", 500, 500)


def test_one_step_a_side_decides_nothing():
    found = many_differences([[100.0, 5.0]], [[300.0, 5.0]])
    assert found["verdict"].to_list() == ["undecided", "undecided"]
    assert found["p_value"].null_count() == 2


def test_steps_of_one_block_count_as_one():
    generator = np.random.default_rng(3)
    runs = [generator.normal(100, 5, (50, 2)) for _ in range(2)]
    blocks = np.repeat(np.arange(5), 10)
    given = many_differences(*runs, baseline_blocks=blocks, variant_blocks=blocks)
    means = [run.reshape(5, 10, 2).mean(axis=1) for run in runs]
    alone = many_differences(*means, baseline_blocks=np.arange(5), variant_blocks=np.arange(5))
    assert given.equals(alone)


@pytest.mark.parametrize(
    ("before", "after", "blocks"),
    [([[1.0, 2.0]], [[1.0]], None), ([], [[1.0]], None), ([[1.0], [2.0]], [[1.0]], [0])],
)
def test_matrices_that_do_not_match_are_refused(before, after, blocks):
    with pytest.raises(UsageError):
        many_differences(before, after, baseline_blocks=blocks)


def comparison(low: float, high: float) -> Comparison:
    ratio = Interval(low, math.sqrt(low * high) if low and not math.isinf(high) else 1.0, high, 0.05)
    return Comparison(ratio, "slower", NoiseFloor(None, 0.0, None, 0, "blocks"), None, 1.0, 1.0, "", ())


#: Interval of the ratio, limit → whether there is a regression, and whether it is excluded.
GATED = {
    "wholly above the limit": (1.06, 1.20, 0.05, True, False),
    "across the limit": (1.04, 1.20, 0.05, False, False),
    "below the limit": (0.90, 1.04, 0.05, False, True),
    "any sure slowdown, with a limit of zero": (1.001, 1.01, 0.0, True, False),
    "data without variation": (0.0, math.inf, 0.05, False, False),
}


@pytest.mark.parametrize(("low", "high", "limit", "found", "excluded"), GATED.values(), ids=GATED)
def test_only_an_interval_wholly_above_the_limit_stops_a_build(low, high, limit, found, excluded):
    answer = regression(comparison(low, high), limit)
    assert (answer.found, answer.excluded) == (found, excluded)


@pytest.mark.parametrize("limit", [-0.01, math.nan, math.inf])
def test_a_limit_that_is_no_share_is_refused(limit):
    with pytest.raises(UsageError):
        regression(comparison(1.0, 1.1), limit)


@pytest.mark.parametrize("kind", thinned(SPLITS, quick=list(SPLITS)[::3]))
def test_real_data_compared_with_themselves_show_no_more_differences_than_the_level(kind):
    """200 seeded splits each: alternating, contiguous halves (with whatever drift there is), at random, in turns."""
    found = aa_splits(kind, splits=200, level=0.05)
    assert found.decided <= 0.05 * found.splits
    assert found.same > 0


@pytest.mark.parametrize("draw", [normal_blocks, skewed_blocks, outlier_blocks])
@pytest.mark.parametrize("count", [3, 5, 10])
def test_intervals_from_few_blocks_hold_the_ratio(draw, count):
    assert coverage(draw, count, 120)["ours"] >= 0.92


@pytest.mark.parametrize("turns", [False, True])
def test_more_runs_make_the_gate_no_weaker(turns):
    """8 % slower, a limit of 5 %, independent runs that differ by 1 %: trimming may cost some points, no more."""
    found = [gate_power(runs, 150, turns=turns) for runs in (4, 5, 6, 8)]
    assert all(after > before - 0.08 for before, after in pairwise(found))
    assert found[-1] > 0.9


def test_intervals_of_independent_turns_are_about_as_wide_as_by_the_textbook():
    """Six points of a sweep, of ten rounds each; a third of them was more than four times as wide."""
    generator, wide, level = np.random.default_rng(1), 0, 0.05 / 6
    textbook = stats.t.ppf(1 - level / 2, 9) * 0.02 * math.sqrt(2 / 10)
    for _ in range(200):
        sides = (Samples.of(1e6 * np.exp(generator.normal(0, 0.02, (10, 1))), paired=True) for _ in range(2))
        interval = ratio_interval(*sides, level=level)
        wide += math.log(interval.high / interval.low) / 2 > 4 * textbook
    assert wide <= 6


@pytest.mark.parametrize("count", [6, 10])
def test_independent_runs_are_seldom_called_drifting(count):
    generator, drifting = np.random.default_rng(2), 0
    for _ in range(200):
        sides = (Samples.of(1e6 * np.exp(generator.normal(0, 0.01, (count, 1)))) for _ in range(2))
        drifting += shift_between(*sides, level=0.05, seed=0).drift > 0
    assert drifting <= 14


def test_without_an_order_neither_trends_nor_correlation_are_told():
    rising = 1e6 * np.exp(np.linspace(0, 0.3, 10))[:, None]
    known, unknown = (shift_between(side, side, level=0.05, seed=0) for side in _in_order_or_not(rising))
    assert (known.drift > 0, known.dependence > 1) == (True, True)
    assert (unknown.drift, unknown.dependence) == (0, 1)


@pytest.mark.parametrize("count", [12, 24, 40])
@pytest.mark.parametrize("every", [3, 4])
def test_a_slowdown_of_steps_of_two_kinds_is_found(count, every):
    """Every third or fourth step a quarter longer, 60 % more: whole cycles vary by less than a per cent."""
    for seed in range(10):
        generator = np.random.default_rng((count, every, seed))
        sides = [some_longer(every)(generator, count) + shift for shift in (0.0, math.log(1.6))]
        interval = ratio_interval(*(Samples.of(1e6 * np.exp(side)) for side in sides), seed=seed)
        assert 1.5 < interval.low < interval.high < 1.7


def test_three_steps_in_order_by_chance_count_as_more_than_one():
    """The steps of a real pair, which ran 7.4 times as fast: both sides happen to fall from step to step."""
    sides = (Samples.of([steps]) for steps in ([14.73e6, 14.68e6, 14.67e6], [2.44e6, 2.06e6, 2.05e6]))
    interval = ratio_interval(*sides)
    assert 0.08 < interval.low < 2.1 / 14.7 < interval.high < 0.3


def test_three_steps_against_many_are_as_correlated_as_the_many():
    """Three steps show no correlation of their own: that of the other side's thirty, 0.7, holds for both."""
    missed = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        few, many = (Samples.of([1e6 * np.exp(one_run(0.7)(generator, count)[0])]) for count in (3, 30))
        interval = ratio_interval(few, many, seed=seed)
        missed += not interval.low <= 1 <= interval.high
    assert missed <= 0.05 * 200


def _in_order_or_not(blocks: np.ndarray) -> tuple[Samples, Samples]:
    return Samples(tuple(blocks)), Samples(tuple(blocks), ordered=False)


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.88), (0.7, 0.85)])
def test_intervals_from_one_run_hold_the_ratio_though_steps_resemble_each_other(correlation, least):
    assert coverage(one_run(correlation), 20, 150)["ours"] >= least


@pytest.mark.parametrize(("population", "pilot"), [(lambda _: normal_blocks, 3), (real_rounds, 3)])
def test_a_slowdown_of_three_per_cent_is_found_with_the_blocks_that_were_asked_for(population, pilot):
    found = planted(population, pilot, 20, slowdown=0.03)
    assert found.asked >= 5
    assert found.found >= 0.8 * found.asked


def test_the_stored_figures_that_the_documentation_shows_keep_the_promises():
    stored = json.loads(
        (Path(comparison_errors.__file__).parent / "results" / "comparison_errors.json").read_text("utf-8")
    )
    assert [row["kind"] for row in stored["splits"]] == list(SPLITS)
    assert all(row["decided"] <= 0.05 * row["splits"] for row in stored["splits"])
    assert all(row["ours"] >= 0.95 for row in stored["coverage"] if row["data"].startswith("blocks"))
    # Five runs, and three steps, hardly show that they are correlated.
    assert all(row["ours"] >= (0.82 if row["data"].startswith("successive") else 0.89) for row in stored["coverage"])
    assert all(row["found"] >= 0.8 * row["asked"] for row in stored["planted"])
    assert all(row["side by side"] >= 0.8 for row in stored["power"] if row["runs"] >= 4)
    assert all(row["excludes 1"] <= 0.05 for row in stored["long steps"])
    # A cycle of three steps, three times a side, is little to go by; long steps at random remain noise.
    assert all(row["found"] >= 0.95 for row in stored["long steps"] if "random" not in row["data"])
    assert all(row["by cycles"] <= 0.01 for row in stored["long steps"] if "random" in row["data"])
    assert all(row["chance share"] <= 0.05 for row in stored["kernels"])
    text = (Path(comparison_errors.__file__).parent / "results" / "comparison_errors.md").read_text("utf-8")
    assert text == comparison_errors.tables(stored)
