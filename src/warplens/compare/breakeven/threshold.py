"""From which size, and from how many items on, the modelled variant is the faster one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.compare.breakeven.answers import THRESHOLD_SCHEMA
from warplens.compare.breakeven.features import Observed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.breakeven.model import Model
    from warplens.compare.breakeven.sizes import Sizes
    from warplens.compare.resampling import Float64s

__all__ = ["group_columns", "thresholds"]

#: Looked at beyond the measured sizes and numbers of items: this factor either way, but nothing below one item.
#: Further out, other kernels are chosen.
_REACH: Final = 4.0

#: Places on the way; neighbours differ by 4 % at most over a reach of 16 · 16.
_PLACES: Final = 200


def thresholds(
    model: Model,
    cells: Sequence[Observed],
    sizes: Sizes,
    groups: Sequence[str],
    logs: Float64s,
    draws: tuple[Float64s, Float64s],
    level: float,
) -> pl.DataFrame:
    """The thresholds for each measured size, and for each measured number of items: `THRESHOLD_SCHEMA`.

    Args:
        model: fitted.
        cells: that it was fitted to.
        sizes: of both sides.
        groups: names of the axes that are no numbers.
        logs: its parameters.
        draws: resampled parameters, one row a draw, and an error of the log ratio for each.
        level: of the intervals.
    """
    counts = sorted({cell.items for cell in cells})
    rows = []
    for group in model.groups:
        named = dict(zip(group_columns(groups), group, strict=True))
        for size in sizes.amounts if sizes.work != "items" else (1.0,):
            along = np.geomspace(max(counts[0] / _REACH, 1.0), counts[-1] * _REACH, _PLACES)
            pairs = [_pair(sizes, size, float(items), group) for items in along]
            rows.append({**named, **_row(model, pairs, along, logs, draws, level, ("items", size, counts))})
        for items in counts if sizes.work != "items" else ():
            along = np.geomspace(sizes.amounts[0] / _REACH, sizes.amounts[-1] * _REACH, _PLACES)
            pairs = [_pair(sizes, float(size), items, group) for size in along]
            rows.append({**named, **_row(model, pairs, along, logs, draws, level, ("size", items, sizes.amounts))})
    right = pl.DataFrame(
        [{name: row[name] for name in THRESHOLD_SCHEMA} for row in rows], schema=THRESHOLD_SCHEMA, orient="row"
    )
    if not groups:
        return right
    left = pl.DataFrame([{name: row[name] for name in group_columns(groups)} for row in rows], infer_schema_length=None)
    return pl.concat((left, right), how="horizontal")


def group_columns(groups: Sequence[str]) -> list[str]:
    """Columns in which the thresholds hold the axes that are no numbers.

    A language model's `size` is a word (`small`), and the threshold's a number: the setting is `size_setting` then.
    """
    return [f"{name}_setting" if name in THRESHOLD_SCHEMA else name for name in groups]


def _pair(sizes: Sizes, size: float, items: float, group: tuple[Any, ...]) -> list[Observed]:
    return [Observed({}, side, group, items, found, 0) for side, found in enumerate(sizes.at(size))]


def _row(
    model: Model,
    pairs: Sequence[Sequence[Observed]],
    along: Float64s,
    logs: Float64s,
    draws: tuple[Float64s, Float64s],
    level: float,
    what: tuple[str, float, Sequence[float]],
) -> dict[str, Any]:
    flat = [cell for pair in pairs for cell in pair]
    gpu, host = model.gpu_columns(flat), model.host_columns(flat)
    times = model.log_times(np.vstack([logs, draws[0]]), gpu, host)
    ratios = times[:, 1::2] - times[:, ::2]
    ratios[1:] += draws[1][:, None]
    places = _first_gain(np.log(along), ratios)
    at = float(np.exp(places[0]))
    axis, other, measured = what
    low = float(np.quantile(places[1:], (1 - level) / 2, method="lower"))
    high = float(np.quantile(places[1:], (1 + level) / 2, method="higher"))
    crosses = bool(np.isfinite(places[0]))
    return {
        "along": axis,
        "answer": "crosses" if crosses else "always" if places[0] < 0 else "never",
        "size": (at if crosses else None) if axis == "size" else other,
        "items": (at if crosses else None) if axis == "items" else other,
        "total": at * other if crosses else None,
        "total_low": float(np.exp(low)) * other if np.isfinite(low) else None,
        "total_high": float(np.exp(high)) * other if np.isfinite(high) else None,
        "extrapolated": crosses and not measured[0] <= at <= measured[-1],
    }


def _first_gain(x: Float64s, ratios: Float64s) -> Float64s:
    """For each row, the first place where the ratio is below zero; minus infinity at the first, infinity nowhere."""
    gains = ratios < 0
    found = gains.argmax(axis=1)
    rows = np.arange(len(ratios))
    before = np.maximum(found - 1, 0)
    one, two = ratios[rows, before], ratios[rows, found]
    share = np.clip(one / np.where(one > two, one - two, 1.0), 0, 1)
    place = np.where(found == 0, -np.inf, x[before] + (x[found] - x[before]) * share)
    return np.asarray(np.where(gains.any(axis=1), place, np.inf))
