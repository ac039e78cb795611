# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803  a kernel's compile-time arguments are written in capitals, as Triton's are
"""Score, selection, gather and fusion of a token reduction in one Triton kernel.

Each program independently determines the ranks of its tokens by counting the tokens with higher scores. That takes N²
comparisons for N tokens, all on chip, instead of the many dependent steps of a sort; the rank is the output row, so
that no further gather or concatenation is needed.
"""

from __future__ import annotations

import os
from typing import Final

import triton
import triton.language as tl

#: Whether the kernel runs in Triton's interpreter, on the CPU; Triton decides when the kernel is defined.
INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def _of_head(weights, head, head_stride, offsets, inside, BITS: tl.constexpr):
    value = tl.load(weights + head * head_stride + offsets, mask=inside, other=0.0)
    return value.to(tl.float64) if BITS == 64 else value.to(tl.float32)


@triton.jit
def _scores(weights, head_stride, token_stride, patches, inside, HEADS: tl.constexpr, BITS: tl.constexpr):
    """The class token's attention to some patch tokens, averaged over heads.

    Bitwise equal to `weights[:, :, 0, 1:].mean(dim=1)` on a GPU: PyTorch's reduction keeps four running sums in fp32,
    adds them in order, multiplies by 1 / heads, and rounds to the format of the weights. Another order of summation
    would sometimes change the last bit, and with it the choice.
    """
    offsets = (patches + 1) * token_stride
    a = _of_head(weights, 0, head_stride, offsets, inside, BITS)
    b, c, d = tl.zeros_like(a), tl.zeros_like(a), tl.zeros_like(a)
    for head in tl.static_range(1, HEADS):
        value = _of_head(weights, head, head_stride, offsets, inside, BITS)
        if head % 4 == 0:
            a += value
        elif head % 4 == 1:
            b += value
        elif head % 4 == 2:
            c += value
        else:
            d += value
    mean = (((a + b) + c) + d) * (1.0 / HEADS)
    return mean.to(weights.dtype.element_ty)


@triton.jit
def _ordered(score, BITS: tl.constexpr):
    """Unsigned integers in the order of the scores, a total order with NaN.

    NaN is the largest, as for `torch.topk`, and both zeros are equal.
    """
    score = tl.where(score == 0.0, tl.zeros_like(score), score)
    if BITS == 16:
        bits = score.to(tl.uint16, bitcast=True).to(tl.uint32)
    elif BITS == 32:
        bits = score.to(tl.uint32, bitcast=True)
    else:
        bits = score.to(tl.uint64, bitcast=True)
    negative = (bits >> (BITS - 1)) == 1
    ordered = tl.where(negative, (2**BITS - 1) - bits, bits + 2 ** (BITS - 1))
    return tl.where(score != score, 2**BITS - 1, ordered).to(bits.dtype)  # noqa: PLR0124  NaN


@triton.jit(do_not_specialize=["patches", "kept"])
def select_tokens_kernel(
    weights,
    x,
    out,
    listing,
    batch_stride,
    head_stride,
    token_stride,
    patches,
    kept,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    FUSE: tl.constexpr,
    LIST: tl.constexpr,
    BLOCK_T: tl.constexpr,
    SPREAD: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_P: tl.constexpr,
    FUSE_T: tl.constexpr,
    FUSE_W: tl.constexpr,
):
    """Writes the class token, the `kept` patch tokens with the highest scores, best first, and with FUSE a fused one.

    Among equal scores, the first token in the image wins.

    Args:
        weights: attention [batch, heads, queries, 1 + patches] with those strides; the first query is the class token.
        x: [batch, 1 + patches, WIDTH], packed.
        out: [batch, 1 + kept, WIDTH], packed; one row more with FUSE.
        listing: with LIST, [batch, patches]: numbers of the patch tokens that are kept, best first, then −1.
        BITS: of a score; scores are compared as integers of that size.
        BLOCK_T: tokens that a program ranks and copies.
        SPREAD: threads that compute their scores, or BLOCK_T if that is more.
        BLOCK_J: tokens compared with at a time.
        BLOCK_W: columns copied at a time.
        BLOCK_P, FUSE_T, FUSE_W: of the programs that fuse: a power of two not below `patches`; rows and columns of x at
            a time. They come first in the grid, since they take longest.
    """
    batch = tl.program_id(1).to(tl.int64)
    weights += batch * batch_stride
    x += batch * (patches + 1) * WIDTH
    fusing = 0
    if FUSE:
        fusing = (WIDTH + FUSE_W - 1) // FUSE_W
        out += batch * (kept + 2) * WIDTH
    else:
        out += batch * (kept + 1) * WIDTH
    if tl.program_id(0) < fusing:
        if FUSE:
            _fuse(
                weights, x, out, head_stride, token_stride, patches, kept,
                HEADS, WIDTH, BITS, BLOCK_P, FUSE_T, FUSE_W,
            )  # fmt: skip
    else:
        rows = (tl.program_id(0) - fusing) * BLOCK_T + tl.arange(0, BLOCK_T)
        patch = rows - 1  # the class token comes first
        of_patch = (patch >= 0) & (patch < patches)
        # Each thread scores one token, with duplicates; otherwise each thread would score all BLOCK_T.
        one = (tl.program_id(0) - fusing) * BLOCK_T + tl.arange(0, SPREAD) % BLOCK_T - 1
        real = (one >= 0) & (one < patches)
        spread = _ordered(_scores(weights, head_stride, token_stride, one, real, HEADS, BITS), BITS)
        mine = tl.max(tl.reshape(spread, [SPREAD // BLOCK_T, BLOCK_T]), axis=0)
        place = tl.zeros([BLOCK_T], tl.int32)
        for start in range(0, patches, BLOCK_J):
            other = start + tl.arange(0, BLOCK_J)
            there = other < patches
            theirs = _ordered(_scores(weights, head_stride, token_stride, other, there, HEADS, BITS), BITS)
            first = (theirs[None, :] == mine[:, None]) & (other[None, :] < patch[:, None])
            ahead = ((theirs[None, :] > mine[:, None]) | first) & there[None, :]
            place += tl.sum(ahead.to(tl.int32), axis=1)
        if LIST:
            chosen = tl.where(place < kept, patch, -1).to(tl.int64)
            tl.store(listing + batch * patches + place, chosen, mask=of_patch)
        goes_on = (rows == 0) | (of_patch & (place < kept))
        into = tl.where(rows == 0, 0, place + 1)
        for start in tl.static_range(0, WIDTH, BLOCK_W):
            columns = start + tl.arange(0, BLOCK_W)
            inside = goes_on[:, None] & (columns < WIDTH)[None, :]
            tile = tl.load(x + rows[:, None] * WIDTH + columns[None, :], mask=inside)
            tl.store(out + into[:, None] * WIDTH + columns[None, :], tile, mask=inside)


@triton.jit
def _fuse(
    weights,
    x,
    out,
    head_stride,
    token_stride,
    patches,
    kept,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    FUSE_T: tl.constexpr,
    FUSE_W: tl.constexpr,
):
    """Some columns of the sum of all dropped tokens, each times its score.

    The threshold, the score of the last kept token, is found by bisection over its bits from the highest: a bit is one
    if enough tokens reach the number with that bit. Of the tokens with exactly that score, the first are kept.
    """
    every = tl.arange(0, BLOCK_P)
    there = every < patches
    keys = _ordered(_scores(weights, head_stride, token_stride, every, there, HEADS, BITS), BITS)
    threshold = tl.zeros_like(tl.max(keys, axis=0))
    one = threshold + 1
    for step in tl.static_range(BITS):
        higher = threshold + (one << (BITS - 1 - step))
        reaching = tl.sum(((keys >= higher) & there).to(tl.int32), axis=0)
        threshold = tl.where(reaching >= kept, higher, threshold)
    room = kept - tl.sum(((keys > threshold) & there).to(tl.int32), axis=0)
    columns = tl.program_id(0) * FUSE_W + tl.arange(0, FUSE_W)
    total = tl.zeros([FUSE_W], tl.float64) if BITS == 64 else tl.zeros([FUSE_W], tl.float32)
    tied_before = 0
    for start in range(0, patches, FUSE_T):
        patch = start + tl.arange(0, FUSE_T)
        here = patch < patches
        tile = tl.load(
            x + (patch + 1)[:, None] * WIDTH + columns[None, :],
            mask=here[:, None] & (columns < WIDTH)[None, :],
            other=0.0,
        )
        score = _scores(weights, head_stride, token_stride, patch, here, HEADS, BITS)
        key = _ordered(score, BITS)
        tied = ((key == threshold) & here).to(tl.int32)
        late = (tied == 1) & (tied_before + tl.cumsum(tied, axis=0) > room)
        tied_before += tl.sum(tied, axis=0)
        dropped = here & ((key < threshold) | late)
        weighted = tile.to(total.dtype) * score.to(total.dtype)[:, None]
        # Masked rather than multiplied by zero: a kept token may be infinite.
        total += tl.sum(tl.where(dropped[:, None], weighted, 0.0), axis=0)
    tl.store(out + (kept + 1) * WIDTH + columns, total.to(out.dtype.element_ty), mask=columns < WIDTH)
