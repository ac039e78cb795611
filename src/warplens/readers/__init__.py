"""Profiles from files: one format per module, each giving a `Trace`.

Lives here: `read`, which tells the format by content and reads it, and `discover`, which finds the profiles in folders;
`detect` (magic numbers), `compressed` (.gz, .xz, .zst), `sqlite_file` and `column_buffers` (columns out of SQLite), and
the modules `nsys_*` (Nsight Systems: `nsys_sqlite` reads exports, `nsys_rep` converts reports to exports) and
`kineto*` (the PyTorch profiler; `kineto` says which is which). `counters`
has `read_counters`, the same for hardware counters, with the modules `ncu_rep*` (reports of Nsight Compute) and
`ncu_csv*` (their CSV exports); it is not loaded where only traces are read.

May import: `warplens.profile` and `warplens.errors`. A new format becomes a module with one function that takes a path
and gives a `Trace`, a magic number in `detect`, and a line in `read`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from warplens.profile import Trace
from warplens.readers.compressed import UNPACKERS, peek, unpacked
from warplens.readers.detect import Kind, compression, discover, kind_of, kind_of_bytes, refusal
from warplens.readers.kineto import read_kineto
from warplens.readers.nsys_rep import converted
from warplens.readers.nsys_sqlite import read_nsys_sqlite

__all__ = ["discover", "read"]


def read(
    path: Path | str, *, progress: Callable[[str], None] | None = None, launch_configuration: bool = True
) -> Trace:
    """The trace in a profile, as it is or compressed (.gz, .xz, .zst).

    A profile is an SQLite export or a report of Nsight Systems, or a Chrome trace of the PyTorch profiler. The file is
    never changed, nothing is written beside it, and its suffix does not matter.

    Args:
        path: the file.
        progress: is told in a few words, now and then, what is being done.
        launch_configuration: whether to read grids, blocks, registers and shared memory of kernels. Without them the
            columns are null, and a large file is read a third faster.

    Raises:
        UnreadableInputError: the file is missing, damaged, or not a profile that this version can read; the message
            says which file, what was found and what to do.
    """
    source = Path(path)
    report = progress or (lambda _: None)
    if (name := compression(kind_of(source))) is None:
        return _read_plain(source, source, report, launch_configuration)
    content = kind_of_bytes(head) if (head := peek(source, UNPACKERS[name])) else None
    if content is Kind.JSON:
        return read_kineto(source, source, report, name, launch_configuration)
    if content not in (None, Kind.SQLITE, Kind.NSYS_REP):
        raise refusal(source, content)  # before gigabytes of something else are unpacked
    report(f"{source.name}: unpacking")
    with unpacked(source, UNPACKERS[name]) as plain:
        return _read_plain(plain, source, report, launch_configuration)


def _read_plain(path: Path, known_as: Path, report: Callable[[str], None], launch_configuration: bool) -> Trace:
    kind = kind_of(path)
    if kind is Kind.SQLITE:
        return read_nsys_sqlite(path, known_as, report, launch_configuration)
    if kind is Kind.NSYS_REP:
        return read_nsys_sqlite(converted(path, known_as, report), known_as, report, launch_configuration)
    if kind is Kind.JSON:
        return read_kineto(path, known_as, report, None, launch_configuration)
    raise refusal(known_as, kind)
