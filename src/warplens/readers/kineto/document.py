"""A Chrome trace as a document: its text block by block, the members around its events, and the events in pieces.

The text is read with bounded memory, whatever its length and content. Of a truncated or damaged trace, all complete
events are found. The caller decides what is done with an event (`Pieces`).
"""

from __future__ import annotations

import json
import lzma
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, BinaryIO, Generic, Protocol, TypeVar, cast

import numpy as np

from warplens.errors import UnreadableInputError
from warplens.readers.kineto.json_text import EXACT, lenient
from warplens.readers.kineto.scan import BOUNDARY, Piece
from warplens.readers.kineto.values import PADDING, Bytes
from warplens.readers.limits import EVENT_BYTES, HEADER_BYTES, TRACE_EXPANSION, unpacked_bytes
from warplens.readers.opening import Input, system_error

#: Size of a block of text. Array operations on much less are dominated by call overhead, on more by memory.
BLOCK_BYTES = 4 * 2**20

#: Packed bytes that are unpacked at a time: traces shrink fifteen- to thirtyfold, so that this gives about a mebibyte.
_PACKED_BYTES = 2**15
_LEAST_PACKED_BYTES = 2**9
_BLOCKS_AHEAD = 2


class Source:
    """A file's text.

    Attributes:
        cut_off: whether the compressed file is incomplete or damaged; known after the last block.
        packed_bytes: size of the file; packed_read: number of its bytes read so far.
    """

    def __init__(self, path: Path, compression: str | None) -> None:
        self._path, self._compression = path, compression
        self.cut_off = False
        self.packed_bytes = path.stat().st_size
        self.packed_read = 0

    def blocks(self) -> Generator[bytes, None, None]:
        """The text in blocks of about `BLOCK_BYTES`; a separate thread reads and unpacks ahead."""
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
        """Puts the unpacked blocks, or the error that ends them, and then None into the queue.

        It ends early once `stopped` is set.
        """

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
                for block in self.unpacked(file):
                    if not put(block):
                        return
        except OSError as error:
            put(system_error(self._path, error))
        except UnreadableInputError as error:
            put(error)
        put(None)

    def unpacked(self, file: BinaryIO) -> Iterator[bytes]:
        """The text of the opened file in pieces."""
        if self._compression is None:
            while block := file.read(BLOCK_BYTES):
                self.packed_read += len(block)
                yield block
            return
        most, limit = unpacked_bytes(self.packed_bytes, TRACE_EXPANSION)
        parts: list[bytes] = []
        size = total = 0
        for part in self._parts(file):
            parts.append(part)
            size += len(part)
            total += len(part)
            if total > most:
                raise limit.refused(self._path, f"unpacking it gives {most:,} bytes and on,")
            if size >= BLOCK_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def _parts(self, file: BinaryIO) -> Iterator[bytes]:
        """Unpacked text of all consecutive members or frames."""
        damage, unpacker = _unpacker(self._compression or "")
        current = unpacker()
        is_begun = False
        amount = _LEAST_PACKED_BYTES
        while packed := file.read(amount):
            self.packed_read += len(packed)
            size = 0
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
                size += len(part)
                if part:
                    yield part
                if current.eof:
                    packed, current = current.unused_data, None
            # Few bytes can hold very much text: the output per read is kept near a block.
            amount = (
                min(2 * amount, _PACKED_BYTES) if size <= BLOCK_BYTES // 2 else max(amount // 8, _LEAST_PACKED_BYTES)
            )
        self.cut_off = current is not None and is_begun


def _unpacker(compression: str) -> tuple[tuple[type[Exception], ...], Any]:
    """The exceptions for damaged input, and a factory of objects that unpack one member."""
    if compression == "gzip":
        try:
            from isal import isal_zlib
        except ImportError:
            return (zlib.error,), lambda: zlib.decompressobj(wbits=31)
        return (zlib.error, cast("type[Exception]", isal_zlib.error)), lambda: isal_zlib.decompressobj(wbits=31)
    if compression == "xz":
        return (lzma.LZMAError, EOFError), lzma.LZMADecompressor
    import zstandard

    return (zstandard.ZstdError,), lambda: zstandard.ZstdDecompressor().decompressobj()


#: Tokens searched to find the array of events: strings and braces.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}]', re.DOTALL)
_EVENTS = b'"traceEvents"'
_OPENS = re.compile(rb"\s*:\s*\[")
_ARRAY = re.compile(rb"\s*\[")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("|\Z)', re.DOTALL)

_TAIL_BYTES = 2**16

#: Size of text read at a time where it cannot be cut in advance.
_WINDOW_BYTES = 2**20

_BEGIN_BYTES = 2**16

#: Array operations release the interpreter lock, the code between them does not: more than three threads slow each
#: other down, and each holds some 50 MB.
_MOST_THREADS = 3
_NO_TEXT = 0xFF

AnyPiece = TypeVar("AnyPiece", bound=Piece)
AnyPieces = TypeVar("AnyPieces", bound="Pieces[Any]")


class Pieces(Protocol[AnyPiece]):
    """The consumer of the events."""

    def read(self, text: Bytes, begin: int, end: int) -> AnyPiece:
        """The complete events in `text[begin:end]`; may be called by several threads at once."""

    def add(self, piece: AnyPiece) -> None:
        """Take a result of `read`, in the order of the text."""


class _UnbalancedError(Exception):
    """A piece did not end where an event ends."""


@dataclass
class Document:
    """Content of a trace other than its events."""

    header: dict[str, Any] = field(default_factory=dict)  #: members around the events
    events: int = 0  #: number of events of all kinds
    damaged: int = 0  #: number of places in them that could not be read
    #: unpacked bytes of an incomplete event at the end; None if the trace is complete
    cut_off_bytes: int | None = None
    is_trace: bool = True  #: whether there is an array of events at all
    begin: bytes = b""  #: the first bytes of the text, to identify other formats


def walk(
    file: Input,
    pieces: Callable[[], AnyPieces],
    progress: Callable[[int], None] = lambda _: None,
    *,
    in_parallel: bool = True,
    decoder: json.JSONDecoder = EXACT,
) -> tuple[Document, AnyPieces]:
    """Read a trace."""
    if in_parallel:
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        try:
            parallel = _Walk(Source(file.path, file.compression), pieces(), progress, decoder)
            return parallel.walk(min(available, _MOST_THREADS))
        except _UnbalancedError:
            # Objects in arrays inside of events look like events at the cut, or no boundary was found. Without a
            # guessed cut, only one thread can read the text.
            pass
    return _Walk(Source(file.path, file.compression), pieces(), progress, decoder).walk(0)


class _Walk(Generic[AnyPieces]):
    def __init__(
        self, source: Source, pieces: AnyPieces, progress: Callable[[int], None], decoder: json.JSONDecoder
    ) -> None:
        self.source = source
        self.pieces = pieces
        self.progress = progress
        self.decoder = decoder
        self.document = Document()
        self.is_array = False  # the file itself is the array; its closing bracket may be missing
        self.ended = False  # the array of events has ended
        self.trailer = bytearray()

    def walk(self, threads: int) -> tuple[Document, AnyPieces]:
        """Read everything: the document, and the consumer of the events."""
        blocks = self.source.blocks()
        try:
            self._walk(self._with_progress(blocks), threads)
        finally:
            blocks.close()
        return self.document, self.pieces

    def _walk(self, blocks: Iterator[bytes], threads: int) -> None:
        head, first = self._head(blocks)
        if first is None:
            self.document.is_trace = False
            self.document.begin = head[:_BEGIN_BYTES]
            return
        self.document.begin = (head + first)[:_BEGIN_BYTES]
        rest = self._in_parallel(first, blocks, threads) if threads else self._one_by_one(first, blocks)
        lost = len(rest.strip(b" \t\r\n,"))
        if self.source.cut_off or lost or not (self.ended or self.is_array):
            self.document.cut_off_bytes = lost
            if not self.document.events and not self.source.cut_off and _closes_array(rest):
                self.document.damaged += 1
        self.document.damaged += _EVENTS in self.trailer  # of another trace, which was appended
        self.document.header = _header(head, bytes(self.trailer), self.decoder)

    def _with_progress(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        percent = 0
        for block in blocks:
            now = 100 * self.source.packed_read // max(self.source.packed_bytes, 1)
            if now > percent:
                percent = now
                self.progress(percent)
            yield block

    def _head(self, blocks: Iterator[bytes]) -> tuple[bytes, bytes | None]:
        """The text before the events, and the rest of the block in which they begin; None if there are none."""
        head = b""
        depth = position = 0
        for block in blocks:
            head = (head + block).removeprefix(b"\xef\xbb\xbf")
            if _ARRAY.match(head):
                self.is_array = True
                return b"", head[head.index(b"[") + 1 :]
            for token in _TOKEN.finditer(head, position):
                if token[0] in b"{}":
                    depth += 1 if token[0] == b"{" else -1
                elif depth == 1 and token[0] == _EVENTS:
                    if opens := _OPENS.match(head, token.end()):
                        return head[: token.start()], head[opens.end() :]
                    if not head[token.end() :].strip(b": \t\r\n"):
                        break  # it continues in the next block
                position = token.end()
            if len(head) > HEADER_BYTES:
                break
        else:
            self.document.cut_off_bytes = len(head) if self.source.cut_off or depth > 0 else None
        return head, None

    def _in_parallel(self, first: bytes, blocks: Iterator[bytes], threads: int) -> bytes:
        """Pieces cut at presumed event boundaries, read by several threads. Returns the remaining text."""
        pending: deque[tuple[Future[Piece], Bytes]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for text in self._cut(first, blocks):
                    if self.ended:
                        self._after_events(bytes(text[PADDING:-PADDING]))
                        continue
                    pending.append((pool.submit(self.pieces.read, text, PADDING, len(text) - PADDING), text))
                    if len(pending) > threads:
                        self._take(*pending.popleft())
                while len(pending) > 1:
                    self._take(*pending.popleft())
                return self._take(*pending.popleft(), is_last=True) if pending else b""
            finally:
                for future, _ in pending:
                    future.cancel()

    def _cut(self, first: bytes, blocks: Iterator[bytes]) -> Iterator[Bytes]:
        remainder = first
        for block in blocks:
            text = remainder + block if remainder else block
            boundary = last_boundary(text)
            if boundary is None:
                if len(text) > EVENT_BYTES:
                    raise _UnbalancedError
                remainder = text
                continue
            yield padded(text, boundary)
            remainder = text[boundary:]
        yield padded(remainder, len(remainder))

    def _take(self, future: Future[Piece], text: Bytes, *, is_last: bool = False) -> bytes:
        """Add a piece; return the remaining text of the last one."""
        piece = future.result()
        if self.ended:
            self._after_events(bytes(text[PADDING:-PADDING]))
            return b""
        if piece.broken is not None:
            raise _UnbalancedError
        if piece.scanned.array_end is not None:
            self._end(piece, text)
            return b""
        rest = bytes(text[piece.scanned.rest : -PADDING]) if is_last else b""
        if BOUNDARY.search(rest, 1) if is_last else not piece.scanned.is_balanced:
            raise _UnbalancedError
        self._add(piece)
        return rest

    def _add(self, piece: Piece) -> None:
        self.document.events += len(piece.scanned.starts)
        self.document.damaged += piece.damaged
        self.pieces.add(piece)

    def _after_events(self, text: bytes) -> None:
        if len(self.trailer) + len(text) <= HEADER_BYTES:
            self.trailer += text

    def _end(self, piece: Piece, text: Bytes) -> None:
        self.ended = True
        self._add(piece)
        self._after_events(bytes(text[(piece.scanned.array_end or 0) + 1 : -PADDING]))

    def _one_by_one(self, first: bytes, blocks: Iterator[bytes]) -> bytes:
        """Pieces one after the other, each beginning where the events of the one before it ended."""
        remainder, new_text, size = first, bytearray(), 0
        for block in blocks:
            for offset in range(0, len(block), _WINDOW_BYTES):
                window = block[offset : offset + _WINDOW_BYTES]
                if self.ended:
                    self._after_events(window)
                    continue
                new_text += window
                size += len(window)
                if size >= len(remainder):  # an event without end is searched again after twice as much text
                    remainder = self._past_events(remainder + new_text, is_last=False)
                    new_text, size = bytearray(), 0
        if self.ended:
            self._after_events(bytes(new_text))
            return b""
        return self._past_events(remainder + new_text, is_last=True)

    def _past_events(self, text: bytes, *, is_last: bool) -> bytes:
        """Take all complete events at the begin of the text, and return the text after them.

        An event without end, although another one seems to begin, is damaged, unless it contains what looks like events
        itself. Reading continues with the next one.
        """
        while text:
            buffer = padded(text, len(text))
            piece = self.pieces.read(buffer, PADDING, len(buffer) - PADDING)
            broken = piece.broken
            if broken is not None:  # it includes the events after it; those before it are sound
                piece = self.pieces.read(buffer, PADDING, broken)
            elif piece.scanned.array_end is not None:
                self._end(piece, buffer)
                return b""
            self._add(piece)
            text = text[piece.scanned.rest - PADDING :]
            boundary = BOUNDARY.search(text, 1)
            if boundary is None:
                too_long = len(text) > EVENT_BYTES
                self.document.damaged += too_long
                return b"" if too_long else text
            if broken is None and not is_last and len(text) <= EVENT_BYTES and _may_be_one_event(text):
                return text
            self.document.damaged += 1
            text = text[boundary.end() :]
        return text


def padded(text: bytes, length: int) -> Bytes:
    """The begin of a text, between the padding that readers of words need."""
    buffer = np.empty(length + 2 * PADDING, np.uint8)
    buffer[:PADDING] = buffer[-PADDING:] = _NO_TEXT
    buffer[PADDING:-PADDING] = np.frombuffer(text, np.uint8, length)
    return buffer


def last_boundary(text: bytes) -> int | None:
    """Begin of the last event of the text, as far as it can be determined from its end; else None."""
    tail = _TAIL_BYTES
    while True:
        begin = max(0, len(text) - tail)
        last = None
        for boundary in BOUNDARY.finditer(text, begin):
            last = boundary.end()
        if last is not None or begin == 0:
            return last
        tail *= 8


def _closes_array(text: bytes) -> bool:
    """Whether the array that the text begins in ends in it: a complete file whose array holds no events."""
    plain = _STRING.sub(b"", text)
    return plain.count(b"]") > plain.count(b"[")


def _may_be_one_event(text: bytes) -> bool:
    """Whether presumed events in the text may be in an array inside one event."""
    plain = _STRING.sub(b"", text)
    return plain.count(b"[") > plain.count(b"]")


def _header(head: bytes, trailer: bytes, decoder: json.JSONDecoder) -> dict[str, Any]:
    """The text before and after the events as one object; unreadable parts are left out."""
    text = (head.rstrip(b" \t\r\n,") + b"," + trailer.lstrip(b" \t\r\n,")).strip(b" \t\r\n,")
    for attempt in (text, text + b"}", head.rstrip(b" \t\r\n,") + b"}", b"{" + trailer.lstrip(b" \t\r\n,")):
        try:
            value = lenient(re.sub(rb"\{\s*,", b"{", attempt, count=1).decode("utf-8", "replace"), decoder)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
