"""The content of a report as a tree of typed blocks without formatting; a renderer per format writes a `Document`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, overload

from warplens.errors import SchemaError
from warplens.profile.schema import Column, Kind
from warplens.report.text import Scalar, kernel_labels, name_and_full

if TYPE_CHECKING:
    import polars as pl

    from warplens.profile import Note, schema
    from warplens.report.charts.base import Chart

#: Rows of a table shown at first.
DEFAULT_LIMIT = 15


@dataclass(frozen=True)
class Paragraph:
    """Running text. A quiet paragraph explains, for example how a number was computed."""

    text: str
    quiet: bool = False


#: Labels of notes, by level.
NOTE_TAGS: Final = {"info": "Note", "warning": "Caution", "blocking": "Missing"}


@dataclass(frozen=True)
class Notes:
    """Notes on the limits of a profile, each with its remedy."""

    notes: tuple[Note, ...]


@dataclass(frozen=True)
class KeyFigure:
    """One important number with a label and a sentence that explains it."""

    label: str
    value: Scalar
    kind: Kind
    explanation: str = ""


@dataclass(frozen=True)
class KeyFigures:
    """A row of key figures."""

    figures: tuple[KeyFigure, ...]

    @classmethod
    def of(cls, *figures: KeyFigure) -> KeyFigures:
        """A row of these figures."""
        return cls(figures)


def pick(table: schema.Table, *parts: str | Column, **titles: str) -> tuple[Column, ...]:
    """Columns of a result to display, in this order.

    Args:
        parts: names of columns, several in one text separated by spaces, or a `Column`, also one not in the table.
        titles: headings by column name, to replace the table's own.
    """
    chosen = table.only(*parts).columns
    return tuple(column.but(title=titles[column.name]) if column.name in titles else column for column in chosen)


def with_texts(rows: pl.DataFrame, **texts: Callable[[Mapping[str, Any]], str | None]) -> pl.DataFrame:
    """The rows with text columns added or replaced, each computed by a function of the whole row."""
    import polars as pl

    records = rows.to_dicts()
    return rows.with_columns(pl.Series(name, map(text, records), dtype=pl.String) for name, text in texts.items())


def frame_of(columns: Iterable[Column], rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a frame of these columns; further values of a row are left out."""
    import polars as pl

    schema = {column.name: column.dtype for column in columns}
    return pl.DataFrame([{name: row[name] for name in schema} for row in rows], schema=schema)


def yes_or_no(*names: str) -> Iterator[pl.Expr]:
    """The truth values in these columns as words; null for null."""
    import polars as pl

    return (pl.col(name).replace_strict({True: "yes", False: "no"}, return_dtype=pl.String) for name in names)


@dataclass(frozen=True)
class Table:
    """Rows, and the columns of them that are displayed.

    Raises:
        SchemaError: a displayed column is not in `rows`.
    """

    id: str  #: unique in the document; becomes the anchor and the file name
    caption: str
    columns: tuple[Column, ...]  #: in the order of display
    rows: pl.DataFrame  #: exact values; may hold more columns than are displayed
    limit: int | None = DEFAULT_LIMIT  #: rows shown at first; None for all
    depth: str | None = None  #: column with each row's nesting depth; rows are then in pre-order (parents first)
    empty: str = "No rows."  #: text shown instead of an empty table
    leads: str | None = None  #: column with the id of the document part that a row links to
    cards: bool = False  #: whether rows become cards on a narrow page; rows with links always do
    order: str | None = None  #: column that the rows are sorted by, if not the first time; kept on a narrow terminal

    def __post_init__(self) -> None:
        wanted = [column.name for column in self.columns]
        wanted += [column.full for column in self.columns if column.full]
        wanted += [name for name in (self.depth, self.leads, self.order) if name]
        if absent := [key for key in wanted if key not in self.rows.columns]:
            raise SchemaError(f"table {self.id}: {', '.join(absent)} not among the rows' columns {self.rows.columns}")

    @property
    def keys(self) -> list[str]:
        """The columns of an export of raw values: those displayed, their full names and the depth, each once."""
        keys = [key for column in self.columns for key in (column.name, column.full) if key]
        return list(dict.fromkeys([*keys, self.depth] if self.depth else keys))

    @cached_property
    def kernel_labels(self) -> dict[str, str]:
        """Distinct short names of the kernels in the rows, by full name."""
        columns = [column.full or column.name for column in self.columns if column.kind == "kernel"]
        return kernel_labels(str(name) for key in columns for name in self.rows[key].drop_nulls())

    def shown(self) -> pl.DataFrame:
        """The rows up to the limit."""
        return self.rows if self.limit is None else self.rows.head(self.limit)

    def texts(self, row: Mapping[str, Any]) -> list[tuple[str, str | None]]:
        """The displayed cells of a row (its values by column name), each with its full text if that is longer."""
        return [
            name_and_full(row[column.name], row[column.full] if column.full else None, column.kind, self.kernel_labels)
            for column in self.columns
        ]


@dataclass(frozen=True)
class Figure:
    """A chart with its caption and alternative text."""

    id: str
    caption: str
    chart: Chart
    alt: str


@dataclass(frozen=True)
class Segment:
    """A part of a strip."""

    title: str
    time_ns: float  #: per step, or of the window
    share: float  #: of the strip
    fill: str  #: colour token
    detail: str = ""


@dataclass(frozen=True)
class Strip:
    """One bar split into parts from left to right, whose shares sum to at most 1."""

    what: str  #: kind of the parts, such as `budget`, `headroom` or `rank`
    device: int  #: CUDA ordinal of the GPU, or the rank
    title: str
    segments: tuple[Segment, ...]
    scale: float = 1.0  #: length of the bar as a share of the page width, to compare bars


@dataclass(frozen=True)
class Answer:
    """The first screen: the limiter of the program, the possible gain, the first remedy, and how to refute it.

    Documents on something else use the same fields: a comparison shows what changed, and why.
    """

    id: str  #: unique in the document
    verdict: str
    severity: str  #: that of the finding; `info` if nothing is lost
    gain: str  #: the expected factor as text, or a word such as `Little`; empty for no card
    gain_range: str  #: its interval and bound, or why there is no gain
    #: do, code, brings: the first remedy, its code and its expected effect; empty if there is none
    do: str
    code: str = ""
    brings: str = ""
    sure: str = ""  #: confidence in the cause; empty if there is no cause
    refute: str = ""  #: the experiment that would refute the cause; empty for none
    notes: tuple[Note, ...] = ()  #: cautions to read before the numbers
    strips: tuple[Strip, ...] = ()  #: the whole time, split into its parts
    together: str = ""  #: what the first remedy and others bring together; empty if that is hardly more
    others: tuple[tuple[str, str, str], ...] = ()  #: further findings: id of the section, name, gain
    unit: str = ""  #: follows the gain
    headings: tuple[str, str] = ("How much there is to gain", "What to do")  #: of the gain and of the remedy
    also: str = "Also found"  #: label of `others`
    tables: tuple[Table, ...] = ()  #: tables below the answer that support it
    again: bool = False  #: whether the document's lead only repeats what the strips show


@dataclass(frozen=True)
class ViewRow:
    """A row of a view's table that links to a place: `span` follows the view's name in the address."""

    span: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """An interactive drawing, made by a script of the page."""

    id: str  #: unique in the document, ends in `-view`
    kind: str  #: its script and style are `assets/<kind>.js` and `assets/<kind>.css`
    caption: str
    alt: str  #: alternative text, with the keyboard controls
    data: Any  #: JSON data of the script, as a string or an object
    #: heading, rows: a table of its content, with links to the places
    heading: tuple[str, ...] = ()
    rows: tuple[ViewRow, ...] = ()

    @property
    def anchor(self) -> str:
        """Its name in addresses: `#timeline/START-END`."""
        return self.id.removesuffix("-view")


@dataclass(frozen=True)
class Jumps:
    """Links to places of a view."""

    view: str  #: anchor of the view
    text: str  #: introduces the links
    places: tuple[tuple[str, str], ...]  #: span and label of each place


Block: TypeAlias = "Paragraph | Notes | KeyFigures | Table | Figure | View | Jumps"


@dataclass(frozen=True)
class Section:
    """A titled part of a document. A page shows one top-level section (a room) at a time."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    subsections: tuple[Section, ...] = ()
    folded: bool = False  #: whether only its title is shown until it is opened

    def all_blocks(self) -> Iterator[Block]:
        """The blocks of this section and of those inside it, in reading order."""
        yield from self.blocks
        for section in self.subsections:
            yield from section.all_blocks()


Numbers = TypeVar("Numbers")


@dataclass(frozen=True)
class SectionOf(Generic[Numbers]):
    """A kind of section, which computes its content from the numbers of a document."""

    id: str  #: unique in the document
    title: str | Callable[[Any], str]  #: heading, or a function of the section's numbers that makes it
    #: yields blocks and subsections; without any, the section is left out
    content: Callable[[Any], Iterable[Block | Section]]
    #: selects the section's numbers from those of the document; None if they are missing
    part: Callable[[Numbers], Any] = lambda numbers: numbers

    def of(self, numbers: Numbers, at: str = "") -> Section | None:
        """The section of these numbers, None if it is empty. `at` prefixes every id, for documents of several parts."""
        own_numbers = self.part(numbers)
        items = [_with_prefix(item, at) for item in self.content(own_numbers)] if own_numbers is not None else []
        if not items:
            return None
        blocks = tuple(item for item in items if not isinstance(item, Section))
        subsections = tuple(item for item in items if isinstance(item, Section))
        title = self.title if isinstance(self.title, str) else self.title(own_numbers)
        return Section(f"{at}{self.id}", title, blocks, subsections)


def sections(kinds: Iterable[SectionOf[Numbers]], numbers: Numbers, at: str = "") -> tuple[Section, ...]:
    """The sections of these numbers without the empty ones."""
    return tuple(section for kind in kinds if (section := kind.of(numbers, at)) is not None)


@overload
def _with_prefix(item: Section, at: str) -> Section: ...
@overload
def _with_prefix(item: Block, at: str) -> Block: ...
def _with_prefix(item: Block | Section, at: str) -> Block | Section:
    if not at:
        return item
    if isinstance(item, Section):
        blocks = tuple(_with_prefix(block, at) for block in item.blocks)
        subsections = tuple(_with_prefix(subsection, at) for subsection in item.subsections)
        return replace(item, id=f"{at}{item.id}", blocks=blocks, subsections=subsections)
    if isinstance(item, Jumps):
        return replace(item, view=f"{at}{item.view}")
    return replace(item, id=f"{at}{item.id}") if isinstance(item, Table | Figure | View) else item


def quiet(text: str) -> Paragraph:
    """A quiet paragraph."""
    return Paragraph(text, quiet=True)


def limits(notes: Sequence[Note]) -> Iterator[Block]:
    """The notes on the limits of a document's numbers, or a sentence that there are none."""
    yield Notes(tuple(notes)) if notes else quiet("No limits of these numbers were found.")


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str  #: the answer, in at most two sentences
    sections: tuple[Section, ...]  #: in reading order; each is a room of the page
    meta: tuple[tuple[str, str], ...] = ()  #: facts about the source (label, value), for the head of the page
    answer: Answer | None = None  #: the first screen, if there is a verdict
    parts: tuple[Document, ...] = ()  #: one document per profile, if there are several; a page shows one at a time
    id: str = ""  #: of a part

    def blocks(self) -> Iterator[Block]:
        """Every block of this document and its parts, in reading order."""
        if self.answer is not None:
            yield from self.answer.tables
        for section in self.sections:
            yield from section.all_blocks()
        for part in self.parts:
            yield from part.blocks()

    def figures(self) -> list[Figure]:
        """Every figure, in reading order."""
        return [block for block in self.blocks() if isinstance(block, Figure)]

    def tables(self) -> list[Table]:
        """Every table, in reading order."""
        return [block for block in self.blocks() if isinstance(block, Table)]
