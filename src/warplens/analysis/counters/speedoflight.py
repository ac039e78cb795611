"""Speed of light and instructions: throughputs from the metrics of `KernelCounters`, across versions of the tool."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column, Float64s
from warplens.profile.trace import BLOCK_THREADS

LAUNCH: Final = column("launch")

_PERCENT = 100.0


def measured(counters: KernelCounters, *names: str) -> pl.Series:
    """A quantity of every launch: the first of these metrics that was collected for it, in its base unit.

    Null for a launch without them, also where the tool wrote NaN (as it does for kernels that failed) or a number that
    is infinite or negative.
    """
    values: pl.Series | None = None
    for name in names:
        metric = counters.metrics.get_column(name, default=None)
        if metric is not None and (values is None or values.null_count()):
            metric = metric.cast(pl.Float64, strict=False)
            values = _possible(metric) if values is None else either(values, metric)
    if values is None:
        values = pl.Series([None] * counters.launches.height, dtype=pl.Float64)
    return values.alias(names[0])


def durations(counters: KernelCounters) -> pl.Series:
    """Time of every launch on the GPU in nanoseconds; null where nothing tells it.

    Without a metric of time, it is the cycles over their rate: Nsight Compute divides by the time for `.per_second`.
    Lists of metrics for rooflines often hold these two instead of the time.
    """
    told = measured(counters, "gpu__time_duration.sum", "gpu__time_duration.avg")
    for cycles in ("sm__cycles_elapsed.avg", "smsp__cycles_elapsed.avg", "gpc__cycles_elapsed.avg"):
        told = either(told, measured(counters, cycles) / measured(counters, f"{cycles}.per_second") * 1e9)
    return told


def either(first: pl.Series, second: pl.Series) -> pl.Series:
    """The first where it was collected, else the second; null for what no counter measures."""
    if first.null_count() == first.len():
        return _possible(second.alias(first.name))
    return _possible(first.zip_with(first.is_not_null(), second) if first.null_count() else first)


def _possible(values: pl.Series) -> pl.Series:
    """Null for what no counter measures: NaN, infinite and negative values. In an array, nulls are NaN as well."""
    numbers = values.to_numpy()
    possible = np.isfinite(numbers) & (numbers >= 0)
    if np.count_nonzero(possible) == values.len() - values.null_count():
        return values
    return values.zip_with(pl.Series(possible), pl.Series([None], dtype=values.dtype))


def share(counters: KernelCounters, *names: str) -> pl.Series:
    """`measured` for metrics in percent, as 0–1."""
    return measured(counters, *names) / _PERCENT


def text(counters: KernelCounters, name: str) -> pl.Series:
    """A text metric, such as a list of names; null where it was not collected."""
    values = counters.values(name)
    return values if values.dtype == pl.String else pl.Series(name, [None] * values.len(), dtype=pl.String)


def stacked(
    counters: KernelCounters, parts: Sequence[tuple[Sequence[str], Float64s]], labels: Sequence[str], value: str
) -> pl.DataFrame:
    """A row for each value that is not NaN, with its `launch` and the labels of its part; part after part.

    Args:
        parts: texts, one for each of `labels`, and the value of each launch.
        value: name of the column of the values.
    """
    rows = [np.flatnonzero(~np.isnan(values)) for _, values in parts]
    part_of_row = np.repeat(np.arange(len(parts)), [len(row) for row in rows])
    amounts = [values[row] for (_, values), row in zip(parts, rows, strict=True)]
    return pl.DataFrame(
        [
            counters.launches["launch"].gather(np.concatenate([np.empty(0, np.int64), *rows])),
            *(
                pl.Series(label, [texts[number] for texts, _ in parts], dtype=pl.String).gather(part_of_row)
                for number, label in enumerate(labels)
            ),
            pl.Series(value, np.concatenate([np.empty(0), *amounts])),
        ]
    )


def with_launch(counters: KernelCounters, **columns: pl.Series) -> pl.DataFrame:
    """These columns beside `launch`, one row per launch."""
    return pl.DataFrame([counters.launches["launch"], *(series.rename(name) for name, series in columns.items())])


COMPUTE: Final = "compute"
MEMORY: Final = "memory"

_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_THROUGHPUTS: Final = {COMPUTE: f"sm__throughput{_OF_PEAK}", MEMORY: f"gpu__compute_memory_throughput{_OF_PEAK}"}

#: Metrics that sum up others and are no unit of the GPU themselves. FP64 and tensor instructions pass through the
#: shared pipe of 9.0 and later; its parts are collected beside it.
_SUMS = r"throughput(\.|_sol)|^sm__pipe_shared_"

#: The unit of the GPU that a metric measures; the first pattern that matches decides.
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

#: Pipes that do a kernel's arithmetic.
_MATH_PIPES: Final = ("tensor", "fma-heavy", "fma", "fp64", "alu", "xu")

SPEED_OF_LIGHT: Final = table(
    "speed_of_light",
    "one launch",
    LAUNCH,
    optional(
        duration_ns=("time on the GPU, in the pass that measured it", "Time"),
        compute_share="of the peak rate of the busiest part of the multiprocessor",
    ),
    Column(
        "compute_unit", pl.String, "that part: `tensor`, `fma`, `alu`, `lsu`, `issue`, …", nullable=True, title="part"
    ),
    Column(
        "pipe_unit",
        pl.String,
        "the busiest pipe for arithmetic: `tensor`, `fma`, `alu`, `fp64`, …",
        nullable=True,
        title="pipe",
    ),
    optional(
        pipe_share=("of the peak rate of that pipe", "Arithmetic"),
        memory_share="of the peak rate of the busiest part of the memory system",
    ),
    Column(
        "memory_unit", pl.String, "that part: `dram`, `l2` or `l1` (with shared memory)", nullable=True, title="part"
    ),
    optional(
        dram_share=("of the peak bandwidth of device memory", "DRAM"),
        l2_share="of the peak rate of the busiest part of the L2 cache: its links, data or tags",
        l1_share="of the peak rate of the L1 cache, while the multiprocessors work",
        sm_hz="clock of the multiprocessors during the measurement",
        dram_hz="clock of device memory during the measurement",
    ),
)

BREAKDOWN: Final = table(
    "throughput_breakdown",
    "one part of the GPU during one launch; of each launch and side the busiest first",
    LAUNCH,
    column("side", help="`compute` or `memory`"),
    column("unit", help="part of the GPU", title="Part"),
    column("metric", help="the metric that watches it"),
    column("share", help="of the peak rate", title="Of its peak"),
)


@once
def speed_of_light(counters: KernelCounters) -> pl.DataFrame:
    """How near each launch came to the peaks of the multiprocessors and of the memory system.

    The two shares are Nsight Compute's "Compute (SM) Throughput" and "Memory Throughput": the highest of the parts that
    `throughput_breakdown` lists (Kernel Profiling Guide, "GPU Speed Of Light Throughput"). Low shares mean that the
    kernel waited inside itself, not that the GPU was idle between kernels.

    Returns:
        `SPEED_OF_LIGHT`, a row a launch.
    """
    shares = with_launch(
        counters,
        duration_ns=durations(counters),
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
    for name, condition in (*sides.items(), ("pipe_unit", pl.col("unit").is_in(_MATH_PIPES))):
        busiest = parts.filter(condition).unique("launch", keep="first", maintain_order=True)
        columns = {name: pl.col("unit"), **({"pipe_share": pl.col("share")} if name == "pipe_unit" else {})}
        shares = shares.join(busiest.select("launch", **columns), on="launch", how="left", maintain_order="left")
    return SPEED_OF_LIGHT.checked(shares)


@once
def throughput_breakdown(counters: KernelCounters) -> pl.DataFrame:
    """Every part of the GPU that counts towards the two throughputs, with its share of its own peak.

    Reports list the parts in metrics `breakdown:…`. Where those are absent (CSV exports), the parts are the collected
    metrics with names of such parts that are not above the throughput they make up.

    Returns:
        `BREAKDOWN`, sorted by launch, side and falling share.
    """
    metrics = [name for name in counters.metrics.columns if name.endswith(_OF_PEAK) and not re.search(_SUMS, name)]
    parts = []
    for side, patterns in _UNITS.items():
        total = share(counters, _THROUGHPUTS[side]).to_numpy()
        texts = text(counters, f"breakdown:{_THROUGHPUTS[side]}").to_list()
        lists = {listed: number for number, listed in enumerate(dict.fromkeys(texts))}
        list_of_launch = np.array([lists[listed] for listed in texts], dtype=np.int64)
        is_absent = np.array([listed is None for listed in lists], dtype=np.bool_)[list_of_launch]
        for metric in metrics:
            unit = next((unit for pattern, unit in patterns if re.search(pattern, metric)), None)
            if unit is not None:
                value = share(counters, metric).to_numpy()
                in_list = [listed is not None and f",{metric}," in f",{listed}," for listed in lists]
                is_listed = np.array(in_list, dtype=np.bool_)[list_of_launch]
                is_part = (is_absent & (value <= total)) | is_listed
                parts.append(((side, unit, metric), np.where(is_part, value, np.nan)))
    frame = stacked(counters, parts, ("side", "unit", "metric"), "share")
    # Where two have the same value (the tensor pipe and its one kind of instruction), the first pattern names it.
    order = {unit: rank for side in _UNITS.values() for rank, (_, unit) in enumerate(side)}
    rank = pl.col("unit").replace_strict(order, return_dtype=pl.Int64)
    falling = [False, False, True, False]
    return BREAKDOWN.checked(frame.sort("launch", "side", "share", rank, descending=falling, maintain_order=True))


INSTRUCTIONS: Final = table(
    "instructions",
    "one launch",
    LAUNCH,
    optional(
        instructions="executed, a warp's counted once",
        threads_per_instruction=("of 32 that are active", "Threads"),
        predicated_threads_per_instruction="of 32 that are active and not masked",
        full_warp_threads="threads per warp of the launch: fewer than 32 if blocks are odd",
        uniform_branch_share="of branches that all threads of a warp take alike",
        divergent_branches="branches that split a warp",
        issue_active_share="of the cycles in which a scheduler with warps issues",
        issue_elapsed_share="of all cycles of the kernel in which a scheduler issues",
        tensor_share="of the peak rate of the tensor pipe",
        fp64_share="of the peak rate of the FP64 pipe",
        fma_share="of the peak rate of the FMA pipe",
    ),
)

INSTRUCTION_MIX: Final = table(
    "instruction_mix",
    "one opcode of one launch; of each launch the most frequent first",
    LAUNCH,
    Column("opcode", pl.String, "mnemonic of the machine instruction"),
    "instructions",
    column("share", help="of all instructions of the launch"),
)

#: The metric whose instances `instruction_mix` reads.
OPCODES: Final = "sass__inst_executed_per_opcode"
_WARP: Final = 32
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"


def instruction_use(counters: KernelCounters) -> pl.DataFrame:
    """Active threads per warp instruction, issue rate of the schedulers, and use of the math pipes.

    Returns:
        `INSTRUCTIONS`, a row a launch.
    """
    launches = counters.launches
    threads = launches.select(BLOCK_THREADS).to_series()
    warps = (threads / _WARP).ceil()
    issue_active = measured(counters, "smsp__issue_active.avg.per_cycle_active")
    executed = measured(counters, "inst_executed", "smsp__inst_executed.sum", "sm__inst_executed.sum")
    active = measured(counters, "smsp__thread_inst_executed_per_inst_executed.ratio")
    unmasked = measured(counters, "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio")
    return INSTRUCTIONS.checked(
        with_launch(
            counters,
            instructions=executed,
            threads_per_instruction=either(active, measured(counters, "thread_inst_executed") / executed),
            predicated_threads_per_instruction=either(
                unmasked, measured(counters, "thread_inst_executed_true") / executed
            ),
            full_warp_threads=(threads / warps).fill_nan(None),
            uniform_branch_share=share(counters, "smsp__sass_average_branch_targets_threads_uniform.pct"),
            divergent_branches=measured(counters, "smsp__sass_branch_targets_threads_divergent.sum"),
            issue_active_share=either(
                issue_active, share(counters, "smsp__issue_active.avg.pct_of_peak_sustained_active")
            ),
            issue_elapsed_share=share(counters, f"sm__issue_active{_ELAPSED}", f"sm__inst_issued{_ELAPSED}"),
            tensor_share=share(counters, f"sm__pipe_tensor_cycles_active{_ELAPSED}"),
            fp64_share=share(counters, f"sm__pipe_fp64_cycles_active{_ELAPSED}"),
            fma_share=share(counters, f"sm__pipe_fma_cycles_active{_ELAPSED}"),
        )
    )


def instruction_mix(counters: KernelCounters) -> pl.DataFrame:
    """Machine instructions executed by each launch.

    Returns:
        `INSTRUCTION_MIX`; empty unless the report was read with the instances of `sass__inst_executed_per_opcode`.
    """
    instances = counters.instances.get(OPCODES)
    if instances is None or "key" not in instances.columns:
        return INSTRUCTION_MIX.empty()
    mix = instances.select(
        pl.col("launch").cast(pl.Int64),
        pl.col("key").cast(pl.String).alias("opcode"),
        pl.col("value").cast(pl.Float64).alias("instructions"),
    ).drop_nulls()
    mix = mix.with_columns(share=pl.col("instructions") / pl.col("instructions").sum().over("launch"))
    return INSTRUCTION_MIX.checked(mix.sort("launch", "instructions", "opcode", descending=[False, True, False]))
