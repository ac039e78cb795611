"""Resampled times of the points of a sweep: the noise that crossover and break-even carry into their intervals.

Blocks are drawn, never single durations. Where the sides were measured in turns, block i of the one is drawn together
with block i of the other, and, where all points have equally many, with block i of every point: what disturbed a round
disturbed all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.sweep import Cell, Point

__all__ = ["LEAST_BLOCKS", "Replicates", "replicates"]

Float64s = npt.NDArray[np.float64]

#: With fewer blocks the spread between them is unknown for practical purposes: the t quantile of three is 4.3.
LEAST_BLOCKS: Final = 4

#: A single block is cut into this many pieces at most: neighbours in time resemble each other, and stay together.
_MOST_PIECES: Final = 20

#: Durations that a piece of a single block holds at least.
_LEAST_IN_PIECE: Final = 2


@dataclass(frozen=True, eq=False)
class Replicates:
    """Logarithms of the times of points, as measured and as resampled.

    Attributes:
        baseline, variant: estimates, one a point.
        baseline_draws, variant_draws: resampled, one row a draw, one column a point; equal to the estimate where a
            point has no noise that could be resampled.
        known: whether the noise of the point is known.
        within: whether it is only that within one block.
    """

    baseline: Float64s
    variant: Float64s
    baseline_draws: Float64s
    variant_draws: Float64s
    known: npt.NDArray[np.bool_]
    within: npt.NDArray[np.bool_]

    @property
    def ratio(self) -> Float64s:
        """Log of variant / baseline, one a point: negative where the variant is faster."""
        return self.variant - self.baseline

    @property
    def ratio_draws(self) -> Float64s:
        """The same, resampled: one row a draw."""
        return self.variant_draws - self.baseline_draws


def replicates(points: Sequence[Point], count: int, level: float, seed: int) -> Replicates:
    """Resamples points whose two sides were both measured.

    The time of a side is the median over blocks of the block's median. With pairs, the ratio is the median over blocks
    of the ratio within the block, and the variant's time is the baseline's times that ratio.

    Deviations of the draws are widened by √(n/(n−1)) · t/z for n blocks, since a bootstrap of few blocks is too narrow
    by about that (Hesterberg, What Teachers Should Know About the Bootstrap, The American Statistician 69, 2015).

    Args:
        points: their `baseline` and `variant` have a time.
        count: draws.
        level: of the intervals that are made of the draws.
        seed: of the generator.
    """
    generator = np.random.default_rng(seed)
    sides = [(_blocks(point.baseline), _blocks(point.variant)) for point in points]
    sizes = {len(logs) for pair in sides for logs, _ in pair}
    alike = len(sizes) == 1 and min(sizes) > 0
    together = generator.integers(min(sizes), size=(count, min(sizes))) if alike else None
    columns = []
    for point, ((before, cut_before), (after, cut_after)) in zip(points, sides, strict=True):
        if min(len(before), len(after)) < LEAST_BLOCKS:
            columns.append(_silent(point, count))
            continue
        paired = _paired(point) and len(before) == len(after)
        drawn = generator.integers(len(before), size=(count, len(before))) if together is None else together
        if paired:
            estimate, draws = _paired_draws(before, after, drawn, level)
        else:
            other = generator.integers(len(after), size=(count, len(after)))
            own = generator.integers(len(before), size=(count, len(before)))
            estimate = (float(np.median(before)), float(np.median(after)))
            draws = (_widened(before, own, level), _widened(after, other, level))
        columns.append((*estimate, *draws, True, cut_before or cut_after))
    return Replicates(
        np.array([column[0] for column in columns]),
        np.array([column[1] for column in columns]),
        np.stack([column[2] for column in columns], axis=1),
        np.stack([column[3] for column in columns], axis=1),
        np.array([column[4] for column in columns]),
        np.array([column[5] for column in columns]),
    )


def _paired(point: Point) -> bool:
    one, other = point.baseline, point.variant
    return bool(one and other and one.wall and other.wall and one.wall.paired and other.wall.paired)


def _blocks(cell: Cell | None) -> tuple[Float64s, bool]:
    """Logs of the medians of independent blocks, and whether they are only pieces of a single block."""
    if cell is None or cell.wall is None:
        return np.empty(0), False
    samples = cell.wall
    if len(samples.blocks) > 1:
        return np.log([np.median(block) for block in samples.blocks]), False
    pieces = min(_MOST_PIECES, samples.count // _LEAST_IN_PIECE)
    if pieces < LEAST_BLOCKS:
        return np.empty(0), False
    return np.log([np.median(piece) for piece in np.array_split(samples.values, pieces)]), True


def _silent(point: Point, count: int) -> tuple[float, float, Float64s, Float64s, bool, bool]:
    before, after = (
        math.log(cell.time_ns) if cell and cell.time_ns else math.nan for cell in (point.baseline, point.variant)
    )
    return before, after, np.full(count, before), np.full(count, after), False, False


def _paired_draws(
    before: Float64s, after: Float64s, drawn: npt.NDArray[np.int64], level: float
) -> tuple[tuple[float, float], tuple[Float64s, Float64s]]:
    middle, ratio = float(np.median(before)), float(np.median(after - before))
    base = _widened(before, drawn, level)
    return (middle, middle + ratio), (base, base + _widened(after - before, drawn, level))


def _widened(logs: Float64s, drawn: npt.NDArray[np.int64], level: float) -> Float64s:
    middle = np.median(logs)
    return np.asarray(middle + (np.median(logs[drawn], axis=1) - middle) * _widening(logs.size, level))


def _widening(blocks: int, level: float) -> float:
    """√(n/(n−1)) · t/z; the t quantile by its expansion in 1/ν (Abramowitz and Stegun 26.7.5)."""
    z, freedom = NormalDist().inv_cdf((1 + level) / 2), blocks - 1
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    t = z + first / freedom + second / freedom**2 + third / freedom**3
    return math.sqrt(blocks / freedom) * t / z
