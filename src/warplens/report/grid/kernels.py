"""Questions (b) and (c): the kernels of a forward pass, the leading one and the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from warplens.analysis.grid.answers import Grid
from warplens.analysis.grid.passes import MATMUL
from warplens.report import format as fmt
from warplens.report.chart_theme import category_fill
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn
from warplens.report.grid.tables import (
    category_mix,
    model_parts,
    other_kernels,
    top_kernels,
    top_kernels_with_backward,
)
from warplens.report.grid.wording import CELL_COLUMNS, between, cell_title, majority, unanswered

if TYPE_CHECKING:
    from warplens.report.document import Block

__all__ = ["answer_b", "answer_c", "kernel_section", "mix_columns", "other_section"]


def answer_b(grid: Grid) -> list[str]:
    """The answers to (b), sentence by sentence."""
    top = top_kernels(grid)
    if not top.height:
        return []
    by_category = top["top_category"].value_counts(sort=True).row(0)
    by_name = top["category"].value_counts(sort=True).row(0)
    first = top.row(0, named=True)
    calls = (
        f"{fmt.count(first['calls_each'])} calls in each pass" if first["calls_each"] is not None else "varying calls"
    )
    sentences = [
        f"By category, {by_category[0]} kernels take the most GPU time of a forward pass in "
        f"{majority(by_category[1], top.height, 'cell')}; the single function that takes the most is of category "
        f"{by_name[0]} in {majority(by_name[1], top.height, 'cell')}.",
        f"For {cell_title(first)} it is {fmt.shorten_kernel(first['full_name'])}: {calls}, "
        f"{fmt.share(first['share'])} of the GPU time, launched by {first['parts']}.",
    ]
    varying = top.filter(pl.col("calls_each").is_null())
    if varying.height:
        sentences.append(
            f"In {majority(varying.height, top.height, 'cell')} the number of calls differs from pass to pass."
        )
    both = top_kernels_with_backward(grid)
    if both.height:
        same = int(both["same"].sum())
        sentences.append(
            f"With the backward pass added, the same kernel leads in {majority(same, both.height, 'training profile')}."
        )
    return sentences


def kernel_section(grid: Grid) -> Section:
    """(b) The kernel with the most GPU time, its calls, and the model parts that launch it."""
    title = "(b) Which kernel takes the most GPU time?"
    top = top_kernels(grid)
    if not top.height:
        return Section("b", title, (unanswered("b"),))
    parts = model_parts(grid)
    captions = {
        "top-kernels": "The kernel with the most GPU time in a forward pass (measured)",
        "top-categories": "The category with the most GPU time in a forward pass (measured)",
        "model-parts": "Model parts that launch the leading kernel, by innermost range (measured)",
    }
    blocks: list[Block] = [
        Paragraph(" ".join(answer_b(grid))),
        Table("top-kernels", captions["top-kernels"], _TOP_COLUMNS, top, None),
        Table("top-categories", captions["top-categories"], _CATEGORY_COLUMNS, top, None),
        Table("model-parts", captions["model-parts"], _PART_COLUMNS, parts, None),
    ]
    both = top_kernels_with_backward(grid)
    if both.height:
        caption = "The leading kernel of forward and backward together (measured)"
        blocks.append(Table("top-with-backward", caption, _BOTH_COLUMNS, both, None))
    return Section("b", title, tuple(blocks))


_TOP_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("name", "Kernel", "kernel", "The kernel function with the most GPU time.", full="full_name"),
    TableColumn("category", "Category", "text", "What kind of kernel it is."),
    TableColumn("calls_each", "Calls per pass", "count", "Measured: calls in a single pass; – where passes differ."),
    TableColumn("gpu_ns", "GPU time per pass", "duration_ns", "Measured: mean over the passes."),
    TableColumn("share", "Share", "share", "Measured: share of all GPU time of forward passes."),
)  # fmt: skip
_CATEGORY_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("top_category", "Category", "text", "The category with the most GPU time."),
    TableColumn("top_category_calls_each", "Kernels per pass", "count", "Measured: its kernels in a single pass."),
    TableColumn("top_category_share", "Share", "share", "Measured: share of all GPU time of forward passes."),
    TableColumn("matmul_calls_modelled", "Products in the model", "count",
                "Modelled: 7 linear maps and 2 attention products a layer, and the head; split-k adds kernels."),
)  # fmt: skip
_PART_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("part", "Model part", "name", "Name of the innermost range that holds the launches."),
    TableColumn("launches", "Launches per pass", "count", "Measured."),
    TableColumn("gpu_ns", "GPU time per pass", "duration_ns", "Measured."),
    TableColumn("share", "Share", "share", "Measured: share of this kernel's GPU time."),
)
_BOTH_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("name", "Kernel", "kernel", "Leads forward and backward together.", full="full_name"),
    TableColumn("category", "Category", "text", "What kind of kernel it is."),
    TableColumn("calls_each", "Calls per step", "count", "Measured: calls in a single step, forward and backward."),
    TableColumn("share", "Share", "share", "Measured: share of the GPU time of forward and backward."),
    TableColumn("same", "Leads forward too", "text", "Whether the same kernel leads the forward pass alone."),
)


def answer_c(grid: Grid) -> list[str]:
    """The answers to (c), sentence by sentence."""
    mix = category_mix(grid, "forward")
    if not mix.height:
        return []
    labels = [label for label in mix.columns[3:] if label != MATMUL]
    ranked = sorted(labels, key=lambda label: -float(mix[label].sum()))
    parts = [f"{label} {between(mix[label], 'share')}" for label in ranked[:4]]
    rest = [1 - row.get(MATMUL, 0.0) for row in mix.iter_rows(named=True)]
    return [
        f"Everything but matrix products takes {between(rest, 'share')} of a forward pass's GPU time: "
        f"{', '.join(parts)} over the cells."
    ]


def other_section(grid: Grid) -> Section:
    """(c) The other kernels of a forward pass."""
    title = "(c) What do the other kernels take?"
    mix = category_mix(grid, "forward")
    if not mix.height:
        return Section("c", title, (unanswered("c"),))
    caption = "GPU time of a forward pass by category; every row sums to 100 % (measured)"
    blocks: list[Block] = [
        Paragraph(" ".join(answer_c(grid))),
        Table("category-mix", caption, mix_columns(mix), mix, None),
        _mix_figure(mix),
    ]
    others = other_kernels(grid)
    inner = [
        Section(
            f"c-{number}",
            f"Other kernels of {model}",
            (
                Table(
                    f"other-kernels-{number}",
                    f"The longest kernels of {model} besides matrix products; a cell's rows sum to 100 % (measured)",
                    _OTHER_COLUMNS,
                    others.filter(pl.col("model") == model),
                    None,
                ),
            ),
        )
        for number, model in enumerate(others["model"].unique(maintain_order=True), 1)
    ]
    return Section("c", title, tuple(blocks), tuple(inner))


def mix_columns(mix: pl.DataFrame) -> tuple[TableColumn, ...]:
    """The columns of a table of category shares."""
    help_text = "Measured: share of the GPU time."
    return (*CELL_COLUMNS, *(TableColumn(label, label, "share", help_text) for label in mix.columns[3:]))


_OTHER_COLUMNS = (
    TableColumn("context", "Context", "count", "Context length in tokens."),
    TableColumn("mode", "Profile of", "text", "What one step of the profiled program does."),
    TableColumn("name", "Kernel", "kernel", "Kernel function, or what the row adds up.", full="full_name"),
    TableColumn("category", "Category", "text", "What kind of kernel it is."),
    TableColumn("calls", "Calls per pass", "count", "Measured: mean over the passes."),
    TableColumn("gpu_ns", "GPU time per pass", "duration_ns", "Measured: mean over the passes."),
    TableColumn("share", "Share", "share", "Measured: share of all GPU time of forward passes."),
)


def _mix_figure(mix: pl.DataFrame) -> Figure:
    from warplens.report.charts import ranked_chart  # noqa: PLC0415  Altair is slow to import

    row = mix.row(mix.height - 1, named=True)
    values = [(label, row[label]) for label in mix.columns[3:] if row[label] > 0]
    values.sort(key=lambda item: -item[1])
    frame = pl.DataFrame(
        [{"name": label, "value": share, "share": None, "fill": category_fill(label)} for label, share in values],
        schema_overrides={"value": pl.Float64, "share": pl.Float64},
    )
    title = cell_title(row)
    alt = f"Bars: share of the forward pass's GPU time by category for {title}; {values[0][0]} leads."
    chart = ranked_chart(frame, kind="share")
    return Figure("forward-mix", f"GPU time of a forward pass by category: {title} (measured)", chart, alt)
