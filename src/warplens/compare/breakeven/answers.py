"""A fitted break-even model: parameters, errors, predictions and thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.compare.breakeven.features import Observed
from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.compare.breakeven.features import Known
    from warplens.compare.breakeven.model import Form, Model
    from warplens.compare.breakeven.sizes import Sizes
    from warplens.compare.resampling import Float64s

__all__ = ["ERROR_SCHEMA", "FORM_SCHEMA", "PARAMETER_SCHEMA", "THRESHOLD_SCHEMA", "BreakEven", "Prediction"]

#: Sizes are interpolated through logarithms.
_ROUNDING: Final = 1 + 1e-9

#: One row a parameter, then rates derived from them (`of` = `derived`). `identified`: whether the data tell it within
#: a factor of four.
PARAMETER_SCHEMA = pl.Schema(
    {
        "name": pl.String(),
        "of": pl.Enum(["gpu", "host", "overlap", "derived"]),
        "unit": pl.String(),
        "low": pl.Float64(),
        "value": pl.Float64(),
        "high": pl.Float64(),
        "identified": pl.Boolean(),
    }
)

#: One row a cell and axis by whose values it was left out; before these stand the axes. Errors are predicted / measured
#: − 1. `edge`: an end of the axis was left out, so that this is an extrapolation. `ratio_error`: of variant / baseline.
ERROR_SCHEMA = pl.Schema(
    {
        "side": pl.Enum(["baseline", "variant"]),
        "measured_ns": pl.Float64(),
        "fitted_ns": pl.Float64(),
        "fitted_error": pl.Float64(),
        "bound": pl.Enum(["host", "gpu"]),
        "left_out": pl.String(),
        "edge": pl.Boolean(),
        "held_out_ns": pl.Float64(),
        "held_out_error": pl.Float64(),
        "held_out_ratio_error": pl.Float64(),
    }
)

#: One row a form that was compared: mean absolute error of held-out log times, and whether it was chosen.
FORM_SCHEMA = pl.Schema(
    {
        "maximum": pl.Enum(["hard", "soft"]),
        "own": pl.Boolean(),
        "hosts": pl.Int64(),
        "per_launch": pl.Boolean(),
        "parameters": pl.Int64(),
        "fitted_error": pl.Float64(),
        "held_out_error": pl.Float64(),
        "chosen": pl.Boolean(),
    }
)

#: One row a threshold; before these stand the axes that are no numbers. `along` = `items`: the number of items from
#: which the variant pays at a size; `size`: the size at a number of items. `total` is size × items there (tokens ×
#: batch), with its interval; a bound is null where it lies outside of what was looked at. `extrapolated`: beyond the
#: measured sizes or numbers of items.
THRESHOLD_SCHEMA = pl.Schema(
    {
        "along": pl.Enum(["items", "size"]),
        "answer": pl.Enum(["crosses", "always", "never"]),
        "size": pl.Float64(),
        "items": pl.Float64(),
        "total": pl.Float64(),
        "total_low": pl.Float64(),
        "total_high": pl.Float64(),
        "extrapolated": pl.Boolean(),
    }
)


@dataclass(frozen=True)
class Prediction:
    """Modelled step times.

    Attributes:
        baseline_ns, variant_ns: as predicted.
        ratio_low, ratio, ratio_high: variant / baseline time; interval with the model's held-out error in it.
        baseline_bound, variant_bound: `host` or `gpu`, whichever takes longer.
        extrapolated: whether the size or the number of items lies beyond those measured.
    """

    baseline_ns: float
    variant_ns: float
    ratio_low: float
    ratio: float
    ratio_high: float
    baseline_bound: str
    variant_bound: str
    extrapolated: bool


@dataclass(frozen=True, eq=False)
class BreakEven:
    """A model of both sides' step times, and from where on the variant pays.

    Attributes:
        source: of the sweep.
        model: form, terms and facts.
        size_unit: what a size is counted in: `tokens` (that enter the first block), `flops` (of an item), `items`.
        parameters: `PARAMETER_SCHEMA`.
        errors: the axes, then `ERROR_SCHEMA`.
        forms: `FORM_SCHEMA`.
        thresholds: the axes that are no numbers, then `THRESHOLD_SCHEMA`.
        median_error, worst_error: absolute, of held-out step times, each cell by the axis with most values.
        ratio_error: median absolute error of held-out ratios, the same way.
        usable: whether the errors allow to use the thresholds.
        reason: why not; None if they do.
        level: nominal, of all intervals.
        doubts: what the figures do not account for.
    """

    source: str
    model: Model
    size_unit: str
    parameters: pl.DataFrame
    errors: pl.DataFrame
    forms: pl.DataFrame
    thresholds: pl.DataFrame
    median_error: float
    worst_error: float
    ratio_error: float
    usable: bool
    reason: str | None
    level: float
    doubts: tuple[str, ...]
    sizes: Sizes
    cells: tuple[Observed, ...]
    groups: tuple[str, ...]
    logs: Float64s
    draws: Float64s
    ratio_errors: Float64s

    @property
    def form(self) -> Form:
        """What cross-validation chose."""
        return self.model.form

    @property
    def known(self) -> Known:
        """Which facts the cells have."""
        return self.model.known

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts that would make a better model, and that not all cells have."""
        return self.model.known.missing

    def threshold(self, **settings: Any) -> tuple[float, float] | None:
        """The least and the greatest size × items (tokens × batch) from which the variant pays.

        One number would need work that only depends on the product; attention depends on the size twice. Thresholds
        within the measured sizes and numbers of items are preferred; without one, the extrapolated ones count.

        Args:
            settings: values of the axes that are no numbers.

        Returns:
            None if the variant always or never pays as far as was looked.
        """
        group = self._group(settings)
        rows = self.thresholds.filter(pl.col("answer") == "crosses")
        for name, value in zip(self.groups, group, strict=True):
            rows = rows.filter(pl.col(name) == value)
        inside = rows.filter(~pl.col("extrapolated"))
        totals = (inside if inside.height else rows).get_column("total")
        return (float(totals[totals.arg_min() or 0]), float(totals[totals.arg_max() or 0])) if totals.len() else None

    def predict(
        self, settings: Mapping[str, Any], *, size: float | None = None, items: float | None = None
    ) -> Prediction:
        """Step times at a point, measured or not.

        Args:
            settings: values of the axes. With `size` and `items`, those that are no numbers are enough.
            size: of an item, in `size_unit`; None to take it from the measured points with the nearest settings.
            items: that a step processes; None likewise.

        Raises:
            UsageError: a setting that is no number has a value that was not measured, or an axis is missing.
        """
        group = self._group(settings)
        if size is None or items is None:
            found = self._interpolated(settings, group)
            size, items = found[0] if size is None else size, found[1] if items is None else items
        return self.predict_at(size, items, group)

    def predict_at(self, size: float, items: float, group: tuple[Any, ...] = ()) -> Prediction:
        """Step times for a size in `size_unit`, a number of items, and values of the axes that are no numbers."""
        cells = self.pair(size, items, group)
        gpu, host = self.model.gpu_columns(cells), self.model.host_columns(cells)
        times = self.model.log_times(self.logs[None, :], gpu, host)[0]
        device, issuing = self.model.parts(self.logs[None, :], gpu, host)
        drawn = self.model.log_times(self.draws, gpu, host)
        ratios = drawn[:, 1] - drawn[:, 0] + self.ratio_errors
        low, high = np.quantile(ratios, [(1 - self.level) / 2, (1 + self.level) / 2])
        bound = ["host" if issuing[0, side] > device[0, side] else "gpu" for side in (0, 1)]
        return Prediction(
            baseline_ns=float(np.exp(times[0])),
            variant_ns=float(np.exp(times[1])),
            ratio_low=float(np.exp(low)),
            ratio=float(np.exp(times[1] - times[0])),
            ratio_high=float(np.exp(high)),
            baseline_bound=bound[0],
            variant_bound=bound[1],
            extrapolated=self.beyond(size, items),
        )

    def pair(self, size: float, items: float, group: tuple[Any, ...]) -> list[Observed]:
        """Both sides as cells that were not measured."""
        before, after = self.sizes.at(size)
        return [Observed({}, side, group, items, found, 0) for side, found in enumerate((before, after))]

    def beyond(self, size: float, items: float) -> bool:
        """Whether a size or a number of items lies outside of what was measured."""
        counts = [cell.items for cell in self.cells]
        spans = [(items, min(counts), max(counts))]
        if self.size_unit != "items":
            spans.append((size, self.sizes.amounts[0], self.sizes.amounts[-1]))
        return any(not low / _ROUNDING <= value <= high * _ROUNDING for value, low, high in spans)

    def _group(self, settings: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            group = tuple(settings[name] for name in self.groups)
        except KeyError as error:
            raise UsageError(f"a prediction needs a value of {error.args[0]!r}") from None
        if group not in self.model.groups:
            raise UsageError(f"{group} was not measured, and the model cannot say how its host would differ")
        return group

    def _interpolated(self, settings: Mapping[str, Any], group: tuple[Any, ...]) -> tuple[float, float]:
        """Size and items of the point with these settings: log-linear along each axis between measured values."""
        before = [cell for cell in self.cells if cell.side == 0 and cell.group == group]
        numeric = [name for name in before[0].settings if name not in self.groups]
        if missing := [name for name in numeric if name not in settings]:
            raise UsageError(f"a prediction needs a value of {', '.join(missing)}, or size and items")
        x = np.log([[float(cell.settings[name]) for name in numeric] for cell in before])
        y = np.log([[cell.size.amount(self.known.work), cell.items] for cell in before])
        place = np.log([float(settings[name]) for name in numeric])
        found = []
        for column in (0, 1):
            value = 0.0
            for axis in range(len(numeric)):
                value += _effect(x[:, axis], y[:, column], place[axis])
            found.append(float(np.exp(value + y[:, column].mean())))
        return found[0], found[1]


def _effect(x: Float64s, y: Float64s, at: float) -> float:
    """What an axis adds to the mean: means of its values, joined by straight lines, the last ones extended."""
    places = np.unique(x)
    means = np.array([y[x == place].mean() for place in places]) - y.mean()
    if places.size < 2:
        return 0.0
    right = int(np.clip(np.searchsorted(places, at), 1, places.size - 1))
    share = (at - places[right - 1]) / (places[right] - places[right - 1])
    return float(means[right - 1] * (1 - share) + means[right] * share)
