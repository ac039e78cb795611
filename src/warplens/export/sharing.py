"""What of a profile is handed on: its times and numbers whole, its texts without paths, machines and people.

The texts of an export are cleaned like those of a copy (`warplens.scrub`), but by their form alone: what a profile says
about its user stays unread. Names of kernels and calls were written by compilers and lose paths only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import polars as pl

from warplens.analysis.timeline import Timeline
from warplens.profile.schema import name_categories
from warplens.profile.tables import TABLES
from warplens.profile.trace import Trace
from warplens.secrets import Cleaner, Secrets, without_values

#: Columns of names that compilers wrote; in tables of other things, people may have.
_COMPILED: Final = frozenset(
    {(table, column) for table in ("kernels", "launches") for column in ("name", "full_name")} | {("api_calls", "name")}
)


def shareable(timeline: Timeline) -> Timeline:
    """The same profile with clean texts; itself where nothing had to be changed."""
    cleaner = Cleaner(Secrets())
    trace: Trace = timeline.trace
    before: dict[str, pl.DataFrame] = {name: getattr(trace, name) for name in TABLES}
    after = {name: clean_frame(name, frame, cleaner) for name, frame in before.items()}
    changed: dict[str, Any] = {name: frame for name, frame in after.items() if frame is not before[name]}
    return Timeline(replace(trace, **changed)) if changed else timeline


def clean_frame(table: str, frame: pl.DataFrame, cleaner: Cleaner) -> pl.DataFrame:
    """A table with clean texts; itself where nothing had to be changed."""
    changed = [clean for name in frame.columns if (clean := _clean(table, frame[name], cleaner)) is not None]
    return frame.with_columns(changed) if changed else frame


def _clean(table: str, column: pl.Series, cleaner: Cleaner) -> pl.Series | None:
    """A column with clean texts, each different one cleaned once; None where it has none, or all are clean."""
    if column.dtype == pl.List(pl.String):
        renaming = _renaming(table, column.explode(), cleaner)
        return column.list.eval(pl.element().replace(renaming)) if _changes(renaming) else None
    if not isinstance(column.dtype, (pl.Enum, pl.String)):
        return None
    renaming = _renaming(table, column, cleaner)
    if not _changes(renaming):
        return None
    if isinstance(column.dtype, pl.String):
        return column.replace(renaming)
    kept = pl.Enum(list(dict.fromkeys(renaming.values())))
    return pl.Series(list(renaming.values()), dtype=kept).gather(column.to_physical()).alias(column.name)


def _changes(renaming: dict[str, str]) -> bool:
    return any(old != new for old, new in renaming.items())


def _renaming(table: str, column: pl.Series, cleaner: Cleaner) -> dict[str, str]:
    texts = name_categories(column) if isinstance(column.dtype, pl.Enum) else column.unique(maintain_order=True)
    return {text: _text(table, column.name, text, cleaner) for text in texts.drop_nulls().to_list()}


def _text(table: str, column: str, text: str, cleaner: Cleaner) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    if (table, column) in _COMPILED:
        clean = cleaner.function(table, raw)
    elif table == "python_functions":
        clean = cleaner.python(table, raw)
    elif column == "concrete_inputs":
        return without_values(text)
    else:
        clean = cleaner.written(table, raw)
    return clean.decode("utf-8", "surrogatepass")
