"""Who arrived last, how often, and how much everyone waited.

A communication kernel that finds its peers absent spins until they come, so that its duration says more of the others
than of the network. On the common clock of all ranks, with the latest begin as the moment at which all have arrived:

* a rank *waits* from its own begin to that moment (or to its own end, if it left before: the root of a broadcast);
* what remains is *transfer*;
* the rank that began last is the *straggler* of that collective; by how much it was behind the second to last is the
  *delay* that it alone caused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.intervals import measure_before
from warplens.analysis.ranks.kinds import KINDS
from warplens.analysis.spread import conform, ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.ranks.summary import RankSummary

__all__ = ["INSTANCE_SCHEMA", "MEMBER_SCHEMA", "WAIT_SCHEMA", "Waits", "waits"]

Int64s = npt.NDArray[np.int64]

#: One row a collective and rank. Times are in nanoseconds, begins and ends on the common clock.
MEMBER_SCHEMA: Final = pl.Schema(
    {
        "collective": pl.Int64(),
        "rank": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "wait_ns": pl.Int64(),  # from its begin until all had begun
        "exposed_wait_ns": pl.Int64(),  # the part of it in which the rank computed nothing
        "transfer_ns": pl.Int64(),  # the rest of its duration
    }
)

#: One row a collective that was found on several ranks and lies in the window on each of them.
INSTANCE_SCHEMA: Final = pl.Schema(
    {
        "collective": pl.Int64(),
        "kind": pl.Enum(KINDS),
        "group": pl.String(),
        "group_size": pl.Int32(),  # as recorded
        "ranks": pl.Int64(),  # on which it was found
        "size_bytes": pl.Int64(),
        "first_rank": pl.Int64(),
        "last_rank": pl.Int64(),
        "start_ns": pl.Int64(),  # first begin, on the common clock
        "arrival_ns": pl.Int64(),  # from the first begin to the last
        "delay_ns": pl.Int64(),  # from the last begin but one to the last
        "transfer_ns": pl.Int64(),  # from the last begin to the last end
        "wait_ns": pl.Int64(),  # over all ranks
        "exposed_wait_ns": pl.Int64(),
    }
)

#: One row a rank, over the collectives of the window. Times are in nanoseconds.
WAIT_SCHEMA: Final = pl.Schema(
    {
        "rank": pl.Int64(),
        "collectives": pl.Int64(),  # its communication kernels in the window
        "matched": pl.Int64(),  # those that were found on other ranks
        "last": pl.Int64(),  # in how many it arrived last, by more than the residual of the clocks
        "last_share": pl.Float64(),  # of the matched
        "delay_ns": pl.Int64(),  # by which it alone held those up
        "communication_ns": pl.Int64(),  # summed durations of its communication kernels in the window
        "wait_ns": pl.Int64(),  # of the matched ones: until all had arrived
        "exposed_wait_ns": pl.Int64(),  # the part of it that nothing hid
        "transfer_ns": pl.Int64(),  # of the matched ones: the rest
        "unmatched_ns": pl.Int64(),  # durations of the others
        "wait_share": pl.Float64(),  # wait_ns of wait_ns + transfer_ns
    }
)


@dataclass(frozen=True, eq=False)
class Waits:
    """Arrivals and waits.

    Attributes:
        ranks: `WAIT_SCHEMA`.
        collectives: `INSTANCE_SCHEMA`, in order of their begin.
        members: `MEMBER_SCHEMA`.
        tolerance_ns: a rank counts as the last only if it was behind by more than this.
    """

    ranks: pl.DataFrame
    collectives: pl.DataFrame
    members: pl.DataFrame
    tolerance_ns: int


def waits(
    events: pl.DataFrame,
    instance: Int64s,
    start: Int64s,
    end: Int64s,
    summaries: Sequence[RankSummary],
    ranks: Sequence[int],
    tolerance_ns: int,
) -> Waits:
    """Arrivals and waits of the collectives that lie in the window on every rank that took part.

    Args:
        events: of `matching.all_events`.
        instance: the collective of each event, −1 for none; shape (events,).
        start, end: of each event on the common clock; shape (events,).
        summaries: for the exposed communication of each rank.
        ranks: the rank of each summary.
        tolerance_ns: how far the clocks may be off.
    """
    rank = np.asarray(ranks, dtype=np.int64)[events["place"].to_numpy()]
    told = events.select(
        "event", "place", "kind", "group", "group_size", "size_bytes", "in_window", "exposed_ns"
    ).with_columns(
        pl.Series("collective", instance),
        pl.Series("rank", rank),
        pl.Series("own_start_ns", events["start_ns"].to_numpy()),
        pl.Series("start_ns", start),
        pl.Series("end_ns", end),
    )
    inside = told.filter("in_window")
    matched = told.filter((pl.col("collective") >= 0) & pl.col("in_window").all().over("collective"))
    # One rank's window may end before another's: what is left alone says nothing of waiting.
    matched = matched.filter(pl.len().over("collective") > 1)
    arrived = pl.col("start_ns").max().over("collective")
    matched = matched.with_columns(
        (pl.min_horizontal(arrived, "end_ns") - pl.col("start_ns")).alias("wait_ns"),
        (pl.col("end_ns") - pl.min_horizontal(arrived, "end_ns")).alias("transfer_ns"),
    )
    matched = _with_exposed(matched, summaries)
    collectives = _instances(matched)
    return Waits(
        ranks=_by_rank(inside, matched, collectives, ranks, tolerance_ns),
        collectives=collectives,
        members=conform(matched, MEMBER_SCHEMA).sort("collective", "rank"),
        tolerance_ns=tolerance_ns,
    )


def _with_exposed(matched: pl.DataFrame, summaries: Sequence[RankSummary]) -> pl.DataFrame:
    place = matched["place"].to_numpy()
    # The exposed intervals are in the file's own clock; durations are the same in both but for the drift.
    begin = matched["own_start_ns"].to_numpy()
    until = begin + matched["wait_ns"].to_numpy()
    exposed = np.zeros(matched.height, dtype=np.int64)
    for number, summary in enumerate(summaries):
        rows = np.flatnonzero(place == number)
        if len(rows):
            exposed[rows] = measure_before(summary.exposed, until[rows]) - measure_before(summary.exposed, begin[rows])
    return matched.with_columns(pl.Series("exposed_wait_ns", exposed))


def _instances(matched: pl.DataFrame) -> pl.DataFrame:
    by_arrival = pl.col("rank").sort_by("start_ns", "rank")
    second = pl.col("start_ns").sort().get(-2)
    found = matched.group_by("collective").agg(
        pl.col("kind").mode(maintain_order=True).first(),
        pl.col("group").first(),
        pl.col("group_size").first(),
        pl.len().cast(pl.Int64).alias("ranks"),
        pl.col("size_bytes").max(),
        by_arrival.first().alias("first_rank"),
        by_arrival.last().alias("last_rank"),
        (pl.col("start_ns").max() - pl.col("start_ns").min()).alias("arrival_ns"),
        (pl.col("start_ns").max() - second).alias("delay_ns"),
        (pl.col("end_ns").max() - pl.col("start_ns").max()).clip(lower_bound=0).alias("transfer_ns"),
        pl.col("start_ns").min(),
        pl.col("wait_ns", "exposed_wait_ns").sum(),
    )
    return conform(found, INSTANCE_SCHEMA).sort("start_ns", "collective")


def _by_rank(
    inside: pl.DataFrame, matched: pl.DataFrame, collectives: pl.DataFrame, ranks: Sequence[int], tolerance_ns: int
) -> pl.DataFrame:
    everyone = pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int64})
    duration = pl.col("end_ns") - pl.col("start_ns")
    all_of = inside.group_by("rank").agg(
        pl.len().cast(pl.Int64).alias("collectives"), duration.sum().alias("communication_ns")
    )
    shared = matched.group_by("rank").agg(
        pl.len().cast(pl.Int64).alias("matched"),
        pl.col("wait_ns", "exposed_wait_ns", "transfer_ns").sum(),
        duration.sum().alias("matched_ns"),
    )
    late = collectives.filter(pl.col("delay_ns") > tolerance_ns)
    held_up = late.group_by(pl.col("last_rank").alias("rank")).agg(
        pl.len().cast(pl.Int64).alias("last"), pl.col("delay_ns").sum()
    )
    table = everyone
    for part in (all_of, shared, held_up):
        table = table.join(part, on="rank", how="left", maintain_order="left")
    table = table.with_columns(pl.exclude("rank").fill_null(0))
    table = table.with_columns(
        ratio(pl.col("last"), pl.col("matched")).alias("last_share"),
        (pl.col("communication_ns") - pl.col("matched_ns")).alias("unmatched_ns"),
        ratio(pl.col("wait_ns"), pl.col("wait_ns") + pl.col("transfer_ns")).alias("wait_share"),
    )
    return conform(table, WAIT_SCHEMA).sort("rank")
