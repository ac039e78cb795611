"""What it costs to choose by a policy: how much slower than the best side the chosen one is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.compare.policy.choosing import Policy, Reason
    from warplens.compare.policy.estimates import Place, Times, Value
    from warplens.compare.sweep import Sweep

__all__ = ["CellRegret", "Regret", "regret_at", "regrets_on", "summary"]


@dataclass(frozen=True)
class CellRegret:
    """One point at which a policy was asked, and every side measured.

    Attributes:
        at: the point's value on each axis of the policy.
        chosen: name of the side that the policy chose.
        reason: why.
        best: name of the side that was fastest.
        chosen_ns: time of the chosen side; None if it could not run, though another could.
        best_ns: time of the fastest.
        share: how much slower the chosen one was than the best, 0 to ∞; None if it could not run.
    """

    at: Place
    chosen: str
    reason: Reason
    best: str
    chosen_ns: float | None
    best_ns: float
    share: float | None


@dataclass(frozen=True)
class Regret:
    """What choosing cost over several points.

    Attributes:
        cells: how many points.
        worst, mean: how much slower the chosen side was than the best, as a share; None without a point.
        where: the worst point; None without one.
        not_run: points at which the chosen side could not run though another could; they are in neither share.
    """

    cells: int
    worst: float | None
    mean: float | None
    where: Place | None
    not_run: int


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
        raise UsageError(f"{source}: the policy chooses by {name}, which is no setting that both sides share there")
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
