"""Questions about the host: CUDA calls, launches, and the lines of code they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from warplens.analysis.api import API_CALLS, api_statistics, api_statistics_of_counts
from warplens.analysis.code import CODE, code_places
from warplens.analysis.launches import LAUNCHES, LaunchSummary, launch_statistics, launch_summary
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.report import text as fmt
from warplens.report.document import Table, pick
from warplens.report.questions import DURATIONS, HistogramQuery, QuestionResult, question


def _api_columns(by: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("name", *(key for key in by.split(",") if key != "kind"))))


@question(
    *API_CALLS.keys,
    default="name,kind",
    several=True,
    counted=HistogramQuery(
        "api_calls", _api_columns, lambda counts, by: _api(api_statistics_of_counts(counts, by.split(",")), by)
    ),
)
def api(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """CUDA API calls on the host: calls, duration.

    Times are host times; a call belongs to the window in which it starts.
    """
    return _api(api_statistics(timeline, window, by.split(",")), by)


def _api(rows: pl.DataFrame, by: str) -> QuestionResult:
    columns = pick(API_CALLS, *by.split(","), DURATIONS, name="Call")
    return QuestionResult(rows, (Table("api", "CUDA API calls", columns, rows, empty="No API calls in the window."),))


#: Titles of the time columns of launches.
LAUNCH_TIMES: Final = {
    "api_median_ns": "Call",
    "queue_median_ns": "Queued",
    "kernel_median_ns": "Running",
    "kernel_total_ns": "GPU time",
}


@question(*LAUNCHES.keys, default="full_name,api", several=True)
def launches(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """Kernel launches: time in the API call, in the queue, and on the GPU.

    Queued is the time from the end of the launching call to the start of the kernel; a kernel that starts before its
    call returns has none.
    """
    keys = by.split(",")
    rows = launch_statistics(timeline, window, keys)
    summary = launch_summary(timeline, window)
    caption = "Kernel launches: median time in the call, queued and running; summed GPU time"
    labels = (LAUNCHES.column(key).but(full=None) for key in keys)
    columns = pick(LAUNCHES, *labels, "launches", *LAUNCH_TIMES, **LAUNCH_TIMES)
    empty = "No kernel launches in the window."
    shown = Table("launches", caption, columns, rows, order="kernel_total_ns", empty=empty)
    facts = tuple(_launch_facts(summary, counted_process(timeline)))
    return QuestionResult(rows, (shown,), facts, {"summary": summary})


def counted_process(timeline: Timeline) -> str:
    """Whose launches are counted per step, in words; empty if only one process launched kernels."""
    return " of the process with the most GPU time" if timeline.trace.kernels["process"].n_unique() > 1 else ""


def _launch_facts(summary: LaunchSummary, whose: str) -> Iterator[str]:
    yield from (f"coverage: {sentence}" for sentence in launches_coverage(summary))
    if summary.per_step is not None and summary.launches:
        least, most = fmt.count(summary.per_step.min), fmt.count(summary.per_step.max)
        yield f"launches per step{whose}: {least if summary.per_step.is_constant else f'{least} to {most}'}"
    if summary.interval_median_ns is not None:
        yield f"one launch every {fmt.duration(summary.interval_median_ns)} (median) on the thread that launches most"
    if summary.graph_launches:
        yield (
            f"CUDA graphs: {fmt.plural(summary.graph_launches, 'launch', 'launches')} "
            f"({fmt.count(summary.graph_kernels)} kernels replayed and recorded)"
        )


def launches_coverage(summary: LaunchSummary) -> Iterator[str]:
    """For how many launches the call is known; nothing if it is not defined."""
    if summary.coverage_share is not None:
        yield (
            f"the launching call is known for {fmt.share(summary.coverage_share)} of "
            f"{fmt.plural(summary.launches, 'kernel launch', 'kernel launches')}"
        )


@question()
def code(timeline: Timeline, window: Window) -> QuestionResult:
    """Where in the program waits, copies, allocations and launches come from.

    The line is that of the innermost function outside of PyTorch and Python's library, known where stacks were recorded
    (with_stack=True). Operator and range are those around the call itself. "Of its kind" is the share of the host time
    in calls of the same kind.
    """
    rows = code_places(timeline, window)
    caption = "CUDA calls by place in the program"
    return QuestionResult(rows, (Table("code", caption, CODE.columns, rows, empty="No CUDA calls."),))
