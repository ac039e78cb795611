"""Streams: what each of them did, how many kernels ran at once, and what copies hid behind kernels.

Unlike the other tables, these speak of time inside the window: work that reaches over an edge counts with the part that
lies inside, so that the times of a device sum to the window exactly. A CUDA graph that was traced as a whole counts as
one kernel: the GPU was busy, with what is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.api import api_kinds
from warplens.analysis.frames import chosen, duration_ns, numbered, once, ratio, spread
from warplens.analysis.intervals import Intervals, clip, total, union, without
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import SPREAD, column, table
from warplens.profile.schema import Column, Int64s, name_categories
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
    """All work that runs in the window, cut at its edges: columns of `Timeline.work` without those of the launch."""
    work = timeline.work.select("kind", "row", "start_ns", "end_ns", "device", "stream", "process", "api_row")
    if window.range_name is not None:
        work = work.filter(pl.Series(timeline.in_range(window.range_name)))
    work = chosen(work, (work["start_ns"] < window.end_ns) & (work["end_ns"] > window.start_ns))
    # Few rows reach beyond an edge, mostly none.
    cut = [
        column
        for column, beyond in (
            (pl.col("start_ns").clip(lower_bound=window.start_ns), work["start_ns"] < window.start_ns),
            (pl.col("end_ns").clip(upper_bound=window.end_ns), work["end_ns"] > window.end_ns),
        )
        if beyond.any()
    ]
    return work.with_columns(cut) if cut else work


def busy_ns(work: pl.DataFrame) -> int:
    """Time in which at least one of these pieces of work ran, summed over devices."""
    return sum(total(union(_intervals(work, pl.col("device") == device))) for device in work["device"].unique())


def busy_by(work: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """`busy_ns` of each group: the time in which at least one of its pieces of work ran."""
    heads, number = numbered(work, keys)
    order = np.argsort(number, kind="stable") if heads.height > 1 else np.arange(work.height)
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    edges = np.searchsorted(number[order], np.arange(1, heads.height))
    groups = np.split(order, edges) if heads.height else []
    spent = [total(union(Intervals(starts[rows], ends[rows]))) for rows in groups]
    return heads.with_columns(pl.Series("busy_ns", spent, pl.Int64))


#: By kind of work the column that counts it.
_COUNT_OF: Final = {"kernel": "kernels", "copy": "copies", "memset": "memsets", "graph": "graphs"}


@once
def stream_statistics(timeline: Timeline, window: Window) -> pl.DataFrame:
    """What each stream did inside the window and how much of it the stream was busy, the busiest first.

    Returns:
        `STREAMS`.
    """
    keys = ["device", "process", "stream"]
    work = work_inside(timeline, window)
    heads, number = numbered(work, keys)
    kinds = name_categories(work["kind"])
    rows = number * kinds.len() + work["kind"].to_physical().to_numpy()
    counts = np.bincount(rows, minlength=heads.height * kinds.len()).reshape(heads.height, kinds.len())
    statistics = busy_by(work, keys).with_columns(
        *(pl.Series(_COUNT_OF[kind], counts[:, code], dtype=pl.Int64) for code, kind in enumerate(kinds)),
        ratio(pl.col("busy_ns"), pl.lit(window.duration_ns)).alias("share"),
    )
    return STREAMS.conform(statistics).sort(["busy_ns", *keys], descending=[True, False, False, False])


@once
def concurrency(timeline: Timeline, window: Window) -> pl.DataFrame:
    """For how long none, one, two, … kernels ran at once on each device that did any work in the window.

    Returns:
        `CONCURRENCY`, by device and ascending number; numbers that never occurred are left out.
    """
    work = work_inside(timeline, window)
    parts = []
    for device in work["device"].unique().sort():
        kernels = _intervals(work, (pl.col("device") == device) & _is_compute())
        spent = _levels(kernels, window)
        parts.append(
            pl.DataFrame({"kernels_at_once": np.arange(len(spent)), "time_ns": spent})
            .filter(pl.col("time_ns") > 0)
            .with_columns(
                pl.lit(device).alias("device"),
                pl.col("time_ns").reverse().cum_sum().reverse().alias("at_least_ns"),
                ratio(pl.col("time_ns"), pl.lit(window.duration_ns)).alias("share"),
            )
        )
    return pl.concat([CONCURRENCY.empty(), *(CONCURRENCY.conform(part) for part in parts)])


def copy_overlap(timeline: Timeline, window: Window) -> pl.DataFrame:
    """How much of the copies and memsets ran while kernels did, for each device that did any work in the window.

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


def _intervals(work: pl.DataFrame, which: pl.Expr) -> Intervals:
    """The intervals of the pieces of work for which the condition holds."""
    return Intervals.of(chosen(work.select("start_ns", "end_ns"), work.select(which).to_series()))


def _levels(running: Intervals, window: Window) -> Int64s:
    """For how long none, one, two, … of the intervals, in order of their begins, were open, inside the window."""
    starts, ends = running
    # What runs alone needs no place among the edges of others: mostly nearly all.
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
    # Whole nanoseconds far below 2⁵³, which floating point adds up exactly.
    spent = np.bincount(level, weights=np.diff(edges[order]), minlength=2).astype(np.int64)
    spent[:2] += (-alone, alone)
    return spent


# --- CUDA graphs ---
#
# A profile shows a graph in one of two ways. With node tracing each kernel, copy and memset of a launch is recorded
# by itself, and all other analyses see it. With graph tracing a launch is one interval and its inside is hidden: the
# GPU was busy, with unknown work.

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
    """How often each graph was launched and how long a launch took on the GPU, the most time first.

    Returns:
        `GRAPHS`; no rows where no graph was launched.
    """
    nothing = pl.lit(None, dtype=pl.Int64)
    whole = timeline.graphs_in(window).select(
        pl.lit("whole", dtype=_TRACED).alias("traced"), "device", "graph", nothing.alias("nodes"), "start_ns", "end_ns"
    )
    launches = pl.concat([whole, _node_launches(_nodes(timeline, timeline.work_in(window)))])
    statistics = launches.group_by("traced", "device", "graph").agg(
        pl.len().alias("launches"), pl.col("nodes").mean().alias("nodes_per_launch"), *spread(duration_ns())
    )
    statistics = statistics.with_columns(ratio(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    order = ["total_ns", "traced", "device", "graph"]
    return GRAPHS.conform(statistics).sort(order, descending=[True, False, False, False])


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
    """The pieces of work that graphs replayed one by one.

    With what joins those of one launch (`correlation`), and the id of their node where it is recorded (`node`).
    """
    trace = timeline.trace
    tables: dict[str, pl.DataFrame] = {kind: getattr(trace, WORK_KINDS[kind]) for kind in ("kernel", "copy", "memset")}
    launching = api_kinds(trace.api_calls["name"]) == "graph-launch"
    if not launching.any() and all(table["graph_node"].null_count() == table.height for table in tables.values()):
        nothing = pl.lit(None, dtype=pl.Int64)
        return work.clear().with_columns(nothing.alias("correlation"), nothing.alias("node"))
    by_kind = pl.concat(
        [
            part.with_columns(timeline.correlations(part), table["graph_node"].gather(part["row"]).alias("node"))
            for kind, table in tables.items()
            for part in [work.filter(pl.col("kind") == kind)]
        ]
    )
    started = launching.gather(by_kind["api_row"]).fill_null(value=False)
    return by_kind.filter(started | pl.col("node").is_not_null())


# --- Streams that take turns ---
#
# A kernel that was queued, whose stream had nothing left to do, and that began only when a kernel of another stream
# ended, waited for it. Why is recorded for event waits alone; that a kernel left no room follows from its grid, and the
# legacy default stream's turns with blocking streams (CUDA C++ Programming Guide, "Default Stream") from the kinds of
# both. What is left over may be one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS), registers or shared memory that were
# used up, or a kernel that another kernel launched: the profile does not tell.

#: A kernel that begins this soon after the end of another can have waited for it: the latency of a start, and of an
#: event between streams.
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
    """How often, and why, queued kernels of a stream began only when a kernel of another stream ended.

    Returns:
        `STREAM_TURNS`; no rows where streams ran at once, or there is one.
    """
    work = timeline.work_in(window).select(_OF_TURNS)
    work = chosen(work, work.select(_is_compute() & pl.col("launch_end_ns").is_not_null()).to_series())
    found = [pl.DataFrame(schema=_TURN)]
    keys, number = numbered(work, ("device", "process"))
    for place, (device, process) in enumerate(keys.iter_rows()):
        part = work if keys.height == 1 else work.filter(pl.Series(number == place))
        if part["stream"].n_unique() > 1:
            found.append(_turns_of(timeline, part, device, process))
    grouped = pl.concat(found).group_by("why").agg(pl.len().cast(pl.Int64).alias("turns"), pl.col("at_once_ns").sum())
    return STREAM_TURNS.conform(grouped).sort("at_once_ns", "why", descending=[True, False])


_TURN: Final = {"why": pl.String, "at_once_ns": pl.Int64}
_OF_TURNS: Final = (
    *("kind", "row", "start_ns", "end_ns", "device", "process", "stream"),
    *("launch_start_ns", "launch_end_ns"),
)


def _turns_of(timeline: Timeline, work: pl.DataFrame, device: int, process: int) -> pl.DataFrame:
    """Why each kernel of a process on a GPU waited for another stream's, and how much of both could overlap.

    Args:
        work: the kernels in order of their begins, as `Timeline.work` has them.
    """
    starts, ends = work["start_ns"].to_numpy(), work["end_ns"].to_numpy()
    stream, launched = work["stream"].to_numpy(), work["launch_start_ns"].to_numpy()
    ready = work["launch_end_ns"].to_numpy().copy()
    last = np.full(len(starts), -1)  # the kernel of another stream that ended last before each began
    told_to_wait = np.zeros(len(starts), dtype=np.bool_)
    waits = timeline.trace.synchronizations.filter(
        (pl.col("kind").cast(pl.String) == "stream-wait-event") & (pl.col("process") == process)
    ).sort("start_ns")
    for own in np.unique(stream):
        mine = np.flatnonzero(stream == own)
        ready[mine[1:]] = np.maximum(ready[mine[1:]], ends[mine[:-1]])
        told = waits["start_ns"].filter(waits["stream"] == own).to_numpy()
        if len(told):
            told_to_wait[mine] = np.diff(np.searchsorted(told, launched[mine]), prepend=0) > 0
        others = np.flatnonzero(stream != own)
        others = others[np.argsort(ends[others], kind="stable")]
        place = np.searchsorted(ends[others], starts[mine], side="right") - 1
        last[mine] = np.where(place >= 0, others[np.maximum(place, 0)], -1)
    behind = np.flatnonzero(last >= 0)
    before = last[behind]
    held = ends[before] - np.maximum(ready[behind], starts[before])
    # What ran beside a kernel for half of its time or more was no turn: it began at once.
    turn = (starts[behind] - ends[before] <= _NEXT_NS) & (2 * held >= ends[before] - starts[before]) & (held > 0)
    behind, before, held = behind[turn], before[turn], held[turn]
    at_once = np.minimum(held, ends[behind] - starts[behind])
    kinds = timeline.trace.capture.stream_kinds
    legacy, blocking = (
        [number for owner, number, kind in kinds if owner == process and kind == wanted]
        for wanted in ("legacy-default", "blocking")
    )
    by_default = np.zeros(len(behind), dtype=np.bool_)
    for mine, other in ((behind, before), (before, behind)):
        by_default |= np.isin(stream[mine], legacy) & np.isin(stream[other], blocking)
    full = _fills_gpu(timeline, work.select("kind", "row")[before], device)
    why = np.select([told_to_wait[behind], full, by_default], ["event", "full", "default-stream"], "unknown")
    return pl.DataFrame({"why": why.astype(str), "at_once_ns": at_once}, schema=_TURN)


def _fills_gpu(timeline: Timeline, work: pl.DataFrame, device: int) -> npt.NDArray[np.bool_]:
    """Whether each kernel had a block for every multiprocessor; where grids are not known, as if it had."""
    known = timeline.trace.capture.device(device)
    full = np.ones(work.height, dtype=np.bool_)
    kernels = np.flatnonzero((work["kind"] == "kernel").to_numpy())
    kinds, of_kernel = timeline.launch_kinds
    blocks = kinds["blocks"].gather(of_kernel[work["row"].to_numpy()[kernels]])
    full[kernels] = (blocks >= ((known and known.sm_count) or 1)).fill_null(value=True).to_numpy()
    return full
