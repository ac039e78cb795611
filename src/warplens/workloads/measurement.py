"""Timing of steps: a single one until its median is known, or several in turns; with readings of the GPU's clocks."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from warplens.errors import UsageError
from warplens.workloads.registry import OFF, Plan, Program, Ranges
from warplens.workloads.samples import is_known

#: Bit in NVML's clocks-event reasons → reason for which the driver lowers clocks under load.
_HELD_DOWN: Final = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}


def open_nvml() -> Any:
    """The initialised NVML module; None if it is missing or fails."""
    try:
        import pynvml
    except ImportError:
        return None
    with suppress(Exception):  # pynvml raises its own errors where a driver or a permission is missing
        pynvml.nvmlInit()
        return pynvml
    return None


@dataclass(frozen=True)
class ClockLog:
    """Clock readings between repetitions."""

    sm_mhz: tuple[int, ...] = ()
    memory_mhz: tuple[int, ...] = ()
    highest_sm_mhz: int | None = None  #: maximum SM clock of the device
    held_down: tuple[str, ...] = ()  #: reasons for lowered clocks, at any reading


@dataclass
class Clocks:
    """Reads clocks on request, and silently does nothing where they cannot be read."""

    device: str
    _nvml: Any = None
    _handle: Any = None
    _sm: list[int] = field(default_factory=list)
    _memory: list[int] = field(default_factory=list)
    _reasons: int = 0

    def __post_init__(self) -> None:
        if torch.device(self.device).type != "cuda" or (nvml := open_nvml()) is None:
            return
        # By UUID: NVML numbers all GPUs of the machine, PyTorch only those in CUDA_VISIBLE_DEVICES.
        with suppress(Exception):
            uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
            self._handle, self._nvml = nvml.nvmlDeviceGetHandleByUUID(uuid), nvml

    def read(self) -> None:
        """Read the current clocks."""
        if self._nvml is None:
            return
        nvml, handle = self._nvml, self._handle
        with suppress(Exception):
            self._sm.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            self._memory.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
            self._reasons |= nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def log(self) -> ClockLog | None:
        """All readings; None if there are none."""
        if not self._sm:
            return None
        highest = None
        with suppress(Exception):
            highest = int(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_SM))
        return ClockLog(
            sm_mhz=tuple(self._sm),
            memory_mhz=tuple(self._memory),
            highest_sm_mhz=highest,
            held_down=tuple(reason for bit, reason in _HELD_DOWN.items() if self._reasons & bit),
        )


# --- Measurement of a single step ------------------------------------------------------------------------------------
# Every repetition is a closed loop: the step is issued, and waited for. Its wall time is that seen by a caller, with
# launch cost and waiting; its GPU time lies between two events of the stream, so that it includes gaps in which the GPU
# waits for the host. Neither includes the time between steps.

#: Clocks are read once in this many repetitions: a reading takes tens of microseconds, in which the GPU is idle.
_REPETITIONS_PER_CLOCK_READING: Final = 5

#: Size of the buffer written to flush the L2 cache, as a multiple of its size, since replacement is not strictly LRU.
_FLUSH_FACTOR: Final = 2
#: Size of that buffer where the driver does not state the size of L2: larger than that of any GPU.
_FLUSH_BYTES: Final = 256 * 2**20


@dataclass(frozen=True)
class Measured:
    """Times of the repetitions of a step, in order; in nanoseconds."""

    wall_ns: tuple[int, ...]  #: host time of each repetition, from before its first call until the device was done
    gpu_ns: tuple[int, ...]  #: time between two events in the stream round each; () without a GPU
    phases_ns: dict[str, tuple[int, ...]]  #: the parts of `gpu_ns` (on a CPU: of `wall_ns`), for steps that mark phases
    warmup_ns: tuple[int, ...]  #: wall times of the warm-up steps, which are in no other field
    stopped: str  #: why the measurement ended: `precision`, `most repetitions` or `time`
    #: peak memory of tensors during the repetitions, weights included; None without a GPU
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None  #: peak device memory reserved by PyTorch
    clocks: ClockLog | None  #: readings between repetitions, where NVML is available
    #: number of equal, consecutive parts of the repetitions, between which other steps were measured
    rounds: int = 1


@dataclass(eq=False)
class _Series:
    """A step that is being timed, with its times so far, in nanoseconds."""

    step: Callable[[], object]
    device: str
    marks: Marks
    ranges: Ranges
    clocks: Clocks = field(init=False)
    warmup: list[int] = field(default_factory=list)
    wall: list[int] = field(default_factory=list)
    gpu: list[int] = field(default_factory=list)
    phases: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clocks = Clocks(self.device)

    def warm_up(self) -> None:
        """Run the step, wait for it, and add its time to those of the warm-up."""
        with self.ranges("warmup"):
            start = time.perf_counter_ns()
            self.marks.begin()
            self.step()
            synchronize(self.device)
            self.warmup.append(time.perf_counter_ns() - start)

    def repeat(self) -> None:
        """Run one repetition, wait for it, and add its times."""
        with self.ranges("step"):
            self.marks.begin()
            wall_start = time.perf_counter_ns()
            start = Stamp(self.device)
            self.step()
            end = Stamp(self.device)
            synchronize(self.device)
            self.wall.append(time.perf_counter_ns() - wall_start)
            if is_cuda(self.device):
                self.gpu.append(end.ns_since(start))
            for phase, spent in self.marks.phases_ns(start).items():
                self.phases.setdefault(phase, []).append(spent)

    def measured(self, stopped: str, peaks: tuple[int | None, int | None] = (None, None), rounds: int = 1) -> Measured:
        """The times as a `Measured`; the peaks are of allocated and of reserved memory."""
        phases = {phase: tuple(times) for phase, times in self.phases.items()}
        times = tuple(self.wall), tuple(self.gpu), phases, tuple(self.warmup)
        return Measured(*times, stopped, *peaks, self.clocks.log(), rounds)


def measure(
    step: Callable[[], object],
    *,
    device: str | None = None,
    plan: Plan | None = None,
    marks: Marks | None = None,
    ranges: Ranges = OFF,
) -> Measured:
    """Time a step, which may return before the GPU is done; by default on the GPU if there is one.

    Raises:
        UsageError: the plan flushes the L2 cache, and the device is not a GPU.
    """
    plan = plan or Plan()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if plan.flush_l2 and not is_cuda(device):
        raise UsageError("flushing the L2 cache needs a CUDA device")
    flush = _flusher(device) if plan.flush_l2 else None
    series = _Series(step, device, marks or Marks(device), ranges)
    while len(series.warmup) < plan.warmup_steps or sum(series.warmup) < plan.warmup_ns:
        series.warm_up()
    if is_cuda(device):
        torch.cuda.reset_peak_memory_stats(device)
    with undisturbed(), ranges.recorded():
        stopped = _repeat(series, plan, flush)
    peaks: tuple[int | None, int | None] = (None, None)
    if is_cuda(device):
        peaks = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return series.measured(stopped, peaks)


def synchronize(device: str) -> None:
    """Wait until the device has done everything that was issued to it."""
    if is_cuda(device):
        torch.cuda.synchronize(device)


def _repeat(series: _Series, plan: Plan, flush: Callable[[], object] | None) -> str:
    """Repeat the step until the plan is fulfilled; why it ended."""
    began = time.perf_counter_ns()
    next_look = plan.least
    while True:
        if flush is not None:
            flush()
            synchronize(series.device)
        if len(series.wall) % _REPETITIONS_PER_CLOCK_READING == 0:
            series.clocks.read()
        series.repeat()
        taken = len(series.wall)
        if taken >= next_look:
            # Checked at growing distances: a check after each repetition would stop at the first lucky one.
            if is_known(series.wall, plan.confidence, plan.precision):
                return "precision"
            next_look = taken + max(1, taken // 2)
        if taken >= plan.most:
            return "most repetitions"
        if taken >= plan.fewest and time.perf_counter_ns() - began > plan.most_ns:
            return "time"


def _flusher(device: str) -> Callable[[], object]:
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) * _FLUSH_FACTOR or _FLUSH_BYTES
    buffer = torch.empty(size, dtype=torch.int8, device=device)
    overwrite: Callable[[], object] = buffer.zero_
    return overwrite


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context without garbage collection, which would stop the host at random times (as in `timeit`)."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# --- Measurement of several steps in turns, so that changes of the machine affect all of them alike ------------------
# If steps are measured one after another, a host that slows down for some seconds makes one of them look slow: all its
# repetitions agree with each other, and are wrong. In turns, each round runs a few repetitions of every step, in random
# order. The medians of the rounds give the uncertainty of a step's median, and two steps are compared round by round.

#: Untimed steps before a turn, since the caches hold code and data of another step.
_STEPS_BEFORE_A_TURN: Final = 2


def measure_in_turns(
    programs: Sequence[Program],
    *,
    device: str,
    rounds: int,
    per_round: int,
    warmup_steps: int = 5,
    ranges: Ranges = OFF,
) -> list[Measured]:
    """Time the steps of programs in turns: for each its repetitions, round by round.

    Peaks of memory are None, since all steps are in memory at once.
    """
    series = [_Series(program.step, device, program.marks or Marks(device), ranges) for program in programs]
    for one in series:
        for _ in range(warmup_steps):
            one.warm_up()
    order, draw = list(series), random.Random(0)  # noqa: S311  no secret
    with undisturbed(), ranges.recorded():
        for _ in range(rounds):
            draw.shuffle(order)
            for one in order:
                one.clocks.read()
                for _ in range(_STEPS_BEFORE_A_TURN):
                    one.warm_up()
                for _ in range(per_round):
                    one.repeat()
    return [one.measured("most repetitions", rounds=rounds) for one in series]


def is_cuda(device: str) -> bool:
    """Whether the device is a GPU."""
    return str(torch.device(device).type) == "cuda"


class Stamp:
    """A point in time: an event of the current stream on a GPU, else the host's clock."""

    def __init__(self, device: str) -> None:
        self._event: Any = torch.cuda.Event(enable_timing=True) if is_cuda(device) else None
        if self._event is not None:
            self._event.record()
        else:
            self._host_ns = time.perf_counter_ns()

    def ns_since(self, earlier: Stamp) -> int:
        """Nanoseconds from an earlier stamp to this one; both must have been reached.

        The resolution of CUDA events is about half a microsecond.
        """
        if self._event is not None:
            milliseconds: float = earlier._event.elapsed_time(self._event)
            return round(milliseconds * 1e6)
        return self._host_ns - earlier._host_ns


class Marks:
    """Records the end of each phase of a step, from which the durations of the phases follow."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._ends: list[tuple[str, Stamp]] = []

    def begin(self) -> None:
        """Start a step, discarding the previous one."""
        self._ends = []

    def end(self, phase: str) -> None:
        """End a phase; the next one begins here."""
        self._ends.append((phase, Stamp(self.device)))

    def phases_ns(self, start: Stamp) -> dict[str, int]:
        """Duration of each phase of the last step, which the device must have finished."""
        durations: dict[str, int] = {}
        for phase, stamp in self._ends:
            durations[phase] = durations.get(phase, 0) + stamp.ns_since(start)
            start = stamp
        return durations
