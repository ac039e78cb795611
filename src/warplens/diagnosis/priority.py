"""Which finding of a window to mend first: the costliest cause, or one that is to go before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import CONFIDENCES, SEVERITIES, Finding
from warplens.diagnosis.rule import weight
from warplens.diagnosis.rules import rule
from warplens.diagnosis.rules.whole import IncompleteProfile, is_known
from warplens.diagnosis.thresholds import Thresholds

#: Gains (less 1) this near to each other cannot be told apart.
AS_MUCH: Final = 0.9


class _Precedence(Enum):
    """Why a finding is to mend before one with a larger gain."""

    NEEDLESS = "work that is not needed need not get faster"
    MORE_WORK = "that gain needs more work per step"
    WAITS = "a host that waits cannot get ahead of the GPU, and no CUDA graph captures a wait"
    MAKES_LAUNCHES = "a step without it launches less, and a CUDA graph can then capture it"
    LATE_HOST = "it makes the host late in a way that faster launches do not mend"
    SAME_WORK = "its remedies are for most of the same work"


@dataclass(frozen=True)
class TopPriority:
    """The finding to mend first, and why it precedes those with a larger gain, if there are any."""

    finding: Finding
    precedence: _Precedence = _Precedence.SAME_WORK

    def before(self, larger: Finding) -> _Precedence:
        """Why it precedes this one. Only needless work does so for a stronger reason than other work per step."""
        needs_more_work = larger.is_throughput and not self.finding.is_throughput
        if needs_more_work and self.precedence is not _Precedence.NEEDLESS:
            return _Precedence.MORE_WORK
        return self.precedence


def top_priority(facts: Facts, claims: Claims, found: Sequence[Finding]) -> TopPriority:
    """The costliest cause that is worth a change; without one, a finding that describes the window."""
    rest = IncompleteProfile().unexplained(facts, claims)
    unknown = rest.bound or 0.0
    lost = [finding for finding in found if finding.severity != "info"]
    costliest = max(lost, key=weight, default=None)
    limits = facts.thresholds
    named = weight(costliest) if costliest is not None else None
    # A cause that is worth a change comes first, unless far more time has no known cause.
    if unknown >= limits.warning_ceiling and _lost_share(unknown) > limits.unexplained_factor * _lost_share(named):
        return TopPriority(rest)
    if costliest is not None:
        return _first_cause(facts, claims, found, lost)
    return TopPriority(_description(facts, claims, found) or max([*_sure_causes(found), rest], key=weight))


def _sure_causes(found: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in found if not rule(finding.id).describes and finding.confidence != "low"]


def _description(facts: Facts, claims: Claims, found: Sequence[Finding]) -> Finding | None:
    """The finding that describes a window in which no cause is worth a change; None if none does."""
    limits = facts.thresholds
    by_id = {finding.id: finding for finding in found}
    if facts.own_ns_having("kind", "graph") <= limits.dominant_share * facts.wall_ns:
        by_id.pop("graph-opaque", None)
    roof = by_id.get("tensor-compute")
    if "saturated" in by_id and roof is not None and roof.confidence == "high":
        by_id["saturated"] = roof
    if "below-roof" in by_id and not is_known(by_id["below-roof"]):
        by_id["below-roof"] = _too_little_work(facts, claims, found) or by_id["below-roof"]
    order = ("graph-opaque", "padded-work", "saturated", "below-roof")
    return next((by_id[id_] for id_ in order if id_ in by_id), None)


def _too_little_work(facts: Facts, claims: Claims, found: Sequence[Finding]) -> Finding | None:
    """The finding that the step has too little work for the GPU, if that explains most of the time; else None."""
    least = facts.thresholds.dominant_share * facts.wall_ns
    small = (each for each in found if each.is_throughput and each.confidence != "low")
    return max((each for each in small if claims.busy_ns(each.id) > least), key=weight, default=None)


def _owner(facts: Facts, claims: Claims, costliest: Finding, lost: Sequence[Finding]) -> Finding:
    """The costliest cause, or another one that claims most of the work that its remedy removes.

    For example, a compiler also fuses the passes of unfused attention, which has a more specific finding.
    """
    general = rule(costliest.id).claim(facts)
    if general is None:
        return costliest
    for other in sorted(lost, key=lambda finding: -claims.busy_ns(finding.id)):
        claimed = claims.pieces(other.id).whole()
        if other.id == costliest.id or 2 * general @ claimed < claimed.sum():
            continue
        worth = _lost_share(weight(other)) >= facts.thresholds.dominant_share * _lost_share(weight(costliest))
        if worth and claims.busy_ns(other.id) > claims.busy_ns(costliest.id):
            return other
    return costliest


def _surest(costliest: Finding, lost: Sequence[Finding]) -> Finding:
    """Of the causes whose remedies save as much as the costliest one's, a surer one."""
    as_much = 1 + AS_MUCH * (weight(costliest) - 1)
    near = (finding for finding in lost if weight(finding) >= as_much)
    return min(
        near,
        key=lambda finding: (CONFIDENCES.index(finding.confidence), finding is not costliest, -weight(finding)),
    )


def _without_more_work(costliest: Finding, lost: Sequence[Finding], limits: Thresholds) -> Finding:
    """The costliest cause, or the costliest whose remedies need no more work per step, if it loses nearly as much."""
    if not costliest.is_throughput:
        return costliest
    faster = max((finding for finding in lost if not finding.is_throughput), key=weight, default=None)
    least = limits.dominant_share * _lost_share(weight(costliest))
    return costliest if faster is None or _lost_share(weight(faster)) < least else faster


@dataclass(frozen=True)
class _Candidates:
    """The findings of a window. Each public method returns one that may precede the leading one, or None."""

    facts: Facts
    found: Sequence[Finding]
    lost: Sequence[Finding]  #: those of them that are worth a change
    leading: Finding  #: the costliest cause, or one for the same work

    def needless(self) -> Finding | None:
        """The costliest cause whose work is not needed."""
        return self._worth(
            (each for each in self.lost if rule(each.id).needless(each)), self.facts.thresholds.dominant_share
        )

    def leading_itself(self) -> Finding | None:
        """The leading cause, unless it is the host's launches, or its pauses that are not much longer than these."""
        is_launching = self.leading.id == "launch-overhead" or (self.leading.id == "host-stall" and not self._stalls)
        return None if is_launching else self.leading

    def waits(self) -> Finding | None:
        """Waits after every few launches or in a loop, or the costliest of the causes that make launches."""
        waiting = next((finding for finding in self.found if finding.id == "host-sync"), None)
        if waiting is None:
            return None
        crowded = self.leading.id == "launch-overhead" and self.facts.waits_crowded and not self._merges_passes
        looped = [waiting] if "looped_kernels_per_step" in waiting.evidence else []
        is_looped = self._worth(looped, self.facts.thresholds.specific_share) is not None
        return waiting if crowded or is_looped or self.makes_launches() is waiting else None

    def loop(self) -> Finding | None:
        """A loop that launches a few kernels per turn, to which pauses not much longer than launches belong."""
        loops = [each for each in self.lost if "turns_per_step" in each.evidence]
        return self._worth(loops, self.facts.thresholds.dominant_share) if self.leading.id == "host-stall" else None

    def makes_launches(self) -> Finding | None:
        """The costliest of the causes that make launches. Merging equal passes also removes their waits."""
        if self.leading.id != "launch-overhead":
            return None
        causes = (each for each in self.lost if rule(each.id).makes_launches(each))
        apart = (each for each in causes if not (self._merges_passes and each.id == "host-sync"))
        return self._worth(apart, self.facts.thresholds.specific_share)

    def stalls(self) -> Finding | None:
        """Pauses as long as many launches, which have another cause than launching."""
        return self._worth(self._stalls, self.facts.thresholds.dominant_share)

    @property
    def _stalls(self) -> list[Finding]:
        return [each for each in self.lost if each.id == "host-stall" and "stalls_apart_share" in each.evidence]

    @property
    def _merges_passes(self) -> bool:
        return "passes_per_step" in self.leading.evidence

    def _worth(self, causes: Iterable[Finding], least: float) -> Finding | None:
        """The costliest of these, if it loses at least this part of what the leading one does."""
        best = max(causes, key=weight, default=None)
        is_worth = best is not None and _lost_share(weight(best)) / _lost_share(weight(self.leading)) >= least
        return best if is_worth else None


#: What may precede the leading cause, in this order, and why it comes before a larger gain.
_FIRST: Final = (
    (_Candidates.needless, _Precedence.NEEDLESS),
    (_Candidates.leading_itself, _Precedence.SAME_WORK),
    (_Candidates.waits, _Precedence.WAITS),
    (_Candidates.loop, _Precedence.LATE_HOST),
    (_Candidates.makes_launches, _Precedence.MAKES_LAUNCHES),
    (_Candidates.stalls, _Precedence.LATE_HOST),
)


def _first_cause(facts: Facts, claims: Claims, found: Sequence[Finding], lost: Sequence[Finding]) -> TopPriority:
    """The cause to fix first, which may not be the costliest.

    Work that is not needed comes before slow work. Waits, allocations and launches per tensor come before the launch
    rate that they reduce: no graph captures them, and a step without them launches less. A host that waits after every
    few launches cannot get ahead, however fast a launch is. Pauses as long as many launches have another cause than
    launching. Remedies for the same work come before those that need more work per step.
    """
    leading = _surest(_owner(facts, claims, max(lost, key=weight), lost), lost)
    leading = _without_more_work(leading, lost, facts.thresholds)
    candidates = _Candidates(facts, found, lost, leading)
    for choose, precedence in _FIRST:
        if (first := choose(candidates)) is not None:
            return TopPriority(first, _Precedence.NEEDLESS if rule(first.id).needless(first) else precedence)
    return TopPriority(leading)


def _lost_share(gain: float | None) -> float:
    """The share of the wall time that a gain corresponds to."""
    return 1 - 1 / gain if gain else 0.0


def ranked(found: Iterable[Finding]) -> list[Finding]:
    """The worst first; findings that describe after those that cost."""
    return sorted(
        found,
        key=lambda finding: (
            SEVERITIES.index(finding.severity),
            rule(finding.id).describes,
            -weight(finding),
            finding.id,
        ),
    )
