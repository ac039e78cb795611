"""TopK and EViT as one kernel, for cases where a reduction costs more in launches than it saves in arithmetic.

Imports Triton if available; `methods` loads this module only for a method that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from warplens.errors import UsageError
from warplens.workloads.token_reduction.choosing import Attended, TokenState, TopK, tokens_kept, weights_of

kernel: Any
try:
    from warplens.workloads.token_reduction import fused_kernel as kernel
except ImportError:
    kernel = None


#: Columns of a row that are copied at a time.
_COLUMNS: Final = 1024

#: Tokens compared with at a time. Fewer would need more reductions across warps, more would spill registers.
_COMPARED: Final = 256

#: Rows and columns of a tile that is summed into the fused token. 32 columns are two sectors of fp16; fewer columns
#: distribute the sum over more multiprocessors.
_SUMMED_ROWS, _SUMMED_COLUMNS = 512, 32

#: Most patch tokens: a program that fuses holds all scores at once.
_MOST_PATCHES: Final = 8192

_THREADS_PER_WARP: Final = 32

_BITS: Final = {torch.float16: 16, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}


@dataclass(frozen=True)
class Tiles:
    """Launch parameters of the kernel."""

    #: tokens whose positions a program determines. Each program reads all scores, so that few tokens mean repeated
    #: work, and many mean few programs.
    tokens: int = 16
    warps: int = 4  #: warps per program


#: More programs than any GPU can run at once: beyond this number, larger programs are better.
_MANY_PROGRAMS: Final = 512


def tiles_for(batch: int, patches: int, fuse: bool, element_bytes: int) -> Tiles:
    """The tiles for a problem, by a deterministic rule instead of autotuning."""
    tokens = 16
    while tokens < 64 // element_bytes and batch * (patches + 1) > tokens * _MANY_PROGRAMS:
        tokens *= 2
    return Tiles(tokens, warps=8 if fuse or tokens * element_bytes > 32 else 4)


def _power_of_two(least: int) -> int:
    """The smallest power of two not below `least`."""
    return 1 << max(0, least - 1).bit_length()


def select_tokens(
    weights: Tensor, x: Tensor, kept: int, *, fuse: bool = False, listing: bool = False, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor | None]:
    """The class token, the patch tokens that it attends to most, and optionally one fused from the rest, by one kernel.

    Equivalent to `mean`, `topk`, `gather` and `cat`, and with `fuse` to EViT's sum of the dropped tokens. The score is
    rounded as by `mean`; among equal scores, whose order `topk` leaves undefined, the first token in the image wins.
    The sum of the dropped tokens is accumulated in fp32 and rounded once.

    Args:
        weights: attention [batch, heads, queries, tokens], the class token's query and key first; any strides.
        x: tokens [batch, tokens, width].
        kept: patch tokens to keep, from 1 to all.
        fuse: one more row: Σ score · token over the dropped patch tokens.
        listing: also list the kept tokens.
        tiles: overrides the choice of `tiles_for`.

    Returns:
        Rows [batch, 1 + kept (+ 1), width] in the format of x; with `listing`, numbers of the kept patch tokens, best
        first, padded with −1: [batch, patches], int64; else None.

    Raises:
        UsageError: a gradient is required; the tensors are not on a GPU, and Triton's interpreter is off; or the kernel
            does not support the format, the number of tokens or `kept`.
    """
    batch, tokens, width = x.shape
    patches = tokens - 1
    _check(weights, x, kept)
    x = x.contiguous()
    out = x.new_empty((batch, 1 + kept + fuse, width))
    chosen = torch.empty((batch, patches), dtype=torch.int64, device=x.device) if listing else None
    if tiles is None:
        tiles = tiles_for(batch, patches, fuse, x.element_size())
    programs = -(-tokens // tiles.tokens) + (-(-width // _SUMMED_COLUMNS) if fuse else 0)
    kernel.select_tokens_kernel[(programs, batch)](
        weights,
        x,
        out,
        x if chosen is None else chosen,  # never written without a listing
        weights.stride(0),
        weights.stride(1),
        weights.stride(3),
        patches,
        kept,
        **launch_constants(weights.shape[1], patches, width, _BITS[weights.dtype], fuse, listing, tiles),
    )
    return out, chosen


@torch.library.custom_op("warplens::select_tokens", mutates_args=())
def _selected(weights: Tensor, x: Tensor, kept: int, fuse: bool, listing: bool) -> list[Tensor]:
    return [part for part in select_tokens(weights, x, kept, fuse=fuse, listing=listing) if part is not None]


@_selected.register_fake
def _(weights: Tensor, x: Tensor, kept: int, fuse: bool, listing: bool) -> list[Tensor]:
    batch, tokens, width = x.shape
    rows = x.new_empty((batch, 1 + kept + fuse, width))
    return [rows, x.new_empty((batch, tokens - 1), dtype=torch.int64)] if listing else [rows]


def compiled_select(
    weights: Tensor, x: Tensor, kept: int, *, fuse: bool = False, listing: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`select_tokens` as a custom operator that is opaque to torch.compile.

    Traced as a user-defined Triton kernel, it makes Inductor of PyTorch 2.11 fail on the whole model (a KeyError in its
    scheduler). The kernel reads strides at run time, so that any layout chosen by the compiler is correct.
    """
    results = _selected(weights, x, kept, fuse, listing)
    return results[0], results[1] if listing else None


def launch_constants(
    heads: int, patches: int, width: int, bits: int, fuse: bool, listing: bool, tiles: Tiles
) -> dict[str, Any]:
    """The compile-time arguments of the kernel, and its warps."""
    every = _power_of_two(patches)
    return {
        "HEADS": heads,
        "WIDTH": width,
        "BITS": bits,
        "FUSE": fuse,
        "LIST": listing,
        "BLOCK_T": tiles.tokens,
        "SPREAD": max(tiles.tokens, _THREADS_PER_WARP * tiles.warps),
        "BLOCK_J": min(_COMPARED, every),
        "BLOCK_W": min(_COLUMNS, _power_of_two(width)),
        "BLOCK_P": every if fuse else 1,
        "FUSE_T": min(_SUMMED_ROWS, every) if fuse else 1,
        "FUSE_W": _SUMMED_COLUMNS if fuse else 1,
        "num_warps": tiles.warps,
    }


def _check(weights: Tensor, x: Tensor, kept: int) -> None:
    """Refuses inputs that the fused kernel cannot take, and says what else to do."""
    if kernel is None:
        raise UsageError("the fused token reduction is a Triton kernel, and triton is not installed")
    if x.device.type != "cuda" and not kernel.INTERPRETED:
        raise UsageError(
            f"the fused token reduction needs a GPU, and the tokens are on {x.device.type}. Set TRITON_INTERPRET=1 to "
            "run it in Triton's interpreter, or use the method without -fused"
        )
    if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad):
        raise UsageError(
            "the fused token reduction has no gradient: it is for inference. Call it under torch.inference_mode(), or "
            "train with the method without -fused"
        )
    patches = x.shape[1] - 1
    if weights.dtype not in _BITS or x.dtype not in _BITS:
        raise UsageError(f"the fused token reduction computes with floating-point numbers, not with {weights.dtype}")
    if weights.shape[0] != x.shape[0] or weights.shape[3] != x.shape[1]:
        raise UsageError(f"attention {tuple(weights.shape)} and tokens {tuple(x.shape)} are not of the same images")
    if not 1 <= kept <= patches:
        raise UsageError(f"{kept} tokens cannot be kept of {patches}")
    if patches > _MOST_PATCHES:
        raise UsageError(
            f"the fused token reduction takes at most {_MOST_PATCHES} patch tokens, and there are {patches}"
        )


class FusedTopK(TopK):
    """TopK in one launch, for inference: the same tokens in the same order, listed without a further launch."""

    _fuse = False

    def between(self, x: Tensor, attended: Attended, state: TokenState) -> Tensor:
        """See the class.

        Raises:
            UsageError: see `select_tokens`.
        """
        kept = tokens_kept(x.shape[1] - 1, self.share)
        select = compiled_select if torch.compiler.is_compiling() else select_tokens
        rows, chosen = select(weights_of(attended), x, kept, fuse=self._fuse, listing=self.visualisation)
        if chosen is not None:
            state.kept.append(chosen)
        return rows


class FusedEViT(FusedTopK):
    """EViT in one launch, for inference: the same tokens in the same order, and the others fused into one."""

    _fuse = True
