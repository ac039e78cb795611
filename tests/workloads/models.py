"""Small models with the weights that tests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from warplens.workloads.settings import VIT_SIZES
from warplens.workloads.token_reduction.methods import reductions
from warplens.workloads.vision import VisionTransformer


def small_vit(method: str, shares: Sequence[float] = (0.6, 0.5), side: int = 20, **others: Any) -> VisionTransformer:
    """A tiny vision transformer in float64 whose attention prefers some tokens; the same weights each time."""
    size = VIT_SIZES["tiny"]
    torch.manual_seed(5)
    model = VisionTransformer(size, side, reductions(method, size, side, (1, 2), shares), **others).double()
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model.eval()
