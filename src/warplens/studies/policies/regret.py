"""The model of step times that policies interpolate with, and the cost (regret) of a policy's choices.

    time = max(host, fixed + work · Π (setting / unit) ^ exponent)

A launch-bound step takes as long as the host needs to issue it, whatever its size; a large step as long as its
arithmetic and memory traffic. Interpolation without this model is least accurate at the bend between the two, which is
where variants cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.studies.policies.choosing import Axis, Place, Policy, Reason, Times, Value
    from warplens.studies.sweeps.sweep import Sweep


#: Least number of points of one side and one combination of words: one more than the three numbers fitted to them.
_FEWEST_POINTS: Final = 4

#: Range of exponents: from 0 (no influence) to 4 (attention over an image, as a function of its side).
_EXPONENTS: Final = (0.0, 4.0)
#: Start of the search, and the result if no point determines it: work in proportion to the setting.
_FIRST_EXPONENT: Final = 1.0
#: Successive step sizes of the search; an error of 0.05 in an exponent changes a time by at most 4 % over a doubling.
_STEPS: Final = (0.5, 0.1, 0.05)
_MOST_ROUNDS: Final = 8

#: Bound of the natural logarithm of a size, beyond any input, so that no policy file causes an overflow.
_LARGEST_POWER: Final = 200.0

Measured = Sequence[tuple[Sequence[float], float]]


@dataclass(frozen=True)
class Curve:
    """One side with one combination of words."""

    words: tuple[Value, ...]  #: values of the non-numeric axes, in their order
    side: int
    host_ns: float  #: host time, independent of the settings; 0 where no point is host-bound
    #: fixed_ns, work_ns: GPU time: constant part, and growing part at a place where every setting equals its unit
    fixed_ns: float
    work_ns: float


@dataclass(frozen=True)
class Curves:
    """The model of all sides."""

    numeric: tuple[bool, ...]
    units: tuple[float, ...]  #: least value of each numeric axis
    exponents: tuple[tuple[float, ...], ...]  #: for each side, one per numeric axis
    curves: tuple[Curve, ...]  #: one per side and combination of words

    @cached_property
    def _by_key(self) -> dict[tuple[tuple[Value, ...], int], Curve]:
        return {(curve.words, curve.side): curve for curve in self.curves}

    @property
    def sides(self) -> int:
        """Number of sides."""
        return len(self.exponents)

    def time_ns(self, at: Place, side: int) -> float | None:
        """Modelled time of a side at a place; None for a combination of words that was not fitted."""
        numbers, words = _split(at, self.numeric)
        curve = self._by_key.get((words, side))
        if curve is None:
            return None
        size = _size(numbers, self.units, self.exponents[side])
        return max(curve.host_ns, curve.fixed_ns + curve.work_ns * size)


def fitted_curves(axes: Sequence[Axis], times: Mapping[Place, Times], sides: int) -> Curves | None:
    """The least-squares fit of the model to the logarithms of measured times.

    A side's exponents are common to all combinations of words (such as executions), since the GPU's work depends on the
    size alone; the other numbers are fitted for each combination.

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
        for at, side_times in times.items():
            if (time := side_times[side]) is not None:
                numbers, words = _split(at, numeric)
                groups.setdefault(words, []).append((numbers, time))
        if not groups or min(map(len, groups.values())) < _FEWEST_POINTS:
            return None
        side_exponents = _exponents(list(groups.values()), units, start)
        exponents.append(tuple(side_exponents))
        for words, points in groups.items():
            host, fixed, work = _bend(points, units, side_exponents)[0]
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
    """The exponents with the smallest error, by coordinate descent with decreasing steps."""

    def error(exponents: Sequence[float]) -> float:
        return sum(_bend(points, units, exponents)[1] for points in groups)

    least, most = _EXPONENTS
    current = [min(max(exponent, least), most) for exponent in start]
    best = error(current)
    for step in _STEPS:
        for _ in range(_MOST_ROUNDS):
            before = best
            for axis in range(len(current)):
                current, best = _improved(error, current, best, axis, step)
            if best >= before:
                break
    return current


def _improved(
    error: Callable[[Sequence[float]], float], exponents: list[float], best: float, axis: int, step: float
) -> tuple[list[float], float]:
    """Exponents and their error after moving along one axis, in either direction, as long as the error falls."""
    least, most = _EXPONENTS
    for move in (-step, step):
        improved = True
        while improved:
            moved = [*exponents]
            moved[axis] = min(max(exponents[axis] + move, least), most)
            improved = moved != exponents and (moved_error := error(moved)) < best * (1 - 1e-9)
            if improved:
                exponents, best = moved, moved_error
    return exponents, best


def _bend(
    points: Measured, units: Sequence[float], exponents: Sequence[float]
) -> tuple[tuple[float, float, float], float]:
    """(host, fixed, work) time of the best fit, and the sum of the squared errors of logarithms.

    Every position of the bend is tried: points below are host-bound, points above GPU-bound.
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
    """Non-negative constant and slope of the line with the least squares of relative errors."""
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


@dataclass(frozen=True)
class CellRegret:
    """The cost of a choice at one measured point."""

    at: Place  #: the point's value on each axis of the policy
    chosen: str
    reason: Reason
    best: str
    chosen_ns: float | None  #: time of the chosen side; None if it could not run
    best_ns: float  #: time of the fastest side
    share: float | None  #: chosen_ns / best_ns − 1; None if the chosen side could not run


@dataclass(frozen=True)
class Regret:
    """The cost of choices over several points."""

    cells: int
    #: worst, mean: time of the chosen side / time of the best − 1; None without a point
    worst: float | None
    mean: float | None
    where: Place | None  #: the worst point; None without one
    not_run: int  #: points at which the chosen side could not run though another could; excluded from worst and mean


def regret_at(at: Place, times: Times, side: int, names: Sequence[str], reason: Reason) -> CellRegret | None:
    """The cost of running a side at a point with these measured times; None if no other side was measured there."""
    known = {number: time for number, time in enumerate(times) if time is not None}
    if known.keys() <= {side}:
        return None
    best = min(known, key=lambda number: known[number])
    chosen_ns = known.get(side)
    share = chosen_ns / known[best] - 1 if chosen_ns is not None else None
    return CellRegret(at, names[side], reason, names[best], chosen_ns, known[best], share)


def summary(cells: Iterable[CellRegret]) -> Regret:
    """The worst and the mean of several points."""
    points = list(cells)
    ran = [(cell.share, cell.at) for cell in points if cell.share is not None]
    if not ran:
        return Regret(len(points), None, None, None, len(points))
    worst, where = max(ran, key=lambda pair: pair[0])
    return Regret(len(points), worst, sum(share for share, _ in ran) / len(ran), where, len(points) - len(ran))


def regrets_on(policy: Policy, sweeps: Sweep | Sequence[Sweep]) -> list[CellRegret]:
    """The cost of a policy's choices at the points with a measurement of other sweeps.

    The sides of the sweeps, of the baseline and of a variant each, are sides of the policy.

    Raises:
        UsageError: a side is not one of the policy's, the chosen side is in no sweep, or a sweep lacks an axis of the
            policy, or has one that the policy does not know.
    """
    names = [side.name for side in policy.sides]
    axes = [axis.name for axis in policy.axes]
    # Point → side → time. A setting that the policy's own measurements share may have other values here.
    measured: dict[tuple[Place, tuple[tuple[str, Any], ...]], dict[str, float | None]] = {}
    for sweep in [sweeps] if not isinstance(sweeps, Sequence) else sweeps:
        before, after = _named(policy, sweep.baseline), _named(policy, sweep.variant)
        for point in sweep.points:
            settings = {**sweep.shared, **point.settings}
            at = tuple(_setting(settings, axis.name, sweep.source) for axis in policy.axes)
            shared = tuple((name, settings[name]) for name in policy.shared if name in settings)
            times = measured.setdefault((at, shared), {})
            times[before] = times.get(before) or (point.baseline.time_ns if point.baseline is not None else None)
            times[after] = point.variant.time_ns if point.variant is not None else None
        if unknown := [name for name in sweep.axes if name not in axes and name not in policy.shared]:
            raise UsageError(
                f"{sweep.source}: the policy does not choose by {unknown[0]}, which has several values there: name one "
                "for both sides"
            )
    cells = []
    for (at, shared), by_name in measured.items():
        choice = policy.choose(**dict(shared), **dict(zip(axes, at, strict=True)))
        if choice.side not in by_name:
            raise UsageError(f"the policy runs {choice.side}, which the measurements do not have: name it as a variant")
        side_times = tuple(by_name.get(name) for name in names)
        regret = regret_at(at, side_times, names.index(choice.side), names, choice.reason)
        cells += [regret] if regret is not None else []
    return cells


def _setting(settings: Mapping[str, Any], name: str, source: str) -> Value:
    if name not in settings:
        raise UsageError(f"{source}: the policy chooses by {name}, which is not a setting that both sides share there")
    value: Value = settings[name]
    return value


def _named(policy: Policy, settings: Mapping[str, Any]) -> str:
    """The name of the side that agrees with these settings in all names that both have, and in the most names."""
    matching = []
    for side in policy.sides:
        common = settings.keys() & side.settings.keys()
        if common and all(settings[name] == side.settings[name] for name in common):
            matching.append((len(common), side.name))
    if not matching:
        wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
        names = " and ".join(side.name for side in policy.sides)
        raise UsageError(f"no side of the policy has {wanted}; it has {names}")
    return max(matching, key=lambda pair: pair[0])[1]
