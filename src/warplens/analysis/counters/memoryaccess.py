"""Memory access and warp stalls: traffic of a kernel, and the reasons for which its warps waited."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.counters.speedoflight import LAUNCH, either, measured, share, stacked, with_launch
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column

_CYCLES = re.compile(r"^smsp__average_warps_issue_stalled_(?P<reason>\w+?)_per_issue_active\.ratio$")
_SAMPLES = re.compile(r"^smsp__pcsamp_warps_issue_stalled_(?P<reason>\w+?)(?<!_not_issued)$")

#: States of a warp that does not wait: it issues, or could and another was chosen.
NO_STALL: Final = frozenset({"selected", "not_selected"})


@dataclass(frozen=True)
class StallReason:
    """The event that a warp waits for in one state, and how to shorten the wait."""

    waits_for: str
    remedy: str


#: By Nsight Compute's name; meanings from its Kernel Profiling Guide, "Warp Scheduler States".
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

#: States that versions of the tool name differently.
_RENAMED_STATES: Final = {"no_instructions": "no_instruction"}

#: With fewer samples than this, a share of 30 % is uncertain by more than 9 points (95 % interval, binomial).
_SAMPLES_ENOUGH: Final = 100

STALLS: Final = table(
    "warp_stalls",
    "one state of the warps during one launch; of each launch the longest first",
    LAUNCH,
    column("reason", help="state, as Nsight Compute calls it", title="Wait"),
    optional(
        cycles="that a warp spends in it for each instruction that is issued",
        samples=("of the warp sampler that met it; null where cycles were counted", "Samples"),
    ),
    column("share", help="of all cycles between two instructions of a warp, or of all samples"),
    Column("waits_for", pl.String, "what for", nullable=True, title="What for"),
    column("remedy", nullable=True, title="What shortens it"),
)


def warp_stalls(counters: KernelCounters) -> pl.DataFrame:
    """The cycles between two instructions of a warp, split by stall reason.

    A state's cycles are the warps in it, averaged over the cycles, per cycle in which an instruction was issued
    (`smsp__average_warps_issue_stalled_…_per_issue_active`). Shares are of the sum of all states, `selected` included.
    Where these were not collected, the samples of the warp sampler are used (`smsp__pcsamp_warps_issue_stalled_…`).
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
    matches = [match for name in counters.metrics.columns if (match := pattern.match(name))]
    parts = [
        ([_RENAMED_STATES.get(match["reason"], match["reason"])], measured(counters, match.string).to_numpy())
        for match in matches
    ]
    return stacked(counters, parts, ["reason"], "amount")


def top_stalls(counters: KernelCounters) -> pl.DataFrame:
    """The longest stall of each launch, as in `STALLS`, except states without a wait.

    Launches with too few samples have none.
    """
    stalls = warp_stalls(counters).with_columns(all_samples=pl.col("samples").sum().over("launch"))
    enough_samples = pl.col("samples").is_null() | (pl.col("all_samples") >= _SAMPLES_ENOUGH)
    waits = stalls.filter(enough_samples & ~pl.col("reason").is_in(sorted(NO_STALL)) & (pl.col("share") > 0))
    return waits.unique("launch", keep="first", maintain_order=True).drop("all_samples")


#: A sector is the smallest unit of transfer between caches.
SECTOR_BYTES: Final = 32

MEMORY_ACCESS: Final = table(
    "memory_access",
    "one launch",
    LAUNCH,
    optional(
        global_load_requests="load instructions of warps on global memory",
        global_store_requests="store instructions of warps on global memory",
        global_load_sectors_per_request=("4 if 32 threads read 4 bytes each in a row", "Sectors/load"),
        global_store_sectors_per_request=("4 if 32 threads write 4 bytes each in a row", "/store"),
        global_load_bytes_per_sector="bytes used of the 32 that move",
        global_store_bytes_per_sector="bytes used of the 32 that move",
        global_sectors="that global accesses touch",
        tma_sectors="that the tensor memory accelerator (TMA) moves between global and shared memory",
        global_wasted_share=("of all these sectors, more than coalesced accesses would touch", "Not needed"),
    ),
    Column(
        "local_requests",
        pl.Float64,
        "loads and stores of thread-local memory (spills, indexed arrays)",
        nullable=True,
        title="Local",
        kind="count",
    ),
    optional(
        spill_requests="of these, to save registers",
        shared_wavefronts="passes that shared-memory instructions take",
        shared_conflict_share=("of those, because threads meet in a bank", "Conflicts"),
        shared_conflict_ways="passes for each that would do without conflicts; of loads or stores, whichever has more",
        conflict_cycles_share="of the kernel's cycles that such passes occupy the L1 data pipe",
        l1_hit_share=("of sectors found in L1", "L1 hits"),
        l2_hit_share=("of sectors found in L2", "L2 hits"),
        dram_read_bytes=("read from device memory", "read"),
        dram_write_bytes=("written to device memory", "written"),
        dram_bytes_per_s=("both, while the kernel ran", "DRAM"),
    ),
    Column("streaming", pl.Boolean, "reads everything once: a low hit rate is then as it should be", nullable=True),
)

#: If nothing is read twice, DRAM delivers at least this share of the sectors that loads request. Not 1: write
#: allocation, instructions and constants hit, and counters are sampled over part of the L2 slices.
_STREAMING_SHARE: Final = 0.75

_GLOBAL = "mem_global_op_"
_DERIVED: Final = {
    "load": ("ld", "sass__inst_executed_global_loads"),
    "store": ("st", "sass__inst_executed_global_stores"),
}


def memory_access(counters: KernelCounters) -> pl.DataFrame:
    """Memory requests of each launch, the traffic they caused, and the cache hits.

    Hit rates are facts, not grades. A kernel that reads each byte once hits L1 in nothing but the rest of a sector, and
    that is healthy (`streaming`); Nsight Compute also empties the caches before every pass unless told otherwise.

    Returns:
        `MEMORY_ACCESS`, a row a launch. Sectors wasted come from the access pattern of the instructions
        (`memory_l2_theoretical_sectors_global`, source counters) or else from the bytes used per sector; conflicts from
        the instructions' wavefronts (`memory_l1_wavefronts_shared`) or else from the bank-conflict counters.
    """
    frame = with_launch(
        counters,
        **_global_accesses(counters),
        **_shared_accesses(counters),
        l1_hit_share=share(counters, "l1tex__t_sector_hit_rate.pct"),
        l2_hit_share=share(counters, "lts__t_sector_hit_rate.pct"),
        dram_read_bytes=measured(counters, "dram__bytes_read.sum"),
        dram_write_bytes=measured(counters, "dram__bytes_write.sum"),
        dram_bytes_per_s=measured(counters, "dram__bytes.sum.per_second"),
    )
    # Sectors that TMA moves are all needed. Where they were not counted, L2 counts those of all units of L1.
    by_tma = pl.col("tma_sectors").fill_null(0)
    all_sectors = pl.max_horizontal(pl.col("global_sectors") + by_tma, "l1_sectors_at_l2")
    waste = pl.col("global_sectors_excessive") / all_sectors
    sectors_by_op = pl.col("global_load_sectors"), pl.col("global_store_sectors")
    used = pl.sum_horizontal(
        sectors.fill_null(0) * pl.col(f"global_{op}_bytes_per_sector").fill_null(0) / SECTOR_BYTES
        for op, sectors in zip(("load", "store"), sectors_by_op, strict=True)
    )
    touched = pl.sum_horizontal(sectors.fill_null(0) for sectors in sectors_by_op)
    has_bytes = pl.any_horizontal(pl.col(f"global_{op}_bytes_per_sector").is_not_null() for op in ("load", "store"))
    wavefronts, conflicts = pl.col("shared_wavefronts"), pl.col("shared_excessive")
    read_sectors = pl.col("dram_read_bytes") / SECTOR_BYTES
    frame = frame.with_columns(
        global_wasted_share=pl.coalesce(
            pl.when(pl.col("global_sectors") > 0).then(waste),
            pl.when((touched > 0) & has_bytes).then((touched - used) / (touched + by_tma)),
        ).clip(0.0, 1.0),
        global_sectors=pl.coalesce("global_sectors", pl.when(touched > 0).then(touched)),
        shared_conflict_share=pl.when(wavefronts > 0).then(conflicts / wavefronts).clip(0.0, 1.0),
        shared_conflict_ways=pl.coalesce(
            "shared_ways", pl.when(wavefronts > conflicts).then(wavefronts / (wavefronts - conflicts))
        ),
        streaming=read_sectors
        >= _STREAMING_SHARE * (pl.col("global_load_sectors") + pl.col("tma_load_sectors").fill_null(0)),
    )
    conflict_cycles = conflicts / (pl.col("elapsed_cycles") * pl.col("sm_count"))
    return MEMORY_ACCESS.checked(
        frame.with_columns(
            conflict_cycles_share=pl.when(pl.col("elapsed_cycles") > 0).then(conflict_cycles).clip(0.0, 1.0)
        )
    )


def _global_accesses(counters: KernelCounters) -> dict[str, pl.Series]:
    """Requests and sectors of global and local memory by launch; null where they were not collected."""
    columns = {}
    for way, (op, instructions) in _DERIVED.items():
        requests = measured(counters, f"l1tex__t_requests_pipe_lsu_{_GLOBAL}{op}.sum", instructions)
        sectors = measured(counters, f"l1tex__t_sectors_pipe_lsu_{_GLOBAL}{op}.sum")
        ratio = measured(counters, f"l1tex__average_t_sectors_per_request_pipe_lsu_{_GLOBAL}{op}.ratio")
        columns[f"global_{way}_requests"] = requests
        columns[f"global_{way}_sectors"] = either(sectors, ratio * requests)
        columns[f"global_{way}_sectors_per_request"] = either(sectors / requests, ratio)
        used = measured(counters, f"smsp__sass_average_data_bytes_per_sector_{_GLOBAL}{op}.ratio")
        columns[f"global_{way}_bytes_per_sector"] = used.zip_with(used > 0, used.clear(used.len()))
    local = measured(counters, "sass__inst_executed_local_loads", "smsp__sass_inst_executed_op_local_ld.sum")
    local_stores = measured(counters, "sass__inst_executed_local_stores", "smsp__sass_inst_executed_op_local_st.sum")
    sectors = measured(counters, "memory_l2_theoretical_sectors_global")
    at_l2 = [measured(counters, f"lts__t_sectors_srcunit_tex{op}.sum") for op in ("", "_op_read", "_op_write")]
    tma_loads = measured(counters, f"l1tex__m_xbar2l1tex_read_sectors_{_GLOBAL}tma_ld.sum")
    tma_stores = measured(counters, f"l1tex__m_l1tex2xbar_write_sectors_{_GLOBAL}tma_st.sum")
    return {
        **columns,
        "tma_load_sectors": tma_loads,
        "tma_sectors": tma_loads + tma_stores,
        "l1_sectors_at_l2": either(at_l2[0], at_l2[1] + at_l2[2]),
        "global_sectors": sectors,
        "global_sectors_excessive": sectors - measured(counters, "memory_l2_theoretical_sectors_global_ideal"),
        "local_requests": local + local_stores,
        "spill_requests": measured(
            counters, "derived__local_spilling_requests", "sass__inst_executed_register_spilling"
        ),
    }


def _shared_accesses(counters: KernelCounters) -> dict[str, pl.Series]:
    """Passes over shared memory by launch, how many of them conflicts of banks add, and what rates them."""
    wavefronts = measured(counters, "memory_l1_wavefronts_shared")
    excessive = wavefronts - measured(counters, "memory_l1_wavefronts_shared_ideal")
    by_bank = measured(counters, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")
    by_pipe = measured(counters, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
    # Loads and stores are kept apart: conflict-free stores do not make conflicting loads any better.
    ways = []
    for op in ("ld", "st"):
        passes = measured(counters, f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum")
        needed = passes - measured(counters, f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}.sum")
        ways.append((passes / needed).zip_with(needed > 0, needed.clear(needed.len())))
    return {
        "shared_ways": pl.DataFrame(dict(zip("ls", ways, strict=True))).max_horizontal(),
        "shared_wavefronts": wavefronts.zip_with(excessive.is_not_null(), by_pipe),
        "shared_excessive": either(excessive, by_bank),
        "elapsed_cycles": measured(
            counters, "l1tex__cycles_elapsed.avg", "sm__cycles_elapsed.avg", "gpc__cycles_elapsed.max"
        ),
        "sm_count": measured(counters, "launch__sm_count", "device__attribute_multiprocessor_count"),
    }
