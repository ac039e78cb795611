"""Which tile sizes a kernel launches with: chosen from a table, so that a run needs no search and repeats exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import triton
import triton.language as tl

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803  a kernel's compile-time arguments are written in capitals, as Triton's are

#: First compute capability with the tensor memory accelerator and warp-group matrix instructions.
HOPPER: Final = (9, 0)

#: Releases of Triton with which the kernel for Hopper was run. Gluon is experimental: 3.5 has other signatures, 3.7 was
#: only compiled with, and 3.9 has renamed what the kernel calls.
GLUON_OF: Final = ("3.6",)


@dataclass(frozen=True)
class ForwardTiles:
    """How the flash forward kernel is launched."""

    block_m: int  #: query rows per program
    block_n: int  #: keys per step
    warps: int  #: warps per program
    stages: int  #: depth of the software pipeline over the keys
    tma: bool = False  #: tiles come through the tensor memory accelerator (Hopper and later)

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}/w{self.warps}/s{self.stages}{'/tma' * self.tma}"


@dataclass(frozen=True)
class BackwardTiles:
    """How the two gradient kernels are launched."""

    #: key_m, key_n: queries per step and keys per program of the dK/dV kernel
    key_m: int
    key_n: int
    #: query_m, query_n: queries per program and keys per step of the dQ kernel
    query_m: int
    query_n: int
    #: key_warps, query_warps: warps per program
    key_warps: int
    query_warps: int
    #: key_stages, query_stages: depth of the software pipelines
    key_stages: int
    query_stages: int
    #: leave out blocks that the causal mask hides, and compare with the mask only where it cuts a block
    skip: bool = True
    tma: bool = False  #: as `ForwardTiles` has it

    def __str__(self) -> str:
        key = f"{self.key_m}x{self.key_n}/w{self.key_warps}/s{self.key_stages}"
        query = f"{self.query_m}x{self.query_n}/w{self.query_warps}/s{self.query_stages}"
        return f"dkdv {key} dq {query}{' tma' * self.tma}"


@dataclass(frozen=True)
class HopperTiles:
    """How the flash forward kernel of Hopper (`attention.hopper`) is launched."""

    attenders: int  #: warp groups that multiply, 64 query rows each
    slots: int  #: tiles of keys or values that shared memory holds
    block_n: int = 128  #: keys per step

    def __str__(self) -> str:
        return f"{64 * self.attenders}x{self.block_n}/slots{self.slots}"


def hopper_tiles(head_dim: int, element_bytes: int, capability: tuple[int, int], causal: bool) -> HopperTiles | None:
    """The tiles of the kernel for Hopper; None where it does not apply, and `forward_tiles` do."""
    known = ".".join(triton.__version__.split(".")[:2]) in GLUON_OF
    if not known or triton.knobs.runtime.interpret or capability != HOPPER or element_bytes != 2:
        return None
    if head_dim == 128:
        return HopperTiles(2, 4)
    if head_dim == 64:
        # Three groups hide more of the exponentials; with a mask, their 192 rows end in the middle of a key block.
        return HopperTiles(2 if causal else 3, 8)
    return None


def forward_tiles(head_dim: int, element_bytes: int, capability: tuple[int, int]) -> ForwardTiles:
    """The tiles for a GPU of this compute capability."""
    if element_bytes > 2:
        return ForwardTiles(64, 32, 4, 2)
    if capability >= HOPPER:
        return ForwardTiles(64, 128, 4, 3, tma=True) if head_dim <= 64 else ForwardTiles(64, 64, 4, 3, tma=True)
    return ForwardTiles(128, 64, 4, 3) if head_dim <= 64 else ForwardTiles(64, 64, 4, 3)


def backward_tiles(head_dim: int, element_bytes: int, capability: tuple[int, int]) -> BackwardTiles:
    """The tiles of the gradient kernels for a GPU of this compute capability."""
    if element_bytes > 2:
        return BackwardTiles(32, 32, 32, 32, 4, 4, 1, 1)
    if capability >= HOPPER:
        # Small programs of one warp group, of which several share an SM: 9 to 24 points of the best backend's rate more
        # than 128 keys or queries by eight warps (H200, Triton 3.6, 4,096 and 16,384 tokens).
        return BackwardTiles(64, 64, 64, 64, 4, 4, 2, 3 if head_dim <= 64 else 2, tma=True)
    return BackwardTiles(32, 64, 64, 32, 4, 4, 2, 2)


# --- Naive attention: one Triton kernel per formula, every intermediate written to memory and read back --------------
# A batched matrix product, a softmax over rows, and the softmax's gradient. The scores and their gradients are fp32,
# the probabilities have the inputs' format: 4 + 4 + 2 + 2 bytes move per score of a bf16 forward pass, which bounds it.


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


# --- Tiled attention, forward: the online softmax, and none of what flash attention adds to it -----------------------
# Like flash it never writes the scores to memory, so it moves O(S·D) bytes per pass over the keys instead of O(S²).
# It is slower than flash, for reasons that can be read off the code:
#
# * small tiles: each `BLOCK`-row query tile reads all keys and values again, so traffic is S / `BLOCK` times K and V;
# * the output is divided by the running sum at every step (the first flash-attention paper's form), not once
#   at the end;
# * every block of scores is compared with the mask, and blocks that the causal mask hides are computed all the same;
# * `exp` instead of `exp2`, and no loads ahead of their use (one pipeline stage).


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
