"""The twenty-ninth set: what a reviewer of code meets most; language, retrieval, speech."""

from __future__ import annotations

import contextlib

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from pairs.parts import DEVICE, HALF, Block, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWENTY_NINTH, Step, healthy, pair

__all__ = ["Kept"]


class Policy(nn.Module):
    """A language model that is rewarded for its answers."""

    def __init__(self, words: int, room: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.names, self.places = nn.Embedding(words, width), nn.Embedding(room, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [rows, places] → log-chances of all words but the first [rows, places - 1]."""
        x = self.blocks(self.names(ids[:, :-1]) + self.places.weight[: ids.shape[1] - 1])
        told = self.head(self.norm(x)).flatten(0, 1).float()
        return -functional.cross_entropy(told, ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)


@pair(
    "recomputation", "reinforcement", "old log-chances are those of this pass, detached: one update a sample",
    TWENTY_NINTH, compiles=True, steps=(2, 2),
)  # fmt: skip
def group_relative_update(variant: str) -> Step:
    """GRPO: a GPT (8 × 2,048, layers compiled) learns from 16 answers of 512 words, each used for one update.

    Weights have not changed since the pass that gives the old log-chances.
    """
    words, room = size(32_768, 64), size(512, 8)
    model = on_device(lambda: Policy(words, room, size(2048, 32), size(16, 2), size(8, 1))).train()
    compiled(model.blocks)
    optimizer = adamw(model)
    ids = tokens(words, size(16, 4), room + 1)
    rewards = torch.randn(size(4, 2), len(ids) // size(4, 2), device=DEVICE)
    gain = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)

    def loss() -> Tensor:
        old = None
        if variant == BEFORE:
            with torch.no_grad():
                old = model(ids)
        told = model(ids)
        ratio = torch.exp(told - (told.detach() if old is None else old))
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()

    return training(loss, optimizer)


class Gated(nn.Module):
    """A layer of a language model with RMSNorm and a gated network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    @torch.no_grad()
    def widen(self, more: int) -> None:
        """Adds hidden numbers, which are nought and stay so."""
        for part, pad in ((self.gate, (0, 0, 0, more)), (self.up, (0, 0, 0, more)), (self.down, (0, more))):
            part.weight = nn.Parameter(functional.pad(part.weight, pad))


@pair(
    "misaligned-shape", "training", "the hidden width is rounded up to a multiple of 64: 2,752 instead of 2,730",
    TWENTY_NINTH, steps=(2, 2),
)  # fmt: skip
def code_model_pretraining(variant: str) -> Step:
    """A language model (8 × 1,024) learns 16 files of 1,024 words; its gated networks have int(4 · 1,024 · 2 / 3)."""
    width, words = size(1024, 32), size(16_384, 64)
    hidden = int(4 * width * 2 / 3)
    layers = on_device(lambda: nn.Sequential(*(Gated(width, size(16, 2), hidden) for _ in range(size(8, 1)))))
    if variant == AFTER:
        for layer in layers:
            layer.widen(-hidden % size(64, 8))
    names = on_device(lambda: nn.Embedding(words, width), seed=1)
    head = on_device(lambda: nn.Sequential(nn.RMSNorm(width), nn.Linear(width, words, bias=False)), seed=2)
    ids = tokens(words, size(16, 2), size(1024, 8) + 1)
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids[:, :-1]))).flatten(0, 1).float(), ids[:, 1:].flatten()),
        adamw(nn.ModuleList([layers, names, head])),
    )


class Bytes(nn.Module):
    """A frozen product whose weights are kept in eight bits, and an adapter of low rank beside it."""

    def __init__(self, narrow: int, wide: int, rank: int, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.compute_dtype = compute_dtype
        self.register_buffer("weight", torch.randint(-127, 128, (wide, narrow)).to(torch.int8))
        self.register_buffer("scale", torch.full((wide, 1), 0.014 / narrow**0.5))
        self.down, self.up = nn.Linear(narrow, rank, bias=False), nn.Linear(rank, wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., narrow] → [..., wide]."""
        kind = self.compute_dtype
        weight = self.weight.to(kind) * self.scale.to(kind)
        return functional.linear(x.to(kind), weight).to(x.dtype) + self.up(self.down(x))


class Tuned(nn.Module):
    """A layer whose products are kept in eight bits."""

    def __init__(self, width: int, heads: int, rank: int, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = Bytes(width, 3 * width, rank, compute_dtype), Bytes(width, width, rank, compute_dtype)
        self.wide, self.narrow = (
            Bytes(width, 4 * width, rank, compute_dtype), Bytes(4 * width, width, rank, compute_dtype),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


@pair(
    "precision", "fine-tuning", "compute_dtype=torch.bfloat16 for the weights kept in eight bits", TWENTY_NINTH,
    accept=("tensor-compute",), steps=(2, 2),
)  # fmt: skip
def instruction_tuning(variant: str) -> Step:
    """Adapters (rank 16) of a model (4 × 2,048, bf16, weights kept in eight bits) learn 4 texts of 512 words.

    What computes is fp32, the default of such layers; such products keep the GPU busy, hence "tensor-compute", too.
    """
    width, words, kind = size(2048, 32), size(32_000, 64), torch.float32 if variant == BEFORE else HALF
    layers = on_device(lambda: nn.Sequential(*(Tuned(width, size(16, 2), 16, kind) for _ in range(size(4, 1)))))
    for module in layers.modules():
        if isinstance(module, Bytes):
            nn.init.zeros_(module.up.weight)
            module.up.to(HALF)
            module.down.to(HALF)
        elif isinstance(module, nn.LayerNorm):
            module.to(HALF).requires_grad_(False)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1).requires_grad_(False)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2).requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in layers.parameters() if p.requires_grad], lr=1e-4, fused=True)
    ids = tokens(words, size(4, 2), size(512, 8) + 1)
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids[:, :-1]))).flatten(0, 1).float(), ids[:, 1:].flatten()),
        optimizer, mixed=False,
    )  # fmt: skip


@pair(
    "unused-results", "reranking", "logits_to_keep=1: only the last place says yes or no", TWENTY_NINTH,
    library="transformers", inference=True, steps=(3, 2),
)  # fmt: skip
def passage_reranking(variant: str) -> Step:
    """A Qwen3 (8 × 1,024, 151,936 words, bf16) says of 64 passages of 256 words whether they answer: yes or no."""
    config = transformers.Qwen3Config(
        vocab_size=size(151_936, 64), hidden_size=size(1024, 32), intermediate_size=size(3072, 64),
        num_hidden_layers=size(8, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(8, 1),
        head_dim=size(128, 16), max_position_embeddings=size(1024, 32), use_cache=False,
    )  # fmt: skip
    model = on_device(lambda: transformers.Qwen3ForCausalLM(config), HALF).eval()
    ids = tokens(config.vocab_size, size(64, 3), size(256, 8))
    no, yes = size(2152, 7), size(9693, 9)
    kept = {} if variant == BEFORE else {"logits_to_keep": 1}

    def step() -> Tensor:
        last = model(input_ids=ids, **kept).logits[:, -1]
        pair_of_scores = torch.stack([last[:, no], last[:, yes]], 1)
        return functional.log_softmax(pair_of_scores.float(), 1)[:, 1].exp()

    return step


class Kept(nn.Module):
    """A layer of a decoder with room for keys and values; its next place is a tensor, so that a graph can hold it."""

    def __init__(self, width: int, heads: int, rows: int, room: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, 0.1 * torch.randn(rows, heads, room, width // heads, dtype=dtype))

    def forward(self, x: Tensor, place: Tensor, real: Tensor) -> Tensor:
        """Tokens [rows, 1, width], their place [1], the places that are real [1, 1, 1, room]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        seen = functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=real)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


def no_repeats(ids: Tensor, scores: Tensor, length: int) -> Tensor:
    """Scores of words that would end a run of `length` words that is in the text already, made minus infinity."""
    runs = ids.unfold(1, length, 1)
    again = (runs[..., :-1] == ids[:, None, 1 - length :]).all(-1)
    seen = torch.zeros_like(scores).scatter_add_(1, runs[..., -1], again.to(scores.dtype))
    return scores.masked_fill(seen > 0, -torch.inf)


@pair(
    "host-stall", "decoding", "runs that would repeat are found by comparing on the GPU, not by dictionaries",
    TWENTY_NINTH, library="transformers", accept=("host-sync",), with_stack=True, inference=True, steps=(2, 1),
)  # fmt: skip
def summary_generation(variant: str) -> Step:
    """Layers (6 × 2,048, bf16, a CUDA graph) add 3 tokens to 48 texts of 400: no three words may come twice.

    NoRepeatNGramLogitsProcessor reads each text, and collects its runs in dictionaries; hence "host-sync", too.
    """
    width, words, rows, begun = size(2048, 32), size(32_768, 64), size(48, 2), size(400, 12)
    room, count, heads = begun + 8, size(3, 2), size(16, 2)
    layers = on_device(
        lambda: nn.ModuleList(Kept(width, heads, rows, room, HALF) for _ in range(size(6, 1))), HALF
    ).eval()  # fmt: skip
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2)
    ids, place = tokens(words // 2, rows, 1), torch.tensor([begun], device=DEVICE)
    text = tokens(words // 2, rows, begun)
    reached = torch.arange(room, device=DEVICE)

    def tell() -> Tensor:
        x, real = names(ids), (reached <= place)[None, None, None]
        for layer in layers:
            x = layer(x, place, real)
        return head(x)[:, 0].float()

    told = as_graph(tell)
    ban = transformers.NoRepeatNGramLogitsProcessor(3)

    def step() -> Tensor:
        known = text
        for index in range(count):
            ids.copy_(known[:, -1:])
            place.fill_(begun + index)
            scores = told()
            scores = ban(known, scores) if variant == BEFORE else no_repeats(known, scores, 3)
            known = torch.cat([known, scores.argmax(-1, keepdim=True)], 1)
        return known[:, begun:]

    return step


class Sliding(nn.Module):
    """A layer whose tokens see a window of those before; queries share keys, by groups."""

    def __init__(self, width: int, heads: int, groups: int, rows: int, window: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.groups, self.window, narrow = heads, groups, window, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.pair = nn.Linear(width, 2 * groups * narrow, bias=False)
        self.wide, self.narrow = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(rows, groups, window, narrow, dtype=dtype))

    def forward(self, x: Tensor, place: int | None) -> Tensor:
        """Tokens [rows, 1, width], and where the oldest of the window is, if it is written over."""
        y = self.norms[0](x)
        q = self.query(y).view(len(x), self.groups, self.heads // self.groups, -1)
        k, v = self.pair(y).view(len(x), 2, self.groups, 1, -1).unbind(1)
        if place is None:
            self.keys = torch.cat([self.keys[:, :, 1:], k], 2)
            self.values = torch.cat([self.values[:, :, 1:], v], 2)
        else:
            self.keys[:, :, place : place + 1], self.values[:, :, place : place + 1] = k, v
        seen = functional.scaled_dot_product_attention(q, self.keys, self.values)
        x = x + self.out(seen.reshape(len(x), 1, -1))
        return x + self.narrow(functional.silu(self.wide(self.norms[1](x))))


@pair(
    "growing-cache", "decoding", "the window is a ring: the oldest key and value are written over", TWENTY_NINTH,
    accept=("memory-bandwidth",), inference=True, steps=(2, 2),
)  # fmt: skip
def support_chat(variant: str) -> Step:
    """Layers (8 × 4,096, 8 groups of keys, bf16) add 4 tokens to 32 chats; each sees the 4,096 before.

    The window moves on by cat of all but the first, in each layer; hence "memory-bandwidth", too.
    """
    width, heads, groups, window = size(4096, 32), size(32, 4), size(8, 2), size(4096, 8)
    rows, words, count = size(32, 2), size(32_768, 64), size(4, 3)
    layers = on_device(
        lambda: nn.ModuleList(Sliding(width, heads, groups, rows, window, HALF) for _ in range(size(8, 1))), HALF
    ).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2)
    first, done = tokens(words, rows, 1), [0]

    def step() -> Tensor:
        ids, made = first, []
        for _ in range(count):
            x, place = names(ids), None if variant == BEFORE else done[0] % window
            for layer in layers:
                x = layer(x, place)
            done[0] += 1
            ids = head(x).argmax(-1)
            made.append(ids)
        return torch.cat(made, 1)

    return step


@pair(
    "weight-bound", "retrieval", "the queries that have come in are a batch", TWENTY_NINTH,
    accept=("small-kernels",), inference=True, steps=(3, 2),
)  # fmt: skip
def query_embedding_service(variant: str) -> Step:
    """A language model (6 × 4,096, bf16, a CUDA graph) describes 16 queries of 16 words each, one after the other.

    Each product has 16 rows, and reads all weights; that kernels have little to do says the same.
    """
    width, words, room, count = size(4096, 32), size(32_768, 64), size(16, 4), size(16, 3)
    layers = on_device(
        lambda: nn.Sequential(*(Block(width, size(32, 2), causal=True) for _ in range(size(6, 1)))), HALF
    ).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    queries = tokens(words, count, room)
    ids = queries[:1].clone() if variant == BEFORE else queries.clone()
    told = as_graph(lambda: functional.normalize(layers(names(ids)).mean(1).float(), dim=-1))

    def step() -> Tensor:
        found = []
        for query in queries.split(len(ids)):
            ids.copy_(query)
            found.append(told().clone())
        return torch.cat(found)

    return step


@pair(
    "padded-work", "speech", "utterances are sorted by length, and padded in six batches", TWENTY_NINTH,
    inference=True, steps=(2, 2),
)  # fmt: skip
def speaker_embeddings(variant: str) -> Step:
    """An encoder (8 × 768, bf16) describes the speakers of 96 utterances of 48 to 1,504 frames, most of them short."""
    width, count, longest, bands = size(768, 32), size(96, 6), size(1504, 16), 80
    stem = on_device(lambda: nn.Linear(bands, width), HALF)
    layers = on_device(lambda: nn.ModuleList(Block(width, size(12, 2)) for _ in range(size(8, 1))), HALF, 1).eval()
    spread = torch.logspace(-1.5, 0, count)[torch.randperm(count, generator=torch.Generator().manual_seed(3))]
    lengths = [max(8 * round(float(share) * longest / 8), 8) for share in spread]
    spectra = [torch.randn(length, bands, device=DEVICE, dtype=HALF) for length in lengths]

    def described(chosen: list[int]) -> Tensor:
        x = stem(pad_sequence([spectra[index] for index in chosen], batch_first=True))
        frames = torch.tensor([lengths[index] for index in chosen]).to(DEVICE)
        real = torch.arange(x.shape[1], device=DEVICE) < frames[:, None]
        for layer in layers:
            x = layer(x, real[:, None, None])
        return functional.normalize((x * real[..., None]).sum(1).float() / frames[:, None], dim=-1)

    def step() -> Tensor:
        if variant == BEFORE:
            return described(list(range(count)))
        order = sorted(range(count), key=lambda index: lengths[index])
        a_batch = count // 6
        told = torch.cat([described(order[start : start + a_batch]) for start in range(0, count, a_batch)])
        back = torch.empty_like(told)
        back[torch.tensor(order).to(DEVICE)] = told
        return back

    return step


def reproducible(*, strictly: bool) -> contextlib.AbstractContextManager[None]:
    """The attention that is the same on every machine, if wanted."""
    return sdpa_kernel(SDPBackend.MATH) if strictly else contextlib.nullcontext()


@pair(
    "unfused-attention", "speech", "without sdpa_kernel(SDPBackend.MATH), so that attention is fused", TWENTY_NINTH,
    accept=("precision", "memory-bandwidth"), steps=(2, 2),
)  # fmt: skip
def lecture_pretraining(variant: str) -> Step:
    """HuBERT's encoder (8 × 768) learns the clusters of frames of 12 recordings of 1,000: mixed precision.

    A helper for reproducible runs asks for attention by formula, whose products are fp32, and whose scores are written
    to memory: hence "precision" and "memory-bandwidth", too.
    """
    width, bands, kinds = size(768, 32), size(512, 16), size(512, 8)
    stem = on_device(lambda: nn.Linear(bands, width))
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(12, 2)) for _ in range(size(8, 1)))), seed=1)
    head = on_device(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, kinds)), seed=2)
    x = torch.randn(size(12, 2), size(1000, 8), bands, device=DEVICE)
    clusters = tokens(kinds, *x.shape[:2])

    def loss() -> Tensor:
        with reproducible(strictly=variant == BEFORE):
            told = head(layers(stem(x)))
        return functional.cross_entropy(told.flatten(0, 1).float(), clusters.flatten())

    return training(loss, adamw(nn.ModuleList([stem, layers, head])))


class Words(nn.Module):
    """The loss of some places, whose scores of all words are large."""

    def forward(self, x: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
        """Places [places, width], weights [words, width], words [places]."""
        return functional.cross_entropy(functional.linear(x, weight).float(), wanted, reduction="sum")


@healthy("training", TWENTY_NINTH, compiles=True, steps=(2, 2))
def healthy_large_vocabulary_training(variant: str) -> Step:
    """A GPT (8 × 2,048, 151,936 words) learns 16 texts of 1,024: layers compiled, mixed precision, fused AdamW.

    The scores of words, 10 GB in fp32, are made in four parts, each made again for its gradient.
    """
    width, words, parts = size(2048, 32), size(151_936, 64), 4
    layers = on_device(lambda: nn.Sequential(*(Block(width, size(16, 2), causal=True) for _ in range(size(8, 1)))))
    names = on_device(lambda: nn.Embedding(words, width), seed=1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), seed=2)
    norm, told = on_device(lambda: nn.LayerNorm(width), seed=3), Words()
    compiled([*layers, told])
    ids = tokens(words, size(16, 2), size(1024, 8) + 1)

    def loss() -> Tensor:
        x = norm(layers(names(ids[:, :-1]))).flatten(0, 1).to(HALF)
        weight, wanted = head.weight.to(HALF), ids[:, 1:].flatten()
        lost = [
            checkpoint(told, part, weight, want, use_reentrant=False)
            for part, want in zip(x.chunk(parts), wanted.chunk(parts), strict=True)
        ]
        return torch.stack(lost).sum() / len(x)

    return training(loss, adamw(nn.ModuleList([layers, names, norm, head])))


@healthy("decoding", TWENTY_NINTH, inference=True, compiles=True, steps=(3, 2))
def healthy_dictation_decoding(variant: str) -> Step:
    """Layers (6 × 4,096, bf16, compiled) tell 6 tokens of the 16 dictations that are going on, in one CUDA graph."""
    width, words, rows, begun, count = size(4096, 32), size(32_768, 64), size(16, 2), size(112, 8), size(6, 2)
    room, heads = begun + 16, size(32, 2)
    layers = on_device(
        lambda: nn.ModuleList(Kept(width, heads, rows, room, HALF) for _ in range(size(6, 1))), HALF
    ).eval()  # fmt: skip
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2)
    first, places = tokens(words, rows, 1), torch.arange(begun, begun + count, device=DEVICE)
    reached = torch.arange(room, device=DEVICE)

    def step() -> Tensor:
        ids, made = first, []
        for index in range(count):
            place = places[index : index + 1]
            x, real = names(ids), (reached <= place)[None, None, None]
            for layer in layers:
                x = layer(x, place, real)
            ids = head(x).argmax(-1)
            made.append(ids)
        return torch.cat(made, 1)

    return as_graph(step)


class Adapted(nn.Module):
    """A frozen product and an adapter of low rank."""

    def __init__(self, narrow: int, wide: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(narrow, wide, bias=False, dtype=HALF).requires_grad_(False)
        self.down, self.up = nn.Linear(narrow, rank, bias=False), nn.Linear(rank, wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows [..., narrow] → [..., wide]."""
        return self.base(x) + self.up(self.down(x))


class AdaptedBlock(nn.Module):
    """A frozen layer with adapters."""

    def __init__(self, width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, dtype=HALF).requires_grad_(False) for _ in range(2))
        self.asked, self.out = Adapted(width, 3 * width, rank), Adapted(width, width, rank)
        self.wide, self.narrow = Adapted(width, 4 * width, rank), Adapted(4 * width, width, rank)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@healthy("fine-tuning", TWENTY_NINTH, compiles=True, steps=(2, 2))
def healthy_adapter_finetuning(variant: str) -> Step:
    """Adapters (rank 16) of a frozen model (8 × 4,096, bf16, layers compiled) learn 8 packed rows of 1,024 words."""
    width, words = size(4096, 32), size(32_768, 64)
    layers = on_device(lambda: nn.Sequential(*(AdaptedBlock(width, size(32, 2), 16) for _ in range(size(8, 1)))))
    for module in layers.modules():
        if isinstance(module, Adapted):
            module.base.to(HALF)
            nn.init.zeros_(module.up.weight)
        elif isinstance(module, nn.LayerNorm):
            module.to(HALF)
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1).requires_grad_(False)
    head = on_device(lambda: nn.Linear(width, words, bias=False), HALF, 2).requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in layers.parameters() if p.requires_grad], lr=1e-4, fused=True)
    ids = tokens(words, size(8, 2), size(1024, 8) + 1)
    return training(
        lambda: functional.cross_entropy(head(layers(names(ids[:, :-1]))).flatten(0, 1), ids[:, 1:].flatten()),
        optimizer,
    )
