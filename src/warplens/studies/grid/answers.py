"""A folder of profiles over models × context lengths, and five questions answered for each, from measurements.

(a) How long does a forward pass take, in all and per layer, and does the program's own clock agree?
(b) Which kernel takes the most GPU time in it, how often does it run in one pass, which model part asks for it, and is
    it the same one for forward and backward together?
(c) What do the other kernels take?
(d) How does a training step divide into forward, backward and optimizer, and what changes in the kernels' shares?
(e) How does the softmax inside attention compare with the two matrix products, in time and in FLOPs?

A profile that cannot stand for its cell (an aborted step, another model) is kept with the reason and answers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.api import api_kind
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
    python_batch,
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
    """One profile and the cell it is of."""

    model: str  #: name; layers and FLOPs are known of those in `warplens.studies.grid.cells.MODEL_SIZES`
    context: int  #: context length in tokens
    #: what one step does (`warplens.studies.grid.cells.MODES`); None to tell it from the profile's ranges
    mode: str | None
    source: str  #: the profile's file name
    timeline: Timeline
    batch: int | None = None  #: sequences in a batch; None where not known


@dataclass(frozen=True)
class ForwardTime:
    """How long a forward pass takes, in each of the ways that a profile can tell; spreads are over passes, in ns."""

    host: Spread | None  #: duration of the forward range on the host; None where the profile has no forward ranges
    #: in every pass the host waited inside the range until the GPU work was done, so that `host` is the time of the
    #: pass and not of its launching
    synchronised: bool
    #: from the range's start on the host to the end of its GPU work; None where the GPU was not always idle when the
    #: range began, so that no such time exists
    elapsed: Spread | None
    span: Spread | None  #: from the begin of the first to the end of the last GPU work
    gpu: Spread | None  #: summed durations of the GPU work
    busy: Spread | None  #: time in which the GPU worked. These three are None where the profile recorded no GPU work.
    layers: int | None  #: attention layers; None where not known
    layers_counted: bool  #: the layers were counted in the profile, not taken from the table of models

    @property
    def time(self) -> Spread:
        """The time of a pass as a clock around it would show it, as nearly as the profile can tell."""
        found = self.elapsed or self.span or self.host
        assert found is not None, "a forward time has one of its three times"
        return found

    @property
    def time_is(self) -> str:
        """What `time` was taken from."""
        if self.span is None:
            waits = "waits inside" if self.synchronised else "may end before the GPU does"
            return f"host range, GPU not recorded, {waits}"
        if self.elapsed is None:
            return "device span"
        return "host range, waits inside" if self.synchronised else "host start to last GPU end"

    @property
    def per_layer(self) -> Spread | None:
        """`time` over the layers; the embedding and the head count in."""
        return self.time.scaled(self.layers) if self.layers else None

    @property
    def busy_share(self) -> float | None:
        """Share of `time` in which the GPU worked, from the medians; None where that was not recorded."""
        return self.busy.median / self.time.median if self.busy is not None else None


@dataclass(frozen=True, eq=False)
class CellAnswers:
    """What one profile answers for its cell."""

    #: model, context, mode, source, batch: of the cell; `mode` None where neither name nor ranges tell it
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
    invalid: tuple[str, ...] = ()  #: why the profile cannot stand for its cell; empty where it can
    lacking: Mapping[str, str] = field(default_factory=dict)  #: question → what to do so that the profile can answer it
    notes: tuple[str, ...] = ()  #: what the reader of the numbers must know
    forward: ForwardTime | None = None  #: (a)
    #: (a) and (d), the program's own times by phase (`warplens.readers.timings.TIMING_PHASES`)
    python: Mapping[str, PythonTime] = field(default_factory=dict)
    #: kernel, category: (b), in forward passes: a row of `KERNEL_USES`, what falls to a pass, and the model's parts
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
        """Sorts by size of the model, then by context as a number, then by mode."""
        return model_rank(self.model), self.context, self.mode or ""

    def answers(self, question: str) -> bool:
        """Whether the profile answers a question of `QUESTIONS`."""
        if self.invalid:
            return False
        found = {"a": self.forward, "b": self.kernel, "c": self.labels.height or None, "d": self.training}
        hidden = question in "bc" and question in self.lacking
        return {**found, "e": self.attention}[question] is not None and not hidden


def answer_cell(cell: GridCell, *, timings: pl.DataFrame | None = None, batch: int | None = None) -> CellAnswers:
    """What one profile answers.

    Args:
        timings: the program's own times, as `warplens.readers.timings.read_timings` gives them.
        batch: sequences in a batch, where the cell does not say.
    """
    timeline = cell.timeline
    phased = phased_work(timeline, step_is_forward=cell.mode == "forward")
    mode = cell.mode or _mode_of(phased.phases_seen)
    batch = cell.batch or batch
    if batch is None and timings is not None:
        batch = python_batch(timings, cell.model, cell.context)
    attention = attention_time(timeline, phased)
    counted = attention.layers if attention else None
    size = model_size(cell.model, counted)
    device = next(iter(timeline.trace.capture.devices), None)
    peak = device.memory_bandwidth_bytes_per_s if device else None
    invalid, notes = _judged(cell, phased, mode, size, peak, counted)
    lacking = _lacking(timeline, phased, attention, mode)
    found: dict[str, Any] = {}
    if (in_passes := phased.pass_work).height:
        found = {
            "kernel": top_kernel(timeline, in_passes),
            "category": top_label(timeline, in_passes),
            "kernels": kernel_use(timeline, in_passes),
            "labels": label_use(in_passes),
        }
    if mode not in (None, "forward") and phased.steps and "d" not in lacking:
        both = phased.work.filter(pl.col("phase").is_in(["forward", "backward"]))
        split = training_split(phased)
        found |= {
            "kernel_with_backward": top_kernel(timeline, both, "step") if both.height else None,
            "training": split,
            "step_labels": label_use(phased.work, "step"),
            "optimizer": optimizer_cost(phased, split, size, peak) if split else None,
        }
    if mode is not None and timings is not None:
        phases = timings["phase"].cast(pl.String).unique().sort()
        own = {phase: python_time(timings, cell.model, cell.context, mode, phase, batch) for phase in phases}
        found["python"] = {phase: time for phase, time in own.items() if time is not None}
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
        forward=_forward_time(phased, counted, size) or _host_forward_time(timeline, size),
        attention=attention,
        **found,
    )


def _judged(
    cell: GridCell, phased: PhasedWork, mode: str | None, size: LMSize | None, peak: int | None, counted: int | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why a profile cannot stand for its cell, and what the reader of its numbers must know."""
    timeline = cell.timeline
    worked = timeline.trace.has_device_work  # without it, no phase of a step can be told to be absent
    invalid = list(incomplete_steps(timeline, phased, mode, size, peak)) if mode and worked else []
    if (few_layers := incomplete_layers(counted, cell.model)) is not None:
        invalid.append(few_layers)
    if invalid:
        failed = failed_allocations(timeline)
        invalid.append(
            f"{failed:,} memory allocations failed: out of memory" if failed else "out of memory is suspected"
        )
    recorded = timeline.trace.capture.notes
    if blocking := [note.text for note in recorded if note.level is NoteLevel.BLOCKING]:
        invalid = blocking if worked else []
    notes = [note.text for note in recorded if note.level is NoteLevel.WARNING and note.code != "no-ranges"]
    if size is None and not few_layers and cell.model in MODEL_SIZES:
        notes.append(f"{counted} attention layers are not those of {cell.model}: FLOPs are not modelled")
    if phased.pass_is_step:
        notes.append("no range is named after the forward pass: a whole step counts as one, as its name says")
    return tuple(invalid), tuple(notes)


def _forward_time(phased: PhasedWork, counted: int | None, size: LMSize | None) -> ForwardTime | None:
    passes = phased.passes
    spreads = {name: Spread.of(passes[name]) for name in ("host_ns", "elapsed_ns", "span_ns", "gpu_ns", "busy_ns")}
    span, gpu, busy = spreads["span_ns"], spreads["gpu_ns"], spreads["busy_ns"]
    if span is None or gpu is None or busy is None:
        return None
    return ForwardTime(
        host=spreads["host_ns"],
        synchronised=bool(passes["synchronised"].fill_null(False).all()),
        elapsed=spreads["elapsed_ns"] if not passes["elapsed_ns"].null_count() else None,
        span=span,
        gpu=gpu,
        busy=busy,
        layers=counted or (size.layers if size else None),
        layers_counted=counted is not None,
    )


def _host_forward_time(timeline: Timeline, size: LMSize | None) -> ForwardTime | None:
    """The forward time from host ranges alone, of a profile without any GPU work; None where it names no pass."""
    if timeline.trace.has_device_work:
        return None
    passes = host_passes(timeline)
    host = Spread.of(passes["host_ns"])
    if host is None:
        return None
    waits = bool(passes["synchronised"].all())
    return ForwardTime(host, waits, None, None, None, None, size.layers if size else None, layers_counted=False)


def _lacking(
    timeline: Timeline, phased: PhasedWork, attention: AttentionTime | None, mode: str | None
) -> dict[str, str]:
    if not timeline.trace.has_device_work:
        notes = (f"{note.text} {note.remedy or ''}".strip() for note in timeline.trace.capture.notes)
        asked = "bcde" if host_passes(timeline).height else QUESTIONS
        return dict.fromkeys(asked, next(notes, "no GPU work was recorded: use nsys profile --trace=cuda,nvtx"))
    lacking = {}
    if not phased.passes.height:
        advice = "no forward pass can be told apart: put an NVTX range `forward_pass` around the call of the model"
        if mode is None and phased.steps:
            advice += ", or, where every step is one forward pass, say so with --cell NAME=MODEL,CONTEXT,forward"
        lacking = dict.fromkeys("abce", advice)
    elif hidden := int(phased.passes["hidden_ns"].sum()):
        share = hidden / int(phased.passes["gpu_ns"].sum())
        advice = (
            f"{100 * share:.1f} % of the GPU time lies hidden inside CUDA graphs: record with --cuda-graph-trace=node"
        )
        lacking = dict.fromkeys("bc", advice)
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
    """What one step does, by the phases that the profile's ranges name."""
    if "forward" not in phases:
        return None
    if "optimizer" in phases:
        return "train"
    return "forward+backward" if "backward" in phases else "forward"


#: Repetitions of one program run the same kernels, but for a few (a reduction split differently, an occasional print).
#: A phase with less than this part of the most kernels that it has in any step was cut short.
_WHOLE_PHASE: Final = 0.9

#: An optimizer at least reads each gradient and reads and writes each parameter, two bytes each in the shortest type.
_LEAST_OPTIMIZER_BYTES_PER_PARAMETER: Final = 6

#: Work outside of the named phases is a phase without a name only above this share of the GPU time; what lies below it
#: is a loss that is read back, or gradients that are cleared.
_WORK_OF_A_PHASE: Final = 0.02

#: `cudaErrorMemoryAllocation` and `CUDA_ERROR_OUT_OF_MEMORY`.
_OUT_OF_MEMORY: Final = 2

#: The phases that one step has, by what it is said to do.
_EXPECTED: Final = {"forward": PHASES[:1], "forward+backward": PHASES[:2], "train": PHASES}


def incomplete_steps(
    timeline: Timeline, phased: PhasedWork, mode: str, size: LMSize | None, peak_bytes_per_s: int | None
) -> tuple[str, ...]:
    """Why the steps cannot stand for their cell, one sentence each; empty where nothing speaks against them.

    Args:
        mode: what one step is said to do (`warplens.studies.grid.cells.MODES`).
        peak_bytes_per_s: memory bandwidth of the device, where known.
    """
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
        spent = phased.phases.filter((pl.col("phase") == "optimizer") & (pl.col("ops") > 0))["gpu_ns"]
        if spent.len() and float(np.median(spent.to_numpy())) < least_ns:
            reasons.append("its optimizer is faster than the memory can read the gradients: it skipped parameters")
    return tuple(dict.fromkeys(reasons))


def unnamed_phases(phased: PhasedWork, mode: str) -> tuple[str, ...]:
    """The phases that the steps must have and that no range of the profile names, though GPU work is there for them.

    A step that was cut short names its phases, too, up to where it ended; it leaves no work outside of them.
    """
    unnamed = tuple(phase for phase in _EXPECTED[mode] if phase not in phased.phases_seen)
    if not phased.phases_seen:
        return unnamed
    outside = phased.phases.filter(pl.col("phase") == NO_PHASE)["gpu_ns"].sum()
    return unnamed if outside > _WORK_OF_A_PHASE * int(phased.phases["gpu_ns"].sum()) else ()


def incomplete_layers(phased_layers: int | None, model: str) -> str | None:
    """Why a forward pass with so few attention layers cannot be this model's; None where it can."""
    layers = [size.layers for size in MODEL_SIZES.get(model, ())]
    if phased_layers is None or not layers or phased_layers >= min(layers):
        return None
    return (
        f"its forward pass holds {phased_layers} of the {min(layers)} attention layers of {model}: "
        "it was cut short, or it is another model (name it with --cell)"
    )


def failed_allocations(timeline: Timeline) -> int:
    """How many memory allocations failed for lack of memory, as far as the API calls were recorded."""
    calls = timeline.trace.api_calls
    allocating = [name for name in name_categories(calls["name"]) if api_kind(name) == "allocation"]
    failed = calls.filter((pl.col("return_value") == _OUT_OF_MEMORY) & pl.col("name").cast(pl.String).is_in(allocating))
    return failed.height


def _steps(count: int, phased: PhasedWork) -> str:
    total = len(phased.steps)
    return f"{count} of {total} steps" if total > 1 else "the only step"


def _absent_phases(phased: PhasedWork, mode: str) -> list[str]:
    """Phases without any GPU work, by the steps that lack them."""
    idle = (
        phased.phases.filter(pl.col("phase").is_in(_EXPECTED[mode]) & (pl.col("ops") == 0))
        .group_by("step", maintain_order=True)
        .agg(pl.col("phase").str.join(" and no "))
        .group_by("phase", maintain_order=True)
        .len()
    )
    return [f"{_steps(count, phased)} had no {phases} work on the GPU" for phases, count in idle.rows()]


def _unequal_phases(phased: PhasedWork) -> list[str]:
    """Phases that were cut short in some step, measured by the kernels that they run in the others."""
    rows = phased.phases.with_columns(most=pl.col("kernels").max().over("phase"))
    short = rows.filter(
        pl.col("phase").is_in(PHASES) & pl.col("kernels").is_between(1, _WHOLE_PHASE * pl.col("most"), "left")
    )
    return [
        f"the {row['phase']} of step {row['step']} runs {row['kernels']:,} of {row['most']:,} kernels"
        for row in short.iter_rows(named=True)
    ]
