"""The base unit of an Nsight Compute metric, told by its name: reports hold names and values, but no units.

NVIDIA's Kernel Profiling Guide ("Metrics Structure", "Metrics Decoder") gives the names their form: a hardware unit,
two underscores, a quantity among qualifiers, then a roll-up (`.sum`, `.avg`, …) and what was made of it (`.per_second`,
`.pct_of_peak_sustained_elapsed`, …). The quantity decides the unit and the ending changes it: of `lts__t_sectors` the
`.sum` is in `sector`, the `.sum.per_second` in `sector/second`, the `.sum.pct_of_peak_sustained_elapsed` in `%`.
"""

from __future__ import annotations

import re

__all__ = ["unit_of"]

#: Units of metrics whose names do not have that form: launch facts, facts about the profiling itself, derived metrics.
#: Source: the units row of `ncu --page raw --csv`, scaled units taken back to base units.
_BY_NAME = {
    "derived__avg_thread_executed": "thread",
    "derived__avg_thread_executed_true": "thread",
    "derived__avg_thread_unexecuted_true": "thread",
    "derived__derivative_avg_thread_executed_true": "thread",
    "derived__pct_occupancy_per_barrier_count": None,
    "derived__pct_occupancy_per_block_size": "%",
    "derived__pct_occupancy_per_register_count": "%/register",
    "derived__pct_occupancy_per_shared_mem_size": "%/byte",
    "launch__block_dim_x": "block",
    "launch__block_dim_y": "block",
    "launch__block_dim_z": "block",
    "launch__cluster_max_active": "cluster",
    "launch__cluster_max_potential_size": "block",
    "launch__persisting_l2_cache_size": "byte",
    "launch__registers_per_thread": "register/thread",
    "launch__registers_per_thread_allocated": "register/thread",
    "launch__shared_mem_config_size": "byte",
    "launch__sm_count": "SM",
    "launch__thread_count": "thread",
    "profiler__pmsampler_merged_samples": "sample",
    "profiler__replayer_passes": "pass",
    "profiler__replayer_passes_type_warmup": "pass",
    "smsp__pcsamp_aggregated_passes": "pass",
}
_BY_PREFIX = (("launch__occupancy_limit_", "block"), ("launch__shared_mem_per_block", "byte/block"))

#: What a hardware counter counts: the first of these words in its name.
_QUANTITIES = {
    "bytes": "byte",
    "mem_tensor_reads": "byte",
    "mem_tensor_writes": "byte",
    "sectors": "sector",
    "cycles": "cycle",
    "writeback_active": "cycle",
    "branch_targets": "branch",
    "inst": "inst",
    "warps": "warp",
    "requests": "request",
    "ctas": "block",
    "time": "ns",
}
_QUANTITY = re.compile(rf"(?:^|_)({'|'.join(_QUANTITIES)})(?=_|$)")

#: PM sampling puts the counter domain before the name: `TPC.TriageCompute.sm__cycles_active.avg`, or its own prefix.
_SAMPLING_PREFIX = re.compile(r"^(?:pmsampling:|\w+\.\w+\.(?=\w+__))")

#: Averages of one quantity over another, whose unit is not the quotient of the two: latencies count warp-cycles.
_RATIOS = (
    (re.compile(r"average_data_bytes_per_sector"), "byte/sector"),
    (re.compile(r"average_warp_latency|average_warps_active_per_inst"), "cycle"),
    (re.compile(r"average_warps_issue_stalled_\w+_per_issue_active"), "inst"),
)


def unit_of(metric: str) -> str | None:
    """The base unit of a metric (`ns`, `byte`, `byte/second`, `hz`, `inst/cycle`, `%`, …); None where it has none."""
    metric = _SAMPLING_PREFIX.sub("", metric)
    if ":" in metric or metric.startswith("device__attribute_"):  # a list of other metrics; CUDA's own attributes
        return None
    if metric in _BY_NAME:
        return _BY_NAME[metric]
    for prefix, unit in _BY_PREFIX:
        if metric.startswith(prefix):
            return unit
    base, _, ending = metric.partition(".")
    if "pct" in ending or base.endswith("_pct"):
        return "%"
    if ending in ("ratio", "max_rate"):
        return next((unit for name, unit in _RATIOS if name.search(base)), None)
    found = _QUANTITY.search(base.rpartition("__")[2])
    return _over_time(_QUANTITIES[found[1]], ending) if found else None


def _over_time(unit: str, ending: str) -> str | None:
    """The unit of a count after what the ending of its name says was made of it."""
    if ending.endswith("per_second"):
        return "hz" if unit == "cycle" else f"{unit}/second"
    if "per_cycle" in ending or ending.endswith("peak_sustained"):
        # Warps are counted once in each cycle that they are resident, so that their count per cycle is one of warps.
        return {"warp": "warp", "cycle": None}.get(unit, f"{unit}/cycle")
    return unit
