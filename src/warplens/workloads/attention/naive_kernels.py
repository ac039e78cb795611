# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803  a kernel's compile-time arguments are written in capitals, as Triton's are
"""Naive attention: one Triton kernel per formula, every intermediate written to memory and read back.

A batched matrix product, a softmax over rows, and the softmax's gradient. The scores and their gradients are fp32, the
probabilities have the inputs' format: 4 + 4 + 2 + 2 bytes move per score of a bf16 forward pass, which bounds it.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["matmul_kernel", "softmax_gradient_kernel", "softmax_kernel"]


@triton.jit
def matmul_kernel(
    left,
    right,
    product,
    rows,
    columns,
    inner,
    left_row,
    left_inner,
    right_inner,
    right_column,
    factor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """product[b] = left[b] @ right[b] · factor, one tile per program.

    Args:
        left: `rows` × `inner` per batch, with strides `left_row`, `left_inner`; batches are packed.
        right: `inner` × `columns` per batch, with strides `right_inner`, `right_column`; batches are packed.
        product: `rows` × `columns` per batch, row-major, packed.
    """
    batch = tl.program_id(2).to(tl.int64)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N).to(tl.int64)
    left += batch * rows * inner
    right += batch * inner * columns
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inner, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K).to(tl.int64)
        a = tl.load(
            left + m[:, None] * left_row + k[None, :] * left_inner,
            mask=(m[:, None] < rows) & (k[None, :] < inner),
            other=0.0,
        )
        b = tl.load(
            right + k[:, None] * right_inner + n[None, :] * right_column,
            mask=(k[:, None] < inner) & (n[None, :] < columns),
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=PRECISION)
    pointers = product + batch * rows * columns + m[:, None] * columns + n[None, :]
    inside = (m[:, None] < rows) & (n[None, :] < columns)
    tl.store(pointers, (total * factor).to(product.dtype.element_ty), mask=inside)


@triton.jit
def softmax_kernel(scores, probabilities, seq_len, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):
    """Softmax of one row: one pass for its maximum and sum, one that writes. Hidden keys get probability zero."""
    row = tl.program_id(0)
    base = (tl.program_id(1).to(tl.int64) * seq_len + row) * seq_len
    row_max = float("-inf")
    row_sum = 0.0
    for start in range(0, seq_len, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        visible = columns < seq_len
        if CAUSAL:
            visible = visible & (columns <= row)
        x = tl.load(scores + base + columns, mask=visible, other=float("-inf"))
        new_max = tl.maximum(row_max, tl.max(x, 0))
        row_sum = row_sum * tl.exp(row_max - new_max) + tl.sum(tl.exp(x - new_max), 0)
        row_max = new_max
    for start in range(0, seq_len, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        visible = columns < seq_len
        if CAUSAL:
            visible = visible & (columns <= row)
        x = tl.load(scores + base + columns, mask=visible, other=float("-inf"))
        p = tl.exp(x - row_max) / row_sum
        tl.store(probabilities + base + columns, p.to(probabilities.dtype.element_ty), mask=columns < seq_len)


@triton.jit
def softmax_gradient_kernel(probabilities, d_probabilities, d_scores, seq_len, BLOCK: tl.constexpr):
    """DS = P ∘ (dP − Σ P ∘ dP) of one row."""
    base = (tl.program_id(1).to(tl.int64) * seq_len + tl.program_id(0)) * seq_len
    inner = 0.0
    for start in range(0, seq_len, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        p = tl.load(probabilities + base + columns, mask=columns < seq_len, other=0.0).to(tl.float32)
        d_p = tl.load(d_probabilities + base + columns, mask=columns < seq_len, other=0.0)
        inner += tl.sum(p * d_p, 0)
    for start in range(0, seq_len, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        p = tl.load(probabilities + base + columns, mask=columns < seq_len, other=0.0).to(tl.float32)
        d_p = tl.load(d_probabilities + base + columns, mask=columns < seq_len, other=0.0)
        d_s = p * (d_p - inner)
        tl.store(d_scores + base + columns, d_s.to(d_scores.dtype.element_ty), mask=columns < seq_len)
