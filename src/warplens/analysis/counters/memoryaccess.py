"""Memory access: what a kernel's loads and stores asked for, what moved for them, and where it was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.counters.metrics import measured, share, with_launch
from warplens.profile.schema import Column, Table

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["MEMORY_ACCESS", "SECTOR_BYTES", "memory_access"]

#: A sector is the smallest piece that moves between caches.
SECTOR_BYTES: Final = 32

MEMORY_ACCESS = Table(
    "memory_access",
    "one launch",
    (
        Column("launch", pl.Int64, "row of `launches`"),
        Column("global_load_requests", pl.Float64, "load instructions of warps on global memory", nullable=True),
        Column("global_store_requests", pl.Float64, "store instructions of warps on global memory", nullable=True),
        Column(
            "global_load_sectors_per_request", pl.Float64, "4 if 32 threads read 4 bytes each in a row", nullable=True
        ),
        Column(
            "global_store_sectors_per_request", pl.Float64, "4 if 32 threads write 4 bytes each in a row", nullable=True
        ),
        Column("global_load_bytes_per_sector", pl.Float64, "bytes used of the 32 that move", nullable=True),
        Column("global_store_bytes_per_sector", pl.Float64, "bytes used of the 32 that move", nullable=True),
        Column("global_sectors", pl.Float64, "that global accesses touch", nullable=True),
        Column("global_wasted_share", pl.Float64, "of those, more than coalesced accesses would touch", nullable=True),
        Column(
            "local_requests",
            pl.Float64,
            "loads and stores of thread-local memory (spills, indexed arrays)",
            nullable=True,
        ),
        Column("spill_requests", pl.Float64, "of these, to save registers", nullable=True),
        Column("shared_wavefronts", pl.Float64, "passes that shared-memory instructions take", nullable=True),
        Column("shared_conflict_share", pl.Float64, "of those, because threads meet in a bank", nullable=True),
        Column(
            "shared_conflict_ways", pl.Float64, "passes for each pass that would do without conflicts", nullable=True
        ),
        Column(
            "conflict_cycles_share",
            pl.Float64,
            "of the kernel's cycles that such passes occupy the L1 data pipe",
            nullable=True,
        ),
        Column("l1_hit_share", pl.Float64, "of sectors found in L1", nullable=True),
        Column("l2_hit_share", pl.Float64, "of sectors found in L2", nullable=True),
        Column("dram_read_bytes", pl.Float64, "read from device memory", nullable=True),
        Column("dram_write_bytes", pl.Float64, "written to device memory", nullable=True),
        Column("dram_bytes_per_s", pl.Float64, "both, while the kernel ran", nullable=True),
        Column("streaming", pl.Boolean, "reads everything once: a low hit rate is then as it should be", nullable=True),
    ),
)

#: Of the sectors that loads ask for, DRAM delivers at least this share if nothing is read twice. Not 1: write
#: allocation, instructions and constants hit, and counters are sampled over part of the L2 slices.
_STREAMING_SHARE: Final = 0.75

_GLOBAL = "mem_global_op_"
_DERIVED: Final = {
    "load": ("ld", "sass__inst_executed_global_loads"),
    "store": ("st", "sass__inst_executed_global_stores"),
}


def memory_access(counters: KernelCounters) -> pl.DataFrame:
    """What each launch's memory instructions asked for, what moved, and where it was found.

    Hit rates are facts, no grades. A kernel that reads each byte once hits L1 in nothing but the rest of a sector, and
    that is healthy (`streaming`); Nsight Compute also empties the caches before every pass unless told otherwise.

    Returns:
        `MEMORY_ACCESS`, a row a launch. Sectors wasted come from the access pattern of the instructions
        (`memory_l2_theoretical_sectors_global`, source counters) or else from the bytes used per sector; conflicts from
        the instructions' wavefronts (`memory_l1_wavefronts_shared`) or else from the bank-conflict counters.
    """
    frame = with_launch(counters, **_global_accesses(counters), **_shared_accesses(counters), **_caches(counters))
    waste = pl.col("global_sectors_excessive") / pl.col("global_sectors")
    pieces = pl.col("global_load_sectors"), pl.col("global_store_sectors")
    used = pl.sum_horizontal(
        sectors.fill_null(0) * pl.col(f"global_{way}_bytes_per_sector").fill_null(0) / SECTOR_BYTES
        for way, sectors in zip(("load", "store"), pieces, strict=True)
    )
    touched = pl.sum_horizontal(sectors.fill_null(0) for sectors in pieces)
    has_bytes = pl.any_horizontal(pl.col(f"global_{way}_bytes_per_sector").is_not_null() for way in ("load", "store"))
    wavefronts, conflicts = pl.col("shared_wavefronts"), pl.col("shared_excessive")
    read_sectors = pl.col("dram_read_bytes") / SECTOR_BYTES
    frame = frame.with_columns(
        global_wasted_share=pl.coalesce(
            pl.when(pl.col("global_sectors") > 0).then(waste),
            pl.when((touched > 0) & has_bytes).then(1 - used / touched),
        ).clip(0.0, 1.0),
        global_sectors=pl.coalesce("global_sectors", pl.when(touched > 0).then(touched)),
        shared_conflict_share=pl.when(wavefronts > 0).then(conflicts / wavefronts).clip(0.0, 1.0),
        shared_conflict_ways=pl.when(wavefronts > conflicts).then(wavefronts / (wavefronts - conflicts)),
        streaming=read_sectors >= _STREAMING_SHARE * pl.col("global_load_sectors"),
    )
    conflict_cycles = conflicts / (pl.col("elapsed_cycles") * pl.col("sm_count"))
    return MEMORY_ACCESS.checked(
        frame.with_columns(
            conflict_cycles_share=pl.when(pl.col("elapsed_cycles") > 0).then(conflict_cycles).clip(0.0, 1.0)
        )
    )


def _global_accesses(counters: KernelCounters) -> dict[str, pl.Series]:
    columns = {}
    for way, (op, instructions) in _DERIVED.items():
        requests = measured(counters, f"l1tex__t_requests_pipe_lsu_{_GLOBAL}{op}.sum", instructions)
        sectors = measured(counters, f"l1tex__t_sectors_pipe_lsu_{_GLOBAL}{op}.sum")
        ratio = measured(counters, f"l1tex__average_t_sectors_per_request_pipe_lsu_{_GLOBAL}{op}.ratio")
        per_request = sectors / requests
        columns[f"global_{way}_requests"] = requests
        columns[f"global_{way}_sectors"] = sectors.zip_with(sectors.is_not_null(), ratio * requests)
        columns[f"global_{way}_sectors_per_request"] = per_request.zip_with(per_request.is_not_null(), ratio).fill_nan(
            None
        )
        used = measured(counters, f"smsp__sass_average_data_bytes_per_sector_{_GLOBAL}{op}.ratio")
        columns[f"global_{way}_bytes_per_sector"] = used.zip_with(used > 0, used.clear(used.len()))
    local = measured(counters, "sass__inst_executed_local_loads", "smsp__sass_inst_executed_op_local_ld.sum")
    local_stores = measured(counters, "sass__inst_executed_local_stores", "smsp__sass_inst_executed_op_local_st.sum")
    sectors = measured(counters, "memory_l2_theoretical_sectors_global")
    return {
        **columns,
        "global_sectors": sectors,
        "global_sectors_excessive": sectors - measured(counters, "memory_l2_theoretical_sectors_global_ideal"),
        "local_requests": local + local_stores,
        "spill_requests": measured(
            counters, "derived__local_spilling_requests", "sass__inst_executed_register_spilling"
        ),
    }


def _shared_accesses(counters: KernelCounters) -> dict[str, pl.Series]:
    wavefronts = measured(counters, "memory_l1_wavefronts_shared")
    excessive = wavefronts - measured(counters, "memory_l1_wavefronts_shared_ideal")
    by_bank = measured(counters, "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum")
    by_pipe = measured(counters, "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum")
    exact = excessive.is_not_null()
    return {
        "shared_wavefronts": wavefronts.zip_with(exact, by_pipe),
        "shared_excessive": excessive.zip_with(exact, by_bank),
        "elapsed_cycles": measured(
            counters, "l1tex__cycles_elapsed.avg", "sm__cycles_elapsed.avg", "gpc__cycles_elapsed.max"
        ),
        "sm_count": measured(counters, "launch__sm_count", "device__attribute_multiprocessor_count"),
    }


def _caches(counters: KernelCounters) -> dict[str, pl.Series]:
    return {
        "l1_hit_share": share(counters, "l1tex__t_sector_hit_rate.pct"),
        "l2_hit_share": share(counters, "lts__t_sector_hit_rate.pct"),
        "dram_read_bytes": measured(counters, "dram__bytes_read.sum"),
        "dram_write_bytes": measured(counters, "dram__bytes_write.sum"),
        "dram_bytes_per_s": measured(counters, "dram__bytes.sum.per_second"),
    }
