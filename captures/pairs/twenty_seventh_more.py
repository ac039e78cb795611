"""More of the twenty-seventh set: pictures, scans, graphs, faces, answers, films, offers."""

from __future__ import annotations

from typing import Any

import numpy as np
import timm
import timm.models.vision_transformer
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    adamw,
    as_graph,
    compiled,
    images,
    keep_apart,
    mixed,
    on_device,
    size,
    tokens,
    training,
    write_kept,
)
from pairs.registry import AFTER, BEFORE, TWENTY_SEVENTH, Step, healthy, pair

LAST = torch.channels_last


def stage(narrow: int, wide: int, layers: int) -> nn.Sequential:
    """Convolutions of which the first halves the sides."""
    parts: list[nn.Module] = []
    for index in range(layers):
        parts += [
            nn.Conv2d(wide if index else narrow, wide, 3, 1 if index else 2, 1, bias=False),
            nn.BatchNorm2d(wide), nn.ReLU(),
        ]  # fmt: skip
    return nn.Sequential(*parts)


class Pillars(nn.Module):
    """What stands around a car: points are put into pillars on a map, which convolutions look at."""

    def __init__(self, side: int, width: int, layers: int, kinds: int) -> None:
        super().__init__()
        self.side, self.width = side, width
        self.points = nn.Linear(7, width)
        self.body = nn.Sequential(
            stage(width, width, layers), stage(width, 2 * width, layers), nn.Conv2d(2 * width, 4 * width, 3, padding=1),
            nn.ReLU(), nn.Conv2d(4 * width, kinds, 1),
        ).to(memory_format=LAST)  # fmt: skip

    def forward(self, points: Tensor, means: Tensor, cells: Tensor, scans: int) -> Tensor:
        """Points [points, 4], the means of their pillars [points, 3], cells of all maps [points]."""
        told = functional.relu(self.points(torch.cat([points, points[:, :3] - means], 1)))
        maps = torch.zeros(scans * self.side**2, self.width, device=told.device, dtype=told.dtype)
        maps = maps.scatter_reduce(0, cells[:, None].expand_as(told), told, "amax")
        return self.body(maps.unflatten(0, (scans, self.side, self.side)).permute(0, 3, 1, 2))


@pair(
    "host-stall", "driving", "cells and means of pillars are worked out on the GPU", TWENTY_SEVENTH,
    accept=("blocking-copy",), with_stack=True, steps=(2, 1),
)  # fmt: skip
def pillars_made_by_numpy(variant: str) -> Step:
    """PointPillars (64 channels, maps of 400²) learns from 4 scans of 20,000 points, which NumPy puts into pillars.

    np.unique sorts the cells, np.add.at sums the points of each; the step does so itself, then copies.
    """
    side, scans, count, kinds = size(400, 16), size(4, 2), size(20_000, 64), 4
    model = on_device(lambda: Pillars(side, size(64, 8), size(6, 1), kinds)).train()
    optimizer = adamw(model)
    drawn = np.random.default_rng(0)
    points = (drawn.normal(size=(scans, count, 4)) * [12, 12, 1, 1]).astype(np.float32).clip(-39.9, 39.9)
    pinned = torch.from_numpy(points)
    if CUDA:
        pinned = pinned.pin_memory()
    wanted = (torch.rand(scans, kinds, side // 4, side // 4, device=DEVICE) > 0.98).float()
    fine = side / 80

    def on_host() -> tuple[Tensor, Tensor, Tensor]:
        means, cells = [], []
        for index, scan in enumerate(points):
            place = ((scan[:, :2] + 40) * fine).astype(np.int64)
            own, inverse, members = np.unique(place[:, 0] * side + place[:, 1], return_inverse=True, return_counts=True)
            total = np.zeros((len(own), 3), np.float32)
            np.add.at(total, inverse, scan[:, :3])
            means.append((total / members[:, None]).astype(np.float32)[inverse])
            cells.append(own[inverse] + index * side**2)
        parts = (points.reshape(-1, 4), np.concatenate(means), np.concatenate(cells))
        whole, middle, where = (torch.from_numpy(part).to(DEVICE) for part in parts)
        return whole, middle, where

    def on_gpu() -> tuple[Tensor, Tensor, Tensor]:
        sent = pinned.to(DEVICE, non_blocking=True)
        place = ((sent[..., :2] + 40) * fine).long()
        cells = place[..., 0] * side + place[..., 1] + torch.arange(scans, device=DEVICE)[:, None] * side**2
        cells, sent = cells.flatten(), sent.flatten(0, 1)
        one = functional.pad(sent[:, :3], (0, 1), value=1.0)
        total = torch.zeros(scans * side**2, 4, device=DEVICE).index_add_(0, cells, one)[cells]
        return sent, total[:, :3] / total[:, 3:], cells

    def loss() -> Tensor:
        whole, middle, where = on_host() if variant == BEFORE else on_gpu()
        told = model(whole, middle, where, scans)
        return torchvision.ops.sigmoid_focal_loss(told.float(), wanted, reduction="mean")

    return training(loss, optimizer)


@pair(
    "precision", "depth", "torch.autocast('cuda', torch.bfloat16) around the model", TWENTY_SEVENTH,
    library="transformers", accept=("tensor-compute",), inference=True, steps=(2, 2),
)  # fmt: skip
def depth_told_in_fp32(variant: str) -> Step:
    """A DPT (ViT, 12 × 768) tells how far away things are in 16 images of 384², in fp32 as it is loaded.

    Products in fp32 keep the GPU busy; hence "tensor-compute", too.
    """
    taps = [2, 5, 8, 11] if CUDA else [0, 1, 2, 3]
    config = transformers.DPTConfig(
        hidden_size=size(768, 32), num_hidden_layers=size(12, 4), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), image_size=size(384, 32), patch_size=16, backbone_out_indices=taps,
        neck_hidden_sizes=[96, 192, 384, 768] if CUDA else [8, 8, 8, 8], fusion_hidden_size=size(256, 8),
        is_hybrid=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.DPTForDepthEstimation(config)).eval()
    x = images(size(16, 2), config.image_size)

    def step() -> Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA and variant == AFTER):
            far = model(pixel_values=x).predicted_depth
        return far.flatten(1).float().mean(1)

    return step


@pair(
    "unfused-optimizer", "vision", "AdamW(fused=True) instead of AdamW(foreach=False)", TWENTY_SEVENTH,
    library="timm", accept=("launch-overhead",), steps=(2, 1),
)  # fmt: skip
def efficientnet_without_foreach(variant: str) -> Step:
    """An EfficientNetV2-S (channels_last, mixed precision) learns from 64 images; AdamW has foreach=False.

    Once this saved memory. It launches some ten kernels for each of 450 tensors; hence "launch-overhead", too.
    """
    name = "efficientnetv2_rw_s" if CUDA else "efficientnet_lite0"
    model = on_device(lambda: timm.create_model(name, num_classes=size(200, 8))).train().to(memory_format=LAST)
    how: dict[str, Any] = {"foreach": False} if variant == BEFORE else {"fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, **how)
    x = images(size(64, 2), size(224, 32)).contiguous(memory_format=LAST)
    labels = tokens(size(200, 8), len(x))
    return training(lambda: functional.cross_entropy(model(x), labels, label_smoothing=0.1), optimizer)


@pair(
    "host-sync", "evaluation", "right answers are counted at once, and read by one item()", TWENTY_SEVENTH,
    library="torchvision", inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def right_answers_counted_one_by_one(variant: str) -> Step:
    """A RegNetY-3.2GF (bf16, channels_last) is evaluated on 320 images; a loop asks of each whether it is right.

    told == label are two tensors on the GPU, for whose comparison Python waits.
    """
    make = torchvision.models.regnet_y_3_2gf if CUDA else torchvision.models.regnet_y_400mf
    model = on_device(make, HALF).eval().to(memory_format=LAST)
    x = images(size(320, 4), size(224, 32), HALF).contiguous(memory_format=LAST)
    labels = tokens(1000, len(x))

    def step() -> float:
        chosen = model(x).argmax(1)
        if variant == AFTER:
            return (chosen == labels).sum().item() / len(x)
        right = 0
        for told, label in zip(chosen, labels, strict=True):
            if told == label:
                right += 1
        return right / len(x)

    return step


class Anchorless(nn.Module):
    """What is in each cell of a picture, and how far its sides are."""

    def __init__(self, name: str, kinds: int) -> None:
        super().__init__()
        self.body = timm.create_model(name, features_only=True, out_indices=(2,))
        wide = self.body.feature_info.channels()[-1]
        parts: list[nn.Module] = []
        for _ in range(3):
            parts += [nn.Conv2d(wide, wide, 3, padding=1), nn.GroupNorm(16, wide), nn.ReLU()]
        self.shared = nn.Sequential(*parts)
        self.kinds, self.sides = nn.Conv2d(wide, kinds, 3, padding=1), nn.Conv2d(wide, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images → scores [rows, cells, kinds], sides [rows, cells, 4]."""
        shared = self.shared(self.body(x)[-1])
        return tuple(part(shared).flatten(2).transpose(1, 2) for part in (self.kinds, self.sides))


@pair(
    "host-sync", "detection", "cells of all images have a weight, nought or one, in one loss", TWENTY_SEVENTH,
    library="timm", accept=("launch-overhead", "small-kernels"), with_stack=True, steps=(2, 1),
)  # fmt: skip
def cells_picked_image_by_image(variant: str) -> Step:
    """A detector (ResNet-34, channels_last, mixed precision) learns from 32 images of 320²; its loss goes one by one.

    Each asks whether anything is there, and picks its cells by a mask of booleans. Its kernels are small, and many:
    hence the other two findings, too.
    """
    name, kinds = "resnet34" if CUDA else "resnet10t", size(20, 3)
    model = on_device(lambda: Anchorless(name, kinds)).train().to(memory_format=LAST)
    x = images(size(32, 2), size(320, 32)).contiguous(memory_format=LAST)
    cells = (x.shape[-1] // 8) ** 2
    there = torch.rand(len(x), cells, device=DEVICE) > 0.9
    labels = tokens(kinds, len(x), cells)
    wanted = torch.rand(len(x), cells, 4, device=DEVICE)

    def by_image(told: Tensor, sides: Tensor) -> Tensor:
        total, count = told.sum() * 0.0, 0
        for index in range(len(x)):
            own = there[index]
            if own.any():
                total = total + functional.cross_entropy(told[index][own], labels[index][own], reduction="sum")
                total = total + functional.smooth_l1_loss(sides[index][own], wanted[index][own], reduction="sum")
                count += int(own.sum())
        return total / max(count, 1)

    def at_once(told: Tensor, sides: Tensor) -> Tensor:
        named = functional.cross_entropy(told.flatten(0, 1), labels.flatten(), reduction="none").view_as(there)
        placed = functional.smooth_l1_loss(sides, wanted, reduction="none").sum(-1)
        return ((named + placed) * there).sum() / there.sum().clamp(min=1)

    def loss() -> Tensor:
        told, sides = (part.float() for part in model(x))
        return by_image(told, sides) if variant == BEFORE else at_once(told, sides)

    return training(loss, adamw(model))


class Convolved(nn.Module):
    """A layer of a graph convolution: what neighbours say, weighed."""

    def __init__(self, narrow: int, wide: int) -> None:
        super().__init__()
        self.said, self.own = nn.Linear(narrow, wide), nn.Linear(narrow, wide)

    def forward(self, x: Tensor, ends: Tensor, weights: Tensor) -> Tensor:
        """Nodes [nodes, narrow], edges from and to [2, edges], their weights [edges, 1]."""
        said = self.said(x)
        heard = said.index_select(0, ends[0]) * weights
        return self.own(x) + torch.zeros_like(said).index_add(0, ends[1], heard)


@pair(
    "blocking-copy", "graphs", "the graph is copied to the GPU once, before the epochs", TWENTY_SEVENTH,
    steps=(2, 2),
)  # fmt: skip
def graph_moved_in_each_epoch(variant: str) -> Step:
    """A graph convolution (300 → 128 → 40) learns from all of 150,000 papers and 1.2 million citations each epoch.

    train() begins with .to(device) of features, edges and labels, which are in pageable memory. That each epoch reads
    its loss and how many papers it got right is seen easily, and costs little.
    """
    nodes, edges, kinds = size(150_000, 64), size(1_200_000, 256), size(40, 4)
    model = on_device(
        lambda: nn.ModuleList([Convolved(size(300, 8), size(128, 8)), Convolved(size(128, 8), kinds)])
    ).train()  # fmt: skip
    optimizer = adamw(model)
    drawn = torch.Generator().manual_seed(0)
    features = torch.randn(nodes, size(300, 8), generator=drawn)
    ends = torch.randint(0, nodes, (2, edges), generator=drawn)
    labels = torch.randint(0, kinds, (nodes,), generator=drawn)
    weights = torch.full((edges, 1), nodes / edges)
    graph = (features, ends, weights, labels)
    if variant == AFTER:
        graph = tuple(part.to(DEVICE) for part in graph)

    def step() -> tuple[float, float]:
        x, to, weight, wanted = (part.to(DEVICE) for part in graph)
        told = model[1](functional.dropout(functional.relu(model[0](x, to, weight)), 0.5), to, weight)
        loss = functional.cross_entropy(told, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), (told.argmax(1) == wanted).float().mean().item()

    return step


class Face(nn.Module):
    """A block of a network for faces: norm, convolution, norm, PReLU, convolution, norm."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.chain = nn.Sequential(
            nn.BatchNorm2d(narrow), nn.Conv2d(narrow, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide), nn.PReLU(wide),
            nn.Conv2d(wide, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip
        self.beside = nn.Identity()
        if stride > 1 or narrow != wide:
            self.beside = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, narrow, high, wide]."""
        return self.chain(x) + self.beside(x)


def face_network(width: int, depths: tuple[int, ...], side: int, people: int) -> nn.Module:
    """Faces [rows, 3, side, side] → scores of people."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width)]
    narrow = width
    for index, depth in enumerate(depths):
        wide = width << index
        parts += [Face(narrow if block == 0 else wide, wide, 2 if block == 0 else 1) for block in range(depth)]
        narrow = wide
    low = side >> len(depths)
    parts += [nn.BatchNorm2d(narrow), nn.Flatten(), nn.Linear(narrow * low**2, 512), nn.BatchNorm1d(512)]
    return nn.Sequential(*parts, nn.Linear(512, people, bias=False))


@pair(
    "memory-format", "faces", "model and images are channels_last", TWENTY_SEVENTH, steps=(2, 2),
)  # fmt: skip
def faces_as_they_are_cropped(variant: str) -> Step:
    """An IResNet-34 (mixed precision) learns 10,000 people from 256 faces of 112², channels first, as they are cropped.

    That each step reads its loss is seen easily, and costs little.
    """
    side, people = size(112, 16), size(10_000, 16)
    depths = (3, 4, 6, 3) if CUDA else (1, 1, 1)
    model = on_device(lambda: face_network(size(64, 8), depths, side, people)).train()
    x, labels = images(size(256, 4), side), tokens(people, size(256, 4))
    if variant == AFTER:
        model, x = model.to(memory_format=LAST), x.contiguous(memory_format=LAST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, fused=True)

    def step() -> float:
        with mixed():
            loss = functional.cross_entropy(model(x).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


@pair(
    "launch-overhead", "serving", "the network is replayed from a CUDA graph", TWENTY_SEVENTH,
    library="timm", inference=True, steps=(3, 3),
)  # fmt: skip
def parts_inspected_in_eager(variant: str) -> Step:
    """A LeViT-256 (bf16) tells whether four parts on a belt are in order, in eager mode.

    That their images come from pageable memory is seen easily, and costs little.
    """
    name, side = "levit_256" if CUDA else "levit_128s", 224
    model = on_device(lambda: timm.create_model(name, num_classes=2), HALF).eval()
    taken = torch.rand(size(4, 1), 3, side, side, dtype=torch.float32)
    given = torch.zeros(taken.shape, device=DEVICE, dtype=HALF)

    def judged() -> Tensor:
        return model(given).float().softmax(-1)

    judge = as_graph(judged) if variant == AFTER else judged

    def step() -> list[list[float]]:
        given.copy_(taken.to(DEVICE))
        return judge().tolist()

    return step


class Serving(nn.Module):
    """A layer of a decoder whose groups of heads share keys and values, in a cache of a fixed size."""

    def __init__(self, width: int, heads: int, groups: int, rows: int, room: int) -> None:
        super().__init__()
        narrow = width // heads
        self.narrow, self.groups = narrow, groups
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.asked = nn.Linear(width, (heads + 2 * groups) * narrow, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.wide, self.back = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.register_buffer("kept", torch.randn(2, rows, groups, room, narrow))

    def forward(self, x: Tensor) -> Tensor:
        """The next token [rows, 1, width]; its place is the last one."""
        asked = self.asked(self.norms[0](x))[:, 0].unflatten(-1, (-1, self.narrow))
        q, k, v = asked.split([asked.shape[1] - 2 * self.groups, self.groups, self.groups], 1)
        write_kept(self.kept, -1, k, v)
        rows = q.unflatten(1, (self.groups, -1))
        seen = functional.scaled_dot_product_attention(rows, self.kept[0], self.kept[1])
        x = x + self.out(seen.flatten(1))[:, None]
        gate, wide = self.wide(self.norms[1](x)).chunk(2, -1)
        return x + self.back(functional.silu(gate) * wide)


@pair(
    "growing-cache", "decoding", "keys and values have a tensor each, which compiled code writes in place",
    TWENTY_SEVENTH, compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def grouped_cache_copied(variant: str) -> Step:
    """Layers (10 × 4,096, 32 heads, 8 groups, bf16, compiled) tell a token of 320 texts of 512; one CUDA graph."""
    width, rows, words = size(4096, 32), size(320, 2), size(49_152, 64)

    def make() -> nn.Module:
        return nn.Sequential(
            *(Serving(width, size(32, 4), size(8, 2), rows, size(512, 8)) for _ in range(size(10, 1)))
        )  # fmt: skip

    layers = on_device(make, HALF).eval()
    if variant == AFTER:
        keep_apart(layers)
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2)
    ids = tokens(words, rows, 1)
    return as_graph(lambda: head(layers(names(ids))).argmax(-1))


@healthy("vision", TWENTY_SEVENTH, library="timm", compiles=True, steps=(2, 2))
def healthy_seresnet_training(variant: str) -> Step:
    """An SE-ResNet-50 learns from 256 images: mixed precision, channels_last, compiled whole, fused SGD."""
    model = on_device(lambda: timm.create_model("seresnet50" if CUDA else "resnet10t")).train()
    model = model.to(memory_format=LAST)
    compiled([model])
    x, labels = images(size(256, 2), size(224, 32)).contiguous(memory_format=LAST), tokens(1000, size(256, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    return training(lambda: functional.cross_entropy(model(x), labels), optimizer)


class Film(nn.Module):
    """A transformer over tubes of films."""

    def __init__(self, width: int, heads: int, layers: int, tubes: int, kinds: int) -> None:
        super().__init__()
        self.names = nn.Linear(3 * 2 * 16 * 16, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, tubes, width))
        make = timm.models.vision_transformer.Block
        self.blocks = nn.Sequential(*(make(width, heads, qkv_bias=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        """Films [rows, 3, frames, side, side]."""
        tubes = x.unflatten(4, (-1, 16)).unflatten(3, (-1, 16)).unflatten(2, (-1, 2)).permute(0, 2, 4, 6, 1, 3, 5, 7)
        x = self.names(tubes.flatten(4).flatten(1, 3)) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


@healthy("video", TWENTY_SEVENTH, library="timm", compiles=True, steps=(2, 2))
def healthy_tubes_training(variant: str) -> Step:
    """A transformer over films (8 × 1,024) learns from 12 films of 16 frames: mixed precision, blocks compiled."""
    side, frames, kinds = size(224, 32), size(16, 2), size(400, 4)
    tubes = (frames // 2) * (side // 16) ** 2
    model = on_device(lambda: Film(size(1024, 32), size(16, 2), size(8, 1), tubes, kinds)).train()
    compiled(model.blocks)
    x = torch.randn(size(12, 2), 3, frames, side, side, device=DEVICE)
    labels = tokens(kinds, len(x))
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


class Crossed(nn.Module):
    """A cross layer: what came first, times what a product makes of what came last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.product = nn.Linear(width, width)

    def forward(self, first: Tensor, last: Tensor) -> Tensor:
        """Rows [rows, width], twice."""
        return first * self.product(last) + last


class Ranker(nn.Module):
    """Three cross layers, and a network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(Crossed(width) for _ in range(3))
        self.feed = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, width] → scores [rows]."""
        y = x
        for cross in self.crosses:
            y = cross(x, y)
        return self.feed(y)[:, 0]


@healthy("recommendation", TWENTY_SEVENTH, compiles=True, steps=(2, 2))
def healthy_crossed_offers(variant: str) -> Step:
    """A ranker (three crosses and three layers of 4,096) learns from 24,576 rows: mixed precision, compiled, fused."""
    width, rows = size(4096, 32), size(24_576, 8)
    model = on_device(lambda: Ranker(width)).train()
    compiled([model])
    x = torch.randn(rows, width, device=DEVICE, dtype=HALF)
    clicked = (torch.rand(rows, device=DEVICE) > 0.9).float()
    return training(
        lambda: functional.binary_cross_entropy_with_logits(model(x).float(), clicked), adamw(model)
    )  # fmt: skip
