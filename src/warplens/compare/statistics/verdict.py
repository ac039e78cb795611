"""Faster, slower, the same, or undecided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from warplens.compare.statistics.interval import Interval, check_level, interval_of
from warplens.compare.statistics.location import block_medians
from warplens.compare.statistics.noise import NoiseFloor, floor_between
from warplens.compare.statistics.power import needed_units
from warplens.compare.statistics.shift import Shift, shift_between
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.compare.samples import Samples

__all__ = ["Comparison", "Verdict", "compare"]

Verdict: TypeAlias = Literal["faster", "slower", "same", "undecided"]

#: From here on, how much less dependent units tell is worth a sentence.
_NOTABLE_DEPENDENCE: Final = 2.0


@dataclass(frozen=True)
class Comparison:
    """Which of two sides takes longer, and how sure that is.

    Attributes:
        ratio: time of the variant / time of the baseline: above 1, the variant is slower.
        verdict: `same` if the whole interval lies within the margin, even if it excludes 1; `faster` or `slower` if
            the interval excludes 1 and the ratio is beyond the noise floor; otherwise `undecided`.
        noise: how much a side differs from itself.
        needed_blocks: how many blocks each side needs, in all, to be decided in four of five repetitions; of single
            runs, how many steps (see `unit`); None if it is decided, or if no number of them would do.
        baseline_ns, variant_ns: median of the blocks' medians of each side. Their quotient is close to `ratio` without
            being it: that is the ratio of trimmed means.
        how: one sentence for people: what was compared, and how.
        doubts: sentences on what the figures cannot show.
        margin: differences of this share and less do not matter.
        unit: what `needed_blocks` counts: `blocks`, or `steps` where each side has a single block.
    """

    ratio: Interval
    verdict: Verdict
    noise: NoiseFloor
    needed_blocks: int | None
    baseline_ns: float
    variant_ns: float
    how: str
    doubts: tuple[str, ...]
    margin: float = 0.02
    unit: Literal["blocks", "steps"] = "blocks"


def compare(
    baseline: Samples, variant: Samples, *, margin: float = 0.02, level: float = 0.05, seed: int = 0
) -> Comparison:
    """Whether the variant is faster or slower than the baseline, the same, or whether that is undecided.

    Args:
        baseline: durations before the change.
        variant: durations after it. If both are `paired` and have equally many blocks, they are compared turn by turn.
        margin: a share; differences up to it do not matter.
        level: how often a difference may be called one, or the interval miss the truth, by chance.
        seed: of all resampling; the same data with the same seed give the same comparison.

    Raises:
        UsageError: the level is not between 0 and 1, or the margin is negative.
    """
    check_level(level)
    if not 0 <= margin < math.inf:
        raise UsageError(f"a margin of {margin:g} is none: 0.02 asks for 2 %")
    shift = shift_between(baseline, variant, level=level, seed=seed)
    ratio, noise = interval_of(shift), floor_between(baseline, variant, seed=seed)
    verdict = _verdict(ratio, noise, margin)
    single = len(baseline.blocks) == len(variant.blocks) == 1
    return Comparison(
        ratio=ratio,
        verdict=verdict,
        noise=noise,
        needed_blocks=needed_units(shift, margin) if verdict == "undecided" else None,
        baseline_ns=float(np.median(block_medians(baseline))),
        variant_ns=float(np.median(block_medians(variant))),
        how=_how(baseline, variant, shift),
        doubts=tuple(_doubts(baseline, variant, shift, ratio)),
        margin=margin,
        unit="steps" if single else "blocks",
    )


def _verdict(ratio: Interval, noise: NoiseFloor, margin: float) -> Verdict:
    if ratio.within(margin):
        return "same"
    beyond = abs(math.log(ratio.estimate)) > math.log1p(noise.share or 0.0)
    if not (ratio.excludes_one and beyond):
        return "undecided"
    return "slower" if ratio.low > 1 else "faster"


def _how(baseline: Samples, variant: Samples, shift: Shift) -> str:
    blocks = len(baseline.blocks), len(variant.blocks)
    if shift.paired:
        of = f"the medians of {blocks[0]} turns, each turn's two sides against each other"
    else:
        of = f"{_counted(baseline)} against {_counted(variant)}"
    confidence = f"{100 * (1 - shift.level):g} % interval"
    if not shift.freedom:
        return f"{of}; no {confidence}, for they show no variation"
    by = "Student's t"
    if shift.resampled:
        by = "the studentised bootstrap" if 1 in blocks else "the studentised bootstrap of whole blocks"
    return f"{of}; {confidence} of the ratio of trimmed means by {by}"


def _counted(side: Samples) -> str:
    if len(side.blocks) == 1:
        return f"{side.count} steps of one run" if side.count > 1 else "a single step"
    return f"the medians of {len(side.blocks)} blocks"


def _doubts(baseline: Samples, variant: Samples, shift: Shift, ratio: Interval) -> list[str]:
    doubts = []
    single = [name for name, side in (("baseline", baseline), ("variant", variant)) if len(side.blocks) == 1]
    if len(single) == 2:
        doubts.append(
            "each side is a single run: steps of one run cannot show how much runs differ from each other, "
            "so that another pair of runs may differ by more than the interval says"
        )
    elif single:
        doubts.append(
            f"the {single[0]} is a single run: it is taken to vary from run to run as much as the other side does"
        )
    elif not shift.paired:
        doubts.append(
            "the sides were not taken in turns: what changed on the machine in between looks like a difference"
        )
    if not shift.freedom:
        doubts.append("a side has a single duration: nothing shows how much it varies")
    names = "the baseline", "the variant", "both sides"
    doubts.extend(
        f"times of {name} {'rise' if seen.shift > 0 else 'fall'} by {100 * abs(math.expm1(seen.shift)):.2g} % "
        "in the order in which they were taken: the interval reaches as much further, for that may go on"
        for name, seen in zip(names, shift.trends, strict=True)
        if seen and seen.matters and (name != "both sides" or not any(s and s.matters for s in shift.trends[:2]))
    )
    if shift.dependence >= _NOTABLE_DEPENDENCE:
        units = "turns" if shift.paired else "steps" if single else "blocks"
        alone = round(max(shift.count / shift.dependence, 1))
        doubts.append(
            f"successive {units} resemble each other: {shift.count} of them tell as much as "
            f"{alone} independent {'one' if alone == 1 else 'ones'}"
        )
    means = float(variant.values.mean() / baseline.values.mean())
    if shift.freedom and not ratio.low <= means <= ratio.high:
        doubts.append(f"the ratio of the means is {means:.3g}, outside the interval: a few steps are far from typical")
    return doubts
