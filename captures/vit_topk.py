"""DeiT-B/16 inference to profile, with or without top-k token reduction, eager or replayed from a CUDA graph.

Weights and images are random, fp16. Attention is written out in both variants: the reduction needs its weights, and the
comparison should change one thing only.

NVTX ranges: `warmup` (one a warm-up pass) and `step` at the top; inside an eager pass `patch_embedding`, `block_0` …
`block_11`, each with `attention`, `token_reduction` where there is one, and `mlp`; then `classifier`.

    python vit_topk.py --input-size 224 --batch 1
    python vit_topk.py --input-size 224 --batch 1 --keep 0.1
    python vit_topk.py --input-size 224 --batch 1 --cuda-graph
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from common import CUDA, DEVICE, annotate, append_rows, now, parameter_count, recorded, synchronize
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

PATCH = 16
WIDTH = 768
BLOCKS = 12
HEADS = 12
CLASSES = 200
NORM_EPSILON = 1e-6
REDUCING_BLOCKS = (3, 6, 9)
TIMING_COLUMNS = ("input_size", "batch", "keep", "execution", "step", "step_s", "images_per_s")


def tokens_kept(tokens: int, keep: float) -> int:
    """⌈keep · tokens⌉ of the patch tokens that are left, the class token not counted: 196 → 20 → 2 → 1 for keep 0.1."""
    return max(1, math.ceil(keep * tokens))


class Attention(nn.Module):
    """Multi-head self-attention that also returns its weights [batch, heads, tokens, tokens]."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """X [batch, tokens, width] → the same shape, and the weights."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (WIDTH // HEADS) ** -0.5).softmax(dim=-1)
        heads = (weights @ v).transpose(1, 2).reshape(batch, tokens, WIDTH)
        return self.proj(heads), weights


def reduce_tokens(x: Tensor, weights: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """Keeps the patch tokens that the class token attends to most, the best first, behind the class token.

    Also returns which they were, padded with −1 to the tokens there had been. Only a visualisation would read that, but
    the published method computes it in every pass, so its launches belong to the method's cost.
    """
    patches = x.shape[1] - 1
    score = weights[:, :, 0, 1:].mean(dim=1)
    kept = score.topk(tokens_kept(patches, keep), dim=1, sorted=True).indices
    gathered = x[:, 1:].gather(1, kept.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
    dropped = torch.ones(x.shape[0], patches - kept.shape[1], dtype=kept.dtype, device=x.device) * -1
    return torch.cat((x[:, :1], gathered), dim=1), torch.cat((kept, dropped), dim=1)


class Block(nn.Module):
    """Pre-norm transformer block; where it reduces, it does so between attention and MLP."""

    def __init__(self, keep: float | None) -> None:
        super().__init__()
        self.keep = keep
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, eps=NORM_EPSILON) for _ in range(2))
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """X [batch, tokens, width] → [batch, tokens that are left, width]."""
        with annotate("attention"):
            attended, weights = self.attention(self.norm1(x))
            x = x + attended
        if self.keep is not None:
            with annotate("token_reduction"):
                x, _ = reduce_tokens(x, weights, self.keep)
        with annotate("mlp"):
            return x + self.mlp(self.norm2(x))


class DeiT(nn.Module):
    """Images [batch, 3, size, size] → class scores [batch, classes]."""

    def __init__(self, input_size: int, keep: float | None) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.class_token = nn.Parameter(torch.randn(1, 1, WIDTH) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (input_size // PATCH) ** 2 + 1, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(keep if index in REDUCING_BLOCKS else None) for index in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH, eps=NORM_EPSILON)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images → class scores."""
        with annotate("patch_embedding"):
            patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
            x = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1) + self.position
        for index, block in enumerate(self.blocks):
            with annotate(f"block_{index}"):
                x = block(x)
        with annotate("classifier"):
            return self.head(self.norm(x)[:, 0])


def as_graph(forward: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same pass as one CUDA graph launch; captured on a side stream after three eager passes, as CUDA asks for."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            forward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = forward()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


@torch.inference_mode()
def main() -> None:
    """Runs one variant and prints its median step time and throughput."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input-size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--keep", type=float, help="share of the patch tokens to keep at blocks 3, 6, 9 (default: all)")
    parser.add_argument("--cuda-graph", action="store_true", help="replay the pass from a CUDA graph")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--recorded-warmup", type=int, help="how many of them are in the recorded region (all)")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--timings", type=Path, help="CSV file to add the measured steps to")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = DeiT(options.input_size, options.keep).eval()
    dtype = torch.float16 if CUDA else torch.float32
    model = model.to(DEVICE, dtype)
    images = torch.randn(options.batch, 3, options.input_size, options.input_size, device=DEVICE, dtype=dtype)

    def forward() -> Tensor:
        return model(images)

    step = as_graph(forward) if options.cuda_graph else forward
    recorded_warmup = options.warmup if options.recorded_warmup is None else options.recorded_warmup
    times: list[float] = []
    for _ in range(options.warmup - recorded_warmup):
        step()
    with recorded():
        for _ in range(recorded_warmup):
            with annotate("warmup"):
                step()
                synchronize()
        for _ in range(options.steps):
            with annotate("step"):
                start = now()
                step()
                synchronize()
                times.append(now() - start)

    execution = "graph" if options.cuda_graph else "eager"
    keep = "all" if options.keep is None else f"{options.keep:g}"
    if options.timings:
        rows = [
            (options.input_size, options.batch, keep, execution, index, seconds, options.batch / seconds)
            for index, seconds in enumerate(times)
        ]
        append_rows(options.timings, TIMING_COLUMNS, rows)
    median = sorted(times)[len(times) // 2]
    print(
        f"DeiT-B/16 input {options.input_size} batch {options.batch} keep {keep} {execution}: "
        f"{parameter_count(model):,} parameters, median step {median * 1e3:.3f} ms, "
        f"{options.batch / median:.1f} images/s",
        flush=True,
    )


if __name__ == "__main__":
    main()
