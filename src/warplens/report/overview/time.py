"""Sections of the main report on the GPU's time and work: budget, steps, phases, kernels, categories, ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from warplens.analysis.intervals import clip
from warplens.analysis.kernels import KERNEL_GROUPS, KERNELS
from warplens.analysis.phases import PHASE_TIMES, STEPS
from warplens.analysis.ranges import RANGES
from warplens.analysis.timebudget import BUDGET, TimeBudget
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.charts import bars, overtime
from warplens.report.document import Block, Figure, Paragraph, Section, Table, pick, quiet, with_texts, yes_or_no
from warplens.report.headroom import merged_small_parts
from warplens.report.overview.numbers import Numbers
from warplens.report.questions.gpu import ranges_coverage
from warplens.report.questions.time import group_times, titled_parts
from warplens.report.text import category_title, phase_title
from warplens.report.theme import category_fill

#: Parts of a budget below this share of the window are merged in the chart; the table lists all.
_SMALL_PART: Final = 0.005

#: GPUs with a chart of their own; further ones have only a table.
_MOST_DRAWN_DEVICES: Final = 4

#: With more steps than this, step boundaries are not drawn, since they would hide the timeline.
_MOST_STEP_LINES: Final = 60

#: Bars of a ranking; the table below it has all rows.
RANKED: Final = 10

#: Columns of durations in tables of calls.
DURATIONS: Final = "share total_ns calls mean_ns median_ns min_ns max_ns stdev_ns"

PER_STEP: Final = Column("per_step_ns", pl.Float64, "divided by the number of steps in the window")


def nothing(numbers: Numbers, otherwise: str, *tables: str) -> Paragraph:
    """Why a section is empty: none of these tables was recorded, or else the given sentence."""
    return quiet(otherwise if numbers.recorded(*tables) else "Not recorded in this profile.")


def ranked_figure(id_: str, caption: str, ranked: pl.DataFrame) -> Figure:
    """The bars of a ranking."""
    largest = ranked.select("name", "share").head(3).iter_rows()
    alt = "; ".join(f"{name} {fmt.share(part)}" for name, part in largest)
    return Figure(id_, caption, bars.ranked_chart(ranked), alt)


def budget(numbers: Numbers) -> Iterator[Block | Section]:
    """The time budget of each GPU, in parts that sum to the window, as a chart and a table."""
    if not numbers.budgets:
        yield quiet("No GPU did any work in this window.")
        return
    yield Paragraph(
        "At every instant a GPU does exactly one of these; the parts sum to the whole without a remainder. "
        "Concurrent kernels share an instant by who began first; copies and communication count only where no "
        "other work hides them."
    )
    for position, gpu in enumerate(numbers.budgets):
        blocks = _device_budget(numbers, gpu, drawn=position < _MOST_DRAWN_DEVICES)
        if position:
            yield Section(f"budget-{gpu.device}", f"GPU {gpu.device}", tuple(blocks), folded=True)
        else:
            yield from blocks


def _device_budget(numbers: Numbers, budget: TimeBudget, *, drawn: bool) -> Iterator[Block]:
    name, duration = f"GPU {budget.device}", fmt.duration(budget.duration_ns)
    parts = titled_parts(budget)
    if drawn:
        largest = parts.sort("time_ns", descending=True).head(3).select("title", "share").iter_rows()
        yield Figure(
            f"budget-chart-{budget.device}",
            f"{name}: where {duration} went",
            bars.budget_chart(merged_small_parts(parts, _SMALL_PART)),
            f"{name} was busy for {fmt.duration(budget.busy_ns)} of {duration}. Largest parts: "
            f"{', '.join(f'{title} {fmt.share(share)}' for title, share in largest)}.",
        )
    steps = numbers.window.step_count
    rows = parts.with_columns(per_step_ns=pl.col("time_ns") / steps) if steps else parts
    per_step = (PER_STEP,) if steps else ()
    columns = pick(BUDGET, column("title"), "group share time_ns", *per_step, column("meaning"))
    yield Table(f"budget-table-{budget.device}", f"{name}: parts of {duration}", columns, rows, limit=None)
    if budget.attributed_share is not None:
        yield quiet(f"A cause is recorded for {fmt.share(budget.attributed_share)} of the idle time of {name}.")


def devices(numbers: Numbers) -> Iterator[Block]:
    """The time of each GPU by group of parts, if there are several GPUs."""
    if len(numbers.budgets) < 2:
        return
    rows = []
    for budget in numbers.budgets:
        busy = budget.busy_ns / (budget.duration_ns or 1)
        rows.append({"device": f"GPU {budget.device}", "busy_share": busy, **group_times(budget)})
    frame = pl.DataFrame(rows, infer_schema_length=None).fill_null(0)
    names = [name for name in frame.columns if name not in ("device", "busy_share")]
    columns = (
        column("device", dtype=pl.String, help=""),
        column("busy_share", help="of the window", title="Busy"),
        *(Column(name, pl.Int64, title=fmt.capitalised(name.removesuffix("_ns"))) for name in names),
    )
    yield Paragraph("Averages over GPUs hide the one that the others wait for.")
    yield Table("devices-table", "What each GPU did", columns, frame, limit=None)


def steps(numbers: Numbers) -> Iterator[Block]:
    """Wall and busy time of each step, and the busy share of the GPUs over the window."""
    window, all_steps, window_steps = numbers.window, numbers.steps, numbers.window_steps
    name = window.range_name
    of_range = "" if name is None else f", only work launched inside “{fmt.printable(name)}”"
    yield Paragraph(f"Analysed: {fmt.duration(window.duration_ns)}, {window.how}{of_range}.")
    if all_steps.height:
        marks = all_steps.select(pl.col("step").alias("index"), "wall_ns", "busy_ns", "in_window")
        pale_note = "" if window_steps.height == all_steps.height else "; pale ones do not count"
        yield Figure(
            "steps-chart",
            f"Wall and GPU time of each step{pale_note}",
            overtime.steps_chart(overtime.merged_steps(marks)),
            f"{all_steps.height} steps. {_step_spread(window_steps if window_steps.height else all_steps)}",
        )
    if numbers.budgets:
        yield _timeline(numbers)
    if all_steps.height:
        rows = all_steps.with_columns(yes_or_no("in_window"))
        counts = column(
            "in_window", dtype=pl.String, help="whether the step is in the analysed window", title="Counted"
        )
        shown = "step wall_ns busy_ns busy_share idle_ns kernels copies graph_launches gap_ns"
        yield Table("steps-table", "Steps", pick(STEPS, shown, counts, busy_share="Busy"), rows, limit=10)


def _step_spread(steps: pl.DataFrame) -> str:
    wall: Any = steps["wall_ns"]
    median, least, most = (fmt.duration(time) for time in (wall.median(), wall.min(), wall.max()))
    return f"Median {median}, from {least} to {most}."


def _timeline(numbers: Numbers) -> Figure:
    window = numbers.window
    span = (window.start_ns, window.end_ns)
    bins = overtime.timeline_bins(len(numbers.budgets))
    lanes, shares = [], []
    for budget in numbers.budgets:
        running, name = clip(numbers.timeline.busy(budget.device), *span), f"GPU {budget.device}"
        lanes.append(overtime.busy_bins(running.starts, running.ends, span, name, bins))
        shares.append(f"{name} {fmt.share(budget.busy_ns / budget.duration_ns if budget.duration_ns else 0.0)}")
    begins = [step.start_ns - window.start_ns for step in window.steps]
    drawn = begins if len(begins) <= _MOST_STEP_LINES else []
    return Figure(
        "timeline-chart",
        "GPU activity over the window" + ("; dotted lines are starts of steps" if drawn else ""),
        overtime.timeline_chart(pl.concat(lanes), drawn),
        f"Share of each short stretch of the window in which the GPU works. Over all: {', '.join(shares)}.",
    )


def phases(numbers: Numbers) -> Iterator[Block]:
    """GPU time of forward, backward and optimizer, from the names of ranges."""
    phase_times, steps = numbers.phases, numbers.window.step_count
    if not set(phase_times["phase"]) - {"none"}:
        yield nothing(numbers, "No range is named after forward, backward or optimizer.", "ranges")
        return
    rows = with_texts(phase_times, title=lambda row: phase_title(row["phase"])).with_columns(
        (pl.col("gpu_ns") / max(1, steps)).alias("per_step_ns"),
        (pl.col("matmul_ns") / pl.col("kernel_ns")).alias("matmul_share"),
        (pl.col("inferred_ns") / pl.col("gpu_ns")).alias("inferred_share"),
    )
    columns = pick(
        PHASE_TIMES,
        column("title", title="Phase"),
        "share gpu_ns",
        *((PER_STEP,) if steps else ()),
        "busy_ns",
        column("matmul_share"),
        Column("inferred_share", pl.Float64, "attributed through the waiting thread instead of the launching one"),
        "kernels",
    )
    yield Table("phases-table", "GPU time of each phase", columns, rows, limit=None)
    text = (
        "GPU work belongs to the outermost enclosing range that is named after a phase. Work launched by another "
        "thread (autograd's, in the backward pass) goes to the range that the waiting thread has open, and counts "
        "as inferred."
    )
    if numbers.operators is not None:
        text += (
            " Where no range is named after the forward pass, the operators that lead to a backward pass make it up, "
            "and count as inferred, too."
        )
    yield quiet(text)


def kernels(numbers: Numbers) -> Iterator[Block]:
    """The kernels with the most GPU time."""
    statistics = numbers.kernels
    if statistics.is_empty():
        yield nothing(numbers, "No kernel began in this window.", "kernels")
        return
    top = statistics.head(RANKED)
    labels = fmt.kernel_labels(statistics["full_name"].cast(pl.String))
    ranked = pl.DataFrame(
        {
            "name": [labels[name] for name in top["full_name"]],
            "full_name": top["full_name"],
            "value": top["total_ns"],
            "share": top["share"],
            "fill": [category_fill(category) for category in top["category"]],
            "detail": [f"{fmt.count(calls)} calls" for calls in top["calls"]],
        }
    )
    if ranked["value"].sum():  # without any time there are no shares
        most = f"The {top.height} kernels with the most GPU time: {fmt.share(float(top['share'].sum()))} of all"
        yield ranked_figure("kernels-chart", most if top.height > 1 else "The only kernel", ranked)
    name = KERNELS.column("full_name").but(full="full_name", help="kernel function; unfold for the full name")
    columns = pick(KERNELS, name, "category", DURATIONS)
    yield Table("kernels-table", "Kernels by GPU time", columns, _titled_categories(statistics, short=True))


def categories(numbers: Numbers) -> Iterator[Block]:
    """Kernel time by category and by number format."""
    statistics = numbers.categories
    if statistics.is_empty():
        yield nothing(numbers, "No kernel began in this window.", "kernels")
        return
    rows = _titled_categories(statistics)
    ranked = rows.head(RANKED).select(
        pl.col("category").alias("name"),
        pl.col("total_ns").alias("value"),
        "share",
        pl.Series("fill", [category_fill(category) for category in statistics["category"].head(RANKED)], pl.String),
    )
    if ranked["value"].sum():
        yield ranked_figure("categories-chart", "Kernel time by category", ranked)
    yield Paragraph(_classification_text(numbers))
    numeric = pick(KERNEL_GROUPS, "share total_ns kernels", DURATIONS.removeprefix("share total_ns "))
    yield Table("categories-table", "Categories", (KERNELS.column("category"), *numeric), rows, limit=None)
    formats = numbers.precisions.with_columns(pl.col("precision").fill_null("not in the name"))
    columns = (KERNELS.column("precision"), *numeric)
    yield Table("precision-table", "Number formats of the operands", columns, formats, limit=None)


def _classification_text(numbers: Numbers) -> str:
    coverage, use = numbers.category_coverage, numbers.tensor_core_use
    text = (
        f"Read from kernel names. A category is known for {fmt.value(coverage.category_share, 'share')} of "
        f"the kernel time, a number format for {fmt.value(coverage.precision_share, 'share')}."
    )
    if not use.product_ns:
        return text
    parts = {
        "on tensor cores": use.tensor_core_ns,
        "on the vector units": use.vector_ns,
        "unknown": use.unknown_ns,
    }
    split = ", ".join(f"{fmt.share(time_ns / use.product_ns)} {unit}" for unit, time_ns in parts.items() if time_ns)
    return f"{text} Of the {fmt.duration(use.product_ns)} of kernels that multiply matrices, {split}."


def _titled_categories(frame: pl.DataFrame, *, short: bool = False) -> pl.DataFrame:
    titles = [category_title(category, short=short) for category in frame["category"].cast(pl.String)]
    return frame.with_columns(pl.Series("category", titles, dtype=pl.String))


def ranges(numbers: Numbers) -> Iterator[Block]:
    """Annotated ranges of the program, with the GPU time of the work launched inside."""
    statistics, coverage = numbers.ranges, numbers.range_coverage
    if statistics.is_empty():
        yield nothing(numbers, "No annotated range launched work in this window.", "ranges")
        return
    yield from (Paragraph(f"{sentence}.") for sentence in ranges_coverage(coverage))
    shown = "name share gpu_ns gpu_exclusive_ns inferred_ns span_ns host_ns instances kernels"
    columns = pick(RANGES, shown, name="Range", host_ns="Host time")
    yield Table("ranges-table", "Ranges by GPU time", columns, statistics, depth="depth")
