"""Reading of profiles: all formats, and the functions that read any of them.

A format is a package or module with a `Reader` (see `opening`): how it is recognised by content, read, and scrubbed;
facts about its profiler are the `Recorder` in its captures. To add one:

1. write the module with its `Reader`;
2. name the reader below, in the list of those that answer the same questions;
3. test it.

Nothing else in Warplens knows formats: `read`, `read_counters`, `discover` and `warplens.scrub` ask the readers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Final

import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Trace
from warplens.profile.counters import KernelCounters
from warplens.profile.measurements import Measurements
from warplens.profile.peaks import with_gpu
from warplens.readers.kineto import KinetoTrace
from warplens.readers.measurements import MeasurementsFile
from warplens.readers.ncu import EXPORT_SUFFIXES, NcuCsv, NcuReport
from warplens.readers.nsys import NsysExport, NsysFolder, NsysReport
from warplens.readers.opening import (
    EXPORT_ADVICE,
    FormatRegistry,
    Kind,
    ReadOptions,
    Slices,
    absent,
    compression_of,
    content_head,
    head_of,
    holds,
    kind_of,
    reader_for,
    surely_fits,
)
from warplens.readers.shipped import located
from warplens.readers.timings import Timings

__all__ = [
    "EVERYTHING",
    "discover",
    "discover_both",
    "discover_counters",
    "events_in",
    "files_below",
    "holds_counters",
    "holds_measurements",
    "holds_trace",
    "read",
    "read_counters",
    "refusal",
    "slices",
]

#: What a file of measurements holds, and what can be asked of it.
_OF_MEASUREMENTS: Final = (
    MeasurementsFile(),
    "measurements of Warplens",
    "Ask for them instead: warplens bench show FILE, or warplens sweep report FILE",
)
_COUNTERS_ADVICE: Final = "Ask for its counters instead: warplens counters FILE"
_REPORT_ADVICE: Final = "Ask for a report on it instead: warplens report FILE"
_ZIP_ADVICE: Final = "Unpack it and give the files inside; .gz, .xz and .zst are read as they are"

#: Readers of traces.
_TRACES: Final = FormatRegistry[Trace](
    (NsysExport(), NsysReport(), NsysFolder(), KinetoTrace()),
    "not a profile",
    "Give an Nsight Systems report (.nsys-rep) or its SQLite export, or a Chrome trace of the PyTorch profiler",
    {
        Kind.NCU_REP: _COUNTERS_ADVICE,
        Kind.ZIP: _ZIP_ADVICE,
        **dict.fromkeys((Kind.HDF5, Kind.ARROW), EXPORT_ADVICE),
        Kind.PERFETTO: "Give the trace that the PyTorch profiler wrote (.json), or the report of Nsight Systems",
        Kind.PARQUET: "Give the folder that nsys export --type parquetdir wrote, not one table of it",
    },
    ((NcuCsv(), "a table of Nsight Compute", _COUNTERS_ADVICE), _OF_MEASUREMENTS),
)

#: Readers of hardware counters.
_COUNTERS: Final = FormatRegistry[KernelCounters](
    (NcuReport(), NcuCsv()),
    "not counters of Nsight Compute",
    "Give a .ncu-rep file, or its export: ncu --import profile.ncu-rep --page raw --csv > profile.csv",
    {
        **dict.fromkeys((Kind.SQLITE, Kind.NSYS_REP), _REPORT_ADVICE),
        Kind.ZIP: _ZIP_ADVICE,
    },
    ((KinetoTrace(), "a trace of the PyTorch profiler", _REPORT_ADVICE), _OF_MEASUREMENTS),
)

#: Memory of a report per byte of a compressed file, at most: an export takes seven times its size, and xz makes it up
#: to twenty times smaller.
_MOST_MEMORY_PER_BYTE: Final = 160

_MEASUREMENTS: Final = (MeasurementsFile(),)

#: All readers, the more specific first.
EVERYTHING: Final = FormatRegistry[Trace | KernelCounters | Measurements | pl.DataFrame](
    (*_COUNTERS.readers, *_MEASUREMENTS, *_TRACES.readers, Timings()),
    "which scrub does not know",
    "Give a capture of Nsight Systems, a trace of the PyTorch profiler, a report of Nsight Compute or its CSV export, "
    "or measurements",
    {},
)


def read(
    path: Path | str,
    *,
    progress: Callable[[str], None] | None = None,
    launch_configuration: bool = True,
    share: float = 1.0,
    work_alone: bool = False,
    gpu: str | None = None,
) -> Trace:
    """The trace in a profile, which may be compressed (.gz, .xz, .zst).

    A profile is a report of Nsight Systems, its export as SQLite or as a folder of Parquet or Arrow tables, or a Chrome
    trace of the PyTorch profiler. The file is never changed, nothing is written beside it, and its suffix does not
    matter.

    Args:
        path: the file, the folder, or `demo:NAME` for one that comes with Warplens.
        progress: called with a short description of the current action.
        launch_configuration: whether to read grids, blocks, registers and shared memory of kernels. Without them the
            columns are null, and a large file is read a third faster.
        share: share of the recording to read, from its middle, for a profile that is too large; recorded as a note.
            Folders of tables are read whole.
        work_alone: whether to read GPU work and API calls alone from a report or a PyTorch trace that is too large.
            Other formats are read whole.
        gpu: the name of the GPU (`H100 PCIe`, `MI300X`) for a profile that does not state it; its data sheet then gives
            the roofs.

    Raises:
        UsageError: no data sheet of that GPU is known.
        UnreadableInputError: the file is missing, damaged, or not a profile that this version can read; the message
            names the file, the problem and what to do.
    """
    with _TRACES.opened(located(path), progress) as (reader, file):
        options = ReadOptions(launch_configuration=launch_configuration, share=share, work_alone=work_alone)
        trace = reader.read(file, options)
    return trace if gpu is None else with_gpu(trace, gpu)


def read_counters(
    path: Path | str,
    metrics: Collection[str] | None = None,
    *,
    instances: Collection[str] = (),
    progress: Callable[[str], None] | None = None,
) -> KernelCounters:
    """Hardware counters of each profiled launch.

    Reads Nsight Compute reports (`.ncu-rep`, `.ncu-repz`) and their CSV exports (`--page raw`, `--page details`),
    compressed (.gz, .xz, .zst) or not. The file is never changed and its suffix does not matter.

    Args:
        path: the file.
        metrics: names of the metrics to read; None means all. Others are not decoded.
        instances: names of metrics of which each instance (per instruction, per block size, over time, …) is read too.
            Only reports have instances.
        progress: called with a short description of the current action.

    Raises:
        UnreadableInputError: the file is missing, damaged, or holds no counters; the message names the file, the
            problem and what to do.
    """
    with _COUNTERS.opened(located(path), progress) as (reader, file):
        return reader.read(file, ReadOptions(metrics=metrics, instances=instances))


def events_in(path: Path, memory: int) -> Mapping[str, int] | None:
    """Estimate of the number of events of a profile by table, without reading all of it.

    They count as rows of an SQLite export that take as much memory. None where they are not known, or where the file
    is so small that they fit into this many bytes of memory.
    """
    try:
        if path.is_file() and compression_of(head_of(path)) is not None:
            reader = reader_for(_TRACES.readers, content_head(path))
            if reader is None or not reader.unpacks:
                if surely_fits(path.stat().st_size, _MOST_MEMORY_PER_BYTE, memory):
                    return None
                return _unpacked_events(path, path.stat().st_mtime_ns)
        with _TRACES.opened(path, None) as (reader, file):
            return reader.events_in(file, memory)
    except UnreadableInputError:  # reading it says why
        return None


@lru_cache(maxsize=64)
def _unpacked_events(path: Path, _modified_ns: int) -> Mapping[str, int] | None:
    """`events_in` of a file that must be unpacked, which is done once."""
    with _TRACES.opened(path, None) as (reader, file):
        return reader.events_in(file, memory=0)


@contextmanager
def slices(path: Path, progress: Callable[[str], None] | None = None) -> Iterator[Slices | None]:
    """A profile of which `events_in` is known, to be read table by table; None if its GPU work can be read alone."""
    with _TRACES.opened(path, progress) as (reader, file), reader.slices(file) as sliced:
        yield sliced


def refusal(path: Path) -> UnreadableInputError:
    """The error for a file that is not a trace."""
    return _TRACES.refusal(path, kind_of(path))


#: Suffixes of compressed files.
_PACKED_SUFFIXES: Final = (".gz", ".xz", ".zst")

#: Suffixes that only a profiler or its export gives: an empty file with one is a recording or an export that failed.
_TRACE_SUFFIXES: Final = (".sqlite", ".nsys-rep", ".qdrep", ".pt.trace.json")
_COUNTER_SUFFIXES: Final = (".ncu-rep", ".ncu-repz")


def holds_trace(path: Path) -> bool:
    """Whether the file is a trace, by its content; False if it cannot be opened."""
    return holds(path, _TRACES.readers)


def holds_counters(path: Path) -> bool:
    """Whether the file holds counters, by its content; False if it cannot be opened."""
    return holds(path, _COUNTERS.readers)


def holds_measurements(path: Path) -> bool:
    """Whether the begin of the file identifies it as measurements; False if it cannot be opened."""
    return holds(path, _MEASUREMENTS)


def discover(paths: Iterable[Path | str], *, failed: bool = False) -> list[Path]:
    """The profiles in these files and folders, folders searched to any depth.

    A file given itself is always kept, in its place, so that an unreadable one is reported and not skipped. Of a folder
    only files that are profiles by content are taken, in the order of their paths; hidden folders and files are
    skipped, and so is a report (`.nsys-rep`) with its own SQLite export beside it: it is the same capture. With
    `failed`, an empty file with the suffix of a profile is kept, so that a failed recording is reported, unless the
    other form is there.

    Raises:
        UnreadableInputError: a path does not exist, or a folder holds no profile.
    """
    profiles_found: list[Path] = []
    for path in map(located, paths):
        if not path.exists():
            raise absent(path)
        if path.is_dir() and _TRACES.taking(path) is None:
            files = sorted(files_below(path))
            folders = {file.parent for file in files if file.stem == "StringIds"}
            exported = [folder for folder in sorted(folders) if _TRACES.taking(folder) is not None]
            traces = [file for file in files if holds_trace(file)]
            profiles = exported + _without_exported_reports(
                _with_failed(traces, files, _TRACE_SUFFIXES) if failed else traces
            )
            if not profiles:
                none = f"none of the {len(files)} files in this folder is an Nsight Systems capture or a PyTorch trace"
                raise UnreadableInputError(
                    path,
                    none if files else "this folder is empty",
                    "Give a folder with .nsys-rep files, their SQLite exports, or traces of torch.profiler",
                )
            profiles_found.extend(profiles)
        else:
            profiles_found.append(path)
    return list(dict.fromkeys(profiles_found))


def discover_both(paths: Iterable[Path | str]) -> tuple[list[Path], list[Path]]:
    """The traces and the reports of counters in these files and folders, folders searched to any depth.

    Files given themselves that do not hold counters count as traces, so that an unreadable one is reported. Of a folder
    only files that are one or the other by content are taken, and empty ones with a suffix of theirs, which failed; a
    CSV export is skipped where its report, or a fuller export of it, is beside it.

    Raises:
        UnreadableInputError: a path does not exist, or a folder holds neither.
    """
    traces: list[Path] = []
    counters: list[Path] = []
    for path in map(located, paths):
        if not path.is_dir() or _TRACES.taking(path) is not None:
            found = [path] if path.exists() and holds_counters(path) else []
            traces += [] if found else discover([path], failed=True)
        else:
            found = _counters_below(path, failed=True)
            try:
                traces += discover([path], failed=True)
            except UnreadableInputError:
                if not found:
                    raise
        counters += found
    return list(dict.fromkeys(traces)), list(dict.fromkeys(counters))


def discover_counters(paths: Iterable[Path | str]) -> list[Path]:
    """The reports of counters in these files and folders, as `discover_both` finds them, but for empty ones of folders.

    Raises:
        UnreadableInputError: a folder holds none.
    """
    reports: list[Path] = []
    for path in map(located, paths):
        found = _counters_below(path) if path.is_dir() else [path]
        if not found:
            none = "no file in this folder holds counters of Nsight Compute"
            raise UnreadableInputError(path, none, "Give a folder with .ncu-rep files, or their CSV exports")
        reports += found
    return reports


def _counters_below(folder: Path, *, failed: bool = False) -> list[Path]:
    files = sorted(files_below(folder))
    reports = [file for file in files if holds_counters(file)]
    return _without_exports(_with_failed(reports, files, _COUNTER_SUFFIXES) if failed else reports)


def files_below(folder: Path) -> Iterator[Path]:
    """The regular files in a folder, at any depth, except hidden ones and those in hidden folders."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():  # opening a named pipe would block
                yield path


def _with_failed(profiles: list[Path], files: Sequence[Path], suffixes: tuple[str, ...]) -> list[Path]:
    """The profiles and the empty files with these suffixes, in the order of the files.

    Empty files beside a profile of the same name are left out: the recording is there in another form.
    """
    names = {_unpacked(file).with_suffix("") for file in profiles}
    kept = {*profiles}
    kept |= {
        file
        for file in files
        if _unpacked(file).name.endswith(suffixes)
        and _unpacked(file).with_suffix("") not in names
        and not file.stat().st_size
    }
    return [file for file in files if file in kept]


def _unpacked(file: Path) -> Path:
    return file.with_suffix("") if file.suffix in _PACKED_SUFFIXES else file


def _without_exported_reports(profiles: list[Path]) -> list[Path]:
    exports = {profile.with_suffix("") for profile in profiles if kind_of(profile) is Kind.SQLITE}
    return [p for p in profiles if not (kind_of(p) is Kind.NSYS_REP and p.with_suffix("") in exports)]


def _without_exports(files: list[Path]) -> list[Path]:
    """The reports of counters, without exports of other reports in the list."""
    ranked_files: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for file in files:
        name = _unpacked(file).name
        rank, suffix = next(
            ((place, end) for end, place in EXPORT_SUFFIXES.items() if name.endswith(end)),
            (-1, ".ncu-repz" if name.endswith("z") else ".ncu-rep"),
        )
        ranked_files.setdefault((file.parent, name.removesuffix(suffix)), []).append((rank, file))
    fullest = {file for group in ranked_files.values() for rank, file in group if rank == min(group)[0]}
    return [file for file in files if file in fullest]
