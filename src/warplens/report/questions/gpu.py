"""Questions about GPU work: kernels, copies, and the ranges that launched them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final, cast

import polars as pl

from warplens.analysis.categories import classify_names
from warplens.analysis.kernels import (
    COPIES,
    GROUPINGS,
    KERNELS,
    CategoryCoverage,
    CopyGrouping,
    category_coverage,
    copy_statistics,
    kernel_statistics,
    statistics_of_counts,
    time_by_class,
)
from warplens.analysis.ranges import RANGES, RangeCoverage, range_coverage, range_statistics
from warplens.analysis.timeline import Timeline
from warplens.analysis.window import Window
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Table, pick
from warplens.report.questions import DURATIONS, HistogramQuery, QuestionResult, question

_KERNEL_LABELS: Final = {
    "full_name": pick(KERNELS, "full_name category"),
    "name": pick(KERNELS, column("name").but(title="Kernel"), "category"),
    "tensor_cores": pick(KERNELS, "tensor_cores"),
}


def _kernel_columns(by: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("name", "full_name", *((by,) if by in ("device", "stream", "process") else ()))))


def _kernels_of_counts(counts: pl.DataFrame, by: str) -> QuestionResult:
    total_ns = (pl.col("duration_ns") * pl.col("calls")).sum().alias("total_ns")
    by_name = counts.group_by("full_name").agg(total_ns)
    classified = by_name.with_columns(classify_names(by_name).get_columns())
    return _kernels(statistics_of_counts(counts, by), category_coverage(classified), by)


@question(*GROUPINGS, default="full_name", counted=HistogramQuery("kernels", _kernel_columns, _kernels_of_counts))
def kernels(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """GPU kernels: launches, duration, share of the kernel time.

    A kernel belongs to the window in which it starts. Its share is of the summed time of all kernels in the window. By
    name, all instances of a template share a row; by full_name, each has its own.
    """
    return _kernels(kernel_statistics(timeline, window, by), category_coverage(time_by_class(timeline, window)), by)


def _kernels(rows: pl.DataFrame, coverage: CategoryCoverage, by: str) -> QuestionResult:
    facts = []
    if coverage.category_share is not None and coverage.precision_share is not None:
        facts.append(
            f"coverage: names tell the category of {fmt.share(coverage.category_share)} of "
            f"{fmt.duration(coverage.total_ns)} kernel time, and the precision of {fmt.share(coverage.precision_share)}"
        )
    labels = _KERNEL_LABELS.get(by, (Column(by),))
    columns = (*labels, *pick(KERNELS, DURATIONS))
    shown = Table("kernels", "GPU kernels", columns, rows, empty="No kernels in the window.")
    shares = {"total_ns": coverage.total_ns, "category_share": coverage.category_share}
    data = {"coverage": {**shares, "precision_share": coverage.precision_share}}
    return QuestionResult(rows, (shown,), tuple(facts), data)


_RANGES: Final = pick(
    RANGES, "name instances gpu_ns share gpu_exclusive_ns inferred_ns span_ns host_ns", name="Range", span_ns="Span"
)


@question(
    "tree", "name", "full_name", flags={"operators": "List the framework's operators, too, which PyTorch traces hold."}
)
def ranges(timeline: Timeline, window: Window, by: str, *, operators: bool) -> QuestionResult:
    """Annotated ranges (NVTX, record_function): GPU time of the work launched inside.

    Own time excludes inner ranges. Inferred is work that another thread launched (autograd's backward thread) while the
    range was open. The span is from the first start to the last end of the work.
    """
    rows = range_statistics(timeline, window, by, operators=operators)
    coverage_of_ranges = range_coverage(timeline, window, operators=operators)
    coverage_facts = ranges_coverage(coverage_of_ranges)
    empty = "No annotated ranges in the window."
    if timeline.has_operators and not operators:
        empty += " `warplens operators` shows the operators that were recorded."
    depth = "depth" if by == "tree" else None
    shown = Table("ranges", "GPU time of annotated ranges", _RANGES, rows, depth=depth, empty=empty)
    derived = {
        "unattributed_ns": coverage_of_ranges.unattributed_ns,
        "attributed_share": coverage_of_ranges.attributed_share,
    }
    coverage = {**asdict(coverage_of_ranges), **derived}
    largest = ("gpu_ns", "ranges") if depth else None
    return QuestionResult(
        rows, (shown,), coverage_facts and (f"coverage: {coverage_facts[0]}",), {"coverage": coverage}, largest
    )


def ranges_coverage(coverage: RangeCoverage) -> tuple[str, ...]:
    """How much of the GPU time belongs to ranges, in at most one sentence; empty if it is not known."""
    if coverage.attributed_share is None or coverage.inferred_share is None:
        return ()
    sentence = (
        f"{fmt.share(coverage.attributed_share)} of {fmt.duration(coverage.total_ns)} of GPU time belongs to ranges"
    )
    if coverage.inferred_share:
        sentence += f", {fmt.share(coverage.inferred_share)} to those of the thread that waited for the launching one"
    return (sentence,)


_COPIES: Final = pick(
    COPIES,
    "kind direction source_memory destination_memory calls total_ns share total_bytes bandwidth_bytes_per_s",
    calls="Count",
    total_bytes="Size",
)


@question("memory", "direction", alone=("copies", "memsets"))
def copies(timeline: Timeline, window: Window, by: str) -> QuestionResult:
    """Memory copies and fills: time, size and bandwidth.

    Bandwidth is bytes over the time in which at least one of the row's copies ran.
    """
    rows = copy_statistics(timeline, window, cast("CopyGrouping", by))
    columns = tuple(column for column in _COPIES if by != "direction" or not column.name.endswith("_memory"))
    shown = Table("copies", "Memory copies and fills", columns, rows, empty="No copies or fills in the window.")
    return QuestionResult(rows, (shown,))
