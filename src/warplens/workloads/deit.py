"""The token-reduction workload: a cell of the grid made ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warplens.workloads.flops import torchprofile_macs, vit_macs, work
from warplens.workloads.launch_count import Launches, launches_of
from warplens.workloads.launching import as_graph, compiled
from warplens.workloads.precision import model_dtype, precision
from warplens.workloads.ranges import OFF
from warplens.workloads.registry import Program
from warplens.workloads.sizes import VIT_SIZES
from warplens.workloads.token_reduction.making import reductions
from warplens.workloads.vision import VisionTransformer

if TYPE_CHECKING:
    from warplens.workloads.registry import Setting
    from warplens.workloads.settings import TokenReductionCell
    from warplens.workloads.token_reduction.schedule import BlockTokens

__all__ = ["prepare"]


def prepare(cell: TokenReductionCell, setting: Setting) -> Program:
    """Model and images of a cell: inference on random images with random weights.

    Random weights make no class token that attends to anything, which changes no shape and no launch of any method but
    ATS, whose token counts depend on what is attended to.
    """
    torch.manual_seed(setting.seed)
    size, graph = VIT_SIZES[cell.model], cell.execution == "graph"
    inner = setting.ranges if cell.execution == "eager" else OFF
    dtype = model_dtype(cell.precision)
    shown = cell.visualisation and cell.method != "none"
    with torch.device(setting.device):  # a method may have weights of its own
        methods = reductions(cell.method, size, cell.input_size, cell.locations, cell.shares, shown)
        model = VisionTransformer(size, cell.input_size, methods, cell.attention == "fused", inner).to(dtype).eval()
        images = torch.randn(cell.batch, 3, cell.input_size, cell.input_size, dtype=dtype)
    counts: list[BlockTokens] = []
    with torch.inference_mode(), precision(cell.precision, setting.device):
        model(images, counts)
    program = compiled(model) if cell.execution == "compile" else model
    ranges = OFF if graph else setting.ranges

    @torch.inference_mode()
    def step() -> Any:
        with precision(cell.precision, setting.device, graph=graph), ranges("forward_pass"):
            return program(images)

    macs = vit_macs(size, cell.input_size, counts)
    # ATS waits for the GPU, which a capture does not survive.
    issued = launches_of(step, setting.device) if cell.method != "ats" else None
    return Program(
        step=as_graph(step, setting.device) if graph else step,
        items=cell.batch,
        unit="image",
        work=work(macs * cell.batch),
        launch=cell.execution,
        details={
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "patch_tokens": size.patches(cell.input_size),
            "tokens": [[block.entering, block.asking, block.leaving] for block in counts],
            "macs_per_image": macs,
            "flops_per_image": 2 * macs,
            "torchprofile_macs_per_image": torchprofile_macs(size, cell.input_size, counts),
            "reduction_macs_per_image": sum(block.reduction_macs for block in counts),
            **_launches(issued, graph),
        },
    )


def _launches(issued: Launches | None, graph: bool) -> dict[str, int]:
    """What is known of a step's launches: a graph is one, whatever it launches in turn."""
    if issued is None:
        return {}
    return {
        "launches": 1 if graph else issued.kernels + issued.others,
        "kernels": issued.kernels,
        "copies_and_fills": issued.others,
    }
