"""The twelfth set: common habits, and habits from reports; split at random from the thirteenth, and read first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from pairs.parts import CUDA, DEVICE, HALF, adamw, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, TWELFTH, Step, healthy, pair


class Radiance(nn.Module):
    """The network of NeRF without directions: waves of the position, eight layers, colour and density."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(63, width), nn.ModuleList(nn.Linear(width, width) for _ in range(7))
        self.out = nn.Linear(width, 4)

    def forward(self, points: Tensor) -> Tensor:
        """Points [rays, samples, 3] → colour and density [rays, samples, 4]."""
        turned = (points[..., None] * 2.0 ** torch.arange(10, device=points.device)).flatten(-2)
        x = self.first(torch.cat([points, turned.sin(), turned.cos()], -1)).relu()
        for layer in self.rest:
            x = layer(x).relu()
        return self.out(x)


@pair(
    "host-stall", "scenes", "torch.randint on the GPU instead of np.random.choice(replace=False)", TWELFTH,
    accept=("blocking-copy",), steps=(3, 3),
)  # fmt: skip
def rays_chosen_by_numpy(variant: str) -> Step:
    """A NeRF (8 × 256) learns from 4,096 rays of 96 points; NumPy chooses them among the 640,000 pixels of a view."""
    pixels, rays, points = size(640_000, 200), size(4096, 4), size(96, 4)
    model = on_device(lambda: Radiance(size(256, 16))).train()
    starts, ways, colours = (torch.rand(pixels, 3, device=DEVICE) for _ in range(3))
    depth = torch.linspace(2, 6, points, device=DEVICE)

    def loss() -> Tensor:
        if variant == BEFORE:
            chosen = torch.from_numpy(np.random.choice(pixels, rays, replace=False)).to(DEVICE)
        else:
            chosen = torch.randint(0, pixels, (rays,), device=DEVICE)
        found = model(starts[chosen, None] + ways[chosen, None] * depth[:, None]).float()
        opaque = 1 - torch.exp(-found[..., 3].relu() * (4 / points))
        clear = torch.cumprod(1 - opaque + 1e-10, -1)
        weights = opaque * functional.pad(clear[:, :-1], (1, 0), value=1.0)
        seen = (weights[..., None] * found[..., :3].sigmoid()).sum(1)
        return functional.mse_loss(seen, colours[chosen])

    return training(loss, adamw(model))


@pair(
    "recomputation", "speech", "without gradient_checkpointing_enable(), for which there is memory", TWELFTH,
    library="transformers", steps=(3, 3),
)  # fmt: skip
def conformer_checkpointed(variant: str) -> Step:
    """A Conformer (8 × 768) learns to tell 32 recordings of ten seconds apart; its layers are checkpointed by habit."""
    config = transformers.Wav2Vec2ConformerConfig(
        hidden_size=size(768, 32), num_hidden_layers=size(8, 1), num_attention_heads=size(12, 2),
        intermediate_size=size(3072, 64), position_embeddings_type="rotary", apply_spec_augment=False, layerdrop=0.0,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
        conformer_conv_dropout=0.0, num_labels=12, classifier_proj_size=size(256, 16),
    )  # fmt: skip
    model = on_device(lambda: transformers.Wav2Vec2ConformerForSequenceClassification(config)).train()
    model.freeze_feature_encoder()
    if variant == BEFORE:
        model.gradient_checkpointing_enable()
    x = torch.randn(size(32, 1), size(160_000, 4000), device=DEVICE)
    labels = tokens(12, len(x))
    return training(lambda: model(input_values=x, labels=labels).loss, adamw(model))


class Columns(nn.Module):
    """An FT-Transformer (arXiv:2106.11959): each column a token, attention written out or fused."""

    def __init__(self, columns: int, width: int, heads: int, layers: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.weight, self.bias = (nn.Parameter(0.1 * torch.randn(columns, width)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.joined = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(layers)
        )
        self.score = nn.Linear(width, 1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What each column sees [rows, heads, columns, head]."""
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return scores.softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        """Rows [rows, columns] → scores [rows]."""
        x = x[..., None] * self.weight + self.bias
        for index, (joined, out, feed) in enumerate(zip(self.joined, self.outs, self.feeds, strict=True)):
            q, k, v = joined(self.norms[2 * index](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            x = x + out(self.attend(q, k, v).transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * index + 1](x))
        return self.score(x.mean(1)).squeeze(-1)


@pair(
    "unfused-attention", "tables", "scaled_dot_product_attention instead of product, softmax and product", TWELFTH,
    steps=(3, 3),
)  # fmt: skip
def columns_attend_by_hand(variant: str) -> Step:
    """An FT-Transformer (4 × 256, 8 heads) learns from 2,048 rows of 128 columns; its attention is written out."""
    columns, fused = size(128, 6), variant == AFTER
    model = on_device(lambda: Columns(columns, size(256, 16), size(8, 2), size(4, 1), fused=fused)).train()
    rows, wanted = torch.randn(size(2048, 3), columns, device=DEVICE), torch.rand(size(2048, 3), device=DEVICE)
    return training(lambda: functional.mse_loss(model(rows).float(), wanted), adamw(model))


class Cached(nn.Module):
    """A decoder layer that joins its keys and values to those of before, or writes them into memory reserved."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_feed = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joined, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, past: list[Tensor], end: int | None) -> tuple[Tensor, list[Tensor]]:
        """One token each [rows, 1, width], and the keys and values of all."""
        q, *new = self.joined(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if end is None:
            past = seen = [torch.cat([old, part], 2) for old, part in zip(past, new, strict=True)]
        else:
            for room, part in zip(past, new, strict=True):
                room[:, :, end - 1 : end] = part
            seen = [room[:, :, :end] for room in past]
        x = x + self.out(functional.scaled_dot_product_attention(q, *seen).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_feed(x)), past


@pair(
    "growing-cache", "speech synthesis", "keys and values written into memory reserved beforehand, not torch.cat",
    TWELFTH, inference=True, steps=(3, 3),
)  # fmt: skip
def speech_cache_by_cat(variant: str) -> Step:
    """A speech decoder (14 × 1,024, 16 heads) adds four sounds to 48 sentences of 1,024; torch.cat keeps its cache."""
    width, heads, rows, before = size(1024, 32), size(16, 2), size(48, 2), size(1024, 6)
    layers = on_device(lambda: nn.ModuleList(Cached(width, heads) for _ in range(size(14, 2))), HALF).eval()
    table = on_device(lambda: nn.Embedding(size(6564, 16), width), HALF, 1).eval()
    shape = (rows, heads, before + (4 if variant == AFTER else 0), width // heads)
    begin = [[torch.randn(shape, device=DEVICE, dtype=HALF) for _ in range(2)] for _ in layers]
    first = tokens(table.num_embeddings, rows, 1)

    def step() -> Tensor:
        pasts, ids = list(begin), first
        for turn in range(4):
            x = table(ids)
            for place, layer in enumerate(layers):
                x, pasts[place] = layer(x, pasts[place], before + turn + 1 if variant == AFTER else None)
            ids = functional.linear(x, table.weight).argmax(-1)
        return ids

    return step


class Moving(nn.Module):
    """Each next state of what moves, by torch's own blocks."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        how: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, heads, 4 * width, **how) for _ in range(layers))
        self.into, self.out = nn.Linear(24, width), nn.Linear(width, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Each next state [rows, moments, 24]."""
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def no_nan(module: nn.Module, _given: object, result: object) -> None:
    """A hook that looks for NaNs in what a module gives."""
    assert not isinstance(result, Tensor) or not torch.isnan(result).any(), f"NaN after {module}"


@pair(
    "host-sync", "trajectories", "without the hooks: the loss alone is looked at, now and then", TWELFTH, steps=(3, 3),
)  # fmt: skip
def each_module_asserts_no_nan(variant: str) -> Step:
    """A model of trajectories (12 × 384) learns from 64 × 256 states; hooks assert that no module's output is NaN."""
    model = on_device(lambda: Moving(size(384, 32), size(6, 2), size(12, 2))).train()
    if variant == BEFORE:
        for module in model.modules():
            module.register_forward_hook(no_nan)
    x = torch.randn(size(64, 2), size(257, 5), 24, device=DEVICE)
    return training(lambda: functional.smooth_l1_loss(model(x[:, :-1]).float(), x[:, 1:]), adamw(model))


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


@pair(
    "host-stall", "tables", "batches are slices of the shuffled table instead of a DataLoader's row by row", TWELFTH,
    accept=("blocking-copy",), steps=(3, 3),
)  # fmt: skip
def rows_collated_one_by_one(variant: str) -> Step:
    """A network of 6 × 2,048 learns from 1,024 of 200,000 rows; DataLoader(TensorDataset) collects them one by one."""
    count, columns, wide, batch = size(200_000, 64), 64, size(2048, 32), size(1024, 8)
    rows, wanted = torch.randn(count, columns), torch.randn(count)
    layers = [nn.Linear(columns, wide), nn.ReLU()]
    for _ in range(size(5, 1)):
        layers += [nn.Linear(wide, wide), nn.ReLU()]
    model = on_device(lambda: nn.Sequential(*layers, nn.Linear(wide, 1))).train()
    batches = forever(DataLoader(TensorDataset(rows, wanted), batch, shuffle=True, drop_last=True))

    def loss() -> Tensor:
        if variant == BEFORE:
            x, y = next(batches)
        else:
            chosen = torch.randint(0, count, (batch,))
            x, y = rows[chosen], wanted[chosen]
        return functional.mse_loss(model(x.to(DEVICE)).squeeze(-1).float(), y.to(DEVICE))

    return training(loss, adamw(model))


@pair(
    "precision", "weather", "torch.set_float32_matmul_precision('high'): products in TF32", TWELFTH, steps=(3, 3),
)  # fmt: skip
def tf32_left_off(variant: str) -> Step:
    """A model of the weather (4 × 768) learns from 16 maps of 1,024 patches in fp32; TF32 is off, as it is at first."""
    width = size(768, 32)

    def build() -> nn.Module:
        how: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True, "activation": "gelu"}
        layer = nn.TransformerEncoderLayer(width, size(12, 2), 4 * width, **how)
        body = nn.TransformerEncoder(layer, size(4, 1), enable_nested_tensor=False)
        return nn.Sequential(nn.Linear(69 * 16, width), body, nn.Linear(width, 69 * 16))

    model = on_device(build).train()
    maps = torch.randn(size(16, 1), size(1024, 8), 69 * 16, device=DEVICE)
    learn = training(lambda: functional.l1_loss(model(maps), maps.roll(1, 0)), adamw(model), mixed=False)

    def step() -> None:
        # The two variants take turns in one process.
        torch.backends.cuda.matmul.allow_tf32 = variant == AFTER
        learn()

    return step


@healthy("training", TWELFTH, library="transformers", compiles=True, steps=(3, 3))
def healthy_accumulated_gradients(variant: str) -> Step:
    """A Starcoder2 (4 × 2,048) adds up the gradients of four batches of 4 × 1,024 tokens: compiled, fused AdamW."""
    config = transformers.Starcoder2Config(
        vocab_size=size(16_384, 64), hidden_size=size(2048, 32), intermediate_size=size(8192, 64),
        num_hidden_layers=size(4, 1), num_attention_heads=size(16, 2), num_key_value_heads=size(4, 2), use_cache=False,
        residual_dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0, sliding_window=None,
    )  # fmt: skip
    model = on_device(lambda: transformers.Starcoder2ForCausalLM(config)).train()
    compiled(model.model.layers)
    batches = tokens(config.vocab_size, 4, size(4, 1), size(1024, 8))
    optimizer = adamw(model)

    def step() -> None:
        for ids in batches:
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
                loss = model(input_ids=ids, labels=ids).loss / len(batches)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@healthy("embedding", TWELFTH, library="transformers", compiles=True, inference=True, steps=(3, 3))
def healthy_embedding_service(variant: str) -> Step:
    """A DistilBERT (6 × 768) embeds 1,024 texts of 128 tokens: pinned copies, compiled layers, bf16, one wait."""
    config = transformers.DistilBertConfig(
        vocab_size=size(30_528, 64), dim=size(768, 32), n_layers=size(6, 1), n_heads=size(12, 2),
        hidden_dim=size(3072, 64), dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.DistilBertModel(config), HALF).eval()
    compiled(model.transformer.layer)
    asked = torch.randint(0, config.vocab_size, (size(1024, 2), size(128, 8)), pin_memory=CUDA)
    answer = torch.empty(len(asked), config.dim, dtype=HALF, pin_memory=CUDA)

    def step() -> Tensor:
        hidden = model(input_ids=asked.to(DEVICE, non_blocking=True)).last_hidden_state
        answer.copy_(functional.normalize(hidden.mean(1), dim=-1), non_blocking=True)
        if CUDA:
            torch.cuda.current_stream().synchronize()
        return answer

    return step
