"""Methods that keep some tokens and drop or fuse the rest: TopK, EViT, and a random choice as their control."""

from __future__ import annotations

import torch
from torch import Tensor

from warplens.workloads.token_reduction.base import (
    Attended,
    Reduction,
    TokenState,
    class_attention,
    gathered,
    with_class_token,
)
from warplens.workloads.token_reduction.schedule import tokens_kept

__all__ = ["EViT", "RandomChoice", "TopK"]


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
        kept = self._chosen(class_attention(attended))
        if self.visualisation:
            state.kept.append(_padded(kept, x.shape[1] - 1))
        return with_class_token(x, gathered(x[:, 1:], kept))

    def _chosen(self, score: Tensor) -> Tensor:
        return score.topk(tokens_kept(score.shape[1], self.share), dim=1, sorted=True).indices


class EViT(TopK):
    """TopK, and one more token: the sum of those dropped, each times its score.

    The weights are those of the class token's attention, not normalised over what is dropped. The fused token stands
    last, and competes as a patch token at the next location.
    """

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        score, patches = class_attention(attended), x[:, 1:]
        kept = self._chosen(score)
        if self.visualisation:
            state.kept.append(_padded(kept, patches.shape[1]))
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
