"""A Chrome trace as a document: what stands around its events, and the events in pieces, whole or recovered."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from warplens.readers import kineto_json
from warplens.readers.kineto_events import EventReader, Piece
from warplens.readers.kineto_frames import Frames
from warplens.readers.kineto_numbers import PADDING, Bytes
from warplens.readers.kineto_scan import BOUNDARY
from warplens.readers.kineto_source import Source

__all__ = ["Document", "read_document"]

#: Where the array of events begins: `traceEvents` in an object, or the file itself is the array.
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY = re.compile(rb"\s*\[")

_TAIL_BYTES = 2**16

#: What stands around the events is kept up to here; beyond it is no trace's description of itself.
_HEADER_BYTES = 64 * 2**20

#: No event is longer than this; one that does not end until then is damaged, and reading goes on after it.
_LONGEST_EVENT = 32 * 2**20

#: Text that is read at a time where it cannot be cut beforehand.
_WINDOW_BYTES = 2**20

_BEGIN_BYTES = 2**16

#: Array operations let other threads run, but what happens between them does not: more than three get in each other's
#: way, and each holds some 50 MB.
_MOST_THREADS = 3
_NO_TEXT = 0xFF


class _UnbalancedError(Exception):
    """A piece did not end where an event ends."""


@dataclass
class Document:
    """What a trace holds.

    Attributes:
        frames: the events by kind; see `Frames.frames`.
        header: what stands around the events.
        categories: what the events bear as `cat`.
        events: how many events there are, of all kinds.
        damaged: how many places in them could not be read.
        cut_off_bytes: unpacked bytes of an event that is not complete at the end; None where the trace has its end.
        is_trace: whether there is an array of events at all.
        begin: the first bytes of the text, to tell what else it may be.
    """

    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    categories: tuple[str, ...] = ()
    events: int = 0
    damaged: int = 0
    cut_off_bytes: int | None = None
    is_trace: bool = True
    begin: bytes = b""


def read_document(
    path: Path, compression: str | None, launch_configuration: bool, progress: Callable[[int], None]
) -> Document:
    """Reads a trace.

    Args:
        path: the file.
        compression: how it is packed; None for a plain file.
        launch_configuration: whether to read how kernels were launched.
        progress: is told how many percent are read.

    Raises:
        UnreadableInputError: the file expands without end, or cannot be read.
    """
    try:
        return _Reading(Source(path, compression), launch_configuration, progress).read(threads=_threads())
    except _UnbalancedError:
        # Objects in arrays inside of events look like events where the text was cut. Without a guess where to cut it,
        # one thread alone can read it.
        return _Reading(Source(path, compression), launch_configuration, progress).read(threads=0)


def _threads() -> int:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, _MOST_THREADS)


class _Reading:
    def __init__(self, source: Source, launch_configuration: bool, progress: Callable[[int], None]) -> None:
        self.source, self.progress = source, progress
        self.reader = EventReader(launch_configuration)
        self.frames = Frames(self.reader)
        self.document = Document()
        self.is_array = False  # the file itself is the array; its end may then be missing
        self.ended = False  # the array of events has ended
        self.trailer = bytearray()
        self.damaged = 0

    def read(self, threads: int) -> Document:
        blocks = self.source.blocks()
        try:
            return self._read(self._told(blocks), threads)
        finally:
            blocks.close()

    def _read(self, blocks: Iterator[bytes], threads: int) -> Document:
        head, first = self._head(blocks)
        if first is None:
            self.document.is_trace = False
            self.document.begin = head[:_BEGIN_BYTES]
            self.document.cut_off_bytes = len(head) if self.source.cut_off else None
            return self.document
        self.document.begin = (head + first)[:_BEGIN_BYTES]
        rest = self._in_parallel(first, blocks, threads) if threads else self._one_by_one(first, blocks)
        lost = len(rest.strip(b" \t\r\n,"))
        if self.source.cut_off or lost or not (self.ended or self.is_array):
            self.document.cut_off_bytes = lost
        self.document.header = _header(head, bytes(self.trailer))
        self.document.categories = self.frames.categories
        self.document.events = self.frames.events
        self.document.damaged = self.frames.damaged + self.damaged
        self.document.frames = self.frames.frames()
        return self.document

    def _told(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        percent = 0
        for block in blocks:
            now = 100 * self.source.packed_read // max(self.source.packed_bytes, 1)
            if now > percent:
                percent = now
                self.progress(percent)
            yield block

    # -- around the events ---------------------------------------------------------------------------------------------

    def _head(self, blocks: Iterator[bytes]) -> tuple[bytes, bytes | None]:
        """What stands before the events, and the rest of the block in which they begin; None where there are none."""
        head = b""
        searched = 0
        for block in blocks:
            head = (head + block).removeprefix(b"\xef\xbb\xbf")
            if _ARRAY.match(head):
                self.is_array = True
                return b"", head[head.index(b"[") + 1 :]
            for found in _EVENTS.finditer(head, searched):
                if _depth(head[: found.start()]) == 1:
                    return head[: found.start()], head[found.end() :]
            searched = max(0, len(head) - 64)
            if len(head) > _HEADER_BYTES:
                break
        return head, None

    # -- the events ----------------------------------------------------------------------------------------------------

    def _in_parallel(self, first: bytes, blocks: Iterator[bytes], threads: int) -> bytes:
        """Pieces that are cut between what look like two events, read by several threads. Gives what is left over.

        Raises:
            _UnbalancedError: a piece did not end where an event ends.
        """
        pending: deque[tuple[Future[Piece], Bytes]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for text in self._cut(first, blocks):
                    if self.ended:
                        self._after_events(bytes(text[PADDING:-PADDING]))
                        continue
                    pending.append((pool.submit(self.reader.read, text, PADDING, len(text) - PADDING), text))
                    if len(pending) > threads:
                        self._take(*pending.popleft())
                while len(pending) > 1:
                    self._take(*pending.popleft())
                return self._take_last(*pending.popleft()) if pending else b""
            finally:
                for future, _ in pending:
                    future.cancel()

    def _cut(self, first: bytes, blocks: Iterator[bytes]) -> Iterator[Bytes]:
        carried = first
        for block in blocks:
            text = carried + block if carried else block
            at = _last_boundary(text)
            if at is None:
                carried = text
                continue
            yield _padded(text, at)
            carried = text[at:]
        yield _padded(carried, len(carried))

    def _take(self, future: Future[Piece], text: Bytes) -> None:
        piece = future.result()
        if self.ended:
            self._after_events(bytes(text[PADDING:-PADDING]))
            return
        if piece.broken is not None:
            raise _UnbalancedError
        if piece.scanned.array_end is not None:
            self._end(piece, text)
            return
        if not piece.scanned.is_balanced:
            raise _UnbalancedError
        self.frames.add(piece)

    def _take_last(self, future: Future[Piece], text: Bytes) -> bytes:
        piece = future.result()
        if self.ended:
            self._after_events(bytes(text[PADDING:-PADDING]))
            return b""
        if piece.broken is not None:
            raise _UnbalancedError
        if piece.scanned.array_end is not None:
            self._end(piece, text)
            return b""
        rest = bytes(text[piece.scanned.rest : -PADDING])
        if BOUNDARY.search(rest, 1):
            raise _UnbalancedError
        self.frames.add(piece)
        return rest

    def _after_events(self, text: bytes) -> None:
        if len(self.trailer) + len(text) <= _HEADER_BYTES:
            self.trailer += text

    def _end(self, piece: Piece, text: Bytes) -> None:
        self.ended = True
        self.frames.add(piece)
        self._after_events(bytes(text[(piece.scanned.array_end or 0) + 1 : -PADDING]))

    def _one_by_one(self, first: bytes, blocks: Iterator[bytes]) -> bytes:
        """Pieces one after the other, each beginning where the events of the one before it ended."""
        carried = first
        windows = (block[at : at + _WINDOW_BYTES] for block in blocks for at in range(0, len(block), _WINDOW_BYTES))
        for window in windows:
            if self.ended:
                self._after_events(window)
            else:
                carried = self._past_events(carried + window, is_last=False)
        return carried if self.ended else self._past_events(carried, is_last=True)

    def _past_events(self, text: bytes, *, is_last: bool) -> bytes:
        """Takes all complete events at the begin of the text, and gives what follows them.

        An event that does not end although another one seems to begin is damaged, unless it holds what looks like
        events itself. Reading goes on with the next one.
        """
        while text:
            buffer = _padded(text, len(text))
            piece = self.reader.read(buffer, PADDING, len(buffer) - PADDING)
            broken = piece.broken
            if broken is not None:  # it has swallowed those that follow; what stands before it is sound
                piece = self.reader.read(buffer, PADDING, broken)
            elif piece.scanned.array_end is not None:
                self._end(piece, buffer)
                return b""
            self.frames.add(piece)
            text = text[piece.scanned.rest - PADDING :]
            boundary = BOUNDARY.search(text, 1)
            if boundary is None:
                too_long = len(text) > _LONGEST_EVENT
                self.damaged += too_long
                return b"" if too_long else text
            if broken is None and not is_last and len(text) <= _LONGEST_EVENT and _may_be_one_event(text):
                return text
            self.damaged += 1
            text = text[boundary.end() :]
        return text


def _padded(text: bytes, length: int) -> Bytes:
    buffer = np.empty(length + 2 * PADDING, np.uint8)
    buffer[:PADDING] = buffer[-PADDING:] = _NO_TEXT
    buffer[PADDING:-PADDING] = np.frombuffer(text, np.uint8, length)
    return buffer


def _last_boundary(text: bytes) -> int | None:
    """Where the last event of the text begins, as far as that can be told from its end; None where it cannot."""
    tail = _TAIL_BYTES
    while True:
        begin = max(0, len(text) - tail)
        last = None
        for found in BOUNDARY.finditer(text, begin):
            last = found.end()
        if last is not None or begin == 0:
            return last
        tail *= 8


def _may_be_one_event(text: bytes) -> bool:
    """Whether what looks like events in the text may stand in an array inside of one event."""
    plain = re.sub(rb'"(?:[^"\\]|\\.)*("|\Z)', b"", text, flags=re.DOTALL)
    return plain.count(b"[") > plain.count(b"]")


def _depth(text: bytes) -> int:
    """How many objects are open at the end of the text."""
    plain = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text, flags=re.DOTALL)
    return plain.count(b"{") - plain.count(b"}")


def _header(head: bytes, trailer: bytes) -> dict[str, Any]:
    """What stands before and after the events, as one object; what cannot be read of it is left out."""
    text = (head.rstrip(b" \t\r\n,") + b"," + trailer.lstrip(b" \t\r\n,")).strip(b" \t\r\n,")
    for attempt in (text, text + b"}", head.rstrip(b" \t\r\n,") + b"}", b"{" + trailer.lstrip(b" \t\r\n,")):
        try:
            value = kineto_json.lenient(re.sub(rb"\{\s*,", b"{", attempt, count=1).decode("utf-8", "replace"))
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return {}
