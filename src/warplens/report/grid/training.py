"""Question (d): how a training step divides into forward, backward and optimizer, and what the optimizer waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.grid.answers import CellAnswers, Grid
from warplens.analysis.grid.passes import MATMUL
from warplens.analysis.phases import NO_PHASE, PHASES
from warplens.report.document import Figure, Paragraph, Section, Table, TableColumn
from warplens.report.grid.columns import CELL, MATMUL_SHARES, OPTIMIZER, SPLIT
from warplens.report.grid.kernels import mix_columns
from warplens.report.grid.tables import category_mix, cell_key, cell_rows
from warplens.report.grid.wording import CELL_COLUMNS, between, cell_title, majority, unanswered

if TYPE_CHECKING:
    from warplens.report.document import Block

__all__ = ["answer_d", "matmul_shares", "optimizer_costs", "training_section", "training_split"]


def training_split(grid: Grid) -> pl.DataFrame:
    """(d) One row a training profile: a step's GPU time by phase, means over the steps, so that they add up."""
    return cell_rows(grid.answering("d"), _split, SPLIT)


def matmul_shares(grid: Grid) -> pl.DataFrame:
    """(d) Share of GPU time in matrix products: forward passes alone, each phase of training, and the whole step."""
    rows = []
    for cell in grid.answering("d"):
        inference = grid.inference_of(cell)
        alone = _matmul(inference.labels) if inference else None
        split = cell.training
        phases = {phase: split.phase(phase)["matmul_share"] for phase in PHASES} if split else {}
        step = split.matmul_share if split else None
        change = step - alone if step is not None and alone is not None else None
        rows.append(
            dict(zip(CELL, cell_key(cell), strict=True))
            | {"inference_source": inference.source if inference else None, "inference": alone, "step": step}
            | {**phases, "change": change}
        )
    return pl.DataFrame(rows, schema=MATMUL_SHARES, orient="row")


def optimizer_costs(grid: Grid) -> pl.DataFrame:
    """(d) One row a training profile: launches of the optimizer and what sets their pace."""
    return cell_rows([cell for cell in grid.answering("d") if cell.optimizer], _optimizer, OPTIMIZER)


def _split(cell: CellAnswers) -> dict[str, Any]:
    split = cell.training
    if split is None:
        return {}
    own = cell.python.get("step")
    row: dict[str, Any] = {
        "steps": split.steps,
        "wall_ns": split.wall_ns / split.steps,
        "wall_min_ns": split.wall.minimum,
        "wall_max_ns": split.wall.maximum,
        "gpu_ns": split.gpu_ns / split.steps,
        "residual_ns": split.residual_ns,
        "idle_ns": split.idle_ns / split.steps,
        "idle_share": split.idle_ns / split.wall_ns if split.wall_ns else None,
        "inferred_share": int(split.phases["inferred_ns"].sum()) / split.gpu_ns if split.gpu_ns else None,
        "python_step_ns": own.centre_ns if own else None,
    }
    for phase in (*PHASES, NO_PHASE):
        part = split.phase(phase)
        row |= {
            f"{phase}_ns": part["gpu_ns"] / split.steps,
            f"{phase}_share": part["share"],
            f"{phase}_span_ns": part["span_ns"] / split.steps,
        }
    return row


def _matmul(labels: pl.DataFrame) -> float:
    return float(labels.filter(pl.col("label") == MATMUL)["share"].sum())


def _optimizer(cell: CellAnswers) -> dict[str, Any]:
    cost, own = cell.optimizer, cell.python.get("optimizer")
    if cost is None:
        return {}
    return {
        "launches": cost.launches,
        "launches_per_tensor": cost.launches_per_tensor,
        "span_ns": cost.span_ns,
        "gpu_ns": cost.gpu_ns,
        "busy_share": cost.busy_share,
        "starved_share": cost.starved_share,
        "between_share": cost.between_share,
        "span_ns_per_launch": cost.span_ns_per_launch,
        "gpu_ns_per_launch": cost.gpu_ns_per_launch,
        "python_ns_per_launch": own.centre_ns / cost.launches if own else None,
        "modelled_bytes_per_s": cost.modelled_bytes_per_s,
        "bandwidth_share": cost.bandwidth_share,
        "pace": cost.bound,
    }


# ── the section ───────────────────────────────────────────────────────────────────────────────────────────────────────


def answer_d(grid: Grid) -> list[str]:
    """The answers to (d), sentence by sentence."""
    split, shares = training_split(grid), matmul_shares(grid)
    if not split.height:
        return []
    parts = [f"{phase} {between(split[f'{phase}_share'], 'share')}" for phase in PHASES if split[f"{phase}_ns"].sum()]
    sentences = [f"Of the GPU time of a training step, {_listed(parts)}."]
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
    if not costs.height:
        return []
    sentences = [
        f"The optimizer makes {between(costs['launches'], 'count')} launches in a step, of "
        f"{between(costs['gpu_ns_per_launch'], 'duration_ns')} of GPU time each."
    ]
    paces = [(words, costs.filter(pl.col("pace") == pace)) for pace, words in _PACE.items()]
    verdicts = [
        f"{words} in {majority(mine.height, costs.height, 'training profile')} (the GPU has run dry for "
        f"{between(mine['starved_share'], 'share')} of the optimizer's time)"
        for words, mine in paces
        if mine.height
    ]
    sentences.append(f"It {_listed(verdicts)}.")
    if costs["bandwidth_share"].drop_nulls().len():
        sentences.append(
            f"While its kernels run, they move {between(costs['bandwidth_share'], 'share')} of what the memory can "
            "(modelled bytes, caches not counted, over measured time)."
        )
    return sentences


#: What sets the pace of the optimizer → the words for it.
_PACE: Final = {
    "launches": "waits for launches",
    "both": "waits for launches as well as for the GPU",
    "gpu": "is held up by the GPU",
}


def _listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def training_section(grid: Grid) -> Section:
    """(d) The training step by phase, the shares of matrix products and other kernels, and the optimizer."""
    title = "(d) How does a training step divide?"
    split = training_split(grid)
    if not split.height:
        return Section("d", title, (unanswered("d"),))
    mix = category_mix(grid, "step")
    unequal = int(split.filter(pl.col("residual_ns") != 0).height)
    step_mix = "GPU time of a training step by category; every row sums to 100 % (measured)"
    spans = "The same phases from first begin to last end on the GPU (measured)"
    products = "Share of GPU time in matrix products (measured)"
    blocks: list[Block] = [
        Paragraph(" ".join(answer_d(grid))),
        Table("training-split", "GPU time of a training step by phase (measured)", _SPLIT_COLUMNS, split, None),
        Paragraph(
            "Times are those of the GPU work that was launched inside each phase, means over the steps; "
            f"{between(split['inferred_share'], 'share')} of them were launched by threads without ranges of their own "
            "(autograd's) and belong to the phase that the waiting thread held open. The parts add up to the GPU time "
            + ("of the step exactly." if not unequal else f"of the step but for the residual in {unequal} profiles."),
            quiet=True,
        ),
        _split_figure(split),
        Table("phase-spans", spans, _SPAN_COLUMNS, split, None),
        Table("matmul-shares", products, _MATMUL_COLUMNS, matmul_shares(grid), None),
        Table("step-mix", step_mix, mix_columns(mix), mix, None),
    ]
    costs = optimizer_costs(grid)
    if costs.height:
        blocks.append(
            Table("optimizer", "The optimizer's launches (measured; modelled traffic)", _COST_COLUMNS, costs, None)
        )
    return Section("d", title, tuple(blocks))


_SPLIT_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("steps", "Steps", "count", "Training steps measured, warm-up left out."),
    TableColumn("wall_ns", "Step", "duration_ns", "Measured: wall time of a step, the mean."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Measured: summed durations of all GPU work of a step."),
    *(
        column
        for phase in PHASES
        for column in (
            TableColumn(f"{phase}_ns", phase.capitalize(), "duration_ns", f"Measured: GPU time of the {phase} phase."),
            TableColumn(f"{phase}_share", "of GPU time", "share", f"Measured: share of the {phase} phase."),
        )
    ),
    TableColumn("none_ns", "Outside", "duration_ns", "Measured: GPU time outside of the three phases."),
    TableColumn("residual_ns", "Residual", "duration_ns", "GPU time less its parts."),
    TableColumn("idle_share", "GPU idle", "share", "Measured: share of the step in which the GPU does nothing."),
    TableColumn("python_step_ns", "Own clock", "duration_ns", "Measured by the program: a step without the profiler."),
)
_SPAN_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("wall_ns", "Step", "duration_ns", "Measured: wall time of a step, the mean."),
    TableColumn("wall_min_ns", "Least", "duration_ns", "Measured: the fastest step."),
    TableColumn("wall_max_ns", "Greatest", "duration_ns", "Measured: the slowest step."),
    *(
        TableColumn(f"{phase}_span_ns", phase.capitalize(), "duration_ns", f"Measured: span of the {phase} phase.")
        for phase in PHASES
    ),
)
_MATMUL_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("inference", "Forward alone", "share", "Measured: in the profile of forward passes of the same cell."),
    *(
        TableColumn(phase, phase.capitalize(), "share", f"Measured: in the {phase} phase of training.")
        for phase in PHASES
    ),
    TableColumn("step", "Whole step", "share", "Measured: in the whole training step."),
    TableColumn("change", "Change", "share", "Measured: whole step less forward alone, in points of percent."),
)
_COST_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("launches", "Launches", "count", "Measured: pieces of GPU work in one optimizer step."),
    TableColumn("launches_per_tensor", "Per tensor", "number", "Measured launches over the model's parameter tensors."),
    TableColumn("span_ns", "Span", "duration_ns", "Measured: from first begin to last end."),
    TableColumn("gpu_ns", "GPU time", "duration_ns", "Measured: summed durations."),
    TableColumn("busy_share", "GPU busy", "share", "Measured: share of the span in which the GPU works."),
    TableColumn("starved_share", "Waits for launches", "share", "Measured: the GPU has run dry, the next comes late."),
    TableColumn("between_share", "Between kernels", "share", "Measured: gaps before work that was launched in time."),
    TableColumn("span_ns_per_launch", "Span per launch", "duration_ns", "Measured: span over launches."),
    TableColumn("gpu_ns_per_launch", "GPU per launch", "duration_ns", "Measured: GPU time over launches."),
    TableColumn("python_ns_per_launch", "Own clock per launch", "duration_ns",
                "Measured: the program's own optimizer time, without the profiler, over the launches of the profile."),
    TableColumn("bandwidth_share", "Memory (modelled)", "share",
                "Modelled bytes of the assignment's AdamW in fp32 (140 per parameter, caches not counted) over the "
                "measured GPU time, as a share of the memory's bandwidth."),
    TableColumn("pace", "Pace set by", "text", "launches: waits over 20 % of the span; gpu: below 5 %."),
)  # fmt: skip


def _split_figure(split: pl.DataFrame) -> Figure:
    from warplens.report.charts import budget_chart  # noqa: PLC0415  Altair is slow to import

    row = split.row(-1, named=True)
    title = cell_title(row)
    # Overlapping work would make parts longer than the time they fill; the strip shows shares of busy time.
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
