"""Long steps that recur: where every k-th step is longer on both sides, whole cycles of k steps are compared.

Evaluation, logging or accumulated gradients make every k-th step longer. Such a pattern is no noise, but among single
steps it counts as such: if every fourth of 24 steps takes twice as long, the interval reaches 31 % to each side. Means
of whole cycles (batch means) do not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from warplens.compare.shift import ORDER_FROM, Samples, Shift, shift_between, trend
from warplens.profile.schema import Float64s

#: Fewer cycles of a block show no recurrence.
_LEAST_CYCLES: Final = 3
#: Longer cycles are seldom recorded three times, and each length is another test.
_MOST_STEPS: Final = 100
#: Largest p-value of a recurrence on one side, for all lengths together. Both sides must show the same length: of
#: random long steps, fewer than one pair in a thousand does (docs/explanation/comparison-statistics.md).
_SIGNIFICANCE: Final = 0.01


@dataclass(frozen=True)
class Cycles:
    """Two sides by whole cycles; as they are, if long steps do not recur on both of them."""

    baseline: Samples
    variant: Samples
    length: int  #: steps of a cycle; 1 if long steps do not recur
    shift: Shift  #: from the baseline to the variant


def compare_cycles(baseline: Samples, variant: Samples, *, level: float, seed: int) -> Cycles:
    """The shift between two sides (`shift_between`), of whole cycles where long steps recur on both of them."""
    length = _cycle(baseline, variant)
    first, second = _means_of_cycles(baseline, length), _means_of_cycles(variant, length)
    shift = shift_between(first, second, level=level, seed=seed)
    if length > 1 and len(first.blocks) == len(second.blocks) == 1 and shift.count < ORDER_FROM:
        one, other = list(_phases(baseline, length)), list(_phases(variant, length))
        before, after, both = (trend(*phases, least=_LEAST_CYCLES) for phases in (one, other, one + other))
        shift = replace(shift, trends=(before, after, both))
    return Cycles(first, second, length, shift)


def _phases(run: Samples, length: int) -> Iterator[Float64s]:
    """The logarithms of each phase's steps in a single run: too few cycles show a drift only phase by phase."""
    return (np.log(run.blocks[0][phase::length]) for phase in range(length))


def _means_of_cycles(samples: Samples, length: int) -> Samples:
    """The mean durations of whole cycles in place of those of steps; steps behind the last whole cycle are left out."""
    whole = (block[: block.size // length * length] for block in samples.blocks)
    return replace(samples, blocks=tuple(steps.reshape(-1, length).mean(axis=1) for steps in whole))


def _cycle(*sides: Samples) -> int:
    """The number of steps after which long ones recur on all sides; 1 if they do not.

    Multiples and divisors of the right length explain a part of the variance as well: the length with the largest F is
    taken, of the side where it is smaller.
    """
    most = min(min(block.size for side in sides for block in side.blocks) // _LEAST_CYCLES, _MOST_STEPS)
    lengths = range(2, most + 1)
    clearest = {length: min(_recurrence(side, length, len(lengths)) for side in sides) for length in lengths}
    best = max(clearest, key=lambda length: clearest[length], default=1)
    return best if clearest.get(best) else 1


def _recurrence(side: Samples, length: int, tests: int) -> float:
    """The F of the phases of a cycle; 0 if they do not explain most of the variance, or may do so by chance.

    It is the variance between phases over that within them, on a logarithmic scale (one-way analysis of variance).
    Blocks may begin at different phases, so each has means of its own; sums of squares and degrees of freedom add up.
    """
    from scipy import special

    between, within = np.sum([_squares(block, length) for block in side.blocks], axis=0)
    if between <= within:
        return 0.0
    freedom = len(side.blocks) * (length - 1), side.count - len(side.blocks) * length
    ratio = between / freedom[0] / max(within / freedom[1], np.finfo(np.float64).tiny)
    return float(ratio) if special.fdtrc(*freedom, ratio) * tests < _SIGNIFICANCE else 0.0


def _squares(block: Float64s, length: int) -> tuple[float, float]:
    """The sums of squares between and within the phases of a cycle."""
    if not np.ptp(block):  # without a guard, rounding would decide
        return 0.0, 0.0
    logs = np.log(block / block.mean())
    logs -= logs.mean()
    phases = np.arange(block.size) % length
    between = float((np.bincount(phases, logs) ** 2 / np.bincount(phases)).sum())
    return between, max(float((logs**2).sum()) - between, 0.0)
