"""From where on the variant pays, by measured times: what a curve may do between two of its points, and where two meet.

A step time is a sum or maximum of terms c·xᵖ (launches, work, traffic), smoothed or not. Such a function is convex when
both its axes are logarithmic (Boyd and Vandenberghe, Convex Optimization, 2004, section 4.5: posynomials and their
maxima). So between two points it lies below their chord and above the chords of its neighbours, extended; and it is
taken to cost no less than the cheaper of the two points. Where measured points bend the other way by more than noise
(other kernels were chosen, waves filled up), both bounds are widened by twice that bend, at most to the times of the
two points themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.errors import UsageError
from warplens.studies.policies.choosing import Policy, is_number
from warplens.studies.sweeps.payoff import Crossing, PaysOff
from warplens.studies.sweeps.sweep import LEAST_BLOCKS, Replicates, Sweep, replicates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from warplens.studies.sweeps.breakeven import BreakEven
    from warplens.studies.sweeps.payoff import Answer
    from warplens.studies.sweeps.sweep import Cell, Float64s, Point


#: Places looked at between two neighbours; between them, straight lines. The bounds consist of at most three each.
_PLACES: Final = 33

#: How many times the strongest measured bend widens the bounds. The measured points need not be those at which a
#: staircase stands out most. With twice the bend, intervals of simulated stairs hold the crossing as often as with four
#: times, and are narrower; with the bend itself, they lose it more often.
_SLACK: Final = 2.0


def bend(x: Float64s, times: Float64s, level: float) -> float:
    """How far a curve lies above the chord of two neighbours where it bends down most; 0 where noise explains it.

    Args:
        x: log of the axis, rising.
        times: log of the times, one row a draw, one column a point.
        level: of the decision that it bends down.
    """
    if x.size < 3:
        return 0.0
    share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
    above = times[:, 1:-1] - (times[:, :-2] * (1 - share) + times[:, 2:] * share)
    decided = np.quantile(above, 1 - level, axis=0) > 0
    return float(np.median(above, axis=0)[decided].max(initial=0.0))


def _bounds(x: Float64s, times: Float64s, start: int, places: Float64s, slack: float) -> tuple[Float64s, Float64s]:
    """Least and greatest log time at places between point `start` and the next; one row a draw, one column a place."""
    left, right = times[:, [start]], times[:, [start + 1]]
    share = (places - x[start]) / (x[start + 1] - x[start])
    chord = left * (1 - share) + right * share
    least, most = np.minimum(left, right), np.maximum(left, right)
    lower = least + np.zeros_like(places)
    if start > 0:
        slope = (left - times[:, [start - 1]]) / (x[start] - x[start - 1])
        lower = np.maximum(lower, left + slope * (places - x[start]))
    if start + 2 < x.size:
        slope = (times[:, [start + 2]] - right) / (x[start + 2] - x[start + 1])
        lower = np.maximum(lower, right - slope * (x[start + 1] - places))
    return np.maximum(np.minimum(lower, chord) - slack, least), np.minimum(chord + slack, most)


def meetings(
    x: Float64s, sides: tuple[Float64s, Float64s], span: tuple[int, int], falling: bool, level: float
) -> tuple[Float64s, Float64s]:
    """For each draw, between which places the log ratio of the sides can pass zero.

    Args:
        x: log of the axis, rising.
        sides: log times of baseline and variant, one row a draw, one column a point.
        span: first and last point between which it passes.
        falling: whether it passes from above (the variant pays beyond it) or from below.
        level: of the decision that a curve bends down.

    Returns:
        Least and greatest place, as logs of the axis. Minus infinity and infinity: before the first, after the last
        point of the span.
    """
    slack = [_SLACK * bend(x, side, level) for side in sides]
    places, lower, upper = [], [], []
    for start in range(span[0], span[1]):
        between = np.linspace(x[start], x[start + 1], _PLACES)
        base, other = (_bounds(x, side, start, between, free) for side, free in zip(sides, slack, strict=True))
        places.append(between)
        lower.append(other[0] - base[1])
        upper.append(other[1] - base[0])
    where, low, high = np.concatenate(places), np.concatenate(lower, axis=1), np.concatenate(upper, axis=1)
    if not falling:
        low, high = -high, -low
    return _first_below(where, low), -_first_below(-where[::-1], -high[:, ::-1])


def _first_below(where: Float64s, values: Float64s) -> Float64s:
    """The first place at which values are zero or less; minus infinity if at the first, infinity if nowhere."""
    below = values <= 0
    found = below.argmax(axis=1)
    rows = np.arange(values.shape[0])
    before = np.maximum(found - 1, 0)
    one, two = values[rows, before], values[rows, found]
    drop = np.where(one > two, one - two, 1.0)
    place = where[before] + (where[found] - where[before]) * np.clip(one / drop, 0, 1)
    place = np.where(found == 0, -np.inf, place)
    return np.asarray(np.where(below.any(axis=1), place, np.inf))


def root(x: Float64s, ratio: Float64s) -> float | None:
    """Where a chain of straight lines passes zero, as log of the axis; the middle one of several, None of none."""
    changes = np.flatnonzero(np.signbit(ratio[:-1]) != np.signbit(ratio[1:]))
    if not changes.size:
        return None
    at = int(changes[changes.size // 2])
    return float(x[at] + (x[at + 1] - x[at]) * ratio[at] / (ratio[at] - ratio[at + 1]))


#: One row a measured value of the axis. `ratio` is variant / baseline time: below 1 where the variant is faster.
#: `sign`: `faster`, `slower` or `undecided`, at a level that holds for all values of the axis at once.
LINE_SCHEMA = pl.Schema(
    {
        "value": pl.Float64(),
        "baseline_ns": pl.Float64(),
        "variant_ns": pl.Float64(),
        "ratio_low": pl.Float64(),
        "ratio": pl.Float64(),
        "ratio_high": pl.Float64(),
        "sign": pl.Enum(["faster", "slower", "undecided"]),
    }
)

# --- Lines of a sweep, the signs of their points, and the crossings between them -------------------------------------


#: Draws: the outermost quantile of five points at 95 % is then that of ten draws.
_DRAWS: Final = 2000

#: An extrapolated crossing lies at most this factor beyond the measured values.
_REACH: Final = 4.0


def crossovers(
    sweep: Sweep, axis: str, *, level: float = 0.95, seed: int = 0, extrapolate: bool = False, draws: int = _DRAWS
) -> tuple[PaysOff, ...]:
    """From where on an axis the variant is the faster side, for each combination of the other axes.

    Args:
        axis: one of its axes, with numbers above zero.
        level: nominal coverage of the intervals.
        extrapolate: whether to look for a crossing up to four times beyond the measured values, where there is none
            among them.

    Returns:
        One answer a line, in the order of the sweep. Lines with fewer than two points at which both sides were
        measured are `undecided`.

    Raises:
        UsageError: the sweep has no such axis, or it has no numbers above zero.
    """
    if axis not in sweep.axes:
        known = ", ".join(sweep.axes) or "none"
        raise UsageError(f"{sweep.source}: {axis!r} is no axis of the sweep; there are: {known}")
    values = [point.settings[axis] for point in sweep.points]
    if not all(is_number(value) and value > 0 for value in values):
        raise UsageError(f"{sweep.source}: a crossover needs numbers above zero, and {axis!r} has other values")
    if not 0.5 <= level < 1:
        raise UsageError(f"a level of {level} makes no interval; give one such as 0.95")
    return tuple(
        _line(axis, others, points, level, np.random.SeedSequence([seed, number]), extrapolate, draws)
        for number, (others, points) in enumerate(sweep.lines(axis))
    )


def _timed(cell: Cell | None) -> bool:
    return cell is not None and cell.time_ns is not None


def _line(
    axis: str,
    others: Mapping[str, Any],
    points: Sequence[Point],
    level: float,
    seed: np.random.SeedSequence,
    extrapolate: bool,
    draws: int,
) -> PaysOff:
    measured = [point for point in points if _timed(point.baseline) and _timed(point.variant)]
    everywhere = [float(point.settings[axis]) for point in points]
    values = np.array([float(point.settings[axis]) for point in measured])
    gaps = _gaps(axis, points)
    if not measured:
        span = (everywhere[0], everywhere[-1])
        line = LINE_SCHEMA.to_frame()
        reason = "no point has both sides"
        return PaysOff("measured", axis, others, "undecided", (), span, level, line=line, reason=reason, doubts=gaps)
    drawn = replicates(measured, draws, level, int(seed.generate_state(1)[0]))
    signs = _signs(drawn, level)
    x = np.log(values)
    crossings = list(_crossings(x, values, drawn, signs, level))
    inside = [crossing.bracket for crossing in crossings if crossing.decided]
    unknown = tuple(
        float(value)
        for value, sign in zip(values, signs, strict=True)
        if not sign and not any(low < value < high for low, high in inside)
    )
    answer = _answer(signs, crossings, unknown)
    if answer in ("always", "none-in-range") and extrapolate and values.size > 1:
        crossings = list(_beyond(x, values, drawn))
    return PaysOff(
        evidence="measured",
        axis=axis,
        others=others,
        answer=answer,
        crossings=tuple(crossings),
        undecided_at=unknown,
        span=(float(values[0]), float(values[-1])),
        level=level,
        line=_frame(values, drawn, signs, level),
        reason=_reason(axis, answer, unknown, drawn),
        doubts=(*gaps, *_doubts(drawn)),
    )


def _signs(drawn: Replicates, level: float) -> list[int]:
    """1 where the variant is slower, −1 where it is faster, 0 where noise does not tell; at `level` for all at once."""
    outside = (1 - level) / drawn.ratio.size / 2
    low, high = np.quantile(drawn.ratio_draws, [outside, 1 - outside], axis=0)
    return [
        int(low > 0) - int(high < 0) if known else 0 for low, high, known in zip(low, high, drawn.known, strict=True)
    ]


def _answer(signs: Sequence[int], crossings: Sequence[Crossing], unknown: Sequence[float]) -> Answer:
    if any(crossing.decided for crossing in crossings):
        return "crosses"
    if unknown or not signs:
        return "undecided"
    return "always" if signs[0] < 0 else "none-in-range"


def _crossings(
    x: Float64s, values: Float64s, drawn: Replicates, signs: Sequence[int], level: float
) -> Iterator[Crossing]:
    """Crossings between decided neighbours of opposite sign, and candidates where an end of the line is undecided."""
    decided = [index for index, sign in enumerate(signs) if sign]
    last = len(signs) - 1
    spans = [(one, two) for one, two in pairwise(decided) if signs[one] != signs[two]]
    # At an undecided end there may be a crossing or none. Without any decided point, the whole line is such an end.
    if decided and decided[0] > 0:
        spans.insert(0, (0, decided[0]))
    if decided and decided[-1] < last:
        spans.append((decided[-1], last))
    if not decided and last > 0:
        spans = [(0, last)]
    for first, end in spans:
        at = root(x[first : end + 1], drawn.ratio[first : end + 1])
        if at is None:
            continue
        falling = bool(drawn.ratio[first] > 0) if not signs[first] and not signs[end] else _falls(signs, first, end)
        known = bool(drawn.known[first : end + 1].all())
        low, high = _interval(x, drawn, (first, end), falling, level)
        ends = (values[first], values[end])
        bracket = tuple(float(item) if signs[place] else None for item, place in zip(ends, (first, end), strict=True))
        bound = _within(math.exp(low), math.exp(high), bracket)
        yield Crossing(
            pays="above" if falling else "below",
            at=math.exp(at),
            low=bound[0] if known else bracket[0],
            high=bound[1] if known else bracket[1],
            bracket=(bracket[0], bracket[1]),
            decided=bool(signs[first] and signs[end]),
        )


def _falls(signs: Sequence[int], first: int, end: int) -> bool:
    return signs[first] > 0 or signs[end] < 0


def _interval(
    x: Float64s, drawn: Replicates, span: tuple[int, int], falling: bool, level: float
) -> tuple[float, float]:
    sides = (drawn.baseline_draws, drawn.variant_draws)
    least, most = meetings(x, sides, span, falling, level)
    low = float(np.quantile(least, (1 - level) / 2, method="lower"))
    high = float(np.quantile(most, (1 + level) / 2, method="higher"))
    return low, high


def _within(low: float, high: float, bracket: Sequence[float | None]) -> tuple[float | None, float | None]:
    """An interval inside its bracket; None where it is open and the bracket is, too."""
    first = low if low > 0 and math.isfinite(low) else bracket[0]
    last = high if high > 0 and math.isfinite(high) else bracket[1]
    return first, last


def _beyond(x: Float64s, values: Float64s, drawn: Replicates) -> Iterator[Crossing]:
    """Where the last two points at an end of the line, extended, meet zero.

    No interval: nothing that was measured bounds the curve out there.
    """
    for end, inner in ((0, 1), (-1, -2)):
        at = _extended(x, drawn.ratio, end, inner)
        if not math.isfinite(at) or abs(at - x[end]) > math.log(_REACH):
            continue
        edge = float(values[end])
        falling = bool(drawn.ratio[end] > 0) == (end == -1)
        yield Crossing(
            pays="above" if falling else "below",
            at=math.exp(at),
            low=edge if end == -1 else None,
            high=edge if end == 0 else None,
            bracket=(edge, None) if end == -1 else (None, edge),
            decided=False,
            extrapolated=True,
        )


def _extended(x: Float64s, ratio: Float64s, end: int, inner: int) -> float:
    """Where the line through two points meets zero beyond the outer one; infinite where it does not."""
    slope = (ratio[end] - ratio[inner]) / abs(x[end] - x[inner])
    away = -ratio[end] / slope if slope else -1.0
    return float(x[end] + math.copysign(away, x[end] - x[inner])) if away >= 0 else math.inf


def _frame(values: Float64s, drawn: Replicates, signs: Sequence[int], level: float) -> pl.DataFrame:
    low, high = np.quantile(drawn.ratio_draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    words = {1: "slower", 0: "undecided", -1: "faster"}
    return pl.DataFrame(
        {
            "value": values,
            "baseline_ns": np.exp(drawn.baseline),
            "variant_ns": np.exp(drawn.variant),
            "ratio_low": [float(v) if known else None for v, known in zip(np.exp(low), drawn.known, strict=True)],
            "ratio": np.exp(drawn.ratio),
            "ratio_high": [float(v) if known else None for v, known in zip(np.exp(high), drawn.known, strict=True)],
            "sign": [words[sign] for sign in signs],
        },
        schema=LINE_SCHEMA,
    )


def _gaps(axis: str, points: Sequence[Point]) -> tuple[str, ...]:
    """Points at which a side was not measured."""
    found = []
    for point in points:
        for name, cell in (("baseline", point.baseline), ("variant", point.variant)):
            if not _timed(cell):
                found.append(f"{axis} {point.settings[axis]}: {name} {cell.status if cell else 'missing'}")
    return tuple(found)


def _doubts(drawn: Replicates) -> tuple[str, ...]:
    return ("noise between blocks is not in the intervals: there is one block",) if drawn.within.any() else ()


def _reason(axis: str, answer: Answer, unknown: Sequence[float], drawn: Replicates) -> str | None:
    if not drawn.known.any():
        return f"noise is unknown: no point has {LEAST_BLOCKS} blocks on each side"
    if not unknown:
        return "only one point has both sides" if drawn.ratio.size == 1 else None
    shown = ", ".join(f"{value:g}" for value in unknown)
    return f"noise does not tell the faster side at {axis} {shown}"


def pays_off(evidence: Sweep | BreakEven | Policy, axis: str, **options: Any) -> tuple[PaysOff, ...]:
    """From where on an axis the variant is the faster side, for each combination of the other axes.

    Args:
        evidence: measurements, a model fitted to them, or a policy of two sides.
        axis: one of its axes, with numbers above zero; of a model `items` or `size`.
        options: of measurements those of `crossover.crossovers`.

    Raises:
        UsageError: it has no such axis, or the axis has no numbers above zero.
    """
    if isinstance(evidence, Sweep):
        return crossovers(evidence, axis, **options)
    if isinstance(evidence, Policy):
        return tuple(_by_policy(evidence, axis))
    if found := tuple(answer for answer in evidence.answers if answer.axis == axis):
        return found
    raise UsageError(f"{evidence.source}: a model answers along items or size, not {axis!r}")


def _by_policy(policy: Policy, axis: str) -> Iterator[PaysOff]:
    """Where the chosen side changes between neighbouring points, with the points as its bracket."""
    names = [each.name for each in policy.axes]
    if axis not in names or not policy.axes[names.index(axis)].numeric:
        raise UsageError(f"{policy.source}: {axis!r} is no axis of numbers; the policy chooses by {', '.join(names)}")
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
