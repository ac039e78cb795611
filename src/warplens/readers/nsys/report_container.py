"""The container of a `.nsys-rep` or `.qdrep` report: sections, one of which holds compressed blocks of events.

A report is a line of text, consecutive sections, and an index of them at the end. The format was found by comparing
reports of 2021 to 2026 with their SQLite exports; `docs/reference/nsys-rep.md` describes all of it.

    "NVIDIA Tegra Profiler Report 2025@3@2@474-….": up to the full stop and what follows up to the first section
    sections, the first directly behind the full stop
    index: message {1: {1: name, 2: position, 3: size}, …}
    position of the index (8 bytes, little endian), "U3w[END]"

The section "Raw Sampling Data" holds the events:

    "QDTEXT00"
    length, message: the target and the session's times
    length, message: the numbers of events (1), strings (3) and threads (5), and the compression (9)
    blocks of events, each: compressed size, size, LZ4 block; in it length, message {1: event, 1: event, …}
    block of strings, in the same way: {1: string, 1: string, …}; the section "Sampling Data Offsets" has its position
    length, message: the threads
    length, message: GPUs, CUDA contexts and streams

Memory is bounded by the size of the file: the size that a block claims is checked before it is unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import lz4.block

from warplens.errors import UnreadableInputError
from warplens.readers import limits
from warplens.readers.nsys.report_wire import Bytes, DamagedError
from warplens.readers.opening import EXPORT, system_error
from warplens.wire import BYTES, Message, WireError, fields_of, varint

_MAGIC = b"NVIDIA Tegra Profiler Report "
_END = b"U3w[END]"
_TRAILER_BYTES = 16
_EVENTS_MAGIC = b"QDTEXT00"
_EVENTS, _OFFSETS = "Raw Sampling Data", "Sampling Data Offsets"
_OPTIONS, _ORIGIN = "Analysis Options Data", "UI Data"
_LZ4 = "lz4"

#: Maximum bytes of a varint of 64 bits.
_LENGTH_BYTES = 10

#: Bytes of blocks decoded together: enough to hide the cost of a call, few enough for the caches.
_BYTES_AT_ONCE = 2**20

#: Maximum other messages among the strings.
_MAX_OTHERS = 100_000

_DAMAGED = "Export it where it was recorded: nsys export --type sqlite; else record the program again"


class NotUnderstoodError(UnreadableInputError):
    """The report's format is unknown to this reader; an installed nsys may know it.

    Attributes:
        reason: the unknown part, as the rest of a sentence that ends in "because".
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        found = f"this report cannot be read without nsys: {reason}"
        super().__init__(path, found, f"Give its SQLite export: {EXPORT}")


@dataclass(frozen=True)
class Section:
    """Position and size of a named part of the file."""

    position: int
    size: int


class Report:
    """An open report.

    Attributes:
        known_as: the file as the user knows it.
        version: version of the nsys that wrote it, from the first line; None if that names only a build.
        target: first message of the section of events: the target and the session's times.
        event_count: number of events that the report claims to hold.
        strings: all strings, by number.
        tail: last message: GPUs, contexts, streams.
    """

    def __init__(self, file: BinaryIO, size: int, known_as: Path) -> None:
        """Reads all that surrounds the events: sections, target, counts, strings and the last message."""
        self._file, self._size, self.known_as = file, size, known_as
        self.version = version_in(self._at(0, min(size, 128)))
        self._sections = self._index()
        events = self._section(_EVENTS)
        offsets = self._section(_OFFSETS)
        stored = self._parsed(self._at(offsets.position, min(offsets.size, limits.MESSAGE_BYTES)))
        if self._at(events.position, len(_EVENTS_MAGIC)) != _EVENTS_MAGIC:
            raise NotUnderstoodError(self.known_as, "its events are stored in an unknown way")
        if stored.text(1) != _LZ4:
            raise NotUnderstoodError(self.known_as, "its events are compressed in an unknown way")
        begin = events.position + len(_EVENTS_MAGIC)
        self._end = events.position + events.size
        target, position = self._message(begin)
        self.target = self._parsed(target)
        numbers, self._first_block = self._message(position)
        counts = self._parsed(numbers)
        self.event_count = counts.integer(1) or 0
        self._strings_at = begin + (stored.integer(2) or 0)
        self._unpacked = 0
        if not self._first_block <= self._strings_at <= self._end:
            raise self.damaged("the place of its strings lies outside of its events")
        block, position = self._block(self._strings_at, limits.STRING_BLOCK_BYTES)
        self.strings = self._split_strings(block, counts.integer(3) or 0)
        _, position = self._message(position)  # threads and their names
        self.tail = self._parsed(self._message(position)[0])

    def blocks(self) -> Iterator[tuple[Bytes, list[tuple[int, int]], float]]:
        """The events, some blocks at a time: bytes, spans of the lists of events in them, and the share read so far."""
        position = self._first_block
        parts: list[bytes] = []
        spans: list[tuple[int, int]] = []
        size = 0
        while position < self._strings_at:
            block, position = self._block(position, limits.EVENT_BLOCK_BYTES)
            if position > self._strings_at:
                raise self.damaged("a block of events reaches into its strings")
            begin, end = self._framed(block)
            parts.append(block)
            spans.append((size + begin, size + end))
            size += len(block)
            if size >= _BYTES_AT_ONCE or position == self._strings_at:
                share = (position - self._first_block) / (self._strings_at - self._first_block)
                yield Bytes(b"".join(parts)), spans, share
                parts, spans, size = [], [], 0

    def sample(self, count: int) -> Iterator[tuple[Bytes, tuple[int, int]]]:
        """So many blocks of events, evenly spread over the report, each with the span of the list of events in it."""
        positions: list[int] = []
        position, seen, every = self._first_block, 0, 1
        while position < self._strings_at:
            if seen % every == 0:
                positions.append(position)
            seen += 1
            if len(positions) > 4 * count:  # memory is bounded
                positions, every = positions[::2], 2 * every
            packed, position = self._number(position)
            size, position = self._number(position)
            if not packed or not size:
                raise self.damaged("a block of events is empty")
            position += packed
        chosen = {index * len(positions) // count for index in range(count)} if positions else ()
        for number in sorted(chosen):
            block, _ = self._block(positions[number], limits.EVENT_BLOCK_BYTES)
            yield Bytes(block), self._framed(block)

    def message(self, name: str) -> bytes:
        """The content of a small section; empty if there is no section of this name."""
        section = self._sections.get(name, Section(0, 0))
        if section.size > limits.MESSAGE_BYTES:
            raise self.damaged(f"its section {name} is too large")
        return self._at(section.position, section.size)

    @property
    def options(self) -> bytes:
        """The recording options. They hold environment and command line: never show them."""
        return self.message(_OPTIONS)

    @property
    def origin(self) -> bytes:
        """Who made the report, with which version. This holds host and command line: never show it."""
        return self.message(_ORIGIN)

    def damaged(self, found: str) -> UnreadableInputError:
        """The error for a report that is damaged or cut off."""
        return UnreadableInputError(self.known_as, f"the report is damaged: {found}", _DAMAGED)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Turn errors of decoding into an error about this file."""
        try:
            yield
        except DamagedError as error:
            raise self.damaged(f"found {error}") from None
        except WireError:
            raise self.damaged("found a field that reaches beyond its message, or is none") from None

    def _parsed(self, content: bytes) -> Message:
        with self.understood():
            return Message(content, 0, len(content))

    def _at(self, position: int, count: int) -> bytes:
        if position < 0 or position + count > self._size:
            raise self.damaged("a part of it lies beyond its end")
        self._file.seek(position)
        content = self._file.read(count)
        if len(content) != count:
            raise self.damaged("it became shorter while it was read")
        return content

    def _index(self) -> dict[str, Section]:
        trailer = self._at(self._size - _TRAILER_BYTES, _TRAILER_BYTES) if self._size >= _TRAILER_BYTES else b""
        if not trailer.endswith(_END):
            advice = "Copy it again completely; a report that nsys did not finish must be recorded again"
            found = f"the report is cut off: after {self._size:,} bytes it ends without its table of contents"
            raise UnreadableInputError(self.known_as, found, advice)
        begin = int.from_bytes(trailer[:8], "little")
        end = self._size - _TRAILER_BYTES
        if not 0 < begin < end or end - begin > limits.INDEX_BYTES:
            raise self.damaged("its table of contents is not where it should be")
        sections = {}
        with self.understood():
            for entry in self._parsed(self._at(begin, end - begin)).messages(1):
                section = Section(entry.integer(2) or 0, entry.integer(3) or 0)
                if section.position + section.size > begin:
                    raise self.damaged("its table of contents names parts beyond its end")
                sections[entry.text(1) or ""] = section
        return sections

    def _section(self, name: str) -> Section:
        if name not in self._sections:
            raise NotUnderstoodError(self.known_as, f"it has no section {name}")
        return self._sections[name]

    def _number(self, position: int) -> tuple[int, int]:
        value, used = self._length(self._at(position, min(_LENGTH_BYTES, max(self._end - position, 0))))
        return value, position + used

    def _length(self, content: bytes) -> tuple[int, int]:
        """The number that the content begins with, and the number of its bytes."""
        try:
            return varint(content, 0)
        except (WireError, IndexError):
            raise self.damaged("found a number that does not end") from None

    def _message(self, position: int) -> tuple[bytes, int]:
        """The message after its length, and the position after it."""
        length, begin = self._number(position)
        if length > min(self._end - begin, limits.MESSAGE_BYTES):
            raise self.damaged("a message is longer than what is left of it")
        return self._at(begin, length), begin + length

    def _block(self, position: int, limit: int) -> tuple[bytes, int]:
        """An unpacked block, and the position after it."""
        packed, begin = self._number(position)
        size, begin = self._number(begin)
        self._unpacked += size
        if packed > self._end - begin:
            raise self.damaged("a block is longer than what is left of it")
        if size > limit or self._unpacked > limits.FREE_BLOCK_BYTES + limits.BLOCK_EXPANSION * self._size:
            raise self.damaged(f"a block claims to hold {size:,} bytes")
        try:
            content: bytes = lz4.block.decompress(self._at(begin, packed), uncompressed_size=size)
        except (lz4.block.LZ4BlockError, ValueError, OverflowError, MemoryError):
            raise self.damaged("a block cannot be decompressed") from None
        if len(content) != size:
            raise self.damaged("a block holds less than it says")
        return content, begin + packed

    def _framed(self, block: bytes) -> tuple[int, int]:
        """Begin and end of the message that fills a block after its length."""
        length, begin = self._length(block)
        if begin + length != len(block):
            raise self.damaged("the length of a block's message is not that of the block")
        return begin, begin + length

    def _split_strings(self, block: bytes, expected: int) -> list[bytes]:
        if expected > limits.STRINGS:
            raise self.damaged(f"it claims to hold {expected:,} strings")
        begin, end = self._framed(block)
        with self.understood():
            read = islice(fields_of(block[begin:end]), expected + _MAX_OTHERS + 1)
            strings = [content for number, wire, content, _ in read if (number, wire) == (1, BYTES)]
        if len(strings) != expected:
            raise self.damaged(f"it says to hold {expected:,} strings, but holds another number")
        return strings


@contextmanager
def opened(path: Path, known_as: Path) -> Iterator[Report]:
    """Open a report.

    Args:
        path: the file on disk.
        known_as: the file that the user named; `path` may be unpacked from it.

    Raises:
        NotUnderstoodError: the report's storage format is unknown.
        UnreadableInputError: the file is damaged, cut off, or not a report.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if file.read(len(_MAGIC)) != _MAGIC:
                raise UnreadableInputError(known_as, "this is not an Nsight Systems report", "Give a .nsys-rep file")
            yield Report(file, size, known_as)
    except OSError as error:
        raise system_error(known_as, error) from None


def version_in(head: bytes) -> str | None:
    """The version of nsys in the first bytes of a report: `2024.6.2` of `… 2024@6@2@225-…` (from 2021 on)."""
    version = re.match(rb"NVIDIA Tegra Profiler Report (\d{4})@(\d+)@(\d+)@", head)
    return ".".join(number.decode() for number in version.groups()) if version else None
