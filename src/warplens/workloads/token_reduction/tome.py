"""ToMe: merges similar tokens instead of dropping any."""

from __future__ import annotations

import torch
from torch import Tensor

from warplens.workloads.token_reduction.base import Attended, Reduction, TokenState, gathered
from warplens.workloads.token_reduction.schedule import most_merges

__all__ = ["ToMe"]


class ToMe(Reduction):
    """Merges tokens by bipartite soft matching (Bolya et al., "Token Merging", 2023, section 3).

    Tokens are dealt alternately to A (the class token first) and B. Each of A proposes to its most similar one of B, by
    the cosine of their keys, heads averaged; the `merged` best proposals are accepted, and B's token becomes the mean
    of all that it then stands for, each weighted by the patches it stands for. The class token proposes to nobody. What
    is left of A comes first, in its order, then B.

    From then on attention is proportional: the logarithm of a token's size is added to the scores of its key.

    Args:
        merged: tokens to merge away; at most half of those other than the class token are.
        d_head: width of a key.
    """

    def __init__(self, merged: int, d_head: int) -> None:
        super().__init__()
        self.merged, self.d_head = merged, d_head

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        count = min(self.merged, most_merges(x.shape[1]))
        if count < 1:
            return x
        sizes = torch.ones(x.shape[:2], dtype=x.dtype, device=x.device) if state.sizes is None else state.sizes
        keys = attended.keys.mean(dim=1)
        keys = keys / keys.norm(dim=-1, keepdim=True)
        similarity = keys[:, ::2] @ keys[:, 1::2].transpose(-1, -2)
        similarity[:, 0] = -torch.inf
        best, partner = similarity.max(dim=-1)
        proposals = best.argsort(dim=-1, descending=True)
        accepted = proposals[:, :count]
        # In their own order; the class token, whose proposal is the worst, is first again.
        left = proposals[:, count:].sort(dim=-1).values
        into = partner.gather(1, accepted)
        weighted = _merge(x * sizes.unsqueeze(-1), left, accepted, into)
        merged_sizes = _merge(sizes.unsqueeze(-1), left, accepted, into)
        state.sizes = merged_sizes.squeeze(-1)
        return weighted / merged_sizes

    def macs(self, tokens: int) -> int:
        """Of the similarities between all of A and all of B."""
        if min(self.merged, most_merges(tokens)) < 1:
            return 0
        return ((tokens + 1) // 2) * (tokens // 2) * self.d_head


def _merge(x: Tensor, left: Tensor, accepted: Tensor, into: Tensor) -> Tensor:
    """The tokens of A that are left, then those of B with the accepted ones added."""
    a, b = x[:, ::2], x[:, 1::2]
    sums = b.scatter_add(1, into.unsqueeze(-1).expand(-1, -1, x.shape[-1]), gathered(a, accepted))
    return torch.cat((gathered(a, left), sums), dim=1)
