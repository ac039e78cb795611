"""`warplens kernels`: which kernels the GPU time went to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from warplens.analysis.kernels import GROUPINGS, category_coverage, kernel_statistics
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.kernels import CategoryCoverage

__all__ = ["kernels"]

_CATEGORY = TableColumn("category", "Category", "text")
_LABELS = {
    "full_name": (TableColumn("full_name", "Kernel", "kernel", full="full_name"), _CATEGORY),
    "name": (TableColumn("name", "Kernel", "name"), _CATEGORY),
    "tensor_cores": (TableColumn("tensor_cores", "Tensor cores", "text"),),
}
_NUMBERS = (
    TableColumn("calls", "Calls", "count"),
    TableColumn("total_ns", "Time", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("median_ns", "Median", "duration_ns"),
    TableColumn("max_ns", "Longest", "duration_ns"),
)


def kernels(
    path: ProfileArgument,
    by: Annotated[str, group_by(*GROUPINGS)] = "full_name",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """GPU kernels: how often, how long, share of the GPU time.

    A kernel belongs to the window in which it begins. Its share is of the summed time of all kernels there. By name,
    all instances of a template are one row; by full_name, each is its own.
    """
    selection = select(path, window, range_name)
    rows = kernel_statistics(selection.timeline, selection.window, by)
    coverage = category_coverage(selection.timeline, selection.window)
    labels = _LABELS.get(by, (TableColumn(by, by.capitalize(), "text"),))
    table = Table("kernels", "GPU kernels", (*labels, *_NUMBERS), rows, empty="No kernels in the window.")
    show(
        Answer("kernels", selection, rows, (table,), tuple(_facts(coverage)), {"coverage": _shares(coverage)}),
        form,
        limit,
    )


def _facts(coverage: CategoryCoverage) -> Iterator[str]:
    if coverage.category_share is not None and coverage.precision_share is not None:
        yield (
            f"coverage: names tell the category of {fmt.share(coverage.category_share)} of "
            f"{fmt.duration(coverage.total_ns)} kernel time, and the precision of {fmt.share(coverage.precision_share)}"
        )


def _shares(coverage: CategoryCoverage) -> dict[str, float | None]:
    return {
        "total_ns": coverage.total_ns,
        "category_share": coverage.category_share,
        "precision_share": coverage.precision_share,
    }
