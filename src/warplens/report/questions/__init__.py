"""What can be asked of one profile with one table as the answer: each question is written once, in a topic's module.

A question is a function of timeline, window and grouping that returns `Found`. `warplens.cli` makes a command with the
options and formats of all others out of it. To add one, write it in the module of its topic (`time`, `gpu`, `host`,
`operators`, `memory`) and name it in `warplens.cli.catalogue`. Only the module of the topic that is asked about is
imported: the names of questions and what they answer stand in the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    import polars as pl

    from warplens.report.document import Table


@dataclass(frozen=True)
class Found:
    """The answer to a question."""

    rows: pl.DataFrame  #: every number, exact; `data.rows` of the JSON, and the CSV
    tables: tuple[Table, ...]  #: the same for people, one or several
    facts: tuple[str, ...] = ()  #: sentences that belong above the table, coverage among them
    data: Mapping[str, Any] = field(default_factory=dict)  #: what else the JSON holds beside `window` and `rows`
    #: of a tree, the column by which rows are chosen where not all are shown, and what rows are called: no row has more
    #: of it than its parent, which stands before it
    largest_by: tuple[str, str] | None = None


Ask: TypeAlias = Callable[..., Found]


@dataclass(frozen=True)
class Counted:
    """How a question is answered of counted durations instead of single events, for profiles larger than memory."""

    table: str
    columns: Callable[[str], tuple[str, ...]]  #: by grouping, the columns of it that must be told apart
    #: of the counts (`warplens.readers.nsys.slices.Slices.counts`) and the grouping
    answer: Callable[[pl.DataFrame, str], Found]


@dataclass(frozen=True)
class Question:
    """A question with its answers' shape."""

    #: `(timeline, window, by)`, without `by` where there are no groupings; its docstring is the command's help
    ask: Ask
    by: tuple[str, ...] = ()  #: what may make a row, the first of them unless `default` says otherwise
    default: str = ""  #: the grouping that nobody asked for
    several: bool = False  #: whether groupings may be joined by commas
    whole: bool = False  #: whether all rows are shown unless fewer are asked for
    flags: Mapping[str, str] = field(default_factory=dict)  #: further options without a value: parameter and help
    counted: Counted | None = None  #: how it is answered of a profile that is larger than memory
    alone: tuple[str, ...] = ()  #: or the tables of the trace that it needs, which are small in any profile


#: What tables of calls and kernels show of their lengths.
DURATIONS: Final = "calls total_ns share median_ns max_ns"


def question(*by: str, default: str | None = None, **more: Any) -> Callable[[Ask], Question]:
    """Make a question of the function below, with what may make a row and the other attributes of `Question`."""

    def asked(ask: Ask) -> Question:
        return Question(ask, by, default or (by[0] if by else ""), **more)

    return asked
