"""The time of a step as the larger of two: what the host needs to issue it, and what the GPU needs for the work.

    time = max(host, fixed + work · Π (setting / unit) ^ exponent)

A launch-bound step takes as long as the host takes, whatever its size; a large one as long as its arithmetic and its
traffic. A rule that knows neither draws a straight line through the bend, and that is where variants cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warplens.compare.policy.estimates import Axis, Place, Times, Value

__all__ = ["Curve", "Curves", "fitted_curves"]

#: Points of one side and one combination of words: three numbers are fitted to them, and one must be left to disagree.
_FEWEST_POINTS: Final = 4

#: Exponents are looked for between 0 (the setting makes no difference) and 4 (attention over an image, in its side).
_EXPONENTS: Final = (0.0, 4.0)
#: Where the search begins, and stays if no point tells: work in proportion to the setting.
_FIRST_EXPONENT: Final = 1.0
#: First steps and last steps of the search; an exponent known to 0.05 moves a time by 4 % over a doubling and less
#: inside it.
_STEPS: Final = (0.5, 0.1, 0.05)
_MOST_ROUNDS: Final = 8

#: Natural logarithm of a size that no input has, so that a strange policy file cannot overflow a number.
_LARGEST_POWER: Final = 200.0

Measured = Sequence[tuple[Sequence[float], float]]


@dataclass(frozen=True)
class Curve:
    """One side with one combination of words.

    Attributes:
        words: values of the axes that are not numeric, in their order.
        side: its number.
        host_ns: shortest time, which no setting changes; 0 where none was seen.
        fixed_ns, work_ns: time of the GPU: constant part, and part of a place where every setting is its unit.
    """

    words: tuple[Value, ...]
    side: int
    host_ns: float
    fixed_ns: float
    work_ns: float


@dataclass(frozen=True)
class Curves:
    """The model of all sides.

    Attributes:
        numeric: for each axis whether it is numeric.
        units: of the numeric axes, their least values.
        exponents: of the numeric axes, for each side.
        curves: of each side and combination of words.
    """

    numeric: tuple[bool, ...]
    units: tuple[float, ...]
    exponents: tuple[tuple[float, ...], ...]
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        by_key = {(curve.words, curve.side): curve for curve in self.curves}
        object.__setattr__(self, "_by_key", by_key)

    @property
    def sides(self) -> int:
        """How many."""
        return len(self.exponents)

    def time_ns(self, at: Place, side: int) -> float | None:
        """Modelled time of a side at a place; None for a combination of words that was not fitted."""
        numbers, words = _split(at, self.numeric)
        by_key: Mapping[tuple[tuple[Value, ...], int], Curve] = self._by_key  # type: ignore[attr-defined]
        curve = by_key.get((words, side))
        if curve is None:
            return None
        size = _size(numbers, self.units, self.exponents[side])
        return max(curve.host_ns, curve.fixed_ns + curve.work_ns * size)


def fitted_curves(axes: Sequence[Axis], times: Mapping[Place, Times], sides: int) -> Curves | None:
    """The model that fits measured times best, in the squares of logarithms.

    A side's exponents are the same for all words: what the GPU does for a larger input does not depend on how the work
    reaches it. The other numbers are of each combination of words.

    Args:
        axes: of the places.
        times: of all sides at each place.
        sides: how many.

    Returns:
        None if a side has too few points, or a numeric axis a value that is not above zero.
    """
    numeric = tuple(axis.numeric for axis in axes)
    varying = [axis for axis in axes if axis.numeric]
    units = tuple(float(axis.values[0]) for axis in varying)  # type: ignore[arg-type]
    if not varying or min(units) <= 0:
        return None
    start = [_FIRST_EXPONENT] * len(varying)
    exponents, curves = [], []
    for side in range(sides):
        groups: dict[tuple[Value, ...], list[tuple[Sequence[float], float]]] = {}
        for at, taken in times.items():
            if (time := taken[side]) is not None:
                numbers, words = _split(at, numeric)
                groups.setdefault(words, []).append((numbers, time))
        if not groups or min(map(len, groups.values())) < _FEWEST_POINTS:
            return None
        found = _exponents(list(groups.values()), units, start)
        exponents.append(tuple(found))
        for words, points in groups.items():
            host, fixed, work = _bend(points, units, found)[0]
            curves.append(Curve(words, side, host, fixed, work))
    return Curves(numeric, units, tuple(exponents), tuple(curves))


def _split(at: Place, numeric: Sequence[bool]) -> tuple[tuple[float, ...], tuple[Value, ...]]:
    numbers = tuple(value for value, is_number in zip(at, numeric, strict=True) if is_number)
    words = tuple(value for value, is_number in zip(at, numeric, strict=True) if not is_number)
    return numbers, words  # type: ignore[return-value]


def _size(numbers: Sequence[float], units: Sequence[float], exponents: Sequence[float]) -> float:
    powers = sum(power * math.log(number / unit) for number, unit, power in zip(numbers, units, exponents, strict=True))
    return math.exp(min(powers, _LARGEST_POWER))


def _exponents(groups: Sequence[Measured], units: Sequence[float], start: Sequence[float]) -> list[float]:
    """The exponents with the smallest error, one after another in ever smaller steps."""

    def error(exponents: Sequence[float]) -> float:
        return sum(_bend(points, units, exponents)[1] for points in groups)

    least, most = _EXPONENTS
    found = [min(max(exponent, least), most) for exponent in start]
    best = error(found)
    for step in _STEPS:
        for _ in range(_MOST_ROUNDS):
            before = best
            for axis in range(len(found)):
                found, best = _improved(error, found, best, axis, step)
            if best >= before:
                break
    return found


def _improved(
    error: Callable[[Sequence[float]], float], found: list[float], best: float, axis: int, step: float
) -> tuple[list[float], float]:
    least, most = _EXPONENTS
    for sign in (-step, step):
        moved = True
        while moved:
            tried = [*found]
            tried[axis] = min(max(found[axis] + sign, least), most)
            moved = tried != found and (now := error(tried)) < best * (1 - 1e-9)
            if moved:
                found, best = tried, now
    return found, best


def _bend(
    points: Measured, units: Sequence[float], exponents: Sequence[float]
) -> tuple[tuple[float, float, float], float]:
    """Host time, fixed time and time of the work that fit best, and the sum of the squared errors of logarithms.

    Every place of the bend is tried: smaller steps are bound by the host, larger ones by the GPU.
    """
    ordered = sorted((_size(numbers, units, exponents), time) for numbers, time in points)
    best, smallest = (0.0, 0.0, 0.0), math.inf
    for bound in range(len(ordered) + 1):
        host = math.exp(sum(math.log(time) for _, time in ordered[:bound]) / bound) if bound else 0.0
        fixed, work = _line(ordered[bound:])
        error = 0.0
        for size, time in ordered:
            modelled = max(host, fixed + work * size)
            error += math.log(time / modelled) ** 2
            if error >= smallest:
                break
        else:
            best, smallest = (host, fixed, work), error
    return best, smallest


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Constant and slope, neither below zero, with the smallest squares of relative errors."""
    if not points:
        return 0.0, 0.0
    weights = [1 / time**2 for _, time in points]
    total = sum(weights)
    size = sum(weight * size for weight, (size, _) in zip(weights, points, strict=True)) / total
    time = sum(weight * time for weight, (_, time) in zip(weights, points, strict=True)) / total
    spread = sum(weight * (s - size) ** 2 for weight, (s, _) in zip(weights, points, strict=True))
    together = sum(weight * (s - size) * (t - time) for weight, (s, t) in zip(weights, points, strict=True))
    slope = together / spread if spread > 0 else 0.0
    if slope <= 0:
        return time, 0.0
    constant = time - slope * size
    if constant >= 0:
        return constant, slope
    return 0.0, sum(s / t for s, t in points) / sum((s / t) ** 2 for s, t in points)
