"""Modelled work of the transformer language models of Stanford's CS336 assignments: parameters, FLOPs, bytes.

Everything here follows from shapes, nothing is measured. A FLOP is one multiplication or one addition: a matrix product
of [m, k] and [k, n] is 2·m·k·n FLOPs (m·k·n multiply-accumulates).

The model: separate q, k, v and output projections, hand-written attention over full (not causal) score matrices, SwiGLU
with three matrices, RMSNorm, untied head, no biases. Vocabulary 10,000. Sizes: assignment 2, editions of spring 2025
(`xl` with d_model 1600 and `2.7B`) and spring 2026 (`xl` with d_model 2560, which is the older `2.7B`, and `10B`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warplens.workloads.settings import LM_SIZES, VOCABULARY

#: Maximum, subtraction, exponential, sum and division: one each for every score.
SOFTMAX_FLOPS_PER_SCORE: Final = 5

#: Launches that the assignment's AdamW makes for one parameter tensor in a step: decay 2, first moment 4, second
#: moment 5, update 5; two of them are fills, from the `zeros_like` that `state.get(…, zeros_like(p))` always evaluates.
REFERENCE_ADAMW_LAUNCHES_PER_TENSOR: Final = 16

#: Bytes that those launches move for one fp32 parameter, caches not counted: 33 reads and writes of the arithmetic and
#: 2 writes of the fills, 4 bytes each.
REFERENCE_ADAMW_BYTES_PER_PARAMETER: Final = (33 + 2) * 4


@dataclass(frozen=True)
class ModelSize:
    """Widths of one model; `edition` names the assignment's year, empty where all editions agree."""

    name: str
    d_model: int
    d_ff: int
    layers: int
    heads: int
    edition: str = ""

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    @property
    def parameters(self) -> int:
        """Trained numbers: embedding and head, and in each layer four projections, three matrices and two norms."""
        layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff + 2 * self.d_model
        return 2 * VOCABULARY * self.d_model + self.layers * layer + self.d_model

    @property
    def parameter_tensors(self) -> int:
        """Trained tensors: nine in each layer, the embedding, the last norm and the head."""
        return 9 * self.layers + 3


#: Editions of sizes on which they differ, by the name in `LM_SIZES`; the more widespread one has the plain name.
_EDITIONS: Final = {"xl": "spring 2025", "xl-2026": "spring 2026", "2.7B": "spring 2025", "10B": "spring 2026"}

#: Every size by its canonical name, the more widespread edition first.
MODEL_SIZES: Final[tuple[ModelSize, ...]] = tuple(
    ModelSize(name.removesuffix("-2026"), size.d_model, size.d_ff, size.layers, size.heads, _EDITIONS.get(name, ""))
    for name, size in LM_SIZES.items()
    if name != "tiny"
)

_BILLIONS = re.compile(r"^(\d+)(?:[._p-](\d+))?b$")


def canonical_model(text: str) -> str | None:
    """The name under which a size is known (`2p7b`, `2_7B` → `2.7B`; `SMALL` → `small`); None for any other text."""
    lowered = text.strip().lower()
    if billions := _BILLIONS.match(lowered):
        lowered = f"{billions[1]}.{billions[2]}b" if billions[2] else f"{billions[1]}b"
    return next((size.name for size in MODEL_SIZES if size.name.lower() == lowered), None)


def model_size(name: str, layers: int | None = None) -> ModelSize | None:
    """The widths of a model by name; where editions differ, the one with this many layers, else the first.

    Args:
        name: canonical name.
        layers: how many layers the profile shows; None where that is not known.

    Returns:
        None for a name that is not in the table, or where the profile shows another number of layers than it says.
    """
    named = [size for size in MODEL_SIZES if size.name == name]
    if layers is not None:
        named = [size for size in named if size.layers == layers]
    return named[0] if named else None


def model_rank(name: str) -> tuple[int, int, str]:
    """Sorts names by size: known models by their parameters, all others after them by name."""
    size = model_size(name)
    return (0, size.parameters, name) if size else (1, 0, name)


def attention_matmul_flops(batch: int, heads: int, context: int, d_head: int) -> int:
    """FLOPs of one of the two matrix products of one attention layer (q·kᵀ, or weights·v): 2·B·H·S²·d."""
    return 2 * batch * heads * context**2 * d_head


def softmax_flops(batch: int, heads: int, context: int) -> int:
    """FLOPs of the softmax of one attention layer: 5·B·H·S²."""
    return SOFTMAX_FLOPS_PER_SCORE * batch * heads * context**2


def flop_ratio(d_head: int) -> float:
    """FLOPs of both attention products over those of the softmax: 2·2·d / 5, whatever batch, heads and context are."""
    return 2 * 2 * d_head / SOFTMAX_FLOPS_PER_SCORE


def forward_flops(size: ModelSize, batch: int, context: int) -> int:
    """FLOPs of the matrix products of one forward pass: 2T·L(4d² + 3·d·d_ff) + 4·B·S²·d·L + 2T·d·V, with T = B·S."""
    tokens = batch * context
    linear = 2 * tokens * size.layers * (4 * size.d_model**2 + 3 * size.d_model * size.d_ff)
    attention = 2 * size.layers * attention_matmul_flops(batch, size.heads, context, size.d_head)
    return linear + attention + 2 * tokens * size.d_model * VOCABULARY
