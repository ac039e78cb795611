"""Methods that sample (ATS), merge (ToMe) or learn (DynamicViT), and every method by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from warplens.workloads.token_reduction.choosing import (
    Attended,
    CachedTopK,
    EViT,
    RandomChoice,
    Reduction,
    RowTopK,
    TokenState,
    TopK,
    compounded_chain,
    gathered,
    merges,
    most_merges,
    topk_chain,
    weights_of,
    with_class_token,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.workloads.settings import ViTSize


class ATS(Reduction):
    """Adaptive token sampling (Fayyaz et al., 2022, section 3) on the rows of the attention.

    A patch token's significance is the class token's attention to it times the norm of its value vector, summed over
    heads and normalised over the patch tokens. The cumulated significance is inverted at evenly spaced points
    (2i + 1) / 2K, i = 0 … K − 1: each point takes the token whose cumulated significance is nearest. A token taken by
    several points is kept once, so that images of one batch keep different numbers of tokens; shorter ones are padded
    with copies of the class token that no token attends to.

    Only the sampled tokens' queries are kept. The host waits for the GPU to know the longest image of the batch.

    Args:
        points: K, the most patch tokens to keep. A fixed number, since a share of the current tokens would depend on
            the other images of the batch through padding.
    """

    place = "queries"
    needs_weights = True

    def __init__(self, points: int) -> None:
        super().__init__()
        self.points = points

    def queries(self, attended: Attended, state: TokenState) -> Tensor:
        """See the class."""
        lengths = attended.values[:, :, 1:].norm(dim=-1)
        significance = (weights_of(attended)[:, :, 0, 1:] * lengths).sum(dim=1)
        # Padding has no significance, but its flat stretch of the cumulated sum must not be nearest to a point.
        significance = significance.to(torch.promote_types(significance.dtype, torch.float32))
        cumulated = (significance / significance.sum(dim=1, keepdim=True)).cumsum(dim=1)
        if state.valid is not None:
            cumulated = cumulated.masked_fill(~state.valid[:, 1:], torch.inf)
        numbers = torch.arange(self.points, device=cumulated.device, dtype=cumulated.dtype)
        places = (2 * numbers + 1) / (2 * self.points)
        taken = (places[None, :, None] - cumulated[:, None, :]).abs().argmin(dim=-1)
        rows, valid = _unique(taken + 1)
        state.valid = valid
        return rows


def _unique(taken: Tensor) -> tuple[Tensor, Tensor]:
    """The class token and each row's distinct indices in rising order, padded with the class token; and the mask."""
    first = torch.ones_like(taken, dtype=torch.bool)
    first[:, 1:] = taken[:, 1:] != taken[:, :-1]
    counts = first.sum(dim=1)
    longest = int(counts.max())  # the host needs the shape, and waits for it
    places = first.cumsum(dim=1)
    rows = taken.new_zeros(taken.shape[0], longest + 1)
    # Every index is written to its place; duplicates write the same value again.
    rows.scatter_(1, places, taken)
    valid = torch.arange(longest + 1, device=taken.device)[None, :] <= counts[:, None]
    return rows, valid


class ToMe(Reduction):
    """Merges tokens by bipartite soft matching (Bolya et al., "Token Merging", 2023, section 3).

    Tokens are assigned alternately to A (the class token first) and B. Each token of A proposes to the most similar one
    of B, by the cosine of their keys averaged over heads; the `merged` best proposals are accepted, and the token of B
    becomes the mean of all merged tokens, weighted by their numbers of patches. The class token does not propose. The
    rest of A comes first, in its order, then B.

    Afterwards attention is proportional: the logarithm of a token's size is added to the scores of its key.

    Args:
        merged: tokens to merge; limited to half of those other than the class token.
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
        # In their original order; the class token, whose proposal is the worst, comes first again.
        left = proposals[:, count:].sort(dim=-1).values
        into = partner.gather(1, accepted)
        weighted = _merge(x * sizes.unsqueeze(-1), left, accepted, into)
        merged_sizes = _merge(sizes.unsqueeze(-1), left, accepted, into)
        state.sizes = merged_sizes.squeeze(-1)
        return weighted / merged_sizes

    def macs(self, tokens: int) -> int:
        """MACs of the similarities between all of A and all of B."""
        if min(self.merged, most_merges(tokens)) < 1:
            return 0
        return ((tokens + 1) // 2) * (tokens // 2) * self.d_head


def _merge(x: Tensor, left: Tensor, accepted: Tensor, into: Tensor) -> Tensor:
    """The remaining tokens of A, then those of B with the accepted ones added."""
    a, b = x[:, ::2], x[:, 1::2]
    sums = b.scatter_add(1, into.unsqueeze(-1).expand(-1, -1, x.shape[-1]), gathered(a, accepted))
    return torch.cat((gathered(a, left), sums), dim=1)


#: Added to numerator (spread over the tokens) and denominator of the masked softmax, as published.
_EPSILON = 1e-6


class Predictor(nn.Module):
    """Log-probabilities (keep, drop) of each patch token: [batch, patches, width] → [batch, patches, 2].

    Half of a token's features are local, the other half the mean over all tokens, so that both the token and the whole
    image count (Rao et al., "DynamicViT", 2021, section 3.2).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.judge = nn.Sequential(
            nn.Linear(width, width // 2), nn.GELU(), nn.Linear(width // 2, width // 4), nn.GELU(),
            nn.Linear(width // 4, 2), nn.LogSoftmax(dim=-1),
        )  # fmt: skip

    def forward(self, patches: Tensor, policy: Tensor | None = None) -> Tensor:
        """See the class; with a policy [batch, patches], 1 or 0, the mean is over the remaining tokens."""
        features = self.enter(patches)
        half = features.shape[-1] // 2
        if policy is None:
            whole = features[..., half:].mean(dim=1, keepdim=True)
        else:
            left = policy.unsqueeze(-1)
            whole = (features[..., half:] * left).sum(dim=1, keepdim=True) / left.sum(dim=1, keepdim=True)
        whole = whole.expand(-1, features.shape[1], -1)
        judged: Tensor = self.judge(torch.cat((features[..., :half], whole), dim=-1))
        return judged


class DynamicViT(Reduction):
    """Keeps the patch tokens with the highest keep score, the best first, by a full sort as in the published code.

    In training (`module.train()`) tokens are masked instead of removed, so that images of a batch may lose different
    numbers of them, and the choice has a gradient: it is drawn by the straight-through Gumbel softmax (Jang et al.,
    2017), dropped tokens stay dropped, and attention is masked from then on (`masked_softmax`).
    """

    place = "before"

    def __init__(self, width: int, kept: int) -> None:
        super().__init__()
        self.kept, self.width = kept, width
        self.predictor = Predictor(width)

    def before_block(self, x: Tensor, state: TokenState) -> Tensor:
        """See the class."""
        if self.training:
            self._mask(x[:, 1:], state)
            return x
        score = self.predictor(x[:, 1:])[..., 0]
        kept = score.argsort(dim=1, descending=True)[:, : self.kept]
        return with_class_token(x, gathered(x[:, 1:], kept))

    def _mask(self, patches: Tensor, state: TokenState) -> None:
        before = patches.new_ones(patches.shape[:2]) if state.policy is None else state.policy[:, 1:]
        drawn = nn.functional.gumbel_softmax(self.predictor(patches, before), hard=True)[..., 0]
        # The class token is never dropped.
        state.policy = torch.cat((before.new_ones(len(before), 1), drawn * before), dim=1)

    def macs(self, tokens: int) -> int:
        """MACs of the predictor's four linear layers."""
        w = self.width
        return (tokens - 1) * (w * w + w * (w // 2) + (w // 2) * (w // 4) + (w // 4) * 2)


def masked_softmax(scores: Tensor, policy: Tensor) -> Tensor:
    """Softmax over the remaining keys; every token also attends to itself.

    (e^s · G + ε/N) / (Σ e^s · G + ε), with G = 1 on the diagonal and else the key's policy (Rao et al., section 3.3),
    for scores [batch, heads, tokens, tokens] and a policy [batch, tokens] of 1 and 0. Dropped tokens are thus not keys
    of the others, and the policy has a gradient.
    """
    count = scores.shape[-1]
    itself = torch.eye(count, dtype=scores.dtype, device=scores.device)
    left = policy[:, None, None, :] * (1 - itself) + itself
    weights = (scores - scores.max(dim=-1, keepdim=True).values).exp() * left
    return (weights + _EPSILON / count) / (weights.sum(dim=-1, keepdim=True) + _EPSILON)


#: Unfused methods that choose by the class token's attention.
_CHOOSING: Final = {"topk": TopK, "topk-rows": RowTopK, "topk-cached": CachedTopK, "evit": EViT}


def reductions(
    method: str,
    size: ViTSize,
    input_size: int,
    locations: Sequence[int],
    shares: Sequence[float],
    visualisation: bool = True,
) -> dict[int, Reduction]:
    """The reduction of `settings.METHODS` at each location (a block), which keeps one of the shares of the tokens.

    `visualisation` is that of TopK, EViT and their fused forms.
    """
    patches = size.patches(input_size)
    made: list[Reduction]
    if method == "none":
        return {}
    if method in _CHOOSING:
        made = [_CHOOSING[method](share, visualisation) for share in shares]
    elif method in ("topk-fused", "evit-fused"):
        from warplens.workloads.token_reduction.fused import FusedEViT, FusedTopK

        made = [(FusedTopK if method == "topk-fused" else FusedEViT)(share, visualisation) for share in shares]
    elif method == "random":
        made = [RandomChoice(share) for share in shares]
    elif method == "tome":
        made = [ToMe(merged, size.d_head) for merged in merges(patches, shares)]
    elif method == "dynamicvit":
        made = [DynamicViT(size.width, kept) for kept in compounded_chain(patches, shares)]
    elif method == "ats":
        made = [ATS(points) for points in topk_chain(patches, shares)]
    else:
        raise ValueError(f"no token reduction is called {method!r}")
    return dict(zip(locations, made, strict=True))
