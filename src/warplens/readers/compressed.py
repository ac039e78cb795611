"""Compressed inputs: unpacked as a stream into a temporary file, bounded, and removed afterwards."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from warplens.errors import UnreadableInputError

__all__ = ["MAX_EXPANSION", "MAX_UNPACKED_BYTES", "PEEK_BYTES", "UNPACKERS", "peek", "unpacked"]

#: No capture is larger than this; the largest export that the readers were measured with has 2 GB.
MAX_UNPACKED_BYTES = 64 * 2**30

#: nsys exports shrink 4- to 12-fold. A file that grows a hundredfold is damaged, or made to fill the disk.
MAX_EXPANSION = 100

#: Below this size the ratio is not looked at: a small file of zeros harms nobody.
_UNSUSPICIOUS_BYTES = 2**30

_CHUNK_BYTES = 2**20

#: The part of the unpacked content that tells an nsys export from other databases: its schema lies at the front.
PEEK_BYTES = 2**20

Unpacker = Callable[[BinaryIO], BinaryIO]


def _open_gzip(packed: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=packed))


def _open_xz(packed: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, lzma.LZMAFile(packed))


def _open_zstd(packed: BinaryIO) -> BinaryIO:
    import zstandard  # noqa: PLC0415  the other compressions do without

    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True))


#: How to unpack each compression, by the name that `detect.compression` gives.
UNPACKERS: Mapping[str, Unpacker] = {"gzip": _open_gzip, "xz": _open_xz, "zstd": _open_zstd}


def peek(path: Path, unpacker: Unpacker) -> bytes:
    """The first bytes of the unpacked content, at most a mebibyte; fewer where the file is damaged."""
    with path.open("rb") as packed:
        try:
            return unpacker(packed).read(PEEK_BYTES)
        except _damage_errors():
            return b""


@contextmanager
def unpacked(path: Path, unpacker: Unpacker) -> Iterator[Path]:
    """A temporary file with the content of the compressed file `path`, outside its folder; removed at the end.

    Raises:
        UnreadableInputError: the file is damaged or incomplete, it expands beyond `MAX_EXPANSION` or
            `MAX_UNPACKED_BYTES`, or the temporary folder has no room for it.
    """
    folder = Path(tempfile.mkdtemp(prefix="warplens-"))
    try:
        target = folder / path.stem
        _unpack(path, unpacker, target)
        yield target
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unpack(path: Path, unpacker: Unpacker, target: Path) -> None:
    limit = min(MAX_UNPACKED_BYTES, max(_UNSUSPICIOUS_BYTES, MAX_EXPANSION * path.stat().st_size))
    size = 0
    try:
        with path.open("rb") as packed, target.open("wb") as plain:
            stream = unpacker(packed)
            while chunk := _next_chunk(stream, path):
                size += len(chunk)
                if size > limit:
                    found = f"unpacking it gives more than {limit:,} bytes, {MAX_EXPANSION} times its size or more"
                    raise UnreadableInputError(path, found, "Unpack it yourself if you trust it, and give the result")
                plain.write(chunk)
    except OSError as error:
        found = f"it cannot be unpacked into the temporary folder ({error.strerror})"
        raise UnreadableInputError(path, found, "Set TMPDIR to a folder with more room") from None


def _next_chunk(stream: BinaryIO, path: Path) -> bytes:
    try:
        return stream.read(_CHUNK_BYTES)
    except _damage_errors():
        found = "the compressed file is damaged or incomplete"
        raise UnreadableInputError(path, found, "Copy or download it again") from None


def _damage_errors() -> tuple[type[Exception], ...]:
    import zstandard  # noqa: PLC0415

    return (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
