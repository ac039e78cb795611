"""The fitted parameters with their intervals, and the rates that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.compare.breakeven.answers import PARAMETER_SCHEMA
from warplens.compare.breakeven.features import block_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.breakeven.features import Observed
    from warplens.compare.breakeven.model import Model
    from warplens.compare.resampling import Float64s
    from warplens.compare.sweep import Point

__all__ = ["parameter_frame"]

#: A parameter whose interval spans a larger factor is not told by the data.
_IDENTIFIED: Final = 4.0

#: Log of a time that is none.
_GONE: Final = -60.0

#: A term that changes no step time by 1 % says nothing about its parameter.
_NOTICED: Final = 0.01


def parameter_frame(
    model: Model,
    logs: Float64s,
    drawn: Float64s,
    cells: Sequence[Observed],
    points: Sequence[Point],
    level: float,
) -> pl.DataFrame:
    """One row a parameter, and one a rate that follows from it: `PARAMETER_SCHEMA`."""
    values, samples = np.exp(logs), np.exp(drawn)
    if model.form.maximum == "soft" and model.form.hosts:
        values[-1], samples[:, -1] = model.sharpness(logs[None, :])[0], model.sharpness(drawn)
    rows: list[tuple[Any, ...]] = []
    spans = [(1 - level) / 2, (1 + level) / 2]
    for number, term in enumerate(model.terms):
        low, high = (float(value) for value in np.quantile(samples[:, number], spans))
        told = high <= low * _IDENTIFIED and _matters(model, logs, number, cells)
        rows.append((term.name, term.of, term.unit, low, float(values[number]), high, told))
        flops = _flops_of(model, number, cells, points)
        if flops:
            # FLOP per ns of a coefficient in ns: ×1e9 is FLOP/s.
            rate = (1e9 * flops / high, 1e9 * flops / values[number], 1e9 * flops / low)
            rows.append((f"rate of {term.name}", "derived", "FLOP/s", *map(float, rate), told))
    return pl.DataFrame(rows, schema=PARAMETER_SCHEMA, orient="row")


def _matters(model: Model, logs: Float64s, number: int, cells: Sequence[Observed]) -> bool:
    """Whether any step time would be another one without this term."""
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    without = logs.copy()
    without[number] = _GONE
    times = model.log_times(np.stack([logs, without]), gpu, host)
    return bool(np.abs(times[1] - times[0]).max() > _NOTICED)


def _flops_of(model: Model, number: int, cells: Sequence[Observed], points: Sequence[Point]) -> float | None:
    """FLOPs of one unit of a kind of work, from the arithmetic of the cells; None if it is no work or is not known."""
    term = model.terms[number]
    if term.unit == "ns/FLOP":
        return 1.0
    if term.unit not in ("ns/token", "ns/token²"):
        return None
    flops = [cell.flops for point in points for cell in (point.baseline, point.variant) if cell]
    if not all(flops):
        return None
    sums = np.array([cell.items * block_table(cell.size).sum(axis=0)[:2] for cell in cells])
    each = np.linalg.lstsq(sums, np.array(flops, dtype=float), rcond=None)[0]
    return float(each[0] if term.unit == "ns/token" else each[1]) if (each > 0).all() else None
