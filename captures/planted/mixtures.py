"""Two causes in one program, whose sizes are known from the variants without the one or the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from common import DEVICE
from torch import Tensor

from planted.host import LAYERS, TOKENS, WIDTH
from planted.parts import FP16, Closing, Prefetcher, Stack, as_graph, host_images, region, size, sleep, tensor, vision
from planted.registry import case

if TYPE_CHECKING:
    from planted.registry import Step


@case(
    "host-stall",
    second="host-sync",
    remedies=("no-sync", "no-stall", "neither"),
    planted={"stall_per_step_ns": 5_000_000, "waits_per_step": LAYERS},
)
def stall_and_syncs(variant: str) -> Step:
    """The input takes 5 ms a step, and `.item()` waits after each of 24 layers (about 1 ms): the first is larger."""
    model = Stack(WIDTH, LAYERS, FP16)
    x = tensor(TOKENS, WIDTH, dtype=FP16)
    waits, stalls = variant not in {"no-sync", "neither"}, variant not in {"no-stall", "neither"}

    def step() -> None:
        if stalls:
            with region("load_batch"):
                sleep(5_000_000)
        y, largest = x, 0.0
        for layer in model.layers:
            y = torch.relu(layer(y))
            amax = y.amax()
            if waits:
                largest = max(largest, amax.item())

    return step


@case(
    "launch-overhead",
    second="blocking-copy",
    remedies=("pinned", "cuda-graph", "neither"),
    planted={"copied_bytes_per_step": 16 * 3 * 224**2 * 4},
    steps=4,
)
def launches_and_copy(variant: str) -> Step:
    """Four of 16 images that come from pageable memory (1 to 2 ms) are put through singly: launches take more."""
    model = vision(blocks=6)
    images = host_images(size(16, 2), pinned=variant in {"pinned", "neither"})
    on_device = torch.empty(images.shape, device=DEVICE)

    def forward() -> Tensor:
        batch = on_device.to(FP16)
        return torch.cat([model(batch[index : index + 1]) for index in range(size(4, 1))])

    run = as_graph(forward) if variant in {"cuda-graph", "neither"} else forward

    def step() -> None:
        with region("load"):
            on_device.copy_(images, non_blocking=True)
        with region("forward"):
            run()

    return step


@case(
    "host-stall",
    accept=("host-sync",),
    second="host-sync",
    remedies=("no-sync", "prefetch", "neither"),
    planted={"stall_per_step_ns": 2_000_000, "waits_per_step": LAYERS},
)
def even_stall_and_syncs(variant: str) -> Step:
    """Like stall_and_syncs with 2 ms of input: two causes of about the same size, either may be named first."""
    model = Stack(WIDTH, LAYERS, FP16)
    x = tensor(TOKENS, WIDTH, dtype=FP16)

    def prepare() -> Tensor:
        sleep(2_000_000)
        return x

    source = Prefetcher(prepare, 4) if variant in {"prefetch", "neither"} else prepare

    def step() -> None:
        with region("load_batch"):
            y = source()
        for layer in model.layers:
            y = torch.relu(layer(y))
            amax = y.amax()
            if variant not in {"no-sync", "neither"}:
                amax.item()

    return Closing(step, source.close) if isinstance(source, Prefetcher) else step
