"""Sections of the main document about the GPU's work: phases, kernels, categories, ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from warplens.report import charts
from warplens.report import format as fmt
from warplens.report.chart_theme import category_fill
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn
from warplens.report.overview.sections import absent, nothing, spread_columns
from warplens.report.overview.words import category_title, phase_title

if TYPE_CHECKING:
    from warplens.report.document import Block
    from warplens.report.overview.numbers import Numbers

__all__ = ["categories_section", "kernels_section", "phases_section", "ranges_section"]

#: Bars of a ranking; the table below it has the rest.
_RANKED: Final = 10


# --- phases -----------------------------------------------------------------------------------------------------------

_PHASE_COLUMNS: Final = (
    TableColumn("title", "Phase", "text"),
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Summed duration of the work launched in the phase."),
    TableColumn("per_step_ns", "Per step", "duration_ns", "GPU time divided by the number of steps in the window."),
    TableColumn("busy_ns", "GPU busy", "duration_ns", "Time in which any of this work runs."),
    TableColumn("matmul_share", "Matrix products", "share", "GEMM kernels' share of the phase's kernel time."),
    TableColumn(
        "inferred_share", "Inferred", "share", "Share attributed through the waiting thread, not the launching one."
    ),
    TableColumn("kernels", "Kernels", "count"),
)


def phases_section(numbers: Numbers, at: str = "") -> Section:
    """Forward, backward and optimizer, from the names of ranges."""
    phases = numbers.phases
    if not set(phases["phase"]) - {"none"}:
        text = nothing(numbers, "No range is named after forward, backward or optimizer.", "ranges")
        return absent(at, "phases", "Phases", text)
    steps = len(numbers.window.steps)
    rows = phases.with_columns(
        pl.Series("title", [phase_title(phase) for phase in phases["phase"]], dtype=pl.String),
        (pl.col("gpu_ns") / steps if steps else pl.lit(None, dtype=pl.Float64)).alias("per_step_ns"),
        (pl.col("matmul_ns") / pl.col("kernel_ns")).alias("matmul_share"),
        (pl.col("inferred_ns") / pl.col("gpu_ns")).alias("inferred_share"),
    )
    columns = tuple(column for column in _PHASE_COLUMNS if steps or column.key != "per_step_ns")
    text = (
        "GPU work belongs to the outermost enclosing range that is named after a phase. Work launched by another "
        "thread (autograd's, in the backward pass) goes to the range that the waiting thread holds open, and counts as "
        "inferred."
    )
    if numbers.operators is not None:
        text += (
            " Where no range is named after the forward pass, the operators that lead to a backward pass make it up, "
            "and count as inferred, too."
        )
    how = Paragraph(text, quiet=True)
    table = Table(f"{at}phases-table", "GPU time of each phase", columns, rows, limit=None)
    return Section(f"{at}phases", "Phases", (table, how))


# --- kernels and their categories -------------------------------------------------------------------------------------

_KERNEL_COLUMNS: Final = (
    TableColumn("full_name", "Kernel", "kernel", "The function that ran; unfold for its full name.", full="full_name"),
    TableColumn("category", "Category", "text", "Kind of work, read from the name."),
    TableColumn("share", "Share", "share", "Of the summed time of all kernels in the window."),
    TableColumn("total_ns", "Total", "duration_ns", "Summed duration."),
    TableColumn("calls", "Calls", "count"),
    *spread_columns(),
)


def kernels_section(numbers: Numbers, at: str = "") -> Section:
    """The kernels with the most GPU time."""
    kernels = numbers.kernels
    if kernels.is_empty():
        return absent(at, "kernels", "Kernels", nothing(numbers, "No kernel began in this window.", "kernels"))
    top = kernels.head(_RANKED)
    ranked = pl.DataFrame(
        {
            "name": [fmt.shorten_kernel(name) for name in top["full_name"]],
            "full_name": top["full_name"],
            "value": top["total_ns"],
            "share": top["share"],
            "fill": [category_fill(category) for category in top["category"]],
            "detail": [f"{fmt.count(calls)} calls" for calls in top["calls"]],
        }
    )
    share = fmt.share(float(top["share"].sum()))
    figure = Figure(
        f"{at}kernels-chart",
        f"The {top.height} kernels with the most GPU time: {share} of all" if top.height > 1 else "The only kernel",
        charts.ranked_chart(ranked),
        "; ".join(f"{name} {fmt.share(part)}" for name, part in ranked.select("name", "share").head(3).iter_rows()),
    )
    rows = _titled_categories(kernels, short=True)
    table = Table(f"{at}kernels-table", "Kernels by GPU time", _KERNEL_COLUMNS, rows)
    return Section(f"{at}kernels", "Kernels", (figure, table))


_GROUP_COLUMNS: Final = (
    TableColumn("share", "Share", "share", "Of the summed time of all kernels in the window."),
    TableColumn("total_ns", "Total", "duration_ns", "Summed duration."),
    TableColumn("kernels", "Kernels", "count", "Distinct kernels."),
    TableColumn("calls", "Calls", "count"),
    *spread_columns(),
)


def categories_section(numbers: Numbers, at: str = "") -> Section:
    """Kernel time by kind of work, and by number format."""
    categories = numbers.categories
    if categories.is_empty():
        text = nothing(numbers, "No kernel began in this window.", "kernels")
        return absent(at, "categories", "Categories", text)
    rows = _titled_categories(categories)
    ranked = rows.head(_RANKED).select(
        pl.col("category").alias("name"),
        pl.col("total_ns").alias("value"),
        "share",
        pl.Series("fill", [category_fill(category) for category in categories["category"].head(_RANKED)], pl.String),
    )
    figure = Figure(
        f"{at}categories-chart",
        "Kernel time by category",
        charts.ranked_chart(ranked),
        "; ".join(f"{name} {fmt.share(part)}" for name, part in ranked.select("name", "share").head(3).iter_rows()),
    )
    columns = (TableColumn("category", "Category", "text"), *_GROUP_COLUMNS)
    table = Table(f"{at}categories-table", "Categories", columns, rows, limit=None)
    formats = numbers.precisions.with_columns(pl.col("precision").fill_null("not in the name"))
    precision_columns = (TableColumn("precision", "Precision", "text"), *_GROUP_COLUMNS)
    precision = Table(f"{at}precision-table", "Number formats of the operands", precision_columns, formats, limit=None)
    return Section(f"{at}categories", "Categories", (figure, Paragraph(_what_names_tell(numbers)), table, precision))


def _what_names_tell(numbers: Numbers) -> str:
    coverage, use = numbers.category_coverage, numbers.tensor_core_use
    told = (
        f"All this is read from kernel names. A category is known for {fmt.value(coverage.category_share, 'share')} of "
        f"the kernel time, a number format for {fmt.value(coverage.precision_share, 'share')}."
    )
    if not use.product_ns:
        return told
    parts = (
        ("on tensor cores", use.tensor_core_ns),
        ("on the vector units", use.vector_ns),
        ("unknown", use.unknown_ns),
    )
    split = ", ".join(f"{fmt.share(time_ns / use.product_ns)} {where}" for where, time_ns in parts if time_ns)
    return f"{told} Of the {fmt.duration(use.product_ns)} of kernels that multiply matrices, {split}."


def _titled_categories(frame: pl.DataFrame, *, short: bool = False) -> pl.DataFrame:
    titles = [category_title(category, short=short) for category in frame["category"].cast(pl.String)]
    return frame.with_columns(pl.Series("category", titles, dtype=pl.String))


# --- ranges -----------------------------------------------------------------------------------------------------------

_RANGE_COLUMNS: Final = (
    TableColumn("name", "Range", "name"),
    TableColumn("share", "Share", "share", "Of the GPU time of all work in the window."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Summed duration of the work launched inside, at any depth."),
    TableColumn(
        "gpu_exclusive_ns", "Own", "duration_ns", "GPU time launched directly in it, not in a range inside it."
    ),
    TableColumn("inferred_ns", "Inferred", "duration_ns", "Part of the GPU time launched by another thread meanwhile."),
    TableColumn(
        "span_ns", "GPU span", "duration_ns", "From the first begin to the last end of the work, idle included."
    ),
    TableColumn("host_ns", "Host time", "duration_ns", "Duration of the ranges themselves, on the host."),
    TableColumn("instances", "Times", "count", "How often the range occurred."),
    TableColumn("kernels", "Kernels", "count"),
)


def ranges_section(numbers: Numbers, at: str = "") -> Section:
    """The program's own annotations, with the GPU time of what was launched inside."""
    ranges, coverage = numbers.ranges, numbers.range_coverage
    if ranges.is_empty():
        text = nothing(numbers, "No annotated range launched work in this window.", "ranges")
        return absent(at, "ranges", "Ranges", text)
    blocks: list[Block] = []
    if coverage.attributed_share is not None and coverage.inferred_share is not None:
        blocks.append(
            Paragraph(
                f"{fmt.share(coverage.attributed_share)} of {fmt.duration(coverage.total_ns)} of GPU time belongs to a "
                f"range, {fmt.share(coverage.inferred_share)} through the waiting thread."
            )
        )
    blocks.append(Table(f"{at}ranges-table", "Ranges by GPU time", _RANGE_COLUMNS, ranges, limit=25, depth="depth"))
    return Section(f"{at}ranges", "Ranges", tuple(blocks))
