"""The nineteenth set: images, and what is near them."""

from __future__ import annotations

import itertools

import timm
import timm.optim
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, NINETEENTH, Step, healthy, pair


def twice(into: int, out: int) -> nn.Module:
    """Two convolutions, each with a norm."""
    layers: list[nn.Module] = []
    for width in (into, out):
        layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """The U-Net of medical images."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.first = twice(1, width)
        self.down = nn.ModuleList(twice(a, b) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.joined = nn.ModuleList(twice(b, a) for a, b in itertools.pairwise(widths))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [images, classes, height, width]."""
        kept = [self.first(x)]
        for layer in self.down:
            kept.append(layer(functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, joined in zip(reversed(self.up), reversed(self.joined), strict=True):
            x = joined(torch.cat([kept.pop(), up(x)], 1))
        return self.last(x)


@pair(
    "memory-format", "segmentation", "model and images in torch.channels_last", NINETEENTH,
    accept=("memory-bandwidth",), steps=(3, 3),
)  # fmt: skip
def slices_as_images_come(variant: str) -> Step:
    """A U-Net of 64 to 1,024 channels learns from 8 slices of 512² in mixed precision, all in NCHW."""
    model, side = on_device(lambda: UNet(size(64, 4), 4)).train(), size(512, 32)
    x, labels = images(size(8, 1), side, channels=1), tokens(4, size(8, 1), side, side)
    if variant == AFTER:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


@pair(
    "blocking-copy", "remote sensing", "tiles in pinned memory, copied with non_blocking=True", NINETEENTH,
    library="timm", accept=("host-stall", "host-sync"), inference=True, steps=(3, 3),
)  # fmt: skip
def tiles_from_pageable_memory(variant: str) -> Step:
    """A ResNet-50 (bf16, channels_last) looks at 16 satellite tiles of 12 bands and 384² that NumPy holds in fp32."""
    bands, side = 12, size(384, 64)
    model = on_device(lambda: timm.create_model("resnet50" if CUDA else "resnet18", in_chans=bands), HALF).eval()
    model = model.to(memory_format=torch.channels_last)
    tiles = torch.randn(size(16, 1), bands, side, side)
    if variant == AFTER and CUDA:
        tiles = tiles.pin_memory()

    def step() -> Tensor:
        x = tiles.to(DEVICE, non_blocking=variant == AFTER)
        return model(x.to(HALF, memory_format=torch.channels_last)).argmax(-1)

    return step


def fired(inputs: Tensor) -> Tensor:
    """Spikes of leaky neurons over all times [times, images, …]."""
    charge, spikes = torch.zeros_like(inputs[0]), torch.empty_like(inputs)
    for time, now in enumerate(inputs.unbind()):
        charge = charge + (now - charge) * 0.5
        fires = charge >= 0.1
        spikes[time] = fires
        charge = torch.where(fires, 0.0, charge)
    return spikes


def fired_once(charge: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
    """Charges and spikes of leaky neurons at one time."""
    charge = charge + (now - charge) * 0.5
    fires = charge >= 0.1
    return torch.where(fires, 0.0, charge), fires.to(now.dtype)


@pair(
    "launch-overhead", "spiking", "each layer is given all times at once (step_mode='m')", NINETEENTH,
    accept=("small-kernels", "weight-bound"), compiles=True, inference=True, steps=(2, 2),
)  # fmt: skip
def spikes_step_by_step(variant: str) -> Step:
    """A spiking network (10 convolutions of 128, bf16, neurons compiled) sees 8 images of 32² for 16 times, in turn."""
    width, times, batch, side = size(128, 4), size(16, 3), size(8, 1), size(32, 8)
    layers = on_device(lambda: nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(size(10, 2))), HALF)
    layers = layers.eval().to(memory_format=torch.channels_last)
    x = torch.rand(times, batch, width, side, side, device=DEVICE, dtype=HALF)
    x = x.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (times, batch))
    together, once = (fired, fired_once) if TINY else (torch.compile(f, dynamic=False) for f in (fired, fired_once))

    def step_by_step() -> Tensor:
        charges = [torch.zeros_like(x[0]) for _ in layers]
        total = torch.zeros_like(x[0])
        for spikes in x.unbind():
            for index, layer in enumerate(layers):
                charges[index], spikes = once(charges[index], layer(spikes))  # noqa: PLW2901
            total += spikes
        return total

    def layer_by_layer() -> Tensor:
        spikes = x
        for layer in layers:
            spikes = together(layer(spikes.flatten(0, 1)).unflatten(0, (times, batch)))
        return spikes.sum(0)

    return step_by_step if variant == BEFORE else layer_by_layer


class Flowing(nn.Module):
    """A block of a diffusion transformer: what the time says scales and shifts the norms."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.says = nn.Linear(width, 6 * width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Positions [films, positions, width], times [films, 1, width]."""
        shift, scale, gate, shift2, scale2, gate2 = self.says(functional.silu(time)).chunk(6, -1)
        seen = self.joined(self.norm(x) * (1 + scale) + shift).chunk(3, -1)
        parts = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in seen)
        x = x + gate * self.out(functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        wide = self.wide(self.norm(x) * (1 + scale2) + shift2)
        return x + gate2 * self.narrow(functional.gelu(wide, approximate="tanh"))


@healthy("diffusion", NINETEENTH, compiles=True, steps=(3, 3))
def healthy_flow_matching(variant: str) -> Step:
    """A video transformer (10 × 1,536) learns by flow matching from 8 films of 2,048 latents: blocks compiled, bf16."""
    width, batch, length, latent = size(1536, 32), size(8, 2), size(2048, 8), size(64, 4)
    blocks = on_device(lambda: nn.ModuleList(Flowing(width, size(12, 2)) for _ in range(size(10, 1))))
    ends = on_device(lambda: nn.ModuleList([nn.Linear(latent, width), nn.Linear(width, latent)]), seed=1)
    compiled(blocks)
    films = torch.randn(batch, length, latent, device=DEVICE)
    waves = torch.randn(width, device=DEVICE)

    def loss() -> Tensor:
        noise, time = torch.randn_like(films), torch.rand(batch, 1, 1, device=DEVICE)
        x, told = ends[0](torch.lerp(noise, films, time)), torch.cos(time * waves)
        for block in blocks:
            x = block(x, told)
        return functional.mse_loss(ends[1](x), films - noise)

    return training(loss, adamw(nn.ModuleList([blocks, ends])))


@healthy("embedding", NINETEENTH, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_siglip_embedding(variant: str) -> Step:
    """SigLIP's image tower (L, 16 × 16 patches of 256²) embeds 128 images: bf16, layers compiled."""
    config = transformers.SiglipVisionConfig(
        hidden_size=size(1024, 32), intermediate_size=size(4096, 64), num_hidden_layers=size(24, 1),
        num_attention_heads=size(16, 2), image_size=size(256, 32), patch_size=16,
    )  # fmt: skip
    model = on_device(lambda: transformers.SiglipVisionModel(config), HALF).eval()
    compiled([module for module in model.modules() if type(module).__name__ == "SiglipEncoderLayer"])
    x = images(size(128, 2), config.image_size, HALF)
    return lambda: functional.normalize(model(pixel_values=x).pooler_output, dim=-1)
