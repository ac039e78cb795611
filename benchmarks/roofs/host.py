"""What the host takes part in: copies between it and the GPU, and what a launch costs."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from benchmarks.roofs.cases import DATA_SHEET

__all__ = ["copies", "launches"]

Entry = dict[str, Any]


def _times(run: Callable[[], object], count: int, sync: Callable[[], None]) -> list[float]:
    run()
    sync()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        run()
        sync()
        times.append(time.perf_counter() - begin)
    return times


def _entry(kind: str, op: str, values: list[float], unit: str, **sizes: Any) -> Entry:
    ordered = sorted(values)
    tenth = len(ordered) // 10
    numbers = (statistics.median(ordered), ordered[tenth], ordered[-1 - tenth])
    rate, low, high = (float(f"{value:.4g}") for value in numbers)
    return {"kind": kind, "op": op, **sizes, "rate": rate, "low": low, "high": high, "unit": unit}


def copies(device: str, *, tiny: bool) -> list[Entry]:
    """Copies to the GPU, from it, and on it, from pinned and from pageable memory."""
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    entries = []
    for length in (4, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28):
        count = 256 if tiny else length
        here = torch.randint(0, 100, (count,), device=device, dtype=torch.uint8)
        for memory in ("pinned", "pageable"):
            host = torch.randint(0, 100, (count,), dtype=torch.uint8)
            if memory == "pinned" and device == "cuda":
                host = host.pin_memory()
            for op, target, source in (("host_to_device", here, host), ("device_to_host", host, here)):
                times = _times(lambda t=target, s=source: t.copy_(s, non_blocking=True), 9, sync)
                rates = [count / t / 1e9 for t in times]
                item = _entry("transfer", op, rates, "GB/s", bytes=count, memory=memory)
                entries.append(
                    {**item, "peak_share": round(item["rate"] * 1e9 / DATA_SHEET["host_link"], 4), "us": _us(times)}
                )
    for length in (1 << 20, 1 << 24, 1 << 28, 1 << 31):
        count = 256 if tiny else length
        source = torch.randint(0, 100, (count,), device=device, dtype=torch.uint8)
        target = torch.empty_like(source)
        times = _on_gpu(lambda t=target, s=source: t.copy_(s), 20, device)
        item = _entry("transfer", "device_to_device", [2 * count / t / 1e9 for t in times], "GB/s", bytes=2 * count)
        share = item["rate"] * 1e9 / DATA_SHEET["memory"]
        entries.append({**item, "peak_share": round(share, 4), "us": _us(times)})
    return entries


def _us(times: list[float]) -> float:
    return float(f"{statistics.median(times) * 1e6:.4g}")


def _on_gpu(run: Callable[[], object], count: int, device: str) -> list[float]:
    """Seconds of each run by CUDA events."""
    if device != "cuda":
        return _times(run, 3, lambda: None)
    run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    for mark in marks[:-1]:
        mark.record()
        run()
    marks[-1].record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(marks)]


def launches(device: str, *, tiny: bool) -> list[Entry]:
    """What the host spends on a launch, how close together kernels start, and what an empty kernel takes."""
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    count = 10 if tiny else 1000
    dtype = torch.bfloat16
    small = torch.zeros(1, device=device)
    x, weight = torch.randn(64, 64, device=device, dtype=dtype), torch.randn(64, 64, device=device, dtype=dtype)
    tracked = weight.clone().requires_grad_()
    operations: dict[str, Callable[[], object]] = {
        "add_": lambda: small.add_(1),
        "mul": lambda: small * 2,
        "linear": lambda: functional.linear(x, weight),
        "linear_with_autograd": lambda: functional.linear(x, tracked),
        "layer_norm": lambda: functional.layer_norm(x, (64,)),
        "attention": lambda: functional.scaled_dot_product_attention(*[x[None, None]] * 3),
        "embedding": lambda: functional.embedding(torch.zeros(1, dtype=torch.long, device=device), weight),
        "item": small.item,
        "empty_tensor": lambda: torch.empty(64, device=device),
    }
    entries = []
    for name, run in operations.items():
        rounds = []
        for _ in range(7):
            sync()
            begin = time.perf_counter()
            for _ in range(count):
                run()
            # The host's time: what is queued is not waited for, and a thousand small kernels fit the queue.
            rounds.append((time.perf_counter() - begin) / count * 1e6)
        entries.append(_entry("launch", f"eager_{name}", rounds, "us"))
    if device == "cuda":
        entries += _queued(small, count) + _graphs(small) + _durations(small)
    return entries


def _queued(small: torch.Tensor, count: int) -> list[Entry]:
    """The interval between kernels that wait in the queue already."""
    rounds = []
    for _ in range(7):
        torch.cuda._sleep(40_000_000)  # 20 ms, in which the host gets ahead
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(count // 2):
            small.add_(1)
        last.record()
        torch.cuda.synchronize()
        rounds.append(first.elapsed_time(last) / (count // 2) * 1e3)
    return [_entry("launch", "queued_kernel_interval", rounds, "us")]


def _graphs(small: torch.Tensor) -> list[Entry]:
    """Intervals between the nodes of graphs, and what the host spends on launching one."""
    entries = []
    for nodes in (10, 100, 1000):
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            small.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                small.add_(1)
        rounds, host = [], []
        for _ in range(12):
            graph.replay()
            torch.cuda.synchronize()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            begin = time.perf_counter()
            graph.replay()
            host.append((time.perf_counter() - begin) * 1e6)
            last.record()
            torch.cuda.synchronize()
            rounds.append(first.elapsed_time(last) * 1e3 / nodes)
        entries.append(_entry("launch", "graph_node_interval", rounds, "us", nodes=nodes))
        entries.append(_entry("launch", "graph_launch_host", host, "us", nodes=nodes))
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        small.add_(1)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    entries.append(_entry("launch", "launch_and_wait", times, "us"))
    return entries


def _durations(small: torch.Tensor) -> list[Entry]:
    """What CUPTI says that the shortest kernels take."""
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    wide = torch.randn(32, 768, device="cuda", dtype=torch.bfloat16)
    runs: dict[str, Callable[[], object]] = {
        "elementwise_1": lambda: small.add_(1),
        "elementwise_4096": lambda: x * 2,
        "sum_4096": x.sum,
        "product_64": lambda: x @ x,
        "layer_norm_32x768": lambda: functional.layer_norm(wide, (768,)),
        "fill_1": small.zero_,
    }
    entries = []
    for name, run in runs.items():
        run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(50):
                run()
            torch.cuda.synchronize()
        events = profiler.profiler.kineto_results.events()
        found = [e.duration_ns() / 1e3 for e in events if e.device_type() == torch.autograd.DeviceType.CUDA]
        found = [value for value in found if value > 0]
        if found:
            entries.append(_entry("launch", f"kernel_duration_{name}", found, "us"))
    return entries
