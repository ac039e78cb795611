# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803  a kernel's compile-time arguments are written in capitals, as Triton's are
"""Tiled attention, forward: the online softmax, and none of what flash attention adds to it.

Like flash it never writes the scores to memory, so it moves O(S·D) bytes per pass over the keys instead of O(S²). It is
slower than flash, for reasons that can be read off the code:

* small tiles: each `BLOCK`-row query tile reads all keys and values again, so traffic is S / `BLOCK` times K and V;
* the output is divided by the running sum at every step (the first flash-attention paper's form), not once at the end;
* every block of scores is compared with the mask, and blocks that the causal mask hides are computed all the same;
* `exp` instead of `exp2`, and no loads ahead of their use (one pipeline stage).
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["tiled_forward_kernel"]


@triton.jit
def tiled_forward_kernel(
    queries,
    keys,
    values,
    out,
    log_sum_exp,
    seq_len,
    scale,
    BLOCK: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """`BLOCK` rows of the output of one head.

    Args:
        queries, keys, values, out: [heads, seq_len, D], contiguous.
        log_sum_exp: [heads, seq_len] fp32, in powers of two as the backward kernels expect it.
        seq_len: rows of queries and of keys.
        scale: softmax scale.
    """
    base = tl.program_id(1).to(tl.int64) * seq_len
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.arange(0, D)
    inside = rows[:, None] < seq_len
    own = base * D + rows[:, None] * D + depth[None, :]
    q = tl.load(queries + own, mask=inside, other=0.0)
    row_max = tl.full([BLOCK], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK], tl.float32)
    output = tl.zeros([BLOCK, D], tl.float32)
    for start in range(0, seq_len, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        present = columns[:, None] < seq_len
        k = tl.load(keys + base * D + columns[:, None] * D + depth[None, :], mask=present, other=0.0)
        scores = tl.dot(q, k.T, input_precision=PRECISION) * scale
        visible = columns[None, :] < seq_len
        if CAUSAL:
            visible = visible & (rows[:, None] >= columns[None, :])
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp(scores - new_max[:, None])
        shrunk_sum = row_sum * tl.exp(row_max - new_max)
        new_sum = shrunk_sum + tl.sum(weights, 1)
        v = tl.load(values + base * D + columns[:, None] * D + depth[None, :], mask=present, other=0.0)
        step = tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        output = (output * shrunk_sum[:, None] + step) / new_sum[:, None]
        row_max = new_max
        row_sum = new_sum
    tl.store(out + own, output.to(out.dtype.element_ty), mask=inside)
    log2_e: tl.constexpr = 1.4426950408889634
    tl.store(log_sum_exp + base + rows, (row_max + tl.log(row_sum)) * log2_e, mask=rows < seq_len)
