"""Diffusion: a transformer that denoises (DiT), made of timm's parts."""

from __future__ import annotations

import math

import torch
from timm.layers import Mlp, PatchEmbed, RmsNorm
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from pairs.parts import DEVICE, HALF, compiled, on_device, size
from pairs.registry import AFTER, Step, healthy, pair


class Block(nn.Module):
    """A block of DiT: attention and MLP, each scaled, shifted and gated by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(width, heads, qkv_bias=True, qk_norm=True, norm_layer=RmsNorm)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = Mlp(width, 4 * width, act_layer=lambda: nn.GELU(approximate="tanh"))
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """X [batch, patches, width], condition [batch, width]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(condition)[:, None].chunk(6, -1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Transformer(nn.Module):
    """DiT: latents in patches, a time, the noise that was added."""

    def __init__(self, side: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = PatchEmbed(side, 2, 4, width)
        self.positions = nn.Parameter(torch.randn(1, self.patches.num_patches, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm, self.out = nn.LayerNorm(width, elementwise_affine=False), nn.Linear(width, 16)

    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        """Latents [batch, 4, side, side], time [batch]."""
        frequencies = torch.exp(-math.log(1e4) * torch.arange(128, device=time.device) / 128)
        angles = time[:, None].float() * frequencies
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1).to(latents.dtype))
        x = self.patches(latents) + self.positions
        for block in self.blocks:
            x = block(x, condition)
        return self.out(self.norm(x))


@pair("unfused-chain", "diffusion", "each block through torch.compile", library="timm", compiles=True, inference=True)
def dit_modulation_eager(variant: str) -> Step:
    """A DiT of 12 × 768 denoises 64 latents of 64 × 64: norms, scales, shifts and gates, each in a pass of its own."""
    side, batch = size(64, 8), size(64, 2)
    model = on_device(lambda: Transformer(side, size(12, 2), size(768, 64), size(12, 2)), HALF).eval()
    if variant == AFTER:
        compiled(model.blocks)
    latents = torch.randn(batch, 4, side, side, device=DEVICE, dtype=HALF)
    time = torch.full((batch,), 500, device=DEVICE)
    return lambda: model(latents, time)


@healthy("diffusion", library="timm", compiles=True, inference=True)
def healthy_dit_denoising(variant: str) -> Step:
    """A DiT of 12 × 1,152 denoises 64 latents of 64 × 64, blocks compiled."""
    side, batch = size(64, 8), size(64, 2)
    model = on_device(lambda: Transformer(side, size(12, 2), size(1152, 64), size(16, 2)), HALF).eval()
    compiled(model.blocks)
    latents = torch.randn(batch, 4, side, side, device=DEVICE, dtype=HALF)
    time = torch.full((batch,), 500, device=DEVICE)
    return lambda: model(latents, time)
