"""A machine whose parameters are known is found again from the step times that it takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest

from tests.compare.simulation import Machine, Noise, blocks_of, transformer_sweep
from warplens.studies.sweeps.breakeven import BreakEven, Known, observed
from warplens.studies.sweeps.breakeven_fit import best_fit, fit_breakeven
from warplens.studies.sweeps.breakeven_model import Form, Model

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
def test_the_parameters_of_the_machine_are_found(name: str, value: float) -> None:
    found = parameter(fit(), name)
    # Stalls and skewed durations make each time about 3 % longer than the machine's.
    assert found["value"] == pytest.approx(value * 1.03, rel=0.05)
    assert found["low"] <= found["value"] <= found["high"]
    assert found["identified"]


@pytest.mark.parametrize("misfit", [0.0, 0.03])
@pytest.mark.parametrize("tokens", [197, 785])
def test_the_threshold_holds_that_of_the_machine(tokens: int, misfit: float) -> None:
    rows = fit(misfit).thresholds.filter(
        (pl.col("execution") == "eager") & (pl.col("along") == "items") & (pl.col("size") == tokens)
    )
    row = rows.row(0, named=True)
    true = true_batch(tokens)
    assert row["total_low"] <= true * tokens <= row["total_high"]
    assert row["items"] == pytest.approx(true, rel=0.1)
    assert row["extrapolated"] == (true > 16)


def test_a_grid_without_misfit_is_predicted_where_it_was_not_fitted() -> None:
    found = fit()
    inner = found.errors.filter((pl.col("left_out") == "batch") & ~pl.col("edge"))
    assert inner["held_out_error"].abs().max() < 0.05  # type: ignore[operator]
    assert found.usable
    assert found.reason is None


def test_an_unmeasured_point_is_predicted_with_its_bound() -> None:
    found = fit()
    here = found.predict({"input_size": 448, "batch": 6, "execution": "eager"})
    tokens = 785
    assert here.baseline_ns == pytest.approx(1.03 * MACHINE.step(blocks_of(tokens, 1.0), 6, 0, True), rel=0.05)
    assert here.variant_ns == pytest.approx(1.03 * MACHINE.step(blocks_of(tokens, 0.1), 6, 1, True), rel=0.05)
    assert (here.baseline_bound, here.variant_bound) == ("gpu", "host")
    assert not here.extrapolated
    assert here.ratio_low < here.ratio < here.ratio_high
    assert found.predict({"execution": "eager"}, size=785, items=64).extrapolated


def test_an_input_size_between_two_measured_ones_has_tokens_between_theirs() -> None:
    found = fit()
    between = found.predict({"input_size": 320, "batch": 16, "execution": "graph"})
    assert between.baseline_ns == pytest.approx(1.03 * MACHINE.step(blocks_of(401, 1.0), 16, 0, False), rel=0.06)


def test_a_graph_has_no_host_that_the_data_would_show() -> None:
    assert ("graph",) not in fit().form.hosts or not any(
        row["identified"]
        for row in fit().parameters.iter_rows(named=True)
        if row["name"].startswith("host, variant, graph")
    )


def test_more_misfit_makes_wider_intervals() -> None:
    def width(found: BreakEven) -> float:
        row = found.thresholds.filter((pl.col("execution") == "eager") & (pl.col("size") == 785)).row(0, named=True)
        return float(np.log(row["total_high"] / row["total_low"]))

    assert width(fit(0.03)) > 1.5 * width(fit(0.0))


def test_step_times_that_follow_no_such_model_are_refused() -> None:
    found = fit(misfit=0.5, seed=1)
    assert not found.usable
    assert found.reason is not None
    assert "wrong" in found.reason


@pytest.mark.parametrize("maximum", ["hard", "soft"])
@pytest.mark.parametrize("hosts", [(), (("eager",),), (("eager",), ("graph",))])
def test_the_slopes_are_those_of_the_times(maximum: str, hosts: tuple[tuple[str, ...], ...]) -> None:
    sweep = transformer_sweep(MACHINE, Noise(rounds=5), np.random.default_rng(0))
    cells = observed(sweep.points, ("execution",))
    known = Known("tokens", items=True, launches=False, missing=())
    model = Model(Form(maximum, True, hosts), known, (("graph",), ("eager",)), reduces=True)  # type: ignore[arg-type]
    times = np.log([side.time_ns for point in sweep.points for side in (point.baseline, point.variant)])  # type: ignore[union-attr]
    logs = best_fit(model, cells, times, 0)[0][None, :] + 0.05
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    exact = model.slopes(logs, gpu, host)[0]
    for number in range(logs.shape[1]):
        moved = logs.copy()
        moved[:, number] += 1e-6
        measured = (model.log_times(moved, gpu, host) - model.log_times(logs, gpu, host))[0] / 1e-6
        assert exact[:, number] == pytest.approx(measured, abs=1e-3)
