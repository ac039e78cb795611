"""Occupancy: resident warps of a kernel on a multiprocessor, their limiter, and the achieved number.

The formulas and their sources are in `docs/reference/occupancy.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

from warplens.analysis.counters.speedoflight import LAUNCH, either, measured, share, with_launch
from warplens.errors import UsageError
from warplens.profile.columns import column, optional, table
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import Column
from warplens.profile.trace import BLOCK_THREADS, GRID_BLOCKS

# --- Limits of one multiprocessor, by compute capability ---
#
# Sources: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute Capability"
# (resident threads and blocks, registers, shared memory), and for granularities, sub-partitions and barriers, which
# that table leaves out, NVIDIA's published occupancy calculator (`cuda_occupancy.h` of the CUDA Toolkit, 13.0).

#: The same for every compute capability from 7.0 on.
WARP_SIZE: Final = 32
SUB_PARTITIONS: Final = 4
MAX_THREADS_PER_BLOCK: Final = 1024
MAX_REGISTERS_PER_THREAD: Final = 255
#: Registers are allocated to a warp in units of this many.
REGISTER_GRANULARITY: Final = 256

_KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """Limits of a multiprocessor."""

    warps: int  #: resident at a time
    blocks: int  #: resident at a time
    shared_bytes: int  #: shared memory at the largest carve-out
    barriers: int  #: named barriers; every block reserves the ones it uses
    registers: int = 64 * 1024  #: of 32 bits
    shared_granularity_bytes: int = 128  #: a block's shared memory is rounded up to a multiple of this
    reserved_shared_bytes: int = 1 * _KIB  #: of each block, taken by the driver


#: By compute capability. 10.1 was renamed 11.0 by CUDA 13.
SM_LIMITS: Final = {
    (7, 0): SmLimits(64, 32, 96 * _KIB, 64, shared_granularity_bytes=256, reserved_shared_bytes=0),
    (7, 2): SmLimits(64, 32, 96 * _KIB, 64, shared_granularity_bytes=256, reserved_shared_bytes=0),
    (7, 5): SmLimits(32, 16, 64 * _KIB, 32, shared_granularity_bytes=256, reserved_shared_bytes=0),
    (8, 0): SmLimits(64, 32, 164 * _KIB, 64),
    (8, 6): SmLimits(48, 16, 100 * _KIB, 16),
    (8, 7): SmLimits(48, 16, 164 * _KIB, 16),
    (8, 9): SmLimits(48, 24, 100 * _KIB, 24),
    (9, 0): SmLimits(64, 32, 228 * _KIB, 64),
    (10, 0): SmLimits(64, 32, 228 * _KIB, 64),
    (10, 1): SmLimits(48, 24, 228 * _KIB, 24),
    (10, 3): SmLimits(64, 32, 228 * _KIB, 64),
    (11, 0): SmLimits(48, 24, 228 * _KIB, 24),
    (12, 0): SmLimits(48, 24, 100 * _KIB, 24),
    (12, 1): SmLimits(48, 24, 100 * _KIB, 24),
}

#: Barriers are a limit of the calculator from this major version on; before, blocks run out first.
FIRST_MAJOR_LIMITED_BY_BARRIERS: Final = 9


def limits_frame() -> pl.DataFrame:
    """`SM_LIMITS` as a frame: `major`, `minor`, and a column `sm_…` for each limit."""
    return pl.DataFrame(
        [
            {
                "major": major,
                "minor": minor,
                "sm_warps": sm.warps,
                "sm_blocks": sm.blocks,
                "sm_registers": sm.registers,
                "sm_shared_bytes": sm.shared_bytes,
                "sm_barriers": sm.barriers if major >= FIRST_MAJOR_LIMITED_BY_BARRIERS else None,
                "shared_granularity_bytes": sm.shared_granularity_bytes,
                "reserved_shared_bytes": sm.reserved_shared_bytes,
            }
            for (major, minor), sm in SM_LIMITS.items()
        ],
        infer_schema_length=None,
    )


def filling_block_warps() -> pl.DataFrame:
    """Block sizes to try where resident warps or blocks limit: `sm_warps`, `least_warps` and `filling_warps`.

    The smallest size of at least `least_warps` warps that divides the warps of a multiprocessor, so that whole blocks
    fill it; or the largest divisor, where no block may be that large.
    """
    largest = MAX_THREADS_PER_BLOCK // WARP_SIZE
    rows = []
    for sm_warps in sorted({sm.warps for sm in SM_LIMITS.values()}):
        sizes = [size for size in range(1, largest + 1) if sm_warps % size == 0]
        rows += [
            (sm_warps, least, next((size for size in sizes if size >= least), sizes[-1]))
            for least in range(1, largest + 1)
        ]
    return pl.DataFrame(rows, schema=["sm_warps", "least_warps", "filling_warps"], orient="row")


#: Resources that limit the blocks on a multiprocessor. Where several do, the first of these is called the limiter:
#: while resident warps or blocks have run out, saving other resources does not admit another block.
LIMITERS: Final = ("warps", "blocks", "registers", "shared-memory", "barriers")

#: Tolerance of a stated occupancy against the recomputed one (Nsight Compute prints two digits).
_TOLERANCE_SHARE: Final = 0.005

#: Achieved occupancy can exceed the theoretical one by measurement error: passes are replayed, counters sampled.
_MEASUREMENT_SHARE: Final = 0.02

CONFIGURATIONS: Final = table(
    "configurations",
    "one way to launch a kernel",
    Column("major", pl.Int64, "compute capability, before the point"),
    Column("minor", pl.Int64, "compute capability, after the point"),
    Column("threads_per_block", pl.Int64, "threads of a block"),
    "registers_per_thread",
    Column(
        "shared_bytes_per_block",
        pl.Int64,
        "static and dynamic, without what the driver reserves",
        title="Shared memory",
    ),
    Column("barriers", pl.Int64, "named barriers that a block uses", nullable=True),
    Column("carveout_bytes", pl.Int64, "shared memory configured on the multiprocessor; null: largest", nullable=True),
)

OCCUPANCY: Final = table(
    "occupancy",
    "one configuration, as in the input",
    optional(
        pl.Int64,
        registers_blocks=("blocks that fit by registers", "by registers"),
        shared_memory_blocks=("blocks that fit by shared memory", "shared memory"),
        barriers_blocks=("blocks that fit by barriers", "barriers"),
        warps_blocks=("blocks that fit by resident warps", "warps"),
        blocks_blocks="blocks that a multiprocessor can hold at all",
        blocks_per_sm=("the least of these", "Blocks"),
        warps_per_sm="warps of that many blocks",
    ),
    optional(theoretical_share=("of the resident warps that a multiprocessor can hold", "Occupancy")),
    column("limiter", help="what keeps out further blocks: one of `LIMITERS`; null at 100 %", nullable=True),
    Column(
        "co_limiters", pl.List(pl.String), "all that do; every one must give before a block more fits", nullable=True
    ),
    optional(
        pl.Int64,
        next_registers_per_thread="most with which a block more fits by registers",
        next_shared_bytes_per_block="most with which a block more fits by shared memory",
        next_barriers="most with which a block more fits by barriers",
        next_threads_per_block="block size that fills the warps where warps or blocks limit",
    ),
    optional(next_share="occupancy when the limiters have given way that far"),
)

LAUNCH_OCCUPANCY: Final = table(
    "launch_occupancy",
    "one launch",
    LAUNCH,
    OCCUPANCY.columns,
    optional(
        reported_share="theoretical occupancy by Nsight Compute",
        achieved_share=("resident warps while the multiprocessor worked, of the most", "achieved"),
    ),
    Column("grid_blocks", pl.Int64, "blocks of the grid", nullable=True),
    Column("sm_count", pl.Int64, "multiprocessors that the launch could use", nullable=True),
    Column("cluster_blocks", pl.Int64, "blocks of a cluster; null: none, or not said", nullable=True, title="Cluster"),
    Column("cluster_max_active", pl.Int64, "clusters that fit on the GPU at a time, by the driver", nullable=True),
    optional(
        cluster_share=(
            "theoretical occupancy with as many whole clusters as fit: never above that of blocks",
            "in clusters",
        ),
        waves="grid blocks / blocks that fit on the GPU at a time, in whole clusters; at least this many where it is"
        " not known how many clusters fit",
        tail_share=("of the run time that a last partial wave takes if blocks last equally long", "Last wave"),
    ),
    Column("inconsistent", pl.String, "why the numbers cannot be of one launch; null if they can", nullable=True),
)


def theoretical_occupancy(configurations: pl.DataFrame) -> pl.DataFrame:
    """Resident warps on a multiprocessor, their limiters, and the change that would admit another block.

    Args:
        configurations: `CONFIGURATIONS`.

    Returns:
        `OCCUPANCY`, one row per configuration. A configuration that cannot be launched fits 0 blocks.

    Raises:
        UsageError: a compute capability is not known.
        SchemaError: the frame does not match `CONFIGURATIONS`.
    """
    known = CONFIGURATIONS.checked(configurations).join(
        limits_frame(), on=["major", "minor"], how="left", maintain_order="left"
    )
    if unknown := known.filter(pl.col("sm_warps").is_null()).select("major", "minor").unique().rows():
        capabilities = ", ".join(f"{major}.{minor}" for major, minor in unknown)
        supported = ", ".join(f"{major}.{minor}" for major, minor in SM_LIMITS)
        raise UsageError(f"occupancy of compute capability {capabilities} is not known; known are {supported}")
    frame = _with_blocks(known)
    full = pl.col("warps_per_sm") >= pl.col("sm_warps")
    fits = {limiter: blocks > pl.col("blocks_per_sm") for limiter, blocks in _BLOCKS_BY.items()}
    # The driver configures no more shared memory than the other limits can use: a tie with them is meaningless unless
    # the largest carve-out would be just as full. The same holds for barriers, which are counted only up to the block
    # limit.
    other_limits = pl.min_horizontal(*(blocks for limiter, blocks in _BLOCKS_BY.items() if limiter != "shared-memory"))
    at_largest = (pl.col("block_shared") == 0) | (
        pl.col("sm_shared_bytes") // pl.col("block_shared") > pl.col("blocks_per_sm")
    )
    fits["shared-memory"] |= at_largest & (pl.col("shared_memory_blocks") >= other_limits)
    by_barriers = pl.col("sm_barriers") // pl.max_horizontal(pl.col("barriers"), pl.lit(1, dtype=pl.Int64))
    fits["barriers"] |= (by_barriers > pl.col("blocks_per_sm")).fill_null(value=True)
    limiting = pl.concat_list(pl.when(~admits_more).then(pl.lit(limiter)) for limiter, admits_more in fits.items())
    frame = frame.with_columns(co_limiters=pl.when(~full).then(limiting.list.drop_nulls()))
    return OCCUPANCY.checked(_with_next_step(frame.with_columns(limiter=pl.col("co_limiters").list.first())))


#: Number of blocks that each resource admits.
_BLOCKS_BY: Final = {limiter: pl.col(f"{limiter.replace('-', '_')}_blocks") for limiter in LIMITERS}


def _with_blocks(known: pl.DataFrame) -> pl.DataFrame:
    """Add the number of blocks by each resource, their minimum, and the resulting occupancy."""
    threads, warps, warp_registers = (pl.col(name) for name in ("threads_per_block", "warps", "warp_registers"))
    sm_blocks, sm_registers, block_shared = (pl.col(name) for name in ("sm_blocks", "sm_registers", "block_shared"))
    shared_bytes = pl.col("shared_bytes_per_block") + pl.col("reserved_shared_bytes")
    frame = known.with_columns(
        warps=_divided_up(threads, WARP_SIZE),
        warp_registers=_rounded_up(pl.col("registers_per_thread") * WARP_SIZE, REGISTER_GRANULARITY),
        block_shared=_rounded_up(shared_bytes, pl.col("shared_granularity_bytes")),
    )
    # Hardware checks the registers of a block as if its warps filled all sub-partitions evenly.
    launchable = (_rounded_up(warps, SUB_PARTITIONS) * warp_registers <= sm_registers) & (
        pl.col("registers_per_thread") <= MAX_REGISTERS_PER_THREAD
    )
    warps_by_registers = SUB_PARTITIONS * (sm_registers // SUB_PARTITIONS // warp_registers)
    shared_pool = pl.coalesce("carveout_bytes", "sm_shared_bytes")
    frame = frame.with_columns(
        registers_blocks=pl.when(~launchable)
        .then(0)
        .when(warp_registers > 0)
        .then(warps_by_registers // warps)
        .otherwise(sm_blocks),
        shared_memory_blocks=pl.when(block_shared > 0).then(shared_pool // block_shared).otherwise(sm_blocks),
        barriers_blocks=pl.min_horizontal(
            sm_blocks, pl.col("sm_barriers") // pl.max_horizontal(pl.col("barriers"), pl.lit(1, dtype=pl.Int64))
        ),
        warps_blocks=pl.when(threads <= MAX_THREADS_PER_BLOCK).then(pl.col("sm_warps") // warps).otherwise(0),
        blocks_blocks=sm_blocks,
    )
    frame = frame.with_columns(blocks_per_sm=pl.min_horizontal(*_BLOCKS_BY.values()))
    frame = frame.with_columns(warps_per_sm=pl.col("blocks_per_sm") * warps)
    return frame.with_columns(theoretical_share=pl.col("warps_per_sm") / pl.col("sm_warps"))


def _with_next_step(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the limiters' values that would admit another block, the block size that fills the warps, and the result."""
    more = pl.col("blocks_per_sm") + 1
    fits = (pl.col("warps") * more <= pl.col("sm_warps")) & (more <= pl.col("sm_blocks"))
    warps_per_partition = _divided_up(more * pl.col("warps"), SUB_PARTITIONS)
    partition_registers = pl.col("sm_registers") // SUB_PARTITIONS
    warp_registers = partition_registers // warps_per_partition // REGISTER_GRANULARITY * REGISTER_GRANULARITY
    registers = pl.min_horizontal(warp_registers // WARP_SIZE, pl.lit(MAX_REGISTERS_PER_THREAD, dtype=pl.Int64))
    granularity = pl.col("shared_granularity_bytes")
    shared = pl.min_horizontal(
        pl.col("sm_shared_bytes") // more // granularity * granularity - pl.col("reserved_shared_bytes"),
        "shared_bytes_per_block",
    )
    limited_by = {limiter: pl.col("co_limiters").list.contains(limiter) for limiter in LIMITERS}
    by_size = limited_by["warps"] | limited_by["blocks"]
    least = pl.max_horizontal(pl.col("warps"), _divided_up(pl.col("sm_warps"), pl.col("sm_blocks")))
    sized = frame.with_columns(least_warps=least).join(
        filling_block_warps(), on=["sm_warps", "least_warps"], how="left", maintain_order="left"
    )
    filling = pl.col("filling_warps") * WARP_SIZE
    stepped = sized.with_columns(
        next_registers_per_thread=pl.when(limited_by["registers"] & fits & (registers > 0)).then(registers),
        next_shared_bytes_per_block=pl.when(limited_by["shared-memory"] & fits & (shared >= 0)).then(shared),
        next_barriers=pl.when(limited_by["barriers"] & fits).then(pl.col("sm_barriers") // more),
        next_threads_per_block=pl.when(by_size & (filling != pl.col("threads_per_block"))).then(filling),
    )
    then = _with_blocks(
        stepped.with_columns(
            pl.coalesce(f"next_{name}", name).alias(name)
            for name in ("registers_per_thread", "shared_bytes_per_block", "barriers", "threads_per_block")
        ).with_columns(carveout_bytes=pl.lit(None, dtype=pl.Int64))
    )
    rises = then["theoretical_share"] > frame["theoretical_share"]
    return stepped.with_columns(next_share=then["theoretical_share"]).with_columns(
        pl.when(rises & pl.col("limiter").is_not_null()).then(name).alias(name)
        for name in [*stepped.columns, "next_share"]
        if name.startswith("next_")
    )


def launch_configurations(counters: KernelCounters) -> pl.DataFrame:
    """The configuration of each launch: `CONFIGURATIONS` beside `launch`, for the launches that state all of it."""
    capability = next((device.compute_capability for device in counters.capture.devices), None) or (None, None)
    attribute = "device__attribute_compute_capability_"
    configured = with_launch(
        counters,
        major=measured(counters, f"{attribute}major"),
        minor=measured(counters, f"{attribute}minor"),
        # Part of every launch's identity, whether or not launch statistics were collected.
        threads_per_block=either(
            measured(counters, "launch__block_size"),
            counters.launches.select(BLOCK_THREADS.cast(pl.Float64)).to_series(),
        ),
        registers_per_thread=measured(counters, "launch__registers_per_thread"),
        shared_bytes_per_block=measured(counters, "launch__shared_mem_per_block_static")
        + measured(counters, "launch__shared_mem_per_block_dynamic"),
        barriers=measured(counters, "launch__barrier_count"),
        carveout_bytes=measured(counters, "launch__shared_mem_config_size"),
    )
    stated = (pl.lit(number, dtype=pl.Float64) for number in capability)
    configured = configured.with_columns(map(pl.coalesce, ("major", "minor"), stated))
    as_integers = pl.exclude("launch").round().cast(pl.Int64, strict=False)  # a damaged report may hold any number
    required = [column.name for column in CONFIGURATIONS.columns if not column.nullable]
    # For ranges and graphs, these are means or maxima over their kernels, not of one launch.
    configured = configured.with_columns(as_integers).filter(_of_kernels(counters))
    return configured.drop_nulls(required).filter(pl.col("threads_per_block") > 0)


def launch_occupancy(counters: KernelCounters) -> pl.DataFrame:
    """Theoretical occupancy of each launch, recomputed from its configuration, with the reported and achieved ones.

    Contradictory numbers are not used: `inconsistent` gives the reason, for instance a theoretical occupancy of 100 %
    with 64 registers per thread, or an achieved occupancy above the theoretical one.

    Returns:
        `LAUNCH_OCCUPANCY`, one row per launch; null where a launch does not state a value.
    """
    configured = launch_configurations(counters)
    known = configured.join(limits_frame().select("major", "minor"), on=["major", "minor"], how="semi")
    occupancy = pl.concat(
        [known.select("launch"), theoretical_occupancy(known.select(c.name for c in CONFIGURATIONS.columns))],
        how="horizontal",
    )
    # Launches without clusters have a size of 0, or 1 block.
    size, active = (measured(counters, f"launch__cluster_{metric}") for metric in ("size", "max_active"))
    nulls = size.clear(size.len())
    sm_count = measured(counters, "launch__sm_count", "device__attribute_multiprocessor_count")
    frame = with_launch(
        counters,
        reported_share=share(counters, "sm__maximum_warps_per_active_cycle_pct"),
        achieved_share=share(counters, "sm__warps_active.avg.pct_of_peak_sustained_active"),
        grid_blocks=counters.launches.select(GRID_BLOCKS).to_series(),
        sm_count=sm_count.cast(pl.Int64, strict=False),
        cluster_blocks=size.zip_with(size > 1, nulls).cast(pl.Int64, strict=False),
        cluster_max_active=active.zip_with((size > 1) & (active > 0), nulls).cast(pl.Int64, strict=False),
    )
    frame = frame.join(occupancy, on="launch", how="left", maintain_order="left")
    fitting = pl.col("blocks_per_sm") * pl.col("sm_count")
    in_clusters = pl.min_horizontal(fitting, pl.col("cluster_blocks") * pl.col("cluster_max_active"))
    clustered = pl.col("cluster_max_active").is_not_null()
    frame = frame.with_columns(
        cluster_share=pl.when(clustered & (fitting > 0)).then(pl.col("theoretical_share") * in_clusters / fitting)
    )
    computed = pl.when(fitting > 0).then(
        pl.col("grid_blocks") / pl.when(clustered).then(in_clusters).otherwise(fitting)
    )
    of_kernels = _of_kernels(counters)
    cluster_columns = ("cluster_blocks", "cluster_max_active", "cluster_share")
    per_kernel = pl.col("reported_share", "grid_blocks", *cluster_columns, "reported_waves")
    reported = measured(counters, "launch__waves_per_multiprocessor").alias("reported_waves")
    frame = frame.with_columns(reported).with_columns(pl.when(of_kernels).then(per_kernel))
    waves = pl.coalesce(computed, "reported_waves")
    # A last wave that is not full takes as long as a full one: 1 / (full waves + 1) of the run time.
    unknown_waves = waves.is_null() | (pl.col("cluster_blocks").is_not_null() & ~clustered)
    partial = (waves > 1) & (waves > waves.floor())
    tail_share = pl.when(~unknown_waves).then(pl.when(partial).then(1 / (waves.floor() + 1)).otherwise(0.0))
    return LAUNCH_OCCUPANCY.checked(
        frame.with_columns(waves=waves, tail_share=tail_share, inconsistent=_contradiction())
    )


def _of_kernels(counters: KernelCounters) -> pl.Series:
    return counters.launches["kind"].cast(pl.String) == "kernel"


def _contradiction() -> pl.Expr:
    theoretical, reported, achieved = (pl.col(f"{kind}_share") for kind in ("theoretical", "reported", "achieved"))
    return (
        pl.when(pl.col("blocks_per_sm") == 0)
        .then(pl.lit("not even one block of this configuration fits on a multiprocessor"))
        .when((theoretical - reported).abs() > _TOLERANCE_SHARE)
        .then(pl.lit("the reported theoretical occupancy is not that of the reported configuration"))
        .when(achieved > pl.coalesce(theoretical, reported) + _MEASUREMENT_SHARE)
        .then(pl.lit("the achieved occupancy is above the theoretical one"))
    )


def _divided_up(value: pl.Expr, by: pl.Expr | int) -> pl.Expr:
    return -((-value) // by)


def _rounded_up(value: pl.Expr, to: pl.Expr | int) -> pl.Expr:
    return _divided_up(value, to) * to
