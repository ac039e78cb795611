"""Sizes between and beyond those that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from warplens.compare.breakeven.features import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.breakeven.features import Observed, Work

__all__ = ["Sizes"]


@dataclass(frozen=True, eq=False)
class Sizes:
    """How the sizes of both sides follow from the baseline's.

    Between measured sizes, tokens, FLOPs and launches are straight lines when both scales are logarithmic; beyond, they
    keep their proportion to the baseline's size (launches stay).

    Attributes:
        work: what a size is counted in.
        amounts: of the baseline's measured sizes, rising.
        pairs: baseline's and variant's size for each.
    """

    work: Work
    amounts: tuple[float, ...]
    pairs: tuple[tuple[Size, Size], ...]

    @classmethod
    def of(cls, cells: Sequence[Observed], work: Work) -> Sizes:
        """The sizes among cells, baseline and variant in turns."""
        found: dict[float, tuple[Size, Size]] = {}
        for before, after in zip(cells[::2], cells[1::2], strict=True):
            found.setdefault(before.size.amount(work), (before.size, after.size))
        return cls(work, tuple(sorted(found)), tuple(found[amount] for amount in sorted(found)))

    def at(self, amount: float) -> tuple[Size, Size]:
        """Both sides' sizes where the baseline's is `amount`."""
        if self.work == "items":
            return self.pairs[0]
        above = int(np.searchsorted(self.amounts, amount))
        if above in (0, len(self.amounts)):
            near = min(above, len(self.amounts) - 1)
            factor = amount / self.amounts[near]
            before, after = self.pairs[near]
            return _scaled(before, factor), _scaled(after, factor)
        low, high = self.amounts[above - 1], self.amounts[above]
        share = float(np.log(amount / low) / np.log(high / low))
        one, two = self.pairs[above - 1], self.pairs[above]
        return _between(one[0], two[0], share), _between(one[1], two[1], share)


def _scaled(size: Size, factor: float) -> Size:
    tokens = size.tokens and tuple(
        (max(block[0] * factor, 1.0), max(block[1] * factor, 1.0), max(block[2] * factor, 1.0)) for block in size.tokens
    )
    return Size(tokens, size.flops and size.flops * factor, size.launches)


def _between(one: Size, two: Size, share: float) -> Size:
    tokens = None
    if one.tokens and two.tokens and len(one.tokens) == len(two.tokens):
        mixed = np.exp(np.log(np.array(one.tokens)) * (1 - share) + np.log(np.array(two.tokens)) * share)
        tokens = tuple((float(block[0]), float(block[1]), float(block[2])) for block in mixed)
    return Size(tokens, _mixed(one.flops, two.flops, share), _mixed(one.launches, two.launches, share))


def _mixed(one: float | None, two: float | None, share: float) -> float | None:
    return float(one ** (1 - share) * two**share) if one and two else None
