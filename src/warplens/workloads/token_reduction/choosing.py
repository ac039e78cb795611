"""The interface of token reduction, token counts per block, and the methods that drop tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor, nn


class Attended(NamedTuple):
    """Results of an attention that methods may use."""

    #: [batch, heads, queries, tokens]; with fused attention the class token's row alone, or None
    weights: Tensor | None
    keys: Tensor  #: [batch, heads, tokens, d_head]
    values: Tensor


@dataclass
class TokenState:
    """State of the tokens that methods carry from block to block, within one pass."""

    patches: int  #: initial number of patch tokens
    #: number of patches that each token represents, [batch, tokens]; None while each represents one
    sizes: Tensor | None = None
    valid: Tensor | None = None  #: mask of tokens that are not padding, [batch, tokens]; None without padding
    #: at each location, the numbers of the kept patch tokens, padded with −1; for visualisations
    kept: list[Tensor] = field(default_factory=list)
    #: in DynamicViT's training, 1 for remaining and 0 for dropped tokens, [batch, tokens]; None while all remain
    policy: Tensor | None = None


class Reduction(nn.Module):
    """A method at one location. A subclass sets `place`, and overrides the method of that place.

    Attributes:
        place: `before` the block, on the `queries` of its attention, or `between` attention and MLP.
        needs_weights: whether the method needs attention weights, so that attention must be explicit.
    """

    place: Literal["before", "queries", "between"] = "between"
    needs_weights = False

    def before_block(self, x: Tensor, state: TokenState) -> Tensor:
        """Tokens [batch, tokens, width] from the previous block → those that enter this one."""
        raise NotImplementedError

    def queries(self, attended: Attended, state: TokenState) -> Tensor:
        """Indices [batch, rows] of the tokens whose queries are kept. May set `state.valid`."""
        raise NotImplementedError

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """Tokens after attention and residual [batch, tokens, width] → those that enter the MLP."""
        raise NotImplementedError

    def macs(self, tokens: int) -> int:
        """Multiply-accumulates of the method itself for one image with this many tokens, class token included."""
        return 0


def gathered(x: Tensor, indices: Tensor) -> Tensor:
    """Rows of X [batch, tokens, width] at indices [batch, rows] → [batch, rows, width]."""
    return x.gather(1, indices.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def weights_of(attended: Attended) -> Tensor:
    """The attention weights, which explicit attention provides."""
    if attended.weights is None:
        raise ValueError("the method decides by attention weights, which fused attention does not give")
    return attended.weights


def class_attention(attended: Attended) -> Tensor:
    """The class token's attention to the patch tokens, averaged over heads: [batch, patch tokens]."""
    return weights_of(attended)[:, :, 0, 1:].mean(dim=1)


def with_class_token(x: Tensor, patches: Tensor) -> Tensor:
    """The class token of X in front of other patch tokens."""
    return torch.cat((x[:, :1], patches), dim=1)


#: Tolerance for rounding: 0.1 · 20 must be 2 tokens even if floating point makes it 2.0000000000000004.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class BlockTokens:
    """Token counts of one block, including the class token and padding."""

    entering: int  #: tokens with keys and values in the attention
    asking: int  #: tokens with queries in the attention
    leaving: int  #: tokens in the MLP, which enter the next block
    reduction_macs: int = 0  #: multiply-accumulates of the reduction itself, for one image


def tokens_kept(tokens: int, share: float) -> int:
    """Number of patch tokens kept: ⌈share · tokens⌉, at least one."""
    return max(1, math.ceil(share * tokens - _ROUNDING))


def topk_chain(patches: int, shares: Sequence[float]) -> list[int]:
    """Patch tokens after each location, each share applied to the current number: 196 → 20 → 2 → 1 for 0.1."""
    chain = []
    for share in shares:
        patches = tokens_kept(patches, share)
        chain.append(patches)
    return chain


def compounded_chain(patches: int, shares: Sequence[float]) -> list[int]:
    """Patch tokens after each location: ⌊patches · product of the shares so far⌋, as in DynamicViT."""
    chain, share_left = [], 1.0
    for share in shares:
        share_left *= share
        chain.append(max(1, math.floor(patches * share_left + _ROUNDING)))
    return chain


def most_merges(tokens: int) -> int:
    """Most tokens that one bipartite matching can merge: half of those other than the class token."""
    return (tokens - 1) // 2


def merges(patches: int, shares: Sequence[float]) -> list[int]:
    """Tokens to merge at each location: as many as TopK would drop there (of which at most half can be merged)."""
    return [before - after for before, after in pairwise([patches, *topk_chain(patches, shares)])]


class TopK(Reduction):
    """Keeps the patch tokens that the class token attends to most, the best first.

    Score: mean over heads of the class token's attention. Kept: ⌈share · current patch tokens⌉.

    Args:
        share: of the current patch tokens to keep.
        visualisation: also list the kept tokens, padded with −1 to the previous number. Only a visualisation reads the
            list, but the published code computes it in every pass, so its launches belong to the method.
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
        """The chosen tokens, which are also added to the list for visualisation."""
        kept = self._chosen(score)
        if self.visualisation:
            state.kept.append(_padded(kept, score.shape[1]))
        return kept


class RowTopK(TopK):
    """The tokens of `TopK` in the same order, moved as whole rows of one matrix [batch · tokens, width].

    One index selects the class token's row and those of the kept tokens, instead of an elementwise gather and a
    concatenation.
    """

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        return _rows(x, self._listed(class_attention(attended), state))


class CachedTopK(TopK):
    """`TopK` that chooses once for each number of images and tokens, and then reuses the same positions.

    Only valid if inputs resemble each other, such as the frames of a static camera. Later passes need neither scores
    nor a sort.
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
    """TopK, and one more token: the sum of the dropped ones, each times its score.

    The scores are the class token's attention, not normalised over the dropped tokens. The fused token comes last, and
    competes as a patch token at the next location.
    """

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        score, patches = class_attention(attended), x[:, 1:]
        kept = self._listed(score, state)
        dropped = _complement(kept, patches.shape[1])
        fused = (gathered(patches, dropped) * score.gather(1, dropped).unsqueeze(-1)).sum(dim=1, keepdim=True)
        return torch.cat((x[:, :1], gathered(patches, kept), fused), dim=1)


class RandomChoice(Reduction):
    """Keeps as many patch tokens as TopK would, chosen at random, in random order."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        draw = torch.rand(x.shape[0], x.shape[1] - 1, device=x.device)
        kept = draw.topk(tokens_kept(draw.shape[1], self.share), dim=1, sorted=True).indices
        return with_class_token(x, gathered(x[:, 1:], kept))


def _rows(x: Tensor, kept: Tensor) -> Tensor:
    """The rows of the class token and of the kept tokens of each image, by one index over all rows."""
    batch, tokens, width = x.shape
    rows = torch.nn.functional.pad(kept + 1, (1, 0))
    if batch > 1:
        rows = rows + torch.arange(0, batch * tokens, tokens, device=x.device).unsqueeze(1)
    return x.reshape(batch * tokens, width).index_select(0, rows.flatten()).view(batch, -1, width)


def _padded(kept: Tensor, patches: int) -> Tensor:
    # Ones times −1, as in the published code: two launches where `full` would need one.
    padding = torch.ones(kept.shape[0], patches - kept.shape[1], dtype=kept.dtype, device=kept.device) * -1
    return torch.cat((kept, padding), dim=1)


def _complement(indices: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not among the indices [batch, rows], in rising order.

    As in the published code: the indices are overwritten by zeros in 0 … count − 1, which a sort moves to the front.
    """
    numbers = torch.arange(count, device=indices.device).expand(indices.shape[0], -1)
    remaining = numbers.scatter(1, indices, 0).sort(dim=1).values
    return remaining[:, indices.shape[1] :] if count > indices.shape[1] else remaining[:, :0]
