"""Time budgets of the ranks side by side, load imbalance, arrivals at collectives, and waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.frames import duration_ns, number, ratio
from warplens.analysis.intervals import measure_before
from warplens.analysis.ranks.collectives import GROUP, GROUP_SIZE, KINDS, SIZE
from warplens.analysis.ranks.measures import STEP_TIMES, TIMES
from warplens.analysis.ranks.summary import RankSummary
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Int64s, Table

RANKS: Final = table(
    "ranks",
    "One rank and where the time of its window went. `warplens ranks`, there joined with “Waits of a rank” and"
    " “Clocks”.",
    "rank source process device gpu steps",
    TIMES,
    column("compute_share", help="compute_ns of the window"),
    Column("exposed_share", pl.Float64, "exposed_ns of the window"),
    "idle_share",
    Column("overlap_share", pl.Float64, "overlapped_ns of communication_ns; null without communication"),
    Column(
        "compute_per_step_ns",
        pl.Float64,
        "mean compute time of the steps that are in the window of every rank; null without such",
    ),
    "kernels",
    source="file, without folders",
    process="process id; null where the file holds one rank",
    device="CUDA ordinal of the GPU; null without GPU work",
    steps="steps in the window",
    idle_share="idle_ns of the window",
    kernels="kernels in the whole file",
)

RANK_BUDGETS: Final = table(
    "time budget of each rank",
    "One part of one rank's time.",
    "rank group part time_ns share",
    time_ns="time of the part; the parts of a rank sum to its window exactly",
    share="share of the window",
)

PARTS: Final = table(
    "time budget over ranks",
    "One part of the time budget, over all ranks. A rank without the part counts as 0.",
    "group part time_ns share",
    Column("mean_ns", pl.Float64, "mean of a rank"),
    Column("min_ns", pl.Int64, "minimum over the ranks", title="Min"),
    Column("max_ns", pl.Int64, "maximum over the ranks", title="Max"),
    Column("max_rank", pl.Int64, "the rank that has most", title="Most in rank"),
    time_ns="summed over ranks",
    share="share of the summed windows",
)

RANK_STEPS: Final = table(
    "steps of each rank", "One step of one rank, in the file's own clock.", "rank", STEP_TIMES.columns
)

STEP_BALANCE: Final = table(
    "steps across ranks",
    "One step that every rank has.",
    "step in_window",
    Column("wall_max_ns", pl.Int64, "longest wall time of any rank", title="Max"),
    Column("compute_mean_ns", pl.Float64, "mean compute time", title="Compute, mean"),
    Column("compute_max_ns", pl.Int64, "most compute time of a rank", title="Compute, most"),
    Column("compute_max_rank", pl.Int64, "the rank that has it", title="in rank"),
    Column("imbalance", pl.Float64, "compute_max_ns / compute_mean_ns; 1 is even", title="Most / mean"),
    Column("exposed_mean_ns", pl.Float64, "mean of exposed communication", title="Exposed comm., mean"),
    Column("idle_mean_ns", pl.Float64, "mean of idle time", title="Idle, mean"),
    step="number of the step",
    in_window="whether it is in the window of every rank",
)


@dataclass(frozen=True, eq=False)
class Balance:
    """The ranks side by side."""

    ranks: pl.DataFrame  #: `RANKS`
    budget: pl.DataFrame  #: `RANK_BUDGETS`
    parts: pl.DataFrame  #: `PARTS`
    steps: pl.DataFrame  #: `RANK_STEPS`
    step_balance: pl.DataFrame  #: `STEP_BALANCE`; empty where the ranks found different numbers of steps, or none
    #: most compute of a rank over the mean of all: its time in common steps where there are any, else its share of
    #: the rank's window; None without compute, or with one rank that has a window
    imbalance: float | None
    how: str  #: basis of `imbalance`, one sentence


def balance(summaries: Sequence[RankSummary], ranks: Sequence[int]) -> Balance:
    """The ranks side by side, in ascending order."""
    numbered = sorted(zip(ranks, summaries, strict=True), key=lambda item: item[0])
    steps = _stacked([(rank, summary.steps) for rank, summary in numbered], RANK_STEPS)
    counts = {summary.steps.height for _, summary in numbered}
    comparable = len(counts) == 1 and 0 not in counts
    step_balance = _steps(steps) if comparable else STEP_BALANCE.empty()
    common = set(step_balance.filter("in_window")["step"].to_list())
    rank_table = _ranks(numbered, steps, common)
    if common:
        compute = rank_table["compute_per_step_ns"]
        basis = f"mean compute time of the {len(common)} steps that all ranks share"
    else:
        compute = rank_table["compute_share"]
        basis = "share of compute in each rank's window, since the ranks share no steps"
    mean, largest = number(compute.mean()), number(compute.max())
    imbalance = largest / mean if mean and largest is not None and compute.count() > 1 else None
    budget = _stacked([(rank, summary.budget) for rank, summary in numbered], RANK_BUDGETS)
    return Balance(rank_table, budget, _parts(budget, rank_table), steps, step_balance, imbalance, basis)


def _stacked(frames: Sequence[tuple[int, pl.DataFrame]], result_table: Table) -> pl.DataFrame:
    parts = [frame.select(pl.lit(rank, dtype=pl.Int64).alias("rank"), pl.all()) for rank, frame in frames]
    return pl.concat([result_table.empty(), *parts])


def _ranks(numbered: Sequence[tuple[int, RankSummary]], steps: pl.DataFrame, common: set[int]) -> pl.DataFrame:
    """The times of each rank (`RANKS`); its compute per step is that of the steps in `common`."""
    rows = [
        {
            "rank": rank,
            "source": summary.source,
            "process": summary.process if summary.parts > 1 else None,
            "device": summary.device,
            "gpu": summary.gpu,
            "steps": len(summary.window.steps),
            "kernels": summary.kernels,
            **summary.times,
        }
        for rank, summary in numbered
    ]
    typed = {name: dtype for name, dtype in RANKS.schema.items() if not name.endswith("_share")}
    typed.pop("compute_per_step_ns")
    shared = steps.filter(pl.col("step").is_in(sorted(common)))
    per_step = shared.group_by("rank").agg(compute_per_step_ns=pl.col("compute_ns").mean())
    table = pl.DataFrame(rows, schema=typed).join(per_step, on="rank", how="left", maintain_order="left")
    window = pl.col("duration_ns")
    return RANKS.conform(
        table.with_columns(
            ratio(pl.col("compute_ns"), window).alias("compute_share"),
            ratio(pl.col("exposed_ns"), window).alias("exposed_share"),
            ratio(pl.col("idle_ns"), window).alias("idle_share"),
            ratio(pl.col("overlapped_ns"), pl.col("communication_ns")).alias("overlap_share"),
        )
    )


def _parts(budget: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    total, count = int(table["duration_ns"].sum()), table.height
    everywhere = pl.len() == count
    parts = budget.group_by("group", "part").agg(
        pl.col("time_ns").sum(),
        (pl.col("time_ns").sum() / count).alias("mean_ns"),
        pl.when(everywhere).then(pl.col("time_ns").min()).otherwise(0).alias("min_ns"),
        pl.col("time_ns").max().alias("max_ns"),
        pl.col("rank").sort_by("time_ns", "rank", descending=[True, False]).first().alias("max_rank"),
    )
    parts = parts.with_columns(ratio(pl.col("time_ns"), pl.lit(total)).alias("share"))
    return PARTS.conform(parts).sort(["group", "time_ns", "part"], descending=[False, True, False])


def _steps(steps: pl.DataFrame) -> pl.DataFrame:
    largest = pl.col("rank").sort_by("compute_ns", "rank", descending=[True, False]).first()
    balance = steps.group_by("step").agg(
        pl.col("in_window").all(),
        pl.col("duration_ns").max().alias("wall_max_ns"),
        pl.col("compute_ns").mean().alias("compute_mean_ns"),
        pl.col("compute_ns").max().alias("compute_max_ns"),
        largest.alias("compute_max_rank"),
        pl.col("exposed_ns").mean().alias("exposed_mean_ns"),
        pl.col("idle_ns").mean().alias("idle_mean_ns"),
    )
    balance = balance.with_columns(ratio(pl.col("compute_max_ns"), pl.col("compute_mean_ns")).alias("imbalance"))
    return STEP_BALANCE.conform(balance).sort("step")


# --- Arrivals at collectives and waits ---
#
# A communication kernel spins until its peers arrive, so that its duration depends more on the others than on the
# network. On the common clock of all ranks, with the latest begin as the time at which all have arrived:
# * a rank *waits* from its own begin to that time (or to its own end, if it left before: the root of a broadcast);
# * the rest is *transfer*;
# * the rank that began last is the *straggler* of that collective; its distance from the second to last is the *delay*
#   that it alone caused.


MEMBERS: Final = table(
    "members of a collective",
    "One rank in one collective.",
    "collective rank start_ns end_ns wait_ns exposed_wait_ns transfer_ns",
    start_ns="start of the rank's kernel, on the common clock",
    end_ns="its end",
)

COLLECTIVE_INSTANCES: Final = table(
    "collectives across ranks",
    "One collective that was found on several ranks and lies in the window of each.",
    "collective",
    column("kind", dtype=pl.Enum(KINDS), help="see “Collectives by size and group”"),
    GROUP,
    GROUP_SIZE,
    column("ranks", help="ranks on which it was found"),
    SIZE,
    Column("first_rank", pl.Int64, "the rank that arrived first"),
    Column("last_rank", pl.Int64, "the rank that arrived last", title="Last"),
    "start_ns",
    Column("arrival_ns", pl.Int64, "from the first start to the last", title="First to last"),
    "delay_ns",
    column("transfer_ns", help="from the last start to the last end"),
    column("wait_ns", help="summed over ranks"),
    column("exposed_wait_ns", help="the part of it in which the waiting rank computed nothing"),
    start_ns="first start, on the common clock",
)

RANK_WAITS: Final = table(
    "waits of a rank",
    "One rank, over the collectives that lie in the window of every rank that takes part.",
    "rank collectives",
    column("matched", help="those of them that were found on other ranks"),
    Column(
        "last", pl.Int64, "number of these in which it arrived last, by more than `tolerance_ns`", title="Arrived last"
    ),
    Column("last_share", pl.Float64, "last of matched", title="of them"),
    column("delay_ns", help="by which it alone held those up: from the last arrival but one to its own"),
    "communication_ns",
    column("wait_ns", help="in matched kernels, until all ranks had arrived"),
    column("exposed_wait_ns", help="the part of it in which nothing was computed"),
    column("transfer_ns", help="in matched kernels, after all had arrived"),
    Column("unmatched_ns", pl.Int64, "durations of the kernels that were not matched"),
    Column("wait_share", pl.Float64, "wait_ns of wait_ns + transfer_ns", title="Wait share"),
)


@dataclass(frozen=True, eq=False)
class Waits:
    """Arrivals and waits."""

    ranks: pl.DataFrame  #: `RANK_WAITS`
    collectives: pl.DataFrame  #: `COLLECTIVE_INSTANCES`, in order of their begin
    members: pl.DataFrame  #: `MEMBERS`
    tolerance_ns: int  #: a rank counts as the last only if it was behind by more than this


def waits(
    events: pl.DataFrame,
    instance: Int64s,
    start: Int64s,
    end: Int64s,
    summaries: Sequence[RankSummary],
    ranks: Sequence[int],
    tolerance_ns: int,
) -> Waits:
    """Arrivals and waits of the collectives that lie in the window on every participating rank.

    Args:
        events: of `across.all_events`.
        instance: the collective of each event, −1 for none; shape (events,).
        start, end: of each event on the common clock; shape (events,).
        summaries: for the exposed communication of each rank.
        tolerance_ns: possible error of the clocks.
    """
    rank = np.asarray(ranks, dtype=np.int64)[events["place"].to_numpy()]
    events_on_clock = events.select(
        "event", "place", "kind", "group", "group_size", "size_bytes", "in_window", "exposed_ns"
    ).with_columns(
        pl.Series("collective", instance),
        pl.Series("rank", rank),
        pl.Series("own_start_ns", events["start_ns"].to_numpy()),
        pl.Series("start_ns", start),
        pl.Series("end_ns", end),
    )
    inside = events_on_clock.filter("in_window")
    matched = events_on_clock.filter((pl.col("collective") >= 0) & pl.col("in_window").all().over("collective"))
    # One rank's window may end before another's: a single remaining event has no waits.
    matched = matched.filter(pl.len().over("collective") > 1)
    arrived = pl.col("start_ns").max().over("collective")
    matched = matched.with_columns(
        (pl.min_horizontal(arrived, "end_ns") - pl.col("start_ns")).alias("wait_ns"),
        (pl.col("end_ns") - pl.min_horizontal(arrived, "end_ns")).alias("transfer_ns"),
    )
    # The exposed intervals are in the file's own clock; durations are the same in both but for the drift.
    wait_begins = matched["own_start_ns"].to_numpy()
    wait_ends = wait_begins + matched["wait_ns"].to_numpy()
    exposed = np.zeros(matched.height, dtype=np.int64)
    for place, summary in enumerate(summaries):
        rows = (matched["place"] == place).to_numpy()
        exposed[rows] = measure_before(summary.exposed, wait_ends[rows]) - measure_before(
            summary.exposed, wait_begins[rows]
        )
    matched = matched.with_columns(pl.Series("exposed_wait_ns", exposed))
    collectives = _instances(matched)
    return Waits(
        ranks=_by_rank(inside, matched, collectives, ranks, tolerance_ns),
        collectives=collectives,
        members=MEMBERS.conform(matched).sort("collective", "rank"),
        tolerance_ns=tolerance_ns,
    )


#: A rank is the straggler if it causes this many times its even share of all delay (of two ranks: three quarters), and
#: arrives last more often than its even share.
_STANDS_OUT: Final = 2.0
#: Several ranks are late together if in this share of collectives all of them arrive after all others, which chance
#: hardly does, and if the time between is that share of the time from the first arrival to the last: more than jitter.
_TOGETHER: Final = 0.5
_OF_SPREAD: Final = 0.25
#: Least mean waiting of the others for them alone, with nothing to compute, of the rest of their time. Less is chance.
_LEAST_HELD: Final = 0.02


def stragglers(waits: Waits, balance: Balance) -> tuple[int, ...]:
    """The ranks that the others wait for, the latest first; empty where none stand out or cost time.

    Ranks that are equally late, as those of a slow node, are late together. They are at most half of the ranks.
    """
    if not waits.collectives.height:
        return ()
    together, alone = _late_together(waits), _latest_alone(waits)
    if len(together) > 1 and _are_apart(waits, together) and _costs(waits, balance, together):
        return together
    return alone if _stands_out(waits, alone[0]) and _costs(waits, balance, alone) else ()


def _late_together(waits: Waits) -> tuple[int, ...]:
    """The latest ranks by their median arrival, up to the longest time between two that follow each other."""
    first = waits.collectives.select("collective", first_ns="start_ns")
    behind = (pl.col("start_ns") - pl.col("first_ns")).median().alias("behind_ns")
    arrivals = waits.members.join(first, on="collective").group_by("rank").agg(behind)
    arrivals = arrivals.sort(["behind_ns", "rank"], descending=[True, False])
    steps = -np.diff(arrivals["behind_ns"].to_numpy())[: arrivals.height // 2]
    return tuple(arrivals["rank"].to_list()[: int(steps.argmax()) + 1]) if len(steps) else ()


def _are_apart(waits: Waits, late: Sequence[int]) -> bool:
    """Whether these ranks arrive after all others in most collectives, and by more than the ranks jitter."""
    is_late, start = pl.col("rank").is_in(list(late)), pl.col("start_ns")
    arrivals = waits.members.group_by("collective").agg(
        gap=(start.filter(is_late).min() - start.filter(~is_late).max()).clip(lower_bound=0),
        spread=start.max() - start.min(),
    )
    arrivals = arrivals.drop_nulls("gap")
    often = (arrivals["gap"] > waits.tolerance_ns).sum() >= _TOGETHER * arrivals.height
    return often and int(arrivals["gap"].sum()) >= _OF_SPREAD * int(arrivals["spread"].sum())


def _latest_alone(waits: Waits) -> tuple[int, ...]:
    """The rank that alone caused most delay."""
    return (int(waits.ranks.sort(["delay_ns", "rank"], descending=[True, False])["rank"][0]),)


def _stands_out(waits: Waits, rank: int) -> bool:
    row = waits.ranks.row(by_predicate=pl.col("rank") == rank, named=True)
    even = 1 / waits.ranks.filter(pl.col("matched") > 0).height
    caused = row["delay_ns"] / max(1, int(waits.ranks["delay_ns"].sum()))
    return bool(row["last"] and row["last_share"] > even and caused >= min(_STANDS_OUT * even, (1 + even) / 2))


def _costs(waits: Waits, balance: Balance, late: Sequence[int]) -> bool:
    held = held_up(waits, late).join(balance.ranks.select("rank", "duration_ns"), on="rank")
    held_ns, window_ns = (int(held[column].sum()) for column in ("held_ns", "duration_ns"))
    return held_ns > _LEAST_HELD * (window_ns - held_ns)


def delays(waits: Waits, late: Sequence[int]) -> pl.DataFrame:
    """The collectives that these ranks alone delayed: `collective`, and `delay_ns` from the last other arrival on.

    Delays within the error of the clocks are left out.
    """
    start = pl.col("start_ns")
    delay = (start.max() - start.filter(~pl.col("rank").is_in(list(late))).max()).alias("delay_ns")
    delayed = waits.members.group_by("collective", maintain_order=True).agg(delay)
    return delayed.filter(pl.col("delay_ns") > waits.tolerance_ns)


def held_up(waits: Waits, late: Sequence[int]) -> pl.DataFrame:
    """Time that each other rank waited for these alone, without anything to compute: `rank`, `held_ns`.

    Of a wait, this is the part between the last other arrival and the last: the rest is due to other late ranks.
    """
    others = waits.members.filter(~pl.col("rank").is_in(list(late))).join(delays(waits, late), on="collective")
    caused = pl.min_horizontal("exposed_wait_ns", "delay_ns").sum()
    return others.group_by("rank").agg(held_ns=caused).sort("rank")


def _instances(matched: pl.DataFrame) -> pl.DataFrame:
    by_arrival = pl.col("rank").sort_by("start_ns", "rank")
    second = pl.col("start_ns").sort().get(-2)
    instances = matched.group_by("collective").agg(
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
    return COLLECTIVE_INSTANCES.conform(instances).sort("start_ns", "collective")


def _by_rank(
    inside: pl.DataFrame, matched: pl.DataFrame, collectives: pl.DataFrame, ranks: Sequence[int], tolerance_ns: int
) -> pl.DataFrame:
    """How long each rank waits in collectives, and how often it is the last one (`RANK_WAITS`)."""
    duration = duration_ns()
    in_window = inside.group_by("rank").agg(
        pl.len().cast(pl.Int64).alias("collectives"), duration.sum().alias("communication_ns")
    )
    shared = matched.group_by("rank").agg(
        pl.len().cast(pl.Int64).alias("matched"),
        pl.col("wait_ns", "exposed_wait_ns", "transfer_ns").sum(),
        duration.sum().alias("matched_ns"),
    )
    late = collectives.filter(pl.col("delay_ns") > tolerance_ns)
    delays = late.group_by(pl.col("last_rank").alias("rank")).agg(
        pl.len().cast(pl.Int64).alias("last"), pl.col("delay_ns").sum()
    )
    table = pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int64})
    for part in (in_window, shared, delays):
        table = table.join(part, on="rank", how="left", maintain_order="left")
    table = table.with_columns(pl.exclude("rank").fill_null(0))
    table = table.with_columns(
        ratio(pl.col("last"), pl.col("matched")).alias("last_share"),
        (pl.col("communication_ns") - pl.col("matched_ns")).alias("unmatched_ns"),
        ratio(pl.col("wait_ns"), pl.col("wait_ns") + pl.col("transfer_ns")).alias("wait_share"),
    )
    return RANK_WAITS.conform(table).sort("rank")
