"""A sweep over a registered workload: baseline and variant, measured in turns at every point of a grid."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from warplens.errors import UsageError
from warplens.studies.runner.cellsweep import CellRun, Measuring
from warplens.studies.runner.engine import Task, command_line
from warplens.workloads.cells import cell_or_reason
from warplens.workloads.registry import Plan, Workload, workload
from warplens.workloads.settings import defaults_of, setting_value

#: Turns of each side at a point, and repetitions in a turn, unless the user says otherwise. Twenty blocks give a 95 %
#: interval of the ratio by order statistics that is about as wide as the middle ten of them.
DEFAULT_ROUNDS: Final = 20
PER_TURN: Final = 4

#: Steps of each side before its first turn.
WARMUP_STEPS: Final = 10

#: How points are spread over processes.
PROCESSES: Final = ("point", "all")


def one_process(text: str) -> bool:
    """Whether all points share a process.

    Raises:
        UsageError: the text is none of `PROCESSES`.
    """
    if text not in PROCESSES:
        raise UsageError(f"--processes is {' or '.join(PROCESSES)}, not {text!r}")
    return text == "all"


@dataclass(frozen=True)
class WorkloadSweep:
    """A sweep over a registered workload."""

    workload: str
    axes: tuple[str, ...]  #: texts `name=value,value`
    #: baseline, variant: texts `name=value,name=value`
    baseline: str
    variant: str
    rounds: int = DEFAULT_ROUNDS  #: turns of each side at a point
    repetitions: int = PER_TURN  #: in a turn
    warmup: int = WARMUP_STEPS  #: steps of each side before its first turn
    device: str | None = None  #: as PyTorch names it; None for the GPU if there is one
    modules: tuple[str, ...] = ()  #: imported first, to register workloads

    def run(self) -> CellRun:
        """The run that this asks for.

        Raises:
            UsageError: no such workload, setting or value.
        """
        import_modules(self.modules)
        kind = workload(self.workload)
        axes = axes_from(kind, "--axis", self.axes)
        baseline = settings_from(kind, "--baseline", self.baseline)
        variant = settings_from(kind, "--variant", self.variant)
        if baseline == variant:
            raise UsageError("--baseline and --variant are the same")
        tasks, impossible = cell_tasks(kind, axes, (baseline, variant))
        # A workload that measures itself cannot take turns: its cells follow one another.
        rounds = self.rounds if kind.prepare is not None else None
        repetitions = self.repetitions if rounds else self.repetitions * self.rounds
        measuring = Measuring(
            self.workload, Plan.exactly(repetitions, warmup_steps=self.warmup), rounds, self.device, self.modules
        )
        head = sweep_head(axes, baseline, variant)
        return CellRun(measuring, tasks, tuple(impossible), head, self._command())

    def _command(self) -> str:
        return command_line(
            "warplens", "sweep", "run", self.workload, axis=self.axes, baseline=self.baseline, variant=self.variant,
            rounds=self.rounds, repetitions=self.repetitions, warmup=self.warmup, device=self.device or None,
            module=self.modules,
        )  # fmt: skip


def import_modules(names: Sequence[str]) -> None:
    """Import modules that register workloads, from the current folder as well, as the processes that measure do.

    Raises:
        UsageError: one of them cannot be imported.
    """
    here = str(Path.cwd())
    if names and here not in sys.path:
        sys.path.insert(0, here)
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # noqa: PERF203  it is the user's: whatever is wrong with it is said in one line
            raise UsageError(f"--module {name}: it cannot be imported ({type(error).__name__}: {error})") from error


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
            made, trouble = cell_or_reason(kind.cell, {**point, **side})
            if made is None:
                impossible.append(trouble)
            elif made not in seen:
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
