"""Attention kernels: naive, tiled and flash in Triton, torch's own as baselines, each checked before it is timed.

Lives here: the problem (`problem`), the kernels (`naive_kernels`, `tiled_forward`, `flash_forward`, `flash_backward`),
the differentiable functions round them (`functions`), their launch sizes (`tiles`), torch's backends (`sdpa`), all of
them by name (`registry`), the float64 reference and the gate (`reference`, `correctness`), and timing (`timing`,
`measurement`). A new kernel becomes an entry of `registry.KERNELS`.

torch and triton are imported when a kernel first runs.
"""

from warplens.workloads.attention.correctness import Check, TensorError, check
from warplens.workloads.attention.measurement import AttentionMeasurement, measure
from warplens.workloads.attention.problem import DTYPES, HEAD_DIMS, MODES, AttentionShape, Mode, attention_flops
from warplens.workloads.attention.registry import KERNELS, AttentionKernel
from warplens.workloads.attention.timing import Timing, TimingPlan

__all__ = [
    "DTYPES",
    "HEAD_DIMS",
    "KERNELS",
    "MODES",
    "AttentionKernel",
    "AttentionMeasurement",
    "AttentionShape",
    "Check",
    "Mode",
    "TensorError",
    "Timing",
    "TimingPlan",
    "attention_flops",
    "check",
    "measure",
]
