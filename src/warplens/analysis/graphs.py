"""CUDA graphs: which were launched, how often, how many nodes each launch replays, and what stays hidden.

A profile shows a graph in one of two ways. With node tracing each kernel, copy and memset of a launch is recorded by
itself, and all other analyses see it. With graph tracing a launch is one interval and its inside is hidden: the GPU was
busy, with unknown work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from warplens.analysis.apikinds import api_kinds
from warplens.analysis.once import once
from warplens.analysis.spread import conform, duration_ns, ratio, spread, spread_schema
from warplens.analysis.streams import busy_ns, work_inside
from warplens.analysis.timeline import WORK_KINDS

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["GRAPH_SCHEMA", "GraphSummary", "graph_statistics", "graph_summary"]

_TRACED: Final = pl.Enum(["whole", "nodes"])

#: One row a graph. Time is in nanoseconds; a launch lasts from the begin of its first work to the end of its last.
GRAPH_SCHEMA: Final = pl.Schema(
    {
        "traced": _TRACED,  # `whole`: the inside is hidden; `nodes`: every node is recorded
        "device": pl.Int32(),
        "graph": pl.Int64(),  # id of the graph; for `nodes` the id of the first node it replays; null where unknown
        "launches": pl.Int64(),
        "nodes_per_launch": pl.Float64(),  # mean; null where the inside is hidden
        **spread_schema(),
        "share": pl.Float64(),  # of the summed time of all graph launches in the window
    }
)


@dataclass(frozen=True)
class GraphSummary:
    """The CUDA graph launches of a window.

    Attributes:
        whole_launches: launches that were traced as a whole.
        node_launches: launches whose nodes were recorded.
        nodes: kernels, copies and memsets that were recorded as nodes of a graph.
        nodes_per_launch: smallest, median and largest number of nodes of a launch; None without node tracing.
        busy_ns: time in which at least one graph's work ran, hidden or not, summed over devices.
        hidden_ns: time inside launches that were traced as a whole, summed over devices.
        gpu_busy_ns: time in which anything at all ran, summed over devices.
        busy_share, hidden_share: of `gpu_busy_ns`; None where nothing ran.
    """

    whole_launches: int
    node_launches: int
    nodes: int
    nodes_per_launch: tuple[int, float, int] | None
    busy_ns: int
    hidden_ns: int
    gpu_busy_ns: int
    busy_share: float | None
    hidden_share: float | None


def graph_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """How often each graph was launched and how long a launch took on the GPU, the most time first.

    Returns:
        `GRAPH_SCHEMA`; no rows where no graph was launched.
    """
    launches = pl.concat(
        [_whole_launches(timeline, window), _node_launches(_nodes(timeline, timeline.work_in(window)))]
    )
    statistics = (
        launches.group_by("traced", "device", "graph")
        .agg(
            pl.len().alias("launches"),
            pl.col("nodes").mean().alias("nodes_per_launch"),
            *spread(duration_ns()),
        )
        .with_columns(ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    )
    order = ["total_ns", "traced", "device", "graph"]
    return conform(statistics, GRAPH_SCHEMA).sort(order, descending=[True, False, False, False])


@once
def graph_summary(timeline: Timeline, window: Window) -> GraphSummary:
    """How many graphs were launched, how much of the GPU's busy time is theirs, and how much of it stays hidden.

    Launches and nodes belong to the window by their begin; times are those inside it.
    """
    nodes = _nodes(timeline, timeline.work_in(window))
    per_launch = _node_launches(nodes)["nodes"]
    running = work_inside(timeline, window)
    hidden_work = running.filter(pl.col("kind") == "graph")
    gpu_busy, hidden = busy_ns(running), busy_ns(hidden_work)
    busy = busy_ns(pl.concat([hidden_work, _nodes(timeline, running).drop("node")]))
    return GraphSummary(
        whole_launches=timeline.graphs_in(window).height,
        node_launches=per_launch.len(),
        nodes=nodes.height,
        nodes_per_launch=(min(per_launch), float(np.median(per_launch)), max(per_launch)) if per_launch.len() else None,
        busy_ns=busy,
        hidden_ns=hidden,
        gpu_busy_ns=gpu_busy,
        busy_share=busy / gpu_busy if gpu_busy else None,
        hidden_share=hidden / gpu_busy if gpu_busy else None,
    )


def _whole_launches(timeline: Timeline, window: Window) -> pl.DataFrame:
    return timeline.graphs_in(window).select(
        pl.lit("whole", dtype=_TRACED).alias("traced"),
        "device",
        "graph",
        pl.lit(None, dtype=pl.Int64).alias("nodes"),
        "start_ns",
        "end_ns",
    )


def _node_launches(nodes: pl.DataFrame) -> pl.DataFrame:
    """One row a launch and device. All nodes of a launch carry the correlation id of the call that launched them."""
    return (
        nodes.group_by("process", "correlation", "device")
        .agg(
            pl.col("node").min().alias("graph"),
            pl.len().cast(pl.Int64).alias("nodes"),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
        )
        .select(pl.lit("nodes", dtype=_TRACED).alias("traced"), "device", "graph", "nodes", "start_ns", "end_ns")
    )


def _nodes(timeline: Timeline, work: pl.DataFrame) -> pl.DataFrame:
    """The pieces of work that graphs replayed one by one, with the id of their node where it is recorded (`node`)."""
    trace = timeline.trace
    ids = {kind: getattr(trace, WORK_KINDS[kind])["graph_node"] for kind in ("kernel", "copy", "memset")}
    launching = api_kinds(trace.api_calls["name"]) == "graph-launch"
    if not launching.any() and all(series.null_count() == series.len() for series in ids.values()):
        return work.clear().with_columns(pl.lit(None, dtype=pl.Int64).alias("node"))
    by_kind = pl.concat(
        [
            part.with_columns(ids[kind].gather(part["row"]).alias("node"))
            for kind in ids
            for part in [work.filter(pl.col("kind") == kind)]
        ]
    )
    started = launching.gather(by_kind["api_row"]).fill_null(value=False)
    return by_kind.filter(started | pl.col("node").is_not_null())
