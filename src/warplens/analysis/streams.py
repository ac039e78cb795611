"""Streams: the work of each, kernels that run concurrently, and copies overlapped by kernels.

Unlike other tables, these count time inside the window: work that reaches over an edge counts with its part inside, so
that the times of a device sum to the window exactly. A CUDA graph traced as a whole counts as one kernel: the GPU was
busy, but its content is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import launches_graph
from warplens.analysis.frames import duration_ns, numbered, once, ratio, select_rows, spread
from warplens.analysis.intervals import Intervals, clip, total, union, without
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import SPREAD, column, table
from warplens.profile.schema import Column, Int64s, name_categories, rows_named
from warplens.profile.trace import WORK_KINDS

STREAMS: Final = table(
    "streams",
    "One stream of a GPU and process. `warplens.analysis.streams.stream_statistics`.",
    "device process stream kernels copies memsets",
    Column("graphs", pl.Int64, "number of CUDA graphs traced as a whole"),
    "busy_ns share",
    busy_ns="time with at least one of them running",
    share="`busy_ns` of the window",
)

CONCURRENCY: Final = table(
    "concurrency",
    "One number of kernels that run at once on a GPU. `warplens.analysis.streams.concurrency`.",
    "device",
    Column("kernels_at_once", pl.Int64, "how many run"),
    "time_ns",
    Column("at_least_ns", pl.Int64, "time with so many or more", title="So many or more"),
    "share",
    time_ns="time with exactly so many; sums to the window on each GPU",
    share="`time_ns` of the window",
)

OVERLAPS: Final = table(
    "overlap of copies and kernels",
    "One GPU. `warplens.analysis.streams.copy_overlap`.",
    "device",
    column("kernel_ns", help="time with at least one kernel"),
    column("copy_ns", help="time with at least one copy or memset"),
    column("overlapped_ns", help="time with both", title="Overlapped"),
    column("exposed_ns", help="time with copies or memsets alone", title="Exposed"),
    Column("overlapped_share", pl.Float64, "`overlapped_ns` of `copy_ns`; null without copies"),
)


def work_inside(timeline: Timeline, window: Window) -> pl.DataFrame:
    """All work that runs in the window, clipped to it: columns of `Timeline.work` without those of the launch."""
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "device", "stream", "process", "api_row")
    if window.range_name is not None:
        work = work.filter(pl.Series(timeline.in_range(window.range_name)))
    work = select_rows(work, (work["start_ns"] < window.end_ns) & (work["end_ns"] > window.start_ns))
    # Few rows reach beyond an edge, mostly none.
    clipped = [
        column
        for column, reaches_over in (
            (pl.col("start_ns").clip(lower_bound=window.start_ns), work["start_ns"] < window.start_ns),
            (pl.col("end_ns").clip(upper_bound=window.end_ns), work["end_ns"] > window.end_ns),
        )
        if reaches_over.any()
    ]
    return work.with_columns(clipped) if clipped else work


def busy_ns(work: pl.DataFrame) -> int:
    """Time in which at least one of these pieces of work ran, summed over devices."""
    return sum(total(union(_intervals(work, pl.col("device") == device))) for device in work["device"].unique())


def busy_by(work: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """`busy_ns` of each group: the time in which at least one of its pieces of work ran."""
    heads, group = numbered(work, keys)
    order = np.argsort(group, kind="stable") if heads.height > 1 else np.arange(work.height)
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    cuts = np.searchsorted(group[order], np.arange(1, heads.height))
    rows_by_group = np.split(order, cuts) if heads.height else []
    busy = [total(union(Intervals(starts[rows], ends[rows]))) for rows in rows_by_group]
    return heads.with_columns(pl.Series("busy_ns", busy, pl.Int64))


#: Count column of each kind of work.
_COUNT_COLUMNS: Final = {"kernel": "kernels", "copy": "copies", "memset": "memsets", "graph": "graphs"}


@once
def stream_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Work and busy time of each stream inside the window, the busiest first.

    Returns:
        `STREAMS`.
    """
    keys = ["device", "process", "stream"]
    work = work_inside(timeline, window)
    streams, stream = numbered(work, keys)
    kinds = name_categories(work["kind"])
    rows = stream * kinds.len() + work["kind"].to_physical().to_numpy()
    counts = np.bincount(rows, minlength=streams.height * kinds.len()).reshape(streams.height, kinds.len())
    statistics = busy_by(work, keys).with_columns(
        *(pl.Series(_COUNT_COLUMNS[kind], counts[:, code], dtype=pl.Int64) for code, kind in enumerate(kinds)),
        ratio(pl.col("busy_ns"), pl.lit(window.duration_ns)).alias("share"),
    )
    return STREAMS.conform(statistics).sort(["busy_ns", *keys], descending=[True, False, False, False])


@once
def concurrency(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Time with none, one, two, … concurrent kernels, for each device that worked in the window.

    Returns:
        `CONCURRENCY`, by device and ascending number; numbers that never occurred are left out.
    """
    work = work_inside(timeline, window)
    parts = []
    for device in work["device"].unique().sort():
        kernels = _intervals(work, (pl.col("device") == device) & _is_compute())
        time_by_level = _levels(kernels, window)
        parts.append(
            pl.DataFrame({"kernels_at_once": np.arange(len(time_by_level)), "time_ns": time_by_level})
            .filter(pl.col("time_ns") > 0)
            .with_columns(
                pl.lit(device).alias("device"),
                pl.col("time_ns").reverse().cum_sum().reverse().alias("at_least_ns"),
                ratio(pl.col("time_ns"), pl.lit(window.duration_ns)).alias("share"),
            )
        )
    return pl.concat([CONCURRENCY.empty(), *(CONCURRENCY.conform(part) for part in parts)])


def copy_overlap(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Overlap of copies and memsets with kernels, for each device that worked in the window.

    Returns:
        `OVERLAPS`, by device.
    """
    work = work_inside(timeline, window)
    rows = []
    for device in work["device"].unique().sort():
        kernels = union(_intervals(work, (pl.col("device") == device) & _is_compute()))
        copies = union(_intervals(work, (pl.col("device") == device) & ~_is_compute()))
        copied, exposed = total(copies), total(without(copies, kernels))
        share = (copied - exposed) / copied if copied else None
        rows.append((device, total(kernels), copied, copied - exposed, exposed, share))
    return pl.DataFrame(rows, schema=OVERLAPS.schema, orient="row")


def _is_compute() -> pl.Expr:
    return pl.col("kind").is_in(["kernel", "graph"])


def _intervals(work: pl.DataFrame, condition: pl.Expr) -> Intervals:
    """The intervals of the work that satisfies the condition."""
    return Intervals.of(select_rows(work.select("start_ns", "end_ns"), work.select(condition).to_series()))


def _levels(running: Intervals, window: Window) -> Int64s:
    """Time inside the window with none, one, two, … of the intervals open. Intervals are sorted by begin."""
    starts, ends = running
    # Intervals that overlap no other one, mostly nearly all, are summed without sorting their edges.
    shared = np.zeros(len(starts), dtype=np.bool_)
    shared[1:] = starts[1:] < np.maximum.accumulate(ends)[:-1]
    shared[:-1] |= starts[1:] < ends[:-1]
    alone = total(clip(Intervals(starts[~shared], ends[~shared]), window.start_ns, window.end_ns))
    if not shared.any():
        return np.array([window.duration_ns - alone, alone])
    starts, ends = starts[shared], ends[shared]
    edges = np.concatenate((starts, ends, np.array([window.start_ns, window.end_ns])))
    change = np.zeros(len(edges), dtype=np.int8)
    change[: len(starts)] = 1
    change[len(starts) : -2] = -1
    order = np.argsort(edges, kind="stable")
    level = np.cumsum(change[order], dtype=np.int32)[:-1]
    # Whole nanoseconds far below 2⁵³ add up exactly in floating point.
    ns_by_level = np.bincount(level, weights=np.diff(edges[order]), minlength=2).astype(np.int64)
    ns_by_level[:2] += (-alone, alone)
    return ns_by_level


# --- CUDA graphs ---
#
# A profile records a graph in one of two ways. With node tracing each kernel, copy and memset of a launch is recorded
# by itself, and all other analyses see it. With graph tracing a launch is one interval with hidden content: the GPU was
# busy, with unknown work.

_TRACED: Final = pl.Enum(["whole", "nodes"])

GRAPHS: Final = table(
    "CUDA graphs",
    "One graph. `warplens.analysis.streams.graph_statistics`. A launch lasts from the begin of its first work to"
    " the end of its last.",
    Column("traced", _TRACED, "`whole`: the inside is hidden; `nodes`: every node is recorded"),
    "device",
    column("graph", help="id of the graph; for `nodes` the id of the first node it replays; null where unknown"),
    "launches",
    Column("nodes_per_launch", pl.Float64, "mean number of nodes; null where the inside is hidden", kind="count"),
    SPREAD,
    "share",
    launches="how often it was launched",
    share="share of the summed time of all graph launches in the window",
)


@dataclass(frozen=True)
class GraphSummary:
    """The CUDA graph launches of a window."""

    whole_launches: int  #: launches that were traced as a whole
    node_launches: int  #: launches whose nodes were recorded
    nodes: int  #: kernels, copies and memsets that were recorded as nodes of a graph
    #: smallest, median and largest number of nodes of a launch; None without node tracing
    nodes_per_launch: tuple[int, float, int] | None
    busy_ns: int  #: time in which at least one graph's work ran, hidden or not, summed over devices
    hidden_ns: int  #: time inside launches that were traced as a whole, summed over devices
    gpu_busy_ns: int  #: time in which anything at all ran, summed over devices
    #: busy_share, hidden_share: of `gpu_busy_ns`; None where nothing ran
    busy_share: float | None
    hidden_share: float | None


def graph_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Number of launches of each graph and their duration on the GPU, largest total time first.

    Returns:
        `GRAPHS`; no rows where no graph was launched.
    """
    null_count = pl.lit(None, dtype=pl.Int64)
    whole_graphs = timeline.graphs_in(window).select(
        pl.lit("whole", dtype=_TRACED).alias("traced"),
        "device",
        "graph",
        null_count.alias("nodes"),
        "start_ns",
        "end_ns",
    )
    launches = pl.concat([whole_graphs, _node_launches(_nodes(timeline, timeline.work_in(window)))])
    statistics = launches.group_by("traced", "device", "graph").agg(
        pl.len().alias("launches"), pl.col("nodes").mean().alias("nodes_per_launch"), *spread(duration_ns())
    )
    statistics = statistics.with_columns(ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    order = ["total_ns", "traced", "device", "graph"]
    return GRAPHS.conform(statistics).sort(order, descending=[True, False, False, False])


@once
def graph_summary(timeline: Timeline, window: Window) -> GraphSummary:
    """Number of graph launches, their share of the GPU's busy time, and the hidden part of it.

    Launches and nodes belong to the window by their begin; times are those inside it.
    """
    nodes = _nodes(timeline, timeline.work_in(window))
    per_launch = _node_launches(nodes)["nodes"]
    running = work_inside(timeline, window)
    hidden_work = running.filter(pl.col("kind") == "graph")
    gpu_busy, hidden = busy_ns(running), busy_ns(hidden_work)
    busy = busy_ns(pl.concat([hidden_work, _nodes(timeline, running).drop("node", "correlation")]))
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


def _node_launches(nodes: pl.DataFrame) -> pl.DataFrame:
    """One row per launch and device. All nodes of a launch carry the correlation id of the launching call."""
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
    """The work that graphs replayed node by node.

    Adds the launch's `correlation`, and the id of the `node` where it is recorded.
    """
    trace = timeline.trace
    tables: dict[str, pl.DataFrame] = {kind: getattr(trace, WORK_KINDS[kind]) for kind in ("kernel", "copy", "memset")}
    is_graph_launch = pl.Series(rows_named(trace.api_calls["name"], launches_graph))
    if not is_graph_launch.any() and all(table["graph_node"].null_count() == table.height for table in tables.values()):
        null_id = pl.lit(None, dtype=pl.Int64)
        return work.clear().with_columns(null_id.alias("correlation"), null_id.alias("node"))
    by_kind = pl.concat(
        [
            part.with_columns(timeline.correlations(part), table["graph_node"].gather(part["row"]).alias("node"))
            for kind, table in tables.items()
            for part in [work.filter(pl.col("kind") == kind)]
        ]
    )
    by_graph_launch = is_graph_launch.gather(by_kind["api_row"]).fill_null(value=False)
    return by_kind.filter(by_graph_launch | pl.col("node").is_not_null())


# --- Streams that take turns ---
#
# A kernel that was queued on an idle stream and began only when a kernel of another stream ended waited for it. The
# reason is recorded for event waits only. That a kernel filled the GPU follows from its grid; that the legacy default
# stream takes turns with blocking streams (CUDA C++ Programming Guide, "Default Stream") from the kinds of both. The
# rest may be one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS), exhausted registers or shared memory, or a kernel that
# another kernel launched: the profile does not show it.

#: A kernel that begins within this time of another's end may have waited for it: a start's latency, and an event's.
_NEXT_NS: Final = 10_000

#: Why a kernel waited for one of another stream.
TURNS: Final = {
    "event": "the stream was told to wait for an event",
    "full": "the kernel before filled the GPU",
    "default-stream": "one of both is the legacy default stream, which blocking streams take turns with",
    "unknown": "nothing recorded orders them",
}

STREAM_TURNS: Final = table(
    "streams that take turns",
    "One reason for which kernels waited for kernels of other streams. `warplens.analysis.streams.stream_turns`.",
    Column("why", pl.String, "; ".join(f"`{why}`: {meaning}" for why, meaning in TURNS.items())),
    Column("turns", pl.Int64, "kernels that waited so"),
    Column("at_once_ns", pl.Int64, "time that they could have run beside what they waited for, at most"),
)


@once
def stream_turns(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Queued kernels of a stream that began only when a kernel of another stream ended, by reason.

    Returns:
        `STREAM_TURNS`; no rows where streams ran at once, or there is one.
    """
    work = timeline.work_in(window).select(_TURN_COLUMNS)
    work = select_rows(work, work.select(_is_compute() & pl.col("launch_end_ns").is_not_null()).to_series())
    turns = [pl.DataFrame(schema=_TURN)]
    keys, group = numbered(work, ("device", "process"))
    for group_row, (device, process) in enumerate(keys.iter_rows()):
        kernels = work if keys.height == 1 else work.filter(pl.Series(group == group_row))
        if kernels["stream"].n_unique() > 1:
            turns.append(_turns_of(timeline, kernels, device, process))
    grouped = pl.concat(turns).group_by("why").agg(pl.len().cast(pl.Int64).alias("turns"), pl.col("at_once_ns").sum())
    return STREAM_TURNS.conform(grouped).sort("at_once_ns", "why", descending=[True, False])


_TURN: Final = {"why": pl.String, "at_once_ns": pl.Int64}
_TURN_COLUMNS: Final = (
    *("kind", "row", "start_ns", "end_ns", "device", "process", "stream"),
    *("launch_start_ns", "launch_end_ns"),
)


def _turns_of(timeline: Timeline, work: pl.DataFrame, device: int, process: int) -> pl.DataFrame:
    """The reason why each kernel of a process on a GPU waited for another stream's, and the possible overlap of both.

    Args:
        work: the kernels in order of their begins, as `Timeline.work` has them.
    """
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    stream, launched = work["stream"].to_numpy(), work["launch_start_ns"].to_numpy()
    ready = work["launch_end_ns"].to_numpy().copy()
    predecessor = np.full(len(starts), -1)  # the kernel of another stream that ended last before each began
    waits_for_event = np.zeros(len(starts), dtype=np.bool_)
    waits = timeline.trace.synchronizations.filter(
        (pl.col("kind").cast(pl.String) == "stream-wait-event") & (pl.col("process") == process)
    ).sort("start_ns")
    for current in np.unique(stream):
        rows = np.flatnonzero(stream == current)
        ready[rows[1:]] = np.maximum(ready[rows[1:]], ends[rows[:-1]])
        event_waits = waits["start_ns"].filter(waits["stream"] == current).to_numpy()
        if len(event_waits):
            waits_for_event[rows] = np.diff(np.searchsorted(event_waits, launched[rows]), prepend=0) > 0
        elsewhere = np.flatnonzero(stream != current)
        elsewhere = elsewhere[np.argsort(ends[elsewhere], kind="stable")]
        place = np.searchsorted(ends[elsewhere], starts[rows], side="right") - 1
        predecessor[rows] = np.where(place >= 0, elsewhere[np.maximum(place, 0)], -1)
    later = np.flatnonzero(predecessor >= 0)
    earlier = predecessor[later]
    delay_ns = ends[earlier] - np.maximum(ready[later], starts[earlier])
    # A kernel that could run beside the other for half of the other's time did not wait for it.
    is_turn = (
        (starts[later] - ends[earlier] <= _NEXT_NS) & (2 * delay_ns >= ends[earlier] - starts[earlier]) & (delay_ns > 0)
    )
    later, earlier, delay_ns = later[is_turn], earlier[is_turn], delay_ns[is_turn]
    overlap_ns = np.minimum(delay_ns, ends[later] - starts[later])
    kinds = timeline.trace.capture.stream_kinds
    legacy, blocking = (
        [number for owner, number, kind in kinds if owner == process and kind == stream_kind]
        for stream_kind in ("legacy-default", "blocking")
    )
    default_stream = np.zeros(len(later), dtype=np.bool_)
    for rows, partners in ((later, earlier), (earlier, later)):
        default_stream |= np.isin(stream[rows], legacy) & np.isin(stream[partners], blocking)
    full = _fills_gpu(timeline, work.select("kind", "row")[earlier], device)
    cause = np.select([waits_for_event[later], full, default_stream], ["event", "full", "default-stream"], "unknown")
    return pl.DataFrame({"why": cause.astype(str), "at_once_ns": overlap_ns}, schema=_TURN)


def _fills_gpu(timeline: Timeline, work: pl.DataFrame, device: int) -> npt.NDArray[np.bool_]:
    """Whether each kernel had a block for every multiprocessor; True where the grid is unknown."""
    gpu = timeline.trace.capture.device(device)
    full = np.ones(work.height, dtype=np.bool_)
    kernels = np.flatnonzero((work["kind"] == "kernel").to_numpy())
    kinds, of_kernel = timeline.launch_kinds
    blocks = kinds["blocks"].gather(of_kernel[work["row"].to_numpy()[kernels]])
    full[kernels] = (blocks >= ((gpu and gpu.sm_count) or 1)).fill_null(value=True).to_numpy()
    return full
