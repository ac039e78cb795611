"""The model makes do with what the cells have, and says what they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.compare.measured import token_reduction
from tests.compare.simulation import Noise, Truth, hard, simulated
from warplens.errors import MissingDataError, UsageError
from warplens.studies.sweeps.breakeven import ERRORS, FORMS, PARAMETERS, THRESHOLDS, BreakEven
from warplens.studies.sweeps.breakeven_fit import fit_breakeven
from warplens.studies.sweeps.sweep import Cell, Point, Sweep

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


def test_a_batch_axis_alone_is_modelled_by_items() -> None:
    found = fit_breakeven(LINE, draws=50)
    assert found.size_unit == "items"
    assert found.missing == ("tokens", "flops", "launches")
    assert names(found)[:4] == ["floor, baseline", "floor, variant", "work, baseline", "work, variant"]
    (row,) = found.thresholds.iter_rows(named=True)
    # 1.2 = 0.12 · batch, where the baseline's GPU takes as long as the variant's host.
    assert row["total"] == pytest.approx(10, rel=0.05)
    assert row["total_low"] <= 10 <= row["total_high"]
    assert found.threshold() == (row["total"], row["total"])
    assert found.usable


def test_flops_stand_in_for_tokens() -> None:
    found = fit_breakeven(changed(token_reduction(), details={}), draws=20)
    assert found.size_unit == "flops"
    assert found.missing == ("tokens",)
    assert {"work, baseline", "work, variant"} <= set(names(found))
    # Attention and linear layers run at different rates, which FLOPs alone cannot tell.
    assert found.worst_error > 2 * fit_breakeven(token_reduction(), draws=20).worst_error
    assert not found.usable


def test_items_alone_cannot_describe_two_input_sizes_and_are_refused() -> None:
    found = fit_breakeven(changed(token_reduction(), details={}, flops=None), draws=20)
    assert not found.usable
    assert found.ratio_error > 0.1
    assert "the size of an item is unknown" in found.doubts[-1]


def test_known_launches_give_the_cost_of_a_launch() -> None:
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


def test_rates_alone_are_fitted_with_a_doubt() -> None:
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


def test_cells_without_both_sides_are_left_out() -> None:
    broken = replace(LINE.points[-1], baseline=Cell("out-of-memory"))
    found = fit_breakeven(replace(LINE, points=(*LINE.points[:-1], broken)), draws=20)
    assert len(found.cells) == 2 * (len(LINE.points) - 1)


def test_too_little_is_refused() -> None:
    with pytest.raises(MissingDataError, match="needs two points"):
        fit_breakeven(replace(LINE, points=LINE.points[:1]))
    with pytest.raises(MissingDataError, match="too few for the terms"):
        fit_breakeven(replace(LINE, points=LINE.points[:2]))
    with pytest.raises(MissingDataError, match="needs token counts, FLOPs or the number of items"):
        fit_breakeven(changed(LINE, items=None))


def test_a_prediction_needs_the_axes_that_it_depends_on() -> None:
    found = fit_breakeven(token_reduction(), draws=20)
    with pytest.raises(UsageError, match="needs a value of 'execution'"):
        found.predict({"batch": 3})
    with pytest.raises(UsageError, match="was not measured"):
        found.predict({"execution": "compiled", "batch": 3, "input_size": 224})
    with pytest.raises(UsageError, match="needs a value of input_size"):
        found.predict({"execution": "eager", "batch": 3})


def test_frames_have_their_schemas() -> None:
    found = fit_breakeven(token_reduction(), draws=20)
    axes = ["input_size", "batch", "execution"]
    assert found.errors.columns == [*axes, *ERRORS.names]
    assert found.thresholds.columns == ["execution", *THRESHOLDS.names]
    assert found.parameters.schema == PARAMETERS.schema
    assert found.forms.schema == FORMS.schema
    assert found.forms["chosen"].sum() == 1
    # Every cell once for the batch and once for the input size that was left out.
    assert found.errors.height == 2 * 40
