"""Which tile sizes a kernel launches with: chosen from a table, so that a run needs no search and repeats exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BackwardTiles", "ForwardTiles", "backward_tiles", "forward_tiles"]

#: First compute capability with the tensor memory accelerator and warp-group matrix instructions.
HOPPER: Final = (9, 0)


@dataclass(frozen=True)
class ForwardTiles:
    """How the flash forward kernel is launched.

    Attributes:
        block_m: query rows per program.
        block_n: keys per step.
        warps: warps per program.
        stages: depth of the software pipeline over the keys.
        tma: tiles come through the tensor memory accelerator (Hopper and later).
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    tma: bool = False

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}/w{self.warps}/s{self.stages}{'/tma' * self.tma}"


@dataclass(frozen=True)
class BackwardTiles:
    """How the two gradient kernels are launched.

    Attributes:
        key_m, key_n: queries per step and keys per program of the dK/dV kernel.
        query_m, query_n: queries per program and keys per step of the dQ kernel.
        key_warps, query_warps: warps per program.
        key_stages, query_stages: depth of the software pipelines.
        skip: leave out blocks that the causal mask hides, and compare with the mask only where it cuts a block.
    """

    key_m: int
    key_n: int
    query_m: int
    query_n: int
    key_warps: int
    query_warps: int
    key_stages: int
    query_stages: int
    skip: bool = True

    def __str__(self) -> str:
        key = f"{self.key_m}x{self.key_n}/w{self.key_warps}/s{self.key_stages}"
        return f"dkdv {key} dq {self.query_m}x{self.query_n}/w{self.query_warps}/s{self.query_stages}"


def forward_tiles(head_dim: int, element_bytes: int, capability: tuple[int, int]) -> ForwardTiles:
    """The tiles for a GPU of this compute capability."""
    if element_bytes > 2:
        return ForwardTiles(64, 32, 4, 2)
    if capability >= HOPPER:
        return ForwardTiles(64, 128, 4, 3, tma=True) if head_dim <= 64 else ForwardTiles(64, 64, 4, 3, tma=True)
    return ForwardTiles(128, 64, 4, 3) if head_dim <= 64 else ForwardTiles(64, 64, 4, 3)


def backward_tiles(head_dim: int, element_bytes: int, capability: tuple[int, int]) -> BackwardTiles:
    """The tiles of the gradient kernels for a GPU of this compute capability."""
    if element_bytes > 2:
        return BackwardTiles(32, 32, 32, 32, 4, 4, 1, 1)
    if capability >= HOPPER:
        if head_dim <= 64:
            return BackwardTiles(64, 128, 128, 64, 8, 8, 3, 3)
        return BackwardTiles(64, 128, 128, 64, 8, 8, 2, 2)
    return BackwardTiles(32, 64, 64, 32, 4, 4, 2, 2)
