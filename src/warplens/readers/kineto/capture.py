"""The text around the events of a Kineto trace (GPUs, rank, the clock's zero), and the notes on a trace.

Only the values requested here are read. Traces also hold users, hosts, job names, paths and additions of the program;
none of these leave this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from warplens.profile import Device, Note, NoteLevel
from warplens.profile.peaks import UNNAMED, UNNAMED_AMD
from warplens.profile.trace import worst_first
from warplens.readers.excerpts import IN_SLICES
from warplens.readers.kineto.issuers import Issued
from warplens.readers.kineto.spans import WORK_ALONE, Recorded, Spans
from warplens.readers.kineto.values import GPU_KINDS, GPU_TABLES, kind_of_category
from warplens.readers.losses import called_like, invalid_times, lost_level, still_queued
from warplens.writing import plural

#: Absolute times are between 2015 and 2100; others count from the start of the machine or of the program.
_EARLIEST_EPOCH_NS = 1_420_070_400 * 10**9
_LATEST_EPOCH_NS = 4_102_444_800 * 10**9


def is_rocm(header: Mapping[str, Any], calls: pl.Series) -> bool:
    """Whether the trace was recorded on AMD GPUs, by the text around the events or by names of calls."""
    if calls.unique().cast(pl.String).str.starts_with("hip").any():
        return True
    if any(key in header for key in ("roctracer_version", "hip_runtime_version", "hip_driver_version")):
        return True
    return any(entry.get("warpSize") == 64 or "AMD" in str(entry.get("name", "")) for entry in _described(header))


def devices_of(
    header: Mapping[str, Any], used: Iterable[int], rocm: bool, renumbered: Mapping[int, int]
) -> tuple[Device, ...]:
    """The GPUs that work ran on, or all described ones if no work ran.

    Args:
        header: the members around the events.
        used: the numbers of the GPUs that work ran on.
        rocm: whether they are AMD's.
        renumbered: the described number of each GPU that was given another number.
    """
    described = {entry["id"]: entry for entry in _described(header) if isinstance(entry.get("id"), int)}
    device_numbers = {number: renumbered.get(number, number) for number in sorted(set(used)) or sorted(described)}
    # ROCm numbers the GPUs of kernels together with the CPUs: number 2 may be the GPU described as 0. Where all that
    # are described are equal, it does not matter which one it is.
    entry, *others = list(described.values()) or [{}]
    any_of_them = entry if rocm and entry and all({**other, "id": entry["id"]} == entry for other in others) else None
    found = {number: described.get(index, any_of_them) for number, index in device_numbers.items()}
    return tuple(_device(number, entry, rocm) for number, entry in found.items() if entry is not None)


def _described(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    entries = header.get("deviceProperties")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _positive(entry: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = entry.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _device(ordinal: int, entry: Mapping[str, Any], rocm: bool) -> Device:
    threads, warp = _positive(entry, "maxThreadsPerMultiprocessor"), _positive(entry, "warpSize")
    major, minor = _positive(entry, "computeMajor"), entry.get("computeMinor")
    name = entry.get("name")
    return Device(
        ordinal=ordinal,
        name=name if isinstance(name, str) and name else UNNAMED_AMD if rocm else UNNAMED,
        # ROCm writes the numbers of its own architectures here (9.4 for gfx942), which mean something else.
        compute_capability=(major, minor) if major and isinstance(minor, int) and not rocm else None,
        sm_count=_positive(entry, "numSms"),
        memory_bytes=_positive(entry, "totalGlobalMem"),
        max_warps_per_sm=threads // warp if threads and warp else None,
        max_threads_per_block=_positive(entry, "maxThreadsPerBlock"),
        registers_per_sm=_positive(entry, "regsPerMultiprocessor"),
        shared_bytes_per_sm=_positive(entry, "sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"),
    )


def placement_of(header: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Rank and number of ranks of the process; None if the trace does not state them."""
    info = header.get("distributedInfo")
    if not isinstance(info, dict):
        return None, None
    rank, size = info.get("rank"), info.get("world_size")
    return (
        rank if isinstance(rank, int) and rank >= 0 else None,
        size if isinstance(size, int) and size > 0 else None,
    )


def epoch_of(header: Mapping[str, Any], zero_ns: int | None) -> int | None:
    """Unix time of the first event; None if the trace's times are not absolute.

    Until 2024 times were absolute; since then they count from `baseTimeNanoseconds`, itself a Unix time.
    """
    if zero_ns is None:
        return None
    base = header.get("baseTimeNanoseconds", 0)
    epoch = (base if isinstance(base, int) else 0) + zero_ns
    return epoch if _EARLIEST_EPOCH_NS <= epoch <= _LATEST_EPOCH_NS else None


# --- Notes on a Kineto trace, each with the way to a better one -------------------------------------------------------

RECAPTURE = "torch.profiler.profile(activities=torch.profiler.supported_activities(), record_shapes=True)"

#: Rounding begin and end to microseconds changes a duration by up to 1 µs: more than 5 % of kernels shorter than this.
SHORT_KERNEL_NS = 20_000

_LAUNCHES = r"^(cu(da)?Launch(Cooperative)?Kernel|hip(Ext)?(Module)?Launch(Cooperative)?Kernel)"

#: Advice where the file, and not the recording, is at fault.
_WRITE_AGAIN = "Export or copy the trace again"
_APART = "Give the trace of each process, all of them in one folder: warplens ranks FOLDER"


@dataclass(frozen=True)
class Findings:
    """Facts that the reader knows once all tables are complete."""

    tables: Mapping[str, pl.DataFrame]  #: the frames of the trace by name
    document: Recorded  #: the other content of the trace
    spans: Spans  #: events as intervals, and counts of invalid ones
    issued: Issued  #: the processes that issued the work
    devices: tuple[Device, ...]  #: the described GPUs
    launch_configuration: bool  #: whether grids and blocks were requested


def notes_of(findings: Findings) -> tuple[Note, ...]:
    """All notes about a trace, the most limiting first."""
    return worst_first(note for check in _CHECKS for note in check(findings))


def _part(findings: Findings) -> list[Note]:
    part = findings.document.part
    if part.excerpt is not None:
        return [part.excerpt.note(findings.spans.zero_ns or 0)]
    return [IN_SLICES] if part is WORK_ALONE else []


def _work(findings: Findings) -> int:
    return sum(findings.tables[name].height for name in GPU_TABLES)


#: Other accelerators recorded by PyTorch's profiler, by the prefix of their events' categories.
_OTHER_ACCELERATORS = {
    "xpu_": "Intel's GPUs (XPU)",
    "mtia_": "Meta's accelerators (MTIA)",
    "hpu_": "Intel's accelerators (HPU)",
    "privateuse1_": "an accelerator of another maker",
}


def _missing_work(findings: Findings) -> list[Note]:
    """Why the trace lacks GPU work or calls, and how to record them; nothing if it has both."""
    categories = findings.document.categories
    accelerator = next(
        (
            description
            for prefix, description in _OTHER_ACCELERATORS.items()
            if any(category.startswith(prefix) for category in categories)
        ),
        "",
    )
    if accelerator and not findings.tables["api_calls"].height:
        text = f"The trace was recorded on {accelerator}, whose calls are not read: only NVIDIA's and AMD's GPUs are."
        return [Note("other-accelerator", NoteLevel.BLOCKING, text, None)]
    if _work(findings):
        if findings.tables["api_calls"].height:
            return []
        text = "No CUDA or HIP calls were recorded: launches, queue times and the operators around them are unknown."
        return [Note("no-api-calls", NoteLevel.WARNING, text, f"Record again with {RECAPTURE}")]
    if "cuda_profiler_range" in categories:
        text = (
            "The trace holds hardware counters instead of kernels: CUPTI's range profiler was on, without their times."
        )
        remedy = f"Record again without experimental_config: {RECAPTURE}"
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, remedy)]
    if findings.document.cut_off_bytes is not None:
        text = "The trace is truncated before the GPU activity, which profilers write after the operators."
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, _WRITE_AGAIN)]
    if any(kind_of_category(category) in GPU_KINDS for category in categories):
        text = "The trace names GPU activity, but none of it begins and ends at a time that can be read."
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, _WRITE_AGAIN)]
    if findings.tables["api_calls"].height:
        text = "CUDA or HIP calls were recorded, but no GPU work: no kernels, copies or memsets."
        remedy = f"Record again, and end the profiler after torch.cuda.synchronize(): {RECAPTURE}"
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, remedy)]
    text = "The trace holds no GPU activity: the profiler was told to record the CPU only, or this process used no GPU."
    return [Note("no-cuda-data", NoteLevel.BLOCKING, text, f"Record again with {RECAPTURE}")]


def _lost_work(findings: Findings) -> list[Note]:
    if findings.document.part.excerpt is not None:
        return []  # work queued for longer than the excerpt is outside of it
    calls, kernels = findings.tables["api_calls"], findings.tables["kernels"]
    without_call = kernels.height > 0 and kernels["correlation"].null_count() == kernels.height
    if not _work(findings) or findings.issued.unknown or without_call:
        return []  # kernels cannot be matched with calls
    launches = calls.select("process", "correlation", "start_ns").filter(called_like(calls, _LAUNCHES))
    lost = 0
    for (process,), process_launches in launches.group_by("process"):
        ran = kernels.filter(pl.col("process") == process).select("correlation", "start_ns")
        unmatched = process_launches.join(ran, on="correlation", how="anti")
        lost += unmatched.height - int(still_queued(unmatched, process_launches, ran).sum())
    if not lost:
        return []
    text = f"{lost:,} of {launches.height:,} kernel launches have no kernel in the trace: events were lost."
    level = lost_level(lost / launches.height)
    remedy = f"Record fewer steps, and end the profiler after torch.cuda.synchronize(): {RECAPTURE}"
    return [Note("lost-gpu-work", level, text, remedy)]


def _merged(findings: Findings) -> list[Note]:
    issued = findings.issued
    if not issued.shared:
        return []
    text = f"Traces of {issued.processes:,} processes were merged into this file, in which calls bear the same ids: "
    if issued.unknown:
        text += f"whose call issued {issued.unknown:,} of {_work(findings):,} pieces of GPU work is not known."
        return [Note("merged-traces", NoteLevel.BLOCKING, text, _APART)]
    text += "GPU work was given to them in the order in which they stand there, which agrees with the clock."
    if issued.renumbered:
        text += " GPUs that two of them call by one number are taken to be two."
    return [Note("merged-traces", NoteLevel.WARNING, text, _APART)]


def _missing_host(findings: Findings) -> list[Note]:
    operators, ranges = findings.tables["operators"], findings.tables["ranges"]
    if not _work(findings) or findings.document.part is WORK_ALONE:
        return []
    if not ranges.height:
        text = "No operators and no annotations were recorded: GPU time cannot be attributed to parts of the program."
        return [Note("no-ranges", NoteLevel.WARNING, text, f"Record again with {RECAPTURE}")]
    if operators.height and operators["input_shapes"].null_count() == operators.height:
        text = "Operators were recorded without input shapes: their FLOPs and bytes are unknown."
        return [Note("no-shapes", NoteLevel.INFO, text, f"Record again with {RECAPTURE}")]
    return []


def _devices(findings: Findings) -> list[Note]:
    work = [findings.tables[name]["device"] for name in GPU_TABLES]
    used = set(pl.concat(work).unique().to_list())
    missing = sorted(used - {device.ordinal for device in findings.devices})
    if not missing:
        return []
    gpus = "the GPUs that it used" if len(missing) == len(used) else f"GPU {', '.join(map(str, missing))}"
    text = f"The trace does not describe {gpus}: peaks, occupancy and bandwidth limits are unavailable."
    return [
        Note("no-device-info", NoteLevel.WARNING, text, "Name the GPU: --gpu '<name>', such as H100 PCIe or MI300X")
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
    """What was lost or repaired in reading: cut or damaged text, invalid times, open and repeated events."""
    notes = []
    document, spans = findings.document, findings.spans
    if document.cut_off_bytes is not None:
        lost = f", {document.cut_off_bytes:,} bytes of an incomplete one left out" if document.cut_off_bytes else ""
        text = (
            f"The trace breaks off: {document.events:,} complete events were recovered{lost}; what followed is missing."
        )
        notes.append(Note("truncated-trace", NoteLevel.WARNING, text, _WRITE_AGAIN))
    if document.damaged:
        text = f"{plural(document.damaged, 'place')} in the trace could not be read; the events there are missing."
        notes.append(Note("damaged-events", NoteLevel.WARNING, text, _WRITE_AGAIN))
    if spans.invalid:
        notes.append(invalid_times(spans.invalid, spans.invalid_work, _work(findings), RECAPTURE))
    if spans.still_open:
        events = plural(spans.still_open, "host event was", "host events were")
        text = f"{events} still open when the recording ended, and taken to end with it."
        notes.append(Note("open-ranges", NoteLevel.INFO, text, None))
    if spans.repeated:
        events = plural(spans.repeated, "event occurs", "events occur")
        text = f"{events} in the trace more than once, and counted once."
        notes.append(Note("repeated-events", NoteLevel.INFO, text, None))
    return notes


_CHECKS = (_part, _missing_work, _lost_work, _merged, _missing_host, _devices, _configuration, _clock, _damage)
