"""The container of an Nsight Compute report (.ncu-rep), version 7: blocks of messages, walked without decoding them.

NVIDIA's Customization Guide ("Report File Format") describes it: four magic bytes, then messages, each after its length
(four bytes, little endian). First a file header, then blocks: a block header gives the number of messages of each kind
that follow it (the kernels' sources and machine code first, then results). Nearly every result has its own block, and
facts about the session are spread over blocks without results.

Sources and machine code, the largest part of many reports, are skipped by their lengths and never touched.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from warplens.errors import UnreadableInputError
from warplens.readers.opening import system_error
from warplens.wire import Data, Message, WireError

MAGIC = b"NVR\x00"

#: The only version that NVIDIA has described and that occurs in reports of 2021 to 2026.
VERSION = 7

COPY_AGAIN = "Copy or download the report again, or record it again"
_EXPORT = "ncu --import profile.ncu-rep --page raw --csv > profile.csv"

#: Fields of a block header besides the numbers of results (`FIELDS`).
_SOURCE_COUNT = 1
_PAYLOAD_SIZE = 5

#: Required fields of a result take more than this, its metrics many times more. A shorter message is not a result,
#: whatever number a header announces.
_LEAST_RESULT_BYTES = 16


@dataclass(frozen=True)
class Result:
    """Location of one result: kind, first byte, and the byte after its last."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """One block."""

    start: int  #: its begin (at the length of its header)
    header: Message
    results: tuple[Result, ...]  #: its results that are completely in the file
    unknown_bytes: int  #: bytes of the block after the known kinds of messages


class Container:
    """The blocks of a report.

    Attributes:
        stopped_at: the byte where reading stopped before the end of the file; None if it did not.
        reason: the reason, as a part of a sentence.
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
            raise UnreadableInputError(known_as, found, COPY_AGAIN)
        if version != VERSION:
            found = f"an Nsight Compute report of container version {version}; this program reads version {VERSION}"
            raise UnreadableInputError(known_as, found, f"Export it where it was recorded: {_EXPORT}")
        return end

    def blocks(self) -> Iterator[Block]:
        """The blocks in the order of the file, up to its end or to the first damaged or truncated place."""
        while self._at < self._size and self.stopped_at is None:
            block = self._block(self._at)
            if block is not None:
                yield block

    def stop(self, at: int, reason: str) -> None:
        """Ends the walk at this byte, which cannot be read."""
        self.stopped_at, self.reason = at, reason

    def _block(self, begin: int) -> Block | None:
        """The block that begins at this byte, as far as the file has it; None if it cannot be read."""
        try:
            start, self._at = self._message_at(begin)
            if start == self._at:  # zeros, where writing was interrupted after the file had been enlarged
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
            for kind, fields in FIELDS.items()
            for start, end in self._take(header.integer(fields.count) or 0, least=_LEAST_RESULT_BYTES)
        ]
        unknown = 0
        if self.stopped_at is None and payload_end > self._at:
            unknown = min(payload_end, self._size) - self._at
            if payload_end > self._size:
                self.stop(self._at, f"the file ends at byte {self._size}, inside the block that begins at byte {begin}")
            self._at = payload_end
        return Block(begin, header, tuple(results), unknown)

    def _take(self, count: int, least: int = 0) -> Iterator[tuple[int, int]]:
        """Locations of the next `count` messages, as far as they are completely in the file."""
        for _ in range(count):
            if self.stopped_at is not None:
                return
            try:
                start, end = self._message_at(self._at)
                if end - start < least:
                    raise WireError(f"the message at byte {self._at} is too short to be a result")
            except WireError as error:
                self.stop(self._at, str(error))
                return
            self._at = end
            yield start, end

    def _message_at(self, at: int) -> tuple[int, int]:
        """Location of the message whose length is at this byte."""
        start = at + 4
        if start <= self._size:
            (length,) = struct.unpack("<I", self._data[at:start])
            if start + length <= self._size:
                return start, start + length
        raise WireError(f"the file ends at byte {self._size}, inside a message that begins at byte {at}")


#: Accessing a mapped file that became shorter ends the process. Reports have some megabytes and are read whole; for
#: gigabytes that would take too much memory.
_READ_WHOLE_BYTES = 2**28


@contextmanager
def content_of(path: Path, known_as: Path) -> Iterator[Data]:
    """The file's content; for a large file as mapped memory."""
    data: Data
    try:
        with path.open("rb") as file:
            small = 0 < path.stat().st_size <= _READ_WHOLE_BYTES
            data = file.read() if small else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise UnreadableInputError(known_as, "the file is empty", COPY_AGAIN) from None
    except OSError as error:
        raise system_error(known_as, error) from None
    try:
        yield data
    finally:
        if isinstance(data, mmap.mmap):
            with suppress(BufferError):  # the traceback of an error may still hold a view of it
                data.close()


# --- Facts of a result besides metrics: the launch, its NVTX ranges, ncu's rules --------------------------------------
#
# The field numbers are those of the message descriptions that NVIDIA ships with Nsight Compute (`extras/FileFormat`).


@dataclass(frozen=True)
class Fields:
    """Field numbers of a kind of result; 0 if it has no such field."""

    count: int  #: in a block header: the number of such results
    metrics: int = 4
    thread: int = 1
    context: int = 11
    stream: int = 12
    sections: int = 7
    unsupported: int = 9
    nvtx: int = 10
    clocks: int = 13
    rules: int = 0


#: By kind, in the order of the results in a block.
FIELDS: Mapping[str, Fields] = {
    "kernel": Fields(2, metrics=13, context=22, stream=23, sections=17, unsupported=20, nvtx=21, clocks=25, rules=19),
    "range": Fields(7, stream=0, clocks=12),
    "cmdlist": Fields(8, rules=21),
    "graph": Fields(9),
}

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1


class Launch(NamedTuple):
    """One result without its metrics: the fields of the table `launches`, and facts about the session."""

    name: str
    full_name: str
    context: int | None
    stream: int | None
    sizes: tuple[int | None, ...]  #: grid x, y, z and block x, y, z
    nvtx: list[str] | None  #: open ranges, outermost first; None where NVTX was not recorded
    sections: tuple[str, ...]
    clocks: tuple[bool, bool] | None  #: whether locking the clocks was requested, and whether it was done
    unsupported: bool  #: whether ncu reports that it does not (fully) support the GPU


def launch_of(kind: str, result: Message) -> Launch | None:
    """The facts about one result; None if it lacks the name that every profiled kernel has."""
    fields = FIELDS[kind]
    short, full = kind, kind
    sizes: tuple[int | None, ...] = (None,) * 6
    if kind == "kernel":
        function = result.text(6) or result.text(7) or result.text(5)
        if not function:
            return None
        short, full = function, result.text(7) or function
        sizes = (*_xyz(result.message(10)), *_xyz(result.message(11)))
    elif kind == "cmdlist":
        short = full = result.text(18) or kind
    state = result.message(fields.nvtx)
    clocks = result.message(fields.clocks)
    return Launch(
        name=short,
        full_name=full,
        context=_at_most(_MAX_INT64, result.integer(fields.context)),
        stream=_at_most(_MAX_INT64, result.integer(fields.stream)),
        sizes=sizes,
        nvtx=None if state is None else _open_ranges(state, result.integer(fields.thread)),
        sections=tuple(section.text(1) or "" for section in result.messages(fields.sections)),
        clocks=None if clocks is None else (bool(clocks.integer(1)), bool(clocks.integer(2))),
        unsupported=bool(result.integer(fields.unsupported)),
    )


def _xyz(size: Message | None) -> tuple[int | None, int | None, int | None]:
    """The three sides; None for a launch that failed, which has sides of 0."""
    if size is None or not size.integer(1):
        return None, None, None
    x, y, z = (_at_most(_MAX_INT32, size.integer(number)) for number in (1, 2, 3))
    return x, y, z


def _at_most(limit: int, value: int | None) -> int | None:
    return value if value is not None and value <= limit else None


def _open_ranges(state: Message, thread: int | None) -> list[str]:
    """Names of the NVTX ranges that were open, outermost first.

    Push-pop ranges belong to threads: those of the launching thread count. Start-end ranges belong to the process. Each
    range has the number of the last CUDA call before it, which orders ranges of several domains; without it, the ranges
    are in the order of the file, start-end ranges first.
    """
    ranges: list[tuple[int, str]] = []
    for domain in state.messages(3):
        ranges += [(item.integer(4) or 0, item.text(2) or "") for item in domain.messages(3)]
    for owner in state.messages(2):
        if owner.integer(1) == thread:
            for domain in owner.messages(2):
                ranges += [(item.integer(3) or 0, item.text(1) or "") for item in domain.messages(3)]
    return [name for _, name in sorted(ranges, key=lambda item: item[0])]


_RULE_KINDS = {0: "none", 1: "ok", 2: "warning", 3: "error", 4: "optimization"}
_SPEEDUP_KINDS = {1: "local", 2: "global"}

#: Links in the text of a rule: `@url:words:https://…@`, `@section:identifier:words@`.
_LINK = re.compile(r"@(\w+):([^:@]*):([^@]*)@")

Rule = tuple[str, str, "str | None", str, str, "str | None", "float | None"]


#: Failed rules name the files of ncu in which they failed, with folders of the user who ran it.
_FOLDERS = re.compile(r"(?<![\w:/.])(?:[A-Za-z]:\\|/)(?:[^\s\\/:\"'][^\n\\/:\"']*[\\/])+(?=[^\s\\/])")


def rules_of(kind: str, result: Message) -> Iterator[Rule]:
    """Results of ncu's rules: rule, name, section, kind, message, kind of speedup, speedup (%).

    A rule without a finding has no row, one with three findings has three.
    """
    number = FIELDS[kind].rules
    for rule in result.messages(number) if number else ():
        body = rule.message(3)
        for item in body.messages(1) if body else ():
            finding = item.message(1)
            if finding is None:
                continue
            speedup = item.message(10)
            yield (
                rule.text(1) or "",
                rule.text(2) or "",
                rule.text(4),
                _RULE_KINDS.get(finding.integer(2) or 0, "none"),
                without_folders(plain_text(finding.text(1) or "")),
                _SPEEDUP_KINDS.get(speedup.integer(1) or 0) if speedup else None,
                speedup.double(2) if speedup else None,
            )


def without_folders(message: str) -> str:
    """The text without the folders of paths in it; names of files are kept."""
    return _FOLDERS.sub("", message)


def plain_text(message: str) -> str:
    """The text of a rule without its links, as ncu prints it: the words, and an address in brackets after them."""
    return _LINK.sub(lambda link: f"{link[2]} ({link[3]})" if link[1] == "url" else link[3], message)


def value_of(value: Message | None) -> int | float | str | None:
    """A value of a metric: text, a number of 4 or 8 bytes, or an unsigned one."""
    if value is None:
        return None
    for number in (5, 4):
        if (integer := value.integer(number)) is not None:
            return integer
    for number in (3, 2):
        if (real := value.double(number)) is not None:
            return real
    return value.text(1)
