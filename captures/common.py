"""Helpers of the capture programs: annotations, timing with synchronisation, and a region for the profiler."""

from __future__ import annotations

import csv
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from warplens.workloads.registry import Ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """An NVTX range of that name around the block; nothing on a machine without CUDA.

    The range is closed when the block raises, as a range of a program that handles its own out-of-memory error is.
    """
    if not CUDA:
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


class Parts(Ranges):
    """Annotates the parts of our models with NVTX only, and without layers, as in the shipped captures."""

    def __call__(self, key: str, index: int | None = None) -> AbstractContextManager[None]:
        """The range round a part."""
        return nullcontext() if key == "layer" else annotate(self.names[key].format(index=index))


PARTS = Parts()


@contextmanager
def recorded() -> Iterator[None]:
    """The region that `nsys profile --capture-range=cudaProfilerApi` records; otherwise it changes nothing."""
    synchronize()
    if CUDA:
        torch.cuda.profiler.start()
    try:
        yield
    finally:
        synchronize()
        if CUDA:
            torch.cuda.profiler.stop()


def synchronize() -> None:
    """Waits until the GPU has finished all issued work."""
    if CUDA:
        torch.cuda.synchronize()


def now() -> float:
    """Host clock in seconds; a time of GPU work only right after `synchronize`."""
    return time.perf_counter()


def parameter_count(model: torch.nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def append_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Adds rows to a CSV file; writes the header first where the file is new.

    None becomes an empty field; a number is written to nine decimals, which is the host clock's nanosecond.
    """
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(header)
        writer.writerows([f"{value:.9f}" if isinstance(value, float) else value for value in row] for row in rows)
