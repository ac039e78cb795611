"""`warplens operators`: which parts of a PyTorch program the GPU time, and the host's, went to."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

from warplens.analysis.operators import GROUPINGS, framework_overhead, operator_coverage, operators_by
from warplens.cli.answer import Answer, most_rows, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn
from warplens.report.overview.operatorwords import coverage_sentences, overhead_sentence, what_to_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from warplens.analysis.operators import FrameworkOverhead, OperatorCoverage
    from warplens.cli.selection import Selection

__all__ = ["operators"]

_CALLS: Final = TableColumn("calls", "Calls", "count")
_GPU: Final = (
    TableColumn("total_ns", "GPU in all", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("gpu_ns", "Launched", "duration_ns"),
    TableColumn("backward_ns", "Backward", "duration_ns"),
)
_HOST: Final = (
    TableColumn("host_ns", "Host", "duration_ns"),
    TableColumn("api_ns", "In CUDA", "duration_ns"),
    TableColumn("host_self_ns", "Framework", "duration_ns"),
)
_COLUMNS: Final = {
    "name": (TableColumn("name", "Operator", "name"), _CALLS, *_GPU, *_HOST),
    "shapes": (
        TableColumn("name", "Operator", "name"),
        TableColumn("input_shapes", "Input shapes", "name"),
        _CALLS,
        *_GPU,
        TableColumn("host_ns", "Host", "duration_ns"),
    ),
    "tree": (TableColumn("name", "Operator", "name"), _CALLS, *_GPU, *_HOST),
    "module": (
        TableColumn("name", "Module", "name"),
        TableColumn("level", "Is a", "text"),
        _CALLS,
        *_GPU,
        TableColumn("host_ns", "Host", "duration_ns"),
    ),
    "python": (
        TableColumn("name", "Function", "name"),
        _CALLS,
        TableColumn("gpu_self_ns", "Launched itself", "duration_ns"),
        TableColumn("backward_self_ns", "Its backward", "duration_ns"),
        TableColumn("total_ns", "GPU in all", "duration_ns"),
        TableColumn("share", "Share", "share"),
        TableColumn("host_ns", "Host", "duration_ns"),
    ),
}


def operators(
    path: ProfileArgument,
    by: Annotated[str, group_by(*GROUPINGS)] = "name",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """PyTorch operators and modules: host time, GPU time, backward pass.

    Launched is the GPU time of what was launched inside, Backward that of the backward operators which compute its
    gradient; in all, each piece of work counts once. Framework is host time in neither CUDA calls nor operators inside.
    """
    selection = select(path, window, range_name)
    rows = operators_by(selection.timeline, selection.window, by)
    coverage = operator_coverage(selection.timeline, selection.window)
    overhead = framework_overhead(selection.timeline, selection.window)
    caption = {"module": "GPU time of modules", "python": "GPU time of Python functions"}.get(by, "Operators")
    depth = "depth" if by in ("tree", "module") else None
    empty = what_to_record(selection.timeline, by) or "No operators in the window."
    table = Table("operators", caption, _COLUMNS[by], rows, depth=depth, empty=empty)
    facts = tuple(_facts(selection, by, coverage, overhead))
    most = most_rows(form, limit)
    if depth is not None and most is not None and most < rows.height:
        facts += (f"the {most} of {fmt.count(rows.height)} rows with the most GPU time; --limit 0 shows all",)
        table = replace(table, rows=_largest(rows, most))
    show(Answer("operators", selection, table.rows, (table,), facts, _data(coverage, overhead)), form, limit)


def _largest(tree: pl.DataFrame, most: int) -> pl.DataFrame:
    """The rows with the most GPU time, still as a tree: none has more than its parent, which stands before it."""
    ranked = tree.with_row_index("place").sort("total_ns", descending=True, maintain_order=True)
    return ranked.head(most).sort("place").drop("place")


def _facts(
    selection: Selection, by: str, coverage: OperatorCoverage, overhead: FrameworkOverhead | None
) -> Iterator[str]:
    if overhead is None:
        return
    for sentence in coverage_sentences(coverage, places=by == "module"):
        yield f"coverage: {sentence}"
    yield f"host: {overhead_sentence(overhead)}"
    absent = what_to_record(selection.timeline, by)
    if absent is not None:
        yield absent


def _data(coverage: OperatorCoverage, overhead: FrameworkOverhead | None) -> dict[str, Any]:
    shares = {"operator_share": coverage.operator_share, "linked_share": coverage.linked_share}
    split = None if overhead is None else {**asdict(overhead), "framework_ns": overhead.framework_ns}
    return {"coverage": {**asdict(coverage), **shares}, "overhead": split}
