"""Nsight Compute: reports, CSV exports, and shareable copies.

`report` reads a report (`container` its blocks, `metrics` its values), `csv` an export (`csv_text` its cells,
`csv_labels` its names); `scrub` removes identifying texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.profile import Recorder
from warplens.profile.counters import KernelCounters
from warplens.readers.opening import Input, Kind, Reader, ReadOptions, kind_of_bytes

if TYPE_CHECKING:
    from warplens.readers.scrubbing import Removed

NCU: Final = Recorder(name="Nsight Compute")

#: Bytes of a file searched for the header of an export.
_CSV_HEAD_BYTES: Final = 65_536

#: Suffixes of exports of a report, ranked from the fullest down; longer suffixes first.
EXPORT_SUFFIXES: Final = {".raw.csv": 0, ".details.csv": 2, ".csv": 1}


class NcuReport(Reader[KernelCounters]):
    """Files of `ncu --export`."""

    kinds = frozenset({Kind.NCU_REP})

    def read(self, file: Input, options: ReadOptions) -> KernelCounters:
        from warplens.readers.ncu.report import read_ncu_rep

        return read_ncu_rep(file.path, file.known_as, options.metrics, options.instances)

    def scrub(self, file: Input, copy: Path) -> Removed:
        from warplens.readers.ncu.scrub import copy_ncu_rep

        return copy_ncu_rep(file, copy)


class NcuCsv(Reader[KernelCounters]):
    """Output of `ncu --csv`, with the output of the profiled program before it, which can be anything."""

    kinds = frozenset({Kind.TEXT})

    def sniff(self, head: bytes) -> bool:
        from warplens.readers.ncu.csv_text import looks_like_ncu_csv

        return kind_of_bytes(head) in (Kind.TEXT, Kind.JSON, Kind.UNKNOWN) and looks_like_ncu_csv(
            head[:_CSV_HEAD_BYTES]
        )

    def read(self, file: Input, options: ReadOptions) -> KernelCounters:
        from warplens.readers.ncu.csv import read_ncu_csv

        return read_ncu_csv(file.path, file.known_as, options.metrics)

    def scrub(self, file: Input, copy: Path) -> Removed:
        from warplens.readers.ncu.scrub import copy_ncu_csv

        return copy_ncu_csv(file, copy)
