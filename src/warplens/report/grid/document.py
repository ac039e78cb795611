"""The grid document: five questions about a folder of profiles over models × context lengths, answered by measurements.

`answer_grid` (`warplens.analysis.grid`) does the counting; here it becomes a `Document` for people and plain data for
programs. What no profile answers is shown as missing, with what to run; no number is estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.grid.answers import QUESTIONS, Grid, grid_status, record_command
from warplens.report.document import Document, Paragraph, Section, Table, TableColumn
from warplens.report.grid.attention import answer_e, attention_section, attention_times
from warplens.report.grid.columns import PROVENANCE
from warplens.report.grid.forward import answer_a, forward_section
from warplens.report.grid.kernels import answer_b, answer_c, kernel_section, other_section
from warplens.report.grid.tables import (
    forward_matrix,
    forward_times,
    invalid_profiles,
    label_shares,
    model_parts,
    other_kernels,
    status_matrix,
    top_kernels,
    top_kernels_with_backward,
)
from warplens.report.grid.training import (
    answer_d,
    matmul_shares,
    optimizer_costs,
    training_section,
    training_split,
)
from warplens.report.grid.wording import CELL_COLUMNS, counted, majority

if TYPE_CHECKING:
    from warplens.report.document import Block

__all__ = ["grid_data", "grid_document"]

_ANSWERS: Final = {"a": answer_a, "b": answer_b, "c": answer_c, "d": answer_d, "e": answer_e}


def grid_document(grid: Grid) -> Document:
    """The document about a grid: what is answered, the answers (a) to (e), a legend, and how to record more."""
    status = grid_status(grid)
    return Document(
        title="Forward passes and training steps over models and contexts",
        lead=_lead(grid, status),
        sections=(
            _status_section(grid, status),
            forward_section(grid),
            kernel_section(grid),
            other_section(grid),
            training_section(grid),
            attention_section(grid),
            _legend(),
            _how_to_run(grid),
        ),
        meta=_meta(grid),
    )


def grid_data(grid: Grid) -> dict[str, Any]:
    """The same as plain data: for each question its sentences and its rows; exact values, times in nanoseconds.

    `provenance` names the columns that are no plain measurement, and what they are.
    """
    rows: dict[str, dict[str, pl.DataFrame]] = {
        "a": {"forward_times": forward_times(grid), "forward_matrix": forward_matrix(grid)},
        "b": {
            "top_kernels": top_kernels(grid),
            "top_kernels_with_backward": top_kernels_with_backward(grid),
            "model_parts": model_parts(grid),
        },
        "c": {"label_shares": label_shares(grid), "other_kernels": other_kernels(grid)},
        "d": {
            "training_split": training_split(grid),
            "matmul_shares": matmul_shares(grid),
            "optimizer": optimizer_costs(grid),
        },
        "e": {"attention": attention_times(grid)},
    }
    return {
        "questions": {
            letter: {"question": title, "answer": _ANSWERS[letter](grid), **rows[letter]}
            for letter, title in QUESTIONS.items()
        },
        "profiles": _profiles(grid),
        "status": grid_status(grid),
        "invalid": invalid_profiles(grid),
        "unplaced": list(grid.unplaced),
        "provenance": {"otherwise": "measured", **PROVENANCE},
    }


def _lead(grid: Grid, status: pl.DataFrame) -> str:
    if not grid.cells:
        return "None of the files is a profile of a cell: “What is answered” lists them with the reasons."
    answered = status.filter(pl.col("state") == "measured").height
    valid = sum(1 for cell in grid.cells if not cell.invalid)
    first = next((sentences[0] for letter in QUESTIONS if (sentences := _ANSWERS[letter](grid))), "")
    total = len(grid.cells)
    profiles = f"{valid} of {counted(total, 'profile')}" if valid < total else counted(total, "profile")
    return (
        f"{profiles} over {counted(len(grid.models), 'model')} and {counted(len(grid.contexts), 'context length')} "
        f"{'answers' if total == 1 else 'answer'} {majority(answered, status.height, 'question')} of the grid, all by "
        f"measurement. {first}"
    )


def _meta(grid: Grid) -> tuple[tuple[str, str], ...]:
    devices = sorted({cell.device for cell in grid.cells if cell.device})
    batches = sorted({cell.batch for cell in grid.cells if cell.batch is not None})
    if not grid.cells:
        return ()
    return (
        ("GPU", ", ".join(devices) or "not stated"),
        ("Models", ", ".join(grid.models)),
        ("Contexts", ", ".join(map(str, grid.contexts))),
        ("Batch", ", ".join(map(str, batches)) or "not stated"),
    )


# ── what is answered ──────────────────────────────────────────────────────────────────────────────────────────────────


def _status_section(grid: Grid, status: pl.DataFrame) -> Section:
    blocks: list[Block] = []
    if status.height:
        blocks.append(
            Table(
                "status-matrix",
                "Which question is answered for which cell",
                _STATUS_COLUMNS,
                status_matrix(status),
                None,
            )
        )
    todo = status.filter(pl.col("state") != "measured").group_by("detail", maintain_order=True).agg(
        pl.format("{} at {}", pl.col("model").first(), pl.col("context").first()).alias("cell"),
        pl.col("question").unique(maintain_order=True).str.join(", ").alias("questions"),
        pl.col("state").cast(pl.String).first(),
    )  # fmt: skip
    if todo.height:
        blocks.append(Table("to-do", "What is missing or invalid, and what to run", _TODO_COLUMNS, todo, None))
    invalid = invalid_profiles(grid)
    if invalid.height:
        caption = "Profiles that cannot stand for their cell; none of their numbers is used"
        blocks.append(Table("invalid", caption, _INVALID_COLUMNS, invalid, None))
    if grid.unplaced:
        left = pl.DataFrame([(item.source, item.reason) for item in grid.unplaced], ["source", "reason"], orient="row")
        blocks.append(Table("unplaced", "Files that are of no cell", _UNPLACED_COLUMNS, left, None))
    blocks.append(
        Table("profiles", "The profiles and how their steps were found", _PROFILE_COLUMNS, _profiles(grid), None)
    )
    return Section("status", "What is answered", tuple(blocks))


def _profiles(grid: Grid) -> pl.DataFrame:
    rows = [
        (
            cell.model,
            cell.context,
            cell.mode or "unknown",
            cell.source,
            cell.device,
            cell.batch,
            not cell.invalid,
            cell.how,
            "; ".join([*cell.notes, *(f"({question}) {advice}" for question, advice in cell.lacking.items())]),
        )
        for cell in grid.cells
    ]
    names = ("model", "context", "mode", "source", "device", "batch", "valid", "how", "notes")
    types = (pl.String, pl.Int64, pl.String, pl.String, pl.String, pl.Int64, pl.Boolean, pl.String, pl.String)
    return pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")


_STATUS_COLUMNS = (
    TableColumn("model", "Model", "text", "Size of the model."),
    TableColumn("context", "Context", "count", "Context length in tokens."),
    *(TableColumn(letter, f"({letter})", "text", f"({letter}): {title}.") for letter, title in QUESTIONS.items()),
)
_TODO_COLUMNS = (
    TableColumn("cell", "Cell", "text", "Model and context length."),
    TableColumn("questions", "Questions", "text", "What it would answer."),
    TableColumn("state", "State", "text", "missing or invalid."),
    TableColumn("detail", "What to run, or the reason", "text", "A command, an advice, or why a profile is invalid."),
)
_INVALID_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("source", "File", "name", "The profile."),
    TableColumn("reason", "Reason", "text", "Why it cannot stand for its cell."),
    TableColumn("wall_ns", "Step", "duration_ns", "Measured: wall time of what it calls a step."),
    TableColumn("forward_ns", "Forward", "duration_ns", "Measured: GPU time of its forward pass."),
    TableColumn("forward_kernels", "Forward kernels", "count", "Measured, in a step."),
    TableColumn("backward_kernels", "Backward kernels", "count", "Measured, in a step."),
    TableColumn("optimizer_kernels", "Optimizer kernels", "count", "Measured, in a step."),
)
_UNPLACED_COLUMNS = (
    TableColumn("source", "File", "name", "The file."),
    TableColumn("reason", "Reason", "text", "Why it is of no cell, and what to do."),
)
_PROFILE_COLUMNS = (
    *CELL_COLUMNS,
    TableColumn("source", "File", "name", "The profile."),
    TableColumn("how", "Steps", "text", "How the steps were found."),
    TableColumn("notes", "Notes", "text", "What the reader of the numbers must know, and what would answer more."),
)


# ── legend and recording ──────────────────────────────────────────────────────────────────────────────────────────────


def _legend() -> Section:
    entries = (
        "Measured: read from the profiles or from the program's own times, by counting and adding. Every number is "
        "measured unless its heading, its explanation or the sentence says modelled. Nothing is estimated.",
        "Modelled: follows from the shapes of the model alone (FLOPs, bytes, layers where no attention range shows "
        "them). A rate is modelled work over measured time.",
        "GPU time: summed durations of kernels, copies and fills. Busy: time in which any of them runs. Span: from the "
        "first begin to the last end. GPU work belongs to the range in which it was launched, not to the time at which "
        "it ran.",
        "Categories come from kernel names; gemm are matrix products, the reductions of split-k products included.",
        "Spreads are over forward passes or steps after warm-up: median, least and greatest, and how many.",
        "–: not recorded, or not defined.",
    )
    return Section("legend", "Legend", tuple(Paragraph(entry) for entry in entries))


def _how_to_run(grid: Grid) -> Section:
    model = grid.models[0] if grid.models else "small"
    context = grid.contexts[0] if grid.contexts else 512
    return Section(
        "how-to-run",
        "How to run",
        (
            Paragraph(f"One forward profile a cell: {record_command(model, context, 'forward')}"),
            Paragraph(f"One training profile a cell: {record_command(model, context, 'train')}"),
            Paragraph(
                "The program puts NVTX ranges around each step (step), its phases (forward_pass, backward_pass, "
                "optimizer_step) and the parts of attention (computing_attention_scores, computing_softmax, "
                "final_matmul), and a few warm-up steps before (warmup)."
            ),
            Paragraph(
                "Cells are recognised from file names such as medium_ctx1024_train.sqlite, or stated with "
                "--cell NAME=MODEL,CONTEXT[,MODE]; --timings FILE.csv adds the program's own times, --batch N the "
                "batch size."
            ),
        ),
    )
