"""Questions (b), (c) and (d) of the grid document: kernels, and the training step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.window import NO_PHASE, PHASES
from warplens.profile.columns import column
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.document import Figure, Paragraph, Section, Table
from warplens.report.theme import category_fill
from warplens.studies.grid.answers import CellAnswers, Grid
from warplens.studies.grid.passes import MATMUL
from warplens.studies.grid.tables import (
    CELL,
    CELL_TYPES,
    MATMUL_SHARES,
    MODEL_PARTS,
    OPTIMIZER,
    OTHER_KERNELS,
    SPLIT,
    TOP_KERNELS,
    WITH_BACKWARD,
    between,
    category_mix,
    cell_key,
    cell_rows,
    cell_table,
    cell_title,
    majority,
    model_parts,
    other_kernels,
    top_kernels,
    top_kernels_with_backward,
    unanswered,
)

if TYPE_CHECKING:
    from warplens.report.document import Block


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
        return unanswered("b", title)
    parts = model_parts(grid)
    captions = {
        "top-kernels": "The kernel with the most GPU time in a forward pass (measured)",
        "top-categories": "The category with the most GPU time in a forward pass (measured)",
        "model-parts": "Model parts that launch the leading kernel, by innermost range (measured)",
    }
    blocks: list[Block] = [
        Paragraph(" ".join(answer_b(grid))),
        cell_table("top-kernels", captions["top-kernels"], top, TOP_KERNELS, "name category calls_each gpu_ns share"),
        cell_table(
            "top-categories",
            captions["top-categories"],
            top,
            TOP_KERNELS,
            "top_category top_category_calls_each top_category_share matmul_calls_modelled",
        ),
        cell_table("model-parts", captions["model-parts"], parts, MODEL_PARTS, "part launches gpu_ns share"),
    ]
    both = top_kernels_with_backward(grid)
    if both.height:
        caption = "The leading kernel of forward and backward together (measured)"
        blocks.append(
            cell_table("top-with-backward", caption, both, WITH_BACKWARD, "name category calls_each share same")
        )
    return Section("b", title, tuple(blocks))


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
        return unanswered("c", title)
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
                    OTHER_KERNELS.without("model", "full_name").columns,
                    others.filter(pl.col("model") == model),
                    None,
                ),
            ),
        )
        for number, model in enumerate(others["model"].unique(maintain_order=True), 1)
    ]
    return Section("c", title, tuple(blocks), tuple(inner))


def mix_columns(mix: pl.DataFrame) -> tuple[Column, ...]:
    """The columns of a table of category shares."""
    share = column("share", help="measured: share of the GPU time")
    return (*CELL, *(share.but(name=label, title=label) for label in mix.columns[3:]))


def _mix_figure(mix: pl.DataFrame) -> Figure:
    from warplens.report.charts import ranked_chart

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


# --- Question (d): the training step ---------------------------------------------------------------------------------


def training_split(grid: Grid) -> pl.DataFrame:
    """(d) One row a training profile: a step's GPU time by phase, means over the steps, so that they add up."""
    return cell_rows(grid.answering("d"), SPLIT, _split)


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
            dict(zip(CELL_TYPES, cell_key(cell), strict=True))
            | {"inference_source": inference.source if inference else None, "inference": alone, "step": step}
            | {**phases, "change": change}
        )
    return pl.DataFrame(rows, schema=MATMUL_SHARES.schema, orient="row")


def optimizer_costs(grid: Grid) -> pl.DataFrame:
    """(d) One row a training profile: launches of the optimizer and what sets their pace."""
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


def _matmul(labels: pl.DataFrame) -> float:
    return float(labels.filter(pl.col("label") == MATMUL)["share"].sum())


def _optimizer(cell: CellAnswers) -> dict[str, Any]:
    cost, own = cell.optimizer, cell.python.get("optimizer")
    return {"python_ns_per_launch": own.centre_ns / cost.launches if cost and own else None}


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
        return unanswered("d", title)
    mix = category_mix(grid, "step")
    unequal = int(split.filter(pl.col("residual_ns") != 0).height)
    step_mix = "GPU time of a training step by category; every row sums to 100 % (measured)"
    spans = "The same phases from first start to last end on the GPU (measured)"
    products = "Share of GPU time in matrix products (measured)"
    phases = " ".join(f"{phase}_ns {phase}_share" for phase in PHASES)
    ranges = " ".join(f"{phase}_span_ns" for phase in PHASES)
    blocks: list[Block] = [
        Paragraph(" ".join(answer_d(grid))),
        cell_table(
            "training-split",
            "GPU time of a training step by phase (measured)",
            split,
            SPLIT,
            f"steps wall_ns gpu_ns {phases} none_ns residual_ns idle_share python_step_ns",
        ),
        Paragraph(
            "Times are those of the GPU work that was launched inside each phase, means over the steps; "
            f"{between(split['inferred_share'], 'share')} of them were launched by threads without ranges of their own "
            "(autograd's) and belong to the phase that the waiting thread held open. The parts add up to the GPU time "
            + ("of the step exactly." if not unequal else f"of the step but for the residual in {unequal} profiles."),
            quiet=True,
        ),
        _split_figure(split),
        cell_table("phase-spans", spans, split, SPLIT, f"wall_ns wall_min_ns wall_max_ns {ranges}"),
        Table(
            "matmul-shares",
            products,
            MATMUL_SHARES.without("inference_source").columns,
            matmul_shares(grid),
            None,
        ),
        Table("step-mix", step_mix, mix_columns(mix), mix, None),
    ]
    costs = optimizer_costs(grid)
    if costs.height:
        blocks.append(
            Table(
                "optimizer",
                "The optimizer's launches (measured; modelled traffic)",
                OPTIMIZER.without("modelled_bytes_per_s").columns,
                costs,
                None,
            )
        )
    return Section("d", title, tuple(blocks))


def _split_figure(split: pl.DataFrame) -> Figure:
    from warplens.report.charts import budget_chart

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
