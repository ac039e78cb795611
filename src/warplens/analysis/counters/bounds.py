"""Bounds: the limit of each kernel: memory, compute, latency, or a grid too small to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.counters.memoryaccess import memory_access, top_stalls
from warplens.analysis.counters.occupancy import LAUNCH_OCCUPANCY, WARP_SIZE, launch_occupancy
from warplens.analysis.counters.speedoflight import LAUNCH, instruction_use, speed_of_light
from warplens.analysis.frames import once
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column

#: A kernel with throughputs below this mostly waited (Nsight Compute's rule SOLBottleneck).
LOW_SHARE: Final = 0.6

#: A fault that cannot cost a tenth of the kernel's time is not reported: a fix could hardly be measured.
_LEAST_GAIN: Final = 0.1

#: Fewer active threads than 24 of 32 are divergence (Nsight Compute's rule ThreadDivergence).
_FULL_WARP_SHARE: Final = 0.75

#: Up to half of the warps, latency is often not hidden; above, instruction-level parallelism usually does the rest (V.
#: Volkov, "Better Performance at Lower Occupancy", GTC 2010). High occupancy is not a goal in itself.
LOW_OCCUPANCY: Final = 0.5

#: Achieved occupancy must come this near to the theoretical one before the theoretical one is at fault (rule
#: LaunchStatistics: 0.8).
_ACHIEVED_OF_THEORETICAL: Final = 0.8

#: A last wave that takes less than a fifth of the run time is not worth a different grid (rule LaunchStatistics).
LONG_TAIL: Final = 0.2

#: Named numbers that support a finding.
EVIDENCE = pl.List(pl.Struct({"name": pl.String, "value": pl.Float64}))

#: Nsight Compute's rule on a grid of less than one wave; it rounds the waves to one decimal.
_SMALL_GRID_RULE: Final = r"^This kernel grid is too small to fill the available resources"
_RULE_WAVES: Final = r"only (\d+\.\d+) full waves"
_ROUNDED_WAVES: Final = 0.05

FAULTS: Final = table(
    "faults",
    "one fault of one launch; of each launch the costliest first",
    LAUNCH,
    "fault",
    column("gain_share", help="of the kernel's time that it costs at most; several do not add up"),
    column("evidence", dtype=EVIDENCE, help="the numbers that say so"),
)


@dataclass(frozen=True)
class _Fault:
    """A fault: its condition, the most it can cost, and its evidence."""

    name: str
    when: pl.Expr
    gain: pl.Expr
    shown: tuple[str, ...]


_top_share = pl.max_horizontal("compute_share", "memory_share")
_whole_waves = pl.col("waves").floor() + 1
#: Less than one wave, by launch statistics or else by the rule, and the least number of waves that this can be.
_small_grid = pl.coalesce(pl.col("waves") < 1, "small_by_rule")
_least_waves = pl.coalesce("waves", (pl.col("rule_waves") - _ROUNDED_WAVES).clip(lower_bound=0))

_FAULTS: Final = (
    _Fault(
        "small-grid",
        _small_grid & (_top_share < LOW_SHARE),
        # Work that scales with the multiprocessors (rule LaunchStatistics), or with the free room on them.
        pl.max_horizontal(1 - pl.col("grid_blocks") / pl.col("sm_count"), (1 - _least_waves) * (1 - _top_share)),
        ("grid_blocks", "sm_count", "waves", "rule_waves"),
    ),
    _Fault(
        "uncoalesced",
        pl.col("global_wasted_share") > 0,
        # The share of the memory system's traffic that is not needed (rule MemoryCacheAccessPattern).
        pl.col("global_wasted_share") * pl.col("memory_share"),
        (
            "global_wasted_share",
            "global_load_sectors_per_request",
            "global_store_sectors_per_request",
            "global_load_bytes_per_sector",
            "global_store_bytes_per_sector",
            "memory_share",
        ),
    ),
    _Fault(
        "bank-conflicts",
        pl.col("shared_conflict_share") > 0,
        # A wavefront occupies the L1 data pipe for a cycle.
        pl.coalesce("conflict_cycles_share", pl.col("shared_conflict_share") * pl.col("l1_share")),
        ("shared_conflict_share", "shared_conflict_ways", "conflict_cycles_share"),
    ),
    _Fault(
        "divergence",
        pl.col("threads_per_instruction") < _FULL_WARP_SHARE * pl.col("full_warp_threads"),
        # Instructions executed again for the other threads keep the multiprocessor this busy.
        (1 - pl.col("threads_per_instruction") / pl.col("full_warp_threads")) * pl.col("compute_share"),
        ("threads_per_instruction", "uniform_branch_share", "divergent_branches", "compute_share"),
    ),
    _Fault(
        "partial-warps",
        pl.col("full_warp_threads") < WARP_SIZE,
        (1 - pl.col("full_warp_threads") / WARP_SIZE) * pl.col("compute_share"),
        ("full_warp_threads", "compute_share"),
    ),
    _Fault(
        "occupancy",
        (pl.col("theoretical_share") <= LOW_OCCUPANCY)
        & (pl.col("achieved_share") >= _ACHIEVED_OF_THEORETICAL * pl.col("theoretical_share"))
        & (_top_share < LOW_SHARE),
        (1 - pl.col("theoretical_share")) * (1 - _top_share),
        ("theoretical_share", "achieved_share", "next_share"),
    ),
    _Fault(
        "tail",
        (pl.col("tail_share") >= LONG_TAIL)
        & (pl.col("achieved_share") < _ACHIEVED_OF_THEORETICAL * pl.col("theoretical_share"))
        & (_top_share < LOW_SHARE),
        # The room for blocks that the last wave leaves free.
        (_whole_waves - pl.col("waves")) / _whole_waves,
        ("waves", "tail_share", "achieved_share", "theoretical_share"),
    ),
    _Fault(
        "spills",
        pl.col("spill_requests") > 0,
        pl.col("local_requests")
        / (pl.col("local_requests") + pl.col("global_load_requests") + pl.col("global_store_requests"))
        * pl.col("memory_share"),
        ("spill_requests", "local_requests", "memory_share"),
    ),
)


@once
def kernel_facts(counters: KernelCounters) -> pl.DataFrame:
    """Throughputs, occupancy, memory access, instructions and longest stall of each launch.

    Where launch statistics are missing, also `small_by_rule`, whether a rule of Nsight Compute says that the grid is
    less than one wave, and `rule_waves`, as many as it says.
    """
    stalls = top_stalls(counters).select("launch", top_stall="reason", top_stall_share="share")
    frame = speed_of_light(counters)
    for facts_table in (launch_occupancy(counters), memory_access(counters), instruction_use(counters), stalls):
        frame = frame.join(facts_table, on="launch", how="left", maintain_order="left")
    small = counters.rules.filter(pl.col("message").str.contains(_SMALL_GRID_RULE)).unique("launch", keep="first")
    by_rule = small.select(
        "launch",
        small_by_rule=pl.lit(value=True),
        rule_waves=pl.col("message").str.extract(_RULE_WAVES).cast(pl.Float64),
    )
    frame = frame.join(by_rule, on="launch", how="left", maintain_order="left")
    return frame.with_columns(pl.when(pl.col("waves").is_null()).then(pl.col("small_by_rule", "rule_waves")))


@once
def kernel_faults(counters: KernelCounters) -> pl.DataFrame:
    """Faults of each launch.

    The cost of a fault is an upper bound for the whole kernel, from NVIDIA's own estimates where its rules have one. A
    launch with contradictory numbers has no occupancy faults.

    Returns:
        `FAULTS`; nothing for launches without one, or without the metrics that would show it.
    """
    consistent = {name: pl.when(pl.col("inconsistent").is_null()).then(name) for name in ("theoretical_share", "waves")}
    facts = kernel_facts(counters).with_columns(**consistent)
    faults = [
        facts.filter(fault.when.fill_null(value=False)).select(
            "launch", fault=pl.lit(fault.name), gain_share=fault.gain.clip(0.0, 1.0), evidence=evidence(*fault.shown)
        )
        for fault in _FAULTS
    ]
    costly = pl.concat(faults).filter(pl.col("gain_share") >= _LEAST_GAIN)
    return FAULTS.checked(costly.sort("launch", "gain_share", "fault", descending=[False, True, False]))


def evidence(*names: str) -> pl.Expr:
    """These columns as `EVIDENCE`, without nulls."""
    items = [pl.struct(name=pl.lit(name), value=pl.col(name).cast(pl.Float64)) for name in names]
    listed = pl.concat_list(items)
    return listed.list.eval(pl.element().filter(pl.element().struct.field("value").is_not_null()))


#: At this share of its peak, a unit is practically full: only less work for it helps (rule SOLBottleneck).
_AT_ROOF: Final = 0.8

#: Two throughputs within ten points are in balance (rule SOLBottleneck): relief of one alone will not help.
_BALANCED: Final = 0.1

#: Half of the last digit of the details page, once for each of two numbers.
_ROUNDED_SHARE: Final = 1e-4
_of_memory = pl.col("memory_share")
#: The level of a busy memory system by its throughputs, where its parts were not collected (the details page): the
#: total is the highest of the levels'. That of L1 is known as a share of other cycles, and remains where the others are
#: lower. Of 58 launches with both, the eight busy ones agree with the parts; far below, internal units may lead.
_busy_level = (
    pl.when(_of_memory < LOW_SHARE).then(None)
    .when((pl.col("dram_share") - _of_memory).abs() <= _ROUNDED_SHARE).then(pl.lit("dram"))
    .when((pl.col("l2_share") - _of_memory).abs() <= _ROUNDED_SHARE).then(pl.lit("l2"))
    .when((pl.col("dram_share") < _of_memory) & (pl.col("l2_share") < _of_memory)).then(pl.lit("l1"))
)  # fmt: skip

#: A stall of less than three tenths of the cycles is not worth addressing (rule CPIStall).
_LONG_WAIT: Final = 0.3

#: Parts of the multiprocessor that only forward memory instructions: their limit is memory traffic, not arithmetic.
_MEMORY_PIPES: Final = ("lsu", "mio", "tex")

#: Where a pipe executes nine tenths of the issued instructions, the pipe is the bound, not the issue slots.
_PIPE_OF_ISSUE: Final = 0.9

#: Units that can be full of necessary work, with the metric needed to show that none of it is waste. Issue slots or L1
#: can be full of instructions that another kernel would not need.
_NECESSARY: Final = {
    "dram": "global_sectors",
    "l2": "global_sectors",
    "tensor": "threads_per_instruction",
    "fma": "threads_per_instruction",
    "fma-heavy": "threads_per_instruction",
    "fp64": "threads_per_instruction",
}

BOUNDS: Final = table(
    "bounds",
    "one launch",
    LAUNCH,
    "bound",
    column("unit", nullable=True),
    optional(unit_share=("of that unit's peak rate; otherwise of the busiest unit's", "Busiest unit")),
    Column("balanced", pl.Boolean, "compute and memory are equally near their peaks", nullable=True),
    Column("at_roof", pl.Boolean, "the unit is as good as full", nullable=True),
    Column(
        "healthy", pl.Boolean, "at a roof that its work needs, without a fault; null: cannot be said", nullable=True
    ),
    column("fault", help="the costliest fault, of `FAULTS`", nullable=True),
    optional(fault_gain_share=("of the kernel's time that it costs at most", "costs at most")),
    Column("fault_evidence", EVIDENCE, "the numbers that show the fault", nullable=True),
    column("stall", nullable=True),
    optional(stall_share="of the cycles between two instructions"),
    Column("occupancy_limiter", pl.String, "what keeps further blocks out, where occupancy is at fault", nullable=True),
    LAUNCH_OCCUPANCY.column("inconsistent"),
    column("evidence", dtype=EVIDENCE, help="the numbers that the verdict rests on"),
)

_DECIDING: Final = ("compute_share", "memory_share", "waves", "rule_waves", "theoretical_share", "achieved_share")


@once
def kernel_bounds(counters: KernelCounters) -> pl.DataFrame:
    """The bound of each launch.

    A unit at 60 % or more of its peak is the bound: memory or compute, whichever is higher; a load/store pipe counts as
    memory (L1). With both below, the kernel waits: if its grid is less than one wave, by launch statistics or without
    them by Nsight Compute's own rule, it is too small for the GPU (`small`), else it is bound by latency, and the
    costliest fault and the longest warp stall are reported. Where one of the two throughputs was not collected, that
    side may be busy: `unknown`. The limits are those of Nsight Compute's rule SOLBottleneck.

    A pipe that does the kernel's arithmetic and is practically full is the bound even if L1 is a little fuller. Tensor
    cores of 9.0 read their operands from shared memory: a product that fills them fills the data pipe of L1 as well.

    Returns:
        `BOUNDS`, a row a launch. Nothing in it speaks of the time between kernels.
    """
    main_fault = kernel_faults(counters).unique("launch", keep="first", maintain_order=True)
    main_fault = main_fault.rename({"gain_share": "fault_gain_share", "evidence": "fault_evidence"})
    facts = kernel_facts(counters).join(main_fault, on="launch", how="left", maintain_order="left")
    facts = facts.with_columns(memory_unit=pl.coalesce("memory_unit", _busy_level))
    is_long_stall = pl.col("top_stall_share") >= _LONG_WAIT
    compute, memory = pl.col("compute_share"), pl.col("memory_share")
    top_share = pl.max_horizontal(compute, memory)
    full_pipe = pl.col("pipe_unit").is_in(list(_NECESSARY)) & (pl.col("pipe_share") >= _AT_ROOF)
    fed_pipe = full_pipe & (pl.col("memory_unit") == "l1") & (memory - pl.col("pipe_share") < _BALANCED)
    more_memory = (memory.fill_null(0) >= compute.fill_null(0)) | pl.col("compute_unit").is_in(_MEMORY_PIPES)
    by_memory = more_memory & ~fed_pipe.fill_null(value=False)
    busy = top_share >= LOW_SHARE
    full_issue = (pl.col("compute_unit") == "issue") & (pl.col("pipe_share") >= _PIPE_OF_ISSUE * compute)
    by_pipe = full_issue | (more_memory & fed_pipe)
    facts = facts.with_columns(
        stall=pl.when(is_long_stall).then("top_stall"),
        stall_share=pl.when(is_long_stall).then("top_stall_share"),
        bound=pl.when(top_share.is_null())
        .then(pl.lit("unknown"))
        .when(busy & by_memory)
        .then(pl.lit("memory"))
        .when(busy)
        .then(pl.lit("compute"))
        .when(_small_grid)
        .then(pl.lit("small"))
        .when((pl.col("waves") >= 1) & compute.is_not_null() & memory.is_not_null())
        .then(pl.lit("latency"))
        .otherwise(pl.lit("unknown")),
        unit=pl.when(busy & by_memory)
        .then(pl.when(memory >= compute).then("memory_unit").otherwise(pl.lit("l1")))
        .when(busy)
        .then(pl.when(by_pipe).then("pipe_unit").otherwise("compute_unit")),
        unit_share=pl.when(busy & ~by_memory & by_pipe).then("pipe_share").otherwise(top_share),
        balanced=busy & ((compute - memory).abs() < _BALANCED),
        at_roof=top_share >= _AT_ROOF,
        occupancy_limiter=pl.when(pl.col("fault") == "occupancy").then("limiter"),
    )
    waste_is_known = pl.any_horizontal(
        (pl.col("unit") == unit) & pl.col(metric).is_not_null() for unit, metric in _NECESSARY.items()
    )
    faulty = ~pl.col("at_roof") | pl.col("fault").is_not_null()
    healthy = pl.when(faulty).then(pl.lit(value=False)).when(waste_is_known).then(pl.lit(value=True))
    return BOUNDS.checked(facts.with_columns(healthy=healthy, evidence=evidence(*_DECIDING)))
