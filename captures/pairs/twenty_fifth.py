"""The twenty-fifth set: ordinary habits once more; decoding, experts, fine-tuning, speech, games, series."""

from __future__ import annotations

import itertools

import timm.models.vision_transformer
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.parts import (
    DEVICE,
    HALF,
    adamw,
    as_graph,
    compiled,
    keep_apart,
    mixed,
    on_device,
    size,
    tokens,
    training,
    write_kept,
)
from pairs.registry import AFTER, BEFORE, TWENTY_FIFTH, Step, healthy, pair

__all__: list[str] = []


class Cached(nn.Module):
    """A layer that keeps keys and values of a number of places, and writes the last of them."""

    def __init__(self, width: int, heads: int, rows: int, room: int, kept: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.wide, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.kept = torch.randn(2, rows, heads, room, width // heads, device=DEVICE).to(kept)

    def forward(self, x: Tensor) -> Tensor:
        """The next token [rows, 1, width]."""
        parts = self.joined(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        write_kept(self.kept, -1, k[:, :, 0], v[:, :, 0])
        seen = functional.scaled_dot_product_attention(q.to(self.kept[0].dtype), self.kept[0], self.kept[1])
        x = x + self.out(seen.to(x.dtype).transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@pair(
    "precision", "decoding", "the cache is made in the model's type", TWENTY_FIFTH,
    accept=("memory-bandwidth", "unfused-attention"), inference=True, steps=(3, 3),
)  # fmt: skip
def cache_kept_in_fp32(variant: str) -> Step:
    """Layers (8 × 2,048, bf16, a CUDA graph) tell 4 tokens of 16 texts of 4,096; torch.zeros made the cache in fp32.

    That each token's mean chance is read and noted is seen easily, and costs little.
    """
    width, heads, rows, room, words = size(2048, 32), size(16, 2), size(16, 2), size(4096, 16), size(32_768, 64)
    kept = torch.float32 if variant == BEFORE else HALF
    layers = on_device(
        lambda: nn.Sequential(*(Cached(width, heads, rows, room, kept) for _ in range(size(8, 1)))), HALF
    ).eval()
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    ids = tokens(words, rows, 1)

    def told() -> Tensor:
        chance, best = (layers(names(ids)) @ names.weight.T).float().softmax(-1).max(-1)
        ids.copy_(best)
        return chance.mean()

    token = as_graph(told)

    def step() -> list[float]:
        return [token().item() for _ in range(4)]

    return step


@pair(
    "memory-bandwidth", "mixture-of-experts", "experts_implementation='grouped_mm' instead of 'batched_mm'",
    TWENTY_FIFTH, library="transformers", accept=("scattered-access", "weight-bound"), inference=True, steps=(2, 2),
)  # fmt: skip
def weights_gathered_for_each_token(variant: str) -> Step:
    """A Qwen3-MoE (4 layers, 128 experts, bf16) reads 8 queries of 16 tokens; each token copies its experts' weights.

    `batched_mm` is advised for few tokens. With 128 tokens of eight experts each, it copies a thousand experts a layer.
    """
    config = transformers.Qwen3MoeConfig(
        vocab_size=size(32_768, 64), hidden_size=size(2048, 32), intermediate_size=size(6144, 64), use_cache=False,
        moe_intermediate_size=size(768, 16), num_hidden_layers=size(4, 1), num_attention_heads=size(32, 2),
        num_key_value_heads=size(4, 1), head_dim=size(128, 16), num_experts=size(128, 4),
        num_experts_per_tok=size(8, 2),
    )  # fmt: skip
    config._experts_implementation = "batched_mm" if variant == BEFORE else "grouped_mm"
    model = on_device(lambda: transformers.Qwen3MoeModel(config), HALF).eval()
    ids = tokens(config.vocab_size, size(8, 2), size(16, 4))
    return lambda: model(input_ids=ids).last_hidden_state[:, -1]


class Linearly(nn.Module):
    """Linear attention to what came before, and a network, each after a norm."""

    def __init__(self, width: int, heads: int, *, states: bool) -> None:
        super().__init__()
        self.heads, self.states = heads, states
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Places [rows, places, width]."""
        parts = self.joined(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        if self.states:
            states = (k[..., None] * v[..., None, :]).cumsum(2)
            seen = torch.einsum("bhtd,bhtde->bhte", q, states)
        else:
            seen = (q @ k.transpose(2, 3)).tril() @ v
        seen = seen / (q * k.cumsum(2)).sum(-1, keepdim=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x)), approximate="tanh"))


@pair(
    "memory-bandwidth", "prefill", "products of queries and keys, their lower triangle, and values", TWENTY_FIFTH,
    accept=("unfused-chain", "unfused-attention"), inference=True, steps=(2, 2),
)  # fmt: skip
def states_of_all_places_summed(variant: str) -> Step:
    """A linear transformer (8 × 1,024, bf16) reads 4 texts of 2,048; cumsum makes the state (64 × 64) of each place."""
    width, heads = size(1024, 32), size(16, 2)
    states = variant == BEFORE
    layers = on_device(
        lambda: nn.Sequential(*(Linearly(width, heads, states=states) for _ in range(size(8, 2)))), HALF
    ).eval()
    names = on_device(lambda: nn.Embedding(size(32_768, 64), width), HALF, 1)
    ids = tokens(names.num_embeddings, size(4, 2), size(2048, 8))
    return lambda: layers(names(ids))[:, -1] @ names.weight.T


@pair(
    "recomputation", "embeddings", "the loss of the whole batch, without a cache of gradients", TWENTY_FIFTH,
    library="transformers", steps=(2, 2),
)  # fmt: skip
def gradients_cached_without_need(variant: str) -> Step:
    """A BERT-base learns from 192 pairs of texts of 128 tokens as GradCache does, in three parts, although all fits."""
    config = transformers.BertConfig(
        vocab_size=size(30_528, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1),
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64),
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.BertModel(config, add_pooling_layer=False)).train()
    optimizer, texts = adamw(model), size(384, 6)
    ids, part = tokens(config.vocab_size, texts, size(128, 8)), texts // 3
    answers = torch.arange(texts // 2, device=DEVICE)

    def encoded(some: Tensor) -> Tensor:
        with mixed():
            return functional.normalize(model(input_ids=some).last_hidden_state.mean(1).float(), dim=-1)

    def contrasted(read: Tensor) -> Tensor:
        left, right = read.chunk(2)
        return functional.cross_entropy(left @ right.T / 0.05, answers)

    def step() -> None:
        if variant == BEFORE:
            with torch.no_grad():
                read = torch.cat([encoded(some) for some in ids.split(part)])
            contrasted(read.requires_grad_()).backward()
            for some, grad in zip(ids.split(part), read.grad.split(part), strict=True):
                encoded(some).backward(grad)
        else:
            contrasted(encoded(ids)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair(
    "unfused-optimizer", "fine-tuning", "one optimizer of all weights, after the backward pass", TWENTY_FIFTH,
    library="transformers", accept=("launch-overhead", "small-kernels", "host-stall"), with_stack=True, steps=(2, 2),
)  # fmt: skip
def optimizer_stepped_in_hooks(variant: str) -> Step:
    """A RoBERTa-base learns from 32 texts of 128 tokens; each weight has its own AdamW, stepped by a hook as it is due.

    A tutorial saves memory thus; there is enough.
    """
    config = transformers.RobertaConfig(
        vocab_size=size(50_272, 64), hidden_size=size(768, 32), num_hidden_layers=size(12, 1), num_labels=4,
        num_attention_heads=size(12, 2), intermediate_size=size(3072, 64), max_position_embeddings=514,
    )  # fmt: skip
    model = on_device(lambda: transformers.RobertaForSequenceClassification(config)).train()
    rows, length = size(32, 2), size(128, 8)
    ids, labels = tokens(config.vocab_size - 2, rows, length) + 2, tokens(4, rows)
    if variant == AFTER:
        return training(lambda: model(input_ids=ids, labels=labels).loss, adamw(model))
    own = {weight: torch.optim.AdamW([weight], lr=1e-4, fused=True) for weight in model.parameters()}

    def due(weight: Tensor) -> None:
        own[weight].step()
        own[weight].zero_grad()

    for weight in own:
        weight.register_post_accumulate_grad_hook(due)

    def step() -> None:
        with mixed():
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()

    return step


@pair(
    "host-sync", "speech", "torch.repeat_interleave of all phonemes", TWENTY_FIFTH,
    accept=("launch-overhead", "small-kernels", "host-stall"), with_stack=True, steps=(2, 1),
)  # fmt: skip
def phonemes_expanded_one_by_one(variant: str) -> Step:
    """A FastSpeech 2 (4 + 4 layers of 384) learns 12 texts of 80 phonemes; each lasts int(duration) of 480 frames."""
    width, texts, phonemes, frames, bands = size(384, 16), size(12, 2), size(80, 4), size(480, 12), size(80, 8)

    def layers() -> nn.Module:
        parts = [
            nn.TransformerEncoderLayer(width, 2, size(1536, 32), 0.0, batch_first=True, norm_first=True)
            for _ in range(size(4, 1))
        ]
        return nn.Sequential(*parts)

    model = on_device(lambda: nn.ModuleList([
        nn.Embedding(128, width), layers(), nn.Linear(width, 1), layers(), nn.Linear(width, bands)
    ])).train()  # fmt: skip
    ids, wanted = tokens(128, texts, phonemes), torch.randn(texts, frames, bands, device=DEVICE)
    extra = torch.randint(0, phonemes, (texts, frames - 2 * phonemes))
    lasts = torch.stack([2 + torch.bincount(some, minlength=phonemes) for some in extra]).to(DEVICE)

    def expanded(x: Tensor) -> Tensor:
        if variant == AFTER:
            x = x.flatten(0, 1).repeat_interleave(lasts.flatten(), 0, output_size=texts * frames)
            return x.view(texts, frames, width)
        made = []
        for text, times in zip(x, lasts, strict=True):
            made.append(torch.cat([one.expand(int(time), -1) for one, time in zip(text, times, strict=True)]))
        return torch.stack(made)

    def loss() -> Tensor:
        names, reader, timer, teller, out = model
        x = reader(names(ids))
        told = out(teller(expanded(x)))
        timed = functional.mse_loss(timer(x)[..., 0].float(), lasts.float().log())
        return functional.l1_loss(told.float(), wanted) + timed

    return training(loss, adamw(model))


@pair(
    "recomputation", "games", "the frames that were drawn are scaled, not all", TWENTY_FIFTH,
    accept=("unused-results", "memory-bandwidth"), steps=(2, 2),
)  # fmt: skip
def frames_all_scaled_for_each_minibatch(variant: str) -> Step:
    """PPO: 4 minibatches of 2,048 of 65,536 frames of 84²; each time, all of these are made floats and divided by 255.

    That each minibatch reads its divergence, to stop early, is seen easily, and costs little.
    """
    count, batch, actions = size(65_536, 16), size(2048, 4), 6
    body = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions + 1),
    )  # fmt: skip
    model = body.to(DEVICE).train()
    optimizer = adamw(model)
    frames = torch.randint(0, 256, (count, 4, 84, 84), device=DEVICE, dtype=torch.uint8)
    chosen, before = tokens(actions, count), torch.full((count,), -1.8, device=DEVICE)
    gains, values = torch.randn(count, device=DEVICE), torch.randn(count, device=DEVICE)

    def step() -> float:
        far = 0.0
        for drawn in torch.randperm(count, device=DEVICE).split(batch)[:4]:
            seen = (frames.float() / 255)[drawn] if variant == BEFORE else frames[drawn].float() / 255
            with mixed():
                told = model(seen)
            chances = told[:, :actions].float().log_softmax(-1)
            ratio = chances.gather(1, chosen[drawn, None])[:, 0] - before[drawn]
            weight = ratio.exp()
            gain = torch.min(weight * gains[drawn], weight.clamp(0.8, 1.2) * gains[drawn]).mean()
            off = (told[:, actions].float() - values[drawn]).square().mean()
            spread = -(chances.exp() * chances).sum(-1).mean()
            (0.5 * off - gain - 0.01 * spread).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            far = (weight.detach() - 1 - ratio.detach()).mean().item()
        return far

    return step


class OverTime(nn.Module):
    """A network over the days of each series, and one over the series of each day."""

    def __init__(self, days: int, series: int, wide: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(days)
        self.days = nn.Sequential(nn.Linear(days, wide * days), nn.GELU(), nn.Linear(wide * days, days))
        self.mixed = nn.Linear(series, series)

    def forward(self, x: Tensor) -> Tensor:
        """Series [rows, series, days]."""
        x = x + self.days(self.norm(x))
        return x + functional.linear(x.transpose(1, 2), self.mixed.weight, self.mixed.bias).transpose(1, 2)


@pair(
    "misaligned-shape", "time series", "368 days, three of them empty, instead of 365", TWENTY_FIFTH,
    accept=("tensor-compute",), steps=(3, 3),
)  # fmt: skip
def a_year_of_365_days(variant: str) -> Step:
    """A TSMixer (4 layers) learns the next 96 days of 256 × 320 series from 365; the networks go over the days.

    That each step asks whether its loss is a number is seen easily, and costs little.
    """
    days = size(365, 11) if variant == BEFORE else size(368, 16)
    rows, series, ahead = size(256, 2), size(320, 8), size(96, 4)
    model = on_device(
        lambda: nn.Sequential(*(OverTime(days, series, 4) for _ in range(size(4, 1))), nn.Linear(days, ahead))
    ).train()
    optimizer = adamw(model)
    x = functional.pad(torch.randn(rows, series, size(365, 11), device=DEVICE), (days - size(365, 11), 0))
    wanted = torch.randn(rows, series, ahead, device=DEVICE)

    def step() -> None:
        with mixed():
            loss = functional.mse_loss(model(x), wanted)
        if torch.isnan(loss):
            raise ValueError("the loss is not a number")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@healthy("prefill", TWENTY_FIFTH, library="transformers", compiles=True, inference=True, steps=(2, 2))
def healthy_olmo2_prefill(variant: str) -> Step:
    """An OLMo 2 (4 × 4,096, bf16, layers compiled) reads 8 prompts of 2,048; words are told at the last place alone."""
    config = transformers.Olmo2Config(
        vocab_size=size(65_536, 64), hidden_size=size(4096, 32), intermediate_size=size(11_008, 64), use_cache=False,
        num_hidden_layers=size(4, 1), num_attention_heads=size(32, 2), num_key_value_heads=size(32, 2),
    )  # fmt: skip
    model = on_device(lambda: transformers.Olmo2ForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(2048, 8))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


@pair(
    "growing-cache", "decoding", "keys and values have a tensor each, which compiled code writes in place",
    TWENTY_FIFTH, compiles=True, inference=True, steps=(3, 3),
)  # fmt: skip
def dialogues_continued_from_a_copy(variant: str) -> Step:
    """Layers (10 × 4,096, bf16, compiled, a CUDA graph) tell the next token of 512 dialogues of 64, from a cache."""
    width, heads, rows, room, words = size(4096, 32), size(32, 2), size(512, 2), size(64, 8), size(32_768, 64)
    layers = on_device(
        lambda: nn.Sequential(*(Cached(width, heads, rows, room, HALF) for _ in range(size(10, 1)))), HALF
    ).eval()
    if variant == AFTER:
        keep_apart(layers)
    compiled(layers)
    names = on_device(lambda: nn.Embedding(words, width), HALF, 1)
    ids = tokens(words, rows, 1)
    return as_graph(lambda: (layers(names(ids)) @ names.weight.T).argmax(-1))


class Dynamics(nn.Module):
    """Several networks, each of which tells what comes next; their products are batched."""

    def __init__(self, members: int, states: int, acts: int, width: int) -> None:
        super().__init__()
        sizes = [states + acts, width, width, width, states]
        self.acts = nn.Parameter(torch.randn(members, states, acts) / states**0.5)
        self.weights = nn.ParameterList(torch.randn(members, a, b) / a**0.5 for a, b in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(members, 1, b) for b in sizes[1:])

    def forward(self, state: Tensor) -> Tensor:
        """States [members, rows, states]."""
        x = torch.cat([state, torch.tanh(torch.bmm(state, self.acts))], -1)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.bmm(x, weight) + bias
            if index < len(self.weights) - 1:
                x = functional.silu(x)
        return torch.tanh(state + x)


@healthy("games", TWENTY_FIFTH, compiles=True, inference=True, steps=(3, 3))
def healthy_dreamed_rollouts(variant: str) -> Step:
    """Five networks (3 × 2,048, bf16) dream 10 steps of 5 × 8,192 games: batched products, compiled, a CUDA graph."""
    members, states, acts = size(5, 2), size(64, 8), size(16, 8)
    model = on_device(lambda: Dynamics(members, states, acts, size(2048, 16)), HALF).eval()
    compiled([model])
    begin = torch.randn(members, size(8192, 4), states, device=DEVICE, dtype=HALF)

    def dreamed() -> Tensor:
        state, total = begin, torch.zeros_like(begin[..., 0])
        for _ in range(size(10, 2)):
            state = model(state)
            total = total + state[..., 0]
        return total

    return as_graph(dreamed)


class Forecaster(nn.Module):
    """A transformer over patches of a series."""

    def __init__(self, width: int, heads: int, layers: int, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.names = nn.Linear(patch, width)
        make = timm.models.vision_transformer.Block
        self.blocks = nn.Sequential(*(make(width, heads, qkv_bias=True) for _ in range(layers)))
        self.out = nn.Linear(width, patch)

    def forward(self, series: Tensor) -> Tensor:
        """Series [rows, times] → what comes after each patch, [rows, patches, patch]."""
        return self.out(self.blocks(self.names(series.unflatten(1, (-1, self.patch)))))


@healthy("time series", TWENTY_FIFTH, library="timm", compiles=True, steps=(2, 2))
def healthy_forecaster_of_patches(variant: str) -> Step:
    """A transformer (8 × 1,280) learns from 256 series of 64 patches: mixed precision, blocks compiled, fused AdamW."""
    patch, width = size(32, 4), size(1280, 32)
    model = on_device(lambda: Forecaster(width, size(20, 2), size(8, 1), patch)).train()
    compiled(model.blocks)
    series = torch.randn(size(256, 2), size(64, 4) * patch, device=DEVICE)
    wanted = torch.randn(len(series), size(64, 4), patch, device=DEVICE)
    return training(lambda: functional.mse_loss(model(series).float(), wanted), adamw(model))
