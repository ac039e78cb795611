"""The values of an axis from which on a variant pays, in one form for every kind of evidence.

`pays_off` gives crossovers of measured times, thresholds of a fitted model (`breakeven`), and changes of a policy's
choice as `PaysOff`.

Between two measured points the curve is bounded. A step time is a sum or maximum of terms c·xᵖ (launches, work,
traffic), smoothed or not. Such a function is convex on logarithmic scales (Boyd and Vandenberghe, Convex Optimization,
2004, section 4.5: posynomials and their maxima). It therefore lies below the chord of the two points and above the
extended chords of their neighbours; it is also assumed to be no less than the smaller of the two times. Where measured
points are concave by more than noise (another kernel was chosen, a wave filled up), both bounds are widened by twice
that bend, at most to the times of the two points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl

from warplens.compare.decisions import ratio_interval
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Bools, Column, Float64s
from warplens.studies.policies.choosing import Policy, is_number
from warplens.studies.sweeps.sweep import Point, Replicates, Sweep, framed, replicates

if TYPE_CHECKING:
    from warplens.studies.sweeps.breakeven import BreakEven


#: `crosses`: the variant starts or stops to pay between two examined values. `always`, `none-in-range`: it is faster,
#: or not faster, at all of them. `undecided`: the noise is too large.
Answer: TypeAlias = Literal["crosses", "always", "none-in-range", "undecided"]

#: `measured`: between measured points. `modelled`: by a fitted model, also beyond them. `policy`: between the points of
#: a policy with different choices.
Evidence: TypeAlias = Literal["measured", "modelled", "policy"]

CROSSINGS: Final = table(
    "sweep: crossings",
    "A crossing, or a line of the grid that has none. `warplens sweep report`; the other axes stand before it.",
    column("axis", help="the axis that varies"),
    column("answer", dtype=pl.Enum(["crosses", "always", "none-in-range", "undecided"]),
           help="whether the faster side changes between the values looked at"),
    column("pays", help="above or below the crossing"),
    Column("at", pl.Float64, "estimate"),
    column("low", help="lower end of its interval; null where nothing bounds it", title="Interval from"),
    "high",
    Column("bracket_low", pl.Float64, "measured value below it at which the faster side is decided"),
    Column("bracket_high", pl.Float64, "measured value above it at which the faster side is decided"),
    column("decided", help="whether both ends of the bracket are there"),
    column("extrapolated", help="whether it lies beyond the measured values"),
    Column("range_low", pl.Float64, "least measured value", title="Measured from"),
    Column("range_high", pl.Float64, "greatest measured value", title="to"),
    "reason",
    reason="why there is no better answer",
)  # fmt: skip


@dataclass(frozen=True)
class Crossing:
    """A value of an axis at which the faster side changes."""

    pays: Literal["above", "below"]  #: whether the variant is faster above or below it
    at: float  #: estimate: linear interpolation between neighbours, log of the ratio over log of the axis
    #: low, high: interval; covers noise and the possible course of the curve between measured points. None: not bounded
    #: within the measured range.
    low: float | None
    high: float | None
    #: the nearest measured values below and above at which the faster side is decided; None on a side that has none
    bracket: tuple[float | None, float | None]
    decided: bool  #: whether the bracket has both ends; the crossing lies inside whatever the course of the curve
    extrapolated: bool = False  #: whether it lies beyond the measured values


@dataclass(frozen=True, eq=False)
class PaysOff:
    """The values of one axis from which on the variant pays, the other axes fixed."""

    evidence: Evidence  #: basis of the answer
    axis: str  #: the one that varies; of a model also `items` and `size`
    others: Mapping[str, Any]  #: value of each other axis
    answer: Answer  #: see `Answer`
    crossings: tuple[Crossing, ...]  #: rising along the axis; candidates if the answer is `undecided`
    span: tuple[float, float]  #: least and greatest measured value
    level: float | None  #: nominal level of the intervals; None where they are not statistical
    #: interval of the least value from which on it pays, also where the estimate has none; an end is None beyond the
    #: examined range. Used by models; measured answers have the intervals of their crossings instead.
    interval: tuple[float | None, float | None] = (None, None)
    reason: str | None = None  #: why there is no better answer; None if there is nothing to say
    doubts: tuple[str, ...] = ()  #: effects that the figures do not account for


def crossing_frame(answers: Sequence[PaysOff]) -> pl.DataFrame:
    """All crossings as one table: the other axes, then `CROSSINGS`; a line without crossings has one row."""
    rows = []
    for line in answers:
        common = {**line.others, "axis": line.axis, "answer": line.answer, "reason": line.reason}
        common |= {"range_low": line.span[0], "range_high": line.span[1]}
        rows += [
            {**common, **vars(crossing), "bracket_low": crossing.bracket[0], "bracket_high": crossing.bracket[1]}
            for crossing in line.crossings
        ] or [common]
    return framed(rows, list(answers[0].others) if answers else [], CROSSINGS)


#: With 2000 draws, ten lie beyond the simultaneous 95 % quantile of five points.
_DRAWS: Final = 2000

_ONE_BLOCK: Final = "noise between blocks is not in the intervals: there is one block"


def crossovers(
    sweep: Sweep, axis: str, *, level: float = 0.95, seed: int = 0, draws: int = _DRAWS
) -> tuple[PaysOff, ...]:
    """The values of an axis from which on the variant is faster, for each combination of the other axes.

    One answer per line, in the order of the sweep. Lines with fewer than two points at which both sides were measured
    are `undecided`. `level` is the nominal coverage of the intervals, `draws` the number of resamples.

    Raises:
        UsageError: the sweep has no such axis, or it has no numbers above zero.
    """
    if axis not in sweep.axes:
        known = ", ".join(sweep.axes) or "none"
        raise UsageError(f"{sweep.source}: {axis!r} is not an axis of the sweep; there are: {known}")
    values = [point.settings[axis] for point in sweep.points]
    if not all(is_number(value) and value > 0 for value in values):
        raise UsageError(f"{sweep.source}: a crossover needs numbers above zero, and {axis!r} has other values")
    if not 0.5 <= level < 1:
        raise UsageError(f"a level of {level} makes no interval; give one such as 0.95")
    return tuple(
        _line(axis, others, points, level, int(np.random.SeedSequence([seed, number]).generate_state(1)[0]), draws)
        for number, (others, points) in enumerate(sweep.lines(axis))
    )


def _line(
    axis: str, others: Mapping[str, Any], points: Sequence[Point], level: float, seed: int, draws: int
) -> PaysOff:
    """Where on one line of points, all settings but `axis` being equal, the variant pays off."""
    measured = [point for point in points if all(cell is not None and cell.is_timed for _, cell in point.sides)]
    gaps = tuple(
        f"{axis} {point.settings[axis]}: {name} {cell.status if cell else 'missing'}"
        for point in points
        for name, cell in point.sides
        if cell is None or not cell.is_timed
    )
    if not measured:
        span = float(points[0].settings[axis]), float(points[-1].settings[axis])
        reason = "no point has both sides"
        return PaysOff("measured", axis, others, "undecided", (), span, level, reason=reason, doubts=gaps)
    values = np.array([float(point.settings[axis]) for point in measured])
    drawn = replicates(measured, draws, level, seed)
    signs = _signs(measured, level)
    crossings = tuple(_crossings(values, drawn, signs, level))
    inside = [crossing.bracket for crossing in crossings if crossing.decided]
    unknown = tuple(
        float(value)
        for value, sign in zip(values, signs, strict=True)
        if not sign and not any(low < value < high for low, high in inside)
    )
    is_known = len(measured) > 1 and not unknown  # one value is no range
    answer: Answer = "undecided" if not is_known else "always" if signs[0] < 0 else "none-in-range"
    return PaysOff(
        evidence="measured",
        axis=axis,
        others=others,
        answer="crosses" if inside else answer,
        crossings=crossings,
        span=(float(values[0]), float(values[-1])),
        level=level,
        reason=_reason(axis, unknown, measured),
        doubts=(*gaps, *([_ONE_BLOCK] if drawn.within.any() else [])),
    )


def _signs(points: Sequence[Point], level: float) -> list[int]:
    """1 where the variant is slower, −1 where it is faster, 0 where undecided; simultaneously at `level`.

    By the same intervals as in the table of points, which allow for the correlation of successive rounds. Resampled
    medians do not: where it is 0.5, a point of equal sides was decided in 38 of 100 lines.
    """
    signs = []
    for sides in (point.durations for point in points):
        ratio = ratio_interval(*sides, level=(1 - level) / len(points)) if sides is not None else None
        signs.append(int(ratio.low > 1) - int(ratio.high < 1) if ratio is not None else 0)
    return signs


def _crossings(values: Float64s, drawn: Replicates, signs: Sequence[int], level: float) -> Iterator[Crossing]:
    """Crossings between decided neighbours of opposite sign, and candidates at undecided ends of the line."""
    x = np.log(values)
    for first, end in _spans(signs):
        at = _root(x[first : end + 1], drawn.ratio[first : end + 1])
        if at is None and signs[first] * signs[end] < 0:  # the medians do not cross, though the trimmed means do
            at = float(x[first] + x[end]) / 2
        if at is None:
            continue
        falling = signs[first] > 0 or signs[end] < 0 if signs[first] or signs[end] else bool(drawn.ratio[first] > 0)
        before, after = (float(values[place]) if signs[place] else None for place in (first, end))
        low, high = before, after
        if drawn.known[first : end + 1].all():
            least, most = _meetings(x, (drawn.baseline_draws, drawn.variant_draws), (first, end), falling, level)
            ends = interval(least, most, level)
            low, high = before if ends[0] is None else ends[0], after if ends[1] is None else ends[1]
        pays: Literal["above", "below"] = "above" if falling else "below"
        yield Crossing(pays, math.exp(at), low, high, (before, after), bool(signs[first] and signs[end]))


def _spans(signs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last position of each part of the line that may hold a crossing."""
    decided = [index for index, sign in enumerate(signs) if sign]
    last = len(signs) - 1
    if not decided:
        return [(0, last)] if last > 0 else []
    inside = [(one, two) for one, two in pairwise(decided) if signs[one] != signs[two]]
    # An undecided end may hold a crossing.
    before = [(0, decided[0])] if decided[0] > 0 else []
    after = [(decided[-1], last)] if decided[-1] < last else []
    return [*before, *inside, *after]


def interval(least: Float64s, most: Float64s, level: float) -> tuple[float | None, float | None]:
    """The interval of a value from draws of its least and its greatest logarithm; an end is None where it is open."""
    low = np.quantile(least, (1 - level) / 2, method="lower")
    high = np.quantile(most, (1 + level) / 2, method="higher")
    return (math.exp(low) if np.isfinite(low) else None, math.exp(high) if np.isfinite(high) else None)


def _reason(axis: str, unknown: Sequence[float], points: Sequence[Point]) -> str | None:
    if len(points) == 1:
        return f"only one value has both sides, {axis} {points[0].settings[axis]:g}"
    if not unknown:
        return None
    if not any(sides and min(side.count for side in sides) > 1 for sides in (point.durations for point in points)):
        return "noise is unknown: no point has repetitions of both sides"
    shown = ", ".join(f"{value:g}" for value in unknown)
    return f"noise does not tell the faster side at {axis} {shown}"


#: Values at which the bounds between two neighbours are evaluated; each bound has at most three linear pieces.
_BETWEEN: Final = 33

#: The bounds are widened by this multiple of the strongest measured bend, since the steps of a staircase may be larger
#: between the measured points. On simulated staircases, intervals with a factor of 2 cover the crossing as often as
#: with 4 and are narrower; with a factor of 1 they cover it less often.
_SLACK: Final = 2.0


def _bend(x: Float64s, times: Float64s, level: float) -> float:
    """The greatest height of a point above the chord of its neighbours; 0 where noise explains it.

    `x` is the log of the axis, rising; `times` are logs, draws × points; `level` is the confidence in that the curve is
    concave there.
    """
    if x.size < 3:
        return 0.0
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    above = times[:, 1:-1] - (times[:, :-2] * (1 - share) + times[:, 2:] * share)
    decided = np.quantile(above, 1 - level, axis=0) > 0
    return float(np.median(above, axis=0)[decided].max(initial=0.0))


def _bounds(x: Float64s, times: Float64s, start: int, between: Float64s, slack: float) -> tuple[Float64s, Float64s]:
    """Least and greatest log time at values between point `start` and the next: draws × values."""
    left, right = times[:, [start]], times[:, [start + 1]]
    share = (between - x[start]) / (x[start + 1] - x[start])
    chord = left * (1 - share) + right * share
    least, most = np.minimum(left, right), np.maximum(left, right)
    lower = least + np.zeros_like(between)
    if start > 0:
        slope = (left - times[:, [start - 1]]) / (x[start] - x[start - 1])
        lower = np.maximum(lower, left + slope * (between - x[start]))
    if start + 2 < x.size:
        slope = (times[:, [start + 2]] - right) / (x[start + 2] - x[start + 1])
        lower = np.maximum(lower, right - slope * (x[start + 1] - between))
    return np.maximum(np.minimum(lower, chord) - slack, least), np.minimum(chord + slack, most)


def _meetings(
    x: Float64s, sides: tuple[Float64s, Float64s], span: tuple[int, int], falling: bool, level: float
) -> tuple[Float64s, Float64s]:
    """For each draw, the least and greatest log of the axis at which the log ratio of the sides can cross zero.

    Minus infinity before the first and infinity after the last point of the span around the crossing.

    Args:
        x: log of the axis, rising.
        sides: log times of baseline and variant, draws × points.
        falling: whether the ratio crosses from above (the variant pays beyond it) or from below.
        level: confidence in that a curve is concave, see `_bend`.
    """
    slack = [_SLACK * _bend(x, side, level) for side in sides]
    places, lower, upper = [], [], []
    for start in range(span[0], span[1]):
        between = np.linspace(x[start], x[start + 1], _BETWEEN)
        baseline, variant = (_bounds(x, side, start, between, widen) for side, widen in zip(sides, slack, strict=True))
        places.append(between)
        lower.append(variant[0] - baseline[1])
        upper.append(variant[1] - baseline[0])
    where, low, high = np.concatenate(places), np.concatenate(lower, axis=1), np.concatenate(upper, axis=1)
    if not falling:
        low, high = -high, -low
    reverse = -high[:, ::-1]
    return first_below(where, low, low <= 0), -first_below(-where[::-1], reverse, reverse <= 0)


def first_below(where: Float64s, values: Float64s, below: Bools) -> Float64s:
    """For each draw the first of the rising positions at which values fall below zero, interpolated linearly.

    Values, and whether each counts as `below`, are draws × positions. Minus infinity where the first value is below,
    infinity where none is.
    """
    first = below.argmax(axis=1)
    rows = np.arange(values.shape[0])
    before = np.maximum(first - 1, 0)
    left, right = values[rows, before], values[rows, first]
    share = np.clip(left / np.where(left > right, left - right, 1.0), 0, 1)
    position = np.where(first == 0, -np.inf, where[before] + (where[first] - where[before]) * share)
    return np.asarray(np.where(below.any(axis=1), position, np.inf))


def _root(x: Float64s, ratio: Float64s) -> float | None:
    """The zero of a piecewise linear curve, as log of the axis; the middle one of several, None without one."""
    changes = np.flatnonzero(np.signbit(ratio[:-1]) != np.signbit(ratio[1:]))
    if not changes.size:
        return None
    at = int(changes[changes.size // 2])
    return float(x[at] + (x[at + 1] - x[at]) * ratio[at] / (ratio[at] - ratio[at + 1]))


def pays_off(evidence: Sweep | BreakEven | Policy, axis: str, **options: Any) -> tuple[PaysOff, ...]:
    """The values of an axis from which on the variant is faster, for each combination of the other axes.

    The evidence is measurements (with the options of `crossovers`), a model fitted to them, whose axes are `items` and
    `size`, or a policy of two sides.

    Raises:
        UsageError: it has no such axis, or the axis has no numbers above zero.
    """
    if isinstance(evidence, Sweep):
        return crossovers(evidence, axis, **options)
    if isinstance(evidence, Policy):
        return tuple(_by_policy(evidence, axis))
    if answers := tuple(answer for answer in evidence.answers if answer.axis == axis):
        return answers
    raise UsageError(f"{evidence.source}: a model answers along items or size, not {axis!r}")


def _by_policy(policy: Policy, axis: str) -> Iterator[PaysOff]:
    """Crossings where the chosen side changes between neighbouring points, which form the bracket."""
    names = [each.name for each in policy.axes]
    if axis not in names or not policy.axes[names.index(axis)].numeric:
        by = ", ".join(names)
        raise UsageError(f"{policy.source}: {axis!r} is not an axis of numbers; the policy chooses by {by}")
    at = names.index(axis)
    lines: dict[tuple[Any, ...], list[tuple[float, bool]]] = {}
    for point in policy.points:
        key = (*point.at[:at], *point.at[at + 1 :])
        lines.setdefault(key, []).append((float(point.at[at]), point.side != 0))  # type: ignore[arg-type]
    for key, points in lines.items():
        points.sort()
        crossings = tuple(
            Crossing("above" if after else "below", (low * high) ** 0.5, low, high, (low, high), decided=True)
            for (low, before), (high, after) in pairwise(points)
            if before != after
        )
        answer: Answer = "crosses" if crossings else "always" if points[0][1] else "none-in-range"
        others = dict(zip((name for name in names if name != axis), key, strict=True))
        yield PaysOff("policy", axis, others, answer, crossings, (points[0][0], points[-1][0]), None)
