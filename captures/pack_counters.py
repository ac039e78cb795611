"""Makes the report that the package ships from what `capture_counters.sh` left: without identities, and compressed.

    python captures/pack_counters.py OUT

A report holds the machine's and the program's names, command line and environment, and the machine code of each kernel.
The copy is the same container (`warplens.readers.ncu_container`) without the messages and fields that hold them; every
result is taken over byte for byte. What cannot be shipped stops the packing.
"""

from __future__ import annotations

import argparse
import lzma
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.readers.ncu_container import MAGIC, Container
from warplens.scrub_secrets import FORBIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

SHIPPED = Path(__file__).resolve().parents[1] / "src" / "warplens" / "data" / "counters"
NAME = "planted_h200.ncu-rep"

#: Fields of a block header: how many sources follow (machine code among them), the session's details, how many bytes
#: follow in all, the process.
_SOURCES, _DETAILS, _PAYLOAD, _PROCESS = 1, 3, 5, 6

#: What identifies: of the details, both systems' names and addresses, properties, the program with its folder,
#: arguments and environment; of the process, the host.
_IDENTITIES: Final = {_DETAILS: {3, 4, 5, 9}, _PROCESS: {2}}

#: Fields that begin with the path of a program: of the details, the command line of ncu; of the process, its name.
_PROGRAMS: Final = {_DETAILS: 11, _PROCESS: 3}
_FOLDER = re.compile(rb"^\S*/")

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def packed(report: bytes) -> bytes:
    """The report without sources and identities."""
    container = Container(report, Path(NAME))
    file_header = 8 + struct.unpack_from("<I", report, len(MAGIC))[0]
    parts = [report[:file_header]]
    for block in container.blocks():
        if block.unknown_bytes:
            raise SystemExit(f"the block at byte {block.start} holds messages of a kind that is not known")
        (length,) = struct.unpack_from("<I", report, block.start)
        results = b"".join(_framed(report[result.start : result.end]) for result in block.results)
        header = _header(report[block.start + 4 : block.start + 4 + length], len(results))
        parts += [_framed(header), results]
    if container.stopped_at is not None:
        raise SystemExit(f"the report is not whole: {container.reason}")
    clean = b"".join(parts)
    if found := FORBIDDEN.search(clean):
        raise SystemExit(f"still in the copy: {found.group()!r}")
    return clean


def _framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def _header(header: bytes, following: int) -> bytes:
    """A block header that announces no sources, so many bytes of results, and no identities."""
    kept = []
    for number, value, whole in _fields(header):
        if number in _IDENTITIES:
            kept.append(_field(number, b"".join(_clean(number, value))))
        elif number == _PAYLOAD:
            kept.append(_varint(_PAYLOAD << 3 | _VARINT) + _varint(following))
        elif number != _SOURCES:
            kept.append(whole)
    return b"".join(kept)


def _clean(message: int, content: bytes) -> Iterator[bytes]:
    """The fields of the session's details or the process that identify nobody; programs without their folders."""
    for number, value, whole in _fields(content):
        if number == _PROGRAMS[message]:
            yield _field(number, _FOLDER.sub(b"", value))
        elif number not in _IDENTITIES[message]:
            yield whole


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Of each field of a message its number, its content, and its encoding as a whole."""
    at = 0
    while at < len(message):
        begin = at
        key, at = _read_varint(message, at)
        kind, start = key & 7, at
        if kind == _VARINT:
            _, at = _read_varint(message, at)
        elif kind == _BYTES:
            length, start = _read_varint(message, at)
            at = start + length
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise SystemExit(f"a field of the unknown type {kind}")
        yield key >> 3, message[start:at], message[begin:at]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def main() -> None:
    """Packs the report and prints its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder that capture_counters.sh wrote")
    options = parser.parse_args()
    target = SHIPPED / f"{NAME}.xz"
    clean = packed((options.out / NAME).read_bytes())
    target.write_bytes(lzma.compress(clean, preset=9 | lzma.PRESET_EXTREME))
    print(f"{target.stat().st_size:9,}  {target.name} ({len(clean):,} unpacked)")


if __name__ == "__main__":
    main()
