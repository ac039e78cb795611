"""What token reduction is: its interface, how many tokens are left where, and the methods that drop tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor, nn


class Attended(NamedTuple):
    """What an attention computed, for methods that decide by it."""

    #: [batch, heads, queries, tokens]; with fused attention the class token's row alone, or None
    weights: Tensor | None
    keys: Tensor  #: [batch, heads, tokens, d_head]
    values: Tensor


@dataclass
class TokenState:
    """What the methods remember of the tokens from block to block, within one pass."""

    patches: int  #: patch tokens that the image began with
    #: how many patches each token stands for, [batch, tokens]; None while every one is its own
    sizes: Tensor | None = None
    valid: Tensor | None = None  #: which tokens are no padding, [batch, tokens]; None while all are
    #: at each location, which patch tokens went on, padded with −1; for visualisations
    kept: list[Tensor] = field(default_factory=list)
    #: in DynamicViT's training, which tokens are still there, 1 or 0, [batch, tokens]; None while all are
    policy: Tensor | None = None


class Reduction(nn.Module):
    """A method at one location. A subclass names the place where it acts, and overrides the function of that place.

    Attributes:
        place: `before` the block, on the `queries` of its attention, or `between` attention and MLP.
        needs_weights: whether the attention must be written out, for the method decides by attention weights.
    """

    place: Literal["before", "queries", "between"] = "between"
    needs_weights = False

    def before_block(self, x: Tensor, state: TokenState) -> Tensor:
        """Tokens [batch, tokens, width] as they come from the block before → those that enter this one."""
        raise NotImplementedError

    def queries(self, attended: Attended, state: TokenState) -> Tensor:
        """Indices [batch, rows] of the tokens whose attention goes on. May set `state.valid`."""
        raise NotImplementedError

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """Tokens after attention and residual [batch, tokens, width] → those that enter the MLP."""
        raise NotImplementedError

    def macs(self, tokens: int) -> int:
        """Multiply-accumulates of the method itself for one image with so many tokens, the class token counted."""
        return 0


def gathered(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of X [batch, tokens, width] at indices [batch, rows] → [batch, rows, width]."""
    return x.gather(1, indices.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def weights_of(attended: Attended) -> Tensor:
    """The weights, for a method that decides by them."""
    if attended.weights is None:
        raise ValueError("the method decides by attention weights, which fused attention does not give")
    return attended.weights


def class_attention(attended: Attended) -> Tensor:
    """What the class token attends to, as the mean over heads: [batch, patch tokens]."""
    return weights_of(attended)[:, :, 0, 1:].mean(dim=1)


def with_class_token(x: Tensor, patches: Tensor) -> Tensor:
    """The class token of X in front of other patch tokens."""
    return torch.cat((x[:, :1], patches), dim=1)


#: 0.1 · 20 must be 2 tokens, also where binary fractions make it 2.0000000000000004.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class BlockTokens:
    """Tokens in one block, the class token counted, and the padding that every image of a batch carries."""

    entering: int  #: have keys and values in the attention
    asking: int  #: have queries there whose results are used
    leaving: int  #: go through the MLP, and on to the next block
    reduction_macs: int = 0  #: multiply-accumulates of the reduction itself, for one image


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


class TopK(Reduction):
    """Keeps the patch tokens that the class token attends to most, the best first.

    Score: mean over heads of the class token's attention. Kept: ⌈share · patch tokens that there are now⌉.

    Args:
        share: of the current patch tokens to keep.
        visualisation: also list which tokens were kept, padded with −1 to those there had been. Only a visualisation
            would read that, but the published code computes it in every pass, so its launches belong to the method.
    """

    needs_weights = True

    def __init__(self, share: float, visualisation: bool = True) -> None:
        super().__init__()
        self.share, self.visualisation = share, visualisation

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        return with_class_token(x, gathered(x[:, 1:], self._listed(class_attention(attended), state)))

    def _chosen(self, score: Tensor) -> Tensor:
        return score.topk(tokens_kept(score.shape[1], self.share), dim=1, sorted=True).indices

    def _listed(self, score: Tensor, state: TokenState) -> Tensor:
        """What is chosen, listed where a visualisation is wanted."""
        kept = self._chosen(score)
        if self.visualisation:
            state.kept.append(_padded(kept, score.shape[1]))
        return kept


class RowTopK(TopK):
    """The tokens of `TopK` in the same order, moved as whole rows of one matrix [batch · tokens, width].

    One index holds the class token's row and those of the kept tokens, so that neither a gather of every element nor a
    concatenation of what it gave is needed.
    """

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        return _rows(x, self._listed(class_attention(attended), state))


class CachedTopK(TopK):
    """`TopK` that chooses once for each number of images and tokens, and then takes the same places again.

    Right where inputs resemble each other, such as the frames of a resting camera, and nowhere else. Later passes need
    neither scores nor a sort.
    """

    def __init__(self, share: float, visualisation: bool = True) -> None:
        super().__init__(share, visualisation)
        self._places: dict[tuple[int, int], Tensor] = {}

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        key = (x.shape[0], x.shape[1])
        if key not in self._places:
            self._places[key] = self._chosen(class_attention(attended))
        return _rows(x, self._places[key])


class EViT(TopK):
    """TopK, and one more token: the sum of those dropped, each times its score.

    The weights are those of the class token's attention, not normalised over what is dropped. The fused token stands
    last, and competes as a patch token at the next location.
    """

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        score, patches = class_attention(attended), x[:, 1:]
        kept = self._listed(score, state)
        dropped = _complement(kept, patches.shape[1])
        fused = (gathered(patches, dropped) * score.gather(1, dropped).unsqueeze(-1)).sum(dim=1, keepdim=True)
        return torch.cat((x[:, :1], gathered(patches, kept), fused), dim=1)


class RandomChoice(Reduction):
    """Keeps as many patch tokens as TopK would, in random order and by no merit."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        draw = torch.rand(x.shape[0], x.shape[1] - 1, device=x.device)
        kept = draw.topk(tokens_kept(draw.shape[1], self.share), dim=1, sorted=True).indices
        return with_class_token(x, gathered(x[:, 1:], kept))


def _rows(x: Tensor, kept: Tensor) -> Tensor:
    """The class token's row and the kept ones of each image, by one index over all rows."""
    batch, tokens, width = x.shape
    rows = torch.nn.functional.pad(kept + 1, (1, 0))
    if batch > 1:
        rows = rows + torch.arange(0, batch * tokens, tokens, device=x.device).unsqueeze(1)
    return x.reshape(batch * tokens, width).index_select(0, rows.flatten()).view(batch, -1, width)


def _padded(kept: Tensor, patches: int) -> Tensor:
    # Ones times −1, as published: two launches where `full` would make one.
    padding = torch.ones(kept.shape[0], patches - kept.shape[1], dtype=kept.dtype, device=kept.device) * -1
    return torch.cat((kept, padding), dim=1)


def _complement(indices: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not among the indices [batch, rows], in rising order.

    As published: zeros are scattered where an index stands in 0 … count − 1, and a sort brings them to the front.
    """
    numbers = torch.arange(count, device=indices.device).expand(indices.shape[0], -1)
    left = numbers.scatter(1, indices, 0).sort(dim=1).values
    return left[:, indices.shape[1] :] if count > indices.shape[1] else left[:, :0]
