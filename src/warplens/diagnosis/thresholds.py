"""Every number that a rule compares with, in one place: a score over known cases can refit them without a rule changed.

None of them was fitted to a file. Each has its reason beside it; where a limit could lie anywhere in a range, a round
number in the middle of it was taken.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULTS", "Thresholds"]


@dataclass(frozen=True)
class Thresholds:
    """The limits of all rules. Shares are 0–1, of the wall time where nothing else is said."""

    #: A cause that could not make the window 2 % faster cannot be told from the spread of its steps.
    raise_ceiling: float = 1.02

    #: From a tenth on, a gain is worth a change of code: it is several times what repeated measurements differ by.
    warning_ceiling: float = 1.10

    #: From half as fast again on, nothing else about the program matters more.
    critical_ceiling: float = 1.50

    #: A GPU that works this much of the time is saturated as far as a trace can tell: gaps of 1–2 µs between kernels of
    #: one stream alone cost programs with kernels of 20 µs as much as the rest.
    busy_share: float = 0.90

    #: Where no cause is worth a warning, the GPU may be idle for as long as two such causes together and is called
    #: busy.
    quiet_busy_share: float = 0.80

    #: What a busy GPU spends more than this on is what it does.
    dominant_share: float = 0.50

    #: Kernels that move data take up to half of the time of healthy networks run operator by operator. Only beyond two
    #: thirds are they what limits the program.
    bandwidth_share: float = 2 / 3

    #: The time that the GPU waits for launches without a profiler, of that under one. Medians of programs that were
    #: also timed without: nsys 0.5 (0.25 to 0.8: it adds some 8 µs to a launch), PyTorch's profiler 0.4 (0.16 to 0.6).
    unprofiled_share_nsys: float = 0.5
    unprofiled_share_torch: float = 0.4

    #: Kernels are called small in a window where the GPU is busy this much of the time; below, what keeps it idle comes
    #: first, whatever the size of the kernels.
    small_kernels_busy_share: float = 0.70

    #: A ceiling with a wide error needs a wider margin to be worth a warning: that of small grids, for a part of a
    #: kernel's time is latency, which more blocks do not shorten; and that of launches where the host may well be ahead
    #: of the GPU without the profiler.
    unsure_warning_ceiling: float = 1.25

    #: One wait at the end of a step is how programs are timed and losses read. Beyond it, waits are inside the step.
    normal_waits_per_step: float = 1.5

    #: After a wait the GPU is short of work for a handful of launches, until the host has got ahead again.
    launches_behind_wait: float = 8.0

    #: A read-back of so few bytes costs the wait, not the transfer: 16 KiB take 1.3 µs on PCIe 3.
    readback_bytes: int = 16 * 1024

    #: Kernels shorter than this do not reach the memory bandwidth: at 4.8 TB/s, filling and draining the GPU takes as
    #: long as moving the 10 MB that 2 µs are worth.
    bandwidth_kernel_ns: int = 10_000

    #: An optimizer that launches fewer kernels a step is fused, or has few parameters.
    optimizer_launches_per_step: float = 100.0

    #: Launches of foreach and fused optimizers are multi-tensor kernels. Where more than half of the launches are not,
    #: the optimizer goes from tensor to tensor.
    optimizer_single_tensor_share: float = 0.5

    #: A fused AdamW moves parameter, gradient and two moments in, and three of them out: 7 accesses, where the unfused
    #: one makes 33. The rest of the time of memory-bound optimizer kernels can be saved.
    optimizer_saved_share: float = 1 - 7 / 33

    #: Fewer allocations a step are the rare growth of a cache, not churn.
    allocations_per_step: float = 1.0

    #: A trace of which less was launched by recorded calls cannot say why the GPU waited.
    attributed_share: float = 0.5

    #: A named cause stands behind pauses that nothing explains where those cost this many times as much.
    unexplained_factor: float = 2.0

    #: From this share of aborted steps on, the window is not the workload.
    aborted_share: float = 0.5

    #: Counters that stand for less of the kernel time say little about the window.
    counters_share: float = 0.3

    #: Counters that stand for this much of it speak for the window.
    counters_complete_share: float = 0.8

    #: Of the pipe's or memory's peak rate, from which on a kernel is limited by it (Nsight Compute's SOLBottleneck).
    roof_share: float = 0.6


#: The limits that `diagnose` uses unless told otherwise.
DEFAULTS = Thresholds()
