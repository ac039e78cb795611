"""`warplens flops`: the arithmetic and the traffic that operators need, against the time that they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from warplens.analysis.work import GROUPINGS, operator_work, work_statistics
from warplens.cli.answer import Answer, show
from warplens.cli.options import Format, FormatOption, LimitOption, ProfileArgument, RangeOption, WindowOption, group_by
from warplens.cli.selection import select
from warplens.report import format as fmt
from warplens.report.document import Table, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.window import Window
    from warplens.analysis.work import ModelledWork

__all__ = ["flops"]

_LABELS = {
    "name": (TableColumn("name", "Operator", "name"), TableColumn("family", "Family", "text")),
    "shapes": (
        TableColumn("name", "Operator", "name"),
        TableColumn("input_shapes", "Inputs", "name"),
    ),
}
_NUMBERS = (
    TableColumn("operators", "Calls", "count"),
    TableColumn("gpu_ns", "GPU time", "duration_ns"),
    TableColumn("share", "Share", "share"),
    TableColumn("flops", "FLOPs", "flop_count"),
    TableColumn("bytes", "Bytes", "bytes"),
    TableColumn("flops_per_s", "FLOP/s", "flops"),
    TableColumn("bytes_per_s", "Bandwidth", "bandwidth"),
    TableColumn("intensity", "FLOP/B", "number"),
    TableColumn("side", "Side", "text"),
    TableColumn("roof_share", "Of roof", "share"),
)
_UNMODELLED = (
    TableColumn("name", "Operator", "name"),
    TableColumn("reason", "Why it has no model", "text"),
    TableColumn("operators", "Calls", "count"),
    TableColumn("gpu_ns", "GPU time", "duration_ns"),
    TableColumn("share", "Share", "share"),
)
_NOTHING = (
    "No operator of the window has a model. Operators and their shapes are recorded by "
    "torch.profiler.profile(record_shapes=True)."
)


def flops(
    path: ProfileArgument,
    by: Annotated[str, group_by(*GROUPINGS)] = "name",
    window: WindowOption = "steady",
    range_name: RangeOption = None,
    form: FormatOption = Format.TABLE,
    limit: LimitOption = None,
) -> None:
    """FLOPs and bytes that operators need, against their time.

    Work is modelled from the recorded shapes (a multiply-add is two FLOPs, every tensor moves once), time is measured.
    What a causal mask leaves out is not counted; flops_full has it. The side is that of the roofline's ridge.
    """
    selection = select(path, window, range_name)
    modelled = operator_work(selection.timeline, selection.window)
    rows = work_statistics(modelled, by)
    labels = _LABELS.get(by, (TableColumn(by, by.capitalize(), "text"),))
    tables = [
        Table("flops", "Operators: modelled work, measured time", (*labels, *_NUMBERS), rows, empty=_NOTHING),
        Table("unmodelled", "GPU time without a model", _UNMODELLED, modelled.unmodelled, empty="None."),
    ]
    facts = tuple(_facts(modelled, selection.window))
    show(Answer("flops", selection, rows, tuple(tables), facts, _data(modelled)), form, limit)


def _facts(modelled: ModelledWork, window: Window) -> Iterator[str]:
    if modelled.coverage_share is None:
        return
    yield (
        f"coverage: {fmt.share(modelled.coverage_share)} of {fmt.duration(modelled.total_ns)} GPU time has an operator "
        "whose work is modelled"
    )
    if modelled.modelled_ns:
        steps = len(window.steps)
        each = f", {fmt.flop_count(modelled.flops / steps)} in each of {steps} steps" if steps else ""
        yield (
            f"modelled work, measured time: {fmt.flop_count(modelled.flops)}{each}; "
            f"{fmt.flop_rate(modelled.flops * 1e9 / modelled.modelled_ns)} over the GPU time of these operators, "
            f"{fmt.flop_rate(modelled.flops * 1e9 / window.duration_ns)} over the window"
        )
    for source in modelled.peak_sources:
        yield f"roofs: {source}; dense matrices, boost clock"


def _data(modelled: ModelledWork) -> dict[str, object]:
    return {
        "coverage": {
            "total_ns": modelled.total_ns,
            "modelled_ns": modelled.modelled_ns,
            "modelled_share": modelled.coverage_share,
        },
        "flops": modelled.flops,
        "matmul_flops": modelled.matmul_flops,
        "peak_sources": list(modelled.peak_sources),
        "unmodelled": {"rows": modelled.unmodelled},
    }
