"""Passes over a text that grows by a token each: generation that keeps no keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from warplens.analysis.frames import once
from warplens.analysis.repetition import longest_repetition
from warplens.diagnosis.findings import PASSES

if TYPE_CHECKING:
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.program import Program
    from warplens.diagnosis.rule import Floats
    from warplens.profile.schema import Int64s

#: Passes over a growing text, at least: fewer grids in a row grow by the same amount by chance.
_LEAST_PASSES: Final = 6
#: Kernels of a pass that move data, at least; grids of fewer blocks do not show what they grow by.
_LEAST_KERNELS: Final = 4
_LEAST_BLOCKS: Final = 4
#: Of those kernels, the share whose grids grow. With a cache it is what attention does to its scores and the appended
#: cache, a quarter of a layer; without one it is everything.
_GROWING_SHARE: Final = 0.6
#: How far a growth may be from the usual one: a block where rounding up makes it, or this share. A decoder of images
#: doubles its sides instead.
_UNEVEN_SHARE: Final = 0.2
#: Longer sequences of a step are not searched.
_MOST_KERNELS: Final = 200_000
#: A kernel for one token takes about this long: it starts, and reads its weights.
_OF_A_TOKEN_NS: Final = 5_000


@dataclass(frozen=True, eq=False)
class Growing:
    """Passes of a step over all tokens so far.

    Attributes:
        share: of each piece of work, the share of its time that a cache of keys and values saves.
        passes: how many there are in a step.
        growth: tokens of the last pass over those of the first.
    """

    share: Floats
    passes: float
    growth: float


@once
def growing_passes(facts: Facts) -> Growing | None:
    """Passes that launch the same kernels on grids that grow by the same amount each time; None where there are none.

    With a cache, a pass works on the token that the last one chose. Without, it works on all: what is added to each
    grid from one pass to the next is the work of one token.
    """
    program, whole = facts.program, (facts.whole or facts).program
    if whole.marked("backward").any() or whole.labelled("optimizer").any():
        return None
    steps = list(program.by_step())
    share = np.zeros(facts.work.height)
    counts: list[float] = []
    growths: list[float] = []
    # A step may be one token: then the passes are steps.
    for rows in steps if len(steps) < _LEAST_PASSES else [*steps, program.order]:
        if rows is program.order and counts:
            break
        found = _in(program, rows)
        if found is not None:
            begins, kept = found
            counts.append(len(kept) if rows is not program.order else len(kept) / len(steps))
            growths.append(kept[0] / kept[-1])
            # The first pass reads the prompt.
            for place in range(1, len(kept)):
                end = begins[place + 1] if place + 1 < len(begins) else len(rows)
                mine = rows[begins[place] : end]
                least = np.minimum(_OF_A_TOKEN_NS / np.maximum(program.own_ns[mine], 1), 1.0)
                share[mine] = np.where(program.is_kernel[mine], 1 - np.maximum(kept[place], least), 0.0)
    return Growing(share, float(np.mean(counts)), float(np.median(growths))) if counts else None


def _in(program: Program, rows: Int64s) -> tuple[list[int], list[float]] | None:
    """Where such passes begin among these pieces, and what one token is of each; None where there are none."""
    places = np.flatnonzero(program.labelled(*PASSES)[rows])
    if not _LEAST_PASSES * _LEAST_KERNELS <= len(places) <= _MOST_KERNELS:
        return None
    period, begin, stop = longest_repetition(program.names()[rows[places]])
    repeats = (stop - begin) // period if period else 0
    if period < _LEAST_KERNELS or repeats < _LEAST_PASSES:
        return None
    turns = places[begin : begin + repeats * period].reshape(repeats, period)
    grids = np.nan_to_num(program.blocks(rows[turns.ravel()])).reshape(repeats, period)
    # Where layers are all that repeats, those of a pass have equal grids.
    firsts = np.flatnonzero(np.r_[True, (grids[1:] != grids[:-1]).any(axis=1)])
    if len(firsts) < _LEAST_PASSES:
        return None
    turns, grids = turns[firsts], grids[firsts][:, grids[-1] >= _LEAST_BLOCKS]
    more = np.diff(grids, axis=0)
    usual = more.mean(axis=0) if grids.shape[1] else np.zeros(0)
    even = (np.abs(more - usual) <= np.maximum(1.0, _UNEVEN_SHARE * usual)).all(axis=0)
    growing = even & (more >= 0).all(axis=0) & (grids[-1] >= grids[0] + len(grids) / 2)
    if growing.sum() < _LEAST_KERNELS or growing.mean() < _GROWING_SHARE:
        return None
    kept = np.median(usual[growing] / grids[:, growing], axis=1).clip(0.0, 1.0)
    return turns[:, 0].tolist(), kept.tolist()
