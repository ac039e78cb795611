"""Causes in memory: copies, the allocator, bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from common import CUDA, DEVICE
from torch import Tensor, nn
from torch.nn import functional

from planted.parts import FP16, HALF, CopyAhead, Stack, host_images, region, size, tensor, vision
from planted.registry import BASELINE, case

if TYPE_CHECKING:
    from planted.registry import Step


@case(
    "blocking-copy",
    remedies=("pinned",),
    captured=(BASELINE, "pinned"),
    planted={"copied_bytes_per_step": 64 * 3 * 224**2 * 4},
)
def pageable_input(variant: str) -> Step:
    """64 images a step from pageable memory: the copy blocks the host, at a fraction of the link's bandwidth."""
    model = vision()
    images = host_images(size(64, 2), pinned=variant != BASELINE)
    source = CopyAhead([images]) if variant == "pinned" else lambda: images.to(DEVICE)

    def step() -> None:
        with region("load"):
            batch = source()
        with region("forward"):
            model(batch.to(FP16))

    return step


@case("blocking-copy", remedies=("pinned",), ranges=False, planted={"copied_bytes_per_step": 16 * 16 * 256**2 * 4})
def pageable_output(variant: str) -> Step:
    """Segmentation that fetches its result (67 MB of scores) to pageable memory after each batch."""
    channels, side, batch = size(128, 8), size(256, 8), size(16, 1)
    convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(6))
    model = nn.Sequential(nn.Conv2d(3, channels, 1), *convolutions, nn.Conv2d(channels, 16, 1))
    model = model.to(DEVICE, FP16, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    x = tensor(batch, 3, side, side, dtype=FP16).to(memory_format=torch.channels_last)
    results = [torch.empty(batch, 16, side, side, pin_memory=CUDA) for _ in range(2)]
    fetches = torch.cuda.Stream() if CUDA else None
    turn = [0]

    def step() -> None:
        scores = model(x).float().contiguous()
        if variant == BASELINE or fetches is None:
            scores.cpu()
            return
        fetches.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(fetches):
            results[turn[0] % 2].copy_(scores, non_blocking=True)
        scores.record_stream(fetches)
        turn[0] += 1

    return step


@case("blocking-copy", remedies=("prefetch",), planted={"copied_bytes_per_step": 128 * 3 * 224**2 * 4})
def copy_in_the_way(variant: str) -> Step:
    """Pinned and non-blocking, but on the stream of the kernels: 77 MB a step during which nothing computes."""
    model = vision(blocks=2)
    images = host_images(size(128, 2), pinned=True)
    source = CopyAhead([images]) if variant == "prefetch" else lambda: images.to(DEVICE, non_blocking=True)

    def step() -> None:
        model(source().to(FP16))

    return step


def _activations(rows: int) -> tuple[Stack, Tensor]:
    width = size(2048, 16)
    return Stack(width, size(10, 2), HALF), tensor(rows, width)


@case(
    "allocator-churn",
    remedies=("caching",),
    training=True,
    steps=4,
    environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    profiler={"profile_memory": True},
)
def no_caching_allocator(variant: str) -> Step:
    """Forward and backward pass with the caching allocator switched off: cudaMalloc and cudaFree for every tensor."""
    model, x = _activations(size(8192, 8))

    def step() -> None:
        with region("forward"):
            loss = model(x).float().mean()
        with region("backward"):
            loss.backward()
        model.zero_grad(set_to_none=True)

    return step


@case("allocator-churn", remedies=("caching",), training=True, steps=4, ranges=False)
def empty_cache_each_step(variant: str) -> Step:
    """Forward and backward pass with `torch.cuda.empty_cache()`: all memory is given back and asked for again."""
    model, x = _activations(size(16384, 8))

    def step() -> None:
        loss = model(x).float().mean()
        loss.backward()
        del loss
        model.zero_grad(set_to_none=True)
        if variant == BASELINE and CUDA:
            torch.cuda.empty_cache()

    return step


@case("memory-bandwidth", accept=("saturated",), remedies=("half-bytes",))
def elementwise_chain(variant: str) -> Step:
    """Bias, GELU, scale, residual, one kernel each, over 268 MB in fp32: the GPU is busy, its memory is the limit."""
    dtype = torch.bfloat16 if variant == "half-bytes" else torch.float32
    x, bias, scale = (tensor(*shape, dtype=dtype) for shape in ((size(16384, 8), 4096), (4096,), (4096,)))

    def step() -> None:
        y = x
        for _ in range(size(6, 1)):
            y = x + functional.gelu(y + bias) * scale

    return step


@case("memory-bandwidth", accept=("saturated",), ranges=False, remedies=("fused-norm",))
def written_out_norms(variant: str) -> Step:
    """Norms and softmax written out operation by operation, over large fp32 tensors; hardly any products."""
    rows, width = size(16384, 8), size(4096, 16)
    x, gain, weight = tensor(rows, width, dtype=torch.float32), tensor(width, dtype=torch.float32), tensor(width, 256)

    def norm(x: Tensor) -> Tensor:
        if variant == "fused-norm":
            return functional.rms_norm(x, (width,), gain, 1e-5)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain

    def softmax(x: Tensor) -> Tensor:
        if variant == "fused-norm":
            return x.softmax(dim=-1)
        exponential = torch.exp(x - x.amax(dim=-1, keepdim=True))
        return exponential / exponential.sum(dim=-1, keepdim=True)

    def step() -> None:
        y = x
        for _ in range(size(3, 1)):
            y = x + softmax(norm(y))
        y[: rows // 8].to(HALF) @ weight

    return step
