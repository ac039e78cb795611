"""The grid document: the answers to the five questions, the missing or invalid cells, and what to run for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from warplens.analysis.window import PHASES
from warplens.diagnosis import Diagnosis, Finding
from warplens.diagnosis.rules import rule
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report import text as fmt
from warplens.report.brief import ways
from warplens.report.document import Answer, Block, Document, Paragraph, Section, Table
from warplens.report.verdict import factor
from warplens.studies.grid.answers import QUESTIONS, CellAnswers
from warplens.studies.grid.forward_section import ATTENTION, FORWARD_TIME, FORWARD_TIMES, SOFTMAX, time_matrix
from warplens.studies.grid.grid import (
    CELL,
    CELL_STATES,
    Grid,
    Value,
    cell_rows,
    cell_table,
    grid_status,
    majority,
    record_command,
)
from warplens.studies.grid.kernel_sections import OTHERS, TOP_KERNEL, TOP_KERNELS
from warplens.studies.grid.training_section import OPTIMIZER, TRAINING

#: Column → how it is modelled: from shapes, or as modelled work over measured time. All other columns are measured.
PROVENANCE: Final[Mapping[str, str]] = {
    each.name: each.modelled
    for declared in (FORWARD_TIMES, TOP_KERNELS, OPTIMIZER, ATTENTION)
    for each in declared.columns
    if isinstance(each, Value) and each.modelled
}

_QUESTIONS: Final = (FORWARD_TIME, TOP_KERNEL, OTHERS, TRAINING, SOFTMAX)


def grid_document(grid: Grid, diagnosed: Mapping[str, Diagnosis] | None = None) -> Document:
    """The document of a grid: limits of its cells, the answers (a) to (e), what is missing, how to record it.

    Without diagnoses of profiles, by file name, the first screen has times alone.
    """
    status = grid_status(grid)
    return Document(
        title="Forward passes and training steps over models and contexts",
        lead=_lead(grid, status),
        answer=_answer(grid, status, diagnosed or {}),
        sections=(
            *(question.section(grid) for question in _QUESTIONS),
            status_section(grid, status),
            _legend(),
            _how_to_run(grid),
        ),
        meta=_meta(grid),
    )


def grid_data(grid: Grid) -> dict[str, Any]:
    """The grid as plain data: for each question its sentences and its rows; exact values, times in nanoseconds.

    `provenance` describes the columns that are modelled.
    """
    return {
        "questions": {question.letter: question.data(grid) for question in _QUESTIONS},
        "profiles": profiles(grid),
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
    total = len(grid.cells)
    profiles = f"{valid} of {fmt.plural(total, 'profile')}" if valid < total else fmt.plural(total, "profile")
    return (
        f"{profiles} over {fmt.plural(len(grid.models), 'model')} and "
        f"{fmt.plural(len(grid.contexts), 'context length')} {'answers' if total == 1 else 'answer'} "
        f"{majority(answered, status.height, 'question')} of the grid, all by measurement. {_first_sentence(grid)}"
    )


def _first_sentence(grid: Grid) -> str:
    return next((sentences[0] for question in _QUESTIONS if (sentences := question.answer(grid))), "")


def _answer(grid: Grid, status: pl.DataFrame, diagnosed: Mapping[str, Diagnosis]) -> Answer | None:
    """The first screen: the most frequent limit and its remedy, or the time of a pass; then the questions."""
    cells = [cell for cell in grid.cells if not cell.invalid]
    verdict = _first_sentence(grid)
    if not verdict:
        return None
    diagnosed_cells = [(cell, diagnosed[cell.source].findings[0]) for cell in cells if cell.source in diagnosed]
    limited = [
        (cell, first) for cell, first in diagnosed_cells if first.gain is not None and not rule(first.id).describes
    ]
    gain = do = code = ""
    if limited:
        ids = [first.id for _, first in limited]
        most = max(dict.fromkeys(ids), key=ids.count)
        matching = [first for _, first in limited if first.id == most]
        where = _cell_title(diagnosed_cells[0][0])
        if len(diagnosed_cells) > 1:
            where = majority(len(matching), len(diagnosed_cells), "profile")
        verdict = f"The limit of {where}: {rule(most).limiter}."
        gains = sorted(first.gain or 0.0 for first in matching)
        gain = " to ".join(dict.fromkeys(map(factor, (gains[0], gains[-1]))))
        remedies = [first.remedies[0] for first in matching if first.remedies]
        do, code = (remedies[0].action, "\n".join(ways(remedies[0].how))) if remedies else ("", "")
    measured = status.filter(pl.col("state") == "measured")["question"].to_list()
    questions = status["question"].to_list()
    return Answer(
        id="answer",
        verdict=verdict,
        severity="info",
        gain=gain,
        unit=" as fast" if gain else "",
        gain_range=f"expected of {fmt.plural(len(matching), 'profile')}, without a profiler" if limited else "",
        do=do,
        code=code,
        brings="",
        sure="",
        refute="",
        others=tuple(
            (letter, f"({letter}) {title}", f"{measured.count(letter)} of {questions.count(letter)} cells")
            for letter, title in QUESTIONS.items()
        ),
        also="The questions",
        tables=(_limits_table(diagnosed_cells) if diagnosed_cells else replace(time_matrix(grid), id="answer-matrix"),),
    )


_LIMITS: Final = (
    column("cell", dtype=pl.String, help="model, context length, and what a step does"),
    column("verdict", dtype=pl.String, help="the first finding of the profile", title="What limits it"),
    column("gain", help="how many times as fast without it is expected to be"),
    column("remedy", help="its first remedy"),
)


def _cell_title(cell: CellAnswers) -> str:
    return f"{cell.model} at {cell.context}, {cell.mode}"


def _limits_table(found: Sequence[tuple[CellAnswers, Finding]]) -> Table:
    """The table of the limits of all diagnosed cells."""
    rows = [
        {
            "cell": _cell_title(cell),
            "verdict": rule(first.id).limiter,
            "gain": factor(first.gain) if first.gain is not None and not rule(first.id).describes else fmt.MISSING,
            "remedy": first.remedies[0].action if first.remedies else fmt.MISSING,
        }
        for cell, first in found
    ]
    return Table("limits-table", "What limits each cell", _LIMITS, pl.DataFrame(rows), limit=None, cards=True)


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


def _legend() -> Section:
    entries = (
        "Measured: read from the profiles or from the program's own times, by counting and adding. Every number is "
        "measured unless its heading, its explanation or the sentence says modelled. Nothing is estimated.",
        "Modelled: follows from the shapes of the model alone (FLOPs, bytes, layers where no attention range shows "
        "them). A rate is modelled work over measured time.",
        "GPU time: summed durations of kernels, copies and fills. Busy: time in which any of them runs. Span: "
        "from the first start to the last end. GPU work belongs to the range in which it was launched, not to the "
        "time at which it ran.",
        "Categories come from kernel names; gemm are matrix products, the reductions of split-k products included.",
        "Spreads are over forward passes or steps after warm-up: median, least and greatest, and how many.",
        "–: not recorded, or not defined.",
    )
    return Section("legend", "Legend", tuple(Paragraph(entry) for entry in entries))


def _how_to_run(grid: Grid) -> Section:
    """The section on how to record a grid's profiles."""
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
                "--cell NAME=MODEL,CONTEXT[,MODE]; --timings FILE adds the program's own times, --batch N the "
                "batch size."
            ),
        ),
    )


INVALID: Final = table(
    "grid: invalid profiles",
    "One profile that cannot stand for its cell. None of its numbers is used elsewhere. `grid.json`.",
    CELL,
    (
        Value.text("source", "the profile", "source", title="File", kind="name"),
        Value.text("reason", "why it cannot stand for its cell"),
        Value.number("forward_ns", "measured: GPU time of its forward pass", "forward.gpu.median"),
        *(Value.number(f"{phase}_kernels", "measured, in a step", kind="count") for phase in PHASES),
        Value.number("wall_ns", "measured: wall time of what it calls a step", title="Step"),
    ),
)
PROFILES: Final = table(
    "grid: profiles",
    "One profile of the grid. `grid.json`.",
    CELL,
    (
        Value.text("source", "the profile", "source", title="File", kind="name"),
        Value.text("device", "the GPU", "device"),
        Value.count("batch", "sequences in a batch, where known", "batch"),
        Value("valid", pl.Boolean, "whether it can stand for its cell"),
        Value.text("how", "how the steps were found", "how", title="Steps"),
        Value.text("notes", "what the reader of the numbers must know, and what would answer more"),
    ),
)

_STATUS_COLUMNS: Final = (
    *CELL[:2],
    *(Column(letter, title=f"({letter})", help=f"({letter}): {title}") for letter, title in QUESTIONS.items()),
)
_TODO_COLUMNS: Final = (
    column("cell", dtype=pl.String, help="model and context length"),
    Column("questions", help="what it would answer"),
    CELL_STATES.column("state").but(help="missing or invalid"),
    CELL_STATES.column("detail").but(help="a command, an advice, or why a profile is invalid"),
)
_SHOWN_OF_INVALID: Final = "source reason wall_ns forward_ns forward_kernels backward_kernels optimizer_kernels"
_UNPLACED_COLUMNS: Final = (
    column("source").but(help="the file"),
    column("reason", help="why it is of no cell, and what to do", title="Reason"),
)


def invalid_profiles(grid: Grid) -> pl.DataFrame:
    """The invalid profiles, the reasons, and their GPU work."""
    return cell_rows([cell for cell in grid.cells if cell.invalid], INVALID, _invalid)


def profiles(grid: Grid) -> pl.DataFrame:
    """Every profile with its notes."""
    return cell_rows(
        grid.cells,
        PROFILES,
        lambda cell: {
            "valid": not cell.invalid,
            "notes": "; ".join([*cell.notes, *(f"({question}) {advice}" for question, advice in cell.lacking.items())]),
        },
    )


def _invalid(cell: CellAnswers) -> dict[str, Any]:
    row: dict[str, Any] = {"reason": "; ".join(cell.invalid)}
    if cell.training is not None:
        kernels = {f"{p}_kernels": cell.training.phase(p)["kernels"] / cell.training.steps for p in PHASES}
        row |= {**kernels, "wall_ns": cell.training.wall_ns / cell.training.steps}
    return row


def status_section(grid: Grid, status: pl.DataFrame) -> Section:
    """The section on answered questions, commands to run for the others, and the profiles that were read."""
    blocks: list[Block] = []
    if status.height:
        states = status.with_columns(pl.col("state").cast(pl.String))
        matrix = states.pivot("question", index=["model", "context"], values="state", maintain_order=True)
        caption = "Which question is answered for which cell"
        blocks.append(Table("status-matrix", caption, _STATUS_COLUMNS, matrix, None))
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
        blocks.append(cell_table("invalid", caption, invalid, INVALID, _SHOWN_OF_INVALID))
    if grid.unplaced:
        unplaced = pl.DataFrame(map(vars, grid.unplaced))
        blocks.append(Table("unplaced", "Files that are of no cell", _UNPLACED_COLUMNS, unplaced, None))
    caption = "The profiles and how their steps were found"
    blocks.append(cell_table("profiles", caption, profiles(grid), PROFILES, "source how notes"))
    return Section("status", "What is answered", tuple(blocks))
