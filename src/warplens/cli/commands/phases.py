"""`warplens phases`: forward, backward, optimizer."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from warplens.analysis.phases import phase_statistics, phase_steps
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report.document import Table, TableColumn
from warplens.report.overview.words import phase_title

__all__ = ["phases"]

_OF_WINDOW = (
    TableColumn("title", "Phase", "text"),
    TableColumn("gpu_ns", "GPU time", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("inferred_ns", "Inferred", "duration_ns"),
    TableColumn("busy_ns", "GPU busy", "duration_ns"),
    TableColumn("matmul_ns", "In GEMM", "duration_ns"),
    TableColumn("kernels", "Kernels", "count"),
)
_OF_STEPS = (
    TableColumn("step", "Step", "count"),
    TableColumn("wall_ns", "Wall time", "duration_ns"),
    TableColumn("forward_ns", "Forward", "duration_ns"),
    TableColumn("backward_ns", "Backward", "duration_ns"),
    TableColumn("optimizer_ns", "Optimizer", "duration_ns"),
    TableColumn("none_ns", "Outside of them", "duration_ns"),
)


def phases(
    path: ProfileArgument,
    by: Annotated[str, group_by("phase", "step")] = "phase",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """GPU time of forward, backward and optimizer.

    Work belongs to the outermost range around its launch that is named after a phase.
    """
    selection = select(path, window, range_name)
    if by == "step":
        rows = phase_steps(selection.timeline, selection.window)
        table = Table("phases", "GPU time by phase", _OF_STEPS, rows, empty="No steps were found in the window.")
    else:
        rows = phase_statistics(selection.timeline, selection.window)
        titled = rows.with_columns(pl.Series("title", map(phase_title, rows["phase"]), dtype=pl.String))
        table = Table("phases", "GPU time by phase", _OF_WINDOW, titled, empty="No GPU work in the window.")
    show(Answer("phases", selection, rows, (table,)), form, limit)
