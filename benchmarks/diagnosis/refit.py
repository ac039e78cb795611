"""Leave-one-out check that the thresholds are not fitted to single files.

Each threshold may take its own value or that times one of `FACTORS` (for ceilings, the distance to 1 is scaled). For
each case left out, every threshold takes the value with which most of the other cases get a right verdict, and among
several such values the one nearest to its own. If the verdict of the case that was left out stays the same, it does not
depend on the case having been seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import warplens.diagnosis.verdict
from benchmarks.diagnosis.ours import Profiled
from warplens.analysis.prediction import Prediction, predictions
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.diagnosis import DEFAULTS, Thresholds

__all__ = ["FACTORS", "Verdicts", "candidates", "left_out", "moved", "verdicts"]

FACTORS = (0.8, 0.9, 1.1, 1.25)

#: By profile (case and source), the verdict with every threshold as it is and with one of them moved.
Verdicts = Mapping[tuple[str, str], Mapping[tuple[str, float], str]]
_AS_IS = ("", 1.0)


def candidates() -> list[tuple[str, float]]:
    """All (threshold, factor) that change one threshold."""
    return [(name, factor) for name in asdict(DEFAULTS) for factor in FACTORS]


def moved(*moves: tuple[str, float]) -> Thresholds:
    """The default thresholds with these changed."""
    changed = {}
    for name, factor in moves:
        value = getattr(DEFAULTS, name, None)
        if value is None or factor == 1.0:
            continue
        if name.endswith("_ceiling"):  # a ceiling says by how much more than 1
            changed[name] = 1 + (value - 1) * factor
        elif name.endswith("_share") and value > 0.5:
            changed[name] = 1 - (1 - value) / factor
        else:
            changed[name] = type(value)(value * factor)
    return replace(DEFAULTS, **changed)


def verdicts(profiles: Sequence[Profiled]) -> Verdicts:
    """The verdict on every profile with each threshold moved; predictions, which know no thresholds, are made once."""
    known: dict[int, tuple[Prediction, ...]] = {}

    def remembered(timeline: Timeline, window: Window) -> tuple[Prediction, ...]:
        if id(timeline) not in known:
            known[id(timeline)] = tuple(predictions(timeline, window))
        return known[id(timeline)]

    original = warplens.analysis.prediction.predictions
    warplens.analysis.prediction.predictions = remembered  # type: ignore[assignment]
    try:
        return {
            (profile.case.name, profile.source): {
                move: profile.diagnosis(moved(move)).verdict for move in (_AS_IS, *candidates())
            }
            for profile in profiles
        }
    finally:
        warplens.analysis.prediction.predictions = original


def fitted(right: Mapping[tuple[str, str], Sequence[str]], found: Verdicts, without: str) -> list[tuple[str, float]]:
    """The moves that give most of the cases a right verdict, one case left out; none where no move is better."""

    def score(move: tuple[str, float]) -> int:
        return sum(found[key][move] in right[key] for key in right if key[0] != without)

    base = score(_AS_IS)
    best: dict[str, tuple[int, float]] = {}
    for move in candidates():
        gained, distance = score(move) - base, abs(move[1] - 1)
        known = best.get(move[0])
        if gained > 0 and (known is None or (gained, -distance) > (known[0], -abs(known[1] - 1))):
            best[move[0]] = (gained, move[1])
    return [(name, factor) for name, (_, factor) in best.items()]


def left_out(
    profiles: Sequence[Profiled], right: Mapping[tuple[str, str], Sequence[str]], found: Verdicts
) -> tuple[list[tuple[str, str, str, str]], Counter[str]]:
    """What changes when each case is left out of the fit: case, source, verdict before and after; and what moved."""
    changed = []
    moves: Counter[str] = Counter()
    fits: dict[str, list[tuple[str, float]]] = {}
    for profile in profiles:
        key = (profile.case.name, profile.source)
        if key not in right:
            continue
        if profile.case.name not in fits:
            fits[profile.case.name] = fitted(right, found, profile.case.name)
            moves.update(f"{name} × {factor:g}" for name, factor in fits[profile.case.name])
        fit = fits[profile.case.name]
        after = profile.diagnosis(moved(*fit)).verdict if fit else found[key][_AS_IS]
        if after != found[key][_AS_IS]:
            changed.append((*key, found[key][_AS_IS], after))
    return changed, moves
