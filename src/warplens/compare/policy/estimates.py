"""Times between the measured points of a grid, by one of three rules; pure arithmetic without a package.

Every rule is exact at the measured points. Which one a policy uses is decided by what it would have cost to choose by
it where a value was left out (`fitting`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from warplens.compare.policy.hostorwork import Curves

__all__ = ["RULES", "Axis", "Corner", "Grid", "Place", "Rule", "Times", "Value", "estimated", "is_number"]

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
    """A setting that varies.

    Attributes:
        name: of the setting.
        values: those that were measured; numbers rise.
    """

    name: str
    values: tuple[Value, ...]

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
    """Measured times, by place.

    Attributes:
        axes: of the places.
        times: of all sides at each place.
        curves: of the model; None where it could not be fitted.
    """

    axes: tuple[Axis, ...]
    times: Mapping[Place, Times]
    curves: Curves | None

    def corners(self, at: Place, clamped: bool = False) -> list[Corner] | None:
        """The measured points around a place; None if one is missing, or if the place is outside the range.

        Args:
            at: the place.
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
        grid: what was measured.
        at: the place.
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
