"""Weights that are prepared again for each use: cast to 16 bits in each turn of a loop, or computed from their parts.

Autocast keeps its casts of weights until it is left. If a loop enters it in each turn, each turn casts the same weights
again, and the backward pass casts the gradient of each of these casts back and adds it in 32 bits. Layers with weights
of their own launch the same forward kernels, but their backward pass adds nothing to the gradients of weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from warplens.analysis.frames import once
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.program import Program
from warplens.diagnosis.structure import backward_parts, backward_work, time_of
from warplens.profile.schema import Bools, Float64s, Int64s

#: Least uses of a weight in a forward pass. Two are a network that is run for two inputs.
_LEAST_USES: Final = 3
#: Least share of the casts of weights, and of their time, that are of such weights. Activations that many layers read
#: may be cast and added as often, but then most casts are of weights that are used once. Small weights of several
#: networks may have equal sizes.
_LEAST_SHARE: Final = 0.5


class CastAgain(NamedTuple):
    """Casts of weights that an earlier turn of the same forward pass has made."""

    casts: Bools  #: these casts, and those of their gradients back to 32 bits
    sums: Bools  #: additions of these gradients
    uses: float  #: of such a weight in a step, on average; 1 if there are none


class _Gradients(NamedTuple):
    """Gradients of one size, of weights that a forward pass uses several times."""

    blocks: float  #: of the kernel that adds one
    casts: Int64s  #: rows of the casts before the additions
    sums: Int64s  #: rows of the additions
    first: int  #: gradients that are handed over without an addition


@once
def cast_again(facts: Facts) -> CastAgain:
    """Casts of weights that an earlier turn of the same forward pass has made, by their gradients."""
    program, backward = facts.program, backward_work(facts)
    casts, sums = np.zeros((2, facts.work.height), dtype=np.bool_)
    narrowing, weights, repeated = program.marked("narrowing"), 0, 0
    if not (narrowing & ~backward).any() or not (program.marked("adding-floats") & backward).any():
        return CastAgain(casts, sums, 1.0)
    for rows in program.by_step():
        # The gradient of an activation is narrowed as well, with the same kernel; that of a weight is not.
        narrowed = rows[(narrowing & backward)[rows]]
        forward = rows[(narrowing & ~backward)[rows]]
        forward = forward[~np.isin(program.launched_as(forward), program.launched_as(narrowed))]
        blocks = program.blocks(forward)
        found = [
            gradients
            for part in backward_parts(program, rows, backward)
            for gradients in _added_gradients(program, part, blocks)
        ]
        firsts = {each.blocks: 0 for each in found}
        for each in found:
            firsts[each.blocks] += each.first
        used = [forward[blocks == size] for size in firsts]
        is_used = np.isin(blocks, list(firsts))
        is_most = time_of(program, forward[is_used]) >= _LEAST_SHARE * time_of(program, forward)
        if not found or is_used.mean() < _LEAST_SHARE or not is_most:
            continue
        again = [of_size[first:] for of_size, first in zip(used, firsts.values(), strict=True)]
        casts[np.concatenate([*again, *(each.casts for each in found)])] = True
        sums[np.concatenate([each.sums for each in found])] = True
        weights, repeated = weights + sum(firsts.values()), repeated + sum(len(each.sums) for each in found)
    return CastAgain(casts, sums, 1 + repeated / max(weights, 1))


def _added_gradients(program: Program, part: Int64s, blocks: Float64s) -> Iterator[_Gradients]:
    """Gradients that are widened and added right afterwards, except for few that a backward pass hands over before.

    If none is handed over, as in the second micro-batch, nobody has cleared those of an earlier pass.

    Args:
        part: rows of the work of a backward pass.
        blocks: of the casts of weights.
    """
    part = part[program.is_kernel[part]]
    widening = (program.labelled("copy-cast") & ~program.marked("narrowing"))[part]
    adds = program.marked("adding-floats")[part] & np.isin(program.blocks(part), blocks)
    codes = program.launched_as(part)
    places = np.flatnonzero(widening[:-1] & adds[1:])
    for code in np.unique(codes[places]):
        of_size = places[codes[places] == code]
        first = int((codes == code).sum()) - len(of_size)
        if 0 < first * (_LEAST_USES - 1) <= len(of_size):
            casts, sums = part[of_size], part[of_size + 1]
            yield _Gradients(float(program.blocks(sums[:1])[0]), casts, sums, first)


@once
def normed_again(facts: Facts) -> Bools:
    """Kernels of inference that compute weights from direction and length (weight norm), which stay the same."""
    norms = facts.program.marked("weight-norm")
    return np.zeros_like(norms) if facts.trains else norms
