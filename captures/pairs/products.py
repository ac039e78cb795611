"""A product with bias and GELU in one kernel of Triton."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton import language as tl

__all__ = ["product_gelu"]


@triton.jit
def _product_gelu(
    x, weight, bias, y, rows, columns, inner,
    tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * tall + tl.arange(0, tall)
    column = tl.program_id(1) * wide + tl.arange(0, wide)
    depth = tl.arange(0, deep)
    left = x + row[:, None] * inner + depth[None, :]
    right = weight + depth[:, None] * columns + column[None, :]
    total = tl.zeros((tall, wide), tl.float32)
    for _ in range(0, inner, deep):
        total = tl.dot(tl.load(left), tl.load(right), total, input_precision=precision)
        left += deep
        right += deep * columns
    total += tl.load(bias + column)[None, :]
    total = total * 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
    tl.store(y + row[:, None] * columns + column[None, :], total)


def product_gelu(x: Tensor, weight: Tensor, bias: Tensor, precision: str) -> Tensor:
    """GELU(x @ weight + bias) of rows [rows, inner] and weights [inner, columns], whose sizes are multiples of 128."""
    rows, inner, columns = *x.shape, weight.shape[1]
    y = torch.empty(rows, columns, device=x.device, dtype=x.dtype)
    grid = (rows // 128, columns // 128)
    _product_gelu[grid](
        x, weight, bias, y, rows, columns, inner,
        tall=128, wide=128, deep=32, precision=precision, num_warps=8, num_stages=3,
    )  # fmt: skip
    return y
