"""Makes a small pair of report and export for the tests, with the same events and without identities.

    python captures/pack_report.py REPORT EXPORT TARGET EVENTS

REPORT is a .nsys-rep, EXPORT nsys's SQLite export of it (scrubbed or not); written are TARGET.nsys-rep and
TARGET.sqlite.xz with the events up to the EVENTS-th call or piece of work. The report is written anew from the events
that a trace is made of and the strings that they name. Processes, threads, diagnostics, environment, command lines and
serial numbers are left out.
"""

from __future__ import annotations

import argparse
import lzma
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from captures.report_fields import fields
from tests.readers.nsys_reports import block, bytes_field, message, report

from warplens.readers.nsys.report_container import Report, opened
from warplens.readers.nsys.report_wire import tag
from warplens.scrub import scrub
from warplens.wire import BYTES

#: Types of events, and where the begin of one stands: (message, field).
_BEGINS = {
    47: (108, 1),
    48: (108, 1),
    59: (102, 2),
    60: (102, 2),
    79: (107, 1),
    80: (107, 1),
    106: (107, 1),
    117: (123, 1),
    130: (107, 1),
}
#: Fields of an event that are numbers of strings: names of calls, registered texts, names of kernels.
_STRINGS = ((108, 7), (102, 12), (107, 101, 1), (107, 101, 2), (107, 101, 3), (107, 101, 8))
_GPU = (1, 2, 4, *range(7, 15), *range(18, 46))
_PER_BLOCK = 4_000


def _value(content: bytes, *path: int) -> int | None:
    """The number at a path of fields."""
    begin, end = 0, len(content)
    for number in path[:-1]:
        inner = [(a, b) for key, a, b in fields(content, begin, end) if key == tag(number, BYTES)]
        if not inner:
            return None
        begin, end = inner[-1]
    return next((value for key, value, _ in fields(content, begin, end) if key == tag(path[-1])), None)


def _kept_fields(content: bytes, numbers: tuple[int, ...]) -> bytes:
    out = {}
    for key, value, stop in fields(content, 0, len(content)):
        if key >> 3 in numbers:
            out[key >> 3] = content[value:stop] if key & 7 == BYTES else value
    return message(out)


def _events(source: Report) -> list[tuple[int, bytes]]:
    """(begin, event) of the events that a trace consists of, in the report's order."""
    events = []
    for content, spans, _ in source.blocks():
        for span in spans:
            for _, first, last in fields(content.data, *span):
                event = content.data[first:last]
                kind = _value(event, 1)
                begin = _value(event, *_BEGINS[kind]) if kind in _BEGINS else None
                if begin is not None and begin < 2**63:
                    events.append((begin, event))
    return events


def _hardware(source: Report) -> bytes:
    machine = []
    for key, first, last in fields(source.tail, 0, len(source.tail)):
        if key == tag(1, BYTES):
            machine += [source.tail[a:b] for k, a, b in fields(source.tail, first, last) if k == tag(2, BYTES)]
    out = b""
    for content in machine:
        for key, first, last in fields(content, 0, len(content)):
            if key == tag(7, BYTES):
                out += bytes_field(7, _kept_fields(content[first:last], _GPU))
            elif key == tag(9, BYTES):
                out += bytes_field(9, _kept_fields(content[first:last], (1, 2, 3)))
    return message({1: {1: 2**48, 2: out}})


def _requests(source: Report) -> bytes:
    """The recording options of each program: NVTX, CUDA, samples."""
    content = source.options
    programs = [content[a:b] for key, a, b in fields(content, 0, len(content)) if key == tag(26, BYTES)]
    return message({26: [_kept_fields(program, (20, 21, 22)) for program in programs]})


def pack(original: Path, export: Path, target: Path, count: int) -> None:
    """Writes the pair."""
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "scrubbed.sqlite"
        scrub(export, clean)
        with closing(sqlite3.connect(clean)) as database:
            database.text_factory = bytes
            texts = dict(database.execute("SELECT id, value FROM StringIds"))
            with opened(original, original) as source:
                events = _events(source)
                last = sorted(begin for begin, _ in events)[min(count, len(events)) - 1]
                kept = [event for begin, event in events if begin <= last]
                used = {_value(event, *path) for event in kept for path in _STRINGS}
                # The strings are the export's: those of the report may have been overwritten.
                strings = [texts.get(number, b"") if number in used else b"" for number in range(len(source.strings))]
                wanted = message({17: 1, 18: _value(source.target, 18) - _value(source.target, 17) + 1})
                version = next(
                    source.origin[a:b] for key, a, b in fields(source.origin, 0, len(source.origin)) if key == tag(6, 2)
                )
                target.with_suffix(".nsys-rep").write_bytes(
                    report(
                        [block(kept[at : at + _PER_BLOCK]) for at in range(0, len(kept), _PER_BLOCK)],
                        len(kept),
                        strings,
                        target=wanted,
                        tail=_hardware(source),
                        options=_requests(source),
                        origin=message({6: version}),
                        head=b"NVIDIA Tegra Profiler Report " + version + b".",
                    )
                )
            tables = [
                name.decode() for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            ]
            for table in tables:
                columns = {row[1].decode() for row in database.execute(f"PRAGMA table_info({table})")}
                if "start" in columns:
                    database.execute(f"DELETE FROM {table} WHERE start > ?", (last,))
                elif table in ("DIAGNOSTIC_EVENT", "ThreadNames", "TARGET_INFO_CUDA_STREAM"):
                    database.execute(f"DELETE FROM {table}")
            named = ",".join(str(number) for number in used if number is not None)
            database.execute(f"DELETE FROM StringIds WHERE id NOT IN ({named})")
            database.commit()
            database.execute("VACUUM")
        packed = lzma.compress(clean.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
        target.with_suffix(".sqlite.xz").write_bytes(packed)


def main() -> None:
    """Packs one pair and prints the sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("export", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("events", type=int)
    options = parser.parse_args()
    pack(options.report, options.export, options.target, options.events)
    for suffix in (".nsys-rep", ".sqlite.xz"):
        print(f"{options.target.with_suffix(suffix).stat().st_size:9,}  {options.target.with_suffix(suffix).name}")


if __name__ == "__main__":
    main()
