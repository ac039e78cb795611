"""More of the thirty-fourth set: experts, gestures, night, posters, floods, eddies, damages, streets, molecules."""

from __future__ import annotations

from typing import Any

import numpy as np
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import CUDA, DEVICE, HALF, Block, adamw, compiled, images, mixed, on_device, seeded, size, tokens
from pairs.registry import AFTER, BEFORE, THIRTY_FOURTH, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


def pinned(x: Tensor) -> Tensor:
    """In memory that the GPU reads by itself."""
    return x.pin_memory() if CUDA else x


class Choosing(nn.Module):
    """Experts that choose their tokens (arXiv:2202.09368); the router is exact, and the experts may be."""

    def __init__(self, width: int, inner: int, experts: int, *, exact: bool) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.first = nn.Parameter(0.02 * torch.randn(experts, width, inner))
        self.second = nn.Parameter(0.02 * torch.randn(experts, inner, width))
        self.exact = exact

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [rows, places, width]."""
        with torch.autocast(DEVICE.type, enabled=False):
            flat = x.flatten(0, 1).float()
            room = 2 * len(flat) // len(self.first)
            shares, places = self.router(flat).softmax(-1).topk(room, dim=0)
            if self.exact:
                return self.answered(flat, shares.T, places.T).view_as(x)
        return self.answered(flat, shares.T, places.T).view_as(x)

    def answered(self, flat: Tensor, shares: Tensor, places: Tensor) -> Tensor:
        """Tokens [tokens, width], shares and places [experts, room]."""
        given = flat.index_select(0, places.flatten()).view(*places.shape, -1)
        made = torch.bmm(functional.gelu(torch.bmm(given, self.first)), self.second)
        made = made.float() * shares[..., None]
        return torch.zeros_like(flat).index_add(0, places.flatten(), made.flatten(0, 1))


@pair(
    "precision", "mixture of experts", "autocast is off for the router alone, and on again for the experts",
    THIRTY_FOURTH, steps=(2, 1),
)  # fmt: skip
def coral_reef_pretraining(variant: str) -> Step:
    """A V-MoE (12 × 768, 16 experts in each second layer, mixed precision) learns from 64 photographs of 224².

    The router has to be exact, so that autocast is off in it. But the block in which it is off goes on for as long as
    the layer does: the experts, most of the arithmetic, run in fp32, and without TF32.
    """
    rows, places, width, kinds = size(64, 2), size(196, 8), size(768, 32), size(1000, 5)
    deep, heads, experts = size(12, 2), size(12, 2), size(16, 4)

    def build() -> nn.Module:
        layers = [Block(width, heads) for _ in range(deep)]
        for layer in layers[1::2]:
            layer.feed = Choosing(width, 4 * width, experts, exact=variant == BEFORE)
        return nn.Sequential(nn.Linear(3 * 16 * 16, width), *layers, nn.LayerNorm(width))

    body = on_device(build).train()
    head = on_device(lambda: nn.Linear(width, kinds), seed=1)
    optimizer = adamw(nn.ModuleList([body, head]))
    seeded(2)
    x = torch.randn(rows, places, 3 * 16 * 16, device=DEVICE)
    labels = tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            scores = head(body(x).mean(1))
        loss = functional.cross_entropy(scores.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "unfused-attention", "video", "attn_implementation='sdpa', the default, instead of 'eager'", THIRTY_FOURTH,
    library="transformers", accept=("memory-bandwidth",), steps=(2, 1),
)  # fmt: skip
def sign_language_training(variant: str) -> Step:
    """A VideoMAE (12 × 768, mixed precision, fused AdamW) learns 226 signs from 8 clips of 16 frames of 224².

    Someone wanted to see maps of attention, for which it has to be 'eager', and left it so. The 1,568² scores of each
    head are written by a product, a scale, a softmax and a dropout of nothing. These passes over memory take the time:
    hence "memory-bandwidth", too.
    """
    rows, side, frames, kinds = size(8, 2), size(224, 32), size(16, 4), size(226, 7)
    config = transformers.VideoMAEConfig(
        image_size=side, num_frames=frames, hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), num_labels=kinds,
    )  # fmt: skip
    config._attn_implementation = "sdpa" if variant == AFTER else "eager"
    model = on_device(lambda: transformers.VideoMAEForVideoClassification(config)).train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    seeded(1)
    clips, labels = torch.randn(rows, frames, 3, side, side, device=DEVICE), tokens(kinds, rows)

    def step() -> Tensor:
        with mixed():
            scores = model(pixel_values=clips).logits
        loss = functional.cross_entropy(scores.float(), labels, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class ByHand(torch.autograd.Function):
    """A norm over channels and its gradient, as they stand in the repository of NAFNet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Maps [rows, channels, height, width]."""
        ctx.eps = eps
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        y = (x - mean) / (var + eps).sqrt()
        ctx.save_for_backward(y, var, weight)
        return weight.view(1, -1, 1, 1) * y + bias.view(1, -1, 1, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradient of the maps → those of the inputs."""
        y, var, weight = ctx.saved_tensors
        g = grads[0] * weight.view(1, -1, 1, 1)
        of_x = 1.0 / (var + ctx.eps).sqrt() * (g - y * (g * y).mean(1, keepdim=True) - g.mean(1, keepdim=True))
        return of_x, (grads[0] * y).sum((0, 2, 3)), grads[0].sum((0, 2, 3)), None


class ChannelNorm(nn.Module):
    """A layer norm over the channels of maps."""

    def __init__(self, width: int, *, by_hand: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.by_hand = by_hand

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, channels, height, width]."""
        if self.by_hand:
            return ByHand.apply(x, self.weight, self.bias, 1e-6)
        x = functional.layer_norm(x.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias, 1e-6)
        return x.permute(0, 3, 1, 2)


class Restoring(nn.Module):
    """Two residual branches of convolutions, norms first."""

    def __init__(self, width: int, *, by_hand: bool) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                ChannelNorm(width, by_hand=by_hand), nn.Conv2d(width, width, side, padding=side // 2), nn.GELU(),
                nn.Conv2d(width, width, 1),
            )
            for side in (3, 1)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, channels, height, width]."""
        for branch in self.branches:
            x = x + branch(x)
        return x


@pair(
    "unfused-chain", "restoration", "functional.layer_norm over the channels, which are last in memory", THIRTY_FOURTH,
    accept=("memory-bandwidth",), steps=(3, 2),
)  # fmt: skip
def night_photo_training(variant: str) -> Step:
    """A network (20 × 256, channels_last, mixed precision) learns to clear 16 patches of 256² of photographs by night.

    Its norms are the autograd function of a well-known repository: ten kernels there, and as many back, each over all
    maps in memory, for one that is fused. Hence "memory-bandwidth", too.
    """
    rows, side, width, deep = size(16, 2), size(256, 32), size(256, 16), size(20, 2)

    def build() -> nn.Module:
        layers = [Restoring(width, by_hand=variant == BEFORE) for _ in range(deep)]
        enter, leave = nn.Conv2d(48, width, 3, padding=1), nn.Conv2d(width, 48, 3, padding=1)
        return nn.Sequential(nn.PixelUnshuffle(4), enter, *layers, leave, nn.PixelShuffle(4))

    model = on_device(build).train().to(memory_format=LAST)
    optimizer = adamw(model)
    seeded(1)
    true = torch.rand(rows, 3, side, side, device=DEVICE).contiguous(memory_format=LAST)
    dark = (0.2 * true + 0.02 * torch.randn_like(true)).contiguous(memory_format=LAST)

    def step() -> Tensor:
        with mixed():
            made = model(dark)
        loss = functional.l1_loss(made.float(), true)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Denoiser(nn.Module):
    """A U-ViT without its long ways: time and kind are tokens as patches are (arXiv:2209.12152)."""

    def __init__(self, width: int, heads: int, deep: int, patches: int, values: int, kinds: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(values, width), nn.Linear(width, values)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.kinds = nn.Embedding(kinds, width)
        self.places = nn.Parameter(0.02 * torch.randn(patches, width))
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(deep)), nn.LayerNorm(width))

    def forward(self, x: Tensor, time: Tensor, kind: Tensor) -> Tensor:
        """Patches [rows, patches, values], times [rows, 1], kinds [rows, 1]."""
        told = self.layers(torch.cat((self.time(time)[:, None], self.kinds(kind), self.enter(x) + self.places), 1))
        return self.leave(told[:, 2:])


@pair(
    "unfused-optimizer", "diffusion", "one AdamW(fused=True) over all weights, after the backward pass", THIRTY_FOURTH,
    accept=("launch-overhead", "small-kernels", "host-stall"), steps=(2, 1),
)  # fmt: skip
def film_poster_diffusion(variant: str) -> Step:
    """A U-ViT (24 × 512, mixed precision) learns by flow matching from 64 posters, as latents of 32².

    As a tutorial has it for small GPUs, each weight has an AdamW of its own, which steps as soon as its gradient is
    there. Memory is nearly empty; 300 optimizers launch a dozen small kernels each, from Python, amid the backward
    pass, for which the GPU waits: hence the other findings.
    """
    rows, patches, values, kinds = size(64, 2), size(256, 6), size(16, 4), size(27, 3)
    width, heads, deep = size(512, 32), size(8, 2), size(24, 2)
    model = on_device(lambda: Denoiser(width, heads, deep, patches, values, kinds)).train()
    optimizer = adamw(model) if variant == AFTER else None
    if optimizer is None:
        own = {weight: torch.optim.AdamW([weight], lr=1e-4, foreach=False) for weight in model.parameters()}

        def learnt(weight: Tensor) -> None:
            own[weight].step()
            own[weight].zero_grad()

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(learnt)
    seeded(1)
    posters, kind = torch.randn(rows, patches, values, device=DEVICE), tokens(kinds, rows, 1)

    def step() -> Tensor:
        noise, time = torch.randn_like(posters), torch.rand(rows, 1, device=DEVICE)
        between = torch.lerp(noise, posters, time[..., None])
        with mixed():
            told = model(between, time, kind)
        loss = functional.mse_loss(told.float(), posters - noise)
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "host-sync", "segmentation", "chances are drawn by torch.rand(()) on the host, where they are asked for",
    THIRTY_FOURTH, library="timm", accept=("launch-overhead", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def flood_map_training(variant: str) -> Step:
    """A ResNet-34 of timm with a head (channels_last, mixed precision) learns to find water in 128 tiles of 256².

    Tiles and maps are on the GPU, where each tile is flipped, turned and made brighter, or not. Whether, is drawn on
    the GPU, too: 'if torch.rand((), device=x.device) < 0.5' waits for the GPU, four times a tile. Between the waits
    are small kernels, and the network is launched when the GPU has run dry: hence the other findings.
    """
    rows, side, kinds = size(128, 4), size(256, 64), 3
    where = DEVICE if variant == BEFORE else torch.device("cpu")
    name = "resnet34" if CUDA else "resnet18"
    body = on_device(lambda: timm.create_model(name, features_only=True, out_indices=(3,))).train()
    head = on_device(lambda: nn.Conv2d(256, kinds, 1), seed=1)
    model = nn.Sequential(body, head).to(memory_format=LAST)
    optimizer = adamw(model)
    seeded(2)
    tiles, maps = images(rows, side), tokens(kinds, rows, side, side)

    def likely() -> bool:
        return bool(torch.rand((), device=where) < 0.5)

    def changed(tile: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if likely():
            tile, labels = tile.flip(-1), labels.flip(-1)
        if likely():
            tile, labels = tile.flip(-2), labels.flip(-2)
        if likely():
            tile, labels = tile.rot90(1, (-2, -1)), labels.rot90(1, (-2, -1))
        if likely():
            tile = tile * 1.1
        return tile, labels

    def step() -> Tensor:
        pairs = [changed(tile, labels) for tile, labels in zip(tiles, maps, strict=True)]
        x, wanted = (torch.stack(parts) for parts in zip(*pairs, strict=True))
        with mixed():
            scores = head(body(x.contiguous(memory_format=LAST))[0])
        scores = functional.interpolate(scores.float(), size=(side, side), mode="bilinear")
        loss = functional.cross_entropy(scores, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


@pair(
    "host-stall", "simulation", "torch.fft.rfft2 on the GPU instead of np.fft.rfft2", THIRTY_FOURTH,
    accept=("blocking-copy", "host-sync"), with_stack=True, steps=(3, 2),
)  # fmt: skip
def ocean_eddy_training(variant: str) -> Step:
    """A transformer (8 × 512, mixed precision) learns from 32 fields of currents of 256² how they go on.

    A metric of each step is how far the spectrum of what it tells is from the true one. It is worked out by NumPy: the
    fields are copied, which waits for the GPU, and then the GPU waits for the host. Hence the other findings.
    """
    rows, side, patch, width = size(32, 2), size(256, 32), 8, size(512, 32)
    body = on_device(lambda: nn.Sequential(nn.Conv2d(2, width, patch, patch), nn.Flatten(2))).train()
    layers = on_device(
        lambda: nn.Sequential(
            *(Block(width, size(8, 2)) for _ in range(size(8, 2))), nn.LayerNorm(width),
            nn.Linear(width, 2 * patch * patch),
        ), seed=1,
    ).train()  # fmt: skip
    optimizer = adamw(nn.ModuleList([body, layers]))
    seeded(2)
    now, later = images(rows, side, channels=2), images(rows, side, channels=2)
    true = torch.fft.rfft2(later).abs().square().mean((0, 1))
    if variant == BEFORE:
        true = true.cpu()
    history: list[Tensor] = []

    def power(fields: Tensor) -> Tensor:
        if variant == AFTER:
            return torch.fft.rfft2(fields).abs().square().mean((0, 1))
        waves = np.fft.rfft2(fields.cpu().numpy())
        return torch.from_numpy((np.abs(waves) ** 2).mean((0, 1)))

    def step() -> Tensor:
        with mixed():
            told = layers(body(now).transpose(1, 2))
        told = functional.pixel_shuffle(told.float().transpose(1, 2).unflatten(2, (side // patch, -1)), patch)
        loss = functional.mse_loss(told, later)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        history.append((power(told.detach()).log() - true.log()).abs().mean())
        del history[:-100]
        return loss.detach()

    return step


@pair(
    "recomputation", "multimodal", "the photographs are encoded, then repeated for their questions", THIRTY_FOURTH,
    library="timm", inference=True, steps=(3, 2),
)  # fmt: skip
def car_damage_checklist(variant: str) -> Step:
    """A ViT-L/14 of timm and a decoder (12 × 1,024), both in bf16, answer 8 questions on each of 8 photographs of 336².

    A sample is a photograph and a question, as the data set has it. So each photograph goes through the tower eight
    times, and comes out the same.
    """
    photos, asked, words, side = size(8, 2), size(8, 3), size(32, 6), size(336, 64)
    vocabulary, width = size(32_000, 64), size(1024, 32)
    name = "vit_large_patch14_clip_336" if CUDA else "vit_tiny_patch16_224"
    tower = on_device(lambda: timm.create_model(name, img_size=side, num_classes=0), HALF).eval()
    across = on_device(lambda: nn.Linear(tower.num_features, width), HALF, seed=1)
    names, head = (on_device(lambda: nn.Embedding(vocabulary, width), HALF, seed=seed) for seed in (2, 3))
    layers = on_device(
        lambda: nn.Sequential(
            *(Block(width, size(16, 2), causal=True) for _ in range(size(12, 1))), nn.LayerNorm(width)
        ), HALF, seed=4,
    ).eval()  # fmt: skip
    seeded(5)
    x, questions = images(photos, side, HALF), tokens(vocabulary, photos * asked, words)

    def step() -> Tensor:
        if variant == BEFORE:
            seen = across(tower.forward_features(x.repeat_interleave(asked, 0)))
        else:
            seen = across(tower.forward_features(x)).repeat_interleave(asked, 0)
        told = layers(torch.cat((seen, names(questions)), 1))[:, -1]
        return functional.linear(told, head.weight).argmax(-1)

    return step


@pair(
    "blocking-copy", "segmentation", "labels go as bytes, and are made masks of kinds by one_hot on the GPU",
    THIRTY_FOURTH, library="torchvision", accept=("host-stall",), steps=(3, 2),
)  # fmt: skip
def tram_camera_training(variant: str) -> Step:
    """An FCN (ResNet-50, channels_last, mixed precision) learns from 16 frames of 512² with 32 kinds; Dice and BCE.

    The data set hands out what the losses take: a mask in fp32 for each kind. Half a gigabyte is copied from pageable
    memory in each step, where the 4 MB of the labels say the same. The host copies it, too, to where the GPU can read
    it: hence "host-stall".
    """
    rows, side, kinds = size(16, 2), size(512, 64), size(32, 5)

    parts = torchvision.models.segmentation
    make = parts.fcn_resnet50 if CUDA else parts.lraspp_mobilenet_v3_large
    model = on_device(lambda: make(weights=None, weights_backbone=None, num_classes=kinds)).train()
    model = model.to(memory_format=LAST)
    optimizer = adamw(model)
    seeded(1)
    frames = pinned(torch.randn(rows, 3, side, side).contiguous(memory_format=LAST))
    labels = torch.randint(0, kinds, (rows, side, side), dtype=torch.uint8)

    def masks(those: Tensor) -> Tensor:
        return functional.one_hot(those.long(), kinds).permute(0, 3, 1, 2).float()

    given = masks(labels) if variant == BEFORE else pinned(labels)

    def step() -> Tensor:
        x, wanted = frames.to(DEVICE, non_blocking=True), given.to(DEVICE, non_blocking=True)
        if variant == AFTER:
            wanted = masks(wanted)
        with mixed():
            scores = model(x)["out"]
        scores = scores.float()
        chances = scores.sigmoid()
        shared, there = (chances * wanted).sum((0, 2, 3)), chances.sum((0, 2, 3)) + wanted.sum((0, 2, 3))
        loss = 1 - (2 * shared / (there + 1e-6)).mean()
        loss = loss + functional.binary_cross_entropy_with_logits(scores, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Told(nn.Module):
    """A vector for each of few kinds, looked up, or by a product with zeros and ones."""

    def __init__(self, kinds: int, width: int, *, product: bool) -> None:
        super().__init__()
        self.table, self.product = nn.Embedding(kinds, width), product

    def forward(self, kinds: Tensor) -> Tensor:
        """Kinds [items] → [items, width]."""
        if self.product:
            which = functional.one_hot(kinds, self.table.num_embeddings)
            return which.to(HALF) @ self.table.weight.to(HALF)
        return self.table(kinds)


class Bonded(nn.Module):
    """A layer of GIN with bonds, as in the examples of OGB."""

    def __init__(self, width: int, traits: int, *, product: bool) -> None:
        super().__init__()
        self.bonds = nn.ModuleList(Told(8, width, product=product) for _ in range(traits))
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(inplace=True), nn.Linear(2 * width, width)
        )
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, start: Tensor, end: Tensor, traits: list[Tensor]) -> Tensor:
        """Atoms [atoms, width]; bonds from and to, and their traits."""
        bond = sum(table(trait) for table, trait in zip(self.bonds, traits, strict=True))
        said = functional.relu(x.index_select(0, start) + bond)
        x = x + torch.zeros_like(x).index_add(0, end, said.to(x.dtype))
        return functional.relu(self.norm(self.feed(x))).float()


class Molecules(nn.Module):
    """Atoms → tasks of their molecules."""

    def __init__(self, width: int, deep: int, tasks: int, traits: int, *, product: bool) -> None:
        super().__init__()
        self.atoms = Told(128, width, product=product)
        self.layers = nn.ModuleList(Bonded(width, traits, product=product) for _ in range(deep))
        self.head = nn.Linear(width, tasks)

    def forward(self, kinds: Tensor, start: Tensor, end: Tensor, traits: list[Tensor], many: int) -> Tensor:
        """Kinds of atoms [atoms], bonds, as many atoms to each molecule."""
        x = self.atoms(kinds).float()
        for layer in self.layers:
            x = layer(x, start, end, traits)
        return self.head(x.unflatten(0, (-1, many)).mean(1))


@pair(
    "scattered-access", "graph networks", "one_hot(kinds) @ table instead of nn.Embedding: its gradient is a product",
    THIRTY_FOURTH, accept=("memory-bandwidth",), steps=(3, 2),
)  # fmt: skip
def assay_outcome_training(variant: str) -> Step:
    """A GIN (5 × 256, mixed precision, fused AdamW) learns 128 assays from 4,096 molecules of 26 atoms and 56 bonds.

    Each layer looks up three traits of each bond in tables of 8 rows. The gradient of nn.Embedding sorts 230,000
    places, and adds up what belongs to a row, one after the other, by very few blocks: hence "memory-bandwidth", too.
    """
    molecules, atoms, bonds, tasks, width = size(4096, 3), 26, 56, size(128, 4), size(256, 16)
    model = on_device(lambda: Molecules(width, size(5, 2), tasks, 3, product=variant == AFTER)).train()
    optimizer = adamw(model)
    seeded(1)
    first = torch.arange(molecules, device=DEVICE).repeat_interleave(bonds) * atoms
    start, end = (first + tokens(atoms, molecules * bonds) for _ in range(2))
    kinds = tokens(9, molecules * atoms)
    traits = [tokens(many, molecules * bonds) for many in (5, 6, 2)]
    wanted = (torch.rand(molecules, tasks, device=DEVICE) < 0.1).float()

    def step() -> Tensor:
        with mixed():
            scores = model(kinds, start, end, traits, atoms)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Patches(nn.Module):
    """A convolution over patches, written as a product."""

    def __init__(self, by: nn.Conv2d) -> None:
        super().__init__()
        self.side = by.kernel_size[0]
        self.product = nn.Linear(by.in_channels * self.side**2, by.out_channels, dtype=by.weight.dtype)
        self.product.weight.data, self.product.bias.data = by.weight.data.flatten(1), by.bias.data

    def forward(self, x: Tensor) -> Tensor:
        """Images [rows, colours, height, width] to patches [rows, width of the network, down, across]."""
        x = x.unflatten(-1, (-1, self.side)).unflatten(-3, (-1, self.side)).permute(0, 2, 4, 1, 3, 5).flatten(-3)
        return self.product(x).permute(0, 3, 1, 2)


@pair(
    "precision", "detection", "patches are cut out by permute() and a product, instead of a convolution", THIRTY_FOURTH,
    library="timm", inference=True, compiles=True, steps=(3, 2),
)  # fmt: skip
def harbour_ship_detection(variant: str) -> Step:
    """A ViT-B/16 of timm (bf16, blocks compiled) finds ships in 32 images of 640²: 100 finds each, read at once.

    It was written as healthy. But the convolution over patches, as timm writes it, runs off the tensor cores.
    """
    rows, side, kinds, most = size(32, 2), size(640, 64), size(16, 3), size(100, 4)
    name = "vit_base_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(
        lambda: timm.create_model(name, img_size=side, class_token=False, global_pool="", num_classes=0), HALF
    ).eval()  # fmt: skip
    if variant == AFTER:
        model.patch_embed.proj = Patches(model.patch_embed.proj)
    compiled(model.blocks)
    head = on_device(lambda: nn.Linear(model.num_features, kinds + 4), HALF, seed=1)
    seeded(2)
    x = images(rows, side, HALF)

    def step() -> list[list[list[float]]]:
        told = head(model.forward_features(x)).float()
        chances, names = told[..., :kinds].sigmoid().max(-1)
        best, places = chances.topk(most)
        boxes = told[..., kinds:].sigmoid().gather(1, places[..., None].expand(-1, -1, 4))
        found = torch.cat((best[..., None], names.gather(1, places)[..., None].float(), boxes), -1)
        return found.tolist()

    return step


@healthy("time series", THIRTY_FOURTH, compiles=True, steps=(2, 1))
def healthy_river_level_training(variant: str) -> Step:
    """A transformer (12 × 1,024, layers compiled, mixed precision) learns from 512 rivers of 64 patches of 16 hours.

    It tells nine quantiles of the next patch after each one; loss and norm of gradients stay on the GPU, for the log.
    """
    rows, patches, hours, width = size(512, 3), size(64, 6), 16, size(1024, 32)
    enter, leave = (
        on_device(lambda wide=wide, out=out: nn.Linear(wide, out)) for wide, out in ((hours, width), (width, 9 * hours))
    )
    layers = on_device(
        lambda: nn.ModuleList(Block(width, size(16, 2), causal=True) for _ in range(size(12, 1))), seed=1
    ).train()  # fmt: skip
    compiled(layers)
    model = nn.ModuleList([enter, leave, layers])
    optimizer = adamw(model)
    seeded(2)
    levels = torch.randn(rows, patches + 1, hours, device=DEVICE)
    shares = torch.arange(1, 10, device=DEVICE) / 10
    log = torch.zeros(2, device=DEVICE)

    def step() -> Tensor:
        with mixed():
            x = enter(levels[:, :-1])
            for layer in layers:
                x = layer(x)
            told = leave(x)
        off = levels[:, 1:, :, None] - told.float().unflatten(-1, (hours, 9))
        loss = torch.maximum(shares * off, (shares - 1) * off).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return log.lerp_(torch.stack((loss.detach(), norm)), 0.1)

    return step


@healthy("multimodal", THIRTY_FOURTH, inference=True, steps=(2, 1))
def healthy_radiology_report_scoring(variant: str) -> Step:
    """Six layers of 4,096 (bf16, eager) say how likely 8 reports of 448 words are after features of their images.

    The features, 576 of each image, are there. Products are so large that all else hardly counts; only words of the
    report go through the head.
    """
    rows, seen, words, vocabulary = size(8, 2), size(576, 6), size(448, 5), size(32_000, 64)
    width, known = size(4096, 32), size(1024, 16)
    across = on_device(lambda: nn.Linear(known, width), HALF)
    names = on_device(lambda: nn.Embedding(vocabulary, width), HALF, seed=1)
    layers = on_device(
        lambda: nn.Sequential(
            *(Block(width, size(32, 2), causal=True) for _ in range(size(6, 1))), nn.LayerNorm(width)
        ), HALF, seed=2,
    ).eval()  # fmt: skip
    head = on_device(lambda: nn.Linear(width, vocabulary, bias=False), HALF, seed=3)
    seeded(4)
    features, reports = torch.randn(rows, seen, known, device=DEVICE, dtype=HALF), tokens(vocabulary, rows, words)

    def step() -> list[float]:
        told = layers(torch.cat((across(features), names(reports)), 1))[:, seen - 1 : -1]
        lost = functional.cross_entropy(head(told).flatten(0, 1), reports.flatten(), reduction="none")
        return (-lost.view(rows, words).float().sum(1)).tolist()

    return step
