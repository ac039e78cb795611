"""A profile as files of columns: one Parquet or CSV file a table, for pandas, DuckDB, spreadsheets.

The tables are those of `warplens.profile.schema` with their exact numbers (integer nanoseconds and bytes), and `work`:
all GPU work in order of time with the call, thread and range that issued it. `capture.json` says where they come from.

Every export hands on times and numbers whole, and texts without paths, machines and people (`shareable`): cleaned like
those of a copy (`warplens.scrub`), but by their form alone, as what a profile says about its user stays unread. Names
of kernels and calls were written by compilers and lose paths only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import orjson
import polars as pl

from warplens._version import __version__
from warplens.analysis.timeline import Timeline
from warplens.profile.counters import KernelCounters
from warplens.profile.schema import name_categories
from warplens.profile.trace import TABLES, Capture, Trace
from warplens.secrets import Cleaner, Secrets, without_values
from warplens.writing import harmless, made, unfinished, write_whole

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


__all__ = ["TABLE_FORMATS", "counter_tables", "trace_tables", "write_tables"]


def _write_parquet(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path, compression="zstd")


def _write_csv(frame: pl.DataFrame, path: Path) -> None:
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    harmless(frame.with_columns(pl.col(lists).list.join("/"))).write_csv(
        path
    )  # the path of a launch's ranges, outermost first


#: Format → how one table is written; its name is the file's suffix, too.
TABLE_FORMATS: Final[Mapping[str, Callable[[pl.DataFrame, Path], None]]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
}


def trace_tables(timeline: Timeline) -> dict[str, pl.DataFrame]:
    """The tables of a profile that hold anything, by name, and `work`: all GPU work with what issued it.

    `work.range_name` is the innermost range that the work belongs to, `inferred` whether that crosses threads.
    """
    timeline = shareable(timeline)
    trace = timeline.trace
    tables = {name: frame for name in TABLES if (frame := getattr(trace, name)).height}
    if timeline.work.height:
        names = trace.ranges["name"].cast(pl.String)
        work = timeline.work.with_columns(names.gather(timeline.work["range"]).alias("range_name"))
        place = work.columns.index("process") + 1
        tables["work"] = work.insert_column(place, timeline.correlations(work))
    return tables


def counter_tables(counters: KernelCounters) -> dict[str, pl.DataFrame]:
    """The tables of a report of Nsight Compute that hold anything, by name."""
    tables = {"launches": counters.launches, "metrics": counters.metrics, "rules": counters.rules}
    cleaner = Cleaner(Secrets())
    return {name: clean_frame(name, frame, cleaner) for name, frame in tables.items() if frame.height}


def write_tables(tables: Mapping[str, pl.DataFrame], capture: Capture | None, folder: Path, form: str) -> list[Path]:
    """Writes each table as a file of its name; the files written, in order.

    Args:
        tables: what to write.
        capture: what `capture.json` says of a trace; None writes none.
        folder: where to; it is created, and files of these names are replaced.
        form: one of `TABLE_FORMATS`.
    """
    with made(folder):
        written = []
        for name, frame in tables.items():
            path = folder / f"{name}.{form}"
            with unfinished(path) as partial:
                TABLE_FORMATS[form](_plain(frame), partial)
            written.append(path)
        if capture is not None:
            path = folder / "capture.json"
            known = asdict(capture) | {"recorder": capture.tool, "recorded": sorted(capture.recorded)}
            facts = {"tool" if name == "recorder" else name: fact for name, fact in known.items()}
            facts["warplens"] = __version__
            write_whole(path, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")
            written.append(path)
        return written


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """Names as text: dictionaries differ from reader to reader, and Parquet encodes repetitions itself."""
    return frame.with_columns(pl.col(name).cast(pl.String) for name, kind in frame.schema.items() if kind == pl.Enum)
