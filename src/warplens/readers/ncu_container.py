"""The container of an Nsight Compute report (.ncu-rep), version 7: blocks of messages, walked without decoding them.

NVIDIA's Customization Guide ("Report File Format") describes it: four magic bytes, then messages, each after its
length (four bytes, little endian). First a file header, then blocks: a block header, which says how many messages of
which kind follow it (the kernels' sources and machine code first, then results). Nearly every result has a block of its
own, and what is known of the session arrives bit by bit in blocks without results.

Sources and machine code, the largest part of many reports, are passed over by their lengths and never touched.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.readers.ncu_rep_wire import Data, Message, WireError

__all__ = ["MAGIC", "VERSION", "Block", "Container", "Result", "mapped"]

MAGIC = b"NVR\x00"

#: The only version that NVIDIA has described and that any report at hand has, 2021 to 2026.
VERSION = 7

_ADVICE = "Copy or download the report again, or record it again"
_EXPORT = "ncu --import profile.ncu-rep --page raw --csv > profile.csv"

#: Fields of a block header with the number of messages of each kind of result, in the order in which these follow.
_RESULT_COUNTS = (("kernel", 2), ("range", 7), ("cmdlist", 8), ("graph", 9))
_SOURCE_COUNT = 1
_PAYLOAD_SIZE = 5

#: What every result must have takes more than this, its metrics many times more. A shorter message is no result,
#: however many of them a header announces.
_LEAST_RESULT_BYTES = 16


@dataclass(frozen=True)
class Result:
    """Where one result lies: of what kind, from which byte, and the byte after its last."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        start: where it begins (at the length of its header).
        header: what its header says.
        results: its results, as far as they lie wholly in the file.
        unknown_bytes: how much follows the known kinds of messages and belongs to the block.
    """

    start: int
    header: Message
    results: tuple[Result, ...]
    unknown_bytes: int


class Container:
    """The blocks of a report.

    Args:
        data: the whole file.
        known_as: the file that the user named.

    Attributes:
        stopped_at: the byte where reading came to an end before the end of the file; None where it did not.
        reason: why, as a part of a sentence.

    Raises:
        UnreadableInputError: the file is no report, or one of another version.
    """

    def __init__(self, data: Data, known_as: Path) -> None:
        self._data = data
        self._size = len(data)
        self.stopped_at: int | None = None
        self.reason = ""
        self._at = self._after_file_header(known_as)

    def _after_file_header(self, known_as: Path) -> int:
        if self._data[: len(MAGIC)] != MAGIC:
            found = "not an Nsight Compute report: it does not begin with NVR"
            raise UnreadableInputError(known_as, found, "Give a .ncu-rep file")
        try:
            start, end = self._message_at(len(MAGIC))
            version = Message(self._data, start, end).integer(1)
        except WireError:
            version = None
        if version is None:
            found = "an Nsight Compute report that ends, or is damaged, in its first bytes"
            raise UnreadableInputError(known_as, found, _ADVICE)
        if version != VERSION:
            found = f"an Nsight Compute report of container version {version}; this program reads version {VERSION}"
            raise UnreadableInputError(known_as, found, f"Export it where it was recorded: {_EXPORT}")
        return end

    def blocks(self) -> Iterator[Block]:
        """The blocks in the order of the file, up to its end or to the first place that is cut off or damaged."""
        while self._at < self._size and self.stopped_at is None:
            block = self._block(self._at)
            if block is not None:
                yield block

    def stop(self, at: int, reason: str) -> None:
        """Ends the walk: what begins at this byte cannot be read."""
        self.stopped_at, self.reason = at, reason

    def _block(self, begin: int) -> Block | None:
        try:
            start, self._at = self._message_at(begin)
            if start == self._at:  # zeros, where writing was broken off and the file had been made larger before
                raise WireError(f"the block at byte {begin} says nothing")
            header = Message(self._data, start, self._at)
        except WireError as error:
            self.stop(begin, str(error))
            return None
        payload_end = self._at + (header.integer(_PAYLOAD_SIZE) or 0)
        for _ in self._take(header.integer(_SOURCE_COUNT) or 0):
            pass
        results = [
            Result(kind, start, end)
            for kind, number in _RESULT_COUNTS
            for start, end in self._take(header.integer(number) or 0, least=_LEAST_RESULT_BYTES)
        ]
        unknown = 0
        if self.stopped_at is None and payload_end > self._at:
            unknown = min(payload_end, self._size) - self._at
            if payload_end > self._size:
                self.stop(self._at, f"the file ends at byte {self._size}, inside the block that begins at byte {begin}")
            self._at = payload_end
        return Block(begin, header, tuple(results), unknown)

    def _take(self, count: int, least: int = 0) -> Iterator[tuple[int, int]]:
        """Where the next messages lie, so many or as many as lie wholly in the file."""
        taken = 0
        while taken < count and self.stopped_at is None:
            try:
                start, end = self._message_at(self._at)
                if end - start < least:
                    raise WireError(f"the message at byte {self._at} is too short to be a result")
            except WireError as error:
                self.stop(self._at, str(error))
                return
            self._at = end
            taken += 1
            yield start, end

    def _message_at(self, at: int) -> tuple[int, int]:
        """Where the message lies whose length stands at this byte."""
        start = at + 4
        if start <= self._size:
            (length,) = struct.unpack("<I", self._data[at:start])
            if start + length <= self._size:
                return start, start + length
        raise WireError(f"the file ends at byte {self._size}, inside a message that begins at byte {at}")


@contextmanager
def mapped(path: Path, known_as: Path) -> Iterator[mmap.mmap]:
    """The file's content as memory that the system reads when it is touched.

    Raises:
        UnreadableInputError: the file is empty or cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise UnreadableInputError(known_as, "the file is empty", _ADVICE) from None
    except OSError as error:
        found = f"the system cannot read it ({error.strerror or type(error).__name__})"
        raise UnreadableInputError(known_as, found, "Copy the file to a local disk and try again") from None
    try:
        yield data
    finally:
        with suppress(BufferError):  # an error's traceback may still hold a view of it
            data.close()
