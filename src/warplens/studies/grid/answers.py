"""Answers of single profiles to the five questions of a grid of models × context lengths, all by measurement.

(a) How long does a forward pass take, in total and per layer, and does the program's own clock agree?
(b) Which kernel takes the most GPU time in it, how often does it run in one pass, which model part launches it, and is
    it the same one for forward and backward together?
(c) How much GPU time do the other kernels take?
(d) How does a training step divide into forward, backward and optimizer, and how do the kernels' shares change?
(e) How does the softmax inside attention compare with the two matrix products, in time and in FLOPs?

An invalid profile (an aborted step, another model) is kept with the reason and answers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.api import OUT_OF_MEMORY, api_kind
from warplens.analysis.quality import aborted_steps
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import NO_PHASE, PHASES
from warplens.profile import NoteLevel
from warplens.profile.schema import name_categories
from warplens.studies.grid.cells import (
    MODEL_SIZES,
    PythonTime,
    model_rank,
    model_size,
    python_batches,
    python_time,
)
from warplens.studies.grid.gputime import (
    KERNEL_USES,
    LABEL_USES,
    AttentionTime,
    TrainingSplit,
    attention_time,
    kernel_use,
    label_use,
    missing_attention_ranges,
    optimizer_cost,
    top_kernel,
    top_label,
    training_split,
)
from warplens.studies.grid.passes import PhasedWork, Spread, host_passes, phased_work
from warplens.workloads.settings import LMSize

#: The questions, by letter.
QUESTIONS: Final = {
    "a": "forward time",
    "b": "kernel with the most GPU time",
    "c": "other kernels",
    "d": "training step",
    "e": "softmax and matrix products",
}


@dataclass(frozen=True, eq=False)
class GridCell:
    """One profile and its cell."""

    model: str  #: name; layers and FLOPs are known for those in `warplens.studies.grid.cells.MODEL_SIZES`
    context: int  #: context length in tokens
    #: kind of step (`warplens.studies.grid.cells.MODES`); None to derive it from the profile's ranges
    mode: str | None
    source: str  #: the profile's file name
    timeline: Timeline
    batch: int | None = None  #: sequences in a batch; None where not known


@dataclass(frozen=True)
class ForwardTime:
    """Time of a forward pass by several definitions; spreads are over passes, in ns."""

    host: Spread | None  #: duration of the forward range on the host; None where the profile has no forward ranges
    #: whether in every pass the host waited inside the range until the GPU work was done, so that `host` is the time of
    #: the pass and not only of its launches
    synchronised: bool
    #: from the range's start on the host to the end of its GPU work; None where the GPU was not always idle when the
    #: range began, since it is undefined then
    elapsed: Spread | None
    #: span (first start to last end), gpu (summed durations), busy (time with work running): of the GPU work; None
    #: where the profile recorded none
    span: Spread | None
    gpu: Spread | None
    busy: Spread | None
    layers: int | None  #: attention layers; None where not known
    layers_counted: bool  #: whether the layers were counted in the profile or taken from the table of models

    @property
    def time(self) -> Spread:
        """The best available estimate of the time that a clock around the pass would show."""
        time = self.elapsed or self.span or self.host
        assert time is not None, "a forward time has one of its three times"
        return time

    @property
    def time_is(self) -> str:
        """The definition of `time`, in words."""
        if self.span is None:
            waits = "waits inside" if self.synchronised else "may end before the GPU does"
            return f"host range, GPU not recorded, {waits}"
        if self.elapsed is None:
            return "device span"
        return "host range, waits inside" if self.synchronised else "host start to last GPU end"

    @property
    def per_layer(self) -> Spread | None:
        """`time` / layers, embedding and head included."""
        return self.time.scaled(self.layers) if self.layers else None

    @property
    def busy_share(self) -> float | None:
        """Share of `time` in which the GPU worked, from the medians; None if no GPU work was recorded."""
        return self.busy.median / self.time.median if self.busy is not None else None


@dataclass(frozen=True, eq=False)
class CellAnswers:
    """Answers of one profile for its cell."""

    #: model, context, mode, source, batch: of the cell; `mode` is None where neither file name nor ranges determine it
    model: str
    context: int
    mode: str | None
    source: str
    batch: int | None
    #: device, bandwidth: name and memory bandwidth (bytes per second) of the GPU, where known
    device: str | None
    bandwidth: int | None
    size: LMSize | None  #: widths of the model, where the table knows it
    how: str  #: how the steps were found
    invalid: tuple[str, ...] = ()  #: reasons why the profile is invalid; empty if it is valid
    lacking: Mapping[str, str] = field(default_factory=dict)  #: unanswered question → advice for recording
    notes: tuple[str, ...] = ()  #: caveats for the reader of the numbers
    forward: ForwardTime | None = None  #: (a)
    #: (a) and (d), the program's own times by phase (`warplens.readers.timings.TIMING_PHASES`)
    python: Mapping[str, PythonTime] = field(default_factory=dict)
    #: kernel, category: (b), leading ones of forward passes, see `top_kernel` and `top_label`
    kernel: Mapping[str, Any] | None = None
    category: Mapping[str, Any] | None = None
    #: (b), in forward and backward together; None without backward work
    kernel_with_backward: Mapping[str, Any] | None = None
    #: kernels, labels: (c), `KERNEL_USES` and `LABEL_USES` of forward passes
    kernels: pl.DataFrame = field(default_factory=KERNEL_USES.empty)
    labels: pl.DataFrame = field(default_factory=LABEL_USES.empty)
    training: TrainingSplit | None = None  #: (d); None for a profile of forward passes
    step_labels: pl.DataFrame = field(default_factory=LABEL_USES.empty)  #: (d), `LABEL_USES` of whole training steps
    optimizer: Mapping[str, Any] | None = None  #: (d), see `optimizer_cost`
    attention: AttentionTime | None = None  #: (e)

    @property
    def place(self) -> tuple[tuple[int, int, str], int, str]:
        """Sort key: size of the model, context length, mode."""
        return model_rank(self.model), self.context, self.mode or ""

    def answers(self, question: str) -> bool:
        """Whether the profile answers a question of `QUESTIONS`."""
        if self.invalid:
            return False
        answers = {
            "a": self.forward,
            "b": self.kernel,
            "c": self.labels.height or None,
            "d": self.training,
            "e": self.attention,
        }
        hidden = question in "bc" and question in self.lacking
        return answers[question] is not None and not hidden


def answer_cell(cell: GridCell, *, timings: pl.DataFrame | None = None, batch: int | None = None) -> CellAnswers:
    """Answers the questions for one profile.

    `timings` are the program's own times, as `warplens.readers.timings.read_timings` gives them; `batch` is that of a
    cell that does not state it.
    """
    timeline = cell.timeline
    phased = phased_work(timeline, step_is_forward=cell.mode == "forward")
    mode = cell.mode or _mode_of(phased.phases_seen)
    batch = cell.batch or batch
    if batch is None and timings is not None:
        stated = python_batches(timings, cell.model, cell.context)
        batch = stated[0] if len(stated) == 1 else None
    attention = attention_time(timeline, phased)
    counted_layers = attention.layers if attention else None
    size = model_size(cell.model, counted_layers)
    device = next(iter(timeline.trace.capture.devices), None)
    peak = device.memory_bandwidth_bytes_per_s if device else None
    invalid, notes = _validity(cell, phased, mode, size, peak, counted_layers)
    lacking = _lacking(timeline, phased, attention, mode)
    answers: dict[str, Any] = {}
    if (in_passes := phased.pass_work).height:
        answers = {
            "kernel": top_kernel(timeline, in_passes),
            "category": top_label(timeline, in_passes),
            "kernels": kernel_use(timeline, in_passes),
            "labels": label_use(in_passes),
        }
    if mode not in (None, "forward") and phased.steps and "d" not in lacking:
        both = phased.work.filter(pl.col("phase").is_in(["forward", "backward"]))
        split = training_split(phased)
        answers |= {
            "kernel_with_backward": top_kernel(timeline, both, "step") if both.height else None,
            "training": split,
            "step_labels": label_use(phased.work, "step"),
            "optimizer": optimizer_cost(phased, split, size, peak) if split else None,
        }
    if mode is not None and timings is not None:
        phases = timings["phase"].cast(pl.String).unique().sort()
        own_times = {phase: python_time(timings, cell.model, cell.context, mode, phase, batch) for phase in phases}
        answers["python"] = {phase: time for phase, time in own_times.items() if time is not None}
    return CellAnswers(
        model=cell.model,
        context=cell.context,
        mode=mode,
        source=cell.source,
        batch=batch,
        device=device.name if device else None,
        bandwidth=peak,
        size=size,
        how=phased.how,
        invalid=invalid,
        lacking=lacking,
        notes=notes,
        forward=_forward_time(timeline, phased, counted_layers, size),
        attention=attention,
        **answers,
    )


def _validity(
    cell: GridCell,
    phased: PhasedWork,
    mode: str | None,
    size: LMSize | None,
    peak: int | None,
    counted_layers: int | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reasons why a profile is invalid, and notes on its numbers."""
    timeline = cell.timeline
    has_work = timeline.trace.has_device_work  # without GPU work, a missing phase cannot be detected
    invalid = list(incomplete_steps(timeline, phased, mode, size, peak)) if mode and has_work else []
    if (few_layers := incomplete_layers(counted_layers, cell.model)) is not None:
        invalid.append(few_layers)
    if invalid:
        failed = failed_allocations(timeline)
        invalid.append(
            f"{failed:,} memory allocations failed: out of memory" if failed else "out of memory is suspected"
        )
    recorded = timeline.trace.capture.notes
    if blocking := [note.text for note in recorded if note.level is NoteLevel.BLOCKING]:
        invalid = blocking if has_work else []
    notes = [note.text for note in recorded if note.level is NoteLevel.WARNING and note.code != "no-ranges"]
    if size is None and not few_layers and cell.model in MODEL_SIZES:
        notes.append(f"{counted_layers} attention layers are not those of {cell.model}: FLOPs are not modelled")
    if phased.pass_is_step:
        notes.append("no range holds a whole forward pass: a whole step counts as one, as its name says")
    if mode is not None and (beyond := _phases_beyond(phased, mode)):
        notes.append(f"it is said to be {mode}, and its steps have {' and '.join(beyond)} work as well")
    forwards, backwards = phased.ranges_of("forward"), phased.ranges_of("backward")
    if 0 < 2 * backwards <= forwards:
        notes.append(
            f"{forwards} ranges are named after the forward pass, and {backwards} after the backward pass: if they are"
            " parts of a pass, its times are those of a part; put an NVTX range `forward_pass` around the whole"
        )
    return tuple(invalid), tuple(notes)


def _forward_time(
    timeline: Timeline, phased: PhasedWork, counted_layers: int | None, size: LMSize | None
) -> ForwardTime | None:
    """The forward time, from host ranges alone for a profile without GPU work; None without forward passes."""
    on_gpu = timeline.trace.has_device_work
    passes = phased.passes if on_gpu else host_passes(timeline)
    if not passes.height:
        return None
    span, gpu, busy = (Spread.of(passes[name]) if on_gpu else None for name in ("span_ns", "gpu_ns", "busy_ns"))
    return ForwardTime(
        host=Spread.of(passes["host_ns"]),
        synchronised=bool(passes["synchronised"].fill_null(False).all()),
        elapsed=Spread.of(passes["elapsed_ns"]) if on_gpu and not passes["elapsed_ns"].null_count() else None,
        span=span,
        gpu=gpu,
        busy=busy,
        layers=counted_layers or (size.layers if size else None),
        layers_counted=counted_layers is not None,
    )


def _lacking(
    timeline: Timeline, phased: PhasedWork, attention: AttentionTime | None, mode: str | None
) -> dict[str, str]:
    """Question → why this profile does not answer it, and what to record instead."""
    if not timeline.trace.has_device_work:
        notes = (f"{note.text} {note.remedy or ''}".strip() for note in timeline.trace.capture.notes)
        unanswered = "bcde" if host_passes(timeline).height else QUESTIONS
        return dict.fromkeys(unanswered, next(notes, "no GPU work was recorded: use nsys profile --trace=cuda,nvtx"))
    lacking = {}
    if not phased.passes.height:
        advice = "no forward pass can be told apart: put an NVTX range `forward_pass` around the call of the model"
        if mode is None and phased.steps:
            advice += ", or, where every step is one forward pass, say so with --cell NAME=MODEL,CONTEXT,forward"
        lacking = dict.fromkeys("abce", advice)
    elif hidden := int(phased.passes["hidden_ns"].sum()):
        share = hidden / int(phased.passes["gpu_ns"].sum())
        hidden_text = f"{100 * share:.1f} % of the GPU time lies hidden inside CUDA graphs"
        lacking = dict.fromkeys("bc", f"{hidden_text}: record with --cuda-graph-trace=node")
    if mode not in (None, "forward") and (unnamed := unnamed_phases(phased, mode)):
        lacking["d"] = f"put NVTX ranges around {', '.join(unnamed)}: `forward_pass`, `backward_pass`, `optimizer_step`"
    if phased.passes.height and attention is None:
        missing = [f"`{name}`" for name in missing_attention_ranges(timeline)]
        lacking["e"] = "the ranges inside attention hold no GPU work of a forward pass"
        if missing:
            ranges = "the NVTX range" if len(missing) == 1 else "NVTX ranges"
            lacking["e"] = f"put {ranges} {', '.join(missing)} around the parts of attention"
    return lacking


def _mode_of(phases: frozenset[str]) -> str | None:
    """The kind of step, from the phases that the profile's ranges name."""
    if "forward" not in phases:
        return None
    return "train" if "optimizer" in phases else "forward+backward" if "backward" in phases else "forward"


#: Repetitions of one program run the same kernels, but for a few (a reduction split differently, an occasional print).
#: A phase with less than this share of its largest kernel count in any step was cut short.
_WHOLE_PHASE: Final = 0.9

#: An optimizer reads each gradient and reads and writes each parameter at least once, two bytes each in the shortest
#: type.
_LEAST_OPTIMIZER_BYTES_PER_PARAMETER: Final = 6

#: Work outside of the named phases indicates an unnamed phase only above this share of the GPU time; less is a loss
#: that is read back, or gradients that are cleared.
_WORK_OF_A_PHASE: Final = 0.02

#: Kind of step → its phases.
_EXPECTED: Final = {"forward": PHASES[:1], "forward+backward": PHASES[:2], "train": PHASES}


def incomplete_steps(
    timeline: Timeline, phased: PhasedWork, mode: str, size: LMSize | None, peak_bytes_per_s: int | None
) -> tuple[str, ...]:
    """Reasons why steps of a mode (`cells.MODES`) are incomplete, one sentence each; empty if they seem complete."""
    if mode == "forward" or not phased.steps or unnamed_phases(phased, mode):
        return ()
    reasons = _absent_phases(phased, mode) + _unequal_phases(phased)
    forward = phased.phases.filter((pl.col("phase") == "forward") & (pl.col("gpu_ns") > pl.col("wall_ns")))
    if forward.height:
        reasons.append(f"in {_steps(forward.height, phased)} the forward pass has more GPU time than the step is long")
    if not reasons:
        window = replace(timeline.window("all"), steps=phased.steps)
        reasons += [reason for aborted in aborted_steps(timeline, window) for reason in aborted.reasons]
    if mode == "train" and size and peak_bytes_per_s:
        least_ns = _LEAST_OPTIMIZER_BYTES_PER_PARAMETER * size.parameters / peak_bytes_per_s * 1e9
        optimizer_ns = phased.phases.filter((pl.col("phase") == "optimizer") & (pl.col("ops") > 0))["gpu_ns"]
        if optimizer_ns.len() and float(np.median(optimizer_ns.to_numpy())) < least_ns:
            reasons.append("its optimizer is faster than the memory can read the gradients: it skipped parameters")
    return tuple(dict.fromkeys(reasons))


def unnamed_phases(phased: PhasedWork, mode: str) -> tuple[str, ...]:
    """The phases that the steps must have but that no range of the profile names, although their GPU work exists.

    An aborted step lacks the ranges of its last phases as well, but has no work outside of the named phases.
    """
    unnamed = tuple(phase for phase in _EXPECTED[mode] if phase not in phased.phases_seen)
    if not phased.phases_seen:
        return unnamed
    outside = phased.phases.filter(pl.col("phase") == NO_PHASE)["gpu_ns"].sum()
    return unnamed if outside > _WORK_OF_A_PHASE * int(phased.phases["gpu_ns"].sum()) else ()


def _phases_beyond(phased: PhasedWork, mode: str) -> list[str]:
    """The phases with GPU work that steps of a mode do not have."""
    total = int(phased.phases["gpu_ns"].sum())
    times = {phase: int(phased.phases.filter(pl.col("phase") == phase)["gpu_ns"].sum()) for phase in PHASES}
    return [phase for phase in PHASES if phase not in _EXPECTED[mode] and times[phase] > _WORK_OF_A_PHASE * total]


def incomplete_layers(counted_layers: int | None, model: str) -> str | None:
    """Why a forward pass with so few attention layers cannot be this model's; None if it can."""
    layers = [size.layers for size in MODEL_SIZES.get(model, ())]
    if counted_layers is None or not layers or counted_layers >= min(layers):
        return None
    return (
        f"its forward pass holds {counted_layers} of the {min(layers)} attention layers of {model}: "
        "it was cut short, or it is another model (name it with --cell)"
    )


def failed_allocations(timeline: Timeline) -> int:
    """The number of recorded memory allocations that failed for lack of memory."""
    calls = timeline.trace.api_calls
    allocating = [name for name in name_categories(calls["name"]) if api_kind(name) == "allocation"]
    failed = calls.filter((pl.col("return_value") == OUT_OF_MEMORY) & pl.col("name").cast(pl.String).is_in(allocating))
    return failed.height


def _steps(count: int, phased: PhasedWork) -> str:
    total = len(phased.steps)
    return f"{count} of {total} steps" if total > 1 else "the only step"


def _absent_phases(phased: PhasedWork, mode: str) -> list[str]:
    """Sentences on phases without any GPU work, with the number of steps that lack them."""
    idle = (
        phased.phases.filter(pl.col("phase").is_in(_EXPECTED[mode]) & (pl.col("ops") == 0))
        .group_by("step", maintain_order=True)
        .agg(pl.col("phase").str.join(" and no "))
        .group_by("phase", maintain_order=True)
        .len()
    )
    return [f"{_steps(count, phased)} had no {phases} work on the GPU" for phases, count in idle.rows()]


def _unequal_phases(phased: PhasedWork) -> list[str]:
    """Sentences on phases that were cut short in some step: those with far fewer kernels than in other steps."""
    rows = phased.phases.with_columns(most=pl.col("kernels").max().over("phase"))
    short = rows.filter(
        pl.col("phase").is_in(PHASES) & pl.col("kernels").is_between(1, _WHOLE_PHASE * pl.col("most"), "left")
    )
    return [
        f"the {row['phase']} of step {row['step']} runs {row['kernels']:,} of {row['most']:,} kernels"
        for row in short.iter_rows(named=True)
    ]
