"""The window's time divided among the causes, so that no nanosecond is counted twice.

A pause belongs to causes by the host's activity during it; a piece of work to the one cause that could remove most of
its time. Time without a claim is either needed or unexplained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import Spent
from warplens.diagnosis.devices import IN_TURN, REPLICATED, UNEVEN
from warplens.diagnosis.evidence import is_unfused, time_inside
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.rule import PRECEDENCES, Rule
from warplens.diagnosis.unprofiled import INTERRUPTED_NS
from warplens.profile.schema import Float64s, Int64s

Codes = npt.NDArray[np.int8]

#: Position of no cause.
_NO_CAUSE: Final = -1

#: Idle causes of work that the host had not issued yet.
_LAUNCH: Final = ("launch", "graph-launch")


@dataclass(frozen=True, eq=False)
class Claims:
    """The time of a window by cause."""

    gaps: dict[str, Spent]  #: finding id → claimed nanoseconds of each pause
    issuing_ns: dict[str, int]  #: finding id → part of its idle time in which the host issued work
    #: finding id → part of its idle time that is modelled, from the host's pace without the cause
    moved_ns: dict[str, int]
    causes: tuple[str, ...]  #: the ids of all findings
    work: Codes  #: position in `causes` of the finding that claims each piece of work; −1 for none
    work_ns: Int64s  #: claimed nanoseconds of each piece of work
    wanted_ns: Mapping[str, int]  #: finding id → GPU time that it would claim if no other cause claimed it
    #: finding id → claims in which it has its whole share, where its work counts for another cause
    alone: Mapping[str, Claims] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()  #: ids of findings that claim different parts of the same pieces of work

    def of(self, id_: str) -> Claims:
        """The claims in which this cause has its whole share."""
        return self.alone.get(id_, self)

    def idle_ns(self, id_: str) -> int:
        """Idle time that this cause claims."""
        return self.pauses(id_).total

    def busy_ns(self, id_: str) -> int:
        """Busy time that this cause claims."""
        return int(self._busy_ns[self.causes.index(id_) + 1])

    @cached_property
    def _busy_ns(self) -> Int64s:
        # Whole nanoseconds far below 2⁵³, which floating point adds up exactly; the first sum is that of no cause.
        sums = np.bincount(self.work.astype(np.int64) + 1, weights=self.work_ns, minlength=len(self.causes) + 1)
        return sums.astype(np.int64)

    def seen_idle_ns(self, id_: str) -> int:
        """Idle time that the profile shows with this cause, without modelled time."""
        return max(self.idle_ns(id_) - self.moved_ns.get(id_, 0), 0)

    def seen_ns(self, id_: str) -> int:
        """Time that the profile shows with this cause, without modelled time."""
        return max(self.total_ns(id_) - self.moved_ns.get(id_, 0), 0)

    def total_ns(self, id_: str) -> int:
        """Idle and busy time that this cause claims."""
        return self.idle_ns(id_) + self.busy_ns(id_)

    def pieces(self, id_: str) -> Spent:
        """Claimed time of the pieces of work that it claims."""
        rows = np.flatnonzero(self.work == self.causes.index(id_))
        return Spent(rows, self.work_ns[rows], len(self.work))

    def pauses(self, id_: str) -> Spent:
        """Claimed time of the pauses that it claims."""
        return self.gaps[id_] if id_ in self.gaps else Spent.none(next(iter(self.gaps.values())).count)

    def giving(self, id_: str, share: Float64s, own_ns: Int64s) -> Claims:
        """The same claims, but this cause has its share of each piece of work, whoever claims it otherwise."""
        rows = np.flatnonzero(share > 0)
        work, work_ns = self.work.copy(), self.work_ns.copy()
        work[rows] = self.causes.index(id_)
        work_ns[rows] = np.minimum((own_ns[rows] * share[rows]).astype(np.int64), own_ns[rows])
        return replace(self, work=work, work_ns=work_ns)

    def of_work(self, id_: str) -> pl.Series:
        """Claimed time of each piece of work."""
        return pl.Series("claimed_ns", self.pieces(id_).whole())

    def of_gaps(self, id_: str) -> pl.Series:
        """Claimed time of each pause."""
        return pl.Series("claimed_ns", self.pauses(id_).whole())


def divide(facts: Facts, rules: Sequence[Rule]) -> Claims:
    """Divides the wall time of a window, or of a phase of it, among the causes that these rules know."""
    causes = tuple(rule.id for rule in rules)
    delaying = frozenset(rule.id for rule in rules if rule.delays(facts))
    by_host, issuing, moved = _gap_claims(facts, is_unfused(facts), delaying)
    gap_shares = {rule.id: share for rule in rules if (share := rule.claim_gaps(facts)) is not None}
    gaps, issuing = _with_structure(facts, gap_shares, by_host, issuing)
    gaps |= {id_: facts.causes[id_] for id_ in (UNEVEN, IN_TURN, REPLICATED) if id_ in facts.causes}
    work, share, wanted = _work_claims(facts, rules)
    own = facts.program.own_ns
    for position, rule in enumerate(rules):
        if rule.id in gap_shares:
            # Pauses before other work are modelled claims: without the cause, the host would be ahead.
            before_claimed = np.append(work == position, False)[facts.program.gap_next]
            moved[rule.id] = gaps[rule.id].where(~before_claimed).total
    work_ns = np.zeros(len(own), dtype=np.int64)
    rows = np.flatnonzero(share)
    work_ns[rows] = np.minimum((own[rows] * share[rows]).astype(np.int64), own[rows])
    claims = Claims(gaps, issuing, moved, causes, work, work_ns, wanted)
    parts = {rule.id: part for rule in rules if (part := rule.part(facts)) is not None}
    divided = np.isin(work, [causes.index(id_) for id_ in parts])
    alone = {id_: claims.giving(id_, np.where(divided, part, 0.0), own) for id_, part in parts.items()}
    return replace(claims, alone=alone, parts=frozenset(parts))


def _with_structure(
    facts: Facts, shares: Mapping[str, Float64s], gaps: dict[str, Spent], issuing: dict[str, int]
) -> tuple[dict[str, Spent], dict[str, int]]:
    """Gives these shares of all pauses to structural causes, whatever the host did during the pauses.

    Only stalls that no interruption of the launching thread explains stay with `host-stall`.
    """
    is_lasting = facts.causes["host"].whole() > INTERRUPTED_NS
    for id_, share in shares.items():
        short = {"host-stall": np.where(is_lasting, 0.0, share)}
        taken = {name: spent.times(short.get(name, share)) for name, spent in gaps.items() if spent}
        taken_share = {name: float(part.total) / gaps[name].total for name, part in taken.items()}
        moved = {name: int(issuing.get(name, 0) * part) for name, part in taken_share.items()}
        gaps = {name: spent.plus(taken[name], -1) if name in taken else spent for name, spent in gaps.items()}
        issuing = {name: issuing.get(name, 0) - moved.get(name, 0) for name in gaps}
        gaps[id_] = reduce(Spent.plus, taken.values(), gaps.get(id_, Spent.none(facts.gaps.height)))
        issuing[id_] = issuing.get(id_, 0) + sum(moved.values())
    return gaps, issuing


def _work_claims(facts: Facts, rules: Sequence[Rule]) -> tuple[Codes, Float64s, dict[str, int]]:
    """Position of the rule that claims each piece of work (−1: none), the claimed share, and what each rule wanted."""
    wanted, own = {}, facts.program.own_ns
    claimant = np.full(facts.work.height, _NO_CAUSE, dtype=np.int8)
    share = np.zeros(facts.work.height)
    for precedence in PRECEDENCES:
        rivals = share
        if precedence == "structure":
            unyielding = [position for position, rule in enumerate(rules) if not rule.yields]
            rivals = np.where(np.isin(claimant, unyielding), share, 0.0)
        for position, rule in enumerate(rules):
            claimed = rule.claim(facts) if rule.precedence == precedence else None
            rows = np.flatnonzero(claimed > 0) if claimed is not None else np.empty(0, np.int64)
            if claimed is None or not len(rows):
                continue
            wanted[rule.id] = int(own[rows] @ claimed[rows])
            if precedence in ("inferred", "structure"):
                rows = rows[claimed[rows] > rivals[rows]]
            claimant[rows] = position
            share[rows] = rivals[rows] = claimed[rows]
    return claimant, share, wanted


def _gap_claims(
    facts: Facts, unfused: bool, delaying: frozenset[str]
) -> tuple[dict[str, Spent], dict[str, int], dict[str, int]]:
    """The time of each pause by cause; by cause, the part in which the host issued work; and the modelled part."""
    nothing, causes = Spent.none(facts.gaps.height), facts.causes
    launch, copying = reduce(Spent.plus, (causes[name] for name in _LAUNCH)), causes["blocking-copy"]
    inside = time_inside(facts.host.readback_calls, facts.gaps.select("start_ns", "end_ns")[copying.at])
    reading_back = Spent(copying.rows, np.minimum(copying.ns, inside), copying.count)
    own = {
        "host-sync": causes["synchronization"].plus(causes["refill"]).plus(reading_back),
        "blocking-copy": copying.plus(reading_back, -1),
        "allocator-churn": causes["allocation"],
        "host-stall": causes["host"],
    }
    moved = _launches_behind(facts, {name: spent.total for name, spent in own.items() if name in delaying}, launch)
    for spent in moved.values():
        launch = launch.plus(spent, -1)
    issuing = {name: spent.total for name, spent in moved.items()}
    issuing["host-sync"] = issuing.get("host-sync", 0) + facts.idle("refill")
    claimed = {name: spent.plus(moved[name]) if name in moved else spent for name, spent in own.items()}
    claimed["unfused-optimizer"], claimed["launch-overhead"] = nothing, launch
    if unfused:
        optimizer = (facts.gaps["phase"] == "optimizer").to_numpy()
        claimed["unfused-optimizer"], claimed["launch-overhead"] = launch.where(optimizer), launch.where(~optimizer)
    for name in ("unfused-optimizer", "launch-overhead"):
        issuing[name] = claimed[name].total
    return claimed, issuing, {name: spent.total for name, spent in moved.items()}


def _launches_behind(facts: Facts, own_ns: dict[str, int], launch: Spent) -> dict[str, Spent]:
    """The part of the launch idle time that exists only because a cause kept the host from running ahead, by cause.

    Without its waits, allocations and stalls, the host would need only its issuing time, and the window the longer of
    that and the GPU's work (D. Lazowska et al., "Quantitative System Performance", 1984, ch. 5: the busier resource
    bounds the whole). Their cost beyond the pauses right after them is taken from the launch idle time, in proportion
    to the host's time in each cause, and at most that time. All times exclude the profiler's share. A single wait at
    the end of a step costs only the pause right after it.
    """
    blocked = _blocked_ns(facts, own_ns)
    launch_ns, share = launch.total, facts.unprofiled_share
    if not launch_ns or not blocked or not facts.alike or facts.is_part:
        return {}  # of a part of the window, the host's time is not known
    waited = facts.host.waited_ns if "host-sync" in blocked else 0  # `host_needed_ns` does not include it
    issuing = max(facts.host_needed_ns + waited - sum(blocked.values()), 0)
    without = max(share * issuing, facts.busy_ns)
    refill = facts.idle("refill") if "host-sync" in blocked else 0
    own = sum(own_ns[name] for name in blocked) - (1 - share) * refill
    extra = facts.wall_ns - facts.added_ns - without - own
    # No cause can return more time than the host spent in it.
    left = {name: max(time - own_ns[name], 0) for name, time in blocked.items()}
    if "host-sync" in left and share * issuing < facts.busy_ns:
        # Without its waits, the host would be ahead. The profiler slows it down, so that the waits look too short. Each
        # wait costs at most the launches until the host is ahead again.
        interval = facts.host.launches.interval_median_ns or 0.0
        behind = facts.host.waits * facts.thresholds.launches_behind_wait * interval
        left["host-sync"] = max(left["host-sync"], min(int(share * behind), int(share * launch_ns)))
    total = sum(left.values())
    if not total:
        return {}
    part = min(max(extra, 0.0), share * launch_ns, total) / (share * launch_ns)
    return {name: launch.times(part * time / total) for name, time in left.items() if time}


def _waits_delay(facts: Facts) -> bool:
    """Whether steps without these waits are shorter, as far as a replay can tell.

    They are not where a wait for the GPU at the end of each marked step stays, or where the host is too slow to get
    ahead: then its launch rate makes the pauses.
    """
    gain = facts.replayed("no-synchronization")
    return gain is None or facts.waits_crowded or gain.expected >= facts.thresholds.raise_ceiling


def _blocked_ns(facts: Facts, own_ns: dict[str, int]) -> dict[str, int]:
    """Host time by cause in which it could not issue work, for causes that occur inside the steps."""
    host, limits = facts.host, facts.thresholds
    blocked = {"host-stall": own_ns.get("host-stall", 0)}
    if facts.waits_inside and _waits_delay(facts):
        blocked["host-sync"] = host.blocked_ns + host.waited_ns
    if host.allocations >= limits.allocations_per_step * facts.process_steps:
        blocked["allocator-churn"] = host.allocation_ns
    return {name: time for name, time in blocked.items() if time and name in own_ns}
