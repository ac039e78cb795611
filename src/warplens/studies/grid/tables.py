"""The tables of a grid: every column declared once, with where its value stands in a profile's answers.

The same frames serve tables, charts and JSON; nothing is formatted here. Times are nanoseconds of one forward pass or
one training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.analysis.window import NO_PHASE, PHASES
from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Kind, Table
from warplens.report import document as page
from warplens.report import text as fmt
from warplens.report.document import Paragraph, Section
from warplens.studies.grid.answers import CellAnswers, Grid
from warplens.studies.grid.passes import MATMUL, Spread


@dataclass(frozen=True)
class Answer(Column):
    """A column of which each profile has one value.

    Attributes:
        of: where the value stands in `CellAnswers`: attributes, and keys of mappings, separated by dots; what is None
            on the way makes it null. Empty where a function gives it.
        modelled: what of it is no plain measurement; empty where all of it is measured.
    """

    of: str = ""
    modelled: str = ""


def _number(name: str, help_text: str, of: str = "", **more: Any) -> Answer:
    return Answer(name, pl.Float64, help_text, of=of, **more)


def _count(name: str, help_text: str, of: str = "", **more: Any) -> Answer:
    return Answer(name, pl.Int64, help_text, of=of, **more)


def _text(name: str, help_text: str, of: str = "", **more: Any) -> Answer:
    return Answer(name, pl.String, help_text, of=of, **more)


#: Which profile a row is of.
CELL: Final = (
    column("model").but(help="size of the model"),
    column("context").but(help="context length in tokens"),
    column("mode").but(help="what one step of the profiled program does"),
)
CELL_TYPES: Final = {each.name: each.dtype for each in CELL}

_KERNEL: Final = {"kind": "kernel", "full": "full_name"}
_MODELLED_RATE: Final = "modelled FLOPs over measured time"

FORWARD_TIMES: Final = table(
    "grid: (a) forward times",
    "One profile. Times are medians over passes. `grid.json`.",
    CELL,
    (
        _text("source", "the profile's file", "source"),
        _count("passes", "forward passes measured, warm-up left out", "forward.time.count"),
        _number("time_ns", "measured: time of a pass, the median", "forward.time.median"),
        _number("time_min_ns", "measured: the fastest pass", "forward.time.minimum", title="Min"),
        _number("time_max_ns", "measured: the slowest pass", "forward.time.maximum", title="Greatest"),
        _text("time_is", "what the time was taken from", "forward.time_is"),
        _number("host_ns", "measured: duration of the forward range on the host", "forward.host.median",
                title="Host range"),
        Answer("synchronised", pl.Boolean, "whether the host waits for the GPU inside the range",
               title="Waits inside", of="forward.synchronised"),
        _number("span_ns", "measured: from first start to last end of its GPU work", "forward.span.median",
                title="GPU span"),
        _number("gpu_ns", "measured: summed durations of its GPU work", "forward.gpu.median", title="GPU time"),
        _number("busy_ns", "time in which at least one piece of that work ran", "forward.busy.median"),
        _number("busy_share", "measured: share of the time in which the GPU works", "forward.busy_share",
                title="GPU busy"),
        _count("layers", "attention layers: counted in the ranges, or from the table of models", "forward.layers",
               modelled="counted in the profile, or modelled where `layers_counted` is false"),
        Answer("layers_counted", pl.Boolean, "whether the layers were counted in the profile",
               of="forward.layers_counted"),
        _number("per_layer_ns", "measured time over the layers; all else counts in", "forward.per_layer.median"),
        _number("python_ns", "measured by the program: the median, or mean", "python.forward.centre_ns",
                title="Own clock"),
        _text("python_statistic", "`median` or `mean`: what `python_ns` is", "python.forward.statistic"),
        _number("python_min_ns", "measured by the program: the fastest pass", "python.forward.minimum_ns",
                title="Own least"),
        _number("python_max_ns", "measured by the program: the slowest pass", "python.forward.maximum_ns",
                title="Own greatest"),
        _number("python_deviation_ns", "measured by the program: standard deviation", "python.forward.deviation_ns",
                title="Own deviation"),
        _count("python_count", "passes that the program measured", "python.forward.count", title="Own passes"),
        _number("ratio", "measured: the profile's time over the program's own", title="Profile / own"),
    ),
)  # fmt: skip
TOP_KERNELS: Final = table(
    "grid: (b) leading kernels",
    "One cell. `grid.json`.",
    CELL,
    (
        _text("name", "the kernel function with the most GPU time", "kernel.name", title="Kernel", **_KERNEL),
        _text("full_name", "its demangled name", "kernel.full_name"),
        _text("category", "what kind of kernel it is", "kernel.category"),
        _count("calls_each", "measured: calls in a single pass; – where passes differ", "kernel.calls_each",
               title="Calls per pass"),
        _count("calls_min", "fewest calls in a pass", "kernel.calls_min"),
        _count("calls_max", "most calls in a pass", "kernel.calls_max"),
        _number("gpu_ns", "measured: mean over the passes", "kernel.gpu_ns_each", title="GPU time per pass"),
        _number("share", "measured: share of all GPU time of forward passes", "kernel.share"),
        _text("parts", "model parts that launch it"),
        _text("top_category", "the category with the most GPU time", "category.category", title="Category"),
        _number("top_category_share", "measured: share of all GPU time of forward passes", "category.share",
                title="Share"),
        _count("top_category_calls_each", "measured: its kernels in a single pass", "category.calls_each",
               title="Kernels per pass"),
        _count("matmul_calls_modelled",
               "modelled: 7 linear maps and 2 attention products a layer, and the head; split-k adds kernels",
               title="Products in the model", modelled="modelled"),
    ),
)  # fmt: skip
WITH_BACKWARD: Final = table(
    "grid: (b) with the backward pass",
    "One profile with backward work. `grid.json`.",
    CELL,
    (
        _text("forward_name", "leading kernel of the forward pass", "kernel.name"),
        _text("forward_full_name", "its demangled name", "kernel.full_name"),
        Answer("same", pl.Boolean, "whether the same kernel leads the forward pass alone", title="Leads forward too"),
        _text("name", "leads forward and backward together", "kernel_with_backward.name", title="Kernel", **_KERNEL),
        _text("full_name", "its demangled name", "kernel_with_backward.full_name"),
        _text("category", "what kind of kernel it is", "kernel_with_backward.category"),
        _count("calls_each", "measured: calls in a single step, forward and backward",
               "kernel_with_backward.calls_each", title="Calls per step"),
        _number("gpu_ns", "its GPU time in one step, on average", "kernel_with_backward.gpu_ns_each"),
        _number("share", "measured: share of the GPU time of forward and backward", "kernel_with_backward.share"),
    ),
)  # fmt: skip
MODEL_PARTS: Final = table(
    "grid: (b) model parts",
    "One part of the model that launches the cell's leading kernel. `grid.json`.",
    CELL,
    (
        _text("part", "name of the innermost range that holds the launches", title="Model part", kind="name"),
        _number("launches", "measured", title="Launches per pass", kind="count"),
        _number("gpu_ns", "measured", title="GPU time per pass"),
        _number("share", "measured: share of this kernel's GPU time"),
    ),
)
OTHER_KERNELS: Final = table(
    "grid: (c) other kernels",
    "One of the longest kernels besides matrix products, or a sum of others. A cell's shares sum to 1. `grid.json`.",
    CELL,
    (
        _text("name", "kernel function, or what the row adds up", title="Kernel", **_KERNEL),
        _text("full_name", "its demangled name; null for a sum"),
        _text("category", "what kind of kernel it is"),
        _number("calls", "measured: mean over the passes", title="Calls per pass", kind="count"),
        _number("gpu_ns", "measured: mean over the passes", title="GPU time per pass"),
        _number("share", "measured: share of all GPU time of forward passes"),
    ),
)
LABELS: Final = table(
    "grid: (c, d) categories",
    "One category of kernels or kind of other work. The shares of a profile and scope sum to 1. `grid.json`.",
    CELL,
    (
        _text("scope", "`forward` (passes) or `step` (whole training steps)"),
        _text("label", "kernel category, or kind of other work"),
        _number("calls", "calls in one pass or step, on average", kind="count"),
        _number("gpu_ns", "GPU time in one pass or step, on average"),
        _number("share", "share of the GPU time of the profile and scope"),
    ),
)
SPLIT: Final = table(
    "grid: (d) training steps",
    "One training profile; means over its steps, so that the parts add up. `grid.json`.",
    CELL,
    (
        _count("steps", "training steps measured, warm-up left out", "training.steps"),
        _number("wall_ns", "measured: wall time of a step, the mean", title="Step"),
        _number("wall_min_ns", "measured: the fastest step", "training.wall.minimum", title="Min"),
        _number("wall_max_ns", "measured: the slowest step", "training.wall.maximum", title="Greatest"),
        _number("gpu_ns", "measured: summed durations of all GPU work of a step", title="GPU time"),
        *(
            each
            for phase in PHASES
            for each in (
                _number(f"{phase}_ns", f"measured: GPU time of the {phase} phase"),
                _number(f"{phase}_share", f"measured: share of the {phase} phase", title="of GPU time"),
                _number(f"{phase}_span_ns", f"measured: span of the {phase} phase", title=phase.capitalize()),
            )
        ),
        _number(f"{NO_PHASE}_ns", "measured: GPU time outside of the three phases", title="Outside"),
        _number(f"{NO_PHASE}_share", "its share of the GPU time"),
        _number(f"{NO_PHASE}_span_ns", "from first start to last end of that work"),
        _count("residual_ns", "GPU time less its parts", "training.residual_ns", kind="duration_ns"),
        _number("idle_ns", "time in which the GPU does nothing"),
        _number("idle_share", "measured: share of the step in which the GPU does nothing", title="GPU idle"),
        _number("inferred_share", "share of the GPU time that was attributed by the waiting-thread rule"),
        _number("python_step_ns", "measured by the program: a step without the profiler", "python.step.centre_ns",
                title="Own clock"),
    ),
)  # fmt: skip
MATMUL_SHARES: Final = table(
    "grid: (d) matrix products",
    "One training profile. Values are shares of GPU time in kernels of category `gemm`. `grid.json`.",
    CELL,
    (
        _text("inference_source", "the profile of forward passes alone"),
        _number("inference", "measured: in the profile of forward passes of the same cell", title="Forward alone",
                kind="share"),
        *(_number(phase, f"measured: in the {phase} phase of training", kind="share") for phase in PHASES),
        _number("step", "measured: in the whole training step", title="Whole step", kind="share"),
        _number("change", "measured: whole step less forward alone, in points of percent", kind="share"),
    ),
)  # fmt: skip
OPTIMIZER: Final = table(
    "grid: (d) the optimizer",
    "One training profile; means over its steps. `grid.json`.",
    CELL,
    (
        _number("launches", "measured: pieces of GPU work in one optimizer step", "optimizer.launches", kind="count"),
        _number("launches_per_tensor", "measured launches over the model's parameter tensors",
                "optimizer.launches_per_tensor", title="Per tensor",
                modelled="measured launches over a modelled number of tensors"),
        _number("span_ns", "measured: from first start to last end", "optimizer.span_ns"),
        _number("gpu_ns", "measured: summed durations", "optimizer.gpu_ns", title="GPU time"),
        _number("busy_share", "measured: share of the span in which the GPU works", "optimizer.busy_share",
                title="GPU busy"),
        _number("starved_share", "measured: the GPU has run dry, the next comes late", "optimizer.starved_share",
                title="Waits for launches"),
        _number("between_share", "measured: gaps before work that was launched in time", "optimizer.between_share",
                title="Between kernels"),
        _number("span_ns_per_launch", "measured: span over launches", "optimizer.span_ns_per_launch",
                title="Span per launch"),
        _number("gpu_ns_per_launch", "measured: GPU time over launches", "optimizer.gpu_ns_per_launch",
                title="GPU per launch"),
        _number("python_ns_per_launch",
                "measured: the program's own optimizer time, without the profiler, over the launches of the profile",
                title="Own clock per launch"),
        _number("modelled_bytes_per_s", "memory traffic of the assignment's AdamW over the GPU time",
                "optimizer.modelled_bytes_per_s", modelled="modelled bytes over measured time"),
        _number("bandwidth_share",
                "modelled bytes of the assignment's AdamW in fp32 (140 per parameter, caches not counted) over the "
                "measured GPU time, as a share of the memory's bandwidth", "optimizer.bandwidth_share",
                title="Memory (modelled)", modelled="modelled bytes over measured time and the device's bandwidth"),
        _text("pace", "`launches`: waits over 20 % of the span; gpu: below 5 %", "optimizer.bound",
              title="Pace set by"),
    ),
)  # fmt: skip
ATTENTION: Final = table(
    "grid: (e) attention",
    "One cell. FLOPs and bytes are modelled from shapes, times measured. `grid.json`.",
    CELL,
    (
        _count("batch", "sequences in a batch, as given", "batch"),
        _count("layers", "measured: attention layers of one pass", "attention.layers"),
        _count("passes", "forward passes measured", "attention.passes.height"),
        _number("scores_ns", "measured: all work in that range, with scaling and mask", title="Scores, all"),
        _number("scores_matmul_ns", "measured: matrix-product kernels of the scores", title="q·kᵀ"),
        _number("softmax_ns", "measured: all work in the range of the softmax"),
        _number("softmax_min_ns", "measured: in the fastest pass", title="Softmax, least"),
        _number("softmax_max_ns", "measured: in the slowest pass", title="Softmax, greatest"),
        _count("softmax_kernels", "measured: kernels of one softmax", "attention.softmax_kernels",
               title="Its kernels"),
        _number("values_ns", "all work in the range of the final product"),
        _number("values_matmul_ns", "measured: matrix-product kernels in the last range", title="weights·v"),
        _number("products_ns", "measured: GPU time per layer of their kernels", "attention.products.median",
                title="Both products"),
        _number("runtime_ratio", "measured: ratio of the two times", "attention.runtime_ratio.median",
                title="Softmax / products"),
        _number("runtime_ratio_min", "measured: in the pass with the smallest ratio",
                "attention.runtime_ratio.minimum", title="Min"),
        _number("runtime_ratio_max", "measured: in the pass with the greatest ratio",
                "attention.runtime_ratio.maximum", title="Greatest"),
        _number("range_ratio", "measured: softmax over everything in the two other ranges",
                "attention.range_ratio.median", title="By ranges"),
        _number("flop_ratio", "modelled: 4·d / 5", title="FLOPs, products / softmax", modelled="modelled"),
        _number("times_slower_per_flop", "measured × modelled: softmax over products", title="Time per FLOP",
                modelled="measured runtime ratio times modelled FLOP ratio"),
        _count("scores_flops", "modelled: 2·B·H·S²·d", title="FLOP, one product", kind="count", modelled="modelled"),
        _count("softmax_flops", "modelled: 5·B·H·S²", title="FLOP, softmax", kind="count", modelled="modelled"),
        _number("scores_flops_per_s", "modelled work over measured time", title="q·kᵀ", modelled=_MODELLED_RATE),
        _number("values_flops_per_s", "modelled work over measured time", title="weights·v", modelled=_MODELLED_RATE),
        _number("softmax_flops_per_s", "modelled work over measured time", modelled=_MODELLED_RATE),
        _number("softmax_bytes_per_s",
                "modelled traffic of five kernels or one in fp32, caches not counted, over measured time",
                title="Softmax memory", modelled="modelled bytes over measured time"),
        _number("softmax_bandwidth_share", "the same over the memory's bandwidth", title="of the device's",
                modelled="modelled bytes over measured time and the device's bandwidth"),
    ),
)  # fmt: skip
INVALID: Final = table(
    "grid: invalid profiles",
    "One profile that cannot stand for its cell. None of its numbers is used elsewhere. `grid.json`.",
    CELL,
    (
        _text("source", "the profile", "source", title="File", kind="name"),
        _text("reason", "why it cannot stand for its cell"),
        _number("forward_ns", "measured: GPU time of its forward pass", "forward.gpu.median"),
        *(_number(f"{phase}_kernels", "measured, in a step", kind="count") for phase in PHASES),
        _number("wall_ns", "measured: wall time of what it calls a step", title="Step"),
    ),
)
PROFILES: Final = table(
    "grid: profiles",
    "One profile of the grid. `grid.json`.",
    CELL,
    (
        _text("source", "the profile", "source", title="File", kind="name"),
        _text("device", "the GPU", "device"),
        _count("batch", "sequences in a batch, where known", "batch"),
        Answer("valid", pl.Boolean, "whether it can stand for its cell"),
        _text("how", "how the steps were found", "how", title="Steps"),
        _text("notes", "what the reader of the numbers must know, and what would answer more"),
    ),
)

#: Columns that are not measured but follow from shapes, or put a modelled amount of work over a measured time.
PROVENANCE: Final[Mapping[str, str]] = {
    each.name: each.modelled
    for declared in (FORWARD_TIMES, TOP_KERNELS, OPTIMIZER, ATTENTION)
    for each in declared.columns
    if isinstance(each, Answer) and each.modelled
}


# --- Words that all sections share -----------------------------------------------------------------------------------


def cell_table(id_: str, caption: str, rows: pl.DataFrame, declared: Table, *parts: str | Column) -> page.Table:
    """All rows of a grid's table: the columns that tell the cell, and these (`Table.only`)."""
    return page.Table(id_, caption, (*CELL, *declared.only(*parts).columns), rows, None)


def cell_title(row: dict[str, Any]) -> str:
    """How a sentence names a cell: `small at context 512`."""
    return f"{row['model']} at context {row['context']}"


def between(values: Iterable[float | None], kind: Kind) -> str:
    """`x`, or `x to y` where the least and the greatest differ as people read them."""
    known = [value for value in values if value is not None]
    if not known:
        return fmt.MISSING
    least, greatest = fmt.value(min(known), kind), fmt.value(max(known), kind)
    return least if least == greatest else f"{least} to {greatest}"


def majority(count: int, total: int, what: str) -> str:
    """`all 12 cells`, `9 of 12 cells`, `the one cell`."""
    if total == 1:
        return f"the one {what}" if count else f"no {what}"
    return f"all {total} {what}s" if count == total else f"{count} of {total} {what}s"


def unanswered(question: str, title: str) -> Section:
    """The section of a question that no profile answers."""
    text = f"No profile of the grid answers ({question}); “What is answered” says what to run."
    return Section(question, title, (Paragraph(text),))


# --- Frames with exact values ----------------------------------------------------------------------------------------


#: Kernels other than matrix products that are listed by name for a cell; the rest is one row.
_LISTED_KERNELS: Final = 5


def forward_times(grid: Grid) -> pl.DataFrame:
    """(a) One row a profile: the times of a forward pass and, where given, the program's own."""
    found = cell_rows(grid.answering("a"), FORWARD_TIMES)
    return found.with_columns(ratio=pl.col("time_ns") / pl.col("python_ns"))


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
    return cell_rows(grid.preferred("b"), TOP_KERNELS, _of_model)


def _of_model(cell: CellAnswers) -> dict[str, Any]:
    products = cell.category is not None and cell.category.category == MATMUL
    return {
        "parts": ", ".join(part.name for part in cell.kernel.parts) if cell.kernel else None,
        # Seven linear maps and two attention products a layer, and the head.
        "matmul_calls_modelled": 9 * cell.size.layers + 1 if cell.size and products else None,
    }


def top_kernels_with_backward(grid: Grid) -> pl.DataFrame:
    """(b) One row a profile with backward work: the kernel that leads forward and backward together."""
    cells = [cell for cell in grid.answering("b") if cell.kernel_with_backward is not None]
    found = cell_rows(cells, WITH_BACKWARD)
    return found.with_columns(same=pl.col("forward_full_name") == pl.col("full_name"))


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
    return pl.DataFrame(rows, schema=MODEL_PARTS.schema, orient="row")


def other_kernels(grid: Grid) -> pl.DataFrame:
    """(c) The longest kernels besides matrix products, cell by cell.

    Behind them stand all other ones, the matrix products, and what is no kernel; shares of a cell sum to 1.
    """
    frames = [_other_kernels(cell) for cell in grid.preferred("c")]
    return pl.concat([OTHER_KERNELS.empty(), *frames])


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
    return pl.DataFrame(rows, schema=LABELS.schema, orient="row")


def category_mix(grid: Grid, scope: str) -> pl.DataFrame:
    """(c, d) One row a cell, one column a category: its share of the GPU time of forward passes or of whole steps."""
    cells = grid.preferred("c") if scope == "forward" else grid.answering("d")
    kept = pl.DataFrame([cell_key(cell) for cell in cells], schema=CELL_TYPES, orient="row")
    shares = label_shares(grid).filter(pl.col("scope") == scope).join(kept, on=list(CELL_TYPES), maintain_order="left")
    order = shares.group_by("label").agg(pl.col("share").max()).sort(["share", "label"], descending=[True, False])
    labels = order["label"].to_list()
    columns: dict[str, Any] = {}
    for label in labels:
        found = {row[:3]: row[3] for row in shares.filter(pl.col("label") == label).select(*CELL_TYPES, "share").rows()}
        columns[label] = [found.get(row, 0.0) for row in kept.rows()]
    return kept.with_columns(**{label: pl.Series(values, dtype=pl.Float64) for label, values in columns.items()})


def invalid_profiles(grid: Grid) -> pl.DataFrame:
    """The profiles that cannot stand for their cell, why, and what they do hold."""
    return cell_rows([cell for cell in grid.cells if cell.invalid], INVALID, _invalid)


def profiles(grid: Grid) -> pl.DataFrame:
    """Every profile, and what its reader must know."""
    return cell_rows(
        grid.cells,
        PROFILES,
        lambda cell: {
            "valid": not cell.invalid,
            "notes": "; ".join([*cell.notes, *(f"({question}) {advice}" for question, advice in cell.lacking.items())]),
        },
    )


def status_matrix(status: pl.DataFrame) -> pl.DataFrame:
    """One row a cell, one column a question: the state. `status` is that of `grid_status`."""
    return status.with_columns(pl.col("state").cast(pl.String)).pivot(
        "question", index=["model", "context"], values="state", maintain_order=True
    )


def cell_rows(
    cells: Iterable[CellAnswers], declared: Table, row: Callable[[CellAnswers], dict[str, Any]] = lambda _: {}
) -> pl.DataFrame:
    """One row a profile: its cell, what the columns say where it stands, and what `row` adds; else null."""
    answers = [each for each in declared.columns if isinstance(each, Answer) and each.of]
    rows = [
        dict(zip(CELL_TYPES, cell_key(cell), strict=True))
        | {each.name: _at(cell, each.of) for each in answers}
        | row(cell)
        for cell in cells
    ]
    return pl.DataFrame(rows, schema=declared.schema, orient="row")


def _at(answers: Any, path: str) -> Any:
    for part in path.split("."):
        answers = answers.get(part) if isinstance(answers, Mapping) else getattr(answers, part)
        if answers is None:
            break
    return answers


def cell_key(cell: CellAnswers) -> tuple[str, int, str]:
    """Which cell it is: model, context and mode."""
    return cell.model, cell.context, cell.mode or "unknown"


def median(spread: Spread | None) -> float | None:
    """The median of what was measured; None where nothing was."""
    return spread.median if spread else None


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
        schema=OTHER_KERNELS.schema,
        orient="row",
    )


def _invalid(cell: CellAnswers) -> dict[str, Any]:
    row: dict[str, Any] = {"reason": "; ".join(cell.invalid)}
    if cell.training is not None:
        kernels = {f"{p}_kernels": cell.training.phase(p)["kernels"] / cell.training.steps for p in PHASES}
        row |= {**kernels, "wall_ns": cell.training.wall_ns / cell.training.steps}
    return row
