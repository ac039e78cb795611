# mypy: disable-error-code="misc"
"""The own attention kernels as differentiable torch functions.

Imports torch and triton: the registry loads this module when a kernel is first run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from warplens.workloads.attention.flash import (
    delta_kernel,
    flash_forward_kernel,
    key_gradient_kernel,
    query_gradient_kernel,
)
from warplens.workloads.attention.kernels import (
    BackwardTiles,
    ForwardTiles,
    HopperTiles,
    backward_tiles,
    forward_tiles,
    hopper_tiles,
    matmul_kernel,
    softmax_gradient_kernel,
    softmax_kernel,
    tiled_forward_kernel,
)

#: log₂e: turns e^x into 2^(x·log₂e).
_LOG2_E: Final = math.log2(math.e)

#: Square tiles of the tiled kernel: two of them fit into one flash tile.
_TILED_BLOCK: Final = 64
_TILED_BACKWARD: Final = BackwardTiles(64, 64, 64, 64, 4, 4, 1, 1, skip=False)
_TILED_BACKWARD_FP32: Final = BackwardTiles(32, 32, 32, 32, 4, 4, 1, 1, skip=False)

#: Tiles of the naive matrix product, (rows, columns, inner): for 16-bit operands and for fp32.
_MATMUL_TILES: Final = {2: (128, 128, 32), 4: (64, 64, 32)}

#: Elements of a row that the naive softmax holds at a time.
_SOFTMAX_BLOCK: Final = 4096

#: Rows per program of the kernel that computes delta.
_DELTA_BLOCK: Final = 64


def _precision(tensor: Tensor) -> str:
    """fp32 products run on tensor cores as three TF32 products each, which keeps about fp32's accuracy."""
    return "tf32x3" if tensor.dtype == torch.float32 else "tf32"


def _capability(tensor: Tensor) -> tuple[int, int]:
    """Compute capability of the tensor's GPU; (0, 0) on the CPU, where Triton's interpreter runs."""
    if tensor.device.type != "cuda":
        return (0, 0)
    major, minor = torch.cuda.get_device_capability(tensor.device)
    return (major, minor)


def _packed(tensor: Tensor) -> Tensor:
    """[batch, heads, seq_len, head_dim] as [batch·heads, seq_len, head_dim], contiguous."""
    return tensor.contiguous().view(-1, tensor.shape[-2], tensor.shape[-1])


# Flash ----------------------------------------------------------------------------------------------------------------


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, tiles: ForwardTiles | HopperTiles | None = None
) -> tuple[Tensor, Tensor]:
    """Output and log₂-sum-exp of packed [heads, seq_len, head_dim] inputs; `tiles` overrides the table's choice."""
    heads, seq_len, head_dim = q.shape
    if tiles is None:
        size, capability = q.element_size(), _capability(q)
        tiles = hopper_tiles(head_dim, size, capability, causal) or forward_tiles(head_dim, size, capability)
    if isinstance(tiles, HopperTiles):
        # Not every triton has what it imports.
        from warplens.workloads.attention.hopper import flash_forward_hopper

        return flash_forward_hopper(q, k, v, causal=causal, scale=scale * _LOG2_E, tiles=tiles)
    out = torch.empty_like(q)
    log_sum_exp = torch.empty((heads, seq_len), dtype=torch.float32, device=q.device)
    sources = _sources(tiles.tma, (q, tiles.block_m), (k, tiles.block_n), (v, tiles.block_n))
    programs = triton.cdiv(seq_len, tiles.block_m)
    flash_forward_kernel[(programs, heads)](
        *sources,
        out,
        log_sum_exp,
        heads,
        seq_len,
        scale * _LOG2_E,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        D=head_dim,
        CAUSAL=causal,
        TAIL=seq_len % tiles.block_n != 0,
        TMA=tiles.tma,
        PRECISION=_precision(q),
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out, log_sum_exp


def _sources(tma: bool, *tensors: tuple[Tensor, int]) -> tuple[Any, ...]:
    """Packed tensors as a kernel takes them: themselves, or with `tma` descriptors of blocks of so many rows."""
    if not tma:
        return tuple(tensor for tensor, _ in tensors)
    return tuple(
        TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, block, tensor.shape[-1]])
        for tensor, block in tensors
    )


def flash_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sum_exp: Tensor,
    *,
    causal: bool,
    scale: float,
    tiles: BackwardTiles | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK, dV of packed [heads, seq_len, head_dim] inputs."""
    heads, seq_len, head_dim = q.shape
    if tiles is None:
        tiles = backward_tiles(head_dim, q.element_size(), _capability(q))
    delta = torch.empty_like(log_sum_exp)
    delta_kernel[(triton.cdiv(seq_len, _DELTA_BLOCK), heads)](
        out, d_out, delta, seq_len, BLOCK=_DELTA_BLOCK, D=head_dim
    )
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    common: dict[str, Any] = {
        "D": head_dim, "CAUSAL": causal, "SKIP": tiles.skip, "TMA": tiles.tma, "PRECISION": _precision(q),
    }  # fmt: skip
    m, n = tiles.key_m, tiles.key_n
    key_gradient_kernel[(triton.cdiv(seq_len, n), heads)](
        *_sources(tiles.tma, (q, m), (k, n), (v, n), (d_out, m)), log_sum_exp, delta, d_k, d_v, seq_len,
        scale * _LOG2_E, scale, BLOCK_M=m, BLOCK_N=n, num_warps=tiles.key_warps,
        num_stages=tiles.key_stages, **common,
    )  # fmt: skip
    m, n = tiles.query_m, tiles.query_n
    query_gradient_kernel[(triton.cdiv(seq_len, m), heads)](
        *_sources(tiles.tma, (q, m), (k, n), (v, n), (d_out, m)), log_sum_exp, delta, d_q, seq_len,
        scale * _LOG2_E, scale, BLOCK_M=m, BLOCK_N=n, num_warps=tiles.query_warps,
        num_stages=tiles.query_stages, **common,
    )  # fmt: skip
    return d_q, d_k, d_v


class _OnlineSoftmax(torch.autograd.Function):
    """Attention on packed tensors that saves the log-sum-exp instead of the probabilities."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        scale: float,
        run: Callable[..., tuple[Tensor, Tensor]],
        gradient_tiles: BackwardTiles | None,
    ) -> Tensor:
        out, log_sum_exp = run(q, k, v, causal=causal, scale=scale)
        ctx.save_for_backward(q, k, v, out, log_sum_exp)
        ctx.causal, ctx.scale, ctx.tiles = causal, scale, gradient_tiles
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        gradients = flash_backward(
            d_out.contiguous(), q, k, v, out, log_sum_exp, causal=ctx.causal, scale=ctx.scale, tiles=ctx.tiles
        )
        return (*gradients, None, None, None, None)


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    *,
    tiles: ForwardTiles | HopperTiles | None = None,
    gradient_tiles: BackwardTiles | None = None,
) -> Tensor:
    """Flash attention of [batch, heads, seq_len, head_dim] inputs."""
    run, scale = partial(flash_forward, tiles=tiles), q.shape[-1] ** -0.5
    out = _OnlineSoftmax.apply(_packed(q), _packed(k), _packed(v), causal, scale, run, gradient_tiles)
    return out.view(q.shape)


# Tiled ----------------------------------------------------------------------------------------------------------------


def tiled_forward(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Output and log₂-sum-exp of packed [heads, seq_len, head_dim] inputs by the online softmax in small tiles."""
    heads, seq_len, head_dim = q.shape
    out = torch.empty_like(q)
    log_sum_exp = torch.empty((heads, seq_len), dtype=torch.float32, device=q.device)
    block = _TILED_BLOCK if q.element_size() == 2 else _TILED_BLOCK // 2
    tiled_forward_kernel[(triton.cdiv(seq_len, block), heads)](
        q, k, v, out, log_sum_exp, seq_len, scale,
        BLOCK=block, D=head_dim, CAUSAL=causal, PRECISION=_precision(q), num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, log_sum_exp


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Tiled attention of [batch, heads, seq_len, head_dim] inputs.

    Its backward pass visits every block and compares each with the mask.
    """
    tiles, scale = _TILED_BACKWARD if q.element_size() == 2 else _TILED_BACKWARD_FP32, q.shape[-1] ** -0.5
    out = _OnlineSoftmax.apply(_packed(q), _packed(k), _packed(v), causal, scale, tiled_forward, tiles)
    return out.view(q.shape)


# Naive ----------------------------------------------------------------------------------------------------------------


def _product(left: Tensor, right: Tensor, dtype: torch.dtype, factor: float = 1.0) -> Tensor:
    """Left @ right · factor for batches of matrices; either may be a transposed view of a packed tensor."""
    batch, rows, inner = left.shape
    columns = right.shape[-1]
    product = torch.empty((batch, rows, columns), dtype=dtype, device=left.device)
    block_m, block_n, block_k = _MATMUL_TILES[left.element_size()]
    matmul_kernel[(triton.cdiv(columns, block_n), triton.cdiv(rows, block_m), batch)](
        left, right, product, rows, columns, inner, left.stride(1), left.stride(2), right.stride(1), right.stride(2),
        factor,
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, PRECISION=_precision(left), num_warps=8, num_stages=3,
    )  # fmt: skip
    return product


def _softmax_block(seq_len: int) -> int:
    return min(_SOFTMAX_BLOCK, int(triton.next_power_of_2(seq_len)))


class _Naive(torch.autograd.Function):
    """Every formula its own kernel; the probabilities are kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
        heads, seq_len, _ = q.shape
        scores = _product(q, k.transpose(1, 2), torch.float32, scale)
        probabilities = torch.empty(scores.shape, dtype=q.dtype, device=q.device)
        softmax_kernel[(seq_len, heads)](
            scores, probabilities, seq_len, BLOCK=_softmax_block(seq_len), CAUSAL=causal, num_warps=4
        )
        ctx.save_for_backward(q, k, v, probabilities)
        ctx.scale = scale
        return _product(probabilities, v, q.dtype)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probabilities = ctx.saved_tensors
        d_out = d_out.contiguous()
        heads, seq_len, _ = q.shape
        d_v = _product(probabilities.transpose(1, 2), d_out, v.dtype)
        d_probabilities = _product(d_out, v.transpose(1, 2), torch.float32)
        d_scores = torch.empty_like(probabilities)
        softmax_gradient_kernel[(seq_len, heads)](
            probabilities, d_probabilities, d_scores, seq_len, BLOCK=_softmax_block(seq_len), num_warps=4
        )
        d_q = _product(d_scores, k, q.dtype, ctx.scale)
        d_k = _product(d_scores.transpose(1, 2), q, k.dtype, ctx.scale)
        return d_q, d_k, d_v, None, None


def naive_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Naive attention of [batch, heads, seq_len, head_dim] inputs."""
    return _Naive.apply(_packed(q), _packed(k), _packed(v), causal, q.shape[-1] ** -0.5).view(q.shape)
