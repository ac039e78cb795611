"""A shareable copy of a profile, without the identities of people and machines.

Each format's reader builds its copy from the data that analyses read and nothing else (`Reader.scrub`); this module
verifies the copy, by reading both files and comparing them value by value, and gives it its name.
"""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

import polars as pl

from warplens.errors import UnreadableInputError, UsageError
from warplens.profile import Capture, Trace
from warplens.profile.counters import KernelCounters
from warplens.profile.measurements import Measurements
from warplens.readers import EVERYTHING
from warplens.readers.opening import Input, ReadOptions, plain
from warplens.readers.scrubbing import ScrubError
from warplens.secrets import MARK

__all__ = ["ScrubError", "ScrubReport", "check", "scrub"]

#: Compression levels: the smallest files that take no more than a few seconds per 100 MB.
_GZIP_LEVEL, _XZ_PRESET, _ZSTD_LEVEL = 6, 6, 10

#: Notes about the original file, not about the recording: lines around a table, how a report was opened, files beside
#: it, undecodable bytes, which a copy holds as the � that is shown.
_FILE_NOTES: Final = frozenset({"foreign-lines", "converted-report", "older-export", "undecodable-names"})

#: In a copy of a truncated trace, the same data is missing for another reason.
_TRUNCATION_NOTES: Final = frozenset({"truncated-trace", "damaged-events", "incomplete-report"})


@dataclass(frozen=True)
class ScrubReport:
    """The result of `scrub` in counts, without repeating removed texts."""

    source: str  #: name of the file that was read, without folders
    target: Path  #: the copy
    source_bytes: int  #: size of the original, unpacked
    target_bytes: int  #: size of the copy, unpacked
    compared: int = 0  #: tables that were read from both files and found to be the same
    #: tables, rows, texts, searched, words, kinds, left: as in `Removed`
    tables: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    searched: int = 0
    words: tuple[str, str] = ("rows of whole tables", "rows of others")
    kinds: dict[str, int] = field(default_factory=dict)
    left: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether a copy would lack nothing of the original."""
        return not (self.tables or self.rows or self.texts or self.kinds)


def scrub(source: Path, target: Path, *, progress: Callable[[str], None] | None = None) -> ScrubReport:
    """Copies a profile without identities of people and machines; analyses of the copy give the same results.

    Accepts the formats of `warplens.readers`: captures of Nsight Systems (the copy is an SQLite export), traces of the
    PyTorch profiler, reports of Nsight Compute and their CSV exports, CSV files of timings, measurements files;
    compressed or not.

    Before the copy gets its name, it is searched for everything that was removed, and read: it must give the same
    tables as the original, except for rewritten texts.

    Args:
        source: the profile; opened read-only and left as it is.
        target: a file that does not exist yet; compressed if its name ends with .gz, .xz or .zst.
        progress: called with a short description of the current action.

    Raises:
        UsageError: the target exists, or its folder does not.
        UnreadableInputError: the source is damaged or not a profile.
        ScrubError: the copy still holds identifying texts, or differs from the original; no file is written.
    """
    report = progress or (lambda _: None)
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target.name}: exists already; scrub writes a new file and changes none")
    if not target.parent.is_dir():
        raise UsageError(f"{target.name}: the folder to write it to does not exist")
    with (
        plain(source, report) as path,
        _unfinished(target, "") as copy,
        _unfinished(target, ".packed") as packed,
        TemporaryDirectory(prefix="warplens-") as folder,
    ):
        input_file = Input(path, source, None, report)
        file = EVERYTHING.reader_of(input_file).original(input_file, Path(folder))
        reader = EVERYTHING.reader_of(file)
        report(f"{source.name}: copying")
        removed = reader.scrub(file, copy)
        report(f"{source.name}: reading the copy")
        compared = _compared(reader.read(file, ReadOptions()), reader.read(Input(copy, copy), ReadOptions()), source)
        sizes = path.stat().st_size, copy.stat().st_size
        _packed(copy, packed, target.suffix).rename(target)
    return ScrubReport(source.name, target, *sizes, compared, **vars(removed))


def check(source: Path, *, progress: Callable[[str], None] | None = None) -> ScrubReport:
    """The kinds and counts of what a copy of a profile would lack; the copy is not kept. Errors as of `scrub`."""
    with TemporaryDirectory(prefix="warplens-") as folder:
        return scrub(source, Path(folder) / "copy", progress=progress)


def _packed(content: Path, packed: Path, suffix: str) -> Path:
    """The final file: compressed by the suffix of its name, without name and time of the original."""
    openers: dict[str, Callable[[IO[bytes]], Any]] = {
        ".gz": lambda file: gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0),
        ".xz": lambda file: lzma.LZMAFile(file, "wb", preset=_XZ_PRESET),  # noqa: SIM115  closed below
        ".zst": _zstd,
    }
    if suffix.lower() not in openers:
        return content
    with content.open("rb") as plain_file, packed.open("wb") as file, openers[suffix.lower()](file) as packed_file:
        shutil.copyfileobj(plain_file, packed_file, 2**20)
    return packed


def _zstd(file: IO[bytes]) -> Any:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).stream_writer(file, closefd=False)


@contextmanager
def _unfinished(target: Path, suffix: str) -> Iterator[Path]:
    """A new file beside the target; removed at the end unless it was renamed."""
    partial = target.resolve().with_name(f".{target.name}.{os.getpid()}{suffix}.partial")
    try:
        partial.open("xb").close()
        yield partial
    except OSError as error:
        if error.filename is not None and Path(error.filename) == partial:
            error.filename = str(target)
        raise
    finally:
        partial.unlink(missing_ok=True)


def _compared(before: object, after: object, source: Path) -> int:
    """Compares the content of two files, except rewritten texts; returns the number of tables.

    Raises:
        ScrubError: they differ.
        UnreadableInputError: they differ, and the original is damaged: the data recovered from it depends on the bytes
            around it.
    """
    try:
        return _compare(before, after, source)
    except ScrubError:
        capture = getattr(before, "capture", None)
        if isinstance(capture, Capture) and any(note.code in _TRUNCATION_NOTES for note in capture.notes):
            found = "it is damaged, and a copy would not give the same numbers"
            raise UnreadableInputError(source, found, "Copy it again from where it was recorded") from None
        raise


def _compare(before: object, after: object, source: Path) -> int:
    for name in ("capture", "session", "units"):
        value_before, value_after = getattr(before, name, None), getattr(after, name, None)
        if isinstance(value_before, Capture) and isinstance(value_after, Capture):
            _check_captures(value_before, value_after, source)
        elif value_before != value_after:
            raise _differs(source, f"its {name}")
    tables, tables_after = _tables(before), _tables(after)
    for name, frame in tables.items():
        _check_frame(name, frame, tables_after[name], source)
    return len(tables)


def _tables(content: object) -> dict[str, pl.DataFrame]:
    if isinstance(content, pl.DataFrame):
        return {"times": content}
    if isinstance(content, Trace):
        return {name: table for name, table in vars(content).items() if name != "capture"}
    if isinstance(content, KernelCounters):
        return {"launches": content.launches, "metrics": content.metrics, "rules": content.rules}
    if isinstance(content, Measurements):
        figures = [name for name, dtype in content.cells.schema.items() if dtype.is_numeric()]
        return {"figures": content.cells.select(figures), "phases": content.phases, "samples": content.samples}
    raise TypeError(f"nothing is known about the tables of {type(content).__name__}")


def is_rewriting(before: str, after: str) -> bool:
    """Whether one text is the other with marks for removed parts, or without leading folders.

    A reader that drops folders also drops the copy's mark in their place.
    """
    if before == after or (before.endswith(after) and before[-len(after) - 1] in "/\\"):
        return True
    if (mark := MARK.match(after)) and after[mark.end() :][1:] == before and after[mark.end()] in "/\\":
        return True
    fragments = MARK.split(after)
    return len(fragments) > 1 and re.fullmatch("(?s:.+?)".join(map(re.escape, fragments)), before) is not None


def _check_frame(name: str, before: pl.DataFrame, after: pl.DataFrame, source: Path) -> None:
    if before.columns != after.columns or before.height != after.height:
        raise _differs(source, name)
    for column in before.columns:
        if not _is_same(before[column], after[column]):
            raise _differs(source, f"{name}.{column}")


def _is_same(before: pl.Series, after: pl.Series) -> bool:
    if isinstance(before.dtype, pl.List):
        lengths = before.list.len().equals(after.list.len(), null_equal=True)
        return lengths and _is_same(before.explode(), after.explode())
    if isinstance(before.dtype, (pl.Enum, pl.Categorical, pl.String)):
        if before.dtype == after.dtype and before.equals(after, null_equal=True):
            return True
        pairs = pl.DataFrame({"before": before.cast(pl.String), "after": after.cast(pl.String)}).unique()
        if (pairs["before"].is_null() != pairs["after"].is_null()).any():
            return False
        return all(is_rewriting(old, new) for old, new in pairs.drop_nulls().iter_rows())
    return before.dtype == after.dtype and before.equals(after, null_equal=True)


def _check_captures(before: Capture, after: Capture, source: Path) -> None:
    for item in dataclasses.fields(Capture):
        first, second = getattr(before, item.name), getattr(after, item.name)
        if item.name == "notes" and any(note.code in _TRUNCATION_NOTES for note in before.notes):
            continue
        if item.name == "notes":
            first, second = ([note for note in notes if note.code not in _FILE_NOTES] for notes in (first, second))
        if item.name != "source" and first != second:
            raise _differs(source, f"capture.{item.name}")


def _differs(source: Path, what: str) -> ScrubError:
    return ScrubError(
        f"{source.name}: the copy does not say the same as the original ({what}) and was discarded. Please report this"
    )
