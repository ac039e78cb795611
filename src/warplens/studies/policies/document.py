"""A policy for people: what runs where, what choosing costs, and in what range it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.report import text as fmt
from warplens.report.document import Table, TableColumn
from warplens.studies.columns import axis_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from warplens.studies.policies.choosing import Policy
    from warplens.studies.policies.regret import CellRegret, Regret


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


def policy_rows(policy: Policy) -> pl.DataFrame:
    """One row a measured point: its axes, what runs there and how long, and the fastest of the other sides."""
    rows = []
    for point in policy.points:
        others = [
            (time, number) for number, time in enumerate(point.times_ns) if time is not None and number != point.side
        ]
        other = min(others, default=None)
        run_ns = point.times_ns[point.side]
        rows.append(
            {
                **dict(zip((axis.name for axis in policy.axes), point.at, strict=True)),
                "run": policy.sides[point.side].name,
                "run_ns": run_ns,
                "other": policy.sides[other[1]].name if other else None,
                "other_ns": other[0] if other else None,
                "ratio": other[0] / run_ns if other and run_ns else None,
                "decided": point.decided,
            }
        )
    return _frame(rows, [axis.name for axis in policy.axes], ("run", "run_ns", "other", "other_ns", "ratio", "decided"))


def _frame(rows: Sequence[Mapping[str, Any]], axes: Sequence[str], columns: Sequence[str]) -> pl.DataFrame:
    """Rows as a frame, also where there are none; in rising order of the axes."""
    if not rows:
        return pl.DataFrame({name: [] for name in (*axes, *columns)})
    return pl.DataFrame(rows, infer_schema_length=None).sort(axes, nulls_last=True)


def points_table(policy: Policy) -> Table:
    """What runs at each measured point."""
    rows = policy_rows(policy)
    columns = (
        *axis_columns(rows, [axis.name for axis in policy.axes]),
        TableColumn("run", "Run", "text"),
        TableColumn("run_ns", "Its time", "duration_ns"),
        TableColumn("other", "Next best", "text"),
        TableColumn("other_ns", "Its time", "duration_ns"),
        TableColumn("ratio", "× longer", "number", "time of the next best over that of the side that runs"),
    )
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
    for kind, found in policy.regret.items():
        if found.cells:
            yield f"{_REGRETS[kind]}: {regret_sentence(found, axes)}"


def _range(name: str, values: Sequence[Any], numeric: bool) -> str:
    return f"{name} {values[0]} to {values[-1]}" if numeric else f"{name} {' or '.join(map(str, values))}"


def regret_sentence(regret: Regret, axes: Sequence[str]) -> str:
    """What choices cost, in words."""
    cells = f"{fmt.count(regret.cells)} choice{'s' if regret.cells != 1 else ''}"
    if regret.worst is None or regret.mean is None:
        return f"none of {cells} could run"
    text = f"the best side or its equal in all of {cells}"
    if regret.worst > 0:
        where = placed(axes, regret.where or ())
        worst, mean = fmt.share(regret.worst), fmt.share(regret.mean)
        text = f"slower than the best side by {worst} at worst ({where}), {mean} on average of {cells}"
    if regret.not_run:
        text += f"; at {fmt.count(regret.not_run)} the chosen side could not run"
    return text


def placed(axes: Sequence[str], at: Sequence[Any]) -> str:
    """A place in words."""
    return ", ".join(f"{name} {value}" for name, value in zip(axes, at, strict=False))


def regret_rows(cells: Sequence[CellRegret], axes: Sequence[str]) -> pl.DataFrame:
    """One row a point at which a policy was asked."""
    rows = [
        {
            **dict(zip(axes, cell.at, strict=True)),
            "chosen": cell.chosen,
            "reason": cell.reason,
            "chosen_ns": cell.chosen_ns,
            "best": cell.best,
            "best_ns": cell.best_ns,
            "regret_share": cell.share,
        }
        for cell in cells
    ]
    return _frame(rows, axes, ("chosen", "reason", "chosen_ns", "best", "best_ns", "regret_share"))


def check_table(cells: Sequence[CellRegret], axes: Sequence[str]) -> Table:
    """What a policy chooses at the points of other measurements, and what that costs there."""
    rows = regret_rows(cells, axes)
    columns = (
        *axis_columns(rows, axes),
        TableColumn("chosen", "Chosen", "text"),
        TableColumn("reason", "Reason", "text"),
        TableColumn("chosen_ns", "Its time", "duration_ns"),
        TableColumn("best", "Fastest", "text"),
        TableColumn("best_ns", "Its time", "duration_ns"),
        TableColumn("regret_share", "Slower by", "share"),
    )
    return Table("check", "What the policy chooses, against what was measured", columns, rows, limit=None)
