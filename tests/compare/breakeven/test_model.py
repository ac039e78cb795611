"""A machine whose parameters are known is found again from the step times that it takes.

The model makes do with what the cells have, and says what they lack.

The break-even model of token reduction on an H200.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.compare.measured import token_reduction
from tests.compare.simulation import Machine, Noise, Truth, blocks_of, hard, simulated, transformer_sweep
from warplens.errors import MissingDataError
from warplens.studies.sweeps.breakeven import FORMS, PARAMETERS, THRESHOLDS, BreakEven, Form, Model, _answer
from warplens.studies.sweeps.breakeven_fit import best_fit, fit_breakeven
from warplens.studies.sweeps.payoff import crossovers
from warplens.studies.sweeps.sweep import Cell, Known, Point, Sweep, observed

MACHINE = Machine()


@cache
def fit(misfit: float = 0.0, seed: int = 0) -> BreakEven:
    machine = replace(MACHINE, misfit=misfit)
    return fit_breakeven(transformer_sweep(machine, Noise(rounds=12), np.random.default_rng(seed)), draws=80)


def parameter(found: BreakEven, name: str) -> dict[str, float]:
    return found.parameters.filter(pl.col("name") == name).row(0, named=True)


def true_batch(tokens: int) -> float:
    """From which batch on the eager variant is faster, by bisection on the machine itself."""
    whole, reduced = blocks_of(tokens, 1.0), blocks_of(tokens, 0.1)
    low, high = 0.1, 200.0
    for _ in range(60):
        middle = (low * high) ** 0.5
        pays = MACHINE.step(reduced, middle, 1, True) < MACHINE.step(whole, middle, 0, True)
        low, high = (low, middle) if pays else (middle, high)
    return low


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("floor of a block", MACHINE.floor),
        ("linear work", MACHINE.token),
        ("host, baseline, eager", MACHINE.hosts[0]),
        ("host, variant, eager", MACHINE.hosts[1]),
    ],
)
def test_the_parameters_of_the_machine_are_found(name, value):
    found = parameter(fit(), name)
    # Stalls and skewed durations make each time about 3 % longer than the machine's.
    assert found["value"] == pytest.approx(value * 1.03, rel=0.05)
    assert found["low"] <= found["value"] <= found["high"]
    assert found["identified"]


@pytest.mark.parametrize("misfit", [pytest.param(0.0, marks=pytest.mark.slow), 0.03])
@pytest.mark.parametrize("tokens", [197, 785])
def test_the_threshold_holds_that_of_the_machine(tokens, misfit):
    rows = fit(misfit).thresholds.filter(
        (pl.col("execution") == "eager") & (pl.col("along") == "items") & (pl.col("size") == tokens)
    )
    row = rows.row(0, named=True)
    true = true_batch(tokens)
    assert row["total_low"] <= true * tokens <= row["total_high"]
    assert row["items"] == pytest.approx(true, rel=0.1)
    assert row["extrapolated"] == (true > 16)


def test_a_grid_without_misfit_is_predicted_where_it_was_not_fitted():
    found = fit()
    assert found.median_error < found.worst_error < 0.05
    assert found.usable
    assert found.reason is None


def test_the_ratio_of_the_sides_at_each_point_is_that_of_the_machine():
    found = fit()
    for settings, ratio in found.ratios:
        tokens, eager = {224: 197, 448: 785}[settings["input_size"]], settings["execution"] == "eager"
        times = [
            MACHINE.step(blocks_of(tokens, keep), settings["batch"], side, eager)
            for side, keep in enumerate((1.0, 0.1))
        ]
        assert ratio == pytest.approx(times[1] / times[0], rel=0.06), settings


def test_a_graph_has_no_host_that_the_data_would_show():
    assert ("graph",) not in fit().form.hosts or not any(
        row["identified"]
        for row in fit().parameters.iter_rows(named=True)
        if row["name"].startswith("host, variant, graph")
    )


@pytest.mark.slow
def test_more_misfit_makes_wider_intervals():
    def width(found: BreakEven) -> float:
        row = found.thresholds.filter((pl.col("execution") == "eager") & (pl.col("size") == 785)).row(0, named=True)
        return float(np.log(row["total_high"] / row["total_low"]))

    assert width(fit(0.03)) > 1.5 * width(fit(0.0))


def test_step_times_that_follow_no_such_model_are_refused():
    found = fit(misfit=0.5, seed=1)
    assert not found.usable
    assert found.reason is not None
    assert "wrong" in found.reason


@pytest.mark.parametrize("maximum", ["hard", "soft"])
@pytest.mark.parametrize("hosts", [(), (("eager",),), (("eager",), ("graph",))])
def test_the_slopes_are_those_of_the_times(maximum, hosts):
    sweep = transformer_sweep(MACHINE, Noise(rounds=5), np.random.default_rng(0))
    cells = observed(sweep.points, ("execution",))
    known = Known("tokens", missing=("launches",))
    model = Model(Form(maximum, True, hosts), known, (("graph",), ("eager",)), reduces=True)
    times = np.log([side.time_ns for point in sweep.points for side in (point.baseline, point.variant)])
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    logs = best_fit(model, gpu, host, times, 0)[0][None, :] + 0.05
    exact = model.slopes(logs, gpu, host)[0]
    for number in range(logs.shape[1]):
        moved = logs.copy()
        moved[:, number] += 1e-6
        measured = (model.log_times(moved, gpu, host) - model.log_times(logs, gpu, host))[0] / 1e-6
        assert exact[:, number] == pytest.approx(measured, abs=1e-3)


LINE = simulated(
    Truth(hard(1.0, 0.12), hard(1.2, 0.05), "hard"),
    [1, 2, 4, 8, 16, 32, 64],
    Noise(rounds=12),
    np.random.default_rng(0),
)


def changed(sweep: Sweep, **facts: Any) -> Sweep:
    def cell(side: Cell | None) -> Cell | None:
        return side and replace(side, **facts)

    return replace(
        sweep,
        points=tuple(
            replace(point, baseline=cell(point.baseline), variant=cell(point.variant)) for point in sweep.points
        ),
    )


def names(found: BreakEven) -> list[str]:
    return found.parameters.filter(pl.col("of") != "derived")["name"].to_list()


def test_a_batch_axis_alone_is_modelled_by_items():
    found = fit_breakeven(LINE, draws=50)
    assert found.size_unit == "items"
    assert found.missing == ("tokens", "flops", "launches")
    assert names(found)[:4] == ["floor, baseline", "floor, variant", "work, baseline", "work, variant"]
    (row,) = found.thresholds.iter_rows(named=True)
    # 1.2 = 0.12 · batch, where the baseline's GPU takes as long as the variant's host.
    assert row["total"] == pytest.approx(10, rel=0.05)
    assert row["total_low"] <= 10 <= row["total_high"]
    assert found.usable


def test_a_variant_that_stops_to_pay_has_a_threshold():
    """The sides of `LINE`, exchanged."""
    points = tuple(replace(each, baseline=each.variant, variant=each.baseline) for each in LINE.points)
    (row,) = fit_breakeven(replace(LINE, points=points), draws=50).thresholds.iter_rows(named=True)
    assert (row["answer"], row["pays"]) == ("crosses", "below")
    assert row["total"] == pytest.approx(10, rel=0.05)
    assert row["total_low"] <= 10 <= row["total_high"]


def test_a_variant_may_pay_between_two_thresholds():
    x, generator = np.log(np.geomspace(1, 100, 200)), np.random.default_rng(0)
    parabola = np.abs(x - np.log(10)) - np.log(2)  # faster from 5 to 20
    drawn = parabola + generator.normal(0, 0.05, (100, 1))
    line = _answer("items", {"size": 1.0}, x, np.vstack([parabola, drawn]), (1.0, 10.0), 0.95)
    assert [(each.pays, each.extrapolated) for each in line.crossings] == [("above", False), ("below", True)]
    assert [each.at for each in line.crossings] == pytest.approx([5, 20], rel=0.01)
    assert all(each.low < each.at < each.high for each in line.crossings)
    assert (
        _answer("items", {"size": 1.0}, x, -np.abs(np.vstack([drawn, drawn])) - 1, (1.0, 10.0), 0.95).answer == "always"
    )


@cache
def few_draws() -> BreakEven:
    return fit_breakeven(token_reduction(), draws=20)


def test_flops_stand_in_for_tokens():
    found = fit_breakeven(changed(token_reduction(), details={}), draws=20)
    assert found.size_unit == "flops"
    assert found.missing == ("tokens",)
    assert {"work, baseline", "work, variant"} <= set(names(found))
    # Attention and linear layers run at different rates, which FLOPs alone cannot tell.
    assert found.worst_error > 2 * few_draws().worst_error
    assert not found.usable


def test_items_alone_cannot_describe_two_input_sizes_and_are_refused():
    found = fit_breakeven(changed(token_reduction(), details={}, flops=None), draws=20)
    assert not found.usable
    assert found.ratio_error > 0.1
    assert "the size of an item is unknown" in found.doubts[-1]


def test_known_launches_give_the_cost_of_a_launch():
    sweep = replace(
        LINE,
        points=tuple(
            replace(
                point,
                baseline=point.baseline and replace(point.baseline, launches=100.0),
                variant=point.variant and replace(point.variant, launches=120.0),
            )
            for point in LINE.points
        ),
    )
    found = fit_breakeven(sweep, draws=20)
    row = found.parameters.filter(pl.col("name") == "launch").row(0, named=True)
    # 100 launches take the host 1 ms, 120 take it 1.2 ms; noise adds about 3 %.
    assert row["value"] == pytest.approx(1e6 / 100 * 1.03, rel=0.03)
    assert row["of"] == "host"
    assert "launches" not in found.missing


def test_rates_alone_are_fitted_with_a_doubt():
    points = tuple(
        Point(
            {"batch": batch},
            Cell("measured", time_ns=1e6 * max(1.0, 0.12 * batch), items=batch),
            Cell("measured", time_ns=1e6 * max(1.2, 0.05 * batch), items=batch),
        )
        for batch in (1, 2, 4, 8, 16, 32, 64)
    )
    found = fit_breakeven(replace(LINE, points=points), draws=20)
    assert found.doubts[0] == "noise of the step times is unknown: intervals hold the model's error alone"


def test_cells_without_both_sides_are_left_out():
    broken = replace(LINE.points[-1], baseline=Cell("out-of-memory"))
    found = fit_breakeven(replace(LINE, points=(*LINE.points[:-1], broken)), draws=20)
    assert len(found.ratios) == len(LINE.points) - 1


def test_too_little_is_refused():
    with pytest.raises(MissingDataError, match="needs two points"):
        fit_breakeven(replace(LINE, points=LINE.points[:1]))
    with pytest.raises(MissingDataError, match="too few for the terms"):
        fit_breakeven(replace(LINE, points=LINE.points[:2]))
    with pytest.raises(MissingDataError, match="needs token counts, FLOPs or the number of items"):
        fit_breakeven(changed(LINE, items=None))


def test_frames_have_their_schemas():
    found = few_draws()
    assert found.thresholds.columns == ["execution", *THRESHOLDS.names]
    assert found.parameters.schema == PARAMETERS.schema
    assert found.forms.schema == FORMS.schema
    assert found.forms["chosen"].sum() == 1


@cache
def measured_fit(attention: str) -> BreakEven:
    return fit_breakeven(token_reduction(attention), draws=100)


@pytest.mark.parametrize("attention", ["explicit", pytest.param("fused", marks=pytest.mark.slow)])
def test_step_times_of_batches_that_were_left_out_are_predicted_within_a_few_percent(attention):
    found = measured_fit(attention)
    assert found.median_error < 0.03
    assert found.worst_error < 0.2
    assert found.ratio_error < 0.04
    assert found.usable


def test_linear_layers_run_at_a_rate_that_the_gpu_can_reach():
    rates = measured_fit("explicit").parameters.filter(pl.col("name") == "rate of linear work")
    # Dense fp16 peak of an H200 by its data sheet: 989 TFLOP/s.
    assert 100e12 < rates["value"].item() < 989e12


def test_a_launch_costs_the_host_what_the_flat_part_of_the_table_shows():
    (launch,) = measured_fit("explicit").parameters.filter(pl.col("name") == "launch, eager")["value"].to_list()
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


def test_the_threshold_in_batches_lies_where_the_measured_crossing_does():
    thresholds = measured_fit("explicit").thresholds.filter(
        (pl.col("execution") == "eager") & (pl.col("along") == "items")
    )
    small, large = thresholds["items"].to_list()
    assert small > 16
    (line,) = (
        found
        for found in crossovers(token_reduction(), "batch")
        if found.others == {"input_size": 448, "execution": "eager"}
    )
    (crossing,) = line.crossings
    assert crossing.bracket[0] <= large <= crossing.bracket[1]


def test_a_single_image_needs_far_more_than_300_tokens_before_the_eager_form_pays():
    single = measured_fit("explicit").thresholds.filter(
        (pl.col("execution") == "eager") & (pl.col("along") == "size") & (pl.col("items") == 1)
    )
    row = single.row(0, named=True)
    assert row["extrapolated"]
    assert row["total_low"] > 3 * 300
    assert 1200 < row["total"] < 1900


def test_tokens_times_batch_is_a_range_since_attention_grows_with_the_square():
    inside = (pl.col("execution") == "eager") & (pl.col("answer") == "crosses") & ~pl.col("extrapolated")
    totals = measured_fit("explicit").thresholds.filter(inside)["total"].to_list()
    assert 1500 < min(totals) < 2500
    assert 2700 < max(totals) < 4300


def test_one_input_size_says_little_about_another():
    assert any("input_size has two values" in doubt for doubt in measured_fit("explicit").doubts)


def test_equal_sides_have_no_number_from_which_on_one_pays():
    """Both are bound by the host; by some draws the variant always pays, by others never."""
    equal = Truth(hard(1.0, 0.001), hard(1.0, 0.001), "hard")
    for seed in range(3):
        found = fit_breakeven(simulated(equal, [1, 2, 4, 8, 16], Noise(), np.random.default_rng(seed)), draws=80)
        assert set(found.thresholds["answer"]) == {"undecided"}
        assert found.thresholds["total"].null_count() == found.thresholds.height
