"""A grid's answers to (a), (b) and (c), its status and its invalid profiles, as plain frames with exact values.

The same frames serve tables, charts and JSON; nothing is formatted here. Times are nanoseconds of one forward pass or
one training step; `warplens.report.grid.columns.PROVENANCE` names the columns that are no plain measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import polars as pl

from warplens.analysis.grid.answers import CellAnswers, Grid
from warplens.analysis.grid.passes import MATMUL, Spread
from warplens.analysis.phases import PHASES
from warplens.report.grid.columns import (
    CELL,
    FORWARD_TIMES,
    INVALID,
    LABELS,
    MODEL_PARTS,
    OTHER_KERNELS,
    TOP_KERNELS,
    WITH_BACKWARD,
)

__all__ = [
    "category_mix",
    "cell_key",
    "cell_rows",
    "forward_matrix",
    "forward_times",
    "invalid_profiles",
    "label_shares",
    "median",
    "model_parts",
    "other_kernels",
    "status_matrix",
    "top_kernels",
    "top_kernels_with_backward",
]

#: Kernels other than matrix products that are listed by name for a cell; the rest is one row.
_LISTED_KERNELS: Final = 5


def forward_times(grid: Grid) -> pl.DataFrame:
    """(a) One row a profile: the times of a forward pass and, where given, the program's own."""
    return cell_rows(grid.answering("a"), _forward_time, FORWARD_TIMES)


def forward_matrix(grid: Grid) -> pl.DataFrame:
    """(a) Models × contexts: the median time of a forward pass, of passes alone where they were recorded; else null."""
    times = {(cell.model, cell.context): median(cell.forward.time) for cell in grid.preferred("a") if cell.forward}
    return pl.DataFrame(
        {
            "model": grid.models,
            **{f"ctx{c}": [times.get((model, c)) for model in grid.models] for c in grid.contexts},
        },
        schema={"model": pl.String, **{f"ctx{c}": pl.Float64 for c in grid.contexts}},
    )


def top_kernels(grid: Grid) -> pl.DataFrame:
    """(b) One row a cell: the kernel with the most GPU time in a forward pass, and the category with the most."""
    return cell_rows(grid.preferred("b"), _top_kernel, TOP_KERNELS)


def top_kernels_with_backward(grid: Grid) -> pl.DataFrame:
    """(b) One row a profile with backward work: the kernel that leads forward and backward together."""
    cells = [cell for cell in grid.answering("b") if cell.kernel_with_backward is not None]
    return cell_rows(cells, _with_backward, WITH_BACKWARD)


def model_parts(grid: Grid) -> pl.DataFrame:
    """(b) The model parts that launch the leading kernel; shares of a cell sum to 1."""
    rows = []
    for cell in grid.preferred("b"):
        if cell.kernel is not None:
            passes = cell.kernel.repetitions
            rows += [
                (*cell_key(cell), part.name, part.launches / passes, part.gpu_ns / passes, part.share)
                for part in cell.kernel.parts
            ]
    return pl.DataFrame(rows, schema=MODEL_PARTS, orient="row")


def other_kernels(grid: Grid) -> pl.DataFrame:
    """(c) The longest kernels besides matrix products, cell by cell.

    Behind them stand all other ones, the matrix products, and what is no kernel; shares of a cell sum to 1.
    """
    frames = [_other_kernels(cell) for cell in grid.preferred("c")]
    return pl.concat([pl.DataFrame(schema=OTHER_KERNELS), *frames])


def label_shares(grid: Grid) -> pl.DataFrame:
    """(c, d) Every category of kernel and kind of other work of each profile.

    The scope is `forward` (forward passes) or, for training, also `step` (whole steps); the shares of a profile and
    scope sum to 1.
    """
    rows = []
    for cell in grid.answering("c"):
        passes = cell.kernel.repetitions if cell.kernel else 1
        steps = cell.training.steps if cell.training else 1
        for scope, labels, count in (("forward", cell.labels, passes), ("step", cell.step_labels, steps)):
            columns = labels.select("label", pl.col("calls") / count, pl.col("gpu_ns") / count, "share")
            rows += [(*cell_key(cell), scope, *row) for row in columns.rows()]
    return pl.DataFrame(rows, schema=LABELS, orient="row")


def category_mix(grid: Grid, scope: str) -> pl.DataFrame:
    """(c, d) One row a cell, one column a category: its share of the GPU time of forward passes or of whole steps."""
    cells = grid.preferred("c") if scope == "forward" else grid.answering("d")
    kept = pl.DataFrame([cell_key(cell) for cell in cells], schema=CELL, orient="row")
    shares = label_shares(grid).filter(pl.col("scope") == scope).join(kept, on=list(CELL), maintain_order="left")
    order = shares.group_by("label").agg(pl.col("share").max()).sort(["share", "label"], descending=[True, False])
    labels = order["label"].to_list()
    columns: dict[str, Any] = {}
    for label in labels:
        found = {row[:3]: row[3] for row in shares.filter(pl.col("label") == label).select(*CELL, "share").rows()}
        columns[label] = [found.get(row, 0.0) for row in kept.rows()]
    return kept.with_columns(**{label: pl.Series(values, dtype=pl.Float64) for label, values in columns.items()})


def invalid_profiles(grid: Grid) -> pl.DataFrame:
    """The profiles that cannot stand for their cell, why, and what they do hold."""
    return cell_rows([cell for cell in grid.cells if cell.invalid], _invalid, INVALID)


def status_matrix(status: pl.DataFrame) -> pl.DataFrame:
    """One row a cell, one column a question: the state. `status` is that of `grid_status`."""
    return status.with_columns(pl.col("state").cast(pl.String)).pivot(
        "question", index=["model", "context"], values="state", maintain_order=True
    )


# ── one profile each ──────────────────────────────────────────────────────────────────────────────────────────────────


def cell_rows(
    cells: list[CellAnswers], row: Callable[[CellAnswers], dict[str, Any]], schema: pl.Schema
) -> pl.DataFrame:
    """One row a profile: `CELL`, and what `row` gives for it; columns that it leaves out are null."""
    return pl.DataFrame(
        [dict(zip(CELL, cell_key(cell), strict=True)) | row(cell) for cell in cells], schema=schema, orient="row"
    )


def cell_key(cell: CellAnswers) -> tuple[str, int, str]:
    """The values of `CELL`."""
    return cell.model, cell.context, cell.mode or "unknown"


def median(spread: Spread | None) -> float | None:
    """The median of what was measured; None where nothing was."""
    return spread.median if spread else None


def _forward_time(cell: CellAnswers) -> dict[str, Any]:
    forward, own = cell.forward, cell.python.get("forward")
    if forward is None:
        return {}
    row = {
        "source": cell.source,
        "passes": forward.time.count,
        "time_ns": forward.time.median,
        "time_min_ns": forward.time.minimum,
        "time_max_ns": forward.time.maximum,
        "time_is": forward.time_is,
        "host_ns": median(forward.host),
        "synchronised": forward.synchronised,
        "span_ns": forward.span.median,
        "gpu_ns": forward.gpu.median,
        "busy_ns": forward.busy.median,
        "busy_share": forward.busy_share,
        "layers": forward.layers,
        "layers_counted": forward.layers_counted,
        "per_layer_ns": median(forward.per_layer),
    }
    if own is not None:
        row |= {
            "python_ns": own.centre_ns,
            "python_statistic": own.statistic,
            "python_min_ns": own.minimum_ns,
            "python_max_ns": own.maximum_ns,
            "python_deviation_ns": own.deviation_ns,
            "python_count": own.count,
            "ratio": forward.time.median / own.centre_ns,
        }
    return row


def _top_kernel(cell: CellAnswers) -> dict[str, Any]:
    kernel, category = cell.kernel, cell.category
    if kernel is None or category is None:
        return {}
    return {
        "name": kernel.name,
        "full_name": kernel.full_name,
        "category": kernel.category,
        "calls_each": kernel.calls_each,
        "calls_min": kernel.calls_min,
        "calls_max": kernel.calls_max,
        "gpu_ns": kernel.gpu_ns_each,
        "share": kernel.share,
        "parts": ", ".join(part.name for part in kernel.parts),
        "top_category": category.category,
        "top_category_share": category.share,
        "top_category_calls_each": category.calls_each,
        # Seven linear maps and two attention products a layer, and the head.
        "matmul_calls_modelled": 9 * cell.size.layers + 1 if cell.size and category.category == MATMUL else None,
    }


def _with_backward(cell: CellAnswers) -> dict[str, Any]:
    forward, both = cell.kernel, cell.kernel_with_backward
    if forward is None or both is None:
        return {}
    return {
        "forward_name": forward.name,
        "forward_full_name": forward.full_name,
        "same": forward.full_name == both.full_name,
        "name": both.name,
        "full_name": both.full_name,
        "category": both.category,
        "calls_each": both.calls_each,
        "gpu_ns": both.gpu_ns_each,
        "share": both.share,
    }


def _other_kernels(cell: CellAnswers) -> pl.DataFrame:
    passes = cell.kernel.repetitions if cell.kernel else 1
    others = cell.kernels.filter(pl.col("category") != MATMUL)
    listed, rest = others.head(_LISTED_KERNELS), others.slice(_LISTED_KERNELS)
    products = cell.kernels.filter(pl.col("category") == MATMUL)
    categories = set(cell.kernels["category"].to_list())
    no_kernels = cell.labels.filter(~pl.col("label").is_in(categories))
    measures = ("calls", "gpu_ns", "share")
    rows: list[tuple[Any, ...]] = listed.select("name", "full_name", "category", *measures).rows()
    for title, frame in (
        (f"{rest.height} more kernels besides matrix products", rest),
        (f"all {products.height} matrix-product kernels", products),
        ("copies, fills and hidden graphs", no_kernels),
    ):
        if frame.height:
            rows.append((title, None, None, *(frame[column].sum() for column in measures)))
    return pl.DataFrame(
        [(*cell_key(cell), *names, calls / passes, gpu_ns / passes, share) for *names, calls, gpu_ns, share in rows],
        schema=OTHER_KERNELS,
        orient="row",
    )


def _invalid(cell: CellAnswers) -> dict[str, Any]:
    row: dict[str, Any] = {
        "source": cell.source,
        "reason": "; ".join(cell.invalid),
        "forward_ns": cell.forward.gpu.median if cell.forward else None,
    }
    if cell.training is not None:
        kernels = {f"{p}_kernels": cell.training.phase(p)["kernels"] / cell.training.steps for p in PHASES}
        row |= {**kernels, "wall_ns": cell.training.wall_ns / cell.training.steps}
    return row
