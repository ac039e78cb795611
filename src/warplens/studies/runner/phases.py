"""The phases of `study token-reduction --collect` after the times: Nsight Systems, then Nsight Compute, unattended.

Baseline and variant are recorded at the smallest and the largest point of the grid, where the document that asks for
this finds a loss and a gain. A phase that fails is told, and the others follow; what is there already is kept. Like all
of the runner it needs neither Typer nor Polars.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warplens.collect.commands import PRESETS, Capture, Recording, export_command, record_command
from warplens.collect.compute import PER_CONFIGURATION, Profiling, Selection, profile_command
from warplens.collect.machine import System, Tool, needed_tool
from warplens.collect.recording import COLLECTING, add_run, run_command
from warplens.errors import WarplensError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from warplens.studies.runner.engine import Task
    from warplens.studies.runner.workloadsweep import CellRun

    _Phase = Callable[["RecordedCell", CellRun], tuple[Tool, list[list[str]]]]

#: The folder of the recordings in that of the study, and what says in it which cell each of them is of.
PROFILES: Final = "profiles"
INDEX: Final = "profiles.json"

#: Steps of a recording: three to warm up, and five that count, whose spread is then known.
WARMUP, STEPS = 3, 5

#: What the hypotheses on the insides of kernels are judged by, in one run. The sections on memory would double the
#: passes: of what they tell, only the hit rates are asked for.
_COUNTERS: Final = Profiling(
    sections=("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats"),
    metrics=(*PRESETS["memory"].metrics, "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"),
    force=True,
)

#: Settings by which files are named.
_NAMED: Final = ("input_size", "batch", "method", "keep")

#: Launches that ncu profiles of each kernel in each size: those that are alike take alike.
_OF_EACH: Final = 1

#: Launches of a cell, the first ones, where this ncu cannot count for each size apart: a minute's worth.
_MOST_LAUNCHES: Final = 60


@dataclass(frozen=True)
class RecordedCell:
    """A cell that is recorded: its settings as JSON has them."""

    settings: Mapping[str, Any]

    @property
    def told(self) -> dict[str, str]:
        """The settings that tell it from others; without a reduction, a share kept is none."""
        reduces = self.settings["method"] != "none"
        return {name: str(self.settings[name]) for name in _NAMED if reduces or name != "keep"}

    @property
    def name(self) -> str:
        """Of its files: `input_size=224,batch=1,method=topk,keep=0.1`."""
        return ",".join(f"{name}={value}" for name, value in self.told.items())

    def program(self, workload: str, device: str | None) -> list[str]:
        """The command that runs it, with ranges."""
        words = [sys.executable, "-m", "warplens.studies.runner", "cell", workload, json.dumps(self.settings)]
        words += [f"--warmup={WARMUP}", f"--steps={STEPS}"]
        return [*words, f"--device={device}"] if device else words


def recorded_cells(run: CellRun) -> list[RecordedCell]:
    """Baseline and variant, eager, of the smallest and the largest point: pixels by images."""

    def size(task: Task) -> int:
        return int(task.cells[0]["input_size"]) ** 2 * int(task.cells[0]["batch"])

    found: list[RecordedCell] = []
    for task in {task.key: task for task in (min(run.tasks, key=size), max(run.tasks, key=size))}.values():
        cells = [cell for cell in task.cells if cell["execution"] == "eager"]
        cells = [cell for cell in cells if cell["attention"] == cells[0]["attention"]]
        variants = sorted((cell for cell in cells if cell["method"] != "none"), key=lambda cell: float(cell["keep"]))
        baseline = [cell for cell in cells if cell["method"] == "none"]
        found += [RecordedCell(cell) for cell in (*baseline, *variants[:1])]
    return found


@dataclass(frozen=True)
class Collection:
    """How the recordings are made."""

    folder: Path
    #: nsys, ncu: the tools to use; None to look for them
    nsys: str | None = None
    ncu: str | None = None
    launches: int | None = None  #: that ncu profiles of each cell, 0 for all; None for one of each kernel in each size
    fresh: bool = False  #: record again what is there
    tell: Callable[[str], None] = lambda _: None  #: is told what is being done, line by line

    def commands(self, run: CellRun) -> list[str]:
        """What would be run, as a shell would take it; what cannot be is told, and left out."""
        return [
            shlex.join(words)
            for cell in recorded_cells(run)
            for phase in (self._timeline, self._counters)
            for words in self._tried(phase, cell, run)[1]
        ]

    def record(self, run: CellRun) -> list[str]:
        """Record each cell's timeline, then its counters; which of them failed, in words."""
        self.folder.mkdir(parents=True, exist_ok=True)
        failed: list[str] = []
        index: dict[str, dict[str, str]] = {}
        for cell in recorded_cells(run):
            for what, phase, leaves in (
                ("timeline", self._timeline, self.folder / f"{cell.name}.sqlite"),
                ("counters", self._counters, self.folder / f"{cell.name}.ncu-rep"),
            ):
                if self.fresh or not leaves.exists():
                    leaves.unlink(missing_ok=True)
                    self.tell(f"recording {what} of {cell.name}")
                    self._run(*self._tried(phase, cell, run), leaves)
                if leaves.exists():
                    index[leaves.name] = cell.told
                else:
                    failed.append(f"{what} of {cell.name}")
        (self.folder / INDEX).write_text(json.dumps(index, indent=1), "utf-8")
        return failed

    def _timeline(self, cell: RecordedCell, run: CellRun) -> tuple[Tool, list[list[str]]]:
        tool = needed_tool("nsys", System(), self.nsys)
        report, program = str(self.folder / cell.name), cell.program(run.measuring.workload, run.measuring.device)
        recording = Recording(force=True)
        return tool, [record_command(tool, recording, report, program), export_command(tool, report, force=True)]

    def _counters(self, cell: RecordedCell, run: CellRun) -> tuple[Tool, list[list[str]]]:
        tool = needed_tool("ncu", System(), self.ncu)
        report, program = str(self.folder / cell.name), cell.program(run.measuring.workload, run.measuring.device)
        chosen = self._selection(tool)
        return tool, [profile_command(tool, _COUNTERS, chosen, Capture("nvtx", "step"), report, program)]

    def _selection(self, tool: Tool) -> Selection:
        """Of the steps' launches: one of each kernel in each size, which stands for all that are alike."""
        if self.launches is not None:
            return Selection(launches=self.launches or None)
        if tool.version < PER_CONFIGURATION:
            return Selection(launches=_MOST_LAUNCHES)
        return Selection(launches=_OF_EACH, each=True)

    def _run(self, tool: Tool | None, commands: Sequence[Sequence[str]], leaves: Path) -> None:
        if tool is None:
            return
        code, words = 0, ""
        for command in commands:
            ran = run_command(command, {COLLECTING: tool.name}, lambda line: self.tell(f"  {line}"))
            if ran.code:
                code, words = ran.code, ran.failure or (ran.tail[-1] if ran.tail else "")
                break
        if leaves.exists():
            version = ".".join(map(str, tool.version))
            add_run(self.folder, tool=tool.name, version=version, commands=commands, files=[leaves], exit_code=code)
        elif code:
            self.tell(f"{tool.title} or the program that it ran ended with code {code}: {words}")
        else:
            self.tell(f"{tool.title} left no {leaves.name}")

    def _tried(self, phase: _Phase, cell: RecordedCell, run: CellRun) -> tuple[Tool | None, list[list[str]]]:
        """The tool and the commands of a phase; none, and the reason told, where a tool or a version is missing."""
        try:
            return phase(cell, run)
        except WarplensError as error:
            self.tell(str(error))
            return None, []
