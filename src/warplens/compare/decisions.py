"""Decisions on two sides: the interval of their ratio, the verdict, the noise floor, and the regression gate."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from warplens.compare.cycles import Cycles, compare_cycles
from warplens.compare.shift import (
    RESAMPLED_UP_TO,
    Samples,
    Shift,
    centres_and_variances,
    cut,
    in_turns,
    power,
    t_quantile,
    trend,
    units,
    variance_limit,
)
from warplens.errors import UsageError
from warplens.profile.schema import Float64s

#: Relative rounding error of a ratio computed through logarithms.
_ROUNDING: Final = 1e-12


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    #: low, high: its ends; 0 and infinity if the data show no variation (one duration per side)
    low: float
    estimate: float
    high: float
    level: float  #: probability that such an interval misses the true value: 0.05 for 95 % confidence

    def within(self, margin: float) -> bool:
        """Whether the whole interval of a ratio lies between 1 / (1 + margin) and 1 + margin."""
        limit = (1 + margin) * (1 + _ROUNDING)
        return self.low >= 1 / limit and self.high <= limit

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of 1 is outside."""
        return self.low > 1 or self.high < 1


def ratio_interval(baseline: Samples, variant: Samples, *, level: float = 0.05, seed: int = 0) -> Interval:
    """Time of the variant / time of the baseline with its confidence interval: above 1, the variant is slower.

    Sides that are both `paired`, with the same number of blocks, are compared turn by turn; where long steps recur on
    both sides, whole cycles are compared (`compare.cycles`). `level` is the probability that the interval misses the
    true value: 0.05 for 95 % confidence. The same data and `seed` give the same interval.

    Raises:
        UsageError: the level is not between 0 and 1.
    """
    check_level(level)
    return interval_of(compare_cycles(baseline, variant, level=level, seed=seed).shift)


#: The logarithm of the largest float; the interval of two very different durations per side can exceed it.
_MOST_LOGARITHM: Final = math.log(sys.float_info.max)


def interval_of(shift: Shift) -> Interval:
    """The interval of a ratio, from a shift of logarithms."""
    low, high = (math.exp(end) if end < _MOST_LOGARITHM else math.inf for end in shift.interval)
    return Interval(low=low, estimate=math.exp(shift.estimate), high=high, level=shift.level)


def check_level(level: float) -> None:
    """Check that a level is a probability.

    Raises:
        UsageError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise UsageError(f"a level of {level:g} is not a probability: 0.05 asks for intervals of 95 % confidence")


#: Verdicts of a comparison.
Verdict: TypeAlias = Literal["faster", "slower", "same", "undecided"]
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)

#: Probability that a comparison with the needed number of blocks decides.
POWER: Final = 0.8
#: The variance of few blocks is uncertain, and planning with too small a variance gives too few blocks. Its upper bound
#: of this confidence is used instead (Browne, Statistics in Medicine 14 (1995), 1933–1940).
_VARIANCE_CONFIDENCE: Final = 0.8
#: Trends of at most this p-value are expected to persist with any number of blocks. Weaker ones widen the interval of
#: the present blocks, and are expected to vanish with more blocks.
_CLEAR_TREND: Final = 0.01
#: Larger numbers of repeats are not feasible.
_MOST: Final = 100_000


def needed_units(shift: Shift, margin: float) -> int | None:
    """The total number of units per side needed for a verdict other than undecided; None if no number suffices.

    The smaller of two numbers: of units that show a difference, and of units for which the whole interval is within the
    margin. An observed difference beyond the margin may overestimate the true one, so it is reduced by one standard
    error, but not below the margin. The effect of a clear drift does not decrease with the number of units. Up to
    `RESAMPLED_UP_TO` units, the interval is taken to stay as much wider than Student's as the bootstrap made it.
    `margin` is the share up to which differences count as none.
    """
    if not shift.freedom:
        return None
    limit, distance = math.log1p(margin), abs(shift.estimate)
    clear = [found for found in shift.trends if found and found.significance < _CLEAR_TREND]
    drift = max((abs(found.shift) for found in clear), default=0.0)
    assumed = max(min(distance, limit), distance - shift.error, distance / 2)
    variance = shift.variance * variance_limit(shift.freedom, _VARIANCE_CONFIDENCE)
    wider = shift.critical / float(t_quantile(shift.level, shift.freedom))

    def decides(count: int) -> bool:
        error = math.sqrt(variance / count)
        freedom = max(shift.freedom * count / shift.count, 1.0)
        widened = wider if count <= RESAMPLED_UP_TO else 1.0
        differs, _ = power(assumed - drift, limit, error, freedom, shift.level, widened)
        _, same = power(distance, limit - drift, error, freedom, shift.level, widened)
        return same >= POWER or (assumed > drift and differs >= POWER)

    low, high = min(shift.counts), min(shift.counts) + 1
    while not decides(high):
        low, high = high, high * 2
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


#: Random splits into halves, for a 95th percentile with an error of a few per cent. For very long sides there are
#: fewer: at most `_DRAWN_NUMBERS` values in all, but at least 100 splits.
_SPLITS: Final = 1000
_DRAWN_NUMBERS: Final = 2_000_000
#: Units needed for a split: each half needs two.
_SPLIT_FROM: Final = 4
#: The quantile of the splits' differences that is the noise floor.
_QUANTILE: Final = 0.95


@dataclass(frozen=True)
class NoiseFloor:
    """The difference of a side from itself."""

    #: two sides of this length and the same program differ by at most this share in 95 of 100 cases, estimated from
    #: random halves; None with fewer than four blocks (or steps, if there is one block)
    share: float | None
    #: relative change of the times over the length of the side, positive if they rise; 0 without a significant trend
    drift: float
    significance: float | None  #: p-value of the trend; None with fewer than five units, and without their order
    splits: int  #: number of random splits
    #: the units of the splits: `blocks`, `turns` (the sides of a turn exchanged at random), or `steps` of one block
    of: Literal["blocks", "turns", "steps"]


def noise_floor(samples: Samples, *, seed: int = 0) -> NoiseFloor:
    """The noise floor of a side, from the differences of random halves, and its trend.

    Halves differ more than whole sides since they are shorter; their difference is scaled by the root of the lengths.
    """
    values = units(samples)
    side_trend = trend(values) if samples.in_order else None
    return NoiseFloor(
        share=_share(_halves(values, seed)),
        drift=math.expm1(side_trend.shift) if side_trend and side_trend.matters else 0.0,
        significance=side_trend.significance if side_trend else None,
        splits=_splits(values.size),
        of="blocks" if len(samples.blocks) > 1 else "steps",
    )


def floor_between(baseline: Samples, variant: Samples, *, seed: int = 0) -> NoiseFloor:
    """The noise floor of a comparison: of both sides, or for turns, with the sides of each turn exchanged at random."""
    if in_turns(baseline, variant):
        differences = units(variant) - units(baseline)
        enough = differences.size >= _SPLIT_FROM
        share = _share(_exchanged(differences, seed)) if enough else None
        return NoiseFloor(share, 0.0, None, _splits(differences.size), "turns")
    floors = noise_floor(baseline, seed=seed), noise_floor(variant, seed=seed)
    shares = [floor.share for floor in floors if floor.share is not None]
    return NoiseFloor(
        # Each side contributes half of the variance of the difference.
        share=_share(math.sqrt(sum(math.log1p(share) ** 2 for share in shares) / 2)) if len(shares) == 2 else None,
        drift=max((floor.drift for floor in floors), key=abs),
        significance=min((floor.significance for floor in floors if floor.significance is not None), default=None),
        splits=sum(floor.splits for floor in floors),
        of="steps" if "steps" in {floor.of for floor in floors} else "blocks",
    )


def _splits(count: int) -> int:
    return max(min(_SPLITS, _DRAWN_NUMBERS // count), 100) if count >= _SPLIT_FROM else 0


def _share(logarithm: float | None) -> float | None:
    return None if logarithm is None else math.expm1(logarithm)


def _halves(values: Float64s, seed: int) -> float | None:
    """The 95th percentile of the difference of random halves, scaled to halves as long as the side."""
    count = values.size
    if count < _SPLIT_FROM:
        return None
    half = count // 2
    shuffled = np.random.default_rng(seed).permuted(np.broadcast_to(values, (_splits(count), count)), axis=1)
    trimmed = cut(half)
    first, _ = centres_and_variances(shuffled[:, :half], trimmed)
    second, _ = centres_and_variances(shuffled[:, half:], trimmed)
    scale = math.sqrt((2 / count) / (1 / half + 1 / (count - half)))
    return float(np.quantile(np.abs(second - first), _QUANTILE)) * scale


def _exchanged(differences: Float64s, seed: int) -> float:
    """The 95th percentile of the centre of turns with randomly exchanged sides, without the observed difference."""
    trimmed = cut(differences.size, blocks=True)
    observed, _ = centres_and_variances(differences, trimmed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (_splits(differences.size), differences.size))
    centre, _ = centres_and_variances(signs * (differences - observed), trimmed)
    return float(np.quantile(np.abs(centre), _QUANTILE))


#: Dependence of units from which on it is reported.
_NOTABLE_DEPENDENCE: Final = 2.0


@dataclass(frozen=True)
class Comparison:
    """The comparison of two sides, with its certainty."""

    ratio: Interval  #: time of the variant / time of the baseline: above 1, the variant is slower
    #: `same` if the whole interval lies within the margin, even if it excludes 1; `faster` or `slower` if the interval
    #: excludes 1 and the ratio is beyond the noise floor; otherwise `undecided`
    verdict: Verdict
    noise: NoiseFloor
    #: total blocks per side (see `unit`) for a decision with probability `POWER`; None if it is decided, or if no
    #: number suffices
    needed_blocks: int | None
    #: baseline_ns, variant_ns: median of the blocks' medians of each side. Their quotient differs slightly from
    #: `ratio`, which is a ratio of trimmed means.
    baseline_ns: float
    variant_ns: float
    how: str  #: the method in one sentence
    doubts: tuple[str, ...]  #: sentences on the limits of the figures
    margin: float = 0.02  #: differences of at most this share count as none
    unit: Literal["blocks", "steps"] = "blocks"  #: unit of `needed_blocks`: `steps` if each side has a single block
    shift: Shift | None = None  #: what the interval was computed from
    #: steps of a cycle, where long steps recur on both sides: whole cycles take the place of steps. 1 otherwise
    cycle: int = 1
    #: ratio of the means of all durations (of whole cycles), which outliers move and `ratio` ignores; None if unknown
    means: float | None = None

    @property
    def within_noise(self) -> bool:
        """Whether the interval excludes 1, but each side differs from itself as much."""
        return self.ratio.excludes_one and not _beyond(self.ratio, self.noise)


def compare(
    baseline: Samples, variant: Samples, *, margin: float = 0.02, level: float = 0.05, seed: int = 0
) -> Comparison:
    """Whether the variant is faster, slower, the same, or undecided.

    Sides that are both `paired`, with the same number of blocks, are compared turn by turn; where long steps recur on
    both sides, whole cycles are compared (`compare.cycles`). Differences of at most the share `margin` count as none.
    `level` is the probability of a false difference, and that the interval misses the true value. The same data and
    `seed` give the same comparison.

    Raises:
        UsageError: the level is not between 0 and 1, or the margin is negative.
    """
    check_level(level)
    if not 0 <= margin < math.inf:
        raise UsageError(f"a margin of {margin:g} is none: 0.02 asks for 2 %")
    found = compare_cycles(baseline, variant, level=level, seed=seed)
    shift, ratio = found.shift, interval_of(found.shift)
    noise = floor_between(found.baseline, found.variant, seed=seed)
    verdict = _verdict(ratio, noise, margin)
    single = len(baseline.blocks) == len(variant.blocks) == 1
    means = float(found.variant.values.mean() / found.baseline.values.mean())
    return Comparison(
        ratio=ratio,
        verdict=verdict,
        noise=noise,
        needed_blocks=_repeats(shift, margin, found.length, single=single) if verdict == "undecided" else None,
        baseline_ns=baseline.median_ns,
        variant_ns=variant.median_ns,
        how=_how(baseline, variant, found),
        doubts=tuple(_doubts(found, ratio, means)),
        margin=margin,
        unit="steps" if single else "blocks",
        shift=shift,
        cycle=found.length,
        means=means,
    )


def _repeats(shift: Shift, margin: float, cycle: int, *, single: bool) -> int | None:
    """`needed_units` as repeats: blocks, or the steps of these cycles where each side is a single block."""
    needed = needed_units(shift, margin)
    return needed * cycle if needed is not None and single else needed


def _verdict(ratio: Interval, noise: NoiseFloor, margin: float) -> Verdict:
    if ratio.within(margin):
        return "same"
    if not (ratio.excludes_one and _beyond(ratio, noise)):
        return "undecided"
    return "slower" if ratio.low > 1 else "faster"


def _beyond(ratio: Interval, noise: NoiseFloor) -> bool:
    return abs(math.log(ratio.estimate)) > math.log1p(noise.share or 0.0)


def _how(baseline: Samples, variant: Samples, found: Cycles) -> str:
    shift = found.shift
    blocks = len(baseline.blocks), len(variant.blocks)
    if shift.paired:
        compared = f"the medians of {blocks[0]} turns, each turn's two sides against each other"
    else:
        compared = f"{_counted(baseline)} against {_counted(variant)}"
    if found.length > 1:
        compared += f", by whole cycles of {found.length} steps, because long steps recur"
    confidence = f"{100 * (1 - shift.level):g} % interval"
    if not shift.freedom:
        return f"{compared}; no {confidence}, for they show no variation"
    method = "Student's t"
    if shift.resampled:
        method = "the studentised bootstrap" if 1 in blocks else "the studentised bootstrap of whole blocks"
    return f"{compared}; {confidence} of the ratio of trimmed means by {method}"


def _counted(side: Samples) -> str:
    if len(side.blocks) == 1:
        return f"{side.count} steps of one run" if side.count > 1 else "a single step"
    return f"the medians of {len(side.blocks)} blocks"


def _doubts(found: Cycles, ratio: Interval, means: float) -> Iterator[str]:
    """What the intervals do not cover, as sentences: how the sides were taken, drift, dependence, and rare steps."""
    baseline, variant, shift = found.baseline, found.variant, found.shift
    single = [name for name, side in (("baseline", baseline), ("variant", variant)) if len(side.blocks) == 1]
    if len(single) == 2:
        yield (
            "Each side is a single run: steps of one run cannot show how much runs differ from each other, "
            "so that another pair of runs may differ by more than the interval says"
        )
    elif single:
        yield f"The {single[0]} is a single run: it is taken to vary from run to run as much as the other side does"
    elif not shift.paired and baseline.ordered and variant.ordered:
        yield "The sides were not taken in turns: what changed on the machine in between looks like a difference"
    if not shift.freedom:
        side = f"The {shift.single_side}" if shift.single_side is not None else "Each side"
        yield f"{side} has a single duration: nothing shows how much it varies"
    elif not shift.error:
        yield (
            "No duration of a side differs from its others: the clock is coarser than what they vary by, and the "
            "interval does not know by how much"
        )
    yield from _drifts(shift)
    if shift.freedom and shift.dependence >= _NOTABLE_DEPENDENCE:
        yield _dependent(shift, ("steps" if found.length == 1 else "cycles") if len(single) == 2 else None)
    if shift.freedom and not ratio.low * (1 - _ROUNDING) <= means <= ratio.high * (1 + _ROUNDING):
        yield (
            f"On average the variant takes {means:.3g} times as long, outside the interval: a few steps are far from "
            "typical"
        )


def _drifts(shift: Shift) -> Iterator[str]:
    """A sentence for each side whose times rise or fall while they are taken, or one for both sides together."""
    drifting = {
        name: math.expm1(found.between_halves)
        for name, found in zip(("the baseline", "the variant", "both sides"), shift.trends, strict=True)
        if found and found.matters
    }
    for name, drift in drifting.items():
        if name != "both sides" or len(drifting) == 1:
            percent = 100 * abs(drift)
            shown = f"{percent:.2g}" if percent < 10 else f"{percent:.0f}"
            yield (
                f"Times of {name} are {shown} % {'longer' if drift > 0 else 'shorter'} in the second half of those "
                "taken than in the first: the interval reaches further, for that may go on"
            )


def _dependent(shift: Shift, of_one_run: str | None) -> str:
    """How many independent durations tell as much as those taken; `of_one_run`: what they are, if of one run a side."""
    independent = round(max(shift.count / shift.dependence, 1))
    ones = f"{independent} independent {'one' if independent == 1 else 'ones'}"
    if of_one_run is not None:
        return f"Successive {of_one_run} resemble each other: {shift.count} of them tell as much as {ones}"
    units = "turns" if shift.paired else "blocks"
    return (
        f"Successive {units} resemble each other, which may be chance: the interval counts {shift.count} of "
        f"them as {ones}"
    )


@dataclass(frozen=True)
class Regression:
    """Whether the variant is slower by more than a limit; undecided if neither `found` nor `excluded`."""

    found: bool  #: the whole interval lies above the limit
    excluded: bool  #: the whole interval lies at or below the limit, and so does the ratio of the means
    fail_on: float  #: the limit, a share: 0.05 for 5 %
    #: total blocks per side that would show on which side of the limit it is; None if it is known, or if no number does
    needed_blocks: int | None = None
    #: the ratio of the means, if nothing but that lies above the limit: a few steps take far longer than others
    means: float | None = None


def regression(comparison: Comparison, fail_on: float) -> Regression:
    """Whether the variant is slower by more than a limit, a share: 0.05 for 5 %.

    It is a regression if the low end of the ratio's interval lies above 1 + `fail_on`. If the interval includes the
    limit, or the ratio is within the noise floor, it is undecided and no failure, since a build would otherwise fail on
    noise. It is undecided as well if the mean of all steps is slower by more than the limit, and the typical step, of
    which the interval is, is not: the throughput went down, by steps too few for an interval. Long steps that
    recur on both sides are in the interval (`Comparison.cycle`), and are judged. The margin of the
    comparison is not used: with a limit of 0, any certain slowdown is a regression.

    Raises:
        UsageError: the limit is negative or not finite.
    """
    if not 0 <= fail_on < math.inf:
        raise UsageError(f"a limit of {fail_on:g} is none: 0.05 stands for a slowdown of 5 %")
    ratio, limit = comparison.ratio, (1 + fail_on) * (1 + _ROUNDING)
    found, within = ratio.low > limit and not comparison.within_noise, ratio.high <= limit
    means = comparison.means if within and comparison.means is not None and comparison.means > limit else None
    needed = None
    if comparison.shift is not None and not (found or within):
        beyond = replace(comparison.shift, estimate=comparison.shift.estimate - math.log1p(fail_on))
        needed = _repeats(beyond, 0.0, comparison.cycle, single=comparison.unit == "steps")
    return Regression(found, within and means is None, fail_on, needed, means)
