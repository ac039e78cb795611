"""Sections of the main document about the GPU: time budget, steps, phases, kernels, categories, ranges.

Each function takes the numbers of a profile and a prefix that keeps ids apart where a document holds several profiles.
A section whose data the profile does not hold says so in one line, so that nothing is missing silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.idle import IDLE_CAUSES
from warplens.analysis.intervals import clip
from warplens.report import chart_data, charts
from warplens.report import format as fmt
from warplens.report.chart_theme import category_fill
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn
from warplens.report.overview.words import category_title, part_fill, part_title, phase_title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.timebudget import TimeBudget
    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers

__all__ = [
    "NOT_RECORDED",
    "absent",
    "budget_section",
    "categories_section",
    "kernels_section",
    "phases_section",
    "ranges_section",
    "spread_columns",
    "steps_section",
]

NOT_RECORDED: Final = "Not recorded in this profile."

#: Bars of a ranking; the table below it has the rest.
_RANKED: Final = 10

#: Parts of a budget below this share of the window are drawn as one; the table keeps them apart.
_SMALL_PART: Final = 0.005

#: More GPUs than this are listed, but not drawn one by one.
_MOST_DRAWN_DEVICES: Final = 4

#: More step boundaries than this would hide the timeline behind them.
_MOST_STEP_LINES: Final = 60


def spread_columns(prefix: str = "", of: str = "") -> tuple[TableColumn, ...]:
    """Mean, median, extremes and standard deviation, as tables of durations show them after the total."""
    titles = {"mean": "Mean", "median": "Median", "min": "Min", "max": "Max", "stdev": "Std dev"}
    return tuple(
        TableColumn(f"{prefix}{key}_ns", title, "duration_ns", f"{title} duration{of}.")
        for key, title in titles.items()
    )


def absent(at: str, section: str, title: str, text: str = NOT_RECORDED) -> Section:
    """A section that says in one line why there is nothing in it."""
    return Section(f"{at}{section}", title, (Paragraph(text, quiet=True),))


# --- time budget ------------------------------------------------------------------------------------------------------

_BUDGET_COLUMNS: Final = (
    TableColumn("title", "Part", "text"),
    TableColumn("group", "Group", "text", "Compute, hidden in CUDA graphs, communication and copies not hidden, idle."),
    TableColumn("share", "Share", "share", "Of the time that is split."),
    TableColumn("time_ns", "Time", "duration_ns"),
    TableColumn("per_step_ns", "Per step", "duration_ns", "Time divided by the number of steps in the window."),
    TableColumn("meaning", "Meaning", "text"),
)


def budget_section(numbers: Numbers, at: str = "") -> Section:
    """Where the time went, in parts that sum to the window; a chart and a table for each GPU."""
    if not numbers.budgets:
        return absent(at, "budget", "Time budget", "No GPU did any work in this window.")
    intro = Paragraph(
        "At every instant a GPU does exactly one of these; the parts sum to the whole without a remainder. "
        "Kernels that run at once share an instant by who began first; copies and communication count only where no "
        "other work hides them."
    )
    blocks: list[Block] = [intro]
    for position, budget in enumerate(numbers.budgets):
        blocks.extend(_budget_blocks(numbers, budget, at, drawn=position < _MOST_DRAWN_DEVICES))
    return Section(f"{at}budget", "Time budget", tuple(blocks))


def _budget_blocks(numbers: Numbers, budget: TimeBudget, at: str, *, drawn: bool) -> Iterator[Block]:
    name = f"GPU {budget.device}"
    whole = fmt.duration(budget.duration_ns)
    parts = _titled_parts(budget)
    if drawn:
        largest = parts.sort("time_ns", descending=True).head(3)
        words = ", ".join(
            f"{title} {fmt.share(share)}" for title, share in largest.select("title", "share").iter_rows()
        )
        yield Figure(
            f"{at}budget-chart-{budget.device}",
            f"{name}: where {whole} went",
            charts.budget_chart(_merged_small_parts(parts)),
            f"{name} was busy for {fmt.duration(budget.busy_ns)} of {whole}. Largest parts: {words}.",
        )
    steps = len(numbers.window.steps)
    per_step = pl.col("time_ns") / steps if steps else pl.lit(None, dtype=pl.Float64)
    rows = parts.with_columns(per_step.alias("per_step_ns"))
    columns = tuple(column for column in _BUDGET_COLUMNS if steps or column.key != "per_step_ns")
    yield Table(f"{at}budget-table-{budget.device}", f"{name}: parts of {whole}", columns, rows, limit=None)
    if budget.attributed_share is not None:
        yield Paragraph(
            f"What the host was doing is known for {fmt.share(budget.attributed_share)} of the idle time of {name}.",
            quiet=True,
        )


def _titled_parts(budget: TimeBudget) -> pl.DataFrame:
    parts = budget.parts.with_columns(pl.col("group").cast(pl.String))
    keys = parts.select("group", "part").rows()
    return parts.with_columns(
        pl.Series("title", [part_title(*key) for key in keys], dtype=pl.String),
        pl.Series("fill", [part_fill(*key) for key in keys], dtype=pl.String),
        pl.Series("meaning", [IDLE_CAUSES.get(part, "") if group == "idle" else "" for group, part in keys], pl.String),
    )


def _merged_small_parts(parts: pl.DataFrame) -> pl.DataFrame:
    """The parts as `budget_chart` wants them; the small ones of each family become one, if there are several."""
    titled = parts.select(
        pl.col("title").alias("part"),
        pl.when(pl.col("group") == "idle").then(pl.lit("idle")).otherwise(pl.lit("busy")).alias("family"),
        pl.col("time_ns").alias("duration_ns"),
        "share",
        "fill",
        pl.col("meaning").alias("detail"),
    )
    drawn = []
    for family in ("busy", "idle"):
        mine = titled.filter(pl.col("family") == family)
        small = mine.filter(pl.col("share") < _SMALL_PART)
        if small.height < 2:
            drawn.append(mine)
            continue
        rest = small.select(
            pl.lit(f"{small.height} smaller parts").alias("part"),
            pl.lit(family).alias("family"),
            pl.col("duration_ns", "share").sum(),
            pl.lit("other" if family == "busy" else "idle-6").alias("fill"),
            pl.lit(", ".join(small["part"])).alias("detail"),
        )
        drawn.extend((mine.filter(pl.col("share") >= _SMALL_PART), rest))
    return pl.concat(drawn)


# --- steps ------------------------------------------------------------------------------------------------------------

_STEP_COLUMNS: Final = (
    TableColumn("step", "Step", "count"),
    TableColumn("wall_ns", "Wall time", "duration_ns"),
    TableColumn(
        "busy_ns", "GPU busy", "duration_ns", "Time in which the GPU did anything; the busiest of several GPUs."
    ),
    TableColumn("busy_share", "Busy", "share", "GPU busy of wall time."),
    TableColumn("idle_ns", "Idle", "duration_ns"),
    TableColumn("kernels", "Kernels", "count"),
    TableColumn("copies", "Copies", "count"),
    TableColumn("graph_launches", "Graphs", "count", "CUDA graphs that were traced as a whole."),
    TableColumn("gap_ns", "Gap after", "duration_ns", "Time to the next step's begin."),
    TableColumn("in_window", "Counted", "text", "Whether the step lies in the window that all other numbers speak of."),
)


def steps_section(numbers: Numbers, at: str = "") -> Section:
    """Each step's wall and busy time, and when the GPU was busy."""
    blocks: list[Block] = [Paragraph(_window_sentence(numbers))]
    steps = numbers.steps
    if steps.height:
        marks = steps.select(pl.col("step").alias("index"), "wall_ns", "busy_ns", "in_window")
        counted = numbers.window_steps
        blocks.append(
            Figure(
                f"{at}steps-chart",
                "Wall and GPU time of each step"
                + ("" if counted.height == steps.height else "; pale ones do not count"),
                charts.steps_chart(chart_data.merged_steps(marks)),
                f"{steps.height} steps. {_step_spread(counted if counted.height else steps)}",
            )
        )
    if numbers.budgets:
        blocks.append(_timeline_figure(numbers, at))
    if steps.height:
        rows = steps.with_columns(pl.col("in_window").replace_strict({True: "yes", False: "no"}))
        blocks.append(Table(f"{at}steps-table", "Steps", _STEP_COLUMNS, rows, limit=10))
    return Section(f"{at}steps", "Steps over time", tuple(blocks))


def _window_sentence(numbers: Numbers) -> str:
    window = numbers.window
    inside = (
        f", only work launched inside “{fmt.printable(window.range_name)}”" if window.range_name is not None else ""
    )
    return f"Analysed: {fmt.duration(window.duration_ns)}, {window.how}{inside}."


def _step_spread(steps: pl.DataFrame) -> str:
    wall: dict[str, Any] = steps.select(
        pl.col("wall_ns").median().alias("median"),
        pl.col("wall_ns").min().alias("least"),
        pl.col("wall_ns").max().alias("most"),
    ).row(0, named=True)
    return f"Median {fmt.duration(wall['median'])}, from {fmt.duration(wall['least'])} to {fmt.duration(wall['most'])}."


def _timeline_figure(numbers: Numbers, at: str) -> Figure:
    window = numbers.window
    lanes = []
    for budget in numbers.budgets:
        running = clip(numbers.timeline.busy(budget.device), window.start_ns, window.end_ns)
        span = (window.start_ns, window.end_ns)
        bins = chart_data.timeline_bins(len(numbers.budgets))
        lanes.append(chart_data.busy_bins(running.starts, running.ends, span, f"GPU {budget.device}", bins))
    begins = [step.start_ns - window.start_ns for step in window.steps]
    drawn = begins if len(begins) <= _MOST_STEP_LINES else []
    busy = ", ".join(f"GPU {budget.device} {fmt.share(_busy_share(budget))}" for budget in numbers.budgets)
    return Figure(
        f"{at}timeline-chart",
        "GPU activity over the window" + ("; dotted lines are begins of steps" if drawn else ""),
        charts.timeline_chart(pl.concat(lanes), drawn),
        f"Share of each short stretch of the window in which the GPU works. Over all: {busy}.",
    )


def _busy_share(budget: TimeBudget) -> float:
    return budget.busy_ns / budget.duration_ns if budget.duration_ns else 0.0


# --- phases -----------------------------------------------------------------------------------------------------------

_PHASE_COLUMNS: Final = (
    TableColumn("title", "Phase", "text"),
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Summed duration of the work launched in the phase."),
    TableColumn("per_step_ns", "Per step", "duration_ns", "GPU time divided by the number of steps in the window."),
    TableColumn("busy_ns", "GPU busy", "duration_ns", "Time in which any of this work runs."),
    TableColumn("matmul_share", "Matrix products", "share", "GEMM kernels' share of the phase's kernel time."),
    TableColumn(
        "inferred_share", "Inferred", "share", "Share attributed through the waiting thread, not the launching one."
    ),
    TableColumn("kernels", "Kernels", "count"),
)


def phases_section(numbers: Numbers, at: str = "") -> Section:
    """Forward, backward and optimizer, from the names of ranges."""
    phases = numbers.phases
    if not set(phases["phase"]) - {"none"}:
        text = (
            NOT_RECORDED
            if not numbers.recorded("ranges")
            else "No range is named after forward, backward or optimizer."
        )
        return absent(at, "phases", "Phases", text)
    steps = len(numbers.window.steps)
    rows = phases.with_columns(
        pl.Series("title", [phase_title(phase) for phase in phases["phase"]], dtype=pl.String),
        (pl.col("gpu_ns") / steps if steps else pl.lit(None, dtype=pl.Float64)).alias("per_step_ns"),
        (pl.col("matmul_ns") / pl.col("kernel_ns")).alias("matmul_share"),
        (pl.col("inferred_ns") / pl.col("gpu_ns")).alias("inferred_share"),
    )
    columns = tuple(column for column in _PHASE_COLUMNS if steps or column.key != "per_step_ns")
    how = Paragraph(
        "GPU work belongs to the outermost enclosing range that is named after a phase. Work launched by another "
        "thread (autograd's, in the backward pass) goes to the range that the waiting thread holds open, and counts as "
        "inferred.",
        quiet=True,
    )
    table = Table(f"{at}phases-table", "GPU time of each phase", columns, rows, limit=None)
    return Section(f"{at}phases", "Phases", (table, how))


# --- kernels and their categories -------------------------------------------------------------------------------------

_KERNEL_COLUMNS: Final = (
    TableColumn("full_name", "Kernel", "kernel", "The function that ran; unfold for its full name.", full="full_name"),
    TableColumn("category", "Category", "text", "Kind of work, read from the name."),
    TableColumn("share", "Share", "share", "Of the summed time of all kernels in the window."),
    TableColumn("total_ns", "Total", "duration_ns", "Summed duration."),
    TableColumn("calls", "Calls", "count"),
    *spread_columns(),
)


def kernels_section(numbers: Numbers, at: str = "") -> Section:
    """The kernels with the most GPU time."""
    kernels = numbers.kernels
    if kernels.is_empty():
        return absent(at, "kernels", "Kernels", _nothing(numbers, "kernels", "No kernel began in this window."))
    top = kernels.head(_RANKED)
    ranked = pl.DataFrame(
        {
            "name": [fmt.shorten_kernel(name) for name in top["full_name"]],
            "full_name": top["full_name"],
            "value": top["total_ns"],
            "share": top["share"],
            "fill": [category_fill(category) for category in top["category"]],
            "detail": [f"{fmt.count(calls)} calls" for calls in top["calls"]],
        }
    )
    share = fmt.share(float(top["share"].sum()))
    figure = Figure(
        f"{at}kernels-chart",
        f"The {top.height} kernels with the most GPU time: {share} of all" if top.height > 1 else "The only kernel",
        charts.ranked_chart(ranked),
        "; ".join(f"{name} {fmt.share(part)}" for name, part in ranked.select("name", "share").head(3).iter_rows()),
    )
    rows = _titled_categories(kernels, short=True)
    table = Table(f"{at}kernels-table", "Kernels by GPU time", _KERNEL_COLUMNS, rows)
    return Section(f"{at}kernels", "Kernels", (figure, table))


_GROUP_COLUMNS: Final = (
    TableColumn("share", "Share", "share", "Of the summed time of all kernels in the window."),
    TableColumn("total_ns", "Total", "duration_ns", "Summed duration."),
    TableColumn("kernels", "Kernels", "count", "Distinct kernels."),
    TableColumn("calls", "Calls", "count"),
    *spread_columns(),
)


def categories_section(numbers: Numbers, at: str = "") -> Section:
    """Kernel time by kind of work, and by number format."""
    categories = numbers.categories
    if categories.is_empty():
        text = _nothing(numbers, "kernels", "No kernel began in this window.")
        return absent(at, "categories", "Categories", text)
    rows = _titled_categories(categories)
    ranked = rows.head(_RANKED).select(
        pl.col("category").alias("name"),
        pl.col("total_ns").alias("value"),
        "share",
        pl.Series("fill", [category_fill(category) for category in categories["category"].head(_RANKED)], pl.String),
    )
    figure = Figure(
        f"{at}categories-chart",
        "Kernel time by category",
        charts.ranked_chart(ranked),
        "; ".join(f"{name} {fmt.share(part)}" for name, part in ranked.select("name", "share").head(3).iter_rows()),
    )
    columns = (TableColumn("category", "Category", "text"), *_GROUP_COLUMNS)
    table = Table(f"{at}categories-table", "Categories", columns, rows, limit=None)
    formats = numbers.precisions.with_columns(pl.col("precision").fill_null("not in the name"))
    precision_columns = (TableColumn("precision", "Precision", "text"), *_GROUP_COLUMNS)
    precision = Table(f"{at}precision-table", "Number formats of the operands", precision_columns, formats, limit=None)
    return Section(f"{at}categories", "Categories", (figure, Paragraph(_what_names_tell(numbers)), table, precision))


def _what_names_tell(numbers: Numbers) -> str:
    coverage, use = numbers.category_coverage, numbers.tensor_core_use
    told = (
        f"All this is read from kernel names. A category is known for {fmt.value(coverage.category_share, 'share')} of "
        f"the kernel time, a number format for {fmt.value(coverage.precision_share, 'share')}."
    )
    if not use.product_ns:
        return told
    parts = (
        ("on tensor cores", use.tensor_core_ns),
        ("on the vector units", use.vector_ns),
        ("unknown", use.unknown_ns),
    )
    split = ", ".join(f"{fmt.share(time_ns / use.product_ns)} {where}" for where, time_ns in parts if time_ns)
    return f"{told} Of the {fmt.duration(use.product_ns)} of kernels that multiply matrices, {split}."


def _titled_categories(frame: pl.DataFrame, *, short: bool = False) -> pl.DataFrame:
    titles = [category_title(category, short=short) for category in frame["category"].cast(pl.String)]
    return frame.with_columns(pl.Series("category", titles, dtype=pl.String))


# --- ranges -----------------------------------------------------------------------------------------------------------

_RANGE_COLUMNS: Final = (
    TableColumn("name", "Range", "name"),
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Summed duration of the work launched inside, at any depth."),
    TableColumn(
        "gpu_exclusive_ns", "Own", "duration_ns", "GPU time launched directly in it, not in a range inside it."
    ),
    TableColumn("inferred_ns", "Inferred", "duration_ns", "Part of the GPU time launched by another thread meanwhile."),
    TableColumn(
        "span_ns", "GPU span", "duration_ns", "From the first begin to the last end of the work, idle included."
    ),
    TableColumn("host_ns", "Host time", "duration_ns", "Duration of the ranges themselves, on the host."),
    TableColumn("instances", "Times", "count", "How often the range occurred."),
    TableColumn("kernels", "Kernels", "count"),
)


def ranges_section(numbers: Numbers, at: str = "") -> Section:
    """The program's own annotations, with the GPU time of what was launched inside."""
    ranges, coverage = numbers.ranges, numbers.range_coverage
    if ranges.is_empty():
        text = _nothing(numbers, "ranges", "No annotated range launched work in this window.")
        return absent(at, "ranges", "Ranges", text)
    blocks: list[Block] = []
    if coverage.attributed_share is not None and coverage.inferred_share is not None:
        blocks.append(
            Paragraph(
                f"{fmt.share(coverage.attributed_share)} of {fmt.duration(coverage.total_ns)} of GPU time belongs to a "
                f"range, {fmt.share(coverage.inferred_share)} through the waiting thread."
            )
        )
    blocks.append(Table(f"{at}ranges-table", "Ranges by GPU time", _RANGE_COLUMNS, ranges, limit=25, depth="depth"))
    return Section(f"{at}ranges", "Ranges", tuple(blocks))


def _nothing(numbers: Numbers, table: str, otherwise: str) -> str:
    return otherwise if numbers.recorded(table) else NOT_RECORDED
