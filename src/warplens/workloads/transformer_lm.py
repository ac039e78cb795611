"""The transformer language model of Stanford's CS336 assignments, written from its definition.

RMSNorm, rotary position embedding, SwiGLU, separate projections, attention written out over the full score matrix, an
untied head, no biases, no dropout. Attention is not fused on purpose: the three parts of it are what the assignment
asks about, and each has a range of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from warplens.workloads.ranges import OFF, Ranges
from warplens.workloads.sizes import LMSize

__all__ = [
    "Embedding",
    "Linear",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
    "TransformerLM",
    "cross_entropy",
    "scaled_dot_product_attention",
    "softmax",
]

ROPE_THETA = 10_000.0
NORM_EPSILON = 1e-5


class Linear(nn.Module):
    """y = x Wᵀ with W [out, in] drawn from a normal distribution of variance 2 / (in + out), cut at 3σ. No bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        sigma = math.sqrt(2 / (inputs + outputs))
        nn.init.trunc_normal_(self.weight, std=sigma, a=-3 * sigma, b=3 * sigma)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., in] → [..., out]."""
        return x @ self.weight.T


class Embedding(nn.Module):
    """Rows of a table [vocabulary, d_model] drawn from a normal distribution of variance 1, cut at 3σ."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        nn.init.trunc_normal_(self.weight, std=1.0, a=-3.0, b=3.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, context] → [batch, context, d_model]."""
        return self.weight[tokens]


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · g, computed in fp32 or better."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """X [..., width] → the same shape and type."""
        dtype = x.dtype
        x = x.to(torch.promote_types(dtype, torch.float32))
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
        return (x * self.weight).to(dtype)


class RotaryEmbedding(nn.Module):
    """Turns the pairs (x₂ᵢ, x₂ᵢ₊₁) of each head by position · θ^(−2i/d); concatenates the two halves of the result."""

    table: Tensor  # [2 (cosine, sine), context, d_head / 2]

    def __init__(self, context: int, d_head: int) -> None:
        super().__init__()
        frequency = ROPE_THETA ** (-torch.arange(0, d_head, 2) / d_head)
        angle = torch.outer(torch.arange(context), frequency)
        self.register_buffer("table", torch.stack((angle.cos(), angle.sin())), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """X [batch, heads, context, d_head] → the same shape; positions [context]."""
        cosine, sine = self.table[:, positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.cat((cosine * even - sine * odd, sine * even + cosine * odd), dim=-1)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension, shifted by its maximum."""
    exponential = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return exponential / exponential.sum(dim=-1, keepdim=True)


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, ranges: Ranges = OFF) -> Tensor:
    """softmax(qkᵀ / √d_head, where the mask is true) · v for q, k, v [batch, heads, context, d_head]."""
    with ranges("attention"):
        with ranges("scores"):
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            scores = torch.where(mask, scores, float("-inf"))
        with ranges("softmax"):
            weights = softmax(scores)
        with ranges("values"):
            return weights @ v


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary position embedding."""

    def __init__(self, size: LMSize, rope: RotaryEmbedding, ranges: Ranges) -> None:
        super().__init__()
        self.heads = size.heads
        self.q, self.k, self.v, self.output = (Linear(size.d_model, size.d_model) for _ in range(4))
        self.rope = rope
        self.ranges = ranges

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, context, d_model] → the same shape."""
        batch, context, d_model = x.shape
        q, k, v = (
            project(x).view(batch, context, self.heads, -1).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        positions = torch.arange(context, device=x.device)
        q, k = self.rope(q, positions), self.rope(k, positions)
        causal = positions[:, None] >= positions[None, :]
        heads = scaled_dot_product_attention(q, k, v, causal, self.ranges)
        return self.output(heads.transpose(1, 2).reshape(batch, context, d_model))


class SwiGLU(nn.Module):
    """W₂(silu(W₁x) ⊙ W₃x), silu(x) = x · sigmoid(x)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(d_model, d_ff), Linear(d_ff, d_model), Linear(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., d_model] → the same shape."""
        gate = self.w1(x)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward network, each behind a norm and added to the residual stream."""

    def __init__(self, size: LMSize, rope: RotaryEmbedding, ranges: Ranges) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(size.d_model), RMSNorm(size.d_model)
        self.attention = Attention(size, rope, ranges)
        self.feed_forward = SwiGLU(size.d_model, size.d_ff)
        self.ranges = ranges

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, context, d_model] → the same shape."""
        with self.ranges("self_attention"):
            x = x + self.attention(self.norm1(x))
        with self.ranges("feed_forward"):
            return x + self.feed_forward(self.norm2(x))


class TransformerLM(nn.Module):
    """Tokens [batch, context] → logits [batch, context, vocabulary].

    Args:
        size: its widths.
        context: longest sequence, for the rotary table.
        ranges: annotations round layers and their parts.
    """

    def __init__(self, size: LMSize, context: int, ranges: Ranges = OFF) -> None:
        super().__init__()
        rope = RotaryEmbedding(context, size.d_head)
        self.embedding = Embedding(size.vocabulary, size.d_model)
        self.blocks = nn.ModuleList(Block(size, rope, ranges) for _ in range(size.layers))
        self.norm = RMSNorm(size.d_model)
        self.head = Linear(size.d_model, size.vocabulary)
        self.ranges = ranges

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [batch, context] → logits."""
        x = self.embedding(tokens)
        for index, block in enumerate(self.blocks):
            with self.ranges("layer", index):
                x = block(x)
        with self.ranges("lm_head"):
            return self.head(self.norm(x))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean of −log softmax(logits) at the targets."""
    logits = logits - logits.max(dim=-1, keepdim=True).values
    log_probability = logits - logits.exp().sum(dim=-1, keepdim=True).log()
    return -log_probability.gather(-1, targets[..., None]).mean()
