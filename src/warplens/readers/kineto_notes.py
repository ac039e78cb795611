"""What a Kineto trace cannot tell, found while it is read: each finding a `Note` with the way to a better trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from warplens.profile import Device, Note, NoteLevel
from warplens.profile.schema import name_categories
from warplens.readers.kineto_document import Document
from warplens.readers.kineto_spans import Spans

__all__ = ["Findings", "notes_of"]

RECAPTURE = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)"

#: Above this share of launches without any kernel, times and idle shares are wrong by as much: no answer is better.
LOST_SHARE_BLOCKING = 0.05

#: Rounding begin and end to microseconds moves a duration by up to 1 µs: more than 5 % of kernels shorter than this.
SHORT_KERNEL_NS = 20_000

_LAUNCHES = r"^(cu(da)?Launch(Cooperative)?Kernel|hip(Ext)?(Module)?Launch(Cooperative)?Kernel)"

#: What helps where the file, and not the recording, is at fault.
_WRITE_AGAIN = "Export or copy the trace again"


@dataclass(frozen=True)
class Findings:
    """What the reader knows when all tables are there.

    Attributes:
        tables: the frames of the trace by name.
        document: what the trace held beside them.
        spans: what was noticed on the way.
        devices: the GPUs that are described.
        launch_configuration: whether grids and blocks were asked for.
    """

    tables: Mapping[str, pl.DataFrame]
    document: Document
    spans: Spans
    devices: tuple[Device, ...]
    launch_configuration: bool


def notes_of(findings: Findings) -> tuple[Note, ...]:
    """All notes about a trace, those that limit the answers most first."""
    notes = [note for check in _CHECKS for note in check(findings)]
    order = (NoteLevel.BLOCKING, NoteLevel.WARNING, NoteLevel.INFO)
    return tuple(sorted(notes, key=lambda note: order.index(note.level)))


def _work(findings: Findings) -> int:
    return sum(findings.tables[name].height for name in ("kernels", "copies", "memsets"))


def _missing_work(findings: Findings) -> list[Note]:
    if _work(findings):
        if findings.tables["api_calls"].height:
            return []
        text = "No calls of CUDA or HIP were recorded: launches, queueing and the operators around them are unknown."
        return [Note("no-api-calls", NoteLevel.WARNING, text, f"Record again with {RECAPTURE}")]
    if "cuda_profiler_range" in findings.document.categories:
        text = (
            "The trace holds hardware counters instead of kernels: CUPTI's range profiler was on, without their times."
        )
        remedy = f"Record again without experimental_config: {RECAPTURE}"
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, remedy)]
    if findings.document.cut_off_bytes is not None:
        text = "The part of the trace that is left holds no GPU activity, which profilers write after the operators."
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, _WRITE_AGAIN)]
    if findings.tables["api_calls"].height:
        text = "Calls of CUDA or HIP were recorded, but no work on any GPU: no kernels, no copies, no memsets."
        remedy = f"Record again, and end the profiler after torch.cuda.synchronize(): {RECAPTURE}"
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, remedy)]
    text = "The trace holds no GPU activity: the profiler was told to record the CPU only, or this process used no GPU."
    return [Note("no-cuda-data", NoteLevel.BLOCKING, text, f"Record again with {RECAPTURE}")]


def _lost_work(findings: Findings) -> list[Note]:
    calls, kernels = findings.tables["api_calls"], findings.tables["kernels"]
    if not kernels.height:
        return []
    names = calls["name"]
    launching = name_categories(names).str.contains(_LAUNCHES).arg_true()
    launches = calls.select("process", "correlation").filter(names.to_physical().is_in(launching.implode()))
    lost = launches.join(kernels, on=["process", "correlation"], how="anti").height
    if not lost:
        return []
    text = f"{lost:,} of {launches.height:,} kernel launches have no kernel in the trace: work was lost."
    level = NoteLevel.BLOCKING if lost >= LOST_SHARE_BLOCKING * launches.height else NoteLevel.WARNING
    remedy = f"Record fewer steps, and end the profiler after torch.cuda.synchronize(): {RECAPTURE}"
    return [Note("lost-gpu-work", level, text, remedy)]


def _missing_host(findings: Findings) -> list[Note]:
    operators, ranges = findings.tables["operators"], findings.tables["ranges"]
    if not _work(findings):
        return []
    if not ranges.height:
        text = "No operators and no annotations were recorded: GPU time cannot be attributed to parts of the program."
        return [Note("no-ranges", NoteLevel.WARNING, text, f"Record again with {RECAPTURE}")]
    if operators.height and operators["input_shapes"].null_count() == operators.height:
        text = "Operators were recorded without the shapes of their inputs: their FLOPs and bytes are unknown."
        return [Note("no-shapes", NoteLevel.INFO, text, f"Record again with {RECAPTURE}")]
    return []


def _devices(findings: Findings) -> list[Note]:
    work = [findings.tables[name]["device"] for name in ("kernels", "copies", "memsets")]
    used = set(pl.concat(work).unique().to_list())
    if not used - {device.ordinal for device in findings.devices}:
        return []
    text = "The trace does not describe the GPUs that it used: peaks, occupancy and bandwidth limits are unavailable."
    return [
        Note("no-device-info", NoteLevel.WARNING, text, "Record again with a current PyTorch, and keep the trace whole")
    ]


def _configuration(findings: Findings) -> list[Note]:
    kernels = findings.tables["kernels"]
    missing = kernels["grid_x"].null_count()
    if not findings.launch_configuration or not missing:
        return []
    text = f"{missing:,} of {kernels.height:,} kernels were recorded without grid and block, as ROCm does for graphs."
    return [Note("no-launch-configuration", NoteLevel.INFO, text, None)]


def _clock(findings: Findings) -> list[Note]:
    kernels = findings.tables["kernels"]
    if not findings.spans.is_whole_microseconds or not kernels.height:
        return []
    median = kernels.select((pl.col("end_ns") - pl.col("start_ns")).median()).item()
    level = NoteLevel.WARNING if median < SHORT_KERNEL_NS else NoteLevel.INFO
    text = (
        f"All times are whole microseconds, while the median kernel takes {median / 1_000:,.0f} µs: durations and gaps "
        "are rounded."
    )
    return [Note("whole-microseconds", level, text, "Record again with PyTorch 2.4 or newer, which keeps nanoseconds")]


def _damage(findings: Findings) -> list[Note]:
    notes = []
    document, spans = findings.document, findings.spans
    if document.cut_off_bytes is not None:
        text = (
            f"The trace breaks off: {document.events:,} complete events were recovered, {document.cut_off_bytes:,} "
            "bytes of an incomplete one left out; what followed is missing."
        )
        notes.append(Note("truncated-trace", NoteLevel.WARNING, text, _WRITE_AGAIN))
    if document.damaged:
        text = f"{document.damaged:,} places in the trace could not be read; the events there are missing."
        notes.append(Note("damaged-events", NoteLevel.WARNING, text, _WRITE_AGAIN))
    if spans.invalid:
        text = f"{spans.invalid:,} events were left out: they have no begin or no duration, or end before they begin."
        notes.append(Note("invalid-times", NoteLevel.WARNING, text, f"If many are missing, record again: {RECAPTURE}"))
    if spans.still_open:
        text = (
            f"{spans.still_open:,} host events were still open when the recording ended; they are taken to end there."
        )
        notes.append(Note("open-ranges", NoteLevel.INFO, text, None))
    if spans.repeated:
        text = f"{spans.repeated:,} events stand in the trace more than once; they are counted once."
        notes.append(Note("repeated-events", NoteLevel.INFO, text, None))
    return notes


_CHECKS = (_missing_work, _lost_work, _missing_host, _devices, _configuration, _clock, _damage)
