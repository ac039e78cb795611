"""Instructions: how many of a warp's threads took part in them, and which kinds the kernel executed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.metrics import measured, share, with_launch
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["INSTRUCTIONS", "INSTRUCTION_MIX", "instruction_mix", "instruction_use"]

INSTRUCTIONS = Table(
    "instructions",
    "one launch",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("instructions", pl.Float64, "executed, a warp's counted once", nullable=True),
        Column("threads_per_instruction", pl.Float64, "of 32 that are active", nullable=True),
        Column("predicated_threads_per_instruction", pl.Float64, "of 32 that are active and not masked", nullable=True),
        Column(
            "full_warp_threads",
            pl.Float64,
            "threads per warp of the launch: fewer than 32 if blocks are odd",
            nullable=True,
        ),
        Column("uniform_branch_share", pl.Float64, "of branches that all threads of a warp take alike", nullable=True),
        Column("divergent_branches", pl.Float64, "branches that split a warp", nullable=True),
        Column("issue_active_share", pl.Float64, "of the cycles in which a scheduler with warps issues", nullable=True),
        Column(
            "issue_elapsed_share", pl.Float64, "of all cycles of the kernel in which a scheduler issues", nullable=True
        ),
        Column("tensor_share", pl.Float64, "of the peak rate of the tensor pipe", nullable=True),
        Column("fp64_share", pl.Float64, "of the peak rate of the FP64 pipe", nullable=True),
        Column("fma_share", pl.Float64, "of the peak rate of the FMA pipe", nullable=True),
    ),
)

INSTRUCTION_MIX = Table(
    "instruction_mix",
    "one opcode of one launch; of each launch the most frequent first",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("opcode", pl.String, "mnemonic of the machine instruction"),
        Column("instructions", pl.Float64, "executed, a warp's counted once"),
        Column("share", pl.Float64, "of all instructions of the launch"),
    ),
)

_OPCODES: Final = "sass__inst_executed_per_opcode"
_WARP: Final = 32
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"


def instruction_use(counters: KernelCounters) -> pl.DataFrame:
    """How full the warps were when they executed, how often schedulers issued, and how busy the math pipes were.

    Returns:
        `INSTRUCTIONS`, a row a launch.
    """
    launches = counters.launches
    threads = launches.select(pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")).to_series()
    warps = (threads / _WARP).ceil()
    issue_active = measured(counters, "smsp__issue_active.avg.per_cycle_active")
    executed = measured(counters, "inst_executed", "smsp__inst_executed.sum", "sm__inst_executed.sum")
    active = measured(counters, "smsp__thread_inst_executed_per_inst_executed.ratio")
    unmasked = measured(counters, "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio")
    return INSTRUCTIONS.checked(
        with_launch(
            counters,
            instructions=executed,
            threads_per_instruction=active.zip_with(
                active.is_not_null(), (measured(counters, "thread_inst_executed") / executed).fill_nan(None)
            ),
            predicated_threads_per_instruction=unmasked.zip_with(
                unmasked.is_not_null(), (measured(counters, "thread_inst_executed_true") / executed).fill_nan(None)
            ),
            full_warp_threads=(threads / warps).fill_nan(None),
            uniform_branch_share=share(counters, "smsp__sass_average_branch_targets_threads_uniform.pct"),
            divergent_branches=measured(counters, "smsp__sass_branch_targets_threads_divergent.sum"),
            issue_active_share=issue_active.zip_with(
                issue_active.is_not_null(), share(counters, "smsp__issue_active.avg.pct_of_peak_sustained_active")
            ),
            issue_elapsed_share=share(counters, f"sm__issue_active{_ELAPSED}", f"sm__inst_issued{_ELAPSED}"),
            tensor_share=share(counters, f"sm__pipe_tensor_cycles_active{_ELAPSED}"),
            fp64_share=share(counters, f"sm__pipe_fp64_cycles_active{_ELAPSED}"),
            fma_share=share(counters, f"sm__pipe_fma_cycles_active{_ELAPSED}"),
        )
    )


def instruction_mix(counters: KernelCounters) -> pl.DataFrame:
    """Which machine instructions each launch executed.

    Returns:
        `INSTRUCTION_MIX`; empty unless the report was read with the instances of `sass__inst_executed_per_opcode`.
    """
    instances = counters.instances.get(_OPCODES)
    if instances is None or "key" not in instances.columns:
        return INSTRUCTION_MIX.empty()
    mix = instances.select(
        pl.col("launch").cast(pl.Int64),
        pl.col("key").cast(pl.String).alias("opcode"),
        pl.col("value").cast(pl.Float64).alias("instructions"),
    ).drop_nulls()
    mix = mix.with_columns(share=pl.col("instructions") / pl.col("instructions").sum().over("launch"))
    return INSTRUCTION_MIX.checked(mix.sort("launch", "instructions", "opcode", descending=[False, True, False]))
