"""The program whose capture is generated: one training step of a transformer, as its CUDA calls and NVTX ranges.

The step has the shape that PyTorch gives it: forward from the main thread inside layer and operator ranges; backward
from autograd's own thread, which has no ranges, while the main thread waits inside `backward_pass`; gradient clipping
that waits for the GPU; an optimizer of multi-tensor kernels; and a loss that is copied back.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KERNELS", "CallKind", "Kernel", "Step", "training_step"]

_LAYERS = 24
_OPTIMIZER_GROUPS = 8


@dataclass(frozen=True)
class Kernel:
    """One CUDA kernel: its demangled name, typical duration, and launch configuration."""

    full_name: str
    microseconds: float
    registers: int
    threads: int
    blocks: int

    @property
    def name(self) -> str:
        """The base name, as nsys derives it: no return type, namespaces, template or function arguments."""
        plain = self.full_name.replace("<unnamed>::", "").removeprefix("void ")
        return plain.partition("<")[0].partition("(")[0].rpartition("::")[2]


def _catalogue() -> dict[str, Kernel]:
    with Path(__file__).with_name("kernels.tsv").open(encoding="utf-8", newline="") as file:
        return {
            row["key"]: Kernel(
                full_name=row["full_name"],
                microseconds=float(row["microseconds"]),
                registers=int(row["registers"]),
                threads=int(row["threads"]),
                blocks=int(row["blocks"]),
            )
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        }


#: Every kernel of the program by a short key. Names are those of PyTorch, cuBLAS, cuDNN and NCCL.
KERNELS = _catalogue()


class CallKind:
    """Kinds of API calls of the program; small integers, because they are columns of arrays."""

    KERNEL, MEMSET, COPY_IN, COPY_OUT, COPY_WITHIN, RECORD_EVENT, SYNCHRONIZE = range(7)


@dataclass
class Step:
    """One step: its calls in the order in which the host issues them, and the ranges around them.

    Attributes:
        kind, kernel, autograd, communication: one entry per call. `kernel` is a position in `KERNELS` (−1 where it is
            none); `autograd` says that autograd's thread makes the call; `communication`, that NCCL's stream gets it.
        ranges: name, level (0 = step), and first and last call inside, as positions.
    """

    kind: list[int] = field(default_factory=list)
    kernel: list[int] = field(default_factory=list)
    autograd: list[bool] = field(default_factory=list)
    communication: list[bool] = field(default_factory=list)
    ranges: list[tuple[str, int, int, int]] = field(default_factory=list)

    @property
    def waits(self) -> list[int]:
        """Positions of the calls that wait for the GPU."""
        return [position for position, kind in enumerate(self.kind) if kind == CallKind.SYNCHRONIZE]

    def call(self, kind: int, *, autograd: bool = False) -> None:
        """Adds a call that starts no kernel."""
        self._append(kind, -1, autograd, communication=False)

    def launch(self, *keys: str, autograd: bool = False) -> None:
        """Adds one launch per kernel, given by its key in `KERNELS`."""
        for key in keys:
            self._append(CallKind.KERNEL, _POSITION[key], autograd, communication=key == "all_reduce")

    def range(self, name: str, level: int, first: int) -> None:
        """Closes a range that was opened before the call `first`."""
        self.ranges.append((name, level, first, len(self.kind) - 1))

    def _append(self, kind: int, kernel: int, autograd: bool, *, communication: bool) -> None:
        self.kind.append(kind)
        self.kernel.append(kernel)
        self.autograd.append(autograd)
        self.communication.append(communication)


_POSITION = {key: position for position, key in enumerate(KERNELS)}

_LAYER_FORWARD: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_norm", ("square", "mean", "add_scalar", "rsqrt", "mul_strided")),
    ("qkv_projection", ("gemm_qkv", "split_k", "copy")),
    ("rotary_embedding", ("index", "mul_strided", "sub_strided", "cat")),
    ("attention_scores", ("gemm_scores", "mul_scalar")),
    ("causal_mask", ("bitwise_not", "masked_fill")),
    ("softmax", ("maximum", "sub_strided", "exp", "sum", "div_strided")),
    ("attention_values", ("gemm_values", "copy")),
    ("output_projection", ("gemm_out", "add")),
    ("residual_dropout", ("dropout", "add")),
    ("mlp_norm", ("layer_norm",)),
    ("mlp_up", ("gemm_up", "gemm_up", "silu", "mul")),
    ("mlp_down", ("gemm_down", "dropout", "add")),
)
_LAYER_BACKWARD = (
    "masked_scale", "gemm_grad_input", "gemm_grad_weight", "mul", "mul", "silu_backward", "gemm_grad_input",
    "gemm_grad_weight", "add", "gemm_grad_input", "gemm_grad_weight", "layer_norm_backward", "layer_norm_weights",
    "add", "masked_scale", "gemm_grad_input", "gemm_grad_weight", "sum_columns", "copy", "gemm_grad_scores",
    "gemm_grad_input", "softmax_backward", "masked_fill", "div_strided", "mul_scalar", "gemm_grad_scores",
    "split_k", "mul_strided", "sub_strided", "cat", "fill", "copy", "gemm_grad_input", "gemm_grad_weight",
    "split_k", "sum_columns", "mul_strided", "sum", "mean", "mul_scalar", "add", "add_scalar", "square",
    "mul_strided", "add", "cast", "copy", "add", "fill", "mul_strided", "div",
)  # fmt: skip
_OPTIMIZER_GROUP: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("weight_decay", ("foreach_mul", "foreach_add")),
    ("moments", ("foreach_lerp", "foreach_mul", "foreach_addcmul")),
    ("bias_correction", ("foreach_sqrt", "foreach_div", "foreach_add", "mul_scalar")),
    ("update", ("foreach_addcdiv",)),
)


def training_step() -> Step:
    """The calls and ranges of one training step."""
    step = Step()
    step.call(CallKind.COPY_IN)
    step.call(CallKind.COPY_IN)
    _forward(step)
    _backward(step)
    _optimizer(step)
    step.call(CallKind.COPY_OUT)
    step.call(CallKind.SYNCHRONIZE)
    step.range("step", 0, 0)
    return step


def _forward(step: Step) -> None:
    phase = len(step.kind)
    step.launch("gather", "cos", "sin", "tril", "fill_bool")
    for layer in range(_LAYERS):
        first = len(step.kind)
        for name, kernels in _LAYER_FORWARD:
            begin = len(step.kind)
            step.launch(*kernels)
            if name == "qkv_projection":
                step.call(CallKind.MEMSET)
            step.range(name, 3, begin)
        step.range(f"layer_{layer:02d}", 2, first)
    step.launch("layer_norm", "gemm_logits", "log_softmax", "nll_loss")
    step.range("forward_pass", 1, phase)


def _backward(step: Step) -> None:
    phase = len(step.kind)
    step.launch("nll_loss_backward", "log_softmax_backward", "gemm_logits", "gemm_logits", autograd=True)
    for layer in reversed(range(_LAYERS)):
        step.launch(*_LAYER_BACKWARD, autograd=True)
        step.call(CallKind.MEMSET, autograd=True)
        if layer % 3 == 0:
            step.call(CallKind.RECORD_EVENT, autograd=True)
            step.launch("all_reduce", autograd=True)
    step.launch("embedding_backward", autograd=True)
    step.range("backward_pass", 1, phase)


def _optimizer(step: Step) -> None:
    phase = len(step.kind)
    begin = len(step.kind)
    step.launch(*["foreach_norm", "norm"] * _OPTIMIZER_GROUPS, "cat", "maximum")
    step.call(CallKind.COPY_OUT)
    step.call(CallKind.SYNCHRONIZE)
    step.range("clip_gradients", 2, begin)
    for group in range(_OPTIMIZER_GROUPS):
        first = len(step.kind)
        for name, kernels in _OPTIMIZER_GROUP:
            begin = len(step.kind)
            step.launch(*kernels)
            step.range(name, 3, begin)
        step.call(CallKind.COPY_WITHIN)
        step.range(f"parameter_group_{group}", 2, first)
    step.range("optimizer_step", 1, phase)
