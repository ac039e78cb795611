"""Settings of the reference workloads: what a cell of a grid fixes. Free of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warplens.errors import UsageError
from warplens.workloads.registry import Workload, register
from warplens.workloads.sizes import LM_SIZES, VIT_SIZES

__all__ = [
    "ATTENTIONS",
    "EXECUTIONS",
    "LM_MODES",
    "METHODS",
    "OPTIMIZERS",
    "PRECISIONS",
    "AttentionCell",
    "LMCell",
    "TokenReductionCell",
]

#: What a step of the language model does.
LM_MODES: Final = ("forward", "forward-backward", "train")

#: How a step reaches the GPU: call by call, through `torch.compile`, or as one CUDA graph.
EXECUTIONS: Final = ("eager", "compile", "graph")

#: Arithmetic. `fp32` forbids TF32, `tf32` allows it; `bf16` is autocast of a model with fp32 weights; `fp16` and
#: `bf16-weights` convert the model itself.
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16", "bf16-weights")

#: `reference` is AdamW as the assignment writes it, `torch` that of PyTorch, `torch-fused` its fused kernel.
OPTIMIZERS: Final = ("reference", "torch", "torch-fused")

#: How attention is computed: `explicit`, every weight in memory, or `fused` into one kernel; methods that decide by the
#: class token's weights then compute that one row beside it.
ATTENTIONS: Final = ("explicit", "fused")

#: Token reduction methods; see `warplens.workloads.token_reduction`.
METHODS: Final = ("none", "random", "topk", "topk-fused", "evit", "evit-fused", "tome", "dynamicvit", "ats")


def _check(what: str, value: str, known: tuple[str, ...] | list[str]) -> None:
    if value not in known:
        raise UsageError(f"{value!r} is no {what}; known are {', '.join(known)}")


def _check_positive(what: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"the {what} is {value}, and must be at least 1")


@dataclass(frozen=True)
class LMCell:
    """One cell of the language-model grid. Without training there is no optimizer: it is then `none`.

    Raises:
        UsageError: a setting that does not exist, or two that exclude one another.
    """

    size: str = "small"
    context: int = 512
    batch: int = 4
    mode: str = "forward"
    precision: str = "fp32"
    execution: str = "eager"
    optimizer: str = "reference"

    def __post_init__(self) -> None:
        _check("model size", self.size, list(LM_SIZES))
        _check("mode", self.mode, LM_MODES)
        _check("precision", self.precision, PRECISIONS[:3])
        _check("execution", self.execution, EXECUTIONS)
        _check("optimizer", self.optimizer, (*OPTIMIZERS, "none"))
        _check_positive("context length", self.context)
        _check_positive("batch", self.batch)
        if self.mode != "train":
            object.__setattr__(self, "optimizer", "none")
        if self.execution == "graph" and self.mode == "train" and self.optimizer == "reference":
            raise UsageError(
                "the reference AdamW counts its steps on the host, so a CUDA graph would replay one step's bias "
                "correction for ever. Use the optimizer torch or torch-fused with graphs"
            )


@dataclass(frozen=True)
class TokenReductionCell:
    """One cell of the token-reduction grid.

    Attributes:
        model: of `VIT_SIZES`.
        input_size: side of the square image, in pixels.
        batch: images in a step.
        method: of `METHODS`.
        keep: share of the current patch tokens that each location keeps; for a method that merges, what it aims at. 1
            without a method.
        locations: blocks (from 0) that reduce.
        schedule: share of each location, where they differ; else () and `keep` holds for all.
        precision, execution, attention: of `PRECISIONS`, `EXECUTIONS`, `ATTENTIONS`.
        visualisation: whether TopK and EViT also compute which tokens they kept, as the published code does in every
            pass though only a visualisation reads it; the fused ones write it without a further launch.

    Raises:
        UsageError: a setting that does not exist, or one that excludes another.
    """

    model: str = "deit-b16"
    input_size: int = 224
    batch: int = 1
    method: str = "topk"
    keep: float = 0.5
    locations: tuple[int, ...] = (3, 6, 9)
    schedule: tuple[float, ...] = ()
    precision: str = "fp16"
    execution: str = "eager"
    attention: str = "explicit"
    visualisation: bool = True

    def __post_init__(self) -> None:
        _check("vision transformer", self.model, list(VIT_SIZES))
        _check("method", self.method, METHODS)
        _check("precision", self.precision, PRECISIONS)
        _check("execution", self.execution, EXECUTIONS)
        _check_positive("batch", self.batch)
        size = VIT_SIZES[self.model]
        if self.input_size < size.patch or self.input_size % size.patch:
            raise UsageError(f"the input size is {self.input_size}, and must be a multiple of the patch, {size.patch}")
        _check("attention", self.attention, ATTENTIONS)
        if self.method == "ats" and self.attention == "fused":
            raise UsageError("ats cuts rows out of the attention weights, which fused attention does not give")
        if self.method == "none":
            # There is nothing to keep, and no place to do it: all such cells are the same.
            for name, nothing in (("keep", 1.0), ("locations", ()), ("schedule", ()), ("visualisation", False)):
                object.__setattr__(self, name, nothing)
            return
        if not self.locations or any(not 0 <= block < size.blocks for block in self.locations):
            raise UsageError(f"locations are blocks 0 to {size.blocks - 1} of {self.model}, and there must be one")
        if list(self.locations) != sorted(set(self.locations)):
            raise UsageError("locations must be in rising order, each once")
        if self.schedule and len(self.schedule) != len(self.locations):
            raise UsageError(f"the schedule has {len(self.schedule)} shares for {len(self.locations)} locations")
        for share in self.shares:
            if not 0 < share <= 1:
                raise UsageError(f"{share} is no share of the tokens to keep: it must be above 0 and at most 1")
        if self.method == "ats" and self.execution == "graph":
            raise UsageError("ATS decides from the data how many tokens go on, which a CUDA graph cannot replay")

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the tokens that each location keeps."""
        return self.schedule or (self.keep,) * len(self.locations)


@dataclass(frozen=True)
class AttentionCell:
    """One cell of the attention grid.

    Attributes:
        kernel: of `warplens.workloads.attention.KERNELS`.
        seq_len, head_dim, batch, heads: size of the problem.
        dtype: of the inputs: `float16`, `bfloat16`, `float32`.
        causal: whether a row sees itself and earlier rows alone.
        mode: `forward`, `backward` (the gradients alone) or `both`.

    Raises:
        UsageError: a size below one, or a mode or type that does not exist. Kernels are looked up when they are run.
    """

    kernel: str = "flash"
    seq_len: int = 1024
    head_dim: int = 64
    batch: int = 1
    heads: int = 16
    dtype: str = "bfloat16"
    causal: bool = True
    mode: str = "forward"

    def __post_init__(self) -> None:
        _check("number format", self.dtype, ("float16", "bfloat16", "float32"))
        _check("mode", self.mode, ("forward", "backward", "both"))
        for what, value in (("sequence length", self.seq_len), ("head dimension", self.head_dim)):
            _check_positive(what, value)
        _check_positive("batch", self.batch)
        _check_positive("number of heads", self.heads)


register(Workload("lm", "Transformer language model.", LMCell, "warplens.workloads.lm:prepare"))
register(
    Workload(
        "token-reduction",
        "Vision transformer with token reduction.",
        TokenReductionCell,
        "warplens.workloads.deit:prepare",
    )
)
register(
    Workload(
        "attention", "Attention kernels, checked first.", AttentionCell, run="warplens.workloads.attention_cells:run"
    )
)
