"""What is decided about two sides: the interval of their ratio, a verdict, the noise floor, a regression."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from warplens.compare.shift import (
    Samples,
    Shift,
    block_medians,
    centres_and_variances,
    cut,
    in_turns,
    power,
    shift_between,
    trend,
    units,
    variance_limit,
)
from warplens.errors import UsageError
from warplens.profile.schema import Float64s


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low, high: its ends. Where the data show no variation at all (one duration a side): 0 and infinity.
        level: how often such an interval misses the truth: 0.05 for 95 % confidence.
    """

    low: float
    estimate: float
    high: float
    level: float

    def within(self, margin: float) -> bool:
        """Whether all of it, as a ratio, is as close to 1 as this share: for 0.02, between 1/1.02 and 1.02."""
        return self.low >= 1 / (1 + margin) and self.high <= 1 + margin

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of 1 is outside."""
        return self.low > 1 or self.high < 1


def ratio_interval(baseline: Samples, variant: Samples, *, level: float = 0.05, seed: int = 0) -> Interval:
    """Time of the variant / time of the baseline with its confidence interval: above 1, the variant is slower.

    Args:
        baseline: durations before the change.
        variant: durations after it. If both are `paired` and have equally many blocks, they are compared turn by turn.
        level: how often the interval may miss the truth; 0.05 asks for 95 % confidence.
        seed: of the resampling; the same data with the same seed give the same interval.

    Raises:
        UsageError: the level is not between 0 and 1.
    """
    check_level(level)
    return interval_of(shift_between(baseline, variant, level=level, seed=seed))


#: The logarithm of the greatest number; two durations a side of very different length reach beyond it.
_MOST_LOGARITHM: Final = math.log(sys.float_info.max)


def interval_of(shift: Shift) -> Interval:
    """A shift of logarithms as a ratio."""
    low, high = (math.exp(end) if end < _MOST_LOGARITHM else math.inf for end in shift.interval)
    return Interval(low=low, estimate=math.exp(shift.estimate), high=high, level=shift.level)


def check_level(level: float) -> None:
    """Refuses a level that is no probability of missing.

    Raises:
        UsageError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise UsageError(f"a level of {level:g} is not a probability: 0.05 asks for intervals of 95 % confidence")


#: What a comparison can come to.
Verdict: TypeAlias = Literal["faster", "slower", "same", "undecided"]
VERDICTS: Final[tuple[str, ...]] = get_args(Verdict)


#: How often the comparison, repeated with as many blocks as were said to be needed, decides.
POWER: Final = 0.8
#: A variance from few blocks is uncertain, and blocks that were planned with one that is too small do not decide: it
#: is taken as large as this confidence allows (Browne, Statistics in Medicine 14 (1995), 1933–1940).
_VARIANCE_CONFIDENCE: Final = 0.8
#: A trend that chance shows in one of a hundred cases will be there again, and no number of blocks takes it away.
#: Lesser ones widen the interval of the blocks at hand, and are expected to be gone from more of them.
_CLEAR_TREND: Final = 0.01
#: Nobody repeats more often than this.
_MOST: Final = 100_000


def needed_units(shift: Shift, margin: float) -> int | None:
    """Units that each side needs, in all, for a verdict other than undecided; None if no number of them would do.

    It is the smaller one of two: those that show a difference, and those that put the whole interval within the
    margin. A difference that was observed beyond the margin may be smaller in truth: it is taken one standard error
    nearer, though not nearer than the margin. What a clear drift may have made stays, however many units there are.

    Args:
        margin: the share below which differences do not matter.
    """
    if not shift.freedom:
        return None
    limit, observed = math.log1p(margin), abs(shift.estimate)
    drift = max([0.0, *(abs(seen.shift) for seen in shift.trends if seen and seen.significance < _CLEAR_TREND)])
    sought = max(min(observed, limit), observed - shift.error, observed / 2)
    variance = shift.variance * variance_limit(shift.freedom, _VARIANCE_CONFIDENCE)

    def decides(count: int) -> bool:
        error = math.sqrt(variance / count)
        freedom = max(shift.freedom * count / shift.count, 1.0)
        differs, _ = power(sought - drift, limit, error, freedom, shift.level)
        _, same = power(observed, limit - drift, error, freedom, shift.level)
        return same >= POWER or (sought > drift and differs >= POWER)

    low, high = shift.fewest, shift.fewest + 1
    while not decides(high):
        low, high = high, high * 2
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


#: Draws of halves; their 95th percentile is then uncertain by a few per cent of itself. Of very long sides fewer are
#: drawn: as many as this many numbers allow, but a hundred.
_SPLITS: Final = 1000
_DRAWN_NUMBERS: Final = 2_000_000
#: Halves need two units each.
_SPLIT_FROM: Final = 4
#: The share of draws that stays below the floor.
_QUANTILE: Final = 0.95


@dataclass(frozen=True)
class NoiseFloor:
    """What a side shows when it is compared with itself."""

    #: two sides as long as this one, of the same program, differ by up to this share in 95 of 100 cases, as far as
    #: halves drawn at random tell; None if there are fewer than four blocks (or steps of an only block)
    share: float | None
    #: by which share times move over the length of the side: above 0 if they rise; 0 unless the order of the units
    #: shows a trend that is too clear for chance
    drift: float
    significance: float | None  #: how often chance alone would show a trend as clear; None with fewer than five units
    splits: int  #: how often halves were drawn
    #: what was drawn: `blocks`, `turns` (both sides of a turn exchanged at random), or `steps` of an only block
    of: Literal["blocks", "turns", "steps"]


def noise_floor(samples: Samples, *, seed: int = 0) -> NoiseFloor:
    """How much a side differs from itself: halves of it, drawn at random, against each other; and its trend.

    Halves are shorter than the side, so that they differ more than two whole sides would: their difference is scaled
    by the root of the lengths.
    """
    values = units(samples)
    seen = trend(values)
    return NoiseFloor(
        share=_share(_halves(values, seed)),
        drift=math.expm1(seen.shift) if seen and seen.matters else 0.0,
        significance=seen.significance if seen else None,
        splits=_splits(values.size),
        of="blocks" if len(samples.blocks) > 1 else "steps",
    )


def floor_between(baseline: Samples, variant: Samples, *, seed: int = 0) -> NoiseFloor:
    """The floor of a comparison: of both sides together, or, taken in turns, with the sides of each turn exchanged."""
    if in_turns(baseline, variant):
        differences = units(variant) - units(baseline)
        enough = differences.size >= _SPLIT_FROM
        share = _share(_exchanged(differences, seed)) if enough else None
        return NoiseFloor(share, 0.0, None, _splits(differences.size), "turns")
    floors = noise_floor(baseline, seed=seed), noise_floor(variant, seed=seed)
    shares = [floor.share for floor in floors if floor.share is not None]
    return NoiseFloor(
        # Each side brings half of the variance of the difference.
        share=_share(math.sqrt(sum(math.log1p(share) ** 2 for share in shares) / 2)) if len(shares) == 2 else None,
        drift=max((floor.drift for floor in floors), key=abs),
        significance=min(
            (floor.significance for floor in floors if floor.significance is not None),
            default=None,
        ),
        splits=sum(floor.splits for floor in floors),
        of="steps" if "steps" in {floor.of for floor in floors} else "blocks",
    )


def _splits(count: int) -> int:
    return max(min(_SPLITS, _DRAWN_NUMBERS // count), 100) if count >= _SPLIT_FROM else 0


def _share(logarithm: float | None) -> float | None:
    return None if logarithm is None else math.expm1(logarithm)


def _halves(values: Float64s, seed: int) -> float | None:
    """95th percentile of how far random halves lie apart, as if each were as long as the whole."""
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
    """95th percentile of the centre of turns whose sides were exchanged at random, the true difference taken out."""
    trimmed = cut(differences.size)
    own, _ = centres_and_variances(differences, trimmed)
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (_splits(differences.size), differences.size))
    centre, _ = centres_and_variances(signs * (differences - own), trimmed)
    return float(np.quantile(np.abs(centre), _QUANTILE))


#: From here on, how much less dependent units tell is worth a sentence.
_NOTABLE_DEPENDENCE: Final = 2.0


@dataclass(frozen=True)
class Comparison:
    """Which of two sides takes longer, and how sure that is."""

    ratio: Interval  #: time of the variant / time of the baseline: above 1, the variant is slower
    #: `same` if the whole interval lies within the margin, even if it excludes 1; `faster` or `slower` if the interval
    #: excludes 1 and the ratio is beyond the noise floor; otherwise `undecided`
    verdict: Verdict
    noise: NoiseFloor  #: how much a side differs from itself
    #: how many blocks each side needs, in all, to be decided in four of five repetitions; of single runs, how many
    #: steps (see `unit`); None if it is decided, or if no number of them would do
    needed_blocks: int | None
    #: baseline_ns, variant_ns: median of the blocks' medians of each side. Their quotient is close to `ratio` without
    #: being it: that is the ratio of trimmed means.
    baseline_ns: float
    variant_ns: float
    how: str  #: one sentence for people: what was compared, and how
    doubts: tuple[str, ...]  #: sentences on what the figures cannot show
    margin: float = 0.02  #: differences of this share and less do not matter
    #: what `needed_blocks` counts: `blocks`, or `steps` where each side has a single block
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


#: Of a ratio that went through logarithms.
_ROUNDED: Final = 1e-12


def _doubts(baseline: Samples, variant: Samples, shift: Shift, ratio: Interval) -> list[str]:
    doubts = []
    single = [name for name, side in (("baseline", baseline), ("variant", variant)) if len(side.blocks) == 1]
    if len(single) == 2:
        doubts.append(
            "Each side is a single run: steps of one run cannot show how much runs differ from each other, "
            "so that another pair of runs may differ by more than the interval says"
        )
    elif single:
        doubts.append(
            f"The {single[0]} is a single run: it is taken to vary from run to run as much as the other side does"
        )
    elif not shift.paired:
        doubts.append(
            "The sides were not taken in turns: what changed on the machine in between looks like a difference"
        )
    if not shift.freedom:
        doubts.append("A side has a single duration: nothing shows how much it varies")
    elif not shift.error:
        doubts.append(
            "No duration of a side differs from its others: the clock is coarser than what they vary by, and the "
            "interval does not know by how much"
        )
    names = "the baseline", "the variant", "both sides"
    doubts.extend(
        f"Times of {name} {'rise' if seen.shift > 0 else 'fall'} by {100 * abs(math.expm1(seen.shift)):.2g} % "
        "in the order in which they were taken: the interval reaches as much further, for that may go on"
        for name, seen in zip(names, shift.trends, strict=True)
        if seen and seen.matters and (name != "both sides" or not any(s and s.matters for s in shift.trends[:2]))
    )
    if shift.dependence >= _NOTABLE_DEPENDENCE:
        units = "turns" if shift.paired else "steps" if single else "blocks"
        alone = round(max(shift.count / shift.dependence, 1))
        doubts.append(
            f"Successive {units} resemble each other: {shift.count} of them tell as much as "
            f"{alone} independent {'one' if alone == 1 else 'ones'}"
        )
    means = float(variant.values.mean() / baseline.values.mean())
    # Logarithms and back, a ratio is known to its last digits only.
    if shift.freedom and not ratio.low * (1 - _ROUNDED) <= means <= ratio.high * (1 + _ROUNDED):
        doubts.append(f"The ratio of the means is {means:.3g}, outside the interval: a few steps are far from typical")
    return doubts


@dataclass(frozen=True)
class Regression:
    """Answer to "is the variant slower by more than this?"."""

    found: bool  #: it is decided that it is: the whole interval lies above the limit
    #: it is decided that it is not: the whole interval lies at or below the limit. If neither, undecided.
    excluded: bool
    fail_on: float  #: the limit, a share: 0.05 for 5 %
    sentence: str


def regression(comparison: Comparison, fail_on: float) -> Regression:
    """Whether the variant is slower by more than a limit.

    It is a regression if the low end of the ratio's interval lies above 1 + `fail_on`. An estimate beyond the limit
    whose interval reaches across it is no decision, and none stops a build: that would fail on noise. The margin of the
    comparison plays no part: with a limit of 0, any slowdown that is decided is a regression.

    Args:
        comparison: what `compare` found.
        fail_on: the limit, a share: 0.05 for 5 %.

    Raises:
        UsageError: the limit is negative or no number.
    """
    if not 0 <= fail_on < math.inf:
        raise UsageError(f"a limit of {fail_on:g} is none: 0.05 stands for a slowdown of 5 %")
    ratio, limit = comparison.ratio, 1 + fail_on
    found, excluded = ratio.low > limit, ratio.high <= limit
    if found:
        says = f"slower by more than {100 * fail_on:g} %: at least {_percent(ratio.low)}"
    elif excluded:
        says = f"not slower by more than {100 * fail_on:g} %: {_percent(ratio.high)} at most"
    elif math.isinf(ratio.high):
        says = f"undecided whether slower by more than {100 * fail_on:g} %: the data show no variation to judge by"
    else:
        says = (
            f"undecided whether slower by more than {100 * fail_on:g} %: between {_percent(ratio.low)} and "
            f"{_percent(ratio.high)}; more repeats narrow that"
        )
    return Regression(found, excluded, fail_on, says)


def _percent(ratio: float) -> str:
    """A ratio as a change: `+3.2 %`."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−")
