"""The chosen side of each shape as one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.adaptive.module import AdaptiveModule

__all__ = ["GraphedModule", "Recorded"]

#: Calls on a side stream before a recording: libraries set themselves up in them, which a graph must not record.
_CALLS_BEFORE: Final = 3


@dataclass(frozen=True)
class Recorded:
    """A shape's graph.

    Attributes:
        side: what it runs.
        input: the tensor that it reads. Who writes inputs into it, and calls with it, saves a copy.
        output: the tensor that it writes, anew with every call.
        graph: the graph.
    """

    side: str
    input: torch.Tensor
    output: Any
    graph: torch.cuda.CUDAGraph


class GraphedModule:
    """Calls an adaptive module by replaying a CUDA graph where there is one for the shape.

    Each shape's side is chosen for execution as a graph, which is another one than in eager execution where launches
    are what limits. The output of a replay is overwritten by the next one of that shape: copy it to keep it. Graphs
    share their memory, and a graph has one input: calls must not overlap, neither on several streams nor in several
    threads.

    Weights are read where they are when the graphs are recorded. Changing them in place is seen by the graphs; moving
    or replacing them is not.

    Args:
        module: in evaluation mode, on a GPU.
        shapes: of inputs to record.
        dtype: of the inputs; by default that of the module's weights.

    Raises:
        UsageError: the module is in training mode or on no GPU.
    """

    def __init__(
        self, module: AdaptiveModule, shapes: Sequence[Sequence[int]], dtype: torch.dtype | None = None
    ) -> None:
        device = module._device()
        if module.training:
            raise UsageError("a graph replays one pass of inference: call eval() before graphed()")
        if device.type != "cuda":
            raise UsageError(f"a CUDA graph needs a CUDA device, and the module is on {device}")
        weights = [tensor for tensor in module.baseline.parameters() if tensor.is_floating_point()]
        self.module = module
        self.recorded: dict[Sequence[int], Recorded] = {}
        pool = None
        for shape in shapes:
            taken = _record(module, shape, dtype or weights[0].dtype, device, pool)
            pool = pool or taken.graph.pool()
            self.recorded[torch.Size(shape)] = taken

    def __call__(self, x: torch.Tensor) -> Any:
        """The output of the side that is chosen for the shape of the input; a shape without a graph runs as usual."""
        taken = self.recorded.get(x.shape)
        if taken is None:
            return self.module(x)
        if x is not taken.input:
            taken.input.copy_(x.detach() if x.requires_grad else x)
        taken.graph.replay()
        return taken.output


def _record(
    module: AdaptiveModule, shape: Sequence[int], dtype: torch.dtype, device: torch.device, pool: Any
) -> Recorded:
    side = module._explained(torch.Size(shape), device, "graph").side
    chosen = module.get_submodule(module._child_of[side])
    # No tensor of inference mode, for those cannot be written to outside of it.
    example = torch.zeros(*shape, dtype=dtype, device=device)
    with torch.cuda.device(device), torch.inference_mode():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_CALLS_BEFORE):
                chosen(example)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = chosen(example)
    return Recorded(side, example, output, graph)
