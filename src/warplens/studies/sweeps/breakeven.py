"""The break-even model of a sweep: a step takes as long as the slower of host and GPU.

    time = max(host, GPU)                          hard, or (hostᵖ + GPUᵖ)^(1/p), soft
    host = one time per side, or cost of a launch × launches (where they are known, and where that predicts better)
    GPU  = Σ floor × count + Σ coefficient × work  work: tokens, products of tokens, FLOPs or items

Within one kind of work (linear layers, attention) FLOPs and bytes grow in proportion, so that
max(FLOPs/(efficiency · peak), bytes/bandwidth) is the same roof at every size: one coefficient. All parameters are
positive and fitted as logarithms (`breakeven_fit`). This module holds the terms, the sizes of both sides, the tables of
a fit, and the thresholds from which on the variant pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.compare import SIDES
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Float64s
from warplens.studies.sweeps.payoff import Answer, Crossing, PaysOff, first_below, interval
from warplens.studies.sweeps.sweep import Known, Observed, Point, Size, Work, block_table, framed, token_counts

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
    "Where the variant starts or stops to pay at a size, or at a number of items, a row for each such place."
    " `warplens sweep report`; the axes that are no numbers stand before these columns.",
    Column("along", pl.Enum(["items", "size"]), "the number of items at a size, or the size at a number of items",
           title="Looked for along"),
    column("answer", dtype=pl.Enum(["crosses", "always", "never", "undecided"]), help="whether that changes there"),
    column("pays", help="above or below the threshold"),
    column("size", dtype=pl.Float64, help="of an item", kind='number'),
    column("items", dtype=pl.Float64, help="that a step processes"),
    Column("total", pl.Float64, "size × items at the threshold"),
    Column("total_low", pl.Float64, "lower end of its interval; null outside of what was looked at",
           title="Interval from"),
    Column("total_high", pl.Float64, "upper end of it", title="to"),
    "extrapolated",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sizes:
    """The sizes of both sides as functions of the baseline's size.

    Between measured sizes, tokens, FLOPs and launches are interpolated linearly on logarithmic scales; beyond, tokens
    and FLOPs are proportional to the baseline's size and launches constant.
    """

    work: Work  #: measure of size
    amounts: tuple[float, ...]  #: the baseline's measured sizes, rising
    pairs: tuple[tuple[Size, Size], ...]  #: baseline's and variant's size for each

    @classmethod
    def of(cls, cells: Sequence[Observed], work: Work) -> Sizes:
        """The distinct sizes of cells in which baseline and variant alternate."""
        pairs: dict[float, tuple[Size, Size]] = {}
        for before, after in zip(cells[::2], cells[1::2], strict=True):
            pairs.setdefault(before.size.amount(work), (before.size, after.size))
        return cls(work, tuple(sorted(pairs)), tuple(pairs[amount] for amount in sorted(pairs)))

    def at(self, amount: float) -> tuple[Size, Size]:
        """The sizes of both sides if the baseline's is `amount`."""
        if self.work == "items":
            return self.pairs[0]
        above = int(np.searchsorted(self.amounts, amount))
        if above in (0, len(self.amounts)):
            near = min(above, len(self.amounts) - 1)
            before, after = (_scaled(size, amount / self.amounts[near]) for size in self.pairs[near])
            return before, after
        low, high = self.amounts[above - 1], self.amounts[above]
        share = float(np.log(amount / low) / np.log(high / low))
        one, two = self.pairs[above - 1], self.pairs[above]
        return _between(one[0], two[0], share), _between(one[1], two[1], share)

    def pair(self, amount: float, items: float, group: tuple[Any, ...]) -> list[Observed]:
        """Hypothetical cells of both sides at a size and a number of items."""
        return [Observed({}, side, group, items, size) for side, size in enumerate(self.at(amount))]


def _scaled(size: Size, factor: float) -> Size:
    tokens = None if size.tokens is None else token_counts(np.maximum(np.array(size.tokens) * factor, 1.0))
    return Size(tokens, size.flops and size.flops * factor, size.launches)


def _between(one: Size, two: Size, share: float) -> Size:
    tokens = None
    if one.tokens and two.tokens and len(one.tokens) == len(two.tokens):
        mixed = np.exp(np.log(np.array(one.tokens)) * (1 - share) + np.log(np.array(two.tokens)) * share)
        tokens = token_counts(mixed)
    return Size(tokens, _mixed(one.flops, two.flops, share), _mixed(one.launches, two.launches, share))


def _mixed(one: float | None, two: float | None, share: float) -> float | None:
    return float(one ** (1 - share) * two**share) if one and two else None


#: A parameter whose interval spans a larger factor is not identified by the data.
_IDENTIFIED: Final = 4.0

#: Log of a negligible time.
_GONE: Final = -60.0

#: A parameter is not identified if its term changes no log step time by more than this.
_NOTICED: Final = 0.01


def parameter_frame(
    model: Model,
    logs: Float64s,
    drawn: Float64s,
    cells: Sequence[Observed],
    points: Sequence[Point],
    level: float,
) -> pl.DataFrame:
    """`PARAMETERS`: one row per parameter, and one per rate that follows from it.

    `logs` are the fitted parameters, as logarithms, and `drawn` resampled ones, draws × parameters. The model was
    fitted to the cells, baseline and variant of each of the points.
    """
    values, samples = np.exp(logs), np.exp(drawn)
    if model.form.maximum == "soft" and model.form.hosts:
        values[-1], samples[:, -1] = model.sharpness(logs[None, :])[0], model.sharpness(drawn)
    rows: list[tuple[Any, ...]] = []
    spans = [(1 - level) / 2, (1 + level) / 2]
    for number, term in enumerate(model.terms):
        low, high = (float(value) for value in np.quantile(samples[:, number], spans))
        identified = high <= low * _IDENTIFIED and _matters(model, logs, number, cells)
        rows.append((term.name, term.of, term.unit, low, float(values[number]), high, identified))
        flops = _flops_per_unit(term, cells, points)
        if flops:
            # FLOP/ns → FLOP/s
            rate = (1e9 * flops / high, 1e9 * flops / values[number], 1e9 * flops / low)
            rows.append((f"rate of {term.name}", "derived", "FLOP/s", *map(float, rate), identified))
    return pl.DataFrame(rows, schema=PARAMETERS.schema, orient="row")


def _matters(model: Model, logs: Float64s, number: int, cells: Sequence[Observed]) -> bool:
    """Whether any step time changes noticeably without this term."""
    gpu, host = model.gpu_columns(cells), model.host_columns(cells)
    without = logs.copy()
    without[number] = _GONE
    times = model.log_times(np.stack([logs, without]), gpu, host)
    return bool(np.abs(times[1] - times[0]).max() > _NOTICED)


def _flops_per_unit(term: Term, cells: Sequence[Observed], points: Sequence[Point]) -> float | None:
    """FLOPs per unit of work of a term, fitted to the FLOPs of the cells; None for other terms or if not known."""
    if term.unit == "ns/FLOP":
        return 1.0
    if term.unit not in ("ns/token", "ns/token²"):
        return None
    flops = [cell.flops for point in points for cell in (point.baseline, point.variant) if cell]
    if not all(flops):
        return None
    work = np.array([cell.items * block_table(cell.size).sum(axis=0)[:2] for cell in cells])
    per_unit = np.linalg.lstsq(work, np.array(flops, dtype=float), rcond=None)[0]
    return float(per_unit[0] if term.unit == "ns/token" else per_unit[1]) if (per_unit > 0).all() else None


Maximum: TypeAlias = Literal["hard", "soft"]

#: Exponents: p = 1 means no overlap at all; beyond 30 the maximum is practically hard.
_LEAST_SHARPNESS: Final = 1.0
_MOST_SHARPNESS: Final = 30.0

#: Step of the numerical derivative with respect to the exponent.
_STEP: Final = 1e-5


@dataclass(frozen=True)
class Form:
    """The structure of a model, chosen by cross-validation."""

    maximum: Maximum  #: how host and GPU overlap
    own: bool  #: whether each side has its own coefficient of attention (of all work, where only FLOPs are known)
    #: groups that have a host term; the step time of other groups is the GPU time (with CUDA graphs, say)
    hosts: tuple[tuple[object, ...], ...]
    #: whether the host time is launches × cost of a launch; else it is one time per side. Launches made by one library
    #: call cost less than others, so their number can mislead.
    per_launch: bool = False


@dataclass(frozen=True)
class Term:
    """A parameter: its name, its unit, and whether it is part of the host's or the GPU's time."""

    name: str
    unit: str
    of: Literal["host", "gpu", "overlap"]


@dataclass(frozen=True, eq=False)
class Model:
    """A form, applied to the groups and known fields of one sweep."""

    form: Form
    known: Known
    groups: tuple[tuple[object, ...], ...]  #: values of the non-numeric axes, the one with the least time first
    reduces: bool  #: whether any block reduces its tokens

    @property
    def terms(self) -> tuple[Term, ...]:
        """The parameters, in their order."""
        terms = [Term(name, unit, "gpu") for name, unit in self._gpu_names()]
        terms += [Term(name, unit, "host") for name, unit in self._host_names()]
        if self.form.maximum == "soft" and self.form.hosts:
            terms.append(Term("overlap exponent", "", "overlap"))
        return tuple(terms)

    def _gpu_names(self) -> list[tuple[str, str]]:
        sides = SIDES if self.form.own else ("",)
        if self.known.work == "tokens":
            names = [("floor of a block", "ns")]
            names += [("floor of a reduction", "ns")] if self.reduces else []
            names += [("linear work", "ns/token")]
            names += [(_joined("attention", side), "ns/token²") for side in sides]
        else:
            names = [(_joined("floor", side), "ns") for side in SIDES]
            unit, sides = ("ns/FLOP", sides) if self.known.work == "flops" else ("ns/item", SIDES)
            names += [(_joined("work", side), unit) for side in sides]
        piece = "block" if self.known.work == "tokens" else "step"
        return names + [(_joined(f"further floor of a {piece}", *group), "ns") for group in self.groups[1:]]

    def _host_names(self) -> list[tuple[str, str]]:
        if self.form.per_launch:
            return [(_joined("launch", *group), "ns") for group in self.form.hosts]
        return [(_joined("host", side, *group), "ns") for group in self.form.hosts for side in SIDES]

    def gpu_columns(self, cells: Sequence[Observed]) -> Float64s:
        """Design matrix of the GPU terms: cells × terms."""
        rows = []
        for cell in cells:
            further = [float(cell.group == group) for group in self.groups[1:]]
            is_side = [float(cell.side == side) for side in (0, 1)]
            if self.known.work == "tokens":
                linear, products, reductions = block_table(cell.size).sum(axis=0)
                blocks = float(len(cell.size.tokens or ()))
                row = [blocks, *([reductions] if self.reduces else []), cell.items * linear]
                row += [cell.items * products * weight for weight in (is_side if self.form.own else [1.0])]
                further = [weight * blocks for weight in further]
            elif self.known.work == "flops":
                work = cell.items * (cell.size.flops or 0.0)
                row = [*is_side, *(work * weight for weight in (is_side if self.form.own else [1.0]))]
            else:
                row = [*is_side, *(cell.items * weight for weight in is_side)]
            rows.append(row + further)
        return np.array(rows)

    def host_columns(self, cells: Sequence[Observed]) -> Float64s:
        """Design matrix of the host terms: cells × terms."""
        rows = []
        for cell in cells:
            is_group = [float(cell.group == group) for group in self.form.hosts]
            if self.form.per_launch:
                rows.append([weight * (cell.size.launches or 0.0) for weight in is_group])
            else:
                rows.append([weight * (cell.side == side) for weight in is_group for side in (0, 1)])
        return np.array(rows).reshape(len(cells), -1)

    def _gpu_and_host_ns(self, logs: Float64s, gpu: Float64s, host: Float64s) -> tuple[Float64s, Float64s]:
        """GPU time and host time in ns: sets of parameters × cells."""
        values = np.exp(logs)
        split = gpu.shape[1]
        gpu_ns, host_ns = values[:, :split] @ gpu.T, values[:, split : split + host.shape[1]] @ host.T
        return np.maximum(gpu_ns, 1e-9), np.maximum(host_ns, 1e-9)

    def log_times(self, logs: Float64s, gpu: Float64s, host: Float64s) -> Float64s:
        """Log of the step time in ns: sets of parameters × cells."""
        gpu_ns, host_ns = self._gpu_and_host_ns(logs, gpu, host)
        if not host.shape[1]:
            return np.log(gpu_ns)
        if self.form.maximum == "hard":
            return np.log(np.maximum(gpu_ns, host_ns))
        power = self.sharpness(logs)[:, None]
        more, less = np.maximum(gpu_ns, host_ns), np.minimum(gpu_ns, host_ns)
        return np.log(more) + np.log1p((less / more) ** power) / power

    def functions(
        self, gpu: Float64s, host: Float64s
    ) -> tuple[Callable[[Float64s], Float64s], Callable[[Float64s], Float64s]]:
        """Log times, and their derivatives, as functions of the parameters alone."""
        return (lambda logs: self.log_times(logs, gpu, host)), (lambda logs: self.slopes(logs, gpu, host))

    def slopes(self, logs: Float64s, gpu: Float64s, host: Float64s) -> Float64s:
        """Derivatives of the log times with respect to the parameters: fits × cells × parameters."""
        gpu_ns, host_ns = self._gpu_and_host_ns(logs, gpu, host)
        values, split, last = np.exp(logs)[:, None, :], gpu.shape[1], gpu.shape[1] + host.shape[1]
        by_gpu = values[..., :split] * gpu / gpu_ns[..., None]
        if not host.shape[1]:
            return np.asarray(by_gpu)
        by_host = values[..., split:last] * host / host_ns[..., None]
        if self.form.maximum == "hard":
            share = (gpu_ns >= host_ns).astype(float)[..., None]
            return np.concatenate([by_gpu * share, by_host * (1 - share)], axis=2)
        power = self.sharpness(logs)[:, None]
        share = (1 / (1 + np.exp(np.clip(power * np.log(host_ns / gpu_ns), -500, 500))))[..., None]
        shifted = logs.copy()
        shifted[:, -1] += _STEP
        by_power = (self.log_times(shifted, gpu, host) - self.log_times(logs, gpu, host))[..., None] / _STEP
        return np.concatenate([by_gpu * share, by_host * (1 - share), by_power], axis=2)

    def sharpness(self, logs: Float64s) -> Float64s:
        """The exponent p of each set of parameters, between 1 and 30."""
        return np.asarray(_LEAST_SHARPNESS + (_MOST_SHARPNESS - _LEAST_SHARPNESS) / (1 + np.exp(-logs[:, -1])))


def _joined(name: str, *parts: object) -> str:
    return ", ".join([name, *(str(part) for part in parts if part not in ("", None))])


@dataclass(frozen=True, eq=False)
class BreakEven:
    """A fitted model of both sides' step times, and the thresholds from which on the variant pays."""

    source: str  #: of the sweep
    model: Model  #: form and terms
    size_unit: str  #: measure of size: `tokens` (that enter the first block), `flops` (of an item), `items`
    parameters: pl.DataFrame  #: `PARAMETERS`
    forms: pl.DataFrame  #: `FORMS`
    #: thresholds along `items` for each measured size, and along `size` for each measured number of items
    answers: tuple[PaysOff, ...]
    #: median_error, worst_error: relative, of step times held out along the axis with the most values
    median_error: float
    worst_error: float
    ratio_error: float  #: median relative error of held-out ratios, likewise
    usable: bool  #: whether the errors are small enough for the thresholds to be used
    reason: str | None  #: why not; None if they are
    level: float  #: nominal level of all intervals
    doubts: tuple[str, ...]  #: effects that the figures do not account for
    groups: tuple[str, ...]  #: non-numeric axes
    #: settings and modelled ratio variant / baseline of each fitted point, in order
    ratios: tuple[tuple[Mapping[str, Any], float], ...]

    @property
    def thresholds(self) -> pl.DataFrame:
        """The answers as a table: the non-numeric axes, then `THRESHOLDS`."""
        columns, rows = group_columns(self.groups), []
        for line in self.answers:
            fixed = float(line.others["size" if line.axis == "items" else "items"])
            for crossing in line.crossings or (None,):
                at = crossing.at if crossing else None
                low, high = (crossing.low, crossing.high) if crossing else line.interval
                rows.append(
                    {
                        **{name: line.others[name] for name in columns},
                        "along": line.axis,
                        "answer": "never" if line.answer == "none-in-range" else line.answer,
                        "pays": crossing.pays if crossing else None,
                        "size": at if line.axis == "size" else fixed,
                        "items": at if line.axis == "items" else fixed,
                        "total": at * fixed if at is not None else None,
                        "total_low": low * fixed if low is not None else None,
                        "total_high": high * fixed if high is not None else None,
                        "extrapolated": crossing is not None and crossing.extrapolated,
                    }
                )
        return framed(rows, columns, THRESHOLDS)

    @property
    def form(self) -> Form:
        """The form that cross-validation chose."""
        return self.model.form

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields that would make a better model, and that not all cells have."""
        return self.model.known.missing


#: The search extends beyond the measured sizes and numbers of items by this factor either way, but not below one item.
#: Further out, other kernels are chosen.
_REACH: Final = 4.0

#: Number of values searched; neighbours differ by at most 4 % for a measured range of 16 and the reach of 4 · 4.
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
    """The modelled thresholds: along the number of items for each measured size, and the other way round.

    `groups` are the non-numeric axes; `logs` fitted parameters, as logarithms; `draws` resampled ones, draws ×
    parameters, and an error of the log ratio for each draw.
    """
    counts = sorted({cell.items for cell in cells})
    has_sizes = sizes.work != "items"
    searches = [("items", size) for size in (sizes.amounts if has_sizes else (1.0,))]
    searches += [("size", items) for items in counts] if has_sizes else []
    answers = []
    for group in model.groups:
        for axis, fixed in searches:
            span: Sequence[float] = counts if axis == "items" else sizes.amounts
            least = max(span[0] / _REACH, 1.0) if axis == "items" else span[0] / _REACH
            along = np.geomspace(least, span[-1] * _REACH, _PLACES)
            places = [(fixed, float(at)) if axis == "items" else (float(at), fixed) for at in along]
            pairs = [cell for size, items in places for cell in sizes.pair(size, items, group)]
            ratios = _log_ratios(model, pairs, logs, draws)
            others = dict(zip(group_columns(groups), group, strict=True))
            others["size" if axis == "items" else "items"] = fixed
            answers.append(_answer(axis, others, np.log(along), ratios, (span[0], span[-1]), level))
    return tuple(answers)


def group_columns(groups: Sequence[str]) -> list[str]:
    """Column names of the non-numeric axes in the table of thresholds.

    A setting whose name the table uses itself gets a suffix: a language model's `size` (`small`) is `size_setting`.
    """
    return [f"{name}_setting" if name in THRESHOLDS.names else name for name in groups]


def _log_ratios(model: Model, cells: Sequence[Observed], logs: Float64s, draws: tuple[Float64s, Float64s]) -> Float64s:
    """Log of variant / baseline of each pair of cells: by the fitted parameters, then by each draw."""
    times = model.log_times(np.vstack([logs, draws[0]]), model.gpu_columns(cells), model.host_columns(cells))
    ratios = times[:, 1::2] - times[:, ::2]
    ratios[1:] += draws[1][:, None]
    return ratios


def _answer(
    axis: str, others: Mapping[str, Any], x: Float64s, ratios: Float64s, span: tuple[float, float], level: float
) -> PaysOff:
    """The places where the variant starts or stops to pay, from log ratios of sides at the logs `x` of the axis."""
    gains = first_below(x, ratios, ratios < 0)
    changes = list(_changes(x, ratios))
    first = changes[0][1] if changes else gains
    # Open at both ends: by some draws it always pays, by others never.
    unknown = all(np.mean(first[1:] == end) > (1 - level) / 2 for end in (-np.inf, np.inf))
    crossings: list[Crossing] = []
    for pays, places in () if unknown else changes:
        at, (low, high) = float(np.exp(places[0])), interval(places[1:], places[1:], level)
        if crossings and high is None:
            break  # draws do not agree that it changes once more
        beyond = not span[0] <= at <= span[1]
        crossings.append(Crossing(pays, at, low, high, (None, None), False, extrapolated=beyond))
    answer: Answer = "crosses" if crossings else "always" if gains[0] < 0 else "none-in-range"
    if unknown:
        answer = "undecided"
    return PaysOff(
        "modelled", axis, others, answer, tuple(crossings), span, level, interval(gains[1:], gains[1:], level)
    )


def _changes(x: Float64s, ratios: Float64s) -> Iterator[tuple[Literal["above", "below"], Float64s]]:
    """Changes of the faster side by the fitted parameters, the first row, in order; with the place by each row."""
    pays = bool(ratios[0, 0] < 0)
    places = np.full(len(ratios), -np.inf)
    while True:
        values = -ratios if pays else ratios
        places = first_below(x, values, (values < 0) & (x > places[:, None]))
        if not np.isfinite(places[0]):
            return
        yield "below" if pays else "above", places
        pays = not pays
