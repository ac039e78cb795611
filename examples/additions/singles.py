"""Single kernels of the window: what `make new-table NAME=singles` starts with, in `report/questions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.profile.columns import KERNEL_NAME, table
from warplens.report.document import Table
from warplens.report.questions import QuestionResult, question

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

SINGLES: Final = table(
    "singles", "One kernel. `warplens singles`.", KERNEL_NAME, "full_name device stream start_ns duration_ns"
)


@question()
def singles(timeline: Timeline, window: Window) -> QuestionResult:
    """Kernels one by one, the longest first."""
    lengths = timeline.kernels_in(window).with_columns((pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns"))
    rows = SINGLES.conform(lengths).sort("duration_ns", descending=True, maintain_order=True)
    shown = SINGLES.without("full_name").columns
    table = Table("singles", "Kernels one by one", shown, rows, empty="No kernels in the window.")
    return QuestionResult(rows, (table,))
