"""What the remedies of one or two findings bring together: the step time without a profiler, and where it goes then.

A single remedy brings what its finding expects. Two remedies do not bring the sum: what one hides the other may have
removed already, or uncover. So the schedule is replayed at the host's pace without a profiler (`Pace`) with both causes
gone; what a finding expects to stay beyond the replay of its own cause stays then, too. All of it is modelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import sum_by
from warplens.analysis.prediction import Change
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import MANY, Finding
from warplens.diagnosis.pace import Less
from warplens.diagnosis.steptimes import StepPictures, StepReplays
from warplens.profile.schema import Int64s, name_categories

#: Findings of the host → the change that their first remedy makes to the schedule. Others take away the GPU work that
#: they claim, and the calls that issue it where they claim the pauses before it as well.
_CHANGES: Final[Mapping[str, Change]] = {
    "launch-overhead": "cuda-graph",
    "host-sync": "no-synchronization",
    "blocking-copy": "async-copies",
    "allocator-churn": "cached-allocation",
    "host-stall": "no-host-stall",
}

#: So many findings are combined, the worst ones: each pair is a replay.
_MOST: Final = 5


#: A pair is never expected to be this much faster than its replay, nor than the better one alone.
_AT_BEST: Final = 1.5


@dataclass(frozen=True)
class WhatIf:
    """The step without the causes of some findings. Modelled; times are nanoseconds of a step, or of the window."""

    findings: tuple[str, ...]  #: ids, one or two
    expected: float  #: how many times as fast, without a profiler
    expected_interval: tuple[float, float]  #: the range 90 % interval of the gain
    step_ns: int  #: the time of a step that follows from `expected`
    step_interval_ns: tuple[int, int]  #: the same of `expected_interval`, from the shortest to the longest
    busy_ns: Mapping[str, int]  #: GPU time by category of work that is left
    idle_ns: int


@dataclass(frozen=True)
class WhatIfs:
    """What each of the worst findings brings by itself and with each other one."""

    step_ns: int  #: what a step takes without a profiler, by the replay of the unchanged schedule
    step_interval_ns: tuple[int, int]  #: the same with more and with less of the host's time taken for the profiler's
    #: busy_ns, idle_ns: where that time goes
    busy_ns: Mapping[str, int]
    idle_ns: int
    #: single findings in their order, then pairs of them. A pair of which a replay shows neither is left out.
    changes: tuple[WhatIf, ...]
    #: what runs when in one step, as recorded, and by the replays now and after each single remedy
    pictures: StepPictures | None = field(default=None, repr=False, compare=False)


def what_ifs(facts: Facts, claims: Claims, findings: Sequence[Finding]) -> WhatIfs | None:
    """The remedies of these findings, one by one and in pairs; None where the schedule cannot be replayed.

    Args:
        claims: which time each cause claims.
        findings: the worst first; those without an expected gain or a remedy are left out.
    """
    worth = [found for found in findings if (found.expected or 0.0) > 1.0 and found.remedies][:_MOST]
    if not worth or facts.pace is None or not facts.busy_ns:
        return None
    base = _Base(facts, claims)
    replayed = {found.id: base.replayed_ns((found.id,)) for found in worth}
    changes = [base.changed((found,), _interval(found)) for found in worth]
    pictures = base.pictures(changes)
    for one, other in combinations(worth, 2):
        if min(replayed[one.id], replayed[other.id]) >= base.step_ns:
            continue  # neither shows in a replay
        both = base.replayed_ns((one.id, other.id))
        expected, low, high = (
            base.together(both, list(zip(gains, (replayed[one.id], replayed[other.id]), strict=True)), at_best)
            for gains, at_best in zip(
                zip(_interval(one), _interval(other), strict=True), (False, False, True), strict=True
            )
        )
        changes.append(base.changed((one, other), (expected, min(low, expected), max(high, expected))))
    return WhatIfs(base.step_ns, base.step_interval_ns, base.busy_ns, base.idle_ns, tuple(changes), pictures)


def _interval(found: Finding) -> tuple[float, float, float]:
    """Expected, low and high."""
    expected = found.expected or 1.0
    return expected, *(found.expected_interval or (expected, expected))


class _Base:
    """The unchanged step without a profiler, and what is taken from it."""

    def __init__(self, facts: Facts, claims: Claims) -> None:
        pace = facts.pace
        assert pace is not None
        self._facts, self._claims, self._pace = facts, claims, pace
        own = facts.work["own_ns"].to_numpy()
        self._own, self._steps = own, facts.steps
        self._rows: dict[str, Int64s] = {}
        self._labels, self._label = name_categories(facts.work["label"]), facts.work["label"].to_physical().to_numpy()
        self._whole = self._sums(slice(None), own)
        steps = pace.steps
        usual, *ends = (round(pace.duration_ns(place) / steps) for place in range(3))
        self.busy_ns = self._by_label(self._whole)
        # The GPU's work takes as long without a profiler, so that no step is shorter than it.
        busy = sum(self.busy_ns.values())
        self.step_ns = max(usual, busy)
        self.step_interval_ns = max(min(usual, *ends), busy), max(usual, *ends, busy)
        self.idle_ns = self.step_ns - busy

    def _sums(self, rows: Int64s | slice, spent: Int64s) -> Int64s:
        """The time of these pieces by the number of their label."""
        return sum_by(self._label[rows], spent, self._labels.len())

    def _by_label(self, sums: Int64s) -> dict[str, int]:
        """Time of a step by label, the most first."""
        rows = pl.DataFrame({"label": self._labels, "spent": sums})
        return {label: round(total / self._steps) for label, total in rows.sort("spent", "label").rows()[::-1] if total}

    def _claimed(self, id_: str) -> Int64s:
        """The pieces of work that a cause claims a part of."""
        if id_ not in self._rows:
            mine = self._claims.work == self._claims.causes.index(id_)
            self._rows[id_] = np.flatnonzero(mine & (self._claims.work_ns > 0))
        return self._rows[id_]

    def _without(self, ids: Sequence[str]) -> tuple[list[Change], Less | None]:
        """What the remedies of these causes change in the schedule."""
        changes: list[Change] = [_CHANGES[id_] for id_ in ids if id_ in _CHANGES]
        at = self._facts.replayed_rows
        claimant, share = self._claims.work[at], self._claims.work_ns[at] / np.maximum(self._own[at], 1)
        time, calls = np.zeros(len(at)), np.zeros(len(at))
        for id_ in ids:
            claimed = np.where((at >= 0) & (claimant == self._claims.causes.index(id_)), share, 0.0)
            time = np.maximum(time, claimed)
            if id_ not in _CHANGES and self._claims.idle_ns(id_):
                calls = np.maximum(calls, claimed)
        return changes, Less(time, calls) if time.any() else None

    def replayed_ns(self, ids: Sequence[str]) -> float:
        """The step without these causes, by a replay; all of it where they alter nothing."""
        changes, less = self._without(ids)
        after = self._pace.duration_ns(0, *changes, less=less)
        before = max(self._pace.duration_ns(0), 1)
        return self.step_ns * min(after / before, 1.0)

    def pictures(self, changes: Sequence[WhatIf]) -> StepPictures | None:
        """One step as recorded, and as replayed without each of the causes."""
        before = self._pace.replayed(0)
        if before is None:
            return None
        steps = StepReplays(self._facts, *before)
        for change in changes:
            kinds, less = self._without(change.findings)
            steps.add(change.findings[0], *(self._pace.replayed(0, *kinds, less=less) or before), change.step_ns)
        return steps.pictures(self.step_ns)

    def together(self, replayed_ns: float, each: Sequence[tuple[float, float]], at_best: bool) -> float:
        """The gain of remedies together: what their replay gives, but for what each is expected to leave by itself.

        Args:
            replayed_ns: the step without all of their causes, by a replay.
            each: of each remedy its gain, and the step without its cause by a replay.
            at_best: whether what a remedy is expected to save beyond its replay counts, too.
        """
        alone = [self.step_ns / gain for gain, _ in each]
        rest = [after - replayed for after, (_, replayed) in zip(alone, each, strict=True)]
        stays = sum(rest if at_best else (max(time, 0.0) for time in rest))
        least = min(replayed_ns, *alone) / _AT_BEST
        return min(self.step_ns / max(min(replayed_ns + stays, *alone), least, 1.0), MANY)

    def changed(self, findings: Sequence[Finding], gain: tuple[float, float, float]) -> WhatIf:
        """The step with this gain (expected, low, high), and where its time goes."""
        expected, low, high = gain
        after = self.step_ns / expected
        rows = np.concatenate([self._claimed(found.id) for found in findings])  # no piece has two claimants
        gone, own = self._claims.work_ns[rows], self._own[rows]
        # Claims on the GPU come true as far as the step gets shorter, and further where its work would not fit into
        # that: a finding may expect a little more than it claims. What the step saves beyond them was idle.
        saved, claimed = (self.step_ns - after) * self._steps, max(int(gone.sum()), 1)
        too_long = int(self._own.sum()) - after * self._steps
        realised = max(min(1.0, saved / claimed), too_long / claimed)
        less = np.minimum(np.round(gone * realised).astype(np.int64), own)
        fits = min(1.0, after * self._steps / max(int(self._own.sum()) - int(less.sum()), 1))
        if fits < 1.0:
            left = self._own.copy()
            left[rows] -= less
            busy = self._by_label(self._sums(slice(None), np.round(left * fits).astype(np.int64)))
        else:
            busy = self._by_label(self._whole - self._sums(rows, less))
        return WhatIf(
            tuple(found.id for found in findings),
            expected,
            (low, high),
            round(after),
            (round(self.step_ns / high), round(self.step_ns / low)),
            busy,
            max(round(after) - sum(busy.values()), 0),
        )
