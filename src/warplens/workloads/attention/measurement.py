"""How long the GPU works on one call: events round each, issued ahead of the GPU, whatever the pace of the host.

`warplens.workloads.measurement` times a step as its caller sees it: issued, and waited for. A kernel is judged by its
own time, and one that takes 20 µs would drown in the cost of its launch. So the calls here are not waited for, and
before each the GPU is kept busy for longer than the host takes to issue it: all of its work is queued when its clock
starts. Without a GPU the wall clock is taken.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from warplens.errors import UsageError
from warplens.workloads.attention.problem import (
    KERNELS,
    AttentionKernel,
    AttentionShape,
    BackendRefusedError,
    Check,
    Mode,
    attention_flops,
    attention_inputs,
    compared,
)
from warplens.workloads.registry import Plan, Setting
from warplens.workloads.samples import Drift, Summary, drift, median_interval, summary

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warplens.workloads.settings import AttentionCell


#: Bytes overwritten to flush L2: twice that of the largest one sold (Blackwell's 126 MB).
_FLUSH_BYTES: Final = 256 * 2**20

_NS_PER_MS: Final = 1_000_000

#: How much longer the GPU is kept busy than the slowest of some calls took to issue: the host's pace varies.
_HEAD_START: Final = 2.0
_ISSUED: Final = 5

#: GPU cycles in a nanosecond, no fewer than any GPU has: at a lower clock the head start is longer.
_CYCLES_PER_NS: Final = 2.0


#: How often a kernel is timed unless stated; of a plan the `least`, `most`, `precision`, `confidence`, times and
#: `flush_l2` hold. A kernel takes microseconds: it is repeated more often than a step, and known better.
KERNEL_PLAN: Final = Plan(warmup_ns=50_000_000, most=1000, precision=0.01, most_ns=1_000_000_000, flush_l2=True)


@dataclass(frozen=True)
class Timing:
    """Samples of one call's duration and what they say."""

    samples_ns: tuple[int, ...]  #: every sample in the order taken, none dropped
    summary: Summary  #: median with its interval, percentiles, outliers
    drift: Drift | None  #: whether times rose or fell meanwhile; None with too few samples
    warmup_calls: int  #: calls before the first sample
    clock: str  #: "cuda-event" or "wall"
    flushed_l2: bool  #: L2 was overwritten before each sample


def time_calls(call: Callable[[], object], device: str, plan: Plan = KERNEL_PLAN) -> Timing:
    """Times `call` until its median is known well enough, or the most samples or the time budget is reached.

    Args:
        call: issues the work on the current stream; must not wait for it.
        plan: how often; at least three calls warm up, and the least number of samples is always taken.
    """
    on_gpu = device.startswith("cuda")
    flush = plan.flush_l2 and on_gpu
    warmup_calls = _warm_up(call, plan.warmup_ns, on_gpu)
    head_start = _issue_ns(call) * _HEAD_START if on_gpu else 0.0

    def take(count: int) -> list[int]:
        return _event_samples(call, count, flush, head_start) if on_gpu else _wall_samples(call, count)

    began = time.perf_counter_ns()
    samples = take(plan.least)
    while len(samples) < plan.most and time.perf_counter_ns() - began < plan.most_ns and not _known(samples, plan):
        # Looking after each sample would stop at the first lucky moment; looks grow apart instead.
        samples += take(min(len(samples), plan.most - len(samples)))
    return Timing(
        samples_ns=tuple(samples),
        summary=summary(samples, plan.confidence),
        drift=drift(samples),
        warmup_calls=warmup_calls,
        clock="cuda-event" if on_gpu else "wall",
        flushed_l2=flush,
    )


def _known(samples: list[int], plan: Plan) -> bool:
    ordered = sorted(samples)
    interval = median_interval(ordered, plan.confidence)
    return interval is not None and interval[1] - interval[0] <= 2 * plan.precision * ordered[len(ordered) // 2]


def _warm_up(call: Callable[[], object], warmup_ns: int, on_gpu: bool) -> int:
    import torch

    began, calls = time.perf_counter_ns(), 0
    while calls < 3 or time.perf_counter_ns() - began < warmup_ns:
        call()
        calls += 1
        if on_gpu:
            torch.cuda.synchronize()
    return calls


def _issue_ns(call: Callable[[], object]) -> int:
    """How long the host takes to issue the call at most, of a few."""
    import torch

    longest = 0
    for _ in range(_ISSUED):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        call()
        longest = max(longest, time.perf_counter_ns() - began)
    torch.cuda.synchronize()
    return longest


def _event_samples(call: Callable[[], object], count: int, flush_l2: bool, head_start_ns: float) -> list[int]:
    """Durations by events; the GPU spins for `head_start_ns` before each, while the host issues the call."""
    import torch

    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    scratch = torch.empty(_FLUSH_BYTES if flush_l2 else 0, dtype=torch.int8, device="cuda")
    for before, after in events:
        if flush_l2:
            scratch.zero_()
        torch.cuda._sleep(int(head_start_ns * _CYCLES_PER_NS))  # no public call waits on the GPU
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [round(before.elapsed_time(after) * _NS_PER_MS) for before, after in events]


def _wall_samples(call: Callable[[], object], count: int) -> list[int]:
    samples = []
    for _ in range(count):
        began = time.perf_counter_ns()
        call()
        samples.append(time.perf_counter_ns() - began)
    return samples


Status = Literal["ok", "incorrect", "unsupported", "out-of-memory", "failed"]


@dataclass(frozen=True)
class AttentionMeasurement:
    """What one kernel did on one problem."""

    kernel: str
    shape: AttentionShape
    dtype: str
    causal: bool
    mode: Mode
    status: Status  #: "ok" alone carries a timing; an "incorrect" kernel is not timed
    reason: str  #: why the status is not "ok"; "" otherwise
    check: Check | None  #: the comparison with float64; None where the kernel did not run, or the gate was left out
    timing: Timing | None  #: durations of one call; None unless "ok"
    flops: float  #: operations credited by convention (`attention_flops`), not counted in the kernel
    tflops: float | None  #: `flops` over the median time, in 10¹² per second; None unless "ok"
    #: most memory that tensors held during the timed calls, inputs included; None without a GPU
    peak_memory_bytes: int | None


def measure(
    kernel: AttentionKernel,
    shape: AttentionShape,
    dtype: str,
    *,
    causal: bool,
    mode: Mode = "forward",
    device: str = "cuda",
    plan: Plan = KERNEL_PLAN,
    gate: bool = True,
) -> AttentionMeasurement:
    """Checks the kernel on this very problem, then times it.

    Args:
        kernel: an entry of `KERNELS`.
        mode: "forward"; "backward": the gradients alone, with the forward pass outside the interval; "both".
        gate: False leaves the check out, for a caller that has just done it on the same problem.

    Never raises for what a kernel does: refusals, memory that does not suffice and errors are statuses.
    """
    flops = attention_flops(shape, causal=causal, mode=mode)

    def result(
        status: Status,
        reason: str = "",
        found: Check | None = None,
        timing: Timing | None = None,
        peak: int | None = None,
    ) -> AttentionMeasurement:
        tflops = flops / timing.summary.median / 1e3 if timing and timing.summary.median else None
        return AttentionMeasurement(
            kernel.name, shape, dtype, causal, mode, status, reason, found, timing, flops, tflops, peak
        )

    refusal = kernel.refusal(shape, dtype, device)
    if refusal is not None:
        return result("unsupported", refusal)
    found: Check | None = None
    try:
        if gate:
            found = compared(kernel, shape, dtype, causal=causal, mode=mode, device=device).check
            if not found.passed:
                return result("incorrect", found.summary, found)
        timing, peak = _timed(kernel, shape, dtype, causal, mode, device, plan)
    except Exception as error:  # a kernel may fail in any way; its row says how, and the table goes on
        return result(*outcome_of(error), found)
    return result("ok", "", found, timing, peak)


def outcome_of(error: Exception) -> tuple[Status, str]:
    """What a kernel that raised this did, and why."""
    if isinstance(error, BackendRefusedError):
        return "unsupported", str(error)
    if type(error).__name__ in {"OutOfMemoryError", "MemoryError"}:
        return "out-of-memory", _first_line(error)
    return "failed", f"{type(error).__name__}: {_first_line(error)}"


def _timed(
    kernel: AttentionKernel,
    shape: AttentionShape,
    dtype: str,
    causal: bool,
    mode: Mode,
    device: str,
    plan: Plan,
) -> tuple[Timing, int | None]:
    import torch

    q, k, v = attention_inputs(shape, dtype, device, requires_grad=mode != "forward")
    call = _call(kernel, q, k, v, causal, mode)
    on_gpu = device.startswith("cuda")
    call()
    if on_gpu:
        torch.cuda.synchronize()
        # Before the timing, whose own buffer for flushing is no part of what the kernel needs.
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else None
    return time_calls(call, device, plan), peak


def _call(
    kernel: AttentionKernel, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mode: Mode
) -> Callable[[], object]:
    """What is timed."""
    import torch

    if mode == "forward":
        return lambda: kernel.run(q, k, v, causal)
    generator = torch.Generator(device=q.device).manual_seed(7)
    d_out = torch.randn(q.shape, generator=generator, device=q.device).to(q.dtype)
    if mode == "both":
        return lambda: torch.autograd.grad(kernel.run(q, k, v, causal), (q, k, v), d_out)
    out = kernel.run(q, k, v, causal)
    return lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


_SECOND_NS = 1e9


def run_cell(cell: AttentionCell, plan: Plan, setting: Setting) -> dict[str, Any]:
    """The record of a cell, as the measurements file holds it.

    On a GPU calls are issued ahead of it, for a kernel is judged by its own time: there is no latency that a caller
    would see, and so no throughput.

    Raises:
        UsageError: there is no such kernel.
    """
    if cell.kernel not in KERNELS:
        raise UsageError(f"{cell.kernel!r} is not an attention kernel; known are {', '.join(KERNELS)}")
    shape = AttentionShape(cell.batch, cell.heads, cell.seq_len, cell.head_dim)
    found = measure(
        KERNELS[cell.kernel], shape, cell.dtype,
        causal=cell.causal, mode=cell.mode, device=setting.device, plan=plan,  # type: ignore[arg-type, unused-ignore]
    )  # fmt: skip
    details = {"check": asdict(found.check) if found.check is not None else None}
    if found.timing is None:
        return {"status": found.status, "reason": found.reason, "details": details}
    timing = found.timing
    spread, on_gpu = asdict(timing.summary), timing.clock == "cuda-event"
    flops = int(found.flops)
    return {
        "status": "measured",
        "launch": "eager",
        "unit": "sequence",
        "items": cell.batch,
        "latency_ns": None if on_gpu else spread,
        "gpu_ns": spread if on_gpu else None,
        "throughput_per_s": None if on_gpu else cell.batch * _SECOND_NS / timing.summary.median,
        "work": {"macs": flops // 2, "flops": flops},
        "peak_allocated_bytes": found.peak_memory_bytes,
        "drift": asdict(timing.drift) if timing.drift else None,
        "details": {**details, "warmup_calls": timing.warmup_calls, "flushed_l2": timing.flushed_l2},
        "samples": {"gpu_ns" if on_gpu else "wall_ns": list(timing.samples_ns)},
    }
