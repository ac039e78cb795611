"""What fits on one multiprocessor at a time, by compute capability.

Sources: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute Capability"
(resident threads and blocks, registers, shared memory), and for granularities, sub-partitions and barriers, which that
table leaves out, NVIDIA's published occupancy calculator (`cuda_occupancy.h` of the CUDA Toolkit, 13.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import polars as pl

__all__ = [
    "MAX_REGISTERS_PER_THREAD",
    "MAX_THREADS_PER_BLOCK",
    "REGISTER_GRANULARITY",
    "SM_LIMITS",
    "SUB_PARTITIONS",
    "WARP_SIZE",
    "SmLimits",
    "filling_block_warps",
    "limits_frame",
]

#: The same for every compute capability from 7.0 on.
WARP_SIZE: Final = 32
SUB_PARTITIONS: Final = 4
MAX_THREADS_PER_BLOCK: Final = 1024
MAX_REGISTERS_PER_THREAD: Final = 255
#: Registers are given to a warp in units of this many.
REGISTER_GRANULARITY: Final = 256

_KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """Limits of a multiprocessor.

    Attributes:
        warps: resident at a time.
        blocks: resident at a time.
        shared_bytes: shared memory at the largest carve-out.
        barriers: named barriers; every block holds as many as it uses.
        registers: of 32 bits.
        shared_granularity_bytes: a block's shared memory is rounded up to a multiple of this.
        reserved_shared_bytes: of each block, taken by the driver.
    """

    warps: int
    blocks: int
    shared_bytes: int
    barriers: int
    registers: int = 64 * 1024
    shared_granularity_bytes: int = 128
    reserved_shared_bytes: int = 1 * _KIB


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

#: The calculator counts barriers as a limit from this major version on; before, blocks run out first.
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
    """The block size to try where resident warps or blocks limit: `sm_warps`, `least_warps` and `filling_warps`.

    It is the smallest size of at least `least_warps` warps that divides the warps of a multiprocessor, so that whole
    blocks fill it; or the largest that does, where no block may be so large.
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
