"""One row of the attention table: is the kernel right, and how fast is it?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from warplens.workloads.attention.correctness import Check, check
from warplens.workloads.attention.problem import AttentionShape, Mode, attention_flops, attention_inputs
from warplens.workloads.attention.sdpa import BackendRefusedError
from warplens.workloads.attention.timing import Timing, TimingPlan, time_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from warplens.workloads.attention.registry import AttentionKernel

__all__ = ["AttentionMeasurement", "Status", "measure"]

Status = Literal["ok", "incorrect", "unsupported", "out-of-memory", "failed"]


@dataclass(frozen=True)
class AttentionMeasurement:
    """What one kernel did on one problem.

    Attributes:
        kernel: its name.
        shape, dtype, causal, mode: the problem.
        status: "ok" alone carries a timing; an "incorrect" kernel is not timed.
        reason: why the status is not "ok"; "" otherwise.
        check: the comparison with float64; None where the kernel did not run, or the gate was left out.
        timing: durations of one call; None unless "ok".
        flops: operations credited by convention (`attention_flops`), not counted in the kernel.
        tflops: `flops` over the median time, in 10¹² per second; None unless "ok".
        peak_memory_bytes: most memory that tensors held during the timed calls, inputs included; None without a GPU.
    """

    kernel: str
    shape: AttentionShape
    dtype: str
    causal: bool
    mode: Mode
    status: Status
    reason: str
    check: Check | None
    timing: Timing | None
    flops: float
    tflops: float | None
    peak_memory_bytes: int | None


def measure(
    kernel: AttentionKernel,
    shape: AttentionShape,
    dtype: str,
    *,
    causal: bool,
    mode: Mode = "forward",
    device: str = "cuda",
    plan: TimingPlan | None = None,
    gate: bool = True,
) -> AttentionMeasurement:
    """Checks the kernel on this very problem, then times it.

    Args:
        kernel: an entry of `KERNELS`.
        shape, dtype, causal: the problem.
        mode: "forward"; "backward": the gradients alone, with the forward pass outside the interval; "both".
        device: as PyTorch names it.
        plan: how often it is timed.
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
            found = check(kernel, shape, dtype, causal=causal, mode=mode, device=device)
            if not found.passed:
                return result("incorrect", found.summary, found)
        timing, peak = _timed(kernel, shape, dtype, causal, mode, device, plan)
    except BackendRefusedError as error:
        return result("unsupported", str(error), found)
    except Exception as error:  # a kernel may fail in any way; its row says how, and the table goes on
        if type(error).__name__ in {"OutOfMemoryError", "MemoryError"}:
            return result("out-of-memory", _first_line(error), found)
        return result("failed", f"{type(error).__name__}: {_first_line(error)}", found)
    return result("ok", "", found, timing, peak)


def _timed(
    kernel: AttentionKernel,
    shape: AttentionShape,
    dtype: str,
    causal: bool,
    mode: Mode,
    device: str,
    plan: TimingPlan | None,
) -> tuple[Timing, int | None]:
    import torch  # noqa: PLC0415

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
    import torch  # noqa: PLC0415

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
