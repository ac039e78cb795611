"""Sections of the main document about what the host asked of the GPU: launches, copies, API, streams, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.memory import memory_timeline
from warplens.report import chart_data, charts
from warplens.report import format as fmt
from warplens.report.document import Figure, KeyFigure, KeyFigures, Paragraph, Section, Table, TableColumn
from warplens.report.overview.sections import absent, nothing, spread_columns

if TYPE_CHECKING:
    from warplens.analysis.memory import MemoryUse
    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers

__all__ = [
    "api_section",
    "copies_section",
    "graphs_section",
    "launches_section",
    "memory_section",
    "streams_section",
]

#: Nothing that a launch does is shorter; a kernel that begins before its call returns has no queue delay at all.
_SHORTEST_NS: Final = 100

#: Lines in one chart of memory; more cannot be told apart.
_MOST_LINES: Final = 6


# --- launches ---------------------------------------------------------------------------------------------------------

_LAUNCH_COLUMNS: Final = (
    TableColumn("full_name", "Kernel", "kernel", full="full_name"),
    TableColumn("api", "Launched by", "text", "The API call."),
    TableColumn("launches", "Launches", "count"),
    TableColumn("api_median_ns", "Call", "duration_ns", "Median duration of the launching call."),
    TableColumn("queue_median_ns", "Queue", "duration_ns", "Median time from the call's return to the kernel's begin."),
    TableColumn("kernel_median_ns", "Kernel", "duration_ns", "Median duration of the kernel."),
    TableColumn("api_total_ns", "All calls", "duration_ns", "Summed duration of the launching calls."),
    TableColumn("kernel_total_ns", "All kernels", "duration_ns", "Summed duration of the kernels."),
)


def launches_section(numbers: Numbers, at: str = "") -> Section:
    """What launching cost the host, and how long kernels then waited."""
    summary = numbers.launch_summary
    if numbers.launches.is_empty():
        return absent(at, "launches", "Launches", "No kernel was launched in this window.")
    blocks: list[Block] = [KeyFigures(_launch_figures(numbers))]
    if summary.coverage_share is not None:
        blocks.append(
            Paragraph(
                f"The launching call is recorded for {fmt.share(summary.coverage_share)} of "
                f"{fmt.count(summary.launches)} launches; calls and queue times speak of those.",
                quiet=True,
            )
        )
    if summary.matched:
        blocks.append(_launch_figure(numbers, at))
    table = Table(f"{at}launches-table", "Launches by kernel and API call", _LAUNCH_COLUMNS, numbers.launches)
    return Section(f"{at}launches", "Launches", (*blocks, table))


def _launch_figures(numbers: Numbers) -> tuple[KeyFigure, ...]:
    summary = numbers.launch_summary
    per_step = summary.per_step
    figures = [
        KeyFigure("Launch rate", summary.per_second, "rate", "kernels launched one by one, over the window"),
        KeyFigure(
            "Interval", summary.interval_median_ns, "duration_ns", "median between launches of the busiest thread"
        ),
        KeyFigure("In one call", summary.api_median_ns, "duration_ns", "median duration of a launching call"),
        KeyFigure("Queue delay", summary.queue_median_ns, "duration_ns", "median from a call's return to its kernel"),
        KeyFigure("Short kernels", summary.shorter_than_interval_share, "share", "end before the next can be launched"),
        KeyFigure("Prompt starts", summary.prompt_share, "share", "launches that the GPU had been waiting for"),
    ]
    if per_step is not None:
        spread = "the same in each" if per_step.is_constant else f"from {per_step.min:,} to {per_step.max:,}"
        explanation = f"median of {per_step.steps} steps; {spread}" if per_step.steps > 1 else "one step"
        figures.insert(0, KeyFigure("Launches per step", per_step.median, "count", explanation))
    return tuple(figures)


def _launch_figure(numbers: Numbers, at: str) -> Figure:
    kernels = numbers.timeline.kernels_in(numbers.window).filter(pl.col("launch_start_ns").is_not_null())
    series = {
        "launching call": kernels["launch_end_ns"] - kernels["launch_start_ns"],
        "queue delay": kernels["start_ns"] - kernels["launch_end_ns"],
        "kernel": kernels["end_ns"] - kernels["start_ns"],
    }
    bins = pl.concat([chart_data.log_bins(durations, name, _SHORTEST_NS) for name, durations in series.items()])
    early = int((series["queue delay"] < _SHORTEST_NS).sum())
    note = (
        f"; {fmt.count(early)} queue delays below {fmt.duration(_SHORTEST_NS)} stand in the first bin" if early else ""
    )
    medians = ", ".join(f"{name} {fmt.duration(_median(values))}" for name, values in series.items())
    return Figure(
        f"{at}launches-chart",
        f"How long launching calls, queue delays and kernels take{note}",
        charts.histogram_chart(bins, "duration (logarithmic)"),
        f"Medians: {medians}.",
    )


def _median(values: pl.Series) -> float:
    return float(values.median())  # type: ignore[arg-type]


# --- copies -----------------------------------------------------------------------------------------------------------

_COPY_COLUMNS: Final = (
    TableColumn("what", "Operation", "text"),
    TableColumn("source_memory", "From", "text", "Kind of memory it reads."),
    TableColumn("destination_memory", "To", "text", "Kind of memory it writes."),
    TableColumn("calls", "Calls", "count"),
    TableColumn("share", "Share", "share", "Of the summed time of all copies and fills."),
    TableColumn("total_ns", "Total", "duration_ns"),
    TableColumn("total_bytes", "Bytes", "bytes"),
    TableColumn("mean_bytes", "Mean size", "bytes"),
    TableColumn("bandwidth_bytes_per_s", "Bandwidth", "bandwidth", "Bytes over the time in which any of these runs."),
    TableColumn("median_ns", "Median", "duration_ns"),
    TableColumn("max_ns", "Max", "duration_ns"),
)


def copies_section(numbers: Numbers, at: str = "") -> Section:
    """Memory copies and fills, and how much of them kernels hid."""
    copies = numbers.copies
    if copies.is_empty():
        text = nothing(numbers, "No copy or fill began in this window.", "copies", "memsets")
        return absent(at, "copies", "Copies", text)
    blocks: list[Block] = [
        Paragraph(
            f"GPU {overlap['device']} copied or filled memory for {fmt.duration(overlap['copy_ns'])}; "
            f"{fmt.share(overlap['overlapped_share'])} of that while kernels ran, "
            f"{fmt.duration(overlap['exposed_ns'])} with no kernel running."
        )
        for overlap in numbers.copy_overlap.filter(pl.col("copy_ns") > 0).iter_rows(named=True)
    ]
    cells = chart_data.bandwidth_cells(numbers.timeline.copies_in(numbers.window))
    if not cells.is_empty():
        blocks.append(
            Figure(
                f"{at}copies-chart",
                "Bandwidth of copies by their size; larger dots are more copies",
                charts.bandwidth_chart(cells),
                f"{fmt.count(int(cells['count'].sum()))} copies in {cells['direction'].n_unique()} directions.",
            )
        )
    what = pl.when(pl.col("kind") == "memset").then(pl.lit("memory fill")).otherwise(pl.col("direction"))
    table = Table(f"{at}copies-table", "Copies and fills", _COPY_COLUMNS, copies.with_columns(what.alias("what")))
    return Section(f"{at}copies", "Copies", (*blocks, table))


# --- API and synchronisation ------------------------------------------------------------------------------------------

_API_COLUMNS: Final = (
    TableColumn("name", "Function", "name"),
    TableColumn("kind", "Kind", "text"),
    TableColumn("share", "Share", "share", "Of the summed time of all API calls, over all threads; not of the window."),
    TableColumn("total_ns", "Total", "duration_ns"),
    TableColumn("calls", "Calls", "count"),
    *spread_columns(),
)

_BLOCKING_COLUMNS: Final = (
    TableColumn("name", "Function", "name"),
    TableColumn("reason", "Why it blocks", "text"),
    TableColumn("thread", "Thread", "text"),
    TableColumn("total_ns", "Total", "duration_ns", "Time that the thread spent in these calls."),
    TableColumn("calls", "Calls", "count"),
    *spread_columns(),
)


def api_section(numbers: Numbers, at: str = "") -> Section:
    """CUDA API calls on the host, and those among them that held it until the GPU was done."""
    if numbers.api.is_empty():
        text = nothing(numbers, "No CUDA API call began in this window.", "api_calls")
        return absent(at, "api", "CUDA API", text)
    blocks: list[Block] = [Table(f"{at}api-table", "CUDA API calls", _API_COLUMNS, numbers.api)]
    if numbers.blocking.is_empty():
        blocks.append(Paragraph("No call held the host until the GPU was done.", quiet=True))
    else:
        title = "Calls that hold the host until the GPU is done"
        blocks.append(Table(f"{at}blocking-table", title, _BLOCKING_COLUMNS, numbers.blocking, limit=10))
    return Section(f"{at}api", "CUDA API", tuple(blocks))


# --- streams ----------------------------------------------------------------------------------------------------------

_STREAM_COLUMNS: Final = (
    TableColumn("stream", "Stream", "text"),
    TableColumn("device", "GPU", "text"),
    TableColumn("process", "Process", "text"),
    TableColumn("share", "Busy", "share", "Of the window."),
    TableColumn("busy_ns", "Busy time", "duration_ns", "Time with any of its work running."),
    TableColumn("kernels", "Kernels", "count"),
    TableColumn("copies", "Copies", "count"),
    TableColumn("memsets", "Fills", "count"),
    TableColumn("graphs", "Graphs", "count", "CUDA graphs traced as a whole."),
)

_CONCURRENCY_COLUMNS: Final = (
    TableColumn("kernels_at_once", "Kernels at once", "count"),
    TableColumn("device", "GPU", "text"),
    TableColumn("share", "Share", "share", "Of the window."),
    TableColumn("time_ns", "Time", "duration_ns", "With exactly so many kernels running."),
    TableColumn("at_least_ns", "So many or more", "duration_ns"),
)


def streams_section(numbers: Numbers, at: str = "") -> Section:
    """What each stream did, and how many kernels ran at once."""
    if numbers.streams.is_empty():
        return absent(at, "streams", "Streams", "No GPU did any work in this window.")
    streams = Table(f"{at}streams-table", "Streams", _STREAM_COLUMNS, numbers.streams)
    at_once = Table(f"{at}concurrency-table", "Kernels that run at once", _CONCURRENCY_COLUMNS, numbers.concurrency)
    return Section(f"{at}streams", "Streams", (streams, at_once))


# --- CUDA graphs ------------------------------------------------------------------------------------------------------

_GRAPH_COLUMNS: Final = (
    TableColumn("graph", "Graph", "text", "Id of the graph; with node tracing that of its first node."),
    TableColumn("traced", "Traced", "text", "As a whole (its inside is hidden), or node by node."),
    TableColumn("device", "GPU", "text"),
    TableColumn("share", "Share", "share", "Of the summed time of all graph launches."),
    TableColumn("launches", "Launches", "count"),
    TableColumn("nodes_per_launch", "Nodes per launch", "count"),
    TableColumn("total_ns", "Total", "duration_ns"),
    *spread_columns(),
)


def graphs_section(numbers: Numbers, at: str = "") -> Section:
    """CUDA graphs: which were launched, and how much of the GPU's work they hide."""
    summary = numbers.graph_summary
    if numbers.graphs.is_empty():
        return absent(at, "graphs", "CUDA graphs", "No CUDA graph ran in this window.")
    text = f"Work of CUDA graphs runs for {fmt.value(summary.busy_share, 'share')} of the GPU's busy time."
    if summary.hidden_ns:
        text += (
            f" {fmt.duration(summary.hidden_ns)} of it was traced as a whole: the GPU is busy, but with which kernels "
            "is not recorded."
        )
    table = Table(f"{at}graphs-table", "CUDA graphs", _GRAPH_COLUMNS, numbers.graphs)
    return Section(f"{at}graphs", "CUDA graphs", (Paragraph(text), table))


# --- memory -----------------------------------------------------------------------------------------------------------

_MEMORY_COLUMNS: Final = (
    TableColumn("title", "Memory", "text"),
    TableColumn("peak_bytes", "Peak", "bytes", "The most that was allocated at once in the window."),
    TableColumn("begin_bytes", "At the begin", "bytes"),
    TableColumn("end_bytes", "At the end", "bytes"),
    TableColumn("allocations", "Allocations", "count"),
    TableColumn("releases", "Releases", "count"),
    TableColumn("unseen_bytes", "From before", "bytes", "Must have been allocated before the recording began."),
)


def memory_section(numbers: Numbers, at: str = "") -> Section:
    """Memory in use over time, where allocations were recorded."""
    homes = numbers.memory
    levels = memory_timeline(numbers.timeline, numbers.window)
    if homes is None or levels is None:
        return absent(at, "memory", "Memory")
    if not homes:
        return absent(at, "memory", "Memory", "No allocation or release was recorded.")
    rows = pl.DataFrame([{**vars(home), "title": _home_title(home)} for home in homes])
    blocks: list[Block] = []
    if not levels.is_empty():
        titles = {(home.process, home.device, home.memory): _home_title(home) for home in homes[:_MOST_LINES]}
        keys = levels.select("process", "device", "memory").rows()
        drawn = (
            levels.select(
                pl.Series("memory", [titles.get(key) for key in keys], dtype=pl.String),
                (pl.col("time_ns") - numbers.window.start_ns).alias("time_ns"),
                pl.col("allocated_bytes").alias("level_bytes"),
            )
            .drop_nulls("memory")
            .sort("memory", "time_ns", maintain_order=True)
        )
        peak = homes[0]
        blocks.append(
            Figure(
                f"{at}memory-chart",
                "Allocated memory over the window",
                charts.memory_chart(chart_data.thinned_levels(drawn)),
                f"Peak of {_home_title(peak)}: {fmt.data_size(peak.peak_bytes)}.",
            )
        )
    blocks.append(Table(f"{at}memory-table", "Allocated memory", _MEMORY_COLUMNS, rows))
    return Section(f"{at}memory", "Memory", tuple(blocks))


def _home_title(home: MemoryUse) -> str:
    where = "" if home.device is None else f" of GPU {home.device}"
    return f"{home.memory or 'memory'}{where}, process {home.process}"
