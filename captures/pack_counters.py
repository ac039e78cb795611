"""Makes the reports that come with Warplens from what was captured: without identities, and compressed.

    python captures/pack_counters.py OUT            of capture_counters.sh: into src/warplens/data/counters
    python captures/pack_counters.py --modes OUT    of capture_counter_modes.sh: into tests/readers/data/counter_modes

A report holds the machine's and the program's names, command line and environment, and the machine code of each kernel.
The copy is the same container (`warplens.readers.ncu_container`) without the messages and fields that hold them; every
result is taken over byte for byte. What cannot be shipped stops the packing.
"""

from __future__ import annotations

import argparse
import lzma
import re
import struct
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warplens.readers.ncu_container import MAGIC, Container
from warplens.scrub_secrets import FORBIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ROOT / "src" / "warplens" / "data" / "counters"
FOR_TESTS = ROOT / "tests" / "readers" / "data" / "counter_modes"
NAME = "planted_h200.ncu-rep"
MODES = "counter_modes.tar.xz"

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


def packed(report: bytes, name: str = NAME) -> bytes:
    """The report without sources and identities."""
    container = Container(report, Path(name))
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
    """Packs the reports and prints their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", action="store_true", help="pack what capture_counter_modes.sh wrote")
    parser.add_argument("out", type=Path, help="folder that the capture script wrote")
    options = parser.parse_args()
    if not options.modes:
        _write(SHIPPED / f"{NAME}.xz", packed((options.out / NAME).read_bytes()))
        return
    FOR_TESTS.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / MODES) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            name, file = Path(member.name).name, archive.extractfile(member)
            if file is not None and name.endswith(".ncu-rep"):
                _write(FOR_TESTS / f"{name}.xz", packed(file.read(), name))
            elif file is not None and name.endswith(".raw.csv"):
                _write(FOR_TESTS / f"{name}.xz", file.read())


def _write(target: Path, content: bytes) -> None:
    if found := FORBIDDEN.search(content):
        raise SystemExit(f"still in {target.name}: {found.group()!r}")
    target.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{target.stat().st_size:9,}  {target.name} ({len(content):,} unpacked)")


if __name__ == "__main__":
    main()
