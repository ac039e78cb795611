"""`warplens launches`: what it cost to start the kernels, and how long they waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from warplens.analysis.launches import LAUNCH_KEYS, launch_statistics, launch_summary
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.launches import LaunchSummary

__all__ = ["launches"]

_KEY_COLUMNS = {
    "name": TableColumn("name", "Kernel", "kernel"),
    "full_name": TableColumn("full_name", "Kernel", "kernel"),
    "api": TableColumn("api", "Launched by", "name"),
    "device": TableColumn("device", "Device", "text"),
    "process": TableColumn("process", "Process", "text"),
    "thread": TableColumn("thread", "Thread", "text"),
}


def launches(
    path: ProfileArgument,
    by: Annotated[str, group_by(*LAUNCH_KEYS, several=True)] = "full_name,api",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Kernel launches: time in the call, queued, and on the GPU.

    Queued is the time from the end of the launching call to the begin of the kernel; a kernel that begins before its
    call returns has none.
    """
    selection = select(path, window, range_name)
    keys = by.split(",")
    rows = launch_statistics(selection.timeline, selection.window, keys)
    summary = launch_summary(selection.timeline, selection.window)
    columns = (
        *(_KEY_COLUMNS[key] for key in keys),
        TableColumn("launches", "Launches", "count"),
        TableColumn("api_median_ns", "Call", "duration_ns"),
        TableColumn("queue_median_ns", "Queued", "duration_ns"),
        TableColumn("kernel_median_ns", "Running", "duration_ns"),
        TableColumn("kernel_total_ns", "GPU time", "duration_ns"),
    )
    caption = "Kernel launches: median time in the call, queued and running; summed GPU time"
    table = Table("launches", caption, columns, rows, empty="No kernel launches in the window.")
    show(Answer("launches", selection, rows, (table,), tuple(_facts(summary)), {"summary": summary}), form, limit)


def _facts(summary: LaunchSummary) -> Iterator[str]:
    if summary.coverage_share is not None:
        yield (
            f"coverage: the launching call is known for {fmt.share(summary.coverage_share)} "
            f"of {fmt.count(summary.launches)} kernel launches"
        )
    if summary.per_step is not None:
        steps = summary.per_step
        spread = fmt.count(steps.min) if steps.is_constant else f"{fmt.count(steps.min)} to {fmt.count(steps.max)}"
        yield f"launches per step: {spread}"
    if summary.interval_median_ns is not None:
        yield f"one launch every {fmt.duration(summary.interval_median_ns)} (median) on the thread that launches most"
    if summary.graph_launches:
        yield (
            f"CUDA graphs: {fmt.count(summary.graph_launches)} launches "
            f"({fmt.count(summary.graph_kernels)} kernels replayed and recorded)"
        )
