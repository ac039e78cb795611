"""Settings of the reference workloads: model sizes, cells, and parsing of typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final

from warplens.errors import UsageError
from warplens.workloads.registry import Workload, register

#: Vocabulary and batch of the language models in the CS336 assignment.
VOCABULARY: Final = 10_000
LM_BATCH: Final = 4


@dataclass(frozen=True)
class LMSize:
    """Widths of a language model."""

    d_model: int
    d_ff: int
    layers: int
    heads: int
    vocabulary: int = VOCABULARY

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.heads

    @property
    def parameters(self) -> int:
        """Number of parameters: 2Vd + L(4d² + 3·d·d_ff + 2d) + d: embedding and head, layers, final norm."""
        d = self.d_model
        return 2 * self.vocabulary * d + self.layers * (4 * d * d + 3 * d * self.d_ff + 2 * d) + d

    def forward_macs(self, batch: int, context: int) -> int:
        """Multiply-accumulates of a forward pass: T·L(4d² + 3·d·d_ff) + 2·B·S²·d·L + T·d·V with T = B·S.

        The score matrix counts in full: the program computes all of it and masks half away.
        """
        tokens, d = batch * context, self.d_model
        projections = tokens * self.layers * (4 * d * d + 3 * d * self.d_ff)
        return projections + 2 * batch * context**2 * d * self.layers + tokens * d * self.vocabulary

    @property
    def parameter_tensors(self) -> int:
        """Number of parameter tensors: nine in each layer, the embedding, the last norm and the head."""
        return 9 * self.layers + 3


#: CS336, assignment 2: five sizes of spring 2025, and the two of spring 2026 that differ. `tiny` is an addition for
#: trials without a GPU. "2.7B" actually has 3.4 billion parameters, since SwiGLU has three matrices at d_ff =
#: 4·d_model; "10B" has 12.8.
LM_SIZES: Final = {
    "tiny": LMSize(32, 64, 2, 2, vocabulary=100),
    "small": LMSize(768, 3072, 12, 12),
    "medium": LMSize(1024, 4096, 24, 16),
    "large": LMSize(1280, 5120, 36, 20),
    "xl": LMSize(1600, 6400, 48, 25),
    "2.7B": LMSize(2560, 10240, 32, 32),
    "xl-2026": LMSize(2560, 10240, 32, 32),
    "10B": LMSize(4608, 12288, 50, 36),
}


@dataclass(frozen=True)
class ViTSize:
    """Widths of a vision transformer."""

    patch: int
    width: int
    blocks: int
    heads: int
    classes: int

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def patches(self, input_size: int) -> int:
        """Patch tokens of a square image; the class token is not one."""
        return (input_size // self.patch) ** 2


#: DeiT-B/16 with 200 classes, as in the token-reduction study; `tiny` is for trials without a GPU.
VIT_SIZES: Final = {
    "tiny": ViTSize(patch=4, width=16, blocks=4, heads=2, classes=10),
    "deit-b16": ViTSize(patch=16, width=768, blocks=12, heads=12, classes=200),
}

#: Typed text → boolean: help shows yes and no, measurements and Python show True and False.
_TRUTHS: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def setting_value(what: str, text: str, default: Any) -> Any:
    """Converts a typed text to the type of the setting's default; several numbers are joined by +.

    Raises:
        UsageError: the text is not of that type.
    """
    try:
        if isinstance(default, bool):
            return _TRUTHS[text.lower()]
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
        if isinstance(default, tuple):
            # Locations default to whole numbers; a schedule, which holds shares, defaults to ().
            kind = int if default else float
            return tuple(kind(part) for part in text.split("+"))
    except (KeyError, ValueError):
        wanted = "yes or no (true or false, 1 or 0)" if isinstance(default, bool) else "a number"
        wanted = "numbers joined by +" if isinstance(default, tuple) else wanted
        raise UsageError(f"{what} takes {wanted}, not {text!r}") from None
    return text


def defaults_of(cell: type) -> Mapping[str, Any]:
    """The settings of a workload with their defaults; an empty text for one without a default."""
    return {item.name: "" if item.default is MISSING else item.default for item in fields(cell)}


#: Kinds of steps of the language model.
LM_MODES: Final = ("forward", "forward-backward", "train")

#: How a step reaches the GPU: eagerly, through `torch.compile`, or as one CUDA graph.
EXECUTIONS: Final = ("eager", "compile", "graph")

#: Arithmetic. `fp32` forbids TF32, `tf32` allows it; `bf16` is autocast of a model with fp32 weights; `fp16` and
#: `bf16-weights` convert the model itself.
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16", "bf16-weights")

#: `reference` is AdamW as in the assignment, `torch` that of PyTorch, `torch-fused` its fused kernel.
OPTIMIZERS: Final = ("reference", "torch", "torch-fused")

#: How attention is computed: `explicit` with all weights in memory, or `fused` into one kernel; methods that need the
#: class token's weights then compute that row separately.
ATTENTIONS: Final = ("explicit", "fused")

#: Token reduction methods; see `warplens.workloads.token_reduction`.
METHODS: Final = (
    "none", "random", "topk", "topk-rows", "topk-cached", "topk-fused", "evit", "evit-fused", "tome", "dynamicvit",
    "ats",
)  # fmt: skip


def _check(what: str, value: str, known: tuple[str, ...] | list[str]) -> None:
    if value not in known:
        raise UsageError(f"{value!r} is not a {what}; known are {', '.join(known)}")


def _check_positive(what: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"the {what} is {value}, and must be at least 1")


@dataclass(frozen=True)
class LMCell:
    """One cell of the language-model grid. Without training, `optimizer` becomes `none`.

    Raises:
        UsageError: an unknown value, or incompatible settings.
    """

    size: str = "small"
    context: int = 512
    batch: int = LM_BATCH
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

    Raises:
        UsageError: an unknown value, or incompatible settings.
    """

    model: str = "deit-b16"  #: of `VIT_SIZES`
    input_size: int = 224  #: side of the square image, in pixels
    batch: int = 1  #: images in a step
    method: str = "topk"  #: of `METHODS`
    #: share of the current patch tokens that each location keeps (that a merging method aims at); 1 without a method
    keep: float = 0.5
    locations: tuple[int, ...] = (3, 6, 9)  #: blocks (from 0) that reduce
    schedule: tuple[float, ...] = ()  #: share of each location, where they differ; () if `keep` holds for all
    #: precision, execution, attention: of `PRECISIONS`, `EXECUTIONS`, `ATTENTIONS`
    precision: str = "fp16"
    execution: str = "eager"
    attention: str = "explicit"
    #: whether TopK and EViT also list the kept tokens, as the published code does in every pass although only a
    #: visualisation reads the list; the fused ones write it without a further launch
    visualisation: bool = True

    def __post_init__(self) -> None:
        """Refuses settings that are unknown or do not fit together."""
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
            # These settings have no effect: all such cells are equal.
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
                raise UsageError(f"{share} is not a share of the tokens to keep: it must be above 0 and at most 1")
        if self.method == "ats" and self.execution == "graph":
            raise UsageError("ATS decides from the data how many tokens go on, which a CUDA graph cannot replay")

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the tokens that each location keeps."""
        return self.schedule or (self.keep,) * len(self.locations)


@dataclass(frozen=True)
class AttentionCell:
    """One cell of the attention grid.

    Raises:
        UsageError: a size below one, or an unknown mode or type. Kernels are looked up when they are run.
    """

    kernel: str = "flash"  #: of `warplens.workloads.attention.problem.KERNELS`
    #: seq_len, head_dim, batch, heads: size of the problem
    seq_len: int = 1024
    head_dim: int = 64
    batch: int = 1
    heads: int = 16
    dtype: str = "bfloat16"  #: of the inputs: `float16`, `bfloat16`, `float32`
    causal: bool = True  #: whether a row sees itself and earlier rows alone
    mode: str = "forward"  #: `forward`, `backward` (the gradients alone) or `both`

    def __post_init__(self) -> None:
        _check("number format", self.dtype, ("float16", "bfloat16", "float32"))
        _check("mode", self.mode, ("forward", "backward", "both"))
        _check_positive("sequence length", self.seq_len)
        _check_positive("head dimension", self.head_dim)
        _check_positive("batch", self.batch)
        _check_positive("number of heads", self.heads)


register(Workload("lm", "Transformer language model.", LMCell, "warplens.workloads.transformer_lm:prepare"))
register(
    Workload(
        "token-reduction",
        "Vision transformer with token reduction.",
        TokenReductionCell,
        "warplens.workloads.vision:prepare",
    )
)
register(
    Workload(
        "attention",
        "Attention kernels, checked first.",
        AttentionCell,
        run="warplens.workloads.attention.measurement:run_cell",
    )
)
