"""What faults, evidence and roofs are called in the document on counters, and what to do about each fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warplens.report import format as fmt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FAULT_TITLES", "REMEDIES", "evidence_text", "kernel_count", "launch_count"]

FAULT_TITLES: Final = {
    "small-grid": "grid too small",
    "uncoalesced": "uncoalesced access",
    "bank-conflicts": "bank conflicts",
    "divergence": "divergence",
    "partial-warps": "partly empty warps",
    "occupancy": "low occupancy",
    "tail": "partial last wave",
    "spills": "register spills",
}

REMEDIES: Final = {
    "small-grid": "Give it more blocks: split the work finer, batch more of it, or run it beside other kernels.",
    "uncoalesced": "Let neighbouring threads touch neighbouring addresses: structures of arrays, or a tile in shared "
    "memory.",
    "bank-conflicts": "Pad or swizzle the tile in shared memory, so that the threads of a warp meet different banks.",
    "divergence": "Sort or group the work, so that the threads of a warp take the same way and as many steps.",
    "partial-warps": "Use blocks of a multiple of 32 threads.",
    "occupancy": "Relieve the limiter as far as the next step says, or give each thread more independent work.",
    "tail": "Fit the grid to whole waves, use smaller blocks, or a persistent kernel that shares out the rest.",
    "spills": "Use fewer live values a thread, a smaller unroll, or a looser limit on registers (launch bounds).",
}

#: What a number of the evidence is, and how it is written.
_EVIDENCE: Final[dict[str, tuple[str, fmt.Kind]]] = {
    "compute_share": ("compute {} of peak", "share"),
    "memory_share": ("memory {} of peak", "share"),
    "waves": ("{} waves", "number"),
    "theoretical_share": ("theoretical occupancy {}", "share"),
    "achieved_share": ("achieved occupancy {}", "share"),
    "next_share": ("{} after the next step", "share"),
    "grid_blocks": ("{} blocks", "count"),
    "sm_count": ("{} multiprocessors", "count"),
    "global_wasted_share": ("{} of the sectors not needed", "share"),
    "global_load_sectors_per_request": ("{} sectors a load", "number"),
    "global_store_sectors_per_request": ("{} sectors a store", "number"),
    "global_load_bytes_per_sector": ("{} of 32 B used of a loaded sector", "number"),
    "global_store_bytes_per_sector": ("{} of 32 B used of a stored sector", "number"),
    "shared_conflict_share": ("{} of shared-memory passes are conflicts", "share"),
    "shared_conflict_ways": ("{} passes where one would do", "number"),
    "conflict_cycles_share": ("conflicts keep L1 busy for {} of the time", "share"),
    "threads_per_instruction": ("{} of 32 threads active", "number"),
    "full_warp_threads": ("{} of 32 threads in a warp", "number"),
    "uniform_branch_share": ("{} of branches uniform", "share"),
    "divergent_branches": ("{} divergent branches", "count"),
    "tail_share": ("the last wave takes {} of the time", "share"),
    "spill_requests": ("{} spill requests", "count"),
    "local_requests": ("{} local-memory requests", "count"),
}


def evidence_text(evidence: Sequence[Mapping[str, Any]] | None) -> str:
    """The numbers behind a statement, in one line."""
    parts = []
    for item in evidence or ():
        words, kind = _EVIDENCE.get(item["name"], (f"{item['name']} {{}}", "number"))
        parts.append(words.format(fmt.value(item["value"], kind)))
    return ", ".join(parts)


def kernel_count(kernels: int) -> str:
    """`1 kernel`, `9 kernels`."""
    return f"{fmt.count(kernels)} kernel{'' if kernels == 1 else 's'}"


def launch_count(launches: int) -> str:
    """`1 launch`, `9 launches`."""
    return f"{fmt.count(launches)} launch{'' if launches == 1 else 'es'}"
