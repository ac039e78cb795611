"""Columns and tables: one description of a column for checks, headings, help and the column reference.

A column is declared once, in `profile/columns.py` if several tables have it and else with its table. Its name contains
its unit, which determines the format of its values (`kind`) and, unless given, its heading:

* time is `Int64` nanoseconds in the profile's own clock, in columns that end in `_ns`; bytes end in `_bytes`;
* `process` and `thread` are operating-system ids, `device` is the CUDA ordinal in the profile;
* host and device are joined on `(process, correlation)`: the same correlation id does occur in two processes of one
  file;
* names are dictionary-encoded (`polars.Enum`), because a capture holds millions of launches of a few hundred kernels;
* a quantity that the source does not record is null, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.errors import SchemaError, UsageError

PolarsType: TypeAlias = "type[pl.DataType] | pl.DataType"

#: Values of columns, as arrays.
Int64s: TypeAlias = npt.NDArray[np.int64]
Float64s: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

#: The kind of a value, which determines its format for people. `kernel` and `name` are texts that may be shortened,
#: `code` keeps its lines and indentation.
Kind: TypeAlias = Literal[
    "duration_ns",
    "change_ns",
    "bytes",
    "share",
    "count",
    "number",
    "rate",
    "bandwidth",
    "flops",
    "flop_count",
    "text",
    "name",
    "kernel",
    "code",
]

#: Marks a column of dictionary-encoded text; its concrete dtype is an `Enum` whose categories differ from file to file.
NAME = pl.Enum

#: The kind of values by the column's name; the first match decides.
_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"(^|_)change_ns(_per_\w+)?$", "change_ns"),
    (r"(^|_)ns(_per_\w+)?$", "duration_ns"),
    (r"(^|_)bytes_per_s$", "bandwidth"),
    (r"(^|_)flops_per_s$", "flops"),
    (r"_per_s$", "rate"),
    (r"(^|_)flops$", "flop_count"),
    (r"(^|_)share$", "share"),
    (r"(^|_)bytes(_per_\w+)?$", "bytes"),
)

#: Numbers that are only identifiers: never summed or rounded.
_IDENTITIES = frozenset({"device", "process", "thread", "stream", "id", "parent", "context", "launch"})


#: In place of the kind of a new column: it follows from name and type. A column that exists always has one.
_BY_NAME: Final[Any] = None


@dataclass(frozen=True)
class Column:
    """One column of a table, for programs and for people.

    Attributes:
        name: key in frames, JSON and CSV; ends in its unit (`_ns`, `_bytes`, `_bytes_per_s`, `_share`, …).
        dtype: type; `NAME` for dictionary-encoded text.
        help: meaning, as a clause without capital or full stop; printed in the reference and on pages.
        nullable: whether values may be null.
        title: heading; by default the name without its unit.
        kind: format of the values; by default from the name's unit, else from the type.
        full: column with the unabridged text of a `kernel` or `name`, if it is another column.
    """

    name: str
    dtype: PolarsType = pl.String
    help: str = ""
    nullable: bool = False
    title: str = ""
    kind: Kind = _BY_NAME
    full: str | None = None

    def __post_init__(self) -> None:
        if not self.title:
            plain = re.sub(r"_(ns|bytes|share|bytes_per_s|flops_per_s|per_s)$", "", self.name).replace("_", " ")
            object.__setattr__(self, "title", plain[:1].upper() + plain[1:])
        if self.kind is _BY_NAME:
            object.__setattr__(self, "kind", _kind(self.name, self.dtype))

    def but(self, **changes: Any) -> Column:
        """The same column with changes: `column("share").but(help="of the window")`.

        A new type also changes the kind of values, unless the change gives one.
        """
        dtype = changes.get("dtype", self.dtype)
        is_default_kind = self.kind == _kind(self.name, self.dtype) or dtype.is_numeric() != self.dtype.is_numeric()
        if dtype is not self.dtype and "kind" not in changes and is_default_kind:
            changes["kind"] = _kind(changes.get("name", self.name), dtype)
        return replace(self, **changes)

    @property
    def sentence(self) -> str:
        """The help as shown below a table: a sentence without markup, or an empty text."""
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", self.help)
        opens_with_key = plain.startswith("`")
        plain = plain.replace("`", "")
        start = plain if opens_with_key else plain[:1].upper() + plain[1:]
        return f"{start}." if start and not start.endswith((".", "?", "…")) else start

    def accepts(self, dtype: pl.DataType) -> bool:
        """Whether a frame's column of this dtype is valid for this column."""
        return isinstance(dtype, pl.Enum) if self.dtype is NAME else dtype == self.dtype

    def empty(self) -> pl.Series:
        """A series of length zero with this column's name and type."""
        return pl.Series(self.name, [], dtype=pl.Enum([]) if self.dtype is NAME else self.dtype)


def _kind(name: str, dtype: PolarsType) -> Kind:
    if not dtype.is_numeric() or name in _IDENTITIES:
        return "text"
    for pattern, kind in _KINDS:
        if re.search(pattern, name):
            return kind
    return "count" if dtype.is_integer() else "number"


@dataclass(frozen=True)
class Table:
    """One table: its columns in order, and the meaning of a row."""

    name: str  #: name in messages and in the column reference
    row: str  #: the meaning of a row
    columns: tuple[Column, ...]  #: in order
    #: columns that rows can be grouped by; they come first, and only the requested ones
    keys: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns' names."""
        return [column.name for column in self.columns]

    @cached_property
    def _without_rows(self) -> pl.DataFrame:
        return pl.DataFrame([column.empty() for column in self.columns])

    @property
    def schema(self) -> pl.Schema:
        """The columns' names and types."""
        return self._without_rows.schema

    def column(self, name: str) -> Column:
        """The column of this name.

        Raises:
            SchemaError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise SchemaError(f"table {self.name} has no column {name}; it has {', '.join(self.names)}")

    def only(self, *names: str | Column) -> Table:
        """The table with these columns in this order; one text may hold several names separated by spaces.

        A `Column` is taken as it is, so that a page can show columns that it added, or change a heading.
        """
        parts = [part for name in names for part in ([name] if isinstance(name, Column) else name.split())]
        columns = (part if isinstance(part, Column) else self.column(part) for part in parts)
        return replace(self, columns=tuple(columns))

    def without(self, *names: str) -> Table:
        """The table without these columns."""
        return replace(self, columns=tuple(column for column in self.columns if column.name not in names))

    def by(self, *keys: str) -> Table:
        """The table with rows grouped by these of its keys.

        Raises:
            UsageError: rows cannot be grouped by one of them, or by none.
        """
        unknown = [key for key in keys if key not in self.keys]
        if unknown or not keys:
            allowed = ", ".join(self.keys)
            raise UsageError(f"{self.name} cannot be grouped by {', '.join(unknown) or 'nothing'}; use {allowed}")
        return self.only(*keys, *(column for column in self.columns if column.name not in self.keys))

    def empty(self) -> pl.DataFrame:
        """A frame without rows, with the whole schema."""
        return self._without_rows.clone()

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with exactly this table's columns, in order, cast to their types."""
        return pl.DataFrame([frame.get_column(column.name).cast(column.dtype) for column in self.columns])

    def checked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with exactly this table's columns, in order.

        Raises:
            SchemaError: a column is absent, has another type, or holds nulls without being nullable.
        """
        found = {series.name: series for series in frame.get_columns()}
        for column in self.columns:
            series = found.get(column.name)
            if series is None:
                raise SchemaError(f"table {self.name}: column {column.name} is absent; found {frame.columns}")
            if not column.accepts(series.dtype):
                raise SchemaError(
                    f"table {self.name}: column {column.name} has type {series.dtype}, expected {column.dtype}"
                )
            if not column.nullable and series.null_count():
                raise SchemaError(f"table {self.name}: column {column.name} holds {series.null_count()} nulls")
        names = self.names
        return frame.clone() if list(found) == names else frame[names]


#: Longest name (kernel, range, operator) in characters; a longer one is cut and ends in an ellipsis. Templates of
#: CUTLASS reach some ten thousand. Patterns that search names take time in proportion to their length: a name of 200 MB
#: would take hours.
LONGEST_NAME = 2**15


def encode_names(codes: npt.NDArray[np.integer] | pl.Series, values: Iterable[str]) -> pl.Series:
    """Dictionary-encoded names: `values[codes[i]]` for each row.

    Args:
        codes: positions in `values`, one per row; a null code gives a null name.
        values: the distinct texts; repeated ones are merged.
    """
    texts = [text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…" for text in values]
    distinct = list(dict.fromkeys(texts))
    dictionary = pl.Series(texts, dtype=pl.Enum(distinct))
    positions = codes if isinstance(codes, pl.Series) else pl.Series(codes)
    return dictionary.gather(positions)


def name_categories(names: pl.Series) -> pl.Series:
    """The distinct texts that a dictionary-encoded column can hold, in the order of its codes (`to_physical`).

    Raises:
        SchemaError: the column is not dictionary-encoded.
    """
    dtype = names.dtype  # a new object at each access
    if not isinstance(dtype, pl.Enum):
        raise SchemaError(f"column {names.name} is not dictionary-encoded but {dtype}")
    return dtype.categories


Answer = TypeVar("Answer")

#: Number of dictionaries whose results are kept: a profile has names of kernels, API calls, ranges and Python
#: functions.
_CACHED_DICTIONARIES: Final = 8


def once_per_dictionary(function: Callable[[pl.Series], Answer]) -> Callable[[pl.Series], Answer]:
    """Make a function of the texts of a dictionary-encoded column keep its results.

    Several analyses need the same result for the same names, and tables of one profile share a dictionary. Callers must
    not change results.
    """
    results: list[tuple[pl.Series, Answer]] = []

    @wraps(function)
    def cached(names: pl.Series) -> Answer:
        texts = name_categories(names)
        for position, (known_texts, result) in enumerate(results):
            if texts.len() == known_texts.len() and texts.equals(known_texts):
                results.insert(0, results.pop(position))
                return result
        result = function(texts)
        results.insert(0, (texts, result))
        del results[_CACHED_DICTIONARIES:]
        return result

    return cached


@once_per_dictionary
def _texts_without_numbers(texts: pl.Series) -> tuple[pl.Series, Int64s]:
    """The distinct texts with every number written as 0, in order of appearance, and each text's index among them."""
    folded = texts.cast(pl.String).str.replace_all(r"\d+", "0")
    distinct = folded.unique(maintain_order=True)
    return distinct, folded.cast(pl.Enum(distinct)).to_physical().cast(pl.Int64).to_numpy()


def names_as_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with dictionary-encoded names as texts."""
    return frame.with_columns(pl.col(name).cast(pl.String) for name, kind in frame.schema.items() if kind == pl.Enum)


def texts_with(texts: pl.Series, pattern: re.Pattern[str]) -> Bools:
    """Which texts contain a match of the pattern.

    Many or long names are searched by Polars' engine, in a tenth of the time of Python's. It has no look-around.
    """
    flags = "(?i)" if pattern.flags & re.IGNORECASE else ""
    try:
        return texts.str.contains(flags + pattern.pattern).to_numpy()
    except pl.exceptions.ComputeError:
        return np.array([pattern.search(text) is not None for text in texts], dtype=np.bool_)


def texts_where(texts: pl.Series, holds: Callable[[str], object]) -> Bools:
    """Which texts satisfy the predicate, which is asked once per distinct text; null does not."""
    found = [text for text in texts.drop_nulls().unique().to_list() if holds(text)]
    return texts.is_in(found).fill_null(value=False).to_numpy()


def rows_named(names: pl.Series, holds: Callable[[str], bool] | re.Pattern[str]) -> Bools:
    """Mask of the rows whose name satisfies the predicate, or contains a match of the pattern.

    The question is asked once per name of the dictionary.
    """
    texts = name_categories(names)
    if callable(holds):
        holds_for_name = np.array([holds(name) for name in texts], dtype=np.bool_)
    else:
        holds_for_name = texts_with(texts, holds)
    if not holds_for_name.any():
        return np.zeros(names.len(), dtype=np.bool_)
    mask: Bools = holds_for_name[names.to_physical().to_numpy()]
    return mask


def name_labels(names: pl.Series, meaning: Callable[[str], int], only: re.Pattern[str] | None = None) -> Int64s:
    """A label for the name of each row, independent of the numbers in it.

    Operators that carry running numbers (`aten::mm, seq = 12, op_id = 7`) have a separate name for each call: `meaning`
    is called once for all of them, with 0 for every number.

    Args:
        names: a dictionary-encoded column.
        meaning: gives the label of a name.
        only: a pattern that all names with a label other than 0 contain, so that few of many names need `meaning`.
    """
    distinct, distinct_index = _texts_without_numbers(names)
    if not distinct.len():
        return np.empty(0, dtype=np.int64)
    asked = np.arange(distinct.len()) if only is None else np.flatnonzero(texts_with(distinct, only))
    label_of_distinct = np.zeros(distinct.len(), dtype=np.int64)
    label_of_distinct[asked] = [meaning(text) for text in distinct.gather(asked)]
    labels: Int64s = label_of_distinct[distinct_index][names.to_physical().to_numpy()]
    return labels
