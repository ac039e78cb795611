"""Nsight Systems: exports, reports, and scrubbed copies.

`export` reads an SQLite export into a `Trace`: `tables` declares what is read, `texts` resolves its strings and
enumerations, `capture` reads the facts about the recording, `doubts` writes the notes. `folder` reads an export that is
a folder of tables, `slices` one that is larger than memory. `report` reads a report into the same tables without any
software of NVIDIA: `report_container` unpacks it, `report_wire` decodes messages in bulk, `report_events` maps fields
to columns. For a report of an unknown kind, `conversion` runs the installed `nsys` to make an export. `scrub` writes a
copy without what identifies people and machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.errors import UnreadableInputError
from warplens.profile import Recorder, Trace
from warplens.readers.opening import EXPORT_ADVICE, Input, Kind, Reader, ReadOptions, Slices, surely_fits

if TYPE_CHECKING:
    from warplens.readers.scrubbing import Removed

NSYS: Final = Recorder(
    name="Nsight Systems",
    unprofiled_share=0.58,  # of 38 programs that the host limits, timed with and without: 0.3 to 1.0
    remedies={
        "no-api-calls": "Record them as well: nsys profile --trace=cuda,nvtx",
        "no-ranges": "Add ranges (NVTX; in PyTorch torch.cuda.nvtx.range or emit_nvtx) and trace them: "
        "nsys profile --trace=cuda,nvtx",
        "no-steps": "Put a range around each step, torch.cuda.nvtx.range('step') for example, or name a window",
        "profiler-overhead": "Record fewer things at once (no CPU sampling, no backtraces), or choose a window after "
        "its start",
    },
)


#: Memory of a report per byte of an export, at most: 20 for ranges with names of their own.
_MOST_MEMORY_PER_BYTE: Final = 30


class NsysExport(Reader[Trace]):
    """The SQLite export (`nsys export --type sqlite`)."""

    kinds = frozenset({Kind.SQLITE})

    def sniff(self, head: bytes) -> bool:
        # The schema is on the first pages, and the table of strings is the first that nsys creates.
        return super().sniff(head) and b"StringIds" in head

    def read(self, file: Input, options: ReadOptions) -> Trace:
        from warplens.readers.nsys.conversion import with_note_on_age
        from warplens.readers.nsys.export import read_nsys_sqlite

        return with_note_on_age(read_nsys_sqlite(file, options), file.known_as)

    def events_in(self, file: Input, memory: int) -> Mapping[str, int] | None:
        from warplens.readers.nsys.slices import rows_in

        size = file.path.stat().st_size
        return rows_in(file.path, with_texts=not surely_fits(size, _MOST_MEMORY_PER_BYTE, memory))

    def slices(self, file: Input) -> AbstractContextManager[Slices]:
        from warplens.readers.nsys.slices import sliced

        return sliced(file)

    def scrub(self, file: Input, copy: Path) -> Removed:
        from warplens.readers.nsys.scrub import copy_nsys

        return copy_nsys(file, copy)


class NsysFolder(Reader[Trace]):
    """The export as a folder with one file per table (`nsys export --type parquetdir` or `arrowdir`)."""

    def takes(self, folder: Path) -> bool:
        # Every export has the table of strings.
        return any((folder / f"StringIds{suffix}").is_file() for suffix in (".parquet", ".arrow"))

    def read(self, file: Input, options: ReadOptions) -> Trace:
        from warplens.readers.nsys.folder import read_folder

        return read_folder(file, options)

    def scrub(self, file: Input, copy: Path) -> Removed:
        raise UnreadableInputError(file.known_as, "a folder of tables is not copied", EXPORT_ADVICE)


class NsysReport(Reader[Trace]):
    """The report that `nsys profile` writes; a scrubbed copy of it is an SQLite export."""

    kinds = frozenset({Kind.NSYS_REP})

    def read(self, file: Input, options: ReadOptions) -> Trace:
        from warplens.readers.nsys.conversion import read_nsys_rep, with_note_on_age

        return with_note_on_age(read_nsys_rep(file, options), file.known_as)

    def events_in(self, file: Input, memory: int) -> Mapping[str, int] | None:
        from warplens.readers.nsys.report import rows_in

        return rows_in(file, memory)

    def original(self, file: Input, folder: Path) -> Input:
        from warplens.readers.nsys.conversion import convert

        export = folder / "export.sqlite"
        convert(file, export)
        return replace(file, path=export)

    def scrub(self, file: Input, copy: Path) -> Removed:
        raise NotImplementedError("a copy is made of the export that `original` gives")
