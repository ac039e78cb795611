"""Every analysis of one profile and window, run once: what the document shows and `report.json` holds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.allocator import Allocations, allocations
from warplens.analysis.api import api_statistics, blocking_calls, synchronization_statistics
from warplens.analysis.copies import copy_statistics
from warplens.analysis.graphs import GraphSummary, graph_statistics, graph_summary
from warplens.analysis.kernels import (
    CategoryCoverage,
    TensorCoreUse,
    coverage_of,
    statistics_of,
    tensor_core_use_of,
)
from warplens.analysis.launches import LaunchSummary, launch_statistics, launch_summary
from warplens.analysis.memory import MemoryUse, memory_use
from warplens.analysis.operators import (
    FrameworkOverhead,
    OperatorCoverage,
    framework_overhead,
    operator_coverage,
    operators_by,
)
from warplens.analysis.phases import phase_statistics
from warplens.analysis.quality import quality_notes
from warplens.analysis.ranges import RangeCoverage, range_coverage, range_statistics
from warplens.analysis.stepstatistics import step_statistics
from warplens.analysis.streams import concurrency, copy_overlap, stream_statistics
from warplens.analysis.timebudget import TimeBudget, time_budgets
from warplens.analysis.work import ModelledWork, operator_work
from warplens.diagnosis import diagnose

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window
    from warplens.diagnosis import Diagnosis
    from warplens.profile import Capture, Note
    from warplens.report.counters.numbers import Joined

__all__ = ["Numbers", "OperatorNumbers", "examine"]


@dataclass(frozen=True, eq=False)
class OperatorNumbers:
    """What a profile with a framework's operators tells besides: `operators_by` name, and by part of the program."""

    names: pl.DataFrame
    modules: pl.DataFrame
    coverage: OperatorCoverage
    overhead: FrameworkOverhead | None


@dataclass(frozen=True, eq=False)
class Numbers:
    """The results of all analyses; each attribute is what the analysis of that name returns.

    `steps` holds all steps of the profile, with a column `in_window` that says which of them count; `joined` the
    reports of counters of the same program that were given beside it; `diagnosis` is the verdict over all of it.
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

    @property
    def capture(self) -> Capture:
        """Where the profile came from."""
        return self.timeline.trace.capture

    @property
    def window_steps(self) -> pl.DataFrame:
        """The steps that count."""
        return self.steps.filter("in_window")

    def recorded(self, *tables: str) -> bool:
        """Whether the profile holds any of these tables at all, be they empty or not."""
        return any(table in self.capture.recorded for table in tables)


def examine(timeline: Timeline, window: Window) -> Numbers:
    """Run every analysis over the window."""
    with ThreadPoolExecutor(max_workers=1) as aside:
        # These are mostly array arithmetic outside of the interpreter's lock, and nearly half of all the work.
        # `Timeline.work`, which all analyses share, was computed to find the window, and is only read from here on.
        budgets = aside.submit(time_budgets, timeline, window)
        notes = quality_notes(timeline, window)
        ranges = aside.submit(range_statistics, timeline, window, "tree", operators=False)
        overlap = aside.submit(copy_overlap, timeline, window)
        verdict = aside.submit(lambda: diagnose(timeline, window, notes=notes, budgets=budgets.result()))
        kernels, categories, precisions = _kernel_tables(timeline, window)
        return Numbers(
            timeline=timeline,
            window=window,
            notes=notes,
            steps=_all_steps(timeline, window),
            phases=phase_statistics(timeline, window),
            kernels=kernels,
            categories=categories,
            precisions=precisions,
            category_coverage=coverage_of(kernels),
            tensor_core_use=tensor_core_use_of(kernels),
            ranges=ranges.result(),
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
            launch_summary=launch_summary(timeline, window),
            launches=launch_statistics(timeline, window, ("name", "full_name", "api")),
            streams=stream_statistics(timeline, window),
            concurrency=concurrency(timeline, window),
            copy_overlap=overlap.result(),
            diagnosis=verdict.result(),
            budgets=budgets.result(),
        )


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
    """Kernels by full name, category and precision, from one selection, which is large and gone on return."""
    kernels = timeline.kernels_in(window)
    return statistics_of(kernels, "full_name"), statistics_of(kernels, "category"), statistics_of(kernels, "precision")


def _all_steps(timeline: Timeline, window: Window) -> pl.DataFrame:
    """Every step found in the profile, those outside of the window included."""
    counted = {step.index for step in window.steps}
    everything = replace(window, kind="all", steps=timeline.steps.steps)
    return step_statistics(timeline, everything).with_columns(pl.col("step").is_in(counted).alias("in_window"))
