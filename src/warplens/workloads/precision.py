"""Arithmetic of a workload: fp32, TF32, bf16 autocast, or a model converted to fp16 or bf16."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["model_dtype", "precision"]

_MODEL_DTYPES = {"fp16": torch.float16, "bf16-weights": torch.bfloat16}


def model_dtype(name: str) -> torch.dtype:
    """Type of weights and inputs under a precision of `settings.PRECISIONS`."""
    return _MODEL_DTYPES.get(name, torch.float32)


@contextmanager
def precision(name: str, device: str, graph: bool = False) -> Iterator[None]:
    """Arithmetic inside the block.

    Args:
        name: of `settings.PRECISIONS`.
        device: `cuda` or `cpu`.
        graph: whether the block is captured into a CUDA graph: autocast must then not keep converted weights, for their
            conversion would not be replayed.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    try:
        if name == "bf16":
            kind = torch.device(device).type
            with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=not graph):
                yield
        else:
            yield
    finally:
        torch.set_float32_matmul_precision(before)
