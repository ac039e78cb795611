"""Sections of the main report on the host: launches, copies, CUDA calls, streams, graphs, memory, and operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from warplens.analysis.allocator import (
    ALIVE,
    ALLOCATIONS_BY_STEP,
    Allocations,
    AllocatorUse,
    MemoryUse,
    memory_timeline,
)
from warplens.analysis.api import API_CALLS, BLOCKING_CALLS
from warplens.analysis.code import CODE
from warplens.analysis.kernels import COPIES
from warplens.analysis.launches import LAUNCHES, matched_launches
from warplens.analysis.operators.statistics import OPERATORS
from warplens.analysis.streams import CONCURRENCY, GRAPHS, STREAMS
from warplens.analysis.work.catalogue import UNMODELLED, WORK, work_statistics
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.charts import overtime, plane
from warplens.report.document import Block, Figure, KeyFigure, KeyFigures, Paragraph, Table, pick, quiet
from warplens.report.overview.numbers import Numbers, OperatorNumbers
from warplens.report.overview.time import DURATIONS, RANKED, nothing, ranked_figure
from warplens.report.questions.host import LAUNCH_TIMES, counted_process, launches_coverage
from warplens.report.questions.memory import MEMORY_USE, OWNER, memory_facts, with_owners
from warplens.report.questions.operators import OPERATOR_TITLES, coverage_sentences, overhead_sentence, what_to_record

#: Begin of the first bin. No part of a launch is shorter, but the queue delay is negative if the kernel starts first.
_SHORTEST_NS: Final = 100

#: Lines in one chart of memory; more are hard to distinguish.
_MOST_LINES: Final = 6

#: GPUs whose allocator is drawn; data-parallel processes use about the same memory.
_MOST_DEVICES: Final = 4


def launches(numbers: Numbers) -> Iterator[Block]:
    """Launches: cost on the host, and time of kernels in the queue."""
    summary = numbers.launch_summary
    if numbers.launches.is_empty():
        yield quiet("No kernel was launched in this window.")
        return
    yield KeyFigures.of(*_launch_figures(numbers))
    yield from (
        quiet(f"{fmt.sentence(sentence)} Times of calls and queues are of those.")
        for sentence in launches_coverage(summary)
    )
    if summary.matched:
        yield _launch_durations(numbers)
    titles = {**LAUNCH_TIMES, "api_total_ns": "Time in calls"}
    name = LAUNCHES.column("full_name").but(full="full_name")
    columns = pick(LAUNCHES, name, "api launches", *titles, **titles)
    yield Table("launches-table", "Launches by kernel and API call", columns, numbers.launches)


def _launch_figures(numbers: Numbers) -> Iterator[KeyFigure]:
    summary, per_step = numbers.launch_summary, numbers.launch_summary.per_step
    if per_step is not None and summary.launches:
        spread = "the same in each" if per_step.is_constant else f"from {per_step.min:,} to {per_step.max:,}"
        whose = counted_process(numbers.timeline)
        meaning = f"median of {per_step.steps} steps{whose}; {spread}" if per_step.steps > 1 else f"one step{whose}"
        yield KeyFigure("Launches per step", per_step.median, "count", meaning)
    yield KeyFigure("Launch rate", summary.per_second, "rate", "kernels launched one by one, over the window")
    interval = "median between launches of the busiest thread"
    yield KeyFigure("Interval", summary.interval_median_ns, "duration_ns", interval)
    yield KeyFigure("Launching call", summary.api_median_ns, "duration_ns", "median duration of one")
    yield KeyFigure("Queue delay", summary.queue_median_ns, "duration_ns", "median from a call's return to its kernel")
    short = summary.shorter_than_interval_share
    yield KeyFigure("Short kernels", short, "share", "shorter than the launch interval")
    yield KeyFigure("Prompt starts", summary.prompt_share, "share", "launches for which the GPU had been waiting")


def _launch_durations(numbers: Numbers) -> Figure:
    kernels = matched_launches(numbers.timeline, numbers.window)
    series = {
        "launching call": kernels["launch_end_ns"] - kernels["launch_start_ns"],
        "queue delay": kernels["start_ns"] - kernels["launch_end_ns"],
        "kernel": kernels["end_ns"] - kernels["start_ns"],
    }
    bins = pl.concat([plane.log_bins(durations, name, _SHORTEST_NS) for name, durations in series.items()])
    early = int((series["queue delay"] < _SHORTEST_NS).sum())
    note = f"; {fmt.count(early)} queue delays below {fmt.duration(_SHORTEST_NS)} are in the first bin" if early else ""
    medians = ", ".join(f"{name} {fmt.duration(values.median())}" for name, values in series.items())  # type: ignore[arg-type]
    return Figure(
        "launches-chart",
        f"How long launching calls, queue delays and kernels take{note}",
        plane.histogram_chart(bins, "duration (logarithmic)"),
        f"Medians: {medians}.",
    )


def copies(numbers: Numbers) -> Iterator[Block]:
    """Memory copies and fills, and their overlap with kernels."""
    if numbers.copies.is_empty():
        yield nothing(numbers, "No copy or fill began in this window.", "copies", "memsets")
        return
    for overlap in numbers.copy_overlap.filter(pl.col("copy_ns") > 0).iter_rows(named=True):
        yield Paragraph(
            f"GPU {overlap['device']} copied or filled memory for {fmt.duration(overlap['copy_ns'])}; "
            f"{fmt.share(overlap['overlapped_share'])} of that while kernels ran, "
            f"{fmt.duration(overlap['exposed_ns'])} without a running kernel."
        )
    cells = plane.bandwidth_cells(numbers.timeline.copies_in(numbers.window))
    if not cells.is_empty():
        yield Figure(
            "copies-chart",
            "Bandwidth of copies by their size; larger dots are more copies",
            plane.bandwidth_chart(cells),
            f"{fmt.count(int(cells['count'].sum()))} copies in {cells['direction'].n_unique()} directions.",
        )
    kind = pl.when(pl.col("kind") == "memset").then(pl.lit("memory fill")).otherwise(pl.col("direction"))
    columns = pick(
        COPIES,
        column("what"),
        "source_memory destination_memory calls share total_ns total_bytes mean_bytes bandwidth_bytes_per_s median_ns",
        "max_ns",
        mean_bytes="Mean size",
    )
    yield Table("copies-table", "Copies and fills", columns, numbers.copies.with_columns(kind.alias("what")))


def api(numbers: Numbers) -> Iterator[Block]:
    """CUDA API calls on the host, and those that blocked it until the GPU was done."""
    if numbers.api.is_empty():
        yield nothing(numbers, "No CUDA API call began in this window.", "api_calls")
        return
    yield Table("api-table", "CUDA API calls", pick(API_CALLS, "name kind", DURATIONS, name="Function"), numbers.api)
    if numbers.blocking.is_empty():
        yield quiet("No call blocked the host until the GPU was done.")
        return
    shown = ("name reason thread", DURATIONS.removeprefix("share "))
    columns = pick(BLOCKING_CALLS, *shown, name="Function", reason="Why it blocks")
    caption = "Calls that block the host until the GPU is done"
    yield Table("blocking-table", caption, columns, numbers.blocking, limit=10)


def streams(numbers: Numbers) -> Iterator[Block]:
    """Work of each stream, and the number of concurrent kernels."""
    if numbers.streams.is_empty():
        yield quiet("No GPU did any work in this window.")
        return
    columns = pick(
        STREAMS, "stream device process share busy_ns kernels copies memsets graphs", share="Busy", busy_ns="Busy time"
    )
    yield Table("streams-table", "Streams", columns, numbers.streams)
    columns = pick(CONCURRENCY, "kernels_at_once device share time_ns at_least_ns")
    yield Table("concurrency-table", "Concurrent kernels", columns, numbers.concurrency)


def graphs(numbers: Numbers) -> Iterator[Block]:
    """CUDA graphs that were launched, and the GPU time whose kernels they hide."""
    summary = numbers.graph_summary
    if numbers.graphs.is_empty():
        yield quiet("No CUDA graph ran in this window.")
        return
    text = f"Work of CUDA graphs runs for {fmt.value(summary.busy_share, 'share')} of the GPU's busy time."
    if summary.hidden_ns:
        text += (
            f" {fmt.duration(summary.hidden_ns)} of it was traced as a whole: the GPU is busy, but with which kernels "
            "is not recorded."
        )
    yield Paragraph(text)
    shown = (
        "graph traced device share launches nodes_per_launch",
        DURATIONS.replace("share ", "").replace("calls ", ""),
    )
    yield Table("graphs-table", "CUDA graphs", pick(GRAPHS, *shown), numbers.graphs)


_MEMORY_TITLE: Final = column("title", title="Memory")


def memory(numbers: Numbers) -> Iterator[Block]:
    """Memory in use over time, if allocations were recorded."""
    uses = numbers.memory
    levels = memory_timeline(numbers.timeline, numbers.window)
    if uses is None or levels is None:
        yield quiet("Not recorded in this profile.")
        return
    if not uses:
        yield quiet("No allocation or release was recorded.")
        return
    if not levels.is_empty():
        titles = {(use.process, use.device, use.memory): _use_title(use) for use in uses[:_MOST_LINES]}
        keys = levels.select("process", "device", "memory").rows()
        drawn = levels.select(
            pl.Series("memory", [titles.get(key) for key in keys], dtype=pl.String),
            (pl.col("time_ns") - numbers.window.start_ns).alias("time_ns"),
            pl.col("allocated_bytes").alias("level_bytes"),
        ).drop_nulls("memory")
        yield Figure(
            "memory-chart",
            "Allocated memory over the window",
            overtime.memory_chart(overtime.thinned_levels(drawn.sort("memory", "time_ns", maintain_order=True))),
            f"Peak of {_use_title(uses[0])}: {fmt.data_size(uses[0].peak_bytes)}.",
        )
    shown = "peak_bytes begin_bytes end_bytes allocations releases unseen_bytes"
    columns = pick(MEMORY_USE, _MEMORY_TITLE, shown, begin_bytes="At the start", end_bytes="At the end")
    rows = pl.DataFrame([{**vars(use), "title": _use_title(use)} for use in uses])
    yield Table("memory-table", "Allocated memory", columns, rows)


def _use_title(use: MemoryUse) -> str:
    of_gpu = "" if use.device is None else f" of GPU {use.device}"
    return f"{use.memory or 'memory'}{of_gpu}, process {use.process}"


def allocator(numbers: Numbers) -> Iterator[Block]:
    """The framework's allocator: memory over time, and blocks alive at the peak; nothing if it was not recorded."""
    window, recorded = numbers.window, numbers.allocations
    if recorded is None:
        return
    uses = [use for use in recorded.use if use.device is not None]
    if not uses:
        return
    yield Paragraph(_allocator_sentence(uses[0]))
    for use in uses[:_MOST_DEVICES]:
        yield from _device_memory(numbers, use, recorded)
    rows = pl.DataFrame([{**vars(use), "title": _device_title(use), "idle_bytes": use.idle_bytes} for use in uses])
    rows = rows.with_columns(peak_time_ns=pl.col("peak_ns") - window.start_ns)
    columns = pick(
        MEMORY_USE,
        _MEMORY_TITLE,
        "peak_bytes",
        Column("peak_time_ns", pl.Int64, "since the window's start", title="At"),
        "reserved_bytes idle_bytes begin_bytes end_bytes allocations allocated_bytes unseen_bytes",
        begin_bytes="At the start",
        end_bytes="At the end",
    )
    yield Table("allocator-table", "Memory of the framework's allocator", columns, rows, limit=None)
    steps = recorded.steps.drop_nulls("device")
    if steps.height:
        shown = "step peak_bytes allocations releases allocated_bytes released_bytes"
        columns = pick(ALLOCATIONS_BY_STEP, shown, allocated_bytes="Allocated")
        yield Table("allocator-steps", "Allocations of each step", columns, steps)


def _device_memory(numbers: Numbers, use: AllocatorUse, recorded: Allocations) -> Iterator[Block]:
    of_device = (pl.col("process") == use.process) & (pl.col("device") == use.device)
    id_ = f"{use.process}-{use.device}"
    since = (pl.col("time_ns") - numbers.window.start_ns).alias("time_ns")
    events = recorded.timeline.filter(of_device)
    drawn = pl.concat(
        events.select(pl.lit(title).alias("memory"), since, pl.col(column).alias("level_bytes")).drop_nulls()
        for title, column in (("in use", "allocated_bytes"), ("held", "reserved_bytes"))
    )
    peak = (
        f"Peak {fmt.data_size(use.peak_bytes)}, {fmt.duration(use.peak_ns - numbers.window.start_ns)} after the start."
    )
    if not drawn.is_empty():
        lines = overtime.memory_chart(overtime.thinned_levels(drawn))
        yield Figure(f"allocator-chart-{id_}", f"Memory of {_device_title(use)} over the window", lines, peak)
    columns = pick(ALIVE, OWNER.but(title="Allocated by"), "forward phase bytes share blocks", share="Of the peak")
    owners = with_owners(recorded.alive_at_peak.filter(of_device))
    yield Table(f"alive-table-{id_}", f"In use at the peak of {_device_title(use)}", columns, owners)


def _allocator_sentence(use: AllocatorUse) -> str:
    held = "" if use.reserved_bytes is None else f", of {fmt.data_size(use.reserved_bytes)} that the allocator held"
    text = f"{_device_title(use)} had {fmt.data_size(use.peak_bytes)} in use at its peak{held}."
    return " ".join([text, *(fmt.sentence(fact) for fact in memory_facts(use))])


def _device_title(use: AllocatorUse) -> str:
    return f"GPU {use.device}, process {use.process}"


#: Columns of an operator or a part of the program, after its name.
_SHOWN: Final = "share total_ns gpu_ns backward_ns calls host_ns"


def operators(numbers: Numbers) -> Iterator[Block]:
    """GPU and host time of operators; nothing for profiles without operators."""
    operator_numbers = numbers.operators
    if operator_numbers is None:
        return
    if (overhead := operator_numbers.overhead) is not None:
        uncovered = "time of the window in which the GPU did nothing"
        yield KeyFigures.of(
            KeyFigure("Inside operators", overhead.host_ns, "duration_ns", "host time, summed over threads"),
            KeyFigure(
                "In CUDA calls", overhead.api_ns, "duration_ns", "launching, copying and waiting, inside operators"
            ),
            KeyFigure("In the framework", overhead.framework_ns, "duration_ns", "the rest: dispatch, shapes, autograd"),
            KeyFigure("Not covered", overhead.uncovered_ns, "duration_ns", uncovered),
        )
        yield Paragraph(f"On the host, {overhead_sentence(overhead)}.")
    sentences = [
        *coverage_sentences(operator_numbers.coverage, places=True),
        what_to_record(numbers.timeline, "module"),
    ]
    if text := " ".join(f"{sentence}." for sentence in sentences if sentence is not None):
        yield quiet(text)
    columns = pick(OPERATORS, "name", _SHOWN, "api_ns host_self_ns", name="Operator", **OPERATOR_TITLES)
    yield Table("operators-table", "Operators by name", columns, operator_numbers.names)


def modules(numbers: Numbers) -> Iterator[Block]:
    """The parts of the program, as a tree, with the GPU time of the work they launched."""
    operator_numbers = numbers.operators
    if operator_numbers is None or not operator_numbers.modules.height:
        return
    yield _ranking(operator_numbers)
    columns = pick(OPERATORS, "name level", _SHOWN, name="Part", **OPERATOR_TITLES)
    yield Table("modules-table", "Parts of the program", columns, operator_numbers.modules, depth="depth")


def code(numbers: Numbers) -> Iterator[Block]:
    """CUDA calls by place in the program."""
    if numbers.code.is_empty():
        return
    kept = [column.name for column in CODE.columns if numbers.code[column.name].null_count() < numbers.code.height]
    yield Table("code-table", "CUDA calls by place in the program", pick(CODE, " ".join(kept)), numbers.code)


def _ranking(operator_numbers: OperatorNumbers) -> Figure:
    """The parts of the program by the GPU time that they launched directly, so that bars do not overlap."""
    own_time = pl.col("gpu_self_ns") + pl.col("backward_self_ns")
    ranked = (
        operator_numbers.modules.group_by("name", maintain_order=True)
        .agg(own_time.sum().alias("value"), pl.col("backward_self_ns").sum())
        .filter(pl.col("value") > 0)
        .sort("value", "name", descending=[True, False])
        .head(RANKED)
    )
    details = [f"{fmt.duration(backward)} of it backward" for backward in ranked["backward_self_ns"]]
    drawn = ranked.select(
        "name",
        pl.col("name").alias("full_name"),
        "value",
        (pl.col("value") / max(1, operator_numbers.coverage.total_ns)).alias("share"),
        pl.lit("other").alias("fill"),
        pl.Series("detail", details, dtype=pl.String),
    )
    return ranked_figure("operators-chart", "Parts of the program by their own GPU time, forward and backward", drawn)


def work(numbers: Numbers) -> Iterator[Block]:
    """FLOPs, bytes and rates of operators, and work without a model; nothing if no operator has a model."""
    modelled = numbers.work
    if modelled is None or modelled.operators.is_empty() or modelled.coverage_share is None:
        return
    sources = "; ".join(modelled.peak_sources)
    roofs = f" Roofs: {sources}, dense matrices at the boost clock." if sources else ""
    yield Paragraph(
        "FLOPs and bytes are modelled from the recorded shapes; only the time is measured. "
        f"{fmt.share(modelled.coverage_share)} of {fmt.duration(modelled.total_ns)} of GPU time belongs to "
        f"operators with modelled work.{roofs}"
    )
    steps, duration = numbers.window.step_count, numbers.window.duration_ns
    rate = modelled.flops * 1e9 / modelled.modelled_ns if modelled.modelled_ns else None
    over_window = modelled.flops * 1e9 / duration if duration else None
    yield KeyFigures.of(
        KeyFigure("Modelled work", modelled.flops, "flop_count", "in the window"),
        *(
            (KeyFigure("Per step", modelled.flops / steps, "flop_count", f"mean of {fmt.number(steps)}"),)
            if steps
            else ()
        ),
        KeyFigure("Rate of the operators", rate, "flops", "over their GPU time"),
        KeyFigure("Rate over all", over_window, "flops", "over the window, idle time included"),
    )
    columns = pick(
        WORK,
        "name share gpu_ns operators flops bytes flops_per_s bytes_per_s intensity side roof_share",
        name="Operator",
        flops_per_s="FLOP/s",
    )
    yield Table("work-table", "Modelled work, measured time", columns, work_statistics(modelled))
    if not modelled.unmodelled.is_empty():
        columns = pick(UNMODELLED, "name share gpu_ns operators reason", name="Operator", reason="Why it has no model")
        yield Table("unmodelled-table", "GPU time without a model", columns, modelled.unmodelled)
