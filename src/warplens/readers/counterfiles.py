"""Which files are reports of counters, told by content without reading them; `counters` reads them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.readers.compressed import UNPACKERS, peek
from warplens.readers.detect import Kind, compression, discover, files_below, kind_of, kind_of_bytes
from warplens.readers.ncu_csv_text import looks_like_ncu_csv

__all__ = ["CSV_HEAD_BYTES", "discover_both", "holds_counters"]

#: How much of a file is searched for the header of an export.
CSV_HEAD_BYTES = 65_536

#: Names of exports of a report, with their places from the fullest down; the longer endings first.
_EXPORT_SUFFIXES = {".raw.csv": 0, ".details.csv": 2, ".csv": 1}
_PACKED_SUFFIXES = (".gz", ".xz", ".zst")


def holds_counters(path: Path) -> bool:
    """Whether the file is a report of Nsight Compute or an export of one, judged by content alone.

    False if it cannot be opened.
    """
    try:
        kind = kind_of(path)
        if (name := compression(kind)) is not None:
            head = peek(path, UNPACKERS[name])
            kind = kind_of_bytes(head)
        elif kind in (Kind.TEXT, Kind.JSON, Kind.UNKNOWN):
            with path.open("rb") as file:
                head = file.read(CSV_HEAD_BYTES)
        return kind is Kind.NCU_REP or (kind in (Kind.TEXT, Kind.JSON, Kind.UNKNOWN) and looks_like_ncu_csv(head))
    except (UnreadableInputError, OSError):
        return False


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
    for given in map(Path, paths):
        if not given.is_dir():
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


def _without_exports(files: list[Path]) -> list[Path]:
    """The files without exports of what is among them, too."""
    places: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for file in files:
        plain = file.name.removesuffix(next((end for end in _PACKED_SUFFIXES if file.name.endswith(end)), ""))
        rank, suffix = next(
            ((place, end) for end, place in _EXPORT_SUFFIXES.items() if plain.endswith(end)),
            (-1, ".ncu-repz" if plain.endswith("z") else ".ncu-rep"),
        )
        places.setdefault((file.parent, plain.removesuffix(suffix)), []).append((rank, file))
    fullest = {file for same in places.values() for rank, file in same if rank == min(r for r, _ in same)}
    return [file for file in files if file in fullest]
