"""Facts about an nsys recording: tool and schema version, the GPUs used, what was requested and what went wrong.

The tables read here also hold environment variables, hosts, users, command lines and paths. Each value is therefore
selected by name, and only versions, limits and yes-or-no answers leave this module: diagnostic texts are classified,
never quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warplens.patterns import lazy_pattern
from warplens.profile import Device
from warplens.readers.nsys.tables import Tables
from warplens.readers.sqlite import quoted

_VERSION = lazy_pattern(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Session:
    """Facts of an export about its recording session."""

    tool_version: str | None  #: of the nsys that wrote the export (the recording one may be older)
    schema_version: str | None  #: of the export's tables
    duration_ns: int | None  #: duration of the session, on another clock base than the events
    began_ns: int | None  #: Unix time of its begin; None if the export does not say
    cuda_requested: bool | None  #: whether CUDA tracing was requested; None if the export does not say
    is_wsl: bool  #: whether the capture was made in the Windows Subsystem for Linux
    reports_lost_events: bool  #: whether nsys itself says that events of a process with CUDA calls were dropped
    may_lack_events: bool  #: whether nsys says that some may have been dropped


def session_of(file: Tables, cuda_processes: frozenset[int]) -> Session:
    """Read what the export says about its session."""
    versions = "name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION')"
    meta = dict(_settings(file, "META_DATA_EXPORT", versions) + _settings(file, "EXPORT_META_DATA", versions))
    traced = _settings(file, "META_DATA_CAPTURE", "name LIKE 'PROCESS_%:COLLECT_CUDA_TRACE'")
    # The kernel release of WSL ends in "-microsoft-standard-WSL2".
    releases = _settings(file, "TARGET_INFO_SYSTEM_ENV", "name = 'SoftwareReleaseVersion'")
    warnings = _warnings(file, cuda_processes)
    return Session(
        tool_version=_version(meta.get("EXPORT_PRODUCT_VERSION")),
        schema_version=_version(meta.get("EXPORT_SCHEMA_VERSION")),
        duration_ns=_duration(file),
        began_ns=_began(file),
        cuda_requested=any(answer.strip().lower() == "true" for _, answer in traced) if traced else None,
        is_wsl=any("microsoft" in release.lower() for _, release in releases),
        reports_lost_events=any(map(LOST_EVENTS.search, warnings)),
        may_lack_events=any(map(MAY_LACK_EVENTS.search, warnings)),
    )


def _has(file: Tables, table: str, *columns: str) -> bool:
    return set(columns) <= set(file.tables.get(table, ()))


def _settings(file: Tables, table: str, condition: str) -> list[tuple[str, str]]:
    """Name and value of the settings in a table that fulfil an SQL condition."""
    if not _has(file, table, "name", "value"):
        return []
    rows = file.rows(f"SELECT name, value FROM {table} WHERE {condition}")  # noqa: S608
    return [(_text(name), _text(value)) for name, value in rows]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _version(text: str | None) -> str | None:
    match = _VERSION.match(text or "")
    return match.group() if match else None


def _duration(file: Tables) -> int | None:
    if not _has(file, "ANALYSIS_DETAILS", "duration"):
        return None
    durations = [value for (value,) in file.rows("SELECT duration FROM ANALYSIS_DETAILS") if isinstance(value, int)]
    return max(durations, default=None)


def _began(file: Tables) -> int | None:
    if not _has(file, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return None
    times = file.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    return min((value for (value,) in times if isinstance(value, int) and value > 0), default=None)


#: Message that nsys writes whenever a recording ends before the program, whether events were lost or not.
MAY_LACK_EVENTS = lazy_pattern(r"not all CUDA events might have been collected", re.IGNORECASE)

#: Message that nsys writes when not all event buffers of a process arrived.
LOST_EVENTS = lazy_pattern(
    r"\b(CUDA|CUPTI|GPU)\b.*\b(dropped|lost|overflow\w*|discarded)\b"
    r"|\b(dropped|lost|discarded)\b.*\b(CUDA|CUPTI|GPU|events?|buffers?|records?)\b",
    re.IGNORECASE | re.DOTALL,
)


def _warnings(file: Tables, cuda_processes: frozenset[int]) -> list[str]:
    """The warnings and errors of nsys about one of these processes, or about none."""
    if not _has(file, "DIAGNOSTIC_EVENT", "severity", "text"):
        return []
    process = "globalPid" if _has(file, "DIAGNOSTIC_EVENT", "globalPid") else "NULL"
    query = f"SELECT text, {process} FROM DIAGNOSTIC_EVENT WHERE severity IN (2, 3)"  # noqa: S608  # warnings, errors
    return [
        _text(text)
        for text, global_pid in file.rows(query)
        if not isinstance(global_pid, int) or global_pid == 0 or (global_pid >> 24) & 0xFFFFFF in cuda_processes
    ]


#: Columns of TARGET_INFO_GPU (from 2022 on) by field of `Device`.
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

#: Columns of TARGET_INFO_CUDA_GPU (2021), whose clock and bandwidth are in thousands.
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

    An export lists every adapter of the machine, including integrated graphics and software renderers. Adapters without
    GPU work are left out; if nothing ran at all, those that cannot run CUDA are.
    """
    by_process = _cuda_gpus_2021(file) or _listed_gpus(file)
    ordinals = sorted({ordinal for _, ordinal in used}) or sorted({ordinal for _, ordinal in by_process})
    devices, ambiguous = [], False
    for ordinal in ordinals:
        processes = [process for process, used_ordinal in (used or by_process) if used_ordinal == ordinal]
        candidates = [by_process.get((process, ordinal)) or by_process.get((None, ordinal)) for process in processes]
        models = list(dict.fromkeys(candidate for candidate in candidates if candidate is not None))
        devices.extend(models[:1])
        ambiguous = ambiguous or len(models) > 1
    return tuple(devices), ambiguous


#: GPUs by process (None: any) and CUDA ordinal.
_ByProcess = dict[tuple["int | None", int], Device]


def _cuda_gpus_2021(file: Tables) -> _ByProcess:
    rows = _gpu_rows(file, "TARGET_INFO_CUDA_GPU", _CUDA_GPU_COLUMNS | {"ordinal": "deviceId", "process": "pid"})
    gpus: _ByProcess = {}
    for row in rows:
        for field in _IN_THOUSANDS:
            row[field] = row[field] * 1000 if row.get(field) else None
        device = _device(row["ordinal"], row)
        gpus[row.get("process"), row["ordinal"]] = device
        gpus.setdefault((None, row["ordinal"]), device)
    return gpus


def _listed_gpus(file: Tables) -> _ByProcess:
    extra = {"id": "id", "ordinal": "cuDevice"}
    if "id" not in file.tables.get("TARGET_INFO_GPU", ()):
        extra = {"id": "deviceId"}
    rows = _gpu_rows(file, "TARGET_INFO_GPU", _GPU_COLUMNS | extra)
    # Only NVIDIA's adapters have multiprocessors and a compute capability. Exports that state neither list no others.
    rows = [row for row in rows if row.get("sm_count") or row.get("major") or not ({"sm_count", "major"} & row.keys())]
    gpus: _ByProcess = {}
    for row in rows:
        ordinal = row["ordinal"] if isinstance(row.get("ordinal"), int) else row["id"]
        gpus.setdefault((None, ordinal), _device(ordinal, row))
    by_id = {row["id"]: row for row in rows}
    if _has(file, "TARGET_INFO_CUDA_DEVICE", "gpuId", "cudaId"):
        process_column = "pid" if _has(file, "TARGET_INFO_CUDA_DEVICE", "pid") else "NULL"
        for gpu, ordinal, owner in file.rows(f"SELECT gpuId, cudaId, {process_column} FROM TARGET_INFO_CUDA_DEVICE"):  # noqa: S608
            if gpu in by_id and isinstance(ordinal, int):
                gpus[owner, ordinal] = _device(ordinal, by_id[gpu])
    return gpus


def _gpu_rows(file: Tables, table: str, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of a table of adapters as {field: value}, for the fields whose column exists."""
    available = {field: column for field, column in fields.items() if column in file.tables.get(table, ())}
    key = "id" if "id" in fields else "ordinal"
    if key not in available or "name" not in available:
        return []
    columns = ", ".join(quoted(column) for column in available.values())
    rows = [dict(zip(available, row, strict=True)) for row in file.rows(f"SELECT {columns} FROM {table}")]  # noqa: S608
    return [row for row in rows if isinstance(row[key], int)]


def _device(ordinal: int, row: Mapping[str, Any]) -> Device:
    # Zero means "unknown" in both tables (maxBlocksPerSm of GPUs newer than the exporter).
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


#: CUPTI's `CUpti_ActivityStreamFlag`; the numbers are the same in all versions of nsys.
_STREAM_KINDS: Final = {1: "blocking", 2: "non-blocking", 3: "legacy-default"}


def stream_kinds(file: Tables) -> tuple[tuple[int, int, str], ...]:
    """(process, stream, kind) of each stream; empty for exports that do not record it."""
    if not _has(file, "TARGET_INFO_CUDA_STREAM", "streamId", "processId", "flag"):
        return ()
    rows = file.rows("SELECT processId, streamId, flag FROM TARGET_INFO_CUDA_STREAM")
    return tuple((process, stream, _STREAM_KINDS[flag]) for process, stream, flag in rows if flag in _STREAM_KINDS)
