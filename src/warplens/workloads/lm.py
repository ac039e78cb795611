"""The language-model workload: a cell of the grid made ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from warplens.workloads.adamw import ReferenceAdamW
from warplens.workloads.flops import lm_work
from warplens.workloads.launching import as_graph, compiled
from warplens.workloads.marks import Marks
from warplens.workloads.precision import precision
from warplens.workloads.ranges import OFF
from warplens.workloads.registry import Program
from warplens.workloads.sizes import LM_SIZES
from warplens.workloads.transformer_lm import TransformerLM, cross_entropy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

    from warplens.workloads.registry import Setting
    from warplens.workloads.settings import LMCell

__all__ = ["prepare"]


def prepare(cell: LMCell, setting: Setting) -> Program:
    """Model, tokens and optimizer of a cell. Weights are fp32 and random, tokens as well."""
    torch.manual_seed(setting.seed)
    size = LM_SIZES[cell.size]
    # Ranges inside the model would break a compiled program apart, and do not show in a replayed graph.
    inner = setting.ranges if cell.execution == "eager" else OFF
    with torch.device(setting.device):
        model = TransformerLM(size, cell.context, inner)
        tokens = torch.randint(size.vocabulary, (cell.batch, cell.context + 1))
    steps = _Steps(cell, setting, model, tokens)
    return Program(
        step=steps.launched(),
        items=cell.batch,
        unit="sequence",
        work=lm_work(size, cell.batch, cell.context, cell.mode),
        marks=None if cell.execution == "graph" else steps.marks,
        launch=cell.execution,
        details={
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "tokens": cell.batch * cell.context,
            "layers": size.layers,
        },
    )


class _Steps:
    """The three kinds of steps over one model."""

    def __init__(self, cell: LMCell, setting: Setting, model: nn.Module, tokens: torch.Tensor) -> None:
        self.cell, self.setting = cell, setting
        self.ranges = setting.ranges if cell.execution != "graph" else OFF
        self.marks = Marks(setting.device)
        self.parameters = list(model.parameters())
        self.model = compiled(model) if cell.execution == "compile" else model
        self.inputs, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.optimizer = _optimizer(cell, self.parameters) if cell.mode == "train" else None

    def launched(self) -> Any:
        """A step as the cell launches it."""
        step = self.forward if self.cell.mode == "forward" else self.train
        if self.cell.execution != "graph":
            return step
        # Gradients of earlier steps live outside the graph's memory; the captured step must make its own.
        return as_graph(step, self.setting.device, before_capture=self._forget_gradients)

    def _arithmetic(self) -> Any:
        return precision(self.cell.precision, self.setting.device, graph=self.cell.execution == "graph")

    def forward(self) -> torch.Tensor:
        """A forward pass without gradients."""
        with torch.no_grad(), self._arithmetic(), self.ranges("forward_pass"):
            logits: torch.Tensor = self.model(self.inputs)
        self._end("forward_pass")
        return logits

    def train(self) -> torch.Tensor:
        """Forward pass with loss, backward pass, and the optimizer where the mode says so."""
        with self._arithmetic(), self.ranges("forward_pass"):
            logits = self.model(self.inputs)
            with self.ranges("loss"):
                loss = cross_entropy(logits, self.targets)
        self._end("forward_pass")
        with self._arithmetic_of_backward(), self.ranges("backward_pass"):
            loss.backward()
            if self.optimizer is None:
                self._forget_gradients()
        self._end("backward_pass")
        if self.optimizer is not None:
            with self.ranges("optimizer_step"):
                self.optimizer.step()
                self._forget_gradients()
            self._end("optimizer_step")
        return loss.detach()

    def _arithmetic_of_backward(self) -> Any:
        # Autocast chooses types in the forward pass alone; whether TF32 is allowed is asked in both.
        name = "fp32" if self.cell.precision == "bf16" else self.cell.precision
        return precision(name, self.setting.device)

    def _forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _end(self, phase: str) -> None:
        if self.cell.execution != "graph":
            self.marks.end(phase)


def _optimizer(cell: LMCell, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if cell.optimizer == "reference":
        return ReferenceAdamW(parameters)
    graph = cell.execution == "graph"
    return torch.optim.AdamW(
        parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
        fused=cell.optimizer == "torch-fused", foreach=cell.optimizer == "torch", capturable=graph,
    )  # fmt: skip
