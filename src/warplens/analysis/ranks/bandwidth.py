"""Collectives by kind, size and process group: how many, how long, and how fast the data moved.

Two times are given, and a bandwidth for each. The *own* duration of a kernel holds the waiting for late peers; it is
what a profile of one rank can tell. The *transfer*, from the last rank's arrival to the last end, is what the network
took; it needs the collective to be found on several ranks. Formulas: `warplens.analysis.ranks.kinds`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.ranks.kinds import KINDS, bus_factor
from warplens.analysis.spread import conform

__all__ = ["GROUP_SCHEMA", "collective_groups"]

Int64s = npt.NDArray[np.int64]

#: One row a kind, process group and size, over the window of every rank. Times in nanoseconds, bandwidths in bytes per
#: second, modelled from the recorded size and the measured time.
GROUP_SCHEMA: Final = pl.Schema(
    {
        "kind": pl.Enum(KINDS),
        "group": pl.String(),
        "group_size": pl.Int32(),
        "size_bytes": pl.Int64(),
        "kernels": pl.Int64(),  # over all ranks
        "collectives": pl.Int64(),  # found on several ranks; several kernels each
        "total_ns": pl.Int64(),  # summed durations of the kernels
        "exposed_ns": pl.Int64(),  # the part that no compute hid
        "median_ns": pl.Float64(),  # duration of a kernel
        "transfer_median_ns": pl.Float64(),  # from the last arrival to the last end; null where none is found
        "wait_ns": pl.Int64(),  # over all ranks, until all had arrived
        "algorithm_bytes_per_s": pl.Float64(),  # size / transfer_median_ns
        "bus_bytes_per_s": pl.Float64(),  # the same × the factor of the kind
        "own_algorithm_bytes_per_s": pl.Float64(),  # size / median_ns
        "own_bus_bytes_per_s": pl.Float64(),
    }
)

_KEY = ["kind", "group", "group_size", "size_bytes"]


def collective_groups(events: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """The collectives of the window by kind, group and size, those that took most time first.

    Args:
        events: of `matching.all_events`.
        collectives: `waits.INSTANCE_SCHEMA`.

    Returns:
        `GROUP_SCHEMA`.
    """
    duration = pl.col("end_ns") - pl.col("start_ns")
    kernels = (
        events.filter("in_window")
        .group_by(_KEY)
        .agg(
            pl.len().cast(pl.Int64).alias("kernels"),
            duration.sum().alias("total_ns"),
            pl.col("exposed_ns").sum(),
            duration.median().alias("median_ns"),
        )
    )
    moved = collectives.group_by(_KEY).agg(
        pl.len().cast(pl.Int64).alias("collectives"),
        pl.col("transfer_ns").median().alias("transfer_median_ns"),
        pl.col("wait_ns").sum(),
    )
    table = kernels.join(moved, on=_KEY, how="left", nulls_equal=True)
    factors = [bus_factor(kind, size) for kind, size in table.select("kind", "group_size").iter_rows()]
    table = table.with_columns(pl.col("collectives", "wait_ns").fill_null(0), pl.Series("factor", factors, pl.Float64))
    table = table.with_columns(
        _speed("transfer_median_ns").alias("algorithm_bytes_per_s"),
        _speed("median_ns").alias("own_algorithm_bytes_per_s"),
    ).with_columns(
        (pl.col("algorithm_bytes_per_s") * pl.col("factor")).alias("bus_bytes_per_s"),
        (pl.col("own_algorithm_bytes_per_s") * pl.col("factor")).alias("own_bus_bytes_per_s"),
    )
    return conform(table, GROUP_SCHEMA).sort(
        ["total_ns", *_KEY], descending=[True, *[False] * len(_KEY)], nulls_last=True
    )


def _speed(time: str) -> pl.Expr:
    return pl.when(pl.col(time) > 0).then(pl.col("size_bytes") / pl.col(time) * 1e9)
