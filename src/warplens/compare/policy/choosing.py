"""A policy: which side to run at a place of the grid, between its points, and outside of it. Needs no package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from warplens.compare.policy.estimates import Axis, Grid, Place, Rule, Times, Value, estimated
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.compare.policy.hostorwork import Curves
    from warplens.compare.policy.regret import Regret

__all__ = ["Axis", "Choice", "GridPoint", "Policy", "Reason", "Side", "picked"]

#: Why a side was chosen. `measured`: the settings are a point of the grid. `interpolated`: they lie between points.
#: `outside`: they do not lie in the fitted range, so that the fallback is taken. `other-machine`: the policy was fitted
#: on another GPU, so that the fallback is taken.
Reason: TypeAlias = Literal["measured", "interpolated", "outside", "other-machine"]


@dataclass(frozen=True)
class Side:
    """One of the things to choose from.

    Attributes:
        name: unique in the policy: its settings, such as `method=topk,keep=0.1`.
        settings: what tells it from the others.
    """

    name: str
    settings: Mapping[str, Value]


@dataclass(frozen=True)
class GridPoint:
    """A point of the grid.

    Attributes:
        at: its value on each axis.
        times_ns: of each side; None where it was not, or could not be, measured.
        side: number of the side to run there.
        decided: whether the samples tell the sides apart; None without samples.
    """

    at: Place
    times_ns: Times
    side: int
    decided: bool | None


@dataclass(frozen=True)
class Choice:
    """What to run, and why.

    Attributes:
        side: name of the side.
        reason: see `Reason`.
        times_ns: measured or estimated time of each side; empty where nothing is known.
    """

    side: str
    reason: Reason
    times_ns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Policy:
    """Which side to run for a shape.

    Attributes:
        source: name of the measurements file that it was fitted to.
        workload: what was measured.
        shared: settings that were the same in all measurements.
        sides: to choose from; the first is the baseline, which is run where nothing better is known.
        axes: settings to choose by.
        points: what was measured, and chosen.
        rule: how times between the points are estimated.
        curves: of the model; None if it could not be fitted.
        margin: a side must be faster than the baseline by more than this share to be chosen.
        fallback: number of the side to run outside the fitted range and on other machines.
        regret: by `measured` (at the points), `held-out` (at values left out of the fit) and `edge` (at the least and
            greatest values left out, where the fallback is taken): how much slower the chosen side is than the best.
        environment: `device` (name of the GPU), `torch`, … of the measurements.
        here: device that the policy is asked on (see `on`); None if it is asked without one.
    """

    source: str
    workload: str
    shared: Mapping[str, Any]
    sides: tuple[Side, ...]
    axes: tuple[Axis, ...]
    points: tuple[GridPoint, ...]
    rule: Rule
    curves: Curves | None
    margin: float
    fallback: int
    regret: Mapping[str, Regret]
    environment: Mapping[str, str]
    here: str | None = None

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
