"""How long the GPU works on one call: events round each, issued back to back, so that the host's pace stays outside.

`warplens.workloads.measurement` times a step as its caller sees it: issued, and waited for. A kernel is judged by its
own time, and one that takes 20 µs would drown in the cost of its launch. So the calls here are not waited for: between
two of them the L2 cache is overwritten, which keeps the GPU busy while the host issues the next. Without a GPU the wall
clock is taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.workloads.samples import Drift, Summary, drift, median_interval, summary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timing", "TimingPlan", "time_calls"]

#: Bytes overwritten to flush L2: twice that of the largest one sold (Blackwell's 126 MB).
_FLUSH_BYTES: Final = 256 * 2**20

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True)
class TimingPlan:
    """How often a call is timed, and when it is enough.

    Attributes:
        fewest, most: samples.
        precision: wanted half-width of the median's interval, as a share of the median.
        confidence: of that interval, 0 to 1.
        budget_s: wall time after which no further batch of samples is begun; the fewest are always taken.
        warmup_s: wall time of the calls before the first sample; at least three calls.
        flush_l2: overwrite the L2 cache before each sample; GPU only.
    """

    fewest: int = 30
    most: int = 1000
    precision: float = 0.01
    confidence: float = 0.95
    budget_s: float = 1.0
    warmup_s: float = 0.05
    flush_l2: bool = True


@dataclass(frozen=True)
class Timing:
    """Samples of one call's duration and what they say.

    Attributes:
        samples_ns: every sample in the order taken, none dropped.
        summary: median with its interval, percentiles, outliers.
        drift: whether times rose or fell meanwhile; None with too few samples.
        warmup_calls: calls before the first sample.
        clock: "cuda-event" or "wall".
        launch: "eager": the host issued each call.
        flushed_l2: L2 was overwritten before each sample.
    """

    samples_ns: tuple[int, ...]
    summary: Summary
    drift: Drift | None
    warmup_calls: int
    clock: str
    launch: str
    flushed_l2: bool


def time_calls(call: Callable[[], object], device: str, plan: TimingPlan | None = None) -> Timing:
    """Times `call` until its median is known well enough, or the most samples or the time budget is reached.

    Args:
        call: issues the work on the current stream; must not wait for it.
        device: as PyTorch names it.
        plan: how often; the default plan if None.
    """
    plan = plan or TimingPlan()
    on_gpu = device.startswith("cuda")
    take = _event_samples if on_gpu else _wall_samples
    flush = plan.flush_l2 and on_gpu
    warmup_calls = _warm_up(call, plan.warmup_s, on_gpu)
    began = time.perf_counter()
    samples = take(call, plan.fewest, flush)
    while len(samples) < plan.most and time.perf_counter() - began < plan.budget_s and not _known(samples, plan):
        # Looking after each sample would stop at the first lucky moment; looks grow apart instead.
        samples += take(call, min(len(samples), plan.most - len(samples)), flush)
    return Timing(
        samples_ns=tuple(samples),
        summary=summary(samples, plan.confidence),
        drift=drift(samples),
        warmup_calls=warmup_calls,
        clock="cuda-event" if on_gpu else "wall",
        launch="eager",
        flushed_l2=flush,
    )


def _known(samples: list[int], plan: TimingPlan) -> bool:
    ordered = sorted(samples)
    interval = median_interval(ordered, plan.confidence)
    return interval is not None and interval[1] - interval[0] <= 2 * plan.precision * ordered[len(ordered) // 2]


def _warm_up(call: Callable[[], object], seconds: float, on_gpu: bool) -> int:
    import torch  # noqa: PLC0415

    began, calls = time.perf_counter(), 0
    while calls < 3 or time.perf_counter() - began < seconds:
        call()
        calls += 1
        if on_gpu:
            torch.cuda.synchronize()
    return calls


def _event_samples(call: Callable[[], object], count: int, flush_l2: bool) -> list[int]:
    import torch  # noqa: PLC0415

    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    scratch = torch.empty(_FLUSH_BYTES if flush_l2 else 0, dtype=torch.int8, device="cuda")
    for before, after in events:
        if flush_l2:
            scratch.zero_()
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [round(before.elapsed_time(after) * _NS_PER_MS) for before, after in events]


def _wall_samples(call: Callable[[], object], count: int, flush_l2: bool) -> list[int]:
    del flush_l2
    samples = []
    for _ in range(count):
        began = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - began)
    return samples
