"""The first node of a CUDA graph as the copy of whatever input a call brings.

A copy that is launched before the graph costs a launch of its own, 18 to 30 µs on an H200. As a node of the graph it
costs an update of its source, about 8 µs: the node is recorded with the input, and its source set before each replay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from warplens.workloads.launching import COPY_NODE, graph_nodes

#: `cudaMemcpyDeviceToDevice`.
_DEVICE_TO_DEVICE = ctypes.c_int(3)


class CopyNode:
    """The node of a recorded graph that copies a call's input to where the graph reads it.

    Args:
        graph: instantiated, recorded with `keep_graph`; its only copy is that of the input.

    Raises:
        RuntimeError, OSError: the graph has another number of copies, or CUDA's runtime is not found.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, target: torch.Tensor) -> None:
        copies = [node for node, kind in graph_nodes(graph.raw_cuda_graph()) if kind == COPY_NODE]
        if len(copies) != 1:
            raise RuntimeError(f"the graph has {len(copies)} copies")
        runtime: Any = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        self._graph, self._target = graph, target  # the node writes by address: both must live as long
        self._set_source, self._enable = runtime.cudaGraphExecMemcpyNodeSetParams1D, runtime.cudaGraphNodeSetEnabled
        self._exec, self._node = ctypes.c_void_p(graph.raw_cuda_graph_exec()), ctypes.c_void_p(copies[0])
        self._at = ctypes.c_void_p(target.data_ptr())
        self._size = ctypes.c_size_t(target.numel() * target.element_size())
        self._enabled = True

    def read(self, x: torch.Tensor) -> bool:
        """Have the next replay copy X; False where it must be copied in another way (its type, device or layout)."""
        if x.dtype != self._target.dtype or x.device != self._target.device or not x.is_contiguous():
            return False
        self._switch(on=True)
        source = ctypes.c_void_p(x.data_ptr())
        _check(self._set_source(self._exec, self._node, self._at, source, self._size, _DEVICE_TO_DEVICE))
        return True

    def skip(self) -> None:
        """Have the next replay read its input as it is."""
        self._switch(on=False)

    def _switch(self, *, on: bool) -> None:
        if on != self._enabled:
            _check(self._enable(self._exec, self._node, ctypes.c_uint(on)))
            self._enabled = on


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"the CUDA runtime returned {status}")


def recorded_with_copy(
    call: Callable[[torch.Tensor], Any], target: torch.Tensor, pool: Any
) -> tuple[torch.cuda.CUDAGraph, Any, CopyNode | None]:
    """A graph of the call on TARGET, its output, and the node that copies inputs there.

    The node is None with a PyTorch that does not hand out its graphs (before 2.8), and where the call itself copies:
    then inputs have to be copied before the replay.
    """
    if hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        source = torch.empty_like(target)  # a copy onto itself would be no copy
        with torch.cuda.graph(graph, pool=pool):
            target.copy_(source)
            output = call(target)
        graph.instantiate()
        try:
            return graph, output, CopyNode(graph, target)
        except (RuntimeError, OSError):
            del graph, output
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = call(target)
    return graph, output, None
