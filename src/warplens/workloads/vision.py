"""DeiT / ViT with patch 16, written out, at any input size, with token reduction where asked for.

Pre-norm blocks, biases on q, k and v, a class token, learned positions, layer norms with ε = 10⁻⁶, GELU. Attention is
written out in every variant, since most reductions decide by its weights and a comparison should change one thing only.
`fused=True` makes what a deployment would really run: one kernel for attention and, in the blocks whose reduction
decides by the class token's weights, that one row beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from warplens.errors import UsageError
from warplens.workloads.ranges import OFF, Ranges
from warplens.workloads.token_reduction.base import Attended, Reduction, TokenState, gathered
from warplens.workloads.token_reduction.dynamicvit import masked_softmax
from warplens.workloads.token_reduction.schedule import BlockTokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warplens.workloads.sizes import ViTSize

__all__ = ["Attention", "Block", "VisionTransformer"]

NORM_EPSILON = 1e-6


class Attention(nn.Module):
    """Multi-head self-attention, whose queries a reduction may choose."""

    def __init__(self, size: ViTSize, fused: bool, ranges: Ranges) -> None:
        super().__init__()
        self.heads, self.scale, self.fused, self.ranges = size.heads, size.d_head**-0.5, fused, ranges
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.proj = nn.Linear(size.width, size.width)

    def forward(
        self, x: Tensor, state: TokenState, reduction: Reduction | None
    ) -> tuple[Tensor, Tensor | None, Attended]:
        """X [batch, tokens, width] → attention of the chosen rows, their indices (None for all), what it computed."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = _score_bias(state, q.dtype)
        if self.fused:
            if state.policy is not None:
                raise UsageError("DynamicViT's training masks attention weights, which fused attention does not give")
            heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            decides = reduction is not None and reduction.needs_weights
            row = self._class_row(q, k, bias) if decides else None
            return self.proj(heads.transpose(1, 2).reshape(batch, tokens, width)), None, Attended(row, k, v)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        if state.policy is not None:
            weights = masked_softmax(scores, state.policy)
        else:
            weights = (scores if bias is None else scores + bias).softmax(dim=-1)
        attended = Attended(weights, k, v)
        rows = None
        if reduction is not None and reduction.place == "queries":
            with self.ranges("token_reduction"):
                rows = reduction.queries(attended, state)
                weights = weights.gather(2, rows[:, None, :, None].expand(-1, self.heads, -1, tokens))
        heads = (weights @ v).transpose(1, 2).reshape(batch, -1, width)
        return self.proj(heads), rows, attended

    def _class_row(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        """The class token's attention alone, [batch, heads, 1, tokens]: all that a choice by its weights needs."""
        scores = (q[:, :, :1] * self.scale) @ k.transpose(-2, -1)
        return (scores if bias is None else scores + bias).softmax(dim=-1)


def _score_bias(state: TokenState, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of each key, [batch, 1, 1, tokens]: the logarithm of its size; −∞ for padding."""
    bias = None if state.sizes is None else state.sizes.log()
    if state.valid is not None:
        padding = torch.zeros_like(state.valid, dtype=dtype).masked_fill(~state.valid, -torch.inf)
        bias = padding if bias is None else bias + padding
    return None if bias is None else bias[:, None, None, :]


class Block(nn.Module):
    """Pre-norm transformer block with, perhaps, a reduction."""

    def __init__(self, size: ViTSize, reduction: Reduction | None, fused: bool, ranges: Ranges) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(size.width, eps=NORM_EPSILON) for _ in range(2))
        self.attention = Attention(size, fused, ranges)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )
        self.reduction = reduction
        self.ranges = ranges

    def forward(self, x: Tensor, state: TokenState, counts: list[BlockTokens] | None = None) -> Tensor:
        """X [batch, tokens, width] → [batch, tokens that are left, width]; tells the counts if there is a list."""
        reduction, before = self.reduction, x.shape[1]
        if reduction is not None and reduction.place == "before":
            with self.ranges("token_reduction"):
                x = reduction.before_block(x, state)
        entering = x.shape[1]
        with self.ranges("block_attention"):
            out, rows, attended = self.attention(self.norm1(x), state, reduction)
            x = (x if rows is None else gathered(x, rows)) + out
        asking = x.shape[1]
        if reduction is not None and reduction.place == "between":
            with self.ranges("token_reduction"):
                x = reduction.between(x, attended, state)
        if counts is not None:
            own = reduction.macs(before) if reduction is not None else 0
            if reduction is not None and reduction.needs_weights and self.attention.fused:
                own += before * x.shape[-1]  # the row that fused attention does not give
            counts.append(BlockTokens(entering, asking, x.shape[1], own))
        with self.ranges("mlp"):
            return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Images [batch, 3, side, side] → class scores [batch, classes].

    Args:
        size: widths.
        input_size: side of the images, a multiple of the patch.
        reductions: method at each block that has one.
        fused: let PyTorch choose a fused attention; a method may need the class token's weights, and no others.
        ranges: annotations round the parts.
    """

    def __init__(
        self,
        size: ViTSize,
        input_size: int,
        reductions: Mapping[int, Reduction] | None = None,
        fused: bool = False,
        ranges: Ranges = OFF,
    ) -> None:
        super().__init__()
        reductions = reductions or {}
        patches = size.patches(input_size)
        self.patch_embedding = nn.Conv2d(3, size.width, size.patch, stride=size.patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, size.width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, patches + 1, size.width) * 0.02)
        self.blocks = nn.ModuleList(Block(size, reductions.get(index), fused, ranges) for index in range(size.blocks))
        self.norm = nn.LayerNorm(size.width, eps=NORM_EPSILON)
        self.head = nn.Linear(size.width, size.classes)
        self.ranges = ranges

    def forward(self, images: Tensor, counts: list[BlockTokens] | None = None) -> Tensor:
        """Images → class scores; with a list, also adds the tokens of each block to it."""
        with self.ranges("patch_embedding"):
            patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
            x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.position
        state = TokenState(patches.shape[1])
        for index, block in enumerate(self.blocks):
            with self.ranges("block", index):
                x = block(x, state, counts)
        with self.ranges("classifier"):
            return self.head(self.norm(x)[:, 0])
