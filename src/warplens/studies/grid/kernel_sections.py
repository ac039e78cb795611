"""Questions (b) and (c) of a grid: the kernel with the most GPU time, and the GPU time of the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Section, Table
from warplens.report.theme import category_fill
from warplens.studies.grid.answers import CellAnswers
from warplens.studies.grid.grid import (
    CELL,
    CELL_TYPES,
    KERNEL,
    Grid,
    Question,
    Value,
    between,
    cell_key,
    cell_rows,
    cell_table,
    cell_title,
    majority,
)
from warplens.studies.grid.passes import MATMUL

TOP_KERNELS: Final = table(
    "grid: (b) leading kernels",
    "One cell. `grid.json`.",
    CELL,
    (
        Value.text("name", "the kernel function with the most GPU time", "kernel.name", title="Kernel", **KERNEL),
        Value.text("full_name", "its demangled name", "kernel.full_name"),
        Value.text("category", "what kind of kernel it is", "kernel.category"),
        Value.count("calls_each", "measured: calls in a single pass; – where passes differ", "kernel.calls_each",
                    title="Calls per pass"),
        Value.count("calls_min", "fewest calls in a pass", "kernel.calls_min"),
        Value.count("calls_max", "most calls in a pass", "kernel.calls_max"),
        Value.number("gpu_ns", "measured: mean over the passes", "kernel.gpu_ns_each", title="GPU time per pass"),
        Value.number("share", "measured: share of all GPU time of forward passes", "kernel.share"),
        Value.text("parts", "model parts that launch it"),
        Value.text("top_category", "the category with the most GPU time", "category.category", title="Category"),
        Value.number("top_category_share", "measured: share of all GPU time of forward passes", "category.share",
                     title="Share"),
        Value.count("top_category_calls_each", "measured: its kernels in a single pass", "category.calls_each",
                    title="Kernels per pass"),
        Value.count("matmul_calls_modelled",
                    "modelled: 7 linear maps and 2 attention products a layer, and the head; split-k adds kernels",
                    title="Products in the model", modelled="modelled"),
    ),
)  # fmt: skip
WITH_BACKWARD: Final = table(
    "grid: (b) with the backward pass",
    "One profile with backward work. `grid.json`.",
    CELL,
    (
        Value.text("forward_name", "leading kernel of the forward pass", "kernel.name"),
        Value.text("forward_full_name", "its demangled name", "kernel.full_name"),
        Value("same", pl.Boolean, "whether the same kernel leads the forward pass alone", title="Leads forward too"),
        Value.text("name", "leads forward and backward together", "kernel_with_backward.name", title="Kernel",
                   **KERNEL),
        Value.text("full_name", "its demangled name", "kernel_with_backward.full_name"),
        Value.text("category", "what kind of kernel it is", "kernel_with_backward.category"),
        Value.count("calls_each", "measured: calls in a single step, forward and backward",
                    "kernel_with_backward.calls_each", title="Calls per step"),
        Value.number("gpu_ns", "its GPU time in one step, on average", "kernel_with_backward.gpu_ns_each"),
        Value.number("share", "measured: share of the GPU time of forward and backward", "kernel_with_backward.share"),
    ),
)  # fmt: skip
MODEL_PARTS: Final = table(
    "grid: (b) model parts",
    "One part of the model that launches the cell's leading kernel. `grid.json`.",
    CELL,
    (
        Value.text("part", "name of the innermost range that holds the launches", title="Model part", kind="name"),
        Value.number("launches", "measured", title="Launches per pass", kind="count"),
        Value.number("gpu_ns", "measured", title="GPU time per pass"),
        Value.number("share", "measured: share of this kernel's GPU time"),
    ),
)
OTHER_KERNELS: Final = table(
    "grid: (c) other kernels",
    "One of the longest kernels besides matrix products, or a sum of others. A cell's shares sum to 1. `grid.json`.",
    CELL,
    (
        Value.text("name", "kernel function, or what the row adds up", title="Kernel", **KERNEL),
        Value.text("full_name", "its demangled name; null for a sum"),
        Value.text("category", "what kind of kernel it is"),
        Value.number("calls", "measured: mean over the passes", title="Calls per pass", kind="count"),
        Value.number("gpu_ns", "measured: mean over the passes", title="GPU time per pass"),
        Value.number("share", "measured: share of all GPU time of forward passes"),
    ),
)
LABELS: Final = table(
    "grid: (c, d) categories",
    "One category of kernels or kind of other work. The shares of a profile and scope sum to 1. `grid.json`.",
    CELL,
    (
        Value.text("scope", "`forward` (passes) or `step` (whole training steps)"),
        Value.text("label", "kernel category, or kind of other work"),
        Value.number("calls", "calls in one pass or step, on average", kind="count"),
        Value.number("gpu_ns", "GPU time in one pass or step, on average"),
        Value.number("share", "share of the GPU time of the profile and scope"),
    ),
)

#: Kernels other than matrix products listed by name for a cell; the rest shares one row.
_LISTED_KERNELS: Final = 5


def answer_b(grid: Grid) -> list[str]:
    """The answers to (b), sentence by sentence."""
    top = top_kernels(grid)
    if not top.height:
        return []
    by_category = top["top_category"].value_counts(sort=True).row(0)
    by_name = top["category"].value_counts(sort=True).row(0)
    first = top.row(0, named=True)
    each = first["calls_each"]
    calls = f"{fmt.count(each)} calls in each pass" if each is not None else "varying calls"
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


def _kernel_blocks(grid: Grid) -> Iterator[Block]:
    top = top_kernels(grid)
    caption = "The kernel with the most GPU time in a forward pass (measured)"
    yield cell_table("top-kernels", caption, top, TOP_KERNELS, "name category calls_each gpu_ns share")
    caption = "The category with the most GPU time in a forward pass (measured)"
    columns = "top_category top_category_calls_each top_category_share matmul_calls_modelled"
    yield cell_table("top-categories", caption, top, TOP_KERNELS, columns)
    caption = "Model parts that launch the leading kernel, by innermost range (measured)"
    yield cell_table("model-parts", caption, model_parts(grid), MODEL_PARTS, "part launches gpu_ns share")
    both = top_kernels_with_backward(grid)
    if both.height:
        caption = "The leading kernel of forward and backward together (measured)"
        yield cell_table("top-with-backward", caption, both, WITH_BACKWARD, "name category calls_each share same")


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


def _mix_blocks(grid: Grid) -> Iterator[Block]:
    mix = category_mix(grid, "forward")
    caption = "GPU time of a forward pass by category; every row sums to 100 % (measured)"
    yield Table("category-mix", caption, mix_columns(mix), mix, None)
    yield _mix_figure(mix)


def _of_each_model(grid: Grid) -> tuple[Section, ...]:
    others, sections = other_kernels(grid), []
    for number, model in enumerate(others["model"].unique(maintain_order=True), 1):
        caption = f"The longest kernels of {model} besides matrix products; a cell's rows sum to 100 % (measured)"
        columns = OTHER_KERNELS.without("model", "full_name").columns
        table = Table(f"other-kernels-{number}", caption, columns, others.filter(pl.col("model") == model), None)
        sections.append(Section(f"c-{number}", f"Other kernels of {model}", (table,)))
    return tuple(sections)


def mix_columns(mix: pl.DataFrame) -> tuple[Column, ...]:
    """The columns of a table of category shares."""
    share = column("share", help="measured: share of the GPU time")
    return (*CELL, *(share.but(name=label, title=label) for label in mix.columns[3:]))


def _mix_figure(mix: pl.DataFrame) -> Figure:
    from warplens.report.charts.bars import ranked_chart

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


def top_kernels(grid: Grid) -> pl.DataFrame:
    """(b) One row per cell: the kernel and the category with the most GPU time in a forward pass."""
    return cell_rows(grid.preferred("b"), TOP_KERNELS, _of_model)


def _of_model(cell: CellAnswers) -> dict[str, Any]:
    products_lead = cell.category is not None and cell.category["category"] == MATMUL
    return {
        "parts": ", ".join(cell.kernel["parts"]["part"]) if cell.kernel else None,
        # Seven linear maps and two attention products a layer, and the head.
        "matmul_calls_modelled": 9 * cell.size.layers + 1 if cell.size and products_lead else None,
    }


def top_kernels_with_backward(grid: Grid) -> pl.DataFrame:
    """(b) One row per profile with backward work: the leading kernel of forward and backward together."""
    cells = [cell for cell in grid.answering("b") if cell.kernel_with_backward is not None]
    leading = cell_rows(cells, WITH_BACKWARD)
    return leading.with_columns(same=pl.col("forward_full_name") == pl.col("full_name"))


def model_parts(grid: Grid) -> pl.DataFrame:
    """(b) The model parts that launch the leading kernel; shares of a cell sum to 1."""
    frames = [
        cell.kernel["parts"].select(
            *(pl.lit(value).alias(name) for name, value in zip(CELL_TYPES, cell_key(cell), strict=True)),
            "part", pl.col("launches") / passes, pl.col("gpu_ns") / passes, "share",
        )
        for cell in grid.preferred("b")
        if cell.kernel is not None and (passes := cell.kernel["repetitions"])
    ]  # fmt: skip
    return MODEL_PARTS.conform(pl.concat([MODEL_PARTS.empty(), *frames], how="vertical_relaxed"))


def other_kernels(grid: Grid) -> pl.DataFrame:
    """(c) The longest kernels besides matrix products, cell by cell.

    Followed by sums of all other kernels, of the matrix products, and of other work; shares of a cell sum to 1.
    """
    rows = [row for cell in grid.preferred("c") for row in _other_kernels(cell)]
    return pl.DataFrame(rows, schema=OTHER_KERNELS.schema, orient="row")


def label_shares(grid: Grid) -> pl.DataFrame:
    """(c, d) Every kernel category and kind of other work of each profile.

    The scope is `forward` (forward passes) and, for training, also `step` (whole steps); the shares of a profile and
    scope sum to 1.
    """
    rows = []
    for cell in grid.answering("c"):
        passes = cell.kernel["repetitions"] if cell.kernel else 1
        steps = cell.training.steps if cell.training else 1
        for scope, labels, count in (("forward", cell.labels, passes), ("step", cell.step_labels, steps)):
            columns = labels.select("label", pl.col("calls") / count, pl.col("gpu_ns") / count, "share")
            rows += [(*cell_key(cell), scope, *row) for row in columns.rows()]
    return pl.DataFrame(rows, schema=LABELS.schema, orient="row")


def category_mix(grid: Grid, scope: str) -> pl.DataFrame:
    """(c, d) Category shares of the GPU time of forward passes or of whole steps: cells × categories."""
    cells = grid.preferred("c") if scope == "forward" else grid.answering("d")
    cell_keys = pl.DataFrame([cell_key(cell) for cell in cells], schema=CELL_TYPES, orient="row")
    keys = list(CELL_TYPES)
    shares = label_shares(grid).filter(pl.col("scope") == scope).join(cell_keys, on=keys, maintain_order="left")
    order = shares.group_by("label").agg(pl.col("share").max()).sort(["share", "label"], descending=[True, False])
    pivoted = shares.pivot("label", index=keys, values="share", maintain_order=True)
    mix = cell_keys.join(pivoted, on=keys, how="left", maintain_order="left") if order.height else cell_keys
    return mix.select(*keys, *(pl.col(label).fill_null(0.0) for label in order["label"]))


def _other_kernels(cell: CellAnswers) -> list[tuple[Any, ...]]:
    passes = cell.kernel["repetitions"] if cell.kernel else 1
    others = cell.kernels.filter(pl.col("category") != MATMUL)
    listed, rest = others.head(_LISTED_KERNELS), others.slice(_LISTED_KERNELS)
    products = cell.kernels.filter(pl.col("category") == MATMUL)
    no_kernels = cell.labels.filter(~pl.col("label").is_in(cell.kernels["category"].unique()))
    measures = ("calls", "gpu_ns", "share")
    rows: list[tuple[Any, ...]] = listed.select("name", "full_name", "category", *measures).rows()
    for title, frame in (
        (f"{rest.height} more kernels besides matrix products", rest),
        (f"all {products.height} matrix-product kernels", products),
        ("copies, fills and hidden graphs", no_kernels),
    ):
        if frame.height:
            rows.append((title, None, None, *(frame[column].sum() for column in measures)))
    return [(*cell_key(cell), *names, calls / passes, gpu_ns / passes, share) for *names, calls, gpu_ns, share in rows]


TOP_KERNEL: Final = Question(
    "b",
    "Which kernel takes the most GPU time?",
    answer_b,
    _kernel_blocks,
    {
        "top_kernels": top_kernels,
        "top_kernels_with_backward": top_kernels_with_backward,
        "model_parts": model_parts,
    },
)
OTHERS: Final = Question(
    "c",
    "What do the other kernels take?",
    answer_c,
    _mix_blocks,
    {"label_shares": label_shares, "other_kernels": other_kernels},
    _of_each_model,
)
