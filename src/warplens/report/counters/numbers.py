"""Every analysis of one report of counters, run once: what the document shows and `counters.json` holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from warplens.analysis.counters.bounds import kernel_faults
from warplens.analysis.counters.comparison import Comparison, compare_counters
from warplens.analysis.counters.coverage import Coverage, counter_notes, counters_coverage
from warplens.analysis.counters.groups import counters_summary, group_launches
from warplens.analysis.counters.memoryaccess import memory_access, warp_stalls
from warplens.analysis.counters.nextrun import NextRun, next_run, next_sections
from warplens.analysis.counters.occupancy import launch_configurations
from warplens.analysis.counters.roofline import Roofline, roofline_points
from warplens.analysis.counters.speedoflight import instruction_use, throughput_breakdown
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile import Capture, Note, NoteLevel
from warplens.profile.counters import KernelCounters
from warplens.report import text as fmt
from warplens.report.checklist import checklist_frame
from warplens.report.counters.words import kernel_count, launch_count, with_words


@dataclass(frozen=True, eq=False)
class Joined:
    """One report, joined with a window of a trace."""

    source: str
    trace: str
    window: Window
    coverage: Coverage  #: what the profiled launches stand for in it
    next_run: NextRun
    #: for each group of `coverage.ranking` why it is bound as it is (`name`, `full_name`, `grid`, `block`, `verdict`,
    #: `reason`)
    reasons: pl.DataFrame

    @property
    def matches(self) -> bool:
        """Whether any kernel of the window was profiled, in whatever size."""
        return bool((self.coverage.groups["matched"] != "none").any())


@dataclass(frozen=True, eq=False)
class CounterNumbers:
    """The results of all analyses of a report, a row a group of launches unless said otherwise.

    In all of these but `roofline`, `launch` is the first launch of the group.
    """

    counters: KernelCounters
    notes: tuple[Note, ...]  #: what to know before the numbers, and what the numbers mean
    summary: pl.DataFrame  #: `SUMMARY` in words as well, the most expensive first, and `share` of the profiled time
    configurations: pl.DataFrame  #: how the groups were launched: registers, shared memory
    breakdown: pl.DataFrame  #: `BREAKDOWN`
    faults: pl.DataFrame  #: `FAULTS`
    stalls: pl.DataFrame  #: `STALLS`
    memory: pl.DataFrame  #: `MEMORY_ACCESS`
    instructions: pl.DataFrame  #: `INSTRUCTIONS`
    roofline: Roofline  #: groups under their roofs
    checklist: pl.DataFrame  #: the optimisation checklist, as far as counters alone tell
    next_run: NextRun  #: what to collect next, as far as the report alone tells
    joined: tuple[Joined, ...] = ()  #: the same report beside traces, if any were given

    @property
    def capture(self) -> Capture:
        """Where the report came from."""
        return self.counters.capture

    @property
    def measured(self) -> str:
        """How much was profiled: `30 launches of 5 kernels`."""
        launches, kinds = self.counters.launches.height, self.counters.launches["kind"].cast(pl.String)
        if (kinds == "kernel").all():
            return f"{launch_count(launches)} of {kernel_count(self.summary.height)}"
        return f"{fmt.count(launches)} result{'' if launches == 1 else 's'} of kernels, ranges or graphs"

    @property
    def warnings(self) -> tuple[Note, ...]:
        """Notes that limit the numbers."""
        return tuple(item for item in self.notes if item.level is not NoteLevel.INFO)

    @property
    def semantics(self) -> tuple[Note, ...]:
        """Notes on what the numbers mean; that coverage is unknown only where no trace tells it."""
        told = any(item.matches for item in self.joined)
        return tuple(
            item
            for item in self.notes
            if item.level is NoteLevel.INFO and not (told and item.code == "coverage-unknown")
        )


def examine_counters(counters: KernelCounters, joined: Sequence[Joined] = ()) -> CounterNumbers:
    """Run every analysis of a report."""
    taken = group_launches(counters)
    first = taken.groups.select(launch="group", first="first_launch")

    def by_first(frame: pl.DataFrame) -> pl.DataFrame:
        named = frame.join(first, on="launch", how="left", maintain_order="left")
        return named.with_columns(launch="first").drop("first")

    summary = with_words(counters_summary(counters))
    total = pl.col("total_ns").sum()
    return CounterNumbers(
        counters=counters,
        notes=counter_notes(counters),
        summary=summary.with_columns(share=pl.when(total > 0).then(pl.col("total_ns") / total)),
        configurations=by_first(launch_configurations(taken.counters)),
        breakdown=by_first(throughput_breakdown(taken.counters)),
        faults=by_first(kernel_faults(taken.counters)),
        stalls=by_first(warp_stalls(taken.counters)),
        memory=by_first(memory_access(taken.counters)),
        instructions=by_first(instruction_use(taken.counters)),
        roofline=roofline_points(counters),
        checklist=checklist_frame(counters=counters),
        next_run=next_sections(counters),
        joined=tuple(joined),
    )


def join_counters(
    counters: KernelCounters, timeline: Timeline, window: Window, ncu_version: str | None = None
) -> Joined:
    """A report beside a window of a trace, which must hold the launch configuration of its kernels."""
    coverage = counters_coverage(counters, timeline, window)
    named = ("name", "full_name", "grid", "block", "verdict", "reason")
    return Joined(
        source=counters.capture.source,
        trace=timeline.trace.capture.source,
        window=window,
        coverage=coverage,
        next_run=next_run(counters, coverage, timeline, window, ncu_version),
        reasons=with_words(counters_summary(counters)).select(named),
    )


def compared_with_first(reports: Sequence[CounterNumbers]) -> tuple[Comparison, ...]:
    """Each report against the first."""
    return tuple(compare_counters(reports[0].counters, other.counters) for other in reports[1:])


def with_names(numbers: CounterNumbers, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of an analysis with the kernel's names, grid and block, the most expensive kernel first.

    Args:
        frame: with `launch`, of which several rows may be of one group; their order is kept.
    """
    named = numbers.summary.select("launch", "name", "full_name", "grid", "block", "total_ns").with_row_index("place")
    return frame.join(named, on="launch", how="inner").sort("place", maintain_order=True)
