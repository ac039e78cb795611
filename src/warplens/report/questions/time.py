"""Questions about time: time budget, steps and phases."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from warplens.analysis.phases import PHASE_TIMES, PHASES_BY_STEP, STEPS, phase_statistics, phase_steps, step_statistics
from warplens.analysis.steps import RHYTHMS, StepSearch, left_out_rows, rhythm_rows
from warplens.analysis.timebudget import BUDGET, IDLE_CAUSES, TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import column
from warplens.report import text as fmt
from warplens.report.document import Table, pick, with_texts, yes_or_no
from warplens.report.jsonout import named
from warplens.report.questions import QuestionResult, question

_PART: Final = column("title")
_MEANING: Final = column("meaning")
_BUDGET: Final = pick(BUDGET, "group", _PART, "time_ns share", _MEANING)


@question(whole=True)
def budget(timeline: Timeline, window: Window) -> QuestionResult:
    """Where the time went, in parts that add up to it exactly.

    At every instant a GPU does one thing: it computes, runs a CUDA graph, communicates, copies, or is idle for one
    cause. With --range, the time is the summed spans of that range on the GPU.
    """
    budgets = time_budgets(timeline, window)
    rows = pl.concat([
        BUDGET.only(column("device"), *BUDGET.columns).empty(),
        *(gpu.parts.select(pl.lit(gpu.device, dtype=pl.Int32).alias("device"), pl.all()) for gpu in budgets),
    ])  # fmt: skip
    tables = tuple(map(_budget_table, budgets))
    if not tables:
        no_rows = rows.with_columns(pl.lit("").alias("title"), pl.lit("").alias("meaning"))
        tables = (Table("budget", "Time budget", _BUDGET, no_rows, empty="No GPU did any work in the window."),)
    return QuestionResult(rows, tables, tuple(map(_budget_fact, budgets)), {"devices": list(map(budget_data, budgets))})


def budget_data(budget: TimeBudget) -> dict[str, Any]:
    """The totals of a budget for JSON."""
    return {
        **named(budget, "device duration_ns busy_ns idle_ns"),
        "hidden_ns": budget.group_ns("graph"),
        "attributed_share": budget.attributed_share,
    }


def group_times(budget: TimeBudget) -> dict[str, int]:
    """The time of each group of a budget's parts, as `GROUP_ns`."""
    times = budget.parts.group_by(pl.col("group").cast(pl.String), maintain_order=True).agg(pl.col("time_ns").sum())
    return {f"{group}_ns": time_ns for group, time_ns in times.iter_rows()}


def titled_parts(budget: TimeBudget) -> pl.DataFrame:
    """The parts of a budget with `title` (display name) and `meaning` (explanation)."""
    parts = fmt.with_part_titles(budget.parts.with_columns(pl.col("group").cast(pl.String)))
    meaning = pl.col("part").cast(pl.String).replace_strict(IDLE_CAUSES, default="", return_dtype=pl.String)
    return parts.with_columns(pl.when(pl.col("group") == "idle").then(meaning).otherwise(pl.lit("")).alias("meaning"))


def _budget_table(budget: TimeBudget) -> Table:
    parts = titled_parts(budget)
    total = parts.select(
        pl.lit("sum").alias("group"), pl.lit("").alias("part"), pl.col("time_ns", "share").sum(),
        pl.lit("").alias("title"), pl.lit("").alias("meaning"),
    )  # fmt: skip
    caption = f"GPU {budget.device}: {fmt.duration(budget.duration_ns)}"
    return Table(f"budget-{budget.device}", caption, _BUDGET, pl.concat([parts, total]))


def _budget_fact(budget: TimeBudget) -> str:
    fact = f"GPU {budget.device}: busy {fmt.duration(budget.busy_ns)} of {fmt.duration(budget.duration_ns)}"
    if hidden := budget.group_ns("graph"):
        fact += f", {fmt.duration(hidden)} of it hidden inside CUDA graphs"
    if budget.attributed_share is not None:
        fact += f", the cause is known for {fmt.share(budget.attributed_share)} of the idle time"
    return fact


_STEPS: Final = pick(STEPS, "step wall_ns busy_ns busy_share idle_ns kernels gap_ns", busy_share="Share")


@question()
def steps(timeline: Timeline, window: Window) -> QuestionResult:
    """Steps of the workload: wall, busy and idle time of each.

    With several GPUs, busy and idle are those of the busiest one. With --range, all three are of its spans on the GPU
    within the step. Where it is uncertain what the step is, everything
    that repeats follows, with how sure each is.
    """
    rows = step_statistics(timeline, window)
    columns = (*_STEPS, STEPS.column("graph_launches")) if rows["graph_launches"].sum() else _STEPS
    shown = Table("steps", "Steps", columns, rows, empty="No steps were found in the window.")
    search = timeline.steps
    return QuestionResult(rows, (shown, *rhythm_tables(search)), left_out_facts(search), rhythm_data(search))


def rhythm_tables(search: StepSearch) -> tuple[Table, ...]:
    """All repeating rhythms, if it is not certain which of them is the step."""
    if search.confidence in (None, "high"):
        return ()
    rows = rhythm_rows(search).with_columns(yes_or_no("is_step"))
    columns = tuple(column.but(dtype=pl.String) if column.name == "is_step" else column for column in RHYTHMS.columns)
    return (Table("rhythms", "What repeats, and how sure it is that it is the step", columns, rows, limit=None),)


def left_out_facts(search: StepSearch) -> tuple[str, ...]:
    """The activity outside the steady steps, in one line; empty if there is none."""
    parts = left_out_rows(search).group_by("what", maintain_order=True).agg(pl.len(), pl.sum("duration_ns", "launches"))
    line = ", ".join(
        f"{what} {fmt.duration(time_ns)} ({f'in {count} parts, ' if count > 1 else ''}"
        f"{fmt.plural(launches, 'launch', 'launches')})"
        for what, count, time_ns, launches in parts.iter_rows()
    )
    return (f"beside the steady steps: {line}",) if line else ()


def rhythm_data(search: StepSearch) -> dict[str, Any]:
    """Confidence, rhythms and activity left out, for JSON."""
    return {"confidence": search.confidence, "rhythms": rhythm_rows(search), "left_out": left_out_rows(search)}


_PHASES: Final = pick(PHASE_TIMES, column("title", title="Phase"), "gpu_ns share inferred_ns busy_ns matmul_ns kernels")
_PHASES_OF_STEPS: Final = pick(PHASES_BY_STEP, "step wall_ns forward_ns backward_ns optimizer_ns none_ns")


@question("phase", "step")
def phases(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """GPU time of forward, backward and optimizer.

    Work belongs to the outermost range around its launch that is named after a phase.
    """
    caption = "GPU time by phase"
    if by == "step":
        rows = phase_steps(timeline, window)
        shown = Table("phases", caption, _PHASES_OF_STEPS, rows, empty="No steps were found in the window.")
    else:
        rows = phase_statistics(timeline, window)
        titled = with_texts(rows, title=lambda row: fmt.phase_title(row["phase"]))
        shown = Table("phases", caption, _PHASES, titled, empty="No GPU work in the window.")
    return QuestionResult(rows, (shown,))
