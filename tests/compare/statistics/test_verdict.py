from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warplens.compare.decisions import compare, noise_floor, ratio_interval
from warplens.compare.shift import Samples
from warplens.errors import UsageError


def runs(blocks: int, *, times: float = 1.0, spread: float = 0.01, seed: int = 0, paired: bool = False) -> Samples:
    """Runs of ten steps of a millisecond, that differ by `spread`."""
    generator = np.random.default_rng(seed)
    logarithms = generator.normal(0, spread, (blocks, 1)) + generator.normal(0, 0.005, (blocks, 10))
    return Samples.of(times * 1e6 * np.exp(logarithms), paired)


def test_twice_the_time_is_slower_and_half_of_it_faster():
    assert compare(runs(5), runs(5, times=2, seed=1)).verdict == "slower"
    assert compare(runs(5, times=2), runs(5, seed=1)).verdict == "faster"


def test_a_ratio_above_one_means_that_the_variant_takes_longer():
    comparison = compare(runs(20), runs(20, times=1.25, seed=1))
    assert comparison.ratio.estimate == pytest.approx(1.25, rel=0.01)
    assert comparison.variant_ns / comparison.baseline_ns == pytest.approx(1.25, rel=0.02)


def test_sides_whose_whole_interval_lies_within_the_margin_are_the_same():
    comparison = compare(runs(40), runs(40, seed=1), margin=0.02)
    assert comparison.verdict == "same"
    assert comparison.ratio.within(0.02)
    assert comparison.needed_blocks is None


def test_a_sure_difference_that_is_too_small_to_matter_is_the_same():
    sides = runs(200, spread=0.002), runs(200, spread=0.002, times=1.005, seed=1)
    assert compare(*sides, margin=0.02).ratio.excludes_one
    assert compare(*sides, margin=0.02).verdict == "same"
    assert compare(*sides, margin=0.001).verdict == "slower"


def test_a_small_difference_among_few_noisy_runs_is_undecided_and_says_how_many_it_needs():
    comparison = compare(runs(4, spread=0.05), runs(4, spread=0.05, times=1.03, seed=1))
    assert comparison.verdict == "undecided"
    assert comparison.unit == "blocks"
    assert comparison.needed_blocks > 4


def test_noisier_runs_need_more_of_them():
    needed = []
    for spread in (0.03, 0.06, 0.12):
        comparison = compare(runs(6, spread=spread), runs(6, spread=spread, times=1.01, seed=3))
        assert comparison.verdict == "undecided"
        needed.append(comparison.needed_blocks or 0)
    assert needed == sorted(needed)
    assert needed[0] < needed[-1]


def test_a_single_step_a_side_shows_no_variation():
    comparison = compare(Samples.of([[100.0]]), Samples.of([[200.0]]))
    assert comparison.verdict == "undecided"
    assert (comparison.ratio.low, comparison.ratio.high) == (0.0, math.inf)
    assert comparison.needed_blocks is None
    assert any("single duration" in doubt for doubt in comparison.doubts)


def test_one_run_a_side_says_that_it_cannot_show_how_much_runs_differ():
    sides = Samples.of([runs(1).blocks[0]]), Samples.of([runs(1, seed=1).blocks[0]])
    comparison = compare(*sides)
    assert comparison.unit == "steps"
    assert any("single run" in doubt for doubt in comparison.doubts)


def test_a_single_run_is_taken_to_vary_as_much_as_the_runs_of_the_other_side():
    # Its own ten steps agree to half a per cent, and would claim that 3 % is a difference.
    alone = Samples.of([runs(1, spread=0.0, seed=1, times=1.03).blocks[0]])
    comparison = compare(runs(8, spread=0.05), alone)
    assert comparison.verdict == "undecided"
    assert comparison.unit == "blocks"
    assert any("The variant is a single run" in doubt for doubt in comparison.doubts)


def test_alternation_cancels_drift_of_both_sides():
    generator = np.random.default_rng(0)
    shared = generator.normal(0, 0.2, (12, 1))
    one, other = (1e6 * np.exp(shared + generator.normal(shift, 0.003, (12, 4))) for shift in (0.0, math.log(1.03)))
    assert compare(Samples.of(one, paired=True), Samples.of(other, paired=True)).verdict == "slower"
    apart = compare(Samples.of(one), Samples.of(other))
    assert apart.verdict == "undecided"
    assert any("not taken in turns" in doubt for doubt in apart.doubts)


def test_turns_of_unequal_number_are_no_turns():
    comparison = compare(runs(6, paired=True), runs(5, paired=True, seed=1))
    assert "turns" not in comparison.how


def test_one_slow_round_in_ten_hides_no_difference():
    generator = np.random.default_rng(5)
    one, other = generator.normal(0, 0.01, (20, 4)), generator.normal(math.log(1.05), 0.01, (20, 4))
    one[[3, 11]] += 0.7
    other[[6]] += 0.5
    comparison = compare(Samples.of(1e6 * np.exp(one)), Samples.of(1e6 * np.exp(other)))
    assert comparison.verdict == "slower"
    assert comparison.ratio.estimate == pytest.approx(1.05, abs=0.01)
    assert any("On average the variant takes" in doubt for doubt in comparison.doubts)


@pytest.mark.parametrize("count", [12, 40])
def test_a_clear_drift_that_goes_on_into_the_other_side_is_no_difference(count):
    decided = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        steps = 1e6 * np.exp(np.linspace(0, 0.1, 2 * count) + generator.normal(0, 0.01, 2 * count))
        comparison = compare(Samples.of([steps[:count]]), Samples.of([steps[count:]]))
        decided += comparison.verdict in {"faster", "slower"}
    assert decided <= 5


def test_a_drift_is_named_in_the_noise_floor_and_in_the_doubts():
    steps = 1e6 * np.exp(np.linspace(0, 0.1, 20) + np.random.default_rng(0).normal(0, 0.002, 20))
    floor = noise_floor(Samples.of([steps]))
    assert floor.of == "steps"
    assert floor.drift == pytest.approx(0.1, abs=0.02)
    assert floor.significance < 1e-6
    comparison = compare(Samples.of([steps]), Samples.of([steps[::-1] * 1.02]))
    assert any("Times of the baseline are" in doubt and "% longer" in doubt for doubt in comparison.doubts)
    assert any("Times of the variant are" in doubt and "% shorter" in doubt for doubt in comparison.doubts)


def test_a_jump_is_told_with_its_size():
    generator = np.random.default_rng(0)
    steady, doubled = 1e6 * np.exp(generator.normal(0, 0.001, (2, 60)))
    doubled[30:] *= 2
    (told,) = [doubt for doubt in compare(Samples.of([steady]), Samples.of([doubled])).doubts if "longer" in doubt]
    assert told.startswith("Times of the variant are 100 % longer in the second half")


def test_the_noise_floor_is_what_two_sides_of_that_length_differ_by():
    generator = np.random.default_rng(2)
    floors, differences = [], []
    for seed in range(150):
        sides = [Samples.of(1e6 * np.exp(generator.normal(0, 0.02, (16, 1)))) for _ in range(2)]
        floors.append(noise_floor(sides[0], seed=seed).share or 0.0)
        differences.append(abs(math.log(ratio_interval(*sides).estimate)))
    assert np.median(floors) == pytest.approx(np.quantile(differences, 0.95), rel=0.25)


def test_tens_of_thousands_of_steps_are_compared_in_the_same_way():
    generator = np.random.default_rng(4)
    steps = 1e6 * np.exp(generator.normal(0, 0.05, (2, 30_000)))
    steps[1] *= 1.03
    assert compare(Samples.of([steps[0]]), Samples.of([steps[1]])).verdict == "slower"


def test_too_few_blocks_have_no_noise_floor():
    assert noise_floor(runs(3)).share is None
    assert noise_floor(runs(4)).share is not None


def test_the_same_seed_gives_the_same_comparison():
    sides = runs(12, spread=0.03), runs(12, spread=0.03, seed=1, times=1.02)
    assert compare(*sides, seed=7) == compare(*sides, seed=7)


def test_a_smaller_level_makes_the_interval_wider():
    sides = runs(9), runs(9, seed=1)
    wide, narrow = ratio_interval(*sides, level=0.01), ratio_interval(*sides, level=0.2)
    assert wide.low < narrow.low < narrow.high < wide.high


DURATIONS = st.lists(st.lists(st.floats(1e3, 1e9, allow_nan=False), min_size=1, max_size=6), min_size=1, max_size=12)


@given(DURATIONS, DURATIONS)
def test_exchanging_the_sides_inverts_the_ratio(one, other):
    there, back = compare(Samples.of(one), Samples.of(other)), compare(Samples.of(other), Samples.of(one))
    assert there.ratio.estimate * back.ratio.estimate == pytest.approx(1)
    opposite = {"faster": "slower", "slower": "faster"}
    if "bootstrap" not in there.how:  # whose draws differ
        assert back.verdict == opposite.get(there.verdict, there.verdict)


@given(DURATIONS, DURATIONS, st.sampled_from([1e-3, 7.0, 1e3]))
def test_the_unit_of_time_does_not_matter(one, other, unit):
    plain = compare(Samples.of(one), Samples.of(other))
    scaled = compare(*(Samples.of([[unit * value for value in block] for block in side]) for side in (one, other)))
    assert scaled.ratio.estimate == pytest.approx(plain.ratio.estimate)
    assert plain.ratio.low <= plain.ratio.estimate <= plain.ratio.high


@pytest.mark.parametrize(("margin", "level"), [(-0.1, 0.05), (math.nan, 0.05), (0.02, 0.0), (0.02, 1.0)])
def test_impossible_requests_are_refused(margin, level):
    with pytest.raises(UsageError):
        compare(runs(3), runs(3), margin=margin, level=level)
