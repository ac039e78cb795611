"""The tables about many ranks: for the terminal, and for the document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report.document import Table, TableColumn
from warplens.report.overview.words import part_title

if TYPE_CHECKING:
    from warplens.analysis.ranks.across import RanksResult

__all__ = [
    "clock_table",
    "collective_table",
    "instance_table",
    "matching_table",
    "part_table",
    "rank_rows",
    "rank_table",
    "step_table",
    "wait_table",
]

_RANK: Final = TableColumn("rank", "Rank", "count")

_RANKS: Final = (
    _RANK,
    TableColumn("source", "File", "name"),
    TableColumn("duration_ns", "Window", "duration_ns"),
    TableColumn("compute_ns", "Compute", "duration_ns", "At least one kernel runs that is no communication."),
    TableColumn("exposed_ns", "Exposed comm.", "duration_ns", "Communication that no compute hides."),
    TableColumn("overlapped_ns", "Hidden comm.", "duration_ns", "Communication while compute runs."),
    TableColumn("overlap_share", "Overlap", "share", "Hidden communication of all communication."),
    TableColumn("copy_ns", "Copies", "duration_ns", "Copies and fills that nothing hides."),
    TableColumn("idle_ns", "Idle", "duration_ns"),
    TableColumn("idle_share", "Idle share", "share"),
)
_PROCESS: Final = (TableColumn("process", "Process", "text"), TableColumn("device", "GPU", "text"))
_GRAPH: Final = TableColumn("graph_ns", "In graphs", "duration_ns", "Inside CUDA graphs that were traced as a whole.")
_PER_STEP: Final = TableColumn("compute_per_step_ns", "Compute per step", "duration_ns")

_WAITS: Final = (
    _RANK,
    TableColumn("matched", "Collectives", "count", "Its communication kernels that were found on other ranks."),
    TableColumn("last", "Arrived last", "count", "By more than the residual of the clocks."),
    TableColumn("last_share", "of them", "share"),
    TableColumn("delay_ns", "Held up for", "duration_ns", "From the last arrival but one to this rank's."),
    TableColumn("wait_ns", "Waited", "duration_ns", "In communication kernels, until all ranks had arrived."),
    TableColumn("exposed_wait_ns", "Waited, exposed", "duration_ns", "The part in which it computed nothing."),
    TableColumn("transfer_ns", "Transfer", "duration_ns", "In communication kernels after all had arrived."),
    TableColumn("wait_share", "Wait share", "share", "Of waiting and transfer."),
    TableColumn("unmatched_ns", "Unmatched", "duration_ns", "Communication that was found on no other rank."),
)

_GROUPS: Final = (
    TableColumn("kind", "Collective", "text"),
    TableColumn("group", "Group", "name"),
    TableColumn("group_size", "Ranks", "count"),
    TableColumn("size_bytes", "Size", "bytes", "As nccl-tests counts it."),
    TableColumn("kernels", "Kernels", "count", "Over all ranks."),
    TableColumn("total_ns", "Time", "duration_ns", "Summed over all ranks."),
    TableColumn("median_ns", "Own median", "duration_ns", "Duration of a kernel, waiting included."),
    TableColumn("transfer_median_ns", "Transfer median", "duration_ns", "From the last arrival to the last end."),
    TableColumn("algorithm_bytes_per_s", "Algorithm bw", "bandwidth", "Size / transfer."),
    TableColumn("bus_bytes_per_s", "Bus bw", "bandwidth", "Algorithm bandwidth × the factor of nccl-tests."),
    TableColumn("own_bus_bytes_per_s", "Bus bw, own", "bandwidth", "The same from the kernels' own durations."),
)

_PARTS: Final = (
    TableColumn("group", "Group", "text"),
    TableColumn("title", "Part", "text"),
    TableColumn("share", "Share", "share", "Of all ranks' windows."),
    TableColumn("mean_ns", "Mean", "duration_ns"),
    TableColumn("min_ns", "Least", "duration_ns"),
    TableColumn("max_ns", "Most", "duration_ns"),
    TableColumn("max_rank", "Most in rank", "count"),
)

_STEPS: Final = (
    TableColumn("step", "Step", "count"),
    TableColumn("wall_max_ns", "Longest", "duration_ns"),
    TableColumn("compute_mean_ns", "Compute, mean", "duration_ns"),
    TableColumn("compute_max_ns", "Compute, most", "duration_ns"),
    TableColumn("compute_max_rank", "in rank", "count"),
    TableColumn("imbalance", "Most / mean", "number"),
    TableColumn("exposed_mean_ns", "Exposed comm., mean", "duration_ns"),
    TableColumn("idle_mean_ns", "Idle, mean", "duration_ns"),
    TableColumn("in_window", "In window", "text"),
)

_CLOCKS: Final = (
    _RANK,
    TableColumn("clock", "Clock", "text"),
    TableColumn("aligned", "Comparable", "text"),
    TableColumn("shift_ns", "Shifted by", "duration_ns", "What collectives added to its clock."),
    TableColumn("drift_ppm", "Drift (ppm)", "number"),
    TableColumn("collectives", "From", "count", "Collectives that the estimate rests on."),
    TableColumn("residual_median_ns", "Residual, median", "duration_ns"),
    TableColumn("residual_max_ns", "Residual, largest", "duration_ns"),
)

_MATCHING: Final = (
    TableColumn("group", "Group", "name"),
    TableColumn("group_ranks", "Its ranks", "name"),
    TableColumn("kind", "Kind", "text"),
    TableColumn("ranks", "Ranks", "count"),
    TableColumn("method", "Paired by", "text"),
    TableColumn("kernels", "Kernels", "count"),
    TableColumn("matched", "Matched", "count"),
    TableColumn("rejected", "Rejected", "count", "Partners that did not run at the same time."),
    TableColumn("matched_share", "Share", "share"),
)

_INSTANCES: Final = (
    TableColumn("collective", "Number", "count"),
    TableColumn("kind", "Collective", "text"),
    TableColumn("group", "Group", "name"),
    TableColumn("ranks", "Ranks", "count"),
    TableColumn("size_bytes", "Size", "bytes"),
    TableColumn("last_rank", "Last", "count", "The rank that arrived last."),
    TableColumn("delay_ns", "It alone held up", "duration_ns"),
    TableColumn("arrival_ns", "First to last", "duration_ns", "From the first arrival to the last."),
    TableColumn("wait_ns", "All waited", "duration_ns", "Summed over ranks."),
    TableColumn("exposed_wait_ns", "exposed", "duration_ns"),
    TableColumn("transfer_ns", "Transfer", "duration_ns"),
)


def rank_rows(result: RanksResult) -> pl.DataFrame:
    """Everything about each rank in one row: its times, its waits, its clock."""
    waits = result.waits.ranks.drop("communication_ns")
    clocks = result.alignment.ranks.drop("collectives")
    return result.balance.ranks.join(waits, on="rank", how="left", maintain_order="left").join(
        clocks, on="rank", how="left", maintain_order="left"
    )


def rank_table(result: RanksResult) -> Table:
    """Where each rank's time went."""
    rows = result.balance.ranks
    columns = list(_RANKS)
    if rows["process"].count():
        columns[2:2] = _PROCESS
    if rows["graph_ns"].sum():
        columns.insert(columns.index(_RANKS[4]), _GRAPH)
    if rows["compute_per_step_ns"].count():
        columns.append(_PER_STEP)
    return Table("ranks", "Where each rank's time went", tuple(columns), rows)


def wait_table(result: RanksResult) -> Table:
    """Who arrives last, and how long everyone waits."""
    return Table("waits", "Arrivals and waits in communication", _WAITS, result.waits.ranks)


def collective_table(result: RanksResult) -> Table:
    """Collectives by kind, group and size."""
    rows = result.groups
    recorded = [
        column
        for column in _GROUPS
        if column.key in ("kind", "kernels", "total_ns", "median_ns") or rows[column.key].count()
    ]
    return Table(
        "collectives", "Collectives by kind, process group and size", tuple(recorded), rows, empty="No communication."
    )


def part_table(result: RanksResult) -> Table:
    """The time budget over all ranks."""
    parts = result.balance.parts.with_columns(pl.col("group").cast(pl.String))
    titles = [part_title(group, part) for group, part in parts.select("group", "part").rows()]
    rows = parts.with_columns(pl.Series("title", titles, dtype=pl.String))
    return Table("budget", "Time budget of all ranks", _PARTS, rows, limit=None)


def step_table(result: RanksResult) -> Table:
    """The steps that all ranks have."""
    return Table(
        "steps",
        "Steps across ranks",
        _STEPS,
        result.balance.step_balance,
        empty="The ranks share no steps: none were found, or not the same number in each.",
    )


def clock_table(result: RanksResult) -> Table:
    """How the clocks were brought together."""
    return Table("clocks", "Clocks", _CLOCKS, result.alignment.ranks)


def matching_table(result: RanksResult) -> Table:
    """How collectives were found on several ranks."""
    return Table(
        "matching", "The same collective on several ranks", _MATCHING, result.matching, empty="No communication."
    )


def instance_table(result: RanksResult) -> Table:
    """The collectives in which most time was waited."""
    rows = result.waits.collectives.sort(["wait_ns", "collective"], descending=[True, False])
    return Table(
        "worst", "Collectives with most waiting", _INSTANCES, rows, empty="No collective was found on several ranks."
    )
