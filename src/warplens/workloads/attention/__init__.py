"""Attention kernels: naive, tiled and flash in Triton, torch's own as baselines, each checked before it is timed.

`problem` (sizes, inputs, the float64 reference, the gate), `kernels` and `flash` (Triton), `hopper` (Gluon),
`functions` (differentiable, round them), `registry` (every kernel by name; torch's backends), `measurement` (timing).
A new kernel becomes an entry of `registry.KERNELS`. torch and triton are imported when a kernel first runs.
"""

from warplens.workloads.attention.measurement import AttentionMeasurement, Timing, measure
from warplens.workloads.attention.problem import (
    DTYPES,
    HEAD_DIMS,
    MODES,
    AttentionShape,
    Check,
    Mode,
    TensorError,
    attention_flops,
    compared,
)
from warplens.workloads.attention.registry import KERNELS, AttentionKernel

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
    "attention_flops",
    "compared",
    "measure",
]
