"""How fast the events of a Nsight Systems report are decoded: a shipped one, its events many times over.

`python -m benchmarks.nsys_rep [TIMES]` prints events, size, and the best of three runs.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.readers.nsys_reports import report

from warplens.readers.nsys.report_container import opened
from warplens.readers.nsys.report_events import Seen, decoded

_REPORT = Path(__file__).resolve().parents[1] / "data" / "nsys-rep" / "h200_moe_2025.nsys-rep"
_RUNS = 3


def repeated(path: Path, times: int) -> bytes:
    """A report with the events of another one several times over."""
    with opened(path, path) as source:
        source._file.seek(source._first_block)
        blocks = source._file.read(source._strings_at - source._first_block)
        return report(
            [blocks] * times,
            source.event_count * times,
            source.strings,
            target=source.target,
            tail=source.tail,
            options=source.options,
            origin=source.origin,
        )


def decode(path: Path) -> tuple[int, float]:
    """Decodes all events and discards them; their number, and the seconds it took."""
    begun = time.perf_counter()
    seen = Seen()
    with opened(path, path) as report:
        for block, spans, _ in report.blocks():
            for _ in decoded(block, spans, seen):
                pass
    return seen.events, time.perf_counter() - begun


def main() -> None:
    """Measures and prints."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.nsys-rep"
        path.write_bytes(repeated(_REPORT, times))
        events, seconds = min((decode(path) for _ in range(_RUNS)), key=lambda run: run[1])
        print(
            f"{events:,} events, {path.stat().st_size / 1e6:.0f} MB: {seconds:.2f} s, {events / seconds / 1e6:.2f} M/s"
        )


if __name__ == "__main__":
    main()
