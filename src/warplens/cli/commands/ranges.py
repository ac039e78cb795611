"""`warplens ranges`: the GPU time of the program's own parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from warplens.analysis.ranges import range_coverage, range_statistics
from warplens.cli.answer import Answer, most_rows, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ranges"]

_COLUMNS = (
    TableColumn("name", "Range", "name"),
    TableColumn("instances", "Times", "count"),
    TableColumn("gpu_ns", "GPU time", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("gpu_exclusive_ns", "Own", "duration_ns"),
    TableColumn("inferred_ns", "Inferred", "duration_ns"),
    TableColumn("span_ns", "Span", "duration_ns"),
    TableColumn("host_ns", "Host", "duration_ns"),
)


def ranges(
    path: ProfileArgument,
    by: Annotated[str, group_by("tree", "name", "full_name")] = "tree",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    operators: Annotated[
        bool, typer.Option("--operators", help="List the framework's operators, too, which PyTorch traces hold.")
    ] = False,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """Annotated ranges (NVTX, record_function): GPU time of the work launched inside.

    Own time leaves out that of ranges inside it. Inferred is work that another thread launched (autograd's backward
    thread) while the range was held open. The span is from the first begin to the last end of the work.
    """
    selection = select(path, window, range_name)
    rows = range_statistics(selection.timeline, selection.window, by, operators=operators)
    coverage = range_coverage(selection.timeline, selection.window, operators=operators)
    facts = []
    if coverage.attributed_share is not None and coverage.inferred_share is not None:
        facts.append(
            f"coverage: {fmt.share(coverage.attributed_share)} of {fmt.duration(coverage.total_ns)} GPU time "
            f"belongs to ranges, {fmt.share(coverage.inferred_share)} by inference"
        )
    most = most_rows(form, limit)
    if by == "tree" and most is not None and most < rows.height:
        facts.append(f"the {most} of {fmt.count(rows.height)} ranges with the most GPU time; --limit 0 shows all")
        rows = _largest(rows, most)
    depth = "depth" if by == "tree" else None
    empty = "No annotated ranges in the window."
    if selection.timeline.has_operators and not operators:
        empty += " `warplens operators` shows the operators that were recorded."
    table = Table("ranges", "GPU time of annotated ranges", _COLUMNS, rows, depth=depth, empty=empty)
    data = {
        "coverage": {
            "total_ns": coverage.total_ns,
            "same_thread_ns": coverage.same_thread_ns,
            "inferred_ns": coverage.inferred_ns,
            "unattributed_ns": coverage.unattributed_ns,
            "attributed_share": coverage.attributed_share,
        }
    }
    show(Answer("ranges", selection, rows, (table,), tuple(facts), data), form, limit)


def _largest(tree: pl.DataFrame, most: int) -> pl.DataFrame:
    """The ranges with the most GPU time, still as a tree: none has more than its parent, which stands before it."""
    ranked = tree.with_row_index("place").sort("gpu_ns", descending=True, maintain_order=True)
    return ranked.head(most).sort("place").drop("place")
