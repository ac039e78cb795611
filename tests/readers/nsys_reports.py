"""Nsight Systems reports written by hand: messages, blocks, sections, as docs/reference/nsys-rep.md has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import lz4.block

from warplens.readers.nsys.report_events import _LAYOUT_OF, _PAYLOADS, LAYOUTS, Layout


def varint(value: int) -> bytes:
    """A number as protocol buffers write it; negative ones in ten bytes."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(fields: dict[int, object]) -> bytes:
    """A message of fields in the order given: numbers, bytes, nested messages (dict), and lists of these."""
    out = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                out += number_field(number, one)
            else:
                content = message(one) if isinstance(one, dict) else bytes(one)
                out += bytes_field(number, content)
    return out


def event(kind: int, payload: int, fields: dict[int, object]) -> bytes:
    return message({1: kind, payload: fields})


def framed(content: bytes) -> bytes:
    return varint(len(content)) + content


def packed(content: bytes) -> bytes:
    squeezed = lz4.block.compress(content, store_size=False)
    return varint(len(squeezed)) + varint(len(content)) + squeezed


def block(events: Iterable[bytes]) -> bytes:
    """A block of events as it stands in the file."""
    return packed(framed(b"".join(bytes_field(1, one) for one in events)))


def report(
    blocks: Sequence[bytes],
    events: int,
    strings: Sequence[bytes] = (),
    *,
    target: bytes = b"",
    tail: bytes = b"",
    options: bytes = b"",
    origin: bytes = message({6: b"2025.3.1.0"}),
    head: bytes = b"NVIDIA Tegra Profiler Report 2025@3@1@90-0.",
    compression: bytes = b"lz4",
) -> bytes:
    """A whole report."""
    counts = message({1: events, 3: len(strings), 5: 0, 9: compression})
    before = framed(target) + framed(counts) + b"".join(blocks)
    texts = packed(framed(b"".join(bytes_field(1, one) for one in strings)))
    raw = b"QDTEXT00" + before + texts + framed(b"") + framed(tail)
    sections = {
        b"Analysis Options Data": options,
        b"Raw Sampling Data": raw,
        b"Sampling Data Offsets": message({1: compression, 2: len(before)}),
        b"UI Data": origin,
    }
    out, index = head, []
    for name, content in sections.items():
        index.append({1: name, 2: len(out), 3: len(content)})
        out += content
    return out + message({1: index}) + len(out).to_bytes(8, "little") + b"U3w[END]"


PROCESS = 281_492_055_916_544
THREAD = PROCESS + 1018


def kernel(start: int, end: int, correlation: int, *, name: int = 1) -> bytes:
    """A kernel on device 0, stream 7, whose names are the strings `name`, `name` + 1 and `name` + 2."""
    shape = {10: 4, 11: 2, 12: 1, 13: 128, 14: 1, 15: 1, 16: 1_024, 17: 0, 21: 32}
    details = {1: name, 2: name + 1, 3: name + 2, 8: name, **shape}
    common = {1: start, 2: end, 3: correlation, 4: 0, 5: 1, 6: 7, 7: 3, 8: PROCESS, 9: 0}
    return event(79, 107, {**common, 101: details})


def copy(start: int, end: int, correlation: int, count: int) -> bytes:
    """A copy of so many bytes from pageable memory to the device."""
    common = {1: start, 2: end, 3: correlation, 4: 0, 5: 1, 6: 7, 7: 1, 8: PROCESS, 9: 0}
    return event(80, 107, {**common, 102: {1: count, 2: 1, 4: 0, 5: 2}})


def call(start: int, end: int, correlation: int, name: int, *, kind: int = 0, result: int = 0) -> bytes:
    """A call of the CUDA runtime (0), the driver (1), the operating system (27), or overhead of the profiler (3)."""
    return event(48, 108, {1: start, 2: end, 3: correlation, 6: kind, 7: name, 8: result, 13: THREAD})


def nvtx(start: int, end: int | None, text: bytes | int, *, kind: int = 59, domain: int = 0) -> bytes:
    """A range; its text itself, or the number of a registered string."""
    named = {12: text} if isinstance(text, int) else {7: text}
    fields = {1: kind, 2: start, 9: THREAD, 10: end, 13: domain, **named}
    return event(kind, 102, {number: fields[number] for number in sorted(fields) if fields[number] is not None})


#: The strings of `small_report`.
STRINGS = (b"[Unknown]", b"gemm<float>(int)", b"gemm", b"_Z4gemmIfEvi", b"cudaLaunchKernel_v7000", b"registered")

GPU = {
    1: 0, 2: b"NVIDIA H200", 7: b"GH100", 10: 62_914_560, 11: 150_109_880_320, 12: 4_814_304_000_000,
    13: 1_980_000_000, 14: 132, 28: 233_472, 29: 65_536, 32: 64, 33: 32, 34: 1_024, 41: 9, 42: 0,
}  # fmt: skip


def small_events() -> list[bytes]:
    """Ten launches with a kernel each, a copy, and three ranges."""
    events = [nvtx(900, 2_200, b"step"), nvtx(950, None, b"open"), nvtx(1_000, 1_500, 5, domain=1)]
    for number in range(10):
        at = 1_000 + 100 * number
        events += [call(at, at + 20, number + 1, 4), kernel(at + 30, at + 90, number + 1)]
    return [*events, call(2_100, 2_110, 99, 4, result=-1), copy(2_120, 2_140, 99, 4_096)]


def small_report(**changed: object) -> bytes:
    """A report of `small_events` in two blocks."""
    events = small_events()
    parts = {
        "blocks": [block(events[:9]), block(events[9:])],
        "events": len(events),
        "strings": STRINGS,
        "target": message({17: 5_000, 18: 9_000}),
        "tail": message({1: {1: 2**48, 2: [{7: GPU}, {9: {1: 0, 2: 0, 3: 1018}}]}}),
        "options": message({26: {1: 4, 20: 1, 21: 1}}),
        **changed,
    }
    return report(**parts)


#: Events of one block of a report that is made from an export; real ones have some four thousand.
_EVENTS_OF_BLOCK = 500
_PAYLOAD_FIELD = {name: number for number, name in _PAYLOADS.items()}


def report_of(export: Path) -> bytes:
    """A report with the events, names and GPUs (as H200) of an export: what the collector wrote before that."""
    with closing(sqlite3.connect(export)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        strings = dict(connection.execute("SELECT id, CAST(value AS BLOB) FROM StringIds"))
        numbers = {identifier: number for number, identifier in enumerate(strings)}
        events = [
            event for layout in LAYOUTS if layout.table in tables for event in _events_of(connection, layout, numbers)
        ]
        gpus = [
            {1: identifier, 2: name.encode(), 14: 132, 41: 9, 42: 0}
            for identifier, name in connection.execute("SELECT id, name FROM TARGET_INFO_GPU")
        ]
        devices = (
            connection.execute("SELECT gpuId, cudaId, pid FROM TARGET_INFO_CUDA_DEVICE").fetchall()
            if "TARGET_INFO_CUDA_DEVICE" in tables
            else []
        )
    blocks = [events[begin : begin + _EVENTS_OF_BLOCK] for begin in range(0, len(events), _EVENTS_OF_BLOCK)]
    hardware = {7: gpus, 9: [{1: gpu, 2: cuda, 3: process} for gpu, cuda, process in devices]}
    tail = message({1: {1: 2**48, 2: [{number: one} for number, many in hardware.items() for one in many]}})
    return report([block(part) for part in blocks], len(events), list(strings.values()), tail=tail)


def _events_of(connection: sqlite3.Connection, layout: Layout, strings: dict[int, int]) -> Iterator[bytes]:
    """The rows of a table of an export as events; `strings` numbers the texts of the report by the export's ids."""
    stored = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({layout.table})")}
    details = {name: key >> 3 for key, name in layout.columns.items() if name in stored}
    common = {
        layout.renamed.get(name, name): key >> 3
        for key, name in _LAYOUT_OF[layout.payload].items()
        if layout.renamed.get(name, name) in stored
    }
    columns = ", ".join(f'"{name}"' for name in (*common, *details))
    named = {"demangledName", "shortName", "mangledName", "nameId", "textId"}
    for row in connection.execute(f"SELECT {columns} FROM {layout.table}"):
        values = {
            name: strings[value] if name in named else value
            for name, value in zip((*common, *details), row, strict=True)
            if value is not None
        }
        fields: dict[int, object] = {
            number: values[name].encode() if name == "text" else values[name]
            for name, number in sorted(common.items(), key=lambda item: item[1])
            if name in values
        }
        if layout.classes and "eventClass" not in stored:
            fields[6] = layout.classes[0]
        if layout.details is not None:
            number = next(key >> 3 for key, name in _LAYOUT_OF["work"].items() if name == layout.details)
            fields[number] = {number: values[name] for name, number in details.items() if name in values}
        kind = values["eventType"] if layout.payload == "nvtx" else (layout.types or (48,))[-1]
        yield event(kind, _PAYLOAD_FIELD[layout.payload], fields)
