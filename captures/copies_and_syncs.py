"""A badly behaved inference loop to profile: copies of every kind on two streams, the host waiting inside each step.

A step takes one batch from pageable memory (the copy blocks the host) and one from pinned memory on a stream of its
own, passes both through a stack of layers, asks for one number a layer with `.item()` (the host waits for the GPU each
time), and fetches its result once into pinned and once into pageable memory.

NVTX ranges: `warmup` (one a warm-up step) and `step` at the top; inside them `prefetch_pinned`, `load_pageable`,
`layer_0` …, `fetch`.

    python copies_and_syncs.py --steps 10
"""

from __future__ import annotations

import argparse

import torch
from common import CUDA, DEVICE, annotate, now, recorded, synchronize
from torch import Tensor, nn

BATCH = 384
WIDTH = 4096
LAYERS = 6


class Loop:
    """The layers, the host buffers and the copy stream."""

    def __init__(self, batch: int, width: int) -> None:
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS)).to(DEVICE)
        self.pageable = torch.randn(batch, width)
        self.pinned = torch.randn(batch, width, pin_memory=CUDA)
        self.result = torch.empty(2 * batch, width, pin_memory=CUDA)
        self.copies = torch.cuda.Stream() if CUDA else None

    def _prefetch(self) -> Tensor:
        if self.copies is None:
            return self.pinned.to(DEVICE)
        with torch.cuda.stream(self.copies):
            return self.pinned.to(DEVICE, non_blocking=True)

    def _wait_for(self, prefetched: Tensor) -> None:
        if self.copies is not None:
            torch.cuda.current_stream().wait_stream(self.copies)
            prefetched.record_stream(torch.cuda.current_stream())

    def step(self) -> float:
        """One step; returns the largest activation, so that all work is used."""
        with annotate("prefetch_pinned"):
            second = self._prefetch()
        with annotate("load_pageable"):
            first = self.pageable.to(DEVICE)
        self._wait_for(second)
        x = torch.cat((first, second))
        largest = 0.0
        for index, layer in enumerate(self.layers):
            with annotate(f"layer_{index}"):
                x = torch.relu(layer(x))
                largest = max(largest, x.max().item())
        with annotate("fetch"):
            self.result.copy_(x, non_blocking=True)
            x[: len(self.pageable)].cpu()
        return largest


@torch.inference_mode()
def main() -> None:
    """Runs the loop and prints its median step time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    loop = Loop(options.batch, options.width)
    times = []
    with recorded():
        for _ in range(options.warmup):
            with annotate("warmup"):
                loop.step()
                synchronize()
        for _ in range(options.steps):
            with annotate("step"):
                start = now()
                loop.step()
                synchronize()
                times.append(now() - start)
    print(f"copies and synchronisations: median step {sorted(times)[len(times) // 2] * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
