"""The thirty-first set: photographs, long prompts, detection, sampling, maps, adapters, forecasts, answers."""

from __future__ import annotations

import math
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
import transformers
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    Block,
    adamw,
    as_graph,
    compiled,
    images,
    mixed,
    on_device,
    seeded,
    size,
    tokens,
    training,
)
from pairs.registry import AFTER, BEFORE, THIRTY_FIRST, Step, healthy, pair

__all__: list[str] = []
LAST = torch.channels_last


@pair(
    "precision", "vision", "the forward pass, too, is in the context of autocast", THIRTY_FIRST,
    library="torchvision", steps=(2, 1),
)  # fmt: skip
def photo_classifier_autocast_on_loss(variant: str) -> Step:
    """A ViT-B/16 of torchvision learns from 48 images of 224²; only the loss is computed under autocast.

    The forward pass is one line above the context, hence in fp32 (TF32 is off for products, as it is by default).
    """
    side, rows = size(224, 32), size(48, 2)

    def make() -> nn.Module:
        return torchvision.models.VisionTransformer(
            image_size=side, patch_size=16, num_layers=size(12, 1), num_heads=size(12, 2), hidden_dim=size(768, 32),
            mlp_dim=size(3072, 64), num_classes=size(1000, 7),
        )  # fmt: skip

    model = on_device(make).train()
    optimizer = adamw(model)
    x, kinds = images(rows, side), tokens(size(1000, 7), rows)

    def step() -> None:
        if variant == BEFORE:
            scores = model(x)
            with mixed():
                loss = functional.cross_entropy(scores, kinds, label_smoothing=0.1)
        else:
            with mixed():
                loss = functional.cross_entropy(model(x), kinds, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Rotated(nn.Module):
    """A layer of a decoder with rotary positions, which are applied in fp32."""

    def __init__(self, width: int, heads: int, wide: int, room: int, *, back: bool) -> None:
        super().__init__()
        self.heads, self.back, narrow = heads, back, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.wide = nn.Linear(width, wide, bias=False), nn.Linear(width, wide, bias=False)
        self.narrow = nn.Linear(wide, width, bias=False)
        pace = 10_000.0 ** (-torch.arange(0, narrow, 2) / narrow)
        angles = torch.outer(torch.arange(room).float(), pace).repeat(1, 2)
        self.turn = (angles.cos(), angles.sin())  # no buffers: they stay in fp32

    def rotated(self, x: Tensor) -> Tensor:
        """Queries or keys [rows, heads, places, narrow] → the same in fp32."""
        x = x.float()
        left, right = x.chunk(2, -1)
        return x * self.turn[0] + torch.cat((-right, left), -1) * self.turn[1]

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotated(q), self.rotated(k)
        if self.back:
            q, k = q.to(v.dtype), k.to(v.dtype)
        seen = functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        x = x + self.out(seen.to(x.dtype).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.wide(y))


@pair(
    "precision", "prefill", "queries and keys are cast back to bf16 when they are rotated", THIRTY_FIRST,
    inference=True, steps=(2, 1),
)  # fmt: skip
def long_prompt_rotary_in_fp32(variant: str) -> Step:
    """A decoder (6 × 2,048, 16 heads, bf16) reads 2 prompts of 8,192 tokens; rotary positions are applied in fp32.

    Queries and keys stay in fp32, and the values are cast so that the types fit: all of the attention is in fp32.
    """
    width, words, room, back = size(2048, 32), size(32_768, 64), size(8192, 16), variant == AFTER

    def make() -> nn.Module:
        layers = (Rotated(width, size(16, 2), size(5632, 64), room, back=back) for _ in range(size(6, 1)))
        return nn.Sequential(*layers)

    layers = on_device(make, HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2)
    ids = tokens(words, size(2, 1), room)
    return lambda: head(functional.rms_norm(layers(names(ids))[:, -1], (width,)))


class SceneLayer(nn.Module):
    """A layer of the encoder or the decoder of DETR, norms last, attention by nn.MultiheadAttention."""

    def __init__(self, width: int, heads: int, wide: int, drop: float, *, crosses: bool, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.own = nn.MultiheadAttention(width, heads, dropout=drop)
        self.cross = nn.MultiheadAttention(width, heads, dropout=drop) if crosses else None
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if crosses else 2))
        self.feed = nn.Sequential(nn.Linear(width, wide), nn.ReLU(), nn.Dropout(drop), nn.Linear(wide, width))
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor, place: Tensor, seen: Tensor | None = None, where: Tensor | None = None) -> Tensor:
        """Places [places, rows, width] and their positions, what the encoder saw, and positions of that."""
        asked = x + place
        told = self.own(asked, asked, value=x, need_weights=self.weights)[0]
        x = self.norms[0](x + self.drop(told))
        if self.cross is not None and seen is not None:
            told = self.cross(x + place, seen + where, value=seen, need_weights=self.weights)[0]
            x = self.norms[1](x + self.drop(told))
        return self.norms[-1](x + self.drop(self.feed(x)))


class Detr(nn.Module):
    """The transformer of DETR, on maps of a backbone."""

    def __init__(self, width: int, heads: int, deep: int, high: int, wide: int, *, weights: bool) -> None:
        super().__init__()
        self.enter = nn.Conv2d(size(2048, 16), width, 1)
        self.rows, self.columns = nn.Parameter(torch.rand(high, width // 2)), nn.Parameter(torch.rand(wide, width // 2))
        self.queries = nn.Embedding(size(100, 5), width)
        self.encoder, self.decoder = (
            nn.ModuleList(
                SceneLayer(width, heads, 8 * width, 0.1, crosses=crosses, weights=weights) for _ in range(deep)
            )
            for crosses in (False, True)
        )
        self.kinds = nn.Linear(width, size(92, 6))
        self.boxes = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4), nn.Sigmoid())

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [rows, channels, high, wide] → scores and boxes, each [queries, rows, …]."""
        high, wide = maps.shape[-2:]
        x = self.enter(maps).flatten(2).permute(2, 0, 1)
        where = torch.cat((self.columns.expand(high, -1, -1), self.rows[:, None].expand(-1, wide, -1)), -1)
        where = where.flatten(0, 1)[:, None]
        for layer in self.encoder:
            x = layer(x, where)
        place = self.queries.weight[:, None].expand(-1, len(maps), -1)
        found = torch.zeros_like(place)
        for layer in self.decoder:
            found = layer(found, place, x, where)
        return self.kinds(found), self.boxes(found)


@pair(
    "unfused-attention", "detection", "need_weights=False in the calls of nn.MultiheadAttention", THIRTY_FIRST,
    accept=("memory-bandwidth",), steps=(2, 1),
)  # fmt: skip
def detr_weights_returned(variant: str) -> Step:
    """The transformer of DETR-DC5 (6 + 6 layers of 256, mixed precision) learns from 4 maps of 50 × 67 of a backbone.

    Layers take the first of what nn.MultiheadAttention returns; the second, the weights, is returned by default and
    has attention written out. Its scores are passed over in memory: hence "memory-bandwidth", too.
    """
    high, wide, rows, weights = size(50, 4), size(67, 5), size(4, 2), variant == BEFORE
    model = on_device(lambda: Detr(size(256, 32), size(8, 2), size(6, 1), high, wide, weights=weights)).train()
    maps = torch.randn(rows, size(2048, 16), high, wide, device=DEVICE)
    queries = size(100, 5)
    kinds, boxes = tokens(size(92, 6), queries * rows), torch.rand(queries, rows, 4, device=DEVICE)

    def loss() -> Tensor:
        scores, corners = model(maps)
        named = functional.cross_entropy(scores.flatten(0, 1).float(), kinds)
        return named + 5.0 * functional.l1_loss(corners.float(), boxes)

    return training(loss, adamw(model))


class Slanted(nn.Module):
    """A layer of a decoder whose scores are lowered by distance, as in ALiBi."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor, slant: Tensor) -> Tensor:
        """Places [rows, places, width], what is added to scores [1, heads, places, places]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=slant.to(q.dtype))
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            seen = functional.softmax(scores + slant, -1).to(v.dtype) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


@pair(
    "unfused-attention", "training", "functional.scaled_dot_product_attention, with ALiBi as attn_mask", THIRTY_FIRST,
    accept=("memory-bandwidth",), steps=(2, 1),
)  # fmt: skip
def alibi_scores_written_out(variant: str) -> Step:
    """A language model with ALiBi (8 × 1,024, 16 heads, mixed precision) learns 4 texts of 2,048, attention by hand.

    Positions are a number that is added to the scores, so attention is three lines, each a pass over all scores in
    memory: hence "memory-bandwidth", too.
    """
    width, heads, words, room, fused = size(1024, 32), size(16, 4), size(32_768, 64), size(2048, 16), variant == AFTER
    layers = on_device(lambda: nn.ModuleList(Slanted(width, heads, fused=fused) for _ in range(size(8, 1)))).train()
    names = on_device(lambda: nn.Embedding(words, width), seed=1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), seed=2)
    places = torch.arange(room, device=DEVICE)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=DEVICE) / heads)
    far = (places - places[:, None]).float()
    slant = (slopes[:, None, None] * far).masked_fill(far > 0, float("-inf"))[None]
    ids = tokens(words, size(4, 2), room + 1)

    def loss() -> Tensor:
        x = names(ids[:, :-1])
        for layer in layers:
            x = layer(x, slant)
        return functional.cross_entropy(head(x).flatten(0, 1).float(), ids[:, 1:].flatten())

    return training(loss, adamw(nn.ModuleList([layers, names, head])))


class Natural(nn.Module):
    """An encoder of images of any aspect, whose patches fill rows of one length."""

    def __init__(self, width: int, heads: int, deep: int, grid: int) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(3 * 16 * 16, width), nn.LayerNorm(width)
        self.places = nn.Parameter(0.02 * torch.randn(1, width, grid, grid))
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(deep))

    def placed(self, shapes: Tensor, room: int) -> Tensor:
        """Shapes of images in patches [rows, 2] → positions [rows, room, width], scaled to each image."""
        told = self.places.new_zeros(len(shapes), room, self.places.shape[1])
        for index, (high, wide) in enumerate(shapes):
            scaled = functional.interpolate(
                self.places, size=(int(high), int(wide)), mode="bilinear", align_corners=False
            )
            own = scaled[0].flatten(1).T
            told[index, : len(own)] = own
        return told

    def forward(self, patches: Tensor, real: Tensor, shapes: Tensor) -> Tensor:
        """Patches [rows, room, 768], which are real [rows, room], the shapes of images → [rows, width]."""
        x = self.enter(patches) + self.placed(shapes, patches.shape[1])
        for layer in self.layers:
            x = layer(x, real[:, None, None])
        return (self.norm(x) * real[..., None]).sum(1) / real.sum(1, keepdim=True)


@pair(
    "host-sync", "vision", "the shapes of the images are left on the host", THIRTY_FIRST,
    inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def natural_aspect_encoding(variant: str) -> Step:
    """An encoder (12 × 768, bf16) of images in their own aspect reads 6 batches of 64 images of up to 196 patches.

    Positions are scaled to the shape of each image, high and wide; the batch was sent to the GPU with its shapes, so
    int() waits twice for each image.
    """
    width, room, rows, batches = size(768, 32), size(196, 16), size(64, 3), size(6, 2)
    model = on_device(lambda: Natural(width, size(12, 2), size(12, 1), size(14, 4)), HALF).eval()
    drawn = torch.Generator().manual_seed(0)
    given = []
    for _ in range(batches):
        high = torch.randint(2, room // 2, (rows,), generator=drawn)
        shapes = torch.stack((high, room // high), 1)
        real = (torch.arange(room) < shapes.prod(1, keepdim=True)).to(DEVICE)
        patches = torch.randn(rows, room, 768, generator=drawn).to(DEVICE, HALF)
        given.append((patches, real, shapes.to(DEVICE) if variant == BEFORE else shapes))
    return lambda: torch.cat([model(*batch) for batch in given])


class Moves(nn.Module):
    """A model that cleans the moves of a robot, told how much noise there is."""

    def __init__(self, width: int, heads: int, deep: int, joints: int, room: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(joints, width), nn.Linear(width, joints)
        self.noise = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.places = nn.Parameter(0.02 * torch.randn(room, width))
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(deep))

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Noisy moves [rows, room, joints], how noisy they are [1, 1, 1] → what clean moves would be."""
        whole = sigma.square() + 0.25
        y = self.enter(x / whole.sqrt()) + self.places + self.noise(sigma.log() / 4)
        for layer in self.layers:
            y = layer(y)
        return x * (0.25 / whole) + self.leave(y) * (sigma * 0.5 / whole.sqrt())


@pair(
    "host-sync", "robotics", "the levels of noise are numbers of Python (tolist(), once)", THIRTY_FIRST,
    inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def sampler_asks_for_its_noise(variant: str) -> Step:
    """A diffusion policy (4 × 384, bf16, a CUDA graph) draws 64 × 16 moves in 100 steps of Euler's method, as Karras.

    The levels of noise are a tensor on the GPU. Each step compares two of them with numbers, to decide whether to add
    noise and whether it is the last one; each comparison waits.
    """
    rows, room, joints, count = size(64, 2), size(16, 4), size(14, 3), size(100, 4)
    model = on_device(lambda: Moves(size(384, 32), size(6, 2), size(4, 1), joints, room), HALF).eval()
    ramp = torch.linspace(0, 1, count, device=DEVICE)
    levels = (80.0 ** (1 / 7) + ramp * (0.002 ** (1 / 7) - 80.0 ** (1 / 7))) ** 7
    sigmas = torch.cat((levels, levels.new_zeros(1)))
    seeded(1)
    first = 80.0 * torch.randn(rows, room, joints, device=DEVICE, dtype=HALF)
    added = torch.randn(rows, room, joints, device=DEVICE, dtype=HALF)
    noisy, sigma = torch.zeros_like(first), torch.ones(1, 1, 1, device=DEVICE, dtype=HALF)
    clean = as_graph(lambda: model(noisy, sigma))
    schedule = sigmas.tolist() if variant == AFTER else sigmas

    def step() -> Tensor:
        x = first
        for index in range(count):
            now, then = schedule[index], schedule[index + 1]
            gamma = 0.2 if 0.05 <= now <= 50.0 else 0.0
            if gamma > 0:
                loud = now * (1 + gamma)
                x = x + added * (loud * loud - now * now) ** 0.5
                now = loud
            noisy.copy_(x)
            sigma.fill_(now)
            told = clean()
            x = told.clone() if then == 0 else x + (x - told) / now * (then - now)
        return x

    return step


@pair(
    "host-stall", "earth observation", "files are compressed and written by threads", THIRTY_FIRST,
    library="transformers", inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def land_cover_compressed_in_the_loop(variant: str) -> Step:
    """A SegFormer (B2, bf16) maps the land on 16 tiles of 512²; each map is written by np.savez_compressed.

    The loop compresses a map before it goes on, while the GPU waits.
    """
    config = transformers.SegformerConfig(
        depths=[3, 4, 6, 3] if CUDA else [1, 1, 1, 1], hidden_sizes=[64, 128, 320, 512] if CUDA else [8, 16, 40, 64],
        decoder_hidden_size=size(768, 16), num_labels=size(24, 5),
    )  # fmt: skip
    model = on_device(lambda: transformers.SegformerForSemanticSegmentation(config), HALF).eval()
    side = size(512, 64)
    x = images(size(16, 2), side, HALF)
    folder = tempfile.TemporaryDirectory()
    pool, begun = ThreadPoolExecutor(8), list[Future[None]]()

    def step() -> Tensor:
        scores = model(pixel_values=x).logits
        scores = functional.interpolate(scores, size=(side, side), mode="bilinear", align_corners=False)
        maps = scores.argmax(1).to(torch.uint8).cpu()
        wait(begun)
        begun.clear()
        for index, one in enumerate(maps.numpy()):
            path = Path(folder.name) / f"{index}.npz"
            if variant == BEFORE:
                np.savez_compressed(path, land=one)
            else:
                begun.append(pool.submit(np.savez_compressed, path, land=one))
        return maps

    return step


class Latent(nn.Module):
    """A transformer that cleans latent pictures; time and words are tokens, as in U-ViT."""

    def __init__(self, width: int, heads: int, deep: int, side: int, known: int) -> None:
        super().__init__()
        self.enter, self.words, self.time = nn.Linear(16, width), nn.Linear(known, width), nn.Linear(1, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // 2) ** 2, width))
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(deep)))
        self.leave = nn.Linear(width, 16)

    def forward(self, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        """Latents [rows, 4, side, side], times [rows, 1], words [rows, words, known] → patches [rows, patches, 16]."""
        patches = functional.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2)
        y = torch.cat((self.time(time)[:, None], self.words(words), self.enter(patches) + self.places), 1)
        return self.leave(self.layers(y)[:, -patches.shape[1] :])


def sent(x: Tensor) -> Tensor:
    """Copies from pinned memory, without a wait."""
    return x.pin_memory().to(DEVICE, non_blocking=True) if CUDA else x


@pair(
    "host-stall", "diffusion", "all latents and words are in one file, which is mapped into memory", THIRTY_FIRST,
    with_stack=True, steps=(2, 1),
)  # fmt: skip
def latents_loaded_file_by_file(variant: str) -> Step:
    """A U-ViT (8 × 512, mixed precision) learns from 128 latents of 4 × 32² and their words, made beforehand.

    Each latent is in a file of its own, and torch.load reads 128 of them in each step.
    """
    side, count, known, rows, total = size(32, 8), size(77, 3), size(768, 16), size(128, 2), size(512, 6)
    model = on_device(lambda: Latent(size(512, 32), size(8, 2), size(8, 1), side, known)).train()
    optimizer = adamw(model)
    drawn = torch.Generator().manual_seed(0)
    pictures = torch.randn(total, 4, side, side, generator=drawn).to(torch.float16)
    words = torch.randn(total, count, known, generator=drawn).to(torch.float16)
    folder = tempfile.TemporaryDirectory()
    home = Path(folder.name)
    if variant == BEFORE:
        for index in range(total):
            torch.save(
                {"latent": pictures[index].clone(), "words": words[index].clone()}, home / f"{index}.pt"
            )  # fmt: skip
    else:
        torch.save({"latent": pictures, "words": words}, home / "all.pt")
        stored = torch.load(home / "all.pt", mmap=True)

    def read(picked: Tensor) -> tuple[Tensor, Tensor]:
        if variant == AFTER:
            return stored["latent"][picked], stored["words"][picked]
        parts = [torch.load(home / f"{index}.pt") for index in picked.tolist()]
        return torch.stack([part["latent"] for part in parts]), torch.stack([part["words"] for part in parts])

    def step(_alive: object = folder) -> None:
        clean, told = (sent(part) for part in read(torch.randint(0, total, (rows,), generator=drawn)))
        clean = clean.float()
        time, noise = torch.rand(rows, 1, device=DEVICE), torch.randn_like(clean)
        share = time[:, :, None, None]
        with mixed():
            guess = model(share * clean + (1 - share) * noise, time, told.float())
            wanted = functional.pixel_unshuffle(clean - noise, 2).flatten(2).transpose(1, 2)
            loss = functional.mse_loss(guess.float(), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Adapted(nn.Module):
    """A product, and what an adapter adds to it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = self.up = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., width]."""
        return self.base(x) + functional.linear(functional.linear(x, self.down), self.up)


@pair(
    "blocking-copy", "serving", "the adapters of all tenants are kept on the GPU", THIRTY_FIRST,
    library="transformers", inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def tenant_adapters_fetched(variant: str) -> Step:
    """A Llama (16 × 2,048, bf16) reads 4 prompts of 512 for each of 4 tenants, who have an adapter of rank 64 each.

    Adapters are kept on the host; that of a tenant is copied tensor by tensor, from pageable memory.
    """
    rank, tenants = size(64, 4), size(4, 2)
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64), use_cache=False,
        num_hidden_layers=size(16, 1), num_attention_heads=size(32, 4), num_key_value_heads=size(8, 2),
        max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    places = []
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, module in list(part.named_children()):
                if isinstance(module, nn.Linear):
                    setattr(part, name, Adapted(module))
                    places.append(getattr(part, name))
    drawn = torch.Generator().manual_seed(0)
    kept = []
    for _ in range(tenants):
        adapter = []
        for place in places:
            down = 0.02 * torch.randn(rank, place.base.in_features, generator=drawn)
            up = 0.02 * torch.randn(place.base.out_features, rank, generator=drawn)
            adapter.append((down.to(HALF), up.to(HALF)))
        kept.append(adapter)
    if variant == AFTER:
        kept = [[(down.to(DEVICE), up.to(DEVICE)) for down, up in adapter] for adapter in kept]
    seeded(1)
    asked = tokens(config.vocab_size, tenants, size(4, 2), size(512, 8))

    def step() -> Tensor:
        told = []
        for adapter, ids in zip(kept, asked, strict=True):
            for place, (down, up) in zip(places, adapter, strict=True):
                place.down, place.up = down.to(DEVICE), up.to(DEVICE)
            told.append(model(input_ids=ids, logits_to_keep=1).logits[:, 0])
        return torch.stack(told)

    return step


@pair(
    "unfused-optimizer", "vision", "create_optimizer_v2(..., foreach=True)", THIRTY_FIRST,
    library="timm", accept=("launch-overhead", "small-kernels"), steps=(2, 1),
)  # fmt: skip
def adan_tensor_by_tensor(variant: str) -> Step:
    """An EfficientNetV2-RW-S (channels_last, mixed precision) learns from 64 images of 224² by Adan of timm.

    foreach=False: some fifteen kernels for each of 450 tensors of weights. Small launches, and many: hence the
    other two findings, too.
    """
    name, kinds, rows = "efficientnetv2_rw_s" if CUDA else "resnet10t", size(1000, 7), size(64, 2)
    model = on_device(lambda: timm.create_model(name, num_classes=kinds)).train().to(memory_format=LAST)
    x = images(rows, size(224, 32)).contiguous(memory_format=LAST)
    labels = tokens(kinds, rows)
    optimizer = create_optimizer_v2(model, opt="adan", lr=1e-3, weight_decay=0.02, foreach=variant == AFTER)
    return training(lambda: functional.cross_entropy(model(x).float(), labels), optimizer)


class Selective(nn.Module):
    """A layer of a model of states, as Mamba, that is told one token after the other."""

    def __init__(self, width: int, state: int, taps: int) -> None:
        super().__init__()
        inner, self.state, self.rank = 2 * width, state, width // 16
        self.norm, self.enter = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, 2 * inner, bias=False)
        self.taps, self.bias = nn.Parameter(0.1 * torch.randn(inner, taps)), nn.Parameter(torch.zeros(inner))
        self.asked = nn.Linear(inner, self.rank + 2 * state, bias=False)
        self.pace = nn.Linear(self.rank, inner)
        self.decay = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(inner, 1))
        self.skip, self.leave = nn.Parameter(torch.ones(inner)), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, recent: Tensor, state: Tensor) -> Tensor:
        """A token [rows, width], what came last [rows, inner, taps], the state [rows, inner, state]; both change."""
        y, gate = self.enter(self.norm(x)).chunk(2, -1)
        recent.copy_(torch.roll(recent, -1, -1))
        recent[:, :, -1] = y
        y = functional.silu((recent * self.taps).sum(-1) + self.bias)
        pace, into, out = self.asked(y).split([self.rank, self.state, self.state], -1)
        pace = functional.softplus(self.pace(pace))
        kept = torch.exp(pace[..., None] * -self.decay.exp())
        state.copy_(state * kept + (pace * y)[..., None] * into[:, None])
        y = (state * out[:, None]).sum(-1) + y * self.skip
        return x + self.leave(y * functional.silu(gate))


@pair(
    "launch-overhead", "decoding", "a token is told by a CUDA graph", THIRTY_FIRST,
    accept=("small-kernels",), inference=True, steps=(2, 1),
)  # fmt: skip
def mamba_tokens_in_eager(variant: str) -> Step:
    """A Mamba (24 × 1,024, bf16) adds 12 tokens to 16 texts, in eager mode: some 25 small kernels in each layer."""
    width, deep, rows, words, count = size(1024, 32), size(24, 2), size(16, 2), size(50_280, 64), size(12, 3)
    layers = on_device(lambda: nn.ModuleList(Selective(width, 16, 4) for _ in range(deep)), HALF).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    recent = torch.zeros(deep, rows, 2 * width, 4, device=DEVICE, dtype=HALF)
    states = torch.zeros(deep, rows, 2 * width, 16, device=DEVICE, dtype=HALF)
    seeded(2)
    first = tokens(words, rows)
    ids = first.clone()

    def token() -> None:
        x = names(ids)
        for layer, last, state in zip(layers, recent, states, strict=True):
            x = layer(x, last, state)
        ids.copy_(functional.linear(functional.rms_norm(x, (width,)), names.weight).argmax(-1))

    tell = as_graph(token) if variant == AFTER else token

    def step() -> Tensor:
        recent.zero_()
        states.zero_()
        ids.copy_(first)
        made = []
        for _ in range(count):
            tell()
            made.append(ids.clone())
        return torch.stack(made, 1)

    return step


class Demand(nn.Module):
    """A transformer that tells the demand of the next day, with dropout."""

    def __init__(self, width: int, heads: int, deep: int, seen: int, hours: int) -> None:
        super().__init__()
        self.enter = nn.Linear(seen, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, deep, enable_nested_tensor=False)
        self.leave = nn.Linear(width, hours)

    def forward(self, x: Tensor) -> Tensor:
        """What was seen [rows, hours, seen] → demand [rows, hours]."""
        return self.leave(self.body(self.enter(x)).mean(1))


@pair(
    "launch-overhead", "forecasting", "all draws of dropout are rows of one batch", THIRTY_FIRST,
    accept=("small-kernels",), inference=True, steps=(2, 1),
)  # fmt: skip
def dropout_drawn_pass_by_pass(variant: str) -> Step:
    """A transformer (4 × 256, bf16) forecasts demand at 16 stations from 96 hours, with Monte Carlo dropout.

    A loop of 50 passes of 16 rows, each with its own draw, says how sure the forecast is.
    """
    rows, room, seen, draws = size(16, 2), size(96, 8), size(32, 4), size(50, 3)
    model = on_device(lambda: Demand(size(256, 32), size(8, 2), size(4, 1), seen, size(24, 3)), HALF).train()
    x = torch.randn(rows, room, seen, device=DEVICE, dtype=HALF)
    mean, spread = (torch.zeros(rows, size(24, 3), device=DEVICE) for _ in range(2))

    def step() -> None:
        if variant == BEFORE:
            told = torch.stack([model(x) for _ in range(draws)])
        else:
            told = model(x.repeat(draws, 1, 1)).unflatten(0, (draws, rows))
        mean.copy_(told.float().mean(0))
        spread.copy_(told.float().std(0))

    return step


class TimeMixer(nn.Module):
    """A layer of TSMixer: products over the times, then over the series."""

    def __init__(self, room: int, series: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(room) for _ in range(2))
        self.times = nn.Sequential(nn.Linear(room, room), nn.ReLU(), nn.Linear(room, room))
        self.across = nn.Sequential(nn.Linear(series, series), nn.ReLU(), nn.Linear(series, series))

    def forward(self, x: Tensor) -> Tensor:
        """Series [rows, series, times]."""
        x = x + self.times(self.norms[0](x))
        return x + self.across(self.norms[1](x).transpose(1, 2)).transpose(1, 2)


@pair(
    "misaligned-shape", "forecasting", "the differences begin with a zero: 2,048 times", THIRTY_FIRST, steps=(2, 1),
)  # fmt: skip
def mixer_of_differences(variant: str) -> Step:
    """A TSMixer (4 layers, mixed precision) learns from 64 windows of 320 series of 2,048 times.

    Series are differenced first, which leaves 2,047 times: no product over the times has an aligned side.
    """
    series, room, ahead = size(320, 8), size(2048, 16), size(96, 4)
    x = torch.randn(size(64, 2), series, room, device=DEVICE).cumsum(-1)
    wanted = torch.randn(len(x), series, ahead, device=DEVICE)
    times = room if variant == AFTER else room - 1

    def make() -> nn.Module:
        return nn.Sequential(*(TimeMixer(times, series) for _ in range(size(4, 1))), nn.Linear(times, ahead))

    model = on_device(make).train()

    def loss() -> Tensor:
        change = torch.diff(x)
        if variant == AFTER:
            change = functional.pad(change, (1, 0))
        return functional.mse_loss(model(change).float(), wanted)

    return training(loss, adamw(model))


@pair(
    "recomputation", "evaluation", "the context is read once, its keys and values are repeated for the answers",
    THIRTY_FIRST, library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def answers_repeat_their_context(variant: str) -> Step:
    """A Mistral (12 × 2,048, bf16) scores 4 answers of 24 tokens to each of 8 questions, of 1,024 tokens each.

    Each answer is read behind the whole question, as a row of its own.
    """
    config = transformers.MistralConfig(
        vocab_size=size(32_000, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64), sliding_window=None,
        num_hidden_layers=size(12, 1), num_attention_heads=size(16, 4), num_key_value_heads=size(4, 2),
        max_position_embeddings=size(4096, 128),
    )  # fmt: skip
    model = on_device(lambda: transformers.MistralForCausalLM(config), HALF).eval()
    many, length = 4, size(24, 4)
    asked = tokens(config.vocab_size, size(8, 2), size(1024, 12))
    answers = tokens(config.vocab_size, many * len(asked), length)

    def told() -> Tensor:
        """Scores of the places before each word of the answers [answers, length, words]."""
        if variant == BEFORE:
            ids = torch.cat((asked.repeat_interleave(many, 0), answers), 1)
            return model(input_ids=ids, use_cache=False, logits_to_keep=length + 1).logits[:, :-1]
        cache = transformers.DynamicCache(config=config)
        model(input_ids=asked[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache.batch_repeat_interleave(many)
        ids = torch.cat((asked[:, -1:].repeat_interleave(many, 0), answers[:, :-1]), 1)
        return model(input_ids=ids, past_key_values=cache, use_cache=True).logits

    def step() -> Tensor:
        chances = told().float().log_softmax(-1).gather(-1, answers[..., None])[..., 0]
        return chances.sum(-1).unflatten(0, (-1, many))

    return step


@pair(
    "unused-results", "retrieval", "model.model(...) instead of model(...): no scores of words", THIRTY_FIRST,
    library="transformers", inference=True, steps=(2, 1),
)  # fmt: skip
def passages_embedded_with_scores(variant: str) -> Step:
    """A Gemma 3 (270 million weights, bf16) embeds 32 passages of 512 tokens by its last state of the last token.

    It was loaded by AutoModelForCausalLM and asked for hidden states, so it tells the scores of 262,144 words at each
    place, too, which nobody reads.
    """
    config = transformers.Gemma3TextConfig(
        vocab_size=size(262_144, 64), hidden_size=size(640, 32), intermediate_size=size(2048, 64), use_cache=False,
        num_hidden_layers=size(18, 1), num_attention_heads=size(4, 2), num_key_value_heads=1, head_dim=size(256, 16),
        query_pre_attn_scalar=size(256, 16), sliding_window=size(512, 16), max_position_embeddings=size(4096, 64),
    )  # fmt: skip
    model = on_device(lambda: transformers.Gemma3ForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(32, 2), size(512, 8))

    def step() -> Tensor:
        if variant == BEFORE:
            last = model(input_ids=ids, output_hidden_states=True).hidden_states[-1]
        else:
            last = model.model(input_ids=ids).last_hidden_state
        return functional.normalize(last[:, -1].float(), dim=-1)

    return step


class NextWord(nn.Module):
    """The loss of a language model."""

    def forward(self, told: Tensor, ids: Tensor) -> Tensor:
        """Scores [rows, places, words], ids [rows, places]."""
        return functional.cross_entropy(told[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@healthy("training", THIRTY_FIRST, library="transformers", compiles=True, steps=(2, 1))
def healthy_smollm_pretraining(variant: str) -> Step:
    """A SmolLM3 (6 × 2,048) learns 6 texts of 2,048: mixed precision, layers and loss compiled, fused AdamW."""
    deep = size(6, 1)
    config = transformers.SmolLM3Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64), use_cache=False,
        num_hidden_layers=deep, num_attention_heads=size(16, 4), num_key_value_heads=size(4, 2),
        no_rope_layers=[1] * deep, max_position_embeddings=size(4096, 64), tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, loss = on_device(lambda: transformers.SmolLM3ForCausalLM(config)).train(), NextWord()
    compiled([*model.model.layers, loss])
    ids = tokens(config.vocab_size, size(6, 2), size(2048, 8))
    return training(lambda: loss(model(input_ids=ids).logits, ids), adamw(model))


@healthy("forecasting", THIRTY_FIRST, compiles=True, steps=(2, 1))
def healthy_grid_load_training(variant: str) -> Step:
    """A causal transformer (10 × 1,024) over patches of 32 hours learns 64 series of 512: mixed, compiled, fused."""
    width, patch = size(1024, 32), 32
    layers = on_device(
        lambda: nn.Sequential(*(Block(width, size(16, 2), causal=True) for _ in range(size(10, 1))))
    ).train()  # fmt: skip
    compiled(layers)
    enter = on_device(lambda: nn.Linear(patch, width), seed=1)
    leave = on_device(lambda: nn.Linear(width, patch), seed=2)
    x = torch.randn(size(64, 2), size(512, 8) + 1, patch, device=DEVICE)
    return training(
        lambda: functional.mse_loss(leave(layers(enter(x[:, :-1]))).float(), x[:, 1:]),
        adamw(nn.ModuleList([layers, enter, leave])),
    )


@healthy("evaluation", THIRTY_FIRST, library="transformers", inference=True, compiles=True, steps=(2, 1))
def healthy_reward_scoring(variant: str) -> Step:
    """A reward model (a Llama, 6 × 4,096, bf16, layers compiled) scores 16 answers of 1,024 tokens."""
    config = transformers.LlamaConfig(
        vocab_size=size(32_000, 64), hidden_size=size(4096, 32), intermediate_size=size(14_336, 64), use_cache=False,
        num_hidden_layers=size(6, 1), num_attention_heads=size(32, 4), num_key_value_heads=size(8, 2), num_labels=1,
        max_position_embeddings=size(4096, 64), pad_token_id=0,
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForSequenceClassification(config), HALF).eval()
    compiled(model.model.layers)
    ids = 1 + tokens(config.vocab_size - 1, size(16, 2), size(1024, 8))
    return lambda: model(input_ids=ids).logits


@healthy("reinforcement learning", THIRTY_FIRST, inference=True, compiles=True, steps=(2, 1))
def healthy_graphed_planning(variant: str) -> Step:
    """A decision transformer (8 × 512, bf16, compiled, a CUDA graph) plans 12 moves in 256 worlds of 64 places."""
    width, rows, room, moves = size(512, 32), size(256, 2), size(64, 8), size(12, 2)
    layers = on_device(
        lambda: nn.Sequential(*(Block(width, size(8, 2), causal=True) for _ in range(size(8, 1)))), HALF
    ).eval()  # fmt: skip
    compiled(layers)
    leave = on_device(lambda: nn.Linear(width, size(16, 4)), HALF, 1)
    enter = on_device(lambda: nn.Linear(size(16, 4), width), HALF, 2)
    seeded(3)
    begun = torch.randn(rows, room, width, device=DEVICE, dtype=HALF)
    seen, move = begun.clone(), torch.zeros(rows, size(16, 4), device=DEVICE, dtype=HALF)

    def plan() -> None:
        move.copy_(leave(layers(seen)[:, -1]).tanh())
        seen.copy_(torch.cat((seen[:, 1:], enter(move)[:, None]), 1))

    replayed = as_graph(plan)

    def step() -> Tensor:
        seen.copy_(begun)
        made = []
        for _ in range(moves):
            replayed()
            made.append(move.clone())
        return torch.stack(made, 1)

    return step


@healthy("genomics", THIRTY_FIRST, steps=(2, 1))
def healthy_long_genome_training(variant: str) -> Step:
    """Three layers of 2,048 learn hidden bases of a stretch of 16,384: mixed precision, fused attention, fused AdamW.

    Eager, but fused attention and wide products take nearly all of the time.
    """
    width, bases = size(2048, 32), 8
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(16, 2)) for _ in range(size(3, 1))))).train()
    names = on_device(lambda: nn.Embedding(bases, width), seed=1)
    head = on_device(lambda: nn.Linear(width, bases), seed=2)
    ids, wanted = (tokens(bases, 1, size(16_384, 16)) for _ in range(2))
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids))).flatten(0, 1).float(), wanted.flatten()),
        adamw(nn.ModuleList([layers, names, head])),
    )
