"""Where an nsys export came from: tool and schema version, the GPUs used, what was asked for and what went wrong.

The tables read here also hold environment variables, hosts, users, command lines and paths. Each value is asked for by
its own name, and only versions, limits and yes-or-no answers leave this module: a diagnostic text is classified, never
quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.patterns import lazy_pattern
from warplens.profile import Device, Note, NoteLevel
from warplens.profile.trace import worst_first
from warplens.readers.lost import LOST_SHARE_WARNING, lost_level, still_queued
from warplens.readers.nsys.tables import Tables
from warplens.readers.sqlite import quoted

_VERSION = lazy_pattern(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Session:
    """What an export says about its own making.

    Attributes:
        tool_version: of the nsys that wrote the export (the recording one may be older).
        schema_version: of the export's tables.
        duration_ns: how long the session lasted; it is measured on another clock base than the events.
        cuda_requested: whether tracing CUDA was asked for; None where the export does not say.
        is_wsl: whether the capture was made in the Windows Subsystem for Linux.
        reports_lost_events: whether nsys itself says that events of a process with CUDA calls were dropped.
        may_lack_events: whether it says that some might have been.
    """

    tool_version: str | None
    schema_version: str | None
    duration_ns: int | None
    cuda_requested: bool | None
    is_wsl: bool
    reports_lost_events: bool
    may_lack_events: bool


def session_of(file: Tables, cuda_processes: frozenset[int]) -> Session:
    """What the export says about its own making."""
    meta = _settings(file, "META_DATA_EXPORT") | _settings(file, "EXPORT_META_DATA")
    return Session(
        tool_version=_version(meta.get("EXPORT_PRODUCT_VERSION")),
        schema_version=_version(meta.get("EXPORT_SCHEMA_VERSION")),
        duration_ns=_duration(file),
        cuda_requested=_cuda_requested(file),
        is_wsl=_is_wsl(file),
        reports_lost_events=_warns(file, LOST_EVENTS, cuda_processes),
        may_lack_events=_warns(file, MAY_LACK_EVENTS, cuda_processes),
    )


def _has(file: Tables, table: str, *columns: str) -> bool:
    return set(columns) <= set(file.tables.get(table, ()))


def _settings(file: Tables, table: str) -> dict[str, str]:
    if not _has(file, table, "name", "value"):
        return {}
    query = f"SELECT name, value FROM {table} WHERE name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')"  # noqa: S608
    return {_text(name): _text(value) for name, value in file.rows(query)}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _version(text: str | None) -> str | None:
    found = _VERSION.match(text or "")
    return found.group() if found else None


def _duration(file: Tables) -> int | None:
    if not _has(file, "ANALYSIS_DETAILS", "duration"):
        return None
    found = [value for (value,) in file.rows("SELECT duration FROM ANALYSIS_DETAILS") if isinstance(value, int)]
    return max(found, default=None)


def _cuda_requested(file: Tables) -> bool | None:
    if not _has(file, "META_DATA_CAPTURE", "name", "value"):
        return None
    query = "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE 'PROCESS_%:COLLECT_CUDA_TRACE'"
    answers = [_text(value).strip().lower() for (value,) in file.rows(query)]
    return "true" in answers if answers else None


def _is_wsl(file: Tables) -> bool:
    if not _has(file, "TARGET_INFO_SYSTEM_ENV", "name", "value"):
        return False
    # The kernel release of WSL ends in "-microsoft-standard-WSL2".
    query = "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'SoftwareReleaseVersion'"
    return any("microsoft" in _text(value).lower() for (value,) in file.rows(query))


#: What nsys writes wherever a recording ends before the program, whether it lost events or not.
MAY_LACK_EVENTS = lazy_pattern(r"not all CUDA events might have been collected", re.IGNORECASE)

#: What nsys writes when the event buffers of a process did not all arrive.
LOST_EVENTS = lazy_pattern(
    r"\b(CUDA|CUPTI|GPU)\b.*\b(dropped|lost|overflow\w*|discarded)\b"
    r"|\b(dropped|lost|discarded)\b.*\b(CUDA|CUPTI|GPU|events?|buffers?|records?)\b",
    re.IGNORECASE | re.DOTALL,
)


def _warns(file: Tables, pattern: re.Pattern[str], cuda_processes: frozenset[int]) -> bool:
    """Whether a warning or error of nsys about one of these processes matches."""
    if not _has(file, "DIAGNOSTIC_EVENT", "severity", "text"):
        return False
    process = "globalPid" if _has(file, "DIAGNOSTIC_EVENT", "globalPid") else "NULL"
    query = f"SELECT text, {process} FROM DIAGNOSTIC_EVENT WHERE severity IN (2, 3)"  # noqa: S608  # warnings, errors
    return any(
        pattern.search(_text(text))
        for text, owner in file.rows(query)
        if not isinstance(owner, int) or owner == 0 or (owner >> 24) & 0xFFFFFF in cuda_processes
    )


#: Columns of TARGET_INFO_GPU (2022 on) for the fields of a `Device`.
_GPU_COLUMNS = {
    "name": "name",
    "chip": "chipName",
    "major": "computeMajor",
    "minor": "computeMinor",
    "sm_count": "smCount",
    "clock_hz": "clockRate",
    "memory_bytes": "totalMemory",
    "memory_bandwidth_bytes_per_s": "memoryBandwidth",
    "l2_bytes": "l2CacheSize",
    "max_warps_per_sm": "maxWarpsPerSm",
    "max_blocks_per_sm": "maxBlocksPerSm",
    "max_threads_per_block": "maxThreadsPerBlock",
    "registers_per_sm": "maxRegistersPerSm",
    "shared_bytes_per_sm": "maxShmemPerSm",
}

#: The same in TARGET_INFO_CUDA_GPU (2021), whose clock and bandwidth are in thousands.
_CUDA_GPU_COLUMNS = {
    "name": "name",
    "major": "computeCapabilityMajor",
    "minor": "computeCapabilityMinor",
    "sm_count": "numMultiprocessors",
    "clock_hz": "coreClockRate",
    "memory_bytes": "globalMemorySize",
    "memory_bandwidth_bytes_per_s": "globalMemoryBandwidth",
    "l2_bytes": "l2CacheSize",
    "max_warps_per_sm": "maxWarpsPerMultiprocessor",
    "max_blocks_per_sm": "maxBlocksPerMultiprocessor",
    "max_threads_per_block": "maxThreadsPerBlock",
    "registers_per_sm": "maxRegistersPerMultiprocessor",
    "shared_bytes_per_sm": "maxSharedMemoryPerMultiprocessor",
}
_IN_THOUSANDS = ("clock_hz", "memory_bandwidth_bytes_per_s")


def devices_of(file: Tables, used: Sequence[tuple[int, int]]) -> tuple[tuple[Device, ...], bool]:
    """The GPUs that the program used, and whether two processes use different models under the same ordinal.

    An export lists every adapter of the machine, integrated graphics and software renderers included. Those that no
    work ran on are left out; where nothing ran at all, those that cannot run CUDA.
    """
    by_process = _cuda_gpus_2021(file) or _listed_gpus(file)
    wanted = sorted({ordinal for _, ordinal in used}) or sorted({ordinal for _, ordinal in by_process})
    devices, ambiguous = [], False
    for ordinal in wanted:
        owners = [process for process, of in (used or by_process) if of == ordinal]
        candidates = [by_process.get((owner, ordinal)) or by_process.get((None, ordinal)) for owner in owners]
        found = list(dict.fromkeys(candidate for candidate in candidates if candidate is not None))
        devices.extend(found[:1])
        ambiguous = ambiguous or len(found) > 1
    return tuple(devices), ambiguous


_ByProcess = dict[tuple["int | None", int], Device]


def _cuda_gpus_2021(file: Tables) -> _ByProcess:
    rows = _gpu_rows(file, "TARGET_INFO_CUDA_GPU", _CUDA_GPU_COLUMNS | {"ordinal": "deviceId", "process": "pid"})
    found: _ByProcess = {}
    for row in rows:
        for field in _IN_THOUSANDS:
            row[field] = row[field] * 1000 if row.get(field) else None
        device = _device(row["ordinal"], row)
        found[row.get("process"), row["ordinal"]] = device
        found.setdefault((None, row["ordinal"]), device)
    return found


def _listed_gpus(file: Tables) -> _ByProcess:
    extra = {"id": "id", "ordinal": "cuDevice"}
    if "id" not in file.tables.get("TARGET_INFO_GPU", ()):
        extra = {"id": "deviceId"}
    rows = _gpu_rows(file, "TARGET_INFO_GPU", _GPU_COLUMNS | extra)
    # Only NVIDIA's adapters have multiprocessors and a compute capability. Exports that state neither list no others.
    rows = [row for row in rows if row.get("sm_count") or row.get("major") or not ({"sm_count", "major"} & row.keys())]
    found: _ByProcess = {}
    for row in rows:
        ordinal = row["ordinal"] if isinstance(row.get("ordinal"), int) else row["id"]
        found.setdefault((None, ordinal), _device(ordinal, row))
    by_id = {row["id"]: row for row in rows}
    if _has(file, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"):
        process = "pid" if _has(file, "TARGET_INFO_CUDA_DEVICE", "pid") else "NULL"
        for gpu, ordinal, owner in file.rows(f"SELECT gpuId, cudaId, {process} FROM TARGET_INFO_CUDA_DEVICE"):  # noqa: S608
            if gpu in by_id and isinstance(ordinal, int):
                found[owner, ordinal] = _device(ordinal, by_id[gpu])
    return found


def _gpu_rows(file: Tables, table: str, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of a table of adapters as {field: value} for those fields whose column it has."""
    available = {field: column for field, column in fields.items() if column in file.tables.get(table, ())}
    key = "id" if "id" in fields else "ordinal"
    if key not in available or "name" not in available:
        return []
    columns = ", ".join(quoted(column) for column in available.values())
    rows = [dict(zip(available, row, strict=True)) for row in file.rows(f"SELECT {columns} FROM {table}")]  # noqa: S608
    return [row for row in rows if isinstance(row[key], int)]


def _device(ordinal: int, row: Mapping[str, Any]) -> Device:
    # Zero stands for "not known" in both tables (maxBlocksPerSm of GPUs newer than the exporter).
    limits = {
        field: value
        for field, value in row.items()
        if field in Device.__dataclass_fields__ and field not in ("name", "chip", "ordinal")
        if isinstance(value, int) and value > 0
    }
    major, minor = row.get("major"), row.get("minor")
    return Device(
        ordinal=ordinal,
        name=_text(row["name"]),
        chip=_text(row["chip"]) if row.get("chip") else None,
        compute_capability=(major, minor) if isinstance(major, int) and isinstance(minor, int) and major > 0 else None,
        **limits,
    )


# --- What an nsys capture cannot tell, found while it is read ---------------------------------------------------------
# each finding a `Note` with the way to a better capture.

Int64s = npt.NDArray[np.int64]

#: CUPTI numbers all calls of a process in sequence, and nsys leaves out those that say little: in the complete captures
#: looked at 1 to 10 numbers a recorded call, and 615 at most between two. So long a silence, while ranges go on, is a
#: trace that stopped.
SILENT_CALLS = 10_000

#: The newest schema that the reader was tested with, first two parts.
TESTED_SCHEMA = (3, 25)

RECAPTURE = "nsys profile --trace=cuda,nvtx --output=profile python your_program.py"

_LAUNCHES = r"^(cudaLaunch(Cooperative)?Kernel|cuLaunch(Cooperative)?Kernel|cuda?GraphLaunch|cuda?Mem(cpy|set)\w*Async)"
_COPIES_AND_FILLS = r"^cuda?Mem"
_CAPTURE_BEGIN = r"^cu(da)?StreamBeginCapture"
_CAPTURE_END = r"^cu(da)?StreamEndCapture"


@dataclass(frozen=True)
class Findings:
    """What the reader knows when all tables are there.

    Attributes:
        tables: the frames of the trace by name.
        session: what the export says about its own making.
        has_devices: whether the export describes the GPUs.
        ambiguous_devices: whether two processes use different models under one ordinal.
        dropped_rows: rows left out because their times make no sense.
        open_ranges: ranges that were still open when the capture ended.
        repeated_calls: API calls that the export holds twice.
        unnamed: events whose name the export does not hold.
        replaced: names with bytes that are not UTF-8.
    """

    tables: Mapping[str, pl.DataFrame]
    session: Session
    has_devices: bool
    ambiguous_devices: bool
    dropped_rows: int
    open_ranges: int
    repeated_calls: int
    unnamed: int
    replaced: int


def notes_of(findings: Findings) -> tuple[Note, ...]:
    """All notes about a capture, those that limit the answers most first."""
    return worst_first(note for check in _CHECKS for note in check(findings))


def _gpu_work(findings: Findings) -> list[pl.DataFrame]:
    return [findings.tables[name] for name in ("kernels", "copies", "memsets", "graph_launches")]


def _missing_cuda(findings: Findings) -> list[Note]:
    if any(frame.height for frame in _gpu_work(findings)):
        if not findings.tables["api_calls"].height:
            text = "No CUDA API calls were recorded: launches, queue times and the ranges around them are unknown."
            return [Note("no-api-calls", NoteLevel.WARNING, text, f"Record again: {RECAPTURE}")]
        return []
    session = findings.session
    if findings.tables["api_calls"].height:
        text = "CUDA API calls were recorded, but no GPU work: no kernels, copies or memsets."
        remedy = f"Record again with an nsys at least as new as the program's CUDA: {RECAPTURE}"
        return [Note("no-gpu-work", NoteLevel.BLOCKING, text, remedy)]
    if session.is_wsl:
        text = "The capture holds no CUDA data. It was made in WSL2, where tracing CUDA depends on the Windows driver."
        remedy = f"Record on native Linux or Windows, or update the Windows driver and nsys, then: {RECAPTURE}"
    elif session.cuda_requested is False:
        text = "The capture holds no CUDA data: tracing CUDA was not asked for."
        remedy = f"Record again: {RECAPTURE}"
    else:
        text = "The capture holds no CUDA data: the program made no CUDA call, or nsys could not trace it."
        remedy = f"Check that the program uses the GPU, then record again with a current nsys: {RECAPTURE}"
    return [Note("no-cuda-data", NoteLevel.BLOCKING, text, remedy)]


def _lost_work(findings: Findings) -> list[Note]:
    calls = findings.tables["api_calls"]
    if not calls.height or not any(frame.height for frame in _gpu_work(findings)):
        return []
    lost, launches = _launches_without_work(findings)
    silent = _silent_calls(findings)
    if silent:
        text = (
            f"CUDA tracing stopped for a while: about {silent:,} CUDA calls left no trace while ranges went on, "
            f"and {findings.tables['kernels'].height:,} kernels were recorded in all."
        )
        level = NoteLevel.BLOCKING
    elif lost:
        text = (
            f"{lost:,} of {launches:,} launches have no kernel, copy or graph execution in the capture: events "
            "were lost."
        )
        level = lost_level(lost / launches)
    else:
        return []
    remedy = f"Record again with an nsys at least as new as the program's CUDA, for a shorter time: {RECAPTURE}"
    return [Note("lost-gpu-work", level, text, remedy)]


def _launches_without_work(findings: Findings) -> tuple[int, int]:
    """How many successful launches have no work, those still queued at the end left out; and how many there are.

    Copies and fills count only where kernels are lost as well: those of no byte never reach the GPU, and the calls do
    not tell how many bytes were asked for.
    """
    calls = findings.tables["api_calls"]
    failed = calls["return_value"].fill_null(0) != 0
    calls = calls.filter(~failed) if failed.any() else calls
    launches = calls.select("process", "thread", "start_ns", "correlation", "name").filter(_called(calls, _LAUNCHES))
    launches = launches.with_columns(is_kernel=~_called(launches, _COPIES_AND_FILLS)).drop("name")
    lost = 0
    processes = launches["process"].unique().to_list()
    for process in processes:
        own = launches.filter(pl.col("process") == process) if len(processes) > 1 else launches
        work = pl.concat(
            frame.filter(pl.col("process") == process).select("correlation", "start_ns", "end_ns")
            for frame in _gpu_work(findings)
        )
        matched = _contained(own["correlation"].to_numpy(), work["correlation"].drop_nulls().to_numpy())
        if not matched.all():
            unmatched = own.filter(~matched)
            unmatched = unmatched.filter(~_while_capturing(unmatched, calls.filter(pl.col("process") == process)))
            unmatched = unmatched.filter(~still_queued(unmatched, own, work))
            kernels_ran = own.filter(matched)["is_kernel"].any()
            lost += unmatched.height if unmatched["is_kernel"].any() or not kernels_ran else 0
    return lost, launches.height


def _called(calls: pl.DataFrame, pattern: str) -> pl.Series:
    """For each call whether the function's name matches; the names are tested once each."""
    names = calls["name"]
    categories = pl.Series(getattr(names.dtype, "categories", ()), dtype=pl.String)
    matching = categories.str.contains(pattern).arg_true().to_list()
    return names.to_physical().is_in(matching)


def _contained(wanted: Int64s, present: Int64s) -> npt.NDArray[np.bool_]:
    """`np.isin`, by a table of flags where the numbers allow it (they count calls), at a tenth of the time."""
    top = int(max(wanted.max(initial=0), present.max(initial=0)))
    if min(wanted.min(initial=0), present.min(initial=0)) < 0 or top > 2**28:
        return np.isin(wanted, present)
    flags = np.zeros(top + 1, np.bool_)
    flags[present] = True
    return flags[wanted]


def _while_capturing(launches: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """For each launch whether it only added a node to a graph: its thread was between begin and end of a capture."""
    begins = calls.filter(_called(calls, _CAPTURE_BEGIN)).select("thread", "start_ns", step=pl.lit(1))
    ends = calls.filter(_called(calls, _CAPTURE_END)).select("thread", "start_ns", step=pl.lit(-1))
    edges = pl.concat([begins, ends]).sort("start_ns")
    edges = edges.select("thread", "start_ns", open=pl.col("step").cum_sum().over("thread"))
    ordered = launches.with_row_index("row").sort("start_ns")
    joined = ordered.join_asof(edges, on="start_ns", by="thread", strategy="backward", check_sortedness=False)
    return joined.sort("row")["open"].fill_null(0) > 0


def _silent_calls(findings: Findings) -> int:
    """How many calls were numbered but not recorded in silences during which ranges began."""
    silent = 0
    calls = findings.tables["api_calls"].select("process", "start_ns", "end_ns", "correlation")
    ranges = findings.tables["ranges"]
    for process in calls["process"].unique().to_list() if ranges.height else ():
        own = calls.filter(pl.col("process") == process)
        if not own["correlation"].is_sorted():
            own = own.sort("correlation", maintain_order=True)
        ids = own["correlation"].to_numpy()
        begins = np.sort(ranges.filter(pl.col("process") == process)["start_ns"].to_numpy())
        for place in np.flatnonzero(np.diff(ids) > SILENT_CALLS).tolist():
            before, after = own["end_ns"][place], own["start_ns"][place + 1]
            if np.searchsorted(begins, after) > np.searchsorted(begins, before):
                silent += int(ids[place + 1] - ids[place])
    return silent


def _hidden_graphs(findings: Findings) -> list[Note]:
    graphs = findings.tables["graph_launches"].height
    if not graphs:
        return []
    text = (
        f"{graphs:,} CUDA graph executions were traced as a whole: they count as busy, but the kernels inside are not "
        "recorded."
    )
    remedy = f"Record the nodes of the graphs: {RECAPTURE.replace(' --output', ' --cuda-graph-trace=node --output')}"
    return [Note("graph-level-tracing", NoteLevel.WARNING, text, remedy)]


def _missing_ranges(findings: Findings) -> list[Note]:
    if findings.tables["ranges"].height or not any(frame.height for frame in _gpu_work(findings)):
        return []
    text = "No NVTX ranges were recorded: GPU time cannot be attributed to steps, phases or layers of the program."
    remedy = f"Add ranges (torch.cuda.nvtx.range, or PyTorch's emit_nvtx) and trace them: {RECAPTURE}"
    return [Note("no-ranges", NoteLevel.WARNING, text, remedy)]


def _session(findings: Findings) -> list[Note]:
    notes = []
    session = findings.session
    if session.reports_lost_events or session.may_lack_events:
        text = "nsys itself warns that not all CUDA events of the program may have been collected."
        remedy = "If numbers look incomplete, record a shorter part of the program"
        # A mere possibility is refuted where the launches have their work.
        lost, launches = _launches_without_work(findings)
        doubtful = session.reports_lost_events or not launches or lost >= LOST_SHARE_WARNING * launches
        level = NoteLevel.WARNING if doubtful else NoteLevel.INFO
        notes.append(Note("dropped-events", level, text, remedy))
    if session.is_wsl and any(frame.height for frame in _gpu_work(findings)):
        text = "The capture was made in WSL2: launches pass through the Windows driver and take longer than on Linux."
        notes.append(Note("wsl", NoteLevel.INFO, text, None))
    parts = (session.schema_version or "0").split(".")
    if tuple(map(int, (*parts, "0")[:2])) > TESTED_SCHEMA:
        text = f"The export's schema {session.schema_version} is newer than those that the reader was tested with."
        remedy = "Check the counts against nsys stats before relying on them"
        notes.append(Note("untested-schema", NoteLevel.INFO, text, remedy))
    return notes


def _devices(findings: Findings) -> list[Note]:
    used = any(frame.height for frame in _gpu_work(findings))
    if used and not findings.has_devices:
        text = "The export does not describe its GPUs: peaks, occupancy and bandwidth limits are unavailable."
        remedy = "Export the original report again with a current nsys: nsys export --type sqlite profile.nsys-rep"
        return [Note("no-device-info", NoteLevel.WARNING, text, remedy)]
    if findings.ambiguous_devices:
        text = "Processes use different GPU models under the same number: the limits shown are those of the first."
        return [Note("ambiguous-devices", NoteLevel.WARNING, text, "Record one process at a time")]
    return []


def _repairs(findings: Findings) -> list[Note]:
    notes = []
    if findings.dropped_rows:
        text = f"{findings.dropped_rows:,} events were left out: they have no start, or end before they start."
        notes.append(Note("invalid-times", NoteLevel.WARNING, text, f"If many are missing, record again: {RECAPTURE}"))
    if findings.open_ranges:
        text = (
            f"{findings.open_ranges:,} ranges were still open when the capture ended; their end is taken to be "
            "the end of the recording."
        )
        notes.append(Note("open-ranges", NoteLevel.INFO, text, None))
    if findings.repeated_calls:
        text = f"{findings.repeated_calls:,} API calls are recorded a second time with their backtrace; counted once."
        notes.append(Note("repeated-api-calls", NoteLevel.INFO, text, None))
    if findings.unnamed:
        text = f"{findings.unnamed:,} names are referred to, but not in the export; they are shown by number."
        remedy = "Export the capture again: nsys export --type sqlite profile.nsys-rep"
        notes.append(Note("unnamed-events", NoteLevel.WARNING, text, remedy))
    if findings.replaced:
        text = f"{findings.replaced:,} names hold bytes that are not UTF-8; they are shown as �."
        notes.append(Note("undecodable-names", NoteLevel.INFO, text, None))
    return notes


_CHECKS = (_missing_cuda, _lost_work, _hidden_graphs, _missing_ranges, _session, _devices, _repairs)


#: CUPTI's `CUpti_ActivityStreamFlag`, which no version of nsys has numbered otherwise.
_STREAM_KINDS: Final = {1: "blocking", 2: "non-blocking", 3: "legacy-default"}


def stream_kinds(file: Tables) -> tuple[tuple[int, int, str], ...]:
    """How each stream of a process was made; nothing for exports that do not say."""
    if not _has(file, "TARGET_INFO_CUDA_STREAM", "streamId", "processId", "flag"):
        return ()
    rows = file.rows("SELECT processId, streamId, flag FROM TARGET_INFO_CUDA_STREAM")
    return tuple((process, stream, _STREAM_KINDS[flag]) for process, stream, flag in rows if flag in _STREAM_KINDS)
