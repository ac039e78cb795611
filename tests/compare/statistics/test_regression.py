from __future__ import annotations

import math

import pytest

from warplens.compare.statistics import Comparison, Interval, NoiseFloor, regression
from warplens.errors import UsageError


def comparison(low: float, high: float) -> Comparison:
    ratio = Interval(low, math.sqrt(low * high) if low and not math.isinf(high) else 1.0, high, 0.05)
    return Comparison(ratio, "undecided", NoiseFloor(None, 0.0, None, 0, "blocks"), None, 1.0, 1.0, "", ())


def test_only_an_interval_wholly_above_the_limit_stops_a_build() -> None:
    assert regression(comparison(1.06, 1.20), 0.05).exit_code == 1
    assert regression(comparison(1.04, 1.20), 0.05).exit_code == 0
    assert regression(comparison(1.01, 1.04), 0.05).exit_code == 0


def test_an_interval_across_the_limit_is_undecided_and_says_so() -> None:
    answer = regression(comparison(1.04, 1.20), 0.05)
    assert not answer.found
    assert not answer.excluded
    assert answer.sentence.startswith("undecided whether slower by more than 5 %: between +4.0 % and +20.0 %")


def test_an_interval_below_the_limit_excludes_a_regression() -> None:
    answer = regression(comparison(0.90, 1.04), 0.05)
    assert answer.excluded
    assert answer.sentence == "not slower by more than 5 %: +4.0 % at most"


def test_with_a_limit_of_zero_any_sure_slowdown_is_a_regression() -> None:
    assert regression(comparison(1.001, 1.01), 0.0).found


def test_data_without_variation_stop_nothing() -> None:
    answer = regression(comparison(0.0, math.inf), 0.05)
    assert answer.exit_code == 0
    assert "no variation" in answer.sentence


@pytest.mark.parametrize("limit", [-0.01, math.nan, math.inf])
def test_a_limit_that_is_no_share_is_refused(limit: float) -> None:
    with pytest.raises(UsageError):
        regression(comparison(1.0, 1.1), limit)
