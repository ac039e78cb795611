"""Where the ranks' time went side by side, and how evenly they computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.ranks.measures import STEP_TIME_SCHEMA, TIME_COLUMNS
from warplens.analysis.spread import conform, ratio
from warplens.analysis.timebudget import BUDGET_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.ranks.summary import RankSummary

__all__ = [
    "PART_SCHEMA",
    "RANK_BUDGET_SCHEMA",
    "RANK_SCHEMA",
    "RANK_STEP_SCHEMA",
    "STEP_BALANCE_SCHEMA",
    "Balance",
    "balance",
]

_TIMES: Final[dict[str, pl.DataType]] = {name: pl.Int64() for name in TIME_COLUMNS}

#: One row a rank: its window, and where the time of that went. Times are in nanoseconds.
RANK_SCHEMA: Final = pl.Schema(
    {
        "rank": pl.Int64(),
        "source": pl.String(),
        "process": pl.Int32(),  # null where the file holds one rank
        "device": pl.Int32(),
        "gpu": pl.String(),
        "steps": pl.Int64(),  # in the window
        **_TIMES,
        "compute_share": pl.Float64(),  # of the window
        "exposed_share": pl.Float64(),
        "idle_share": pl.Float64(),
        "overlap_share": pl.Float64(),  # overlapped_ns of communication_ns; null without communication
        "compute_per_step_ns": pl.Float64(),  # mean over the steps that are in the window of every rank
        "kernels": pl.Int64(),  # in the whole file
    }
)

#: One row a part of one rank's time budget.
RANK_BUDGET_SCHEMA: Final = pl.Schema({"rank": pl.Int64(), **BUDGET_SCHEMA})

#: One row a part of the time budget, over all ranks. Times are in nanoseconds; a rank without the part counts as 0.
PART_SCHEMA: Final = pl.Schema(
    {
        "group": BUDGET_SCHEMA["group"],
        "part": pl.String(),
        "time_ns": pl.Int64(),  # summed over ranks
        "share": pl.Float64(),  # of the summed windows
        "mean_ns": pl.Float64(),  # of a rank
        "min_ns": pl.Int64(),
        "max_ns": pl.Int64(),
        "max_rank": pl.Int64(),  # the rank that has the largest
    }
)

#: One row a step of one rank.
RANK_STEP_SCHEMA: Final = pl.Schema({"rank": pl.Int64(), **STEP_TIME_SCHEMA})

#: One row a step that every rank has. Times are in nanoseconds.
STEP_BALANCE_SCHEMA: Final = pl.Schema(
    {
        "step": pl.Int64(),
        "in_window": pl.Boolean(),  # on every rank
        "wall_max_ns": pl.Int64(),
        "compute_mean_ns": pl.Float64(),
        "compute_max_ns": pl.Int64(),
        "compute_max_rank": pl.Int64(),
        "imbalance": pl.Float64(),  # compute_max_ns / compute_mean_ns; 1 is even
        "exposed_mean_ns": pl.Float64(),
        "idle_mean_ns": pl.Float64(),
    }
)


@dataclass(frozen=True, eq=False)
class Balance:
    """The ranks side by side.

    Attributes:
        ranks: `RANK_SCHEMA`.
        budget: `RANK_BUDGET_SCHEMA`.
        parts: `PART_SCHEMA`.
        steps: `RANK_STEP_SCHEMA`.
        step_balance: `STEP_BALANCE_SCHEMA`; empty where the ranks found different numbers of steps, or none.
        imbalance: largest compute time of a rank by the mean of all, from common steps where there are any, else from
            the windows; None where nothing was computed.
        how: what `imbalance` rests on, one sentence.
    """

    ranks: pl.DataFrame
    budget: pl.DataFrame
    parts: pl.DataFrame
    steps: pl.DataFrame
    step_balance: pl.DataFrame
    imbalance: float | None
    how: str


def balance(summaries: Sequence[RankSummary], ranks: Sequence[int]) -> Balance:
    """The ranks side by side, in ascending order."""
    numbered = sorted(zip(ranks, summaries, strict=True), key=lambda item: item[0])
    steps = _stacked([(rank, summary.steps) for rank, summary in numbered], RANK_STEP_SCHEMA)
    counts = {summary.steps.height for _, summary in numbered}
    comparable = len(counts) == 1 and 0 not in counts
    step_balance = _steps(steps) if comparable else pl.DataFrame(schema=STEP_BALANCE_SCHEMA)
    common = set(step_balance.filter("in_window")["step"].to_list())
    table = _ranks(numbered, steps, common)
    if common:
        compute, how = (
            table["compute_per_step_ns"],
            f"mean compute time of the {len(common)} steps that all ranks share",
        )
    else:
        compute = table["compute_ns"].cast(pl.Float64)
        how = "compute time of the windows, since the ranks share no steps"
    mean = compute.mean()
    uneven = float(compute.max()) / mean if isinstance(mean, float) and mean > 0 else None  # type: ignore[arg-type]
    budget = _stacked([(rank, summary.budget) for rank, summary in numbered], RANK_BUDGET_SCHEMA)
    return Balance(table, budget, _parts(budget, table), steps, step_balance, uneven, how)


def _stacked(frames: Sequence[tuple[int, pl.DataFrame]], schema: pl.Schema) -> pl.DataFrame:
    parts = [frame.select(pl.lit(rank, dtype=pl.Int64).alias("rank"), pl.all()) for rank, frame in frames]
    return pl.concat([pl.DataFrame(schema=schema), *parts])


def _ranks(numbered: Sequence[tuple[int, RankSummary]], steps: pl.DataFrame, common: set[int]) -> pl.DataFrame:
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
    typed = {name: dtype for name, dtype in RANK_SCHEMA.items() if not name.endswith("_share")}
    typed.pop("compute_per_step_ns")
    per_step = (
        steps.filter(pl.col("step").is_in(sorted(common)))
        .group_by("rank")
        .agg(pl.col("compute_ns").mean().alias("compute_per_step_ns"))
    )
    table = pl.DataFrame(rows, schema=typed).join(per_step, on="rank", how="left", maintain_order="left")
    window = pl.col("duration_ns")
    return conform(
        table.with_columns(
            ratio(pl.col("compute_ns"), window).alias("compute_share"),
            ratio(pl.col("exposed_ns"), window).alias("exposed_share"),
            ratio(pl.col("idle_ns"), window).alias("idle_share"),
            ratio(pl.col("overlapped_ns"), pl.col("communication_ns")).alias("overlap_share"),
        ),
        RANK_SCHEMA,
    )


def _parts(budget: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    whole, count = int(table["duration_ns"].sum()), table.height
    everywhere = pl.len() == count
    found = budget.group_by("group", "part").agg(
        pl.col("time_ns").sum(),
        (pl.col("time_ns").sum() / count).alias("mean_ns"),
        pl.when(everywhere).then(pl.col("time_ns").min()).otherwise(0).alias("min_ns"),
        pl.col("time_ns").max().alias("max_ns"),
        pl.col("rank").sort_by("time_ns", "rank", descending=[True, False]).first().alias("max_rank"),
    )
    found = found.with_columns(ratio(pl.col("time_ns"), pl.lit(whole)).alias("share"))
    return conform(found, PART_SCHEMA).sort(["group", "time_ns", "part"], descending=[False, True, False])


def _steps(steps: pl.DataFrame) -> pl.DataFrame:
    largest = pl.col("rank").sort_by("compute_ns", "rank", descending=[True, False]).first()
    found = steps.group_by("step").agg(
        pl.col("in_window").all(),
        pl.col("duration_ns").max().alias("wall_max_ns"),
        pl.col("compute_ns").mean().alias("compute_mean_ns"),
        pl.col("compute_ns").max().alias("compute_max_ns"),
        largest.alias("compute_max_rank"),
        pl.col("exposed_ns").mean().alias("exposed_mean_ns"),
        pl.col("idle_ns").mean().alias("idle_mean_ns"),
    )
    found = found.with_columns(ratio(pl.col("compute_max_ns"), pl.col("compute_mean_ns")).alias("imbalance"))
    return conform(found, STEP_BALANCE_SCHEMA).sort("step")
