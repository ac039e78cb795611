"""`warplens api`: what the host called."""

from __future__ import annotations

from typing import Annotated

from warplens.analysis.api import API_KEYS, api_statistics
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report.document import Table, TableColumn

__all__ = ["api"]

_KEY_COLUMNS = {
    "name": TableColumn("name", "Call", "name"),
    "kind": TableColumn("kind", "Kind", "text"),
    "process": TableColumn("process", "Process", "text"),
    "thread": TableColumn("thread", "Thread", "text"),
}


def api(
    path: ProfileArgument,
    by: Annotated[str, group_by(*API_KEYS, several=True)] = "name,kind",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """CUDA API calls on the host: how often, how long.

    Times are the host's; a call belongs to the window in which it begins.
    """
    selection = select(path, window, range_name)
    keys = by.split(",")
    rows = api_statistics(selection.timeline, selection.window, keys)
    columns = (
        *(_KEY_COLUMNS[key] for key in keys),
        TableColumn("calls", "Calls", "count"),
        TableColumn("total_ns", "Time", "duration_ns"),
        TableColumn("share", "Share", "share"),
        TableColumn("median_ns", "Median", "duration_ns"),
        TableColumn("max_ns", "Longest", "duration_ns"),
    )
    table = Table("api", "CUDA API calls", columns, rows, empty="No API calls in the window.")
    show(Answer("api", selection, rows, (table,)), form, limit)
