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

The forward pass on Hopper has a kernel of its own, `hopper`.
"""

from __future__ import annotations

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803, SIM108  a kernel's compile-time arguments are written in capitals, as Triton's are


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


# --- Flash attention, backward: three Triton kernels that rebuild the probabilities from the saved log-sum-exp -------
# With P the probabilities, dO the gradient of the output, and all products per head (Dao, "FlashAttention-2", 2023,
# algorithm 2):
#
#     delta = rowsum(dO ∘ O)          dV = Pᵀ dO          dP = dO Vᵀ
#     dS = P ∘ (dP − delta)           dQ = dS K · scale   dK = dSᵀ Q · scale
#
# One kernel computes delta; one owns blocks of keys and walks over the queries (dK, dV); one owns blocks of queries and
# walks over the keys (dQ). The scores are computed twice, and in return no block waits for another and no sum
# depends on the order in which blocks finish: gradients are the same bits in every run.


@triton.jit
def delta_kernel(out, d_out, delta, seq_len, BLOCK: tl.constexpr, D: tl.constexpr):
    """delta[head, row] = Σ out · d_out over the row, in fp32."""
    start = tl.program_id(0) * BLOCK
    head = tl.program_id(1)
    rows = start + tl.arange(0, BLOCK)
    o = _tile(out, head, start, seq_len, BLOCK, D, False, True).to(tl.float32)
    d_o = _tile(d_out, head, start, seq_len, BLOCK, D, False, True).to(tl.float32)
    tl.store(delta + head.to(tl.int64) * seq_len + rows, tl.sum(o * d_o, 1), mask=rows < seq_len)


@triton.jit
def _key_gradients(
    d_k,
    d_v,
    k,
    v,
    queries,
    d_out,
    log_sum_exp,
    delta,
    head,
    columns,
    first,
    last,
    seq_len,
    scale,
    BLOCK_M: tl.constexpr,
    D: tl.constexpr,
    TMA: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Adds what the query rows `first` … `last` contribute; scores are held transposed, [keys, queries]."""
    base = head.to(tl.int64) * seq_len
    for start in tl.range(first, last, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        q = _tile(queries, head, start, seq_len, BLOCK_M, D, TMA, MASK)
        if MASK:
            # A row past the end has an infinite log-sum-exp, hence probabilities of zero: it contributes nothing.
            normalizer = tl.load(log_sum_exp + base + rows, mask=rows < seq_len, other=float("inf"))
            row_delta = tl.load(delta + base + rows, mask=rows < seq_len, other=0.0)
        else:
            normalizer = tl.load(log_sum_exp + base + rows)
            row_delta = tl.load(delta + base + rows)
        scores = tl.dot(k, q.T, input_precision=PRECISION)
        exponent = scores * scale - normalizer[None, :]
        if CAUSAL and MASK:
            exponent = tl.where(rows[None, :] >= columns[:, None], exponent, float("-inf"))
        p = tl.exp2(exponent)
        d_o = _tile(d_out, head, start, seq_len, BLOCK_M, D, TMA, MASK)
        d_v = tl.dot(p.to(d_o.dtype), d_o, d_v, input_precision=PRECISION)
        d_p = tl.dot(v, d_o.T, input_precision=PRECISION)
        d_s = p * (d_p - row_delta[None, :])
        d_k = tl.dot(d_s.to(q.dtype), q, d_k, input_precision=PRECISION)
    return d_k, d_v


@triton.jit
def key_gradient_kernel(
    queries,
    keys,
    values,
    d_out,
    log_sum_exp,
    delta,
    d_keys,
    d_values,
    seq_len,
    scale,
    key_scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    SKIP: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """DK and dV of `BLOCK_N` keys of one head.

    Args:
        queries, keys, values, d_out: [heads, seq_len, D], contiguous; pointers, or descriptors if `TMA`.
        d_keys, d_values: the same shape; pointers.
        log_sum_exp, delta: [heads, seq_len] fp32; the former in powers of two, as the forward kernel writes it.
        scale: softmax scale × log₂e.
        key_scale: softmax scale.
        SKIP: do not visit query blocks that the causal mask hides; and run blocks that no mask touches without one.
    """
    start_n = tl.program_id(0) * BLOCK_N
    head = tl.program_id(1)
    columns = start_n + tl.arange(0, BLOCK_N)
    k = _tile(keys, head, start_n, seq_len, BLOCK_N, D, TMA, True)
    v = _tile(values, head, start_n, seq_len, BLOCK_N, D, TMA, True)
    d_k = tl.zeros([BLOCK_N, D], tl.float32)
    d_v = tl.zeros([BLOCK_N, D], tl.float32)

    if SKIP:
        if CAUSAL:
            first = start_n // BLOCK_M * BLOCK_M
            # Rows of a block that lies wholly below the diagonal see every key of this program.
            clear = tl.cdiv(start_n + BLOCK_N, BLOCK_M) * BLOCK_M
        else:
            first = 0
            clear = 0
        clear_end = tl.maximum(seq_len // BLOCK_M * BLOCK_M, clear)
        masked_end = tl.minimum(clear, seq_len)
        if CAUSAL:
            d_k, d_v = _key_gradients(
                d_k, d_v, k, v, queries, d_out, log_sum_exp, delta, head, columns, first, masked_end, seq_len, scale,
                BLOCK_M, D, TMA, CAUSAL, True, PRECISION,
            )  # fmt: skip
        d_k, d_v = _key_gradients(
            d_k, d_v, k, v, queries, d_out, log_sum_exp, delta, head, columns, clear, clear_end, seq_len, scale,
            BLOCK_M, D, TMA, CAUSAL, False, PRECISION,
        )  # fmt: skip
        d_k, d_v = _key_gradients(
            d_k, d_v, k, v, queries, d_out, log_sum_exp, delta, head, columns, clear_end, seq_len, seq_len, scale,
            BLOCK_M, D, TMA, CAUSAL, True, PRECISION,
        )  # fmt: skip
    else:
        d_k, d_v = _key_gradients(
            d_k, d_v, k, v, queries, d_out, log_sum_exp, delta, head, columns, 0, seq_len, seq_len, scale,
            BLOCK_M, D, TMA, CAUSAL, True, PRECISION,
        )  # fmt: skip

    targets = head.to(tl.int64) * seq_len * D + columns[:, None] * D + tl.arange(0, D)[None, :]
    inside = columns[:, None] < seq_len
    tl.store(d_keys + targets, (d_k * key_scale).to(d_keys.dtype.element_ty), mask=inside)
    tl.store(d_values + targets, d_v.to(d_values.dtype.element_ty), mask=inside)


@triton.jit
def _query_gradients(
    d_q,
    q,
    d_o,
    normalizer,
    row_delta,
    keys,
    values,
    head,
    rows,
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
    """Adds what the keys `first` … `last` contribute."""
    for start in tl.range(first, last, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k = _tile(keys, head, start, seq_len, BLOCK_N, D, TMA, MASK)
        v = _tile(values, head, start, seq_len, BLOCK_N, D, TMA, MASK)
        exponent = tl.dot(q, k.T, input_precision=PRECISION) * scale - normalizer[:, None]
        if MASK:
            visible = columns[None, :] < seq_len
            if CAUSAL:
                visible = visible & (rows[:, None] >= columns[None, :])
            exponent = tl.where(visible, exponent, float("-inf"))
        p = tl.exp2(exponent)
        d_p = tl.dot(d_o, v.T, input_precision=PRECISION)
        d_s = p * (d_p - row_delta[:, None])
        d_q = tl.dot(d_s.to(k.dtype), k, d_q, input_precision=PRECISION)
    return d_q


@triton.jit
def query_gradient_kernel(
    queries,
    keys,
    values,
    d_out,
    log_sum_exp,
    delta,
    d_queries,
    seq_len,
    scale,
    query_scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    SKIP: tl.constexpr,
    TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """DQ of `BLOCK_M` query rows of one head; arguments as for `key_gradient_kernel`."""
    tile = tl.program_id(0)
    if CAUSAL and SKIP:
        tile = tl.num_programs(0) - 1 - tile
    start_m = tile * BLOCK_M
    head = tl.program_id(1)
    base = head.to(tl.int64) * seq_len
    rows = start_m + tl.arange(0, BLOCK_M)
    inside = rows < seq_len
    q = _tile(queries, head, start_m, seq_len, BLOCK_M, D, TMA, True)
    d_o = _tile(d_out, head, start_m, seq_len, BLOCK_M, D, TMA, True)
    normalizer = tl.load(log_sum_exp + base + rows, mask=inside, other=float("inf"))
    row_delta = tl.load(delta + base + rows, mask=inside, other=0.0)
    d_q = tl.zeros([BLOCK_M, D], tl.float32)

    if SKIP:
        if CAUSAL:
            clear = tl.minimum(start_m, seq_len) // BLOCK_N * BLOCK_N
            end = tl.minimum(start_m + BLOCK_M, seq_len)
        else:
            clear = seq_len // BLOCK_N * BLOCK_N
            end = seq_len
        d_q = _query_gradients(
            d_q, q, d_o, normalizer, row_delta, keys, values, head, rows, 0, clear, seq_len, scale,
            BLOCK_N, D, TMA, CAUSAL, False, PRECISION,
        )  # fmt: skip
        d_q = _query_gradients(
            d_q, q, d_o, normalizer, row_delta, keys, values, head, rows, clear, end, seq_len, scale,
            BLOCK_N, D, TMA, CAUSAL, True, PRECISION,
        )  # fmt: skip
    else:
        d_q = _query_gradients(
            d_q, q, d_o, normalizer, row_delta, keys, values, head, rows, 0, seq_len, seq_len, scale,
            BLOCK_N, D, TMA, CAUSAL, True, PRECISION,
        )  # fmt: skip

    targets = base * D + rows[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(d_queries + targets, (d_q * query_scale).to(d_queries.dtype.element_ty), mask=inside[:, None])
