"""The twentieth set: common habits and reported ones; written with the twenty-first, split at random."""

from __future__ import annotations

import math

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.decoding import rewind, static_cache
from pairs.language import llama
from pairs.parts import CUDA, DEVICE, HALF, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import BEFORE, TWENTIETH, Step, healthy, pair


def farthest(points: Tensor, count: int) -> Tensor:
    """Places of so many points [clouds, points, 3], each the farthest from those before."""
    chosen = torch.zeros(len(points), count, dtype=torch.long, device=points.device)
    distance = torch.full(points.shape[:2], 1e10, device=points.device)
    last = torch.zeros(len(points), 1, dtype=torch.long, device=points.device)
    for turn in range(count):
        chosen[:, turn] = last[:, 0]
        center = points.gather(1, last[..., None].expand(-1, -1, 3))
        distance = torch.minimum(distance, (points - center).square().sum(-1))
        last = distance.argmax(-1, keepdim=True)
    return chosen


@pair(
    "launch-overhead", "point clouds", "the choice of points is replayed from a CUDA graph", TWENTIETH,
    accept=("small-kernels",), inference=True, steps=(2, 2),
)  # fmt: skip
def farthest_points_one_by_one(variant: str) -> Step:
    """PointNet++ chooses 256 of 2,048 points of 32 clouds by a loop, and looks at 32 neighbours of each (bf16)."""
    points = torch.randn(size(32, 2), size(2048, 32), 3, device=DEVICE)
    count, near, wide = size(256, 4), size(32, 4), size(256, 8)
    look = on_device(
        lambda: nn.Sequential(
            nn.Linear(3, wide // 4), nn.ReLU(), nn.Linear(wide // 4, wide // 2), nn.ReLU(), nn.Linear(wide // 2, wide)
        ),
        HALF,
    ).eval()

    def chosen() -> Tensor:
        return farthest(points, count)

    choose = chosen if variant == BEFORE else as_graph(chosen)

    def step() -> Tensor:
        centers = points.gather(1, choose()[..., None].expand(-1, -1, 3))
        index = torch.cdist(centers, points).topk(near, largest=False).indices
        groups = points.gather(1, index.flatten(1)[..., None].expand(-1, -1, 3)).unflatten(1, (count, near))
        return look((groups - centers[:, :, None]).to(HALF)).amax(2)

    return step


@pair(
    "blocking-copy", "generation", "without offloading of keys and values, which fit on the GPU", TWENTIETH,
    library="transformers", accept=("host-sync", "host-stall", "growing-cache"), inference=True, steps=(2, 2),
)  # fmt: skip
def cache_offloaded_without_need(variant: str) -> Step:
    """A Qwen2 (12 × 2,048, bf16) reads 4 texts of 1,024 tokens and adds two; what it remembers waits on the host."""
    config = transformers.Qwen2Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64),
        num_hidden_layers=size(12, 2), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 1),
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).eval()
    prompts = tokens(config.vocab_size, size(4, 2), size(1024, 8))

    def step() -> Tensor:
        cache = transformers.DynamicCache(config=config, offloading=CUDA and variant == BEFORE)
        ids = prompts
        for _ in range(3):
            told = model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
            ids = told.logits[:, -1:].argmax(-1)
        return ids

    return step


class Cosine(nn.Module):
    """A block of Swin V2 without shifts: cosines of queries and keys in windows, a temperature a head, late norms."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.bias = nn.Parameter(torch.randn(1, heads, window, window))

    def forward(self, x: Tensor, as_tensor: bool) -> Tensor:
        """Windows [windows, positions, width]."""
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.joined(x).chunk(3, -1))
        limit = torch.tensor(math.log(100.0), dtype=x.dtype).to(x.device) if as_tensor else math.log(100.0)
        q = functional.normalize(q, dim=-1) * self.temperature.clamp(max=limit).exp()
        k = functional.normalize(k, dim=-1)
        bias = self.bias.expand(len(x), -1, -1, -1)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        x = x + self.norms[0](self.out(seen.transpose(1, 2).flatten(2)))
        return x + self.norms[1](self.feed(x))


@pair(
    "blocking-copy", "vision", "clamp(max=math.log(100)): a number instead of a tensor sent to the GPU", TWENTIETH,
    accept=("host-sync", "launch-overhead"), inference=True, steps=(3, 3),
)  # fmt: skip
def temperature_limit_from_host(variant: str) -> Step:
    """Twenty blocks of Swin V2 (512) see 8 images of 32 × 32 patches in windows of 64 (bf16); each sends a limit."""
    width, window = size(512, 32), size(64, 16)
    blocks = on_device(lambda: nn.ModuleList(Cosine(width, size(16, 2), window) for _ in range(size(20, 2))), HALF)
    blocks = blocks.eval()
    patches = torch.randn(size(128, 2), window, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        x = patches
        for block in blocks:
            x = block(x, variant == BEFORE)
        return x

    return step


@pair(
    "per-expert-loop", "decoding", "experts_implementation='grouped_mm' instead of 'eager'", TWENTIETH,
    library="transformers", accept=("launch-overhead", "host-sync"), inference=True, steps=(2, 2),
)  # fmt: skip
def tokens_decoded_expert_by_expert(variant: str) -> Step:
    """A Qwen3-MoE (3 × 2,048, 48 experts, 8 a token, bf16) adds two tokens to 48 texts of 256 in a static cache."""
    heads, head = size(16, 2), size(128, 16)
    config = transformers.Qwen3MoeConfig(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(6144, 64),
        moe_intermediate_size=size(768, 16), num_hidden_layers=size(3, 1), num_attention_heads=heads,
        num_key_value_heads=size(4, 2), head_dim=head, num_experts=size(48, 4), num_experts_per_tok=size(8, 2),
    )  # fmt: skip
    config._experts_implementation = "eager" if variant == BEFORE else "grouped_mm"
    model = on_device(lambda: transformers.Qwen3MoeForCausalLM(config), HALF).eval()
    texts, prompt = size(48, 3), size(256, 8)
    cache = static_cache(config, texts, prompt + 8, config.num_key_value_heads, head)
    first = tokens(config.vocab_size, texts, 1)

    def step() -> Tensor:
        rewind(cache, prompt)
        ids = first
        for _ in range(2):
            ids = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)
        return ids

    return step


@pair(
    "padded-work", "decoding", "a static cache of 640 tokens, as many as are needed, instead of 8,192", TWENTIETH,
    library="transformers", accept=("unused-results", "memory-bandwidth"), inference=True, steps=(3, 3),
)  # fmt: skip
def cache_for_all_that_fits(variant: str) -> Step:
    """A Llama (8 × 2,048, a CUDA graph) adds three tokens to 16 texts of 512; its static cache is for 8,192."""
    config = llama(8, 2048)
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    texts, prompt, heads = size(16, 2), size(512, 8), config.num_attention_heads
    length = size(8192, 64) if variant == BEFORE else size(640, 16)
    cache = static_cache(config, texts, length, heads, config.hidden_size // heads)
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


@healthy("prefill", TWENTIETH, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_phi3_prefill(variant: str) -> Step:
    """A Phi-3 (10 × 3,072, bf16) reads 8 texts of 1,024 tokens: layers compiled, scores of the last position alone."""
    config = transformers.Phi3Config(
        vocab_size=size(32_064, 64), hidden_size=size(3072, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(10, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(32, 2),
        use_cache=False, pad_token_id=0,
    )  # fmt: skip
    model = on_device(lambda: transformers.Phi3ForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 1), size(1024, 8))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


class Rooted(nn.Module):
    """A block of a Llama with turned queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Positions [texts, positions, width], cosines and sines [2, positions, width / heads / 2]."""
        q, k, v = (
            p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.joined(self.norms[0](x)).chunk(3, -1)
        )
        cos, sin = turns

        def turned(part: Tensor) -> Tensor:
            one, two = part.chunk(2, -1)
            return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(v.dtype)

        seen = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        one, two = self.wide(self.norms[1](x)).chunk(2, -1)
        return x + self.narrow(functional.silu(one) * two)


@healthy("training", TWENTIETH, compiles=True, steps=(2, 2))
def healthy_long_context(variant: str) -> Step:
    """A Llama (6 × 2,048) learns from one text of 16,384 tokens: bf16 by autocast, blocks compiled, flash attention."""
    width, heads, length, words = size(2048, 32), size(16, 2), size(16_384, 16), size(8192, 64)
    blocks = on_device(lambda: nn.ModuleList(Rooted(width, heads) for _ in range(size(6, 1))))
    ends = on_device(lambda: nn.ModuleList([nn.Embedding(words, width), nn.Linear(width, words, bias=False)]), seed=1)
    compiled(blocks)
    half = width // heads // 2
    angles = torch.arange(length, device=DEVICE)[:, None] * 5e5 ** -(torch.arange(half, device=DEVICE) / half)
    turns = torch.stack([angles.cos(), angles.sin()]).to(HALF)
    ids = tokens(words, 1, length)

    def loss() -> Tensor:
        x = ends[0](ids).to(HALF)
        for block in blocks:
            x = block(x, turns)
        return functional.cross_entropy(ends[1](x)[0, :-1], ids[0, 1:])

    return training(loss, adamw(nn.ModuleList([blocks, ends])))


@pair(
    "host-stall", "serving", "the last eight tokens are put into words, not all of the text", TWENTIETH,
    library="transformers", accept=("host-sync",), inference=True, with_stack=True, steps=(3, 3),
)  # fmt: skip
def stop_words_sought_in_all_text(variant: str) -> Step:
    """A Qwen2 (8 × 2,048, a CUDA graph) adds three tokens to 64 texts of 768; stop words are sought after each."""
    config = transformers.Qwen2Config(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(5632, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen2ForCausalLM(config), HALF).eval()
    texts, prompt = size(64, 2), size(768, 12)
    cache = static_cache(config, texts, prompt + 8, config.num_key_value_heads, config.hidden_size // size(16, 2))
    rewind(cache, prompt)
    last, start = tokens(config.vocab_size, texts, 1), tokens(config.vocab_size, texts, prompt)
    words = {index: f" word{index}" for index in range(config.vocab_size)}
    stops = ("\n\nUser:", "</answer>", "<|end|>")

    def token() -> Tensor:
        last.copy_(model(input_ids=last, past_key_values=cache).logits[:, -1:].argmax(-1))
        return last

    replayed = as_graph(token)

    def ended(ids: Tensor) -> list[bool]:
        rows = (ids if variant == BEFORE else ids[:, -8:]).tolist()
        told = ("".join([words[index] for index in row]) for row in rows)
        return [any(stop in text for stop in stops) for text in told]

    def step() -> Tensor:
        rewind(cache, prompt)
        ids = start
        last.copy_(ids[:, -1:])
        for _ in range(3):
            replayed()
            ids = torch.cat([ids, last], 1)
            if all(ended(ids)):
                break
        return ids

    return step
