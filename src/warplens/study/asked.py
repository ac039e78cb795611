"""What people ask of a sweep, in texts, and the run that it becomes; the same for both entries to it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.errors import UsageError
from warplens.study.cellrun import CellRun
from warplens.study.cellsweep import axes_from, cell_tasks, settings_from, sweep_head
from warplens.study.tasks import Measuring
from warplens.study.wording import without_folders
from warplens.workloads.plan import Plan
from warplens.workloads.registry import workload

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DEFAULT_ROUNDS", "PER_TURN", "PROCESSES", "WARMUP_STEPS", "SweepAsked", "import_modules", "one_process"]

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
class SweepAsked:
    """A sweep over a registered workload.

    Attributes:
        workload: its name.
        axes: texts `name=value,value`.
        baseline, variant: texts `name=value,name=value`.
        rounds: turns of each side at a point.
        repetitions: in a turn.
        warmup: steps of each side before its first turn.
        device: as PyTorch names it; None for the GPU if there is one.
        modules: imported first, to register workloads.
    """

    workload: str
    axes: tuple[str, ...]
    baseline: str
    variant: str
    rounds: int = DEFAULT_ROUNDS
    repetitions: int = PER_TURN
    warmup: int = WARMUP_STEPS
    device: str | None = None
    modules: tuple[str, ...] = ()

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
        words = ["warplens", "sweep", "run", self.workload]
        for axis in self.axes:
            words += ["--axis", axis]
        words += ["--baseline", self.baseline, "--variant", self.variant, "--rounds", str(self.rounds)]
        words += ["--repetitions", str(self.repetitions), "--warmup", str(self.warmup)]
        words += ["--device", self.device] if self.device else []
        for module in self.modules:
            words += ["--module", module]
        return without_folders(shlex.join(words))


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
