"""Sections of the main document about a framework's operators: where GPU time comes from, and modelled work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.analysis.code import CODE
from warplens.analysis.operators import OPERATORS
from warplens.analysis.work import UNMODELLED, WORK, work_statistics
from warplens.report import charts
from warplens.report import text as fmt
from warplens.report.document import Figure, KeyFigure, KeyFigures, Paragraph, Table, pick, quiet
from warplens.report.overview.time import RANKED, largest_three
from warplens.report.questions.operators import coverage_sentences, overhead_sentence, what_to_record

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers, OperatorNumbers


#: Of an operator or a part of the program, after its name.
_SHOWN: Final = "share total_ns gpu_ns backward_ns calls host_ns"
_TITLES: Final = {"total_ns": "GPU in all", "gpu_ns": "Launched"}


def operators(numbers: Numbers) -> Iterator[Block]:
    """Where in the program the GPU time comes from; nothing for profiles without operators."""
    found = numbers.operators
    if found is None:
        return
    if (overhead := found.overhead) is not None:
        uncovered = "time of the window in which the GPU did nothing"
        yield KeyFigures(
            (
                KeyFigure("Inside operators", overhead.host_ns, "duration_ns", "host time, summed over threads"),
                KeyFigure(
                    "In CUDA calls", overhead.api_ns, "duration_ns", "launching, copying and waiting, inside operators"
                ),
                KeyFigure(
                    "In the framework", overhead.framework_ns, "duration_ns", "the rest: dispatch, shapes, autograd"
                ),
                KeyFigure("Not covered", overhead.uncovered_ns, "duration_ns", uncovered),
            )
        )
        yield Paragraph(f"On the host, {overhead_sentence(overhead)}.")
    sentences = [*coverage_sentences(found.coverage, places=True), what_to_record(numbers.timeline, "module")]
    if told := " ".join(f"{sentence}." for sentence in sentences if sentence is not None):
        yield quiet(told)
    columns = pick(OPERATORS, "name", _SHOWN, "api_ns host_self_ns", name="Operator", **_TITLES)
    yield Table("operators-table", "Operators by name", columns, found.names)


def modules(numbers: Numbers) -> Iterator[Block]:
    """The parts of the program, as a tree, with the GPU time of what they launched."""
    found = numbers.operators
    if found is None or not found.modules.height:
        return
    yield _ranking(found)
    columns = pick(OPERATORS, "name level", _SHOWN, name="Part", **_TITLES)
    yield Table("modules-table", "Parts of the program", columns, found.modules, depth="depth")


def code(numbers: Numbers) -> Iterator[Block]:
    """Where in the program the CUDA calls come from that somebody may want to find."""
    if numbers.code.is_empty():
        return
    kept = [column.name for column in CODE.columns if numbers.code[column.name].null_count() < numbers.code.height]
    yield Table("code-table", "CUDA calls by place in the program", pick(CODE, " ".join(kept)), numbers.code)


def _ranking(found: OperatorNumbers) -> Figure:
    """The parts by what they launched directly, so that no bar is part of another."""
    own = pl.col("gpu_self_ns") + pl.col("backward_self_ns")
    ranked = (
        found.modules.group_by("name", maintain_order=True)
        .agg(own.sum().alias("value"), pl.col("backward_self_ns").sum())
        .filter(pl.col("value") > 0)
        .sort("value", "name", descending=[True, False])
        .head(RANKED)
    )
    details = [f"{fmt.duration(backward)} of it backward" for backward in ranked["backward_self_ns"]]
    drawn = ranked.select(
        "name",
        pl.col("name").alias("full_name"),
        "value",
        (pl.col("value") / max(1, found.coverage.total_ns)).alias("share"),
        pl.lit("other").alias("fill"),
        pl.Series("detail", details, dtype=pl.String),
    )
    return Figure(
        "operators-chart",
        "Parts of the program by the GPU time that they cause themselves, forward and backward",
        charts.ranked_chart(drawn),
        largest_three(drawn),
    )


def work(numbers: Numbers) -> Iterator[Block]:
    """FLOPs, bytes and rates of operators, and what has no model; nothing where no operator has one."""
    modelled = numbers.work
    if modelled is None or modelled.operators.is_empty() or modelled.coverage_share is None:
        return
    sources = "; ".join(modelled.peak_sources)
    roofs = f" Roofs: {sources}, dense matrices at the boost clock." if sources else ""
    yield Paragraph(
        "FLOPs and bytes follow from the recorded shapes; nothing of them is measured, only the time is. "
        f"{fmt.share(modelled.coverage_share)} of {fmt.duration(modelled.total_ns)} of GPU time has an operator whose "
        f"work is modelled.{roofs}"
    )
    count, duration = len(numbers.window.steps), numbers.window.duration_ns
    rate = modelled.flops * 1e9 / modelled.modelled_ns if modelled.modelled_ns else None
    over_window = modelled.flops * 1e9 / duration if duration else None
    yield KeyFigures(
        (
            KeyFigure("Modelled work", modelled.flops, "flop_count", "in the window"),
            *((KeyFigure("Per step", modelled.flops / count, "flop_count", f"mean of {count}"),) if count else ()),
            KeyFigure("Rate of the operators", rate, "flops", "over their GPU time"),
            KeyFigure("Rate over all", over_window, "flops", "over the window, idle time included"),
        )
    )
    columns = pick(
        WORK,
        "name share gpu_ns operators flops bytes flops_per_s bytes_per_s intensity side roof_share",
        name="Operator",
        flops_per_s="FLOP/s",
    )
    yield Table("work-table", "Modelled work, measured time", columns, work_statistics(modelled))
    if not modelled.unmodelled.is_empty():
        columns = pick(UNMODELLED, "name share gpu_ns operators reason", name="Operator", reason="Why it has no model")
        yield Table("unmodelled-table", "GPU time without a model", columns, modelled.unmodelled)
