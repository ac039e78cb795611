"""The text of a trace, block by block, unpacked while earlier blocks are read, as far as a damaged file goes."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, BinaryIO, cast

from warplens.errors import UnreadableInputError
from warplens.readers.compressed import MAX_EXPANSION, MAX_UNPACKED_BYTES

__all__ = ["BLOCK_BYTES", "Source"]

#: Text handed out at a time. Array operations on much less spend their time on being called, on more on memory.
BLOCK_BYTES = 4 * 2**20

#: Packed bytes that are unpacked at a time: traces shrink fifteen- to thirtyfold, so that this gives about a mebibyte.
_PACKED_BYTES = 2**15
_BLOCKS_AHEAD = 2

#: A trace has a few lines over and over: gzip makes it thirty times smaller, zstd and xz up to three hundred times.
_MAX_EXPANSION = 10 * MAX_EXPANSION
_UNSUSPICIOUS_BYTES = 2**30


class Source:
    """A file's text.

    Args:
        path: the file.
        compression: `gzip`, `xz`, `zstd`, or None for a plain file.

    Attributes:
        cut_off: whether the compressed file is incomplete or damaged; known when all blocks are out.
        packed_bytes: size of the file; packed_read: how much of it is read.
    """

    def __init__(self, path: Path, compression: str | None) -> None:
        self._path, self._compression = path, compression
        self.cut_off = False
        self.packed_bytes = path.stat().st_size
        self.packed_read = 0

    def blocks(self) -> Generator[bytes, None, None]:
        """The text in blocks of about `BLOCK_BYTES`; a thread of its own reads and unpacks ahead.

        Raises:
            UnreadableInputError: the file expands without end, or cannot be read.
        """
        queue: Queue[bytes | BaseException | None] = Queue(_BLOCKS_AHEAD)
        stopped = Event()
        thread = Thread(target=self._fill, args=(queue, stopped), daemon=True)
        thread.start()
        try:
            while (block := queue.get()) is not None:
                if isinstance(block, BaseException):
                    raise block
                yield block
        finally:
            stopped.set()
            thread.join()

    def _fill(self, queue: Queue[bytes | BaseException | None], stopped: Event) -> None:
        def put(item: bytes | BaseException | None) -> bool:
            while not stopped.is_set():
                try:
                    queue.put(item, timeout=0.05)
                except Full:
                    continue
                return True
            return False

        try:
            with self._path.open("rb") as file:
                for block in self._unpacked(file):
                    if not put(block):
                        return
        except OSError as error:
            found = f"the system cannot read it ({error.strerror or type(error).__name__})"
            put(UnreadableInputError(self._path, found, "Copy the file to a local disk and try again"))
        except UnreadableInputError as error:
            put(error)
        put(None)

    def _unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        if self._compression is None:
            while block := file.read(BLOCK_BYTES):
                self.packed_read += len(block)
                yield block
            return
        limit = min(MAX_UNPACKED_BYTES, max(_UNSUSPICIOUS_BYTES, _MAX_EXPANSION * self.packed_bytes))
        parts: list[bytes] = []
        size = total = 0
        for part in self._parts(file):
            parts.append(part)
            size += len(part)
            total += len(part)
            if total > limit:
                found = f"unpacking it gives more than {limit:,} bytes, {_MAX_EXPANSION} times its size or more"
                raise UnreadableInputError(self._path, found, "Unpack it yourself if you trust it, and give the result")
            if size >= BLOCK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def _parts(self, file: BinaryIO) -> Iterator[bytes]:
        """Unpacked text, of all members or frames that stand one after the other."""
        damage, unpacker = _unpacker(self._compression or "")
        current = unpacker()
        is_begun = False
        while packed := file.read(_PACKED_BYTES):
            self.packed_read += len(packed)
            while packed:
                if current is None:
                    if self._compression == "gzip" and not packed.strip(b"\x00"):
                        break  # members may be padded with zeros
                    current, is_begun = unpacker(), False
                try:
                    part = current.decompress(packed)
                except damage:
                    self.cut_off = True
                    return
                is_begun = True
                packed = b""
                if part:
                    yield part
                if current.eof:
                    packed, current = current.unused_data, None
        self.cut_off = current is not None and is_begun


def _unpacker(compression: str) -> tuple[tuple[type[Exception], ...], Any]:
    """The errors of damaged input, and what makes an object that unpacks one member."""
    if compression == "gzip":
        try:
            from isal import isal_zlib  # noqa: PLC0415  several times as fast, where it is installed
        except ImportError:
            return (zlib.error,), lambda: zlib.decompressobj(wbits=31)
        return (zlib.error, cast("type[Exception]", isal_zlib.error)), lambda: isal_zlib.decompressobj(wbits=31)
    if compression == "xz":
        return (lzma.LZMAError, EOFError), lzma.LZMADecompressor
    import zstandard  # noqa: PLC0415  the other compressions do without

    return (zstandard.ZstdError,), lambda: zstandard.ZstdDecompressor().decompressobj()
