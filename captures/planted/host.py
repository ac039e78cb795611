"""Causes on the host: launches, waits for the GPU, Python and input."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import torch
from common import DEVICE, synchronize
from torch import Tensor, nn
from torch.nn import functional

from planted.parts import (
    FP16,
    SIDE,
    Closing,
    Prefetcher,
    Stack,
    as_graph,
    burn,
    host_images,
    language_training,
    region,
    size,
    sleep,
    tensor,
    vision,
)
from planted.registry import BASELINE, case

if TYPE_CHECKING:
    from planted.registry import Step

GRAPH = ("cuda-graph",)
BOTH = (BASELINE, "cuda-graph")

#: Sizes of the stack that the look-alikes share: its GPU is busy about half of the time in each.
WIDTH, LAYERS, TOKENS = size(2048, 16), 24, size(3072, 8)


def _graph_or_eager(step: Step, variant: str) -> Step:
    return as_graph(step) if variant == "cuda-graph" else step


# ---- launch-overhead ------------------------------------------------------------------------------------------------


@case("launch-overhead", remedies=GRAPH, captured=BOTH, sync_each_step=True)
def deep_mlp_bs1(variant: str) -> Step:
    """A deep, narrow fp16 MLP with batch 1: 160 kernels of a few microseconds, launched one by one."""
    model = Stack(size(1024, 16), 80, FP16)
    x = tensor(1, size(1024, 16), dtype=FP16)
    return _graph_or_eager(lambda: model(x), variant)


@case(
    "launch-overhead", remedies=GRAPH, captured=BOTH, ranges=False, sync_each_step=True, profiler={"with_modules": True}
)
def vit_bs1(variant: str) -> Step:
    """DeiT-B/16 inference, fp16, batch 1, no range round a step: steps are to be found by the sequence of kernels."""
    model = vision()
    images = tensor(1, 3, SIDE, SIDE, dtype=FP16)
    return _graph_or_eager(lambda: model(images), variant)


class _Decoder(nn.Module):
    """One token through a decoder with a key-value cache of fixed length; the position stays on the device."""

    def __init__(self, width: int, layers: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.to(DEVICE, FP16)
        shape = (layers, 1, self.heads, context, width // self.heads)
        self.keys, self.values = tensor(*shape, dtype=FP16), tensor(*shape, dtype=FP16)
        self.position = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.slots = torch.arange(context, device=DEVICE)
        self.token = torch.zeros(1, dtype=torch.long, device=DEVICE)

    def step(self) -> Tensor:
        """Decodes the next token greedily; no read-back."""
        x = self.embedding(self.token)[None]
        mask = (self.slots <= self.position)[None, None, None]
        for layer, (qkv, projection, up, down) in enumerate(
            zip(self.qkv, self.projections, self.up, self.down, strict=True)
        ):
            q, k, v = qkv(self.norms[2 * layer](x)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = self.keys[layer], self.values[layer]
            keys.index_copy_(2, self.position, k)
            values.index_copy_(2, self.position, v)
            heads = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            x = x + projection(heads.transpose(1, 2).reshape(1, 1, -1))
            x = x + down(functional.gelu(up(self.norms[2 * layer + 1](x))))
        self.token.copy_(self.head(self.norms[-1](x))[0, 0].argmax(dim=-1, keepdim=True))
        self.position.add_(1).remainder_(len(self.slots))
        return self.token


@case("launch-overhead", remedies=GRAPH, recorded_warmup=2)
def lm_decode_one_token(variant: str) -> Step:
    """Greedy decoding with a key-value cache, batch 1, a token a step, 12 layers; two warm-up steps in the profile."""
    with DEVICE:
        decoder = _Decoder(size(768, 64), size(12, 2), size(512, 16), size(32000, 64))
    return _graph_or_eager(decoder.step, variant)


@case("launch-overhead", remedies=GRAPH, captured=BOTH, ranges=False, steps=4)
def tiny_elementwise(variant: str) -> Step:
    """A Runge-Kutta integrator written tensor by tensor over a small batch: some 220 elementwise kernels a step."""
    state = torch.rand(3, size(16384, 16), device=DEVICE)
    x, y, z = state
    rate, scale, shift, turns = 10.0, 28.0, 8 / 3, size(3, 1)

    def slope(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rate * (y - x), x * (scale - z) - y, x * y - shift * z

    def step() -> None:
        a, b, c = x, y, z
        for _ in range(turns):
            k1 = slope(a, b, c)
            k2 = slope(*(p + 0.005 * k for p, k in zip((a, b, c), k1, strict=True)))
            k3 = slope(*(p + 0.005 * k for p, k in zip((a, b, c), k2, strict=True)))
            k4 = slope(*(p + 0.01 * k for p, k in zip((a, b, c), k3, strict=True)))
            a, b, c = (
                p + 0.01 / 6 * (q + 2 * r + 2 * s + t) for p, q, r, s, t in zip((a, b, c), k1, k2, k3, k4, strict=True)
            )
        x.copy_(a)
        y.copy_(b)
        z.copy_(c)

    return _graph_or_eager(step, variant)


@case("launch-overhead", remedies=GRAPH, training=True, steps=4)
def train_small_batch(variant: str) -> Step:
    """Training of a small bfloat16 decoder, 4 layers, 2 x 128 tokens: bound by launches throughout."""
    step = language_training(
        size(512, 64), size(4, 1), 2, size(128, 8), size(4096, 64), capturable=variant == "cuda-graph"
    )
    return _graph_or_eager(step, variant)


@case("launch-overhead", remedies=GRAPH)
def lookalike_launch(variant: str) -> Step:
    """One of two look-alikes with the GPU busy half of the time: the batch goes through in 8 pieces of 384 tokens."""
    model = Stack(WIDTH, 12, FP16)
    pieces = tensor(8, max(1, TOKENS // 8), WIDTH, dtype=FP16)

    def step() -> None:
        for piece in pieces:
            with region("piece"):
                model(piece)

    return _graph_or_eager(step, variant)


# ---- host-sync ------------------------------------------------------------------------------------------------------


@case("host-sync", remedies=("no-sync",), captured=(BASELINE, "no-sync"), planted={"waits_per_step": LAYERS})
def item_per_layer(variant: str) -> Step:
    """After each layer `.item()` fetches the largest activation: the queue runs empty. Without it the GPU is busy."""
    model = Stack(WIDTH, LAYERS, FP16)
    x = tensor(3 * TOKENS, WIDTH, dtype=FP16)

    def step() -> None:
        y, largest, on_device = x, 0.0, torch.zeros((), device=DEVICE, dtype=FP16)
        for layer in model.layers:
            y = torch.relu(layer(y))
            if variant == "no-sync":
                on_device = torch.maximum(on_device, y.amax())
            else:
                largest = max(largest, y.amax().item())

    return step


@case("host-sync", remedies=("no-sync",), ranges=False, planted={"waits_per_step": 16})
def synchronize_per_layer(variant: str) -> Step:
    """A convolutional network whose author left `torch.cuda.synchronize()` after every layer."""
    channels = size(256, 8)
    layers = nn.ModuleList(
        nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        for _ in range(16)
    ).to(DEVICE, FP16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    layers.eval()
    x = tensor(size(32, 1), channels, size(56, 8), size(56, 8), dtype=FP16).to(memory_format=torch.channels_last)

    def step() -> None:
        y = x
        for layer in layers:
            y = layer(y)
            if variant == BASELINE:
                synchronize()

    return step


@case("host-sync", remedies=("no-sync",), planted={"waits_per_step": 16})
def boolean_mask(variant: str) -> Step:
    """A mixture of 8 experts, twice: `nonzero` makes shapes that depend on data, and the host waits for each."""
    tokens, width, experts = size(32768, 64), size(1024, 16), 8
    up = tensor(2, experts, width, 4 * width, dtype=FP16) / width**0.5
    down = tensor(2, experts, 4 * width, width, dtype=FP16) / (4 * width) ** 0.5
    x = tensor(tokens, width, dtype=FP16)
    route = torch.arange(tokens, device=DEVICE).remainder(experts)[torch.randperm(tokens, device=DEVICE)]

    def step() -> None:
        y = x
        for layer in range(2):
            result = torch.zeros_like(y)
            order = route.argsort().view(experts, -1) if variant == "no-sync" else None
            for expert in range(experts):
                with region(f"expert_{expert}"):
                    rows = (route == expert).nonzero()[:, 0] if order is None else order[expert]
                    result.index_copy_(0, rows, torch.relu(y[rows] @ up[layer, expert]) @ down[layer, expert])
            y = y + result

    return step


# ---- host-stall -----------------------------------------------------------------------------------------------------


def _fed(variant: str, model: nn.Module, prepare: object) -> Step:
    """A step that takes a batch from `prepare`, or from threads that prepare ahead, and passes it through the model."""
    assert callable(prepare)
    source = Prefetcher(prepare, workers=size(6, 2)) if variant == "prefetch" else prepare

    def step() -> None:
        with region("load_batch"):
            images = source()
        with region("forward"):
            model(images.to(DEVICE, non_blocking=True).to(FP16))

    return Closing(step, source.close) if isinstance(source, Prefetcher) else step


@case(
    "host-stall",
    remedies=("prefetch",),
    captured=(BASELINE, "prefetch"),
    sync_each_step=True,
    planted={"stall_per_step_ns": 8_000_000},
)
def sleeping_input(variant: str) -> Step:
    """Inference that waits 8 ms for its input before each batch of 48 images, as for a slow disk."""
    images = host_images(size(48, 2), pinned=True)

    def prepare() -> Tensor:
        sleep(8_000_000)
        return images

    return _fed(variant, vision(), prepare)


@case("host-stall", remedies=("prefetch",), ranges=False)
def cpu_preprocessing(variant: str) -> Step:
    """Inference that augments its images with NumPy on the main thread before each batch."""
    generator = np.random.default_rng(0)
    images = host_images(size(48, 2), pinned=True)
    noise = np.empty(size(600_000, 1000), dtype=np.float32)

    def prepare() -> Tensor:
        local = np.random.default_rng(generator.integers(2**31)) if variant == "prefetch" else generator
        drawn = local.standard_normal(out=noise if variant == BASELINE else None, size=noise.size, dtype=np.float32)
        np.sort(drawn[: len(drawn) // 4])
        return images

    return _fed(variant, vision(), prepare)


@case("host-stall", remedies=("hoisted",), planted={"stall_per_step_ns": 6 * 400_000})
def lookalike_stall(variant: str) -> Step:
    """One of two look-alikes: Python keeps books for 0.4 ms after every fourth layer, launching nothing."""
    model = Stack(WIDTH, LAYERS, FP16)
    x = tensor(TOKENS, WIDTH, dtype=FP16)

    def step() -> None:
        y = x
        for index, layer in enumerate(model.layers):
            y = torch.relu(layer(y))
            if index % 4 == 3 and variant == BASELINE:
                burn(400_000)

    return step


@case("host-stall", remedies=("no-gc",), training=True, steps=4)
def garbage_collection(variant: str) -> Step:
    """Training that collects garbage by hand in every step, with tens of thousands of objects to look at."""
    gc.collect()
    gc.freeze()  # so that it costs milliseconds: PyTorch's own objects are not looked at
    books = [{"index": index, "text": [str(index)]} for index in range(size(60_000, 100))]
    train = language_training(size(1024, 64), size(4, 1), size(16, 4), size(512, 8), size(4096, 64))

    def step() -> int:
        train()
        if variant == BASELINE:
            gc.collect()
        return len(books)

    return Closing(step, gc.unfreeze)
