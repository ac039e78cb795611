"""Tables and sentences on a policy: its choices, their cost, and its range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from warplens.profile import schema
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Table
from warplens.studies.policies.choosing import Policy
from warplens.studies.policies.regret import CellRegret, Regret
from warplens.studies.sweeps.sweep import framed
from warplens.studies.sweeps.words import columns_of

_RULES: Final = {
    "host-or-work": "the larger of a time of the host and a time that grows with the work, fitted for each side and "
    "scaled to the points around",
    "log-linear": "power laws between the points around",
    "nearest": "the nearest point",
}
_REGRETS: Final = {
    "measured": "at the measured points",
    "held-out": "between them (each value but the least and the greatest left out in turn)",
    "edge": "outside the range (the least and the greatest values left out in turn, the fallback run there)",
}

POLICY_POINTS: Final = table(
    "policy: points",
    "A measured point of a policy. `warplens policy show`; the axes stand before these columns.",
    Column("run", pl.String, "the side that runs there"),
    Column("run_ns", pl.Float64, "its time", title="Its time"),
    Column("other", pl.String, "the fastest of the other sides", title="Next best"),
    Column("other_ns", pl.Float64, "its time", title="Its time"),
    column("ratio", help="time of the next best over that of the side that runs", title="× longer"),
    column("decided", help="whether the samples tell the sides apart; null without samples"),
)

CHOICES: Final = table(
    "policy: choices",
    "A point at which a policy was asked. `warplens policy check`; the axes stand before these columns.",
    "chosen",
    column("reason", help="`measured`, `interpolated`, `outside` or `other-machine`", title="Reason"),
    Column("chosen_ns", pl.Float64, "time of the chosen side; null if it could not run", title="Its time"),
    "best",
    Column("best_ns", pl.Float64, "its time", title="Its time"),
    Column("regret_share", pl.Float64, "how much slower the chosen side is than the best", title="Slower by"),
)


def policy_rows(policy: Policy) -> pl.DataFrame:
    """`POLICY_POINTS`: one row per measured point, in rising order of the axes."""
    axes = [axis.name for axis in policy.axes]
    rows = []
    for point in policy.points:
        known = {number: time for number, time in enumerate(point.times_ns) if time is not None}
        run_ns = known.pop(point.side, None)
        other = min(known, key=lambda number: (known[number], number), default=None)
        row = {"run": policy.sides[point.side].name, "run_ns": run_ns, "decided": point.decided}
        if other is not None:
            ratio = known[other] / run_ns if run_ns else None
            row |= {"other": policy.sides[other].name, "other_ns": known[other], "ratio": ratio}
        rows.append({**dict(zip(axes, point.at, strict=True)), **row})
    return _sorted(rows, axes, POLICY_POINTS)


def _sorted(rows: Sequence[Mapping[str, Any]], axes: Sequence[str], declared: schema.Table) -> pl.DataFrame:
    frame = framed(rows, axes, declared)
    return frame.sort(axes, nulls_last=True) if rows else frame


def points_table(policy: Policy) -> Table:
    """The table of the choices at the measured points."""
    rows = policy_rows(policy)
    columns = columns_of(POLICY_POINTS, rows, [axis.name for axis in policy.axes], "run run_ns other other_ns ratio")
    return Table("points", "What runs at the measured points", columns, rows, limit=None)


def policy_facts(policy: Policy) -> Iterator[str]:
    """Sentences above the table: machine, sides, rule, range, expected cost."""
    machine = [policy.environment.get("device", "an unnamed device")]
    machine += [f"{name} {fact}" for name, fact in policy.environment.items() if name != "device"]
    yield f"{policy.source} · {policy.workload} · {' · '.join(machine)}"
    shared = ", ".join(f"{name} {value}" for name, value in policy.shared.items() if value != "")
    if shared:
        yield f"all measurements: {shared}"
    variants = ", ".join(side.name for side in policy.sides[1:])
    yield f"baseline {policy.baseline}; to choose from: {variants}, if faster by more than {fmt.share(policy.margin)}"
    yield f"between the points: {_RULES[policy.rule]}"
    ranges = ", ".join(_range(axis.name, axis.values, axis.numeric) for axis in policy.axes)
    yield f"fitted range: {ranges}; outside of it and on other machines: {policy.sides[policy.fallback].name}"
    axes = [axis.name for axis in policy.axes]
    for kind, regret in policy.regret.items():
        if regret.cells:
            yield f"{_REGRETS[kind]}: {regret_sentence(regret, axes)}"


def _range(name: str, values: Sequence[Any], numeric: bool) -> str:
    return f"{name} {values[0]} to {values[-1]}" if numeric else f"{name} {' or '.join(map(str, values))}"


def regret_sentence(regret: Regret, axes: Sequence[str]) -> str:
    """The cost of choices in a sentence."""
    if regret.worst is None or regret.mean is None:
        return f"none of {fmt.plural(regret.cells, 'choice')} could run" if regret.cells else "no side to choose from"
    cells = fmt.plural(regret.cells - regret.not_run, "choice")
    text = f"the best side or its equal in all of {cells}"
    if regret.worst > 0:
        where = placed(axes, regret.where or ())
        worst, mean = fmt.share(regret.worst), fmt.share(regret.mean)
        text = f"slower than the best side by {worst} at worst ({where}), {mean} on average of {cells}"
    if regret.not_run:
        text += f"; at {fmt.count(regret.not_run)} more the chosen side could not run"
    return text


def placed(axes: Sequence[str], at: Sequence[Any]) -> str:
    """A place as text: `input_size 224, batch 1`."""
    return ", ".join(f"{name} {value}" for name, value in zip(axes, at, strict=False))


def regret_rows(cells: Sequence[CellRegret], axes: Sequence[str]) -> pl.DataFrame:
    """`CHOICES`: one row per point at which a policy was evaluated, in rising order of the axes."""
    rows = [{**dict(zip(axes, cell.at, strict=True)), **vars(cell), "regret_share": cell.share} for cell in cells]
    return _sorted(rows, axes, CHOICES)


def check_table(cells: Sequence[CellRegret], axes: Sequence[str]) -> Table:
    """The table of a policy's choices at the points of other measurements, and their cost."""
    rows = regret_rows(cells, axes)
    columns = columns_of(CHOICES, rows, axes, *CHOICES.columns)
    return Table("check", "What the policy chooses, against what was measured", columns, rows, limit=None)
