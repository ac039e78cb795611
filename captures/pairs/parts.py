"""What the programs are made of: sizes for trying them without a GPU, training steps, CUDA graphs, compiled blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = [
    "CUDA",
    "DEVICE",
    "HALF",
    "TINY",
    "Block",
    "adamw",
    "as_graph",
    "compiled",
    "images",
    "mixed",
    "on_device",
    "seeded",
    "size",
    "tokens",
    "training",
]

CUDA = torch.cuda.is_available() and os.environ.get("PAIRS_DEVICE", "cuda") == "cuda"
DEVICE = torch.device("cuda" if CUDA else "cpu")
#: Sizes for trying the programs without a GPU.
TINY = not CUDA or bool(os.environ.get("PAIRS_TINY"))
#: The type of inference; a CPU has no fast 16-bit arithmetic.
HALF = torch.bfloat16 if CUDA else torch.float32

Step = Callable[[], object]


def size(full: int, tiny: int) -> int:
    """A size for the GPU, or the one for trying the program."""
    return tiny if TINY else full


def seeded(seed: int = 0) -> None:
    """The same weights and inputs in both variants."""
    torch.manual_seed(seed)


def on_device(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A model with random weights, made on the device."""
    seeded(seed)
    with torch.device(DEVICE):
        model = build()
    return model.to(device=DEVICE, dtype=dtype)


def mixed() -> torch.autocast:
    """Mixed precision, on the GPU."""
    return torch.autocast(DEVICE.type, torch.bfloat16, enabled=not TINY)


class Block(nn.Module):
    """A layer of a transformer, norms first, whose attention is fused."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Places [rows, places, width], a mask [rows, 1, 1, places]."""
        q, k, v = self.asked(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


def tokens(vocabulary: int, *shape: int) -> Tensor:
    """Random token ids."""
    return torch.randint(0, vocabulary, shape, device=DEVICE)


def images(batch: int, side: int, dtype: torch.dtype = torch.float32, channels: int = 3) -> Tensor:
    """Random images [batch, channels, side, side]."""
    return torch.randn(batch, channels, side, side, device=DEVICE, dtype=dtype)


def adamw(model: nn.Module, **how: Any) -> torch.optim.Optimizer:
    """AdamW in one kernel, unless asked otherwise."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **(how or {"fused": True}))


def training(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, *, mixed: bool = True) -> Step:
    """One training step: the loss in mixed precision, its gradient, the optimizer."""

    def step() -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=mixed and CUDA):
            value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def compiled(blocks: Iterable[nn.Module]) -> None:
    """Compiles blocks in place, each by itself: equal blocks are compiled once."""
    if TINY and not os.environ.get("PAIRS_COMPILE"):
        return
    for block in blocks:
        block.compile(dynamic=False)


Kept = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def write_kept(kept: Kept, place: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Writes a token [rows, heads, width] to a place of a cache, which is one tensor or one for each of the two."""
    if isinstance(kept, tuple):
        kept[0][:, :, place] = keys
        kept[1][:, :, place] = values
    else:
        kept[0, :, :, place] = keys
        kept[1, :, :, place] = values


def keep_apart(layers: Iterable[nn.Module]) -> None:
    """Gives keys and values of each layer a tensor of their own: then a compiler writes them in place."""
    for layer in layers:
        apart = layer.kept[0].clone(), layer.kept[1].clone()
        del layer.kept
        layer.kept = apart


def as_graph(step: Step) -> Step:
    """Replays a step from a CUDA graph."""
    if not CUDA:
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay(_alive: object = (step, result)) -> object:
        graph.replay()
        return result

    return replay
