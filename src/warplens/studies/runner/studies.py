"""Predefined studies: the experiments of the source literature as unattended runs, and their profiler recordings.

Every factor is varied independently of the others.

| study | grid |
|---|---|
| `token-reduction` | input size × batch; at each point, in alternation, keep × execution × kind of attention |
| `lm-grid` | five model sizes × four context lengths × forward pass and training step |
| `attention` | sequence length × head dimension × mask; at each point every kernel, the number of tokens constant |
"""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from warplens.collect.commands import PRESETS, Capture, Recording, export_command, record_command
from warplens.collect.compute import PER_CONFIGURATION, Profiling, Selection, profile_command
from warplens.collect.machine import System, Tool, dotted, needed_tool
from warplens.collect.recording import COLLECTING, add_run, run_command
from warplens.errors import UsageError, WarplensError
from warplens.studies.runner.engine import Task, command_line
from warplens.studies.runner.workloadsweep import (
    WARMUP_STEPS,
    CellRun,
    Measuring,
    axes_from,
    cell_tasks,
    sweep_head,
    tasks_at,
)
from warplens.workloads.cells import combinations_of
from warplens.workloads.registry import Plan, workload

#: The measurements file in a study's folder.
MEASUREMENTS: Final = "measurements.json"

Axes = Mapping[str, Sequence[Any]]

_SECOND_NS: Final = 10**9

#: Tokens in a step of the attention study at every sequence length, the batch being tokens / length, so that all work
#: other than attention stays constant. FlashAttention's own benchmark uses the same number.
_ATTENTION_TOKENS: Final = 16_384
_QUICK_TOKENS: Final = 128

#: A step of a large model takes up to seconds: fewer repetitions, until the median is known to 2 %.
_LONG: Final = Plan(
    warmup_steps=3, warmup_ns=_SECOND_NS // 10, least=10, most=100, fewest=6, precision=0.02, most_ns=3 * _SECOND_NS
)
#: A kernel takes microseconds.
_KERNEL: Final = Plan(
    warmup_steps=3, warmup_ns=_SECOND_NS // 20, least=30, most=200, fewest=30, precision=0.01, most_ns=_SECOND_NS,
    flush_l2=True,
)  # fmt: skip


@dataclass(frozen=True)
class StudyOptions:
    """The user's changes to a study."""

    #: texts `name=value,value` that replace or extend the study's axes
    axes: tuple[str, ...] = ()
    #: rounds at a point, for studies that measure in rounds; None for the study's own number
    rounds: int | None = None
    device: str | None = None  #: PyTorch name; None for the GPU if there is one
    quick: bool = False  #: few cells of tiny size on the CPU, to try it anywhere


@dataclass(frozen=True)
class Study:
    """A predefined experiment."""

    name: str
    summary: str
    workload: str
    #: axes, quick: values of the settings, for the complete study and for a small trial
    axes: Axes
    quick: Axes
    plan: Plan  #: of the measurement; with rounds, only warm-up and repetitions count
    tasks: Callable[[Axes], tuple[tuple[Task, ...], list[dict[str, Any]]]]  #: axes → tasks and invalid combinations
    #: rounds, quick_rounds: rounds at a point; None for one cell after the other
    rounds: int | None = None
    quick_rounds: int | None = None
    head: Callable[[Axes], dict[str, Any]] = lambda _: {}  #: axes → further keys of the measurements file

    def run(self, options: StudyOptions) -> CellRun:
        """The run of this study with the user's options.

        Raises:
            UsageError: no such setting, a value of another type, or rounds for a study without turns.
        """
        kind = workload(self.workload)
        axes = {**(self.quick if options.quick else self.axes), **axes_from(kind, "--axis", options.axes)}
        if options.rounds is not None and self.rounds is None:
            raise UsageError(f"--rounds is for studies that measure in turns; {self.name} measures one after the other")
        rounds = options.rounds or (self.quick_rounds if options.quick else self.rounds)
        device = options.device or ("cpu" if options.quick else None)
        tasks, impossible = self.tasks(axes)
        measuring = Measuring(self.workload, self.plan, rounds, device)
        command = command_line(
            "warplens", "study", self.name, axis=options.axes, rounds=options.rounds, device=options.device or None,
            quick=options.quick,
        )  # fmt: skip
        return CellRun(measuring, tasks, tuple(impossible), self.head(axes), command)


#: Settings that define a point. All others distinguish the cells of a point, which alternate in one process, so that
#: executions are as comparable as methods are.
_POINT: Final = ("model", "input_size", "batch", "precision")

#: Settings of the cells of a point that `_token_sides` combines; any others are combined with all of its results.
_SIDE: Final = ("execution", "method", "keep", "attention")


def _token_reduction_tasks(axes: Axes) -> tuple[tuple[Task, ...], list[dict[str, Any]]]:
    others = {name: values for name, values in axes.items() if name not in (*_POINT, *_SIDE)}
    sides = [
        {**side, **rest}
        for execution in axes["execution"]
        for side in _token_sides(axes, execution)
        for rest in combinations_of(others)
    ]
    points = {name: values for name, values in axes.items() if name in _POINT}
    return cell_tasks(workload("token-reduction"), points, sides)


def _token_sides(axes: Axes, execution: str) -> list[dict[str, Any]]:
    """The cells of a point: each share kept with each kind of attention; keep 1 is no reduction."""
    sides: list[dict[str, Any]] = []
    for keep, kind in itertools.product(axes["keep"], axes["attention"]):
        common = {"execution": execution, "attention": kind}
        if keep == 1:
            sides.append({**common, "method": "none"})
        else:
            sides += [{**common, "method": name, "keep": keep} for name in axes["method"]]
    return sides


def _token_reduction_head(axes: Axes) -> dict[str, Any]:
    kept = [keep for keep in axes["keep"] if keep != 1]
    if 1 not in axes["keep"] or not kept:
        return {}
    shown = {name: values for name, values in axes.items() if name in (*_POINT, "execution")}
    baseline = {"method": "none", "attention": axes["attention"][0]}
    variant = {"method": axes["method"][0], "keep": min(kept), "attention": axes["attention"][0]}
    return sweep_head(shown, baseline, variant)


_TOKEN_REDUCTION: Final = Study(
    name="token-reduction",
    summary="Token reduction against its baseline: input size × batch × keep, eager and as a CUDA graph.",
    workload="token-reduction",
    axes={
        "input_size": [224, 288, 384, 448], "batch": [1, 2, 4, 8, 16], "execution": ["eager", "graph"],
        "method": ["topk"], "keep": [1.0, 0.5, 0.1], "attention": ["explicit", "fused"],
    },
    quick={
        "model": ["tiny"], "locations": [(1, 2)], "precision": ["fp32"], "input_size": [16, 32], "batch": [1, 2],
        "execution": ["eager"], "method": ["topk"], "keep": [1.0, 0.1], "attention": ["explicit"],
    },
    plan=Plan.exactly(4, warmup_steps=WARMUP_STEPS),
    rounds=20,
    quick_rounds=8,
    tasks=_token_reduction_tasks,
    head=_token_reduction_head,
)  # fmt: skip

_LM_GRID: Final = Study(
    name="lm-grid",
    summary="The language model: five sizes × four context lengths, forward pass and training step.",
    workload="lm",
    axes={
        "size": ["small", "medium", "large", "xl", "2.7B"], "context": [128, 256, 512, 1024],
        "mode": ["forward", "train"],
    },
    quick={"size": ["tiny"], "context": [8, 16, 32], "batch": [2], "mode": ["forward", "train"]},
    plan=_LONG,
    tasks=lambda axes: cell_tasks(workload("lm"), axes, ({},)),
)  # fmt: skip


def _attention_tasks(axes: Axes) -> tuple[tuple[Task, ...], list[dict[str, Any]]]:
    """A task for each problem, with a cell for each kernel; without a batch axis, the number of tokens is constant."""
    kernels = [{"kernel": name} for name in axes["kernel"]]
    rest = {name: values for name, values in axes.items() if name not in ("kernel", "tokens")}
    if "batch" in rest:
        return cell_tasks(workload("attention"), rest, kernels)
    (tokens,) = axes["tokens"]
    lengths = rest.pop("seq_len")
    grid = combinations_of({**rest, "seq_len": lengths})
    points = [{**point, "batch": max(1, tokens // point["seq_len"])} for point in grid]
    varying = [name for name, values in rest.items() if len(values) > 1]
    return tasks_at(workload("attention"), points, kernels, [*varying, "seq_len"])


_ALL_KERNELS: Final = ("naive", "tiled", "flash", "sdpa-flash", "sdpa-efficient", "sdpa-cudnn", "sdpa-math")

_ATTENTION: Final = Study(
    name="attention",
    summary="Attention kernels: naive, tiled, flash and PyTorch's own, over sequence length and head dimension.",
    workload="attention",
    axes={
        "head_dim": [64, 128], "causal": [False, True], "seq_len": [128 << power for power in range(8)],
        "kernel": _ALL_KERNELS, "tokens": [_ATTENTION_TOKENS],
    },
    quick={
        "head_dim": [16], "causal": [False], "seq_len": [32, 64, 128], "heads": [2], "dtype": ["float32"],
        "kernel": ["flash", "sdpa-flash", "sdpa-math"], "tokens": [_QUICK_TOKENS],
    },
    plan=_KERNEL,
    tasks=_attention_tasks,
)  # fmt: skip

#: Every study by its name.
STUDIES: Final = {study.name: study for study in (_TOKEN_REDUCTION, _LM_GRID, _ATTENTION)}


# --- The recordings of `study token-reduction --collect`, after the times: Nsight Systems, then Nsight Compute -------
# Baseline and variant are recorded at the smallest and the largest point of the grid, where the findings report expects
# a loss and a gain. A failed recording is reported, and the others follow; existing recordings are kept.

#: Folder of the recordings in that of the study, and the file in it that maps each recording to its cell.
PROFILES: Final = "profiles"
INDEX: Final = "profiles.json"

#: Steps of a recording: three for warm-up, and five measured ones, enough for a spread.
WARMUP, STEPS = 3, 5

#: Counters for the hypotheses on the inside of kernels, in one run. The memory sections would double the number of
#: passes, so only their hit rates are requested.
_COUNTERS: Final = Profiling(
    sections=("SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats"),
    metrics=(*PRESETS["memory"].metrics, "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"),
    force=True,
)

#: Settings in the names of files.
_NAMED: Final = ("input_size", "batch", "method", "keep")

#: Launches that ncu profiles of each kernel and launch size: launches of one size behave alike.
_OF_EACH: Final = 1

#: First launches of a cell that are profiled, with an ncu that cannot count per launch size: about a minute.
_MOST_LAUNCHES: Final = 60


@dataclass(frozen=True)
class RecordedCell:
    """A cell to record."""

    settings: Mapping[str, Any]  #: as JSON
    measuring: Measuring  #: of the study's run

    @property
    def identity(self) -> dict[str, str]:
        """The settings that identify it; without a reduction, `keep` has no meaning and is left out."""
        reduces = self.settings["method"] != "none"
        return {name: str(self.settings[name]) for name in _NAMED if reduces or name != "keep"}

    @property
    def name(self) -> str:
        """Stem of its files: `input_size=224,batch=1,method=topk,keep=0.1`."""
        return ",".join(f"{name}={value}" for name, value in self.identity.items())

    @property
    def program(self) -> list[str]:
        """The command that runs a few steps of it with ranges."""
        words = [sys.executable, "-m", "warplens.studies.runner", "cell", self.measuring.workload]
        words += [json.dumps(self.settings), f"--warmup={WARMUP}", f"--steps={STEPS}"]
        return [*words, f"--device={self.measuring.device}"] if self.measuring.device else words


def recorded_cells(run: CellRun) -> list[RecordedCell]:
    """Baseline and variant, eager, of the smallest and the largest point by number of pixels."""

    def size(task: Task) -> int:
        return int(task.cells[0]["input_size"]) ** 2 * int(task.cells[0]["batch"])

    recorded: list[RecordedCell] = []
    for task in {task.key: task for task in (min(run.tasks, key=size), max(run.tasks, key=size))}.values():
        cells = [cell for cell in task.cells if cell["execution"] == "eager"]
        cells = [cell for cell in cells if cell["attention"] == cells[0]["attention"]]
        variants = sorted((cell for cell in cells if cell["method"] != "none"), key=lambda cell: float(cell["keep"]))
        baseline = [cell for cell in cells if cell["method"] == "none"]
        recorded += [RecordedCell(cell, run.measuring) for cell in (*baseline, *variants[:1])]
    return recorded


#: Cell → the tool and the commands that record it.
_Phase: TypeAlias = Callable[[RecordedCell], tuple[Tool, list[list[str]]]]


@dataclass(frozen=True)
class Collection:
    """How the recordings are made."""

    folder: Path
    #: nsys, ncu: the tools to use; None to look for them
    nsys: str | None = None
    ncu: str | None = None
    #: launches that ncu profiles of each cell, 0 for all; None for one of each kernel and launch size
    launches: int | None = None
    fresh: bool = False  #: replace existing recordings
    tell: Callable[[str], None] = lambda _: None  #: receives lines on the progress

    def commands(self, run: CellRun) -> list[str]:
        """The shell commands that would be run; recordings that are impossible here are reported and left out."""
        return [
            shlex.join(words)
            for cell in recorded_cells(run)
            for phase in (self._timeline, self._counters)
            for words in self._tried(phase, cell)[1]
        ]

    def record(self, run: CellRun) -> list[str]:
        """Record each cell's timeline, then its counters; the failed ones, in words."""
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
                    self._run(*self._tried(phase, cell), leaves)
                if leaves.exists():
                    index[leaves.name] = cell.identity
                else:
                    failed.append(f"{what} of {cell.name}")
        (self.folder / INDEX).write_text(json.dumps(index, indent=1), "utf-8")
        return failed

    def _timeline(self, cell: RecordedCell) -> tuple[Tool, list[list[str]]]:
        tool, report = needed_tool("nsys", System(), self.nsys), str(self.folder / cell.name)
        recorded = record_command(tool, Recording(force=True), report, cell.program)
        return tool, [recorded, export_command(tool, report, force=True)]

    def _counters(self, cell: RecordedCell) -> tuple[Tool, list[list[str]]]:
        tool, report = needed_tool("ncu", System(), self.ncu), str(self.folder / cell.name)
        step = Capture("nvtx", "step")
        return tool, [profile_command(tool, _COUNTERS, self._selection(tool), step, report, cell.program)]

    def _selection(self, tool: Tool) -> Selection:
        """The launches to profile: by default one of each kernel and launch size, which represents all alike."""
        if self.launches is not None:
            return Selection(launches=self.launches or None)
        if tool.version < PER_CONFIGURATION:
            return Selection(launches=_MOST_LAUNCHES)
        return Selection(launches=_OF_EACH, each=True)

    def _run(self, tool: Tool | None, commands: Sequence[Sequence[str]], leaves: Path) -> None:
        if tool is None:
            return
        for command in commands:
            ran = run_command(command, {COLLECTING: tool.name}, lambda line: self.tell(f"  {line}"))
            if ran.code:
                break
        if leaves.exists():
            version, code = dotted(tool.version), ran.code
            add_run(self.folder, tool=tool.name, version=version, commands=commands, files=[leaves], exit_code=code)
        elif ran.code:
            words = ran.failure or (ran.tail[-1] if ran.tail else "")
            self.tell(f"{tool.title} or the program that it ran ended with code {ran.code}: {words}")
        else:
            self.tell(f"{tool.title} left no {leaves.name}")

    def _tried(self, phase: _Phase, cell: RecordedCell) -> tuple[Tool | None, list[list[str]]]:
        """The tool and the commands of a phase; none, and the reason reported, where a tool or a version is missing."""
        try:
            return phase(cell)
        except WarplensError as error:
            self.tell(str(error))
            return None, []
