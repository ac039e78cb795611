"""Measures a step: warm-up, then repetitions until the median is known well enough, each timed by GPU and by host.

Every repetition is a closed loop: the step is issued, and waited for. Its wall time is what a caller sees, launch cost
and waiting included; its GPU time lies between two events of the stream, so that it includes gaps in which the GPU
waits for the host. A time to the next step is not in either.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from warplens.errors import UsageError
from warplens.workloads.clocks import ClockLog, Clocks
from warplens.workloads.marks import Marks, Stamp, is_cuda
from warplens.workloads.plan import Plan
from warplens.workloads.ranges import OFF
from warplens.workloads.samples import summary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warplens.workloads.ranges import Ranges

__all__ = ["Measured", "Plan", "Samples", "measure", "synchronize", "time_once", "undisturbed"]

#: Clocks are read once in so many repetitions: a reading takes tens of microseconds, in which the GPU is idle.
_REPETITIONS_PER_CLOCK_READING: Final = 5

#: Buffers written over to flush the L2 cache, as a multiple of its size; for replacement is not strictly oldest-first.
_FLUSH_FACTOR: Final = 2
#: L2 size where the driver does not tell: more than any GPU has.
_FLUSH_BYTES: Final = 256 * 2**20


@dataclass(frozen=True)
class Measured:
    """Repetitions of a step, as they were timed, in their order; times in nanoseconds.

    Attributes:
        wall_ns: host time of each repetition, from before its first call until the device was done.
        gpu_ns: time between two events in the stream round each; () without a GPU.
        phases_ns: the parts of `gpu_ns` (on a CPU: of `wall_ns`), for steps that mark phases.
        warmup_ns: wall times of the warm-up steps, which are in nothing else.
        stopped: why there are not more: `precision`, `most repetitions` or `time`.
        peak_allocated_bytes: most memory that tensors held during the repetitions, weights included; None without a
            GPU.
        peak_reserved_bytes: most that PyTorch held of the device.
        clocks: readings between repetitions, where NVML gives them.
        rounds: into how many equal parts, one after another, the repetitions fall; between two of them other steps were
            measured (`warplens.workloads.interleaving`).
    """

    wall_ns: tuple[int, ...]
    gpu_ns: tuple[int, ...]
    phases_ns: dict[str, tuple[int, ...]]
    warmup_ns: tuple[int, ...]
    stopped: str
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    clocks: ClockLog | None
    rounds: int = 1


@dataclass
class Samples:
    """Times of repetitions while they are being taken, in nanoseconds."""

    wall: list[int] = field(default_factory=list)
    gpu: list[int] = field(default_factory=list)
    phases: dict[str, list[int]] = field(default_factory=dict)


def measure(
    step: Callable[[], object],
    *,
    device: str | None = None,
    plan: Plan | None = None,
    marks: Marks | None = None,
    ranges: Ranges = OFF,
) -> Measured:
    """Time a step.

    Args:
        step: one repetition; it may return before the GPU is done.
        device: where it runs, as PyTorch names it; by default the GPU if there is one.
        plan: how often, and when it is enough.
        marks: what the step tells its phases to.
        ranges: annotates warm-up and repetitions for a profiler, and scopes one that listens to cudaProfilerStart.

    Raises:
        UsageError: the L2 cache is to be flushed on a device that is no GPU.
    """
    plan = plan or Plan()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if plan.flush_l2 and not is_cuda(device):
        raise UsageError("flushing the L2 cache needs a CUDA device")
    marks = marks or Marks(device)
    flush = _flusher(device) if plan.flush_l2 else None
    clocks = Clocks(device)
    warmup_ns = _warm_up(step, device, plan, marks, ranges)
    samples = Samples()
    if is_cuda(device):
        torch.cuda.reset_peak_memory_stats(device)
    with undisturbed(), ranges.recorded():
        stopped = _repeat(step, device, plan, marks, ranges, flush, clocks, samples)
    return Measured(
        wall_ns=tuple(samples.wall),
        gpu_ns=tuple(samples.gpu),
        phases_ns={phase: tuple(times) for phase, times in samples.phases.items()},
        warmup_ns=warmup_ns,
        stopped=stopped,
        peak_allocated_bytes=torch.cuda.max_memory_allocated(device) if is_cuda(device) else None,
        peak_reserved_bytes=torch.cuda.max_memory_reserved(device) if is_cuda(device) else None,
        clocks=clocks.log(),
    )


def synchronize(device: str) -> None:
    """Wait until the device has done everything that was issued to it."""
    if is_cuda(device):
        torch.cuda.synchronize(device)


def _warm_up(step: Callable[[], object], device: str, plan: Plan, marks: Marks, ranges: Ranges) -> tuple[int, ...]:
    times: list[int] = []
    while len(times) < plan.warmup_steps or sum(times) < plan.warmup_ns:
        with ranges("warmup"):
            start = time.perf_counter_ns()
            marks.begin()
            step()
            synchronize(device)
            times.append(time.perf_counter_ns() - start)
    return tuple(times)


def _repeat(
    step: Callable[[], object],
    device: str,
    plan: Plan,
    marks: Marks,
    ranges: Ranges,
    flush: Callable[[], object] | None,
    clocks: Clocks,
    samples: Samples,
) -> str:
    began = time.perf_counter_ns()
    next_look = plan.least
    while True:
        if flush is not None:
            flush()
            synchronize(device)
        if len(samples.wall) % _REPETITIONS_PER_CLOCK_READING == 0:
            clocks.read()
        with ranges("step"):
            time_once(step, device, marks, samples)
        taken = len(samples.wall)
        if taken >= next_look:
            # Looking after each repetition would stop at the first lucky moment; looks grow apart instead.
            if _known_well_enough(samples.wall, plan):
                return "precision"
            next_look = taken + max(1, taken // 2)
        if taken >= plan.most:
            return "most repetitions"
        if taken >= plan.fewest and time.perf_counter_ns() - began > plan.most_ns:
            return "time"


def time_once(step: Callable[[], object], device: str, marks: Marks, samples: Samples) -> None:
    """One repetition, waited for; its times are added to the samples."""
    marks.begin()
    wall_start = time.perf_counter_ns()
    start = Stamp(device)
    step()
    end = Stamp(device)
    synchronize(device)
    samples.wall.append(time.perf_counter_ns() - wall_start)
    if is_cuda(device):
        samples.gpu.append(end.ns_since(start))
    for phase, spent in marks.phases_ns(start).items():
        samples.phases.setdefault(phase, []).append(spent)


def _known_well_enough(wall_ns: list[int], plan: Plan) -> bool:
    half = summary(wall_ns, plan.confidence).half_width_share
    return half is not None and half <= plan.precision


def _flusher(device: str) -> Callable[[], object]:
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) * _FLUSH_FACTOR or _FLUSH_BYTES
    buffer = torch.empty(size, dtype=torch.int8, device=device)
    overwrite: Callable[[], object] = buffer.zero_
    return overwrite


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside the block: it would stop the host at random, as `timeit` knows."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
