"""What a report says, as a tree of typed blocks without formatting; renderers turn one `Document` into each output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, overload

from warplens.errors import SchemaError
from warplens.profile.schema import Column, Kind
from warplens.report.text import Scalar, kernel_labels, name_and_full

if TYPE_CHECKING:
    import polars as pl

    from warplens.profile import Note, schema
    from warplens.report.charts import Chart

#: Rows of a table that are shown before the reader asks for more.
DEFAULT_LIMIT = 15


@dataclass(frozen=True)
class Paragraph:
    """Running text. A quiet one explains (how a number was got); a plain one answers."""

    text: str
    quiet: bool = False


#: What notes are called on a page, by their level.
NOTE_TAGS: Final = {"info": "Note", "warning": "Caution", "blocking": "Missing"}


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
        parts: names of its columns, several in one text; a `Column` stands for itself, such as one that a page adds.
        titles: headings that are others here.
    """
    chosen = table.only(*parts).columns
    return tuple(column.but(title=titles[column.name]) if column.name in titles else column for column in chosen)


def with_texts(rows: pl.DataFrame, **texts: Callable[[Mapping[str, Any]], str | None]) -> pl.DataFrame:
    """The rows with columns of text, each made of a whole row."""
    import polars as pl

    known = rows.to_dicts()
    return rows.with_columns(pl.Series(name, map(text, known), dtype=pl.String) for name, text in texts.items())


@dataclass(frozen=True)
class Table:
    """Rows with the columns that people see of them.

    Raises:
        SchemaError: a displayed column is not in `rows`.
    """

    id: str  #: unique in the document; becomes the anchor and the file name
    caption: str
    columns: tuple[Column, ...]  #: in the order of display
    rows: pl.DataFrame  #: exact values; may hold more columns than are displayed
    limit: int | None = DEFAULT_LIMIT  #: rows shown at first; None for all
    #: column with each row's nesting depth; rows then stand in pre-order, every row after its parent
    depth: str | None = None
    empty: str = "No rows."  #: what to say when there are no rows
    leads: str | None = None  #: column with the id of the part of the document that a row is about
    cards: bool = False  #: on a narrow page each row is a card; so is one that leads somewhere
    #: column by which the rows stand, where that is not the first time: it stays on a narrow terminal
    order: str | None = None

    def __post_init__(self) -> None:
        wanted = [column.name for column in self.columns]
        wanted += [column.full for column in self.columns if column.full]
        wanted += [name for name in (self.depth, self.leads, self.order) if name]
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

    @cached_property
    def kernel_labels(self) -> dict[str, str]:
        """By full name, what each kernel of the rows is called: no two of them look the same."""
        columns = [column.full or column.name for column in self.columns if column.kind == "kernel"]
        return kernel_labels(str(name) for key in columns for name in self.rows[key].drop_nulls())

    def shown(self) -> pl.DataFrame:
        """The rows up to the limit."""
        return self.rows if self.limit is None else self.rows.head(self.limit)

    def texts(self, row: Mapping[str, Any]) -> list[tuple[str, str | None]]:
        """The cells of a row (all its values, by name) as people see them, each with the full name behind it."""
        return [
            name_and_full(row[column.name], row[column.full] if column.full else None, column.kind, self.kernel_labels)
            for column in self.columns
        ]


@dataclass(frozen=True)
class Figure:
    """A chart with its caption, and the text that stands for it where it cannot be seen."""

    id: str
    caption: str
    chart: Chart
    alt: str


@dataclass(frozen=True)
class Segment:
    """A part of a strip: what it is, its time in one unit of the strip, its share of the strip, its colour token."""

    title: str
    time_ns: float
    share: float
    fill: str
    detail: str = ""


@dataclass(frozen=True)
class Strip:
    """One bar that is a whole, split into its parts from left to right; they are at most the whole."""

    what: str  #: `budget` or `headroom`, whose parts these are
    device: int  #: CUDA ordinal of the GPU
    title: str  #: what the whole is, and how long it takes
    segments: tuple[Segment, ...]
    scale: float = 1.0  #: how long the bar is, of the width of the page; two bars of one scale compare


@dataclass(frozen=True)
class Answer:
    """The first screen: what limits the program, how much there is to gain, what to do, and how that could be wrong.

    Documents that are not about one program say the same in their own words: a comparison what changed, and why.
    """

    id: str  #: unique in the document
    verdict: str
    severity: str  #: that of the finding; `info` where nothing is lost
    gain: str  #: the factor that is expected, as text, or a word such as `Little`; empty for no card
    gain_range: str  #: the interval and the bound of it, or why there is none
    #: do, code, brings: the first remedy: what to do, how, and what it should bring; empty where there is none
    do: str
    code: str
    brings: str
    sure: str  #: how sure the cause is; empty where there is no cause
    refute: str  #: the experiment that would show that it is wrong; empty for none
    notes: tuple[Note, ...] = ()  #: what to know before any number
    strips: tuple[Strip, ...] = ()  #: the whole time, split into its parts
    others: tuple[tuple[str, str, str], ...] = ()  #: further findings: id of the section, name, gain
    unit: str = ""  #: stands behind the gain
    headings: tuple[str, str] = ("How much there is to gain", "What to do")  #: above the gain and above what to do
    also: str = "Also found"  #: stands before the others
    tables: tuple[Table, ...] = ()  #: what the answer is read from, below it
    again: bool = False  #: whether the document's lead says no more than the strips show


@dataclass(frozen=True)
class ViewRow:
    """A place that a view goes to: `span` stands behind the view's name in the address, `cells` say what is there."""

    span: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """Something that a script of the page draws and lets the reader explore."""

    id: str  #: unique in the document, ending in `-view`; what stands before is its name in addresses
    kind: str  #: which script and style it needs, `assets/<kind>.js` and `assets/<kind>.css`
    caption: str
    alt: str  #: the text that stands for it, and how it is used with a keyboard
    data: Any  #: for the script; what a JSON string or object can hold
    #: heading, rows: what it shows in words, with links to the places
    heading: tuple[str, ...] = ()
    rows: tuple[ViewRow, ...] = ()

    @property
    def anchor(self) -> str:
        """Its name in addresses: `#timeline/START-END`."""
        return self.id.removesuffix("-view")


@dataclass(frozen=True)
class Jumps:
    """Links to places of a view: its name in addresses, what leads there, and for each place its span and words."""

    view: str
    text: str
    places: tuple[tuple[str, str], ...]


Block: TypeAlias = "Paragraph | Notes | KeyFigures | Table | Figure | View | Jumps"


@dataclass(frozen=True)
class Section:
    """A titled part of a document; of the topmost ones, a page shows one at a time (a room).

    A folded one shows its title until it is opened.
    """

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    subsections: tuple[Section, ...] = ()
    folded: bool = False

    def all_blocks(self) -> Iterator[Block]:
        """The blocks of this section and of those inside it, in reading order."""
        yield from self.blocks
        for section in self.subsections:
            yield from section.all_blocks()


Numbers = TypeVar("Numbers")


@dataclass(frozen=True)
class SectionOf(Generic[Numbers]):
    """A section of one kind of document: computes from the numbers what it shows."""

    id: str  #: unique in the document
    title: str | Callable[[Any], str]  #: heading, or what makes it
    #: yields blocks, and sections inside this one; a section without any is left out
    content: Callable[[Any], Iterable[Block | Section]]
    #: what the section is about, of the numbers of a document; None where they lack it
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
    if not at:
        return item
    if isinstance(item, Section):
        blocks = tuple(_placed(block, at) for block in item.blocks)
        inside = tuple(_placed(inner, at) for inner in item.subsections)
        return replace(item, id=f"{at}{item.id}", blocks=blocks, subsections=inside)
    if isinstance(item, Jumps):
        return replace(item, view=f"{at}{item.view}")
    return replace(item, id=f"{at}{item.id}") if isinstance(item, Table | Figure | View) else item


def quiet(text: str) -> Paragraph:
    """A paragraph that explains."""
    return Paragraph(text, quiet=True)


def limits(notes: Sequence[Note]) -> Iterator[Block]:
    """What to know before the numbers are read."""
    yield Notes(tuple(notes)) if notes else quiet("No limits of these numbers were found.")


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str  #: the answer, in at most two sentences
    sections: tuple[Section, ...]  #: in reading order; each is a room of the page
    #: facts about the source (label, value), for the head of the page
    meta: tuple[tuple[str, str], ...] = field(default=())
    answer: Answer | None = None  #: what the first screen says, where there is a verdict
    #: documents about one of several profiles each, of which a page shows one at a time
    parts: tuple[Document, ...] = ()
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
