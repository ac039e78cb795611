"""`Device`: what a GPU can do at most, as far as the profile says so."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Device"]


@dataclass(frozen=True)
class Device:
    """A GPU that the profiled program used. A limit that the profile does not state is None, never a guess."""

    ordinal: int
    name: str
    chip: str | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    clock_hz: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    l2_bytes: int | None = None
    max_warps_per_sm: int | None = None
    max_blocks_per_sm: int | None = None
    max_threads_per_block: int | None = None
    registers_per_sm: int | None = None
    shared_bytes_per_sm: int | None = None
