"""CUDA API calls on the host: how often, how long, which thread, and which of them held it until the GPU was done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.apikinds import API_KIND, api_kinds, blocks_host
from warplens.analysis.spread import conform, duration_ns, ratio, spread, spread_schema
from warplens.errors import UsageError
from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = [
    "API_KEYS",
    "API_SCHEMA",
    "BLOCKING_SCHEMA",
    "SYNCHRONIZATION_KEYS",
    "SYNCHRONIZATION_SCHEMA",
    "api_statistics",
    "blocking_calls",
    "synchronization_statistics",
]

#: What API calls can be grouped by, with the type of the column.
API_KEYS: Final = pl.Schema({"name": pl.String(), "kind": API_KIND, "process": pl.Int32(), "thread": pl.Int32()})

#: Schema of `api_statistics`, after the columns that it groups by. Time is in nanoseconds of the host.
API_SCHEMA: Final = pl.Schema(
    {
        "calls": pl.Int64(),
        **spread_schema(),
        "share": pl.Float64(),  # of the summed time of all API calls in the window, not of its length
    }
)

#: What waits can be grouped by, with the type of the column.
SYNCHRONIZATION_KEYS: Final = pl.Schema(
    {"kind": pl.String(), "device": pl.Int32(), "process": pl.Int32(), "thread": pl.Int32()}
)

#: Schema of `synchronization_statistics`, after the columns that it groups by. Time is in nanoseconds.
SYNCHRONIZATION_SCHEMA: Final = pl.Schema({"waits": pl.Int64(), **spread_schema(), "share": pl.Float64()})

_REASON: Final = pl.Enum(["synchronization", "synchronous-copy", "pageable-copy"])

#: Schema of `blocking_calls`. Time is in nanoseconds of the host.
BLOCKING_SCHEMA: Final = pl.Schema(
    {
        "reason": _REASON,  # why the call holds the host
        "name": pl.String(),
        "process": pl.Int32(),
        "thread": pl.Int32(),
        "calls": pl.Int64(),
        **spread_schema(),
    }
)


def api_statistics(timeline: Timeline, window: Window, by: Sequence[str] = ("name", "kind")) -> pl.DataFrame:
    """How often and how long each CUDA API function was called, the most time first.

    With functions as rows, the numbers are those of `nsys stats -r cuda_api_sum`. That report keeps version suffixes
    that are not four digits long (`cudaGraphLaunch_v10000`), and shows a function that the file knows under two names
    in two rows of the same label.

    Args:
        timeline: the profile.
        window: the part of it that counts; a call belongs to it by its begin.
        by: any of `API_KEYS`.

    Returns:
        The columns of `by`, then `API_SCHEMA`.

    Raises:
        UsageError: `by` is empty or names something else.
    """
    _require_keys("API calls", by, API_KEYS)
    calls = timeline.api_calls_in(window)
    if "kind" in by:
        calls = calls.with_columns(api_kinds(calls["name"]))
    statistics = (
        calls.group_by(by)
        .agg(pl.len().alias("calls"), *spread(duration_ns()))
        .with_columns(ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    )
    schema = pl.Schema({**{key: API_KEYS[key] for key in by}, **API_SCHEMA})
    return _longest_first(conform(statistics, schema), by)


def synchronization_statistics(timeline: Timeline, window: Window, by: Sequence[str] = ("kind",)) -> pl.DataFrame:
    """How often and how long the host waited for the GPU, or a stream for an event, the most time first.

    The waits are those that the profiler recorded as such (`Trace.synchronizations`); a profile without that table
    gives no rows, and `blocking_calls` then still knows the waits by the names of the API functions.

    Args:
        timeline: the profile.
        window: the part of it that counts; a wait belongs to it by its begin.
        by: any of `SYNCHRONIZATION_KEYS`; the thread is that of the API call, null where it was not recorded.

    Returns:
        The columns of `by`, then `SYNCHRONIZATION_SCHEMA`; `share` is of the summed time of all waits.

    Raises:
        UsageError: `by` is empty or names something else.
    """
    _require_keys("waits", by, SYNCHRONIZATION_KEYS)
    waits = timeline.synchronizations_in(window)
    if "thread" in by:
        waiting = (
            timeline.trace.api_calls.select("process", "correlation", "thread", "start_ns")
            .join(waits, on=["process", "correlation"], how="semi")
            .sort("start_ns")
            .unique(["process", "correlation"], keep="first")
            .drop("start_ns")
        )
        waits = waits.join(waiting, on=["process", "correlation"], how="left")
    statistics = (
        waits.group_by(by)
        .agg(pl.len().alias("waits"), *spread(duration_ns()))
        .with_columns(ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    )
    schema = pl.Schema({**{key: SYNCHRONIZATION_KEYS[key] for key in by}, **SYNCHRONIZATION_SCHEMA})
    return _longest_first(conform(statistics, schema), by)


def blocking_calls(timeline: Timeline, window: Window) -> pl.DataFrame:
    """The API calls that held the host until the GPU was done, by reason, function and thread, the most time first.

    Three kinds do so: synchronisations; copies that do not say `Async`; and asynchronous copies of pageable memory,
    which the driver has to stage (CUDA Runtime API, "API synchronization behavior").

    Returns:
        `BLOCKING_SCHEMA`; each call counts in one row only.
    """
    calls = timeline.api_calls_in(window)
    blocking = pl.Series([blocks_host(name) for name in name_categories(calls["name"])], dtype=pl.Boolean)
    calls = calls.with_columns(api_kinds(calls["name"]), blocking.gather(calls["name"].to_physical()).alias("blocks"))
    from_pageable = _pageable_copies(timeline)
    by_name = calls.filter(pl.col("blocks")).with_columns(
        pl.when(pl.col("kind") == "sync")
        .then(pl.lit("synchronization", dtype=_REASON))
        .otherwise(pl.lit("synchronous-copy", dtype=_REASON))
        .alias("reason")
    )
    staged = (
        calls.filter((pl.col("kind") == "copy") & ~pl.col("blocks"))
        .join(from_pageable, on=["process", "correlation"], how="semi")
        .with_columns(pl.lit("pageable-copy", dtype=_REASON).alias("reason"))
    )
    keys = ["reason", "name", "process", "thread"]
    statistics = pl.concat([by_name, staged]).group_by(keys).agg(pl.len().alias("calls"), *spread(duration_ns()))
    return _longest_first(conform(statistics, BLOCKING_SCHEMA), keys)


def _pageable_copies(timeline: Timeline) -> pl.DataFrame:
    pageable = (pl.col("source_memory") == "pageable") | (pl.col("destination_memory") == "pageable")
    return timeline.trace.copies.filter(pageable).select("process", "correlation")


def _require_keys(what: str, by: Sequence[str], keys: pl.Schema) -> None:
    unknown = [key for key in by if key not in keys]
    if unknown or not by:
        raise UsageError(f"{what} cannot be grouped by {', '.join(unknown) or 'nothing'}; use {', '.join(keys)}")


def _longest_first(statistics: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    return statistics.sort(["total_ns", *by], descending=[True, *(False for _ in by)])
