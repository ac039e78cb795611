"""What the cases are made of: annotations for either profiler, models, graphs, streams, and an input pipeline."""

from __future__ import annotations

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from common import CUDA, DEVICE
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

#: Sizes for trying the programs without a GPU.
TINY = not CUDA or bool(os.environ.get("PLANTED_TINY"))
#: The type of inference; a CPU has no fast 16-bit arithmetic.
HALF = torch.bfloat16 if CUDA else torch.float32
FP16 = torch.float16 if CUDA else torch.float32


class Annotations:
    """Who is to see the ranges: "nvtx" (nsys), "torch" (torch.profiler), or nobody."""

    kind = ""


def region(name: str) -> AbstractContextManager[object]:
    """A range of that name for the profiler that is at work."""
    if Annotations.kind == "nvtx" and CUDA:
        return _nvtx(name)
    if Annotations.kind == "torch":
        return torch.profiler.record_function(name)
    return nullcontext()


@contextmanager
def _nvtx(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


def size(full: int, tiny: int) -> int:
    """A size for the GPU, or the one for trying the program."""
    return tiny if TINY else full


def tensor(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """Random numbers on the device."""
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def burn(nanoseconds: int) -> int:
    """Keeps the interpreter at work for so long, with no call of CUDA: counts words, as a slow tokenizer would."""
    end = time.perf_counter_ns() + (nanoseconds if not TINY else nanoseconds // 100)
    words: dict[str, int] = {}
    turn = 0
    while time.perf_counter_ns() < end:
        for word in ("the", "host", "is", "busy", str(turn % 97)):
            words[word] = words.get(word, 0) + 1
        turn += 1
    return len(words)


def sleep(nanoseconds: int) -> None:
    """Waits as for a disk or a network."""
    time.sleep((nanoseconds if not TINY else nanoseconds // 100) / 1e9)


class Stack(nn.Module):
    """Layers of Linear and ReLU of one width: two kernels a layer."""

    def __init__(self, width: int, layers: int, dtype: torch.dtype) -> None:
        super().__init__()
        with DEVICE:  # random numbers for the weights are drawn there, which a CPU takes seconds for
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """X [..., width] → the same shape."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Attention(nn.Module):
    """Multi-head self-attention through torch's fused kernel."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, tokens, width] → the same shape."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.projection(heads.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, tokens, width] → the same shape."""
        with region("attention"):
            x = x + self.attention(self.norm1(x))
        with region("mlp"):
            return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Images [batch, 3, side, side] → class scores [batch, 200]: DeiT-B/16 with so many blocks."""

    def __init__(self, blocks: int, width: int, side: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.position = nn.Parameter(torch.randn(1, (side // 16) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64), causal=False) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 200)
        self.to(DEVICE, dtype)

    def forward(self, images: Tensor) -> Tensor:
        """Images of the model's type → class scores."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def vision(blocks: int = 12, dtype: torch.dtype | None = None) -> VisionTransformer:
    """DeiT-B/16 for images of 224 pixels a side (a model of toy size where sizes are tiny)."""
    with DEVICE:
        return VisionTransformer(size(blocks, 2), size(768, 64), SIDE, FP16 if dtype is None else dtype).eval()


SIDE = size(224, 32)


class LanguageModel(nn.Module):
    """Tokens [batch, context] → logits: a decoder with learned positions and fused attention."""

    def __init__(self, vocabulary: int, width: int, layers: int, context: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, max(1, width // 64), causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.to(DEVICE, dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens → logits [batch, context, vocabulary]."""
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """One step of training a language model: forward, backward, optimizer, each in a range."""

    def __init__(self, model: nn.Module, tokens: Tensor, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.tokens, self.optimizer = model, tokens, optimizer

    def __call__(self) -> Tensor:
        """Returns the loss, still on the device."""
        with region("forward"):
            logits = self.model(self.tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten())
        with region("backward"):
            loss.backward()
        with region("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def language_training(width: int, layers: int, batch: int, context: int, vocabulary: int, **optimizer: Any) -> Training:
    """Training of a bfloat16 decoder with AdamW (fused, if not said otherwise)."""
    with DEVICE:
        model = LanguageModel(vocabulary, width, layers, context, HALF)
    tokens = torch.randint(vocabulary, (batch, context + 1), device=DEVICE)
    options = {"lr": 1e-4, "fused": True} | optimizer
    return Training(model, tokens, torch.optim.AdamW(model.parameters(), **options))


def as_graph(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one launch of a CUDA graph, captured after three eager steps on a side stream, as CUDA asks for."""
    if not CUDA:
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    kind, Annotations.kind = Annotations.kind, ""
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    Annotations.kind = kind

    def replay() -> object:
        graph.replay()
        return result

    return replay


class Prefetcher:
    """Prepares what the next steps need on threads of their own, so many steps ahead."""

    def __init__(self, prepare: Callable[[], Tensor], workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._prepare = prepare
        self._ready = deque(self._pool.submit(prepare) for _ in range(2 * workers))

    def __call__(self) -> Tensor:
        """The next batch; waits only where the workers are behind."""
        batch = self._ready.popleft().result()
        self._ready.append(self._pool.submit(self._prepare))
        return batch

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class CopyAhead:
    """Copies the next batch from pinned memory on a stream of its own while this step computes."""

    def __init__(self, batches: list[Tensor]) -> None:
        self._batches, self._turn = batches, 0
        self._stream = torch.cuda.Stream() if CUDA else None
        self._next = self._copy()

    def _copy(self) -> Tensor:
        batch = self._batches[self._turn % len(self._batches)]
        self._turn += 1
        if self._stream is None:
            return batch.to(DEVICE)
        with torch.cuda.stream(self._stream):
            return batch.to(DEVICE, non_blocking=True)

    def __call__(self) -> Tensor:
        """The batch that was copied during the last step; starts the copy of the next."""
        current = self._next
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            current.record_stream(torch.cuda.current_stream())
        self._next = self._copy()
        return current


def host_images(batch: int, pinned: bool) -> Tensor:
    """A batch of float images in host memory whose pages have been touched."""
    images = torch.randn(batch, 3, SIDE, SIDE)
    return images.pin_memory() if pinned and CUDA else images


class Closing:
    """A step that has something to end after the last one."""

    def __init__(self, step: Callable[[], object], close: Callable[[], None]) -> None:
        self._step, self.close = step, close

    def __call__(self) -> object:
        """Runs the step."""
        return self._step()
