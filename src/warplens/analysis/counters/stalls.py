"""Warp stalls: what the warps of a kernel waited for between two instructions, by Nsight Compute's names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.metrics import measured, with_launch
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["NO_STALL", "STALLS", "STALL_REASONS", "StallReason", "top_stalls", "warp_stalls"]

_CYCLES = re.compile(r"^smsp__average_warps_issue_stalled_(?P<reason>\w+?)_per_issue_active\.ratio$")
_SAMPLES = re.compile(r"^smsp__pcsamp_warps_issue_stalled_(?P<reason>\w+?)(?<!_not_issued)$")

#: States of a warp that is not held up: it issues, or could and another was chosen.
NO_STALL: Final = frozenset({"selected", "not_selected"})


@dataclass(frozen=True)
class StallReason:
    """What a warp waits for in one state, and what shortens the wait."""

    waits_for: str
    remedy: str


#: By Nsight Compute's name; its Kernel Profiling Guide, "Warp Scheduler States", is the source of what they mean.
STALL_REASONS: Final = {
    "long_scoreboard": StallReason(
        "data from global, local or texture memory (L1, L2 or DRAM)",
        "have more loads in flight (unroll, wider loads, more warps), reuse data in shared memory, coalesce",
    ),
    "short_scoreboard": StallReason(
        "shared memory, special functions or dynamic branches (MIO)",
        "remove bank conflicts, keep values in registers, use fewer special functions",
    ),
    "mio_throttle": StallReason(
        "a place in the queue for shared memory, special functions and dynamic branches",
        "use fewer and wider shared-memory instructions",
    ),
    "lg_throttle": StallReason(
        "a place in the queue for global and local memory",
        "use fewer and wider loads and stores; avoid local memory (spills, indexed arrays)",
    ),
    "tex_throttle": StallReason(
        "a place in the queue for texture memory", "issue fewer texture operations, or load from global memory instead"
    ),
    "math_pipe_throttle": StallReason(
        "the execution pipe that its next instruction needs",
        "spread the work over other pipes, or use tensor cores; near the peak of that pipe it is as it should be",
    ),
    "wait": StallReason(
        "the fixed latency of the instruction before",
        "give the scheduler more warps or more independent instructions; common in well-tuned kernels",
    ),
    "barrier": StallReason(
        "the other warps of its block at a barrier", "use smaller blocks, synchronize less, even out the warps' work"
    ),
    "membar": StallReason("a memory barrier", "use fewer or narrower memory fences"),
    "branch_resolving": StallReason("the target of a branch", "branch less, let warps diverge less"),
    "no_instruction": StallReason(
        "its next instruction to be fetched", "jump less far, unroll less; usual in kernels of less than a wave"
    ),
    "imc_miss": StallReason(
        "a constant that missed the immediate constant cache",
        "read constants that the whole warp shares; usual at the start of short kernels",
    ),
    "drain": StallReason("its last stores before it may exit", "coalesce and spread the stores at the end"),
    "dispatch_stall": StallReason("the dispatcher, which holds instructions back", "look at conflicts of register use"),
    "gmma": StallReason("a warp group's matrix product", "overlap products with loads (more stages)"),
    "warpgroup_arrive": StallReason("the other warps of its warp group", "even out the work of a warp group"),
    "sleeping": StallReason("the end of its sleep", "sleep less or shorter"),
    "misc": StallReason("something else in the hardware", "none"),
    "not_selected": StallReason("another warp that was issued instead", "nothing: there are warps enough"),
    "selected": StallReason("nothing, it issues", "nothing"),
}

_WAITS_FOR = {reason: text.waits_for for reason, text in STALL_REASONS.items()}
_REMEDIES = {reason: text.remedy for reason, text in STALL_REASONS.items()}

#: Reports of different versions name the same state in two ways.
_SAME: Final = {"no_instructions": "no_instruction"}

#: With fewer samples than this, a share of 30 % is uncertain by more than 9 points (95 % interval, binomial).
_SAMPLES_ENOUGH: Final = 100

STALLS = Table(
    "warp_stalls",
    "one state of the warps during one launch; of each launch the longest first",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("reason", pl.String, "state, as Nsight Compute calls it"),
        Column("cycles", pl.Float64, "that a warp spends in it for each instruction that is issued", nullable=True),
        Column("samples", pl.Float64, "of the warp sampler that met it; null where cycles were counted", nullable=True),
        Column("share", pl.Float64, "of all cycles between two instructions of a warp, or of all samples"),
        Column("waits_for", pl.String, "what for", nullable=True),
        Column("remedy", pl.String, "what shortens it", nullable=True),
    ),
)


def warp_stalls(counters: KernelCounters) -> pl.DataFrame:
    """The cycles between two instructions of a warp, split by what it waited for.

    A state's cycles are the warps in it, averaged over the cycles, for each cycle in which an instruction was issued
    (`smsp__average_warps_issue_stalled_…_per_issue_active`). Shares are of the sum of all states, `selected` included.
    Where these were not collected, the samples of the warp sampler stand in (`smsp__pcsamp_warps_issue_stalled_…`).
    Long waits matter only where few instructions are issued: a kernel near a roof waits for that roof.

    Returns:
        `STALLS`; nothing for launches without these metrics.
    """
    counted = _states(counters, _CYCLES)
    sampled = _states(counters, _SAMPLES).join(counted, on="launch", how="anti")
    frame = pl.concat([counted.rename({"amount": "cycles"}), sampled.rename({"amount": "samples"})], how="diagonal")
    amount = pl.coalesce("cycles", "samples")
    total = amount.sum().over("launch")
    frame = frame.with_columns(
        share=pl.when(total > 0).then(amount / total).otherwise(0.0),
        waits_for=pl.col("reason").replace_strict(_WAITS_FOR, default=None, return_dtype=pl.String),
        remedy=pl.col("reason").replace_strict(_REMEDIES, default=None, return_dtype=pl.String),
    )
    return STALLS.checked(frame.sort("launch", amount, "reason", descending=[False, True, False]))


def _states(counters: KernelCounters, pattern: re.Pattern[str]) -> pl.DataFrame:
    """`launch`, `reason` and `amount` for every metric that matches."""
    states = [pl.DataFrame(schema={"launch": pl.Int64, "amount": pl.Float64, "reason": pl.String})]
    for name in counters.metrics.columns:
        if match := pattern.match(name):
            reason = pl.lit(_SAME.get(match["reason"], match["reason"]))
            states.append(
                with_launch(counters, amount=measured(counters, name)).with_columns(reason=reason).drop_nulls()
            )
    return pl.concat(states)


def top_stalls(counters: KernelCounters) -> pl.DataFrame:
    """The longest wait of each launch, as in `STALLS`; states in which a warp does not wait do not count.

    A launch with too few samples to tell has none.
    """
    stalls = warp_stalls(counters).with_columns(all_samples=pl.col("samples").sum().over("launch"))
    told = pl.col("samples").is_null() | (pl.col("all_samples") >= _SAMPLES_ENOUGH)
    waits = stalls.filter(told & ~pl.col("reason").is_in(sorted(NO_STALL)) & (pl.col("share") > 0))
    return waits.unique("launch", keep="first", maintain_order=True).drop("all_samples")
