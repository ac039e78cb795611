"""GPU time of single kernels, independent of the pace of the host.

`warplens.workloads.measurement` times a step as its caller sees it: issued, and waited for. The launch cost would
dominate a kernel of 20 µs. Here calls are issued ahead of the GPU with an event before and after each, and before each
the GPU is kept busy for longer than the host takes to issue it, so that all of its work is queued when its time starts.
Without a GPU, the wall clock is used.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from warplens.workloads.attention.problem import (
    AttentionKernel,
    BackendRefusedError,
    attention_flops,
    attention_inputs,
    compared,
    kernel_of,
)
from warplens.workloads.registry import Plan, Setting
from warplens.workloads.samples import drift, is_known, summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.workloads.settings import AttentionCell


#: Bytes overwritten to flush L2: twice the size of the largest one (Blackwell's 126 MB).
_FLUSH_BYTES: Final = 256 * 2**20

_NS_PER_MS: Final = 1_000_000
_SECOND_NS: Final = 1e9

#: The GPU is kept busy for this multiple of the slowest issue time of `_ISSUED` calls, since the host's pace varies.
_HEAD_START: Final = 2.0
_ISSUED: Final = 5

#: GPU cycles per nanosecond, at least those of any GPU: at a lower clock the head start only gets longer.
_CYCLES_PER_NS: Final = 2.0


def run_cell(cell: AttentionCell, plan: Plan, setting: Setting) -> dict[str, Any]:
    """The record of a cell, as the measurements file holds it.

    Raises:
        UsageError: there is no such kernel.
    """
    return measured(kernel_of(cell), cell, plan, setting.device)


def measured(kernel: AttentionKernel, cell: AttentionCell, plan: Plan, device: str) -> dict[str, Any]:
    """Checks the kernel on the problem of a cell, then times it; the record of the cell.

    On a GPU, only the kernel's own time is measured (see the module), so that the record has neither latency nor
    throughput. FLOPs follow a convention (`attention_flops`) and are not counted in the kernel. Failures of a kernel
    (refusals, lack of memory, errors) become statuses, and a kernel that fails its check is not timed.
    """
    details: dict[str, Any] = {"check": None}

    def ended(status: str, reason: str) -> dict[str, Any]:
        return {"status": status, "reason": reason, "details": details}

    if (refusal := kernel.refusal(cell, device)) is not None:
        return ended("unsupported", refusal)
    try:
        check = compared(kernel, cell, device).check
        details["check"] = asdict(check)
        if not check.passed:
            return ended("incorrect", check.summary)
        call, peak = _prepared(kernel, cell, device)
        samples, warmup_calls = time_calls(call, device, plan)
    except Exception as error:  # a kernel may fail in any way; its record holds the reason, and the next cells follow
        return ended(*outcome_of(error))
    spread, drifted, on_gpu = summary(samples, plan.confidence), drift(samples), device.startswith("cuda")
    flops = int(attention_flops(cell))
    return {
        "status": "measured",
        "launch": "eager",
        "unit": "sequence",
        "items": cell.batch,
        "latency_ns": None if on_gpu else asdict(spread),
        "gpu_ns": asdict(spread) if on_gpu else None,
        "throughput_per_s": None if on_gpu else cell.batch * _SECOND_NS / spread.median,
        "work": {"macs": flops // 2, "flops": flops},
        "peak_allocated_bytes": peak,
        "drift": asdict(drifted) if drifted else None,
        "details": {**details, "warmup_calls": warmup_calls, "flushed_l2": plan.flush_l2 and on_gpu},
        "samples": {"gpu_ns" if on_gpu else "wall_ns": samples},
    }


def outcome_of(error: Exception) -> tuple[str, str]:
    """What a kernel that raised this did (a status of cells), and why."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    if isinstance(error, BackendRefusedError):
        return "unsupported", str(error)
    if type(error).__name__ in {"OutOfMemoryError", "MemoryError"}:
        return "out-of-memory", first
    return "failed", f"{type(error).__name__}: {first}"


def _prepared(kernel: AttentionKernel, cell: AttentionCell, device: str) -> tuple[Callable[[], object], int | None]:
    """What is timed, and the most memory that tensors hold in it, inputs included; None without a GPU."""
    import torch

    call = _call(kernel, cell, device)
    call()
    if not device.startswith("cuda"):
        return call, None
    torch.cuda.synchronize()
    # Before the timing, whose own buffer for flushing is no part of what the kernel needs.
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize()
    return call, torch.cuda.max_memory_allocated(device)


def _call(kernel: AttentionKernel, cell: AttentionCell, device: str) -> Callable[[], object]:
    """What is timed."""
    import torch

    q, k, v = attention_inputs(cell, device)
    if cell.mode == "forward":
        return lambda: kernel.run(q, k, v, cell.causal)
    generator = torch.Generator(device=q.device).manual_seed(7)
    d_out = torch.randn(q.shape, generator=generator, device=q.device).to(q.dtype)
    if cell.mode == "both":
        return lambda: torch.autograd.grad(kernel.run(q, k, v, cell.causal), (q, k, v), d_out)
    out = kernel.run(q, k, v, cell.causal)
    return lambda: torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)


def time_calls(call: Callable[[], object], device: str, plan: Plan) -> tuple[list[int], int]:
    """Times `call` until its median is known well enough, or the plan's most samples or its time budget is reached.

    The call issues work on the current stream, and must not wait for it.

    Returns:
        Samples in nanoseconds, in the order taken, none dropped; and the calls before the first, at least three.
    """
    on_gpu = device.startswith("cuda")
    warmup_calls = _warm_up(call, plan.warmup_ns, on_gpu)
    head_start = _issue_ns(call) * _HEAD_START if on_gpu else 0.0

    def take(count: int) -> list[int]:
        return _event_samples(call, count, plan.flush_l2, head_start) if on_gpu else _wall_samples(call, count)

    began = time.perf_counter_ns()
    samples = take(plan.least)
    while len(samples) < plan.most and time.perf_counter_ns() - began < plan.most_ns:
        if is_known(samples, plan.confidence, plan.precision):
            break
        # Looking after each sample would stop at the first lucky moment; looks grow apart instead.
        samples += take(min(len(samples), plan.most - len(samples)))
    return samples, warmup_calls


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
