"""What the tables and sentences of a grid's sections share: columns that say where their value stands, rows, words.

The same frames serve tables, charts and JSON. Times are nanoseconds of one forward pass or one training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from warplens.profile.columns import column
from warplens.profile.schema import Column, Kind, Table
from warplens.report import document as page
from warplens.report import text as fmt
from warplens.report.document import Paragraph, Section
from warplens.studies.grid.answers import CellAnswers
from warplens.studies.grid.passes import Spread


@dataclass(frozen=True)
class Value(Column):
    """A column of which each profile has one value."""

    #: where the value stands in `CellAnswers`: attributes, and keys of mappings, separated by dots; what is None on the
    #: way makes it null. Empty where a function gives it.
    of: str = ""
    modelled: str = ""  #: what of it is no plain measurement; empty where all of it is measured

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


#: Which profile a row is of.
CELL: Final = (
    column("model").but(help="size of the model"),
    column("context").but(help="context length in tokens"),
    column("mode").but(help="what one step of the profiled program does"),
)
CELL_TYPES: Final = {each.name: each.dtype for each in CELL}

KERNEL: Final = {"kind": "kernel", "full": "full_name"}
MODELLED_RATE: Final = "modelled FLOPs over measured time"


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


def cell_rows(
    cells: Iterable[CellAnswers], declared: Table, row: Callable[[CellAnswers], dict[str, Any]] = lambda _: {}
) -> pl.DataFrame:
    """One row a profile: its cell, what the columns say where it stands, and what `row` adds; else null."""
    answers = [each for each in declared.columns if isinstance(each, Value) and each.of]
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
