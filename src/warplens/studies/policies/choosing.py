"""The definition of a policy and its choice for given settings, without third-party packages.

Between measured points, times are estimated by one of three rules, each exact at the points. The rule of a policy is
selected by the cost of its choices at held-out values (`fitting`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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

#: A place between points has two to the power of this many neighbouring points.
MOST_AXES: Final = 8

#: Rules in order of preference among equally good ones. `host-or-work`: the larger of a host time and a GPU time that
#: grows with the work, scaled to meet the surrounding measured points. `log-linear`: log times linear in the logs of
#: the settings (power laws). `nearest`: the times of the nearest measured point.
RULES: Final[tuple[Rule, ...]] = ("host-or-work", "log-linear", "nearest")


def is_number(value: object) -> bool:
    """Whether a setting is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Axis:
    """A setting that varies."""

    name: str
    values: tuple[Value, ...]  #: measured values; numbers in rising order

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers, so that it can be interpolated."""
        return all(is_number(value) for value in self.values)

    def spans(self, value: Value) -> bool:
        """Whether a value lies in the fitted range; a word must be one of those measured."""
        if not self.numeric:
            return any(value == known and type(value) is type(known) for known in self.values)
        return is_number(value) and self.values[0] <= value <= self.values[-1]  # type: ignore[operator]


@dataclass(frozen=True)
class Corner:
    """A measured point next to a place, and its interpolation weight; the weights of all corners sum to 1."""

    times: Times
    at: Place
    weight: float


@dataclass(frozen=True)
class Grid:
    """Measured times by place, and the model fitted to them."""

    axes: tuple[Axis, ...]
    times: Mapping[Place, Times]
    curves: Curves | None  #: the model; None where it could not be fitted

    def corners(self, at: Place, clamped: bool = False) -> list[Corner] | None:
        """The measured points around a place; None if one is missing, or if the place is outside the range.

        If `clamped`, numbers outside the range are replaced by the nearest value in it.
        """
        neighbours = [_neighbours(axis, value, clamped) for axis, value in zip(self.axes, at, strict=True)]
        corners = []
        for combination in product(*neighbours):
            place = tuple(value for value, _ in combination)
            if place not in self.times:
                return None
            corners.append(Corner(self.times[place], place, math.prod(weight for _, weight in combination)))
        return corners or None


def _neighbours(axis: Axis, value: Value, clamped: bool) -> Sequence[tuple[Value, float]]:
    """The one or two measured values next to a value, with their weights; empty if it is outside."""
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
    # Logarithmic interpolation: sizes usually double, and times follow powers of them.
    share = math.log(number / low) / math.log(high / low) if low > 0 else (number - low) / (high - low)
    return [(low, 1 - share), (high, share)]


def estimated(grid: Grid, at: Place, rule: Rule, clamped: bool = False) -> Times | None:
    """Estimated times of all sides at a place, None for one that is unknown at a neighbouring point.

    None if outside of the range; there, `clamped` estimates by the model, or from the nearest edge for the other rules.
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
    times = zip(*(corner.times for corner in corners), strict=True)
    return tuple(_mean(corners, times_of_side) for times_of_side in times)


def _mean(corners: Sequence[Corner], values: Iterable[float | None]) -> float | None:
    """The weighted geometric mean of a value at each corner; None where one is unknown."""
    logarithm = 0.0
    for corner, value in zip(corners, values, strict=True):
        if value is None:
            return None
        logarithm += corner.weight * math.log(value)
    return math.exp(logarithm)


def _scaled(curves: Curves, side: int, time: float | None, corners: Sequence[Corner]) -> float | None:
    """A modelled time, scaled by the ratio measured / modelled of the neighbouring points."""
    modelled = [(corner.times[side], curves.time_ns(corner.at, side)) for corner in corners]
    factor = _mean(corners, (known / model if known is not None and model else None for known, model in modelled))
    return time * factor if time is not None and factor is not None else None


#: Reason of a choice. `measured`: the settings are a point of the grid. `interpolated`: they lie between points.
#: `outside`: they are outside the fitted range, so the fallback is chosen. `other-machine`: the policy was fitted on
#: another GPU, so the fallback is chosen.
Reason: TypeAlias = Literal["measured", "interpolated", "outside", "other-machine"]


@dataclass(frozen=True)
class Side:
    """One of the alternatives."""

    name: str  #: unique in the policy: its settings, such as `method=topk,keep=0.1`
    settings: Mapping[str, Value]  #: those that distinguish it from the others


@dataclass(frozen=True)
class GridPoint:
    """A point of the grid."""

    at: Place  #: its value on each axis
    times_ns: Times  #: of each side; None where it was not, or could not be, measured
    side: int  #: number of the side to run there
    decided: bool | None  #: whether the difference is significant; None without samples


@dataclass(frozen=True)
class Choice:
    """The side to run, and the reason."""

    side: str  #: name of the side
    reason: Reason
    #: measured or estimated time of each side; empty where nothing is known
    times_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """A rule that chooses a side for given settings."""

    source: str  #: name of the measurements file that it was fitted to
    workload: str  #: name of the workload
    shared: Mapping[str, Any]  #: settings that were the same in all measurements
    sides: tuple[Side, ...]  #: the alternatives, the baseline first
    axes: tuple[Axis, ...]  #: settings to choose by
    points: tuple[GridPoint, ...]  #: measurements and choices
    rule: Rule  #: how times between the points are estimated
    curves: Curves | None  #: the model; None if the rule does not use it
    margin: float  #: a side must be faster than the baseline by more than this share to be chosen
    fallback: int  #: number of the side to run outside the fitted range and on other machines
    #: cost of choices `measured` (at the points), `held-out` (at inner values left out of the fit) and `edge` (at the
    #: least and greatest values left out, where the fallback runs)
    regret: Mapping[str, Regret]
    environment: Mapping[str, str]  #: `device` (name of the GPU), `torch`, … of the measurements
    here: str | None = None  #: device on which the policy is applied (see `on`); None if not stated

    @cached_property
    def _by_place(self) -> dict[Place, GridPoint]:
        return {point.at: point for point in self.points}

    @cached_property
    def _grid(self) -> Grid:
        return Grid(self.axes, {point.at: point.times_ns for point in self.points}, self.curves)

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return self.sides[0].name

    def on(self, device: str) -> Policy:
        """The policy applied on a GPU of this name (`CPU` without one); it falls back on other GPUs than fitted."""
        return replace(self, here=device)

    @property
    def elsewhere(self) -> bool:
        """Whether it is applied on another device than it was fitted on."""
        return self.here is not None and self.here != self.environment.get("device", self.here)

    def choose(self, **settings: Any) -> Choice:
        """The side to run with these settings, a value for each axis.

        For a setting that all measurements share, another value counts as outside of the range.

        Raises:
            UsageError: an axis has no value, or a setting is unknown.
        """
        at, fallback = self._place(settings), self.sides[self.fallback].name
        if self.elsewhere:
            return Choice(fallback, "other-machine")
        same = all(self.shared[name] == value for name, value in settings.items() if name in self.shared)
        if not same or not all(axis.spans(value) for axis, value in zip(self.axes, at, strict=True)):
            return Choice(fallback, "outside")
        if (point := self._by_place.get(at)) is not None:
            return Choice(self.sides[point.side].name, "measured", self._named(point.times_ns))
        times = estimated(self._grid, at, self.rule)
        if times is None:
            return Choice(fallback, "outside")
        side = agreed(self._grid.corners(at) or (), self._by_place, times, self.margin)
        return Choice(self.sides[side].name, "interpolated", self._named(times))

    def _place(self, settings: Mapping[str, Any]) -> Place:
        names = [axis.name for axis in self.axes]
        if missing := [name for name in names if name not in settings]:
            raise UsageError(f"the policy chooses by {', '.join(names)}: give {', '.join(missing)}")
        if strange := sorted(settings.keys() - set(names) - self.shared.keys()):
            raise UsageError(f"the policy knows no setting {strange[0]!r}; it chooses by {', '.join(names)}")
        for axis in self.axes:
            if axis.numeric and not is_number(settings[axis.name]):
                raise UsageError(f"{axis.name} is a number, not {settings[axis.name]!r}")
        return tuple(settings[name] for name in names)

    def _named(self, times: Times) -> dict[str, float]:
        return {side.name: time for side, time in zip(self.sides, times, strict=True) if time is not None}


def agreed(corners: Iterable[Corner], points: Mapping[Place, GridPoint], times: Times, margin: float) -> int:
    """The side that all corners agree on, as estimated times can only do worse there; else the one picked by times."""
    neighbours = {points[corner.at].side for corner in corners}
    return neighbours.pop() if len(neighbours) == 1 else picked(times, margin)


def picked(times: Times, margin: float) -> int:
    """The number of the side to run: the fastest if it beats the baseline by more than the margin, else the baseline.

    A baseline without a time is never picked if another side has one.
    """
    known = [side for side, time in enumerate(times) if time is not None]
    if not known:
        return 0
    fastest = min(known, key=lambda side: times[side] or 0.0)
    baseline, best = times[0], times[fastest]
    if baseline is None or best is None:
        return fastest
    return fastest if baseline > best * (1 + margin) else 0
