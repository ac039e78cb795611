"""What a report says, as a tree of typed blocks without formatting; renderers turn one `Document` into each output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from warplens.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from warplens.profile import Note
    from warplens.report.charts import Chart
    from warplens.report.format import Kind, Scalar

__all__ = [
    "Block",
    "Document",
    "Figure",
    "KeyFigure",
    "KeyFigures",
    "Notes",
    "Paragraph",
    "Section",
    "Table",
    "TableColumn",
]

#: Rows of a table that are shown before the reader asks for more.
DEFAULT_LIMIT = 15


@dataclass(frozen=True)
class Paragraph:
    """Running text. A quiet one explains (how a number was got); a plain one answers."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Notes:
    """What the profile cannot tell, and what to do about it."""

    notes: tuple[Note, ...]


@dataclass(frozen=True)
class KeyFigure:
    """One number that matters, with the sentence that says what it is."""

    label: str
    value: Scalar
    kind: Kind
    explanation: str = ""


@dataclass(frozen=True)
class KeyFigures:
    """A row of key figures."""

    figures: tuple[KeyFigure, ...]


@dataclass(frozen=True)
class TableColumn:
    """One column of a table as the reader sees it.

    Attributes:
        key: column of the table's frame.
        title: heading.
        kind: what the values are.
        help: what the column means, one sentence.
        full: column that holds the unabridged text of a `kernel` or `name`, where that is another one.
    """

    key: str
    title: str
    kind: Kind
    help: str = ""
    full: str | None = None


@dataclass(frozen=True)
class Table:
    """Rows with the columns that people see of them.

    Attributes:
        id: unique in the document; becomes the anchor and the file name.
        caption: what the rows are.
        columns: in the order of display.
        rows: exact values; may hold more columns than are displayed.
        limit: rows shown at first; None for all.
        depth: column with each row's nesting depth; rows then stand in pre-order, every row after its parent.
        empty: what to say when there are no rows.

    Raises:
        SchemaError: a displayed column is not in `rows`.
    """

    id: str
    caption: str
    columns: tuple[TableColumn, ...]
    rows: pl.DataFrame
    limit: int | None = DEFAULT_LIMIT
    depth: str | None = None
    empty: str = "No rows."

    def __post_init__(self) -> None:
        wanted = [column.key for column in self.columns]
        wanted += [column.full for column in self.columns if column.full]
        wanted += [self.depth] if self.depth else []
        if absent := [key for key in wanted if key not in self.rows.columns]:
            raise SchemaError(f"table {self.id}: {', '.join(absent)} not among the rows' columns {self.rows.columns}")

    @property
    def keys(self) -> list[str]:
        """The displayed columns and the full names behind them, each once: what an export of the raw values holds."""
        keys: dict[str, None] = {}
        for column in self.columns:
            keys[column.key] = None
            if column.full:
                keys[column.full] = None
        if self.depth:
            keys[self.depth] = None
        return list(keys)

    def shown(self) -> pl.DataFrame:
        """The rows up to the limit."""
        return self.rows if self.limit is None else self.rows.head(self.limit)


@dataclass(frozen=True)
class Figure:
    """A chart with its caption, and the text that stands for it where it cannot be seen."""

    id: str
    caption: str
    chart: Chart
    alt: str


Block: TypeAlias = "Paragraph | Notes | KeyFigures | Table | Figure"


@dataclass(frozen=True)
class Section:
    """A titled part of a document."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    subsections: tuple[Section, ...] = ()

    def all_blocks(self) -> Iterator[Block]:
        """The blocks of this section and of those inside it, in reading order."""
        yield from self.blocks
        for section in self.subsections:
            yield from section.all_blocks()


@dataclass(frozen=True)
class Document:
    """A whole report.

    Attributes:
        title: what the report is about.
        lead: the answer, in at most two sentences.
        sections: in reading order.
        meta: facts about the source (label, value), for the head of the page.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    meta: tuple[tuple[str, str], ...] = field(default=())

    def figures(self) -> list[Figure]:
        """Every figure, in reading order."""
        return [block for section in self.sections for block in section.all_blocks() if isinstance(block, Figure)]

    def tables(self) -> list[Table]:
        """Every table, in reading order."""
        return [block for section in self.sections for block in section.all_blocks() if isinstance(block, Table)]
