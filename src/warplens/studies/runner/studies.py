"""The experiments of the source literature as plans that run by themselves, and their recordings.

Every factor is varied apart from the others.

| study | grid |
|---|---|
| `token-reduction` | input size × batch; at each point, in turns, keep × execution × kind of attention |
| `lm-grid` | five model sizes × four context lengths × forward pass and training step |
| `attention` | sequence length × head dimension × mask; at each point every kernel, tokens being constant |
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
from warplens.collect.machine import System, Tool, needed_tool
from warplens.collect.recording import COLLECTING, add_run, run_command
from warplens.errors import UsageError, WarplensError
from warplens.studies.runner.engine import Task, command_line
from warplens.studies.runner.workloadsweep import WARMUP_STEPS, CellRun, Measuring, axes_from, cell_tasks, sweep_head
from warplens.workloads.registry import Plan, workload

#: The measurements file in a study's folder.
MEASUREMENTS: Final = "measurements.json"

Axes = Mapping[str, Sequence[Any]]

_SECOND_NS: Final = 10**9

#: Tokens in a step of the attention study, whatever the sequence length: the batch is what is left, so that a longer
#: sequence is not also more sequences' worth of everything else. FlashAttention's own benchmark has as many.
_ATTENTION_TOKENS: Final = 16_384
_QUICK_TOKENS: Final = 128

#: A step of a large model takes up to seconds: fewer repetitions, and until the median is known.
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
    """A study, and what is changed of it."""

    #: texts `name=value,value`, instead of the study's own values; a setting that it does not name is added
    axes: tuple[str, ...] = ()
    #: turns of each cell of a point, where a study measures in turns; None for the study's own number
    rounds: int | None = None
    device: str | None = None  #: as PyTorch names it; None for the GPU if there is one
    quick: bool = False  #: few cells of tiny size on the CPU, to try it anywhere


@dataclass(frozen=True)
class Study:
    """A predefined experiment."""

    name: str
    summary: str
    workload: str
    #: axes, quick: values of the settings: the whole study, and the small one to try
    axes: Axes
    quick: Axes
    plan: Plan  #: of the measurement where cells follow one another; in turns, only for its warm-up and repetitions
    tasks: Callable[[Axes], tuple[tuple[Task, ...], list[dict[str, Any]]]]  #: makes them from the axes
    #: rounds, quick_rounds: turns of each cell of a point; None for one cell after the other
    rounds: int | None = None
    quick_rounds: int | None = None
    head: Callable[[Axes], dict[str, Any]] = lambda _: {}  #: further keys of the measurements file, from the axes

    def run(self, options: StudyOptions) -> CellRun:
        """The run that is asked for.

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
        return CellRun(measuring, tasks, tuple(impossible), self.head(axes), self._command(options))

    def _command(self, options: StudyOptions) -> str:
        return command_line(
            "warplens", "study", self.name, axis=options.axes, rounds=options.rounds, device=options.device or None,
            quick=options.quick,
        )  # fmt: skip


#: What makes a point. All else tells the cells of a point apart: they take turns in one process, so that executions
#: compare as well as methods do.
_POINT: Final = ("model", "input_size", "batch", "precision")

#: Settings of a side that have a part of their own in it; others are combined with all of them.
_SIDE: Final = ("execution", "method", "keep", "attention")


def _token_reduction_tasks(axes: Axes) -> tuple[tuple[Task, ...], list[dict[str, Any]]]:
    others = {name: values for name, values in axes.items() if name not in (*_POINT, *_SIDE)}
    sides = [
        {**side, **dict(zip(others, values, strict=True))}
        for execution in axes["execution"]
        for side in _token_sides(axes, execution)
        for values in itertools.product(*others.values())
    ]
    points = {name: values for name, values in axes.items() if name in _POINT}
    return cell_tasks(workload("token-reduction"), points, sides)


def _token_sides(axes: Axes, execution: str) -> list[dict[str, Any]]:
    """The cells of a point: each share kept with each kind of attention; keep 1 is no reduction."""
    sides: list[dict[str, Any]] = []
    for keep, kind in itertools.product(axes["keep"], axes["attention"]):
        same = {"execution": execution, "attention": kind}
        if keep == 1:
            sides.append({**same, "method": "none"})
        else:
            sides += [{**same, "method": name, "keep": keep} for name in axes["method"]]
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
    """A task for each problem, with a cell for each kernel; where no batch is asked for, tokens are constant."""
    kernels = [{"kernel": name} for name in axes["kernel"]]
    rest = {name: values for name, values in axes.items() if name not in ("kernel", "tokens")}
    if "batch" in rest:
        return cell_tasks(workload("attention"), rest, kernels)
    (tokens,) = axes["tokens"]
    tasks: list[Task] = []
    impossible: list[dict[str, Any]] = []
    others = {name: values for name, values in rest.items() if name != "seq_len"}
    for values in itertools.product(*others.values(), rest["seq_len"]):
        *fixed, seq_len = values
        point = dict(zip(others, fixed, strict=True)) | {"seq_len": seq_len, "batch": max(1, tokens // seq_len)}
        made, strange = cell_tasks(workload("attention"), {name: [value] for name, value in point.items()}, kernels)
        varying = {name: value for name, value in point.items() if name == "seq_len" or len(others.get(name, ())) > 1}
        key = " ".join(f"{name}={value}" for name, value in varying.items())
        tasks += [Task(key, task.cells) for task in made]
        impossible += strange
    return tuple(tasks), impossible


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
# Baseline and variant are recorded at the smallest and the largest point of the grid, where the document that asks for
# this finds a loss and a gain. A recording that fails is told, and the others follow; what is there already is kept.

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


#: Of a cell, the tool and the commands that record it.
_Phase: TypeAlias = Callable[[RecordedCell, CellRun], tuple[Tool, list[list[str]]]]


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
