"""A grid of profiles over models × context lengths: the answered questions of each cell, and what is missing.

The second half holds the helpers shared by the sections: columns with the path of their value, rows, and words. The
same frames serve tables, charts and JSON. Times are nanoseconds of one forward pass or one training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from warplens.profile.columns import column, table
from warplens.profile.schema import Column, Kind, Table
from warplens.report import document as page
from warplens.report import text as fmt
from warplens.report.document import Block, Paragraph, Section
from warplens.studies.grid.answers import QUESTIONS, CellAnswers, GridCell, answer_cell
from warplens.studies.grid.cells import Unplaced, canonical_model, model_rank, python_batches

CELL_STATES: Final = table(
    "grid: status",
    "One cell and question. `grid.json`.",
    "model context",
    Column("question", pl.String, "`a` to `e`"),
    Column("state", pl.Enum(["measured", "invalid", "missing"]), "`measured`, `invalid` or `missing`"),
    Column("detail", pl.String, "the answering file, the reason, or what to do", title="What to run, or the reason"),
)


@dataclass(frozen=True, eq=False)
class Grid:
    """All profiles of a grid with their answers."""

    cells: tuple[CellAnswers, ...]  #: sorted by size of the model, context and mode
    unplaced: tuple[Unplaced, ...] = ()  #: files without a cell, or whose cell and mode another file already covers
    timed: bool = False  #: whether a file with the program's own times was given
    unused: tuple[str, ...] = ()  #: cells of that file without a profile, `model context` each
    #: cells for which that file has several batches, of which the profile does not say one: `model context` each
    ambiguous: tuple[str, ...] = ()

    @property
    def models(self) -> list[str]:
        """The models, smallest first."""
        return sorted({cell.model for cell in self.cells}, key=model_rank)

    @property
    def contexts(self) -> list[int]:
        """The context lengths, shortest first."""
        return sorted({cell.context for cell in self.cells})

    def of(self, model: str, context: int) -> list[CellAnswers]:
        """The profiles of one cell."""
        return [cell for cell in self.cells if (cell.model, cell.context) == (model, context)]

    def answering(self, question: str) -> list[CellAnswers]:
        """The profiles that answer a question."""
        return [cell for cell in self.cells if cell.answers(question)]

    def preferred(self, question: str) -> list[CellAnswers]:
        """One answering profile per cell, preferably one of forward passes alone."""
        chosen: dict[tuple[str, int], CellAnswers] = {}
        for cell in self.answering(question):
            best = chosen.setdefault((cell.model, cell.context), cell)
            if cell.mode == "forward" and best.mode != "forward":
                chosen[cell.model, cell.context] = cell
        return list(chosen.values())

    def inference_of(self, training: CellAnswers) -> CellAnswers | None:
        """The valid profile of forward passes alone for the cell of a training profile; None without one."""
        cells = self.of(training.model, training.context)
        return next((cell for cell in cells if cell.mode == "forward" and cell.answers("c")), None)


def answer_grid(
    cells: Iterable[GridCell],
    *,
    timings: pl.DataFrame | None = None,
    batch: int | None = None,
    unplaced: Iterable[Unplaced] = (),
) -> Grid:
    """Answers the five questions for every profile; of an iterator, one profile is in memory at a time.

    `timings` are the program's own times, as `warplens.readers.timings.read_timings` gives them; `batch` is that of
    cells that do not state it, and needed for FLOPs per second; `unplaced` files are listed.
    """
    answered: list[CellAnswers] = []
    all_unplaced = list(unplaced)
    for cell in cells:
        answers = answer_cell(cell, timings=timings, batch=batch)
        rivals = [other for other in answered if other.place == answers.place and not other.invalid]
        if rivals and not answers.invalid:
            all_unplaced.append(Unplaced(answers.source, f"{rivals[0].source} is of the same cell and mode"))
        else:
            answered.append(answers)
    ordered = sorted(answered, key=lambda answers: answers.place)
    unused = _unused(timings, {(answers.model, answers.context) for answers in ordered})
    ambiguous = tuple(
        f"{answers.model} {answers.context}"
        for answers in ordered
        if timings is not None
        and answers.batch is None
        and len(python_batches(timings, answers.model, answers.context)) > 1
    )
    return Grid(
        tuple(_with_other_gpus(_checked_against_inference(ordered))),
        tuple(all_unplaced),
        timings is not None,
        unused,
        ambiguous,
    )


def _unused(timings: pl.DataFrame | None, places: set[tuple[str, int]]) -> tuple[str, ...]:
    """Cells of a file of times that no profile covers, in the order of the file."""
    if timings is None:
        return ()
    timed = timings.select("model", "context").unique(maintain_order=True).rows()
    return tuple(
        f"{model} {context}" for model, context in timed if (canonical_model(model) or model, context) not in places
    )


def grid_status(grid: Grid) -> pl.DataFrame:
    """The state of each question in each cell, with advice for the unanswered ones (`CELL_STATES`)."""
    rows = [
        (model, context, question, *_state(grid, model, context, question))
        for model in grid.models
        for context in grid.contexts
        for question in QUESTIONS
    ]
    return pl.DataFrame(rows, schema=CELL_STATES.schema, orient="row")


def _state(grid: Grid, model: str, context: int, question: str) -> tuple[str, str]:
    profiles = grid.of(model, context)
    if answering := [cell.source for cell in profiles if cell.answers(question)]:
        return "measured", ", ".join(answering)
    candidates = [cell for cell in profiles if question != "d" or cell.mode != "forward"]
    if invalid := [cell for cell in candidates if cell.invalid]:
        return "invalid", f"{invalid[0].source}: {'; '.join(invalid[0].invalid)}"
    if lacking := [cell for cell in candidates if question in cell.lacking]:
        return "missing", f"{lacking[0].source}: {lacking[0].lacking[question]}"
    return "missing", record_command(model, context, "train" if question == "d" else "forward")


def record_command(model: str, context: int, mode: str) -> str:
    """The command that records a cell, with an output name that `recognise_cell` understands."""
    return f"nsys profile --trace=cuda,nvtx --output={model}_ctx{context}_{mode} python PROGRAM …"


def _with_other_gpus(cells: list[CellAnswers]) -> Iterator[CellAnswers]:
    """The cells, with a note on those that are of another GPU than most."""
    devices = [cell.device for cell in cells if cell.device is not None]
    most = max(devices, key=devices.count, default=None)
    for cell in cells:
        if cell.device in (None, most):
            yield cell
        else:
            note = f"recorded on {cell.device}, and most of the grid on {most}: its times differ by the GPU as well"
            yield replace(cell, notes=(*cell.notes, note))


def _checked_against_inference(cells: list[CellAnswers]) -> list[CellAnswers]:
    """Marks training cells as invalid whose step takes less GPU time than the forward pass alone."""
    forward_of_cell = {
        (cell.model, cell.context): (cell.source, cell.forward.gpu.median)
        for cell in cells
        if cell.mode == "forward" and cell.forward is not None and cell.forward.gpu is not None and not cell.invalid
    }

    def checked(cell: CellAnswers) -> CellAnswers:
        inference = forward_of_cell.get((cell.model, cell.context))
        if cell.invalid or cell.training is None or inference is None:
            return cell
        source, pass_ns = inference
        if cell.training.gpu_ns / cell.training.steps >= pass_ns:
            return cell
        reason = f"a step has less GPU time than the forward pass alone in {source}: it was cut short, or the two are "
        return replace(cell, invalid=(f"{reason}not the same workload",))

    return [checked(cell) for cell in cells]


@dataclass(frozen=True)
class Value(Column):
    """A column with one value per profile."""

    #: path of the value in `CellAnswers`: attributes and mapping keys, separated by dots; null where any of them is
    #: None. Empty where a function computes the value.
    of: str = ""
    modelled: str = ""  #: the modelled part of the value; empty where it is measured

    @classmethod
    def number(cls, name: str, help_text: str, of: str = "", **more: Any) -> Value:
        """A column of numbers."""
        return cls(name, pl.Float64, help_text, of=of, **more)

    @classmethod
    def count(cls, name: str, help_text: str, of: str = "", **more: Any) -> Value:
        """A column of whole numbers."""
        return cls(name, pl.Int64, help_text, of=of, **more)

    @classmethod
    def text(cls, name: str, help_text: str, of: str = "", **more: Any) -> Value:
        """A column of texts."""
        return cls(name, pl.String, help_text, of=of, **more)


#: Columns that identify the cell of a row.
CELL: Final = (
    column("model").but(help="size of the model"),
    column("context").but(help="context length in tokens"),
    column("mode").but(help="what one step of the profiled program does"),
)
CELL_TYPES: Final = {each.name: each.dtype for each in CELL}

KERNEL: Final = {"kind": "kernel", "full": "full_name"}
MODELLED_RATE: Final = "modelled FLOPs over measured time"


def cell_table(id_: str, caption: str, rows: pl.DataFrame, declared: Table, *parts: str | Column) -> page.Table:
    """A table of the grid with all rows: the columns that identify the cell, then the named ones (`Table.only`)."""
    return page.Table(id_, caption, (*CELL, *declared.only(*parts).columns), rows, None)


def cell_title(row: dict[str, Any]) -> str:
    """Name of a cell in a sentence: `small at context 512`."""
    return f"{row['model']} at context {row['context']}"


def between(values: Iterable[float | None], kind: Kind) -> str:
    """`x to y`, the least and the greatest value; `x` where both are formatted alike."""
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


@dataclass(frozen=True)
class Question:
    """One of the questions: its answer, its section, and its tables."""

    letter: str
    asked: str  #: the question in words
    answer: Callable[[Grid], list[str]]  #: sentence by sentence; empty where no profile answers
    blocks: Callable[[Grid], Iterator[Block]]  #: content below the sentences
    tables: Mapping[str, Callable[[Grid], pl.DataFrame]]  #: by name, with exact values
    inner: Callable[[Grid], tuple[Section, ...]] = lambda _: ()  #: subsections

    def section(self, grid: Grid) -> Section:
        """The section with the question, its answer and the evidence."""
        title, sentences = f"({self.letter}) {self.asked}", self.answer(grid)
        if not sentences:
            text = f"No profile of the grid answers ({self.letter}); “What is answered” says what to run."
            return Section(self.letter, title, (Paragraph(text),))
        return Section(self.letter, title, (Paragraph(" ".join(sentences)), *self.blocks(grid)), self.inner(grid))

    def data(self, grid: Grid) -> dict[str, Any]:
        """The question, its answer and its tables as plain data."""
        tables = {name: rows(grid) for name, rows in self.tables.items()}
        return {"question": QUESTIONS[self.letter], "answer": self.answer(grid), **tables}


def cell_rows(
    cells: Iterable[CellAnswers], declared: Table, row: Callable[[CellAnswers], dict[str, Any]] = lambda _: {}
) -> pl.DataFrame:
    """One row per profile: its cell, the values at the columns' paths, and the values that `row` adds; else null."""
    values = [each for each in declared.columns if isinstance(each, Value) and each.of]
    rows = [
        dict(zip(CELL_TYPES, cell_key(cell), strict=True))
        | {value.name: _at(cell, value.of) for value in values}
        | row(cell)
        for cell in cells
    ]
    return pl.DataFrame(rows, schema=declared.schema, orient="row")


def _at(value: Any, path: str) -> Any:
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
        if value is None:
            break
    return value


def cell_key(cell: CellAnswers) -> tuple[str, int, str]:
    """Model, context and mode of a cell."""
    return cell.model, cell.context, cell.mode or "unknown"
