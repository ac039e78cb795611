"""What stands around the events of a Kineto trace: GPUs, rank, the clock's zero.

Only the values asked for here are taken. Traces also hold users, hosts, job names, paths and whatever the program
added; none of that leaves this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from warplens.profile import Device

__all__ = ["devices_of", "epoch_of", "is_rocm", "placement_of"]

#: Absolute times lie between 2015 and 2100; others count from the start of the machine or of the program.
_EARLIEST_EPOCH_NS = 1_420_070_400 * 10**9
_LATEST_EPOCH_NS = 4_102_444_800 * 10**9


def is_rocm(header: Mapping[str, Any]) -> bool:
    """Whether the trace was recorded on AMD GPUs, as far as what stands around the events tells."""
    if any(key in header for key in ("roctracer_version", "hip_runtime_version", "hip_driver_version")):
        return True
    return any(entry.get("warpSize") == 64 or "AMD" in str(entry.get("name", "")) for entry in _described(header))


def devices_of(header: Mapping[str, Any], used: Iterable[int]) -> tuple[Device, ...]:
    """The GPUs that work ran on, or all that are described where none ran.

    Args:
        header: what stands around the events.
        used: ordinals of all GPU work.
    """
    rocm = is_rocm(header)
    described = {
        entry["id"]: _device(entry["id"], entry, rocm)
        for entry in _described(header)
        if isinstance(entry.get("id"), int)
    }
    wanted = sorted(set(used)) or sorted(described)
    return tuple(described[ordinal] for ordinal in wanted if ordinal in described)


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
        name=name if isinstance(name, str) and name else ("AMD GPU" if rocm else "GPU"),
        # ROCm puts the numbers of its own architectures here (9.4 for gfx942), which mean something else.
        compute_capability=(major, minor) if major and isinstance(minor, int) and not rocm else None,
        sm_count=_positive(entry, "numSms"),
        memory_bytes=_positive(entry, "totalGlobalMem"),
        max_warps_per_sm=threads // warp if threads and warp else None,
        max_threads_per_block=_positive(entry, "maxThreadsPerBlock"),
        registers_per_sm=_positive(entry, "regsPerMultiprocessor"),
        shared_bytes_per_sm=_positive(entry, "sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"),
    )


def placement_of(header: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Rank and number of ranks of the process; None where the trace does not say."""
    told = header.get("distributedInfo")
    if not isinstance(told, dict):
        return None, None
    rank, size = told.get("rank"), told.get("world_size")
    return (
        rank if isinstance(rank, int) and rank >= 0 else None,
        size if isinstance(size, int) and size > 0 else None,
    )


def epoch_of(header: Mapping[str, Any], zero_ns: int | None) -> int | None:
    """Unix time of the first event; None where the trace's times are of another clock.

    Until 2024 times were absolute; since then they count from `baseTimeNanoseconds`, itself a Unix time.
    """
    if zero_ns is None:
        return None
    base = header.get("baseTimeNanoseconds", 0)
    epoch = (base if isinstance(base, int) else 0) + zero_ns
    return epoch if _EARLIEST_EPOCH_NS <= epoch <= _LATEST_EPOCH_NS else None
