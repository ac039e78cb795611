"""The fourteenth set: graphs, images, speech and a robot."""

from __future__ import annotations

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import FastRGCNConv, GATv2Conv, GCNConv, RGCNConv
from torch_geometric.utils import add_self_loops, to_torch_csr_tensor

from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, images, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FOURTEENTH, Step, pair


@pair(
    "host-sync", "graph", "self-loops are added once, before the training; layers do not (add_self_loops)", FOURTEENTH,
    library="torch_geometric", accept=("launch-overhead",), steps=(3, 3),
)  # fmt: skip
def self_loops_added_in_each_layer(variant: str) -> Step:
    """Eight GATv2 layers (4 × 32) learn from 8,000 nodes and 60,000 edges; each looks for self-loops by a mask."""
    nodes, edges, heads, part = size(8000, 50), size(60_000, 200), size(4, 2), size(32, 4)
    is_late = variant == BEFORE
    layers = on_device(lambda: nn.ModuleList(
        GATv2Conv(heads * part, part, heads, add_self_loops=is_late) for _ in range(size(8, 2))
    )).train()  # fmt: skip
    ends = tokens(nodes, edges)
    links = torch.stack([ends, (ends + 1 + tokens(nodes - 1, edges)) % nodes])
    if not is_late:
        links = add_self_loops(links, num_nodes=nodes)[0]
    state, labels = torch.randn(nodes, heads * part, device=DEVICE), tokens(heads * part, nodes)

    def loss() -> Tensor:
        x = state
        for layer in layers:
            x = x + functional.elu(layer(x, links))
        return functional.cross_entropy(x, labels)

    return training(loss, adamw(layers), mixed=False)


@pair(
    "launch-overhead", "graph", "FastRGCNConv instead of RGCNConv", FOURTEENTH,
    library="torch_geometric", accept=("host-sync", "small-kernels", "per-expert-loop"), steps=(3, 3),
)  # fmt: skip
def relations_in_turn(variant: str) -> Step:
    """Two relational layers (16 wide) learn from 8,285 things and 58,086 facts of 90 kinds (as AIFB), kind by kind."""
    nodes, facts, kinds, width = size(8285, 40), size(58_086, 200), size(90, 4), size(16, 4)
    layer = RGCNConv if variant == BEFORE else FastRGCNConv
    layers = on_device(lambda: nn.ModuleList(layer(width, width, kinds, num_bases=min(30, kinds)) for _ in range(2)))
    things = on_device(lambda: nn.Embedding(nodes, width))
    links, kind, labels = tokens(nodes, 2, facts), tokens(kinds, facts), tokens(4, nodes)

    def loss() -> Tensor:
        x = layers[0](things.weight, links, kind).relu()
        return functional.cross_entropy(layers[1](x, links, kind)[:, :4], labels)

    return training(loss, adamw(nn.ModuleList([layers, things])), mixed=False)


@pair(
    "padded-work", "speech", "recordings are sorted by length before they are put into batches", FOURTEENTH,
    library="torchaudio", inference=True, steps=(3, 3),
)  # fmt: skip
def recordings_in_order_of_arrival(variant: str) -> Step:
    """A Conformer (6 × 1,024, bf16) encodes 256 recordings of 2 to 30 s, 64 a batch, padded to its longest."""
    import torchaudio

    model = on_device(lambda: torchaudio.models.Conformer(
        size(1024, 16), size(16, 2), size(4096, 32), size(6, 1), 31, use_group_norm=True
    ), HALF).eval()  # fmt: skip
    count, batch, longest = size(256, 4), size(64, 2), size(750, 20)
    lengths = (torch.randn(count, device=DEVICE).mul(0.7).exp() * longest * 0.25).clamp(longest // 15, longest).long()
    lengths[::batch] = longest
    if variant == AFTER:
        lengths = lengths.sort().values
    sounds = torch.randn(batch, longest, size(1024, 16), device=DEVICE, dtype=HALF)
    batches = [(sounds[:, : int(part.max())], part) for part in lengths.split(batch)]
    return lambda: [model(x, part)[0] for x, part in batches]


@pair(
    "blocking-copy", "vision", "features are copied into pinned memory with non_blocking=True", FOURTEENTH,
    library="timm", accept=("host-stall",), inference=True, steps=(3, 3),
)  # fmt: skip
def patch_features_to_pageable_memory(variant: str) -> Step:
    """A ViT-S/16 describes each patch of 256 images in bf16; features [256, 197, 384] are fetched with .cpu()."""
    name = "vit_small_patch16_224" if CUDA else "vit_tiny_patch16_224"
    model = on_device(lambda: timm.create_model(name, num_classes=0), HALF).eval()
    x = images(size(256, 1), 224, HALF)
    kept = torch.empty(len(x), 197, model.num_features, pin_memory=CUDA and variant == AFTER)

    def step() -> Tensor:
        found = model.forward_features(x).float()
        return found.cpu() if variant == BEFORE else kept.copy_(found, non_blocking=True)

    return step


class Upscaler(nn.Module):
    """Twice as many pixels a side, by residual convolutions."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 12, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1))
            for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images [images, 3, side, side] → [images, 3, 2 × side, 2 × side]."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return functional.pixel_shuffle(self.last(x), 2)


@pair(
    "unused-gradients", "super-resolution", "vgg.requires_grad_(False): its weights are never learned", FOURTEENTH,
    library="torchvision", accept=("recomputation",), steps=(3, 3),
)  # fmt: skip
def perceptual_loss_not_frozen(variant: str) -> Step:
    """An upscaler (8 blocks of 64) learns from 16 images by what VGG-16 sees; VGG's weights need gradients, too."""
    model = on_device(lambda: Upscaler(size(64, 8), size(8, 1))).train().to(memory_format=torch.channels_last)
    vgg = on_device(lambda: torchvision.models.vgg16().features[:23]).eval().to(memory_format=torch.channels_last)
    if variant == AFTER:
        vgg.requires_grad_(False)
    side = size(128, 16)
    x = images(size(16, 1), side).to(memory_format=torch.channels_last)
    wanted = images(size(16, 1), 2 * side).to(memory_format=torch.channels_last)

    def loss() -> Tensor:
        return functional.mse_loss(vgg(model(x)).float(), vgg(wanted).float())

    return training(loss, adamw(model))


class Critics(nn.Module):
    """Some critics of what a robot sees and does, their weights in one tensor."""

    def __init__(self, count: int, inputs: int, width: int) -> None:
        super().__init__()
        sizes = ((inputs, width), (width, width), (width, 1))
        self.weights = nn.ParameterList(torch.randn(count, a, b) / a**0.5 for a, b in sizes)
        self.biases = nn.ParameterList(torch.zeros(count, 1, b) for _, b in sizes)

    def forward(self, x: Tensor) -> Tensor:
        """What is seen and done [batch, inputs] → values [critics, batch]."""
        x = x.expand(len(self.weights[0]), -1, -1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = x.relu() if index < 2 else x
        return x[..., 0]


def actor_critic(batch: int, width: int, critics: int) -> Step:
    """An update of soft actor-critic (arXiv:1801.01290): critics, actor, and the critics that follow slowly."""
    seen, done = size(64, 4), size(16, 2)
    actor = on_device(lambda: nn.Sequential(
        nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * done)
    ))  # fmt: skip
    judges, slow = (on_device(lambda: Critics(critics, seen + done, width)) for _ in range(2))
    how = {"lr": 3e-4, "fused": True, "capturable": CUDA}
    learners = [torch.optim.Adam(part.parameters(), **how) for part in (actor, judges)]
    memory = size(100_000, 100)
    now, then = (torch.randn(memory, seen, device=DEVICE) for _ in range(2))
    acts, rewards = torch.randn(memory, done, device=DEVICE), torch.randn(memory, device=DEVICE)

    def act(x: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(x).chunk(2, -1)
        spread = spread.tanh()
        noise = torch.randn_like(mean)
        chosen = (mean + spread.exp() * noise).tanh()
        chance = -0.5 * noise.square() - spread - (1 - chosen.square() + 1e-6).log()
        return chosen, chance.sum(-1)

    def update() -> None:
        rows = torch.randint(0, memory, (batch,), device=DEVICE)
        x, y = now[rows], then[rows]
        with torch.no_grad():
            chosen, chance = act(y)
            wanted = rewards[rows] + 0.99 * (slow(torch.cat([y, chosen], -1)).amin(0) - 0.2 * chance)
        values = judges(torch.cat([x, acts[rows]], -1))
        learners[1].zero_grad(set_to_none=True)
        functional.mse_loss(values, wanted.expand_as(values)).backward()
        learners[1].step()
        chosen, chance = act(x)
        learners[0].zero_grad(set_to_none=True)
        (0.2 * chance - judges(torch.cat([x, chosen], -1)).amin(0)).mean().backward()
        learners[0].step()
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(judges.parameters()), 0.005)

    return update


def in_tf32(step: Step, variant: str) -> Step:
    """The step with products of fp32 in TF32 in the variant that is mended, and as PyTorch has them otherwise."""

    def run() -> object:
        torch.set_float32_matmul_precision("high" if variant == AFTER else "highest")
        return step()

    return run


@pair(
    "precision", "reinforcement", "torch.set_float32_matmul_precision('high'): products in TF32", FOURTEENTH,
    steps=(6, 3),
)  # fmt: skip
def critics_in_fp32(variant: str) -> Step:
    """Soft actor-critic (2 × 512, ten critics in one product) learns from 1,024 transitions, in one CUDA graph."""
    return as_graph(in_tf32(actor_critic(size(1024, 4), size(512, 8), size(10, 2)), variant))


@pair(
    "precision", "graph", "torch.set_float32_matmul_precision('high'): products in TF32", FOURTEENTH,
    library="torch_geometric", steps=(3, 3),
)  # fmt: skip
def sparse_graph_in_fp32(variant: str) -> Step:
    """Three graph convolutions (256 wide) learn from 150,000 nodes and 2,000,000 edges in a sparse matrix (CSR)."""
    nodes, edges, width = size(150_000, 50), size(2_000_000, 200), size(256, 8)
    layers = on_device(lambda: nn.ModuleList(GCNConv(width, width, normalize=False) for _ in range(3))).train()
    ends = tokens(nodes, 2, edges // 2)
    graph = to_torch_csr_tensor(torch.cat([ends, ends.flip(0)], 1), size=(nodes, nodes))
    state, labels = torch.randn(nodes, width, device=DEVICE), tokens(width, nodes)

    def loss() -> Tensor:
        x = state
        for layer in layers:
            x = layer(x, graph).relu() / 13
        return functional.cross_entropy(x, labels)

    return in_tf32(training(loss, adamw(layers), mixed=False), variant)
