"""The eighteenth set: images, and what is near them."""

from __future__ import annotations

from typing import Any

import numpy as np
import timm
import timm.optim
import torch
from PIL import Image
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from pairs.inputs import Loaded
from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, EIGHTEENTH, Step, healthy, pair


class Looks(nn.Module):
    """Attention as the first Stable Diffusion has it: two einsums and a softmax between them."""

    def __init__(self, width: int, told: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.scale, self.fused = heads, (width // heads) ** -0.5, fused
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.k, self.v = nn.Linear(told, width, bias=False), nn.Linear(told, width, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Positions [images, positions, width] look at the context [images, words, told]."""
        parts = (self.q(x), self.k(context), self.v(context))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            seen = functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
            seen = torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)
        return self.out(seen.transpose(1, 2).flatten(2))


class Painter(nn.Module):
    """A transformer block of a diffusion U-Net."""

    def __init__(self, width: int, told: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.text = Looks(width, width, heads, fused), Looks(width, told, heads, fused)
        self.wide, self.narrow = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Positions [images, positions, width], texts [images, words, told]."""
        seen = self.norms[0](x)
        x = x + self.own(seen, seen)
        x = x + self.text(self.norms[1](x), text)
        value, gate = self.wide(self.norms[2](x)).chunk(2, -1)
        return x + self.narrow(value * functional.gelu(gate))


@pair(
    "unfused-attention", "diffusion", "scaled_dot_product_attention instead of einsum, softmax and einsum", EIGHTEENTH,
    accept=("unfused-chain", "memory-bandwidth"), inference=True, steps=(3, 3),
)  # fmt: skip
def latents_attend_by_einsum(variant: str) -> Step:
    """Blocks of Stable Diffusion (8 × 320, 8 heads) denoise 4 latents of 64² twice in bf16, attending by einsum."""
    width, told, fused = size(320, 16), size(768, 8), variant == AFTER
    blocks = on_device(lambda: nn.ModuleList(Painter(width, told, 8, fused) for _ in range(size(8, 1))), HALF).eval()
    noise = torch.randn(size(4, 1), size(4096, 16), width, device=DEVICE, dtype=HALF)
    text = torch.randn(len(noise), 77, told, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x = noise
        for _ in range(2):
            y = x
            for block in blocks:
                y = block(y, text)
            x = x - 0.1 * y
        return x

    return step


@pair(
    "host-sync", "vision", "kept patches are gathered by their places (gather), not by a mask of booleans", EIGHTEENTH,
    library="timm", accept=("launch-overhead", "scattered-access", "small-kernels"),
    inference=True, steps=(3, 3),
)  # fmt: skip
def patches_dropped_by_masks(variant: str) -> Step:
    """A ViT-L looks at 8 images (bf16) and drops the four weakest patches after each block, by x[mask]."""
    width, batch, count = size(1024, 32), size(8, 2), size(196, 12)
    depth, dropped = size(24, 2), size(4, 1)
    blocks = on_device(lambda: nn.ModuleList(Block(width, size(16, 2)) for _ in range(depth)), HALF).eval()
    patches = torch.randn(batch, count, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x = patches
        for block in blocks:
            x = block(x)
            kept = x.shape[1] - dropped
            strength = x.float().norm(dim=-1)
            places = strength.topk(kept).indices.sort().values
            if variant == BEFORE:
                mask = torch.zeros_like(strength, dtype=torch.bool).scatter_(1, places, True)
                x = x[mask].view(batch, kept, width)
            else:
                x = x.gather(1, places[..., None].expand(-1, -1, width))
        return x.mean(1)

    return step


class Clips(Dataset[tuple[Tensor, int]]):
    """Eight frames of a film, made smaller by PIL and normalised by NumPy."""

    def __init__(self, frames: int, side: int, classes: int) -> None:
        self.side, self.classes = side, classes
        self.film = np.random.default_rng(0).integers(0, 256, (frames, 256, 340, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        small = [Image.fromarray(x).resize((self.side, self.side), Image.Resampling.BILINEAR) for x in self.film]
        values = (np.stack(small).astype(np.float32) / 255.0 - 0.45) / 0.225
        return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2))), index % self.classes


@pair(
    "host-stall", "video", "DataLoader(num_workers=12) instead of num_workers=1", EIGHTEENTH,
    library="timm", steps=(3, 3),
)  # fmt: skip
def frames_by_one_worker(variant: str) -> Step:
    """A ResNet-50-D learns from 8 frames each of 8 films (bf16, channels_last), which one worker makes ready."""
    classes, batch, side = size(100, 4), size(8, 2), size(224, 32)
    model = on_device(lambda: timm.create_model("resnet50d" if CUDA else "resnet18d", num_classes=classes)).train()
    model = model.to(memory_format=torch.channels_last)
    optimizer = adamw(model)

    def learn(x: Tensor, labels: Tensor) -> None:
        frames = x.flatten(0, 1).contiguous(memory_format=torch.channels_last)

        def loss() -> Tensor:
            return functional.cross_entropy(model(frames).unflatten(0, x.shape[:2]).mean(1).float(), labels)

        training(loss, optimizer)()

    workers = 1 if variant == BEFORE else size(12, 1)
    how: dict[str, Any] = {"pin_memory": CUDA, "persistent_workers": True, "prefetch_factor": 2}
    return Loaded(DataLoader(Clips(size(8, 2), side, classes), batch, num_workers=workers, **how), learn)


class Lion(torch.optim.Optimizer):
    """Lion, as its authors published it."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        """One step, weight by weight."""
        for group in self.param_groups:
            short, long = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["average"] = torch.zeros_like(weight)
                average = state["average"]
                weight.mul_(1 - group["lr"] * group["decay"])
                update = average * short + weight.grad * (1 - short)
                weight.add_(update.sign_(), alpha=-group["lr"])
                average.mul_(long).add_(weight.grad, alpha=1 - long)


@pair(
    "unfused-optimizer", "fine-tuning", "timm.optim.Lion(foreach=True) instead of the authors' loop", EIGHTEENTH,
    library="timm", accept=("launch-overhead",), compiles=True, steps=(3, 3),
)  # fmt: skip
def lion_weight_by_weight(variant: str) -> Step:
    """A ViT-B/32 (blocks compiled, mixed precision) learns from 128 images; Lion visits its weights one by one."""
    name = "vit_base_patch32_clip_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=100)).train()
    compiled(model.blocks)
    x, labels = images(size(128, 1), 224), tokens(100, size(128, 1))
    if variant == BEFORE:
        optimizer: torch.optim.Optimizer = Lion(model.parameters(), 1e-5, decay=0.1)
    else:
        optimizer = timm.optim.Lion(model.parameters(), 1e-5, weight_decay=0.1, foreach=True)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), optimizer)


@pair(
    "scattered-access", "driving", "index_add_ instead of index_put_(accumulate=True), which sorts", EIGHTEENTH,
    accept=("memory-bandwidth",), inference=True, steps=(3, 3),
)  # fmt: skip
def points_put_into_cells(variant: str) -> Step:
    """Lift-splat: 1.4 million points of 48 cameras (64 numbers, fp32) are added up in maps of 8 × 200 × 200 cells."""
    channels, cameras, depths = size(64, 4), size(48, 2), size(41, 3)
    pixels, cells = size(16 * 44, 6), size(8 * 200 * 200, 20)
    depth = torch.randn(cameras, depths, pixels, device=DEVICE)
    seen = torch.randn(cameras, pixels, channels, device=DEVICE)
    places = tokens(cells, cameras * depths * pixels)
    look = on_device(lambda: nn.Conv2d(channels, channels, 3, padding=1), HALF).eval()
    look = look.to(memory_format=torch.channels_last)

    def step() -> Tensor:
        points = (depth.softmax(1)[..., None] * seen[:, None]).view(-1, channels)
        cell = torch.zeros(cells, channels, device=DEVICE)
        if variant == BEFORE:
            cell.index_put_((places,), points, accumulate=True)
        else:
            cell.index_add_(0, places, points)
        return look(cell.to(HALF).view(-1, size(200, 5), size(200, 2), channels).permute(0, 3, 1, 2)).relu()

    return step


@healthy("training", EIGHTEENTH, library="timm", compiles=True, steps=(3, 3))
def healthy_resnet34_training(variant: str) -> Step:
    """A ResNet-34 learns from 512 images in mixed precision: channels_last, compiled whole, fused SGD."""
    model = on_device(lambda: timm.create_model("resnet34" if CUDA else "resnet18", num_classes=size(1000, 8))).train()
    model = model.to(memory_format=torch.channels_last)
    compiled([model])
    x, labels = images(size(512, 2), size(224, 32)), tokens(size(1000, 8), size(512, 2))
    x = x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), optimizer)


@healthy("self-supervision", EIGHTEENTH, library="timm", compiles=True, steps=(3, 3))
def healthy_masked_images(variant: str) -> Step:
    """A masked autoencoder (ViT-L, 49 of 196 patches seen) learns from 192 images: mixed precision, blocks compiled."""
    width, narrow, count, seen = size(1024, 32), size(512, 16), size(196, 8), size(49, 2)
    batch, pixels = size(192, 2), size(768, 12)
    encoder = on_device(lambda: nn.ModuleList(Block(width, size(16, 2)) for _ in range(size(24, 1))))
    decoder = on_device(lambda: nn.ModuleList(Block(narrow, size(16, 2)) for _ in range(size(8, 1))), seed=1)
    ends = on_device(lambda: nn.ModuleList([nn.Linear(pixels, width), nn.Linear(width, narrow)]), seed=2)
    last = on_device(lambda: nn.Linear(narrow, pixels), seed=3)
    places = nn.Parameter(torch.randn(1, count, width, device=DEVICE) * 0.02)
    places_out = nn.Parameter(torch.randn(1, count, narrow, device=DEVICE) * 0.02)
    compiled([*encoder, *decoder])
    model = nn.ModuleList([encoder, decoder, ends, last])
    model.places, model.places_out = places, places_out
    patches = torch.randn(batch, count, pixels, device=DEVICE, dtype=HALF)

    def loss() -> Tensor:
        order = torch.rand(batch, count, device=DEVICE).argsort(-1)
        kept = order[:, :seen, None]
        x = ends[0](patches.gather(1, kept.expand(-1, -1, pixels)))
        x = x + places.expand(batch, -1, -1).gather(1, kept.expand(-1, -1, width))
        for block in encoder:
            x = block(x)
        x = ends[1](x)
        y = places_out.to(x.dtype).repeat(batch, 1, 1).scatter_add(1, kept.expand(-1, -1, narrow), x)
        for block in decoder:
            y = block(y)
        return functional.mse_loss(last(y), patches)

    return training(loss, adamw(model))
