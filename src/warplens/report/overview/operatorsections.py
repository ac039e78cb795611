"""Section of the main document about a framework's operators and modules, for profiles that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report import charts
from warplens.report import format as fmt
from warplens.report.document import Figure, KeyFigure, KeyFigures, Paragraph, Section, Table, TableColumn
from warplens.report.overview.operatorwords import coverage_sentences, overhead_sentence, what_to_record

if TYPE_CHECKING:
    from warplens.analysis.operators import FrameworkOverhead
    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers, OperatorNumbers

__all__ = ["operator_sections"]

#: Bars of the ranking; the tables below it have the rest.
_RANKED: Final = 10

_GPU: Final = (
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window, forward and backward together."),
    TableColumn("total_ns", "GPU in all", "duration_ns", "Launched and backward, each piece of work once."),
    TableColumn("gpu_ns", "Launched", "duration_ns", "GPU time of the work launched inside, at any depth."),
    TableColumn("backward_ns", "Backward", "duration_ns", "GPU time of the backward operators of what ran inside."),
)
_CALLS: Final = TableColumn("calls", "Calls", "count")
_HOST: Final = TableColumn("host_ns", "Host", "duration_ns", "Duration on the host, what ran inside included.")
_NAMES: Final = (
    TableColumn("name", "Operator", "name"),
    *_GPU,
    _CALLS,
    _HOST,
    TableColumn("api_ns", "In CUDA", "duration_ns", "Part of the host time in CUDA API calls."),
    TableColumn(
        "host_self_ns", "Framework", "duration_ns", "Host time in neither CUDA calls nor operators inside: dispatch."
    ),
)
_MODULES: Final = (
    TableColumn("name", "Part", "name"),
    TableColumn("level", "Is a", "text", "A torch.nn module, an annotation of the program, or an outermost operator."),
    *_GPU,
    _CALLS,
    _HOST,
)


def operator_sections(numbers: Numbers, at: str = "") -> tuple[Section, ...]:
    """Where in the program the GPU time comes from; nothing for profiles without operators."""
    operators = numbers.operators
    if operators is None:
        return ()
    blocks: list[Block] = []
    if operators.overhead is not None:
        blocks.append(KeyFigures(_figures(operators.overhead)))
        blocks.append(Paragraph(f"On the host, {overhead_sentence(operators.overhead)}."))
    sentences = [*coverage_sentences(operators.coverage, places=True)]
    absent = what_to_record(numbers.timeline, "module")
    if absent is not None:
        sentences.append(absent)
    if sentences:
        blocks.append(Paragraph(" ".join(f"{sentence}." for sentence in sentences), quiet=True))
    if operators.modules.height:
        blocks.append(_ranking(operators, at))
        blocks.append(
            Table(f"{at}modules-table", "Parts of the program", _MODULES, operators.modules, limit=25, depth="depth")
        )
    blocks.append(Table(f"{at}operators-table", "Operators by name", _NAMES, operators.names))
    return (Section(f"{at}operators", "Operators", tuple(blocks)),)


def _figures(overhead: FrameworkOverhead) -> tuple[KeyFigure, ...]:
    return (
        KeyFigure("Inside operators", overhead.host_ns, "duration_ns", "host time, summed over threads"),
        KeyFigure("In CUDA calls", overhead.api_ns, "duration_ns", "launching, copying and waiting, inside operators"),
        KeyFigure("In the framework", overhead.framework_ns, "duration_ns", "the rest: dispatch, shapes, autograd"),
        KeyFigure(
            "Not covered", overhead.uncovered_ns, "duration_ns", "time of the window in which the GPU did nothing"
        ),
    )


def _ranking(operators: OperatorNumbers, at: str) -> Figure:
    """The parts by what they launched directly, so that no bar is part of another."""
    own = pl.col("gpu_self_ns") + pl.col("backward_self_ns")
    total_ns = max(1, operators.coverage.total_ns)
    ranked = (
        operators.modules.group_by("name", maintain_order=True)
        .agg(own.sum().alias("value"), pl.col("backward_self_ns").sum())
        .filter(pl.col("value") > 0)
        .sort("value", "name", descending=[True, False])
        .head(_RANKED)
        .with_columns((pl.col("value") / total_ns).alias("share"), pl.lit("other").alias("fill"))
    )
    details = [f"{fmt.duration(backward)} of it backward" for backward in ranked["backward_self_ns"]]
    drawn = ranked.with_columns(pl.Series("detail", details, dtype=pl.String)).select(
        "name", pl.col("name").alias("full_name"), "value", "share", "fill", "detail"
    )
    return Figure(
        f"{at}operators-chart",
        "Parts of the program by the GPU time that they cause themselves, forward and backward",
        charts.ranked_chart(drawn),
        "; ".join(f"{name} {fmt.share(part)}" for name, part in drawn.select("name", "share").head(3).iter_rows()),
    )
