"""The noise floor: how much a side differs from itself, although nothing was changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from warplens.compare.statistics.location import centres_and_variances, cut, units
from warplens.compare.statistics.serial import trend
from warplens.compare.statistics.shift import in_turns

if TYPE_CHECKING:
    from warplens.compare.samples import Samples

__all__ = ["NoiseFloor", "floor_between", "noise_floor"]

Float64s = npt.NDArray[np.float64]

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
