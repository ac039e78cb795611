"""Two programs of two ranks, each before and after a habit is mended: timed without a profiler, and recorded.

    python captures/two_ranks.py time PROGRAM OUT             # both variants in turn; then torch.profiler of `before`
    nsys profile … python captures/two_ranks.py nsys PROGRAM OUT     # a few steps of `before`

PROGRAM is `gradients_one_by_one` (an all-reduce for each parameter after the backward pass; mended: DDP's buckets) or
`pipeline_of_one` (two stages, the whole batch at once; mended: eight micro-batches). `RANKS_DEVICE=cpu` tries them,
tiny, with gloo.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

CUDA = os.environ.get("RANKS_DEVICE", "cuda") == "cuda"
#: Steps before anything counts; rounds and steps of a round; steps that each profiler records.
WARMUP, ROUNDS, A_ROUND, RECORDED = (5, 12, 4, 3) if CUDA else (1, 2, 1, 2)
DEVICE = torch.device("cuda" if CUDA else "cpu")  # of a rank, once it has set its device
Step = Callable[[], None]


def layers(count: int, width: int) -> nn.Sequential:
    """Linear layers with an activation behind each, in bfloat16."""
    if not CUDA:
        count, width = 2, 32
    made = [nn.Sequential(nn.Linear(width, width), nn.GELU("tanh")) for _ in range(count)]
    return nn.Sequential(*made).to(DEVICE, torch.bfloat16 if CUDA else torch.float32)


def gradients_one_by_one(variant: str) -> Step:
    """Data-parallel training of 100 layers of 512 on 49,152 rows a rank."""
    model = layers(100, 512)
    first = next(model.parameters())
    x = torch.randn(49_152 if CUDA else 8, first.shape[1], device=DEVICE, dtype=first.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=CUDA)
    parallel = nn.parallel.DistributedDataParallel(model) if variant == "after" else model

    def step() -> None:
        parallel(x).square().mean().backward()
        if variant == "before":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline_of_one(variant: str) -> Step:
    """Training of 8 layers of 8,192 on 16,384 rows, half of the layers on each rank."""
    stage = layers(4, 8192)
    first_weight = next(stage.parameters())
    parts = 1 if variant == "before" else 8
    shape = ((16_384 if CUDA else 16) // parts, first_weight.shape[1])
    made = {"device": DEVICE, "dtype": first_weight.dtype}
    inputs = [torch.randn(shape, **made) for _ in range(parts)]
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-4, fused=CUDA)

    def first() -> None:
        sent = []
        for x in inputs:
            y = stage(x)
            dist.send(y.detach(), 1)
            sent.append(y)
        for y in sent:
            gradient = torch.empty(shape, **made)
            dist.recv(gradient, 1)
            y.backward(gradient)

    def last() -> None:
        done: list[tuple[Tensor, Tensor]] = []
        for _ in range(parts):
            x = torch.empty(shape, **made)
            dist.recv(x, 0)
            x.requires_grad_()
            done.append((x, stage(x).square().mean() / parts))
        for x, loss in done:
            loss.backward()
            assert x.grad is not None
            dist.send(x.grad, 0)

    def step() -> None:
        first() if dist.get_rank() == 0 else last()
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS = {"gradients_one_by_one": gradients_one_by_one, "pipeline_of_one": pipeline_of_one}


def synchronize() -> None:
    """Waits for this rank's GPU, and for the other rank."""
    if CUDA:
        torch.cuda.synchronize()
    dist.barrier()
    if CUDA:
        torch.cuda.synchronize()


def timed(steps: dict[str, Step]) -> dict[str, list[float]]:
    """Milliseconds per step of each variant, measured in turns, round by round."""
    samples: dict[str, list[float]] = {variant: [] for variant in steps}
    for number in range(ROUNDS):
        for variant in list(steps)[:: 1 if number % 2 == 0 else -1]:
            steps[variant]()
            synchronize()
            begin = time.perf_counter()
            for _ in range(A_ROUND):
                steps[variant]()
            synchronize()
            samples[variant].append((time.perf_counter() - begin) / A_ROUND * 1e3)
    return samples


def traced(step: Step, path: Path) -> None:
    """A few steps under torch.profiler, one file per rank."""
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if CUDA else [])]
    synchronize()
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(RECORDED):
            with torch.profiler.record_function("step"):
                step()
        synchronize()
    profiler.export_chrome_trace(str(path))


def under_nsys(step: Step) -> None:
    """A few steps in ranges, between cudaProfilerStart and Stop."""
    synchronize()
    if CUDA:
        torch.cuda.profiler.start()
    synchronize()
    for _ in range(RECORDED):
        with torch.cuda.nvtx.range("step") if CUDA else contextlib.nullcontext():
            step()
    synchronize()
    if CUDA:
        torch.cuda.profiler.stop()


def rank_of_two(rank: int, how: str, name: str, out: str) -> None:
    """The program of one rank."""
    if CUDA:
        torch.cuda.set_device(rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29511")}
    dist.init_process_group("nccl" if CUDA else "gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    variants = ("before",) if how == "nsys" else ("before", "after")
    steps = {variant: PROGRAMS[name](variant) for variant in variants}
    for step in steps.values():
        for _ in range(WARMUP):
            step()
    synchronize()
    if how == "nsys":
        under_nsys(steps["before"])
    else:
        samples = timed(steps)
        if rank == 0:
            result: dict[str, Any] = {"name": name, "samples_ms": samples, "ratio": statistics.median(
                before / after for before, after in zip(samples["before"], samples["after"], strict=True))}  # fmt: skip
            (Path(out) / f"{name}.json").write_text(json.dumps(result))
            print(name, {key: round(statistics.median(values), 3) for key, values in samples.items()}, result["ratio"])
        traced(steps["before"], Path(out) / f"{name}__rank{rank}.pt.trace.json")
    synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(rank_of_two, sys.argv[1:4], nprocs=2, start_method="spawn")
