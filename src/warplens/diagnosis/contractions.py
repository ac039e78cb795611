"""Products of matrices that a program writes as a multiplication of broadcast tensors and a sum, through memory.

The multiplication writes all terms of the product, which are far more numbers than it reads, and the sum reads them
again. A product of matrices keeps each term in a register. The same holds for distances of all pairs: differences of
broadcast tensors, their squares and a sum are a product of matrices and two sums over its operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import once
from warplens.analysis.headroom.shapes import largest_tensor, tensors_of
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, Remedy
from warplens.profile.schema import Bools, Float64s, Int64s

#: Of a finding with this cause.
TERMS_TITLE: Final = "The terms of a product of matrices are written to memory and summed up from there"
TERMS_HEADLINE: Final = (
    "Limited by products of matrices written as broadcast multiplications and sums: products in one kernel could save "
    "{share} of the time"
)

#: For terms of a product that go through memory.
ONE_PRODUCT: Final = Remedy(
    "Let a product of matrices sum up",
    "y = torch.einsum('bik,bjk->bij', a, b)  # or a @ b.mT, not (a[:, :, None] * b[:, None]).sum(-1)\n"
    "torch.cdist(x, y)  # not (x[:, None] - y[None]).square().sum(-1)\n"
    "F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).T  # not F.cosine_similarity(x[:, None], y[None], dim=-1)",
    f"{GAIN}: no term of a sum is written or read; sums differ in their rounding, in TF32 as well in their terms",
)

#: Terms over numbers of the largest operand: a scale, a mask or a bias makes as many terms as there are numbers. In
#: profiles without shapes, the bytes of the terms over those of any other pass of the window.
_LEAST_TERMS: Final = 4
#: Share of the time of these passes that the product takes at least: it reads its operands, often from copies in
#: another layout, and multiplies. Two programs that were timed with such a product kept 0.034 and 0.04.
_LEFT_SHARE: Final = 0.04
#: Least time of a sum over that of the pass that makes the terms: it reads what that pass writes.
_LEAST_SUM_SHARE: Final = 0.2


@once
def contracted(facts: Facts) -> Float64s:
    """Share saved of passes that make the terms of a product and sum them up, if a product of matrices does it."""
    program, own = facts.program, facts.program.own_ns
    share = np.zeros(facts.work.height)
    long = own >= facts.thresholds.bandwidth_kernel_ns
    sums = program.marked("summing-up") & long
    makes = program.marked("multiplying") & ~sums & long
    if not (sums.any() and makes.any()):
        return share
    inside = sums | makes | (program.marked("adding") & program.labelled("elementwise") & long)
    parts = [part for part in _parts(facts, inside, sums) if makes[part].any()]
    if not parts:
        return share
    shapes = program.shapes()
    most = _largest(facts, inside)
    spread = _spread(facts, np.concatenate(parts), most)
    counts = set()
    for part in parts:
        making, summing = part[~sums[part]], part[sums[part]]
        places = np.flatnonzero(spread[making])
        if not len(places):
            continue
        # The first of them with as many terms as the last, and what comes after it.
        sizes = np.array([_size(text) for text in shapes.gather(making).to_list()], dtype=np.int64)
        count = int(sizes[places[-1]])
        alike = sizes == count
        making = making[alike & (np.arange(len(making)) >= np.flatnonzero(alike & spread[making])[0])]
        head, rest = making[spread[making]], making[~spread[making]]
        # Sums of differences are no products; those of their squares are.
        is_product = makes[head].all() or makes[rest].any()
        if not is_product or own[summing].sum() < _LEAST_SUM_SHARE * own[head].max():
            continue
        passes = np.r_[making, summing]
        left = _of_terms(shapes[int(head[-1])]) * own[summing].sum() / own[passes].sum()
        share[passes] = max(1 - max(left, _LEFT_SHARE), 0.0)
        counts.add(count)
    # Where nothing else goes over as many numbers, all passes over the terms go, as those of a backward pass.
    counts = {count for count in counts if count and count >= _LEAST_TERMS * most}
    if counts:
        rest = np.flatnonzero(inside & (share == 0))
        over = [_size(text) in counts for text in shapes.gather(rest).to_list()]
        share[rest[over]] = 1 - _LEFT_SHARE
    return share


def _parts(facts: Facts, inside: Bools, sums: Bools) -> Iterator[Int64s]:
    """Sequences of these pieces that end in sums, as rows of `Facts.work`; short passes in between do not count."""
    program = facts.program
    short = program.passes & ~inside & (program.own_ns < facts.thresholds.bandwidth_kernel_ns)
    kept = ~program.in_order(short)
    rows, section = program.order[kept], np.cumsum(program.breaks)[kept]
    within, ends = inside[rows], sums[rows]
    begins = np.ones(len(rows), dtype=np.bool_)
    begins[1:] = (section[1:] != section[:-1]) | (within[1:] != within[:-1]) | (ends[:-1] & ~ends[1:])
    for begin, end in pairwise((*np.flatnonzero(begins).tolist(), len(rows))):
        if ends[end - 1] and not ends[begin]:
            yield rows[begin:end]


def _largest(facts: Facts, inside: Bools) -> int:
    """Numbers of the largest tensor of all other kernels, by recorded shapes; 0 if none were recorded."""
    shapes = facts.program.shapes().filter(pl.Series(facts.program.is_kernel & ~inside)).drop_nulls().unique()
    return max(map(largest_tensor, shapes.to_list()), default=0)


def _spread(facts: Facts, members: Int64s, most: int) -> Bools:
    """Which of these pieces make far more terms than any of their operands has numbers.

    The shapes of the operands tell. For operands that were expanded before, and without shapes, the kernel tells that
    its operands are not contiguous, and no other kernel of the window has nearly as many numbers (or bytes).

    Args:
        most: numbers of the largest tensor of kernels that cannot be passes over terms.
    """
    program = facts.program
    spread = np.zeros(facts.work.height, dtype=np.bool_)
    texts = program.shapes().gather(members)
    spread[members] = [_are_spread(text) or 0 < _LEAST_TERMS * most <= largest_tensor(text) for text in texts.to_list()]
    strided = program.marked("strided")
    spread &= strided
    unknown = members[texts.is_null().to_numpy() & strided[members]]
    if len(unknown):
        moved = facts.at_roof["bytes"].fill_null(0.0).to_numpy()
        # A product may write as many numbers if it takes as long as writing them.
        writing_ns = facts.at_roof["theoretical_ns"].fill_null(0.0).to_numpy()[unknown] / 2
        longest = program.own_ns[program.products].max(initial=0)
        others = program.passes.copy()
        others[members] = False
        apart = moved[unknown] >= _LEAST_TERMS * moved[others].max(initial=0)
        spread[unknown] = apart & (longest < writing_ns)
    return spread


def _size(shapes: str | None) -> int:
    """Numbers that an operator goes over; 0 if unknown."""
    return math.prod(_terms(shapes)) if _terms(shapes) else largest_tensor(shapes)


def _terms(shapes: str | None) -> tuple[int, ...]:
    """The shape of the result of an operator on two tensors of which one is broadcast; empty for others."""
    operands = tensors_of(shapes)
    if len(operands) != 2:  # an addition or a multiplication
        return ()
    try:
        return np.broadcast_shapes(*operands)
    except ValueError:
        return ()


def _are_spread(shapes: str | None) -> bool:
    """Whether an operator makes far more terms than any of its operands has numbers."""
    terms = _terms(shapes)
    return bool(terms) and math.prod(terms) >= _LEAST_TERMS * largest_tensor(shapes)


def _of_terms(shapes: str | None) -> float:
    """What a product reads and writes, in numbers, over its number of terms; 0 without shapes.

    The longest dimension that both operands have is taken to be summed up. An operand that has as many numbers as there
    are terms may have been expanded, or be in memory.
    """
    if shapes is None or not _are_spread(shapes):
        return float(shapes is not None)
    terms, operands = _terms(shapes), tensors_of(shapes)
    first, second = ((1,) * (len(terms) - len(operand)) + operand for operand in operands)
    summed = max(min(sizes) for sizes in zip(first, second, strict=True))
    return 1 / summed + sum(map(math.prod, operands)) / math.prod(terms)
