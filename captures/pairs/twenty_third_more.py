"""More of the twenty-third set: vision, films, sounds, diffusion."""

from __future__ import annotations

import contextlib

import numpy as np
import timm
import torch
import transformers
from timm.utils.model import reparameterize_model
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_THIRD, Step, healthy, pair
from pairs.twenty_third import Block

LAST = torch.channels_last


@pair(
    "precision", "films", "the model and its films in bfloat16", TWENTY_THIRD,
    library="transformers", accept=("tensor-compute",), inference=True, steps=(2, 2),
)  # fmt: skip
def films_described_in_fp32(variant: str) -> Step:
    """A VideoMAE (12 × 768) describes 8 films of 16 frames for a search, in fp32 as it is loaded; TF32 is off."""
    config = transformers.VideoMAEConfig(
        hidden_size=size(768, 32), intermediate_size=size(3072, 64), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), image_size=size(224, 32), num_frames=size(16, 4),
    )  # fmt: skip
    dtype = torch.float32 if variant == BEFORE else HALF
    model = on_device(lambda: transformers.VideoMAEModel(config), dtype).eval()
    films = torch.randn(size(8, 2), config.num_frames, 3, config.image_size, config.image_size, device=DEVICE)
    films = films.to(dtype)
    return lambda: functional.normalize(model(pixel_values=films).last_hidden_state.float().mean(1), dim=-1)


class Written(Block):
    """A block whose attention is written out, as in the model's first repository."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Places [films, places, width]."""
        parts = self.joined(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        shares = ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + self.out((shares @ v).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@pair(
    "unfused-attention", "films", "functional.scaled_dot_product_attention", TWENTY_THIRD,
    accept=("unfused-chain", "memory-bandwidth"), with_stack=True, steps=(2, 2),
)  # fmt: skip
def places_of_films_attend_by_hand(variant: str) -> Step:
    """A ViViT (6 × 768) learns to classify 6 films of 1,568 places in mixed precision; its attention is written out."""
    width, kinds = size(768, 32), size(400, 8)
    block = Written if variant == BEFORE else Block
    model = on_device(lambda: nn.Sequential(
        *(block(width, size(12, 2)) for _ in range(size(6, 1))), nn.LayerNorm(width), nn.Linear(width, kinds)
    )).train()  # fmt: skip
    x, labels = torch.randn(size(6, 2), size(1568, 16), width, device=DEVICE), tokens(kinds, size(6, 2))
    return training(lambda: functional.cross_entropy(model(x).mean(1), labels), adamw(model))


class Pose(nn.Module):
    """A ResNet, three transposed convolutions, and a map for each joint: SimpleBaseline."""

    def __init__(self, name: str, joints: int, width: int) -> None:
        super().__init__()
        self.body = timm.create_model(name, num_classes=0, global_pool="")
        parts: list[nn.Module] = []
        wide = self.body.num_features
        for _ in range(3):
            parts += [
                nn.ConvTranspose2d(wide, width, 4, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            wide = width
        self.head = nn.Sequential(*parts, nn.Conv2d(width, joints, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Images → maps [images, joints, height / 4, width / 4]."""
        return self.head(self.body(x))


@pair(
    "host-stall", "poses", "the maps are drawn on the GPU, of all joints at once", TWENTY_THIRD,
    library="timm", accept=("blocking-copy",), with_stack=True, steps=(3, 2),
)  # fmt: skip
def joints_drawn_by_numpy(variant: str) -> Step:
    """SimpleBaseline (ResNet-50) learns 17 joints of 64 people of 256 × 192; NumPy draws a bell for each joint."""
    people, joints, high, wide, reach = size(64, 2), size(17, 2), size(64, 16), size(48, 16), 6
    model = on_device(lambda: Pose("resnet50" if CUDA else "resnet10t", joints, size(256, 16))).train()
    model = model.to(memory_format=LAST)
    optimizer = adamw(model)
    x = torch.randn(people, 3, 4 * high, 4 * wide, device=DEVICE).contiguous(memory_format=LAST)
    sites = np.stack([
        np.random.default_rng(0).integers(0, wide, (people, joints)),
        np.random.default_rng(1).integers(0, high, (people, joints)),
    ], -1)  # fmt: skip
    across, down = torch.arange(wide, device=DEVICE), torch.arange(high, device=DEVICE)

    def on_host() -> Tensor:
        maps = np.zeros((people, joints, high, wide), np.float32)
        span = np.arange(2 * reach + 1, dtype=np.float32)
        for person in range(people):
            for joint in range(joints):
                column, row = sites[person, joint]
                bell = np.exp(-((span - reach) ** 2 + (span[:, None] - reach) ** 2) / 8)
                left, top = max(0, column - reach), max(0, row - reach)
                right, bottom = min(wide, column + reach + 1), min(high, row + reach + 1)
                maps[person, joint, top:bottom, left:right] = bell[
                    top - row + reach : bottom - row + reach, left - column + reach : right - column + reach
                ]
        return torch.from_numpy(maps).to(DEVICE)

    def on_gpu() -> Tensor:
        there = torch.from_numpy(sites).to(DEVICE)
        x_away, y_away = across - there[..., :1], down - there[..., 1:]
        near = (x_away.abs() <= reach)[..., None, :] & (y_away.abs() <= reach)[..., None]
        bells = torch.exp(-(x_away.square()[..., None, :] + y_away.square()[..., None]) / 8)
        return bells * near

    def step() -> None:
        maps = on_host() if variant == BEFORE else on_gpu()
        training(lambda: functional.mse_loss(model(x).float(), maps), optimizer)()

    return step


@pair(
    "memory-format", "vision", "model and images in torch.channels_last", TWENTY_THIRD,
    library="timm", accept=("memory-bandwidth",), steps=(3, 3),
)  # fmt: skip
def repvgg_as_images_come(variant: str) -> Step:
    """A RepVGG-A2 (three branches a layer) learns from 96 images in mixed precision, in the format images come in."""
    classes = size(1000, 8)
    name = "repvgg_a2" if CUDA else "repvgg_a0"
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).train()
    x, labels = images(size(96, 2), size(224, 32)), tokens(classes, size(96, 2))
    if variant == AFTER:
        model, x = model.to(memory_format=LAST), x.contiguous(memory_format=LAST)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


@pair(
    "launch-overhead", "reading", "all words of the photograph in one batch", TWENTY_THIRD,
    library="timm", accept=("small-kernels", "weight-bound"), inference=True, steps=(3, 2),
)  # fmt: skip
def words_of_a_photo_one_by_one(variant: str) -> Step:
    """A ViTSTR (ViT-S, bf16) reads the twelve words that a detector found in a photograph, one crop a call."""
    name, letters = "vit_small_patch16_224" if CUDA else "vit_tiny_patch16_224", size(96, 8)
    model = on_device(lambda: timm.create_model(name, img_size=(64, 256), num_classes=0), HALF).eval()
    head = on_device(lambda: nn.Linear(model.num_features, letters), HALF, 1).eval()
    crops = torch.randn(size(12, 3), 3, 64, 256, device=DEVICE, dtype=HALF)

    def read(some: Tensor) -> Tensor:
        return head(model.forward_features(some)[:, :25]).argmax(-1)

    def step() -> list[list[int]]:
        words = torch.cat([read(crop[None]) for crop in crops]) if variant == BEFORE else read(crops)
        return words.tolist()

    return step


@pair(
    "launch-overhead", "sounds", "all recordings are masked at once, by comparing places with spans", TWENTY_THIRD,
    accept=("small-kernels", "host-stall"), compiles=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def spans_blanked_one_by_one(variant: str) -> Step:
    """A keyword transformer (4 × 256, compiled) learns from 192 spectra of 100 × 64; a loop blanks 4 spans of each."""
    width, batch, frames, bands, kinds = size(256, 16), size(192, 3), size(100, 20), size(64, 8), size(36, 4)
    ends = on_device(lambda: nn.ModuleList([nn.Linear(bands, width), nn.Linear(width, kinds)]), seed=1)
    blocks = on_device(lambda: nn.Sequential(*(Block(width, size(4, 2)) for _ in range(size(4, 1))))).train()
    compiled(blocks)
    optimizer = adamw(nn.ModuleList([ends, blocks]))
    spectra, labels = torch.randn(batch, frames, bands, device=DEVICE), tokens(kinds, batch)
    chance = np.random.default_rng(0)
    longest, widest = frames // 4, bands // 8

    def in_turn() -> Tensor:
        x = spectra.clone()
        for row in x:
            for _ in range(2):
                length, start = chance.integers(longest), chance.integers(frames - longest)
                row[start : start + length] = 0
                length, start = chance.integers(widest), chance.integers(bands - widest)
                row[:, start : start + length] = 0
        return x

    def spans(count: int, most: int) -> Tensor:
        places = torch.arange(count, device=DEVICE)
        starts = torch.randint(count - most, (batch, 2, 1), device=DEVICE)
        ends = starts + torch.randint(most, (batch, 2, 1), device=DEVICE)
        return ((places >= starts) & (places < ends)).any(1)

    def at_once() -> Tensor:
        return spectra.masked_fill(spans(frames, longest)[:, :, None] | spans(bands, widest)[:, None], 0)

    def step() -> None:
        x = in_turn() if variant == BEFORE else at_once()
        training(lambda: functional.cross_entropy(ends[1](blocks(ends[0](x)).mean(1)), labels), optimizer)()

    return step


class Squeezed(nn.Module):
    """Two convolutions beside a path that goes straight on, each after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Maps."""
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(functional.silu(norm(y)))
        return x + y


@pair(
    "unused-gradients", "diffusion", "torch.no_grad() around the encoder of the images", TWENTY_THIRD,
    accept=("recomputation", "unused-results"), compiles=True, steps=(2, 2),
)  # fmt: skip
def autoencoder_differentiated(variant: str) -> Step:
    """A denoiser (8 × 768, compiled) learns on latents of 12 images of 256²; their encoder is in the graph, too."""
    wide, width, batch, side = size(128, 8), size(768, 32), size(12, 2), size(256, 32)
    encoder = on_device(lambda: nn.Sequential(
        *(nn.Conv2d(3, wide, 3, padding=1), Squeezed(wide), nn.Conv2d(wide, 2 * wide, 3, 2, 1), Squeezed(2 * wide)),
        *(nn.Conv2d(2 * wide, 4 * wide, 3, 2, 1), Squeezed(4 * wide), nn.Conv2d(4 * wide, 4 * wide, 3, 2, 1)),
        *(Squeezed(4 * wide), nn.Conv2d(4 * wide, 8, 1)),
    )).eval().to(memory_format=LAST)  # fmt: skip
    blocks = on_device(lambda: nn.Sequential(*(Block(width, size(12, 2)) for _ in range(size(8, 1)))), seed=1).train()
    ends = on_device(lambda: nn.ModuleList([nn.Linear(8, width), nn.Linear(width, 8)]), seed=2)
    compiled(blocks)
    x = images(batch, side).contiguous(memory_format=LAST)
    frozen = torch.no_grad if variant == AFTER else contextlib.nullcontext

    def loss() -> Tensor:
        with frozen():
            latents = encoder(x).flatten(2).transpose(1, 2)
        noise, time = torch.randn_like(latents), torch.rand(batch, 1, 1, device=DEVICE)
        told = ends[1](blocks(ends[0](torch.lerp(latents.float(), noise.float(), time))))
        return functional.mse_loss(told.float(), noise.float())

    train = training(loss, adamw(nn.ModuleList([blocks, ends])))

    def step() -> None:
        train()
        encoder.zero_grad(set_to_none=True)

    return step


@pair(
    "unfused-chain", "vision", "the changes of colour through torch.compile", TWENTY_THIRD,
    library="timm", accept=("memory-bandwidth",), compiles=True, steps=(3, 3),
)  # fmt: skip
def colours_changed_in_passes(variant: str) -> Step:
    """A ResNet-18 learns from 192 images; brightness, saturation and hue change on the GPU, in passes over fp32."""
    classes, batch, side = size(1000, 8), size(192, 2), size(224, 32)
    name = "resnet18" if CUDA else "resnet10t"
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).train().to(memory_format=LAST)
    labels = tokens(classes, batch)
    x = torch.rand(batch, 3, side, side, device=DEVICE)

    def changed(x: Tensor, drawn: Tensor) -> Tensor:
        x = (x * (0.6 + 0.8 * drawn[0])).clamp(0, 1)
        red, green, blue = x.unbind(1)
        value, least = x.amax(1), x.amin(1)
        span = value - least
        some = span + 1e-6
        hue = torch.where(value == red, (green - blue) / some, (blue - red) / some + 2)
        hue = torch.where((value == blue) & (value != red), (red - green) / some + 4, hue)
        hue = hue + 1.2 * (drawn[1, :, 0] - 0.5)
        full = (span / (value + 1e-6) * (0.6 + 0.8 * drawn[2, :, 0])).clamp(0, 1)
        parts = []
        for shift in (5, 3, 1):
            turned = (hue + shift) % 6
            parts.append(value - value * full * torch.minimum(turned, 4 - turned).clamp(0, 1))
        return (torch.stack(parts, 1) - 0.45) / 0.225

    change = changed if variant == BEFORE or TINY else torch.compile(changed, dynamic=False)
    optimizer = adamw(model)

    def step() -> None:
        batch_now = change(x, torch.rand(3, batch, 1, 1, 1, device=DEVICE)).contiguous(memory_format=LAST)
        training(lambda: functional.cross_entropy(model(batch_now), labels), optimizer)()

    return step


@pair(
    "host-stall", "vision", "memory is noted once a step, not after each module", TWENTY_THIRD,
    library="timm", accept=("launch-overhead",), with_stack=True, steps=(2, 1),
)  # fmt: skip
def memory_noted_by_each_module(variant: str) -> Step:
    """An MViTv2-T learns from 32 images in mixed precision; a hook of each module notes memory_allocated()."""
    classes = size(1000, 8)
    model = on_device(lambda: timm.create_model("mvitv2_tiny", num_classes=classes)).train()
    x, labels = images(size(32, 1), 224), tokens(classes, size(32, 1))
    noted: list[int] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:
        noted.append(torch.cuda.memory_allocated())

    for module in model.modules() if variant == BEFORE else [model]:
        module.register_forward_hook(note)
    train = training(lambda: functional.cross_entropy(model(x), labels), adamw(model))

    def step() -> None:
        noted.clear()
        train()

    return step


@healthy("speech", TWENTY_THIRD, compiles=True, inference=True, steps=(2, 2))
def healthy_recordings_encoded(variant: str) -> Step:
    """Blocks (12 × 1,024) encode 64 recordings of 512 frames: bf16, compiled, replayed from a CUDA graph."""
    width = size(1024, 32)
    blocks = on_device(lambda: nn.Sequential(*(Block(width, size(16, 2)) for _ in range(size(12, 1)))), HALF).eval()
    compiled(blocks)
    x = torch.randn(size(64, 2), size(512, 8), width, device=DEVICE, dtype=HALF)
    return as_graph(lambda: blocks(x))


@healthy("vision", TWENTY_THIRD, library="timm", compiles=True, inference=True, steps=(3, 3))
def healthy_merged_repvgg(variant: str) -> Step:
    """A RepVGG-A2, branches merged, tells what 256 images show: bf16, channels_last, compiled, a CUDA graph."""
    classes = size(1000, 8)
    name = "repvgg_a2" if CUDA else "repvgg_a0"
    model = on_device(lambda: timm.create_model(name, num_classes=classes)).eval()
    model = reparameterize_model(model).to(HALF, memory_format=LAST)
    compiled([model])
    x = images(size(256, 2), size(224, 32), HALF).contiguous(memory_format=LAST)
    return as_graph(lambda: model(x))


@healthy("films", TWENTY_THIRD, compiles=True, steps=(2, 2))
def healthy_film_training(variant: str) -> Step:
    """Blocks (12 × 1,024) learn from 16 films of 1,568 places: mixed precision, compiled, fused AdamW."""
    width, wide = size(1024, 32), size(1536, 16)
    model = on_device(lambda: nn.Sequential(
        nn.Linear(wide, width), *(Block(width, size(16, 2)) for _ in range(size(12, 1))), nn.Linear(width, wide)
    )).train()  # fmt: skip
    compiled(list(model)[1:-1])
    x = torch.randn(size(16, 2), size(1568, 16), wide, device=DEVICE, dtype=HALF)
    return training(lambda: functional.mse_loss(model(x), x), adamw(model))


@healthy("vision", TWENTY_THIRD, library="timm", compiles=True, inference=True, steps=(2, 2))
def healthy_clip_features(variant: str) -> Step:
    """CLIP's ViT-L/14 describes 128 images in bf16, its blocks compiled."""
    name = "vit_large_patch14_clip_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=0), HALF).eval()
    compiled(model.blocks)
    x = images(size(128, 1), 224, HALF)
    return lambda: model(x)
