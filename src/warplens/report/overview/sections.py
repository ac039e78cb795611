"""Sections of the main document about time: the budget and the steps; and what all sections share.

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
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn
from warplens.report.overview.words import part_fill, part_title

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.timebudget import TimeBudget
    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers

__all__ = [
    "NOT_RECORDED",
    "absent",
    "budget_section",
    "nothing",
    "spread_columns",
    "steps_section",
]

NOT_RECORDED: Final = "Not recorded in this profile."

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


def nothing(numbers: Numbers, otherwise: str, *tables: str) -> str:
    """Why a section is empty: the profile holds none of these tables, or `otherwise`."""
    return otherwise if numbers.recorded(*tables) else NOT_RECORDED


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
