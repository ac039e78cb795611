"""Language, retrieval and tables of the fifth set: written without a look at the rules of the diagnosis."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from pairs.language import llama
from pairs.parts import CUDA, DEVICE, HALF, TINY, adamw, as_graph, compiled, on_device, size, tokens, training
from pairs.registry import AFTER, BEFORE, FIFTH, Step, healthy, pair


@pair(
    "unfused-chain", "decoding", "weights in bfloat16 instead of fp32 weights under autocast", FIFTH,
    library="transformers", accept=("weight-bound", "precision"), inference=True, steps=(3, 2),
)  # fmt: skip
def decoding_under_autocast(variant: str) -> Step:
    """A Llama of 3 × 8,192 decodes two tokens of 4 sequences; autocast makes bf16 copies of its weights every time."""
    batch, prompt = size(4, 2), size(256, 8)
    config = llama(3, 8192, vocabulary=8192, heads=64, groups=8, feed=size(28672, 96))
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF if variant == AFTER else torch.float32).eval()
    first = tokens(config.vocab_size, batch, 1)
    shape = (2, batch, config.num_key_value_heads, prompt, config.head_dim)
    prompts = [torch.randn(*shape, device=DEVICE, dtype=HALF).unbind() for _ in model.model.layers]

    def step() -> Tensor:
        ids, cache = first, transformers.DynamicCache(prompts, config=config)
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA and variant == BEFORE):
            for _ in range(2):
                ids = model(input_ids=ids, past_key_values=cache).logits[:, -1:].argmax(-1)
        return ids

    return step


class Encoder(nn.Module):
    """A text encoder around nn.MultiheadAttention, as the documentation of PyTorch calls it."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, *, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList([nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(layers)])
        self.feed = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers)])
        self.out = nn.Linear(width, 16)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [batch, sequence] → scores of classes [batch, 16]."""
        x = self.embedding(ids)
        for index, (attention, feed) in enumerate(zip(self.attention, self.feed, strict=True)):
            y = self.norms[2 * index](x)
            x = x + attention(y, y, y, need_weights=self.weights)[0]
            x = x + feed(self.norms[2 * index + 1](x))
        return self.out(x.mean(1))


@pair("unfused-attention", "training", "need_weights=False, which is not the default", FIFTH, steps=(3, 2))
def attention_returns_weights(variant: str) -> Step:
    """An encoder of 6 × 1,024 learns to classify 16 texts of 1,024 tokens; its attention gives back all weights."""
    vocabulary = size(30000, 64)
    model = on_device(
        lambda: Encoder(size(6, 1), size(1024, 32), size(16, 2), vocabulary, weights=variant == BEFORE)
    ).train()
    ids, labels = tokens(vocabulary, size(16, 2), size(1024, 12)), tokens(16, size(16, 2))
    return training(lambda: functional.cross_entropy(model(ids), labels), adamw(model))


class Masked(nn.Module):
    """Causal self-attention by the fused function, told by a mask or by is_causal which tokens may be seen."""

    def __init__(self, width: int, heads: int, length: int, *, by_mask: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        self.register_buffer("mask", seen if by_mask else None)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, sequence, width]."""
        q, k, v = self.into(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.mask is None)
        return x + self.out(y.transpose(1, 2).flatten(2))


@pair(
    "unfused-attention", "prefill", "is_causal=True instead of a mask of booleans", FIFTH,
    accept=("misaligned-shape",), inference=True, steps=(3, 2),
)  # fmt: skip
def mask_instead_of_is_causal(variant: str) -> Step:
    """Eight layers of attention (2,048, heads of 128) read 2 × 8,192 tokens; the causal mask is an argument."""
    width, length = size(2048, 32), size(8192, 12)
    model = on_device(
        lambda: nn.Sequential(
            *[Masked(width, size(16, 2), length, by_mask=variant == BEFORE) for _ in range(size(8, 2))]
        )
    ).eval()
    for value in model.parameters():
        value.data = value.data.to(HALF)
    x = torch.randn(size(2, 1), length, width, device=DEVICE, dtype=HALF)
    return lambda: model(x)


@pair(
    "host-stall", "training", "histograms once in a hundred steps, so not in these", FIFTH,
    library="transformers, tensorboard", accept=("blocking-copy", "host-sync"), steps=(2, 1),
)  # fmt: skip
def histograms_in_every_step(variant: str) -> Step:
    """DistilBERT (4 × 512) is fine-tuned on 64 texts of 128 tokens; TensorBoard gets its gradients' histograms."""
    from torch.utils.tensorboard import SummaryWriter

    config = transformers.DistilBertConfig(
        vocab_size=size(8192, 64), dim=size(512, 32), hidden_dim=size(2048, 48), n_layers=size(4, 1),
        n_heads=size(8, 2), num_labels=4, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    model = on_device(lambda: transformers.DistilBertForSequenceClassification(config)).train()
    ids, labels = tokens(config.vocab_size, size(64, 2), size(128, 8)), tokens(4, size(64, 2))
    optimizer = adamw(model)
    writer = SummaryWriter(tempfile.mkdtemp())
    count = 0

    def step() -> None:
        nonlocal count
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        if variant == BEFORE:
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    writer.add_histogram(name, parameter.grad, count)
        optimizer.step()
        optimizer.zero_grad()
        count += 1

    return step


class Network(nn.Module):
    """A residual network for tables."""

    def __init__(self, columns: int, width: int, layers: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(columns, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        """X [rows, columns] → [rows, 1]."""
        x = self.into(x)
        for layer in self.layers:
            x = x + functional.silu(layer(x))
        return self.out(x)


@pair(
    "precision", "tables", "float32, products in TF32 ('high'), instead of the float64 that NumPy gives", FIFTH,
    steps=(3, 2),
)  # fmt: skip
def doubles_from_numpy(variant: str) -> Step:
    """A network of 8 × 2,048 learns from 16,384 rows of 256 columns in float64, because the table came that way."""
    rows, columns, width = size(16384, 8), size(256, 8), size(2048, 16)
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(rows, columns))).to(DEVICE)
    target = table.sum(1, keepdim=True)
    model = on_device(lambda: Network(columns, width, size(8, 1)), torch.float64).train()
    if variant == AFTER:
        model, table, target = model.float(), table.float(), target.float()
    train = training(lambda: functional.mse_loss(model(table), target), adamw(model), mixed=False)

    def step() -> None:
        torch.set_float32_matmul_precision("highest" if variant == BEFORE else "high")
        train()
        torch.set_float32_matmul_precision("highest")

    return step


@pair(
    "weight-bound", "retrieval", "all questions in one product instead of one after the other", FIFTH,
    accept=("small-kernels",), inference=True, steps=(3, 2),
)  # fmt: skip
def questions_one_by_one(variant: str) -> Step:
    """For each of 64 questions the ten nearest of 400,000 passages (768 numbers, bf16) are looked up."""
    passages = torch.randn(size(400_000, 50), size(768, 16), device=DEVICE, dtype=HALF)
    questions = torch.randn(size(64, 3), passages.shape[1], device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        if variant == AFTER:
            return (questions @ passages.T).topk(10).indices
        return torch.stack([(passages @ question).topk(10).indices for question in questions])

    return step


def orthogonal(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """Muon's update: five steps of Newton and Schulz (K. Jordan et al., 2024)."""
    x = gradient.to(dtype)
    x = x.mT if gradient.shape[0] > gradient.shape[1] else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if gradient.shape[0] > gradient.shape[1] else x).to(gradient.dtype)


@pair(
    "precision", "training", "the optimizer's products in bfloat16, as its authors have them", FIFTH,
    library="transformers", compiles=True, steps=(3, 2),
)  # fmt: skip
def muon_in_fp32(variant: str) -> Step:
    """A Llama of 4 × 2,048 learns from 8 × 1,024 tokens in mixed precision; Muon orthogonalises gradients in fp32."""
    config = llama(4, 2048, vocabulary=8192, use_cache=False)
    model = on_device(lambda: transformers.LlamaForCausalLM(config)).train()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, size(8, 2), size(1024, 8))
    matrices = [p for layer in model.model.layers for p in layer.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen], lr=1e-4, fused=CUDA or None)
    kept: dict[int, Tensor] = {id(p): torch.zeros_like(p) for p in matrices}
    dtype = torch.float32 if variant == BEFORE else torch.bfloat16

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        with torch.no_grad():
            for parameter in matrices:
                momentum = kept[id(parameter)].lerp_(parameter.grad, 0.05)
                parameter.add_(orthogonal(momentum, dtype), alpha=-1e-3)
                parameter.grad = None
        others.step()
        others.zero_grad()

    return step


class Relative(nn.Module):
    """Attention with a bias for each distance, which is kept where it was made or on the GPU."""

    def __init__(self, width: int, heads: int, length: int, *, is_buffer: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        with torch.device("cpu"):
            far = (torch.arange(length)[:, None] - torch.arange(length)).abs()
            bias = -far.float() * torch.logspace(-1, -8, heads, base=2)[:, None, None]
        if is_buffer:
            self.register_buffer("bias", bias)
        else:
            self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, sequence, width]."""
        q, k, v = self.into(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.to(x.device).to(x.dtype))
        return x + self.out(y.transpose(1, 2).flatten(2))


@pair(
    "blocking-copy", "prefill", "register_buffer for the bias of attention instead of an attribute", FIFTH,
    accept=("host-stall",), inference=True, steps=(3, 2),
)  # fmt: skip
def bias_is_no_buffer(variant: str) -> Step:
    """Six layers of attention (1,024) with linear biases read 8 × 1,024 tokens; each carries its bias to the GPU."""
    width, length, heads = size(1024, 32), size(1024, 12), size(16, 2)
    model = on_device(
        lambda: nn.Sequential(
            *[Relative(width, heads, length, is_buffer=variant == AFTER) for _ in range(size(6, 2))]
        ), HALF
    ).eval()  # fmt: skip
    x = torch.randn(size(8, 1), length, width, device=DEVICE, dtype=HALF)
    return lambda: model(x)


@healthy("prefill", FIFTH, library="transformers", compiles=True, inference=True, steps=(3, 2))
def healthy_long_prompt(variant: str) -> Step:
    """Prefill of one prompt of 32,768 tokens by a Llama of 3 × 4,096: attention takes most, layers compiled, bf16."""
    config = llama(3, 4096, heads=32, groups=8, use_cache=False)
    config.max_position_embeddings = size(32768, 64)
    model = on_device(lambda: transformers.LlamaForCausalLM(config), HALF).eval()
    compiled(model.model.layers)
    ids = tokens(config.vocab_size, 1, size(32768, 16))
    return lambda: model(input_ids=ids, logits_to_keep=1).logits


class Eighths(nn.Module):
    """A linear layer of eight-bit floats, scaled once for each tensor."""

    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.randn(out, into) * 0.02).to(torch.float8_e4m3fn), requires_grad=False)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """X [tokens, into], in bf16."""
        small = x.to(torch.float8_e4m3fn)
        if TINY:
            return small.to(x.dtype) @ self.weight.to(x.dtype).T
        return torch._scaled_mm(small, self.weight.T, self.scale, self.scale, out_dtype=torch.bfloat16)


@healthy("serving", FIFTH, compiles=True, inference=True, steps=(3, 2))
def healthy_eight_bits(variant: str) -> Step:
    """Eight layers of 8,192 in eight-bit floats for 8,192 tokens; casts are compiled into what stands before them."""
    width = size(8192, 32)
    with torch.device(DEVICE):
        parts: list[Any] = []
        for _ in range(size(8, 2)):
            parts += [Eighths(width, width), nn.ReLU()]
        model = nn.Sequential(*parts).eval()
    compiled([model])
    x = torch.randn(size(8192, 16), width, device=DEVICE, dtype=HALF)
    return lambda: model(x)


class Policy(nn.Module):
    """Actor and critic on one body."""

    def __init__(self, seen: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.heads = nn.Linear(width, 16)

    def forward(self, x: Tensor) -> Tensor:
        """X [rows, seen]."""
        return self.heads(self.body(x))


@healthy("reinforcement learning", FIFTH, steps=(3, 2))
def healthy_graphed_policy(variant: str) -> Step:
    """A policy of 2 × 4,096 learns from 32,768 rows in bf16; the whole step, AdamW too, is one CUDA graph."""
    rows, seen, width = size(32768, 8), size(512, 8), size(4096, 16)
    model = on_device(lambda: Policy(seen, width), HALF).train()
    x, wanted = torch.randn(rows, seen, device=DEVICE, dtype=HALF), torch.randn(rows, 16, device=DEVICE, dtype=HALF)
    how = {"fused": True, "capturable": True} if CUDA else {"fused": None}
    optimizer = adamw(model, **how)

    def step() -> None:
        functional.mse_loss(model(x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return as_graph(step)
