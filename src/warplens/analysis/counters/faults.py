"""Faults: what is wrong with a kernel, the costliest first, each with the most it costs and the numbers that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.instructions import instruction_use
from warplens.analysis.counters.memoryaccess import memory_access
from warplens.analysis.counters.occupancy import launch_occupancy
from warplens.analysis.counters.occupancy_limits import WARP_SIZE
from warplens.analysis.counters.speedoflight import speed_of_light
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["EVIDENCE", "FAULTS", "FAULT_NAMES", "LOW_SHARE", "evidence", "faults_of", "kernel_facts", "kernel_faults"]

#: Below this, a throughput says that the kernel mostly waited (Nsight Compute's rule SOLBottleneck).
LOW_SHARE: Final = 0.6

#: A fault that cannot cost a tenth of the kernel's time is not named: fixing it could hardly be measured.
_LEAST_GAIN: Final = 0.1

#: Fewer active threads than 24 of 32 are divergence (Nsight Compute's rule ThreadDivergence).
_FULL_WARP_SHARE: Final = 0.75

#: Up to half of the warps, latency is often not hidden; above, instruction-level parallelism usually does the rest
#: (V. Volkov, "Better Performance at Lower Occupancy", GTC 2010). High occupancy is no aim in itself.
_LOW_OCCUPANCY: Final = 0.5

#: What was achieved must come this near to what fits before what fits is to blame (rule LaunchStatistics: 0.8).
_ACHIEVED_OF_THEORETICAL: Final = 0.8

#: A last wave that takes less than a fifth of the run time is not worth a different grid (rule LaunchStatistics).
_LONG_TAIL: Final = 0.2

#: Named numbers that support a statement.
EVIDENCE = pl.List(pl.Struct({"name": pl.String, "value": pl.Float64}))

FAULTS = Table(
    "faults",
    "one fault of one launch; of each launch the costliest first",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("fault", pl.String, "which one: one of `FAULT_NAMES`"),
        Column("gain_share", pl.Float64, "of the kernel's time that it costs at most; several do not add up"),
        Column("evidence", EVIDENCE, "the numbers that say so"),
    ),
)


@dataclass(frozen=True)
class _Fault:
    """A fault: when it is one, what it costs at most, which numbers say so."""

    name: str
    when: pl.Expr
    gain: pl.Expr
    shown: tuple[str, ...]


_top = pl.max_horizontal("compute_share", "memory_share")
_waves_up = pl.col("waves").floor() + 1

_FAULTS: Final = (
    _Fault(
        "small-grid",
        (pl.col("waves") < 1) & (_top < LOW_SHARE),
        # Work that scales with the multiprocessors (rule LaunchStatistics), or with the free room on them.
        pl.max_horizontal(1 - pl.col("grid_blocks") / pl.col("sm_count"), (1 - pl.col("waves")) * (1 - _top)),
        ("grid_blocks", "sm_count", "waves"),
    ),
    _Fault(
        "uncoalesced",
        pl.col("global_wasted_share") > 0,
        # Of the traffic that keeps the memory system busy, this much is not needed (rule MemoryCacheAccessPattern).
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
        (pl.col("theoretical_share") <= _LOW_OCCUPANCY)
        & (pl.col("achieved_share") >= _ACHIEVED_OF_THEORETICAL * pl.col("theoretical_share"))
        & (_top < LOW_SHARE),
        (1 - pl.col("theoretical_share")) * (1 - _top),
        ("theoretical_share", "achieved_share", "next_share"),
    ),
    _Fault(
        "tail",
        (pl.col("tail_share") >= _LONG_TAIL)
        & (pl.col("achieved_share") < _ACHIEVED_OF_THEORETICAL * pl.col("theoretical_share"))
        & (_top < LOW_SHARE),
        # Room for blocks that the last wave leaves free.
        (_waves_up - pl.col("waves")) / _waves_up,
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

#: Every fault there is, by name.
FAULT_NAMES: Final = tuple(fault.name for fault in _FAULTS)


def kernel_facts(counters: KernelCounters) -> pl.DataFrame:
    """Throughputs, occupancy, memory access and instructions of each launch side by side."""
    frame = speed_of_light(counters)
    for other in (launch_occupancy(counters), memory_access(counters), instruction_use(counters)):
        frame = frame.join(other, on="launch", how="left", maintain_order="left")
    return frame


def kernel_faults(counters: KernelCounters) -> pl.DataFrame:
    """What is wrong with each launch.

    What a fault costs at most is a ceiling for the whole kernel, from NVIDIA's own estimates where its rules have one:
    the kernel would not get faster by more. A launch whose numbers contradict one another has no occupancy faults.

    Returns:
        `FAULTS`; nothing for launches without one, or without the metrics that would show it.
    """
    return faults_of(kernel_facts(counters))


def faults_of(facts: pl.DataFrame) -> pl.DataFrame:
    """`kernel_faults` from `kernel_facts`."""
    believed = {name: pl.when(pl.col("inconsistent").is_null()).then(name) for name in ("theoretical_share", "waves")}
    facts = facts.with_columns(**believed)
    found = [
        facts.filter(fault.when.fill_null(value=False)).select(
            "launch", fault=pl.lit(fault.name), gain_share=fault.gain.clip(0.0, 1.0), evidence=evidence(*fault.shown)
        )
        for fault in _FAULTS
    ]
    worth = pl.concat(found).filter(pl.col("gain_share") >= _LEAST_GAIN)
    return FAULTS.checked(worth.sort("launch", "gain_share", "fault", descending=[False, True, False]))


def evidence(*names: str) -> pl.Expr:
    """These columns as `EVIDENCE`, without those that are null."""
    items = [pl.struct(name=pl.lit(name), value=pl.col(name).cast(pl.Float64)) for name in names]
    listed = pl.concat_list(items)
    return listed.list.eval(pl.element().filter(pl.element().struct.field("value").is_not_null()))
