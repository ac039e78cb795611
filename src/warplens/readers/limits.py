"""Bounds on the work that a file may cause in a reader, each with its reason.

A file beyond a bound is refused in one line that names the bound and the variable that raises it:
`WARPLENS_MAX_UNPACKED_BYTES=200e9 warplens …`. Bounds far beyond honest files that guard a loop or a buffer of one
format are plain numbers here. The memory for a profile is bounded by `--memory`, the length of names by
`warplens.profile.schema.LONGEST_NAME`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warplens.errors import UnreadableInputError, UsageError

_PREFIX: Final = "WARPLENS_MAX_"


@dataclass(frozen=True)
class Limit:
    """A bound that a user may raise."""

    name: str  #: suffix of the environment variable, after `WARPLENS_MAX_`
    usual: int  #: the default bound
    what: str  #: the bounded quantity, as the end of "more than 1,000 …"

    @property
    def value(self) -> int:
        """The current bound.

        Raises:
            UsageError: the variable does not hold a number above zero.
        """
        text = os.environ.get(_PREFIX + self.name)
        if text is None:
            return self.usual
        try:
            number = float(text)
        except ValueError:
            number = 0.0
        if not 1 <= number < 2**63:
            raise UsageError(f"{_PREFIX}{self.name} is {text!r}: set it to a number above zero, or unset it")
        return int(number)

    def refused(self, path: Path, found: str) -> UnreadableInputError:
        """The error for a file beyond the bound: the problem, the bound, and how to raise it."""
        bound = f"{found} more than {self.value:,} {self.what}"
        return UnreadableInputError(path, bound, f"If you trust the file, set {_PREFIX}{self.name} to more")


#: Real captures are smaller; the largest export that the readers were measured with has 2 GB.
UNPACKED_BYTES: Final = Limit("UNPACKED_BYTES", 64 * 2**30, "bytes")

#: nsys exports shrink 4- to 12-fold. A file that grows a hundredfold is damaged, or made to fill the disk.
EXPANSION: Final = Limit("EXPANSION", 100, "times its size")

#: Traces are repetitive: gzip makes them thirty times smaller, zstd and xz up to three hundred times.
TRACE_EXPANSION: Final = Limit("TRACE_EXPANSION", 1_000, "times its size")

#: Below this size the ratio is not checked: such a file is written or skipped in a second or two.
UNSUSPICIOUS_BYTES: Final = 2**28

#: Measurements, policies and published tables, which are parsed whole; the largest we have is 0.7 MB. Parsing takes up
#: to ten times as much memory.
DOCUMENT_BYTES: Final = Limit("DOCUMENT_BYTES", 64 * 2**20, "bytes")

#: Total size of cached conversions by nsys: some twenty of common size.
CACHE_BYTES: Final = Limit("CACHE_BYTES", 4 * 2**30, "bytes")


def unpacked_bytes(packed: int, expansion: Limit = EXPANSION) -> tuple[int, Limit]:
    """The allowed unpacked size of a compressed file of this size, and the limit that applies."""
    by_ratio = max(UNSUSPICIOUS_BYTES, expansion.value * packed)
    return (by_ratio, expansion) if by_ratio < UNPACKED_BYTES.value else (UNPACKED_BYTES.value, UNPACKED_BYTES)


#: Times beyond these are damage: 52 days for one event, 73 years from the zero of a clock (1970 at the earliest).
#: Nearer ones can be subtracted in 64 bits, and two thousand of the longest events added up.
LONGEST_NS: Final = 2**52
FURTHEST_NS: Final = 2**61
IMPOSSIBLE_TIMES: Final = "no start or duration, an end before the start, or a time beyond any recording"

#: Size up to which the text around the events is kept; a trace's own description is smaller.
HEADER_BYTES: Final = 64 * 2**20

#: Longest event. One that does not end within this size is damaged, and reading continues after it.
EVENT_BYTES: Final = 4 * 2**20

#: Deepest nesting of an argument. Profilers write lists of tensors, each a list of sizes, at most; deeper values would
#: exhaust recursive readers.
NESTED_LEVELS: Final = 32

#: The largest block of events seen has 0.7 MB; nsys begins a new one after some ten thousand events.
EVENT_BLOCK_BYTES: Final = 2**26

#: All strings are in one block: 0.1 MB in small reports, some MB with call stacks.
STRING_BLOCK_BYTES: Final = 2**28
STRINGS: Final = 4_000_000

#: Messages other than events have up to 0.1 MB: they hold environments and lists of processes and threads.
MESSAGE_BYTES: Final = 2**24
INDEX_BYTES: Final = 2**20

#: Real blocks of events shrink to a third. A bound on all blocks together, against files made to fill the memory.
BLOCK_EXPANSION: Final = 32
FREE_BLOCK_BYTES: Final = 2**26

#: A line of a table of Nsight Compute; a full set of metrics takes 100 kB.
LINE_BYTES: Final = 2**24


def document_bytes(path: Path, known_as: Path) -> bytes:
    """The whole content of a file that is parsed at once.

    Raises:
        UnreadableInputError: it is larger than allowed, or not a regular file.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UnreadableInputError(known_as, "this is not a regular file", "Save its output to a file first")
    limit = DOCUMENT_BYTES.value
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise DOCUMENT_BYTES.refused(known_as, "it has")
    return content
