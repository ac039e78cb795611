"""Speed of light: how much of what the GPU can do at most a kernel used, and which part of the GPU was used most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.metrics import measured, share, text, with_launch
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["BREAKDOWN", "COMPUTE", "MEMORY", "SPEED_OF_LIGHT", "speed_of_light", "throughput_breakdown"]

COMPUTE: Final = "compute"
MEMORY: Final = "memory"

_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_THROUGHPUTS: Final = {COMPUTE: f"sm__throughput{_OF_PEAK}", MEMORY: f"gpu__compute_memory_throughput{_OF_PEAK}"}

#: Metrics that add others up, so that they are no part of the GPU themselves. The shared pipe of 9.0 and later is what
#: FP64 and tensor instructions pass through; its parts are collected beside it.
_SUMS = r"throughput(\.|_sol)|^sm__pipe_shared_"

#: Which part of the GPU a metric watches; the first pattern that matches decides.
_UNITS: Final = {
    COMPUTE: (
        (r"^sm__(inst_executed_)?pipe_tensor", "tensor"),
        (r"^sm__pipe_fmaheavy", "fma-heavy"),
        (r"^sm__(inst_executed_)?pipe_(fma|fmalite|fp16)", "fma"),
        (r"^sm__(inst_executed_)?pipe_fp64", "fp64"),
        (r"^sm__(inst_executed_)?pipe_alu", "alu"),
        (r"^sm__(inst_executed_)?pipe_xu", "xu"),
        (r"^sm__(inst_executed_)?pipe_lsu", "lsu"),
        (r"^sm__(inst_executed_)?pipe_tex", "tex"),
        (r"^sm__(inst_executed_)?pipe_tma", "tma"),
        (r"^sm__(inst_executed_)?pipe_uniform", "uniform"),
        (r"^sm__(inst_executed_)?pipe_adu", "adu"),
        (r"^sm__(inst_executed_)?pipe_cbu", "cbu"),
        (r"^sm__(inst_executed_)?pipe_ipa", "ipa"),
        (r"^sm__mio", "mio"),
        (r"^idc__", "constant-cache"),
        (r"^sm__(issue_active|inst_executed|inst_issued)\.", "issue"),
        (r"^sm__.*internal_activity", "internal"),
    ),
    MEMORY: (
        (r"^(dram|fbpa?)__", "dram"),
        (r"^(lts|ltc)__", "l2"),
        (r"^l1tex__", "l1"),
        (r"^gpu__.*internal_activity", "internal"),
    ),
}

#: Pipes that do the arithmetic that a kernel is for.
_MATH_PIPES: Final = ("tensor", "fma-heavy", "fma", "fp64", "alu", "xu")

SPEED_OF_LIGHT = Table(
    "speed_of_light",
    "one launch",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("duration_ns", pl.Float64, "time on the GPU, in the pass that measured it", nullable=True),
        Column(
            "compute_share", pl.Float64, "of the peak rate of the busiest part of the multiprocessor", nullable=True
        ),
        Column("compute_unit", pl.String, "that part: `tensor`, `fma`, `alu`, `lsu`, `issue`, …", nullable=True),
        Column(
            "pipe_unit", pl.String, "the busiest pipe for arithmetic: `tensor`, `fma`, `alu`, `fp64`, …", nullable=True
        ),
        Column("pipe_share", pl.Float64, "of the peak rate of that pipe", nullable=True),
        Column("memory_share", pl.Float64, "of the peak rate of the busiest part of the memory system", nullable=True),
        Column("memory_unit", pl.String, "that part: `dram`, `l2` or `l1` (with shared memory)", nullable=True),
        Column("dram_share", pl.Float64, "of the peak bandwidth of device memory", nullable=True),
        Column("l2_share", pl.Float64, "of the peak rate of the L2 cache", nullable=True),
        Column(
            "l1_share", pl.Float64, "of the peak rate of the L1 cache, while the multiprocessors work", nullable=True
        ),
        Column("sm_hz", pl.Float64, "clock of the multiprocessors during the measurement", nullable=True),
        Column("dram_hz", pl.Float64, "clock of device memory during the measurement", nullable=True),
    ),
)

BREAKDOWN = Table(
    "throughput_breakdown",
    "one part of the GPU during one launch; of each launch and side the busiest first",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("side", pl.String, "`compute` or `memory`"),
        Column("unit", pl.String, "part of the GPU"),
        Column("metric", pl.String, "the metric that watches it"),
        Column("share", pl.Float64, "of the peak rate"),
    ),
)


def speed_of_light(counters: KernelCounters) -> pl.DataFrame:
    """How near each launch came to the peak of the multiprocessors and of the memory system.

    The two shares are Nsight Compute's "Compute (SM) Throughput" and "Memory Throughput": the highest of the parts that
    `throughput_breakdown` lists (Kernel Profiling Guide, "GPU Speed Of Light Throughput"). Low shares say that the
    kernel waited inside itself, not that the GPU was idle between kernels.

    Returns:
        `SPEED_OF_LIGHT`, a row a launch.
    """
    shares = with_launch(
        counters,
        duration_ns=measured(counters, "gpu__time_duration.sum", "gpu__time_duration.avg"),
        compute_share=share(counters, _THROUGHPUTS[COMPUTE]),
        memory_share=share(counters, _THROUGHPUTS[MEMORY]),
        dram_share=share(counters, f"gpu__dram_throughput{_OF_PEAK}", f"dram__throughput{_OF_PEAK}"),
        l2_share=share(counters, f"lts__throughput{_OF_PEAK}"),
        l1_share=share(counters, "l1tex__throughput.avg.pct_of_peak_sustained_active", f"l1tex__throughput{_OF_PEAK}"),
        sm_hz=measured(
            counters,
            "sm__cycles_elapsed.avg.per_second",
            "smsp__cycles_elapsed.avg.per_second",
            "gpc__cycles_elapsed.avg.per_second",
        ),
        dram_hz=measured(counters, "dram__cycles_elapsed.avg.per_second"),
    )
    parts = throughput_breakdown(counters).filter(pl.col("share") > 0)
    sides = {f"{side}_unit": pl.col("side") == side for side in (COMPUTE, MEMORY)}
    for name, which in (*sides.items(), ("pipe_unit", pl.col("unit").is_in(_MATH_PIPES))):
        busiest = parts.filter(which).unique("launch", keep="first", maintain_order=True)
        columns = {name: pl.col("unit"), **({"pipe_share": pl.col("share")} if name == "pipe_unit" else {})}
        shares = shares.join(busiest.select("launch", **columns), on="launch", how="left", maintain_order="left")
    return SPEED_OF_LIGHT.checked(shares)


def throughput_breakdown(counters: KernelCounters) -> pl.DataFrame:
    """Every part of the GPU that counts towards the two throughputs, with its share of its own peak.

    Reports name the parts themselves, in metrics `breakdown:…`. Where those are absent (CSV exports), the parts are the
    collected metrics whose names say that they watch one, and that are not above the throughput that they make up.

    Returns:
        `BREAKDOWN`, sorted by launch, side and falling share.
    """
    parts = [part for side in (COMPUTE, MEMORY) for part in _parts(counters, side)]
    if not parts:
        return BREAKDOWN.empty()
    # Where two say the same (the tensor pipe and its one kind of instruction), the first pattern names it.
    order = {unit: rank for side in _UNITS.values() for rank, (_, unit) in enumerate(side)}
    ranked = pl.concat(parts).with_columns(rank=pl.col("unit").replace_strict(order, return_dtype=pl.Int64))
    return BREAKDOWN.checked(
        ranked.sort("launch", "side", "share", "rank", descending=[False, False, True, False], maintain_order=True)
    )


def _parts(counters: KernelCounters, side: str) -> list[pl.DataFrame]:
    """For each part of one side, its share of every launch that it counts for."""
    total = share(counters, _THROUGHPUTS[side])
    named = "," + text(counters, f"breakdown:{_THROUGHPUTS[side]}") + ","
    unnamed = named.is_null()
    found = []
    for metric, unit in _units(counters, side).items():
        value = share(counters, metric)
        counts = (unnamed & (value <= total)) | named.str.contains(f",{metric},", literal=True).fill_null(value=False)
        frame = with_launch(counters, share=value).with_columns(
            side=pl.lit(side), unit=pl.lit(unit), metric=pl.lit(metric)
        )
        found.append(frame.filter(counts & value.is_not_null()))
    return found


def _units(counters: KernelCounters, side: str) -> dict[str, str]:
    """The collected metrics that watch a part of this side, each with the part."""
    patterns = _UNITS[side]
    names = pl.Series("metric", counters.metrics.columns, dtype=pl.String)
    names = names.filter(names.str.ends_with(_OF_PEAK) & ~names.str.contains(_SUMS))
    unit = pl.coalesce(*(pl.when(pl.col("metric").str.contains(regex)).then(pl.lit(name)) for regex, name in patterns))
    known = names.to_frame().with_columns(unit=unit).drop_nulls()
    return dict(known.iter_rows())
