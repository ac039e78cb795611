# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803, SIM108  a kernel's compile-time arguments are written in capitals, as Triton's are
"""Flash attention, forward: one Triton kernel that never writes the scores to memory.

A program owns `BLOCK_M` query rows of one head and walks over that head's keys and values `BLOCK_N` rows at a time. It
keeps the running maximum, the running sum and the unnormalised output of the online softmax in registers, and writes
two things: the output, and each row's log-sum-exp, from which the backward pass rebuilds the probabilities (Dao,
"FlashAttention-2", 2023, algorithm 1).

What makes it fast:

* `exp2` instead of `exp`, with log₂e folded into the scale, so that scaling and subtracting the maximum are one FMA;
* the output is divided by the row sums once, at the end;
* key blocks that no mask touches run in a loop of their own, without any comparison; with a causal mask, blocks above
  the diagonal are never visited;
* tiles come through the tensor memory accelerator (`TMA`), which also fills rows past the end with zeros;
* heavy tiles first: with a causal mask the last query rows have the most work, so they start first;
* small programs, several of which share an SM: while one waits at its barrier, another multiplies.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["flash_forward_kernel"]


@triton.jit
def _tile(source, head, row, seq_len, BLOCK: tl.constexpr, D: tl.constexpr, TMA: tl.constexpr, MASK: tl.constexpr):
    """`BLOCK` rows of one head from `row` on; rows past the end are zero if `MASK`, and always with `TMA`."""
    if TMA:
        tile = source.load([head, row, 0]).reshape(BLOCK, D)
    else:
        rows = row + tl.arange(0, BLOCK)
        pointers = source + head.to(tl.int64) * seq_len * D + rows[:, None] * D + tl.arange(0, D)[None, :]
        if MASK:
            tile = tl.load(pointers, mask=rows[:, None] < seq_len, other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def _attend(
    output,
    row_sum,
    row_max,
    q,
    keys,
    values,
    head,
    q_rows,
    first,
    last,
    seq_len,
    scale,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    TMA: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Online softmax over the keys `first` … `last`; `MASK`: some of them may be hidden or past the end."""
    for start in tl.range(first, last, BLOCK_N):
        k = _tile(keys, head, start, seq_len, BLOCK_N, D, TMA, MASK)
        scores = tl.dot(q, k.T, input_precision=PRECISION)
        if MASK:
            columns = start + tl.arange(0, BLOCK_N)
            visible = columns[None, :] < seq_len
            if CAUSAL:
                visible = visible & (q_rows[:, None] >= columns[None, :])
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new_max[:, None])
        shrink = tl.exp2(row_max - new_max)
        row_sum = row_sum * shrink + tl.sum(weights, 1)
        v = _tile(values, head, start, seq_len, BLOCK_N, D, TMA, MASK)
        output = tl.dot(weights.to(q.dtype), v, output * shrink[:, None], input_precision=PRECISION)
        row_max = new_max
    return output, row_sum, row_max


@triton.jit
def flash_forward_kernel(
    queries,
    keys,
    values,
    out,
    log_sum_exp,
    heads,
    seq_len,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    TAIL: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of the output per program.

    Args:
        queries, keys, values: [heads, seq_len, D], contiguous; pointers, or descriptors if `TMA`.
        out: the same shape; a pointer.
        log_sum_exp: [heads, seq_len] fp32, in powers of two: log₂ Σ 2^(score · scale).
        heads: batch × heads.
        seq_len: rows of queries and of keys.
        scale: softmax scale × log₂e.
        TAIL: `seq_len` is not a multiple of `BLOCK_N`.
        PRECISION: how fp32 operands are multiplied.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    if CAUSAL:
        tile = tl.num_programs(0) - 1 - tile
    start_m = tile * BLOCK_M
    q_rows = start_m + tl.arange(0, BLOCK_M)
    q = _tile(queries, head, start_m, seq_len, BLOCK_M, D, TMA, True)

    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    output = tl.zeros([BLOCK_M, D], tl.float32)

    if CAUSAL:
        clear = tl.minimum(start_m, seq_len) // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, seq_len)
    elif TAIL:
        clear = seq_len // BLOCK_N * BLOCK_N
        end = seq_len
    else:
        clear = seq_len
        end = seq_len
    output, row_sum, row_max = _attend(
        output, row_sum, row_max, q, keys, values, head, q_rows, 0, clear, seq_len, scale,
        BLOCK_N, D, TMA, CAUSAL, False, PRECISION,
    )  # fmt: skip
    if CAUSAL or TAIL:
        output, row_sum, row_max = _attend(
            output, row_sum, row_max, q, keys, values, head, q_rows, clear, end, seq_len, scale,
            BLOCK_N, D, TMA, CAUSAL, True, PRECISION,
        )  # fmt: skip

    output = output / row_sum[:, None]
    inside = q_rows < seq_len
    base = head.to(tl.int64) * seq_len
    tl.store(log_sum_exp + base + q_rows, row_max + tl.log2(row_sum), mask=inside)
    pointers = out + base * D + q_rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(pointers, output.to(out.dtype.element_ty), mask=inside[:, None])
