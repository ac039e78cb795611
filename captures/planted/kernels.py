"""Causes in the kernels themselves: precision, small grids, optimizers; graphs, streams, and an incomplete profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from common import CUDA, DEVICE
from torch import Tensor, nn
from torch.nn import functional

from planted.parts import FP16, HALF, SIDE, LanguageModel, Stack, Training, as_graph, region, size, tensor, vision
from planted.registry import BASELINE, case
from warplens.workloads.transformer_lm import ReferenceAdamW

if TYPE_CHECKING:
    from planted.registry import Step


@case("precision", remedies=("tf32",), captured=(BASELINE, "tf32"), steps=4)
def fp32_products(variant: str) -> Step:
    """Feed-forward layers in fp32 with TF32 off, the GPU busy: products run beside the tensor cores."""
    torch.backends.cuda.matmul.allow_tf32 = variant == "tf32"
    width, tokens = size(2048, 16), size(2048, 8)
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(3)
    ).to(DEVICE)
    x = tensor(tokens, width, dtype=torch.float32)

    def step() -> None:
        y = x
        for layer in layers:
            y = y + layer(y)

    return step


@case("precision", remedies=("bf16",), training=True, steps=3, ranges=False)
def fp32_training(variant: str) -> Step:
    """Training of a decoder in fp32 with TF32 off and fused attention: bfloat16 would do."""
    width, context, vocabulary = size(1024, 64), size(512, 8), size(4096, 64)
    dtype = torch.float32 if variant == BASELINE else torch.bfloat16
    with DEVICE:
        model = LanguageModel(vocabulary, width, size(3, 1), context, dtype)
    tokens = torch.randint(vocabulary, (size(8, 1), context + 1), device=DEVICE)
    return Training(model, tokens, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True))


@case("small-kernels", accept=("occupancy",), remedies=("larger-batch",), ranges=False)
def four_blocks(variant: str) -> Step:
    """Norm and softmax over 4 rows of 131,072 numbers: one block a row, 4 of 132 multiprocessors, and those busy."""
    rows = 4 if variant == BASELINE else 128
    width = size(131_072, 64)
    x = tensor(rows, width, dtype=torch.float32)

    def step() -> None:
        y = x
        for _ in range(size(12, 2)):
            y = functional.layer_norm(y, (width,)).softmax(dim=-1)

    return step


@case("small-kernels", accept=("occupancy",), recorded_warmup=1, graph_trace="node")
def small_kernels_graph(variant: str) -> Step:
    """A recurrent scan in a CUDA graph, traced node by node: long kernels of 16 blocks back to back."""
    width, rows = size(65_536, 32), 16
    x = tensor(rows, width, dtype=torch.float32)

    def step() -> Tensor:
        y = x
        for _ in range(size(40, 2)):
            y = functional.layer_norm(y, (width,))
        return y

    return as_graph(step)


def _many_parameters() -> tuple[Stack, Tensor]:
    return Stack(size(512, 16), size(24, 2), torch.float32), tensor(size(2048, 8), size(512, 16), dtype=torch.float32)


@case("unfused-optimizer", accept=("launch-overhead",), remedies=("fused",), training=True, steps=3)
def for_loop_adam(variant: str) -> Step:
    """AdamW one tensor after another over 48 parameters: the optimizer issues most of the step's launches."""
    torch.backends.cuda.matmul.allow_tf32 = True
    model, x = _many_parameters()
    options = {"fused": True} if variant == "fused" else {"foreach": False, "fused": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)

    def step() -> None:
        with region("forward"):
            loss = model(x).mean()
        with region("backward"):
            loss.backward()
        with region("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


@case("unfused-optimizer", accept=("memory-bandwidth",), remedies=("fused",), training=True, steps=3)
def written_out_adam_large(variant: str) -> Step:
    """AdamW written out over 12 matrices of 67 MB, 16 kernels and 132 bytes a number: the GPU is busy with them."""
    torch.backends.cuda.matmul.allow_tf32 = True
    model = Stack(size(4096, 16), size(12, 2), torch.float32)
    x = tensor(size(512, 4), size(4096, 16), dtype=torch.float32)
    parameters = model.parameters()
    kind = torch.optim.AdamW if variant == "fused" else ReferenceAdamW
    optimizer = kind(parameters, lr=1e-4, **({"fused": True} if variant == "fused" else {}))

    def step() -> None:
        with region("forward"):
            loss = model(x).mean()
        with region("backward"):
            loss.backward()
        with region("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


@case("graph-opaque", accept=("saturated",), graph_trace="graph", sources=("nsys",))
def vit_graph_whole(variant: str) -> Step:
    """DeiT-B/16, batch 32, replayed from a CUDA graph that is traced as one interval: busy, but with what?"""
    model, images = vision(), tensor(size(32, 1), 3, SIDE, SIDE, dtype=FP16)
    return as_graph(lambda: model(images))


@case("", remedies=("one-stream",))
def stream_ping_pong(variant: str) -> Step:
    """Kernels that alternate between two streams, each waiting for the other by events.

    The idle time between them is a dependency between streams, not the host's, which is far ahead. No verdict is asked
    for; the idle cause is.
    """
    streams = [torch.cuda.Stream(), torch.cuda.Stream()] if CUDA else []
    lead, x = tensor(size(8192, 16), size(8192, 16)), tensor(size(1024, 16), size(1024, 16))

    def step() -> None:
        y = x
        for _ in range(size(3, 1)):
            lead @ lead  # so that the host gets ahead
        if not streams or variant == "one-stream":
            for _ in range(40):
                y = y @ x
            return
        streams[1].wait_stream(torch.cuda.current_stream())
        streams[0].wait_stream(torch.cuda.current_stream())
        for turn in range(40):
            mine, other = streams[turn % 2], streams[1 - turn % 2]
            mine.wait_stream(other)
            with torch.cuda.stream(mine):
                y = y @ x
                y.record_stream(other)
        torch.cuda.current_stream().wait_stream(streams[1])

    return step


@case("incomplete-profile", own_process=True, training=True, steps=2)
def aborted_step(variant: str) -> Step:
    """Training whose second recorded step gets three times the batch, and runs out of memory: half a step at the end.

    Most of the memory is taken on purpose; the error is the driver's own, and the program catches it.
    """
    vocabulary, width = size(8192, 64), size(1024, 64)
    context = size(1024, 16)
    with DEVICE:
        model = LanguageModel(vocabulary, width, size(4, 1), context, HALF)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [torch.randint(vocabulary, (size(batch, 1), context + 1), device=DEVICE) for batch in (8, 24)]
    steps = [Training(model, tokens, optimizer) for tokens in batches]
    done = [0]
    ballast: list[Tensor] = []

    def step() -> None:
        # Four warm-up steps and the first recorded one fit; what follows does not.
        done[0] += 1
        if done[0] == 5 and CUDA:
            ballast.append(torch.empty(torch.cuda.mem_get_info()[0] - 500_000_000, dtype=torch.uint8, device=DEVICE))
        try:
            steps[done[0] > 5]()
        except torch.OutOfMemoryError:
            optimizer.zero_grad(set_to_none=True)

    return step
