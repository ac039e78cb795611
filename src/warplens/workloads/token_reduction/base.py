"""The interface of token reduction: what a method can do at the three places where methods act."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Attended", "Reduction", "TokenState", "class_attention", "gathered", "with_class_token"]


class Attended(NamedTuple):
    """What an attention computed, for methods that decide by it.

    Attributes:
        weights: [batch, heads, queries, tokens]; with fused attention the class token's row alone, or None.
        keys: [batch, heads, tokens, d_head].
        values: the same shape.
    """

    weights: Tensor | None
    keys: Tensor
    values: Tensor


@dataclass
class TokenState:
    """What the methods remember of the tokens from block to block, within one pass.

    Attributes:
        patches: patch tokens that the image began with.
        sizes: how many patches each token stands for, [batch, tokens]; None while every one is its own.
        valid: which tokens are no padding, [batch, tokens]; None while all are.
        kept: at each location, which patch tokens went on, padded with −1; for visualisations.
        policy: in DynamicViT's training, which tokens are still there, 1 or 0, [batch, tokens]; None while all are.
    """

    patches: int
    sizes: Tensor | None = None
    valid: Tensor | None = None
    kept: list[Tensor] = field(default_factory=list)
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


def class_attention(attended: Attended) -> Tensor:
    """What the class token attends to, as the mean over heads: [batch, patch tokens]."""
    if attended.weights is None:
        raise ValueError("the method decides by attention weights, which fused attention does not give")
    return attended.weights[:, :, 0, 1:].mean(dim=1)


def with_class_token(x: Tensor, patches: Tensor) -> Tensor:
    """The class token of X in front of other patch tokens."""
    return torch.cat((x[:, :1], patches), dim=1)
