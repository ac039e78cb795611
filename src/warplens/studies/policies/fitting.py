"""Fitting of a policy to a sweep: the choice at each point, the interpolation rule, and the expected cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from warplens.errors import UsageError
from warplens.studies.policies.choosing import (
    MOST_AXES,
    RULES,
    Axis,
    Grid,
    GridPoint,
    Place,
    Policy,
    Rule,
    Side,
    Times,
    Value,
    agreed,
    estimated,
    is_number,
    picked,
)
from warplens.studies.policies.regret import CellRegret, fitted_curves, regret_at, summary

if TYPE_CHECKING:
    from warplens.compare.shift import Samples
    from warplens.studies.sweeps.sweep import Cell, Sweep


#: A side must be faster than the baseline by more than this share: smaller differences are within the host's variation
#: from run to run, and half of the 2 % by which no choice may be wrong.
_MARGIN: Final = 0.01

#: A choice that costs no more than this counts as right: the accuracy that a policy promises.
_RIGHT: Final = 0.02

#: Keys of the measurements' environment that a policy keeps, since another value may invalidate it.
_KEPT: Final = ("driver", "cuda")


@dataclass(frozen=True)
class PointTimes:
    """The measurements at a point."""

    settings: Mapping[str, Value]
    times_ns: Times  #: typical time of each side, the baseline first; None where it was not, or could not be, measured
    #: durations behind them, where known; they decide whether a difference is one
    samples: tuple[Samples | None, ...] = field(default=())


def fit_policy(sweeps: Sweep | Sequence[Sweep], *, margin: float = _MARGIN, fallback: str | None = None) -> Policy:
    """Fits a policy to sweeps.

    Args:
        sweeps: one; or several of the same file with the same baseline, each of which adds a side.
        margin: a side must be faster than the baseline by more than this share to be chosen.
        fallback: name of the side to run outside the fitted range and on other machines; by default the baseline.

    Raises:
        UsageError: the sweeps do not belong together, have no point, or have settings other than numbers and words.
    """
    all_sweeps = [sweeps] if not isinstance(sweeps, Sequence) else list(sweeps)
    _check_together(all_sweeps)
    first = all_sweeps[0]
    identities = [first.baseline, *(sweep.variant for sweep in all_sweeps)]
    names = _names(identities)
    shared = {
        name: value
        for name, value in first.shared.items()
        if all(name in sweep.shared and sweep.shared[name] == value for sweep in all_sweeps)
    }
    return fit_points(
        _points(all_sweeps),
        sides=[Side(name, dict(settings)) for name, settings in zip(names, identities, strict=True)],
        axes=first.axes,
        source=first.source,
        workload=first.workload,
        shared=shared,
        environment=first.environment,
        margin=margin,
        fallback=fallback,
    )


def _check_together(sweeps: Sequence[Sweep]) -> None:
    if not sweeps:
        raise UsageError("a policy needs a sweep")
    first = sweeps[0]
    for other in sweeps[1:]:
        if other.source != first.source:
            raise UsageError(f"{first.source} and {other.source}: sides of one policy must be measured in one file")
        if set(other.axes) != set(first.axes):
            axes, others = (", ".join(sweep.axes) for sweep in (first, other))
            raise UsageError(f"{first.source}: its sides vary over different settings: {axes}, and {others}")


def _points(sweeps: Sequence[Sweep]) -> list[PointTimes]:
    """The points of all sweeps, with times of the baseline and of the variant of each sweep."""
    axes = sweeps[0].axes
    cells_at: dict[Place, list[Cell | None]] = {}
    for number, sweep in enumerate(sweeps, start=1):
        for point in sweep.points:
            cells = cells_at.setdefault(tuple(point.settings[name] for name in axes), [None] * (len(sweeps) + 1))
            cells[0] = cells[0] or point.baseline
            cells[number] = point.variant
    return [
        PointTimes(
            dict(zip(axes, at, strict=True)),
            tuple(cell.time_ns if cell is not None else None for cell in cells),
            tuple(cell.wall if cell is not None else None for cell in cells),
        )
        for at, cells in cells_at.items()
    ]


def _names(identities: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each side, from the fewest settings that distinguish all of them."""
    settings = list(dict.fromkeys(name for identity in identities for name in identity))
    for count in range(1, len(settings) + 1):
        names = [
            ",".join(f"{name}={identity[name]}" for name in settings[:count] if name in identity)
            for identity in identities
        ]
        if all(names) and len(set(names)) == len(names):
            return names
    raise UsageError("two sides of the policy have the same settings; name settings that tell them apart")


def fit_points(
    points: Sequence[PointTimes],
    *,
    sides: Sequence[Side],
    axes: Sequence[str],
    source: str,
    workload: str,
    shared: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] | None = None,
    margin: float = _MARGIN,
    fallback: str | None = None,
) -> Policy:
    """Fits a policy to measured points; `fit_policy` without a sweep.

    Args:
        points: the measurements, each point once.
        sides: the alternatives, the baseline first, in the order of the points' times.
        axes: settings to choose by.
        source, workload, shared, environment: see `Policy`; the environment as in a measurements file.
        margin, fallback: see `fit_policy`.

    Raises:
        UsageError: no point was measured, no setting or too many vary, or one is neither a number nor a word.
    """
    if not 0 <= margin < 1:
        raise UsageError(f"the margin is a share from 0 to below 1, not {margin:g}")
    names = [fallback_side.name for fallback_side in sides]
    if fallback is not None and fallback not in names:
        raise UsageError(f"no side is called {fallback!r}; there are {', '.join(names)}")
    measured = {
        tuple(point.settings[name] for name in axes): point
        for point in points
        if any(time is not None for time in point.times_ns)
    }
    if not measured:
        raise UsageError(f"{source}: no point of the sweep was measured")
    if not 0 < len(axes) <= MOST_AXES:
        by = ", ".join(axes) or "none"
        raise UsageError(f"{source}: a policy chooses by one to {MOST_AXES} settings that vary; here vary: {by}")
    fitted_axes = _axes(axes, list(measured), source)
    grid_points = [_grid_point(at, point, margin) for at, point in measured.items()]
    times = {point.at: point.times_ns for point in grid_points}
    fallback_side = names.index(fallback) if fallback is not None else 0
    held_out = _HeldOut(fitted_axes, grid_points, names, margin, fallback_side)
    curves = fitted_curves(fitted_axes, times, len(names))
    rules = [rule for rule in RULES if rule != "host-or-work" or curves is not None]
    rule = min(rules, key=lambda rule: (held_out.score(rule), rules.index(rule)))
    at_points = [regret_at(point.at, point.times_ns, point.side, names, "measured") for point in grid_points]
    return Policy(
        source=source,
        workload=workload,
        shared=dict(shared or {}),
        sides=tuple(sides),
        axes=fitted_axes,
        points=tuple(grid_points),
        rule=rule,
        curves=curves if rule == "host-or-work" else None,
        margin=margin,
        fallback=fallback_side,
        regret={
            "measured": summary(cell for cell in at_points if cell is not None),
            "held-out": summary(held_out.cells(rule, edges=False)),
            "edge": summary(held_out.cells(rule, edges=True)),
        },
        environment=_environment(environment or {}),
    )


def _environment(facts: Mapping[str, Any]) -> dict[str, str]:
    device, versions = facts.get("device") or {}, facts.get("versions") or {}
    kept = {"device": device.get("name"), "torch": versions.get("torch")}
    kept |= {name: facts.get(name) for name in _KEPT}
    return {name: str(value) for name, value in kept.items() if value is not None}


def _axes(names: Sequence[str], places: Sequence[Place], source: str) -> tuple[Axis, ...]:
    axes = []
    for position, name in enumerate(names):
        values = list(dict.fromkeys(place[position] for place in places))
        for value in values:
            finite = math.isfinite(value) if isinstance(value, int | float) else value is None or isinstance(value, str)
            if not finite:
                raise UsageError(f"{source}: {name} is {value!r}, neither a number nor a word")
        numeric = all(is_number(value) for value in values)
        axes.append(Axis(name, tuple(sorted(values) if numeric else values)))  # type: ignore[type-var]
    return tuple(axes)


def _grid_point(at: Place, point: PointTimes, margin: float) -> GridPoint:
    times, samples = point.times_ns, point.samples
    side = picked(times, margin)
    if side == 0 or not samples or (before := samples[0]) is None:
        return GridPoint(at, times, side, None)
    from warplens.compare.decisions import compare

    # A slower side that is faster than the baseline for certain is better than the baseline, if the fastest is not.
    known = sorted((time, number) for number, time in enumerate(times) if number and time is not None)
    for _, number in known:
        if not picked((times[0], times[number]), margin):
            break
        if (after := samples[number]) is None:
            return GridPoint(at, times, number, None)
        if compare(before, after, margin=margin).verdict == "faster":
            return GridPoint(at, times, number, True)
    return GridPoint(at, times, 0, False)


@dataclass(frozen=True)
class _Fold:
    """A held-out value of a numeric axis."""

    grid: Grid  #: fitted to all other values
    left_out: tuple[Place, ...]
    edge: bool  #: whether it is the least or the greatest value of its axis


class _HeldOut:
    """Cross-validation over the values of the numeric axes: choices at a value by a fit without it."""

    def __init__(
        self, axes: tuple[Axis, ...], points: Sequence[GridPoint], names: Sequence[str], margin: float, fallback: int
    ) -> None:
        self.points, self.names = {point.at: point for point in points}, names
        self.margin, self.fallback = margin, fallback
        self.folds: list[_Fold] = []
        for position, axis in enumerate(axes):
            for value in axis.values if axis.numeric and len(axis.values) > 1 else ():
                kept = tuple(known for known in axis.values if known != value)
                rest = (*axes[:position], Axis(axis.name, kept), *axes[position + 1 :])
                times = {point.at: point.times_ns for point in points if point.at[position] != value}
                left_out = tuple(point.at for point in points if point.at[position] == value)
                grid = Grid(rest, times, fitted_curves(rest, times, len(names)))
                self.folds.append(_Fold(grid, left_out, edge=value in (axis.values[0], axis.values[-1])))

    def score(self, rule: Rule) -> tuple[float, float, float]:
        """Badness of a rule: worst wrong choice at inner values, mean cost of all choices, mean error of the ratios.

        The mean cost includes extrapolated edge values, although a policy falls back there: a rule that extrapolates
        well describes the times better.
        """
        held_out = self.cells(rule, edges=False), self.cells(rule, edges=True, trusted=True)
        # A choice that cannot run is worse than any slow one.
        inner, beyond = ([1e9 if cell.share is None else cell.share for cell in cells] for cells in held_out)
        worst, costs = max((cost for cost in inner if cost > _RIGHT), default=0.0), [*inner, *beyond]
        errors = list(self._errors(rule))
        mean_error = sum(errors) / len(errors) if errors else math.inf
        return worst, sum(costs) / len(costs) if costs else 0.0, mean_error

    def cells(self, rule: Rule, *, edges: bool, trusted: bool = False) -> list[CellRegret]:
        """The cost of choices at inner or edge values; at edges, the fallback runs unless the rule is `trusted`."""
        regrets = []
        for fold in self.folds:
            for at in fold.left_out if fold.edge == edges else ():
                times = self.points[at].times_ns
                if edges and not trusted:
                    cell = regret_at(at, times, self.fallback, self.names, "outside")
                else:
                    cell = regret_at(at, times, self._side(fold, at, rule), self.names, "interpolated")
                regrets += [cell] if cell is not None else []
        return regrets

    def _side(self, fold: _Fold, at: Place, rule: Rule) -> int:
        """The choice at a held-out place, as made by `Policy.choose`."""
        times = estimated(fold.grid, at, rule, clamped=fold.edge)
        if times is None:
            return self.fallback
        corners = () if fold.edge else fold.grid.corners(at) or ()
        return agreed(corners, self.points, times, self.margin)

    def _errors(self, rule: Rule) -> Iterator[float]:
        """Absolute errors of the log ratios to the baseline."""
        for fold in self.folds:
            for at in fold.left_out:
                times, measured = estimated(fold.grid, at, rule, clamped=fold.edge), self.points[at].times_ns
                if times is None or times[0] is None or measured[0] is None:
                    continue
                for estimate, actual in zip(times[1:], measured[1:], strict=True):
                    if estimate is not None and actual is not None:
                        yield abs(math.log(estimate / times[0]) - math.log(actual / measured[0]))
