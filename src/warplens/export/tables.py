"""A profile as files of columns: one Parquet or CSV file a table, for pandas, DuckDB, spreadsheets.

The tables are those of `warplens.profile.schema` with their exact numbers (integer nanoseconds and bytes), and `work`:
all GPU work in order of time with the call, thread and range that issued it. `capture.json` says where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson
import polars as pl

from warplens._version import __version__
from warplens.analysis.timeline import Timeline
from warplens.export.sharing import clean_frame, shareable
from warplens.profile.counters import KernelCounters
from warplens.profile.tables import TABLES
from warplens.profile.trace import Capture
from warplens.secrets import Cleaner, Secrets
from warplens.writing import harmless, unfinished, write_whole

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
        tables["work"] = timeline.work.with_columns(names.gather(timeline.work["range"]).alias("range_name"))
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
    folder.mkdir(parents=True, exist_ok=True)
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
