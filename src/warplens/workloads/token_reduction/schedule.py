"""How many tokens are left where: what follows from shares alone. Free of PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BlockTokens", "compounded_chain", "merges", "most_merges", "official_merges", "tokens_kept", "topk_chain"]

#: 0.1 · 20 must be 2 tokens, also where binary fractions make it 2.0000000000000004.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class BlockTokens:
    """Tokens in one block, the class token counted, and the padding that every image of a batch carries.

    Attributes:
        entering: have keys and values in the attention.
        asking: have queries there whose results are used.
        leaving: go through the MLP, and on to the next block.
        reduction_macs: multiply-accumulates of the reduction itself, for one image.
    """

    entering: int
    asking: int
    leaving: int
    reduction_macs: int = 0


def tokens_kept(tokens: int, share: float) -> int:
    """⌈share · tokens⌉, at least one: patch tokens left of those that there are now."""
    return max(1, math.ceil(share * tokens - _ROUNDING))


def topk_chain(patches: int, shares: Sequence[float]) -> list[int]:
    """Patch tokens after each location; each share is of what the one before left: 196 → 20 → 2 → 1 for 0.1."""
    chain = []
    for share in shares:
        patches = tokens_kept(patches, share)
        chain.append(patches)
    return chain


def compounded_chain(patches: int, shares: Sequence[float]) -> list[int]:
    """Patch tokens after each location, each ⌊patches · product of the shares so far⌋, as DynamicViT counts."""
    chain, share_left = [], 1.0
    for share in shares:
        share_left *= share
        chain.append(max(1, math.floor(patches * share_left + _ROUNDING)))
    return chain


def most_merges(tokens: int) -> int:
    """Tokens that one bipartite matching can merge away, the class token counted and protected: half of the others."""
    return (tokens - 1) // 2


def merges(patches: int, shares: Sequence[float]) -> list[int]:
    """Tokens to merge away at each location, as many as TopK would drop there. More than half will not be possible."""
    return [before - after for before, after in pairwise([patches, *topk_chain(patches, shares)])]


def official_merges(r: int | tuple[int, float] | Sequence[int], blocks: int) -> list[int]:
    """ToMe's own ways to say how many tokens each block merges away.

    Args:
        r: the same number everywhere; or (number, inflection), with inflection −1 for most merging in the first blocks,
            0 for even, 1 for most in the last, on average the number; or a list, padded with zeros.
        blocks: blocks of the model.
    """
    if isinstance(r, int):
        return [r] * blocks
    if isinstance(r, tuple):
        average, inflection = r
        first = int(average * (1 - inflection))
        rise = (2 * average - 2 * first) / (blocks - 1)
        return [int(first + rise * block) for block in range(blocks)]
    return (list(r) + [0] * blocks)[:blocks]
