"""Data-parallel training of the transformer language model on two GPUs: healthy, with a straggler, or exposed.

    python ddp_straggler.py --runs healthy straggler-gpu straggler-host exposed --torch FOLDER
    nsys profile … python ddp_straggler.py --runs straggler-gpu

One process a GPU, NCCL, PyTorch's DistributedDataParallel. The runs: `healthy`; `straggler-gpu`, whose rank 1 computes
matrix products of its own for `--slow-ms` milliseconds before each backward pass; `straggler-host`, whose rank 1 sleeps
for so long before each forward pass, as for its input; `exposed`, whose gradients all go into one bucket, so that none
is reduced while others are still computed. Without FOLDER the steps run between cudaProfilerStart and Stop.

NVTX ranges or annotations: `step` (in torch.profiler's traces its own `ProfilerStep#…`), in it `forward`, `backward`,
`optimizer`, and `extra_work` where rank 1 is slow.

In FOLDER: `RUN_rankN.json`, a Chrome trace a rank; and in `--records` a JSON line for each rank and run: the median and
quartiles of the step time without a profiler, the steps while profiled, and how long the planted work really took.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from common import CUDA, DEVICE, PARTS, recorded, synchronize
from planted.parts import Annotations, region
from torch import distributed, multiprocessing
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from warplens.workloads.settings import LM_SIZES, LMSize
from warplens.workloads.transformer_lm import TransformerLM

RUNS = ("healthy", "straggler-gpu", "straggler-host", "exposed")
WARMUP, STEPS, TIMED = 4, 5, 40
#: Mega-bytes of gradients that are reduced together: PyTorch's default, and more than the model has.
BUCKET_MB, ONE_BUCKET_MB = 25, 10_000


class Slowness:
    """The additional delay of rank 1."""

    def __init__(self, run: str, rank: int, milliseconds: float) -> None:
        self.kind = run.partition("-")[2] if rank == 1 else ""
        self.milliseconds = milliseconds
        self.products = 0
        if self.kind == "gpu":
            device = "cuda" if CUDA else "cpu"
            self.matrix = torch.randn(4096 if CUDA else 64, 4096 if CUDA else 64, device=device)
            self._calibrate()

    def _calibrate(self) -> None:
        for count in (20, 20):  # the second time the GPU is at its clock
            begin = time.perf_counter()
            self._multiply(count)
            synchronize()
            product_ms = (time.perf_counter() - begin) / count * 1e3
        self.products = max(1, round(self.milliseconds / product_ms)) if CUDA else 1

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            torch.mm(self.matrix, self.matrix)

    def before_forward(self) -> None:
        """Sleeps, in the case of a slow host."""
        if self.kind == "host":
            with region("extra_work"):
                time.sleep(self.milliseconds / 1e3 if CUDA else 0.001)

    def before_backward(self) -> None:
        """Computes, in the case of a slow GPU."""
        if self.kind == "gpu":
            with region("extra_work"):
                self._multiply(self.products)

    def measured_ns(self) -> int:
        """Duration of the delay in a step, measured alone: median of nine."""
        times = []
        for _ in range(9):
            begin = time.perf_counter_ns()
            self.before_forward()
            self.before_backward()
            synchronize()
            times.append(time.perf_counter_ns() - begin)
        return sorted(times)[4] if self.kind else 0


def training_step(run: str, rank: int, slowness: Slowness) -> Callable[[], None]:
    """One step of training on this rank."""
    torch.manual_seed(0)
    size, context = (LMSize(768, 3072, 4, 12), 512) if CUDA else (LM_SIZES["tiny"], 16)
    with DEVICE:
        model = TransformerLM(size, context, PARTS)
    bucket = ONE_BUCKET_MB if run == "exposed" else BUCKET_MB
    parallel = DistributedDataParallel(model, device_ids=[rank] if CUDA else None, bucket_cap_mb=bucket)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(rank)
    tokens = torch.randint(size.vocabulary, (4, context + 1), device=DEVICE)

    def step() -> None:
        slowness.before_forward()
        with region("forward"):
            logits = parallel(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        slowness.before_backward()
        with region("backward"):
            loss.backward()
        with region("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


def timed(step: Callable[[], None]) -> dict[str, int]:
    """Step times without a profiler in ns, by the host's clock, which waits for the gradients and thus for the GPUs."""
    times = []
    for _ in range(TIMED if CUDA else 3):
        begin = time.perf_counter_ns()
        step()
        synchronize()
        times.append(time.perf_counter_ns() - begin)
    q1, median, q3 = statistics.quantiles(times, n=4, method="inclusive")
    return {"median_ns": round(median), "q1_ns": round(q1), "q3_ns": round(q3)}


def profiled(step: Callable[[], None], profiler: Any = None) -> list[int]:
    """Runs the recorded steps; their times in ns by the host's clock, the last including the wait for the GPU."""
    distributed.barrier()
    synchronize()
    clock = [time.perf_counter_ns()]
    for index in range(STEPS):
        with region("step") if profiler is None else nullcontext():
            step()
        if index == STEPS - 1:
            synchronize()
        clock.append(time.perf_counter_ns())
        if profiler is not None:
            profiler.step()
    return [b - a for a, b in itertools.pairwise(clock)]


def under_torch(step: Callable[[], None], target: Path) -> list[int]:
    """Records the steps with torch.profiler."""
    kinds = torch.profiler.ProfilerActivity
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS)
    with torch.profiler.profile(
        activities=[kinds.CPU, kinds.CUDA] if CUDA else [kinds.CPU],
        record_shapes=True,
        schedule=schedule,
        on_trace_ready=lambda finished: finished.export_chrome_trace(str(target)),
    ) as profiler:
        step()
        synchronize()
        profiler.step()
        return profiled(step, profiler)


def worker(rank: int, options: argparse.Namespace) -> None:
    """The program of one rank, for all runs."""
    if CUDA:
        torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = True
    Annotations.kind = "torch" if options.torch else "nvtx"
    distributed.init_process_group("nccl" if CUDA else "gloo", rank=rank, world_size=options.ranks)
    for run in options.runs:
        slowness = Slowness(run, rank, options.slow_ms)
        step = training_step(run, rank, slowness)
        for _ in range(WARMUP):
            step()
        synchronize()
        record: dict[str, object] = {"run": run, "rank": rank, "planted_ms": options.slow_ms if slowness.kind else 0}
        record["planted_measured_ns"] = slowness.measured_ns()
        if options.torch:
            distributed.barrier()
            record["unprofiled"] = timed(step)
            record["torch_steps_ns"] = under_torch(step, options.torch / f"{run}_rank{rank}.json")
        else:
            distributed.barrier()
            with recorded():
                record["nsys_steps_ns"] = profiled(step)
        if options.records:
            with options.records.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)
        del step
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> None:
    """Starts a process per GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--slow-ms", type=float, default=12.0)
    parser.add_argument("--torch", type=Path, help="folder for Chrome traces (default: leave it to nsys)")
    parser.add_argument("--records", type=Path, help="file of JSON lines to add to")
    options = parser.parse_args()
    if options.torch:
        options.torch.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    multiprocessing.spawn(worker, args=(options,), nprocs=options.ranks)


if __name__ == "__main__":
    main()
