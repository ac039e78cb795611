"""When everything happens in a run of `training_step.py`: a host that issues calls, and a GPU that works through them.

The host runs ahead of the GPU where kernels are long and falls behind it where they are short; it stops where it waits
for the GPU, which then drains. Each stream does its work in order. All times are int64 nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.training_step import KERNELS, CallKind, Step, training_step

__all__ = ["Calls", "Ranges", "simulate"]

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

#: Host time of an API call, and host time before it; medians in µs by kind of call (the kernel launch first).
_CALL_US = np.array([2.6, 3.4, 4.8, 5.2, 4.1, 0.9, 1.5])
_BEFORE_US = np.array([13.0, 9.0, 30.0, 20.0, 12.0, 4.0, 5.0])
_AUTOGRAD_PACE = 0.5  # autograd's C++ thread needs less time per call than the interpreter does
_LEAST_BEFORE_NS = 1_000  # two calls are never closer: there is room for range edges between them
_DATA_LOADER_US = 900.0  # the host's pause between steps
_LAUNCH_LATENCY_NS = 1_400  # from the end of the API call to the earliest begin on an idle GPU
_KERNEL_GAP_NS = 850  # between two kernels of a busy stream
_WAKE_UP_NS = 3_500  # from the end of the GPU's work to the end of the waiting API call
_COPY_US = {CallKind.MEMSET: 0.9, CallKind.COPY_IN: 7.0, CallKind.COPY_OUT: 1.6, CallKind.COPY_WITHIN: 3.0}

#: A range begins before its first call and ends after its last one; outer ranges by more than inner ones.
_RANGE_EDGE_NS = np.array([440, 320, 200, 80])


@dataclass(frozen=True)
class _Plan:
    """Calls before they have times; the columns of `Step` as arrays."""

    kind: Int64s
    kernel: Int64s
    autograd: Booleans
    communication: Booleans

    def __len__(self) -> int:
        return len(self.kind)

    def part(self, rows: Int64s) -> _Plan:
        return _Plan(self.kind[rows], self.kernel[rows], self.autograd[rows], self.communication[rows])


@dataclass(frozen=True)
class Calls:
    """API calls and the GPU work that each issues, one entry per call; times are −1 where a call issues no work."""

    kind: Int64s
    kernel: Int64s
    autograd: Booleans
    communication: Booleans
    start: Int64s
    end: Int64s
    work_start: Int64s
    work_end: Int64s


@dataclass(frozen=True)
class Ranges:
    """NVTX ranges in the order in which they begin; `name` is a position in `names`."""

    start: Int64s
    end: Int64s
    name: Int64s
    names: list[str]


@dataclass
class _Clock:
    """The state of the simulation: the times at which the host may continue and each stream is free."""

    host: int = 3_000_000_000
    compute: int = 0
    communication: int = 0


def simulate(kernels: int, seed: int) -> tuple[Calls, Ranges]:
    """A run with exactly this many kernels: as many whole steps as fit, and before them the model's initialisation."""
    random = np.random.default_rng(seed)
    step = training_step()
    columns = (step.kind, step.kernel, step.autograd, step.communication)
    plan = _Plan(*(np.array(column) for column in columns))
    steps, left_over = divmod(kernels, int(np.sum(plan.kind == CallKind.KERNEL)))
    clock = _Clock()
    parts: list[Calls] = []
    if left_over:
        normal = list(KERNELS).index("normal")
        nothing = np.zeros(left_over, dtype=np.bool_)
        kinds = np.full(left_over, CallKind.KERNEL)
        parts.append(_run(_Plan(kinds, np.full(left_over, normal), nothing, nothing), clock, random))
    # The host goes on after a wait only when the GPU is done, so the calls up to each wait are simulated together.
    segments = [plan.part(rows) for rows in np.split(np.arange(len(plan)), np.array(step.waits) + 1) if len(rows)]
    for _ in range(steps):
        clock.host += int(random.lognormal(np.log(_DATA_LOADER_US), 0.3) * 1_000)
        parts += [_run(segment, clock, random) for segment in segments]
    calls = _joined(parts)
    return calls, _ranges(step, calls, left_over + np.arange(steps, dtype=np.int64) * len(plan))


def _run(plan: _Plan, clock: _Clock, random: np.random.Generator) -> Calls:
    """Simulates calls of which only the last may wait for the GPU, and advances the clock."""
    pace = np.where(plan.autograd, _AUTOGRAD_PACE, 1.0)
    lasts = _spread(_CALL_US[plan.kind] * pace, 0.25, random)
    before = np.maximum(_spread(_BEFORE_US[plan.kind] * pace, 0.45, random), _LEAST_BEFORE_NS)
    end = clock.host + np.cumsum(lasts + before)
    start = end - lasts

    duration = _spread(_work_us(plan), 0.08, random)
    compute = np.flatnonzero((duration > 0) & ~plan.communication)
    work_start = np.full(len(plan), -1, dtype=np.int64)
    work_end = np.full(len(plan), -1, dtype=np.int64)
    work_start[compute] = _queue(end[compute] + _LAUNCH_LATENCY_NS, duration[compute], clock.compute)
    work_end[compute] = work_start[compute] + duration[compute]
    clock.compute = int(work_end[compute[-1]])
    for row in np.flatnonzero(plan.communication):  # a few per step: they wait for the gradients issued before them
        gradients = work_end[compute[np.searchsorted(compute, row) - 1]]
        work_start[row] = max(end[row] + _LAUNCH_LATENCY_NS, gradients, clock.communication) + _KERNEL_GAP_NS
        work_end[row] = work_start[row] + duration[row]
        clock.communication = int(work_end[row])

    if plan.kind[-1] == CallKind.SYNCHRONIZE:
        end[-1] = max(end[-1], max(clock.compute, clock.communication) + _WAKE_UP_NS)
    clock.host = int(end[-1])
    return Calls(plan.kind, plan.kernel, plan.autograd, plan.communication, start, end, work_start, work_end)


def _queue(ready: Int64s, duration: Int64s, free: int) -> Int64s:
    """Start of each piece of work of one stream: when it is ready and the previous one has ended.

    `start[i] = max(ready[i], start[i − 1] + duration[i − 1] + gap)`, solved for all `i` at once with a running maximum.
    """
    busy = duration + _KERNEL_GAP_NS
    ahead = np.cumsum(busy) - busy
    return ahead + np.maximum.accumulate(np.maximum(ready, free + _KERNEL_GAP_NS) - ahead)


def _work_us(plan: _Plan) -> Floats:
    """Typical GPU time of the work that each call issues; 0 for a call that issues none."""
    other = np.array([_COPY_US.get(kind, 0.0) for kind in range(len(_CALL_US))])
    microseconds = np.array([kernel.microseconds for kernel in KERNELS.values()])
    return np.where(plan.kind == CallKind.KERNEL, microseconds[plan.kernel], other[plan.kind])


def _spread(median_us: Floats, sigma: float, random: np.random.Generator) -> Int64s:
    """Log-normal times in ns around medians in µs."""
    return (median_us * 1_000 * random.lognormal(0.0, sigma, len(median_us))).astype(np.int64)


def _ranges(step: Step, calls: Calls, starts: Int64s) -> Ranges:
    names, levels, firsts, lasts = zip(*step.ranges, strict=True)
    edge = _RANGE_EDGE_NS[np.array(levels)]
    begin = (calls.start[starts[:, None] + np.array(firsts)] - edge).ravel()
    end = (calls.end[starts[:, None] + np.array(lasts)] + edge).ravel()
    order = np.argsort(begin, kind="stable")
    return Ranges(begin[order], end[order], np.tile(np.arange(len(names)), len(starts))[order], list(names))


def _joined(parts: Sequence[Calls]) -> Calls:
    return Calls(*(np.concatenate([getattr(part, name) for part in parts]) for name in Calls.__annotations__))
