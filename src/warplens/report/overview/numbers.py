"""Runs every analysis of one profile and window once; the answer in two sentences, and the data of `report.json`."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.allocator import Allocations, MemoryUse, allocations, memory_use
from warplens.analysis.api import api_statistics, blocking_calls, synchronization_statistics
from warplens.analysis.code import code_places
from warplens.analysis.headroom import Headroom, headrooms
from warplens.analysis.kernels import (
    CategoryCoverage,
    TensorCoreUse,
    category_coverage,
    copy_statistics,
    statistics_of,
    tensor_core_use,
)
from warplens.analysis.launches import LaunchSummary, launch_statistics, launch_summary
from warplens.analysis.operators.coverage import (
    FrameworkOverhead,
    OperatorCoverage,
    framework_overhead,
    operator_coverage,
)
from warplens.analysis.operators.statistics import operators_by
from warplens.analysis.phases import phase_statistics, step_statistics
from warplens.analysis.quality import quality_notes
from warplens.analysis.ranges import RangeCoverage, range_coverage, range_statistics
from warplens.analysis.streams import (
    GraphSummary,
    concurrency,
    copy_overlap,
    graph_statistics,
    graph_summary,
    stream_statistics,
    stream_turns,
)
from warplens.analysis.timebudget import TimeBudget, time_budgets
from warplens.analysis.work.catalogue import ModelledWork, operator_work, work_statistics
from warplens.diagnosis import Diagnosis, diagnose
from warplens.diagnosis.checklist import CHECKLIST
from warplens.profile import Capture, Note, NoteLevel
from warplens.report import text as fmt
from warplens.report.counters.beside import joined_data
from warplens.report.headroom import headroom_data, strips_data
from warplens.report.jsonout import named, window_data
from warplens.report.questions.operators import work_data
from warplens.report.questions.time import budget_data, group_times, rhythm_data
from warplens.report.text import category_title
from warplens.report.timelines import timeline_data
from warplens.report.verdict import checklist_frame, diagnosis_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.profile.counters import KernelCounters
    from warplens.report.counters.numbers import Joined


@dataclass(frozen=True, eq=False)
class OperatorNumbers:
    """Results for profiles with operators of a framework."""

    names: pl.DataFrame  #: `operators_by` name
    modules: pl.DataFrame  #: `operators_by` module
    coverage: OperatorCoverage
    overhead: FrameworkOverhead | None


@dataclass(frozen=True, eq=False)
class Numbers:
    """The results of all analyses; each attribute is the result of the analysis of that name.

    `steps` has all steps of the profile, with a column `in_window`; `joined` the counter reports on the same program.
    `beside` is the number of profiles on the page, which share its number of timeline marks.
    """

    timeline: Timeline
    window: Window
    notes: tuple[Note, ...]
    budgets: tuple[TimeBudget, ...]
    steps: pl.DataFrame
    phases: pl.DataFrame
    kernels: pl.DataFrame
    categories: pl.DataFrame
    precisions: pl.DataFrame
    category_coverage: CategoryCoverage
    tensor_core_use: TensorCoreUse
    ranges: pl.DataFrame
    range_coverage: RangeCoverage
    launch_summary: LaunchSummary
    launches: pl.DataFrame
    copies: pl.DataFrame
    copy_overlap: pl.DataFrame
    api: pl.DataFrame
    blocking: pl.DataFrame
    synchronizations: pl.DataFrame
    streams: pl.DataFrame
    concurrency: pl.DataFrame
    graph_summary: GraphSummary
    graphs: pl.DataFrame
    memory: tuple[MemoryUse, ...] | None
    operators: OperatorNumbers | None
    joined: tuple[Joined, ...] = ()
    diagnosis: Diagnosis | None = None
    work: ModelledWork | None = None
    allocations: Allocations | None = None
    headroom: tuple[Headroom, ...] = ()
    code: pl.DataFrame = field(default_factory=pl.DataFrame)
    checklist: pl.DataFrame = field(default_factory=CHECKLIST.empty)
    beside: int = 1

    @property
    def capture(self) -> Capture:
        """Source and recorder of the profile."""
        return self.timeline.trace.capture

    @property
    def window_steps(self) -> pl.DataFrame:
        """The steps in the window."""
        return self.steps.filter("in_window")

    def recorded(self, *tables: str) -> bool:
        """Whether any of these tables was recorded, even if it is empty."""
        return any(table in self.capture.recorded for table in tables)


def examine(
    timeline: Timeline,
    window: Window,
    *,
    counters: KernelCounters | None = None,
    diagnosis: Diagnosis | None = None,
) -> Numbers:
    """Run every analysis over the window.

    Args:
        counters: a report of Nsight Compute on the same program, for the diagnosis.
        diagnosis: the diagnosis of the window, if it is computed already.
    """
    with ThreadPoolExecutor(max_workers=1) as background:
        # The diagnosis takes longest, so it and its prerequisites run in the background while tables are made.
        # `Timeline.work`, which all analyses share, was computed to find the window, and is only read from here on.
        budgets = background.submit(time_budgets, timeline, window)
        notes = quality_notes(timeline, window)
        headroom = background.submit(lambda: headrooms(timeline, window, budgets=budgets.result()))
        verdict = background.submit(
            lambda: (
                diagnosis
                or diagnose(
                    timeline, window, counters, notes=notes, budgets=budgets.result(), headrooms=headroom.result
                )
            )
        )
        kernels, categories, precisions = _kernel_tables(timeline, window)
        return Numbers(
            timeline=timeline,
            window=window,
            notes=notes,
            # First, while memory use is low: the others reuse the caches that these fill.
            launch_summary=launch_summary(timeline, window),
            launches=launch_statistics(timeline, window, ("name", "full_name", "api")),
            streams=stream_statistics(timeline, window),
            concurrency=concurrency(timeline, window),
            steps=_all_steps(timeline, window),
            phases=phase_statistics(timeline, window),
            kernels=kernels,
            categories=categories,
            precisions=precisions,
            category_coverage=category_coverage(kernels),
            tensor_core_use=tensor_core_use(kernels),
            ranges=range_statistics(timeline, window, "tree", operators=False),
            range_coverage=range_coverage(timeline, window, operators=False),
            copies=copy_statistics(timeline, window),
            api=api_statistics(timeline, window),
            blocking=blocking_calls(timeline, window),
            synchronizations=synchronization_statistics(timeline, window),
            graph_summary=graph_summary(timeline, window),
            graphs=graph_statistics(timeline, window),
            memory=memory_use(timeline, window),
            operators=_operators(timeline, window),
            work=operator_work(timeline, window) if timeline.has_operators else None,
            allocations=allocations(timeline, window),
            code=code_places(timeline, window),
            copy_overlap=copy_overlap(timeline, window),
            checklist=_checklist(timeline, window, verdict, counters),
            diagnosis=verdict.result(),
            budgets=budgets.result(),
            headroom=headroom.result(),
        )


def _checklist(
    timeline: Timeline, window: Window, verdict: Future[Diagnosis], counters: KernelCounters | None
) -> pl.DataFrame:
    """The checklist. The stream analysis that it needs is run (and cached) while the diagnosis is in progress."""
    stream_turns(timeline, window)
    return checklist_frame(timeline, window, verdict.result(), counters)


def _operators(timeline: Timeline, window: Window) -> OperatorNumbers | None:
    if not timeline.has_operators:
        return None
    return OperatorNumbers(
        operators_by(timeline, window, "name"),
        operators_by(timeline, window, "module"),
        operator_coverage(timeline, window),
        framework_overhead(timeline, window),
    )


def _kernel_tables(timeline: Timeline, window: Window) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Kernels by full name, category and precision, from one selection, which is large and freed on return."""
    kernels = timeline.kernels_in(window, launches=False)
    return statistics_of(kernels, "full_name"), statistics_of(kernels, "category"), statistics_of(kernels, "precision")


def _all_steps(timeline: Timeline, window: Window) -> pl.DataFrame:
    """All steps of the profile, with `in_window`."""
    in_window = {step.index for step in window.steps}
    all_steps = replace(window, kind="all", steps=timeline.steps.steps)
    return step_statistics(timeline, all_steps).with_columns(pl.col("step").is_in(in_window).alias("in_window"))


# --- The answer: busy share of the GPU, largest part of the busy time, main cause of idle time -----------------------
#
# The sentences state measurements. An idle cause says what the host did meanwhile; the diagnosis says why. If the
# profile lacks the data, the answer says so instead.


#: All copies and memory fills, as one part.
COPIES: Final = "copies and fills"

#: Idle time below this share of the window is reported without a cause.
_HARDLY_IDLE: Final = 0.02

#: A part above this share is "most" of the busy time.
_MOST: Final = 0.5

#: Phrases for parts of the busy time that are not kernel categories, to follow "most of it (97 %)".
_IN: Final = {
    "hidden inside CUDA graphs": "inside CUDA graphs that were traced as a whole",
    COPIES: "in copies and fills of memory",
    "other": "in kernels whose names do not tell what they do",
}

#: Predicates for the GPU's idle time by main cause, to follow its share.
_WHILE: Final = {
    "launch": "passed while the host was still launching the next work",
    "graph-launch": "passed while the host was still launching the next CUDA graph",
    "synchronization": "passed while the host was in a synchronization call",
    "refill": "passed while the host launched the first work after a synchronization",
    "allocation": "passed while the host was allocating or freeing memory",
    "blocking-copy": "passed while the host was blocked in a copy",
    "host": "passed while the host was busy or asleep outside CUDA",
    "dependency": "passed while queued work waited for other GPU work",
    "submission": "passed while queued work was held back by the driver or another program",
    "start-latency": "is the latency of starting queued work",
    "profiler": "passed while the profiler blocked the host",
    "unknown": "has no recorded cause",
}


def answer(numbers: Numbers) -> str:
    """At most two sentences on where the time of the window went."""
    blocking = [note for note in numbers.notes if note.level is NoteLevel.BLOCKING]
    if not numbers.budgets:
        return fmt.sentence(blocking[0].text) if blocking else "The profile holds no GPU work in this window."
    if blocking:
        return f"{fmt.sentence(blocking[0].text)} The numbers below describe only what was recorded."
    return f"{_busy(numbers)} {_idle(numbers.budgets)}"


def _busy(numbers: Numbers) -> str:
    """The first sentence: step time, busy share of the GPUs, and the largest part of the busy time."""
    budgets = numbers.budgets
    shares = [budget.busy_ns / budget.duration_ns if budget.duration_ns else 0.0 for budget in budgets]
    least, most = fmt.share(min(shares)), fmt.share(max(shares))
    busy = most if least == most else f"{least} to {most}"
    gpus = "the GPU was" if len(budgets) == 1 else f"the {len(budgets)} GPUs were"
    step = _step(numbers)
    if step is not None:
        return f"{step}, and {gpus} busy for {busy} of the time, {_mostly(budgets)}."
    return f"{gpus[:1].upper()}{gpus[1:]} busy for {busy} of {_span(numbers)}, {_mostly(budgets)}."


def _step(numbers: Numbers) -> str | None:
    """A clause with the step time; None if the window does not mostly consist of steps."""
    steps = numbers.window_steps
    wall_ns = steps["wall_ns"].to_list()
    if numbers.window.range_name is not None or 2 * sum(wall_ns) <= numbers.window.duration_ns:
        return None
    if len(wall_ns) == 1:
        return f"The only step takes {fmt.duration(wall_ns[0])}"
    return f"A step takes {fmt.duration(median(wall_ns))} (median of {len(wall_ns)})"


def _span(numbers: Numbers) -> str:
    if numbers.window.range_name is not None:
        return f"the time that work launched inside “{fmt.printable(numbers.window.range_name)}” spans"
    return f"the {fmt.duration(numbers.window.duration_ns)} analysed"


def largest_part(budgets: Sequence[TimeBudget]) -> tuple[str, float] | None:
    """The largest part of the GPUs' busy time, and its share of it; None if nothing ran.

    The part is a kernel category, `hidden inside CUDA graphs`, or `copies and fills`, which count as one part.
    """
    if not budgets:
        return None
    parts = pl.concat([budget.parts for budget in budgets]).filter(pl.col("group") != "idle")
    name = pl.when(pl.col("group") == "copy").then(pl.lit(COPIES)).otherwise(pl.col("part"))
    by_part = parts.group_by(name.alias("name")).agg(pl.col("time_ns").sum()).sort("time_ns", "name", descending=True)
    if by_part.is_empty():
        return None
    part, time_ns = by_part.row(0)
    return part, time_ns / int(by_part["time_ns"].sum())


def _mostly(budgets: Sequence[TimeBudget]) -> str:
    largest = largest_part(budgets)
    if largest is None:
        return "with nothing that lies in it"
    part, share = largest
    amount = "most" if share > _MOST else "the largest part"
    return f"{amount} of it ({fmt.share(share)}) {_IN.get(part) or f'in {category_title(part)}'}"


def _idle(budgets: Sequence[TimeBudget]) -> str:
    """The second sentence: idle share of the GPUs, and its main cause."""
    duration = sum(budget.duration_ns for budget in budgets)
    idle = sum(budget.idle_ns for budget in budgets)
    share = idle / duration if duration else 0.0
    if share < _HARDLY_IDLE:
        how_long = fmt.share(share).replace("<", "less than ")
        return f"{'It was' if len(budgets) == 1 else 'They were'} idle for {how_long}."
    causes: Counter[str] = Counter()
    for budget in budgets:
        causes.update(budget.gaps.totals)
    [(cause, time_ns)] = causes.most_common(1)
    return f"Of the {fmt.share(share)} idle, {fmt.share(time_ns / idle)} {_WHILE[cause]}."


def overview_data(numbers: Numbers) -> dict[str, Any]:
    """All numbers of the report on one profile, exact; `warplens.report.write` limits the rows of its tables.

    Tables are objects with `rows`; times are nanoseconds, sizes bytes, shares 0–1. Values not recorded are null.
    """
    capture = numbers.capture
    operators = numbers.operators
    work = numbers.work
    allocated = numbers.allocations
    moments = numbers.diagnosis.moments if numbers.diagnosis else ()
    return {
        "source": capture.source,
        "answer": answer(numbers),
        "capture": {
            **named(capture, "format tool tool_version schema_version"),
            "devices": list(capture.devices),
            "window_ns": list(capture.window_ns),
            "recorded": sorted(capture.recorded),
        },
        "window": window_data(numbers.window),
        "notes": list(numbers.notes),
        "diagnosis": diagnosis_data(numbers.diagnosis) if numbers.diagnosis else None,
        "budget": {
            "devices": [
                {
                    **budget_data(budget),
                    "groups": group_times(budget),
                    "rows": budget.parts.with_columns(pl.col("group").cast(pl.String)),
                }
                for budget in numbers.budgets
            ]
        },
        "headroom": headroom_data(numbers.headroom),
        "strips": strips_data(numbers.budgets, numbers.headroom, numbers.window),
        "timeline": timeline_data(numbers.timeline, numbers.window, moments),
        "steps": {"rows": numbers.steps, **rhythm_data(numbers.timeline.steps)},
        "phases": {"rows": numbers.phases},
        "kernels": {"rows": numbers.kernels},
        "categories": {"coverage": numbers.category_coverage, "rows": numbers.categories},
        "precisions": {"tensor_cores": numbers.tensor_core_use, "rows": numbers.precisions},
        "ranges": {"coverage": numbers.range_coverage, "rows": numbers.ranges},
        "launches": {"summary": numbers.launch_summary, "rows": numbers.launches},
        "copies": {"rows": numbers.copies, "overlap": numbers.copy_overlap},
        "api": {
            "rows": numbers.api,
            "blocking": numbers.blocking,
            "synchronizations": numbers.synchronizations,
        },
        "streams": {"rows": numbers.streams, "concurrency": numbers.concurrency},
        "graphs": {"summary": numbers.graph_summary, "rows": numbers.graphs},
        "operators": None
        if operators is None
        else {
            **named(operators, "coverage overhead"),
            "rows": operators.names,
            "modules": {"rows": operators.modules},
        },
        "work": None
        if work is None
        else {
            "coverage_share": work.coverage_share,
            **work_data(work),
            "rows": work_statistics(work),
            "unmodelled": {"rows": work.unmodelled},
        },
        "code": {"rows": numbers.code},
        "checklist": {"rows": numbers.checklist},
        "memory": None if numbers.memory is None else {"rows": list(numbers.memory)},
        "allocator": None
        if allocated is None
        else {
            "rows": list(allocated.use),
            "alive_at_peak": {"rows": allocated.alive_at_peak},
            "steps": {"rows": allocated.steps},
        },
        "counters": joined_data(numbers.joined) if numbers.joined else None,
    }
