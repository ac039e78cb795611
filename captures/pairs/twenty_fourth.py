"""The twenty-fourth set: ordinary habits in programs of other kinds; language, tables, atoms, flows, clusters."""

from __future__ import annotations

import math

import torch
import transformers
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    CUDA,
    DEVICE,
    HALF,
    TINY,
    adamw,
    as_graph,
    compiled,
    on_device,
    size,
    tokens,
    training,
    write_kept,
)
from pairs.registry import AFTER, BEFORE, TWENTY_FOURTH, Step, healthy, pair

__all__ = ["Reader"]


class Reader(nn.Module):
    """Attention to what came before, and a network, each after a norm."""

    def __init__(self, width: int, heads: int, *, ahead: bool = False) -> None:
        super().__init__()
        self.heads, self.ahead = heads, ahead
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def split(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values [rows, heads, places, width of a head]."""
        parts = self.joined(self.norms[0](x)).chunk(3, -1)
        return [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]

    def closed(self, x: Tensor, seen: Tensor) -> Tensor:
        """What attention saw, added; then the network."""
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        return self.closed(x, functional.scaled_dot_product_attention(*self.split(x), is_causal=not self.ahead))


class Field(nn.Module):
    """How fast each row moves at a time."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.first, self.time = nn.Linear(width, wide), nn.Linear(1, wide)
        self.second, self.third = nn.Linear(wide, wide), nn.Linear(wide, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Rows [rows, width], a time [1]."""
        x = torch.tanh(self.first(x) + self.time(time))
        return self.third(torch.tanh(self.second(x)))


@pair(
    "launch-overhead", "flows", "the integration replayed from a CUDA graph", TWENTY_FOURTH,
    accept=("small-kernels",), inference=True, steps=(3, 2),
)  # fmt: skip
def flow_integrated_in_eager(variant: str) -> Step:
    """A flow (3 layers of 512, bf16) turns 2,048 rows of noise of 64 numbers into data: Runge-Kutta, 24 steps."""
    rows, width, steps = size(2048, 8), size(64, 4), size(24, 2)
    model = on_device(lambda: Field(width, size(512, 16)), HALF).eval()
    noise = torch.randn(rows, width, device=DEVICE, dtype=HALF)
    times = torch.linspace(0, 1, 2 * steps + 1, device=DEVICE, dtype=HALF)[:, None]
    long = 1 / steps

    def integrate() -> Tensor:
        x = noise
        for index in range(steps):
            begin, middle, end = times[2 * index : 2 * index + 3]
            a = model(x, begin)
            b = model(torch.add(x, a, alpha=long / 2), middle)
            c = model(torch.add(x, b, alpha=long / 2), middle)
            d = model(torch.add(x, c, alpha=long), end)
            x = x + (a + 2 * b + 2 * c + d) * (long / 6)
        return x

    return as_graph(integrate) if variant == AFTER else integrate


@pair(
    "host-sync", "quantisation", "the scale of a layer's input stays on the GPU", TWENTY_FOURTH,
    library="transformers", accept=("launch-overhead", "host-stall"), inference=True, with_stack=True, steps=(2, 1),
)  # fmt: skip
def scales_read_layer_by_layer(variant: str) -> Step:
    """An OPT (24 × 1,024, bf16) reads 8 texts of 512 tokens as in eight bits; each layer's scale is max().item()."""
    config = transformers.OPTConfig(
        vocab_size=size(50_272, 64), hidden_size=size(1024, 32), word_embed_proj_dim=size(1024, 32), use_cache=False,
        ffn_dim=size(4096, 64), num_hidden_layers=size(24, 2), num_attention_heads=size(16, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.OPTModel(config), HALF).eval()
    ids = tokens(config.vocab_size, size(8, 2), size(512, 8))

    def rounded(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        scale = inputs[0].abs().max() / 127
        if variant == BEFORE:
            scale = scale.item()
        return ((inputs[0] / scale).round_().mul_(scale),)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(rounded)
    return lambda: model(input_ids=ids).last_hidden_state


class Messages(nn.Module):
    """What neighbours tell an atom, by how far away they are."""

    def __init__(self, width: int, bells: int) -> None:
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(bells, width), nn.SiLU(), nn.Linear(width, width))
        self.before, self.after = nn.Linear(width, width), nn.Sequential(nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor, near: Tensor, bells: Tensor) -> Tensor:
        """Atoms [atoms, width], their neighbours' places and distances [atoms, neighbours], the latter in bells."""
        told = self.before(x).index_select(0, near.flatten()).unflatten(0, near.shape)
        return x + self.after((told * self.filter(bells)).sum(1))


def in_bells(sites: Tensor, near: Tensor, centers: Tensor) -> Tensor:
    """Distances of the atoms from their neighbours, each as the heights of bells: [atoms, neighbours, bells]."""
    away = (sites[:, None] - sites.index_select(0, near.flatten()).unflatten(0, near.shape)).norm(dim=-1)
    return torch.exp(-10 * (away[..., None] - centers).square()).to(HALF)


@pair(
    "host-stall", "atoms", "neighbours by cdist and topk on the GPU", TWENTY_FOURTH,
    accept=("blocking-copy",), with_stack=True, steps=(3, 2),
)  # fmt: skip
def neighbours_by_a_tree(variant: str) -> Step:
    """A potential (4 × 256) learns energies of 8 boxes of 2,048 atoms; SciPy's tree finds 16 neighbours of each."""
    boxes, atoms, count, width, kinds = size(8, 2), size(2048, 16), size(16, 4), size(256, 16), 8
    frames = [torch.rand(boxes, atoms, 3) * 10 for _ in range(4)]
    species, wanted = tokens(kinds, boxes * atoms), torch.randn(boxes, device=DEVICE)
    starts = torch.arange(boxes, device=DEVICE)[:, None, None] * atoms
    centers = torch.linspace(0, 3, size(64, 8), device=DEVICE)
    layers = on_device(lambda: nn.ModuleList(Messages(width, len(centers)) for _ in range(size(4, 1)))).train()
    ends = on_device(lambda: nn.ModuleList([nn.Embedding(kinds, width), nn.Linear(width, 1)]), seed=1)
    optimizer = adamw(nn.ModuleList([layers, ends]))
    place = 0

    def step() -> None:
        nonlocal place
        place += 1
        frame = frames[place % len(frames)]
        sites = frame.to(DEVICE)
        if variant == BEFORE:
            found = [torch.from_numpy(cKDTree(box).query(box, count)[1]) for box in frame.numpy()]
            near = torch.stack(found).to(DEVICE) + starts
        else:
            near = torch.cdist(sites, sites).topk(count, largest=False).indices + starts
        near = near.flatten(0, 1)

        def loss() -> Tensor:
            bells = in_bells(sites.flatten(0, 1), near, centers)
            x = ends[0](species)
            for layer in layers:
                x = layer(x, near, bells)
            return functional.mse_loss(ends[1](x).float().view(boxes, -1).sum(1), wanted)

        training(loss, optimizer)()

    return step


@pair(
    "recomputation", "atoms", "distances are put into bells once, before the layers", TWENTY_FOURTH,
    accept=("unfused-chain", "memory-bandwidth"), inference=True, steps=(3, 3),
)  # fmt: skip
def distances_expanded_in_each_layer(variant: str) -> Step:
    """A SchNet (6 × 128, bf16) tells the energy of 16,384 atoms of 32 neighbours; each layer makes 128 bells anew."""
    atoms, count, width, kinds = size(16_384, 16), size(32, 4), size(128, 8), 8
    sites, near = torch.rand(atoms, 3, device=DEVICE) * 10, tokens(atoms, atoms, count)
    species = tokens(kinds, atoms)
    centers = torch.linspace(0, 10, size(128, 8), device=DEVICE)
    layers = on_device(lambda: nn.ModuleList(Messages(width, len(centers)) for _ in range(size(6, 2))), HALF).eval()
    ends = on_device(lambda: nn.ModuleList([nn.Embedding(kinds, width), nn.Linear(width, 1)]), HALF, 1).eval()

    def step() -> float:
        x = ends[0](species)
        bells = in_bells(sites, near, centers)
        for index, layer in enumerate(layers):
            if variant == BEFORE and index:
                bells = in_bells(sites, near, centers)
            x = layer(x, near, bells)
        return ends[1](x).float().sum().item()

    return step


@pair(
    "precision", "clusters", "the products of points and centers in bfloat16", TWENTY_FOURTH,
    accept=("tensor-compute",), inference=True, steps=(2, 2),
)  # fmt: skip
def clusters_sought_in_fp32(variant: str) -> Step:
    """K-means on directions: 131,072 features of 768 find the nearest of 8,192 centers in fp32; then these move."""
    points, kinds, width = size(131_072, 64), size(8192, 8), size(768, 8)
    x = functional.normalize(torch.randn(points, width, device=DEVICE), dim=-1)
    dtype = torch.float32 if variant == BEFORE else HALF
    compared = x.to(dtype)
    centers = x[:kinds].clone()

    def step() -> None:
        columns = centers.to(dtype).T
        nearest = torch.cat([(part @ columns).argmax(1) for part in compared.split(size(16_384, 16))])
        sums = torch.zeros_like(centers).index_add_(0, nearest, x)
        counts = torch.bincount(nearest, minlength=kinds)
        moved = functional.normalize(sums / counts.clamp_min(1)[:, None], dim=-1)
        centers.copy_(torch.where(counts[:, None] > 0, moved, centers))

    return step


def splines(x: Tensor, knots: Tensor) -> Tensor:
    """The cubic splines between knots [knots] at each number [rows, width]: [rows, width, splines]."""
    x = x[..., None]
    bases = ((x >= knots[:-1]) & (x < knots[1:])).to(x.dtype)
    for k in range(1, 4):
        left = (x - knots[: -(k + 1)]) / (knots[k:-1] - knots[: -(k + 1)]) * bases[..., :-1]
        right = (knots[k + 1 :] - x) / (knots[k + 1 :] - knots[1:-k]) * bases[..., 1:]
        bases = left + right
    return bases


class Bent(nn.Module):
    """A layer of a Kolmogorov-Arnold network: a sum of splines for each pair of numbers."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.straight, self.bent = nn.Linear(width, width), nn.Linear(8 * width, width, bias=False)
        self.register_buffer("knots", torch.arange(-3.0, 9.0) * 0.4 - 1)
        self.norm = nn.LayerNorm(width)
        self.splines = torch.compile(splines, dynamic=False) if fused else splines

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, width]."""
        x = self.norm(x)
        return self.straight(functional.silu(x)) + self.bent(self.splines(x.float(), self.knots).flatten(1))


@pair(
    "unfused-chain", "tables", "the splines through torch.compile", TWENTY_FOURTH,
    accept=("memory-bandwidth",), compiles=True, steps=(2, 2),
)  # fmt: skip
def splines_in_passes(variant: str) -> Step:
    """A Kolmogorov-Arnold network (4 × 512) learns from 4,096 rows; its splines are made in some thirty passes."""
    width, rows = size(512, 16), size(4096, 8)
    fused = variant == AFTER and not TINY
    model = on_device(lambda: nn.Sequential(
        nn.Linear(width, width), *(Bent(width, fused=fused) for _ in range(size(4, 2))), nn.Linear(width, 8)
    )).train()  # fmt: skip
    x, labels = torch.randn(rows, width, device=DEVICE), tokens(8, rows)
    return training(lambda: functional.cross_entropy(model(x), labels), adamw(model))


class Translator(Reader):
    """A layer that also looks at the text that it translates."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.norm = nn.LayerNorm(width)
        self.asks, self.heard = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, source: list[Tensor], kept: Tensor, place: int) -> Tensor:
        """The next word [rows, 1, width]; keys and values of the text, and of the words before."""
        q, *new = self.split(x)
        kept[:, :, :, place : place + 1] = torch.stack(new)
        x = x + self.out(
            functional.scaled_dot_product_attention(q, *kept[:, :, :, : place + 1]).transpose(1, 2).flatten(2)
        )
        q = self.asks(self.norm(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        x = x + self.heard(functional.scaled_dot_product_attention(q, *source).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@pair(
    "scattered-access", "decoding", "keys and values of the source, alike for all beams, stay where they are",
    TWENTY_FOURTH, accept=("growing-cache", "memory-bandwidth"), inference=True, steps=(3, 3),
)  # fmt: skip
def beams_reorder_the_source_too(variant: str) -> Step:
    """A translator (6 × 1,024, bf16, a CUDA graph) seeks 6 words on 16 texts of 1,024 by 4 beams; it sorts all keys."""
    width, heads, texts, beams, words = size(1024, 32), size(16, 2), size(16, 2), size(4, 2), size(6, 2)
    rows, length = texts * beams, size(1024, 8)
    layers = on_device(lambda: nn.ModuleList(Translator(width, heads) for _ in range(size(6, 2))), HALF).eval()
    names = on_device(lambda: nn.Embedding(size(32_768, 64), width), HALF, 1)
    shape = (texts, heads, length, width // heads)
    sources = [
        [torch.randn(shape, device=DEVICE, dtype=HALF).repeat_interleave(beams, 0) for _ in range(2)] for _ in layers
    ]
    blank = torch.zeros(2, rows, heads, words, width // heads, device=DEVICE, dtype=HALF)
    first, starts = tokens(names.num_embeddings, rows, 1), torch.arange(texts, device=DEVICE)[:, None] * beams

    def step() -> Tensor:
        ids, said = first, first
        chances = torch.zeros(texts, beams, 1, device=DEVICE)
        kept, heard = [blank.clone() for _ in layers], sources
        for place in range(words):
            x = names(ids)
            for index, layer in enumerate(layers):
                x = layer(x, heard[index], kept[index], place)
            scores = (x[:, 0] @ names.weight.T).float().log_softmax(-1).view(texts, beams, -1)
            best, where = (chances + scores).flatten(1).topk(beams)
            chances = best[..., None]
            parents = (where // names.num_embeddings + starts).flatten()
            ids = (where % names.num_embeddings).view(rows, 1)
            said = torch.cat([said.index_select(0, parents), ids], 1)
            kept = [part.index_select(1, parents) for part in kept]
            if variant == BEFORE:
                heard = [[part.index_select(0, parents) for part in parts] for parts in heard]
        return said

    return as_graph(step)


@pair(
    "weight-bound", "evaluation", "the eight answers in one batch", TWENTY_FOURTH,
    accept=("launch-overhead", "small-kernels"), inference=True, steps=(2, 2),
)  # fmt: skip
def answers_scored_one_by_one(variant: str) -> Step:
    """A model of 16 × 4,096 (bf16) scores the four answers to two questions, 48 tokens each, with a batch of one."""
    width = size(4096, 32)
    layers = on_device(lambda: nn.Sequential(*(Reader(width, size(32, 2)) for _ in range(size(16, 1)))), HALF).eval()
    ends = on_device(
        lambda: nn.ModuleList([nn.Embedding(size(32_768, 64), width), nn.Linear(width, size(32_768, 64), bias=False)]),
        HALF, 1,
    )  # fmt: skip
    ids, answer = tokens(size(32_768, 64), size(8, 4), size(48, 8)), size(8, 2)

    def scored(some: Tensor) -> Tensor:
        scores = ends[1](layers(ends[0](some))[:, -answer - 1 : -1]).float().log_softmax(-1)
        return scores.gather(-1, some[:, -answer:, None]).sum((1, 2))

    def step() -> list[int]:
        chances = torch.cat([scored(some[None]) for some in ids]) if variant == BEFORE else scored(ids)
        return chances.view(-1, 4).argmax(-1).tolist()

    return step


@pair(
    "host-sync", "matching", "thirty rounds, as many as it always takes, and no question", TWENTY_FOURTH,
    accept=("launch-overhead",), inference=True, with_stack=True, steps=(3, 2),
)  # fmt: skip
def transport_asks_whether_done(variant: str) -> Step:
    """SuperGlue (6 × 256, bf16) matches 640 points of 8 pairs of images; each round of Sinkhorn asks to stop."""
    width, pairs, points, sharp = size(256, 16), size(8, 2), size(640, 16), 60.0
    layers = on_device(
        lambda: nn.Sequential(*(Reader(width, size(4, 2), ahead=True) for _ in range(size(6, 1)))), HALF
    ).eval()
    x = torch.randn(2 * pairs, points, width, device=DEVICE, dtype=HALF)
    share = -math.log(points)

    def step() -> Tensor:
        left, right = functional.normalize(layers(x), dim=-1).chunk(2)
        scores = (left @ right.transpose(1, 2)).float() * sharp
        u = v = torch.zeros(pairs, points, device=DEVICE)
        for _ in range(30):
            last = u
            u = share - torch.logsumexp(scores + v[:, None], 2)
            v = share - torch.logsumexp(scores + u[:, :, None], 1)
            if variant == BEFORE and (u - last).abs().max() < 1e-7:
                break
        return (scores + u[:, :, None] + v[:, None]).argmax(-1)

    return step


class Teller(Reader):
    """A layer that writes keys and values to their place in a cache, and looks at all up to there."""

    def __init__(self, width: int, heads: int, place: int) -> None:
        super().__init__(width, heads)
        self.place = place

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        """The next token [rows, 1, width], what is kept [2, rows, heads, places, width of a head]."""
        q, k, v = self.split(x)
        write_kept(kept, self.place, k[:, :, 0], v[:, :, 0])
        return self.closed(x, functional.scaled_dot_product_attention(q, kept[0], kept[1]))


@pair(
    "growing-cache", "decoding", "keys and values have a tensor each, which compiled code writes in place",
    TWENTY_FOURTH, compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def answers_told_from_a_copy(variant: str) -> Step:
    """A model of 20 × 4,096 (bf16) adds a token to 256 texts of 47: compiled layers, its own cache, a CUDA graph."""
    width, heads, rows, room = size(4096, 32), size(32, 2), size(256, 2), size(48, 8)
    layers = on_device(lambda: nn.ModuleList(Teller(width, heads, room - 1) for _ in range(size(20, 1))), HALF).eval()
    compiled(layers)
    names = on_device(lambda: nn.Embedding(size(32_768, 64), width), HALF, 1)
    kept = [torch.randn(2, rows, heads, room, width // heads, device=DEVICE, dtype=HALF) for _ in layers]
    if variant == AFTER:
        kept = [(both[0].clone(), both[1].clone()) for both in kept]
    ids = tokens(names.num_embeddings, rows, 1)

    def token() -> Tensor:
        x = names(ids)
        for layer, part in zip(layers, kept, strict=True):
            x = layer(x, part)
        return (x @ names.weight.T).argmax(-1)

    return as_graph(token)


class Shape(nn.Module):
    """How far points are from a surface: waves of their coordinates, and a network."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.register_buffer("waves", torch.randn(3, width // 2))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.out = nn.Linear(width, 8)

    def forward(self, sites: Tensor) -> Tensor:
        """Points [points, 3] → distances [points]."""
        turns = sum(sites[:, index, None] * wave for index, wave in enumerate(self.waves))
        x = torch.cat([turns.sin(), turns.cos()], -1)
        for layer in self.layers:
            x = functional.relu(layer(x))
        return self.out(x).float().mean(-1)


@healthy("shapes", TWENTY_FOURTH, compiles=True, steps=(3, 3))
def healthy_shape_fitting(variant: str) -> Step:
    """A network (8 × 2,048) learns how far 65,536 points are from a surface: mixed precision, compiled, fused AdamW."""
    model = on_device(lambda: Shape(size(2048, 16), size(8, 1))).train()
    compiled([model])
    sites = torch.randn(size(65_536, 8), 3, device=DEVICE)
    far = torch.rand(len(sites), device=DEVICE)
    return training(lambda: functional.l1_loss(model(sites), far), adamw(model))


class Gate(nn.Module):
    """A gated network around which its input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate, self.wide, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, width]."""
        y = self.norm(x)
        return x + self.narrow(functional.silu(self.gate(y)) * self.wide(y))


@healthy("recommendation", TWENTY_FOURTH, compiles=True, inference=True, steps=(2, 2))
def healthy_offers_scored(variant: str) -> Step:
    """Gated layers (6 × 2,048) score 32,768 offers in bf16, compiled; the next come meanwhile, from pinned memory."""
    width, rows = size(2048, 16), size(32_768, 8)
    model = on_device(lambda: nn.Sequential(*(Gate(width) for _ in range(size(6, 1)))), HALF).eval()
    compiled(model)
    head = on_device(lambda: nn.Linear(width, 8), HALF, 1)
    offers = [torch.randn(rows, width).to(HALF) for _ in range(2)]
    if CUDA:
        offers = [some.pin_memory() for some in offers]
    places = [some.to(DEVICE) for some in offers]
    copies = torch.cuda.Stream() if CUDA else None
    turn = 0

    def step() -> Tensor:
        nonlocal turn
        now, later = places[turn % 2], (turn + 1) % 2
        turn += 1
        if copies is None:
            places[later].copy_(offers[later])
        else:
            torch.cuda.current_stream().wait_stream(copies)
            copies.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(copies):
                places[later].copy_(offers[later], non_blocking=True)
        return head(model(now))

    return step


@healthy("distillation", TWENTY_FOURTH, compiles=True, steps=(2, 2))
def healthy_answers_distilled(variant: str) -> Step:
    """Layers (6 × 2,048) learn from twice as many what they say of 16 texts of 512: bf16, no_grad, layers compiled."""
    width, heads = size(2048, 32), size(16, 2)
    model = on_device(lambda: nn.Sequential(*(Reader(width, heads) for _ in range(size(6, 1))))).train()
    larger = on_device(lambda: nn.Sequential(*(Reader(width, heads) for _ in range(size(12, 2)))), HALF, 1).eval()
    compiled([*model, *larger])
    x = torch.randn(size(16, 2), size(512, 8), width, device=DEVICE, dtype=HALF)

    def loss() -> Tensor:
        with torch.no_grad():
            wanted = larger(x)
        return functional.mse_loss(model(x), wanted)

    return training(loss, adamw(model))
