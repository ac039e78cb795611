"""Every number that a rule compares with, in one place: a score over known cases can refit them without a rule changed.

None of them was fitted to a file. Each has its reason beside it; where a limit could lie anywhere in a range, a round
number in the middle of it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from warplens.analysis.hostpace import SMALL_COPY_BYTES


def _limit(value: float, why: str) -> Any:
    return field(default=value, metadata={"why": why})


@dataclass(frozen=True)
class Thresholds:
    """The limits of all rules. Shares are 0–1, of the wall time where nothing else is said."""

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
        "Where no cause is worth a warning, the GPU may be idle for as long as two such causes together and is "
        "called busy.",
    )
    roof_headroom_share: float = _limit(
        0.15,
        "Of the window, idle or above the practical roof of its kernels: below this, faster kernels of the kind bring "
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
        "Kernels that move data take up to half of the time of healthy networks run operator by operator. Only "
        "beyond two thirds are they what limits the program.",
    )
    small_kernels_busy_share: float = _limit(
        0.70,
        "Kernels are called small in a window where the GPU is busy, or about to start queued work, this much of the "
        "time; below, what keeps it idle comes first, whatever the size of the kernels.",
    )
    unsure_warning_ceiling: float = _limit(
        1.25,
        "A ceiling with a wide error needs a wider margin to be worth a warning: that of small grids, for a part "
        "of a kernel's time is latency, which more blocks do not shorten; and that of launches where the host may "
        "well be ahead of the GPU without the profiler.",
    )
    normal_waits_per_step: float = _limit(
        1.5,
        "One wait at the end of a step is how programs are timed and losses read. Beyond it, waits are inside the "
        "step.",
    )
    launches_behind_wait: float = _limit(
        8.0,
        "After a wait the GPU is short of work for a handful of launches, until the host has got ahead again.",
    )
    readback_bytes: int = _limit(
        SMALL_COPY_BYTES,
        "A read-back of this few bytes costs the wait, not the transfer: 64 KiB take 3–7 µs over PCIe. The time budget "
        "counts the same copies as waits.",
    )
    bandwidth_kernel_ns: int = _limit(
        10_000,
        "Kernels shorter than this do not reach the memory bandwidth: at 4.8 TB/s, filling and draining the GPU "
        "takes as long as moving the 10 MB that 2 µs are worth.",
    )
    optimizer_launches_per_step: float = _limit(
        100.0,
        "An optimizer that launches fewer kernels per step is fused, or has few parameters.",
    )
    optimizer_single_tensor_share: float = _limit(
        0.5,
        "Launches of foreach and fused optimizers are multi-tensor kernels. Where more than half of the launches "
        "are not, the optimizer updates one tensor at a time.",
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
        "A trace in which less of the work was launched by recorded calls cannot say why the GPU waited.",
    )
    unexplained_factor: float = _limit(
        2.0,
        "A named cause ranks below unexplained pauses where those cost this many times as much.",
    )
    specific_share: float = _limit(
        0.25,
        "Share of what a host that launches instantly would save: from here on, what slows the host down is named "
        "before its launch rate.",
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
        "Of the pipe's or memory's peak rate, from which on a kernel is limited by it (Nsight Compute's "
        "SOLBottleneck).",
    )


#: The limits that `diagnose` uses unless told otherwise.
DEFAULTS = Thresholds()

#: Why each of them is what it is.
REASONS = {each.name: each.metadata["why"] for each in fields(Thresholds)}
