"""Writes a profile as tables, one Parquet or CSV file each, for pandas, DuckDB and spreadsheets.

The tables are those of `warplens.profile.schema` with exact numbers (integer nanoseconds and bytes), and `work`: all
GPU work sorted by time, with the call, thread and range that launched it. `capture.json` describes their source.

Exports keep times and numbers, and remove paths, machines and people from texts (`shareable`) as `warplens.scrub` does,
but by form alone, since the parts of a profile that describe its user are not read. Names of kernels and calls, which
compilers wrote, only lose paths.
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
from warplens.profile.schema import name_categories, names_as_texts
from warplens.profile.trace import TABLES, Capture, Trace
from warplens.secrets import Cleaner, Secrets, without_values
from warplens.writing import harmless, made, unfinished, write_whole

#: Columns of names written by compilers; names in other tables may be written by people.
_COMPILED: Final = frozenset(
    {(table, column) for table in ("kernels", "launches") for column in ("name", "full_name")} | {("api_calls", "name")}
)


def shareable(timeline: Timeline) -> Timeline:
    """The profile with cleaned texts; the same object if nothing changes."""
    cleaner = Cleaner(Secrets())
    trace: Trace = timeline.trace
    frames = ((name, getattr(trace, name)) for name in TABLES)
    cleaned: dict[str, Any] = {name: clean_frame(name, frame, cleaner) for name, frame in frames}
    changed = {name: frame for name, frame in cleaned.items() if frame is not getattr(trace, name)}
    return Timeline(replace(trace, **changed)) if changed else timeline


def clean_frame(table: str, frame: pl.DataFrame, cleaner: Cleaner) -> pl.DataFrame:
    """A table with cleaned texts; the same object if nothing changes."""
    changed = [clean for name in frame.columns if (clean := _clean(table, frame[name], cleaner)) is not None]
    return frame.with_columns(changed) if changed else frame


def _clean(table: str, column: pl.Series, cleaner: Cleaner) -> pl.Series | None:
    """A column with cleaned texts, each distinct text cleaned once; None if nothing changes."""
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


def _write_parquet(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path, compression="zstd")


def _write_csv(frame: pl.DataFrame, path: Path) -> None:
    # The only lists are the ranges of a launch, outermost first.
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    harmless(frame.with_columns(pl.col(lists).list.join("/"))).write_csv(path)


#: Function that writes a table, by format, which is also the suffix of the file.
TABLE_FORMATS: Final[Mapping[str, Callable[[pl.DataFrame, Path], None]]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
}


def trace_tables(timeline: Timeline) -> dict[str, pl.DataFrame]:
    """The tables of a profile that are not empty, by name, and `work`: all GPU work with its launching call.

    `work.range_name` is the innermost range of the work; `inferred` says whether it was open on another thread.
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
    """The tables of a report of Nsight Compute that are not empty, by name."""
    tables = {"launches": counters.launches, "metrics": counters.metrics, "rules": counters.rules}
    cleaner = Cleaner(Secrets())
    return {name: clean_frame(name, frame, cleaner) for name, frame in tables.items() if frame.height}


def write_tables(tables: Mapping[str, pl.DataFrame], capture: Capture | None, folder: Path, form: str) -> list[Path]:
    """Write each table to a file of its name, and return the files in order.

    Args:
        tables: the tables by name.
        capture: source of a trace, for `capture.json`; None to write none.
        folder: created if necessary; files of these names are replaced.
        form: one of `TABLE_FORMATS`.
    """
    with made(folder):
        written = []
        for name, frame in tables.items():
            path = folder / f"{name}.{form}"
            with unfinished(path) as partial:
                # Readers handle dictionaries differently; Parquet compresses repetitions.
                TABLE_FORMATS[form](names_as_texts(frame), partial)
            written.append(path)
        if capture is not None:
            path = folder / "capture.json"
            fields = asdict(capture) | {"recorder": capture.tool, "recorded": sorted(capture.recorded)}
            facts = {"tool" if name == "recorder" else name: fact for name, fact in fields.items()}
            facts["warplens"] = __version__
            write_whole(path, orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n")
            written.append(path)
        return written
