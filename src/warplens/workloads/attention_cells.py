"""The attention workload: a cell handed to `warplens.workloads.attention`, which checks a kernel before it times it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from warplens.errors import UsageError
from warplens.workloads.attention import KERNELS, AttentionShape, TimingPlan, measure

if TYPE_CHECKING:
    from warplens.workloads.plan import Plan
    from warplens.workloads.registry import Setting
    from warplens.workloads.settings import AttentionCell

__all__ = ["run"]

_SECOND_NS = 1e9


def run(cell: AttentionCell, plan: Plan, setting: Setting) -> dict[str, Any]:
    """The record of a cell, as the measurements file holds it.

    On a GPU calls are issued back to back, for a kernel is judged by its own time: there is no latency that a caller
    would see, and so no throughput.

    Raises:
        UsageError: there is no such kernel.
    """
    if cell.kernel not in KERNELS:
        raise UsageError(f"{cell.kernel!r} is no attention kernel; known are {', '.join(KERNELS)}")
    shape = AttentionShape(cell.batch, cell.heads, cell.seq_len, cell.head_dim)
    timing_plan = TimingPlan(
        fewest=plan.least,
        most=plan.most,
        precision=plan.precision,
        confidence=plan.confidence,
        budget_s=plan.most_ns / _SECOND_NS,
        warmup_s=plan.warmup_ns / _SECOND_NS,
        flush_l2=plan.flush_l2,
    )
    found = measure(
        KERNELS[cell.kernel], shape, cell.dtype,
        causal=cell.causal, mode=cell.mode, device=setting.device, plan=timing_plan,  # type: ignore[arg-type, unused-ignore]
    )  # fmt: skip
    details = {"check": asdict(found.check) if found.check is not None else None}
    if found.timing is None:
        return {"status": found.status, "reason": found.reason, "details": details}
    timing = found.timing
    spread, on_gpu = asdict(timing.summary), timing.clock == "cuda-event"
    flops = int(found.flops)
    return {
        "status": "measured",
        "launch": timing.launch,
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
