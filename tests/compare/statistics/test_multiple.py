from __future__ import annotations

import numpy as np
import pytest

from warplens.compare.statistics import DIFFERENCES, adjusted, many_differences
from warplens.errors import UsageError


def test_adjusted_p_values_are_those_of_the_published_example() -> None:
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


def test_what_was_not_tested_does_not_count() -> None:
    corrected = adjusted([0.01, np.nan, 0.04])
    assert corrected[[0, 2]] == pytest.approx([0.02, 0.04])
    assert np.isnan(corrected[1])
    assert adjusted([]).size == 0


def steps(generator: np.random.Generator, rows: int = 10, columns: int = 100) -> np.ndarray:
    return generator.lognormal(10, 0.02, (rows, columns))


def test_of_a_hundred_unchanged_kernels_hardly_any_is_called_different() -> None:
    generator = np.random.default_rng(0)
    wrong = sum(
        many_differences(steps(generator), steps(generator))["verdict"].is_in(["faster", "slower"]).any()
        for _ in range(100)
    )
    assert wrong <= 5


def test_kernels_that_became_slower_are_found_among_a_hundred() -> None:
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


def test_kernels_that_never_vary_differ_surely_or_not_at_all() -> None:
    found = many_differences(np.full((4, 3), 100.0), np.tile([100.0, 130.0, 101.0], (4, 1)))
    assert found["verdict"].to_list() == ["same", "slower", "same"]
    assert found["p_value"].to_list() == [1.0, 0.0, 0.0]


def test_a_kernel_of_one_side_only_has_no_ratio() -> None:
    generator = np.random.default_rng(2)
    before, after = np.zeros((6, 1)), generator.normal(1000, 5, (6, 1))
    found = many_differences(before, after).row(0, named=True)
    assert found["ratio"] is None
    assert found["verdict"] == "slower"


def test_one_step_a_side_decides_nothing() -> None:
    found = many_differences([[100.0, 5.0]], [[300.0, 5.0]])
    assert found["verdict"].to_list() == ["undecided", "undecided"]
    assert found["p_value"].null_count() == 2


def test_steps_of_one_block_count_as_one() -> None:
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
def test_matrices_that_do_not_match_are_refused(
    before: list[list[float]], after: list[list[float]], blocks: list[int] | None
) -> None:
    with pytest.raises(UsageError):
        many_differences(before, after, baseline_blocks=blocks)
