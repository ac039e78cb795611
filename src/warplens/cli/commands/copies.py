"""`warplens copies`: memory copies and fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

from warplens.analysis.copies import copy_statistics
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from warplens.analysis.copies import CopyGrouping

__all__ = ["copies"]


def copies(
    path: ProfileArgument,
    by: Annotated[str, group_by("memory", "direction")] = "memory",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Memory copies and fills: time, size and bandwidth.

    Bandwidth is bytes over the time in which at least one of the row's operations ran.
    """
    selection = select(path, window, range_name)
    rows = copy_statistics(selection.timeline, selection.window, cast("CopyGrouping", by))
    columns = [
        TableColumn("kind", "Kind", "text"),
        TableColumn("direction", "Direction", "text"),
        TableColumn("source_memory", "From", "text"),
        TableColumn("destination_memory", "To", "text"),
        TableColumn("calls", "Count", "count"),
        TableColumn("total_ns", "Time", "duration_ns"),
        TableColumn("share", "Share", "share"),
        TableColumn("total_bytes", "Size", "bytes"),
        TableColumn("bandwidth_bytes_per_s", "Bandwidth", "bandwidth"),
    ]
    if by == "direction":
        columns = [column for column in columns if column.key not in ("source_memory", "destination_memory")]
    table = Table("copies", "Memory copies and fills", tuple(columns), rows, empty="No copies or fills in the window.")
    show(Answer("copies", selection, rows, (table,)), form, limit)
