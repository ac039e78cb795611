"""Flash attention, forward, for Hopper: warps with roles of their own, in Gluon (Triton with explicit layouts).

The algorithm is that of `flash`; what differs is who does what (Shah et al., "FlashAttention-3", 2024):

* one warp, the *loader*, only asks the tensor memory accelerator (TMA) for tiles. Keys and values go through a ring of
  slots in shared memory: K and V of the last block, K and V of the block before it, …
* two or three warp groups, the *attenders*, own 64 query rows each. They take tiles from the ring and load nothing;
* matrix instructions are asynchronous: an attender issues the scores of the next block and the output of this one, and
  computes exponentials while the tensor cores multiply;
* a program stays on its SM and works off several tiles: the loader is at the next one while this one is written.

Two barriers a slot keep them apart: `full` (the loader's bytes have arrived) and `empty` (every attender has read it).
Use number n of the ring is of slot n mod SLOTS, and completes the barriers of that slot for the (n // SLOTS)-th time; a
wait names the parity of that number. Queries have a pair of barriers for each attender.

Blocks are visited from the last visible one backwards. So the first is the only one that a causal mask or the end of
the sequence can cut, and the loop needs no mask.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from warplens.workloads.attention.kernels import HopperTiles

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
# ruff: noqa: N803, N806, PLR0915, RET505  compile-time values are in capitals; a branch that is not taken is not compiled

#: Query rows of a warp group: those of one matrix instruction.
ROWS = gl.constexpr(64)


@gluon.jit
def _exp2(x):
    """2^x as one instruction. Results below 2⁻¹²⁶ become zero; to keep them would take three instructions more."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _shifts(tiles, heads, CAUSAL: gl.constexpr):
    """How many shifts of work there are: a tile each, or with a causal mask a long tile and a short one.

    The last and the first tile of a head see as many keys together as the last but one and the second, and so on: all
    shifts are equally long, except that of a tile in the middle.
    """
    if CAUSAL:
        return heads * ((tiles + 1) // 2)
    else:
        return heads * tiles


@gluon.jit
def _shift(number, tiles, CAUSAL: gl.constexpr):
    """Head, first and last tile of a shift. Shifts of one head run at the same time, and share its keys in L2."""
    if CAUSAL:
        head = number // ((tiles + 1) // 2)
        last = number - head * ((tiles + 1) // 2)
        return head, tiles - 1 - last, last
    else:
        head = number // tiles
        return head, number - head * tiles, number - head * tiles


@gluon.jit
def _blocks(end_row, seq_len, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """How many key blocks rows before `end_row` see."""
    end = seq_len
    if CAUSAL:
        end = gl.minimum(end_row, seq_len)
    return (end + BLOCK_N - 1) // BLOCK_N


@gluon.jit
def _put(source, head, row, ring, full, empty, use):
    """Loads a tile for the `use`-th use of the ring, once its slot is free."""
    SLOTS: gl.constexpr = ring.shape[0]
    slot = use % SLOTS
    mbarrier.wait(empty.index(slot), ((use // SLOTS) & 1) ^ 1)
    mbarrier.expect(full.index(slot), source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [head, row, 0], full.index(slot), ring.index(slot))


@gluon.jit
def _take(ring, full, use):
    """The tile of the `use`-th use of the ring, once it has arrived."""
    SLOTS: gl.constexpr = ring.shape[0]
    slot = use % SLOTS
    mbarrier.wait(full.index(slot), (use // SLOTS) & 1)
    return ring.index(slot).reshape([ring.shape[2], ring.shape[3]])


@gluon.jit
def _give_back(empty, use):
    """This attender has read the tile of the `use`-th use."""
    SLOTS: gl.constexpr = empty.shape[0]
    mbarrier.arrive(empty.index(use % SLOTS), count=1)


@gluon.jit
def _load(inputs, exchange, heads, seq_len, CAUSAL: gl.constexpr):
    """The loader: queries of each tile, then its keys and values, as slots become free."""
    queries, keys, values = inputs
    q, ring, q_full, q_empty, full, empty = exchange
    ATTENDERS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = ring.shape[2]
    tiles = (seq_len + ATTENDERS * ROWS - 1) // (ATTENDERS * ROWS)
    used = 0
    turn = 0
    for number in range(gl.program_id(0), _shifts(tiles, heads, CAUSAL), gl.num_programs(0)):
        head, tile, last = _shift(number, tiles, CAUSAL)
        for half in range(1 + (tile != last)):
            if half == 1:
                tile = last
            for part in gl.static_range(ATTENDERS):
                mbarrier.wait(q_empty.index(part), (turn & 1) ^ 1)
                mbarrier.expect(q_full.index(part), queries.block_type.nbytes)
                row = (tile * ATTENDERS + part) * ROWS
                tma.async_copy_global_to_shared(queries, [head, row, 0], q_full.index(part), q.index(part))
            blocks = _blocks((tile + 1) * ATTENDERS * ROWS, seq_len, BLOCK_N, CAUSAL)
            for step in range(blocks):
                row = (blocks - 1 - step) * BLOCK_N
                _put(keys, head, row, ring, full, empty, used)
                _put(values, head, row, ring, full, empty, used + 1)
                used += 2
            turn += 1


@gluon.jit
def _attend_tile(exchange, results, head, tile, used, turn, seq_len, scale, PART: gl.constexpr, CAUSAL: gl.constexpr):
    """The online softmax of 64 query rows of a tile; returns how often the ring has been used."""
    q, ring, q_full, q_empty, full, empty = exchange
    staged, out, log_sum_exp = results
    ATTENDERS: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = ring.shape[2]
    D: gl.constexpr = ring.shape[3]
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    output_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    weights_layout: gl.constexpr = gl.DotOperandLayout(0, output_layout, 2)
    scores_rows: gl.constexpr = gl.SliceLayout(1, scores_layout)
    output_rows: gl.constexpr = gl.SliceLayout(1, output_layout)

    first_row = (tile * ATTENDERS + PART) * ROWS
    blocks = _blocks((tile + 1) * ATTENDERS * ROWS, seq_len, BLOCK_N, CAUSAL)
    seen = _blocks(first_row + ROWS, seq_len, BLOCK_N, CAUSAL)
    for _ in range(2 * (blocks - seen)):
        # Keys and values for rows further down in the tile.
        _take(ring, full, used)
        _give_back(empty, used)
        used += 1

    # The last block that these rows see: the only one with a mask.
    query = q.index(PART).reshape([ROWS, D])
    no_scores = gl.zeros([ROWS, BLOCK_N], gl.float32, scores_layout)
    mbarrier.wait(q_full.index(PART), turn & 1)
    k = _take(ring, full, used)
    scores = warpgroup_mma(query, k.permute((1, 0)), no_scores, use_acc=False, is_async=True)
    scores = warpgroup_mma_wait(0, [scores])
    _give_back(empty, used)
    rows = first_row + gl.arange(0, ROWS, scores_rows)
    columns = (seen - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, scores_layout))
    visible = columns[None, :] < seq_len
    if CAUSAL:
        visible = visible & (rows[:, None] >= columns[None, :])
    scores = gl.where(visible, scores, float("-inf"))
    row_max = gl.max(scores, 1) * scale
    weights = _exp2(scores * scale - row_max[:, None])
    row_sum = gl.sum(weights, 1)
    p = gl.convert_layout(weights.to(out.dtype), weights_layout)
    output = gl.zeros([ROWS, D], gl.float32, output_layout)
    v = _take(ring, full, used + 1)

    for _ in range(seen - 1):
        k = _take(ring, full, used + 2)
        next_scores = warpgroup_mma(query, k.permute((1, 0)), no_scores, use_acc=False, is_async=True)
        next_output = warpgroup_mma(p, v, output, is_async=True)
        scores = warpgroup_mma_wait(1, [next_scores])
        _give_back(empty, used + 2)
        new_max = gl.maximum(row_max, gl.max(scores, 1) * scale)
        shrink = _exp2(row_max - new_max)
        weights = _exp2(scores * scale - new_max[:, None])
        row_sum = row_sum * shrink + gl.sum(weights, 1)
        row_max = new_max
        # The values that belong to these scores. That they are waited for here also keeps the assembler from moving the
        # wait for the output up, before the exponentials that are meant to run meanwhile.
        v = _take(ring, full, used + 3)
        output, p = warpgroup_mma_wait(0, [next_output, p])
        _give_back(empty, used + 1)
        p = gl.convert_layout(weights.to(out.dtype), weights_layout)
        output = output * gl.convert_layout(shrink, output_rows)[:, None]
        used += 2

    mbarrier.arrive(q_empty.index(PART), count=1)
    next_output = warpgroup_mma(p, v, output, is_async=True)
    output = warpgroup_mma_wait(0, [next_output])
    _give_back(empty, used + 1)

    gl.store(log_sum_exp + gl.cast(head, gl.int64) * seq_len + rows, row_max + gl.log2(row_sum), mask=rows < seq_len)
    output = output * gl.convert_layout(1 / row_sum, output_rows)[:, None]
    mine = staged.index(PART)
    tma.store_wait(0)  # the rows of the tile before have left
    mine.reshape([ROWS, D]).store(output.to(out.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [head, first_row, 0], mine)
    return used + 2


@gluon.jit
def _attend(exchange, results, heads, seq_len, scale, PART: gl.constexpr, CAUSAL: gl.constexpr):
    """An attender: its 64 query rows of each tile of the program."""
    ATTENDERS: gl.constexpr = exchange[0].shape[0]
    tiles = (seq_len + ATTENDERS * ROWS - 1) // (ATTENDERS * ROWS)
    used = 0
    turn = 0
    for number in range(gl.program_id(0), _shifts(tiles, heads, CAUSAL), gl.num_programs(0)):
        head, tile, last = _shift(number, tiles, CAUSAL)
        for half in range(1 + (tile != last)):
            if half == 1:
                tile = last
            used = _attend_tile(exchange, results, head, tile, used, turn, seq_len, scale, PART, CAUSAL)
            turn += 1
    tma.store_wait(0)


@gluon.jit
def flash_forward_hopper_kernel(
    queries,
    keys,
    values,
    out,
    log_sum_exp,
    heads,
    seq_len,
    scale,
    ATTENDERS: gl.constexpr,
    SLOTS: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Attention of every tile, in a grid of at most one program an SM.

    Args:
        queries, out: descriptors of [heads, seq_len, D], in blocks of 64 rows.
        keys, values: descriptors of the same shape, in blocks of as many rows as a step takes keys.
        log_sum_exp: [heads, seq_len] fp32, in powers of two: log₂ Σ 2^(score · scale).
        heads: batch × heads.
        scale: softmax scale × log₂e.
        ATTENDERS: warp groups that multiply, 2 or 3; a tile has 64 times as many rows.
        SLOTS: tiles of keys or values that shared memory holds.
    """
    D: gl.constexpr = queries.block_shape[2]
    q = gl.allocate_shared_memory(queries.dtype, [ATTENDERS, 1, ROWS, D], queries.layout)
    staged = gl.allocate_shared_memory(queries.dtype, [ATTENDERS, 1, ROWS, D], out.layout)
    ring = gl.allocate_shared_memory(keys.dtype, [SLOTS, 1, keys.block_shape[1], D], keys.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [ATTENDERS, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [ATTENDERS, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for part in gl.static_range(ATTENDERS):
        mbarrier.init(q_full.index(part), count=1)
        mbarrier.init(q_empty.index(part), count=1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=ATTENDERS)

    inputs = (queries, keys, values)
    exchange = (q, ring, q_full, q_empty, full, empty)
    results = (staged, out, log_sum_exp)
    # The last list is registers a thread: the loader needs few, and leaves the others to those who hold scores.
    if ATTENDERS == 2:
        gl.warp_specialize(
            [
                (_attend, (exchange, results, heads, seq_len, scale, 0, CAUSAL)),
                (_attend, (exchange, results, heads, seq_len, scale, 1, CAUSAL)),
                (_load, (inputs, exchange, heads, seq_len, CAUSAL)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_attend, (exchange, results, heads, seq_len, scale, 0, CAUSAL)),
                (_attend, (exchange, results, heads, seq_len, scale, 1, CAUSAL)),
                (_attend, (exchange, results, heads, seq_len, scale, 2, CAUSAL)),
                (_load, (inputs, exchange, heads, seq_len, CAUSAL)),
            ],
            [4, 4, 1],
            [160, 160, 32],
        )


@cache
def _layout(rows: int, head_dim: int) -> Any:
    """How shared memory holds a block of 16-bit rows; kept, as finding it takes longer than the rest of a launch."""
    return gl.NVMMASharedLayout.get_default_for([1, rows, head_dim], gl.float16)


def _descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    head_dim = tensor.shape[-1]
    block, layout = [1, rows, head_dim], _layout(rows, head_dim)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


def flash_forward_hopper(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float, tiles: HopperTiles
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log₂-sum-exp of packed [heads, seq_len, head_dim] inputs; `scale` is that of 2^(score · scale)."""
    heads, seq_len, _ = q.shape
    out = torch.empty_like(q)
    log_sum_exp = torch.empty((heads, seq_len), dtype=torch.float32, device=q.device)
    in_head = -(-seq_len // (tiles.attenders * ROWS.value))
    shifts = heads * (-(-in_head // 2) if causal else in_head)
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    flash_forward_hopper_kernel[(min(processors, shifts),)](
        *(_descriptor(*pair) for pair in ((q, ROWS.value), (k, tiles.block_n), (v, tiles.block_n), (out, ROWS.value))),
        log_sum_exp,
        heads,
        seq_len,
        scale,
        ATTENDERS=tiles.attenders,
        SLOTS=tiles.slots,
        CAUSAL=causal,
        num_warps=4,
    )
    return out, log_sum_exp
