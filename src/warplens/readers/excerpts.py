"""An excerpt of a recording that is too large to be read completely: a time span in the middle of the events.

It is cut so that complete steps stay complete: a host call belongs to it by its begin, GPU work by the call that issued
it, and a range cut by only one edge of the span is left out, as only part of its work would be there. Calls and work of
a short time before the span are read, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl

from warplens.errors import UnreadableInputError
from warplens.profile import Note, NoteLevel
from warplens.profile.schema import LONGEST_NAME, Int64s
from warplens.profile.trace import TEXT_BYTES, TEXTS, WORK_TABLES
from warplens.readers.limits import FURTHEST_NS

#: GPU work begins at most this share of the span after the call that issued it (milliseconds, for spans of seconds).
#: As much is read before the span: why the GPU waits at the begin of a step depends on the work before it.
_MAX_QUEUE_SHARE: Final = 0.05

#: The note that only the events of some tables were read, for the whole recording.
IN_SLICES: Final = Note(
    "read-in-slices",
    NoteLevel.WARNING,
    "The profile was read in slices, without its steps, ranges and launches: what they tell of its quality is unknown.",
    "Give more memory (--memory) to have all of it looked at",
)

_Times = TypeVar("_Times", pl.Expr, Int64s)


@dataclass
class Sample:
    """Events in samples of a recording, by their kind."""

    size: int = 0  #: of the whole recording, in bytes of text or in events
    read: int = 0  #: of the samples
    begins: defaultdict[str, list[Int64s]] = field(default_factory=lambda: defaultdict(list))
    names: Counter[str | bytes] = field(default_factory=Counter)  #: how often each occurs in the samples

    def rows(self, kind: str) -> int:
        """Estimate of the events of a kind in the whole recording."""
        return sum(map(len, self.begins[kind])) * self.size // max(self.read, 1)

    def texts(self) -> dict[str, int]:
        """Estimate of the distinct names in the whole recording, and of their characters."""
        count = distinct_values(self.names, self.names.total() * self.size // max(self.read, 1))
        characters = sum(min(len(name), LONGEST_NAME) for name in self.names)
        return {TEXTS: count, TEXT_BYTES: characters * count // max(len(self.names), 1)}


def distinct_values(sampled: Counter[Any], count: int) -> int:
    """Estimate of the number of distinct values among `count`, from how often those of a random sample occur in it.

    After A. Chao, Scand. J. Statist. 11 (1984): the more of the sampled values occur once and the fewer twice, the more
    were not seen; at most as many as if all rows like those that occur once had a value of their own.
    """
    if not (size := sampled.total()):
        return 0
    once, twice = (sum(1 for times in sampled.values() if times == wanted) for wanted in (1, 2))
    unseen = min(once * (once - 1) // (2 * (twice + 1)), once * max(count - size, 0) // size)
    return len(sampled) + unseen


@dataclass(frozen=True)
class Excerpt:
    """A time span on the clock of the file, and the approximate share of the events in it."""

    start_ns: int
    end_ns: int
    share: float

    @classmethod
    def of(cls, samples: Iterable[Int64s], share: float, known_as: Path) -> Excerpt:
        """The middle span with this share of a sample of events.

        Args:
            samples: begins of sampled events, in any order, of several kinds: the first that tells is used.
            share: between 0 and 1.
            known_as: the file that the user named.

        Raises:
            UnreadableInputError: there are too few events.
        """
        for sampled in samples:
            begins = sampled[(sampled >= -FURTHEST_NS) & (sampled <= FURTHEST_NS)]
            if len(begins) >= 2:  # one event has no span
                first, edges = int(begins.min()), [(1 - share) / 2, (1 + share) / 2]
                low, high = (first + int(gap) for gap in np.quantile((begins - first).astype(np.float64), edges))
                if ((begins < low) | (begins >= high)).all():  # between two events: take one of them
                    low, high = np.quantile(begins, edges, method="nearest").tolist()
                return cls(low, max(high, low + 1), share)
        found = "it holds no event of which a part could be read"
        raise UnreadableInputError(known_as, found, "Allow more memory with --memory")

    @property
    def _queued_ns(self) -> int:
        return int((self.end_ns - self.start_ns) * _MAX_QUEUE_SHARE)

    def holds(self, table: str, start: _Times, end: _Times) -> Any:
        """Whether rows of a table of the trace may belong to the excerpt, as an expression or an array.

        Args:
            start: their begins.
            end: their ends; for an event without one, its begin.
        """
        if table == "ranges":
            inside = (start >= self.start_ns) & (end <= self.end_ns)
            return inside | ((start < self.start_ns) & (end > self.end_ns))
        last = self.end_ns + self._queued_ns if table in WORK_TABLES else self.end_ns
        return (start >= self.start_ns - self._queued_ns) & (start < last)

    def issued_in(self, work: pl.DataFrame, calls: pl.DataFrame | None, start: str, by: Sequence[str]) -> pl.DataFrame:
        """The GPU work issued by the excerpt's calls; without known calls, work that begins well inside the span.

        Args:
            work: rows that may belong to the excerpt.
            calls: the excerpt's calls; None if none were recorded.
            start: the column of `work` with its begins.
            by: columns in which a call and its work agree.
        """
        inside = pl.col(start) < self.end_ns
        if calls is None or not calls.height:
            return work.filter(inside)
        # Work still queued from calls that are not read begins first.
        inside &= pl.col(start) >= self.start_ns
        issuing = calls.select(by).unique().with_columns(issued=pl.lit(value=True))
        work = work.join(issuing, on=by, how="left", maintain_order="left")
        return work.filter(pl.col("issued").is_not_null() | inside).drop("issued")

    def note(self, zero_ns: int = 0) -> Note:
        """The note that the rest of the recording was not read; `zero_ns` is the trace's zero on the file's clock."""
        start, end = ((edge - zero_ns) / 1e9 for edge in (self.start_ns, self.end_ns))
        return Note(
            "read-in-part",
            NoteLevel.WARNING,
            f"Only the middle {100 * self.share:.0f} % of the recording was read, from {start:.3f} s to "
            f"{end:.3f} s: all of it takes more memory than is allowed. What lies outside is unknown.",
            "Allow more memory (--memory) to have all of it looked at",
        )
