"""Launches: the host's cost of starting kernels, and how long the kernels then waited for the GPU.

The three phases of a launch follow `nsys stats -r cuda_kern_exec_sum`: *API time* is the duration of the launching
call, *queue time* runs from the end of that call to the begin of the kernel, *kernel time* is the kernel itself. A
kernel may start before its call returns; such a launch has no queue time. The whole time runs from the begin of the
call to the end of the kernel or of the call, whichever is later; it is not the sum of the three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from warplens.analysis.api import launches_graph
from warplens.analysis.frames import all_equal, busiest, duration_ns, number, numbered, once, select_rows, spread
from warplens.analysis.startlatency import start_latency_ns
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import KERNEL_NAME, spread_columns, table
from warplens.profile.schema import Bools, Column, Int64s, rows_named

#: A kernel that starts within this time of its launching call's return found the GPU idle. In captures from A100, H100,
#: H200 and RTX 5000 the delays of kernels launched onto an idle GPU gather below 4 µs, and hardly any lies between 4
#: and 6 µs, where those that queued behind other work begin.
PROMPT_START_NS: Final = 5_000

LAUNCHES: Final = table(
    "launches",
    "One group of kernel launches. `warplens launches`; the columns of `--by` stand first. API time is the"
    " duration of the launching call, queue time runs from its end to the begin of the kernel (none where the"
    " kernel began earlier), whole time from the begin of the call to the end of the kernel or of the call,"
    " whichever is later.",
    KERNEL_NAME,
    "full_name",
    Column("api", pl.String, "launching API function; null where no call was recorded", title="Launched by"),
    "device process thread launches matched",
    Column("queued", pl.Int64, "launches that began after their call had returned; queue times speak of these"),
    spread_columns("api_", of="API times"),
    spread_columns("queue_", of="queue times"),
    spread_columns("kernel_", of="kernel times"),
    spread_columns("whole_", of="whole times"),
    launches="kernel executions",
    keys="name full_name api device process thread",
)


@dataclass(frozen=True)
class CountPerStep:
    """Number of kernels, or of other work, in each step."""

    steps: int
    min: int
    median: float
    max: int

    @property
    def is_constant(self) -> bool:
        """Whether all steps hold the same number, as repetitions of one workload should."""
        return self.min == self.max


@dataclass(frozen=True)
class LaunchSummary:
    """How the kernels of a window were launched; None for what the profile does not show."""

    launches: int  #: kernels that were launched one by one
    matched: int  #: … of which the launching API call was recorded
    coverage_share: float | None  #: `matched / launches`
    #: `launches` in each step of the window, of the process with the most GPU time where there are several
    per_step: CountPerStep | None
    per_second: float | None  #: `launches` divided by the length of the window
    #: process and thread id of the thread that launched the most kernels; of graphs, where they launched all
    thread: tuple[int, int] | None
    thread_share: float | None  #: its share of the matched launches
    #: median time between the begins of two successive launching calls on that thread: the program's cost of one
    #: launch, including Python, dispatch and waiting for room in the queue
    interval_median_ns: float | None
    api_total_ns: int  #: time inside the launching calls, summed over all threads
    #: api_mean_ns, api_median_ns: time inside one launching call
    api_mean_ns: float | None
    api_median_ns: float | None
    queue_median_ns: float | None  #: median of kernel begin − end of call; negative where most kernels start before it
    #: share of the launches whose kernel runs shorter than `interval_median_ns`: the GPU finishes such kernels faster
    #: than the host issues them. Only together with a high `prompt_share` does this mean that launches hold the GPU up.
    shorter_than_interval_share: float | None
    #: share of the matched launches that started less than `PROMPT_START_NS` (or `start_latency_ns`) after their call
    #: returned: the GPU had been waiting for them
    prompt_share: float | None
    graph_launches: int  #: CUDA graph launches, each started by one call
    graph_kernels: int  #: kernels replayed by them and recorded one by one; not part of `launches`
    graph_api_total_ns: int  #: time inside the graph-launching calls


def launch_statistics(timeline: Timeline, window: Window, by: Sequence[str] = ("name", "api")) -> pl.DataFrame:
    """API, queue, kernel and whole time of the launches in each group, most GPU time first.

    With `by=("process", "thread", "device", "full_name", "api")` the rows are those of `nsys stats -r
    cuda_kern_exec_sum`; kernels without a recorded launching call, which that report leaves out, are in rows whose
    `api` is null. Kernels replayed by a CUDA graph share one call: keep `api` among the keys to have them in rows of
    their own.

    Args:
        window: the part of it that counts; a kernel belongs to it by its begin on the GPU.
        by: any of `LAUNCHES.keys`.

    Returns:
        `LAUNCHES.by(*by)`.

    Raises:
        UsageError: `by` is empty or names something else.
    """
    result_table = LAUNCHES.by(*by)
    queue = pl.col("start_ns") - pl.col("launch_end_ns")
    phases = {
        "api": pl.col("launch_end_ns") - pl.col("launch_start_ns"),
        "queue": pl.when(queue >= 0).then(queue),
        "kernel": duration_ns(),
        "whole": pl.max_horizontal("launch_end_ns", "end_ns") - pl.col("launch_start_ns"),
    }
    times = (time.alias(f"{phase}_ns") for phase, time in phases.items())
    statistics = (
        _kernel_launches(timeline, window, *by, *times)
        .group_by(by)
        .agg(
            pl.len().alias("launches"),
            pl.col("api_ns").count().alias("matched"),
            pl.col("queue_ns").count().alias("queued"),
            *(column for phase in phases for column in spread(pl.col(f"{phase}_ns"), f"{phase}_")),
        )
    )
    return result_table.conform(statistics).sort(["kernel_total_ns", *by], descending=[True, *(False for _ in by)])


def matched_launches(timeline: Timeline, window: Window) -> pl.DataFrame:
    """The kernels of the window launched one by one by a recorded call: their times and those of the call."""
    kernels = _kernel_launches(timeline, window, *_TIMES, "process", "thread", "graph_launched", "api_row")
    return kernels.filter(~pl.col("graph_launched") & pl.col("api_row").is_not_null())


@once
def launch_summary(timeline: Timeline, window: Window) -> LaunchSummary:
    """Number and rate of kernel launches, the launching thread, and whether the GPU was waiting for them."""
    columns = (*_TIMES[:2], "launch_end_ns", "process", "thread", "graph_launched", "api_row")
    kernels = _kernel_launches(timeline, window, *columns)
    launches = kernels.filter(~pl.col("graph_launched")) if kernels["graph_launched"].any() else kernels
    matched = launches.filter(pl.col("api_row").is_not_null()) if launches["api_row"].null_count() else launches
    calls = timeline.trace.api_calls.select("start_ns", "end_ns", "process", "thread")
    calls = select_rows(calls, _mask_of(matched["api_row"], calls.height))
    api_ns = calls["end_ns"] - calls["start_ns"]
    queue_ns = matched["start_ns"] - matched["launch_end_ns"]
    thread, interval_ns = _busiest_thread(calls)
    kernel_ns = launches["end_ns"] - launches["start_ns"]
    graph_calls, unknown_graphs = _graph_calls(timeline, window)
    if thread is None:
        thread, _ = _busiest_thread(graph_calls)
    return LaunchSummary(
        launches=launches.height,
        matched=matched.height,
        coverage_share=matched.height / launches.height if launches.height else None,
        per_step=count_per_step(launches, window),
        per_second=launches.height / window.duration_ns * 1e9 if window.duration_ns > 0 else None,
        thread=thread,
        thread_share=number(((matched["process"] == thread[0]) & (matched["thread"] == thread[1])).mean())
        if thread and matched.height
        else None,
        interval_median_ns=interval_ns,
        api_total_ns=int(api_ns.sum()),
        api_mean_ns=number(api_ns.mean()),
        api_median_ns=number(api_ns.median()),
        queue_median_ns=number(queue_ns.median()),
        shorter_than_interval_share=number((kernel_ns < interval_ns).mean()) if interval_ns is not None else None,
        prompt_share=number((queue_ns < max(PROMPT_START_NS, start_latency_ns(timeline))).mean()),
        graph_launches=graph_calls.height + unknown_graphs,
        graph_kernels=kernels.height - launches.height,
        graph_api_total_ns=int((graph_calls["end_ns"] - graph_calls["start_ns"]).sum()),
    )


def count_per_step(work: pl.DataFrame, window: Window) -> CountPerStep | None:
    """Number of these pieces of work that begin in each step of the window; None without steps.

    Arguments as for `counts_of_steps`.
    """
    counts = counts_of_steps(work, window)
    if not len(counts):
        return None
    return CountPerStep(len(counts), int(counts.min()), float(np.median(counts)), int(counts.max()))


def counts_of_steps(work: pl.DataFrame, window: Window) -> Int64s:
    """Number of these pieces of work that begin in each step of the window; shape (steps,).

    Where several processes worked, only the one with the most GPU time counts: steps are the repetitions of one
    process, and the others need not keep in time with it.

    Args:
        work: columns `process`, `start_ns`, `end_ns`, the begins in ascending order.
    """
    if not window.steps:
        return np.empty(0, dtype=np.int64)
    if work["process"].n_unique() > 1:
        work = work.filter(pl.col("process") == busiest(work, "process")[0])
    counts: Int64s = np.diff(np.searchsorted(work["start_ns"].to_numpy(), np.stack(window.step_edges[1:])), axis=0)[0]
    return counts


_TIMES: Final = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")


def _kernel_launches(timeline: Timeline, window: Window, *columns: str | pl.Expr) -> pl.DataFrame:
    """The requested columns of the window's kernels: columns of `Timeline.work`, expressions, or looked-up columns.

    Built column by column, so that a copy or a fill between the kernels does not cause other columns to be copied.
    """
    work = timeline.work_in(window)
    is_kernel = (work["kind"] == "kernel").to_numpy()

    def of_kernels(column: str | pl.Expr) -> pl.Series:
        return select_rows(work.select(column), is_kernel).to_series()

    looked_up = {
        "name": lambda: timeline.trace.kernels["name"].gather(of_kernels("row")),
        "full_name": lambda: timeline.trace.kernels["full_name"].gather(of_kernels("row")),
        "api": lambda: timeline.trace.api_calls["name"].gather(of_kernels("api_row")).alias("api"),
        "graph_launched": lambda: _graph_launched(timeline, select_rows(work.select("row", "api_row"), is_kernel)),
    }
    return pl.DataFrame([
        looked_up[name]() if isinstance(name, str) and name in looked_up else of_kernels(name) for name in columns
    ])  # fmt: skip


def _graph_launched(timeline: Timeline, work: pl.DataFrame) -> pl.Series:
    """Whether each kernel was replayed from a graph: it has a graph node, or its call is a graph launch."""
    # As an expression, a column that was not recorded takes no memory.
    has_node = timeline.trace.kernels.select(pl.col("graph_node").is_not_null()).to_series()
    by_graph = pl.Series(rows_named(timeline.trace.api_calls["name"], launches_graph))
    if not has_node.any() and not by_graph.any():
        return pl.repeat(value=False, n=work.height, eager=True).alias("graph_launched")
    by_call = by_graph.gather(work["api_row"]).fill_null(False)
    return (by_call | has_node.gather(work["row"])).alias("graph_launched")


def _graph_calls(timeline: Timeline, window: Window) -> tuple[pl.DataFrame, int]:
    """Calls of the graph launches that put work into the window, and the number of launches without a recorded call."""
    work = timeline.work_in(window).select("kind", "api_row")
    by_graph = pl.Series(rows_named(timeline.trace.api_calls["name"], launches_graph))
    if not by_graph.any() and not (work["kind"] == "graph").any():
        return timeline.trace.api_calls.clear(), 0
    started = by_graph.gather(work["api_row"]).fill_null(False)
    launched = work.filter((pl.col("kind") == "graph") | started)["api_row"]
    calls = timeline.trace.api_calls
    return select_rows(calls, _mask_of(launched.drop_nulls(), calls.height)), launched.null_count()


def _mask_of(rows: pl.Series, count: int) -> Bools:
    """A mask of `count` rows that is True at these rows."""
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows.to_numpy()] = True
    return mask


@once
def launching_threads(timeline: Timeline, window: Window) -> pl.DataFrame:
    """`process` and `thread` of each thread that launched work of the window."""
    work = timeline.work_in(window).select("process", "thread")
    # A thread mostly launches many pieces in a row.
    begins = pl.any_horizontal(pl.all().ne_missing(pl.all().shift(1)) | (pl.int_range(pl.len()) == 0))
    return work.filter(begins).unique().drop_nulls()


def calls_of_launching_threads(timeline: Timeline, window: Window) -> pl.DataFrame:
    """The calls of `Timeline.api_calls_in` on these threads, by process, thread and start."""
    calls = timeline.api_calls_in(window).select("start_ns", "end_ns", "process", "thread", "correlation", "name")
    calls = calls if calls["start_ns"].is_sorted() else calls.sort("start_ns", maintain_order=True)
    threads, thread = numbered(calls, ("process", "thread"))
    launching = threads.with_row_index().join(launching_threads(timeline, window), on=threads.columns, how="semi")
    place = np.full(threads.height, launching.height, dtype=np.min_scalar_type(threads.height))
    place[launching.sort(threads.columns)["index"].to_numpy()] = np.arange(launching.height)
    # Small integers are sorted by their digits, in a fifth of the time of a sort of the table.
    places = place[thread]
    return calls[np.argsort(places, kind="stable")[: np.count_nonzero(places < launching.height)]]


def _busiest_thread(calls: pl.DataFrame) -> tuple[tuple[int, int] | None, float | None]:
    """The thread with the most launching calls, and the median time between the begins of two of them."""
    if not calls.height:
        return None, None
    if all_equal(calls["process"]) and all_equal(calls["thread"]):
        process, thread = calls.select("process", "thread").row(0)
    else:
        threads = calls.group_by("process", "thread").agg(pl.len().alias("calls"))
        order = ["calls", "process", "thread"]
        process, thread = threads.sort(order, descending=[True, False, False]).row(0)[:2]
        calls = calls.filter((pl.col("process") == process) & (pl.col("thread") == thread))
    begins = calls["start_ns"] if calls["start_ns"].is_sorted() else calls["start_ns"].sort()
    return (process, thread), number(begins.diff().median())
