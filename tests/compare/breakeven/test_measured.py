"""The break-even model of token reduction on an H200."""

from __future__ import annotations

from functools import cache

import polars as pl
import pytest

from tests.compare.measured import token_reduction
from warplens.studies.sweeps.breakeven import BreakEven
from warplens.studies.sweeps.breakeven_fit import fit_breakeven
from warplens.studies.sweeps.payoff import crossovers


@cache
def fit(attention: str) -> BreakEven:
    return fit_breakeven(token_reduction(attention), draws=100)


@pytest.mark.parametrize("attention", ["explicit", "fused"])
def test_step_times_of_batches_that_were_left_out_are_predicted_within_a_few_percent(attention: str) -> None:
    found = fit(attention)
    assert found.median_error < 0.03
    assert found.worst_error < 0.2
    assert found.ratio_error < 0.04
    assert found.usable


def test_linear_layers_run_at_a_rate_that_the_gpu_can_reach() -> None:
    rates = fit("explicit").parameters.filter(pl.col("name") == "rate of linear work")
    # Dense fp16 peak of an H200 by its data sheet: 989 TFLOP/s.
    assert 100e12 < rates["value"].item() < 989e12


def test_a_launch_costs_the_host_what_the_flat_part_of_the_table_shows() -> None:
    (launch,) = fit("explicit").parameters.filter(pl.col("name") == "launch, eager")["value"].to_list()
    # At 224, where the GPU waits at every batch.
    flat = [
        side.time_ns / side.launches
        for point in token_reduction().points
        if point.settings["input_size"] == 224 and point.settings["execution"] == "eager"
        for side in (point.baseline, point.variant)
        if side is not None and side.time_ns is not None and side.launches is not None
    ]
    assert len(flat) == 10
    assert min(flat) <= launch <= max(flat)


def test_the_threshold_in_batches_lies_where_the_measured_crossing_does() -> None:
    thresholds = fit("explicit").thresholds.filter((pl.col("execution") == "eager") & (pl.col("along") == "items"))
    small, large = thresholds["items"].to_list()
    assert small > 16
    (line,) = (
        found
        for found in crossovers(token_reduction(), "batch")
        if found.others == {"input_size": 448, "execution": "eager"}
    )
    (crossing,) = line.crossings
    assert crossing.bracket[0] <= large <= crossing.bracket[1]


def test_a_single_image_needs_far_more_than_300_tokens_before_the_eager_form_pays() -> None:
    single = fit("explicit").thresholds.filter(
        (pl.col("execution") == "eager") & (pl.col("along") == "size") & (pl.col("items") == 1)
    )
    row = single.row(0, named=True)
    assert row["extrapolated"]
    assert row["total_low"] > 3 * 300
    assert 1200 < row["total"] < 1900


def test_tokens_times_batch_is_a_range_since_attention_grows_with_the_square() -> None:
    low, high = fit("explicit").threshold(execution="eager") or (0.0, 0.0)
    assert 1500 < low < 2500
    assert 2700 < high < 4300


def test_one_input_size_says_little_about_another() -> None:
    assert any("input_size has two values" in doubt for doubt in fit("explicit").doubts)
