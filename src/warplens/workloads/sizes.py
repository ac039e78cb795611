"""Widths of the reference models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LM_BATCH", "LM_SIZES", "VIT_SIZES", "VOCABULARY", "LMSize", "ViTSize"]

#: Tokens that the language models know, and sequences in a batch: those of the CS336 assignment.
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


#: CS336, assignment 2: five sizes of spring 2025, and the two of spring 2026 that differ. `tiny` is not of the
#: assignment: it is for trying things out without a GPU. "2.7B" really has 3.4 billion parameters, since SwiGLU has
#: three matrices at d_ff = 4·d_model; "10B" has 12.8.
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


#: DeiT-B/16 with 200 classes, as the token-reduction study has it. `tiny` is for trying things out without a GPU.
VIT_SIZES: Final = {
    "tiny": ViTSize(patch=4, width=16, blocks=4, heads=2, classes=10),
    "deit-b16": ViTSize(patch=16, width=768, blocks=12, heads=12, classes=200),
}
