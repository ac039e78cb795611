"""DynamicViT: a small network scores the tokens before a block; inference keeps the best, training masks the others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from warplens.workloads.token_reduction.base import Reduction, TokenState, gathered, with_class_token

__all__ = ["DynamicViT", "Predictor", "masked_softmax"]

#: Added to numerator (spread over the tokens) and denominator of the masked softmax, as published.
_EPSILON = 1e-6


class Predictor(nn.Module):
    """Log-probabilities (keep, drop) of each patch token: [batch, patches, width] → [batch, patches, 2].

    Half of a token's features stay its own, the other half become the mean over all tokens, so that each is judged by
    itself and by the whole image (Rao et al., "DynamicViT", 2021, section 3.2).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
        self.judge = nn.Sequential(
            nn.Linear(width, width // 2), nn.GELU(), nn.Linear(width // 2, width // 4), nn.GELU(),
            nn.Linear(width // 4, 2), nn.LogSoftmax(dim=-1),
        )  # fmt: skip

    def forward(self, patches: Tensor, policy: Tensor | None = None) -> Tensor:
        """See the class; with a policy [batch, patches], 1 or 0, the mean is over the tokens that it leaves."""
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
    """Keeps the patch tokens with the highest keep score, the best first. All are sorted, as published, not selected.

    In training (`module.train()`) all tokens stay, so that images of a batch may lose different numbers of them, and
    the choice has a gradient: whether a token is kept is drawn from its probabilities by the Gumbel trick, straight
    through (Jang et al., 2017), one that was dropped stays so, and attention is masked from then on (`masked_softmax`).

    Args:
        width: of a token.
        kept: patch tokens to keep; all if there are fewer.
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
        """Of the predictor's four linear layers."""
        w = self.width
        return (tokens - 1) * (w * w + w * (w // 2) + (w // 2) * (w // 4) + (w // 4) * 2)


def masked_softmax(scores: Tensor, policy: Tensor) -> Tensor:
    """Softmax over the keys that the policy leaves; every token also attends to itself.

    (e^s · G + ε/N) / (Σ e^s · G + ε), with G = 1 on the diagonal and else the key's policy (Rao et al., section 3.3).
    A token that is dropped is thus no key for the others, and the policy has a gradient.

    Args:
        scores: [batch, heads, tokens, tokens].
        policy: [batch, tokens], 1 or 0.
    """
    count = scores.shape[-1]
    itself = torch.eye(count, dtype=scores.dtype, device=scores.device)
    left = policy[:, None, None, :] * (1 - itself) + itself
    weights = (scores - scores.max(dim=-1, keepdim=True).values).exp() * left
    return (weights + _EPSILON / count) / (weights.sum(dim=-1, keepdim=True) + _EPSILON)
