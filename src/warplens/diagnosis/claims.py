"""Who owns which nanosecond: the window's time divided among the causes, so that none is counted twice.

A pause belongs to causes by what the host did in it; a piece of work to the one cause that could take most of its time.
What nothing claims is either needed or not explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.intervals import measure_before
from warplens.diagnosis.evidence import is_unfused
from warplens.diagnosis.rule import PRECEDENCES, Floats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.rule import Rule

Codes = npt.NDArray[np.int8]
Int64s = npt.NDArray[np.int64]

#: Stands for no cause among positions.
_NO_CAUSE: Final = -1

#: Idle causes of work that the host had not issued yet.
_LAUNCH: Final = ("launch", "graph-launch")


@dataclass(frozen=True, eq=False)
class Claims:
    """The time of a window by cause.

    Attributes:
        gaps: for each finding's id the nanoseconds of each pause, shape (pauses,).
        issuing_ns: for each id, of its idle time that in which the host issued work.
        moved_ns: for each id, of its idle time what was not seen but follows from the host's pace without the cause.
        causes: the ids of all findings.
        work: for each piece of work the position in `causes` of the finding that claims a part of it; −1 for none.
        work_ns: how much of it, shape (pieces of work,).
    """

    gaps: dict[str, Int64s]
    issuing_ns: dict[str, int]
    moved_ns: dict[str, int]
    causes: tuple[str, ...]
    work: Codes
    work_ns: Int64s

    def idle_ns(self, id_: str) -> int:
        """Idle time that this cause claims."""
        return self._idle_ns.get(id_, 0)

    @cached_property
    def _idle_ns(self) -> dict[str, int]:
        sums: dict[int, int] = {}  # many causes share the array of those that did not occur
        for spent in self.gaps.values():
            if id(spent) not in sums:
                sums[id(spent)] = int(spent.sum())
        return {id_: sums[id(spent)] for id_, spent in self.gaps.items()}

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

    def of_work(self, id_: str) -> pl.Series:
        """What it claims of each piece of work."""
        return pl.Series("claimed_ns", np.where(self.work == self.causes.index(id_), self.work_ns, 0))

    def of_gaps(self, id_: str) -> pl.Series:
        """What it claims of each pause."""
        nothing = np.zeros(len(next(iter(self.gaps.values()), np.empty(0))), dtype=np.int64)
        return pl.Series("claimed_ns", self.gaps.get(id_, nothing))


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
            moved[rule.id] = int(gaps[rule.id][~seen].sum())
    taken = np.zeros(len(own), dtype=np.int64)
    rows = np.flatnonzero(share)
    taken[rows] = np.minimum((own[rows] * share[rows]).astype(np.int64), own[rows])
    return Claims(gaps, issuing, moved, causes, work, taken)


def _with_structure(
    facts: Facts, shares: Mapping[str, Floats], gaps: dict[str, Int64s], issuing: dict[str, int]
) -> tuple[dict[str, Int64s], dict[str, int]]:
    """The pauses of work that should not be there at all go to what put it there, whatever the host did in them."""
    for id_, share in shares.items():
        taken = {name: (spent * share).astype(np.int64) for name, spent in gaps.items() if spent.any()}
        gone = {name: float(part.sum()) / int(gaps[name].sum()) for name, part in taken.items()}
        moved = {name: int(issuing.get(name, 0) * part) for name, part in gone.items()}
        gaps = {name: spent - taken[name] if name in taken else spent for name, spent in gaps.items()}
        issuing = {name: issuing.get(name, 0) - moved.get(name, 0) for name in gaps}
        gaps[id_] = gaps.get(id_, np.zeros(facts.gaps.height, dtype=np.int64)) + sum(taken.values())
        issuing[id_] = issuing.get(id_, 0) + sum(moved.values())
    return gaps, issuing


def _work_claims(facts: Facts, rules: Sequence[Rule]) -> tuple[Codes, Floats]:
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


def _gap_claims(facts: Facts, unfused: bool) -> tuple[dict[str, Int64s], dict[str, int], dict[str, int]]:
    """The time of each pause by cause, how much of it is that of issuing work, and how much of it is modelled."""
    gaps = facts.gaps
    nothing = np.zeros(gaps.height, dtype=np.int64)  # one array for all causes that did not occur: most never do

    def spent(*names: str) -> Int64s:
        found = [gaps[name].to_numpy() for name in names if name in gaps.columns and facts.idle(name)]
        return sum(found[1:], found[0]) if found else nothing

    launch, copying = spent(*_LAUNCH), spent("blocking-copy")
    optimizer = (gaps["phase"] == "optimizer").to_numpy() & unfused
    reading_back = nothing if copying is nothing else np.minimum(copying, _inside(facts, gaps))
    waiting = spent("synchronization", "refill")
    own = {
        "host-sync": waiting if copying is nothing else waiting + reading_back,
        "blocking-copy": copying if copying is nothing else copying - reading_back,
        "allocator-churn": spent("allocation"),
        "host-stall": spent("host"),
    }
    moved = _launches_behind(facts, {name: int(values.sum()) for name, values in own.items()}, launch)
    launch = launch - sum(moved.values(), nothing) if moved else launch
    issuing = {name: int(values.sum()) for name, values in moved.items()}
    issuing["host-sync"] = issuing.get("host-sync", 0) + facts.idle("refill")
    claimed = {name: values + moved[name] if name in moved else values for name, values in own.items()}
    for name, mine in (("unfused-optimizer", optimizer), ("launch-overhead", ~optimizer)):
        claimed[name] = launch if mine.all() else np.where(mine, launch, 0) if mine.any() else nothing
        issuing[name] = int(claimed[name].sum())
    return claimed, issuing, {name: int(values.sum()) for name, values in moved.items()}


def _inside(facts: Facts, gaps: pl.DataFrame) -> Int64s:
    """How much of each pause the host spent in read-backs of a few bytes."""
    calls = facts.host.readback_calls
    return measure_before(calls, gaps["end_ns"].to_numpy()) - measure_before(calls, gaps["start_ns"].to_numpy())


def _launches_behind(facts: Facts, own_ns: dict[str, int], launch: Int64s) -> dict[str, Int64s]:
    """The part of the launch idle that is there only because something kept the host from running ahead, by cause.

    Without its waits, allocations and pauses the host would need its time for issuing alone, and the window the longer
    of that and the GPU's work (D. Lazowska et al., "Quantitative System Performance", 1984, ch. 5: the busier resource
    bounds the whole). What they cost beyond the pauses right behind them is taken from the launches, in proportion to
    the host's time in each, and at most that. All times are those without the profiler's share. One wait at the end of
    a step is none inside of it: it costs what stands behind it, and no more.
    """
    held = _held_ns(facts, own_ns)
    total, share = int(launch.sum()), facts.timeline.trace.capture.recorder.unprofiled_share
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
    return {name: (launch * (part * time / whole)).astype(np.int64) for name, time in left.items() if time}


def _held_ns(facts: Facts, own_ns: dict[str, int]) -> dict[str, int]:
    """Host time in calls and pauses without which it could have issued work, of the causes that occur in the steps."""
    host, limits = facts.host, facts.thresholds
    held = {"host-stall": own_ns["host-stall"]}
    if facts.waits_inside:
        held["host-sync"] = host.blocked_ns + host.waited_ns
    if host.allocations >= limits.allocations_per_step * facts.steps:
        held["allocator-churn"] = host.allocation_ns
    return {name: time for name, time in held.items() if time}
