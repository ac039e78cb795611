"""The experiments of the source literature as plans that run by themselves: every factor varied apart from the others.

| study | grid |
|---|---|
| `token-reduction` | input size × batch; at each point, in turns, keep × execution × kind of attention |
| `lm-grid` | five model sizes × four context lengths × forward pass and training step |
| `attention` | sequence length × head dimension × mask; at each point every kernel, tokens being constant |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warplens.errors import UsageError
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
