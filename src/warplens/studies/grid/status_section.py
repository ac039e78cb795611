"""What of a grid is answered, what is missing, and what to run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from warplens.analysis.window import PHASES
from warplens.profile.columns import column, table
from warplens.profile.schema import Column
from warplens.report.document import Section, Table
from warplens.studies.grid.answers import QUESTIONS, CellAnswers
from warplens.studies.grid.grid import CELL_STATES, Grid
from warplens.studies.grid.tables import CELL, Value, cell_rows, cell_table

if TYPE_CHECKING:
    from warplens.report.document import Block


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


def _invalid(cell: CellAnswers) -> dict[str, Any]:
    row: dict[str, Any] = {"reason": "; ".join(cell.invalid)}
    if cell.training is not None:
        kernels = {f"{p}_kernels": cell.training.phase(p)["kernels"] / cell.training.steps for p in PHASES}
        row |= {**kernels, "wall_ns": cell.training.wall_ns / cell.training.steps}
    return row


def status_section(grid: Grid, status: pl.DataFrame) -> Section:
    """Which question is answered for which cell, what to run for the others, and the profiles that were read."""
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
        blocks.append(cell_table("invalid", caption, invalid, INVALID, _SHOWN_OF_INVALID))
    if grid.unplaced:
        left = pl.DataFrame([(item.source, item.reason) for item in grid.unplaced], ["source", "reason"], orient="row")
        blocks.append(Table("unplaced", "Files that are of no cell", _UNPLACED_COLUMNS, left, None))
    blocks.append(
        cell_table(
            "profiles", "The profiles and how their steps were found", profiles(grid), PROFILES, "source how notes"
        )
    )
    return Section("status", "What is answered", tuple(blocks))
