"""What is computed: the size of an attention problem, the work that it is by convention, and its inputs.

    out = softmax(q kᵀ · scale + mask) v        q, k, v: [batch, heads, seq_len, head_dim], scale = head_dim^−½

The mask is causal (a row sees itself and earlier rows) or absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from warplens.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "HEAD_DIMS", "MODES", "AttentionShape", "Mode", "attention_flops", "attention_inputs"]

Mode = Literal["forward", "backward", "both"]
MODES: Final[tuple[Mode, ...]] = ("forward", "backward", "both")

#: Number formats of the inputs, as torch names them.
DTYPES: Final = ("float16", "bfloat16", "float32")

#: Head dimensions that the own kernels accept: powers of two that fill a tensor-core fragment and fit into registers.
HEAD_DIMS: Final = (16, 32, 64, 128)

#: Backward = 5 matrix products where forward has 2 (scores again, dV, dP, dQ, dK): the convention of Dao's benchmarks.
BACKWARD_FACTOR: Final = 2.5


@dataclass(frozen=True)
class AttentionShape:
    """Size of one problem; queries and keys have the same length.

    Attributes:
        batch: sequences.
        heads: heads of each.
        seq_len: tokens of each sequence.
        head_dim: elements of a head's query, key or value.
    """

    batch: int
    heads: int
    seq_len: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "seq_len", "head_dim"):
            if getattr(self, name) < 1:
                message = f"attention {name} is {getattr(self, name)}; it must be at least 1"
                raise UsageError(message)

    def __str__(self) -> str:
        return f"{self.batch}×{self.heads}×{self.seq_len}×{self.head_dim}"

    @property
    def scale(self) -> float:
        """The factor on the scores: head_dim^−½."""
        return 1 / math.sqrt(self.head_dim)


def attention_flops(shape: AttentionShape, *, causal: bool, mode: Mode) -> float:
    """Floating-point operations that a run is credited with, whatever the kernel really does.

    Two matrix products of 2·S²·D each per head; the softmax is not counted; causal counts half; backward is 2.5 times
    forward (five products for two; a kernel that computes the scores twice gets no credit for it).
    """
    forward = 4.0 * shape.batch * shape.heads * shape.seq_len**2 * shape.head_dim * (0.5 if causal else 1.0)
    return forward * {"forward": 1.0, "backward": BACKWARD_FACTOR, "both": 1.0 + BACKWARD_FACTOR}[mode]


def torch_dtype(name: str) -> Any:
    """The torch dtype of this name (one of `DTYPES`)."""
    import torch  # noqa: PLC0415

    if name not in DTYPES:
        message = f"attention dtype {name!r} is not one of {', '.join(DTYPES)}"
        raise UsageError(message)
    return getattr(torch, name)


def attention_inputs(
    shape: AttentionShape, dtype: str, device: str, *, seed: int = 0, requires_grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values: standard normal, drawn in fp32 from a seeded generator, then rounded to `dtype`."""
    import torch  # noqa: PLC0415

    generator = torch.Generator(device=device).manual_seed(seed)
    size = (shape.batch, shape.heads, shape.seq_len, shape.head_dim)

    def draw() -> torch.Tensor:
        numbers = torch.randn(size, generator=generator, device=device, dtype=torch.float32)
        return numbers.to(torch_dtype(dtype)).requires_grad_(requires_grad)

    return draw(), draw(), draw()
