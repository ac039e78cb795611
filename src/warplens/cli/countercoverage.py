"""What a trace adds to a report of counters: coverage, ranking and the next run, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warplens.analysis.counters.coverage import Coverage, counters_coverage
from warplens.analysis.counters.nextrun import NextRun, next_run
from warplens.analysis.timeline import Timeline
from warplens.cli.messages import progress
from warplens.readers import read
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from warplens.analysis.window import Window
    from warplens.profile.counters import KernelCounters

__all__ = ["Joined", "coverage_lines", "coverage_tables", "join_trace", "joined_data", "next_run_lines"]

_SIZES = (TableColumn("grid", "Grid", "text"), TableColumn("block", "Block", "text"))

_COVERED = (
    TableColumn("name", "Kernel", "kernel", full="full_name"),
    *_SIZES,
    TableColumn("launches", "Launches", "count"),
    TableColumn("launches_profiled", "profiled", "count"),
    TableColumn("total_ns", "Time", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("matched", "Matched", "text"),
)

_RANKED = (
    TableColumn("name", "Kernel", "kernel", full="full_name"),
    *_SIZES,
    TableColumn("share", "Share", "share"),
    TableColumn("throughput_share", "of roof", "share"),
    TableColumn("gain_share", "Gain", "share"),
    TableColumn("bound", "Bound", "text"),
    TableColumn("fault", "Fault", "text"),
    TableColumn("stall", "Top stall", "text"),
)


@dataclass(frozen=True)
class Joined:
    """One report, joined with a window of a trace."""

    source: str
    trace: str
    window: Window
    coverage: Coverage
    next_run: NextRun


def join_trace(
    reports: Sequence[KernelCounters], trace: Path, window: str, ncu_version: str | None
) -> tuple[Joined, ...]:
    """Each report with the same window of this trace."""
    with progress(f"reading {trace.name}") as tell:
        timeline = Timeline(read(trace, progress=tell))
        selected = timeline.window(window)
        joined = []
        for report in reports:
            coverage = counters_coverage(report, timeline, selected)
            further = next_run(report, coverage, timeline, selected, ncu_version)
            source = timeline.trace.capture.source
            joined.append(Joined(report.capture.source, source, selected, coverage, further))
        return tuple(joined)


def coverage_lines(joined: Joined) -> Iterator[str]:
    """What matched, and what to make of it, before the tables."""
    covered = joined.coverage
    yield f"trace: {joined.trace}, window of {fmt.duration(joined.window.duration_ns)}, {joined.window.how}"
    yield (
        f"matched: {fmt.count(covered.launches_matched)} of {fmt.count(covered.launches_profiled)} profiled launches "
        "occur in the window with the same grid and block"
    )
    if covered.exact_share is not None:
        yield (
            f"coverage: of {fmt.duration(covered.total_ns)} kernel time, {_share(covered.exact_share)} was profiled, "
            f"{_share(covered.kernel_share)} in another grid or block, {_share(covered.name_share)} is other kernels "
            f"of the same short name, {_share(covered.missing_share)} was not profiled"
        )
    yield f"sample: {covered.sample} ({covered.sample_how})"


def coverage_tables(joined: Joined, limit: int | None) -> Iterator[Table]:
    """Coverage, ranking, and what the trace lacks, if anything."""
    covered = joined.coverage
    yield Table("coverage", "Coverage of the window", _COVERED, covered.groups, limit, empty="No kernel in the window.")
    yield Table(
        "ranking",
        "What the window's kernel time could lose at most, if a kernel ran at its roof",
        _RANKED,
        covered.ranking,
        limit,
        empty="No kernel of the window was profiled with its grid and block.",
    )
    if covered.unmatched.height:
        columns = (
            TableColumn("name", "Kernel", "kernel", full="full_name"),
            *_SIZES,
            TableColumn("launches_profiled", "profiled", "count"),
            TableColumn("launches_elsewhere", "Launches outside the window", "count"),
        )
        yield Table("unmatched", "Profiled, but not in the window", columns, covered.unmatched, limit)


def next_run_lines(joined: Joined) -> Iterator[str]:
    """The next command, and why."""
    further = joined.next_run
    if further.command is None or further.launches is None or further.passes is None:
        yield f"next run: none: {further.reason}"
        return
    yield f"next run (ncu {further.ncu_version}): {further.reason}"
    yield (
        f"it closes {_share(further.covered_share)} of a gap of {_share(further.gap_share)} of the kernel time with "
        f"{fmt.count(further.launches)} launches in about {fmt.count(further.passes)} passes "
        f"({further.passes_how})"
    )


def joined_data(joined: Sequence[Joined]) -> dict[str, Any]:
    """`coverage`, `ranking` and `next_run` of the JSON: an entry a report."""
    from warplens.report.jsonout import window_data  # noqa: PLC0415  the other formats do without

    return {
        "coverage": [
            {
                "source": item.source,
                "trace": item.trace,
                "window": window_data(item.window),
                **{key: value for key, value in vars(item.coverage).items() if key != "ranking"},
            }
            for item in joined
        ],
        "ranking": [{"source": item.source, "rows": item.coverage.ranking} for item in joined],
        "next_run": [{"source": item.source, **vars(item.next_run)} for item in joined],
    }


def _share(part: float | None) -> str:
    return fmt.value(part, "share")
