"""A Chrome trace of the PyTorch profiler, small enough to count by hand: two training steps of one linear module."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tests.readers.kineto_traces import event, written

MAIN, AUTOGRAD = 10, 11
_host = partial(event, process=10, thread=MAIN)
STEPS = 2

#: Nanoseconds of GPU time in each step.
FORWARD_NS, BACKWARD_NS, OPTIMIZER_NS = 20_000, 30_000, 5_000


def write_trace(path: Path, *, python: bool = True) -> Path:
    """Writes the trace; without `python`, as it is without `with_stack`."""
    events: list[dict[str, Any]] = []
    for step in range(STEPS):
        events.extend(_step(step, 1000.0 * step, python))
    return written(path, events)


def _step(step: int, at: float, python: bool) -> list[dict[str, Any]]:
    numbers = {"Sequence number": 100 + step}
    backward = {**numbers, "Fwd thread id": 1}
    shapes = {"Input Dims": [[4, 8], [8, 8], []], "Input type": ["float", "float", ""]}
    name = "autograd::engine::evaluate_function: AddmmBackward0"
    correlation = 10 * step
    events = [
        _host("user_annotation", f"ProfilerStep#{step}", at, 900),
        _host("cpu_op", "aten::linear", at + 100, 100, **numbers, **shapes, **{"Fwd thread id": 0}),
        *_launch(at + 120, at + 130, FORWARD_NS, correlation),
        _host("cpu_op", name, at + 300, 100, thread=AUTOGRAD, **backward),
        *_launch(at + 320, at + 330, BACKWARD_NS, correlation + 1, AUTOGRAD),
        _host("user_annotation", "Optimizer.step#SGD.step", at + 500, 100),
        _host("cpu_op", "aten::add_", at + 510, 50, **{"Input Dims": [[8, 8], [8, 8], []], "Input type": []}),
        *_launch(at + 520, at + 530, OPTIMIZER_NS, correlation + 2),
    ]
    if python:
        events.append(_host("python_function", "train.py(7): step", at + 1, 800))
        events.append(_host("python_function", "nn.Module: Linear_0", at + 90, 120))
        events.append(_host("python_function", "linear.py(124): forward", at + 95, 110))
    return events


def _launch(call: float, start: float, length_ns: int, number: int, thread: int = MAIN) -> list[dict[str, Any]]:
    place = {"device": 0, "stream": 7, "correlation": number}
    return [
        _host("cuda_runtime", "cudaLaunchKernel", call, 5, thread=thread, correlation=number),
        event("kernel", f"kernel_{length_ns}", start, length_ns / 1000, process=0, thread=7, **place),
    ]
