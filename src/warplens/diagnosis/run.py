"""Several ranks of one run as the rules see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import duration_ns, once, sum_by
from warplens.analysis.intervals import Intervals, clip, total, union
from warplens.analysis.ranks.across import RanksResult, across_ranks
from warplens.analysis.ranks.summary import RankSummary, rank_windows, summary_of
from warplens.analysis.window import generic_names, is_step_name
from warplens.diagnosis.claims import divide
from warplens.diagnosis.facts import Facts, gather
from warplens.diagnosis.findings import ISSUING, Finding
from warplens.diagnosis.rules.stalls import HostStall
from warplens.profile.schema import rows_named
from warplens.profile.trace import GRID_BLOCKS

#: Rows kept of each rank's tables; only the largest are compared.
_MOST_ROWS: Final = 400

_STALL: Final = HostStall()

#: Most ranks that a text lists.
MOST_LISTED: Final = 8


def listed(ranks: Sequence[int]) -> str:
    """The first of these ranks, separated by commas."""
    return ", ".join(map(str, ranks[:MOST_LISTED])) + (", …" if len(ranks) > MOST_LISTED else "")


#: Kinds of collectives in which a rank receives its next work from others.
EXCHANGES: Final = ("send_recv", "all_to_all")


#: Attributes of `RankFacts` that grow with the window.
_TIMES: Final = (
    "wall_ns", "busy_ns", "host_ns", "issuing_ns", "other_ns", "before_communication_ns", "exposed_ns", "handling_ns",
    "chained_ns",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RankFacts:
    """Data of one rank for the comparison with others. Times are nanoseconds of its window."""

    #: wall_ns, busy_ns: the window, and the part of it in which the GPU worked, communication included
    wall_ns: int
    busy_ns: int
    host_ns: int  #: host time to issue the work, as recorded
    #: issuing_ns, other_ns: idle time in which the host issued work, and in which it did not
    issuing_ns: int
    other_ns: int
    unprofiled_share: float  #: host time without a profiler over recorded host time, for a fast host
    before_communication_ns: int  #: pauses that communication ended while the host issued work
    exposed_ns: int  #: communication with nothing else on the GPU
    handling_ns: int  #: host time in the framework's calls for collectives; 0 if they are not recorded
    #: host time from issuing one collective to issuing the next, with hardly any other work issued in between
    chained_ns: int
    idle: dict[str, int]  #: idle time by cause
    #: `name`, `blocks` (of its grid), `is_product`, `kernels` and `time_ns`, communication left out
    kernels: pl.DataFrame
    #: `name` of a range (numbers replaced by N) and `busy_ns`, GPU time of the work launched inside, at any depth
    places: pl.DataFrame
    stall: Finding | None  #: the finding on host work outside CUDA calls, if the rank has it

    def scaled(self, factor: float) -> RankFacts:
        """The same with all times and counts of the window multiplied by this."""
        if factor == 1:
            return self
        times = {name: round(getattr(self, name) * factor) for name in _TIMES}
        return replace(
            self,
            **times,
            idle={cause: round(spent * factor) for cause, spent in self.idle.items()},
            kernels=self.kernels.with_columns((pl.col("kernels", "time_ns") * factor).round().cast(pl.Int64)),
            places=self.places.with_columns((pl.col("busy_ns") * factor).round().cast(pl.Int64)),
        )

    def paced(self, pace: float) -> float:
        """Host time over the recorded one at this pace of `PACES`: 0 for the least without the profiler, 1 for all."""
        return pace + (1 - pace) * self.unprofiled_share

    def unprofiled_ns(self, share: float, saved_ns: float = 0.0) -> float:
        """Duration of the window without a profiler, if the GPU worked that much less (as `Facts.unprofiled_ns`).

        Args:
            share: host time without the profiler over recorded host time.
        """
        host = min(share * self.host_ns, self.wall_ns - self.other_ns)
        return max(self.busy_ns - saved_ns, host) + self.other_ns

    def gain(self, share: float, saved_ns: float) -> float:
        """Speed-up of the rank by that."""
        return self.unprofiled_ns(share) / max(self.unprofiled_ns(share, saved_ns), 1.0)

    def host_gain(self, share: float, saved_ns: float) -> float:
        """Speed-up of the rank if its host issues its work in so much less recorded time.

        Exposed communication counts as waiting for hosts of other ranks, for which the same holds.
        """
        busy = self.busy_ns - self.exposed_ns
        most = self.wall_ns - self.other_ns
        before, after = (max(busy, min(share * (self.host_ns - saved), most)) for saved in (0.0, saved_ns))
        return (before + self.other_ns) / max(after + self.other_ns, 1.0)


@dataclass(frozen=True, eq=False)
class Run:
    """The ranks of one run.

    Attributes:
        result: the analysis across ranks.
        ranks: rank → its data, in order.
    """

    result: RanksResult
    ranks: Mapping[int, RankFacts]

    @property
    def steps(self) -> int:
        """Median number of steps in a rank's window; 1 if it has none."""
        return max(1, round(median(len(summary.window.steps) for summary in self.result.summaries)))

    @property
    def sure(self) -> bool:
        """Whether every window has several steps."""
        return all(len(summary.window.steps) > 1 for summary in self.result.summaries)

    @property
    def wall_ns(self) -> float:
        """Mean duration of a rank's window."""
        return sum(facts.wall_ns for facts in self.ranks.values()) / max(len(self.ranks), 1)

    def waited_ns(self, rank: int) -> int:
        """Time of the rank's window in which it only waited for other ranks."""
        return int(self.result.waits.ranks.filter(pl.col("rank") == rank)["exposed_wait_ns"].sum())

    def not_communication_ns(self, rank: int, *, late: bool) -> int:
        """Waiting for other ranks that other findings tell, that the profiler makes, or that no overlap hides.

        A late rank is told apart. If none stands out, hosts that the profiler slows down hold up others in turn: at
        most for as long as they issue work while their GPU waits. Without the profiler they are ahead. What a rank
        receives in an exchange is its next work: it waits for the senders, however few bytes they send. Other waiting
        stays: what each rank is late with in turn evens out until the sums are needed.

        Args:
            late: whether a finding tells that a rank is late.
        """
        waited = self.waited_ns(rank)
        if late or self._exchanges(rank):
            return waited
        others = (facts for other, facts in self.ranks.items() if other != rank)
        return min(
            waited,
            sum(
                other.issuing_ns
                for other in others
                if other.unprofiled_share * other.host_ns < other.busy_ns - other.exposed_ns
            ),
        )

    def _exchanges(self, rank: int) -> bool:
        """Whether most of the rank's exposed communication is in exchanges."""
        rows = self.summary(rank).collectives.filter("in_window")
        spent = rows.filter(pl.col("kind").is_in(EXCHANGES))["exposed_ns"].sum()
        return bool(2 * spent > rows["exposed_ns"].sum())

    def shares(self, spent_ns: Mapping[int, float]) -> dict[int, float]:
        """Rank → these times of ranks, of their windows."""
        return {rank: spent / max(self.ranks[rank].wall_ns, 1) for rank, spent in spent_ns.items()}

    def summary(self, rank: int) -> RankSummary:
        """Summary of this rank's profile."""
        return self.result.summaries[self.result.ranks.index(rank)]


def rank_facts(facts: Facts) -> RankFacts:
    """Data of one rank for the comparison with others."""
    return RankFacts(
        wall_ns=facts.wall_ns,
        busy_ns=facts.busy_ns,
        host_ns=facts.host_needed_ns,
        issuing_ns=facts.issuing_ns,
        other_ns=facts.other_ns,
        unprofiled_share=facts.unprofiled_share,
        before_communication_ns=_before_communication(facts),
        exposed_ns=int(facts.work.filter(pl.col("label") == "communication")["own_ns"].sum()),
        handling_ns=_handling_ns(facts),
        chained_ns=_chained_ns(facts),
        idle={cause: spent.total for cause, spent in facts.causes.items() if spent.total},
        kernels=_kernels(facts),
        places=_places(facts),
        stall=_STALL.find(facts, divide(facts, (_STALL,))),
    )


class _Lazy(Mapping[int, RankFacts]):
    """The facts of each rank, gathered on first use, because most runs need no comparison."""

    def __init__(self, places: Mapping[int, int], gathered: Callable[[int], RankFacts]) -> None:
        self._places, self._gathered = places, cache(gathered)

    def __getitem__(self, rank: int) -> RankFacts:
        return self._gathered(self._places[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def run_of_ranks(summaries: Sequence[RankSummary], facts: Callable[[int], RankFacts], files: Sequence[int]) -> Run:
    """The run of these ranks.

    Args:
        summaries: one per rank, in the order of their files.
        facts: returns the facts of the summary at a position; called at most once for each.
        files: the number of the file of each summary.

    Raises:
        UsageError: the ranks are not of one run.
    """
    result = across_ranks(summaries, files)
    place = {id(summary): number for number, summary in enumerate(summaries)}
    places = {rank: place[id(summary)] for rank, summary in zip(result.ranks, result.summaries, strict=True)}
    return Run(result, _Lazy(places, facts))


@once
def run_of(facts: Facts) -> Run | None:
    """The run in one profile; None for a part of a window, and without communication."""
    if facts.is_part or not (facts.work["label"] == "communication").any():
        return None
    ranks = rank_windows(facts.timeline, facts.window)
    summaries = [
        summary_of(rank, facts.budgets, facts.notes)
        if rank.timeline is facts.timeline and rank.window == facts.window
        else summary_of(rank)
        for rank in ranks
    ]

    def gathered(place: int) -> RankFacts:
        timeline, window = ranks[place].timeline, ranks[place].window
        alone = timeline is facts.timeline
        return rank_facts(facts if alone else gather(timeline, window, thresholds=facts.thresholds))

    return run_of_ranks(summaries, gathered, [0] * len(ranks))


def _before_communication(facts: Facts) -> int:
    """Time of pauses before collectives in which the host issued work."""
    after = facts.program.gap_next
    talks = np.r_[facts.program.having("label", "communication"), False]
    spent = np.zeros(facts.gaps.height, dtype=np.int64)
    for cause in ISSUING:
        if cause in facts.causes:
            spent += facts.causes[cause].whole()
    return int(spent[talks[after]].sum())


#: Ranges in which a framework prepares, issues and completes collectives: FSDP's own ones around the copies that a
#: sharded parameter needs, and PyTorch's calls.
_HANDLING: Final = ("FSDP::", "fsdp::", "c10d::", "nccl:", "record_param_comms")


def _handling_ns(facts: Facts) -> int:
    """Host time in the window in ranges of `_HANDLING`, the sum over threads; of nested ranges, the outermost."""
    ranges = facts.timeline.trace.ranges
    named = rows_named(ranges["name"], lambda name: name.startswith(_HANDLING))
    threads = ranges.select("start_ns", "end_ns", "process", "thread").filter(named)
    spent = 0
    for part in threads.partition_by("process", "thread"):
        spent += total(clip(union(Intervals.of(part)), facts.window.start_ns, facts.window.end_ns))
    return spent


#: Most launches from one collective of a chain to the next: scaling and copying one gradient or parameter.
_BETWEEN: Final = 4
#: From this share of the window in waits of the host on, the time between two calls is that of the waits.
_WAITING: Final = 0.05


def _chained_ns(facts: Facts) -> int:
    """Host time from issuing one collective to issuing the next, with hardly any other work issued in between.

    0 if the host waits for the GPU there.
    """
    if facts.idle("synchronization", "refill") > _WAITING * facts.wall_ns:
        return 0
    launched, thread = facts.work["launch_start_ns"].fill_null(-1).to_numpy(), facts.program.thread
    order = np.lexsort((launched, thread))
    order = order[launched[order] >= 0]
    places = np.flatnonzero(facts.program.having("label", "communication")[order])
    before, after = order[places[:-1]], order[places[1:]]
    chained = (np.diff(places) <= _BETWEEN + 1) & (thread[before] == thread[after])
    return int((launched[after] - launched[before])[chained].sum())


def _kernels(facts: Facts) -> pl.DataFrame:
    kernels = facts.timeline.trace.kernels
    mine = facts.work.select("kind", "row", "label").filter(
        (pl.col("kind") == "kernel") & (pl.col("label") != "communication")
    )
    named = kernels.select("name", GRID_BLOCKS, time_ns=duration_ns())
    return (
        named[mine["row"]]
        .with_columns((mine["label"] == "gemm").alias("is_product"))
        .group_by("name", "blocks")
        .agg(pl.col("is_product").any(), pl.len().cast(pl.Int64).alias("kernels"), pl.col("time_ns").sum())
        .with_columns(pl.col("name").cast(pl.String))
        .sort(["time_ns", "name", "blocks"], descending=[True, False, False])
        .head(_MOST_ROWS)
    )


def _places(facts: Facts) -> pl.DataFrame:
    """GPU time by the ranges around the launches; of nested ranges of the same name, the outer one counts."""
    ranges, forest = facts.timeline.trace.ranges, facts.timeline.forest
    known = facts.work.select("range", "own_ns", "label").filter(
        pl.col("range").is_not_null() & (pl.col("label") != "communication")
    )
    own = sum_by(known["range"].to_numpy(), known["own_ns"].to_numpy(), ranges.height)
    numbers, label = generic_names(ranges["name"])
    first = ~forest.repeats(label) if ranges.height else np.zeros(0, dtype=np.bool_)
    sums = sum_by(label[first], forest.inclusive(own)[first], len(numbers))
    found = pl.DataFrame({"name": numbers, "busy_ns": sums}, schema={"name": pl.String, "busy_ns": pl.Int64})
    steps = [text for text in numbers if is_step_name(text)]
    return (
        found.filter((pl.col("busy_ns") > 0) & ~pl.col("name").is_in(steps))
        .sort(["busy_ns", "name"], descending=[True, False])
        .head(_MOST_ROWS)
    )
