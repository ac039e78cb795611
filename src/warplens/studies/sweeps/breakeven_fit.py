"""Robust fits of the break-even model to a sweep, chosen and judged by what they predict where they were not fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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

#: Residuals beyond so many robust deviations count linearly (Huber 1964: 95 % efficient for normal errors).
_HUBER: Final = 1.345

#: Log times are not told apart below this: no fit is better than 0.2 %.
_LEAST_SCALE: Final = 0.002

#: Holds a parameter that no residual depends on where it is.
_RIDGE: Final = 1e-9

#: A step changes no parameter by more than a factor of e.
_LONGEST: Final = 1.0


def fitted(
    model: Callable[[Float64s], Float64s],
    slopes_of: Callable[[Float64s], Float64s],
    starts: Float64s,
    targets: Float64s,
    rounds: int = _ROUNDS,
) -> tuple[Float64s, Float64s]:
    """Fits by Levenberg and Marquardt, with Huber's loss and a scale that follows the residuals.

    Args:
        model: parameters, one row a fit → values, one row a fit, one column an observation.
        slopes_of: parameters → derivatives of the values: fit × observation × parameter.
        starts: one row a fit, one column a parameter.
        targets: observations; one row for all fits, or one a fit.
        rounds: steps at most.

    Returns:
        Parameters, one row a fit; and the loss of each: mean absolute residual, robust and comparable between models.
    """
    at = starts.copy()
    damping = np.full(len(at), 1e-2)
    residual = model(at) - targets
    for _ in range(rounds):
        scale = np.maximum(1.4826 * np.median(np.abs(residual), axis=1, keepdims=True), _LEAST_SCALE)
        weight = 1 / np.maximum(np.abs(residual) / (_HUBER * scale), 1)
        slopes = slopes_of(at)
        weighted = (slopes * weight[..., None]).transpose(0, 2, 1)
        normal = weighted @ slopes
        gradient = (weighted @ residual[..., None])[..., 0]
        diagonal = np.einsum("rpp->rp", normal)
        damped = normal + (diagonal * damping[:, None] + _RIDGE)[..., None] * np.eye(at.shape[1])
        step = np.clip(-np.linalg.solve(damped, gradient[..., None])[..., 0], -_LONGEST, _LONGEST)
        tried = model(at + step) - targets
        better = _loss(tried, scale) < _loss(residual, scale)
        at = np.where(better[:, None], at + step, at)
        residual = np.where(better[:, None], tried, residual)
        damping = np.clip(np.where(better, damping / 4, damping * 5), 1e-9, 1e9)
        if not better.any() and damping.min() > 1e6:
            break
    return at, np.abs(residual).mean(axis=1)


def _loss(residual: Float64s, scale: Float64s) -> Float64s:
    size = np.abs(residual) / scale
    return np.asarray(np.where(size <= _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2)).sum(axis=1))


#: A threshold needs the ratio of the sides. Speedups near the crossing change by about as much as the batch does, so
#: that a typical error of 10 % of the ratio is one of about 10 % of the threshold; beyond that it is no threshold.
RATIO_ERROR_LIMIT: Final = 0.10

#: A cell that is wrong by more than a third was not described by these terms.
WORST_ERROR_LIMIT: Final = 0.35


def main_errors(fit: Fit) -> tuple[Float64s, Float64s]:
    """Error of each cell's log time, left out by the axis with most values; and of each point's log ratio."""
    residuals = fit.log_times(fit.cells) - fit.times
    axes = [fold.axis for fold in fit.folds]
    if axes:
        main = max(dict.fromkeys(axes), key=axes.count)
        for fold, found in zip(fit.folds, fit.predicted, strict=True):
            if fold.axis == main and np.isfinite(found).all():
                residuals[list(fold.cells)] = found - fit.times[list(fold.cells)]
    return residuals, residuals[1::2] - residuals[::2]


def doubts_of(noise_known: bool, fit: Fit) -> Iterator[str]:
    """What the figures of a fit do not account for."""
    if not noise_known:
        yield "noise of the step times is unknown: intervals hold the model's error alone"
    for axis in dict.fromkeys(fold.axis for fold in fit.folds):
        own = [(fold, found) for fold, found in zip(fit.folds, fit.predicted, strict=True) if fold.axis == axis]
        if all(fold.edge for fold, _ in own):
            errors = np.concatenate([np.abs(np.expm1(found - fit.times[list(fold.cells)])) for fold, found in own])
            known = errors[np.isfinite(errors)]
            # Where the other value does not tell kinds of work apart, how wrong these are is chance: rounding decides.
            worst = known.max() if known.size else np.inf
            size = f"are up to {worst:.0%} wrong" if worst <= WORST_ERROR_LIMIT else "cannot be predicted"
            yield f"{axis} has two values; without one of them its step times {size}"
    if fit.model.known.work == "items":
        yield "the size of an item is unknown: axes other than the number of items are not modelled"


def refusal(folds: Sequence[Fold], worst: float, ratio_error: float) -> str | None:
    """Why the thresholds are not to be used; None if they are."""
    if not folds:
        return "no axis has two values: the model cannot be tested"
    if ratio_error > RATIO_ERROR_LIMIT:
        return f"held-out ratios are {ratio_error:.0%} wrong in the median, more than {RATIO_ERROR_LIMIT:.0%}"
    if worst > WORST_ERROR_LIMIT:
        return f"a held-out step time is {worst:.0%} wrong, more than {WORST_ERROR_LIMIT:.0%}"
    return None


#: Of the first fit: a hard maximum has a local minimum for each set of cells that the host is thought to limit.
_STARTS: Final = 24

#: Of the fits of a fold, beside the parameters of the whole sweep.
_FOLD_STARTS: Final = 8

#: Spread of the starts: most parameters are then within a factor of seven of a rough guess.
_SPREAD: Final = 1.0

#: An error counts as a factor of two at most when forms are compared, or one lost fold would decide.
_COUNTED: Final = float(np.log(2))

_FOLD_ROUNDS: Final = 40


@dataclass(frozen=True)
class Fold:
    """Cells with one value of one axis."""

    axis: str
    value: float
    edge: bool  #: whether it is the least or the greatest: then leaving it out asks for an extrapolation
    cells: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Fit:
    """A model fitted to cells."""

    model: Model
    logs: Float64s
    #: cells, times: that it was fitted to, and logs of their step times in ns
    cells: Sequence[Observed]
    times: Float64s
    #: folds, predicted: cells that were left out in turn, and their log times by a fit to all others
    folds: Sequence[Fold]
    predicted: Sequence[Float64s]

    def log_times(self, cells: Sequence[Observed]) -> Float64s:
        """Modelled logs of step times."""
        gpu, host = self.model.gpu_columns(cells), self.model.host_columns(cells)
        return np.asarray(self.model.log_times(self.logs[None, :], gpu, host)[0])


def folds_of(cells: Sequence[Observed], axes: Sequence[str]) -> list[Fold]:
    """One fold a value of each axis that has more than one."""
    found = []
    for axis in axes:
        values = sorted({cell.settings[axis] for cell in cells})
        for value in values if len(values) > 1 else []:
            inside = tuple(number for number, cell in enumerate(cells) if cell.settings[axis] == value)
            found.append(Fold(axis, float(value), value in (values[0], values[-1]), inside))
    return found


def best_fit(
    model: Model, cells: Sequence[Observed], times: Float64s, seed: int, known: Float64s | None = None
) -> tuple[Float64s, float]:
    """The best of several fits: logs of the parameters, and the mean absolute residual of log times.

    Args:
        times: logs of the step times in ns.
        known: parameters near which the best fit should be.
    """
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    starts = _starts(model, gpu, host, times, seed, _STARTS if known is None else _FOLD_STARTS)
    if known is not None:
        starts = np.vstack([known, starts])
    rounds: dict[str, Any] = {} if known is None else {"rounds": _FOLD_ROUNDS}
    at, loss = fitted(*model.functions(gpu, host), starts, times[None, :], **rounds)
    best = int(np.nanargmin(loss))
    return at[best], float(loss[best])


def _starts(model: Model, gpu: Float64s, host: Float64s, times: Float64s, seed: int, count: int) -> Float64s:
    """Rough guesses: the floor of the cheapest step, the work of the dearest, a host as long as the typical step."""
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
    """For each fold, the predicted log times of its cells by a fit to all others."""
    found = []
    for fold in folds:
        inside = set(fold.cells)
        rest = [number for number in range(len(cells)) if number not in inside]
        if len(rest) <= len(model.terms):
            found.append(np.full(len(fold.cells), np.nan))
            continue
        logs, _ = best_fit(model, [cells[number] for number in rest], times[rest], seed, known)
        left = [cells[number] for number in fold.cells]
        found.append(model.log_times(logs[None, :], model.gpu_columns(left), model.host_columns(left))[0])
    return found


def scored(times: Float64s, folds: Sequence[Fold], predicted: Sequence[Float64s]) -> float:
    """Mean absolute error of held-out log times; each counts as a factor of two at most.

    Axes with three values or more count, if there are any: without one of two values, kinds of work that grow
    differently along that axis cannot be told apart, whatever the form.
    """
    inner = {fold.axis for fold in folds if not fold.edge}
    errors = [
        np.abs(found - times[list(fold.cells)])
        for fold, found in zip(folds, predicted, strict=True)
        if fold.axis in inner or not inner
    ]
    joined = np.concatenate(errors) if errors else np.array([np.inf])
    return float(np.minimum(np.nan_to_num(joined, nan=_COUNTED), _COUNTED).mean())


#: Resampled fits; the outermost quantile at 95 % is then that of five.
_DRAWS: Final = 200

_DRAW_ROUNDS: Final = 12


def fit_breakeven(
    sweep: Sweep,
    *,
    where: Mapping[str, Any] | None = None,
    level: float = 0.95,
    seed: int = 0,
    draws: int = _DRAWS,
) -> BreakEven:
    """A model of the step times of both sides, with the threshold from which the variant pays.

    The host differs between values of axes that are no numbers (`execution`), the GPU's work does not; where it does,
    fit one value at a time with `where`.

    Args:
        where: settings that points must have to be used.
        level: nominal coverage of the intervals.
        seed: of starts and resampling.

    Raises:
        MissingDataError: too few points have both sides, or the cells have neither tokens, FLOPs nor items.
    """
    points = [
        point
        for point in sweep.points
        if measured_sides(point) and all(point.settings.get(name) == value for name, value in (where or {}).items())
    ]
    if len(points) < 2:
        raise MissingDataError(f"{sweep.source}: a break-even model needs two points with both sides measured")
    known, groups = known_fields(points), groups_of(sweep)
    cells = observed(points, groups)
    times = np.log([cell.time_ns or np.nan for point in points for cell in measured_sides(point)])
    folds = folds_of(cells, [name for name in sweep.axes if name not in groups])
    model, logs, predicted, forms = _chosen(known, cells, times, folds, seed)
    if model is None:
        raise MissingDataError(
            f"{sweep.source}: {len(times)} step times are too few for the terms of a break-even model"
        )
    fit, sizes = Fit(model, logs, cells, times, folds, predicted), Sizes.of(cells, known.work)
    residuals, ratio_errors = main_errors(fit)
    drawn, noise_known = _resampled(fit, points, residuals, level, draws, seed)
    shifts = np.random.default_rng(seed).choice(np.concatenate([ratio_errors, -ratio_errors]), size=len(drawn))
    own = fit.log_times(cells)
    ratios = np.exp(own[1::2] - own[::2])
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
    """The form with the least held-out error: first maximum, own work and kind of host, then groups without a host."""
    least = {
        cell.group: min(time for other, time in zip(cells, times, strict=True) if other.group == cell.group)
        for cell in cells
    }
    groups = tuple(sorted(least, key=lambda group: least[group]))
    reduces = known.work == "tokens" and any(block_table(cell.size)[:, 2].any() for cell in cells)
    maxima: tuple[Maximum, ...] = ("hard", "soft")
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
        (form.maximum, form.own, len(form.hosts), form.per_launch, len(model.terms), loss, score if folds else None,
         form == first)
        for form, (score, model, _, _, loss) in tried.items()
    ]  # fmt: skip
    frame = pl.DataFrame(rows, schema=FORMS.schema, orient="row").sort("held_out_error", "parameters")
    if first not in tried:
        return None, np.empty(0), [], frame
    return tried[first][1], tried[first][2], tried[first][3], frame


def _resampled(
    fit: Fit, points: Sequence[Point], residuals: Float64s, level: float, draws: int, seed: int
) -> tuple[Float64s, bool]:
    """Fits to resampled step times: blocks drawn anew, and each point's held-out error added or taken off.

    The latter is the wild bootstrap (Liu 1988) with held-out residuals: what the terms do not describe moves the
    parameters as noise does. Both sides of a point take the same sign, so that errors of the ratio stay as they are.
    """
    noise = replicates(points, draws, level, seed)
    targets = np.empty((draws, len(fit.cells)))
    targets[:, ::2], targets[:, 1::2] = noise.baseline_draws, noise.variant_draws
    signs = np.random.default_rng(seed + 1).choice([-1.0, 1.0], size=(draws, len(points)))
    targets += np.repeat(signs, 2, axis=1) * residuals
    gpu, host = fit.model.gpu_columns(fit.cells), fit.model.host_columns(fit.cells)
    start = np.repeat(fit.logs[None, :], draws, axis=0)
    found, _ = fitted(*fit.model.functions(gpu, host), start, targets, rounds=_DRAW_ROUNDS)
    return found, bool(noise.known.all())
