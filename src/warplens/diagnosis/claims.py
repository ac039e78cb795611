"""Who owns which nanosecond: the window's time divided among the causes, so that none is counted twice.

A pause belongs to causes by what the host did in it; a piece of work to the one cause that could take most of its time.
What nothing claims is either needed or not explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import Spent
from warplens.analysis.intervals import measure_before
from warplens.diagnosis.evidence import is_unfused
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.rule import PRECEDENCES, Rule
from warplens.profile.schema import Float64s, Int64s

Codes = npt.NDArray[np.int8]

#: Stands for no cause among positions.
_NO_CAUSE: Final = -1

#: Idle causes of work that the host had not issued yet.
_LAUNCH: Final = ("launch", "graph-launch")


@dataclass(frozen=True, eq=False)
class Claims:
    """The time of a window by cause."""

    gaps: dict[str, Spent]  #: for each finding's id the nanoseconds of each pause
    issuing_ns: dict[str, int]  #: for each id, of its idle time that in which the host issued work
    #: for each id, of its idle time what was not seen but follows from the host's pace without the cause
    moved_ns: dict[str, int]
    causes: tuple[str, ...]  #: the ids of all findings
    work: Codes  #: for each piece of work the position in `causes` of the finding that claims a part of it; −1 for none
    work_ns: Int64s  #: how much of it, shape (pieces of work,)

    def idle_ns(self, id_: str) -> int:
        """Idle time that this cause claims."""
        return self.pauses(id_).total

    def busy_ns(self, id_: str) -> int:
        """Busy time that it claims."""
        return int(self._busy_ns[self.causes.index(id_) + 1])

    @cached_property
    def _busy_ns(self) -> Int64s:
        # Whole nanoseconds far below 2⁵³, which floating point adds up exactly; the first sum is that of no cause.
        sums = np.bincount(self.work.astype(np.int64) + 1, weights=self.work_ns, minlength=len(self.causes) + 1)
        return sums.astype(np.int64)

    def seen_idle_ns(self, id_: str) -> int:
        """Idle time that the profile shows with this cause, without what was only modelled."""
        return max(self.idle_ns(id_) - self.moved_ns.get(id_, 0), 0)

    def seen_ns(self, id_: str) -> int:
        """What it claims less what was only modelled: time that the profile shows with this cause."""
        return max(self.total_ns(id_) - self.moved_ns.get(id_, 0), 0)

    def total_ns(self, id_: str) -> int:
        """Both."""
        return self.idle_ns(id_) + self.busy_ns(id_)

    def pieces(self, id_: str) -> Spent:
        """What it claims of the pieces of work of which it claims anything."""
        rows = np.flatnonzero(self.work == self.causes.index(id_))
        return Spent(rows, self.work_ns[rows], len(self.work))

    def pauses(self, id_: str) -> Spent:
        """What it claims of pauses."""
        return self.gaps[id_] if id_ in self.gaps else Spent.none(self.gaps["launch-overhead"].count)

    def of_work(self, id_: str) -> pl.Series:
        """What it claims of each piece of work."""
        return pl.Series("claimed_ns", self.pieces(id_).whole())

    def of_gaps(self, id_: str) -> pl.Series:
        """What it claims of each pause."""
        return pl.Series("claimed_ns", self.pauses(id_).whole())


def divide(facts: Facts, rules: Sequence[Rule]) -> Claims:
    """Divide the wall time of a window, or of a phase of it, among the causes that these rules know."""
    causes = tuple(rule.id for rule in rules)
    plain, issuing, moved = _gap_claims(facts, is_unfused(facts))
    gone = {rule.id: share for rule in rules if (share := rule.claim_gaps(facts)) is not None}
    gaps, issuing = _with_structure(facts, gone, plain, issuing)
    work, share = _work_claims(facts, rules)
    own = facts.program.own_ns
    for position, rule in enumerate(rules):
        if rule.id in gone:
            # Pauses before other work are claimed because the host would be ahead: that is modelled.
            after = facts.program.gap_next
            seen = np.append(work == position, False)[after]
            moved[rule.id] = gaps[rule.id].where(~seen).total
    taken = np.zeros(len(own), dtype=np.int64)
    rows = np.flatnonzero(share)
    taken[rows] = np.minimum((own[rows] * share[rows]).astype(np.int64), own[rows])
    return Claims(gaps, issuing, moved, causes, work, taken)


def _with_structure(
    facts: Facts, shares: Mapping[str, Float64s], gaps: dict[str, Spent], issuing: dict[str, int]
) -> tuple[dict[str, Spent], dict[str, int]]:
    """The pauses of work that should not be there at all go to what put it there, whatever the host did in them."""
    for id_, share in shares.items():
        taken = {name: spent.times(share) for name, spent in gaps.items() if spent}
        gone = {name: float(part.total) / gaps[name].total for name, part in taken.items()}
        moved = {name: int(issuing.get(name, 0) * part) for name, part in gone.items()}
        gaps = {name: spent.plus(taken[name], -1) if name in taken else spent for name, spent in gaps.items()}
        issuing = {name: issuing.get(name, 0) - moved.get(name, 0) for name in gaps}
        gaps[id_] = reduce(Spent.plus, taken.values(), gaps.get(id_, Spent.none(facts.gaps.height)))
        issuing[id_] = issuing.get(id_, 0) + sum(moved.values())
    return gaps, issuing


def _work_claims(facts: Facts, rules: Sequence[Rule]) -> tuple[Codes, Float64s]:
    """For each piece of work the position of the rule that claims a part of its time (−1: none), and that share."""
    claimant = np.full(facts.work.height, _NO_CAUSE, dtype=np.int8)
    share = np.zeros(facts.work.height)
    for precedence in PRECEDENCES:
        rivals = share
        if precedence == "structure":
            # What single kernels let one infer yields to structure, but for their format.
            formats = [position for position, rule in enumerate(rules) if rule.id == "precision"]
            rivals = np.where(np.isin(claimant, formats), share, 0.0)
        for position, rule in enumerate(rules):
            claimed = rule.claim(facts) if rule.precedence == precedence else None
            rows = np.flatnonzero(claimed > 0) if claimed is not None else np.empty(0, np.int64)
            if claimed is None or not len(rows):
                continue
            if precedence in ("inferred", "structure"):
                rows = rows[claimed[rows] > rivals[rows]]
            claimant[rows] = position
            share[rows] = rivals[rows] = claimed[rows]
    return claimant, share


def _gap_claims(facts: Facts, unfused: bool) -> tuple[dict[str, Spent], dict[str, int], dict[str, int]]:
    """The time of each pause by cause, how much of it is that of issuing work, and how much of it is modelled."""
    nothing, causes = Spent.none(facts.gaps.height), facts.causes
    launch, copying = reduce(Spent.plus, (causes[name] for name in _LAUNCH)), causes["blocking-copy"]
    reading_back = Spent(copying.rows, np.minimum(copying.ns, _inside(facts, copying)), copying.count)
    own = {
        "host-sync": causes["synchronization"].plus(causes["refill"]).plus(reading_back),
        "blocking-copy": copying.plus(reading_back, -1),
        "allocator-churn": causes["allocation"],
        "host-stall": causes["host"],
    }
    moved = _launches_behind(facts, {name: spent.total for name, spent in own.items()}, launch)
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


def _inside(facts: Facts, spent: Spent) -> Int64s:
    """How much of each of these pauses the host spent in read-backs of a few bytes."""
    starts, ends = (facts.gaps[name].to_numpy()[spent.at] for name in ("start_ns", "end_ns"))
    return measure_before(facts.host.readback_calls, ends) - measure_before(facts.host.readback_calls, starts)


def _launches_behind(facts: Facts, own_ns: dict[str, int], launch: Spent) -> dict[str, Spent]:
    """The part of the launch idle that is there only because something kept the host from running ahead, by cause.

    Without its waits, allocations and pauses the host would need its time for issuing alone, and the window the longer
    of that and the GPU's work (D. Lazowska et al., "Quantitative System Performance", 1984, ch. 5: the busier resource
    bounds the whole). What they cost beyond the pauses right behind them is taken from the launches, in proportion to
    the host's time in each, and at most that. All times are those without the profiler's share. One wait at the end of
    a step is none inside of it: it costs what stands behind it, and no more.
    """
    held = _held_ns(facts, own_ns)
    total, share = launch.total, facts.timeline.trace.capture.recorder.unprofiled_share
    if not total or not held or facts.work["device"].n_unique() > 1:
        return {}
    if facts.phase is not None or facts.window.range_name is not None:
        return {}  # the host's time is known of the whole window alone
    waited = facts.host.waited_ns if "host-sync" in held else 0  # not part of what the host needed
    issuing = max(facts.host_needed_ns + waited - sum(held.values()), 0)
    without = max(share * issuing, facts.busy_ns)
    refill = facts.idle("refill")
    own = sum(own_ns[name] for name in held) - (1 - share) * (refill if "host-sync" in held else 0)
    extra = facts.wall_ns - facts.added_ns - without - own
    # Nothing gives back more time than the host spent in it.
    left = {name: max(time - own_ns[name], 0) for name, time in held.items()}
    if "host-sync" in left and share * issuing < facts.busy_ns:
        # A host that would be ahead but for its waits: under the profiler, which slows it, they look shorter than they
        # are. Each costs at most the launches until the host is ahead again.
        interval = facts.host.launches.interval_median_ns or 0.0
        behind = facts.host.waits * facts.thresholds.launches_behind_wait * interval
        left["host-sync"] = max(left["host-sync"], min(int(share * behind), int(share * total)))
    whole = sum(left.values())
    if not whole:
        return {}
    part = min(max(extra, 0.0), share * total, whole) / (share * total)
    return {name: launch.times(part * time / whole) for name, time in left.items() if time}


def _held_ns(facts: Facts, own_ns: dict[str, int]) -> dict[str, int]:
    """Host time in calls and pauses without which it could have issued work, of the causes that occur in the steps."""
    host, limits = facts.host, facts.thresholds
    held = {"host-stall": own_ns["host-stall"]}
    if facts.waits_inside:
        held["host-sync"] = host.blocked_ns + host.waited_ns
    if host.allocations >= limits.allocations_per_step * facts.steps:
        held["allocator-churn"] = host.allocation_ns
    return {name: time for name, time in held.items() if time}
