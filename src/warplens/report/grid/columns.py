"""The columns of a grid's tables: names, types, and which of them are more than a plain measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from warplens.analysis.phases import NO_PHASE, PHASES

#: Columns that say which profile a row is of.
CELL: Final = {"model": pl.String(), "context": pl.Int64(), "mode": pl.String()}

#: Columns that are not measured but follow from shapes, or put a modelled amount of work over a measured time.
PROVENANCE: Final[Mapping[str, str]] = {
    "layers": "counted in the profile, or modelled where `layers_counted` is false",
    "matmul_calls_modelled": "modelled",
    "launches_per_tensor": "measured launches over a modelled number of tensors",
    "modelled_bytes_per_s": "modelled bytes over measured time",
    "bandwidth_share": "modelled bytes over measured time and the device's bandwidth",
    "flop_ratio": "modelled",
    "times_slower_per_flop": "measured runtime ratio times modelled FLOP ratio",
    "scores_flops": "modelled",
    "softmax_flops": "modelled",
    "scores_flops_per_s": "modelled FLOPs over measured time",
    "values_flops_per_s": "modelled FLOPs over measured time",
    "softmax_flops_per_s": "modelled FLOPs over measured time",
    "softmax_bytes_per_s": "modelled bytes over measured time",
    "softmax_bandwidth_share": "modelled bytes over measured time and the device's bandwidth",
}

FORWARD_TIMES: Final = pl.Schema(
    {
        **CELL,
        "source": pl.String(),
        "passes": pl.Int64(),
        "time_ns": pl.Float64(),
        "time_min_ns": pl.Float64(),
        "time_max_ns": pl.Float64(),
        "time_is": pl.String(),
        "host_ns": pl.Float64(),
        "synchronised": pl.Boolean(),
        "span_ns": pl.Float64(),
        "gpu_ns": pl.Float64(),
        "busy_ns": pl.Float64(),
        "busy_share": pl.Float64(),
        "layers": pl.Int64(),
        "layers_counted": pl.Boolean(),
        "per_layer_ns": pl.Float64(),
        "python_ns": pl.Float64(),
        "python_statistic": pl.String(),
        "python_min_ns": pl.Float64(),
        "python_max_ns": pl.Float64(),
        "python_deviation_ns": pl.Float64(),
        "python_count": pl.Int64(),
        "ratio": pl.Float64(),
    }
)
TOP_KERNELS: Final = pl.Schema(
    {
        **CELL,
        "name": pl.String(),
        "full_name": pl.String(),
        "category": pl.String(),
        "calls_each": pl.Int64(),
        "calls_min": pl.Int64(),
        "calls_max": pl.Int64(),
        "gpu_ns": pl.Float64(),
        "share": pl.Float64(),
        "parts": pl.String(),
        "top_category": pl.String(),
        "top_category_share": pl.Float64(),
        "top_category_calls_each": pl.Int64(),
        "matmul_calls_modelled": pl.Int64(),
    }
)
WITH_BACKWARD: Final = pl.Schema(
    {
        **CELL,
        "forward_name": pl.String(),
        "forward_full_name": pl.String(),
        "same": pl.Boolean(),
        "name": pl.String(),
        "full_name": pl.String(),
        "category": pl.String(),
        "calls_each": pl.Int64(),
        "gpu_ns": pl.Float64(),
        "share": pl.Float64(),
    }
)
MODEL_PARTS: Final = pl.Schema(
    {**CELL, "part": pl.String(), "launches": pl.Float64(), "gpu_ns": pl.Float64(), "share": pl.Float64()}
)
OTHER_KERNELS: Final = pl.Schema(
    {
        **CELL,
        "name": pl.String(),
        "full_name": pl.String(),
        "category": pl.String(),
        "calls": pl.Float64(),
        "gpu_ns": pl.Float64(),
        "share": pl.Float64(),
    }
)
SPLIT: Final = pl.Schema(
    {
        **CELL,
        "steps": pl.Int64(),
        "wall_ns": pl.Float64(),
        "wall_min_ns": pl.Float64(),
        "wall_max_ns": pl.Float64(),
        "gpu_ns": pl.Float64(),
        **{f"{phase}_{what}": pl.Float64() for phase in (*PHASES, NO_PHASE) for what in ("ns", "share", "span_ns")},
        "residual_ns": pl.Int64(),
        "idle_ns": pl.Float64(),
        "idle_share": pl.Float64(),
        "inferred_share": pl.Float64(),
        "python_step_ns": pl.Float64(),
    }
)
MATMUL_SHARES: Final = pl.Schema(
    {
        **CELL,
        "inference_source": pl.String(),
        "inference": pl.Float64(),
        **{phase: pl.Float64() for phase in PHASES},
        "step": pl.Float64(),
        "change": pl.Float64(),
    }
)
OPTIMIZER: Final = pl.Schema(
    {
        **CELL,
        "launches": pl.Float64(),
        "launches_per_tensor": pl.Float64(),
        "span_ns": pl.Float64(),
        "gpu_ns": pl.Float64(),
        "busy_share": pl.Float64(),
        "starved_share": pl.Float64(),
        "between_share": pl.Float64(),
        "span_ns_per_launch": pl.Float64(),
        "gpu_ns_per_launch": pl.Float64(),
        "python_ns_per_launch": pl.Float64(),
        "modelled_bytes_per_s": pl.Float64(),
        "bandwidth_share": pl.Float64(),
        "pace": pl.String(),
    }
)
ATTENTION: Final = pl.Schema(
    {
        **CELL,
        "batch": pl.Int64(),
        "layers": pl.Int64(),
        "passes": pl.Int64(),
        "scores_ns": pl.Float64(),
        "scores_matmul_ns": pl.Float64(),
        "softmax_ns": pl.Float64(),
        "softmax_min_ns": pl.Float64(),
        "softmax_max_ns": pl.Float64(),
        "softmax_kernels": pl.Int64(),
        "values_ns": pl.Float64(),
        "values_matmul_ns": pl.Float64(),
        "products_ns": pl.Float64(),
        "runtime_ratio": pl.Float64(),
        "runtime_ratio_min": pl.Float64(),
        "runtime_ratio_max": pl.Float64(),
        "range_ratio": pl.Float64(),
        "flop_ratio": pl.Float64(),
        "times_slower_per_flop": pl.Float64(),
        "scores_flops": pl.Int64(),
        "softmax_flops": pl.Int64(),
        "scores_flops_per_s": pl.Float64(),
        "values_flops_per_s": pl.Float64(),
        "softmax_flops_per_s": pl.Float64(),
        "softmax_bytes_per_s": pl.Float64(),
        "softmax_bandwidth_share": pl.Float64(),
    }
)
LABELS: Final = pl.Schema(
    {
        **CELL,
        "scope": pl.String(),
        "label": pl.String(),
        "calls": pl.Float64(),
        "gpu_ns": pl.Float64(),
        "share": pl.Float64(),
    }
)
INVALID: Final = pl.Schema(
    {
        **CELL,
        "source": pl.String(),
        "reason": pl.String(),
        "forward_ns": pl.Float64(),
        **{f"{phase}_kernels": pl.Float64() for phase in PHASES},
        "wall_ns": pl.Float64(),
    }
)
