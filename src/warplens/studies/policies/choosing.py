"""What a policy is, and which side it runs at a place: pure arithmetic without a package.

Between measured points times are estimated by one of three rules, each exact at the points. Which one a policy uses is
decided by what it would have cost to choose by it where a value was left out (`fitting`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.studies.policies.regret import Curves, Regret


Value: TypeAlias = "str | int | float | bool | None"
#: A value on each axis, in their order.
Place: TypeAlias = "tuple[Value, ...]"
#: Nanoseconds of each side; None where it was not, or could not be, measured.
Times: TypeAlias = "tuple[float | None, ...]"
Rule: TypeAlias = Literal["host-or-work", "log-linear", "nearest"]

#: In order of preference where they do equally well. `host-or-work`: the larger of a time of the host and a time of
#: the GPU that grows with the work, scaled so that it meets the measured points around. `log-linear`: logarithms of
#: times, linear in the logarithms of the settings: power laws. `nearest`: the times of the nearest measured point.
RULES: Final[tuple[Rule, ...]] = ("host-or-work", "log-linear", "nearest")


def is_number(value: object) -> bool:
    """Whether a setting is a quantity; `True` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Axis:
    """A setting that varies."""

    name: str
    values: tuple[Value, ...]  #: those that were measured; numbers rise

    @property
    def numeric(self) -> bool:
        """Whether values between the measured ones mean something."""
        return all(is_number(value) for value in self.values)

    def spans(self, value: Value) -> bool:
        """Whether a value lies in the fitted range; a word must be one of those measured."""
        if not self.numeric:
            return any(value == known and type(value) is type(known) for known in self.values)
        return is_number(value) and self.values[0] <= value <= self.values[-1]  # type: ignore[operator]


@dataclass(frozen=True)
class Corner:
    """A measured point around a place between points, and its weight there; weights add up to 1."""

    times: Times
    at: Place
    weight: float


@dataclass(frozen=True)
class Grid:
    """Measured times, by place."""

    axes: tuple[Axis, ...]
    times: Mapping[Place, Times]
    curves: Curves | None  #: of the model; None where it could not be fitted

    def corners(self, at: Place, clamped: bool = False) -> list[Corner] | None:
        """The measured points around a place; None if one is missing, or if the place is outside the range.

        Args:
            clamped: take the nearest values in the range for numbers outside.
        """
        sides = [_around(axis, value, clamped) for axis, value in zip(self.axes, at, strict=True)]
        found = []
        for chosen in product(*sides):
            place = tuple(value for value, _ in chosen)
            if place not in self.times:
                return None
            found.append(Corner(self.times[place], place, math.prod(weight for _, weight in chosen)))
        return found or None


def _around(axis: Axis, value: Value, clamped: bool) -> Sequence[tuple[Value, float]]:
    """The one or two measured values around a value, with their weights; none if it is outside."""
    if not axis.numeric:
        return [(value, 1.0)] if axis.spans(value) else []
    values: Sequence[float] = axis.values  # type: ignore[assignment]
    number: float = value  # type: ignore[assignment]
    if clamped:
        number = min(max(number, values[0]), values[-1])
    if not axis.spans(number):
        return []
    if number in values:
        return [(values[values.index(number)], 1.0)]
    above = bisect_right(values, number)
    low, high = values[above - 1], values[above]
    # Sizes double rather than grow by steps, and times follow powers of them.
    share = math.log(number / low) / math.log(high / low) if low > 0 else (number - low) / (high - low)
    return [(low, 1 - share), (high, share)]


def estimated(grid: Grid, at: Place, rule: Rule, clamped: bool = False) -> Times | None:
    """Times of all sides at a place.

    Args:
        rule: how to go from the measured points to it.
        clamped: also outside the range: by the model, or from the nearest edge where a rule needs points around.

    Returns:
        Nanoseconds of each side, None for one that is not known at a point around; None if nothing can be said.
    """
    corners = grid.corners(at, clamped)
    if rule == "host-or-work" and grid.curves is not None:
        modelled = tuple(grid.curves.time_ns(at, side) for side in range(grid.curves.sides))
        if corners is None or clamped:
            return modelled
        return tuple(_scaled(grid.curves, side, time, corners) for side, time in enumerate(modelled))
    if corners is None:
        return None
    if rule == "nearest":
        return max(corners, key=lambda corner: corner.weight).times
    return tuple(_power_law(corners, side) for side in range(len(corners[0].times)))


def _power_law(corners: Sequence[Corner], side: int) -> float | None:
    logarithm = 0.0
    for corner in corners:
        if (time := corner.times[side]) is None:
            return None
        logarithm += corner.weight * math.log(time)
    return math.exp(logarithm)


def _scaled(curves: Curves, side: int, time: float | None, corners: Sequence[Corner]) -> float | None:
    """A modelled time, times what the measured points around are of their modelled times."""
    if time is None:
        return None
    logarithm = 0.0
    for corner in corners:
        measured, modelled = corner.times[side], curves.time_ns(corner.at, side)
        if measured is None or modelled is None:
            return None
        logarithm += corner.weight * math.log(measured / modelled)
    return time * math.exp(logarithm)


#: Why a side was chosen. `measured`: the settings are a point of the grid. `interpolated`: they lie between points.
#: `outside`: they do not lie in the fitted range, so that the fallback is taken. `other-machine`: the policy was fitted
#: on another GPU, so that the fallback is taken.
Reason: TypeAlias = Literal["measured", "interpolated", "outside", "other-machine"]


@dataclass(frozen=True)
class Side:
    """One of the things to choose from."""

    name: str  #: unique in the policy: its settings, such as `method=topk,keep=0.1`
    settings: Mapping[str, Value]  #: what tells it from the others


@dataclass(frozen=True)
class GridPoint:
    """A point of the grid."""

    at: Place  #: its value on each axis
    times_ns: Times  #: of each side; None where it was not, or could not be, measured
    side: int  #: number of the side to run there
    decided: bool | None  #: whether the samples tell the sides apart; None without samples


@dataclass(frozen=True)
class Choice:
    """What to run, and why."""

    side: str  #: name of the side
    reason: Reason  #: see `Reason`
    #: measured or estimated time of each side; empty where nothing is known
    times_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """Which side to run for a shape."""

    source: str  #: name of the measurements file that it was fitted to
    workload: str  #: what was measured
    shared: Mapping[str, Any]  #: settings that were the same in all measurements
    sides: tuple[Side, ...]  #: to choose from; the first is the baseline, which is run where nothing better is known
    axes: tuple[Axis, ...]  #: settings to choose by
    points: tuple[GridPoint, ...]  #: what was measured, and chosen
    rule: Rule  #: how times between the points are estimated
    curves: Curves | None  #: of the model; None if it could not be fitted
    margin: float  #: a side must be faster than the baseline by more than this share to be chosen
    fallback: int  #: number of the side to run outside the fitted range and on other machines
    #: by `measured` (at the points), `held-out` (at values left out of the fit) and `edge` (at the least and greatest
    #: values left out, where the fallback is taken): how much slower the chosen side is than the best
    regret: Mapping[str, Regret]
    environment: Mapping[str, str]  #: `device` (name of the GPU), `torch`, … of the measurements
    here: str | None = None  #: device that the policy is asked on (see `on`); None if it is asked without one

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_place", {point.at: point for point in self.points})
        times = {point.at: point.times_ns for point in self.points}
        object.__setattr__(self, "_grid", Grid(self.axes, times, self.curves))

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return self.sides[0].name

    def on(self, device: str) -> Policy:
        """The same policy, asked on a GPU of this name (`CPU` without one): elsewhere than fitted it is not trusted."""
        return replace(self, here=device)

    @property
    def elsewhere(self) -> bool:
        """Whether it is asked on another device than it was fitted on."""
        return self.here is not None and self.here != self.environment.get("device", self.here)

    def choose(self, **settings: Any) -> Choice:
        """The side to run with these settings.

        Args:
            settings: a value for each axis; also of settings that all measurements share, which must then be the same.

        Raises:
            UsageError: an axis has no value, or a setting is none that the measurements know.
        """
        at = self._place(settings)
        if self.elsewhere:
            return Choice(self.sides[self.fallback].name, "other-machine")
        if any(self.shared[name] != value for name, value in settings.items() if name in self.shared):
            return Choice(self.sides[self.fallback].name, "outside")
        return self._chosen(at)

    def _place(self, settings: Mapping[str, Any]) -> Place:
        names = [axis.name for axis in self.axes]
        if missing := [name for name in names if name not in settings]:
            raise UsageError(f"the policy chooses by {', '.join(names)}: give {', '.join(missing)}")
        if strange := sorted(settings.keys() - set(names) - self.shared.keys()):
            raise UsageError(f"the policy knows no setting {strange[0]!r}; it chooses by {', '.join(names)}")
        for axis in self.axes:
            if axis.numeric and (
                isinstance(settings[axis.name], bool) or not isinstance(settings[axis.name], int | float)
            ):
                raise UsageError(f"{axis.name} is a number, not {settings[axis.name]!r}")
        return tuple(settings[name] for name in names)

    def _chosen(self, at: Place) -> Choice:
        by_place: Mapping[Place, GridPoint] = self._by_place  # type: ignore[attr-defined]
        if not all(axis.spans(value) for axis, value in zip(self.axes, at, strict=True)):
            return Choice(self.sides[self.fallback].name, "outside")
        if (point := by_place.get(at)) is not None:
            return Choice(self.sides[point.side].name, "measured", self._named(point.times_ns))
        grid: Grid = self._grid  # type: ignore[attr-defined]
        times = estimated(grid, at, self.rule)
        if times is None:
            return Choice(self.sides[self.fallback].name, "outside")
        # Where all points around agree, an estimate can only do worse.
        around = {by_place[corner.at].side for corner in grid.corners(at) or ()}
        side = around.pop() if len(around) == 1 else picked(times, self.margin)
        return Choice(self.sides[side].name, "interpolated", self._named(times))

    def _named(self, times: Times) -> dict[str, float]:
        return {side.name: time for side, time in zip(self.sides, times, strict=True) if time is not None}


def picked(times: Times, margin: float) -> int:
    """The side to run: the fastest if it beats the baseline by more than the margin, else the baseline.

    A baseline that could not run is never picked if another side could.
    """
    known = [side for side, time in enumerate(times) if time is not None]
    if not known:
        return 0
    fastest = min(known, key=lambda side: times[side] or 0.0)
    baseline, best = times[0], times[fastest]
    if baseline is None or best is None:
        return fastest
    return fastest if baseline > best * (1 + margin) else 0
