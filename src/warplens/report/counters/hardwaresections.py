"""Sections of the document on counters about parts of the GPU: throughputs, occupancy, launches, stalls, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.counters.occupancy_limits import WARP_SIZE
from warplens.analysis.counters.stalls import NO_STALL
from warplens.report import format as fmt
from warplens.report.counters.sections import with_names
from warplens.report.counterwords import next_step_text
from warplens.report.document import Paragraph, Section, Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.report.counters.numbers import CounterNumbers
    from warplens.report.document import Block

__all__ = [
    "launch_section",
    "memory_section",
    "occupancy_section",
    "speed_of_light_section",
    "stalls_section",
]

_KERNEL: Final = TableColumn("name", "Kernel", "kernel", full="full_name")


def _absent(at: str, section: str, title: str, text: str) -> Section:
    return Section(f"{at}{section}", title, (Paragraph(text, quiet=True),))


def _all_null(frame: pl.DataFrame, *columns: str) -> bool:
    return all(frame[name].is_null().all() for name in columns)


# --- speed of light ---------------------------------------------------------------------------------------------------

_SPEED_COLUMNS: Final = (
    _KERNEL,
    TableColumn("compute_share", "Compute", "share", "Of the peak rate of the multiprocessors' busiest part."),
    TableColumn("compute_unit", "part", "text", "That part."),
    TableColumn("pipe_share", "Arithmetic", "share", "Of the peak rate of the busiest pipe for arithmetic."),
    TableColumn("pipe_unit", "pipe", "text", "That pipe."),
    TableColumn("memory_share", "Memory", "share", "Of the peak rate of the memory system's busiest part."),
    TableColumn("memory_unit", "part", "text", "That part."),
    TableColumn("dram_share", "DRAM", "share", "Of the peak bandwidth of device memory."),
    TableColumn("l2_share", "L2", "share", "Of the peak rate of the L2 cache."),
    TableColumn("l1_share", "L1", "share", "Of the peak rate of the L1 cache, while multiprocessors work."),
)

_BREAKDOWN_COLUMNS: Final = (
    _KERNEL,
    TableColumn("side", "Side", "text"),
    TableColumn("unit", "Part", "text"),
    TableColumn("share", "Of its peak", "share"),
    TableColumn("metric", "Metric", "name"),
)

#: Parts of each side that are shown of a kernel, and kernels.
_PARTS: Final = 4
_BROKEN_DOWN: Final = 6


def speed_of_light_section(numbers: CounterNumbers, at: str = "") -> Section:
    """How near each kernel came to the peaks, and by which parts of the GPU."""
    summary = numbers.summary
    if _all_null(summary, "compute_share", "memory_share"):
        text = "No throughput metrics were collected: --section SpeedOfLight, or --set basic."
        return _absent(at, "speed-of-light", "Speed of light", text)
    table = Table(f"{at}speed-table", "Share of the peak rates", _SPEED_COLUMNS, summary)
    blocks: list[Block] = [table]
    first = summary["launch"].head(_BROKEN_DOWN).to_list()
    parts = numbers.breakdown.filter(pl.col("launch").is_in(first) & (pl.col("share") > 0))
    parts = parts.unique(["launch", "side", "unit"], keep="first", maintain_order=True)
    parts = parts.group_by("launch", "side", maintain_order=True).head(_PARTS)
    if parts.height:
        shown = with_names(numbers, parts)
        caption = "What the two throughputs consist of, of the most expensive kernels"
        blocks.append(Table(f"{at}breakdown", caption, _BREAKDOWN_COLUMNS, shown))
    return Section(f"{at}speed-of-light", "Speed of light", tuple(blocks))


# --- occupancy and launch configuration -------------------------------------------------------------------------------

_OCCUPANCY_COLUMNS: Final = (
    _KERNEL,
    TableColumn("theoretical_share", "Theoretical", "share", "Resident warps that fit, of the most."),
    TableColumn("achieved_share", "Achieved", "share", "Resident warps while the multiprocessor worked."),
    TableColumn("limited_by", "Limiter", "text", "What keeps further blocks out."),
    TableColumn("registers_blocks", "by registers", "count", "Blocks that fit by registers."),
    TableColumn("shared_memory_blocks", "shared memory", "count", "Blocks that fit by shared memory."),
    TableColumn("warps_blocks", "warps", "count", "Blocks that fit by resident warps."),
    TableColumn("barriers_blocks", "barriers", "count", "Blocks that fit by barriers."),
    TableColumn("blocks_per_sm", "Blocks", "count", "That fit on a multiprocessor at a time."),
    TableColumn("next", "Next step", "text", "What would let a block more in, and the occupancy then."),
)


def occupancy_section(numbers: CounterNumbers, at: str = "") -> Section:
    """How many warps fit, what keeps out more, and how many there were."""
    summary = numbers.summary
    if _all_null(summary, "theoretical_share", "achieved_share"):
        text = "Neither launch statistics nor occupancy were collected: --section LaunchStats --section Occupancy."
        return _absent(at, "occupancy", "Occupancy", text)
    steps = [next_step_text(row) for row in summary.iter_rows(named=True)]
    rows = summary.with_columns(next=pl.Series(steps, dtype=pl.String))
    columns: tuple[TableColumn, ...] = _OCCUPANCY_COLUMNS
    blocks: list[Block] = []
    if rows["cluster_blocks"].is_not_null().any():
        clusters = (
            TableColumn("cluster_blocks", "Cluster", "count", "Blocks of a cluster."),
            TableColumn("cluster_share", "in clusters", "share", "Theoretical, with as many whole clusters as fit."),
        )
        columns = (*columns[:2], *clusters, *columns[2:])
    blocks.append(Table(f"{at}occupancy-table", "Warps on a multiprocessor", columns, rows))
    blocks.append(
        Paragraph(
            "High occupancy is no aim in itself: it helps where warps wait and others could work meanwhile.", quiet=True
        )
    )
    return Section(f"{at}occupancy", "Occupancy", tuple(blocks))


_LAUNCH_COLUMNS: Final = (
    _KERNEL,
    TableColumn("grid", "Grid", "text", "Blocks, as x,y,z."),
    TableColumn("block", "Block", "text", "Threads of a block, as x,y,z."),
    TableColumn("registers_per_thread", "Registers", "count", "Of a thread."),
    TableColumn("shared_bytes_per_block", "Shared memory", "bytes", "Static and dynamic, of a block."),
    TableColumn("waves", "Waves", "number", "Blocks of the grid / blocks that fit on the GPU at a time."),
    TableColumn("tail_share", "Last wave", "share", "Of the time, if blocks last equally long and it is not full."),
    TableColumn("problem", "Problem", "text"),
)

#: A last wave that takes less than a fifth of the time is not worth a different grid (rule LaunchStatistics).
_LONG_TAIL: Final = 0.2


def launch_section(numbers: CounterNumbers, at: str = "") -> Section:
    """How the kernels were launched, and what is wrong with that."""
    rows = numbers.summary.join(
        numbers.configurations.select("launch", "registers_per_thread", "shared_bytes_per_block", "threads_per_block"),
        on="launch",
        how="left",
        maintain_order="left",
    )
    problems = [_problems(row) for row in rows.iter_rows(named=True)]
    rows = rows.with_columns(problem=pl.Series(problems, dtype=pl.String))
    found = sum(problem is not None for problem in problems)
    text = (
        f"{fmt.count(found)} of {fmt.count(rows.height)} launch configurations have a problem."
        if found
        else "No launch configuration stands out."
    )
    rows = rows.sort(pl.col("problem").is_null(), maintain_order=True)
    table = Table(f"{at}launch-table", "Launch configurations", _LAUNCH_COLUMNS, rows)
    return Section(f"{at}launch", "Launch configuration", (Paragraph(text), table))


def _problems(row: dict[str, Any]) -> str | None:
    found = [text for check in _CHECKS if (text := check(row)) is not None]
    return "; ".join(found) or None


def _small_grid(row: dict[str, Any]) -> str | None:
    if row["waves"] is None or row["waves"] >= 1:
        return None
    if row["sm_count"] and row["grid_blocks"] is not None and row["grid_blocks"] < row["sm_count"]:
        return f"{fmt.count(row['grid_blocks'])} blocks for {fmt.count(row['sm_count'])} multiprocessors"
    return "less than one wave: the GPU is never full"


def _tail(row: dict[str, Any]) -> str | None:
    if row["tail_share"] is None or row["tail_share"] < _LONG_TAIL:
        return None
    return f"the partial last wave takes {fmt.share(row['tail_share'])} of the time"


def _partial_warps(row: dict[str, Any]) -> str | None:
    threads = row["threads_per_block"]
    if not threads or threads % WARP_SIZE == 0:
        return None
    return f"blocks of {fmt.count(threads)} threads fill no whole number of warps"


def _small_blocks(row: dict[str, Any]) -> str | None:
    if row["limiter"] not in ("warps", "blocks") or row["next_share"] is None:
        return None
    return f"the block size holds occupancy at {fmt.share(row['theoretical_share'])}"


def _clusters(row: dict[str, Any]) -> str | None:
    if row["cluster_share"] is None or row["cluster_share"] > 0.99 * row["theoretical_share"]:
        return None
    return f"clusters of {row['cluster_blocks']} leave multiprocessors partly empty"


_CHECKS: Final[tuple[Callable[[dict[str, Any]], str | None], ...]] = (
    _small_grid,
    _tail,
    _partial_warps,
    _small_blocks,
    _clusters,
)


# --- stalls -----------------------------------------------------------------------------------------------------------

_STALL_COLUMNS: Final = (
    _KERNEL,
    TableColumn("reason", "Wait", "text", "By Nsight Compute's name."),
    TableColumn("share", "Share", "share", "Of the cycles between two instructions of a warp."),
    TableColumn("waits_for", "What for", "text"),
    TableColumn("remedy", "What shortens it", "text"),
)

#: Waits of a kernel that are shown, if they are a twentieth of its cycles or more.
_WAITS: Final = 3
_LEAST_WAIT: Final = 0.05


def stalls_section(numbers: CounterNumbers, at: str = "") -> Section:
    """What the warps waited for."""
    waits = numbers.stalls.filter(~pl.col("reason").is_in(sorted(NO_STALL)) & (pl.col("share") >= _LEAST_WAIT))
    if numbers.stalls.is_empty():
        return _absent(at, "stalls", "Warp stalls", "No warp states were collected: --section WarpStateStats.")
    shown = with_names(numbers, waits.group_by("launch", maintain_order=True).head(_WAITS))
    table = Table(f"{at}stalls-table", "Longest waits of each kernel", _STALL_COLUMNS, shown, empty="No wait is long.")
    matters = Paragraph(
        "Waits matter where no unit is near its peak; a kernel at a roof waits for that roof.", quiet=True
    )
    return Section(f"{at}stalls", "Warp stalls", (table, matters))


# --- memory access ----------------------------------------------------------------------------------------------------

_MEMORY_COLUMNS: Final = (
    _KERNEL,
    TableColumn("dram_bytes_per_s", "DRAM", "bandwidth", "Read and written, while the kernel ran."),
    TableColumn("dram_read_bytes", "read", "bytes", "From device memory."),
    TableColumn("dram_write_bytes", "written", "bytes", "To device memory."),
    TableColumn("l1_hit_share", "L1 hits", "share", "Of sectors."),
    TableColumn("l2_hit_share", "L2 hits", "share", "Of sectors."),
    TableColumn("streams", "Streaming", "text", "Reads everything once: low hit rates are as they should be."),
    TableColumn(
        "global_load_sectors_per_request", "Sectors/load", "number", "4 where 32 threads read 4 bytes in a row."
    ),
    TableColumn("global_store_sectors_per_request", "/store", "number", "4 where 32 threads write 4 bytes in a row."),
    TableColumn(
        "global_wasted_share", "Not needed", "share", "Of the sectors touched, beyond those of coalesced access."
    ),
    TableColumn("shared_conflict_share", "Conflicts", "share", "Of shared-memory passes, because of bank conflicts."),
    TableColumn("local_requests", "Local", "count", "Requests to thread-local memory: spills and indexed arrays."),
    TableColumn("threads_per_instruction", "Threads", "number", "Of 32 active in an instruction."),
)


def memory_section(numbers: CounterNumbers, at: str = "") -> Section:
    """What loads and stores asked for, what moved, and where it was found."""
    rows = with_names(numbers, numbers.memory.join(numbers.instructions, on="launch", how="left"))
    known = [column.key for column in _MEMORY_COLUMNS if column.key not in ("name", "streams")]
    if _all_null(rows, *known):
        text = "No memory metrics were collected: --section MemoryWorkloadAnalysis."
        return _absent(at, "memory", "Memory access", text)
    rows = rows.with_columns(
        streams=pl.when("streaming").then(pl.lit("yes")).when(~pl.col("streaming")).then(pl.lit("no"))
    )
    columns = tuple(
        column for column in _MEMORY_COLUMNS if column.key in ("name", "streams") or not _all_null(rows, column.key)
    )
    facts = Paragraph(
        "Hit rates are facts, no grades: what reads every byte once finds little in a cache, and is healthy.",
        quiet=True,
    )
    return Section(
        f"{at}memory", "Memory access", (Table(f"{at}memory-table", "What moved, and why", columns, rows), facts)
    )
