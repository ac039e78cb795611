"""Products of matrices that a program writes as a multiplication of broadcast tensors and a sum, through memory.

The multiplication writes all terms of the product, which are far more numbers than it reads, and the sum reads them
again. A product of matrices keeps each term in a register. The same holds for distances of all pairs: differences of
broadcast tensors, their squares and a sum are a product of matrices and two sums over its operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import once, running_sum, sums_between
from warplens.analysis.headroom.shapes import largest_tensor, tensors_of
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import GAIN, Remedy, Variant
from warplens.profile.schema import Bools, Float64s, Int64s

#: Of a finding with this cause.
TERMS: Final = Variant(
    "The terms of a product of matrices are written to memory and summed up from there",
    "Limited by products of matrices written as broadcast multiplications and sums: products in one kernel could save "
    "{share} of the time",
)

#: For terms of a product that go through memory.
ONE_PRODUCT: Final = Remedy(
    "Let a product of matrices sum up",
    "y = torch.einsum('bik,bjk->bij', a, b)  # or a @ b.mT, not (a[:, :, None] * b[:, None]).sum(-1)\n"
    "torch.cdist(x, y).square()  # not (x[:, None] - y[None]).square().sum(-1)\n"
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
    members, begins = _parts(facts, inside, sums, makes)
    if not len(begins):
        return share
    shapes = program.shapes()
    texts = shapes.gather(members)
    most = _largest(shapes.filter(pl.Series(program.is_kernel & ~inside)))
    sizes, summing, making = _of_each(texts, _size), sums[members], makes[members]
    spread = _spread(facts, members, texts, most) & ~summing
    # In each part, the first pass with as many terms as the last, and what comes after it.
    places = np.arange(len(members))
    part = running_sum(np.isin(places, begins))[1:] - 1
    last = np.maximum.reduceat(np.where(spread, places, -1), begins)
    alike = (sizes == sizes[last][part]) & (last >= 0)[part] & ~summing
    first = np.minimum.reduceat(np.where(alike & spread, places, len(places)), begins)
    alike &= places >= first[part]
    head = alike & spread
    ends = np.append(begins[1:], len(members))
    own = own[members]
    # Sums of differences are no products; those of their squares are.
    is_product = sums_between(head & ~making, begins, ends) == 0
    is_product |= sums_between(alike & ~spread & making, begins, ends) > 0
    summing_ns = sums_between(own * summing, begins, ends)
    longest_ns = np.maximum.reduceat(np.where(head, own, 0), begins)
    found = (last >= 0) & is_product & (summing_ns >= _LEAST_SUM_SHARE * longest_ns)
    passes = (alike | summing) & found[part]
    left = _of_each(texts, _of_terms)[last] * summing_ns / np.maximum(sums_between(own * passes, begins, ends), 1)
    share[members[passes]] = np.maximum(1 - np.maximum(left, _LEFT_SHARE), 0.0)[part[passes]]
    # Where nothing else goes over as many numbers, all passes over the terms go, as those of a backward pass.
    counts = np.unique(sizes[last[found]])
    counts = counts[(counts > 0) & (counts >= _LEAST_TERMS * most)]
    if len(counts):
        rest = np.flatnonzero(inside & (share == 0))
        share[rest[np.isin(_of_each(shapes.gather(rest), _size), counts)]] = 1 - _LEFT_SHARE
    return share


def _parts(facts: Facts, inside: Bools, sums: Bools, makes: Bools) -> tuple[Int64s, Int64s]:
    """Sequences of these pieces that make terms and end in sums, if a pass in them reads broadcast operands.

    Short passes in between do not count.

    Returns:
        Rows of `Facts.work` of all sequences, and where each begins.
    """
    program = facts.program
    short = program.passes & ~inside & (program.own_ns < facts.thresholds.bandwidth_kernel_ns)
    kept = ~program.in_order(short)
    rows, section = program.order[kept], np.cumsum(program.breaks)[kept]
    within, at_end = inside[rows], sums[rows]
    starts = np.ones(len(rows), dtype=np.bool_)
    starts[1:] = (section[1:] != section[:-1]) | (within[1:] != within[:-1]) | (at_end[:-1] & ~at_end[1:])
    begins = np.flatnonzero(starts)
    ends = np.append(begins[1:], len(rows))
    making, strided = running_sum(makes[rows]), running_sum(program.marked("strided")[rows] & within & ~at_end)
    chosen = at_end[ends - 1] & (making[ends] > making[begins]) & (strided[ends] > strided[begins])
    begins, lengths = begins[chosen], (ends - begins)[chosen]
    firsts = running_sum(lengths)[:-1]  # within the rows of the chosen ones
    return rows[np.arange(lengths.sum()) + np.repeat(begins - firsts, lengths)], firsts


def _of_each(texts: pl.Series, value: Callable[[str | None], float]) -> npt.NDArray[Any]:
    """A value of each of these texts, of which few are different."""
    listed = texts.to_list()
    values = {text: value(text) for text in set(listed)}
    return np.array([values[text] for text in listed])


def _largest(shapes: pl.Series) -> int:
    """Numbers of the largest tensor, by recorded shapes; 0 if none were recorded."""
    return max(map(largest_tensor, shapes.drop_nulls().unique().to_list()), default=0)


def _spread(facts: Facts, members: Int64s, texts: pl.Series, most: int) -> Bools:
    """Which of these pieces make far more terms than any of their operands has numbers.

    The shapes of the operands tell. For operands that were expanded before, and without shapes, the kernel tells that
    its operands are not contiguous, and no other kernel of the window has nearly as many numbers (or bytes).

    Args:
        facts: the window.
        members: rows of `Facts.work`.
        texts: their recorded shapes.
        most: numbers of the largest tensor of kernels that cannot be passes over terms.
    """
    program = facts.program
    strided = program.marked("strided")[members]
    spread = _of_each(texts, lambda text: _are_spread(text) or 0 < _LEAST_TERMS * most <= largest_tensor(text))
    spread = spread & strided
    places = np.flatnonzero(texts.is_null().to_numpy() & strided)
    if len(places):
        unknown = members[places]
        moved = facts.at_roof["bytes"].fill_null(0.0).to_numpy()
        # A product may write as many numbers if it takes as long as writing them.
        writing_ns = facts.at_roof["theoretical_ns"].fill_null(0.0).to_numpy()[unknown] / 2
        longest = program.own_ns[program.products].max(initial=0)
        others = program.passes.copy()
        others[members] = False
        apart = moved[unknown] >= _LEAST_TERMS * moved[others].max(initial=0)
        spread[places] = apart & (longest < writing_ns)
    return np.asarray(spread, dtype=np.bool_)


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
