"""`warplens steps`: how alike the repetitions of the workload are."""

from __future__ import annotations

from warplens.analysis.stepstatistics import step_statistics
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption
from warplens.cli.selection import select
from warplens.report.document import Table, TableColumn

__all__ = ["steps"]

_COLUMNS = (
    TableColumn("step", "Step", "count"),
    TableColumn("wall_ns", "Wall time", "duration_ns"),
    TableColumn("busy_ns", "GPU busy", "duration_ns"),
    TableColumn("busy_share", "Share", "share"),
    TableColumn("idle_ns", "Idle", "duration_ns"),
    TableColumn("kernels", "Kernels", "count"),
    TableColumn("gap_ns", "Gap after", "duration_ns"),
)
_GRAPHS = TableColumn("graph_launches", "Graphs", "count")


def steps(
    path: ProfileArgument,
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Repetitions of the workload: wall, busy and idle time of each.

    Where several GPUs worked, busy and idle are those of the busiest one.
    """
    selection = select(path, window, range_name)
    rows = step_statistics(selection.timeline, selection.window)
    columns = (*_COLUMNS, _GRAPHS) if rows["graph_launches"].sum() else _COLUMNS
    table = Table("steps", "Steps", columns, rows, empty="No steps were found in the window.")
    show(Answer("steps", selection, rows, (table,)), form, limit)
