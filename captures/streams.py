"""Kernels on two streams that could run at once, and what keeps them from it: a case each, for `nsys profile`.

    nsys profile --trace=cuda,nvtx -o streams_CASE python3 captures/streams.py CASE

| case | what orders the streams |
|---|---|
| `overlapped` | nothing: two streams that do not wait for the legacy default stream |
| `default-stream` | the legacy default stream, between kernels of a stream that waits for it (cudaStreamCreate) |
| `events` | an event wait before each kernel |
| `full` | nothing, but each kernel fills the GPU |
| `one-stream` | all on one stream |
| `one-queue` | as `overlapped`, with CUDA_DEVICE_MAX_CONNECTIONS=1 |

Each kernel but those of `full` is one block that spins for some 100 µs, and so leaves all other multiprocessors free.
Needs python3 with torch, and a GPU.
"""

from __future__ import annotations

import ctypes
import os
import sys

CASES = ("overlapped", "default-stream", "events", "full", "one-stream", "one-queue")
STEPS, KERNELS, CYCLES = 5, 16, 200_000

case = sys.argv[1]
if case not in CASES:
    sys.exit(f"usage: streams.py {'|'.join(CASES)}")
if case == "one-queue":
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"

import torch  # noqa: E402  after the variable that it reads

torch.cuda.init()


def blocking() -> torch.cuda.Stream:
    """A blocking stream, which synchronises with the legacy default stream."""
    handle = ctypes.c_void_p()
    torch.cuda.cudart().cudaStreamCreate(ctypes.addressof(handle))
    return torch.cuda.ExternalStream(handle.value)


first = torch.cuda.default_stream() if case in ("default-stream", "one-stream") else torch.cuda.Stream()
second = {"default-stream": blocking, "one-stream": lambda: first}.get(case, torch.cuda.Stream)()
matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
outs = [torch.empty_like(matrix) for _ in range(2)]
torch.cuda.synchronize()


def step() -> None:
    """Kernels on the two streams in alternation."""
    for number in range(KERNELS):
        own, other = (first, second) if number % 2 == 0 else (second, first)
        if case == "events":
            own.wait_stream(other)
        with torch.cuda.stream(own):
            if case == "full":
                torch.mm(matrix, matrix, out=outs[number % 2])
            else:
                torch.cuda._sleep(CYCLES)
    torch.cuda.synchronize()


for _ in range(3):
    step()
for _ in range(STEPS):
    torch.cuda.nvtx.range_push("step")
    step()
    torch.cuda.nvtx.range_pop()
