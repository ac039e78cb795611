"""Execution of a step: eager, compiled, or as a CUDA graph; the number of its launches; its precision.

`CopyNode` makes the copy of a call's input a node of the CUDA graph. A copy launched before the graph costs a launch of
its own, 18 to 30 µs on an H200; as a node it costs an update of its source before each replay, about 8 µs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

from warplens.errors import UsageError
from warplens.workloads.measurement import is_cuda

# Launches are counted by a temporary CUDA graph of the step, which has one node for each kernel, copy and fill. A
# profiler might slow down all later launches of the process.

#: Steps on a side stream before a capture, in which libraries initialise and kernels are compiled and loaded: a graph
#: must not record that.
_STEPS_BEFORE: Final = 3

#: Kinds of graph nodes that are work for the GPU (CUDA driver API, `CUgraphNodeType`).
_KERNEL, COPY_NODE, _FILL = 0, 1, 2


class Launches(NamedTuple):
    """Number of launches of a step in eager execution."""

    kernels: int  #: kernels
    others: int  #: copies and fills


def launches_of(step: Callable[[], object], device: str) -> Launches | None:
    """The launches of a step; None where they cannot be counted.

    They cannot be counted without a GPU, with a PyTorch that does not expose its graphs (before 2.8), and for a step
    that waits for the GPU or whose shapes depend on data. Do not call it with such a step: a failed capture can leave
    the random number generator unusable.
    """
    if not is_cuda(device) or not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
        return None
    try:
        launches = _counted(step)
    except Exception:  # the count is optional and must not fail a measurement
        launches = None
    # Memory held by the graph must not count as memory of the step.
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return launches


def _counted(step: Callable[[], object]) -> Launches:
    run_aside(step)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        step()
    kinds = [kind for _, kind in graph_nodes(graph.raw_cuda_graph())]
    return Launches(kinds.count(_KERNEL), kinds.count(COPY_NODE) + kinds.count(_FILL))


def run_aside(step: Callable[[], object]) -> None:
    """Run warm-up steps on a side stream, so that their initialisation is not recorded."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_STEPS_BEFORE):
            step()
    torch.cuda.current_stream().wait_stream(side)


def graph_nodes(graph: int) -> list[tuple[int, int]]:
    """(address, kind) of each node of the graph at an address; kinds as in `CUgraphNodeType`."""
    driver: Any = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_size_t()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(count)))
    nodes = (ctypes.c_void_p * count.value)()
    _check(driver.cuGraphGetNodes(ctypes.c_void_p(graph), nodes, ctypes.byref(count)))
    kinds = []
    for node in nodes:
        kind = ctypes.c_int()
        _check(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        kinds.append((int(node or 0), kind.value))
    return kinds


def _check(status: int, library: str = "driver") -> None:
    if status != 0:
        raise RuntimeError(f"the CUDA {library} returned {status}")


#: Compiled models that may coexist in one process, as the cells of a grid do that are measured in turns.
_MODELS: Final = 64


def compiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model through `torch.compile` with static shapes."""
    from torch._dynamo import config

    # All models share the code of `forward`: beyond the limit of compiled versions, further ones silently run eagerly.
    for limit in ("recompile_limit", "cache_size_limit"):  # the name since PyTorch 2.7, and before
        if getattr(config, limit, _MODELS) < _MODELS:
            setattr(config, limit, _MODELS)
    compiled_model: torch.nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment, unused-ignore]
    return compiled_model


def as_graph(
    step: Callable[[], object], device: str, before_capture: Callable[[], None] | None = None
) -> Callable[[], object]:
    """The step as a CUDA graph, which works on the same tensors in every replay.

    The step must not wait for the GPU, and its shapes must not depend on data. `before_capture` is called between the
    last warm-up step and the capture.

    Raises:
        UsageError: the device is not a GPU.
    """
    if not is_cuda(device):
        raise UsageError("a CUDA graph needs a CUDA device")
    run_aside(step)
    if before_capture is not None:
        before_capture()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return _Replay(graph, result, step)


@dataclass(frozen=True)
class _Replay:
    """Callable that launches a recorded graph."""

    graph: torch.cuda.CUDAGraph
    result: object  #: return value of the step; each replay writes to the same tensors
    #: the recorded step, which keeps weights and inputs alive: the graph only holds their addresses
    step: Callable[[], object]

    def __call__(self) -> object:
        """Launch the graph; the result is valid once the GPU has executed it."""
        self.graph.replay()
        return self.result


_MODEL_DTYPES = {"fp16": torch.float16, "bf16-weights": torch.bfloat16}


def model_dtype(name: str) -> torch.dtype:
    """Type of weights and inputs under a precision of `settings.PRECISIONS`."""
    return _MODEL_DTYPES.get(name, torch.float32)


@contextmanager
def precision(name: str, device: str, graph: bool = False) -> Iterator[None]:
    """Context that sets the precision of arithmetic to one of `settings.PRECISIONS`.

    In a block that is captured into a CUDA graph, autocast must not cache converted weights, since their conversion
    would not be replayed.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        if name == "bf16":
            kind = torch.device(device).type
            with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=not graph):
                yield
        else:
            yield
    finally:
        torch.set_float32_matmul_precision(before)


#: `cudaMemcpyDeviceToDevice`.
_DEVICE_TO_DEVICE = ctypes.c_int(3)


class CopyNode:
    """The node of a recorded graph that copies a call's input to the graph's static input.

    Args:
        graph: instantiated, recorded with `keep_graph`; its only copy is that of the input.
        target: the static input.

    Raises:
        RuntimeError, OSError: the graph has another number of copies, or CUDA's runtime is not found.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, target: torch.Tensor) -> None:
        copies = [node for node, kind in graph_nodes(graph.raw_cuda_graph()) if kind == COPY_NODE]
        if len(copies) != 1:
            raise RuntimeError(f"the graph has {len(copies)} copies")
        runtime: Any = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
        self._graph, self._target = graph, target  # keeps both alive: the node writes by address
        self._set_source, self._enable = runtime.cudaGraphExecMemcpyNodeSetParams1D, runtime.cudaGraphNodeSetEnabled
        self._exec, self._node = ctypes.c_void_p(graph.raw_cuda_graph_exec()), ctypes.c_void_p(copies[0])
        self._at = ctypes.c_void_p(target.data_ptr())
        self._size = ctypes.c_size_t(target.numel() * target.element_size())
        self._enabled = True

    def read(self, x: torch.Tensor) -> bool:
        """Make the next replay copy X; False if the node cannot copy it (other type, device or layout)."""
        if x.dtype != self._target.dtype or x.device != self._target.device or not x.is_contiguous():
            return False
        self._switch(on=True)
        source = ctypes.c_void_p(x.data_ptr())
        _check(self._set_source(self._exec, self._node, self._at, source, self._size, _DEVICE_TO_DEVICE), "runtime")
        return True

    def skip(self) -> None:
        """Make the next replay read its static input as it is."""
        self._switch(on=False)

    def _switch(self, *, on: bool) -> None:
        if on != self._enabled:
            _check(self._enable(self._exec, self._node, ctypes.c_uint(on)), "runtime")
            self._enabled = on


def recorded_with_copy(
    call: Callable[[torch.Tensor], Any], target: torch.Tensor, pool: Any
) -> tuple[torch.cuda.CUDAGraph, Any, CopyNode | None]:
    """A graph of the call on the static input TARGET, its output, and the node that copies inputs there.

    The node is None with a PyTorch that does not expose its graphs (before 2.8), and where the call itself copies:
    inputs must then be copied before the replay.
    """
    if hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        source = torch.empty_like(target)  # a copy onto itself would be optimised away
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
