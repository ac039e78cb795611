"""The section of the main document about modelled work: what operators had to compute and move, and how fast they did.

Only where the profile holds operators with shapes; elsewhere there is no such section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warplens.analysis.work import work_statistics
from warplens.report import format as fmt
from warplens.report.document import KeyFigure, KeyFigures, Paragraph, Section, Table, TableColumn

if TYPE_CHECKING:
    from warplens.analysis.work import ModelledWork
    from warplens.report.overview.numbers import Numbers

__all__ = ["work_sections"]

_COLUMNS: Final = (
    TableColumn("name", "Operator", "name"),
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Measured: summed duration of what the operators launched."),
    TableColumn("operators", "Calls", "count"),
    TableColumn(
        "flops", "FLOPs", "flop_count", "Modelled: a multiply-add is two; what a mask leaves out is not counted."
    ),
    TableColumn("bytes", "Bytes", "bytes", "Modelled: every tensor moved once."),
    TableColumn("flops_per_s", "FLOP/s", "flops", "Modelled FLOPs over measured time."),
    TableColumn(
        "bytes_per_s", "Bandwidth", "bandwidth", "Modelled bytes over measured time; data in a cache is faster."
    ),
    TableColumn("intensity", "FLOP/B", "number", "Arithmetic intensity."),
    TableColumn("side", "Side", "text", "Of the ridge of the GPU's roofline: what would limit it at best."),
    TableColumn("roof_share", "Of roof", "share", "How much of the roof at this intensity was reached."),
)
_UNMODELLED: Final = (
    TableColumn("name", "Operator", "name"),
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window."),
    TableColumn("gpu_ns", "GPU time", "duration_ns"),
    TableColumn("operators", "Calls", "count"),
    TableColumn("reason", "Why it has no model", "text"),
)


def work_sections(numbers: Numbers, at: str = "") -> tuple[Section, ...]:
    """FLOPs, bytes and rates of operators, and what has no model; nothing where no operator has one."""
    modelled = numbers.work
    if modelled is None or modelled.operators.is_empty() or modelled.coverage_share is None:
        return ()
    title = "Modelled work, measured time"
    sources = "; ".join(modelled.peak_sources)
    roofs = f" Roofs: {sources}, dense matrices at the boost clock." if sources else ""
    intro = Paragraph(
        "FLOPs and bytes follow from the recorded shapes; nothing of them is measured, only the time is. "
        f"{fmt.share(modelled.coverage_share)} of {fmt.duration(modelled.total_ns)} of GPU time has an operator whose "
        f"work is modelled.{roofs}"
    )
    tables = [Table(f"{at}work-table", title, _COLUMNS, work_statistics(modelled))]
    if not modelled.unmodelled.is_empty():
        tables.append(Table(f"{at}unmodelled-table", "GPU time without a model", _UNMODELLED, modelled.unmodelled))
    return (Section(f"{at}work", title, (intro, _figures(numbers, modelled), *tables)),)


def _figures(numbers: Numbers, modelled: ModelledWork) -> KeyFigures:
    steps = len(numbers.window.steps)
    busy = modelled.modelled_ns / 1e9
    figures = [
        KeyFigure("Modelled work", modelled.flops, "flop_count", "in the window"),
        *((KeyFigure("Per step", modelled.flops / steps, "flop_count", f"mean of {steps}"),) if steps else ()),
        KeyFigure("Rate of the operators", modelled.flops / busy if busy else None, "flops", "over their GPU time"),
        KeyFigure("Rate over all", _over_window(numbers, modelled), "flops", "over the window, idle time included"),
    ]
    return KeyFigures(tuple(figures))


def _over_window(numbers: Numbers, modelled: ModelledWork) -> float | None:
    duration = numbers.window.duration_ns
    return modelled.flops * 1e9 / duration if duration else None
