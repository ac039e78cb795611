"""Bounds: what each kernel is limited by: memory, compute, latency, or too small a grid to say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.faults import EVIDENCE, LOW_SHARE, evidence, faults_of, kernel_facts
from warplens.analysis.counters.stalls import top_stalls
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["BOUNDS", "BOUND_KINDS", "bounds_of", "kernel_bounds"]

#: `unknown` is a launch without throughputs, or with low ones where nothing tells whether its grid fills the GPU.
BOUND_KINDS: Final = ("memory", "compute", "latency", "small", "unknown")

#: At this share of its peak, a unit is as good as full: only less work for it helps (rule SOLBottleneck).
_AT_ROOF: Final = 0.8

#: Two throughputs within ten points are in balance (rule SOLBottleneck): relief of one alone will not help.
_BALANCED: Final = 0.1

#: A wait of less than three tenths of the cycles is not the one to go after (rule CPIStall).
_LONG_WAIT: Final = 0.3

#: Parts of the multiprocessor that only pass on memory instructions: their limit is memory traffic, not arithmetic.
_MEMORY_PIPES: Final = ("lsu", "mio", "tex")

#: Where a pipe executes nine tenths of what the schedulers issue, it is what the kernel does, and not the issuing.
_PIPE_OF_ISSUE: Final = 0.9

#: Parts that are full when the work itself needs all that they can do, and what must be known before it can be said
#: that none of it is waste. Issue slots or L1 can be full of instructions that another kernel would do without.
_NECESSARY: Final = {
    "dram": "global_sectors",
    "l2": "global_sectors",
    "tensor": "threads_per_instruction",
    "fma": "threads_per_instruction",
    "fma-heavy": "threads_per_instruction",
    "fp64": "threads_per_instruction",
}

BOUNDS = Table(
    "bounds",
    "one launch",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("bound", pl.String, "one of `BOUND_KINDS`"),
        Column("unit", pl.String, "memory: which level; compute: which pipe", nullable=True),
        Column("unit_share", pl.Float64, "of that unit's peak rate; otherwise of the busiest unit's", nullable=True),
        Column("balanced", pl.Boolean, "compute and memory are equally near their peaks", nullable=True),
        Column("at_roof", pl.Boolean, "the unit is as good as full", nullable=True),
        Column(
            "healthy", pl.Boolean, "at a roof that its work needs, without a fault; null: cannot be said", nullable=True
        ),
        Column("fault", pl.String, "the costliest fault, of `FAULTS`", nullable=True),
        Column("fault_gain_share", pl.Float64, "of the kernel's time that it costs at most", nullable=True),
        Column("fault_evidence", EVIDENCE, "the numbers that show the fault", nullable=True),
        Column("stall", pl.String, "longest wait of the warps, where it is long", nullable=True),
        Column("stall_share", pl.Float64, "of the cycles between two instructions", nullable=True),
        Column(
            "occupancy_limiter", pl.String, "what keeps further blocks out, where occupancy is at fault", nullable=True
        ),
        Column("inconsistent", pl.String, "why the numbers cannot be of one launch; null if they can", nullable=True),
        Column("evidence", EVIDENCE, "the numbers that the verdict rests on"),
    ),
)

_DECIDING: Final = ("compute_share", "memory_share", "waves", "theoretical_share", "achieved_share")


def kernel_bounds(counters: KernelCounters) -> pl.DataFrame:
    """What each launch is limited by.

    A unit at 60 % or more of its peak is the bound: memory or compute, whichever is higher; a load/store pipe counts as
    memory (L1). With both below, the kernel waits: if its grid is less than one wave it is too small to say more
    (`small`), else it is bound by latency, for which the costliest fault and the longest warp stall are named. The
    limits are those of Nsight Compute's rule SOLBottleneck.

    A pipe that does the kernel's arithmetic and is as good as full is the bound even if L1 is a little fuller. Tensor
    cores of 9.0 read their operands from shared memory: a product that fills them fills the data pipe of L1 as well.

    Returns:
        `BOUNDS`, a row a launch. Nothing in it speaks of the time between kernels.
    """
    return bounds_of(kernel_facts(counters), top_stalls(counters))


def bounds_of(facts: pl.DataFrame, stalls: pl.DataFrame) -> pl.DataFrame:
    """`kernel_bounds` from `kernel_facts` and `top_stalls`."""
    first = faults_of(facts).unique("launch", keep="first", maintain_order=True)
    waits = stalls.filter(pl.col("share") >= _LONG_WAIT)
    facts = facts.join(
        first.rename({"gain_share": "fault_gain_share", "evidence": "fault_evidence"}),
        on="launch",
        how="left",
        maintain_order="left",
    ).join(waits.select("launch", stall="reason", stall_share="share"), on="launch", how="left", maintain_order="left")

    compute, memory = pl.col("compute_share"), pl.col("memory_share")
    top = pl.max_horizontal(compute, memory)
    fed_pipe = _full_of_arithmetic() & (pl.col("memory_unit") == "l1") & (memory - pl.col("pipe_share") < _BALANCED)
    more_memory = (memory.fill_null(0) >= compute.fill_null(0)) | pl.col("compute_unit").is_in(_MEMORY_PIPES)
    by_memory = more_memory & ~fed_pipe.fill_null(value=False)
    busy = top >= LOW_SHARE
    full_issue = (pl.col("compute_unit") == "issue") & (pl.col("pipe_share") >= _PIPE_OF_ISSUE * compute)
    by_pipe = full_issue | (more_memory & fed_pipe)
    facts = facts.with_columns(
        bound=pl.when(top.is_null())
        .then(pl.lit("unknown"))
        .when(busy & by_memory)
        .then(pl.lit("memory"))
        .when(busy)
        .then(pl.lit("compute"))
        .when(pl.col("waves") < 1)
        .then(pl.lit("small"))
        .when(pl.col("waves") >= 1)
        .then(pl.lit("latency"))
        .otherwise(pl.lit("unknown")),
        unit=pl.when(busy & by_memory)
        .then(pl.when(memory >= compute).then("memory_unit").otherwise(pl.lit("l1")))
        .when(busy)
        .then(pl.when(by_pipe).then("pipe_unit").otherwise("compute_unit")),
        unit_share=pl.when(busy & ~by_memory & by_pipe).then("pipe_share").otherwise(top),
        balanced=busy & ((compute - memory).abs() < _BALANCED),
        at_roof=top >= _AT_ROOF,
        occupancy_limiter=pl.when(pl.col("fault") == "occupancy").then("limiter"),
    )
    return BOUNDS.checked(
        facts.with_columns(
            healthy=pl.when(~pl.col("at_roof") | pl.col("fault").is_not_null())
            .then(pl.lit(value=False))
            .when(_waste_is_known())
            .then(pl.lit(value=True)),
            evidence=evidence(*_DECIDING),
        )
    )


def _full_of_arithmetic() -> pl.Expr:
    return pl.col("pipe_unit").is_in(list(_NECESSARY)) & (pl.col("pipe_share") >= _AT_ROOF)


def _waste_is_known() -> pl.Expr:
    return pl.any_horizontal(
        (pl.col("unit") == unit) & pl.col(metric).is_not_null() for unit, metric in _NECESSARY.items()
    )
