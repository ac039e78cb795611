"""DynamicViT: a small network scores the tokens before a block; inference keeps the best."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from warplens.workloads.token_reduction.base import Reduction, TokenState, gathered, with_class_token

__all__ = ["DynamicViT", "Predictor"]


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

    def forward(self, patches: Tensor) -> Tensor:
        """See the class."""
        features = self.enter(patches)
        half = features.shape[-1] // 2
        whole = features[..., half:].mean(dim=1, keepdim=True).expand(-1, features.shape[1], -1)
        judged: Tensor = self.judge(torch.cat((features[..., :half], whole), dim=-1))
        return judged


class DynamicViT(Reduction):
    """Keeps the patch tokens with the highest keep score, the best first, as DynamicViT does in inference.

    All tokens are sorted, as published, not the best selected. Training, in which tokens are masked instead of dropped,
    is not implemented here.

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
        score = self.predictor(x[:, 1:])[..., 0]
        kept = score.argsort(dim=1, descending=True)[:, : self.kept]
        return with_class_token(x, gathered(x[:, 1:], kept))

    def macs(self, tokens: int) -> int:
        """Of the predictor's four linear layers."""
        w = self.width
        return (tokens - 1) * (w * w + w * (w // 2) + (w // 2) * (w // 4) + (w // 4) * 2)
