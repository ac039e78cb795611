"""Arithmetic of the reference workloads, from their shapes: modelled, not measured.

A multiply-accumulate (MAC) is one multiplication and one addition, hence two FLOPs. What `torchprofile` and many papers
print as FLOPs are MACs. Only matrix products and convolutions count, as in PyTorch's `FlopCounterMode`; elementwise
work is below a percent of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warplens.workloads.registry import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.workloads.sizes import LMSize, ViTSize
    from warplens.workloads.token_reduction.schedule import BlockTokens

__all__ = ["lm_forward_macs", "lm_parameters", "lm_work", "torchprofile_macs", "vit_macs", "work"]


def work(macs: int) -> Work:
    """Both names of an amount of arithmetic."""
    return Work(macs=macs, flops=2 * macs)


def lm_parameters(size: LMSize) -> int:
    """Trainable numbers: 2Vd + L(4d² + 3·d·d_ff + 2d) + d."""
    d = size.d_model
    return 2 * size.vocabulary * d + size.layers * (4 * d * d + 3 * d * size.d_ff + 2 * d) + d


def lm_forward_macs(size: LMSize, batch: int, context: int) -> int:
    """MACs of a forward pass: T·L(4d² + 3·d·d_ff) + 2·B·S²·d·L + T·d·V with T = B·S.

    The score matrix counts in full: the program computes all of it and masks half away.
    """
    tokens, d = batch * context, size.d_model
    projections = tokens * size.layers * (4 * d * d + 3 * d * size.d_ff)
    attention = 2 * batch * context * context * d * size.layers
    return projections + attention + tokens * d * size.vocabulary


def lm_work(size: LMSize, batch: int, context: int, mode: str) -> Work:
    """A step: a forward pass, or three times as much with the backward pass.

    The backward pass has two products for each of the forward pass: one for the gradient of each factor. The embedding
    is a look-up, so that holds for the first layer as well.
    """
    return work(lm_forward_macs(size, batch, context) * (1 if mode == "forward" else 3))


def vit_macs(size: ViTSize, input_size: int, blocks: Sequence[BlockTokens]) -> int:
    """MACs of one image: patch embedding, blocks, classifier, and what the reductions themselves multiply.

    In a block with N tokens of which Q ask and M go on to the MLP: 3·N·d² for q, k, v; 2·N·Q·d for scores and weighted
    values (a method that drops queries after the scores still computes N² of them); Q·d² for the projection;
    8·M·d² for the MLP. Without query reduction that is 4·N·d² + 2·N²·d + 8·M·d².

    Args:
        size: widths.
        input_size: side of the image.
        blocks: tokens in each block, the class token and padding counted.
    """
    d = size.width
    total = size.patches(input_size) * 3 * size.patch**2 * d + d * size.classes
    for block in blocks:
        total += 3 * block.entering * d * d + block.entering**2 * d
        total += block.asking * block.entering * d + block.asking * d * d
        total += 8 * block.leaving * d * d + block.reduction_macs
    return total


def torchprofile_macs(size: ViTSize, input_size: int, blocks: Sequence[BlockTokens]) -> int:
    """What torchprofile prints for the same pass: one more for each element of a layer norm and of the scaled queries.

    The figures of the token-reduction study (17.57 → 5.55, 78.52 → 24.73 "GFLOPs") are these.
    """
    d = size.width
    elementwise = sum((2 * block.entering + block.leaving) * d for block in blocks) + blocks[-1].leaving * d
    return vit_macs(size, input_size, blocks) + elementwise
