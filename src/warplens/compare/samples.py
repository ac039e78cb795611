"""Durations of a repeated step, in blocks: what every comparison is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Samples"]

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Samples:
    """Durations of one side of a comparison, in nanoseconds.

    A block is what one start of a program, one file or one turn among others gave. Durations of a block share what
    happened on the machine meanwhile (clocks, placement, neighbours), so that they resemble each other more than they
    do those of another block: only blocks are independent of each other.

    Attributes:
        blocks: one array a block, in the order in which they were taken; each holds at least one duration, above zero.
        paired: whether block i of this side was taken next to block i of the other side (in turns), so that the two
            share what happened then.
    """

    blocks: tuple[Float64s, ...]
    paired: bool = False

    def __post_init__(self) -> None:
        if not self.blocks or any(block.ndim != 1 or not block.size for block in self.blocks):
            raise UsageError("there are no durations to compare: a side needs a block, and each block a duration")
        if any(not np.isfinite(block).all() or (block <= 0).any() for block in self.blocks):
            raise UsageError("durations must be above zero")

    @classmethod
    def of(cls, blocks: Iterable[Sequence[float] | npt.NDArray[np.generic]], paired: bool = False) -> Samples:
        """Samples of any sequences of numbers."""
        return cls(tuple(np.asarray(block, dtype=np.float64) for block in blocks), paired)

    @property
    def count(self) -> int:
        """Durations in all blocks."""
        return sum(block.size for block in self.blocks)

    @property
    def values(self) -> Float64s:
        """All durations, block after block."""
        return np.concatenate(self.blocks)

    @property
    def median_ns(self) -> float:
        """Median of the blocks' medians: each block has one vote, however many durations it holds."""
        return float(np.median([np.median(block) for block in self.blocks]))
