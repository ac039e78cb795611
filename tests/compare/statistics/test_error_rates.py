"""The promises: no more false differences than the level, intervals that hold the truth, and enough blocks asked for.

The same measurements with more repetitions are in `benchmarks/comparison_errors.py`, whose stored figures the
documentation shows.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import comparison_errors
from benchmarks.comparison_errors import (
    SPLITS,
    aa_splits,
    coverage,
    normal_blocks,
    one_run,
    outlier_blocks,
    planted,
    real_rounds,
    skewed_blocks,
)


@pytest.mark.parametrize("kind", SPLITS)
def test_real_data_compared_with_themselves_show_no_more_differences_than_the_level(kind: str) -> None:
    """200 seeded splits each: alternating, contiguous halves (with whatever drift there is), at random, in turns."""
    found = aa_splits(kind, splits=200, level=0.05)
    assert found.decided <= 0.05 * found.splits
    assert found.same > 0


@pytest.mark.parametrize("draw", [normal_blocks, skewed_blocks, outlier_blocks])
@pytest.mark.parametrize("count", [3, 5, 10])
def test_intervals_from_few_blocks_hold_the_ratio(draw, count: int) -> None:  # type: ignore[no-untyped-def]
    assert coverage(draw, count, 120)["ours"] >= 0.92


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.88), (0.7, 0.85)])
def test_intervals_from_one_run_hold_the_ratio_though_steps_resemble_each_other(
    correlation: float, least: float
) -> None:
    assert coverage(one_run(correlation), 20, 150)["ours"] >= least


@pytest.mark.parametrize(("population", "pilot"), [(lambda _: normal_blocks, 3), (real_rounds, 3)])
def test_a_slowdown_of_three_per_cent_is_found_with_the_blocks_that_were_asked_for(population, pilot: int) -> None:  # type: ignore[no-untyped-def]
    found = planted(population, pilot, 20, slowdown=0.03)
    assert found.asked >= 5
    assert found.found >= 0.8 * found.asked


def test_the_stored_figures_that_the_documentation_shows_keep_the_promises() -> None:
    stored = json.loads(
        (Path(comparison_errors.__file__).parent / "results" / "comparison_errors.json").read_text("utf-8")
    )
    assert [row["kind"] for row in stored["splits"]] == list(SPLITS)
    assert all(row["decided"] <= 0.05 * row["splits"] for row in stored["splits"])
    assert all(row["ours"] >= 0.95 for row in stored["coverage"] if row["data"].startswith("blocks"))
    assert all(row["ours"] >= 0.9 for row in stored["coverage"])
    assert all(row["found"] >= 0.8 * row["asked"] for row in stored["planted"])
    assert all(row["chance share"] <= 0.05 for row in stored["kernels"])
    text = (Path(comparison_errors.__file__).parent / "results" / "comparison_errors.md").read_text("utf-8")
    assert text == comparison_errors.tables(stored)
