"""What a report says, as a tree of typed blocks without formatting; renderers turn one `Document` into each output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from warplens.errors import SchemaError
from warplens.profile.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from warplens.profile import Note, schema
    from warplens.profile.schema import Kind
    from warplens.report.charts import Chart
    from warplens.report.text import Scalar

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


def pick(table: schema.Table, *parts: str | Column, **titles: str) -> tuple[Column, ...]:
    """Columns of a result as people see them, in the order of display.

    Args:
        table: the result.
        parts: names of its columns, several in one text; a `Column` stands for itself, such as one that a page adds.
        titles: headings that are others here.
    """
    chosen = table.only(*parts).columns
    return tuple(column.but(title=titles[column.name]) if column.name in titles else column for column in chosen)


class TableColumn(Column):
    """A column of a page alone; declare it as a `Column` where its result is declared instead."""

    def __init__(self, key: str, title: str, kind: Kind, meaning: str = "", full: str | None = None) -> None:
        super().__init__(key, help=meaning, title=title, kind=kind, full=full)
        object.__setattr__(self, "title", title)  # a heading may be empty


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
    columns: tuple[Column, ...]
    rows: pl.DataFrame
    limit: int | None = DEFAULT_LIMIT
    depth: str | None = None
    empty: str = "No rows."

    def __post_init__(self) -> None:
        wanted = [column.name for column in self.columns]
        wanted += [column.full for column in self.columns if column.full]
        wanted += [self.depth] if self.depth else []
        if absent := [key for key in wanted if key not in self.rows.columns]:
            raise SchemaError(f"table {self.id}: {', '.join(absent)} not among the rows' columns {self.rows.columns}")

    @property
    def keys(self) -> list[str]:
        """The displayed columns and the full names behind them, each once: what an export of the raw values holds."""
        keys: dict[str, None] = {}
        for column in self.columns:
            keys[column.name] = None
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


Numbers = TypeVar("Numbers")


@dataclass(frozen=True)
class SectionOf(Generic[Numbers]):
    """A section of one kind of document: computes from the numbers what it shows.

    Attributes:
        id: unique in the document.
        title: heading, or what makes it.
        content: yields blocks, and sections inside this one; a section without any is left out.
        part: what the section is about, of the numbers of a document; None where they lack it.
    """

    id: str
    title: str | Callable[[Any], str]
    content: Callable[[Any], Iterable[Block | Section]]
    part: Callable[[Numbers], Any] = lambda numbers: numbers

    def of(self, numbers: Numbers, at: str = "") -> Section | None:
        """The section; `at` stands before every id, where a document holds several parts of a kind."""
        about = self.part(numbers)
        found = [_placed(item, at) for item in self.content(about)] if about is not None else []
        blocks = tuple(item for item in found if not isinstance(item, Section))
        inside = tuple(item for item in found if isinstance(item, Section))
        if not found:
            return None
        title = self.title if isinstance(self.title, str) else self.title(about)
        return Section(f"{at}{self.id}", title, blocks, inside)


def sections(kinds: Iterable[SectionOf[Numbers]], numbers: Numbers, at: str = "") -> tuple[Section, ...]:
    """The sections of these numbers, those left out that have nothing to show."""
    return tuple(section for kind in kinds if (section := kind.of(numbers, at)) is not None)


@overload
def _placed(item: Section, at: str) -> Section: ...
@overload
def _placed(item: Block, at: str) -> Block: ...
def _placed(item: Block | Section, at: str) -> Block | Section:
    if isinstance(item, Section):
        return Section(f"{at}{item.id}", item.title, tuple(_placed(block, at) for block in item.blocks))
    return replace(item, id=f"{at}{item.id}") if at and isinstance(item, Table | Figure) else item


def quiet(text: str) -> Paragraph:
    """A paragraph that explains."""
    return Paragraph(text, quiet=True)


def limits(notes: Sequence[Note]) -> Iterator[Block]:
    """What to know before the numbers are read."""
    yield Notes(tuple(notes)) if notes else quiet("Nothing was found that limits these numbers.")


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
