"""The twenty-second set: ordinary habits, which guides to tuning name; language, tables, graphs and experts."""

from __future__ import annotations

import random

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import next_tokens, rewind, share_heads
from pairs.language import llama
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_SECOND, Step, healthy, pair

#: Not in the public part of every version.
grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm


@pair(
    "precision", "training", "the scores of the words stay in autocast (bf16)", TWENTY_SECOND,
    library="transformers", accept=("tensor-compute",), compiles=True, steps=(3, 3),
)  # fmt: skip
def scores_of_words_in_fp32(variant: str) -> Step:
    """A Llama (8 × 1,024, layers compiled) learns from 8 texts of 512 tokens; its head of 65,536 words is in fp32."""
    config = llama(8, 1024, vocabulary=65_536, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(512, 8))
    labels = ids.roll(-1, 1).flatten()

    def loss() -> Tensor:
        x = model.model(input_ids=ids).last_hidden_state.flatten(0, 1)
        if variant == BEFORE:
            with torch.autocast(DEVICE.type, enabled=False):
                scores = functional.linear(x.float(), model.lm_head.weight)
        else:
            scores = model.lm_head(x)
        return functional.cross_entropy(scores, labels)

    return training(loss, adamw(model))


@pair(
    "precision", "decoding", "the weights in bfloat16, as they were trained, not in fp32", TWENTY_SECOND,
    library="transformers", accept=("weight-bound", "memory-bandwidth"), inference=True, steps=(3, 3),
)  # fmt: skip
def code_written_by_fp32_weights(variant: str) -> Step:
    """A Starcoder2 (8 × 4,096, a CUDA graph) adds three tokens to 8 programs of 256; weights and cache are in fp32."""
    heads, groups = size(32, 2), size(4, 2)
    config = transformers.Starcoder2Config(
        vocab_size=size(32_768, 64), hidden_size=size(4096, 32), intermediate_size=size(16_384, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=heads, num_key_value_heads=groups, sliding_window=None,
    )  # fmt: skip
    dtype = torch.float32 if variant == BEFORE else HALF
    model = on_device(lambda: transformers.Starcoder2ForCausalLM(config), dtype).eval()
    texts, prompt = size(8, 2), size(256, 8)
    cache = transformers.StaticCache(config=config, max_cache_len=prompt + 8)
    cache.early_initialization(texts, groups, config.hidden_size // heads, dtype, DEVICE)
    rewind(cache, prompt)
    ids = tokens(config.vocab_size, texts, 1)

    def token() -> Tensor:
        ids.copy_(model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1))
        return ids

    replayed = as_graph(token)

    def step() -> Tensor:
        rewind(cache, prompt)
        for _ in range(3):
            replayed()
        return ids

    return step


@pair(
    "launch-overhead", "evaluation", "the windows in one batch instead of one after the other", TWENTY_SECOND,
    library="transformers", accept=("small-kernels", "weight-bound"), inference=True, steps=(2, 2),
)  # fmt: skip
def windows_read_one_by_one(variant: str) -> Step:
    """The perplexity of a GPT-2 (12 × 768, bf16): 16 windows of 512 tokens, of which half were in the one before."""
    config = transformers.GPT2Config(
        vocab_size=size(50_304, 64), n_layer=size(12, 2), n_embd=size(768, 32), n_head=size(12, 2), use_cache=False
    )
    model = on_device(lambda: transformers.GPT2LMHeadModel(config), HALF).eval()
    count, length = size(16, 2), size(512, 8)
    windows = tokens(config.vocab_size, (count + 1) * length // 2).unfold(0, length, length // 2).contiguous()
    labels = windows.clone()
    labels[:, : length // 2] = -100

    def step() -> Tensor:
        if variant == AFTER:
            return model(input_ids=windows, labels=labels).loss.exp()
        losses = [
            model(input_ids=window[None], labels=label[None]).loss
            for window, label in zip(windows, labels, strict=True)
        ]
        return torch.stack(losses).mean().exp()

    return step


class Layer(nn.Module):
    """A layer of an encoder: attention and a network, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Positions [texts, positions, width]."""
        parts = self.joined(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


class AsInThePaper:
    """Adam, as its paper has it, parameter by parameter."""

    def __init__(self, weights: list[nn.Parameter], rate: float = 1e-4) -> None:
        self.weights, self.rate, self.count = weights, rate, 0
        self.means = [torch.zeros_like(weight) for weight in weights]
        self.squares = [torch.zeros_like(weight) for weight in weights]

    @torch.no_grad()
    def step(self) -> None:
        """One step."""
        self.count += 1
        for weight, mean, square in zip(self.weights, self.means, self.squares, strict=True):
            grad = weight.grad
            mean.mul_(0.9).add_(0.1 * grad)
            square.mul_(0.999).add_(0.001 * grad**2)
            right_mean = mean / (1 - 0.9**self.count)
            right_square = square / (1 - 0.999**self.count)
            weight.sub_(self.rate * right_mean / (right_square.sqrt() + 1e-8))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        for weight in self.weights:
            if set_to_none:
                weight.grad = None
            else:
                weight.grad.zero_()


@pair(
    "unfused-optimizer", "training", "torch.optim.Adam(fused=True) instead of a loop over parameters", TWENTY_SECOND,
    accept=("launch-overhead", "small-kernels"), compiles=True, profiler_steps=True, steps=(3, 3),
)  # fmt: skip
def adam_written_out(variant: str) -> Step:
    """A model of music (24 × 384, layers compiled) learns from 48 pieces of 128 notes; its Adam is written by hand."""
    width, notes = size(384, 16), size(512, 16)
    layers = on_device(lambda: nn.ModuleList(Layer(width, size(6, 2)) for _ in range(size(24, 2))))
    compiled(layers)
    ends = on_device(lambda: nn.ModuleList([nn.Embedding(notes, width), nn.Linear(width, notes)]), seed=1)
    ids = tokens(notes, size(48, 2), size(128, 8))
    labels = ids.roll(-1, 1).flatten()
    weights = [*layers.parameters(), *ends.parameters()]

    def loss() -> Tensor:
        x = ends[0](ids).to(HALF)
        for layer in layers:
            x = layer(x)
        return functional.cross_entropy(ends[1](x).flatten(0, 1), labels)

    if variant == BEFORE:
        return training(loss, AsInThePaper(weights))
    return training(loss, torch.optim.Adam(weights, lr=1e-4, fused=True))


class Crosses(nn.Module):
    """DCN-v2: columns are multiplied with what layers say of them; then comes a network."""

    def __init__(self, columns: int, layers: int, wide: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(columns, columns) for _ in range(layers))
        self.deep = nn.Sequential(nn.Linear(columns, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
        self.out = nn.Linear(wide, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, columns] → [rows]."""
        y = x
        for layer in self.layers:
            y = torch.addcmul(y, x, layer(y))
        return self.out(self.deep(y))[:, 0]


@pair(
    "misaligned-shape", "recommendation", "1,320 columns, seven of them empty, instead of 1,313", TWENTY_SECOND,
    accept=("tensor-compute",), steps=(3, 3),
)  # fmt: skip
def crosses_of_1313_columns(variant: str) -> Step:
    """DCN-v2 (six crosses, bf16) learns from 32,768 rows of 13 numbers and 26 features of 50 numbers each."""
    rows, features = size(32_768, 8), 26 * size(50, 2)
    numbers = torch.randn(rows, 13, device=DEVICE, dtype=HALF)
    looked = torch.randn(rows, features, device=DEVICE, dtype=HALF)
    clicked = torch.rand(rows, device=DEVICE).round()
    empty = torch.zeros(rows, 7 if variant == AFTER else 0, device=DEVICE, dtype=HALF)
    columns = 13 + features + empty.shape[1]
    model = on_device(lambda: Crosses(columns, size(6, 2), size(1024, 16)), HALF).train()

    def loss() -> Tensor:
        scores = model(torch.cat([numbers, looked, empty], 1))
        return functional.binary_cross_entropy_with_logits(scores.float(), clicked)

    return training(loss, adamw(model), mixed=False)


@pair(
    "host-stall", "recommendation", "lines are parsed once, before the training; batches are slices", TWENTY_SECOND,
    accept=("blocking-copy",), with_stack=True, steps=(3, 3),
)  # fmt: skip
def lines_parsed_in_the_loop(variant: str) -> Step:
    """A click model (26 tables of 20,000 × 32, 3 × 1,024) learns from 2,048 lines of text, parsed in each step."""
    batch, table, wide = size(2048, 4), size(20_000, 16), size(1024, 16)
    drawn = random.Random(0)
    kept = [
        "\t".join(
            [str(drawn.randrange(2))]
            + [str(drawn.randrange(1000)) for _ in range(13)]
            + [f"{drawn.getrandbits(32):08x}" for _ in range(26)]
        )
        for _ in range(4 * batch)
    ]
    tables = on_device(lambda: nn.Embedding(26 * table, size(32, 4)))
    network = on_device(
        lambda: nn.Sequential(
            *(nn.Linear(26 * size(32, 4) + 16, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU()),
            *(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1)),
        ),
        seed=1,
    )
    optimizer = adamw(nn.ModuleList([tables, network]))
    starts = torch.arange(26, device=DEVICE) * table

    def parsed(lines: list[str]) -> tuple[Tensor, Tensor, Tensor]:
        clicks, numbers, features = [], [], []
        for line in lines:
            fields = line.split("\t")
            clicks.append(float(fields[0]))
            numbers.append([float(field) for field in fields[1:14]])
            features.append([int(field, 16) % table for field in fields[14:]])
        return torch.tensor(clicks), torch.tensor(numbers), torch.tensor(features)

    once = [part.pin_memory() if CUDA else part for part in parsed(kept)]
    place = 0

    def step() -> None:
        nonlocal place
        place = (place + batch) % len(kept)
        parts = [part[place : place + batch] for part in once]
        if variant == BEFORE:
            parts = list(parsed(kept[place : place + batch]))
        clicks, numbers, features = (part.to(DEVICE, non_blocking=True) for part in parts)

        def loss() -> Tensor:
            columns = [functional.pad((numbers + 1).log(), (0, 3)), tables(features + starts).flatten(1)]
            return functional.binary_cross_entropy_with_logits(network(torch.cat(columns, 1))[:, 0].float(), clicks)

        training(loss, optimizer)()

    return step


@pair(
    "host-stall", "graph", "neighbours are drawn on the GPU, from a table of them", TWENTY_SECOND,
    accept=("blocking-copy",), with_stack=True, steps=(2, 2),
)  # fmt: skip
def neighbours_drawn_in_python(variant: str) -> Step:
    """GraphSAGE (512) learns from 512 of 50,000 pages and 10 × 5 neighbours each, which random.sample draws."""
    nodes, degree, width, batch = size(50_000, 50), 20, size(512, 8), size(512, 4)
    near, far = 10, 5
    table = tokens(nodes, nodes, degree)
    lists = dict(enumerate(table.tolist()))
    features, labels = torch.randn(nodes, width, device=DEVICE, dtype=HALF), tokens(64, nodes)
    layers = on_device(lambda: nn.ModuleList([nn.Linear(2 * width, width), nn.Linear(2 * width, 64)]))
    optimizer = adamw(layers)
    chance = random.Random(0)

    def in_python() -> tuple[Tensor, Tensor, Tensor]:
        seeds = [chance.randrange(nodes) for _ in range(batch)]
        first = [chance.sample(lists[node], near) for node in seeds]
        second = [chance.sample(lists[node], far) for row in first for node in row]
        parts = (torch.tensor(seeds), torch.tensor(first).flatten(), torch.tensor(second).flatten())
        seeds_there, first_there, second_there = (part.to(DEVICE) for part in parts)
        return seeds_there, first_there, second_there

    def some_of(ids: Tensor, count: int) -> Tensor:
        places = torch.rand(len(ids), degree, device=DEVICE).topk(count).indices
        return table[ids].gather(1, places).flatten()

    def on_gpu() -> tuple[Tensor, Tensor, Tensor]:
        seeds = tokens(nodes, batch)
        first = some_of(seeds, near)
        return seeds, first, some_of(first, far)

    def step() -> None:
        seeds, first, second = in_python() if variant == BEFORE else on_gpu()

        def loss() -> Tensor:
            own, others = features[first], features[second].unflatten(0, (-1, far)).mean(1)
            x = layers[0](torch.cat([own, others], -1)).relu()
            start = layers[0](torch.cat([features[seeds], own.unflatten(0, (-1, near)).mean(1)], -1)).relu()
            told = layers[1](torch.cat([start, x.unflatten(0, (-1, near)).mean(1)], -1))
            return functional.cross_entropy(told, labels[seeds])

        training(loss, optimizer)()

    return step


class Shower(nn.Module):
    """A layer on all particles of some showers, which is told what is known of each shower."""

    def __init__(self, width: int, known: int) -> None:
        super().__init__()
        self.known = nn.Linear(known, 2 * width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, known: Tensor, counts: Tensor, total: int | None) -> Tensor:
        """Particles [particles, width]; of the showers what is known [showers, known], and how many particles."""
        told = torch.repeat_interleave(self.known(known), counts, 0, output_size=total)
        scale, shift = told.chunk(2, -1)
        y = torch.addcmul(shift, functional.layer_norm(x, x.shape[-1:]), scale)
        return x + self.narrow(functional.gelu(self.wide(y), approximate="tanh"))


@pair(
    "host-sync", "physics", "repeat_interleave(…, output_size=) is told how many rows there will be", TWENTY_SECOND,
    accept=("launch-overhead",), inference=True, steps=(3, 3),
)  # fmt: skip
def rows_counted_in_each_layer(variant: str) -> Step:
    """Thirty-two layers (256, bf16) see 250 showers of 20 to 100 particles; each layer repeats a row a shower."""
    width, known, showers = size(256, 8), size(64, 8), size(250, 3)
    layers = on_device(lambda: nn.ModuleList(Shower(width, known) for _ in range(size(32, 2))), HALF).eval()
    counts = torch.randint(20, 101, (showers,))
    total = int(counts.sum())
    counts = counts.to(DEVICE)
    particles = torch.randn(total, width, device=DEVICE, dtype=HALF)
    of_showers = torch.randn(showers, known, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x = particles
        for layer in layers:
            x = layer(x, of_showers, counts, None if variant == BEFORE else total)
        return x

    return step


class TwoOfMany(nn.Module):
    """Two experts of many for each token: each in its turn, by masks, or all of them in grouped products."""

    def __init__(self, width: int, wide: int, experts: int, *, together: bool) -> None:
        super().__init__()
        self.together = together
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, experts, bias=False)
        self.first = nn.Parameter(torch.randn(experts, width, wide) / width**0.5)
        self.second = nn.Parameter(torch.randn(experts, wide, width) / wide**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [tokens, width]."""
        y = self.norm(x)
        shares, chosen = self.router(y).softmax(-1).topk(2)
        return x + (self.at_once(y, shares, chosen) if self.together else self.in_turn(y, shares, chosen))

    def in_turn(self, y: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """Expert by expert."""
        out = torch.zeros_like(y)
        for index, (first, second) in enumerate(zip(self.first.unbind(), self.second.unbind(), strict=True)):
            here = chosen == index
            rows = here.any(-1)
            share = (shares * here).sum(-1)[rows]
            out[rows] += functional.gelu(y[rows] @ first) @ second * share[:, None]
        return out

    def at_once(self, y: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """All experts."""
        ordered, order = chosen.flatten().sort()
        numbers = torch.arange(len(self.first), device=y.device)
        ends = torch.searchsorted(ordered, numbers, right=True).to(torch.int32)
        rows = y.index_select(0, order // 2)
        told = grouped(functional.gelu(grouped(rows, self.first, offs=ends)), self.second, offs=ends)
        told = told * shares.flatten().index_select(0, order)[:, None]
        return torch.zeros_like(y).index_add(0, order // 2, told)


@pair(
    "per-expert-loop", "mixture-of-experts", "grouped_mm over tokens in the order of their experts", TWENTY_SECOND,
    accept=("host-sync", "launch-overhead", "small-kernels"), steps=(2, 2),
)  # fmt: skip
def experts_found_by_masks(variant: str) -> Step:
    """Four layers of 16 experts (1,024 → 2,048, two a token, bf16) learn from 4,096 tokens; masks find the rows."""
    width, together = size(1024, 16), variant == AFTER and CUDA
    model = on_device(lambda: nn.Sequential(
        *(TwoOfMany(width, size(2048, 32), size(16, 4), together=together) for _ in range(size(4, 1)))
    ), HALF).train()  # fmt: skip
    x = torch.randn(size(4096, 16), width, device=DEVICE, dtype=HALF)
    wanted = torch.randn_like(x)
    return training(lambda: functional.mse_loss(model(x).float(), wanted.float()), adamw(model), mixed=False)


@healthy("training", TWENTY_SECOND, library="transformers", compiles=True, steps=(2, 2))
def healthy_granite_training(variant: str) -> Step:
    """A Granite (6 × 2,560) learns from 12 texts of 1,024 tokens: mixed precision, layers and loss compiled."""
    config = transformers.GraniteConfig(
        vocab_size=size(16_384, 64), hidden_size=size(2560, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(20, 2), num_key_value_heads=size(4, 2), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.GraniteForCausalLM(config)).train()
    ids = tokens(config.vocab_size, size(12, 1), size(1024, 8))
    labels = ids.roll(-1, 1).flatten()

    def scored(x: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(x.flatten(0, 1), model.lm_head.weight).float(), labels)

    loss = scored if TINY else torch.compile(scored, dynamic=False)
    compiled(model.model.layers)
    return training(lambda: loss(model.model(input_ids=ids).last_hidden_state), adamw(model))


@pair(
    "growing-cache", "decoding", "attention reads the heads that are shared, which were repeated", TWENTY_SECOND,
    library="transformers", compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def olmo_heads_repeated(variant: str) -> Step:
    """An OLMo-2 (6 × 4,096, bf16) adds three tokens to 160 texts of 320: compiled, static cache, a CUDA graph."""
    config = transformers.Olmo2Config(
        vocab_size=size(32_768, 64), hidden_size=size(4096, 32), intermediate_size=size(11_008, 64),
        num_hidden_layers=size(6, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.Olmo2ForCausalLM(config), HALF).eval()
    if variant == AFTER:
        share_heads(model)
    compiled(model.model.layers)
    return next_tokens(model, size(160, 2), size(312, 8), 3)


@healthy("embedding", TWENTY_SECOND, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_qwen_embedding(variant: str) -> Step:
    """A Qwen3 (8 × 2,560, bf16, layers compiled) embeds 48 texts of 512 tokens by the mean of their states."""
    config = transformers.Qwen3Config(
        vocab_size=size(32_768, 64), hidden_size=size(2560, 32), intermediate_size=size(9728, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(8, 2),
        head_dim=size(128, 16), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3Model(config), HALF).eval()
    compiled(model.layers)
    ids = tokens(config.vocab_size, size(48, 2), size(512, 8))
    return lambda: functional.normalize(model(input_ids=ids).last_hidden_state.mean(1).float(), dim=-1)


@healthy("recommendation", TWENTY_SECOND, compiles=True, steps=(3, 3))
def healthy_crosses(variant: str) -> Step:
    """DCN-v2 (six crosses of 1,024, then 4,096) learns from 32,768 rows: bf16, compiled whole, fused AdamW."""
    rows, columns = size(32_768, 8), size(1024, 16)
    model = on_device(lambda: Crosses(columns, size(6, 2), size(4096, 16))).train()
    compiled([model])
    x = torch.randn(rows, columns, device=DEVICE, dtype=HALF)
    clicked = torch.rand(rows, device=DEVICE).round()
    return training(lambda: functional.binary_cross_entropy_with_logits(model(x).float(), clicked), adamw(model))
