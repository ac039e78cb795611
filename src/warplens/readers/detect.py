"""What a file is, told by its first bytes; and which files of a folder are profiles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.readers.compressed import PEEK_BYTES, UNPACKERS, peek
from warplens.readers.sqlite_file import EXPORT_ADVICE, is_nsys_export

__all__ = ["Kind", "compression", "discover", "files_below", "kind_of", "kind_of_bytes", "looks_like_kineto", "refusal"]

#: Enough for every magic number below.
_HEAD_BYTES = 64


class Kind(Enum):
    """A kind of file content. The value says for people what was found."""

    SQLITE = "an SQLite database"
    NSYS_REP = "an Nsight Systems report"
    GZIP = "a gzip file"
    XZ = "an xz file"
    ZSTD = "a Zstandard file"
    NCU_REP = "an Nsight Compute report"
    JSON = "JSON"
    ZIP = "a zip archive"
    HDF5 = "an HDF5 file"
    PARQUET = "a Parquet file"
    ARROW = "an Arrow file"
    TEXT = "text"
    EMPTY = "no bytes at all"
    UNKNOWN = "binary data of an unknown kind"


_MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"SQLite format 3\x00", Kind.SQLITE),
    (b"NVIDIA Tegra Profiler Report", Kind.NSYS_REP),  # .nsys-rep and .qdrep alike, 2020 to 2026
    (b"\x1f\x8b", Kind.GZIP),
    (b"\xfd7zXZ\x00", Kind.XZ),
    (b"\x28\xb5\x2f\xfd", Kind.ZSTD),
    (b"NVR\x00", Kind.NCU_REP),
    (b"PK\x03\x04", Kind.ZIP),
    (b"\x89HDF\r\n\x1a\n", Kind.HDF5),
    (b"PAR1", Kind.PARQUET),
    (b"ARROW1", Kind.ARROW),
)

#: Of these, every trace of the PyTorch profiler has one near its begin: descriptions of itself, categories of events.
_KINETO_MARKS = (
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"distributedInfo"',
    b'"cpu_op"',
    b'"Operator"',
    b'"user_annotation"',
    b'"cuda_runtime"',
    b'"Runtime"',
    b'"kernel"',
    b'"Kernel"',
)

_COMPRESSED = {Kind.GZIP: "gzip", Kind.XZ: "xz", Kind.ZSTD: "zstd"}

_ADVICE = "Give an Nsight Systems report (.nsys-rep) or its SQLite export, or a Chrome trace of the PyTorch profiler"

_UNSUPPORTED_ADVICE = {
    Kind.NCU_REP: "Ask for its counters instead: warplens counters FILE",
    Kind.ZIP: "Unpack it and give the files inside; .gz, .xz and .zst are read as they are",
    Kind.HDF5: EXPORT_ADVICE,
    Kind.PARQUET: EXPORT_ADVICE,
    Kind.ARROW: EXPORT_ADVICE,
    Kind.EMPTY: EXPORT_ADVICE,
}


def kind_of_bytes(head: bytes) -> Kind:
    """The kind of a file that begins with these bytes."""
    if not head:
        return Kind.EMPTY
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return Kind.JSON
    if all(byte >= 0x20 or byte in b"\t\r\n\f" for byte in head):
        return Kind.TEXT
    return Kind.UNKNOWN


def compression(kind: Kind) -> str | None:
    """The name of the unpacker in `compressed.UNPACKERS` for this kind; None for a kind that is not compressed."""
    return _COMPRESSED.get(kind)


def kind_of(path: Path) -> Kind:
    """What the file holds, by its first bytes.

    Raises:
        UnreadableInputError: there is no such file, it is a folder, or it may not be read.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UnreadableInputError(path, "this is no regular file", "Copy what it gives into a file first")
        with path.open("rb") as file:
            return kind_of_bytes(file.read(_HEAD_BYTES))
    except FileNotFoundError:
        raise UnreadableInputError(path, "there is no such file", "Check the path") from None
    except IsADirectoryError:
        raise UnreadableInputError(path, "this is a folder", "Give the profiles in it one by one") from None
    except PermissionError:
        found = "this is a folder" if path.is_dir() else "permission to read it was denied"
        raise UnreadableInputError(path, found, f'Allow it first: chmod u+r "{path.name}"') from None
    except OSError as error:
        found = f"the system cannot read it ({error.strerror or type(error).__name__})"
        raise UnreadableInputError(path, found, "Copy the file to a local disk and try again") from None


def refusal(path: Path, kind: Kind) -> UnreadableInputError:
    """The error for a file of a kind that is not a profile this version can read."""
    found = "the file is empty" if kind is Kind.EMPTY else f"found {kind.value}, not a profile"
    advice = _UNSUPPORTED_ADVICE.get(kind, _ADVICE)
    return UnreadableInputError(path, found, advice)


def looks_like_kineto(head: bytes) -> bool:
    """Whether JSON that begins with these bytes is a trace of the PyTorch profiler, not just any Chrome trace."""
    is_chrome = b'"traceEvents"' in head or b'"ph"' in head or b'"deviceProperties"' in head
    return is_chrome and any(mark in head for mark in _KINETO_MARKS)


def looks_like_profile(path: Path) -> bool:
    """Whether this version would try to read the file, judged by content alone; False if it cannot be opened."""
    try:
        kind = kind_of(path)
        if (name := compression(kind)) is not None:
            head = peek(path, UNPACKERS[name])
            # The schema stands on the first pages, and the table of strings is the first that nsys creates.
            unpacked = kind_of_bytes(head)
            return (
                unpacked is Kind.NSYS_REP
                or (unpacked is Kind.SQLITE and b"StringIds" in head)
                or (unpacked is Kind.JSON and looks_like_kineto(head))
            )
        if kind is Kind.JSON:
            with path.open("rb") as file:
                return looks_like_kineto(file.read(PEEK_BYTES))
        return kind is Kind.NSYS_REP or (kind is Kind.SQLITE and is_nsys_export(path))
    except (UnreadableInputError, OSError):
        return False


def discover(paths: Iterable[Path | str]) -> list[Path]:
    """The profiles that these files and folders name, folders searched to any depth.

    A file that is named itself is always kept, in its place, so that an unreadable one is reported and not skipped.
    Of a folder only files that are profiles by content are taken, in the order of their paths; hidden folders and files
    are passed over, and so is a report (`.nsys-rep`) whose own SQLite export lies beside it: it is the same capture.

    Raises:
        UnreadableInputError: a path does not exist, or a folder holds no profile.
    """
    found: list[Path] = []
    for given in map(Path, paths):
        if not given.exists():
            raise UnreadableInputError(given, "there is no such file or folder", "Check the path")
        if given.is_dir():
            files = sorted(files_below(given))
            profiles = _without_exported_reports([file for file in files if looks_like_profile(file)])
            if not profiles:
                raise UnreadableInputError(
                    given,
                    f"none of the {len(files)} files in this folder is an Nsight Systems capture or a PyTorch trace",
                    "Give a folder with .nsys-rep files, their SQLite exports, or traces of torch.profiler",
                )
            found.extend(profiles)
        else:
            found.append(given)
    return list(dict.fromkeys(found))


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
