"""Writes the hand-made traces in this folder: small enough to be checked with a pencil.

python write_cases.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def event(category: str, name: str, start: float, length: float, **args: Any) -> Event:
    """One complete event; work on the GPU has a stream."""
    place = {"pid": 0, "tid": args["stream"]} if "stream" in args else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, **place, "ts": start, "dur": length, "args": args}


def launch(start: float, length: float, correlation: int, name: str = "cudaLaunchKernel") -> Event:
    """The call that launches the work with this correlation id."""
    return event("cuda_runtime", name, start, length, correlation=correlation)


def kernel(start: float, length: float, correlation: int, name: str = "gemm", stream: int = 7) -> Event:
    """One kernel."""
    place = {"device": 0, "context": 1, "stream": stream, "grid": [1, 1, 1], "block": [32, 1, 1]}
    return event("kernel", name, start, length, correlation=correlation, **place)


def step(number: int, start: float, length: float) -> Event:
    """One step of the profiler."""
    return event("user_annotation", f"ProfilerStep#{number}", start, length)


CASES = {
    # Four kernels of 1.9 µs, each 2.0 µs after the last one's begin: busy 7.6 of 7.9 µs.
    "short_kernels": [
        *(launch(100 + 2 * n, 1, n + 1) for n in range(4)),
        *(kernel(1000.6 + 2 * n, 1.9, n + 1) for n in range(4)),
    ],
    # A kernel of 100 µs, then the host waits for the GPU, which is idle for 400 µs, then a kernel of 100 µs.
    "waiting_is_no_work": [
        launch(900, 10, 1),
        kernel(1000, 100, 1),
        event("cuda_sync", "Context Sync", 1150, 300, stream=7, device=0, context=1, correlation=9),
        launch(1450, 10, 2),
        kernel(1500, 100, 2),
    ],
    # Two steps; the work of 400 µs before the second kernel was launched before the recording began.
    "launched_before": [
        step(1, 1000, 1000),
        step(2, 2000, 1000),
        kernel(1010, 400, 50),
        launch(1400, 10, 1),
        kernel(1500, 100, 1),
        launch(2400, 10, 2),
        kernel(2500, 100, 2),
    ],
    # One graph of three kernels, one launch of a kernel.
    "graph_replay": [
        launch(100, 10, 1, "cudaGraphLaunch"),
        *(kernel(200 + 100 * n, 50, 1) for n in range(3)),
        launch(520, 10, 2),
        kernel(600, 50, 2),
    ],
    # Communication 0–100, compute 60–160: 40 of 100 are hidden.
    "overlap": [
        launch(900, 10, 1),
        launch(920, 10, 2),
        kernel(1000, 100, 1, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", stream=20),
        kernel(1060, 100, 2),
    ],
}


def main() -> None:
    """Write every case."""
    for name, events in CASES.items():
        whole = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "deviceProperties": [], "traceEvents": events}
        Path(__file__).with_name(f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
