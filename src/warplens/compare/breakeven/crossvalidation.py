"""How wrong the model is where it was not fitted: each value of each numeric axis left out in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from warplens.compare.breakeven.fitting import fitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.breakeven.features import Observed
    from warplens.compare.breakeven.model import Model
    from warplens.compare.resampling import Float64s

__all__ = ["Fold", "best_fit", "folds_of", "held_out", "scored"]

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
    """Cells with one value of one axis.

    Attributes:
        axis: which.
        value: which value.
        edge: whether it is the least or the greatest: then leaving it out asks for an extrapolation.
        cells: numbers of the cells.
    """

    axis: str
    value: float
    edge: bool
    cells: tuple[int, ...]


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
        model: what is fitted.
        cells: one a time.
        times: logs of the step times in ns.
        seed: of the starts.
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
