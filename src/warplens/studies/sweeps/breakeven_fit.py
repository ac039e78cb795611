"""Robust fits of the break-even model to a sweep, selected and judged by cross-validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl

from warplens.errors import MissingDataError
from warplens.profile.schema import Float64s
from warplens.studies.sweeps.breakeven import (
    FORMS,
    BreakEven,
    Form,
    Maximum,
    Model,
    Sizes,
    parameter_frame,
    thresholds,
)
from warplens.studies.sweeps.sweep import (
    Known,
    Observed,
    Point,
    Sweep,
    block_table,
    groups_of,
    known_fields,
    measured_sides,
    observed,
    replicates,
)

_ROUNDS: Final = 60

#: Residuals beyond this many robust standard deviations count linearly (Huber 1964: 95 % efficient for normal errors).
_HUBER: Final = 1.345

#: Least scale of the residuals of log times: no fit is better than 0.2 %.
_LEAST_SCALE: Final = 0.002

#: Regularises parameters that no residual depends on.
_RIDGE: Final = 1e-9

#: An iteration changes no parameter by more than a factor of e.
_LONGEST: Final = 1.0


def fitted(
    model: Callable[[Float64s], Float64s],
    slopes_of: Callable[[Float64s], Float64s],
    starts: Float64s,
    targets: Float64s,
    rounds: int = _ROUNDS,
) -> tuple[Float64s, Float64s]:
    """Fits by the Levenberg–Marquardt method, with Huber's loss and a scale re-estimated from the residuals.

    Args:
        model: parameters (fits × parameters) → values (fits × observations).
        slopes_of: parameters → derivatives of the values: fits × observations × parameters.
        starts: fits × parameters.
        targets: observations; one row for all fits, or one per fit.
        rounds: most iterations.

    Returns:
        Parameters, fits × parameters; and the loss of each fit: mean absolute residual, comparable between models.
    """
    parameters = starts.copy()
    damping = np.full(len(parameters), 1e-2)
    residual = model(parameters) - targets
    for _ in range(rounds):
        scale = np.maximum(1.4826 * np.median(np.abs(residual), axis=1, keepdims=True), _LEAST_SCALE)
        weight = 1 / np.maximum(np.abs(residual) / (_HUBER * scale), 1)
        slopes = slopes_of(parameters)
        weighted = (slopes * weight[..., None]).transpose(0, 2, 1)
        normal = weighted @ slopes
        gradient = (weighted @ residual[..., None])[..., 0]
        diagonal = np.einsum("rpp->rp", normal)
        damped = normal + (diagonal * damping[:, None] + _RIDGE)[..., None] * np.eye(parameters.shape[1])
        step = np.clip(-np.linalg.solve(damped, gradient[..., None])[..., 0], -_LONGEST, _LONGEST)
        new_residual = model(parameters + step) - targets
        better = _loss(new_residual, scale) < _loss(residual, scale)
        parameters = np.where(better[:, None], parameters + step, parameters)
        residual = np.where(better[:, None], new_residual, residual)
        damping = np.clip(np.where(better, damping / 4, damping * 5), 1e-9, 1e9)
        if not better.any() and damping.min() > 1e6:
            break
    return parameters, np.abs(residual).mean(axis=1)


def _loss(residual: Float64s, scale: Float64s) -> Float64s:
    size = np.abs(residual) / scale
    return np.asarray(np.where(size <= _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2)).sum(axis=1))


#: Thresholds follow from the ratio of the sides. Near the crossing the speedup changes by about as much as the batch
#: does, so that a median error of 10 % of the ratio means about 10 % of the threshold; more makes it useless.
RATIO_ERROR_LIMIT: Final = 0.10

#: The terms of the model do not describe a cell with a larger error.
WORST_ERROR_LIMIT: Final = 0.35


def main_errors(fit: Fit) -> tuple[Float64s, Float64s]:
    """Errors of log times held out along the axis with the most values, per cell; and of log ratios, per point."""
    residuals = fit.log_times(fit.cells) - fit.times
    axes = [fold.axis for fold in fit.folds]
    if axes:
        main = max(dict.fromkeys(axes), key=axes.count)
        for fold, predicted in zip(fit.folds, fit.predicted, strict=True):
            if fold.axis == main and np.isfinite(predicted).all():
                residuals[list(fold.cells)] = predicted - fit.times[list(fold.cells)]
    return residuals, residuals[1::2] - residuals[::2]


def doubts_of(noise_known: bool, fit: Fit) -> Iterator[str]:
    """Effects that the figures of a fit do not account for, a sentence each."""
    if not noise_known:
        yield "noise of the step times is unknown: intervals hold the model's error alone"
    for axis in dict.fromkeys(fold.axis for fold in fit.folds):
        held_out = [(fold, times) for fold, times in zip(fit.folds, fit.predicted, strict=True) if fold.axis == axis]
        if all(fold.edge for fold, _ in held_out):
            errors = np.concatenate([np.abs(np.expm1(times - fit.times[list(fold.cells)])) for fold, times in held_out])
            known = errors[np.isfinite(errors)]
            # Where the remaining value does not separate the kinds of work, large errors are arbitrary (rounding
            # decides) and not stated.
            worst = known.max() if known.size else np.inf
            size = f"are up to {worst:.0%} wrong" if worst <= WORST_ERROR_LIMIT else "cannot be predicted"
            yield f"{axis} has two values; without one of them its step times {size}"
    if fit.model.known.work == "items":
        yield "the size of an item is unknown: axes other than the number of items are not modelled"


def refusal(folds: Sequence[Fold], worst: float, ratio_error: float) -> str | None:
    """Why the thresholds must not be used; None if they may."""
    if not folds:
        return "no axis has two values: the model cannot be tested"
    if ratio_error > RATIO_ERROR_LIMIT:
        return f"held-out ratios are {ratio_error:.0%} wrong in the median, more than {RATIO_ERROR_LIMIT:.0%}"
    if worst > WORST_ERROR_LIMIT:
        return f"a held-out step time is {worst:.0%} wrong, more than {WORST_ERROR_LIMIT:.0%}"
    return None


#: Starts of the first fit: a hard maximum has a local minimum for each assignment of cells to host or GPU.
_STARTS: Final = 24

#: Starts of the fit of a fold, beside the parameters of the whole sweep.
_FOLD_STARTS: Final = 8

#: Standard deviation of the starts in log units: most are within a factor of seven of the initial guess.
_SPREAD: Final = 1.0

#: Cap of an error (a factor of two) when forms are compared, so that a single failed fold does not decide.
_COUNTED: Final = float(np.log(2))

_FOLD_ROUNDS: Final = 40


@dataclass(frozen=True)
class Fold:
    """Cells with one value of one axis."""

    axis: str
    value: float
    edge: bool  #: whether it is the least or the greatest value: then predicting it is an extrapolation
    cells: tuple[int, ...]  #: their numbers


@dataclass(frozen=True, eq=False)
class Fit:
    """A model fitted to cells."""

    model: Model
    logs: Float64s  #: logarithms of the parameters
    cells: Sequence[Observed]  #: that it was fitted to
    times: Float64s  #: logs of their step times in ns
    folds: Sequence[Fold]  #: cells held out in turn
    predicted: Sequence[Float64s]  #: log times of the cells of each fold, by a fit to all others

    def log_times(self, cells: Sequence[Observed]) -> Float64s:
        """Modelled logs of step times."""
        gpu, host = self.model.gpu_columns(cells), self.model.host_columns(cells)
        return np.asarray(self.model.log_times(self.logs[None, :], gpu, host)[0])


def folds_of(cells: Sequence[Observed], axes: Sequence[str]) -> list[Fold]:
    """One fold per value of each axis that has several values."""
    folds = []
    for axis in axes:
        values = sorted({cell.settings[axis] for cell in cells})
        for value in values if len(values) > 1 else []:
            inside = tuple(number for number, cell in enumerate(cells) if cell.settings[axis] == value)
            folds.append(Fold(axis, float(value), value in (values[0], values[-1]), inside))
    return folds


def best_fit(
    model: Model, gpu: Float64s, host: Float64s, times: Float64s, seed: int, known: Float64s | None = None
) -> tuple[Float64s, float]:
    """The best of several fits: logs of the parameters, and the mean absolute residual of log times.

    It is fitted to the design matrices of cells and the logs of their step times in ns. `known` parameters, of a fit to
    more cells, are an additional start.
    """
    starts = _starts(model, gpu, host, times, seed, _STARTS if known is None else _FOLD_STARTS)
    if known is not None:
        starts = np.vstack([known, starts])
    rounds = _ROUNDS if known is None else _FOLD_ROUNDS
    parameters, loss = fitted(*model.functions(gpu, host), starts, times[None, :], rounds)
    best = int(np.nanargmin(loss))
    return parameters[best], float(loss[best])


def _starts(model: Model, gpu: Float64s, host: Float64s, times: Float64s, seed: int, count: int) -> Float64s:
    """Random starts around a guess: floors from the fastest step, work from the slowest, host time from the median."""
    least, most, middle = np.exp([times.min(), times.max(), np.median(times)])
    guesses = []
    for column in range(gpu.shape[1]):
        amount = gpu[:, column]
        constant = np.ptp(amount[amount > 0]) == 0 if (amount > 0).any() else True
        guesses.append((least if constant else most) / 3 / max(amount.max(), 1e-12))
    guesses += [middle / max(host[:, column].max(), 1e-12) for column in range(host.shape[1])]
    logs = np.log(guesses)
    if len(model.terms) > logs.size:
        logs = np.append(logs, 0.0)
    return np.asarray(logs + np.random.default_rng(seed).normal(0, _SPREAD, (count, logs.size)))


def held_out(
    model: Model, cells: Sequence[Observed], times: Float64s, folds: Sequence[Fold], known: Float64s, seed: int
) -> list[Float64s]:
    """For each fold, the log times of its cells as predicted by a fit to all others; NaN where too few are left."""
    predicted = []
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    for fold in folds:
        left_out = list(fold.cells)
        rest = np.delete(np.arange(len(cells)), left_out)
        if len(rest) <= len(model.terms):
            predicted.append(np.full(len(left_out), np.nan))
            continue
        logs, _ = best_fit(model, gpu[rest], host[rest], times[rest], seed, known)
        predicted.append(model.log_times(logs[None, :], gpu[left_out], host[left_out])[0])
    return predicted


def scored(times: Float64s, folds: Sequence[Fold], predicted: Sequence[Float64s]) -> float:
    """Mean absolute error of held-out log times, each capped at a factor of two.

    Only axes with three or more values count, if there are any: with one of two values held out, kinds of work that
    grow differently along that axis cannot be separated, whatever the form.
    """
    inner = {fold.axis for fold in folds if not fold.edge}
    errors = [
        np.abs(fold_times - times[list(fold.cells)])
        for fold, fold_times in zip(folds, predicted, strict=True)
        if fold.axis in inner or not inner
    ]
    joined = np.concatenate(errors) if errors else np.array([np.inf])
    return float(np.minimum(np.nan_to_num(joined, nan=_COUNTED), _COUNTED).mean())


#: Resampled fits; five lie beyond each end of a 95 % interval.
_DRAWS: Final = 200

_DRAW_ROUNDS: Final = 12


def fit_breakeven(sweep: Sweep, *, level: float = 0.95, seed: int = 0, draws: int = _DRAWS) -> BreakEven:
    """Fits the model of both sides' step times and computes the thresholds from which on the variant pays.

    Values of a non-numeric axis (`execution`) are assumed to differ in the host's time only. `level` is the nominal
    coverage of the intervals, `draws` the number of resampled fits.

    Raises:
        MissingDataError: too few points have both sides, or the cells have neither tokens, FLOPs nor items.
    """
    points = [point for point in sweep.points if measured_sides(point)]
    if len(points) < 2:
        raise MissingDataError(f"{sweep.source}: a break-even model needs two points with both sides measured")
    known, groups = known_fields(points), groups_of(sweep)
    cells = observed(points, groups)
    times = np.log([cell.time_ns or np.nan for point in points for cell in measured_sides(point)])
    folds = folds_of(cells, [name for name in sweep.axes if name not in groups])
    model, logs, predicted, forms = _chosen(known, cells, times, folds, seed)
    if model is None:
        few = f"{len(times)} step times are too few"
        raise MissingDataError(f"{sweep.source}: {few} for the terms of a break-even model")
    fit, sizes = Fit(model, logs, cells, times, folds, predicted), Sizes.of(cells, known.work)
    residuals, ratio_errors = main_errors(fit)
    drawn, noise_known = _resampled(fit, points, residuals, level, draws, seed)
    shifts = np.random.default_rng(seed).choice(np.concatenate([ratio_errors, -ratio_errors]), size=len(drawn))
    modelled = fit.log_times(cells)
    ratios = np.exp(modelled[1::2] - modelled[::2])
    worst = float(np.expm1(np.abs(residuals)).max())
    ratio_error = float(np.expm1(np.median(np.abs(ratio_errors))))
    reason = refusal(folds, worst, ratio_error)
    return BreakEven(
        source=sweep.source,
        model=model,
        size_unit=known.work,
        parameters=parameter_frame(model, logs, drawn, cells, points, level),
        forms=forms,
        answers=thresholds(model, cells, sizes, groups, logs, (drawn, shifts), level),
        median_error=float(np.expm1(np.median(np.abs(residuals)))),
        worst_error=worst,
        ratio_error=ratio_error,
        usable=reason is None,
        reason=reason,
        level=level,
        doubts=tuple(doubts_of(noise_known, fit)),
        groups=groups,
        ratios=tuple((point.settings, float(ratio)) for point, ratio in zip(points, ratios, strict=True)),
    )


def _chosen(
    known: Known, cells: Sequence[Observed], times: Float64s, folds: Sequence[Fold], seed: int
) -> tuple[Model | None, Float64s, list[Float64s], pl.DataFrame]:
    """The form with the least held-out error.

    Maximum, own work and kind of host term are chosen first, then the groups without a host term.
    """
    least = {
        cell.group: min(time for other, time in zip(cells, times, strict=True) if other.group == cell.group)
        for cell in cells
    }
    groups = tuple(sorted(least, key=lambda group: least[group]))
    reduces = known.work == "tokens" and any(block_table(cell.size)[:, 2].any() for cell in cells)
    maxima: tuple[Maximum, ...] = ("hard", "soft")
    owns = (False,) if known.work == "items" else (False, True)
    costs = (False, True) if "launches" not in known.missing else (False,)
    tried: dict[Form, tuple[float, Model, Float64s, list[Float64s], float]] = {}

    def attempt(form: Form) -> float:
        if form not in tried:
            model = Model(form, known, groups, reduces)
            if len(times) <= len(model.terms):
                return np.inf
            logs, loss = best_fit(model, model.gpu_columns(cells), model.host_columns(cells), times, seed)
            predicted = held_out(model, cells, times, folds, logs, seed)
            tried[form] = (scored(times, folds, predicted) if folds else loss, model, logs, predicted, loss)
        return tried[form][0]

    best = min((Form(kind, own, groups, cost) for kind in maxima for own in owns for cost in costs), key=attempt)
    for group in groups:
        fewer = replace(best, hosts=tuple(host for host in best.hosts if host != group))
        # Of models with nearly the same error, the one with fewer terms is preferred.
        if attempt(fewer) <= attempt(best) * 1.02:
            best = fewer
    best = min((replace(best, maximum=kind) for kind in maxima), key=attempt)
    rows = [
        (form.maximum, form.own, len(form.hosts), form.per_launch, len(model.terms), loss, score if folds else None,
         form == best)
        for form, (score, model, _, _, loss) in tried.items()
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=FORMS.schema, orient="row").sort("held_out_error", "parameters")
    if best not in tried:
        return None, np.empty(0), [], frame
    _, model, logs, predicted, _ = tried[best]
    return model, logs, predicted, frame


def _resampled(
    fit: Fit, points: Sequence[Point], residuals: Float64s, level: float, draws: int, seed: int
) -> tuple[Float64s, bool]:
    """Fits to resampled step times: resampled blocks, plus or minus each point's held-out error.

    The latter is the wild bootstrap (Liu 1988) with held-out residuals: model errors move the parameters as noise does.
    Both sides of a point take the same sign, so that errors of the ratio are preserved.
    """
    noise = replicates(points, draws, level, seed)
    targets = np.empty((draws, len(fit.cells)))
    targets[:, ::2], targets[:, 1::2] = noise.baseline_draws, noise.variant_draws
    signs = np.random.default_rng(seed + 1).choice([-1.0, 1.0], size=(draws, len(points)))
    targets += np.repeat(signs, 2, axis=1) * residuals
    gpu, host = fit.model.gpu_columns(fit.cells), fit.model.host_columns(fit.cells)
    start = np.repeat(fit.logs[None, :], draws, axis=0)
    drawn, _ = fitted(*fit.model.functions(gpu, host), start, targets, rounds=_DRAW_ROUNDS)
    return drawn, bool(noise.known.all())
