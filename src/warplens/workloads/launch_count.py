"""How many pieces of work a step launches, counted without a profiler.

A profiler that has once been attached to the process may slow down every launch that follows. A CUDA graph of the step
has one node for each kernel, copy and fill, and is thrown away once they are counted.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from warplens.workloads.marks import is_cuda

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Launches", "launches_of"]

#: Steps before the capture, in which libraries set themselves up and kernels are compiled and loaded.
_STEPS_BEFORE: Final = 2

#: Kinds of graph nodes that are work for the GPU (CUDA driver API, `CUgraphNodeType`).
_KERNEL, _COPY, _FILL = 0, 1, 2


class Launches(NamedTuple):
    """What a step launches, issued call by call.

    Attributes:
        kernels: kernels.
        others: copies and fills.
    """

    kernels: int
    others: int


def launches_of(step: Callable[[], object], device: str) -> Launches | None:
    """What the step launches; None where that cannot be counted.

    That is: without a GPU, with a PyTorch that does not hand out its graphs (before 2.8), and for a step that
    waits for the GPU or whose shapes depend on data. Such a step must not be tried, though: a capture that fails can
    leave the random number generator unusable.

    Args:
        step: one repetition, call by call or compiled.
        device: where it runs.
    """
    if not is_cuda(device) or not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        return None
    try:
        found = _counted(step)
    except Exception:  # a count is worth no failed measurement
        found = None
    # What the graph held must not count as memory that the step needs.
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return found


def _counted(step: Callable[[], object]) -> Launches:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_STEPS_BEFORE):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        step()
    kinds = _node_kinds(graph.raw_cuda_graph())
    return Launches(kinds.count(_KERNEL), kinds.count(_COPY) + kinds.count(_FILL))


def _node_kinds(graph: int) -> list[int]:
    """Kind of each node of a graph, by its address."""
    driver: Any = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    kinds = []
    for node in nodes:
        kind = ctypes.c_int()
        _check(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        kinds.append(kind.value)
    return kinds


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"the CUDA driver returned {status}")
