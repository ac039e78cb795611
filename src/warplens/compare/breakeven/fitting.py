"""Robust least squares for many starts, or many resampled targets, of one small model at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fitted"]

Float64s = npt.NDArray[np.float64]

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
