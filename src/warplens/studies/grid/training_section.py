"""Question (d) of a grid: the time of a training step by phase, and the cost of its optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from warplens.analysis.window import NO_PHASE, PHASES
from warplens.profile.columns import table
from warplens.report import text as fmt
from warplens.report.document import Block, Figure, Table, quiet
from warplens.studies.grid.answers import CellAnswers
from warplens.studies.grid.grid import (
    CELL,
    Grid,
    Question,
    Value,
    between,
    cell_rows,
    cell_table,
    cell_title,
    majority,
)
from warplens.studies.grid.kernel_sections import category_mix, mix_columns
from warplens.studies.grid.passes import MATMUL

SPLIT: Final = table(
    "grid: (d) training steps",
    "One training profile; means over its steps, so that the parts add up. `grid.json`.",
    CELL,
    (
        Value.count("steps", "training steps measured, warm-up left out", "training.steps"),
        Value.number("wall_ns", "measured: wall time of a step, the mean", title="Step"),
        Value.number("wall_min_ns", "measured: the fastest step", "training.wall.minimum", title="Min"),
        Value.number("wall_max_ns", "measured: the slowest step", "training.wall.maximum", title="Greatest"),
        Value.number("gpu_ns", "measured: summed durations of all GPU work of a step", title="GPU time"),
        *(
            each
            for phase in PHASES
            for each in (
                Value.number(f"{phase}_ns", f"measured: GPU time of the {phase} phase"),
                Value.number(f"{phase}_share", f"measured: share of the {phase} phase", title="of GPU time"),
                Value.number(f"{phase}_span_ns", f"measured: span of the {phase} phase", title=phase.capitalize()),
            )
        ),
        Value.number(f"{NO_PHASE}_ns", "measured: GPU time outside of the three phases", title="Outside"),
        Value.number(f"{NO_PHASE}_share", "its share of the GPU time"),
        Value.number(f"{NO_PHASE}_span_ns", "from first start to last end of that work"),
        Value.count("residual_ns", "GPU time less its parts", "training.residual_ns", kind="duration_ns"),
        Value.number("idle_ns", "time in which the GPU does nothing"),
        Value.number("idle_share", "measured: share of the step in which the GPU does nothing", title="GPU idle"),
        Value.number("inferred_share", "share of the GPU time that was attributed by the waiting-thread rule"),
        Value.number("python_step_ns", "measured by the program: a step without the profiler", "python.step.centre_ns",
                     title="Own clock"),
    ),
)  # fmt: skip
MATMUL_SHARES: Final = table(
    "grid: (d) matrix products",
    "One training profile. Values are shares of GPU time in kernels of category `gemm`. `grid.json`.",
    CELL,
    (
        Value.text("inference_source", "the profile of forward passes alone"),
        Value.number("inference", "measured: in the profile of forward passes of the same cell", title="Forward alone",
                     kind="share"),
        *(Value.number(phase, f"measured: in the {phase} phase of training", kind="share") for phase in PHASES),
        Value.number("step", "measured: in the whole training step", "training.matmul_share", title="Whole step",
                     kind="share"),
        Value.number("change", "measured: whole step less forward alone, in points of percent", kind="share"),
    ),
)  # fmt: skip
OPTIMIZER: Final = table(
    "grid: (d) the optimizer",
    "One training profile; means over its steps. `grid.json`.",
    CELL,
    (
        Value.number("launches", "measured: pieces of GPU work in one optimizer step", kind="count"),
        Value.number("launches_per_tensor", "measured launches over the model's parameter tensors", title="Per tensor",
                     modelled="measured launches over a modelled number of tensors"),
        Value.number("span_ns", "measured: from first start to last end"),
        Value.number("gpu_ns", "measured: summed durations", title="GPU time"),
        Value.number("busy_share", "measured: share of the span in which the GPU works", title="GPU busy"),
        Value.number("starved_share", "measured: the GPU has run dry, the next comes late", title="Waits for launches"),
        Value.number("between_share", "measured: gaps before work that was launched in time", title="Between kernels"),
        Value.number("span_ns_per_launch", "measured: span over launches", title="Span per launch"),
        Value.number("gpu_ns_per_launch", "measured: GPU time over launches", title="GPU per launch"),
        Value.number("python_ns_per_launch",
                     "measured: the program's own optimizer time, without the profiler, over the launches of "
                     "the profile",
                     title="Own clock per launch"),
        Value.number("modelled_bytes_per_s", "memory traffic of the assignment's AdamW over the GPU time",
                     modelled="modelled bytes over measured time"),
        Value.number("bandwidth_share",
                     "modelled bytes of the assignment's AdamW in fp32 (140 per parameter, caches not counted) over "
                     "the measured GPU time, as a share of the memory's bandwidth",
                     title="Memory (modelled)",
                     modelled="modelled bytes over measured time and the device's bandwidth"),
        Value.text("pace", "`launches`: waits over 20 % of the span; gpu: below 5 %", title="Pace set by"),
    ),
)  # fmt: skip


def training_split(grid: Grid) -> pl.DataFrame:
    """(d) One row per training profile: GPU time by phase, as means over the steps, so that the parts add up."""
    return cell_rows(grid.answering("d"), SPLIT, _split)


def matmul_shares(grid: Grid) -> pl.DataFrame:
    """(d) Share of GPU time in matrix products: forward passes alone, each phase of training, and the whole step."""

    def shares(cell: CellAnswers) -> dict[str, Any]:
        row: dict[str, Any] = {}
        if cell.training is not None:
            row = {phase: cell.training.phase(phase)["matmul_share"] for phase in PHASES}
        if (inference := grid.inference_of(cell)) is not None:
            share = float(inference.labels.filter(pl.col("label") == MATMUL)["share"].sum())
            row |= {"inference_source": inference.source, "inference": share}
        return row

    return cell_rows(grid.answering("d"), MATMUL_SHARES, shares).with_columns(
        change=pl.col("step") - pl.col("inference")
    )


def optimizer_costs(grid: Grid) -> pl.DataFrame:
    """(d) One row per training profile: the optimizer's launches and what sets their pace."""
    return cell_rows([cell for cell in grid.answering("d") if cell.optimizer], OPTIMIZER, _optimizer)


def _split(cell: CellAnswers) -> dict[str, Any]:
    split = cell.training
    if split is None:
        return {}
    row: dict[str, Any] = {
        "wall_ns": split.wall_ns / split.steps,
        "gpu_ns": split.gpu_ns / split.steps,
        "idle_ns": split.idle_ns / split.steps,
        "idle_share": split.idle_ns / split.wall_ns if split.wall_ns else None,
        "inferred_share": int(split.phases["inferred_ns"].sum()) / split.gpu_ns if split.gpu_ns else None,
    }
    for phase in (*PHASES, NO_PHASE):
        part = split.phase(phase)
        row |= {
            f"{phase}_ns": part["gpu_ns"] / split.steps,
            f"{phase}_share": part["share"],
            f"{phase}_span_ns": part["span_ns"] / split.steps,
        }
    return row


def _optimizer(cell: CellAnswers) -> dict[str, Any]:
    cost, python = cell.optimizer or {}, cell.python.get("optimizer")
    return {**cost, "python_ns_per_launch": python.centre_ns / cost["launches"] if cost and python else None}


def answer_d(grid: Grid) -> list[str]:
    """The answers to (d), sentence by sentence."""
    split, shares = training_split(grid), matmul_shares(grid)
    if not split.height:
        return []
    parts = [f"{phase} {between(split[f'{phase}_share'], 'share')}" for phase in PHASES if split[f"{phase}_ns"].sum()]
    sentences = [f"Of the GPU time of a training step, {fmt.listed(parts)}."]
    compared = shares.filter(pl.col("change").is_not_null())
    if compared.height:
        lower = int((compared["change"] < 0).sum())
        sentences.append(
            f"Matrix products take {between(compared['inference'], 'share')} of the GPU time of forward passes alone "
            f"and {between(compared['step'], 'share')} of a training step: less in "
            f"{majority(lower, compared.height, 'training profile')}."
        )
    else:
        sentences.append(f"Matrix products take {between(shares['step'], 'share')} of a training step's GPU time.")
    return sentences + _optimizer_sentences(optimizer_costs(grid))


def _optimizer_sentences(costs: pl.DataFrame) -> list[str]:
    """How many launches the optimizer makes, whether the GPU keeps up, and how fast memory is used."""
    if not costs.height:
        return []
    sentences = [
        f"The optimizer makes {between(costs['launches'], 'count')} launches in a step, of "
        f"{between(costs['gpu_ns_per_launch'], 'duration_ns')} of GPU time each."
    ]
    verdicts = [
        f"{words} in {majority(rows.height, costs.height, 'training profile')} (the GPU has run dry for "
        f"{between(rows['starved_share'], 'share')} of the optimizer's time)"
        for pace, words in _PACE.items()
        if (rows := costs.filter(pl.col("pace") == pace)).height
    ]
    sentences.append(f"It {fmt.listed(verdicts)}.")
    if costs["bandwidth_share"].drop_nulls().len():
        sentences.append(
            f"While its kernels run, they move {between(costs['bandwidth_share'], 'share')} of what the memory can "
            "(modelled bytes, caches not counted, over measured time)."
        )
    return sentences


#: Pace of the optimizer (`optimizer_cost`) → its wording.
_PACE: Final = {
    "launches": "waits for launches",
    "both": "waits for launches as well as for the GPU",
    "gpu": "is held up by the GPU",
}


def _training_blocks(grid: Grid) -> Iterator[Block]:
    """Tables and figure on training steps: phases, matrix products, categories, and the optimizer."""
    split, mix, costs = training_split(grid), category_mix(grid, "step"), optimizer_costs(grid)
    phases = " ".join(f"{phase}_ns {phase}_share" for phase in PHASES)
    columns = f"steps wall_ns gpu_ns {phases} none_ns residual_ns idle_share python_step_ns"
    yield cell_table("training-split", "GPU time of a training step by phase (measured)", split, SPLIT, columns)
    unequal = split.filter(pl.col("residual_ns") != 0).height
    yield quiet(
        "Times are those of the GPU work that was launched inside each phase, means over the steps; "
        f"{between(split['inferred_share'], 'share')} of them were launched by threads without ranges of their own "
        "(autograd's) and belong to the phase that the waiting thread held open. The parts add up to the GPU time "
        + ("of the step exactly." if not unequal else f"of the step but for the residual in {unequal} profiles.")
    )
    yield _split_figure(split)
    caption = "The same phases from first start to last end on the GPU (measured)"
    columns = " ".join(["wall_ns wall_min_ns wall_max_ns", *(f"{phase}_span_ns" for phase in PHASES)])
    yield cell_table("phase-spans", caption, split, SPLIT, columns)
    shown = MATMUL_SHARES.without("inference_source").columns
    yield Table("matmul-shares", "Share of GPU time in matrix products (measured)", shown, matmul_shares(grid), None)
    caption = "GPU time of a training step by category; every row sums to 100 % (measured)"
    yield Table("step-mix", caption, mix_columns(mix), mix, None)
    if costs.height:
        caption = "The optimizer's launches (measured; modelled traffic)"
        yield Table("optimizer", caption, OPTIMIZER.without("modelled_bytes_per_s").columns, costs, None)


def _split_figure(split: pl.DataFrame) -> Figure:
    """A strip of one training step, divided into phases and idle time."""
    from warplens.report.charts.bars import budget_chart

    row = split.row(-1, named=True)
    title = cell_title(row)
    # Summed durations of overlapping work exceed the busy time; the strip scales the phases to the busy time.
    busy_ns = row["wall_ns"] - row["idle_ns"]
    parts = [
        {"part": phase, "family": "busy", "duration_ns": row[f"{phase}_ns"], "share": row[f"{phase}_share"] * busy_ns,
         "fill": fill}
        for phase, fill in zip((*PHASES, NO_PHASE), ("gemm", "attention", "optimizer", "other"), strict=True)
        if row[f"{phase}_ns"]
    ]  # fmt: skip
    parts.append(
        {"part": "GPU idle", "family": "idle", "duration_ns": row["idle_ns"], "share": row["idle_ns"], "fill": "idle-1"}
    )
    frame = pl.DataFrame(parts).with_columns(pl.col("share") / row["wall_ns"])
    alt = f"Strip: a training step of {title}, divided into phases by GPU time, and idle time."
    caption = f"A training step of {title}: GPU time by phase, and idle time (measured, mean of {row['steps']})"
    return Figure("training-step", caption, budget_chart(frame), alt)


TRAINING: Final = Question(
    "d",
    "How does a training step divide?",
    answer_d,
    _training_blocks,
    {"training_split": training_split, "matmul_shares": matmul_shares, "optimizer": optimizer_costs},
)
