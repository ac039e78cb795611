"""`read_counters`: Nsight Compute's counters from whichever file they are in, told by its content."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.profile import Note, NoteLevel
from warplens.profile.counters import KernelCounters
from warplens.readers.compressed import UNPACKERS, peek, unpacked
from warplens.readers.counterfiles import CSV_HEAD_BYTES, discover_both, holds_counters
from warplens.readers.detect import Kind, compression, kind_of, kind_of_bytes
from warplens.readers.ncu_csv import looks_like_ncu_csv, read_ncu_csv
from warplens.readers.ncu_rep import read_ncu_rep

__all__ = ["COUNTER_KINDS", "discover_both", "holds_counters", "read_counters"]

#: Kinds of content that may hold counters, once unpacked.
COUNTER_KINDS = frozenset({Kind.NCU_REP, Kind.TEXT})

_ADVICE = "Give a .ncu-rep file, or its export: ncu --import profile.ncu-rep --page raw --csv > profile.csv"
_OTHER_ADVICE = {
    Kind.SQLITE: "Ask for a report on it instead: warplens report FILE",
    Kind.NSYS_REP: "Ask for a report on it instead: warplens report FILE",
    Kind.ZIP: "Unpack it and give the files inside; .gz, .xz and .zst are read as they are",
}


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
    source = Path(path)
    report = progress or (lambda _: None)
    kind = kind_of(source)
    if (name := compression(kind)) is None:
        return _read_plain(source, source, kind, metrics, instances)
    head = peek(source, UNPACKERS[name])
    if head and not _may_hold_counters(kind_of_bytes(head), head):
        raise _refusal(source, kind_of_bytes(head))  # before gigabytes of something else are unpacked
    report(f"{source.name}: unpacking")
    with unpacked(source, UNPACKERS[name]) as plain:
        return _read_plain(plain, source, kind_of(plain), metrics, instances)


def _read_plain(
    path: Path, known_as: Path, kind: Kind, metrics: Collection[str] | None, instances: Collection[str]
) -> KernelCounters:
    if kind is Kind.NCU_REP:
        return read_ncu_rep(path, known_as, metrics, instances)
    with path.open("rb") as file:
        head = file.read(CSV_HEAD_BYTES)
    if _may_hold_counters(kind, head):
        return _without_instances(read_ncu_csv(path, known_as, metrics), instances)
    raise _refusal(known_as, kind)


def _may_hold_counters(kind: Kind, head: bytes) -> bool:
    """Whether the reader of CSV should look at it: output of the program before the table can look like anything."""
    return kind in COUNTER_KINDS or (kind in (Kind.JSON, Kind.UNKNOWN) and looks_like_ncu_csv(head))


def _without_instances(counters: KernelCounters, asked: Collection[str]) -> KernelCounters:
    if not asked:
        return counters
    text = f"A CSV export has no instances of metrics, so that those of {', '.join(asked)} are missing."
    note = Note("no-instances", NoteLevel.INFO, text, "Give the .ncu-rep file that the export was made from")
    return replace(counters, capture=replace(counters.capture, notes=(*counters.capture.notes, note)))


def _refusal(path: Path, kind: Kind) -> UnreadableInputError:
    found = "the file is empty" if kind is Kind.EMPTY else f"found {kind.value}, not counters of Nsight Compute"
    return UnreadableInputError(path, found, _OTHER_ADVICE.get(kind, _ADVICE))
