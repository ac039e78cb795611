"""Programs in which nothing is wrong: the GPU is busy, and near what it can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from planted.parts import (
    FP16,
    SIDE,
    Closing,
    CopyAhead,
    Prefetcher,
    as_graph,
    host_images,
    language_training,
    region,
    size,
    tensor,
    vision,
)
from planted.registry import case

if TYPE_CHECKING:
    from planted.parts import Training
    from planted.registry import Step

BUSY = ("tensor-compute",)


def _large_training() -> Training:
    return language_training(size(2048, 64), size(4, 1), size(8, 1), size(1024, 8), size(16384, 64))


@case("saturated", accept=BUSY, healthy=True, training=True, steps=3)
def healthy_lm_training(variant: str) -> Step:
    """Training of a bfloat16 decoder of width 2048 on 8 x 1024 tokens, fused attention, fused AdamW, no read-back."""
    return _large_training()


@case("saturated", accept=BUSY, healthy=True, training=True, steps=3, ranges=False, profiler={"with_stack": True})
def healthy_training_with_log(variant: str) -> Step:
    """The same, with one `loss.item()` a step for the log: a wait, but one that costs next to nothing."""
    step = _large_training()
    return lambda: step().item()


@case("saturated", accept=BUSY, healthy=True, steps=4)
def healthy_vit_batch(variant: str) -> Step:
    """DeiT-B/16 inference, fp16, 128 images at once."""
    model, images = vision(), tensor(size(128, 1), 3, SIDE, SIDE, dtype=FP16)
    return lambda: model(images)


@case("saturated", accept=BUSY, healthy=True, steps=6, ranges=False)
def healthy_gemm_loop(variant: str) -> Step:
    """Products of 8192 x 8192 bfloat16 matrices, four a step."""
    side = size(8192, 16)
    x, weight = tensor(side, side), tensor(side, side) / side**0.5

    def step() -> None:
        y = x
        for _ in range(4):
            y = y @ weight

    return step


@case("saturated", accept=BUSY, healthy=True)
def healthy_input_pipeline(variant: str) -> Step:
    """Batches of 192 images from pinned memory, copied ahead on a stream of their own, prepared by threads."""
    model = vision()
    images = [host_images(size(192, 2), pinned=True) for _ in range(2)]
    prepared = Prefetcher(images[0].sum, workers=1)
    source = CopyAhead(images)

    def step() -> None:
        prepared()
        with region("load"):
            batch = source()
        with region("forward"):
            model(batch.to(FP16))

    return Closing(step, prepared.close)


@case("saturated", accept=BUSY, healthy=True, sync_each_step=True)
def healthy_graph_inference(variant: str) -> Step:
    """DeiT-B/16, batch 32, from a CUDA graph traced node by node, the host waiting for each result."""
    model, images = vision(), tensor(size(32, 1), 3, SIDE, SIDE, dtype=FP16)
    return as_graph(lambda: model(images))


@case("saturated", accept=BUSY, healthy=True, recorded_warmup=2)
def healthy_flash_attention(variant: str) -> Step:
    """Fused attention over 16 heads of 64 x 8192 tokens, batch 2, four times; two warm-up steps are in the profile."""
    q, k, v = tensor(3, size(2, 1), size(16, 2), size(8192, 16), 64)

    def step() -> None:
        x = q
        for _ in range(4):
            x = functional.scaled_dot_product_attention(x, k, v)

    return step


@case("saturated", accept=BUSY, healthy=True, training=True, steps=3, sync_each_step=True)
def healthy_short_context_training(variant: str) -> Step:
    """Training on 64 x 128 tokens, the host waiting for the GPU once a step, as a loop that measures its steps does."""
    return language_training(size(2048, 64), size(4, 1), size(64, 1), size(128, 8), size(8192, 64))
