"""Step time without a profiler, and its parts, with the remedies of one or several findings.

The gain of a single remedy is that of its finding. Gains of several do not multiply, because their causes may hide each
other. So the schedule is replayed at the host's pace without a profiler (`Pace`) without their causes; time that a
finding expects to stay beyond the replay of its own cause stays as well. All of it is modelled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import sum_by
from warplens.analysis.prediction import CHANGES, Change
from warplens.analysis.replay import RecordedSchedule, Replayed
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import MANY, Finding
from warplens.diagnosis.rule import STEPS_ONLY
from warplens.diagnosis.rules import RULES, rule
from warplens.diagnosis.steptimes import StepPictures, StepReplays
from warplens.diagnosis.unprofiled import HostSpeed, Less
from warplens.errors import UsageError
from warplens.profile.schema import Float64s, Int64s, name_categories

#: Findings of the host → the change that their first remedy makes to the schedule. Others remove their claimed GPU
#: work, and the calls that issue it if they claim the pauses before it as well.
_CHANGES: Final[Mapping[str, Change]] = {rule.id: rule.change for rule in RULES if rule.change is not None}

#: Most findings that are combined, the worst ones: each pair needs a replay.
_MOST: Final = 5

#: Upper limit of a group's gain over its replay, and over the best remedy alone.
_MOST_BEYOND_REPLAY: Final = 1.5


@dataclass(frozen=True)
class WhatIf:
    """The step without the causes of some findings. Modelled; times are nanoseconds of a step, or of the window."""

    findings: tuple[str, ...]  #: ids, in the order of the diagnosis
    expected: float  #: speed-up without a profiler
    expected_interval: tuple[float, float]  #: the 90 % interval of the gain
    step_ns: int  #: step time by `expected`
    step_interval_ns: tuple[int, int]  #: step times by `expected_interval`, from the shortest to the longest
    busy_ns: Mapping[str, int]  #: GPU time of the remaining work by category
    idle_ns: int

    @property
    def is_pair(self) -> bool:
        """Whether it is without two causes."""
        return len(self.findings) == 2


@dataclass(frozen=True)
class WhatIfs:
    """Gains of the worst findings, single, in pairs, and all together."""

    step_ns: int  #: step time without a profiler, by the replay of the unchanged schedule
    step_interval_ns: tuple[int, int]  #: the same for the largest and the least share of the profiler in host time
    #: busy_ns, idle_ns: parts of that time
    busy_ns: Mapping[str, int]
    idle_ns: int
    #: single findings in their order; pairs and all, if one shows in a replay; then the group that was asked for
    changes: tuple[WhatIf, ...]
    asked: WhatIf | None = None  #: the group that was asked for
    #: timeline of one step, as recorded, and replayed without a profiler and with each single remedy
    pictures: StepPictures | None = field(default=None, repr=False, compare=False)


def what_ifs(facts: Facts, claims: Claims, findings: Sequence[Finding], asked: Sequence[str] = ()) -> WhatIfs | None:
    """Gains of these findings, one by one, in pairs, and together; None if the schedule cannot be replayed.

    Args:
        findings: the worst first; those without an expected gain or a remedy are left out. Those that ask for steps
            alone to be recorded count only if asked for: their cause may not be one of the steps.
        asked: names of findings, or of changes that they make, whose remedies are predicted together.

    Raises:
        UsageError: one of the names is none of these findings, or nothing can be replayed for them.
    """
    known = [finding for finding in findings if (finding.expected or 0.0) > 1.0 and finding.remedies]
    if asked and not known:
        raise UsageError("no finding of this profile has an expected gain: there is nothing to predict together")
    chosen = _chosen(asked, known)
    worth = [finding for finding in known if finding.remedies[0].id != STEPS_ONLY.id][:_MOST]
    if not (worth or chosen) or facts.pace is None or not facts.busy_ns:
        if asked:
            raise UsageError("the schedule of this profile cannot be replayed: no remedies are predicted together")
        return None
    base = _Base(facts, claims)
    changes = [base.changed((found,), _interval(found)) for found in worth]
    replayed, pictures = base.each([found.id for found in known if found in worth or found in chosen], changes)
    groups = [*combinations(worth, 2), *([tuple(worth)] if len(worth) > 2 else [])]
    # Of the other groups, none shows in a replay.
    groups = [group for group in groups if min(replayed[found.id] for found in group) < base.step_ns]
    for group in groups:
        changes.append(_of_group(base, group, replayed, changes))
    wanted = next((change for change in changes if change.findings == tuple(found.id for found in chosen)), None)
    if chosen and wanted is None:
        single = len(chosen) == 1
        wanted = base.changed(chosen, _interval(chosen[0])) if single else _of_group(base, chosen, replayed, changes)
        changes.append(wanted)
    return WhatIfs(base.step_ns, base.step_interval_ns, base.busy_ns, base.idle_ns, tuple(changes), wanted, pictures)


def _chosen(names: Sequence[str], findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings that these names mean, in their order: `all`, ids, ids without "un", or changes they make."""
    by_name = {_CHANGES.get(found.id, found.id): found for found in findings}
    by_name |= {name: found for found in findings for name in (found.id, found.id.removeprefix("un"))}
    for name in names:
        if name != "all" and name not in by_name:
            told = f"{', '.join(found.id for found in findings)}; or all of them: all"
            raise UsageError(
                f"{name!r} is not among this profile's findings with an expected gain ({told}), "
                f"nor are all names changes of the schedule ({', '.join(CHANGES)})"
            )
    meant = findings if "all" in names else [by_name[name] for name in names]
    return tuple(found for found in findings if found in meant)


def _of_group(
    base: _Base, group: Sequence[Finding], replayed_ns: Mapping[str, float], known: Sequence[WhatIf]
) -> WhatIf:
    """The step with the remedies of several findings; the errors of their gains count as independent.

    A remedy more makes no step longer: the gain is at least that of each `known` change with a part of the findings.
    """
    alone = [(found.expected or 1.0, replayed_ns[found.id]) for found in group]
    ids = [found.id for found in group]
    of_parts = [change.expected for change in known if set(change.findings) < set(ids)]
    expected = max(base.together(base.replayed_ns(base.replayed(ids)), alone), *of_parts)
    intervals = [_interval(found) for found in group]
    below, above = (
        math.exp(math.hypot(*(math.log(one / other) for one, other in ends)))
        for ends in ([(gain, low) for gain, low, _ in intervals], [(high, gain) for gain, _, high in intervals])
    )
    low = min(max(expected / below, *(low for _, low, _ in intervals)), expected)
    return base.changed(group, (expected, low, min(expected * above, max(MANY, expected))))


def _interval(found: Finding) -> tuple[float, float, float]:
    """Expected, low and high."""
    expected = found.expected or 1.0
    return expected, *(found.expected_interval or (expected, expected))


class _Base:
    """The unchanged step without a profiler, and the effects of remedies on it."""

    def __init__(self, facts: Facts, claims: Claims) -> None:
        step = facts.unprofiled_step
        assert facts.pace is not None
        assert step is not None
        self._facts = facts
        self._claims = claims
        self._pace = facts.pace
        self._own = facts.work["own_ns"].to_numpy()
        self._steps = facts.steps * facts.work["device"].n_unique()  # of each GPU
        self._own_ns = int(self._own.sum())
        self._gone: dict[tuple[str, ...], tuple[Int64s, Int64s]] = {}  # results of `_claimed`
        self._labels = name_categories(facts.work["label"])
        self._label = facts.work["label"].to_physical().to_numpy()
        self._whole = self._sums(slice(None), self._own)
        self.busy_ns = self._by_label(self._whole)
        busy = sum(self.busy_ns.values())
        self.step_ns = max(step.step_ns, busy)
        self.step_interval_ns = max(step.low_ns, busy), max(step.high_ns, busy)
        self.idle_ns = self.step_ns - busy

    def _sums(self, rows: Int64s | slice, spent: Int64s) -> Int64s:
        """The time of these pieces by label code."""
        return sum_by(self._label[rows], spent, self._labels.len())

    def _by_label(self, sums: Int64s) -> dict[str, int]:
        """Time of a step by label, the largest first."""
        rows = pl.DataFrame({"label": self._labels, "spent": sums})
        return {label: round(total / self._steps) for label, total in rows.sort("spent", "label").rows()[::-1] if total}

    def _claimed(self, ids: Sequence[str]) -> list[tuple[Int64s, Int64s]]:
        """Disjoint pieces of work that these causes claim, and the time of each that goes away without them."""
        if len(ids) > 1 and not any(id_ in self._claims.alone for id_ in ids):
            return [part for id_ in ids for part in self._claimed([id_])]  # a piece counts for one cause
        if (key := tuple(ids)) not in self._gone:
            of_causes = [self._claims.of(id_) for id_ in ids]
            pieces = [
                np.flatnonzero(claims.work == claims.causes.index(id_))
                for id_, claims in zip(ids, of_causes, strict=True)
            ]
            rows = pieces[0] if len(ids) == 1 else np.unique(np.concatenate(pieces))
            own, left = np.maximum(self._own[rows], 1), np.ones(len(rows))
            for id_, claims, claimed in zip(ids, of_causes, pieces, strict=True):
                at = np.searchsorted(rows, claimed)
                left[at] = self._left(left[at], claims.work_ns[claimed] / own[at], id_)
            self._gone[key] = rows, np.round(self._own[rows] * (1 - left)).astype(np.int64)
        return [self._gone[key]]

    def _without(self, ids: Sequence[str]) -> tuple[list[Change], Less | None]:
        """Changes of the schedule by the remedies of these causes."""
        changes: list[Change] = [_CHANGES[id_] for id_ in ids if id_ in _CHANGES]
        at, own = self._facts.replayed_rows, np.maximum(self._own[self._facts.replayed_rows], 1)
        time, calls = np.zeros(len(at)), np.zeros(len(at))
        for id_ in ids:
            claims = self._claims.of(id_)
            is_claimed = (at >= 0) & (claims.work[at] == claims.causes.index(id_))
            claimed = np.where(is_claimed, claims.work_ns[at] / own, 0.0)
            time = 1 - self._left(1 - time, claimed, id_)
            saved = rule(id_).saved_calls(self._facts)
            if saved is not None:
                calls = 1 - (1 - calls) * (1 - np.where(at >= 0, saved[at], 0.0))
            elif id_ not in _CHANGES and claims.idle_ns(id_):
                calls = 1 - (1 - calls) * (1 - claimed)
        return changes, Less(time, calls) if time.any() or calls.any() else None

    def _left(self, left: Float64s, claimed: Float64s, id_: str) -> Float64s:
        """Shares of pieces of work that are left without this cause as well, which claims these shares of them.

        Of work that two causes share, the second saves its share of what the first leaves, unless they claim different
        parts of it.
        """
        return np.maximum(left - claimed, 0.0) if id_ in self._claims.parts else left * (1 - claimed)

    def replayed(self, ids: Sequence[str]) -> tuple[RecordedSchedule, Replayed] | None:
        """The schedule without these causes, and its replay; None if they alter nothing."""
        changes, less = self._without(ids)
        return self._pace.replayed(HostSpeed.USUAL, *changes, less=less) if changes or less is not None else None

    def replayed_ns(self, replayed: tuple[RecordedSchedule, Replayed] | None) -> float:
        """Step time of such a replay; that of the unchanged step without one."""
        before = max(self._pace.duration_ns(HostSpeed.USUAL), 1)
        after = before if replayed is None else replayed[0].duration_ns(replayed[1])
        return self.step_ns * min(after / before, 1.0)

    def each(self, ids: Sequence[str], changes: Sequence[WhatIf]) -> tuple[dict[str, float], StepPictures | None]:
        """Replayed step time without each of these causes; and one step as recorded, and with each of the changes."""
        before, times = self._pace.replayed(HostSpeed.USUAL), {}
        steps = StepReplays(self._facts, *before) if before is not None else None
        step_ns = {change.findings[0]: change.step_ns for change in changes}
        for id_ in ids:
            replayed = self.replayed([id_])
            times[id_] = self.replayed_ns(replayed)
            if steps is not None and before is not None and id_ in step_ns:
                steps.add(id_, *(replayed or before), step_ns[id_])
        return times, None if steps is None else steps.pictures(self.step_ns)

    def together(self, replayed_ns: float, each: Sequence[tuple[float, float]]) -> float:
        """The gain of remedies together: that of their replay, less the time that each is expected to leave by itself.

        Args:
            replayed_ns: replayed step time without all of their causes.
            each: gain of each remedy, and replayed step time without its cause.
        """
        alone = [self.step_ns / gain for gain, _ in each]
        stays = sum(max(after - replayed, 0.0) for after, (_, replayed) in zip(alone, each, strict=True))
        least = min(replayed_ns, *alone) / _MOST_BEYOND_REPLAY
        return min(self.step_ns / max(min(replayed_ns + stays, *alone), least, 1.0), MANY)

    def changed(self, findings: Sequence[Finding], gain: tuple[float, float, float]) -> WhatIf:
        """The step with this gain (expected, low, high), and the parts of its time."""
        expected, low, high = gain
        after = self.step_ns / expected
        parts = self._claimed([found.id for found in findings])
        # Claimed GPU work goes away as far as the step gets shorter, and further if the rest would not fit into the
        # step: a finding may expect a little more than it claims. Savings beyond the claims were idle time.
        claimed = max(sum(int(gone.sum()) for _, gone in parts), 1)
        saved, too_long = (self.step_ns - after) * self._steps, self._own_ns - after * self._steps
        realised = max(min(1.0, saved / claimed), too_long / claimed)
        less = [np.minimum(np.round(gone * realised).astype(np.int64), self._own[rows]) for rows, gone in parts]
        fits = min(1.0, after * self._steps / max(self._own_ns - sum(int(each.sum()) for each in less), 1))
        if fits < 1.0:
            left = self._own.copy()
            for (rows, _), each in zip(parts, less, strict=True):
                left[rows] -= each
            busy = self._by_label(self._sums(slice(None), np.round(left * fits).astype(np.int64)))
        else:
            sums = (self._sums(rows, each) for (rows, _), each in zip(parts, less, strict=True))
            busy = self._by_label(self._whole - sum(sums))
        return WhatIf(
            tuple(found.id for found in findings),
            expected,
            (low, high),
            round(after),
            (round(self.step_ns / high), round(self.step_ns / low)),
            busy,
            max(round(after) - sum(busy.values()), 0),
        )
