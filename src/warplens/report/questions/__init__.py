"""Questions about one profile that are answered by a table; each is defined once, in the module of its topic.

A question is a function of timeline, window and grouping that returns `QuestionResult`. `warplens.cli` makes a command
with the common options and formats out of it. To add one, write it in the module of its topic (`time`, `gpu`, `host`,
`operators`, `memory`) and name it in `warplens.cli.catalogue`, which lists names and summaries, so that only the module
of the requested topic is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import polars as pl

    from warplens.report.document import Table


@dataclass(frozen=True)
class QuestionResult:
    """The answer to a question."""

    rows: pl.DataFrame  #: exact numbers, for CSV and `data.rows` of the JSON
    tables: tuple[Table, ...]  #: the rows for display
    facts: tuple[str, ...] = ()  #: sentences to print above the table, coverage among them
    data: Mapping[str, Any] = field(default_factory=dict)  #: further JSON data besides `window` and `rows`
    #: for a tree: the column by which the largest rows are chosen if not all are shown, and the plural noun for rows.
    #: No row has a larger value than its parent, which precedes it.
    largest_by: tuple[str, str] | None = None


Ask: TypeAlias = Callable[..., QuestionResult]


@dataclass(frozen=True)
class HistogramQuery:
    """Answers a question from counts of equal durations instead of single events, for profiles larger than memory."""

    table: str  #: table of the trace
    columns: Callable[[str], tuple[str, ...]]  #: maps a grouping to the columns to count by
    #: maps counts (`warplens.readers.nsys.slices.Slices.counts`) and a grouping to the answer
    answer: Callable[[pl.DataFrame, str], QuestionResult]


@dataclass(frozen=True)
class Question:
    """A question and the options of its command."""

    #: `(timeline, window, by)`, without `by` if there are no groupings; its docstring is the command's help
    ask: Ask
    by: tuple[str, ...] = ()  #: groupings; the first is the default unless `default` is set
    default: str = ""  #: the default grouping
    several: bool = False  #: whether groupings may be joined by commas
    whole: bool = False  #: whether all rows are shown by default
    flags: Mapping[str, str] = field(default_factory=dict)  #: further options without a value: parameter and help
    counted: HistogramQuery | None = None  #: for profiles larger than memory
    alone: tuple[str, ...] = ()  #: alternatively, the only tables of the trace needed, small in any profile


#: Columns of durations in tables of calls and kernels.
DURATIONS: Final = "calls total_ns share median_ns max_ns"


def question(*by: str, default: str | None = None, **more: Any) -> Callable[[Ask], Question]:
    """Decorator that makes a `Question` of a function, with these groupings and other attributes of `Question`."""

    def decorated(ask: Ask) -> Question:
        return Question(ask, by, default or (by[0] if by else ""), **more)

    return decorated
