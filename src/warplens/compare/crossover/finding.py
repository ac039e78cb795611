"""Lines of a sweep, the signs of their points, and the crossings between them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from warplens.compare.crossover.answers import LINE_SCHEMA, Answer, AxisCrossover, Crossing
from warplens.compare.crossover.envelope import meetings, root
from warplens.compare.resampling import LEAST_BLOCKS, Replicates, replicates
from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from warplens.compare.resampling import Float64s
    from warplens.compare.sweep import Cell, Point, Sweep

__all__ = ["crossovers"]

#: Draws: the outermost quantile of five points at 95 % is then that of ten draws.
_DRAWS: Final = 2000

#: An extrapolated crossing lies at most this factor beyond the measured values.
_REACH: Final = 4.0


def crossovers(
    sweep: Sweep, axis: str, *, level: float = 0.95, seed: int = 0, extrapolate: bool = False, draws: int = _DRAWS
) -> tuple[AxisCrossover, ...]:
    """From where on an axis the variant is the faster side, for each combination of the other axes.

    Args:
        sweep: a baseline and a variant over a grid.
        axis: one of its axes, with numbers above zero.
        level: nominal coverage of the intervals.
        seed: of the resampling.
        extrapolate: whether to look for a crossing up to four times beyond the measured values, where there is none
            among them.
        draws: of the resampling.

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
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value > 0 for value in values):
        raise UsageError(f"{sweep.source}: a crossover needs numbers above zero, and {axis!r} has other values")
    if not 0.5 <= level < 1:
        raise UsageError(f"a level of {level} makes no interval; give one such as 0.95")
    return tuple(
        _line(axis, others, points, level, np.random.SeedSequence([seed, number]), extrapolate, draws)
        for number, (others, points) in enumerate(_lines(sweep, axis))
    )


def _lines(sweep: Sweep, axis: str) -> Iterator[tuple[dict[str, Any], list[Point]]]:
    """The other axes' values, and the points that have them, rising along the axis."""
    others = [name for name in sweep.axes if name != axis]
    found: dict[tuple[Any, ...], list[Point]] = {}
    for point in sweep.points:
        found.setdefault(tuple(point.settings[name] for name in others), []).append(point)
    for key, points in found.items():
        yield dict(zip(others, key, strict=True)), sorted(points, key=lambda point: float(point.settings[axis]))


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
) -> AxisCrossover:
    measured = [point for point in points if _timed(point.baseline) and _timed(point.variant)]
    everywhere = [float(point.settings[axis]) for point in points]
    values = np.array([float(point.settings[axis]) for point in measured])
    gaps = _gaps(axis, points)
    if not measured:
        span = (everywhere[0], everywhere[-1])
        line = LINE_SCHEMA.to_frame()
        return AxisCrossover(axis, others, "undecided", (), (), span, level, line, "no point has both sides", gaps)
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
    return AxisCrossover(
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
