"""How a step reaches the GPU: call by call, compiled, or as one CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from warplens.errors import UsageError
from warplens.workloads.marks import is_cuda

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["as_graph", "compiled"]

#: Compiled models that may live in one process, as the cells of a grid that take turns do.
_MODELS: Final = 64

#: Steps on a side stream before the capture: libraries set themselves up in them, which a graph must not record.
_STEPS_BEFORE_CAPTURE: Final = 3


def compiled(model: torch.nn.Module) -> torch.nn.Module:
    """The model through `torch.compile`, for the one shape that it will see."""
    from torch._dynamo import config  # noqa: PLC0415  seconds of imports, for those who compile

    # Models share the code of their `forward`: past the limit of versions of it, the next would silently run eagerly.
    for limit in ("recompile_limit", "cache_size_limit"):  # the name since PyTorch 2.7, and before
        if getattr(config, limit, _MODELS) < _MODELS:
            setattr(config, limit, _MODELS)
    done: torch.nn.Module = torch.compile(model, dynamic=False)  # type: ignore[assignment, unused-ignore]
    return done


def as_graph(
    step: Callable[[], object], device: str, before_capture: Callable[[], None] | None = None
) -> Callable[[], object]:
    """The same step as one launch of a CUDA graph. It works on the same tensors in every replay.

    Args:
        step: what to record. It must not wait for the GPU, and its shapes must not depend on data.
        device: the GPU.
        before_capture: is called between the last ordinary step and the capture.

    Raises:
        UsageError: the device is no GPU.
    """
    if not is_cuda(device):
        raise UsageError("a CUDA graph needs a CUDA device")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_STEPS_BEFORE_CAPTURE):
            step()
    torch.cuda.current_stream().wait_stream(side)
    if before_capture is not None:
        before_capture()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return _Replay(graph, result, step)


@dataclass(frozen=True)
class _Replay:
    """One launch of a recorded graph.

    Attributes:
        graph: what is launched.
        result: what the step returned; each replay writes to the same tensors.
        step: what was recorded. The graph reads weights and inputs by their addresses and keeps none of them alive:
            without the step, their memory would be given to somebody else.
    """

    graph: torch.cuda.CUDAGraph
    result: object
    step: Callable[[], object]

    def __call__(self) -> object:
        """Launch it; the result is there when the GPU has done it."""
        self.graph.replay()
        return self.result
