"""Profiles from files: which formats there are, and the functions that read any of them.

A format is a package or module with a `Reader` (see `opening`): how it is recognised by content, read, and copied
without what identifies; facts about its profiler are the `Recorder` in the captures that it gives. To add one:

1. write the module with its `Reader`;
2. name the reader below, in the list of those that answer the same questions;
3. test it.

Nothing else in Warplens knows formats: `read`, `read_counters`, `discover` and `warplens.scrub` ask the readers.
May import: `warplens.profile`, `warplens.errors`, `warplens.secrets` and `warplens.wire`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
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
from warplens.readers.opening import EXPORT_ADVICE, Asked, Kind, Wanted, holds, kind_of
from warplens.readers.shipped import located
from warplens.readers.timings import Timings

__all__ = [
    "EVERYTHING",
    "discover",
    "discover_both",
    "events_in",
    "files_below",
    "holds_counters",
    "holds_measurements",
    "holds_trace",
    "read",
    "read_counters",
    "refusal",
]

_ZIP_ADVICE: Final = "Unpack it and give the files inside; .gz, .xz and .zst are read as they are"

#: What happened when.
_TRACES: Final = Wanted[Trace](
    (NsysExport(), NsysReport(), NsysFolder(), KinetoTrace()),
    "not a profile",
    "Give an Nsight Systems report (.nsys-rep) or its SQLite export, or a Chrome trace of the PyTorch profiler",
    {
        Kind.NCU_REP: "Ask for its counters instead: warplens counters FILE",
        Kind.ZIP: _ZIP_ADVICE,
        **dict.fromkeys((Kind.HDF5, Kind.ARROW, Kind.EMPTY), EXPORT_ADVICE),
        Kind.PERFETTO: "Give the trace that the PyTorch profiler wrote (.json), or the report of Nsight Systems",
        Kind.PARQUET: "Give the folder that nsys export --type parquetdir wrote, not one table of it",
    },
)

#: What the hardware counted.
_COUNTERS: Final = Wanted[KernelCounters](
    (NcuReport(), NcuCsv()),
    "not counters of Nsight Compute",
    "Give a .ncu-rep file, or its export: ncu --import profile.ncu-rep --page raw --csv > profile.csv",
    {
        **dict.fromkeys((Kind.SQLITE, Kind.NSYS_REP), "Ask for a report on it instead: warplens report FILE"),
        Kind.ZIP: _ZIP_ADVICE,
    },
)

_MEASUREMENTS: Final = (MeasurementsFile(),)

#: All of them, the more particular first.
EVERYTHING: Final = Wanted[Trace | KernelCounters | Measurements | pl.DataFrame](
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
    gpu: str | None = None,
) -> Trace:
    """The trace in a profile, as it is or compressed (.gz, .xz, .zst).

    A profile is a report of Nsight Systems, its export as SQLite or as a folder of Parquet or Arrow tables, or a Chrome
    trace of the PyTorch profiler. The file is never changed, nothing is written beside it, and its suffix does not
    matter.

    Args:
        path: the file, the folder, or `demo:NAME` for one that comes with Warplens.
        progress: is told in a few words, now and then, what is being done.
        launch_configuration: whether to read grids, blocks, registers and shared memory of kernels. Without them the
            columns are null, and a large file is read a third faster.
        share: how much of the recording to read, from its middle, of an export that is too large for all of it; a note
            says so. Other formats are read whole.
        gpu: the name of the GPU that it was recorded on (`H100 PCIe`, `MI300X`), for a profile that does not say; its
            data sheet then gives the roofs.

    Raises:
        UsageError: no data sheet of that GPU is known.
        UnreadableInputError: the file is missing, damaged, or not a profile that this version can read; the message
            says which file, what was found and what to do.
    """
    with _TRACES.opened(located(path), progress) as (reader, file):
        trace = reader.read(file, Asked(launch_configuration=launch_configuration, share=share))
    return trace if gpu is None else with_gpu(trace, gpu)


def read_counters(
    path: Path | str,
    metrics: Collection[str] | None = None,
    *,
    instances: Collection[str] = (),
    progress: Callable[[str], None] | None = None,
) -> KernelCounters:
    """What the hardware counted in each profiled launch.

    Reads Nsight Compute reports (`.ncu-rep`, `.ncu-repz`) and their CSV exports (`--page raw`, `--page details`), as
    they are or compressed (.gz, .xz, .zst). The file is never changed and its suffix does not matter.

    Args:
        path: the file.
        metrics: names of the metrics to read; None means all. Others are not decoded.
        instances: names of metrics of which each instance (per instruction, per block size, over time, …) is read too.
            Only reports have instances.
        progress: is told in a few words what is being done.

    Raises:
        UnreadableInputError: the file is missing, damaged, or holds no counters; the message says which file, what was
            found and what to do.
    """
    with _COUNTERS.opened(located(path), progress) as (reader, file):
        return reader.read(file, Asked(metrics=metrics, instances=instances))


def events_in(path: Path) -> dict[str, int] | None:
    """By table of the trace how many events a profile holds, about and at most, unread; None where it does not tell."""
    if path.is_dir() or kind_of(path) is not Kind.SQLITE:
        return None
    from warplens.readers.nsys.slices import rows_in

    return rows_in(path)


def refusal(path: Path) -> UnreadableInputError:
    """The error for a file that is no trace."""
    return _TRACES.refusal(path, kind_of(path))


#: Beside a report these are exports of it, which say less.
_PACKED_SUFFIXES: Final = (".gz", ".xz", ".zst")


def holds_trace(path: Path) -> bool:
    """Whether the file is a trace, judged by content alone; False if it cannot be opened."""
    return holds(path, _TRACES.readers)


def holds_counters(path: Path) -> bool:
    """Whether the file holds counters, judged by content alone; False if it cannot be opened."""
    return holds(path, _COUNTERS.readers)


def holds_measurements(path: Path) -> bool:
    """Whether the file says near its begin that it holds measurements; False if it cannot be opened."""
    return holds(path, _MEASUREMENTS)


def discover(paths: Iterable[Path | str]) -> list[Path]:
    """The profiles that these files and folders name, folders searched to any depth.

    A file that is named itself is always kept, in its place, so that an unreadable one is reported and not skipped.
    Of a folder only files that are profiles by content are taken, in the order of their paths; hidden folders and files
    are passed over, and so is a report (`.nsys-rep`) whose own SQLite export lies beside it: it is the same capture.

    Raises:
        UnreadableInputError: a path does not exist, or a folder holds no profile.
    """
    found: list[Path] = []
    for given in map(located, paths):
        if not given.exists():
            if str(given) == "-":
                raise UnreadableInputError(given, "profiles are not read from standard input", "Give a file's path")
            raise UnreadableInputError(given, "there is no such file or folder", "Check the path")
        if given.is_dir() and _TRACES.taking(given) is None:
            files = sorted(files_below(given))
            folders = {file.parent for file in files if file.stem == "StringIds"}
            exported = [folder for folder in sorted(folders) if _TRACES.taking(folder) is not None]
            profiles = exported + _without_exported_reports([file for file in files if holds_trace(file)])
            if not profiles:
                none = f"none of the {len(files)} files in this folder is an Nsight Systems capture or a PyTorch trace"
                raise UnreadableInputError(
                    given,
                    none if files else "this folder is empty",
                    "Give a folder with .nsys-rep files, their SQLite exports, or traces of torch.profiler",
                )
            found.extend(profiles)
        else:
            found.append(given)
    return list(dict.fromkeys(found))


def discover_both(paths: Iterable[Path | str]) -> tuple[list[Path], list[Path]]:
    """The traces and the reports of counters that these files and folders name, folders searched to any depth.

    Files that are named and hold counters are such; others count as traces, so that an unreadable one is reported. Of a
    folder only files are taken that are the one or the other by content; a CSV export is passed over where the report
    that it was made from, or a fuller export of it, lies beside it.

    Raises:
        UnreadableInputError: a path does not exist, or a folder holds neither.
    """
    traces: list[Path] = []
    counters: list[Path] = []
    for given in map(located, paths):
        if not given.is_dir() or _TRACES.taking(given) is not None:
            found = [given] if given.exists() and holds_counters(given) else []
            traces += [] if found else discover([given])
        else:
            found = _without_exports([file for file in sorted(files_below(given)) if holds_counters(file)])
            try:
                traces += discover([given])
            except UnreadableInputError:
                if not found:
                    raise
        counters += found
    return list(dict.fromkeys(traces)), list(dict.fromkeys(counters))


def files_below(folder: Path) -> Iterator[Path]:
    """The regular files in a folder, at any depth, hidden ones and those in hidden folders left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():  # a named pipe would block whoever opens it
                yield path


def _without_exported_reports(profiles: list[Path]) -> list[Path]:
    exports = {profile.with_suffix("") for profile in profiles if kind_of(profile) is Kind.SQLITE}
    return [p for p in profiles if not (kind_of(p) is Kind.NSYS_REP and p.with_suffix("") in exports)]


def _without_exports(files: list[Path]) -> list[Path]:
    """The reports of counters, without exports of what is among them, too."""
    places: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for file in files:
        name = file.name.removesuffix(next((end for end in _PACKED_SUFFIXES if file.name.endswith(end)), ""))
        rank, suffix = next(
            ((place, end) for end, place in EXPORT_SUFFIXES.items() if name.endswith(end)),
            (-1, ".ncu-repz" if name.endswith("z") else ".ncu-rep"),
        )
        places.setdefault((file.parent, name.removesuffix(suffix)), []).append((rank, file))
    fullest = {file for same in places.values() for rank, file in same if rank == min(r for r, _ in same)}
    return [file for file in files if file in fullest]
