"""The intervals hold the crossing that a simulated sweep has, under the noise of real machines."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare.simulation import Noise, Truth, hard, random_truth, simulated
from warplens.studies.sweeps.payoff import PaysOff, crossovers

GRIDS = ([1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32, 64], [1, 4, 16, 64])
SWEEPS = 45
DRAWS = 400

NOISES = {
    "in turns": Noise(rounds=20),
    "in turns, few rounds": Noise(rounds=6),
    "apart": Noise(rounds=20, paired=False),
    "quiet": Noise(
        rounds=20, round_share=0.002, side_share=0.001, skew_share=0.001, stall_rate=0.01, drift_share=0.002
    ),
}


def answers(kind: str, noise: Noise, seed: int = 1) -> list[tuple[PaysOff, float]]:
    generator = np.random.default_rng(seed)
    found = []
    for number in range(SWEEPS):
        grid = GRIDS[number % len(GRIDS)]
        truth = random_truth(kind, generator, grid)
        (answer,) = crossovers(simulated(truth, grid, noise, generator), "batch", seed=number, draws=DRAWS)
        found.append((answer, truth.crossings[0]))
    return found


def holds(answer: PaysOff, at: float) -> bool:
    """Whether one of its intervals encloses the place; an answer without any says nothing wrong."""
    return not answer.crossings or any(
        (crossing.low or 0) <= at <= (crossing.high or np.inf) for crossing in answer.crossings
    )


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES.keys())
@pytest.mark.parametrize("kind", ["hard", "soft", "floor", "quadratic", "stairs"])
def test_nine_of_ten_intervals_hold_the_true_crossing(kind: str, noise: Noise) -> None:
    found = answers(kind, noise)
    covered = sum(holds(answer, at) for answer, at in found)
    # Stairs break the assumption of the interval (times that are convex in logarithms): 83 to 99 % in larger runs.
    assert covered >= (0.8 if kind == "stairs" else 0.9) * SWEEPS


@pytest.mark.parametrize("kind", ["hard", "stairs"])
def test_a_decided_bracket_holds_the_true_crossing_whatever_the_curve(kind: str) -> None:
    decided = [
        (crossing.bracket, at)
        for answer, at in answers(kind, NOISES["in turns"])
        for crossing in answer.crossings
        if crossing.decided
    ]
    assert len(decided) > SWEEPS / 2
    inside = sum(low <= at <= high for (low, high), at in decided if low is not None and high is not None)
    assert inside >= 0.95 * len(decided)


def test_intervals_are_narrower_than_the_bracket_where_the_curve_allows_it() -> None:
    shares = [
        np.log((crossing.high or 0) / (crossing.low or 0)) / np.log(crossing.bracket[1] / crossing.bracket[0])  # type: ignore[operator]
        for answer, _ in answers("hard", NOISES["quiet"])
        for crossing in answer.crossings
        if crossing.decided
    ]
    assert np.median(shares) < 0.5


def test_a_straight_line_between_neighbours_misses_a_kink_that_the_interval_holds() -> None:
    # The baseline is bound by its host up to a batch of 4; the variant's host takes 10 % longer.
    truth = Truth(hard(1.0, 0.25), hard(1.1, 0.05), "hard", (4.4,))
    quiet = NOISES["quiet"]
    (answer,) = crossovers(simulated(truth, [2, 8, 32], quiet, np.random.default_rng(0)), "batch")
    (crossing,) = answer.crossings
    assert crossing.at < 4.4 / 1.2
    assert crossing.low is not None
    assert crossing.high is not None
    assert crossing.low <= 4.4 <= crossing.high


@pytest.mark.parametrize("paired", [True, False])
def test_equal_sides_cross_in_one_of_twenty_sweeps_at_most(paired: bool) -> None:
    curve = hard(1.0, 0.2)
    generator = np.random.default_rng(3)
    decided = 0
    for number in range(100):
        sweep = simulated(Truth(curve, curve, "same"), GRIDS[0], Noise(rounds=12, paired=paired), generator)
        (answer,) = crossovers(sweep, "batch", seed=number, draws=DRAWS)
        decided += answer.answer != "undecided"
    assert decided <= 5
