"""The time of a step as the larger of two: what the host needs to issue it, and what the GPU needs for the work.

    time = max(host, fixed + work · Π (setting / unit) ^ exponent)

A launch-bound step takes as long as the host takes, whatever its size; a large one as long as its arithmetic and its
traffic. A rule that knows neither draws a straight line through the bend, and that is where variants cross.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.studies.policies.choosing import Axis, Place, Policy, Reason, Times, Value
    from warplens.studies.sweeps.sweep import Sweep


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
    """One side with one combination of words."""

    words: tuple[Value, ...]  #: values of the axes that are not numeric, in their order
    side: int
    host_ns: float  #: shortest time, which no setting changes; 0 where none was seen
    #: fixed_ns, work_ns: time of the GPU: constant part, and part of a place where every setting is its unit
    fixed_ns: float
    work_ns: float


@dataclass(frozen=True)
class Curves:
    """The model of all sides."""

    numeric: tuple[bool, ...]
    units: tuple[float, ...]  #: of the numeric axes, their least values
    exponents: tuple[tuple[float, ...], ...]  #: of the numeric axes, for each side
    curves: tuple[Curve, ...]  #: of each side and combination of words

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


@dataclass(frozen=True)
class CellRegret:
    """One point at which a policy was asked, and every side measured."""

    at: Place  #: the point's value on each axis of the policy
    chosen: str
    reason: Reason
    best: str
    chosen_ns: float | None  #: time of the chosen side; None if it could not run, though another could
    best_ns: float  #: time of the fastest
    share: float | None  #: how much slower the chosen one was than the best, 0 to ∞; None if it could not run


@dataclass(frozen=True)
class Regret:
    """What choosing cost over several points."""

    cells: int
    #: worst, mean: how much slower the chosen side was than the best, as a share; None without a point
    worst: float | None
    mean: float | None
    where: Place | None  #: the worst point; None without one
    not_run: int  #: points at which the chosen side could not run though another could; they are in neither share


def regret_at(at: Place, times: Times, side: int, names: Sequence[str], reason: Reason) -> CellRegret | None:
    """The cost of running a side at a point where these times were measured; None if none was."""
    known = {number: time for number, time in enumerate(times) if time is not None}
    if not known:
        return None
    best = min(known, key=lambda number: known[number])
    spent = known.get(side)
    share = spent / known[best] - 1 if spent is not None else None
    return CellRegret(at, names[side], reason, names[best], spent, known[best], share)


def summary(cells: Iterable[CellRegret]) -> Regret:
    """The worst and the mean of several points."""
    found = list(cells)
    ran = [(cell.share, cell.at) for cell in found if cell.share is not None]
    if not ran:
        return Regret(len(found), None, None, None, len(found))
    worst, where = max(ran, key=lambda pair: pair[0])
    return Regret(len(found), worst, sum(share for share, _ in ran) / len(ran), where, len(found) - len(ran))


def regrets_on(policy: Policy, sweeps: Sweep | Sequence[Sweep]) -> list[CellRegret]:
    """What choosing by a policy costs at the points of other sweeps, whose sides are sides of the policy.

    Args:
        policy: fitted to other measurements, or to a part of these.
        sweeps: measurements of the baseline, and of a variant each.

    Returns:
        One row a point at which something was measured.

    Raises:
        UsageError: a side is none of the policy's, a side of the policy that would run is in no sweep, or a sweep does
            not say where its points lie on each axis.
    """
    names = [side.name for side in policy.sides]
    measured: dict[Place, dict[str, float | None]] = {}
    asked: dict[Place, dict[str, Any]] = {}
    for sweep in [sweeps] if not isinstance(sweeps, Sequence) else sweeps:
        before, after = _named(policy, sweep.baseline), _named(policy, sweep.variant)
        for point in sweep.points:
            settings = {**sweep.shared, **point.settings}
            at = tuple(_setting(settings, axis.name, sweep.source) for axis in policy.axes)
            times = measured.setdefault(at, {})
            times[before] = times.get(before) or (point.baseline.time_ns if point.baseline is not None else None)
            times[after] = point.variant.time_ns if point.variant is not None else None
            asked[at] = {name: settings[name] for name in policy.shared if name in settings}
            asked[at] |= dict(zip((axis.name for axis in policy.axes), at, strict=True))
    cells = []
    for at, by_name in measured.items():
        choice = policy.choose(**asked[at])
        if choice.side not in by_name:
            raise UsageError(f"the policy runs {choice.side}, which the measurements do not have: name it as a variant")
        taken = tuple(by_name.get(name) for name in names)
        found = regret_at(at, taken, names.index(choice.side), names, choice.reason)
        cells += [found] if found is not None else []
    return cells


def _setting(settings: Mapping[str, Any], name: str, source: str) -> Value:
    if name not in settings:
        raise UsageError(f"{source}: the policy chooses by {name}, which is not a setting that both sides share there")
    found: Value = settings[name]
    return found


def _named(policy: Policy, settings: Mapping[str, Any]) -> str:
    """The side of the policy with these settings; those that only one of the two knows do not count."""
    matching = []
    for side in policy.sides:
        common = settings.keys() & side.settings.keys()
        if common and all(settings[name] == side.settings[name] for name in common):
            matching.append((len(common), side.name))
    if not matching:
        asked = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise UsageError(
            f"no side of the policy has {asked}; it has {' and '.join(side.name for side in policy.sides)}"
        )
    return max(matching, key=lambda pair: pair[0])[1]
