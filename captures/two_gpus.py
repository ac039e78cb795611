"""Programs in which one process drives two GPUs, each before and after a change: timed without a profiler, recorded.

`MODULE=two_gpus.py captures/two_ranks.sh OUT` runs all of them. By hand: `python captures/two_gpus.py time PROGRAM OUT`
times both variants in turn and records `before` with torch.profiler; `nsys profile … python captures/two_gpus.py nsys
PROGRAM OUT` runs a few steps of `before`; `list` names the programs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn

CUDA = torch.cuda.is_available()
#: Without GPUs, the programs are tried, tiny.
GPUS = [torch.device("cuda:0"), torch.device("cuda:1")] if CUDA else [torch.device("cpu")] * 2
HALF = torch.bfloat16 if CUDA else torch.float32
WARMUP, ROUNDS, A_ROUND, RECORDED = (5, 12, 4, 3) if CUDA else (1, 2, 1, 2)
Step = Callable[[], object]


def size(full: int, tiny: int) -> int:
    """A size for GPUs, or the one for trying the program."""
    return full if CUDA else tiny


def split(counts: tuple[int, int], width: int, micro_batches: int) -> Step:
    """A stack of encoder layers over two GPUs, without gradients; the batch goes through in some parts."""
    torch.manual_seed(0)
    stages = []
    for device, count in zip(GPUS, counts, strict=True):
        layers = [
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(size(count, 1))
        ]
        stages.append(nn.Sequential(*layers).to(device, HALF).eval())
    x = torch.randn(size(32, 4), size(1024, 8), width, device=GPUS[0], dtype=HALF)

    @torch.inference_mode()
    def step() -> list[Tensor]:
        return [stages[1](stages[0](part).to(GPUS[1], non_blocking=True)) for part in x.chunk(micro_batches)]

    return step


def layers_in_turn(variant: str) -> Step:
    """24 layers of 2,048, half of them on each GPU as `device_map="auto"` puts them; mended: eight micro-batches."""
    return split((12, 12), size(2048, 64), 8 if variant == "after" else 1)


def layers_split_unevenly(variant: str) -> Step:
    """24 layers in eight micro-batches, 18 of them on the first GPU; mended: 12 on each."""
    return split((12, 12) if variant == "after" else (18, 6), size(2048, 64), 8)


def sixteen_micro_batches(variant: str) -> Step:
    """24 layers, 12 on each GPU, in sixteen micro-batches, which the host cannot launch as fast; mended: eight."""
    return split((12, 12), size(2048, 64), 8 if variant == "after" else 16)


def images_dealt_unevenly(variant: str) -> Step:
    """A ResNet-50 on each GPU classifies images: 3 of 4 go to the first GPU; mended: half of them to each."""
    torch.manual_seed(0)
    models = [
        torchvision.models.resnet50(num_classes=1000).to(gpu, HALF, memory_format=torch.channels_last).eval()
        for gpu in GPUS
    ]
    batch, side = size(1024, 4), size(224, 64)
    first = batch // 2 if variant == "after" else batch * 3 // 4
    parts = [
        torch.randn(count, 3, side, side, device=gpu, dtype=HALF).contiguous(memory_format=torch.channels_last)
        for gpu, count in zip(GPUS, (first, batch - first), strict=True)
    ]

    @torch.inference_mode()
    def step() -> list[Tensor]:
        made = [model(part).argmax(1) for model, part in zip(models, parts, strict=True)]
        return [each.cpu() for each in made]

    return step


def data_parallel_training(variant: str) -> Step:
    """A ResNet-50 in mixed precision learns from 256 images, by DataParallel; mended: on one GPU, which is as fast."""
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.resnet50(num_classes=1000).to(GPUS[0], memory_format=torch.channels_last)
    if variant == "before" and CUDA:
        model = nn.DataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    batch, side = size(256, 4), size(224, 64)
    x = torch.randn(batch, 3, side, side, device=GPUS[0]).contiguous(memory_format=torch.channels_last)
    y = torch.randint(1000, (batch,), device=GPUS[0])

    def step() -> None:
        with torch.autocast(GPUS[0].type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS = {
    each.__name__: each
    for each in (
        layers_in_turn,
        layers_split_unevenly,
        images_dealt_unevenly,
        data_parallel_training,
        sixteen_micro_batches,
    )
}


def synchronize() -> None:
    """Waits for both GPUs."""
    for gpu in GPUS if CUDA else ():
        torch.cuda.synchronize(gpu)


def timed(steps: dict[str, Step]) -> dict[str, list[float]]:
    """Milliseconds of a step, round by round, the variants in turn."""
    samples: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(ROUNDS):
        for variant, step in steps.items():
            step()
            samples[variant].append(a_round(step))
    return samples


def a_round(step: Step) -> float:
    """Milliseconds of a step in one round."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(A_ROUND):
        step()
    synchronize()
    return round((time.perf_counter() - begin) * 1e3 / A_ROUND, 4)


def measured(name: str, samples: dict[str, list[float]], step: Step, out: Path) -> None:
    """Writes a program's times and medians, and records some steps of it with torch.profiler."""
    record = {"name": name, "samples_ms": samples, "ms": {key: statistics.median(row) for key, row in samples.items()}}
    (out / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(RECORDED):
            with torch.profiler.record_function("step"):
                step()
        synchronize()
    profiler.export_chrome_trace(str(out / f"{name}.pt.trace.json"))
    os._exit(0)


def run_under_nsys(step: Step) -> None:
    """Some steps, for nsys to record."""
    torch.cuda.profiler.start()
    for _ in range(RECORDED):
        with torch.cuda.nvtx.range("step"):
            step()
    synchronize()
    torch.cuda.profiler.stop()


def main() -> None:
    """Times a program and records it with torch.profiler, or runs the steps that nsys records."""
    if sys.argv[1] == "list":
        print(json.dumps(list(PROGRAMS)))
        return
    how, name, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    variants = ("before",) if how == "nsys" else ("before", "after")
    steps = {variant: PROGRAMS[name](variant) for variant in variants}
    for step in steps.values():
        for _ in range(WARMUP):
            step()
    synchronize()
    if how == "nsys":
        run_under_nsys(steps["before"])
    else:
        measured(name, timed(steps), steps["before"], out)


if __name__ == "__main__":
    main()
