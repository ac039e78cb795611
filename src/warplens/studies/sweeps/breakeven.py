"""The fitted model of a sweep: parameters, errors, predictions, and from which size on the variant pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s
from warplens.studies.sweeps.payoff import Answer, Crossing, PaysOff, first_below, interval
from warplens.studies.sweeps.sweep import SIDES, Observed, framed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.studies.sweeps.breakeven_model import Form, Model, Sizes


#: Sizes are interpolated through logarithms.
_ROUNDING: Final = 1 + 1e-9

PARAMETERS: Final = table(
    "sweep: parameters of the break-even model",
    "A parameter, or a rate that follows from one. `warplens sweep report`.",
    column("name", help="what it is of", title="Parameter", kind="text"),
    column(
        "of",
        dtype=pl.Enum(["gpu", "host", "overlap", "derived"]),
        help="whose time it is part of; `derived` for a rate",
    ),
    column("unit", help="unit of the values"),
    column("low", help="lower end of its interval", title="Interval from"),
    "value",
    column("high", help="upper end of its interval"),
    Column("identified", pl.Boolean, "whether its interval spans less than a factor of four", title="Told by the data"),
)

ERRORS: Final = table(
    "sweep: errors of the break-even model",
    "A cell, and an axis by whose values it was left out. `BreakEven.errors`; the axes stand before these columns.",
    column("side", dtype=pl.Enum(SIDES)),
    column("measured_ns", dtype=pl.Float64, help="time of a step as measured"),
    Column("fitted_ns", pl.Float64, "by the model, fitted to all cells"),
    "fitted_error",
    column("bound", dtype=pl.Enum(["host", "gpu"]), help="whichever takes longer"),
    Column("left_out", pl.String, "the axis"),
    Column("edge", pl.Boolean, "whether an end of the axis was left out, so that this is an extrapolation"),
    Column("held_out_ns", pl.Float64, "by the model, fitted without the cell"),
    "held_out_error",
    Column("held_out_ratio_error", pl.Float64, "of variant / baseline"),
)

FORMS: Final = table(
    "sweep: forms of the break-even model",
    "A form that was compared by cross-validation. `warplens sweep report`.",
    Column("maximum", pl.Enum(["hard", "soft"]), "how host and GPU overlap"),
    Column("own", pl.Boolean, "whether attention (or all work) costs each side its own"),
    Column("hosts", pl.Int64, "groups that have a host term"),
    Column("per_launch", pl.Boolean, "whether the host's time is launches times the cost of one"),
    Column("parameters", pl.Int64, "how many it has"),
    column("fitted_error", help="mean absolute error of log times"),
    column("held_out_error", help="the same of cells that were left out"),
    column("chosen", dtype=pl.Boolean, help="whether it is the one that is used"),
)

THRESHOLDS: Final = table(
    "sweep: thresholds of the break-even model",
    "From where on the variant pays at a size, or at a number of items. `warplens sweep report`; the axes that are no"
    " numbers stand before these columns.",
    Column("along", pl.Enum(["items", "size"]), "the number of items at a size, or the size at a number of items",
           title="Looked for along"),
    column("answer", dtype=pl.Enum(["crosses", "always", "never"]), help="whether it starts to pay there"),
    column("size", dtype=pl.Float64, help="of an item", kind='number'),
    column("items", dtype=pl.Float64, help="that a step processes"),
    Column("total", pl.Float64, "size × items at the threshold"),
    Column("total_low", pl.Float64, "lower end of its interval; null outside of what was looked at",
           title="Interval from"),
    Column("total_high", pl.Float64, "upper end of it", title="to"),
    "extrapolated",
)  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """Modelled step times."""

    #: baseline_ns, variant_ns: as predicted
    baseline_ns: float
    variant_ns: float
    #: ratio_low, ratio, ratio_high: variant / baseline time; interval with the model's held-out error in it
    ratio_low: float
    ratio: float
    ratio_high: float
    #: baseline_bound, variant_bound: `host` or `gpu`, whichever takes longer
    baseline_bound: str
    variant_bound: str
    extrapolated: bool  #: whether the size or the number of items lies beyond those measured


@dataclass(frozen=True, eq=False)
class BreakEven:
    """A model of both sides' step times, and from where on the variant pays."""

    source: str  #: of the sweep
    model: Model  #: form, terms and facts
    size_unit: str  #: what a size is counted in: `tokens` (that enter the first block), `flops` (of an item), `items`
    parameters: pl.DataFrame  #: `PARAMETERS`
    errors: pl.DataFrame  #: the axes, then `ERRORS`
    forms: pl.DataFrame  #: `FORMS`
    #: from where on the variant pays, for each measured size along `items` and the other way round
    answers: tuple[PaysOff, ...]
    #: median_error, worst_error: absolute, of held-out step times, each cell by the axis with most values
    median_error: float
    worst_error: float
    ratio_error: float  #: median absolute error of held-out ratios, the same way
    usable: bool  #: whether the errors allow to use the thresholds
    reason: str | None  #: why not; None if they do
    level: float  #: nominal, of all intervals
    doubts: tuple[str, ...]  #: what the figures do not account for
    sizes: Sizes
    cells: tuple[Observed, ...]
    groups: tuple[str, ...]
    logs: Float64s
    draws: Float64s
    ratio_errors: Float64s

    @property
    def thresholds(self) -> pl.DataFrame:
        """The answers as a table: the axes that are no numbers, then `THRESHOLDS`."""
        return threshold_frame(self.answers, self.groups)

    @property
    def form(self) -> Form:
        """What cross-validation chose."""
        return self.model.form

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts that would make a better model, and that not all cells have."""
        return self.model.known.missing

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
        cells = self.sizes.pair(size, items, group)
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
        y = np.log([[cell.size.amount(self.model.known.work), cell.items] for cell in before])
        place = np.log([float(settings[name]) for name in numeric])
        found = []
        for end in (0, 1):
            value = 0.0
            for axis in range(len(numeric)):
                value += _effect(x[:, axis], y[:, end], place[axis])
            found.append(float(np.exp(value + y[:, end].mean())))
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
) -> tuple[PaysOff, ...]:
    """From where on the model says that the variant pays: for each measured size along the number of items, and back.

    Args:
        sizes: of both sides.
        groups: names of the axes that are no numbers.
        draws: resampled parameters, one row a draw, and an error of the log ratio for each.
    """
    counts = sorted({cell.items for cell in cells})
    known = sizes.work != "items"
    asked = [("items", size) for size in (sizes.amounts if known else (1.0,))]
    asked += [("size", items) for items in counts] if known else []
    found = []
    for group in model.groups:
        for axis, held in asked:
            span: Sequence[float] = counts if axis == "items" else sizes.amounts
            least = max(span[0] / _REACH, 1.0) if axis == "items" else span[0] / _REACH
            along = np.geomspace(least, span[-1] * _REACH, _PLACES)
            places = [(held, float(at)) if axis == "items" else (float(at), held) for at in along]
            pairs = [cell for size, items in places for cell in sizes.pair(size, items, group)]
            gains = _first_gains(model, pairs, np.log(along), logs, draws)
            others = {
                **dict(zip(group_columns(groups), group, strict=True)),
                "size" if axis == "items" else "items": held,
            }
            found.append(_answer(axis, others, gains, (span[0], span[-1]), level))
    return tuple(found)


def threshold_frame(answers: Sequence[PaysOff], groups: Sequence[str]) -> pl.DataFrame:
    """A model's answers: the axes that are no numbers, then `THRESHOLDS`."""
    rows = []
    for found in answers:
        held = float(found.others["size" if found.axis == "items" else "items"])
        at = found.crossings[0].at if found.crossings else None
        low, high = found.interval
        rows.append(
            {
                **{name: found.others[name] for name in group_columns(groups)},
                "along": found.axis,
                "answer": "never" if found.answer == "none-in-range" else found.answer,
                "size": at if found.axis == "size" else held,
                "items": at if found.axis == "items" else held,
                "total": at * held if at is not None else None,
                "total_low": low * held if low is not None else None,
                "total_high": high * held if high is not None else None,
                "extrapolated": any(crossing.extrapolated for crossing in found.crossings),
            }
        )
    return framed(rows, group_columns(groups), THRESHOLDS)


def group_columns(groups: Sequence[str]) -> list[str]:
    """Columns in which the thresholds hold the axes that are no numbers.

    A language model's `size` is a word (`small`), and the threshold's a number: the setting is `size_setting` then.
    """
    return [f"{name}_setting" if name in THRESHOLDS.names else name for name in groups]


def _first_gains(
    model: Model, cells: Sequence[Observed], x: Float64s, logs: Float64s, draws: tuple[Float64s, Float64s]
) -> Float64s:
    """Log of the place from which the variant pays: by the fitted parameters, then by each draw."""
    times = model.log_times(np.vstack([logs, draws[0]]), model.gpu_columns(cells), model.host_columns(cells))
    ratios = times[:, 1::2] - times[:, ::2]
    ratios[1:] += draws[1][:, None]
    return first_below(x, ratios, ratios < 0)


def _answer(axis: str, others: Mapping[str, Any], places: Float64s, span: tuple[float, float], level: float) -> PaysOff:
    at, (low, high) = float(np.exp(places[0])), interval(places[1:], places[1:], level)
    crossing = Crossing("above", at, low, high, (None, None), False, extrapolated=not span[0] <= at <= span[1])
    crosses = bool(np.isfinite(places[0]))
    answer: Answer = "crosses" if crosses else "always" if places[0] < 0 else "none-in-range"
    return PaysOff("modelled", axis, others, answer, (crossing,) if crosses else (), span, level, (low, high))
