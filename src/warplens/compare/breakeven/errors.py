"""How wrong the fitted and the held-out step times are, and whether that is too wrong to use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from warplens.compare.breakeven.answers import ERROR_SCHEMA
from warplens.compare.breakeven.features import SIDES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.compare.breakeven.crossvalidation import Fold
    from warplens.compare.breakeven.features import Known, Observed
    from warplens.compare.breakeven.model import Model
    from warplens.compare.resampling import Float64s

__all__ = ["RATIO_ERROR_LIMIT", "WORST_ERROR_LIMIT", "doubts_of", "error_frame", "main_errors", "refusal"]

#: A threshold needs the ratio of the sides. Speedups near the crossing change by about as much as the batch does, so
#: that a typical error of 10 % of the ratio is one of about 10 % of the threshold; beyond that it is no threshold.
RATIO_ERROR_LIMIT: Final = 0.10

#: A cell that is wrong by more than a third was not described by these terms.
WORST_ERROR_LIMIT: Final = 0.35


def main_errors(
    cells: Sequence[Observed],
    times: Float64s,
    folds: Sequence[Fold],
    predicted: Sequence[Float64s],
    model: Model,
    logs: Float64s,
) -> tuple[Float64s, Float64s]:
    """Error of each cell's log time, left out by the axis with most values; and of each point's log ratio."""
    residuals = model.log_times(logs[None, :], model.gpu_columns(cells), model.host_columns(cells))[0] - times
    axes = [fold.axis for fold in folds]
    if axes:
        main = max(dict.fromkeys(axes), key=axes.count)
        for fold, found in zip(folds, predicted, strict=True):
            if fold.axis == main and np.isfinite(found).all():
                residuals[list(fold.cells)] = found - times[list(fold.cells)]
    return residuals, residuals[1::2] - residuals[::2]


def error_frame(
    model: Model,
    logs: Float64s,
    cells: Sequence[Observed],
    times: Float64s,
    folds: Sequence[Fold],
    predicted: Sequence[Float64s],
    axes: Sequence[str],
) -> pl.DataFrame:
    """One row a cell and axis by whose values it was left out: the axes, then `ERROR_SCHEMA`."""
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    own = model.log_times(logs[None, :], gpu, host)[0]
    device, issuing = model.parts(logs[None, :], gpu, host)
    rows = []
    for fold, found in zip(folds, predicted, strict=True):
        held = dict(zip(fold.cells, found, strict=True))
        for number, value in held.items():
            cell = cells[number]
            partner = number + 1 - 2 * cell.side
            error = (value - times[number]) - (held[partner] - times[partner])
            rows.append(
                {
                    **{name: cell.settings[name] for name in axes},
                    "side": SIDES[cell.side],
                    "measured_ns": float(np.exp(times[number])),
                    "fitted_ns": float(np.exp(own[number])),
                    "fitted_error": float(np.expm1(own[number] - times[number])),
                    "bound": "host" if issuing[0, number] > device[0, number] else "gpu",
                    "left_out": fold.axis,
                    "edge": fold.edge,
                    "held_out_ns": float(np.exp(value)) if np.isfinite(value) else None,
                    "held_out_error": float(np.expm1(value - times[number])) if np.isfinite(value) else None,
                    "held_out_ratio_error": float(np.expm1(error * (2 * cell.side - 1)))
                    if np.isfinite(error)
                    else None,
                }
            )
    right = pl.DataFrame([{name: row[name] for name in ERROR_SCHEMA} for row in rows], schema=ERROR_SCHEMA)
    if not rows:
        return right
    left = pl.DataFrame([{name: row[name] for name in axes} for row in rows], infer_schema_length=None)
    return pl.concat((left, right), how="horizontal")


def doubts_of(noise_known: bool, errors: pl.DataFrame, known: Known) -> Iterator[str]:
    """What the figures of a fit do not account for."""
    if not noise_known:
        yield "noise of the step times is unknown: intervals hold the model's error alone"
    for (axis,), part in errors.partition_by("left_out", as_dict=True, maintain_order=True).items():
        wrong = part.get_column("held_out_error").abs().max()
        if part.get_column("edge").all():
            size = f"are up to {wrong:.0%} wrong" if isinstance(wrong, float) else "cannot be predicted"
            yield f"{axis} has two values; without one of them its step times {size}"
    if known.work == "items":
        yield "the size of an item is unknown: axes other than the number of items are not modelled"


def refusal(folds: Sequence[Fold], worst: float, ratio_error: float) -> str | None:
    """Why the thresholds are not to be used; None if they are."""
    if not folds:
        return "no axis has two values: there is nothing to test the model against"
    if ratio_error > RATIO_ERROR_LIMIT:
        return f"held-out ratios are {ratio_error:.0%} wrong in the median, more than {RATIO_ERROR_LIMIT:.0%}"
    if worst > WORST_ERROR_LIMIT:
        return f"a held-out step time is {worst:.0%} wrong, more than {WORST_ERROR_LIMIT:.0%}"
    return None
