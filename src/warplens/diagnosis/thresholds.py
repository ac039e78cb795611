"""The limits that several rules use, with their reasons; they can be changed without changing a rule.

None was fitted to a single profile. If a limit could lie anywhere in a range, a round number in the middle was taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from warplens.analysis.hostpace import SMALL_COPY_BYTES


def _limit(value: float, why: str) -> Any:
    return field(default=value, metadata={"why": why})


@dataclass(frozen=True)
class Thresholds:
    """The limits of all rules. Shares are 0–1, of the wall time unless noted otherwise."""

    raise_ceiling: float = _limit(
        1.02,
        "A cause worth less than 2 % of the window cannot be distinguished from the spread of its steps.",
    )
    warning_ceiling: float = _limit(
        1.10,
        "A gain of a tenth or more is worth a change of code: it is several times the difference between repeated "
        "measurements.",
    )
    critical_ceiling: float = _limit(
        1.50,
        "At a gain of half or more, nothing else about the program matters more.",
    )
    busy_share: float = _limit(
        0.90,
        "A GPU that works this much of the time is saturated as far as a trace can show: gaps of 1–2 µs between "
        "kernels of one stream alone cost programs with kernels of 20 µs as much as the rest.",
    )
    quiet_busy_share: float = _limit(
        0.80,
        "If no cause is worth a warning, a GPU that is idle for as long as two such causes together is still called "
        "busy.",
    )
    roof_headroom_share: float = _limit(
        0.15,
        "Of the window, idle time and time above the practical roof of its kernels: below this, faster kernels gain "
        "less than most changes do.",
    )
    known_work_share: float = _limit(
        0.80,
        "Share of the busy time. Unknown work is assumed to be at its roof: if less than this much is known, a "
        "small distance from the roof shows nothing.",
    )
    dominant_share: float = _limit(
        0.50,
        "Work that takes more than this share of a busy GPU's time is its main work.",
    )
    bandwidth_share: float = _limit(
        2 / 3,
        "Kernels that move data take up to half of the time of healthy networks run operator by operator. They "
        "limit the program only beyond two thirds.",
    )
    small_kernels_busy_share: float = _limit(
        0.70,
        "Small kernels matter if the GPU is busy, or about to start queued work, for this much of the time; below, "
        "the causes of idle time come first.",
    )
    unsure_warning_ceiling: float = _limit(
        1.25,
        "Uncertain gains need a wider margin for a warning: those of small grids, because a part of a kernel's time "
        "is latency, which more blocks do not shorten; and those of launches if the host may be ahead of the GPU "
        "without the profiler.",
    )
    normal_waits_per_step: float = _limit(
        1.5,
        "Programs that time steps or read losses wait once at the end of a step. More waits are inside the step.",
    )
    launches_behind_wait: float = _limit(
        8.0,
        "After a wait, the GPU is short of work for a handful of launches, until the host is ahead again.",
    )
    readback_bytes: int = _limit(
        SMALL_COPY_BYTES,
        "The cost of so small a read-back is the wait, not the transfer: 64 KiB take 3–7 µs over PCIe. The time budget "
        "counts the same copies as waits.",
    )
    bandwidth_kernel_ns: int = _limit(
        10_000,
        "Shorter kernels do not reach the memory bandwidth: at 4.8 TB/s, filling and draining the GPU takes 2 µs, in "
        "which 10 MB could be moved.",
    )
    optimizer_launches_per_step: float = _limit(
        100.0,
        "An optimizer that launches fewer kernels per step is fused, or has few parameters.",
    )
    optimizer_single_tensor_share: float = _limit(
        0.5,
        "Foreach and fused optimizers launch multi-tensor kernels. If more than half of the launches are others, the "
        "optimizer updates one tensor at a time.",
    )
    optimizer_saved_share: float = _limit(
        1 - 7 / 33,
        "A fused AdamW moves parameter, gradient and two moments in, and three of them out: 7 accesses, where the "
        "unfused one makes 33. The rest of the time of memory-bound optimizer kernels can be saved.",
    )
    allocations_per_step: float = _limit(
        1.0,
        "Fewer allocations per step are the rare growth of a cache, not churn.",
    )
    attributed_share: float = _limit(
        0.5,
        "With fewer causes recorded, a trace cannot show why the GPU waited.",
    )
    unexplained_factor: float = _limit(
        2.0,
        "A named cause ranks below unexplained pauses that cost this many times as much.",
    )
    specific_share: float = _limit(
        0.25,
        "Share of the savings of instant launches: from here on, a cause that slows down the host is named before its "
        "launch rate.",
    )
    aborted_share: float = _limit(
        0.5,
        "From this share of aborted steps on, the window is not the workload.",
    )
    counters_share: float = _limit(
        0.3,
        "Counters that cover less of the kernel time say little about the window.",
    )
    counters_complete_share: float = _limit(
        0.8,
        "Counters that cover this much of it represent the window.",
    )
    roof_share: float = _limit(
        0.6,
        "From this share of the peak rate on, a pipe or the memory limits a kernel (Nsight Compute's SOLBottleneck).",
    )


#: The default limits of `diagnose`.
DEFAULTS = Thresholds()

#: Limit → its reason.
REASONS = {limit.name: limit.metadata["why"] for limit in fields(Thresholds)}
