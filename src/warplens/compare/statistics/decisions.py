"""What is decided about two sides: the interval of their ratio, a verdict, the noise floor, many kernels at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.compare.statistics.estimates import (
    ORDER_FROM,
    Shift,
    block_medians,
    centres_and_variances,
    cut,
    dependence,
    in_turns,
    power,
    shift_between,
    t_quantile,
    trend,
    two_sided,
    units,
    variance_limit,
)
from warplens.errors import UsageError
from warplens.profile.columns import column, table
from warplens.profile.schema import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.compare.statistics.estimates import Samples


@dataclass(frozen=True)
class Interval:
    """A confidence interval.

    Attributes:
        low, high: its ends. Where the data show no variation at all (one duration a side): 0 and infinity.
        estimate: the figure itself.
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


def interval_of(shift: Shift) -> Interval:
    """A shift of logarithms as a ratio."""
    low, high = shift.interval
    return Interval(low=math.exp(low), estimate=math.exp(shift.estimate), high=math.exp(high), level=shift.level)


def check_level(level: float) -> None:
    """Refuses a level that is no probability of missing.

    Raises:
        UsageError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise UsageError(f"a level of {level:g} is not a probability: 0.05 asks for intervals of 95 % confidence")


# --- Many kernels at once: of a hundred, five differ at the 5 % level although nothing was changed -------------------


Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

#: What a comparison can come to.
VERDICTS: Final = ("faster", "slower", "same", "undecided")

DIFFERENCES: Final = table(
    "comparison: differences of many kernels",
    "One of many things that are compared at once. `warplens.compare.statistics.many_differences`.",
    Column("column", pl.Int64, "which column of the two matrices"),
    column("baseline_ns", dtype=pl.Float64, help="mean of a step, of the baseline"),
    column("variant_ns", dtype=pl.Float64, help="mean of a step, of the variant"),
    Column("difference_ns", pl.Float64, "variant − baseline; sums over the columns to that of the whole"),
    column("low_ns", dtype=pl.Float64, help="interval of the difference, widened for being chosen among many"),
    column("high_ns", dtype=pl.Float64),
    "ratio p_value adjusted_p",
    column("verdict", dtype=pl.Enum(VERDICTS)),
)


def adjusted(p_values: Sequence[float] | Float64s) -> Float64s:
    """P-values adjusted for their number: of what lies at or below q, at most the share q is there by chance.

    NaN stands for "not tested": it stays, and does not count.

    Source: Benjamini and Hochberg, Controlling the false discovery rate, J. R. Stat. Soc. B 57 (1995), 289–300; it
    holds for kernels of one run, which are slow together (positive dependence: Benjamini and Yekutieli, Ann. Statist.
    29 (2001), 1165–1188).
    """
    values = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(values))
    result = np.full(values.size, np.nan)
    if known.size:
        order = known[np.argsort(values[known], kind="stable")]
        scaled = values[order] * known.size / np.arange(1, known.size + 1)
        result[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return result


def many_differences(
    baseline: npt.ArrayLike,
    variant: npt.ArrayLike,
    *,
    baseline_blocks: Sequence[int] | Int64s | None = None,
    variant_blocks: Sequence[int] | Int64s | None = None,
    margin: float = 0.02,
    level: float = 0.05,
) -> pl.DataFrame:
    """Which of many kernels (or ranges, or categories) take longer or shorter.

    Means of a step, not trimmed ones as of the whole step: their differences add up to that of the whole. Welch's t,
    in which neighbouring steps that resemble each other count as fewer (`dependence`).

    Args:
        baseline: time in nanoseconds, a row a step, a column a kernel; 0 where a step does not run it.
        variant: the same columns; rows may be more or fewer.
        baseline_blocks: which block (file, process, round) each row belongs to: rows of one block count as one.
            None if all are successive steps of one run.
        variant_blocks: the same of the variant.
        margin: differences up to this share of the kernel's time are `same` where the interval lies within.
        level: share of chance findings among the kernels called faster or slower, at most.

    Returns:
        `DIFFERENCES`, a row a column. `faster` and `slower`: the adjusted p-value is at most the level and the
        interval is not within the margin. Intervals are those of Benjamini and Yekutieli (J. Am. Stat. Assoc. 100
        (2005), 71–81): at most the share `level` of those that were chosen miss.

    Raises:
        UsageError: the matrices do not have the same columns, a side has no step, or blocks are not one a row.
    """
    check_level(level)
    before, after = _matrix(baseline, baseline_blocks), _matrix(variant, variant_blocks)
    if before.shape[1] != after.shape[1]:
        raise UsageError(f"{before.shape[1]} kernels cannot be compared with {after.shape[1]}: the columns must match")
    factor = np.ones(before.shape[1])
    if baseline_blocks is None and variant_blocks is None:
        long = [side for side in (before, after) if len(side) >= ORDER_FROM]
        factor = dependence(*long) if long else factor
    change = _change(before, after, factor)
    p_values = _p_values(change)
    corrected = adjusted(p_values)
    discoveries = int((corrected <= level).sum())
    # With no discovery, the widest: as many chances as there are columns.
    reach = _reach(change, level * max(discoveries, 1) / max(before.shape[1], 1))
    means = before.mean(axis=0), after.mean(axis=0)
    low, high = change.difference - reach, change.difference + reach
    bounds = means[0] * (1 / (1 + margin) - 1), means[0] * margin
    within = (low >= bounds[0]) & (high <= bounds[1])
    different = (corrected <= level) & ~within
    verdict = np.where(within, 2, np.where(different, np.where(change.difference < 0, 0, 1), 3))
    return pl.DataFrame(
        {
            "column": np.arange(before.shape[1]),
            "baseline_ns": means[0],
            "variant_ns": means[1],
            "difference_ns": change.difference,
            "low_ns": low,
            "high_ns": high,
            "ratio": np.divide(means[1], means[0], out=np.full(means[0].size, np.nan), where=means[0] > 0),
            "p_value": p_values,
            "adjusted_p": corrected,
            "verdict": pl.Series([VERDICTS[number] for number in verdict.tolist()], dtype=pl.Enum(VERDICTS)),
        },
        schema=DIFFERENCES.schema,
        nan_to_null=True,
    )


class _Change(NamedTuple):
    """Differences of means, a value a column: their standard errors and degrees of freedom (0: none known)."""

    difference: Float64s
    error: Float64s
    freedom: Float64s


def _matrix(times: npt.ArrayLike, blocks: Sequence[int] | Int64s | None) -> Float64s:
    """Rows that vary independently: steps, or the means of blocks."""
    rows = np.asarray(times, dtype=np.float64)
    if rows.ndim != 2 or not rows.shape[0]:
        raise UsageError("there is nothing to compare: a side needs a row for each step and a column for each kernel")
    if blocks is None:
        return rows
    _, number = np.unique(np.asarray(blocks), return_inverse=True)
    if number.shape != (rows.shape[0],):
        raise UsageError(f"{rows.shape[0]} steps need a block each, and {number.size} were given")
    sums = np.zeros((int(number.max()) + 1, rows.shape[1]))
    np.add.at(sums, number, rows)
    return sums / np.bincount(number)[:, None]


def _change(before: Float64s, after: Float64s, factor: Float64s) -> _Change:
    difference = after.mean(axis=0) - before.mean(axis=0)
    counts = before.shape[0], after.shape[0]
    if min(counts) < 2:
        return _Change(difference, np.full(difference.size, np.inf), np.zeros(difference.size))
    variances = [side.var(axis=0, ddof=1) / side.shape[0] * factor for side in (before, after)]
    total = variances[0] + variances[1]
    freedoms = [np.maximum((count - 1) / factor, 1.0) for count in counts]
    parts = variances[0] ** 2 / freedoms[0] + variances[1] ** 2 / freedoms[1]
    freedom = np.divide(total**2, parts, out=freedoms[0] + freedoms[1], where=parts > 0)
    return _Change(difference, np.sqrt(total), freedom)


def _p_values(change: _Change) -> Float64s:
    """NaN where nothing repeats; times that never vary differ surely or not at all."""
    if not change.freedom.all():
        return np.full(change.difference.size, np.nan)
    still = change.error == 0
    places = np.divide(change.difference, change.error, out=np.zeros(still.size), where=~still)
    return np.where(still, np.where(change.difference == 0, 1.0, 0.0), two_sided(places, change.freedom))


def _reach(change: _Change, level: float) -> Float64s:
    if not change.freedom.all():
        return np.full(change.difference.size, np.inf)
    return t_quantile(level, change.freedom) * change.error


# --- How many blocks a decision needs --------------------------------------------------------------------------------


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


def needed_units(shift: Shift, margin: float, *, wanted: float = POWER) -> int | None:
    """Units that each side needs, in all, for a verdict other than undecided; None if no number of them would do.

    It is the smaller one of two: those that show a difference, and those that put the whole interval within the
    margin. A difference that was observed beyond the margin may be smaller in truth: it is taken one standard error
    nearer, though not nearer than the margin. What a clear drift may have made stays, however many units there are.

    Args:
        shift: what was observed.
        margin: the share below which differences do not matter.
        wanted: how often the verdict is to be reached.
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
        return same >= wanted or (sought > drift and differs >= wanted)

    low, high = shift.fewest, shift.fewest + 1
    while not decides(high):
        low, high = high, high * 2
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


# --- The noise floor: how much a side differs from itself, although nothing was changed ------------------------------


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
    """What a side shows when it is compared with itself.

    Attributes:
        share: two sides as long as this one, of the same program, differ by up to this share in 95 of 100 cases, as
            far as halves drawn at random tell; None if there are fewer than four blocks (or steps of an only block).
        drift: by which share times move over the length of the side: above 0 if they rise; 0 unless the order of the
            units shows a trend that is too clear for chance.
        significance: how often chance alone would show a trend as clear; None with fewer than five units.
        splits: how often halves were drawn.
        of: what was drawn: `blocks`, `turns` (both sides of a turn exchanged at random), or `steps` of an only block.
    """

    share: float | None
    drift: float
    significance: float | None
    splits: int
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


# --- Faster, slower, the same, or undecided --------------------------------------------------------------------------


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
    if shift.freedom and not ratio.low <= means <= ratio.high:
        doubts.append(f"The ratio of the means is {means:.3g}, outside the interval: a few steps are far from typical")
    return doubts
