"""The seventeenth set: written with the sixteenth, split at random, read at the end."""

from __future__ import annotations

import itertools
import random

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from pairs.decoding import next_tokens
from pairs.fourteenth import Block
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, SEVENTEENTH, Step, healthy, pair


@pair(
    "growing-cache", "reinforcement learning", "a ring: new rows are written in place of the oldest", SEVENTEENTH,
    accept=("memory-bandwidth", "unfused-chain"), steps=(3, 3),
)  # fmt: skip
def replay_rolled_each_step(variant: str) -> Step:
    """A Q network (3 × 1,024) learns from 4,096 of 1,048,576 kept transitions; torch.roll makes room for 2,048 new."""
    kept, seen, new, batch = size(1 << 20, 256), size(256, 4), size(2048, 8), size(4096, 8)
    width = size(1024, 16)
    store = {name: torch.randn(kept, seen, device=DEVICE) for name in ("before", "after")}
    rewards = torch.randn(kept, device=DEVICE)
    net = on_device(lambda: nn.Sequential(
        nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16)
    )).train()  # fmt: skip
    fresh = {name: torch.randn(new, seen, device=DEVICE) for name in store}
    optimizer, place = adamw(net), itertools.count()

    def step() -> None:
        begin = next(place) % (kept // new) * new
        for name in ("before", "after"):
            if variant == BEFORE:
                store[name] = torch.roll(store[name], -new, 0)
                store[name][-new:] = fresh[name]
            else:
                store[name][begin : begin + new] = fresh[name]
        chosen = torch.randint(0, kept, (batch,), device=DEVICE)
        x, later, reward = store["before"][chosen], store["after"][chosen], rewards[chosen]

        def loss() -> Tensor:
            with torch.no_grad():
                wanted = reward + 0.99 * net(later).amax(-1).float()
            return functional.mse_loss(net(x).amax(-1).float(), wanted)

        training(loss, optimizer)()

    return step


@pair(
    "blocking-copy", "recommendation", "all columns in one pinned table, sent once", SEVENTEENTH,
    accept=("launch-overhead", "host-stall", "small-kernels"), steps=(3, 3),
)  # fmt: skip
def columns_sent_one_by_one(variant: str) -> Step:
    """A ranker (256 features → 1,024) learns from 16,384 rows in bf16; each column of the table is sent by itself."""
    rows, columns, width = size(16_384, 8), size(256, 4), size(1024, 8)
    model = on_device(lambda: nn.Sequential(
        nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )).train()  # fmt: skip
    names = [f"feature_{index}" for index in range(columns)]
    table = {name: torch.randn(rows) for name in names}
    whole = torch.stack([table[name] for name in names])
    whole = whole.pin_memory() if CUDA else whole
    clicks, optimizer = tokens(2, rows).float(), adamw(model)

    def step() -> None:
        if variant == BEFORE:
            sent = {name: column.to(DEVICE) for name, column in table.items()}
            x = torch.stack([sent[name] for name in names], 1)
        else:
            x = whole.to(DEVICE, non_blocking=True).t()
        training(lambda: functional.binary_cross_entropy_with_logits(model(x)[:, 0].float(), clicks), optimizer)()

    return step


@pair(
    "memory-bandwidth", "retrieval", "(a * b).sum(-1) instead of torch.einsum('bnd,bnd->bn')", SEVENTEENTH,
    accept=("misaligned-shape", "small-kernels", "occupancy", "uncoalesced", "unfused-chain", "scattered-access"),
    steps=(3, 3),
)  # fmt: skip
def scores_by_einsum(variant: str) -> Step:
    """Two towers learn from 8,192 users and 128 items each (width 32); einsum makes a product of vectors of each."""
    users, items, width, wide = size(8192, 8), size(128, 4), size(32, 8), size(512, 16)
    towers = on_device(lambda: nn.ModuleList(
        nn.Sequential(nn.Linear(64, wide), nn.GELU(), nn.Linear(wide, width)) for _ in range(2)
    )).train()  # fmt: skip
    x, y = torch.randn(users, 64, device=DEVICE), torch.randn(users, items, 64, device=DEVICE)
    target = tokens(items, users)

    def loss() -> Tensor:
        a, b = towers[0](x)[:, None].expand(-1, items, -1), towers[1](y)
        scores = torch.einsum("bnd,bnd->bn", a, b) if variant == BEFORE else (a * b).sum(-1)
        return functional.cross_entropy(scores.float(), target)

    return training(loss, adamw(towers))


class Readings(Dataset[tuple[Tensor, int]]):
    """Readings of sensors, which take a moment to be cut out."""

    def __init__(self, count: int, length: int) -> None:
        self.count, self.record = count, torch.randn(9, 4 * length)
        self.length = length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        begin = index * 37 % (3 * self.length)
        window = self.record[:, begin : begin + self.length]
        return (window - window.mean(1, keepdim=True)) / window.std(1, keepdim=True), index % 6


@pair(
    "host-stall", "time series", "DataLoader(persistent_workers=True)", SEVENTEENTH, steps=(3, 3),
)  # fmt: skip
def workers_born_each_epoch(variant: str) -> Step:
    """A convolutional net learns to tell six movements; a step is an epoch of 10 batches, which four workers load."""
    batch, length = size(64, 2), size(512, 16)
    readings = Readings(10 * batch, length)
    how = {"num_workers": size(4, 1), "pin_memory": CUDA, "persistent_workers": variant == AFTER}
    loader = DataLoader(readings, batch, shuffle=True, **how)
    width = size(256, 8)
    model = on_device(lambda: nn.Sequential(
        nn.Conv1d(9, width, 7, padding=3), nn.ReLU(), nn.Conv1d(width, width, 7, padding=3), nn.ReLU(),
        nn.Conv1d(width, width, 7, padding=3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 6),
    )).train()  # fmt: skip
    optimizer = adamw(model)

    def step() -> None:
        for windows, labels in loader:
            x, y = windows.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            training(lambda x=x, y=y: functional.cross_entropy(model(x).float(), y), optimizer)()

    return step


@pair(
    "host-stall", "speech", "recordings are pinned once, not in each step", SEVENTEENTH,
    accept=("blocking-copy", "allocator-churn"), inference=True, steps=(3, 3),
)  # fmt: skip
def recordings_pinned_in_the_loop(variant: str) -> Step:
    """An encoder (4 × 512, bf16) reads 64 recordings of 10 to 16 seconds; pin_memory() is called on each batch."""
    width = size(512, 16)
    front = on_device(lambda: nn.Conv1d(1, width, 400, 320), HALF).eval()
    blocks = on_device(lambda: nn.Sequential(*(Block(width, 8) for _ in range(size(4, 1)))), HALF).eval()
    lengths = [random.Random(index).randrange(size(160_000, 1600), size(256_000, 3200)) for index in range(24)]
    batches = [torch.randn(size(64, 1), 1, length) for length in lengths]
    if variant == AFTER and CUDA:
        batches = [batch.pin_memory() for batch in batches]
    turn = itertools.cycle(batches)

    def step() -> Tensor:
        batch = next(turn)
        if variant == BEFORE and CUDA:
            batch = batch.pin_memory()
        x = front(batch.to(DEVICE, non_blocking=True).to(HALF))
        return blocks(x.transpose(1, 2))

    return step


@pair(
    "launch-overhead", "decoding", 'compiled layers in a CUDA graph (mode="reduce-overhead")', SEVENTEENTH,
    library="transformers", compiles=True, accept=("small-kernels",), inference=True, steps=(3, 3),
)  # fmt: skip
def compiled_without_graphs(variant: str) -> Step:
    """A SmolLM (24 × 576, bf16) adds four tokens to a text: layers compiled, static cache, kernel after kernel."""
    config = transformers.LlamaConfig(
        vocab_size=size(49_152, 64), hidden_size=size(576, 32), intermediate_size=size(1536, 64),
        num_hidden_layers=size(24, 1), num_attention_heads=size(9, 2), num_key_value_heads=size(3, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    return next_tokens(model, 1, size(256, 8), 4, graphed=variant == AFTER)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions by cosines and sines: one pass when compiled."""
    real, other = x.unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turns[:, None, :, 0], turns[:, None, :, 1]
    return torch.stack([real * cosine - other * sine, real * sine + other * cosine], -1).flatten(-2).to(x.dtype)


def rotated_by_complex(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary positions by complex numbers in fp32, as the first Llama's code has them."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


class Rotary(nn.Module):
    """Attention of a language model with rotary positions."""

    def __init__(self, width: int, heads: int, positions: int, *, plain: bool) -> None:
        super().__init__()
        self.heads, self.plain = heads, plain
        self.norm = nn.RMSNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.turn = torch.compile(rotated, dynamic=False) if not plain and not TINY else rotated
        angles = torch.outer(torch.arange(positions), 10_000 ** -torch.linspace(0, 1, width // heads // 2))
        self.turns = torch.stack([angles.cos(), angles.sin()], -1).to(DEVICE)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [texts, tokens, width] → the same shape."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.joined(self.norm(x)).chunk(3, -1))
        if self.plain:
            turns = torch.view_as_complex(self.turns)
            q, k = rotated_by_complex(q, turns), rotated_by_complex(k, turns)
        else:
            q, k = self.turn(q, self.turns), self.turn(k, self.turns)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).flatten(2))


@pair(
    "unfused-chain", "prefill", "cosines and sines in one compiled pass", SEVENTEENTH,
    accept=("memory-bandwidth",), compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def rotations_by_complex_numbers(variant: str) -> Step:
    """Eight layers of attention (2,048) read 8 texts of 2,048 tokens in bf16; positions are turned in complex fp32."""
    width, positions = size(2048, 16), size(2048, 8)
    layers = on_device(lambda: nn.Sequential(
        *(Rotary(width, size(16, 2), positions, plain=variant == BEFORE) for _ in range(size(8, 1)))
    ), HALF).eval()  # fmt: skip
    x = torch.randn(size(8, 1), positions, width, device=DEVICE, dtype=HALF)
    return lambda: layers(x)


@healthy("training", SEVENTEENTH, library="transformers", compiles=True, steps=(3, 3))
def healthy_olmo_training(variant: str) -> Step:
    """An OLMo-2 (6 × 2,048) learns from 8 texts of 1,024 tokens: mixed precision, layers and loss compiled."""
    config = transformers.Olmo2Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(16, 2), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Olmo2ForCausalLM(config)).train()
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    labels = ids.roll(-1, 1).flatten()

    def scored(x: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(x.flatten(0, 1), model.lm_head.weight).float(), labels)

    loss = scored if TINY else torch.compile(scored, dynamic=False)
    compiled(model.model.layers)
    return training(lambda: loss(model.model(input_ids=ids).last_hidden_state), adamw(model))


class Neighbours(nn.Module):
    """A layer of a network on small graphs, whose edges are a dense matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.own, self.others = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Atoms [molecules, atoms, width] → the same shape."""
        y = self.norm(x)
        return x + self.feed(functional.silu(self.own(y) + self.others(torch.bmm(edges, y.to(edges.dtype)))))


@healthy("chemistry", SEVENTEENTH, compiles=True, steps=(3, 3))
def healthy_molecules(variant: str) -> Step:
    """Eight layers (512) on 1,024 molecules of 64 atoms learn an energy: dense edges, mixed precision, compiled."""
    width, count, atoms = size(512, 16), size(1024, 2), size(64, 4)
    layers = on_device(lambda: nn.ModuleList(Neighbours(width) for _ in range(size(8, 1)))).train()
    out = on_device(lambda: nn.Linear(width, 1)).train()
    compiled(layers)
    edges = (torch.rand(count, atoms, atoms, device=DEVICE) < 0.1).to(HALF)
    x, energy = torch.randn(count, atoms, width, device=DEVICE), torch.randn(count, device=DEVICE)

    def predicted() -> Tensor:
        y = x
        for layer in layers:
            y = layer(y, edges)
        return out(y)[..., 0].float().sum(1)

    model = nn.ModuleList([layers, out])
    return training(lambda: functional.mse_loss(predicted(), energy), adamw(model))


@healthy("reinforcement learning", SEVENTEENTH, steps=(3, 3))
def healthy_q_learning(variant: str) -> Step:
    """A Q network (4 × 2,048) learns from 16,384 transitions in bf16; the whole update is one CUDA graph."""
    width, seen, batch = size(2048, 16), size(256, 8), size(16_384, 8)

    def made() -> nn.Module:
        return nn.Sequential(
            nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 64),
        )  # fmt: skip

    net, target = on_device(made, HALF).train(), on_device(made, HALF).eval()
    states, later = (torch.randn(batch, seen, device=DEVICE, dtype=HALF) for _ in range(2))
    moves, rewards = tokens(64, batch, 1), torch.randn(batch, device=DEVICE)
    optimizer = adamw(net, fused=True, capturable=CUDA)

    def update() -> None:
        with torch.no_grad():
            wanted = rewards + 0.99 * target(later).amax(-1).float()
        functional.smooth_l1_loss(net(states).gather(1, moves)[:, 0].float(), wanted).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return as_graph(update)
