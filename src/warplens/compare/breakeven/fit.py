"""Fits the model to a sweep, chooses its form by cross-validation, and says how far to trust it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.compare.breakeven.answers import FORM_SCHEMA, BreakEven
from warplens.compare.breakeven.crossvalidation import best_fit, folds_of, held_out, scored
from warplens.compare.breakeven.errors import doubts_of, error_frame, main_errors, refusal
from warplens.compare.breakeven.features import block_table, groups_of, known_fields, measured_sides, observed
from warplens.compare.breakeven.fitting import fitted
from warplens.compare.breakeven.model import Form, Maximum, Model
from warplens.compare.breakeven.parameters import parameter_frame
from warplens.compare.breakeven.sizes import Sizes
from warplens.compare.breakeven.threshold import thresholds
from warplens.compare.resampling import replicates
from warplens.errors import MissingDataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.compare.breakeven.crossvalidation import Fold
    from warplens.compare.breakeven.features import Known, Observed
    from warplens.compare.resampling import Float64s
    from warplens.compare.sweep import Point, Sweep

__all__ = ["fit_breakeven"]

#: Resampled fits; the outermost quantile at 95 % is then that of five.
_DRAWS: Final = 200

_DRAW_ROUNDS: Final = 12


def fit_breakeven(
    sweep: Sweep,
    *,
    where: Mapping[str, Any] | None = None,
    maximum: Maximum | None = None,
    level: float = 0.95,
    seed: int = 0,
    draws: int = _DRAWS,
) -> BreakEven:
    """A model of the step times of both sides, with the threshold from which the variant pays.

    The host differs between values of axes that are no numbers (`execution`), the GPU's work does not; where it does,
    fit one value at a time with `where`.

    Args:
        sweep: a baseline and a variant over a grid.
        where: settings that points must have to be used.
        maximum: `hard` or `soft`; None to choose by cross-validation.
        level: nominal coverage of the intervals.
        seed: of starts and resampling.
        draws: resampled fits.

    Raises:
        MissingDataError: too few points have both sides, or the cells have neither tokens, FLOPs nor items.
    """
    points = [point for point in sweep.points if _usable(point, where or {})]
    if len(points) < 2:
        raise MissingDataError(f"{sweep.source}: a break-even model needs two points with both sides measured")
    known, groups = known_fields(points), groups_of(sweep)
    cells = observed(points, groups)
    times = np.log([cell.time_ns or np.nan for point in points for cell in measured_sides(point)])
    folds = folds_of(cells, [name for name in sweep.axes if name not in groups])
    model, logs, predicted, forms = _chosen(known, cells, times, folds, maximum, seed)
    if model is None:
        raise MissingDataError(
            f"{sweep.source}: {len(times)} step times are too few for the terms of a break-even model"
        )
    sizes = Sizes.of(cells, known.work)
    errors = error_frame(model, logs, cells, times, folds, predicted, sweep.axes)
    residuals, ratio_errors = main_errors(cells, times, folds, predicted, model, logs)
    drawn, noise_known = _resampled(model, logs, points, cells, residuals, level, draws, seed)
    shifts = np.random.default_rng(seed).choice(np.concatenate([ratio_errors, -ratio_errors]), size=len(drawn))
    worst = float(np.expm1(np.abs(residuals)).max())
    ratio_error = float(np.expm1(np.median(np.abs(ratio_errors))))
    reason = refusal(folds, worst, ratio_error)
    return BreakEven(
        source=sweep.source,
        model=model,
        size_unit=known.work,
        parameters=parameter_frame(model, logs, drawn, cells, points, level),
        errors=errors,
        forms=forms,
        thresholds=thresholds(model, cells, sizes, groups, logs, (drawn, shifts), level),
        median_error=float(np.expm1(np.median(np.abs(residuals)))),
        worst_error=worst,
        ratio_error=ratio_error,
        usable=reason is None,
        reason=reason,
        level=level,
        doubts=tuple(doubts_of(noise_known, errors, known)),
        sizes=sizes,
        cells=tuple(cells),
        groups=groups,
        logs=logs,
        draws=drawn,
        ratio_errors=shifts,
    )


def _usable(point: Point, where: Mapping[str, Any]) -> bool:
    return bool(measured_sides(point)) and all(point.settings.get(name) == value for name, value in where.items())


def _chosen(
    known: Known, cells: Sequence[Observed], times: Float64s, folds: Sequence[Fold], maximum: Maximum | None, seed: int
) -> tuple[Model | None, Float64s, list[Float64s], pl.DataFrame]:
    """The form with the least held-out error: first maximum, own work and kind of host, then groups without a host."""
    least = {
        cell.group: min(time for other, time in zip(cells, times, strict=True) if other.group == cell.group)
        for cell in cells
    }
    groups = tuple(sorted(least, key=lambda group: least[group]))
    reduces = known.work == "tokens" and any(block_table(cell.size)[:, 2].any() for cell in cells)
    maxima: list[Maximum] = [maximum] if maximum else ["hard", "soft"]
    owns = (False,) if known.work == "items" else (False, True)
    costs = (False, True) if known.launches else (False,)
    tried: dict[Form, tuple[float, Model, Float64s, list[Float64s], float]] = {}

    def attempt(form: Form) -> float:
        if form not in tried:
            model = Model(form, known, groups, reduces)
            if len(times) <= len(model.terms):
                return np.inf
            logs, loss = best_fit(model, cells, times, seed)
            predicted = held_out(model, cells, times, folds, logs, seed)
            tried[form] = (scored(times, folds, predicted) if folds else loss, model, logs, predicted, loss)
        return tried[form][0]

    first = min((Form(kind, own, groups, cost) for kind in maxima for own in owns for cost in costs), key=attempt)
    for group in groups:
        fewer = replace(first, hosts=tuple(host for host in first.hosts if host != group))
        # The same error with fewer terms is the better model.
        if attempt(fewer) <= attempt(first) * 1.02:
            first = fewer
    first = min((replace(first, maximum=kind) for kind in maxima), key=attempt)
    rows = [
        (
            form.maximum,
            form.own,
            len(form.hosts),
            form.per_launch,
            len(found[1].terms),
            found[4],
            found[0] if folds else None,
            form == first,
        )
        for form, found in tried.items()
    ]
    frame = pl.DataFrame(rows, schema=FORM_SCHEMA, orient="row").sort("held_out_error", "parameters")
    if first not in tried:
        return None, np.empty(0), [], frame
    return tried[first][1], tried[first][2], tried[first][3], frame


def _resampled(
    model: Model,
    logs: Float64s,
    points: Sequence[Point],
    cells: Sequence[Observed],
    residuals: Float64s,
    level: float,
    draws: int,
    seed: int,
) -> tuple[Float64s, bool]:
    """Fits to resampled step times: blocks drawn anew, and each point's held-out error added or taken off.

    The latter is the wild bootstrap (Liu 1988) with held-out residuals: what the terms do not describe moves the
    parameters as noise does. Both sides of a point take the same sign, so that errors of the ratio stay as they are.
    """
    noise = replicates(points, draws, level, seed)
    targets = np.empty((draws, len(cells)))
    targets[:, ::2], targets[:, 1::2] = noise.baseline_draws, noise.variant_draws
    signs = np.random.default_rng(seed + 1).choice([-1.0, 1.0], size=(draws, len(points)))
    targets += np.repeat(signs, 2, axis=1) * residuals
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    start = np.repeat(logs[None, :], draws, axis=0)
    found, _ = fitted(*model.functions(gpu, host), start, targets, rounds=_DRAW_ROUNDS)
    return found, bool(noise.known.all())
