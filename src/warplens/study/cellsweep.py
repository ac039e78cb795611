"""A sweep over a registered workload: baseline and variant, measured in turns at every point of a grid."""

from __future__ import annotations

import itertools
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError
from warplens.study.tasks import Task
from warplens.workloads.settingtexts import defaults_of, setting_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.workloads.registry import Workload

__all__ = ["axes_from", "cell_tasks", "key_of", "pairs_from", "settings_from", "sweep_head"]


def pairs_from(option: str, texts: Sequence[str]) -> dict[str, list[str]]:
    """The axes as texts, from `name=value,value`, in their order.

    Raises:
        UsageError: a text of another form, an axis given twice, or a value given twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name, values = name.strip().replace("-", "_"), [value.strip() for value in rest.split(",")]
        if not (name and equals and all(values)):
            raise UsageError(f"{option} takes NAME=VALUE,…, such as batch=1,2,4, not {text!r}")
        if name in found:
            raise UsageError(f"{option} {name} is given twice")
        if len(set(values)) < len(values):
            raise UsageError(f"{option} {name} names something twice: {rest}")
        found[name] = values
    return found


def axes_from(kind: Workload, option: str, texts: Sequence[str]) -> dict[str, list[Any]]:
    """The axes of a sweep over a workload, from texts `name=value,value`.

    Raises:
        UsageError: no such setting, or a value of another type.
    """
    defaults = defaults_of(kind.cell)
    axes = {}
    for name, values in pairs_from(option, texts).items():
        _check_name(kind, option, name, defaults)
        axes[name] = [setting_value(f"{option} {name}", value, defaults[name]) for value in values]
    return axes


def settings_from(kind: Workload, option: str, text: str) -> dict[str, Any]:
    """The settings of one side, from a text `name=value,name=value`.

    Raises:
        UsageError: no such setting, a value of another type, or a text of another form.
    """
    defaults, found = defaults_of(kind.cell), {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals):
            raise UsageError(f"{option} takes NAME=VALUE,…, such as method=topk,keep=0.1, not {text!r}")
        _check_name(kind, option, name, defaults)
        found[name] = setting_value(f"{option} {name}", value.strip(), defaults[name])
    return found


def _check_name(kind: Workload, option: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise UsageError(f"{option}: {kind.name} has no setting {name!r}; known are {', '.join(known)}")


def cell_tasks(
    kind: Workload, axes: Mapping[str, Sequence[Any]], sides: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Task, ...], list[dict[str, Any]]]:
    """A task for each point of the axes, with a cell for each side.

    Args:
        kind: the workload.
        axes: values of some settings; the last one changes fastest.
        sides: settings that tell the cells of a point apart.

    Returns:
        The tasks, and for combinations that exclude one another a finished record that says why.

    Raises:
        UsageError: an axis is also a setting of a side; or every combination is impossible.
    """
    if both := [name for side in sides for name in side if name in axes]:
        raise UsageError(f"{both[0]} is an axis, and cannot be what tells the sides apart as well")
    tasks, impossible = [], []
    varying = [name for name, values in axes.items() if len(values) > 1]
    seen: list[Any] = []
    for values in itertools.product(*axes.values()):
        point, cells = dict(zip(axes, values, strict=True)), []
        for side in sides:
            try:
                made = kind.cell(**point, **side)
            except UsageError as error:  # noqa: PERF203  few, and each has its own reason
                plain = {item.name: {**point, **side}.get(item.name, item.default) for item in fields(kind.cell)}
                impossible.append({"cell": plain, "status": "unsupported", "reason": str(error)})
            else:
                if made not in seen:
                    seen.append(made)
                    cells.append(asdict(made))
        if cells:
            tasks.append(Task(key_of({name: point[name] for name in varying}), tuple(cells)))
    if not tasks:
        raise UsageError(impossible[0]["reason"] if impossible else "the grid is empty")
    return tuple(tasks), impossible


def key_of(point: Mapping[str, Any]) -> str:
    """A point as the key of its task: `input_size=224 batch=1`."""
    return " ".join(f"{name}={_shown(value)}" for name, value in point.items()) or "the only point"


def _shown(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def sweep_head(
    axes: Mapping[str, Sequence[Any]], baseline: Mapping[str, Any], variant: Mapping[str, Any]
) -> dict[str, Any]:
    """What the measurements file says of a sweep."""
    return {
        "sweep": {
            "axes": {name: list(values) for name, values in axes.items()},
            "baseline": dict(baseline),
            "variant": dict(variant),
        }
    }
