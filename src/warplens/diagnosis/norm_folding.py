"""Batch norms of inference that could be part of the convolutions before them.

With running statistics, a batch norm is a scale and a shift for each channel, which the weights of the convolution (or
linear layer) before it can include. Models that are trained with parallel branches (RepVGG, MobileOne, FastViT) add the
results of several norms; merged, their branches are one convolution. Layers in sequence launch the same kinds of
kernels, so only what holds for these as well is told, unless shapes or a sum that begins with zero tell branches apart.
"""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import tensors_of
from warplens.diagnosis.facts import Facts
from warplens.profile.schema import Float64s

#: In a text of products (P), norms (N), additions of tensors (A), of a number (0) and other work (-), what goes in any
#: case: a norm after a product; a norm before such a layer, another norm or a number, as it is a part of these, a
#: branch beside them, or at least a part of the same pass; and that number, a shift, unless a nonlinear function reads
#: it.
_FOLDED: Final = re.compile(r"PN|N(?=0[PNA]|PN|N)|(?<=N)0(?=[PNA])")
#: Branches that are added up. A product after an addition may read the sum, and belongs to the next layer.
_BRANCHES: Final = re.compile(r"(?:P?N(?:0(?=[PNA]))?){2,}(?:N?A)+")
#: Additions of branches, that of zero included: a residual network adds once after two norms, if its shortcut has a
#: norm, or if two convolutions follow each other.
_LEAST_ADDITIONS: Final = 2
_LEAST_PRODUCTS: Final = 2
_OPERANDS: Final = 2  # input and weights


@once
def folded(facts: Facts) -> Float64s:
    """Share saved of batch norms after convolutions or products, and of branches that are one convolution when merged.

    Norms in the channels-first format are left out: in the other format they take a third of the time. So are short
    kernels, which are limited by their launches.
    """
    program, own = facts.program, facts.program.own_ns
    share = np.zeros(facts.work.height)
    norms = program.marked("inferring-norm")
    first = program.marked("channels-first")
    if facts.trains or not (norms & ~first).any() or program.marked("batch-statistics").any():
        return share
    short = own < facts.thresholds.bandwidth_kernel_ns
    # Short copies and the reciprocal roots of variances prepare a norm. Activations are kept, however short they are.
    kept = program.in_order(~(short & program.labelled("copy-cast", "normalization") & ~norms))
    rows, section = program.order[kept], np.cumsum(program.breaks)[kept]
    kinds = np.select(
        [norms[rows], program.products[rows], program.marked("adding")[rows], program.marked("adding-a-number")[rows]],
        ["N", "P", "A", "0"],
        "-",
    )
    shapes = program.shapes().gather(rows)
    edges = np.flatnonzero(np.r_[True, section[1:] != section[:-1]])
    for begin, end in zip(edges, (*edges[1:], len(rows)), strict=True):
        text, pieces = "".join(kinds[begin:end]), rows[begin:end]
        share[pieces[[found.end() - 1 for found in _FOLDED.finditer(text)]]] = 1.0
        for found in _BRANCHES.finditer(text):
            branches = found.group()
            zeros, additions = branches.count("0"), branches.count("A")
            if additions != branches.count("N") - 1 or additions + zeros < _LEAST_ADDITIONS:
                continue
            members = pieces[found.start() : found.end()]
            kept_product = _kept_product(branches, shapes[begin + found.start() : begin + found.end()].to_list())
            if kept_product is not None:
                share[members] = 1.0
                share[members[kept_product]] = 0.0  # the merged convolution has its shapes
            elif zeros:
                share[members[~program.products[members]]] = 1.0
    return np.where(short | (norms & first), 0.0, share)


def _kept_product(branches: str, shapes: list[str | None]) -> int | None:
    """The place of the convolution that the others can be merged into; None if shapes do not tell that they can.

    Branches have the same input, the same result and kernels of different sizes. The last convolution of a residual
    block and its shortcut may have inputs of the same shape as well, but hardly with kernels of different sizes and as
    many additions.

    Args:
        branches: text of the kinds of these pieces.
        shapes: their recorded shapes.
    """
    tensors = [tensors_of(text) for text in shapes]
    products = [found.start() for found in re.finditer("P", branches)]
    if len(products) < _LEAST_PRODUCTS or not all(len(tensors[place]) >= _OPERANDS for place in products):
        return None
    inputs = {tensors[place][0] for place in products}
    channels = {tensors[place][1][:2] for place in products}
    results = {tuple(tensors[place + 1][:1]) for place in products}
    alone = {tensor for found in re.finditer("(?<!P)N", branches) for tensor in tensors[found.start()][:1]}
    sizes = [tensors[place][1][2:] for place in products]
    is_one_sum = len(inputs) == len(channels) == len(results) == 1 and () not in results and alone <= inputs
    if not is_one_sum or len(set(sizes)) < len(sizes):
        return None
    return max(products, key=lambda place: math.prod(tensors[place][1]))
