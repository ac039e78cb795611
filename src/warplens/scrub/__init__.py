"""A copy of a profile that can be shared: what identifies people and machines is left out.

Lives here: `scrub`, which tells the format by content, has the copy made, proves it and gives it its name; one module
per format (`nsys`, `kineto`, `ncu_rep`, `ncu_csv`, `timings`, `measurements`) that builds the copy out of what the
analyses read and nothing else; `texts` (how texts are rewritten), `same` (that the copy gives the same), `outcome` (the
report).

May import: `warplens.readers`, `warplens.profile`, `warplens.errors` and `warplens.scrub_secrets`. A new format becomes
a module with one function that takes the original and an empty file, fills that and gives a `Removed`, and a line in
`_how`.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from warplens.errors import UnreadableInputError, UsageError
from warplens.readers import read
from warplens.readers.compressed import UNPACKERS, unpacked
from warplens.readers.counters import read_counters
from warplens.readers.detect import Kind, compression, kind_of, looks_like_kineto
from warplens.readers.measurements import holds_measurements
from warplens.readers.ncu_csv import looks_like_ncu_csv
from warplens.readers.nsys_rep import converted
from warplens.readers.timings import read_timings
from warplens.scrub.kineto import copy_kineto
from warplens.scrub.measurements import check_measurements, copy_measurements
from warplens.scrub.ncu_csv import NOTES_OF_LINES, copy_ncu_csv
from warplens.scrub.ncu_rep import copy_ncu_rep
from warplens.scrub.nsys import copy_nsys
from warplens.scrub.outcome import Removed, ScrubError, ScrubReport
from warplens.scrub.same import check_counters, check_trace
from warplens.scrub.timings import copy_timings

__all__ = ["ScrubError", "ScrubReport", "scrub"]

#: How much of a file of text is looked at to tell what it is.
_HEAD_BYTES = 65_536

#: Compression levels: as small as takes no more than a few seconds for 100 MB.
_GZIP_LEVEL, _XZ_PRESET, _ZSTD_LEVEL = 6, 6, 10

_ADVICE = (
    "Give a capture of Nsight Systems, a trace of the PyTorch profiler, a report of Nsight Compute or its CSV export, "
    "or measurements"
)

#: Fills an empty file with the copy: the original as it lies on the disk, the file that the user named, the copy.
_Copy = Callable[[Path, Path, Path], Removed]

#: Compares: the same three. Gives the number of tables that are the same.
_Check = Callable[[Path, Path, Path], int]


def scrub(source: Path, target: Path, *, progress: Callable[[str], None] | None = None) -> ScrubReport:
    """Copies a profile without what identifies people and machines; analyses of the copy give the same.

    Reads what `warplens.readers` reads: captures of Nsight Systems (the copy is an SQLite export), traces of the
    PyTorch profiler, reports of Nsight Compute and their CSV exports, CSV files of timings, measurements files; as they
    are or compressed.

    Before the copy gets its name, it is searched for everything that was removed, and read: it must give the same
    tables as the original, rewritten texts apart.

    Args:
        source: the profile; opened read-only and left as it is.
        target: a file that does not exist yet; compressed if its name ends with .gz, .xz or .zst.
        progress: is told in a few words, now and then, what is being done.

    Raises:
        UsageError: the target exists, or its folder does not.
        UnreadableInputError: the source is damaged or no profile.
        ScrubError: something identifying was left, or the copy does not give the same; no file is written.
    """
    report = progress or (lambda _: None)
    if target.exists() or target.is_symlink():
        raise UsageError(f"{target.name}: exists already; scrub writes a new file and changes none")
    if not target.parent.is_dir():
        raise UsageError(f"{target.name}: the folder to write it to does not exist")
    kind = kind_of(source)
    if (name := compression(kind)) is not None:
        report(f"{source.name}: unpacking")
        with unpacked(source, UNPACKERS[name]) as plain:
            return _scrubbed(plain, source, target, report)
    return _scrubbed(source, source, target, report)


def _scrubbed(plain: Path, source: Path, target: Path, report: Callable[[str], None]) -> ScrubReport:
    copy, check = _how(plain, source, report)
    with _unfinished(target, "") as partial, _unfinished(target, ".packed") as packed:
        report(f"{source.name}: copying")
        removed = copy(plain, source, partial)
        report(f"{source.name}: reading the copy")
        compared = check(plain, source, partial)
        sizes = plain.stat().st_size, partial.stat().st_size
        _packed(partial, packed, target.suffix).rename(target)
    return ScrubReport(source.name, target, *sizes, compared, **vars(removed))


def _how(plain: Path, source: Path, report: Callable[[str], None]) -> tuple[_Copy, _Check]:
    """How to copy a file of this kind, and how to compare the copy with the original."""
    kind = kind_of(plain)
    if kind is Kind.SQLITE:
        return copy_nsys, _same_trace
    if kind is Kind.NSYS_REP:
        export = converted(plain, source, report)
        return (lambda _, known_as, partial: copy_nsys(export, known_as, partial)), _same_trace
    if kind is Kind.NCU_REP:
        return copy_ncu_rep, _same_counters
    if kind in (Kind.JSON, Kind.TEXT, Kind.UNKNOWN):
        with plain.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if looks_like_ncu_csv(head):
            return copy_ncu_csv, _same_counters
        if holds_measurements(plain):
            return copy_measurements, lambda _, source, copy: check_measurements(source, copy)
        if kind is Kind.JSON or looks_like_kineto(head):
            return copy_kineto, _same_trace
        if kind is Kind.TEXT:
            return copy_timings, _same_timings
    found = "the file is empty" if kind is Kind.EMPTY else f"found {kind.value}, which scrub does not know"
    raise UnreadableInputError(source, found, _ADVICE)


def _same_trace(_: Path, source: Path, copy: Path) -> int:
    return check_trace(read(source), read(copy), source)


def _same_counters(_: Path, source: Path, copy: Path) -> int:
    return check_counters(read_counters(source), read_counters(copy), source, passed_over=NOTES_OF_LINES)


def _same_timings(plain: Path, source: Path, copy: Path) -> int:
    if not read_timings(plain).equals(read_timings(copy)):
        raise ScrubError(f"{source.name}: the copy does not hold the same times and was discarded. Please report this")
    return 1


def _packed(plain: Path, packed: Path, suffix: str) -> Path:
    """The file to be given away: compressed as the suffix of its name says, without name and time of the original."""
    openers: dict[str, Callable[[IO[bytes]], Any]] = {
        ".gz": lambda file: gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0),
        ".xz": lambda file: lzma.LZMAFile(file, "wb", preset=_XZ_PRESET),  # noqa: SIM115  closed below
        ".zst": _zstd,
    }
    if suffix.lower() not in openers:
        return plain
    with plain.open("rb") as read_from, packed.open("wb") as file, openers[suffix.lower()](file) as write_to:
        shutil.copyfileobj(read_from, write_to, 2**20)
    return packed


def _zstd(file: IO[bytes]) -> Any:
    import zstandard  # noqa: PLC0415  the other compressions do without

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).stream_writer(file, closefd=False)


@contextmanager
def _unfinished(target: Path, suffix: str) -> Iterator[Path]:
    """A new file beside the target; removed again unless it was renamed."""
    partial = target.resolve().with_name(f".{target.name}.{os.getpid()}{suffix}.partial")
    partial.open("xb").close()
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)
