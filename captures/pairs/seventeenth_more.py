"""The seventeenth set: written with the sixteenth, split at random, read at the end."""

from __future__ import annotations

import itertools
import random

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, SEVENTEENTH, Step, healthy, pair


class UpcastAttention(nn.Module):
    """A denoiser's block whose queries and keys are cast to fp32, as Stable Diffusion 2.1 asks for, or fused."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=name == 3) for name in range(4))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Places [pictures, places, width] → the same shape."""
        y = self.norm(x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        if self.fused:
            seen = functional.scaled_dot_product_attention(q, k, v)
        else:
            q, k = (part.float().flatten(0, 1) for part in (q, k))
            nothing = torch.empty(len(q), q.shape[1], k.shape[1], device=q.device)
            scores = torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5)
            seen = torch.bmm(scores.softmax(-1).to(v.dtype), v.flatten(0, 1)).unflatten(0, (-1, self.heads))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


@pair(
    "unfused-attention", "diffusion", "scaled_dot_product_attention in bf16", SEVENTEENTH,
    accept=("precision", "unfused-chain"), inference=True, steps=(3, 3),
)  # fmt: skip
def latents_attend_in_fp32(variant: str) -> Step:
    """Six blocks of a denoiser (640 channels, 10 heads) on two latents of 64 × 64 in bf16; attention by baddbmm."""
    width = size(640, 16)
    blocks = on_device(lambda: nn.Sequential(
        *(UpcastAttention(width, size(10, 2), fused=variant == AFTER) for _ in range(size(6, 1)))
    ), HALF).eval()  # fmt: skip
    x = torch.randn(2, size(4096, 16), width, device=DEVICE, dtype=HALF)
    return lambda: blocks(x)


class PatchExperts(nn.Module):
    """Each patch goes to one expert of many (V-MoE): experts in turn, or all in grouped products."""

    def __init__(self, count: int, width: int, wide: int, *, grouped: bool) -> None:
        super().__init__()
        self.count, self.grouped = count, grouped
        self.router = nn.Linear(width, count, bias=False)
        self.first = nn.Parameter(torch.randn(count, width, wide) / width**0.5)
        self.second = nn.Parameter(torch.randn(count, wide, width) / wide**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Patches [patches, width] → the same shape."""
        share, chosen = self.router(x).softmax(-1).max(-1)
        if self.grouped:
            order = chosen.argsort()
            ends = torch.bincount(chosen, minlength=self.count).cumsum(0).to(torch.int32)
            hidden = functional.gelu(torch._grouped_mm(x[order], self.first, offs=ends))
            out = torch.empty_like(x).index_copy_(0, order, torch._grouped_mm(hidden, self.second, offs=ends))
        else:
            out = torch.zeros_like(x)
            for index in range(self.count):
                rows = (chosen == index).nonzero()[:, 0]
                out[rows] = functional.gelu(x[rows] @ self.first[index]) @ self.second[index]
        return x + out * share[:, None]


@pair(
    "per-expert-loop", "vision", "torch._grouped_mm over patches in the order of their experts", SEVENTEENTH,
    accept=("host-sync", "launch-overhead", "small-kernels"), inference=True, steps=(3, 3),
)  # fmt: skip
def patches_to_experts_in_turn(variant: str) -> Step:
    """Four layers of 32 experts (1,024 → 4,096) in bf16 take 6,272 patches, one expert a patch, expert by expert."""
    width = size(1024, 16)
    grouped = variant == AFTER and CUDA
    layers = on_device(lambda: nn.Sequential(
        *(PatchExperts(size(32, 4), width, size(4096, 32), grouped=grouped) for _ in range(size(4, 1)))
    ), HALF).eval()  # fmt: skip
    x = torch.randn(size(6272, 32), width, device=DEVICE, dtype=HALF)
    return lambda: layers(x)


@pair(
    "small-kernels", "vision", "weight_decay= of the optimizer instead of a sum of squares in the loss", SEVENTEENTH,
    library="timm", accept=("launch-overhead", "unfused-optimizer"), steps=(3, 3),
)  # fmt: skip
def penalty_added_to_the_loss(variant: str) -> Step:
    """A TinyViT (21 million weights) learns from 64 images in bf16; the loss adds up the squares of each weight."""
    model = on_device(lambda: timm.create_model("tiny_vit_21m_224", num_classes=100)).train()
    x, labels = images(size(64, 1), 224), tokens(100, size(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True, weight_decay=2e-4 if variant == AFTER else 0.0)

    def loss() -> Tensor:
        value = functional.cross_entropy(model(x).float(), labels)
        if variant == AFTER:
            return value
        return value + 1e-4 * sum(p.pow(2).sum() for p in model.parameters())

    return training(loss, optimizer)


@pair(
    "host-sync", "vision", "hits and counts of all classes by two index_add_, read once an epoch", SEVENTEENTH,
    library="timm", accept=("launch-overhead", "host-stall"), steps=(3, 3),
)  # fmt: skip
def accuracy_class_by_class(variant: str) -> Step:
    """A PoolFormer learns 100 classes from 64 images in bf16; the accuracy of each class is read by item()."""
    classes, batch = 100, size(64, 4)
    model = on_device(lambda: timm.create_model("poolformer_s12", num_classes=classes)).train()
    x, labels, optimizer = images(batch, 224), tokens(classes, batch), adamw(model)
    hits, counts = [0] * classes, [0] * classes
    sums = torch.zeros(2, classes, device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            scores = model(x)
            loss = functional.cross_entropy(scores.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        right = scores.argmax(-1) == labels
        if variant == AFTER:
            sums[0].index_add_(0, labels, right.float())
            sums[1].index_add_(0, labels, torch.ones_like(right, dtype=torch.float32))
            return
        for each in range(classes):
            of_class = labels == each
            hits[each] += (right & of_class).sum().item()
            counts[each] += of_class.sum().item()

    return step


@pair(
    "host-stall", "vision", "photographs are padded up to nine sizes, which cuDNN has planned", SEVENTEENTH,
    library="timm", accept=("launch-overhead",), inference=True, steps=(3, 3),
)  # fmt: skip
def photographs_of_every_size(variant: str) -> Step:
    """A ResNetV2-50 classifies 8 photographs in bf16, each time of another size, for which cuDNN plans it all anew."""
    model = on_device(lambda: timm.create_model("resnetv2_50", num_classes=100), HALF).eval()
    model = model.to(memory_format=torch.channels_last)
    sides = [(h, w) for h in range(224, size(512, 240), 8) for w in range(224, size(512, 240), 8)]
    random.Random(0).shuffle(sides)
    turn = itertools.cycle(sides)

    def step() -> Tensor:
        height, width = next(turn)
        x = torch.randn(size(8, 1), 3, height, width, device=DEVICE, dtype=HALF)
        if variant == AFTER:
            x = functional.pad(x, (0, -width % 128, 0, -height % 128))
        return model(x.to(memory_format=torch.channels_last))

    return step


@pair(
    "unused-gradients", "robustness", "torch.autograd.grad(loss, x) instead of loss.backward()", SEVENTEENTH,
    library="timm", steps=(3, 3),
)  # fmt: skip
def attack_differentiates_the_weights(variant: str) -> Step:
    """Three steps of an attack (PGD) on a ViT-B/16: 64 images in bf16 are changed by the gradient of their loss."""
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=100)).eval()
    x, labels = images(size(64, 1), 224), tokens(100, size(64, 1))

    def step() -> Tensor:
        changed = x.clone()
        for _ in range(3):
            changed.requires_grad_(True)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
                loss = functional.cross_entropy(model(changed).float(), labels)
            if variant == BEFORE:
                model.zero_grad()
                loss.backward()
                slope = changed.grad
            else:
                (slope,) = torch.autograd.grad(loss, changed)
            changed = torch.clamp(changed.detach() + 0.01 * slope.sign(), x - 0.03, x + 0.03)
        return changed

    return step


@healthy("vision", SEVENTEENTH, library="timm", compiles=True, steps=(3, 3))
def healthy_deit_training(variant: str) -> Step:
    """A DeiT-III-L learns from 96 images: mixed precision, blocks compiled, fused AdamW."""
    name = "deit3_large_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=1000)).train()
    compiled(model.blocks)
    x, labels = images(size(96, 1), 224), tokens(1000, size(96, 1))
    return training(lambda: functional.cross_entropy(model(x).float(), labels), adamw(model))
